"""What tenants have spent today and this month, counted from the sends themselves.

Read inside the admission lock, where nobody else claims, it misses nothing that may still be charged: intents of all lanes
count from the moment they are written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from decimal import Decimal

from django.db import connection

from jobs.budgets import Budget, Limit, Period, Span, Spent, span
from jobs.models import Tenant, TenantOlder

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


def budgets(
    tenants: Collection[Tenant], *, factor: float, now: datetime, keep: bool = False
) -> dict[int, Budget]:
    """By id. One or two statements for all that have a limit, none where nobody has one.

    `keep`, for the claim: what the older sends of a month come to is written down for a minute.
    """
    asked = {
        (row, period): span(period, zone=row.zone, now=now)
        for row in tenants
        for period, most in _limits(row)
        if most is not None
    }
    parts = {
        key: _parts(one, now) if key[1] is Period.MONTH else [one] for key, one in asked.items()
    }
    known = _kept([row for (row, _), several in parts.items() if len(several) > 1], factor=factor, now=now)  # fmt: skip
    for key, several in parts.items():
        if len(several) > 1 and (row := key[0]).pk in known:
            older = several[0]
            kept = known[row.pk]
            if (kept.start_at, kept.currency) != (older.start, row.currency):
                del known[row.pk]
            else:
                parts[key] = [Span(kept.end_at, several[1].end)]
    sums = spent(
        {(row.pk, row.currency, one) for (row, _), several in parts.items() for one in several},
        factor=factor,
    )
    if keep:
        _keep(
            {
                row: (several[0], sums[row.pk, several[0]])
                for (row, _), several in parts.items()
                if len(several) > 1
            },
            factor=factor,
            now=now,
        )

    def total(row: Tenant, period: Period) -> Spent:
        found = sum((sums[row.pk, one] for one in parts[row, period]), Spent())
        if period is Period.MONTH and row.pk in known:
            found += Spent(known[row.pk].charged, known[row.pk].possible)
        return found

    return {
        row.pk: Budget(
            currency=row.currency,
            zone=row.zone,
            limits=tuple(
                Limit(period, most, total(row, period), asked[row, period].end)
                for period, most in _limits(row)
                if most is not None
            ),
        )
        for row in tenants
    }


def _limits(row: Tenant) -> tuple[tuple[Period, Decimal | None], ...]:
    return (Period.DAY, row.daily_limit), (Period.MONTH, row.monthly_limit)


# --- the older part of a month ----------------------------------------------------------------------------------------

# Half a million sends of a month take half a second to sum up, too long for each claim. Those older than an hour are no
# longer written, they only become known: from possible to a cost within the ceiling, or to nothing. So their sum may be a
# minute old without a limit being passed. What it misses for that minute is what no limit can foresee: a charge above its
# ceiling, or one for a send that was known to be free.
_OLDER = timedelta(hours=1)
_KEPT = timedelta(minutes=1)


def _parts(month: Span, now: datetime) -> list[Span]:
    """The older part and the rest, or the month as a whole where it has only begun."""
    edge = now - _OLDER
    return [Span(month.start, edge), Span(edge, month.end)] if month.start < edge else [month]


def _kept(tenants: Collection[Tenant], *, factor: float, now: datetime) -> dict[int, TenantOlder]:
    if not tenants:
        return {}
    rows = TenantOlder.objects.filter(
        tenant__in=tenants, factor=Decimal(str(factor)), summed_at__gt=now - _KEPT, summed_at__lte=now
    )  # fmt: skip
    return {row.tenant_id: row for row in rows}


def _keep(older: Mapping[Tenant, tuple[Span, Spent]], *, factor: float, now: datetime) -> None:
    if not older:
        return
    TenantOlder.objects.bulk_create(
        [
            TenantOlder(
                tenant=row, start_at=one.start, end_at=one.end, currency=row.currency, factor=Decimal(str(factor)),
                charged=sum_.charged, possible=sum_.possible, summed_at=now,
            )
            for row, (one, sum_) in older.items()
        ],
        update_conflicts=True,
        unique_fields=["tenant"],
        update_fields=["start_at", "end_at", "currency", "factor", "charged", "possible", "summed_at"],
    )  # fmt: skip
