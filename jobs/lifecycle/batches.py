"""What people may do to a batch as a whole, and noticing that it has come to its end.

Set-based: ten thousand jobs move in a few statements. Each verb raises `Refused` with a sentence and has then changed
nothing. Lock order: jobs by id, then their batch; a job that comes back to the queue takes its batch's lock after its own
(the trigger of migration 0007), so every verb here locks the jobs first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from jobs import bell
from jobs.lifecycle import events
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, BatchEvent, Case, Job, ProviderTask
from jobs.models.batch import PAUSE, PAUSED_FROM
from jobs.states import HAS_COST, CaseKind, JobState, Release, TaskState
from providers.models import Target

Actor = AbstractBaseUser | None


@dataclass(frozen=True, slots=True)
class Done:
    """How many jobs a verb moved, and how many it had to leave as they were."""

    moved: int
    left: int = 0


def is_held(job: Job) -> bool:
    """Whether a pending job waits because its batch is paused."""
    return job.state == JobState.PENDING and job.not_before >= PAUSED_FROM


# --- pause and resume -------------------------------------------------------------------------------------------------


def pause(*, batch_id: int, actor: Actor, now: datetime, reason: str = "") -> Done:
    """Nothing more of it is sent. What was claimed before goes on, and what comes back to the queue waits too."""
    with transaction.atomic():
        _lock(_pending(batch_id))
        # Waits for transactions that bring a job back, and they for this one: none slips through unseen.
        if not Batch.objects.filter(pk=batch_id, paused_at__isnull=True).update(paused_at=now):
            raise Refused(_("This batch is paused already."))
        moved = (
            _pending(batch_id)
            .filter(not_before__lt=PAUSED_FROM)
            .update(not_before=F("not_before") + PAUSE)
        )
        _tell(batch_id, "paused", now=now, actor=actor, reason=reason, jobs=moved)
    return Done(moved)


def resume(*, batch_id: int, actor: Actor, now: datetime, reason: str = "") -> Done:
    """The jobs go on where they stood: the same order, the same times."""
    with transaction.atomic():
        _lock(_pending(batch_id))
        if not Batch.objects.filter(pk=batch_id, paused_at__isnull=False).update(paused_at=None):
            raise Refused(_("This batch is not paused."))
        moved = (
            _pending(batch_id)
            .filter(not_before__gte=PAUSED_FROM)
            .update(not_before=F("not_before") - PAUSE)
        )
        _tell(batch_id, "resumed", now=now, actor=actor, reason=reason, jobs=moved)
        bell.ring()
    return Done(moved)


# --- verbs over its jobs ----------------------------------------------------------------------------------------------


def cancel_rest(*, batch_id: int, actor: Actor, now: datetime, reason: str = "") -> Done:
    """What waits is cancelled. What is being sent or made is or may be paid for, and goes on."""
    with transaction.atomic():
        ids = _lock(_pending(batch_id))
        if not ids:
            raise Refused(_("Nothing of this batch waits any more."))
        events.write_same(
            ids, kind="cancelled", now=now, actor=actor, before="state", reason=reason,
            after=JobState.CANCELLED.value, batch=batch_id,
        )  # fmt: skip
        Job.objects.filter(pk__in=ids).update(
            state=JobState.CANCELLED,
            reason="cancelled",
            reason_text=reason,
            finished_at=now,
            decided_at=now,
            decided_by_id=_pk(actor),
        )
        _tell(batch_id, "rest_cancelled", now=now, actor=actor, reason=reason, jobs=len(ids))
    complete(now=now, batch_ids=[batch_id])
    return Done(len(ids))


def retry_failed(*, batch_id: int, actor: Actor, now: datetime, reason: str = "") -> Done:
    """Start the failed ones anew, except where an earlier send may have been charged: those are decided one by one."""
    with transaction.atomic():
        failed = _lock(Job.objects.filter(batch_id=batch_id, state=JobState.FAILED))
        _lock_tasks(failed)
        ids = free(failed)
        if not ids:
            raise Refused(
                _("Nothing of this batch can simply be retried: what failed may have cost money.")
                if failed
                else _("Nothing of this batch has failed.")
            )
        Case.objects.filter(job_id__in=ids, resolved_at__isnull=True).exclude(
            kind=CaseKind.PAID_TWICE
        ).update(resolved_at=now, resolution="retried", resolved_by_id=_pk(actor))
        events.write_same(
            ids, kind="retried", now=now, actor=actor, before="state", reason=reason,
            after=JobState.PENDING.value, batch=batch_id,
        )  # fmt: skip
        Job.objects.filter(pk__in=ids).update(
            state=JobState.PENDING,
            reason="retried",
            reason_text=reason,
            not_before=now,
            attempts_since=now,
            finished_at=None,
            decided_at=None,
            decided_by=None,
            target_id=F("route__0"),
        )
        _tell(batch_id, "failed_retried", now=now, actor=actor, reason=reason, jobs=len(ids))
        bell.ring()
    return Done(len(ids), len(failed) - len(ids))


def retarget_rest(
    *, batch_id: int, target_id: int, actor: Actor, now: datetime, reason: str = ""
) -> Done:
    """What waits goes to another target first; the rest of each route stays behind it."""
    with transaction.atomic():
        target = Target.objects.filter(pk=target_id).first()
        if target is None or not target.open:
            raise Refused(_("That target is closed."))
        waiting = _lock(_pending(batch_id))
        fits = Job.objects.filter(pk__in=waiting, kind=target.kind).exclude(target=target)
        ids = list(fits.order_by("pk").values_list("pk", flat=True))
        if not ids:
            raise Refused(
                _("Nothing of this batch waits for another target than that, or it makes another kind.")
                if waiting
                else _("Nothing of this batch waits any more.")
            )  # fmt: skip
        events.write_same(
            ids, kind="retargeted", now=now, actor=actor, before="target", reason=reason,
            target=target.name, batch=batch_id,
        )  # fmt: skip
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE jobs_job SET target_id = %(to)s, route = array_prepend(%(to)s, array_remove(route, %(to)s))"
                " WHERE id = ANY(%(ids)s)",
                {"to": target.pk, "ids": ids},
            )
        _tell(
            batch_id, "rest_retargeted", now=now, actor=actor, reason=reason, jobs=len(ids), target=target.name
        )  # fmt: skip
        bell.ring()
    return Done(len(ids), len(waiting) - len(ids))


def free(ids: Sequence[int]) -> list[int]:
    """Those among the jobs that nothing stands in the way of, in their order: the set twin of staff.retry's look."""
    in_the_way = ProviderTask.objects.filter(job=OuterRef("pk")).filter(
        Q(blocks_send=True)
        | Q(released_by__in=[Release.UNSENT, Release.FREE, Release.ABSENT], charge__in=HAS_COST)
        # A result that fits the prompt is here already: staff.check_no_result.
        | Q(
            state=TaskState.STORED,
            created_at__gte=Coalesce(OuterRef("edited_at"), OuterRef("created_at")),
        )
    )
    # "Gave up" released the send; that was no word on sending again.
    given_up = ProviderTask.objects.filter(
        job=OuterRef("pk"), released_by=Release.PERSON, charge__in=HAS_COST
    )
    found = Job.objects.filter(pk__in=ids).exclude(
        Exists(in_the_way) | (Q(decided_at__isnull=False) & Exists(given_up))
    )
    return list(found.order_by("pk").values_list("pk", flat=True))


# --- the end ----------------------------------------------------------------------------------------------------------

_AT_ITS_END = """
  completed_at IS NULL AND EXISTS (SELECT FROM jobs_job j WHERE j.batch_id = b.id)
  AND NOT EXISTS (SELECT FROM jobs_job j WHERE j.batch_id = b.id AND j.state IN ('pending', 'active'))
"""


def complete(*, now: datetime, batch_ids: Iterable[int] | None = None) -> list[int]:
    """Mark the batches with nothing left for the machine as complete, each end once; the ids of those marked here.

    Called each minute for all (None), and by whoever has just ended jobs for theirs. Two statements on purpose: a job that
    comes back to the queue holds a lock on its batch until it commits. The first statement waits for it, the second then
    sees that job; in one statement, what was read before the wait would decide.
    """
    asked = None if batch_ids is None else sorted(set(batch_ids))
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            f"SELECT id FROM jobs_batch b WHERE (%(ids)s::bigint[] IS NULL OR id = ANY(%(ids)s)) AND {_AT_ITS_END}"  # noqa: S608
            " ORDER BY id FOR NO KEY UPDATE",
            {"ids": asked},
        )
        locked = [pk for (pk,) in cursor.fetchall()]
        if not locked:
            return []
        cursor.execute(
            "UPDATE jobs_batch b SET completed_at = %(now)s, completions = completions + 1"  # noqa: S608
            f" WHERE id = ANY(%(ids)s) AND {_AT_ITS_END} RETURNING id, completions",
            {"ids": locked, "now": now},
        )
        ended = sorted(cursor.fetchall())
        BatchEvent.objects.bulk_create(
            [
                BatchEvent(batch_id=pk, kind="completed", number=number, at=now)
                for pk, number in ended
            ]
        )
    return [pk for pk, _number in ended]


# --- parts ------------------------------------------------------------------------------------------------------------


def _pending(batch_id: int) -> QuerySet[Job]:
    return Job.objects.filter(batch_id=batch_id, state=JobState.PENDING)


def _lock(jobs: QuerySet[Job]) -> list[int]:
    return list(
        jobs.order_by("pk").select_for_update(no_key=True, of=("self",)).values_list("pk", flat=True)
    )  # fmt: skip


def _lock_tasks(job_ids: Sequence[int]) -> None:
    tasks = ProviderTask.objects.filter(job_id__in=job_ids).order_by("pk")
    list(tasks.select_for_update(no_key=True).values_list("pk"))


def _pk(actor: Actor) -> int | None:
    return actor.pk if actor else None


def _tell(batch_id: int, kind: str, *, now: datetime, actor: Actor, **data: Any) -> None:
    kept = {name: value for name, value in data.items() if value not in {"", None}}
    BatchEvent.objects.create(batch_id=batch_id, kind=kind, at=now, actor_id=_pk(actor), data=kept)
