"""How money, numbers, times and sizes are written: one way for one thing, everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal

from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import get_language_bidi
from django.utils.translation import gettext as _

_SYMBOLS = {"RUB": "₽", "USD": "$", "EUR": "€", "": ""}
_NBSP = "\u00a0"


def money(amount: Decimal | None, currency: str) -> str:
    """`8.00 ₽`, by locale; "—" for None. Fractions of a kopeck are shown only where the amount is below one."""
    if amount is None:
        return "—"
    places = 2 if abs(amount) >= 1 or amount == 0 else 4
    shown = amount.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    symbol = _SYMBOLS.get(currency, currency)
    words = f"{number_format(shown, use_l10n=True, force_grouping=True)}{_NBSP if symbol else ''}{symbol}"
    # In right-to-left text the number and its sign would change places; an isolate keeps them.
    return f"\u2066{words}\u2069" if get_language_bidi() else words


def about(amount: Decimal, currency: str) -> str:
    """An estimate: `≈ 8.00 ₽`."""
    return f"≈{_NBSP}{money(amount, currency)}"


def own(amount: Decimal | None, currency: str) -> str:
    """The amount in the studio's currency, by the owner's rate: `≈ 0.28 ₽`; "" where it is in that currency or no rate is set."""
    if amount is None or currency == settings.CURRENCY:
        return ""
    rate = settings.CURRENCY_RATES.get(currency)
    return "" if rate is None else about(amount * rate, settings.CURRENCY)


def both(amount: Decimal | None, currency: str, *, estimate: bool = False) -> str:
    """In its own currency, and beside it in the studio's: `0.0030 $ (≈ 0.28 ₽)`."""
    first = money(amount, currency) if amount is None or not estimate else about(amount, currency)
    beside = own(amount, currency)
    return f"{first} ({beside})" if beside else first


def totals(sums: Mapping[str, Decimal]) -> str:
    """Sums by currency in one line, currencies never mixed."""
    return " + ".join(both(amount, currency) for currency, amount in sorted(sums.items()) if amount)


def in_one(sums: Mapping[str, Decimal]) -> str:
    """For narrow places: what has a rate as one amount of the studio's currency, the rest apart."""
    rates = settings.CURRENCY_RATES
    rest = {name: amount for name, amount in sums.items() if amount and name not in rates}
    known = sum(
        (amount * rates[name] for name, amount in sums.items() if name in rates), Decimal(0)
    )
    exact = not any(
        amount for name, amount in sums.items() if name in rates and name != settings.CURRENCY
    )
    first = (money if exact else about)(known, settings.CURRENCY) if known else ""
    return " + ".join(filter(None, [first, totals(rest)]))


def percent(part: float, whole: float) -> str:
    """`70 %`; "—" of nothing."""
    return "—" if not whole else f"{number_format(round(100 * part / whole), 0)}{_NBSP}%"


def duration(seconds: float) -> str:
    """The two largest units: `2 h 5 min`. Negative counts as 0."""
    left = max(seconds, 0.0)
    if left < 10:
        return _("%(n)s s") % {"n": number_format(round(left, 1), 1 if left % 1 >= 0.05 else 0)}
    left = int(left)
    if left < 60:
        return _("%(n)s s") % {"n": left}
    minutes, rest = divmod(left, 60)
    if minutes < 60:
        words = [_("%(n)s min") % {"n": minutes}]
        if rest and minutes < 10:
            words.append(_("%(n)s s") % {"n": rest})
        return " ".join(words)
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return " ".join(
            [_("%(n)s h") % {"n": hours}, *([_("%(n)s min") % {"n": minutes}] if minutes else [])]
        )
    days, hours = divmod(hours, 24)
    return " ".join(
        [_("%(n)s d") % {"n": days}, *([_("%(n)s h") % {"n": hours}] if hours and days < 7 else [])]
    )


def short(seconds: float) -> str:
    """Only the largest unit, for columns."""
    for size_s, words in ((86_400, _("%(n)s d")), (3600, _("%(n)s h")), (60, _("%(n)s min"))):
        if seconds >= size_s:
            return words % {"n": int(seconds // size_s)}
    return _("%(n)s s") % {"n": int(max(seconds, 0))}


def ago(at: datetime, now: datetime) -> str:
    """`5 min ago`, `in 2 h`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return _("now")
    if seconds < 0:
        return _("in %(time)s") % {"time": duration(round(-seconds))}
    return _("%(time)s ago") % {"time": short(seconds)}


def until(at: datetime, now: datetime) -> str:
    """`until 14:05, in 12 min`; with the date where it is another day."""
    local = timezone.localtime(at)
    moment = f"{local:%H:%M}"
    if local.date() != timezone.localtime(now).date():
        moment = f"{date_format(local, 'MONTH_DAY_FORMAT')}, {moment}"
    return _("until %(moment)s, %(left)s") % {"moment": moment, "left": ago(at, now)}


def exact(at: datetime) -> str:
    """The person's own time to the second, and UTC."""
    local = timezone.localtime(at)
    utc = at.astimezone(UTC)
    words = f"{date_format(local, 'DATE_FORMAT')}, {local:%H:%M:%S}"
    return words if local.utcoffset() == utc.utcoffset() else f"{words} ({utc:%H:%M:%S} UTC)"


def size(size_bytes: int) -> str:
    """`312 kB`, `1.4 MB`."""
    if size_bytes < 1000:
        return _("%(n)s B") % {"n": size_bytes}
    if size_bytes < 1_000_000:
        return _("%(n)s kB") % {"n": number_format(size_bytes / 1000, 0)}
    return _("%(n)s MB") % {"n": number_format(size_bytes / 1_000_000, 1)}
