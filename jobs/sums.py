"""What sends come to over a span of time, from the sums that a trigger keeps (models/sums.py): the same for a million as for
a thousand, and equal to the sums over the sends themselves at any moment."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection

from jobs.budgets import Span
from jobs.models.sums import DAY, QUARTER

COLUMNS = ("sends", "succeeded", "refused", "failed", "unknown", "charged", "possible")
_EPOCH = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """`sends`: what was sent, or may have been; then how it ended so far. `charged`: known costs; `possible`: estimates of
    what may still be charged."""

    sends: int = 0
    succeeded: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0
    charged: Decimal = Decimal(0)
    possible: Decimal = Decimal(0)

    def __add__(self, other: Sums) -> Sums:
        return Sums(**{name: getattr(self, name) + getattr(other, name) for name in COLUMNS})

    @property
    def ended(self) -> int:
        return self.succeeded + self.refused + self.failed + self.unknown


@dataclass(frozen=True, slots=True)
class Line:
    """The sums of one group in one currency. `span`: which of the asked; `by`: what it was grouped by, in that order."""

    span: int
    by: tuple[Any, ...]
    currency: str
    sums: Sums


# A span is put together of whole days and, at its ends, quarters of an hour. OFFSET 0 keeps the planner from joining the
# spans to all lines of that length there are: each reads its own stretch of the index.
_SUMS = """
SELECT w.number, {by}, s.currency, {sums}
FROM unnest(%(numbers)s::int[], %(lengths)s::int[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
  AS w (number, span_s, start_at, end_at)
CROSS JOIN LATERAL (
  SELECT * FROM jobs_sendsum s WHERE s.span_s = w.span_s AND s.start_at >= w.start_at AND s.start_at < w.end_at OFFSET 0
) s
{join}
WHERE {where}
GROUP BY w.number, {by}, s.currency
"""
_TAKEN = ", ".join(f"sum(s.{name})" for name in COLUMNS)
BY = {
    "account": "s.account_id",
    "provider": "a.provider",
    "target": "s.target_id",
    "tenant": "s.tenant_id",
    "hour": "date_bin('1 hour', s.start_at, '2000-01-01 00:00:00+00')",
}


def floor(at: datetime, length: timedelta = QUARTER) -> datetime:
    """The start of the quarter (or of whatever divides a day) that `at` is in."""
    return at - (at - _EPOCH) % length


def pieces(span: Span, *, whole_days: bool = True) -> list[tuple[timedelta, Span]]:
    """The span as quarters and whole days, each once. It begins and ends with a quarter of an hour, as all midnights do."""
    start, end = floor(span.start), _ceil(span.end)
    first, last = _ceil(start, DAY), floor(end, DAY)
    if not whole_days or first >= last:
        return [(QUARTER, Span(start, end))]
    parts = [(QUARTER, Span(start, first)), (DAY, Span(first, last)), (QUARTER, Span(last, end))]
    return [(length, one) for length, one in parts if one.start < one.end]


def _ceil(at: datetime, length: timedelta = QUARTER) -> datetime:
    below = floor(at, length)
    return at if below == at else below + length


def read(
    spans: Sequence[Span], *, by: Sequence[str], tenants: Collection[int] | None = None
) -> list[Line]:
    """A line for each span (by its place), group and currency that has any. One statement. `by`: names of BY; `tenants`:
    only those of these."""
    hourly = "hour" in by
    asked = [
        (number, length, part)
        for number, span in enumerate(spans)
        for length, part in pieces(span, whole_days=not hourly)
    ]
    names = ", ".join(BY[name] for name in by)
    join = "JOIN providers_account a ON a.id = s.account_id" if "provider" in by else ""
    where = "true" if tenants is None else "s.tenant_id = ANY(%(tenants)s)"
    with connection.cursor() as cursor:
        cursor.execute(
            _SUMS.format(by=names, sums=_TAKEN, join=join, where=where),
            {
                "numbers": [number for number, _length, _part in asked],
                "lengths": [int(length.total_seconds()) for _n, length, _part in asked],
                "starts": [part.start for _n, _length, part in asked],
                "ends": [part.end for _n, _length, part in asked],
                "tenants": list(tenants or ()),
            },
        )
        return [_line(row, len(by)) for row in cursor.fetchall()]


def _line(row: Sequence[Any], groups: int) -> Line:
    sums = Sums(**dict(zip(COLUMNS, row[groups + 2 :], strict=True)))
    return Line(row[0], tuple(row[1 : groups + 1]), row[groups + 1], sums)


def total(lines: Iterable[Line]) -> Sums:
    return sum((line.sums for line in lines), Sums())
