"""What tenants have spent today and this month, counted from the sends themselves.

Read inside the admission lock, where nobody else claims, it misses nothing that may still be charged: intents of all lanes
count from the moment they are written.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db import connection

from jobs.budgets import Budget, Limit, Period, Span, Spent, span
from jobs.models import Tenant

# The SQL twin of budgets.counted. The conditions on state and charge are those of the partial index `task_spent`, which
# holds every column that is read here; one scan from the earlier start gives both sums.
_SPENT = """
SELECT w.tenant_id, w.number, sums.charged, sums.possible
FROM unnest(%(tenants)s::bigint[], %(numbers)s::int[], %(currencies)s::text[], %(starts)s::timestamptz[],
            %(ends)s::timestamptz[]) AS w(tenant_id, number, currency, start_at, end_at)
CROSS JOIN LATERAL (
  SELECT
    coalesce(sum(k.cost) FILTER (WHERE k.charge IN ('charged', 'written_off')), 0) AS charged,
    coalesce(sum(k.estimated_cost) FILTER (WHERE k.cost IS NULL OR k.charge NOT IN ('charged', 'written_off')), 0)
      * %(factor)s::numeric AS possible
  FROM jobs_providertask k
  WHERE k.tenant_id = w.tenant_id AND k.created_at >= w.start_at AND k.created_at < w.end_at
    AND k.currency = w.currency
    AND (k.state = 'intent' OR k.charge IN ('possible', 'charged', 'written_off'))
) sums
"""


def spent(
    asked: Collection[tuple[int, str, Span]], *, factor: float
) -> dict[tuple[int, Span], Spent]:
    """By tenant and span, for (tenant id, currency, span). Money of other currencies is not counted."""
    if not asked:
        return {}
    rows = list(asked)
    with connection.cursor() as cursor:
        cursor.execute(
            _SPENT,
            {
                "tenants": [tenant_id for tenant_id, _, _ in rows],
                "numbers": list(range(len(rows))),
                "currencies": [currency for _, currency, _ in rows],
                "starts": [one.start for _, _, one in rows],
                "ends": [one.end for _, _, one in rows],
                "factor": Decimal(str(factor)),
            },
        )
        return {
            (tenant_id, rows[number][2]): Spent(charged, possible)
            for tenant_id, number, charged, possible in cursor.fetchall()
        }


def budgets(tenants: Collection[Any], *, factor: float, now: datetime) -> dict[int, Budget]:
    """By id, for tenants as rows or as ids. One statement for all that have a limit, none where nobody has one."""
    rows = [one for one in tenants if isinstance(one, Tenant)]
    ids = [one for one in tenants if not isinstance(one, Tenant)]
    if ids:
        rows += list(Tenant.objects.filter(pk__in=ids))
    asked = {
        (row.pk, period): span(period, zone=row.zone, now=now)
        for row in rows
        for period, most in _limits(row)
        if most is not None
    }
    currency = {row.pk: row.currency for row in rows}
    sums = spent(
        {(tenant_id, currency[tenant_id], one) for (tenant_id, _), one in asked.items()},
        factor=factor,
    )
    return {
        row.pk: Budget(
            currency=row.currency,
            zone=row.zone,
            limits=tuple(
                Limit(period, most, sums[row.pk, asked[row.pk, period]], asked[row.pk, period].end)
                for period, most in _limits(row)
                if most is not None
            ),
        )
        for row in rows
    }


def _limits(row: Tenant) -> tuple[tuple[Period, Decimal | None], ...]:
    return (Period.DAY, row.daily_limit), (Period.MONTH, row.monthly_limit)
