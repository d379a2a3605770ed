"""Tenants at a glance: what each has spent, may spend and is held by. For the admin and the command; reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count
from django.utils.translation import gettext as _

from jobs import phases, spending, split, written
from jobs.budgets import Budget, Held, Limit, Period
from jobs.display import Look
from jobs.intake import InputError
from jobs.lifecycle import tenants as verbs
from jobs.models import ProviderTask, Tenant
from providers import registry
from providers.models import Target

NEARLY = Decimal("0.8")
COUNT_CAP = 10_000

# Served by the claim's index of pending jobs, and no further than the cap.
_WAITING = """
SELECT w.id, (SELECT count(*) FROM (
  SELECT FROM jobs_job j WHERE j.state = 'pending' AND j.tenant_id = w.id LIMIT %(most)s) few)
FROM unnest(%(tenants)s::bigint[]) AS w(id)
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A target of a split and its share in words, of those that are open; "—" for a closed one."""

    target: Target
    weight: int
    share: str

    @property
    def words(self) -> str:
        return f"{self.target.name} {self.share}"


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
    parts: Sequence[Part] = ()

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
    in_splits = {pk for tenant in tenants for pk in split.weights(tenant.split)}
    known = Target.objects.in_bulk(in_splits) if in_splits else {}
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
                parts=_parts(tenant, known),
            )
        )  # fmt: skip
    return found


def _parts(tenant: Tenant, known: Mapping[int, Target]) -> list[Part]:
    weights = {known[pk]: n for pk, n in split.weights(tenant.split).items() if pk in known}
    whole = sum(n for target, n in weights.items() if target.open)
    return [
        Part(target, n, written.percent(n, whole) if target.open else "—")
        for target, n in weights.items()
    ]


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
        "charged": written.both(limit.spent.charged, currency),
        "possible": written.money(limit.spent.possible, currency),
        "most": written.money(limit.most, currency),
        "left": written.both(abs(limit.left), currency),
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
        "split": [
            {"target": part.target.name, "weight": part.weight, "open": part.target.open}
            for part in view.parts
        ],
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


# --- the split as people write it -------------------------------------------------------------------------------------


def parse_split(lines: Iterable[str]) -> list[dict[str, int]]:
    """Of `provider:model=weight`, one each, for the verb, which checks the rest. Raises InputError (field `split`)."""
    parts: list[dict[str, int]] = []
    for line in filter(None, map(str.strip, lines)):
        name, _equals, weight = (part.strip() for part in line.rpartition("="))
        if not name or not weight.isascii() or not weight.isdecimal() or len(weight) > 6:
            raise InputError(
                "split", _("“%(text)s” is no part of a split. Write provider:model=70.") % {"text": line}
            )  # fmt: skip
        provider, model = registry.split_target(name)
        target = Target.objects.filter(provider=provider, model=model).first()
        if target is None:
            raise InputError("split", _("“%(name)s” is not a target.") % {"name": name})
        parts.append({"target": target.pk, "weight": int(weight)})
    return parts


def split_lines(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    """`provider:model=weight` for each; a target that is gone by its number."""
    weights = split.weights(parts)
    found = Target.objects.in_bulk(weights)
    return [f"{found[pk].name if pk in found else f'#{pk}'}={n}" for pk, n in weights.items()]
