"""People at the admin: any verb, on any job, at the worst moment. What is refused has no effect; the rest is theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import Error

from bench.sim.desk import Desk
from jobs.lifecycle import staff
from jobs.lifecycle.errors import Refused
from jobs.models import Case, Job, ProviderTask

VERBS = (
    "retry", "resend", "retry_on_target", "mark_manual", "resolve", "cancel", "poll_now", "attach", "close_case",
)  # fmt: skip


def act_sometimes(desk: Desk) -> None:
    """Now and then a person does something, as an actor of their own."""
    if desk.chance.strikes("staff", desk.plan["rates"]["staff"]):
        act(desk)


def act(desk: Desk) -> None:
    """A person does something now."""
    verb = desk.chance.pick("staff/verb", VERBS)
    desk.turns.start("a person", lambda: _try(desk, verb))


def _try(desk: Desk, verb: str) -> None:
    try:
        _do(desk, verb)
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
