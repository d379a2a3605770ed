"""People at the admin: any verb, on any job, at the worst moment. What is refused has no effect; the rest is theirs."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from django.db import Error
from django.db.models import Count

from bench.sim.desk import Desk
from jobs.lifecycle import batches, providers, staff
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, Case, Job, ProviderTask
from providers.models import ProviderState

VERBS = (
    "retry", "resend", "retry_on_target", "mark_manual", "resolve", "cancel", "poll_now", "attach", "close_case",
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
    try:
        do(desk, verb)
    except Refused:
        pass
    except Error as error:
        desk.turns.tell(f"{verb} fails: {error}")


def _do(desk: Desk, verb: str) -> None:
    chance, now, person = desk.chance, desk.clock.moment(), desk.plan["person"]
    jobs = list(Job.objects.order_by("pk").values_list("pk", "state"))
    if not jobs:
        return
    # What is under way is what people look at.
    busy = [pk for pk, state in jobs if state == "active"]
    near = busy if busy and chance.number("staff/near") < 0.6 else [pk for pk, _ in jobs]
    job_id = chance.pick("staff/job", near)
    common: dict[str, Any] = {"actor": person, "now": now}
    tasks = list(ProviderTask.objects.filter(job_id=job_id).order_by("created_at"))
    cases = list(Case.objects.filter(job_id=job_id, resolved_at=None).order_by("pk"))

    def attach() -> None:
        """The right id, as jobs/attach.py would have found it at the provider."""
        lost = [task for task in tasks if task.provider_id is None and task.armed_at]
        for task in lost:
            made = [
                one for one in desk.world.ledger.tasks.values() if one.correlation == str(task.pk)
            ]
            if made:
                staff.attach_provider_id(
                    task_id=task.pk,
                    provider_id=made[0].id,
                    reason="seen there",
                    poll_at=now,
                    **common,
                )

    def poll() -> None:
        for task in tasks[-1:]:
            staff.poll_now(task_id=task.pk, **common)

    def close() -> None:
        for case in cases[:1]:
            staff.close_case(case_id=case.pk, resolution="seen", note="simulated", **common)

    verbs: dict[str, Callable[[], None]] = {
        "retry": lambda: staff.retry(job_id=job_id, **common),
        "resend": lambda: staff.resend(job_id=job_id, reason="simulated", **common),
        "retry_on_target": lambda: staff.retry_on_target(job_id=job_id, target_id=desk.targets[-1].pk, **common),
        "mark_manual": lambda: staff.mark_manual(job_id=job_id, note="simulated", **common),
        "resolve": lambda: staff.resolve(
            job_id=job_id, outcome=chance.pick("staff/outcome", ("done", "gave_up")), note="simulated", **common
        ),
        "cancel": lambda: staff.cancel(job_id=job_id, **common),
        "poll_now": poll,
        "attach": attach,
        "close_case": close,
    }  # fmt: skip
    verbs[verb]()
    desk.turns.tell(f"{verb} on job {job_id}")


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
