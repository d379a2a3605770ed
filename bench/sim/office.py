"""Work for many jobs at once and the reading of the provider's books, in worker processes that die like any other."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

from django.db import Error
from django.db.models import Count

from bench.sim.desk import BEGINS, Desk
from jobs.lifecycle import bulk, bulk_acts
from jobs.lifecycle import statement as statements
from jobs.lifecycle.errors import Refused
from jobs.models import BulkRun, Job, JobEvent, Orphan, ProviderTask, Statement
from jobs.stages import statement as stage
from jobs.statement import Unreadable
from providers.contract import Account, Adapter, Answer, HistoryItem
from providers.sandbox.ledger import fingerprint
from providers.sandbox.reactions import Request
from providers.sandbox.reactions import Transport as Way
from providers.sandbox.submission import Submission

CHUNK = 2
AGAIN_S = 60.0  # as often as the minute's ring calls for what waits


@contextlib.contextmanager
def small_slices(desk: Desk) -> Iterator[None]:
    """Bulk work in chunks of two, none of it within the yes; a history that is asked without a socket."""

    def listing(
        adapter: Adapter, account: Account, window: tuple[datetime, datetime], *, until: float
    ) -> list[HistoryItem] | stage.Unread:
        return _listing(desk, adapter, account, window)

    def receipts(_adapter: Adapter, asked: Sequence[Any], *, until: float) -> dict[str, Any]:
        return {provider_id: Unreadable() for provider_id, _account in asked}

    with (
        mock.patch.multiple(bulk, CHUNK=CHUNK, AT_ONCE=0, call_worker=lambda: None),
        mock.patch.multiple(
            stage, _listing=listing, _receipts=receipts, async_to_sync=lambda function: function
        ),
    ):
        yield


def act_sometimes(desk: Desk) -> None:
    """A person asks for something for many, or for a statement; and somebody works at what was asked for."""
    if desk.chance.strikes("bulk", desk.plan["rates"]["bulk"]):
        desk.turns.start("a person", lambda: _unless_refused(desk, _ask_for_many))
    if desk.chance.strikes("statement", desk.plan["rates"]["statement"]):
        desk.turns.start("a person", lambda: _unless_refused(desk, _at_the_books))
    work_sometimes(desk)


def work_sometimes(desk: Desk) -> None:
    """A worker for what waits, once a minute or at the bell; one that has died is followed by another."""
    if desk.turns.now < desk.next_work_at:
        return
    desk.next_work_at = desk.turns.now + desk.chance.number("office/again", 1.0, AGAIN_S)
    with desk.turns.aside():
        bulk_waits = bulk.waits()
        readings = list(Statement.objects.filter(state=Statement.State.READING).values_list("pk", flat=True))  # fmt: skip
    if bulk_waits:
        _worker(desk, _work)
    for pk in readings:
        _worker(desk, lambda desk, pk=pk: _read(desk, pk))


def _worker(desk: Desk, work: Any) -> None:
    actor = desk.turns.start("a worker", lambda: _unless_refused(desk, work))
    desk.workers.add(actor)


def _unless_refused(desk: Desk, do: Any) -> None:
    try:
        do(desk)
    except Refused:
        pass
    except (Error, bulk.ChunkError) as error:
        desk.turns.tell(f"fails: {error.__cause__ or error}")


# --- many jobs at once ------------------------------------------------------------------------------------------------


def _ask_for_many(desk: Desk) -> None:
    chance, now, person = desk.chance, desk.clock.moment(), desk.plan["person"]
    running = list(BulkRun.objects.filter(state=BulkRun.State.OPEN).values_list("pk", flat=True))
    if running and chance.number("bulk/stop") < 0.3:
        bulk.abort(run_id=running[0], actor=person, now=now)
        desk.turns.tell(f"bulk run {running[0]} is stopped")
        return
    act = chance.pick("bulk/act", sorted(bulk_acts.ACTS))
    data: dict[str, Any] = {
        "reason": "simulated", "note": "simulated", "outcome": "gave_up", "target": desk.targets[-1].pk
    }  # fmt: skip
    # Staff of the simulation hold no permissions; a command asks for none.
    run = bulk.start(
        act=bulk_acts.ACTS[act], jobs=Job.objects.filter(pk__gt=0), data=data, actor=None, now=now,
        token=uuid.uuid4(), by_command=True, chosen=str(person),
    )  # fmt: skip
    desk.turns.tell(f"{act} for {run.total} jobs: bulk run {run.pk}")


def _work(desk: Desk) -> None:
    while (step := bulk.work(now=desk.clock.now())) is bulk.Step.WORKED:
        desk.turns.tell("works off a chunk")
    desk.turns.tell(f"bulk work: {step.value}")


# --- the books --------------------------------------------------------------------------------------------------------


def _at_the_books(desk: Desk) -> None:
    """Another program makes a picture with our key; somebody wants a statement; somebody decides about an orphan."""
    chance, now, person = desk.chance, desk.clock.moment(), desk.plan["person"]
    match chance.pick("statement/what", ("plant", "ask", "ask", "adopt", "dispute")):
        case "plant":
            if not desk.plan["exclusive"]:
                _plant(desk)
        case "ask":
            row = statements.ask(
                provider="polza", account_id=None, since=BEGINS, until=now, actor=person, now=now
            )
            desk.turns.tell(f"statement {row.pk} is asked for")
        case what:
            orphan = Orphan.objects.filter(outcome="").order_by("pk").first()
            if orphan is None:
                return
            common: dict[str, Any] = {"orphan_id": orphan.pk, "actor": person, "now": now}
            if what == "adopt":
                statements.adopt(
                    **common, tenant_id=desk.tenants[0].pk, prompt="adopted", reference=""
                )
            else:
                statements.dispute(**common, reference="T-1")
            desk.turns.tell(f"orphan {orphan.pk}: {what}")


def _plant(desk: Desk) -> None:
    desk.planted += 1
    submission = Submission(
        provider="polza", key=fingerprint(desk.keys[-1]), model=desk.targets[0].model, correlation="",
        prompt="of another program",
    )  # fmt: skip
    made = desk.world.plant(
        submission, f"gen_planted_{desk.planted}", created=desk.clock.unix(), price=None, outcome="completed",
    )  # fmt: skip
    desk.turns.tell(f"another program makes {made.id}")


def _read(desk: Desk, pk: int) -> None:
    """One slice of a reading, of pieces as they come."""
    if stage.run(pk, for_s=1e9):
        desk.turns.tell(f"statement {pk}: there is more to read")
    elif Statement.objects.filter(pk=pk).exclude(state=Statement.State.READING).exists():
        desk.turns.tell(f"statement {pk} is read")


def _listing(
    desk: Desk, adapter: Adapter, account: Account, window: tuple[datetime, datetime]
) -> list[HistoryItem] | stage.Unread:
    """All pages, from the sandbox itself; what it does wrong with them is told as the product's reader would."""
    items: dict[str, HistoryItem] = {}
    page = pages = 1
    while page <= pages:
        call = adapter.history(account, since=window[0], until=window[1], page=page)
        if call is None:
            return stage.Unread("this provider has no history")
        asked = Request("GET", urlsplit(call.url).path, call.params, adapter.authorisation(account))
        reaction = desk.world.handle(asked)
        if reaction.then is not None or reaction.transport is not Way.ANSWER:
            return stage.Unread("no answer")
        try:
            read = adapter.read_history(
                Answer(reaction.status, dict(reaction.headers), reaction.body)
            )
        except ValueError as error:
            return stage.Unread(str(error))
        items |= {item.provider_id: item for item in read.items}
        page, pages = page + 1, read.pages
    return list(items.values())


# --- what must hold ---------------------------------------------------------------------------------------------------


def busy() -> bool:
    """Whether something asked for is not done yet."""
    return bulk.waits() or Statement.objects.filter(state=Statement.State.READING).exists()


def wrong(desk: Desk, *, restored: bool) -> Iterator[str]:
    """What is amiss at the end, in words."""
    yield from _runs_amiss()
    if not restored:  # else the rows of some sends are gone
        yield from _books_amiss(desk)


def _runs_amiss() -> Iterator[str]:
    """Every chosen job is done or left out with its reason, exactly once, unless somebody stopped the run."""
    for run in BulkRun.objects.annotate(said=Count("skips")):
        if run.state == BulkRun.State.DONE and run.done + run.skipped != run.total:
            yield f"bulk run {run.pk}: {run.done} done, {run.skipped} left out of {run.total}"
        if run.said != run.skipped:
            yield f"bulk run {run.pk}: {run.skipped} left out, {run.said} with a reason"
    acted = JobEvent.objects.filter(data__has_key="bulk").values_list("job_id", "data__bulk")
    for (job_id, run_id), times in Counter(acted).items():
        if times > 1:
            yield f"bulk run {run_id} acted on job {job_id} {times} times"


def _books_amiss(desk: Desk) -> Iterator[str]:
    """What a statement calls nobody's was made by another program, or for a send whose row is gone."""
    made = desk.world.ledger.tasks
    ours = {str(pk) for pk in ProviderTask.objects.values_list("pk", flat=True)}
    for told in Statement.objects.filter(state=Statement.State.READY).values_list("told", flat=True):  # fmt: skip
        for one in told["findings"]:
            if one["kind"] == "orphan" and made[one["provider_id"]].correlation in ours:
                yield f"a statement calls {one['provider_id']} nobody's, and a send of ours made it"
