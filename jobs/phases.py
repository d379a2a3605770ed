"""What people see of a job: its phase, and why it waits. Computed from rows, never written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Count, Q, Sum
from django.utils.translation import gettext as _

from jobs import spending, written
from jobs.budgets import Budget, Held, Period, Why
from jobs.models import Hold, Job, ProviderTask, Tenant
from jobs.models.batch import PAUSED_FROM
from jobs.states import JobState, Phase, TaskState
from providers import health, registry
from providers.contract import Charge
from providers.models import ProviderState, Target, in_words
from providers.word import word

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


def is_late(job: Job, task: ProviderTask | None, now: datetime) -> bool:
    """At work on a send armed longer than WORKER_JOB_TIMEOUT_SEC ago. Waiting in the queue is not late, however long.

    `task` as for `phase`.
    """
    if job.state != JobState.ACTIVE or task is None or task.armed_at is None:
        return False
    return now - task.armed_at > timedelta(seconds=settings.WORKER_JOB_TIMEOUT_SEC)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a pending job is not sent. `until` None: no time can be told. `turn` True: only others are before it."""

    text: str
    until: datetime | None = None
    turn: bool = False


@dataclass(frozen=True, slots=True)
class _Desk:
    """What all pending jobs wait for alike, read once. The SQL of the claim (lifecycle/claim.py) asks the same."""

    now: datetime
    hold: Hold | None
    targets: dict[int, Target]
    keys: dict[str, str]  # provider -> fingerprint of the key that is set, "" for none
    blocks: list[ProviderState]
    at_risk: dict[int, Decimal]  # target -> possible money of its lost and late sends
    by_target: dict[int, int]
    by_tenant: dict[int, int]
    budgets: dict[int, Budget]
    costly: set[int]  # jobs with an earlier send that was let go as free and then may have cost

    @property
    def full(self) -> bool:
        return sum(self.by_target.values()) >= settings.WORKER_CONCURRENCY


def why_waiting(jobs: Iterable[Job], now: datetime) -> dict[int, Waiting]:
    """Reasons for the pending ones among `jobs`, by id. A handful of queries, however many jobs."""
    pending = [job for job in jobs if job.state == JobState.PENDING]
    if not pending:
        return {}
    desk = _desk(pending, now)
    return {job.pk: _reason(job, desk) for job in pending}


def _desk(pending: list[Job], now: datetime) -> _Desk:
    targets = Target.objects.in_bulk({job.target_id for job in pending})
    flying = ProviderTask.objects.in_flight(now=now, poll_deadline_s=settings.POLL_DEADLINE_SEC)
    late = now - timedelta(seconds=settings.POLL_DEADLINE_SEC)
    at_risk = ProviderTask.objects.filter(
        Q(state=TaskState.UNKNOWN) | Q(state=TaskState.ACCEPTED, armed_at__lte=late),
        charge=Charge.POSSIBLE,
        target__in=targets,
    )
    costly = ProviderTask.objects.filter(job__in=pending).costly()
    return _Desk(
        now=now,
        hold=Hold.objects.filter(lifted_at__isnull=True).first(),
        targets=targets,
        keys={provider: _key(provider) for provider in {t.provider for t in targets.values()}},
        blocks=list(ProviderState.objects.select_related("account")),
        at_risk=dict(
            at_risk.order_by().values_list("target_id").annotate(money=Sum("estimated_cost"))
        ),
        by_target=dict(flying.order_by().values_list("target_id").annotate(n=Count("pk"))),
        by_tenant=dict(flying.order_by().values_list("tenant_id").annotate(n=Count("pk"))),
        budgets=spending.budgets(
            {job.tenant for job in pending}, factor=settings.PRICE_CEILING_FACTOR, now=now
        ),
        costly=set(costly.values_list("job_id", flat=True)),
    )


def _key(provider: str) -> str:
    try:
        return registry.account(provider).fingerprint
    except (ImproperlyConfigured, registry.UnknownProviderError):
        return ""


def _reason(job: Job, desk: _Desk) -> Waiting:
    target, now = desk.targets[job.target_id], desk.now
    name = {"target": target.name}
    if job.not_before >= PAUSED_FROM:
        return Waiting(_("its batch is paused"))
    if desk.hold is not None:
        return Waiting(_("all sends are held: %(hold)s") % {"hold": desk.hold.get_kind_display()})
    if not target.open:
        why = target.stopped_reason or _("switched off by staff")
        return Waiting(_("%(target)s is closed: %(why)s") % {**name, "why": why})
    if not desk.keys[target.provider]:
        return Waiting(_("no key is set for %(provider)s") % {"provider": target.provider.title()})
    if job.pk in desk.costly:
        return Waiting(_("an earlier send may have cost money after all; a person must decide"))
    blocked = _block(target, desk)
    if blocked is not None:
        return blocked
    if _braked(target, desk):
        return Waiting(
            _("%(target)s is paused: too much money may have gone into lost and late sends") % name
        )
    held = desk.budgets[job.tenant_id].holds(
        price=target.price, currency=target.currency, factor=settings.PRICE_CEILING_FACTOR
    )
    if held is not None:
        return Waiting(budget_words(held, tenant=job.tenant, target=target, now=now))
    if job.not_before > now:
        return Waiting(_("waiting before the next try"), job.not_before)
    return _turn(job, target, desk)


def _turn(job: Job, target: Target, desk: _Desk) -> Waiting:
    name = {"target": target.name}
    most = job.tenant.max_in_flight
    if most is not None and desk.by_tenant.get(job.tenant_id, 0) >= most:
        return Waiting(
            _("%(tenant)s has its most in flight") % {"tenant": job.tenant.name}, turn=True
        )
    if (
        target.max_in_flight is not None
        and desk.by_target.get(target.pk, 0) >= target.max_in_flight
    ):
        return Waiting(_("%(target)s has its most in flight") % name, turn=True)
    if desk.full:
        return Waiting(
            _("all places are taken (%(n)s in flight)") % {"n": settings.WORKER_CONCURRENCY},
            turn=True,
        )
    return Waiting(_("next in line"), turn=True)


def _braked(target: Target, desk: _Desk) -> bool:
    """The exposure brake: the possible money of lost and late sends has reached so many prices."""
    most = max(target.price, Decimal("0.0001")) * settings.EXPOSURE_LIMIT_PRICES
    return desk.at_risk.get(target.pk, Decimal(0)) >= most


def _block(target: Target, desk: _Desk) -> Waiting | None:
    """A pause or a wait of the account that the target's next send would use, or of one model there."""
    name = {"target": target.name}
    for row in desk.blocks:
        ours = row.account.fingerprint == desk.keys[target.provider]
        if not ours or row.account.provider != target.provider or row.model not in {"", target.model}:  # fmt: skip
            continue
        if row.state == ProviderState.State.PAUSED:
            return Waiting(_("%(target)s is paused by staff") % name)
        one = row.health()
        if health.may_send(one, unanswered=0, now=desk.now) == 0:
            told = word(one, now=desk.now)
            blocked = one.gate is health.Gate.CLOSED and one.blocked(desk.now)
            why = (
                row.get_state_display()
                if blocked
                else in_words(told, now=desk.now, moment=written.moment)
            )
            return Waiting(
                _("waiting for %(target)s: %(why)s") % {**name, "why": why},
                one.blocked_until if blocked else None,
            )
    return None


# --- budgets ----------------------------------------------------------------------------------------------------------


def budget_words(held: Held, *, tenant: Tenant, target: Target, now: datetime) -> str:
    """Which spending limit holds a send to `target`, and until when, in the tenant's own time."""
    words = {
        "tenant": tenant.name,
        "target": target.name,
        "currency": tenant.currency,
        "asked": written.money(held.ceiling, target.currency),
    }
    limit = held.limit
    if limit is None:
        if held.why is Why.CURRENCY:
            return (
                _(
                    "%(tenant)s has a budget in %(currency)s, and %(target)s is paid in another currency"
                )
                % words
            )
        return _("%(tenant)s has a budget, and %(target)s has no price") % words
    words |= {
        "most": written.money(limit.most, tenant.currency),
        "possible": written.money(limit.spent.possible, tenant.currency),
        "until": moment_there(limit.until, zone=tenant.zone, now=now),
    }
    if held.why is Why.TOO_DEAR:
        if limit.period is Period.DAY:
            return (
                _("%(target)s may cost %(asked)s, more than %(tenant)s may spend a day (%(most)s)")
                % words
            )
        return (
            _("%(target)s may cost %(asked)s, more than %(tenant)s may spend a month (%(most)s)")
            % words
        )
    if held.eases:
        return (
            _(
                "waits for the budget of %(tenant)s until it is known what sends under way cost (%(possible)s at most),"
                " or until %(until)s"
            )
            % words
        )
    return _("waits for the budget of %(tenant)s until %(until)s") % words


def moment_there(moment: datetime, *, zone: str, now: datetime) -> str:
    """By the wall clock of `zone`: "tomorrow 00:00 Europe/Moscow"."""
    there = ZoneInfo(zone)
    local = moment.astimezone(there)
    words = {"time": written.digits(f"{local:%H:%M}"), "zone": zone}
    days = (local.date() - now.astimezone(there).date()).days
    if days == 0:
        return _("today %(time)s %(zone)s") % words
    if days == 1:
        return _("tomorrow %(time)s %(zone)s") % words
    return _("%(day)s %(time)s %(zone)s") % {
        **words,
        "day": written.month_day(local.date()),
    }
