"""People at the admin: any verb, on any job, at the worst moment. What is refused has no effect; the rest is theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db import Error
from django.db.models import Count

from bench.sim.desk import Desk
from jobs.lifecycle import batches, decisions, providers, staff
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, Case, Job, ProviderTask, Result
from jobs.states import TaskState
from providers.models import ProviderState

VERBS = (
    "retry", "resend", "retry_on_target", "mark_manual", "resolve", "cancel", "poll_now", "attach", "close_case",
    "write_off", "mark_refunded", "confirm_absent", "retry_edited", "deliver_instead",
)  # fmt: skip
BATCH_VERBS = (
    "pause",
    "resume",
    "cancel_rest",
    "retry_failed",
    "retarget_rest",
    "complete",
    "complete",
)


def act_sometimes(desk: Desk) -> None:
    """Now and then a person does something, as an actor of their own."""
    if desk.chance.strikes("staff", desk.plan["rates"]["staff"]):
        act(desk)


def act_on_a_batch_sometimes(desk: Desk) -> None:
    """The same for a batch as a whole; and the look for ends of batches, which is somebody's each minute."""
    if desk.chance.strikes("batch", desk.plan["rates"]["batch"]):
        verb = desk.chance.pick("batch/verb", BATCH_VERBS)
        desk.turns.start("a person", lambda: _try(desk, verb, _do_to_a_batch))


def act(desk: Desk) -> None:
    """A person does something now."""
    verb = desk.chance.pick("staff/verb", VERBS)
    desk.turns.start("a person", lambda: _try(desk, verb, _do))


def top_up(desk: Desk) -> None:
    """The owner puts money on the account: a block for the lack of it would outlast the quiet by hours."""
    common: dict[str, Any] = {"actor": desk.plan["person"], "now": desk.clock.moment()}
    for state in ProviderState.objects.filter(block="quota_exhausted"):
        providers.topped_up(
            account_id=state.account_id, balance=Decimal(1000), currency="RUB", **common
        )


def _try(desk: Desk, verb: str, do: Callable[[Desk, str], None]) -> None:
    """What is refused, and what the database did not take, has no effect."""
    try:
        do(desk, verb)
    except Refused:
        pass
    except Error as error:
        desk.turns.tell(f"{verb} fails: {error}")


@dataclass(frozen=True, slots=True)
class _Page:
    """What a person has before them. `common`: who and when, as each verb wants it."""

    desk: Desk
    job_id: int
    under_way: bool
    tasks: Sequence[ProviderTask]
    common: dict[str, Any]


def _do(desk: Desk, verb: str) -> None:
    chance = desk.chance
    jobs = list(Job.objects.order_by("pk").values_list("pk", "state"))
    if not jobs:
        return
    # What is under way is what people look at.
    busy = [pk for pk, state in jobs if state == "active"]
    near = busy if busy and chance.number("staff/near") < 0.6 else [pk for pk, _ in jobs]
    job_id = chance.pick("staff/job", near)
    tasks = list(ProviderTask.objects.filter(job_id=job_id).order_by("created_at"))
    common = {"actor": desk.plan["person"], "now": desk.clock.moment()}
    page = _Page(desk, job_id, under_way=job_id in busy, tasks=tasks, common=common)
    if verb in _AT_SENDS:
        _AT_SENDS[verb](page)
    else:
        _to_the_job(page, verb)
    desk.turns.tell(f"{verb} on job {job_id}")


def _to_the_job(page: _Page, verb: str) -> None:
    of_job: dict[str, Any] = {"job_id": page.job_id, **page.common}
    verbs: dict[str, Callable[[], None]] = {
        "retry": lambda: staff.retry(**of_job),
        "resend": lambda: staff.resend(reason="simulated", **of_job),
        "retry_on_target": lambda: staff.retry_on_target(target_id=page.desk.targets[-1].pk, **of_job),
        "retry_edited": lambda: decisions.retry_edited(prompt="a dog", **of_job),
        "mark_manual": lambda: staff.mark_manual(note="simulated", **of_job),
        "resolve": lambda: staff.resolve(
            outcome=page.desk.chance.pick("staff/outcome", ("done", "gave_up")), note="simulated", **of_job
        ),
        "cancel": lambda: staff.cancel(**of_job),
    }  # fmt: skip
    verbs[verb]()


def _attach(page: _Page) -> None:
    """The right id, as jobs/attach.py would have found it at the provider."""
    for task in page.tasks:
        made = page.desk.made_for(task.pk)
        if made and task.armed_at and task.provider_id is None:
            staff.attach_provider_id(
                task_id=task.pk, provider_id=made[0].id, reason="seen there", poll_at=page.common["now"], **page.common
            )  # fmt: skip


def _poll(page: _Page) -> None:
    for task in page.tasks[-1:]:
        staff.poll_now(task_id=task.pk, **page.common)


def _close(page: _Page) -> None:
    for case in Case.objects.filter(job_id=page.job_id, resolved_at=None).order_by("pk")[:1]:
        staff.close_case(case_id=case.pk, resolution="seen", note="simulated", **page.common)


def _write_off(page: _Page) -> None:
    for task in page.tasks[:1]:
        decisions.write_off(task_id=task.pk, note="simulated", **page.common)


def _refunded(page: _Page) -> None:
    """Nobody has the reference of a refund that the provider has not made."""
    for task in page.tasks:
        if task.state in {TaskState.INTENT, TaskState.SENDING}:
            continue
        if page.under_way and task.state != TaskState.FAILED:
            continue
        for made in page.desk.made_for(task.pk):
            page.desk.world.ledger.refund(made, now=page.desk.clock.unix())
            decisions.mark_refunded(task_id=task.pk, reference="R-1", **page.common)


def _absent(page: _Page) -> None:
    """The provider's support may be wrong about it."""
    for task in page.tasks:
        if task.state == TaskState.UNKNOWN:
            decisions.confirm_absent(task_id=task.pk, reason="their support", **page.common)


def _deliver(page: _Page) -> None:
    for result in Result.objects.filter(job_id=page.job_id).order_by("pk"):
        decisions.deliver_instead(job_id=page.job_id, result_id=result.pk, **page.common)


_AT_SENDS: dict[str, Callable[[_Page], None]] = {
    "attach": _attach,
    "poll_now": _poll,
    "close_case": _close,
    "write_off": _write_off,
    "mark_refunded": _refunded,
    "confirm_absent": _absent,
    "deliver_instead": _deliver,
}


def _do_to_a_batch(desk: Desk, verb: str) -> None:
    now = desk.clock.moment()
    if desk.quiet and verb == "pause":
        return  # whoever is late by a moment: nobody would resume it
    if verb == "complete":
        if ended := batches.complete(now=now):
            desk.turns.tell(f"batches {ended} are complete")
        return
    biggest = Batch.objects.alias(n=Count("jobs")).order_by("-n", "pk")
    common: dict[str, Any] = {
        "batch_id": biggest.values_list("pk", flat=True)[:1][0],
        "actor": desk.plan["person"],
        "now": now,
    }
    verbs: dict[str, Callable[[], batches.Done]] = {
        "pause": lambda: batches.pause(**common),
        "resume": lambda: batches.resume(**common),
        "cancel_rest": lambda: batches.cancel_rest(**common),
        "retry_failed": lambda: batches.retry_failed(**common),
        "retarget_rest": lambda: batches.retarget_rest(target_id=desk.targets[-1].pk, **common),
    }
    done = verbs[verb]()
    desk.turns.tell(f"{verb} of batch {common['batch_id']}: {done.moved} jobs")
