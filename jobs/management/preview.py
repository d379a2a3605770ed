"""What a command would make, for people and for programs: the admin's preview, on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from jobs import written
from jobs.batches import budget_words
from jobs.batches.estimate import Estimate, by_route, estimate
from jobs.batches.plan import Planned
from jobs.models import Tenant


@dataclass(frozen=True, slots=True)
class Preview:
    rows: list[Planned]
    tenant: Tenant
    estimate: Estimate
    routes: list[tuple[list[str], int]]  # names, jobs
    now: datetime


def preview(rows: list[Planned], *, tenant: Tenant, now: datetime) -> Preview:
    ways = [(way.names, way.rows) for way in by_route(rows)]
    return Preview(rows, tenant, estimate(rows, tenant=tenant, now=now), ways, now)


def lines(seen: Preview) -> Iterator[str]:
    told, tenant, now = seen.estimate, seen.tenant, seen.now
    twins = sum(row.twin for row in seen.rows)
    yield _("%(n)d jobs for %(tenant)s would be created, %(twins)d of them duplicates.") % {
        "n": len(seen.rows), "tenant": tenant.name, "twins": twins,
    }  # fmt: skip
    for names, n in seen.routes:
        yield f"  {' → '.join(names)}: {n}"
    yield _("Cost, about: %(cost)s") % {"cost": written.totals(told.cost) or "—"}
    yield _("Time, about: %(time)s") % {
        "time": "—" if told.seconds is None else written.duration(told.seconds)
    }
    for limit in told.budget.limits:
        left = budget_words.left(limit, tenant.currency)
        of = budget_words.limit_words(limit, tenant=tenant, now=now)
        yield f"{budget_words.left_name(limit)}: {left} {of}"
    if head := budget_words.headline(told):
        yield head
    for line in budget_words.details(told, tenant=tenant, now=now):
        yield f"  {line}"
    yield _("Nothing was created.")


def plain(seen: Preview) -> dict[str, Any]:
    """For JSON: money as text, times in UTC."""
    told = seen.estimate
    return {
        "dry_run": True,
        "tenant": seen.tenant.slug,
        "jobs": len(seen.rows),
        "duplicates": sum(row.twin for row in seen.rows),
        "routes": [{"route": names, "jobs": n} for names, n in seen.routes],
        "cost": {currency: f"{amount.normalize():f}" for currency, amount in told.cost.items()},
        "seconds": told.seconds,
        "limits": {
            limit.period.value: {"left": f"{limit.left.normalize():f}", "until": limit.until.isoformat()}
            for limit in told.budget.limits
        },
        "fit": {
            "now": told.fit.now,
            "until": [{"period": part.limit.period.value, "jobs": part.jobs} for part in told.fit.until],
            "never": [{"target": one.target.name, "jobs": one.jobs, "why": one.held.why.value} for one in told.fit.never],
        },
        "waiting": told.waiting,
    }  # fmt: skip
