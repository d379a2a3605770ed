"""The strips of the reports: when each provider could not be sent to. SVG in per cent, so that nothing is stretched."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import strips, written
from jobs.admin.report_plots import percent
from jobs.budgets import Span
from jobs.display import Look
from jobs.strips import Kind, Stretch, Strip
from providers.models import Account

LOOKS: Mapping[Kind, Look] = {
    Kind.OUTAGE: Look(gettext_lazy("outage"), "octagon-x", "red"),
    Kind.KEY: Look(gettext_lazy("key rejected"), "key-round", "red"),
    Kind.QUOTA: Look(gettext_lazy("quota exhausted"), "hourglass", "amber"),
    Kind.THROTTLE: Look(gettext_lazy("throttled"), "gauge", "blue"),
    Kind.BLOCK: Look(gettext_lazy("blocked by staff"), "lock", "grey"),
    Kind.PAUSE: Look(gettext_lazy("paused by staff"), "circle-pause", "grey"),
    Kind.STOP: Look(gettext_lazy("target stopped"), "octagon-pause", "amber"),
}
_NARROWEST = 0.4  # per cent
_MARKS = 5


@dataclass(frozen=True, slots=True)
class Piece:
    kind: Kind
    x: str
    width: str
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """`sums`: what held and how long, the gravest first. `words`: the same for who can't see the strip."""

    provider: str
    fingerprint: str
    model: str
    pieces: Sequence[Piece]
    sums: Sequence[tuple[Look, str]]
    words: str


@dataclass(frozen=True, slots=True)
class Line:
    """A stretch in the table behind the strips."""

    look: Look
    strip: Strip
    stretch: Stretch
    length: str


@dataclass(frozen=True, slots=True)
class Strips:
    """`legend`: what there is; `marks`: the times below, at equal distances."""

    rows: Sequence[Row]
    lines: Sequence[Line]
    legend: Sequence[tuple[Kind, Look]]
    marks: Sequence[str]


def read(
    span: Span, *, provider: str, model: str, used: Collection[int], now: datetime
) -> tuple[list[Strip], list[Strip]]:
    """Where something held; and the accounts in use, `used` or the newest of their provider, where nothing did."""
    accounts = list(Account.objects.filter(**({"provider": provider} if provider else {})).order_by("pk"))  # fmt: skip
    troubled = [
        one
        for one in strips.read(span, accounts=[one.pk for one in accounts], now=now)
        if not model or one.model in {"", model}
    ]
    newest = {one.provider: one.pk for one in accounts}
    told = {one.account_id for one in troubled if not one.model}
    well = [
        Strip(one.pk, one.provider, one.fingerprint, "", ())
        for one in accounts
        if one.pk not in told and (one.pk in used or newest[one.provider] == one.pk)
    ]
    return troubled, well


def dressed(troubled: Sequence[Strip], well: Sequence[Strip], *, span: Span, now: datetime) -> Strips:  # fmt: skip
    both = sorted([*troubled, *well], key=lambda one: (one.provider, one.account_id, one.model))
    kinds = {stretch.kind for one in troubled for stretch in one.stretches}
    lines = [
        Line(LOOKS[stretch.kind], one, stretch, written.duration(stretch.length(now).total_seconds()))
        for one in troubled
        for stretch in one.stretches
    ]  # fmt: skip
    return Strips(
        rows=[_row(one, span=span, now=now) for one in both],
        lines=sorted(lines, key=lambda line: line.stretch.start, reverse=True),
        legend=[(kind, LOOKS[kind]) for kind in Kind if kind in kinds],
        marks=list(_marks(span, now)),
    )


def _row(strip: Strip, *, span: Span, now: datetime) -> Row:
    sums = [
        (LOOKS[kind], written.duration(length.total_seconds()))
        for kind, length in strip.lengths(now).items()
    ]
    words = ", ".join(f"{look.word} {length}" for look, length in sums)
    # What hides the others is drawn last.
    order = list(Kind)
    pieces = [
        _piece(one, span=span, now=now)
        for one in sorted(strip.stretches, key=lambda one: -order.index(one.kind))
    ]
    return Row(
        strip.provider, strip.fingerprint, strip.model, pieces, sums, words or _("available all the time")
    )  # fmt: skip


def _piece(one: Stretch, *, span: Span, now: datetime) -> Piece:
    whole = (span.end - span.start) / timedelta(seconds=1)
    width = max(_NARROWEST, 100 * one.length(now).total_seconds() / whole)
    x = min(100 * (one.start - span.start).total_seconds() / whole, 100 - width)
    end = _("still so") if one.end is None else written.moment(one.end, now)
    words = f"{LOOKS[one.kind].word}: {written.moment(one.began, now)} – {end}"
    if one.cause:
        words += f" · {one.cause}"
    return Piece(one.kind, percent(x, width), f"{width:.2f}%", words)


def _marks(span: Span, now: datetime) -> Iterable[str]:
    part = (span.end - span.start) / (_MARKS - 1)
    for n in range(_MARKS):
        at = span.start + n * part
        yield written.moment(at, now) if part < timedelta(days=1) else written.month_day(at)
