"""How money, numbers, times and sizes are written: one way for one thing, everywhere.

By the locale of the active language, and in the reader's own zone, calendar and digits (jobs/manner.py). For prose only:
ids, code, fields of forms, CSV and the API have plain digits and ISO times, and do not pass through here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache

import jdatetime
from babel import Locale, UnknownLocaleError
from babel.numbers import (
    get_currency_symbol,
    get_decimal_symbol,
    get_group_symbol,
    get_minus_sign_symbol,
    parse_pattern,
)
from django.conf import settings
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import get_language, get_language_bidi, gettext_lazy
from django.utils.translation import gettext as _

from jobs import manner
from jobs.manner import Calendar, Digits

_NBSP = "\u00a0"
# Some locales spell these out; the sign is what people know.
_SIGNS = {"RUB": "₽", "": ""}
_PERSIAN = str.maketrans("0123456789", "۰۱۲۳۴۵۶۷۸۹")
_PERSIAN_SEPARATORS = ("٫", "٬")
_MOST_PLACES = 10

_JALALI_MONTHS = (
    gettext_lazy("Farvardin"), gettext_lazy("Ordibehesht"), gettext_lazy("Khordad"), gettext_lazy("Tir"),
    gettext_lazy("Mordad"), gettext_lazy("Shahrivar"), gettext_lazy("Mehr"), gettext_lazy("Aban"), gettext_lazy("Azar"),
    gettext_lazy("Dey"), gettext_lazy("Bahman"), gettext_lazy("Esfand"),
)  # fmt: skip


# --- numbers and money ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Signs:
    """What a locale writes with. `money` is what stands before and after an amount, the currency as ¤."""

    locale: Locale
    decimal: str
    group: str
    minus: str
    money: tuple[str, str]


@lru_cache(maxsize=32)
def _signs(language: str | None) -> _Signs:
    try:
        locale = Locale.parse(language or settings.LANGUAGE_CODE, sep="-")
    except (UnknownLocaleError, ValueError):
        locale = Locale.parse("en")
    pattern = parse_pattern(locale.currency_formats["standard"])
    return _Signs(
        locale=locale,
        decimal=get_decimal_symbol(locale, numbering_system="latn"),
        group=get_group_symbol(locale, numbering_system="latn"),
        minus=get_minus_sign_symbol(locale, numbering_system="latn"),
        # Marks of direction are not needed: in right-to-left text an amount is isolated as a whole.
        money=(pattern.prefix[0].replace("\u200e", ""), pattern.suffix[0].replace("\u200e", "")),
    )


def digits(text: str) -> str:
    """Of prose: the reader's digits in place of 0 to 9."""
    return text.translate(_PERSIAN) if manner.digits() is Digits.PERSIAN else text


def number(value: float | Decimal, places: int = 0) -> str:
    """`12,345.5`, rounded half up to `places`."""
    signs = _signs(get_language())
    exact_value = value if isinstance(value, Decimal) else Decimal(repr(value))
    shown = exact_value.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    point, comma = (
        _PERSIAN_SEPARATORS if manner.digits() is Digits.PERSIAN else (signs.decimal, signs.group)
    )
    text = f"{abs(shown):,f}".translate({ord("."): point, ord(","): comma})
    return digits(f"{signs.minus if shown < 0 else ''}{text}")


class Counted(int):
    """A count that writes itself as it is read, in templates and `%(n)s` alike, and still chooses its plural."""

    def __str__(self) -> str:
        return number(int(self))

    __repr__ = int.__repr__

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else int.__format__(self, spec)


def count(value: int) -> Counted:
    return Counted(value)


def _places(amount: Decimal) -> int:
    """Fractions of a kopeck are shown only below one; of very small amounts the first two digits that say anything."""
    if amount == 0 or abs(amount) >= 1:
        return 2
    return min(max(4, 1 - amount.adjusted()), _MOST_PLACES)


def money(amount: Decimal | None, currency: str) -> str:
    """`₽8.00`, `8,00 ₽`: by locale; "—" for None."""
    if amount is None:
        return "—"
    signs = _signs(get_language())
    sign = (
        _SIGNS.get(currency) if currency in _SIGNS else get_currency_symbol(currency, signs.locale)
    )
    before, after = signs.money if sign else ("", "")
    text = number(abs(amount), _places(amount))
    minus = signs.minus if amount < 0 and any(one in text for one in "123456789۱۲۳۴۵۶۷۸۹") else ""
    # Letters and digits need a space between: "CHF 8.00".
    gap = _NBSP if before.endswith("¤") and sign and sign[-1].isalpha() else ""
    words = f"{minus}{before.replace('¤', f'{sign}{gap}')}{text}{after.replace('¤', sign or '')}"
    return _isolated(words)


def about(amount: Decimal, currency: str) -> str:
    """An estimate: `≈ ₽8.00`."""
    return f"≈{_NBSP}{money(amount, currency)}"


def own(amount: Decimal | None, currency: str) -> str:
    """The amount in the studio's currency, by the owner's rate: `≈ ₽0.28`; "" where it is in that currency or no rate is set."""
    if amount is None or currency == settings.CURRENCY:
        return ""
    rate = settings.CURRENCY_RATES.get(currency)
    return "" if rate is None else about(amount * rate, settings.CURRENCY)


def both(amount: Decimal | None, currency: str, *, estimate: bool = False) -> str:
    """In its own currency, and beside it in the studio's: `$0.0030 (≈ ₽0.28)`."""
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
    return "—" if not whole else f"{number(round(100 * part / whole))}{_NBSP}%"


def size(size_bytes: int) -> str:
    """`312 kB`, `1.4 MB`."""
    if size_bytes < 1000:
        return _("%(n)s B") % {"n": number(size_bytes)}
    if size_bytes < 1_000_000:
        return _("%(n)s kB") % {"n": number(size_bytes / 1000)}
    return _("%(n)s MB") % {"n": number(size_bytes / 1_000_000, 1)}


# --- times ------------------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """The two largest units: `2 h 5 min`. Negative counts as 0."""
    left = max(seconds, 0.0)
    if left < 10:
        return _("%(n)s s") % {"n": number(round(left, 1), 1 if left % 1 >= 0.05 else 0)}
    left = int(left)
    if left < 60:
        return _("%(n)s s") % {"n": count(left)}
    minutes, rest = divmod(left, 60)
    if minutes < 60:
        words = [_("%(n)s min") % {"n": count(minutes)}]
        if rest and minutes < 10:
            words.append(_("%(n)s s") % {"n": count(rest)})
        return " ".join(words)
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        words = [_("%(n)s h") % {"n": count(hours)}]
        if minutes:
            words.append(_("%(n)s min") % {"n": count(minutes)})
        return " ".join(words)
    days, hours = divmod(hours, 24)
    words = [_("%(n)s d") % {"n": count(days)}]
    if hours and days < 7:
        words.append(_("%(n)s h") % {"n": count(hours)})
    return " ".join(words)


def short(seconds: float) -> str:
    """Only the largest unit, for columns."""
    for size_s, words in ((86_400, _("%(n)s d")), (3600, _("%(n)s h")), (60, _("%(n)s min"))):
        if seconds >= size_s:
            return words % {"n": count(int(seconds // size_s))}
    return _("%(n)s s") % {"n": count(int(max(seconds, 0)))}


def ago(at: datetime, now: datetime) -> str:
    """`5 min ago`, `in 2 h`."""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return _("now")
    if seconds < 0:
        return _("in %(time)s") % {"time": duration(round(-seconds))}
    return _("%(time)s ago") % {"time": short(seconds)}


def day(of: date) -> str:
    """`Aug. 17, 2025`, `26 Mordad 1404`: the date in the reader's calendar. A moment counts by the reader's zone."""
    here = _here(of)
    if manner.calendar() is Calendar.JALALI:
        jalali = jdatetime.date.fromgregorian(date=here)
        return digits(f"{jalali.day} {_JALALI_MONTHS[jalali.month - 1]} {jalali.year}")
    return digits(date_format(here, "DATE_FORMAT"))


def month_day(of: date) -> str:
    """The same without the year."""
    here = _here(of)
    if manner.calendar() is Calendar.JALALI:
        jalali = jdatetime.date.fromgregorian(date=here)
        return digits(f"{jalali.day} {_JALALI_MONTHS[jalali.month - 1]}")
    # Django's own has the month as it is called alone, "18 Август".
    russian = (get_language() or "").startswith("ru")
    return digits(date_format(here, "j E" if russian else "MONTH_DAY_FORMAT"))


def _here(of: date) -> date:
    return timezone.localtime(of).date() if isinstance(of, datetime) else of


def clock_time(at: datetime, *, seconds: bool = False) -> str:
    """`14:05` in the reader's zone."""
    local = timezone.localtime(at)
    return digits(f"{local:%H:%M:%S}" if seconds else f"{local:%H:%M}")


def moment(at: datetime, now: datetime, *, seconds: bool = False) -> str:
    """`14:05`; with the date where it is another day."""
    text = clock_time(at, seconds=seconds)
    return text if _here(at) == _here(now) else f"{month_day(at)}, {text}"


def until(at: datetime, now: datetime) -> str:
    """`until 14:05, in 12 min`; with the date where it is another day."""
    return _("until %(moment)s, %(left)s") % {"moment": moment(at, now), "left": ago(at, now)}


def exact(at: datetime) -> str:
    """The reader's own time to the second, and UTC in plain digits, as logs and other people have it."""
    utc = at.astimezone(UTC)
    words = f"{day(at)}, {clock_time(at, seconds=True)}"
    jalali = manner.calendar() is Calendar.JALALI
    if timezone.localtime(at).utcoffset() == utc.utcoffset() and not jalali:
        return f"{words} UTC"
    same_day = _here(at) == utc.date() and not jalali
    plain = f"{utc:%H:%M:%S} UTC" if same_day else f"{utc:%Y-%m-%d %H:%M:%S} UTC"
    return f"{words} ({_isolated(plain)})"


def _isolated(text: str) -> str:
    """In right-to-left text its parts would change places."""
    return f"\u2066{text}\u2069" if get_language_bidi() else text
