"""What the reports tell of a span of time: outcomes, times, spending. Reads only, and the same for a million jobs as for a
thousand.

A span is cut into bars by the wall clock of a zone. Counts and money come from the sums that a trigger keeps (jobs/sums.py),
for bars below a quarter of an hour from the sends themselves; both count a send in the bar in which its intent was written.
Times have no sums: where a bar holds more sends than may be looked at, some are, spread over the whole bar.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise
from typing import Any

from django.db import connection

from jobs import sums
from jobs.budgets import Span
from jobs.models.sums import QUARTER
from jobs.sums import Line, Sums

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LONGEST = timedelta(days=400)
# The bars of a span up to so long; longer ones are cut into weeks.
_STEPS = (
    (90 * MINUTE, MINUTE),
    (12 * HOUR, QUARTER),
    (36 * HOUR, 30 * MINUTE),
    (4 * DAY, 2 * HOUR),
    (10 * DAY, 4 * HOUR),
    (93 * DAY, DAY),
)
_WEEK = 7 * DAY


# --- bars -------------------------------------------------------------------------------------------------------------


def step(length: timedelta) -> timedelta:
    """How long the bars of a span are; of days and weeks by the calendar, where a day may have 23 hours."""
    return next((bar for most, bar in _STEPS if length <= most), _WEEK)


def bars(span: Span, zone: tzinfo) -> list[Span]:
    """Whole bars, each beginning where the one before ends, that cover the span. All but those of a minute begin at a quarter
    of an hour, as every midnight does."""
    length = step(span.end - span.start)
    edges = _ticks(span, length, zone) if length < 2 * HOUR else _wall(span, length, zone)
    return [Span(*pair) for pair in pairwise(edges)]


def _ticks(span: Span, length: timedelta, zone: tzinfo) -> list[datetime]:
    """By elapsed time, so that the hour that a clock repeats has its own bars."""
    shift = span.start.astimezone(zone).utcoffset() or timedelta()
    edge = sums.floor(span.start.astimezone(UTC) + shift, length) - shift
    edges = [edge]
    while edges[-1] < span.end:
        edges.append(edges[-1] + length)
    return edges


def _wall(span: Span, length: timedelta, zone: tzinfo) -> list[datetime]:
    """By the clock on the wall: bars begin at midnight and at even hours on every day."""
    day = span.start.astimezone(zone).date()
    if length >= DAY:
        edges = [_at(day, timedelta(), zone)]
        while edges[-1] < span.end:
            day += length
            edges.append(_at(day, timedelta(), zone))
        return edges
    edges = []
    while not edges or edges[-1] < span.end:
        edges += [_at(day, n * length, zone) for n in range(DAY // length)]
        day += DAY
    edges = sorted(set(edges))
    first = max(n for n, edge in enumerate(edges) if edge <= span.start)
    last = min(n for n, edge in enumerate(edges) if edge >= span.end)
    return edges[first : last + 1]


def _at(day: date, since_midnight: timedelta, zone: tzinfo) -> datetime:
    """Where clocks skip that time, the moment they do."""
    return (datetime.combine(day, time()) + since_midnight).replace(tzinfo=zone).astimezone(UTC)


# --- counts and money -------------------------------------------------------------------------------------------------

# Each piece of a bar reads its own stretch of the index send_sum_of.
_KEPT = """
SELECT w.number, {by}, s.currency, {sums}
FROM unnest(%(numbers)s::int[], %(lengths)s::int[], %(starts)s::timestamptz[], %(ends)s::timestamptz[])
  AS w (number, span_s, start_at, end_at)
CROSS JOIN LATERAL (
  SELECT * FROM jobs_sendsum s
  WHERE s.span_s = w.span_s AND s.start_at >= w.start_at AND s.start_at < w.end_at
    AND (%(tenant)s::bigint IS NULL OR s.tenant_id = %(tenant)s)
  OFFSET 0
) s
GROUP BY w.number, {by}, s.currency
""".replace("{sums}", ", ".join(f"sum(s.{name})" for name in sums.COLUMNS))
# The twin of what the trigger of migration 0021 adds up, for bars that are shorter than its quarters.
_ANEW = """
SELECT width_bucket(k.created_at, %(edges)s::timestamptz[]) - 1, {by}, k.currency,
  count(*) FILTER (WHERE k.state NOT IN ('intent', 'unsent')),
  count(*) FILTER (WHERE k.state IN ('completed', 'stored')), count(*) FILTER (WHERE k.state = 'refused'),
  count(*) FILTER (WHERE k.state = 'failed'), count(*) FILTER (WHERE k.state = 'unknown'),
  coalesce(sum(k.cost) FILTER (WHERE k.charge IN ('charged', 'written_off')), 0),
  coalesce(sum(k.estimated_cost) FILTER (
    WHERE (k.state = 'intent' OR k.charge IN ('possible', 'charged', 'written_off'))
      AND (k.cost IS NULL OR k.charge NOT IN ('charged', 'written_off'))), 0)
FROM providers_target g
CROSS JOIN LATERAL (
  SELECT * FROM jobs_providertask k
  WHERE k.target_id = g.id AND k.created_at >= %(start)s AND k.created_at < %(end)s
    AND (%(tenant)s::bigint IS NULL OR k.tenant_id = %(tenant)s)
) k
GROUP BY 1, {by}, k.currency
"""
_BY = {"account": "account_id", "target": "target_id", "tenant": "tenant_id"}


def lines(spans: Sequence[Span], *, by: Sequence[str], tenant_id: int | None = None) -> list[Line]:
    """The sums of each bar (by its place) by account, target or tenant, and currency, where there are any."""
    edges = [*(one.start for one in spans), spans[-1].end]
    if all(sums.floor(edge) == edge for edge in edges):
        statement, row, values = _KEPT, "s", _pieces(spans)
    else:
        statement, row = _ANEW, "k"
        values = {"edges": edges[:-1], "start": edges[0], "end": edges[-1]}
    names = ", ".join(f"{row}.{_BY[name]}" for name in by)
    with connection.cursor() as cursor:
        cursor.execute(statement.replace("{by}", names), {**values, "tenant": tenant_id})
        return [_line(told, len(by)) for told in cursor.fetchall()]


def _pieces(spans: Sequence[Span]) -> dict[str, Any]:
    asked = [(number, *piece) for number, span in enumerate(spans) for piece in sums.pieces(span)]
    return {
        "numbers": [number for number, _length, _part in asked],
        "lengths": [int(length.total_seconds()) for _number, length, _part in asked],
        "starts": [part.start for _number, _length, part in asked],
        "ends": [part.end for _number, _length, part in asked],
    }


def _line(row: Sequence[Any], groups: int) -> Line:
    told = Sums(**dict(zip(sums.COLUMNS, row[groups + 2 :], strict=True)))
    return Line(row[0], tuple(row[1 : groups + 1]), row[groups + 1], told)


def total(told: Iterable[Line]) -> Sums:
    return sum((line.sums for line in told), Sums())


# --- times ------------------------------------------------------------------------------------------------------------

LOOKED_AT = 60_000  # sends that are looked at for their times, at most, over all bars and targets
_FEWEST = 64  # in a bar, where there are more
_SLICES = 8
QUANTILES = (0.5, 0.95)

# The newest sends of each slice by an index, whatever came of them, so that no slice costs more than its share.
_TIMES = """
SELECT w.bar, n.target_id, extract(epoch FROM n.completed_at - n.armed_at)::float8
FROM unnest(%(bars)s::int[], %(targets)s::bigint[], %(starts)s::timestamptz[], %(ends)s::timestamptz[], %(mosts)s::int[])
  AS w (bar, target_id, start_at, end_at, most)
CROSS JOIN LATERAL (
  SELECT k.target_id, k.armed_at, k.completed_at FROM jobs_providertask k
  WHERE {source} AND k.created_at >= w.start_at AND k.created_at < w.end_at
  ORDER BY k.created_at DESC LIMIT w.most
) n
WHERE n.completed_at > n.armed_at
"""
_OF_TARGETS = "k.target_id = w.target_id"
# By the index task_spent: what was refunded is not among them.
_OF_TENANT = """k.tenant_id = %(tenant)s
  AND (k.state = 'intent' OR k.charge IN ('possible', 'charged', 'written_off'))"""


@dataclass(slots=True)
class Times:
    """Of one target, how many seconds sends took from their arming to our knowing that they were made, and for how many each
    of them stands. `bars`: the same by bar, sorted."""

    weighed: list[tuple[float, float]] = field(default_factory=list)
    bars: dict[int, list[float]] = field(default_factory=dict)
    made: int = 0

    @property
    def looked_at(self) -> int:
        return len(self.weighed)

    def quantiles(self) -> tuple[float, ...]:
        return quantiles(self.weighed)

    def of_bar(self, number: int) -> tuple[float, ...] | None:
        known = self.bars.get(number)
        return quantiles([(seconds, 1.0) for seconds in known]) if known else None


def times(
    spans: Sequence[Span], told: Iterable[Line], *, tenant_id: int | None = None
) -> Mapping[int, Times]:
    """By target. `told`: the lines of these bars by account and target, which say where there is anything to look at."""
    sent: dict[tuple[int, int], int] = defaultdict(int)
    made: dict[tuple[int, int], int] = defaultdict(int)
    for line in told:
        key = (line.span, line.by[1])
        sent[key] += line.sums.sends
        made[key] += line.sums.succeeded
    worth = [key for key, n in made.items() if n]
    # A tenant's sends are found by the tenant; the targets are told apart afterwards.
    places: dict[tuple[int, int], int] = defaultdict(int)
    for bar, target_id in worth:
        places[bar, 0 if tenant_id is not None else target_id] += sent[bar, target_id]
    most = max(_FEWEST, LOOKED_AT // max(1, len(places)))
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for bar, target_id, seconds in _looked_up(spans, places, most, tenant_id):
        if (bar, target_id) in made:
            found[bar, target_id].append(seconds)
    by_target: dict[int, Times] = defaultdict(Times)
    for (bar, target_id), seconds_of in found.items():
        one = by_target[target_id]
        one.bars[bar] = sorted(seconds_of)
        weight = max(1.0, made[bar, target_id] / len(seconds_of))
        one.weighed += [(seconds, weight) for seconds in seconds_of]
    for (_bar, target_id), n in made.items():
        if target_id in by_target:
            by_target[target_id].made += n
    return by_target


def _looked_up(
    spans: Sequence[Span], places: Mapping[tuple[int, int], int], most: int, tenant_id: int | None
) -> list[tuple[int, int, float]]:
    asked = []
    for (bar, target_id), sent in sorted(places.items()):
        whole = spans[bar]
        if sent <= most:
            # Some were taken up and not sent, which the sums do not count.
            asked.append((bar, target_id, whole.start, whole.end, 4 * most))
            continue
        part = (whole.end - whole.start) / _SLICES
        asked += [
            (bar, target_id, whole.start + n * part, whole.start + (n + 1) * part, most // _SLICES)
            for n in range(_SLICES)
        ]
    if not asked:
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            _TIMES.format(source=_OF_TARGETS if tenant_id is None else _OF_TENANT),
            {
                **dict(zip(("bars", "targets", "starts", "ends", "mosts"), map(list, zip(*asked, strict=True)), strict=True)),
                "tenant": tenant_id,
            },
        )  # fmt: skip
        return [(bar, target_id, seconds) for bar, target_id, seconds in cursor.fetchall()]


def quantiles(
    weighed: Collection[tuple[float, float]], at: Sequence[float] = QUANTILES
) -> tuple[float, ...]:
    """Of values with weights; with equal ones the same as PostgreSQL's percentile_cont."""
    known = sorted(weighed)
    total = sum(weight for _value, weight in known)
    # Where each value lies between 0 and 1: the first at 0, the last at 1.
    places, before = [], 0.0
    for number, (_value, weight) in enumerate(known):
        places.append(number * weight + (len(known) - 1) * before)
        before += weight
    reach = (len(known) - 1) * total
    return tuple(_between(known, places, one * reach) for one in at)


def _between(known: Sequence[tuple[float, float]], places: Sequence[float], wanted: float) -> float:
    after = bisect_left(places, wanted)
    if after == 0:
        return known[0][0]
    if after == len(known):
        return known[-1][0]
    low, high = places[after - 1], places[after]
    (value, _weight), (following, _other) = known[after - 1], known[after]
    return value + (wanted - low) / (high - low) * (following - value)
