"""What people may do to a job, a task or a case. Permissions are checked by whoever offers the verb; here only whether
the thing can be done. Each verb raises `Refused` with a sentence for people and has then changed nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from jobs import bell
from jobs.lifecycle import decide, events
from jobs.lifecycle.errors import Refused
from jobs.models import Case, CaseEvent, Hold, Job, ProviderTask, Result
from jobs.results import Stored
from jobs.rules import rules
from jobs.states import BLOCKING_CASES, ENDED, HAS_COST, CaseKind, JobState, Release, TaskState
from providers.contract import Charge
from providers.models import Target

Actor = AbstractBaseUser | None
_PERSON_MAY_RELEASE = frozenset(
    {TaskState.ACCEPTED, TaskState.COMPLETED, TaskState.FAILED, TaskState.UNKNOWN}
)


@contextmanager
def locked(job_id: int) -> Iterator[Job]:
    """The job and its tasks under their row locks, in one transaction with everything done to them.

    The tasks too, as a decision does: no fact and no arm slips in between a verb's look at them and its writing.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True, of=("self",)).filter(pk=job_id).first()
        if job is None:
            raise Refused(_("There is no job %(id)s.") % {"id": job_id})
        _lock_tasks(job_id)
        yield job


def _lock_tasks(job_id: int) -> None:
    tasks = ProviderTask.objects.filter(job_id=job_id).order_by("pk")
    list(tasks.select_for_update(no_key=True).values_list("pk"))


def in_the_way(job: Job) -> ProviderTask | None:
    """What stands in the way of a further send: the task that blocks, or one released as free that turned out not to be."""
    not_free_after_all = Q(
        released_by__in=[Release.UNSENT, Release.FREE, Release.ABSENT], charge__in=HAS_COST
    )
    if job.decided_at is not None:
        # "Gave up" released the send; that was no word on sending again.
        not_free_after_all |= Q(released_by=Release.PERSON, charge__in=HAS_COST)
    return (
        ProviderTask.objects.filter(Q(blocks_send=True) | not_free_after_all, job=job)
        .order_by("-blocks_send", "created_at")
        .first()
    )


def check_no_result(job: Job) -> None:
    """Refused where a result that fits is here already, kept after a decision: it is delivered, not paid for once more."""
    stored = ProviderTask.objects.filter(
        job=job, stored_at__isnull=False, created_at__gte=job.edited_at or job.created_at
    )
    if job.state != JobState.SUCCEEDED and stored.exists():
        raise Refused(
            _(
                "A result of job %(job)s is here already: deliver it, or ask for another in a new job."
            )
            % {"job": job.pk}
        )


def may_release(task: ProviderTask) -> bool:
    """Never what is about to be sent or being sent."""
    return TaskState(task.state) in _PERSON_MAY_RELEASE or (
        task.state in {TaskState.REFUSED, TaskState.UNSENT}
        and task.charge in {Charge.CHARGED, Charge.WRITTEN_OFF}
    )


def part_of(bulk: int | None) -> dict[str, Any]:
    """For the events of a bulk action done job by job: they name the run, which has an entry of its own in the trail."""
    return {} if bulk is None else {"bulk": bulk}


def money(task: ProviderTask) -> str:
    amount: Decimal = task.cost if task.cost is not None else task.estimated_cost
    return f"{amount.normalize():f} {task.currency}"


def back_to_queue(
    job: Job, *, now: datetime, reason: str, text: str, target_id: int | None = None
) -> None:
    """Back to the queue with a new start. The caller has made sure that nothing blocks a send."""
    Job.objects.filter(pk=job.pk).update(
        state=JobState.PENDING,
        reason=reason,
        reason_text=text,
        not_before=now,
        attempts_since=now,
        finished_at=None,
        decided_at=None,
        decided_by=None,
        target_id=target_id or job.target_id,
    )
    bell.ring()


def close_cases(job: Job, *, now: datetime, actor: Actor, resolution: str) -> None:
    Case.objects.filter(job=job, resolved_at__isnull=True).exclude(kind=CaseKind.PAID_TWICE).update(
        resolved_at=now, resolution=resolution, resolved_by_id=actor.pk if actor else None
    )


def check_free(job: Job) -> None:
    """Refused where an earlier send stands in the way, may have cost, or has brought a result."""
    task = in_the_way(job)
    if task is None:
        check_no_result(job)
        return
    if task.charge in {Charge.POSSIBLE, Charge.CHARGED}:
        raise Refused(
            _(
                "Job %(job)s can't simply be retried: its last send may have cost %(money)s and is %(state)s."
            )
            % {"job": job.pk, "money": money(task), "state": ProviderTask.State(task.state).label}
        )
    if task.charge == Charge.WRITTEN_OFF:
        raise Refused(
            _("Job %(job)s can't simply be retried: %(money)s of an earlier send were written off.")
            % {"job": job.pk, "money": money(task)}
        )
    raise Refused(_("Job %(job)s is about to be sent already.") % {"job": job.pk})


# --- jobs -------------------------------------------------------------------------------------------------------------


def retry(
    *, job_id: int, actor: Actor, now: datetime, reason: str = "", bulk: int | None = None
) -> None:
    """Start anew where the earlier sends are proven to have cost nothing."""
    with locked(job_id) as job:
        if job.state not in {JobState.FAILED, JobState.MANUAL, JobState.CANCELLED}:
            raise Refused(_("Job %(job)s is %(state)s; only failed, cancelled or manual jobs are retried.")
                          % {"job": job.pk, "state": job.get_state_display()})  # fmt: skip
        check_free(job)
        close_cases(job, now=now, actor=actor, resolution="retried")
        first = job.route[0] if job.state == JobState.FAILED else None
        back_to_queue(job, now=now, reason="retried", text=reason, target_id=first)
        events.write(
            [
                events.event(
                    job_id=job.pk, kind="retried", now=now, actor=actor, reason=reason, before=job.state,
                    after=JobState.PENDING.value, **part_of(bulk),
                )
            ]
        )  # fmt: skip


def resend(*, job_id: int, actor: Actor, now: datetime, reason: str) -> None:
    """Send again although the earlier send may have been charged. Booked with its money as a possible duplicate."""
    with locked(job_id) as job:
        if job.state in {JobState.SUCCEEDED, JobState.PENDING}:
            raise Refused(
                _("Job %(job)s is %(state)s.") % {"job": job.pk, "state": job.get_state_display()}
            )
        check_no_result(job)
        task = in_the_way(job)
        if task is None:
            raise Refused(
                _("Nothing stands in the way of job %(job)s: use retry.") % {"job": job.pk}
            )
        outdated = job.edited_at is not None and task.created_at < job.edited_at
        if not may_release(task) and not (outdated and task.state == TaskState.STORED):
            raise Refused(_("The send of job %(job)s is under way right now.") % {"job": job.pk})
        ProviderTask.objects.filter(pk=task.pk).update(
            blocks_send=False,
            released_by=Release.PERSON,
            released_user_id=actor.pk if actor else None,
        )
        close_cases(job, now=now, actor=actor, resolution="sent_again")
        back_to_queue(job, now=now, reason="sent_again", text=reason)
        events.write(
            [
                events.event(
                    job_id=job.pk, task_id=task.pk, kind="sent_again", now=now, actor=actor, reason=reason,
                    possible_duplicate=money(task), before=job.state, after=JobState.PENDING.value,
                )
            ]
        )  # fmt: skip


def retry_on_target(
    *,
    job_id: int,
    target_id: int,
    actor: Actor,
    now: datetime,
    reason: str = "",
    bulk: int | None = None,
) -> None:
    """Like retry, on a target of the person's choice."""
    with locked(job_id) as job:
        target = Target.objects.filter(pk=target_id).first()
        if target is None or not target.open:
            raise Refused(_("That target is closed."))
        if job.state == JobState.SUCCEEDED:
            raise Refused(_("Job %(job)s has its result.") % {"job": job.pk})
        if job.state == JobState.PENDING and job.target_id == target.pk and job.not_before <= now:
            raise Refused(_("Job %(job)s waits for that target already.") % {"job": job.pk})
        check_free(job)
        close_cases(job, now=now, actor=actor, resolution="retried")
        route = [target.pk, *[pk for pk in job.route if pk != target.pk]]
        Job.objects.filter(pk=job.pk).update(route=route)
        back_to_queue(job, now=now, reason="retried", text=reason, target_id=target.pk)
        events.write(
            [
                events.event(
                    job_id=job.pk, kind="retargeted", now=now, actor=actor, reason=reason, target=target.name,
                    before=job.target.name, **part_of(bulk),
                )
            ]
        )  # fmt: skip


def mark_manual(
    *, job_id: int, actor: Actor, now: datetime, note: str, bulk: int | None = None
) -> None:
    """A person takes the job over; the machine sends nothing more for it, but watches what is under way."""
    with locked(job_id) as job:
        if job.state == JobState.SUCCEEDED:
            raise Refused(_("Job %(job)s has its result.") % {"job": job.pk})
        by_hand = Case.objects.filter(job=job, kind=CaseKind.BY_HAND, resolved_at__isnull=True)
        if by_hand.exists():
            raise Refused(_("Job %(job)s is handled by hand already.") % {"job": job.pk})
        withdraw_intent(job, now=now)
        Case.objects.create(
            kind=CaseKind.BY_HAND, job=job, opened_at=now, note=note,
            due_at=now + decide.due_after(CaseKind.BY_HAND), owner_id=actor.pk if actor else None,
        )  # fmt: skip
        Job.objects.filter(pk=job.pk).update(
            state=JobState.MANUAL, reason=CaseKind.BY_HAND, reason_text=note, finished_at=None,
            decided_at=None, decided_by=None,
        )  # fmt: skip
        events.write(
            [
                events.event(
                    job_id=job.pk, kind="marked_manual", now=now, actor=actor, note=note, before=job.state,
                    after=JobState.MANUAL.value, **part_of(bulk),
                )
            ]
        )  # fmt: skip


def resolve(
    *,
    job_id: int,
    actor: Actor,
    now: datetime,
    outcome: Literal["done", "gave_up"],
    note: str,
    stored: Stored | None = None,
    bulk: int | None = None,
) -> None:
    """End a job by a person's word: done (with a file of their own, if they have one) or given up.

    Sends under way stay watched; what they bring is kept and announced, never delivered over this decision.
    """
    with locked(job_id) as job:
        if job.state in {JobState.SUCCEEDED, JobState.CANCELLED}:
            raise Refused(
                _("Job %(job)s is %(state)s.") % {"job": job.pk, "state": job.get_state_display()}
            )
        if outcome == "gave_up" and job.state == JobState.FAILED and job.decided_at is not None:
            raise Refused(_("Job %(job)s was given up already.") % {"job": job.pk})
        if not note.strip():
            raise Refused(
                _("Say in the note what was done; whoever reads this later will need it.")
            )
        withdraw_intent(job, now=now)
        delivered = None
        if stored is not None:
            delivered = Result.objects.create(
                job=job, key=stored.key, thumb_key=stored.thumb_key, sha256=stored.sha256,
                media_type=stored.media_type, size_bytes=stored.size_bytes, width=stored.width, height=stored.height,
                created_at=now, uploaded_by_id=actor.pk if actor else None,
            )  # fmt: skip
        release_by_person(job, actor=actor)
        close_cases(job, now=now, actor=actor, resolution=outcome)
        state = JobState.SUCCEEDED if outcome == "done" else JobState.FAILED
        Job.objects.filter(pk=job.pk).update(
            state=state, reason=outcome, reason_text=note, delivered=delivered, finished_at=now,
            decided_at=now, decided_by_id=actor.pk if actor else None,
        )  # fmt: skip
        events.write(
            [
                events.event(
                    job_id=job.pk, kind="resolved", now=now, actor=actor, outcome=outcome, note=note, before=job.state,
                    after=state.value, **part_of(bulk),
                )
            ]
        )  # fmt: skip


def cancel(
    *, job_id: int, actor: Actor, now: datetime, reason: str = "", bulk: int | None = None
) -> None:
    """Nothing more is sent. A send under way is still watched, and what it cost stays on the books."""
    with locked(job_id) as job:
        if job.state in ENDED:
            raise Refused(
                _("Job %(job)s is %(state)s.") % {"job": job.pk, "state": job.get_state_display()}
            )
        withdraw_intent(job, now=now)
        Case.objects.filter(job=job, kind=CaseKind.BY_HAND, resolved_at__isnull=True).update(
            resolved_at=now, resolution="cancelled", resolved_by_id=actor.pk if actor else None
        )
        Job.objects.filter(pk=job.pk).update(
            state=JobState.CANCELLED, reason="cancelled", reason_text=reason, finished_at=now,
            decided_at=now, decided_by_id=actor.pk if actor else None,
        )  # fmt: skip
        events.write(
            [
                events.event(
                    job_id=job.pk, kind="cancelled", now=now, actor=actor, reason=reason, before=job.state,
                    after=JobState.CANCELLED.value, **part_of(bulk),
                )
            ]
        )  # fmt: skip


def withdraw_intent(job: Job, *, now: datetime) -> None:
    """Turn an intent that is not armed yet into unsent. An arm at this moment either wins the row first, and then the
    task is watched, or finds it withdrawn and sends nothing."""
    ProviderTask.objects.filter(job=job, armed_at__isnull=True, unsent_at__isnull=True).update(
        unsent_at=now,
        unsent_reason="withdrawn",
        ours=True,
        blocks_send=False,
        released_by=Release.UNSENT,
    )


def release_by_person(job: Job, *, actor: Actor) -> None:
    task = in_the_way(job)
    if task is not None and may_release(task):
        ProviderTask.objects.filter(pk=task.pk).update(
            blocks_send=False,
            released_by=Release.PERSON,
            released_user_id=actor.pk if actor else None,
        )


# --- tasks ------------------------------------------------------------------------------------------------------------


def poll_now(*, task_id: UUID, actor: Actor, now: datetime) -> None:
    """Ask the provider about a watched task at once."""
    with transaction.atomic():
        moved = ProviderTask.objects.filter(
            pk=task_id, provider_id__isnull=False, completed_at__isnull=True, stored_at__isnull=True
        ).update(next_poll_at=now, hinted_at=now)
        if not moved:
            raise Refused(
                _("There is nothing to ask: the provider's id is not known, or it has answered.")
            )
        task = ProviderTask.objects.get(pk=task_id)
        events.write(
            [
                events.event(
                    job_id=task.job_id, task_id=task_id, kind="poll_asked", now=now, actor=actor
                )
            ]
        )
        bell.ring()


def attach_provider_id(
    *,
    task_id: UUID,
    provider_id: str,
    actor: Actor,
    now: datetime,
    reason: str,
    poll_at: datetime,
    kind: str = "id_attached",
) -> None:
    """Tell an unknown send what its id at the provider is. The caller has checked the id at the provider (jobs/attach.py).

    `kind`: the event's name.
    """
    try:
        with transaction.atomic():
            found = ProviderTask.objects.filter(pk=task_id).values_list("job_id", flat=True).first()
            if found is None:
                raise Refused(_("There is no such task."))
            with locked(found) as job:
                task = ProviderTask.objects.select_for_update(no_key=True).get(pk=task_id)
                if task.provider_id is not None or task.armed_at is None:
                    raise Refused(_("This task has an id already, or was never sent."))
                ProviderTask.objects.filter(pk=task_id).update(
                    provider_id=provider_id, accepted_at=now, next_poll_at=poll_at, next_look_at=None,
                    undecided_since=now,
                )  # fmt: skip
                events.write(
                    [
                        events.event(
                            job_id=job.pk, task_id=task_id, kind=kind, now=now, actor=actor, reason=reason,
                            provider_id=provider_id,
                        )
                    ]
                )  # fmt: skip
                decide.decide(job_ids=[job.pk], rules=rules(), now=now, rng=random.Random())  # noqa: S311  jitter
                bell.ring()
    except IntegrityError as error:
        raise Refused(_("This id belongs to another task already.")) from error


# --- cases ------------------------------------------------------------------------------------------------------------


@contextmanager
def _locked_case(case_id: int) -> Iterator[Case]:
    """The case under its row lock, after its job and the job's tasks: everyone who writes cases locks in that order."""
    with transaction.atomic():
        # Neither of a case's job and task ever changes.
        job_id = Case.objects.filter(pk=case_id).values_list("job_id", flat=True).first()
        if job_id is not None:
            list(Job.objects.filter(pk=job_id).select_for_update(no_key=True).values_list("pk"))
            _lock_tasks(job_id)
        case = Case.objects.select_for_update(no_key=True).filter(pk=case_id).first()
        if case is None:
            raise Refused(_("There is no such case."))
        yield case


def take_case(*, case_id: int, actor: Actor, now: datetime) -> None:
    """Make it mine; an owner who is at it already keeps it. Taking one's own case again changes nothing."""
    with _locked_case(case_id) as case:
        mine = actor.pk if actor else None
        if case.resolved_at is not None or case.owner_id not in {None, mine}:
            raise Refused(_("This case is closed, or somebody else has it."))
        if case.owner_id is None:
            Case.objects.filter(pk=case_id).update(owner_id=mine)
            _case_event(case, "case_taken", actor=actor, now=now)


def note_case(*, case_id: int, actor: Actor, now: datetime, note: str) -> None:
    """Add a line to the case's note."""
    with _locked_case(case_id) as case:
        line = f"{now:%Y-%m-%d %H:%M} {actor.get_username() if actor else ''}: {note.strip()}"
        Case.objects.filter(pk=case_id).update(note=f"{case.note}\n{line}".strip())
        _case_event(case, "case_noted", actor=actor, now=now, note=note.strip())


def close_case(*, case_id: int, actor: Actor, now: datetime, resolution: str, note: str) -> None:
    """Close a case that holds nothing up. One that does is closed by what settles its job: retry, resend, attach, resolve."""
    with _locked_case(case_id) as case:
        if case.resolved_at is not None:
            raise Refused(_("This case is closed."))
        holds_up = CaseKind(case.kind) in BLOCKING_CASES - {CaseKind.CONFLICT, CaseKind.POISON}
        if holds_up and Job.objects.filter(cases=case).exclude(state__in=ENDED).exists():
            raise Refused(
                _("Decide the job first: retry, send again, attach an id, or resolve it.")
            )
        if not note.strip():
            raise Refused(_("Say in the note what was found."))
        Case.objects.filter(pk=case_id).update(
            resolved_at=now, resolution=resolution, resolved_by_id=actor.pk if actor else None,
            note=f"{case.note}\n{note.strip()}".strip(),
        )  # fmt: skip
        if case.kind == CaseKind.POISON and case.task_id:
            ProviderTask.objects.filter(pk=case.task_id).update(deaths=0, undecided_since=now)
        if case.kind == CaseKind.CONFLICT and case.task_id:
            ProviderTask.objects.filter(pk=case.task_id).update(undecided_since=now)
        _case_event(
            case, "case_closed", actor=actor, now=now, resolution=resolution, note=note.strip()
        )
        bell.ring()


def _case_event(case: Case, kind: str, *, actor: Actor, now: datetime, **data: str) -> None:
    """In its job's timeline; a case without a job has one of its own."""
    if case.job_id is None:
        CaseEvent.objects.create(
            case=case, kind=kind, at=now, data=data, actor_id=actor.pk if actor else None
        )
    else:
        events.write(
            [
                events.event(
                    job_id=case.job_id,
                    task_id=case.task_id,
                    kind=kind,
                    now=now,
                    actor=actor,
                    case=case.kind,
                    **data,
                )
            ]
        )


# --- the red button ---------------------------------------------------------------------------------------------------


def press_red_button(*, actor: Actor, now: datetime, reason: str) -> None:
    """No new spending from this moment; polls and fetches go on. Pressing it twice changes nothing."""
    Hold.objects.bulk_create(
        [
            Hold(
                kind=Hold.Kind.RED_BUTTON,
                set_at=now,
                set_by_id=actor.pk if actor else None,
                reason=reason,
            )
        ],
        ignore_conflicts=True,
    )


def lift_red_button(*, actor: Actor, now: datetime, reason: str) -> None:
    """Sends may go on."""
    with transaction.atomic():
        lifted = Hold.objects.filter(kind=Hold.Kind.RED_BUTTON, lifted_at__isnull=True)
        if not lifted.update(
            lifted_at=now, lifted_by_id=actor.pk if actor else None, lift_reason=reason
        ):
            raise Refused(_("The red button is not pressed."))
        bell.ring()
