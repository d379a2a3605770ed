"""Tenants at a glance: what each has spent, may spend and is held by. For the admin and the command; reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count
from django.utils.translation import gettext as _

from jobs import display, phases, spending
from jobs.budgets import Budget, Held, Limit, Period
from jobs.display import Look
from jobs.lifecycle import tenants as verbs
from jobs.models import ProviderTask, Tenant
from providers.models import Target

NEARLY = Decimal("0.8")
COUNT_CAP = 10_000

# Served by the claim's index of pending jobs, and no further than the cap.
_WAITING = """
SELECT w.id, (SELECT count(*) FROM (
  SELECT FROM jobs_job j WHERE j.state = 'pending' AND j.tenant_id = w.id LIMIT %(most)s) few)
FROM unnest(%(tenants)s::bigint[]) AS w(id)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`held`: why not even a send of the cheapest open target in its currency fits now; `held_by` is that target."""

    tenant: Tenant
    budget: Budget
    in_flight: int
    waiting: int  # at most COUNT_CAP + 1
    now: datetime
    held: Held | None = None
    held_by: Target | None = None

    @property
    def full(self) -> bool:
        most = self.tenant.max_in_flight
        return most is not None and self.in_flight >= most

    @property
    def words(self) -> str:
        """Which limit holds it now, "" for none."""
        if self.held is not None and self.held_by is not None:
            return phases.budget_words(
                self.held, tenant=self.tenant, target=self.held_by, now=self.now
            )
        if self.full:
            return _("%(tenant)s has its most in flight") % {"tenant": self.tenant.name}
        return ""


def views(tenants: Sequence[Tenant], *, now: datetime) -> list[View]:
    """In their order. A handful of statements, however many tenants."""
    waiting = _waiting([tenant.pk for tenant in tenants])
    flying = dict(
        ProviderTask.objects.in_flight(now=now, poll_deadline_s=settings.POLL_DEADLINE_SEC)
        .order_by()
        .values_list("tenant_id")
        .annotate(Count("pk"))
    )
    cheapest: dict[str, Target] = {}
    for target in Target.objects.filter(enabled=True, stopped_at=None, price__gt=0).order_by(
        "-price", "-pk"
    ):
        cheapest[target.currency] = target
    found = []
    budgets = spending.budgets(tenants, factor=settings.PRICE_CEILING_FACTOR, now=now)
    for tenant in tenants:
        budget, by = budgets[tenant.pk], cheapest.get(tenant.currency)
        held = (
            None
            if by is None
            else budget.holds(
                price=by.price, currency=by.currency, factor=settings.PRICE_CEILING_FACTOR
            )
        )
        found.append(
            View(
                tenant=tenant,
                budget=budget,
                in_flight=flying.get(tenant.pk, 0),
                waiting=waiting[tenant.pk],
                now=now,
                held=held,
                held_by=by,
            )
        )  # fmt: skip
    return found


def _waiting(tenant_ids: Sequence[int]) -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(_WAITING, {"tenants": list(tenant_ids), "most": COUNT_CAP + 1})
        return dict(cursor.fetchall())


def look(limit: Limit, *, fits: bool) -> Look:
    """`fits`: whether one more send does."""
    if limit.left < 0:
        return Look(_("over the limit, nothing is sent"), "octagon-alert", "red")
    if not fits:
        return Look(_("no send fits any more"), "hourglass", "amber")
    if limit.spent.total >= limit.most * NEARLY:
        return Look(_("nearly used"), "gauge", "amber")
    return Look(_("room"), "circle-check", "green")


def period_words(period: Period) -> str:
    return _("today") if period is Period.DAY else _("this month")


def limit_words(limit: Limit, currency: str) -> str:
    """One line: spent, possible, left."""
    words = {
        "charged": display.money(limit.spent.charged, currency),
        "possible": display.money(limit.spent.possible, currency),
        "most": display.money(limit.most, currency),
        "left": display.money(abs(limit.left), currency),
    }
    if limit.left < 0:
        return _("%(charged)s spent, %(possible)s possible of %(most)s: over by %(left)s") % words
    return _("%(charged)s spent, %(possible)s possible of %(most)s: %(left)s left") % words


def plain(view: View) -> dict[str, Any]:
    """For JSON: money as text, times in UTC."""
    tenant = view.tenant
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "contact": tenant.contact,
        "weight": tenant.weight,
        "in_flight": view.in_flight,
        "max_in_flight": tenant.max_in_flight,
        "waiting": view.waiting,
        "currency": tenant.currency,
        "zone": tenant.zone,
        "default_route": [target.name for target in verbs.default_route(tenant)],
        "limits": {
            limit.period.value: {
                "most": _amount(limit.most),
                "charged": _amount(limit.spent.charged),
                "possible": _amount(limit.spent.possible),
                "left": _amount(limit.left),
                "until": limit.until.isoformat(),
            }
            for limit in view.budget.limits
        },
        "held": view.words,
    }


def _amount(amount: Decimal) -> str:
    """Without the zeros of the columns."""
    return f"{amount.quantize(Decimal('0.01')) if amount == round(amount, 2) else amount.normalize():f}"
