"""Smoke runs: begun once, gone on with by one process at a time, and what they measure kept as facts of the account."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction
from django.db.models import Q

from jobs import smoke
from jobs.intake import PRIORITY_HIGH
from jobs.lifecycle import create
from jobs.models import Tenant
from jobs.smoke import Check
from providers.contract import Adapter, Kind
from providers.models import Account, ProviderEvent, SmokeRun, Target

TENANT = "smoke"
PROMPT = "A plain grey square"
WORDS = "Answer with one word: ready"
# Longer than any one call of a run takes.
LEASE_S = 90.0
# One run's job is the same job, however often its creation is tried.
_JOBS = uuid.UUID("6f1c2f0e-6d53-4c3c-9f0a-3a0b8f1d5a77")


def cheapest_target(*, provider: str, adapter: Adapter) -> Target:
    """The open target of the provider that costs least; its default one, made where the table has none of it."""
    known = Target.objects.filter(provider=provider)
    opened = known.filter(enabled=True, stopped_at__isnull=True, price__gt=0)
    found = opened.order_by("price", "pk").first() or known.order_by("price", "pk").first()
    if found is None:
        found, _made = Target.objects.get_or_create(
            provider=provider,
            model=adapter.default_model,
            defaults={"price": adapter.default_price, "currency": adapter.currency},
        )
    return found


def begin(
    *, account: Account, target: Target, real: bool, most: Decimal, now: datetime, day: date | None = None
) -> SmokeRun | None:  # fmt: skip
    """A run that its caller is at. None: the account has had its run of that day, by whichever process."""
    token = SmokeRun(
        account=account, target=target, real=real, most=most, day=day, at=now, currency=target.currency,
        lease_until=now + timedelta(seconds=LEASE_S),
    )  # fmt: skip
    if day is None:
        token.save()
        return token
    with transaction.atomic():
        # Of two at once the second waits here for the first's commit, and then finds its row.
        Account.objects.select_for_update(no_key=True).get(pk=account.pk)
        if SmokeRun.objects.filter(account=account, day=day).exists():
            return None
        token.save()
    return token


def take(*, run_id: int, now: datetime) -> SmokeRun | None:
    """The run, for the caller alone until the lease ends. None: it has ended, or somebody is at it."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lte=now)
    until = now + timedelta(seconds=LEASE_S)
    mine = SmokeRun.objects.filter(free, pk=run_id, ended_at__isnull=True)
    if not mine.update(lease_until=until):
        return None
    return SmokeRun.objects.select_related("account", "target").get(pk=run_id)


def keep(run: SmokeRun, *, now: datetime) -> None:
    """What was seen so far; whoever is at the run goes on having it."""
    run.lease_until = now + timedelta(seconds=LEASE_S)
    run.save(update_fields=["seen", "checks", "lease_until"])


def let_go(*, run_id: int) -> None:
    SmokeRun.objects.filter(pk=run_id, ended_at__isnull=True).update(lease_until=None)


def send(run: SmokeRun, *, now: datetime) -> int:
    """The run's one job, made in the transaction that notes it: an ordinary job, sent and watched as any other."""
    assert run.target is not None
    kind = Kind(run.target.kind)
    with transaction.atomic():
        locked = SmokeRun.objects.select_for_update(of=("self",)).get(pk=run.pk)
        if locked.job_id is None:
            batch = create.create_jobs(
                jobs=[
                    create.NewJob(
                        prompt=PROMPT if kind is Kind.IMAGE else WORDS, route=[run.target], kind=kind,
                        reference=f"smoke-{run.pk}", priority=PRIORITY_HIGH,
                    )
                ],
                tenant=_tenant(), actor=None, now=now, label="smoke", token=uuid.uuid5(_JOBS, str(run.pk)),
            )  # fmt: skip
            locked.job_id = batch.jobs.values_list("pk", flat=True).get()
            locked.save(update_fields=["job_id"])
        run.job_id = locked.job_id
    assert run.job_id is not None
    return run.job_id


def _tenant() -> Tenant:
    tenant, _made = Tenant.objects.get_or_create(slug=TENANT, defaults={"name": "Smoke"})
    return tenant


def finish(
    run: SmokeRun, *, checks: Sequence[Check], now: datetime, cost: Decimal | None = None
) -> bool:
    """False: somebody else has finished it."""
    run.checks, run.ok, run.cost = smoke.plain(checks), smoke.passed(checks), cost
    run.ended_at = now
    return bool(
        SmokeRun.objects.filter(pk=run.pk, ended_at__isnull=True).update(
            checks=run.checks, ok=run.ok, cost=cost, seen=run.seen, ended_at=now, lease_until=None
        )
    )


def measured(
    *, account_id: int, echoes_id: bool | None, history_lag_s: float | None, now: datetime
) -> bool:
    """Facts of the account, with an event where they are news. `history_lag_s` None: absence is concluded no more."""
    with transaction.atomic():
        account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        facts: dict[str, Any] = {"history_lag_s": history_lag_s}
        if echoes_id is not None:
            facts["echoes_id"] = echoes_id
        changed = {
            name: [getattr(account, name), value]
            for name, value in facts.items()
            if getattr(account, name) != value
        }
        if not changed:
            return False
        for name, value in facts.items():
            setattr(account, name, value)
        account.save(update_fields=list(facts))
        ProviderEvent.objects.create(account=account, at=now, kind="history_measured", data=changed)
    return True
