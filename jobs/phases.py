"""What people see of a job: its phase, and why it waits. Computed from rows, never written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count
from django.utils.translation import gettext as _

from jobs.models import Hold, Job, ProviderTask
from jobs.states import JobState, Phase, TaskState
from providers.models import ProviderState, Target

_ENDED = {
    JobState.SUCCEEDED: Phase.SUCCEEDED,
    JobState.FAILED: Phase.FAILED,
    JobState.CANCELLED: Phase.CANCELLED,
    JobState.MANUAL: Phase.MANUAL,
    JobState.PENDING: Phase.WAITING,
}
_OF_TASK = {
    TaskState.INTENT: Phase.SENDING,
    TaskState.SENDING: Phase.SENDING,
    TaskState.ACCEPTED: Phase.AT_PROVIDER,
    TaskState.COMPLETED: Phase.FETCHING,
    TaskState.STORED: Phase.FETCHING,
    TaskState.UNKNOWN: Phase.LOOKING,
    TaskState.FAILED: Phase.CHECKING_COST,
}


def phase(job: Job, task: ProviderTask | None, now: datetime) -> Phase:
    """`task` is the one that blocks a further send, or None."""
    if job.state != JobState.ACTIVE:
        return _ENDED[JobState(job.state)]
    if task is None:
        return Phase.WAITING
    late = task.armed_at is not None and now - task.armed_at >= timedelta(
        seconds=settings.POLL_DEADLINE_SEC
    )
    if task.state == TaskState.ACCEPTED and late:
        return Phase.LATE
    return _OF_TASK.get(TaskState(task.state), Phase.WAITING)


def is_late(job: Job, now: datetime) -> bool:
    """Open for longer than WORKER_JOB_TIMEOUT_SEC."""
    return job.finished_at is None and now - job.created_at > timedelta(
        seconds=settings.WORKER_JOB_TIMEOUT_SEC
    )


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pending job is not sent. `until` None: no time can be told."""

    text: str
    until: datetime | None = None


def why_waiting(jobs: Iterable[Job], now: datetime) -> dict[int, Waiting]:
    """Reasons for the pending ones among `jobs`, by id. A handful of queries, however many jobs."""
    pending = [job for job in jobs if job.state == JobState.PENDING]
    if not pending:
        return {}
    hold = Hold.objects.filter(lifted_at__isnull=True).first()
    flying = ProviderTask.objects.in_flight(now=now, poll_deadline_s=settings.POLL_DEADLINE_SEC)
    by_target = dict(flying.order_by().values_list("target_id").annotate(n=Count("pk")))
    by_tenant = dict(flying.order_by().values_list("tenant_id").annotate(n=Count("pk")))
    full = sum(by_target.values()) >= settings.WORKER_CONCURRENCY
    blocks = list(ProviderState.objects.select_related("account"))
    targets = Target.objects.in_bulk({job.target_id for job in pending})
    return {
        job.pk: _reason(
            job,
            targets[job.target_id],
            hold,
            blocks,
            by_target=by_target,
            by_tenant=by_tenant,
            full=full,
            now=now,
        )
        for job in pending
    }


def _reason(
    job: Job,
    target: Target,
    hold: Hold | None,
    blocks: list[ProviderState],
    *,
    by_target: dict[int, int],
    by_tenant: dict[int, int],
    full: bool,
    now: datetime,
) -> Waiting:
    name = {"target": target.name}
    if hold is not None:
        return Waiting(_("all sends are held: %(hold)s") % {"hold": hold.get_kind_display()})
    if not target.open:
        return Waiting(_("%(target)s is closed: %(why)s") % {**name, "why": target.stopped_reason})
    blocked = _block(target, blocks, now)
    if blocked is not None:
        return blocked
    if job.not_before > now:
        return Waiting(_("waiting before the next try"), job.not_before)
    if (
        job.tenant.max_in_flight is not None
        and by_tenant.get(job.tenant_id, 0) >= job.tenant.max_in_flight
    ):
        return Waiting(_("%(tenant)s has its most in flight") % {"tenant": job.tenant.name})
    if target.max_in_flight is not None and by_target.get(target.pk, 0) >= target.max_in_flight:
        return Waiting(_("%(target)s has its most in flight") % name)
    if full:
        return Waiting(
            _("all places are taken (%(n)s in flight)") % {"n": settings.WORKER_CONCURRENCY}
        )
    return Waiting(_("next in line"))


def _block(target: Target, blocks: list[ProviderState], now: datetime) -> Waiting | None:
    name = {"target": target.name}
    for row in blocks:
        if row.account.provider != target.provider or row.model not in {"", target.model}:
            continue
        if row.state == ProviderState.State.PAUSED:
            return Waiting(_("%(target)s is paused by staff") % name)
        if row.blocked_until is not None and row.blocked_until > now:
            why = row.get_state_display()
            return Waiting(
                _("waiting for %(target)s: %(why)s") % {**name, "why": why}, row.blocked_until
            )
    return None
