"""What counts against a tenant's spending limits, when its day and month begin, and whether one more send fits. Pure.

A send counts in the day and month in which its intent was written, whenever the charge comes: with its real cost once that
is known, with its ceiling (price x PRICE_CEILING_FACTOR, what the provider is told) until then, with nothing once it is
known to have cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from zoneinfo import ZoneInfo

from jobs.states import TaskState
from providers.contract import Charge

_KNOWN_WHEN_CHARGED = frozenset({Charge.CHARGED, Charge.WRITTEN_OFF})


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` until before `end`, in UTC."""

    start: datetime
    end: datetime


def span(period: Period, *, zone: str, now: datetime) -> Span:
    """The day or month that `now` is in, by the wall clock of `zone`. A day there may have 23 or 25 hours."""
    there = ZoneInfo(zone)
    today = now.astimezone(there).date()
    if period is Period.DAY:
        return Span(_midnight(today, there), _midnight(today + timedelta(days=1), there))
    first = today.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    return Span(_midnight(first, there), _midnight(following, there))


def _midnight(day: date, there: ZoneInfo) -> datetime:
    """Where clocks go forward at midnight there is none: then the moment they do."""
    return datetime.combine(day, time(), there).astimezone(UTC)


def ceiling(price: Decimal, factor: float) -> Decimal:
    """The most that one send may cost."""
    return price * Decimal(str(factor))


@dataclass(frozen=True, slots=True)
class Spent:
    """`charged`: real costs that are known. `possible`: ceilings of what may still be charged."""

    charged: Decimal = Decimal(0)
    possible: Decimal = Decimal(0)

    @property
    def total(self) -> Decimal:
        return self.charged + self.possible

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.charged + other.charged, self.possible + other.possible)


def counted(*, state: TaskState, charge: Charge, cost: Decimal | None, ceiling: Decimal) -> Spent:
    """What one send counts. Its twin in SQL is in jobs/spending.py.

    What was written off is spent all the same; what was refunded is not.
    """
    if charge in _KNOWN_WHEN_CHARGED and cost is not None:
        return Spent(charged=cost)
    if charge in _KNOWN_WHEN_CHARGED or charge is Charge.POSSIBLE or state is TaskState.INTENT:
        return Spent(possible=ceiling)
    return Spent()


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and what counts against it now."""

    period: Period
    most: Decimal
    spent: Spent
    until: datetime  # then it starts anew

    @property
    def left(self) -> Decimal:
        """Negative when over: a charge came that was greater than its ceiling, or the limit was lowered."""
        return self.most - self.spent.total


class Why(StrEnum):
    LIMIT = "limit"
    TOO_DEAR = "too_dear"  # one send alone is above the limit
    CURRENCY = "currency"  # money that can't be compared
    NO_PRICE = "no_price"  # nobody knows what it may cost


@dataclass(frozen=True, slots=True)
class Held:
    """Why a send does not fit. `limit` is the one that holds it, None for CURRENCY and NO_PRICE.

    `eases`: it would fit if what is possible turned out to cost nothing.
    """

    why: Why
    ceiling: Decimal
    limit: Limit | None = None
    eases: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """A tenant's limits, none of them where `limits` is empty."""

    currency: str
    zone: str
    limits: Sequence[Limit] = ()

    @property
    def left(self) -> Decimal | None:
        """By the tighter limit; None without one."""
        return min((limit.left for limit in self.limits), default=None)

    def holds(
        self,
        *,
        price: Decimal,
        currency: str,
        factor: float,
        taken: Decimal = Decimal(0),
    ) -> Held | None:
        """None: a send of a target with that price fits. `taken`: ceilings that count already and are not in `spent`.

        Of several limits the one that lasts longest is told.
        """
        if not self.limits:
            return None
        asked = ceiling(price, factor)
        if currency != self.currency:
            return Held(Why.CURRENCY, asked)
        if asked <= 0:
            return Held(Why.NO_PRICE, asked)
        full = [limit for limit in self.limits if taken + asked > limit.left]
        if not full:
            return None
        # One that can never take it holds it longest.
        longest = max(full, key=lambda limit: (asked > limit.most, limit.until))
        if asked > longest.most:
            return Held(Why.TOO_DEAR, asked, longest)
        eases = all(limit.spent.charged + asked <= limit.most for limit in full)
        return Held(Why.LIMIT, asked, longest, eases)
