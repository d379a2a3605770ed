"""Rows as programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from django.db.models import Prefetch, QuerySet
from django.urls import reverse
from django.utils.translation import gettext as _

from jobs import panel, phases, tenancy
from jobs.api import estimates
from jobs.api.schemas import (
    BatchOut,
    BudgetOut,
    CostOut,
    EstimateOut,
    JobOut,
    LimitOut,
    ProviderOut,
    ProvidersOut,
    WaitingOut,
)
from jobs.models import Batch, Hold, Job, ProviderTask, Tenant
from jobs.panel import Closed
from jobs.phases import Waiting
from jobs.progress import Progress
from jobs.states import JobState, TaskState
from providers.contract import Charge
from providers.models import Target
from providers.word import Word

_HEAVY = ("evidence", "files", "result_text", "candidates", "failure_text")


def jobs_of(tenant: Tenant) -> QuerySet[Job]:
    """The tenant's own, with what is told of them."""
    tasks = ProviderTask.objects.defer(*_HEAVY).order_by("created_at")
    return (
        Job.objects.filter(tenant=tenant)
        .select_related("tenant", "target")
        .defer("prompt", "original_prompt", "params")
        .prefetch_related(Prefetch("tasks", tasks))
    )


def jobs(rows: Sequence[Job], *, now: datetime, estimate: bool = False) -> list[JobOut]:
    """`estimate`: a statement or two more for each."""
    waits = phases.why_waiting(rows, now)
    return [_job(row, waits.get(row.pk), now=now, estimate=estimate) for row in rows]


def job(row: Job, *, now: datetime) -> JobOut:
    return jobs([row], now=now, estimate=True)[0]


def _job(row: Job, waiting: Waiting | None, *, now: datetime, estimate: bool) -> JobOut:
    tasks = list(row.tasks.all())
    blocks = next((task for task in tasks if task.blocks_send), None)
    return JobOut(
        id=row.pk,
        batch=row.batch_id,
        reference=row.reference,
        kind=row.kind,
        state=row.state,
        phase=phases.phase(row, blocks, now).value,
        reason=row.reason,
        reason_text=row.reason_text,
        target=row.target.name,
        priority=row.priority,
        created_at=row.created_at,
        finished_at=row.finished_at,
        waiting=WaitingOut(why=waiting.text, until=waiting.until) if waiting else None,
        estimate=_estimate(row, blocks, waiting, now=now) if estimate else None,
        cost=_costs(tasks),
        result=reverse("api:job_result", args=[row.pk]) if row.delivered_id else None,
    )


def _estimate(
    row: Job, blocks: ProviderTask | None, waiting: Waiting | None, *, now: datetime
) -> EstimateOut | None:
    if row.state == JobState.PENDING:
        until = waiting.until if waiting else None
        if waiting is not None and until is None and not waiting.turn:
            return None  # it waits for something that has no known end
        return estimates.of_pending(row, tenant=row.tenant, target=row.target, until=until, now=now)
    if row.state == JobState.ACTIVE and blocks is not None and blocks.state == TaskState.ACCEPTED:
        return estimates.of_send(blocks, now=now)
    return None


def _costs(tasks: Sequence[ProviderTask]) -> list[CostOut]:
    charged: dict[str, Decimal] = {}
    possible: dict[str, Decimal] = {}
    for task in tasks:
        if task.charge in {Charge.CHARGED, Charge.WRITTEN_OFF}:
            cost = task.estimated_cost if task.cost is None else task.cost
            charged[task.currency] = charged.get(task.currency, Decimal(0)) + cost
        elif task.charge == Charge.POSSIBLE:
            possible[task.currency] = possible.get(task.currency, Decimal(0)) + task.estimated_cost
    return [
        CostOut(
            currency=currency,
            charged=amount(charged.get(currency, Decimal(0))),
            possible=amount(possible.get(currency, Decimal(0))),
        )
        for currency in sorted(charged.keys() | possible.keys())
    ]


def amount(value: Decimal) -> str:
    """Without the zeros of the columns, but with kopecks."""
    return f"{value.quantize(Decimal('0.01')) if value == round(value, 2) else value.normalize():f}"


def batch(row: Batch, seen: Progress) -> BatchOut:
    ends_at = None
    if seen.left_s is not None:
        ends_at = seen.at + timedelta(seconds=seen.left_s)
    return BatchOut(
        id=row.pk,
        label=row.label,
        created_at=row.created_at,
        completed_at=seen.completed_at,
        paused=seen.paused,
        total=seen.total,
        counts={state.value: count for state, count in seen.counts.items()},
        done=seen.done,
        ends_at=ends_at,
        jobs=f"{reverse('api:jobs')}?batch={row.pk}",
    )


def providers(*, now: datetime) -> ProvidersOut:
    """Every target that jobs may go to, by the key in use."""
    found: list[ProviderOut] = []
    known = Target.objects.in_bulk()
    for account in panel.read(now=now, counts=False).accounts:
        for model in account.models:
            target = known.get(model.target_id or 0)
            if not account.key_set or target is None or model.closed is not Closed.NO:
                continue
            told = model.told
            found.append(
                ProviderOut(
                    target=target.name, kind=target.kind, state=told.word.value, phrase=told.phrase.value,
                    words=model.words(now), since=told.since, until=told.until, price=amount(target.price),
                    currency=target.currency,
                )
            )  # fmt: skip
    named = {one.target for one in found}
    # Nothing was ever sent to the others: no account is known.
    found += [
        ProviderOut(
            target=target.name, kind=target.kind, state=Word.AVAILABLE.value, phrase=Word.AVAILABLE.value,
            words=_("nothing was sent there yet"), since=None, until=None, price=amount(target.price),
            currency=target.currency,
        )
        for target in known.values()
        if target.open and target.name not in named
    ]  # fmt: skip
    held = Hold.objects.filter(lifted_at__isnull=True).exists()
    return ProvidersOut(held=held, targets=sorted(found, key=lambda one: one.target))


def budget(tenant: Tenant, *, now: datetime) -> BudgetOut:
    [view] = tenancy.views([tenant], now=now)
    return BudgetOut(
        tenant=tenant.slug,
        currency=tenant.currency,
        zone=tenant.zone,
        limits={
            limit.period.value: LimitOut(
                most=amount(limit.most),
                charged=amount(limit.spent.charged),
                possible=amount(limit.spent.possible),
                left=amount(limit.left),
                until=limit.until,
            )
            for limit in view.budget.limits
        },
        in_flight=view.in_flight,
        max_in_flight=tenant.max_in_flight,
        waiting=view.waiting,
        held=view.words,
    )
