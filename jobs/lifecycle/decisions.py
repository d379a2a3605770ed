"""What a person decides where the machine can't know: how the money of a send stands, that it never arrived, what is asked for
instead, and which result is delivered.

Like the verbs of staff.py: permissions are checked by whoever offers the verb, `Refused` has changed nothing. What a person
says here is their word, kept with their name; it never overwrites what a provider has said.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.translation import gettext as _

from jobs import bell, evidence, intake
from jobs.lifecycle import decide, events, staff
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.staff import Actor
from jobs.models import Case, Job, ProviderTask, Result, SpoolHost
from jobs.rules import rules
from jobs.states import ENDED, HAS_COST, CaseKind, JobState, Release, TaskState
from providers.contract import Charge
from providers.models import Target

_STOPPED = frozenset({JobState.FAILED, JobState.MANUAL, JobState.CANCELLED})
_MOST_COST = Decimal(100_000)
# What these cases say is no matter of money: settling it closes them not.
_NOT_MONEY = (CaseKind.CONFLICT, CaseKind.POISON, CaseKind.LATE_RESULT, CaseKind.RESTORE)


@contextmanager
def _locked_task(task_id: UUID) -> Iterator[tuple[Job, ProviderTask]]:
    """The task and its job under their locks. A task's job never changes."""
    job_id = ProviderTask.objects.filter(pk=task_id).values_list("job_id", flat=True).first()
    if job_id is None:
        raise Refused(_("There is no such task."))
    with staff.locked(job_id) as job:
        yield job, ProviderTask.objects.select_related("account").get(pk=task_id)


# --- the money of a send ----------------------------------------------------------------------------------------------


def write_off(
    *,
    task_id: UUID,
    actor: Actor,
    now: datetime,
    note: str,
    reference: str = "",
    cost: Decimal | None = None,
) -> None:
    """The charge, known or possible, is accepted as lost. It stays spent; `cost`: what it came to, where that is known now.

    A job that waited for this send alone ends as given up. The send stays watched, and what it still brings is kept.
    """
    with _locked_task(task_id) as (job, task):
        _check_settled(job, task, _("It is no loss yet: the machine is still at it."))
        if task.charge not in {Charge.POSSIBLE, Charge.CHARGED}:
            raise Refused(
                _("There is no charge to write off: %(charge)s.")
                % {"charge": ProviderTask.ChargeKind(task.charge).label}
            )
        if (
            task.stored_at is not None
            and job.delivered is not None
            and job.delivered.task_id == task.pk
        ):
            raise Refused(_("The result of this send is delivered: its price is no loss."))
        if not note.strip():
            raise Refused(_("Say in the note why it is written off."))
        if cost is not None and not (cost.is_finite() and 0 < cost < _MOST_COST):
            raise Refused(_("Write an amount above zero, or none."))
        waits_for_it = _waits_for(job, task)
        _settle(
            task,
            Charge.WRITTEN_OFF,
            actor=actor,
            now=now,
            reference=reference,
            note=note,
            cost=cost,
        )
        if waits_for_it:
            ProviderTask.objects.filter(pk=task.pk).update(
                blocks_send=False,
                released_by=Release.PERSON,
                released_user_id=actor.pk if actor else None,
            )
            staff.close_cases(job, now=now, actor=actor, resolution="written_off")
            Job.objects.filter(pk=job.pk).update(
                state=JobState.FAILED, reason="written_off", reason_text=note.strip(), finished_at=now,
                decided_at=now, decided_by_id=actor.pk if actor else None,
            )  # fmt: skip
        _go_on(job, now=now)


def mark_refunded(
    *, task_id: UUID, actor: Actor, now: datetime, reference: str, note: str = ""
) -> None:
    """The provider gave the money back, as its reference shows: the send has cost nothing.

    It stands in the way of nothing any more. A job that waited for it goes the way of a failure that was free: the next
    target where that is asked for, else it has failed and can be retried.
    """
    with _locked_task(task_id) as (job, task):
        _check_settled(
            job,
            task,
            _("The machine is still at it: nothing was paid back for a send that goes on."),
            unless=TaskState.FAILED,
        )
        if task.charge not in HAS_COST:
            raise Refused(
                _("There is no charge that could be paid back: %(charge)s.")
                % {"charge": ProviderTask.ChargeKind(task.charge).label}
            )
        if not reference.strip():
            raise Refused(_("Write the provider's reference of the refund."))
        _settle(task, Charge.REFUNDED, actor=actor, now=now, reference=reference, note=note)
        _go_on(job, now=now)


def _check_settled(
    job: Job, task: ProviderTask, busy: str, *, unless: TaskState | None = None
) -> None:
    if task.state in {TaskState.INTENT, TaskState.SENDING}:
        raise Refused(_("The send of job %(job)s is under way right now.") % {"job": job.pk})
    if job.state == JobState.ACTIVE and task.blocks_send and task.state != unless:
        raise Refused(busy)
    if task.undecided_since is not None:
        # Its id or its result may have come a moment ago: the page this was pressed on did not show it.
        raise Refused(_("Something about this send has just come in: look at it again."))


def _waits_for(job: Job, task: ProviderTask) -> bool:
    """Whether this send, and no other, is why the job stands where it does."""
    if job.state not in {JobState.MANUAL, JobState.PENDING}:
        return False
    others = ProviderTask.objects.filter(job=job).exclude(pk=task.pk)
    if others.filter(blocks_send=True).exists():
        return False
    return task.blocks_send or task.released_by in {Release.UNSENT, Release.FREE, Release.ABSENT}


def _settle(
    task: ProviderTask,
    charge: Charge,
    *,
    actor: Actor,
    now: datetime,
    reference: str,
    note: str,
    cost: Decimal | None = None,
) -> None:
    """Write a person's word about the money, and close the cases that asked for it."""
    who = actor.pk if actor else None
    said: dict[str, Any] = {"staff_charge": charge, "staff_at": now, "staff_user_id": who}
    if reference.strip():
        said["staff_reference"] = reference.strip()[:200]
    if cost is not None:
        said["cost_staff"] = cost
    ProviderTask.objects.filter(pk=task.pk).update(**said)
    Case.objects.filter(task=task, resolved_at__isnull=True).exclude(kind__in=_NOT_MONEY).update(
        resolved_at=now, resolution=charge.value, resolved_by_id=who
    )
    events.write(
        [
            events.event(
                job_id=task.job_id, task_id=task.pk, kind=charge.value, now=now, actor=actor,
                reference=reference.strip()[:200], note=note.strip(), before=task.charge, after=charge.value,
                money=staff.money(task) if cost is None else f"{cost.normalize():f} {task.currency}",
            )
        ]
    )  # fmt: skip


def _go_on(job: Job, *, now: datetime) -> None:
    """What the facts mean for the job now, in this transaction."""
    decide.decide(job_ids=[job.pk], rules=rules(), now=now, rng=random.Random())  # noqa: S311  jitter
    bell.ring()


# --- it never arrived -------------------------------------------------------------------------------------------------


def why_not_absent(task: ProviderTask, *, now: datetime) -> str:
    """Why nobody may say yet that the send never arrived; "" where a person may. `task` with its account."""
    if task.state != TaskState.UNKNOWN or task.send_not_after is None:
        return _("Only a send whose outcome is unknown can have got lost.")
    over = evidence.absence_from(
        send_not_after=task.send_not_after,
        deadline_s=task.call_deadline_s or 0.0,
        lag_s=task.account.history_lag_s,
    )
    if now < over:
        return _("It may still arrive: wait until %(at)s.") % {"at": f"{over:%H:%M:%S} UTC"}
    clear = SpoolHost.objects.filter(host=task.host).filter(
        Q(clear_at__gt=task.lost_at or now) | Q(declared_lost_at__isnull=False)
    )
    if not clear.exists():
        return _(
            "Its answer may lie on the disk of %(host)s: wait until a worker there has looked, or declare that disk lost."
        ) % {"host": task.host}
    return ""


def confirm_absent(*, task_id: UUID, actor: Actor, now: datetime, reason: str) -> None:
    """The provider's support says that the send never arrived: send again.

    A person's word is no proof. So the charge stays possible, the history is looked through as before, and an id that
    turns up is watched to its end and, with two charges, opens `paid_twice`.
    """
    with _locked_task(task_id) as (job, task):
        if job.state in {JobState.SUCCEEDED, JobState.PENDING}:
            raise Refused(
                _("Job %(job)s is %(state)s.") % {"job": job.pk, "state": job.get_state_display()}
            )
        if not reason.strip():
            raise Refused(_("Say who confirmed it, and how."))
        if why := why_not_absent(task, now=now):
            raise Refused(why)
        staff.check_no_result(job)
        first = staff.in_the_way(job)
        if first is None:
            raise Refused(
                _("Nothing stands in the way of job %(job)s: use retry.") % {"job": job.pk}
            )
        if first.pk != task.pk:
            raise Refused(
                _("Another send of job %(job)s stands in the way as well.") % {"job": job.pk}
            )
        ProviderTask.objects.filter(pk=task.pk).update(
            blocks_send=False,
            released_by=Release.PERSON,
            released_user_id=actor.pk if actor else None,
        )
        staff.close_cases(job, now=now, actor=actor, resolution="absent")
        staff.back_to_queue(job, now=now, reason="absent_confirmed", text=reason.strip())
        job.decided_at = None
        if staff.in_the_way(job) is not None:
            raise Refused(
                _("Another send of job %(job)s stands in the way as well.") % {"job": job.pk}
            )
        events.write(
            [
                events.event(
                    job_id=job.pk, task_id=task.pk, kind="absent_confirmed", now=now, actor=actor,
                    reason=reason.strip(), possible_duplicate=staff.money(task), before=job.state,
                    after=JobState.PENDING.value,
                )
            ]
        )  # fmt: skip


# --- something else is asked for --------------------------------------------------------------------------------------


def retry_edited(
    *,
    job_id: int,
    prompt: str,
    actor: Actor,
    now: datetime,
    target_id: int | None = None,
    reason: str = "",
) -> None:
    """Start anew with another prompt and, where one is named, on another target. What was asked at first is kept.

    Stricter than a retry: no send of the job may have cost anything, whoever released it. What such a send still brought
    would be a picture of the earlier prompt.
    """
    try:
        prompt = intake.check_prompt(prompt)
    except intake.InputError as error:
        raise Refused(str(error)) from error
    with staff.locked(job_id) as job:
        if job.state not in _STOPPED:
            raise Refused(
                _("Job %(job)s is %(state)s; only failed, cancelled or manual jobs are retried.")
                % {"job": job.pk, "state": job.get_state_display()}
            )
        staff.check_free(job)
        costly = ProviderTask.objects.filter(job=job, charge__in=HAS_COST).first()
        if costly is not None:
            raise Refused(
                _(
                    "Job %(job)s keeps its prompt: a send with it may have cost %(money)s. Ask for something else in a new job."
                )
                % {"job": job.pk, "money": staff.money(costly)}
            )
        target = _open_target(job, target_id)
        if prompt == job.prompt and target is None:
            raise Refused(_("Nothing was changed: use retry."))
        changes: dict[str, object] = {}
        said: dict[str, Any] = {"reason": reason.strip(), "target": target.name if target else ""}
        if target is not None:
            said["target_before"] = job.target.name
        if prompt != job.prompt:
            changes = {
                "prompt": prompt,
                "original_prompt": job.original_prompt or job.prompt,
                "edited_at": now,
                "fingerprint": "",
            }
            said |= {"before": job.prompt, "after": prompt}
        if target is not None:
            changes["route"] = [target.pk, *[pk for pk in job.route if pk != target.pk]]
        Job.objects.filter(pk=job.pk).update(**changes)
        staff.close_cases(job, now=now, actor=actor, resolution="retried")
        first = target.pk if target else job.route[0] if job.state == JobState.FAILED else None
        staff.back_to_queue(job, now=now, reason="edited", text=reason.strip(), target_id=first)
        events.write([events.event(job_id=job.pk, kind="edited", now=now, actor=actor, **said)])


def _open_target(job: Job, target_id: int | None) -> Target | None:
    if target_id is None or target_id == job.target_id:
        return None
    target = Target.objects.filter(pk=target_id).first()
    if target is None or not target.open or target.kind != job.kind:
        raise Refused(_("That target is closed."))
    return target


# --- which result -----------------------------------------------------------------------------------------------------


def deliver_instead(
    *, job_id: int, result_id: int, actor: Actor, now: datetime, reason: str = ""
) -> None:
    """Deliver a result that was kept beside: the job has succeeded with it, by a person's word.

    What was delivered before is kept. Nothing more is sent; what is under way is still watched.
    """
    with staff.locked(job_id) as job:
        result = Result.objects.filter(pk=result_id, job=job).first()
        if result is None:
            raise Refused(_("That is no result of job %(job)s.") % {"job": job.pk})
        if result.removed_at is not None:
            raise Refused(_("The file of this result was removed."))
        if job.delivered_id == result.pk:
            raise Refused(_("This result is delivered already."))
        if job.state not in ENDED:
            staff.withdraw_intent(job, now=now)
            staff.release_by_person(job, actor=actor)
        staff.close_cases(job, now=now, actor=actor, resolution="delivered")
        Job.objects.filter(pk=job.pk).update(
            state=JobState.SUCCEEDED, reason="delivered", reason_text=reason.strip(), delivered=result,
            finished_at=now, decided_at=now, decided_by_id=actor.pk if actor else None,
        )  # fmt: skip
        events.write(
            [
                events.event(
                    job_id=job.pk, task_id=result.task_id, kind="delivered_instead", now=now, actor=actor,
                    reason=reason.strip(), result=result.key, before=job.delivered.key if job.delivered else "", state=job.state,
                )
            ]
        )  # fmt: skip
