"""One verb for many jobs: looked at, frozen at the yes, worked off in slices, stopped.

`start` only keeps the ids, with one INSERT ... SELECT, so a yes for 100,000 jobs answers at once; a few are done within it.
`work` does the next chunk of an open run: one transaction holds the run's row lock, the jobs' changes, what was left out, the
counts and the cursor. A worker that is killed has done a chunk wholly or not at all, and the next one goes on from the cursor.

One worker at a time over the whole database, by a transaction's advisory lock taken anew for each chunk: bulk work stands
in nobody's way, and a second message ends where the first is at it. Open runs take turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import EmptyResultSet
from django.db import connection, transaction
from django.db.models import Count, F, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _
from django_q.tasks import async_task

from jobs.lifecycle import bulk_acts
from jobs.lifecycle.bulk_acts import ACTS, Act, Call
from jobs.lifecycle.errors import Refused
from jobs.models import BulkRun, BulkSkip, Job, ProviderTask
from jobs.states import JobState
from providers.contract import Charge
from providers.models import Target

Actor = AbstractBaseUser | None
WORK = "jobs.tasks.work_bulk"
CHUNK = 200
AT_ONCE = 20  # so few are done within the yes
# A worker that stands still in the middle of a chunk gives its rows back; one that waits for a row tries again later.
_STILL_S, _LOCK_S = 15, 5


# --- before the yes ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What an act would do to a selection as it stands. `skips`: how many, by reason. `costs`: what a send of each would
    cost. `possible`: what sends under way, of those that it would be done to, may have cost. `kinds`: what those make."""

    total: int = 0
    fits: int = 0
    skips: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    possible: Mapping[str, Decimal] = field(default_factory=dict)


def preview(act: Act, jobs: QuerySet[Job]) -> Preview:
    """Counted by the database, whatever their number."""
    chosen = Job.objects.filter(pk__in=jobs.order_by().values("pk"))
    groups = (
        bulk_acts.looked_at(chosen)
        .order_by()
        .values(*bulk_acts.SEEN, "target_id", first=F("route__0"))
        .annotate(n=Count("pk"))
    )
    skips: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    goes_to: Counter[int] = Counter()
    for group in groups:
        n, target, first = group.pop("n"), group.pop("target_id"), group.pop("first")
        seen = bulk_acts.Seen(**group)
        if reason := bulk_acts.why_not(act, seen):
            skips[reason] += n
        else:
            kinds[seen.kind] += n
            goes_to[first if seen.state == JobState.FAILED else target] += n
    costs: defaultdict[str, Decimal] = defaultdict(Decimal)
    for target in Target.objects.filter(pk__in=goes_to) if act.sends else ():
        costs[target.currency] += target.price * goes_to[target.pk]
    fits = sum(kinds.values())
    return Preview(
        total=fits + sum(skips.values()), fits=fits, skips=dict(skips.most_common()), kinds=dict(kinds),
        costs=dict(costs), possible={} if act.needs_free or act.spares else _possible(act, chosen),
    )  # fmt: skip


def _possible(act: Act, jobs: QuerySet[Job]) -> dict[str, Decimal]:
    sends = ProviderTask.objects.filter(
        charge=Charge.POSSIBLE, job__in=jobs.filter(state__in=act.states).values("pk")
    )
    summed = sends.order_by().values_list("currency").annotate(money=Sum(Coalesce("cost", "estimated_cost")))  # fmt: skip
    return dict(summed)


def has_condition(jobs: QuerySet[Job]) -> bool:
    """Whether it is narrowed at all: all jobs there are is nobody's choice."""
    return bool(jobs.query.where)


# --- the yes ----------------------------------------------------------------------------------------------------------


def start(
    *,
    act: Act,
    jobs: QuerySet[Job],
    data: Mapping[str, Any],
    actor: Actor,
    now: datetime,
    token: UUID,
    at_most: int | None = None,
    by_command: bool = False,
    chosen: str = "",
) -> BulkRun:
    """Freeze the selection, of it the oldest `at_most`; few are done at once, many by a worker. The same token again is the
    same run. `data`: the form's fields, JSON-ready. `by_command`: without an actor, nobody's permission is asked for."""
    if not has_condition(jobs):
        raise Refused(_("Choose jobs, or narrow the list by a filter: never all there are."))
    if actor is None and not by_command:
        raise Refused(_("Somebody must have chosen this."))
    if act is bulk_acts.RETARGET:
        target = Target.objects.filter(pk=data["target"]).first()
        if target is None or not target.open:
            raise Refused(_("That target is closed."))
    with transaction.atomic():
        run, made = BulkRun.objects.get_or_create(
            token=token,
            defaults={
                "verb": act.name, "data": dict(data), "chosen": chosen, "created_by_id": actor.pk if actor else None,
                "created_at": now, "permission": act.permission if actor else "",
            },
        )  # fmt: skip
        if not made:
            if run.created_by_id != (actor.pk if actor else None):
                raise Refused(_("Somebody else has done this already."))
            return run
        run.total = _freeze(run, jobs, at_most=at_most)
        if not run.total:
            raise Refused(_("No job matches any more."))
        run.save(update_fields=["total"])
        if run.total <= AT_ONCE:
            _set_limits()
            _next_chunk(run, actor=actor, now=now)
        else:
            call_worker()
    return run


def _freeze(run: BulkRun, jobs: QuerySet[Job], *, at_most: int | None) -> int:
    ids = jobs.order_by("pk").values_list("pk", flat=True)
    if at_most is not None:
        ids = ids[:at_most]
    try:
        chosen, parameters = ids.query.sql_with_params()
    except EmptyResultSet:  # known without asking
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH made AS (INSERT INTO jobs_bulkchunk (run_id, number, ids)"  # noqa: S608  Django's own SQL
            " SELECT %s, (row - 1) / %s, array_agg(id ORDER BY id)"
            f" FROM (SELECT id, row_number() OVER (ORDER BY id) AS row FROM ({chosen}) AS chosen (id)) AS numbered"
            " GROUP BY 2 RETURNING cardinality(ids) AS n) SELECT coalesce(sum(n), 0) FROM made",
            [run.pk, CHUNK, *parameters],
        )
        [(total,)] = cursor.fetchall()
    return int(total)


def call_worker() -> None:
    """After the commit. A lost call is made up for by the minute's ring."""
    transaction.on_commit(partial(async_task, WORK), robust=True)


def waits() -> bool:
    """Whether there is a run to work at."""
    return BulkRun.objects.filter(state=BulkRun.State.OPEN).exists()


# --- the work ---------------------------------------------------------------------------------------------------------


class Step(Enum):
    """What a call of `work` came to: a chunk was done; somebody else is at it; nothing is to be done."""

    WORKED = "worked"
    BUSY = "busy"
    IDLE = "idle"


class ChunkError(Exception):
    """A chunk of run `run_id` came to nothing: the connection, a deadlock, a long lock. It is for the next call."""

    def __init__(self, run_id: int) -> None:
        super().__init__(f"a chunk of run {run_id} came to nothing")
        self.run_id = run_id


def work(*, now: datetime) -> Step:
    """The next chunk of the run that has waited longest. Raises ChunkError once it has chosen one, whatever broke it."""
    chosen: list[int] = []
    try:
        return _work(now=now, chosen=chosen)
    except Exception as error:
        if not chosen:
            raise
        raise ChunkError(chosen[0]) from error


def _work(*, now: datetime, chosen: list[int]) -> Step:
    with transaction.atomic():
        _set_limits()
        if not _alone():
            return Step.BUSY
        waiting = BulkRun.objects.filter(state=BulkRun.State.OPEN)
        run = (
            waiting.order_by(F("worked_at").asc(nulls_first=True), "pk")
            .select_for_update(no_key=True, skip_locked=True)
            .first()
        )
        if run is None:
            return Step.IDLE
        chosen.append(run.pk)
        actor = run.created_by
        if run.permission and not may(actor, run.permission):
            run.state, run.finished_at = BulkRun.State.FORBIDDEN, now
            run.save(update_fields=["state", "finished_at"])
            return Step.WORKED
        _next_chunk(run, actor=actor, now=now)
    return Step.WORKED


def _set_limits() -> None:
    """For this transaction."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{_STILL_S}s'")
        cursor.execute(f"SET LOCAL lock_timeout = '{_LOCK_S}s'")


def _alone() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('desk_bulk'))")
        return bool(cursor.fetchone() == (True,))


def may(actor: Any, permission: str) -> bool:
    """As it stands now. Nobody (None) may nothing, nor may who is not active."""
    return actor is not None and bool(actor.has_perm(permission))


def _next_chunk(run: BulkRun, *, actor: Actor, now: datetime) -> None:
    """Within the caller's transaction, which holds the run's row."""
    chunk = run.chunks.filter(number=run.cursor).first()
    if chunk is not None:
        call = Call(run_id=run.pk, actor=actor, now=now, data=run.data)
        skips = bulk_acts.do(ACTS[run.verb], chunk.ids, call)
        BulkSkip.objects.bulk_create(
            BulkSkip(
                run=run, job_id=skip.job_id, reason=skip.reason, said=skip.said, money=skip.money, currency=skip.currency
            )
            for skip in skips
        )  # fmt: skip
        run.cursor += 1
        run.done += len(chunk.ids) - len(skips)
        run.skipped += len(skips)
    if run.ended >= run.total or chunk is None:
        run.state, run.finished_at = BulkRun.State.DONE, now
    run.worked_at, run.trouble = now, ""
    run.save(
        update_fields=["cursor", "done", "skipped", "state", "finished_at", "worked_at", "trouble"]
    )


def note_trouble(*, run_id: int, trouble: str, now: datetime) -> None:
    """A chunk came to nothing: said on the run's page, and another run has its turn first."""
    BulkRun.objects.filter(pk=run_id, state=BulkRun.State.OPEN).update(
        trouble=trouble[:300], worked_at=now
    )


def abort(*, run_id: int, actor: Actor, now: datetime) -> None:
    """Nothing more is done after this returns; it waits for the chunk in hand. What is done stays done."""
    with transaction.atomic():
        stopped = BulkRun.objects.filter(pk=run_id, state=BulkRun.State.OPEN).update(
            state=BulkRun.State.ABORTED, finished_at=now, aborted_at=now, aborted_by_id=actor.pk if actor else None
        )  # fmt: skip
        if not stopped:
            raise Refused(_("It has ended already."))
