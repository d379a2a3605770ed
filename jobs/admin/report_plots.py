"""How the reports draw figures: bars and lines over time as data for the browser, and the table behind each plot.

All words and numbers are written here, in the reader's own manner; the browser only draws (jobs/static/desk/reports.js).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import get_language_bidi
from django.utils.translation import gettext as _

from jobs import reports, written
from jobs.budgets import Span
from jobs.reports import DAY, HOUR, MINUTE

Words = str | Promise
Write = Callable[[float], str]

# Each series has a colour and, as colour alone tells some people nothing, a pattern (bars) or a mark (lines).
TONES = ("blue", "violet", "green", "amber", "red", "grey")
_MOST_TICKS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """`pattern`, `mark`: numbers that reports.js knows. `values`: one a bar, None where there is nothing to tell."""

    name: Words
    tone: str
    values: Sequence[float | None]
    pattern: int = 0
    mark: int = 0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """What the plot shows, in words: the first cell of a row names it."""

    head: Sequence[Words]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """`id`: unique on the page. `data`: what the browser draws. `sheet`: the name of its CSV."""

    id: str
    title: Words
    sheet: str
    data: Mapping[str, Any]
    table: Table
    series: Sequence[Series]
    unit: str = ""

    @property
    def data_id(self) -> str:
        return f"{self.id}-data"


@dataclass(frozen=True, slots=True)
class Across:
    """The horizontal axis of all plots of a page."""

    names: Sequence[str]
    ticks: Sequence[tuple[int, str]]
    edges: Sequence[str]


def across(bars: Sequence[Span]) -> Across:
    edges = [_local(bar.start) for bar in bars] + [_local(bar.end) for bar in bars[-1:]]
    return Across([name(bar) for bar in bars], ticks(bars), edges)


def plot(
    *,
    id: str,  # noqa: A002
    title: Words,
    sheet: str,
    axis_across: Across,
    series: Sequence[Series],
    write: Write,
    steps: Sequence[float],
    write_tick: Write | None = None,
    stacked: bool = True,
    unit: str = "",
) -> Plot:
    """`steps`: between lines of the vertical axis, of which the browser gets about five. `write`: a value in words."""
    write = cache(write)  # zeros, most of all
    names = axis_across.names
    shown = [[_shown(value, write) for value in one.values] for one in series]
    totals = [sum(one.values[number] or 0 for one in series) for number in range(len(names))]
    most = max(totals, default=0) if stacked else _most(series)
    top = axis(most, steps, write_tick or write)
    data = {
        "kind": "stack" if stacked else "lines",
        "names": names,
        "ticks": axis_across.ticks,
        "edges": axis_across.edges,
        "y": top,
        "series": [
            {
                "name": str(one.name), "tone": one.tone, "pattern": one.pattern, "mark": one.mark, "dashed": one.dashed,
                "values": [None if value is None else float(value) for value in one.values], "shown": told,
            }
            for one, told in zip(series, shown, strict=True)
        ],
        "total": {"name": _("together"), "shown": [write(total) for total in totals]} if stacked and len(series) > 1 else None,
    }  # fmt: skip
    head = [_("time"), *(one.name for one in series)]
    rows = [[names[n], *(told[n] for told in shown)] for n in range(len(names))]
    if data["total"]:
        head.append(_("together"))
        for row, total in zip(rows, totals, strict=True):
            row.append(write(total))
    return Plot(
        id=id, title=title, sheet=sheet, data=data, table=Table(head, rows), series=series, unit=unit
    )  # fmt: skip


def _most(series: Sequence[Series]) -> float:
    return max((value for one in series for value in one.values if value is not None), default=0)


def _shown(value: float | None, write: Write) -> str:
    return "—" if value is None else write(value)


# --- axes -------------------------------------------------------------------------------------------------------------

COUNTS = tuple(n * 10**e for e in range(9) for n in (1, 2, 5))
MONEY = tuple(n * 10.0**e for e in range(-6, 9) for n in (1, 2, 5))
SECONDS = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 43_200, 86_400, 172_800,
    432_000,
)  # fmt: skip


def axis(most: float, steps: Sequence[float], write: Write) -> dict[str, Any]:
    """Up to five lines from 0 on, the last at or above `most`."""
    step = next((one for one in steps if one * 5 >= most), steps[-1])
    lines = max(1, math.ceil(most / step - 1e-9))
    return {
        "max": lines * step,
        "ticks": [[n * step, write(n * step)] for n in range(lines + 1)],
    }


_TICK_STEPS = (
    5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
)  # fmt: skip


def ticks(bars: Sequence[Span]) -> list[tuple[int, str]]:
    """Which bars are named on the axis, and how: round times and, at midnight, the day."""
    if not bars:
        return []
    if bars[0].end - bars[0].start >= 20 * HOUR:
        every = math.ceil(len(bars) / _MOST_TICKS)
        return [(n, written.month_day(bar.start)) for n, bar in enumerate(bars) if n % every == 0]
    length = bars[-1].end - bars[0].start
    every_time = next((one for one in _TICK_STEPS if length / one <= _MOST_TICKS), DAY)
    named = []
    for n, bar in enumerate(bars):
        here = timezone.localtime(bar.start)
        since_midnight = timedelta(hours=here.hour, minutes=here.minute)
        if not since_midnight:
            named.append((n, written.month_day(bar.start)))
        elif not since_midnight % every_time:
            named.append((n, written.clock_time(bar.start)))
    every = math.ceil(len(named) / _MOST_TICKS) if named else 1
    return named[::every]


def name(bar: Span) -> str:
    """`Dec. 1, 12:00 – 12:30`, `Dec. 1`, `Dec. 1 – Dec. 7`."""
    length = bar.end - bar.start
    if length >= 2 * DAY:
        return f"{written.month_day(bar.start)} – {written.month_day(bar.end - HOUR)}"
    if length >= 20 * HOUR:
        return written.month_day(bar.start)
    return f"{written.month_day(bar.start)}, {written.clock_time(bar.start)} – {written.clock_time(bar.end)}"


def _local(at: datetime) -> str:
    """As a field of a form takes it."""
    return f"{timezone.localtime(at):%Y-%m-%dT%H:%M}"


# --- distributions: SVG, because they need no library -----------------------------------------------------------------

_BINS_A_DECADE = 8
_LOWEST, _HIGHEST = -1, 6  # powers of ten seconds


@dataclass(frozen=True, slots=True)
class Bin:
    x: str
    width: str
    y: str
    height: str
    words: str


@dataclass(slots=True)
class Distribution:
    """How long one target's generations took. `bins`: the share of each, on an axis that all targets share."""

    name: str
    tone: str
    made: str
    looked_at: str  # "" where all were looked at
    median: str
    p95: str
    bins: list[Bin] = field(default_factory=list)


def edges() -> list[float]:
    return [
        10 ** (_LOWEST + n / _BINS_A_DECADE)
        for n in range((_HIGHEST - _LOWEST) * _BINS_A_DECADE + 1)
    ]


def counted(times: reports.Times) -> list[float]:
    """By bin of `edges`, the share of the sends that took so long; what is beyond counts at the ends."""
    bounds = edges()
    shares = [0.0] * (len(bounds) - 1)
    total = sum(weight for _seconds, weight in times.weighed)
    for seconds, weight in times.weighed:
        at = math.floor((math.log10(max(seconds, 1e-9)) - _LOWEST) * _BINS_A_DECADE)
        shares[min(max(at, 0), len(shares) - 1)] += weight / total
    return shares


def used(all_shares: Sequence[Sequence[float]]) -> range:
    """The bins that hold anything at all, and one more at each side."""
    held = [n for n in range(len(edges()) - 1) if any(shares[n] for shares in all_shares)]
    if not held:
        return range(0)
    return range(max(0, held[0] - 1), min(len(edges()) - 1, held[-1] + 2))


def band(number: int) -> str:
    """`10 s – 13 s`."""
    bounds = edges()
    return f"{written.duration(bounds[number])} – {written.duration(bounds[number + 1])}"


def bins(shares: Sequence[float], shown: range) -> list[Bin]:
    """In per cent of the picture; the highest fills it, one among many stays visible."""
    most = max(shares)
    width = 100 / len(shown)
    made = []
    for place, number in enumerate(shown):
        if shares[number]:
            height = max(3.0, 100 * shares[number] / most)
            made.append(
                Bin(
                    percent(place * width, width), f"{width * 0.92:.2f}%", f"{100 - height:.2f}%", f"{height:.2f}%",
                    f"{band(number)}: {written.percent(shares[number], 1)}",
                )
            )  # fmt: skip
    return made


def percent(x: float, width: float = 0.0) -> str:
    """Where something that wide begins in a picture, from the left; pages from right to left are mirrored."""
    return f"{100 - x - width if get_language_bidi() else x:.2f}%"


def scale(shown: range) -> list[tuple[str, str]]:
    """Round times on the axis of the distributions: where, and in words."""
    if not shown:
        return []
    bounds = edges()
    low, high = math.log10(bounds[shown.start]), math.log10(bounds[shown.stop])
    marks = [
        (100 * (math.log10(seconds) - low) / (high - low), written.duration(seconds))
        for seconds in (0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10_800, 43_200, 86_400, 259_200)
        if low < math.log10(seconds) < high
    ]  # fmt: skip
    kept: list[tuple[float, str]] = []
    for mark in marks:
        if not kept or mark[0] - kept[-1][0] >= 9:
            kept.append(mark)
    return [(percent(x), words) for x, words in kept]
