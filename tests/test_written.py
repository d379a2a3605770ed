"""How money, numbers and times are written: by locale, in each person's zone, calendar and digits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.template import Context, Template
from django.utils import translation
from django.utils.translation import ngettext

from jobs import manner, written
from jobs.manner import Calendar, Digits, Manner

AT = datetime(2026, 8, 17, 21, 30, 5, tzinfo=UTC)
_NO_MARKS = str.maketrans({"\u00a0": " ", "\u200e": None, "\u2066": None, "\u2069": None})


@contextmanager
def read_by(language: str = "en", **more: Any) -> Iterator[None]:
    with manner.override(Manner(language, **more)):
        yield


def plain(text: str) -> str:
    return text.translate(_NO_MARKS)


PERSIAN = {"calendar": Calendar.JALALI, "digits": Digits.PERSIAN, "zone": "Asia/Tehran"}


@pytest.mark.parametrize(
    ("language", "amount", "currency", "words"),
    [
        ("en", "1234.5", "RUB", "₽1,234.50"),
        ("en", "0.0031", "USD", "$0.0031"),
        ("en", "-8", "RUB", "-₽8.00"),
        ("en", "8", "CHF", "CHF 8.00"),
        ("en", "5", "", "5.00"),
        ("ru", "1234.5", "RUB", "1 234,50 ₽"),
        ("ru", "0.0031", "USD", "0,0031 $"),
        ("fa", "1234.5", "RUB", "₽ 1,234.50"),
        ("xx", "8", "RUB", "₽8.00"),
    ],
)
def test_money_is_written_as_the_language_does_it(
    language: str, amount: str, currency: str, words: str
) -> None:
    with read_by(language):
        assert plain(written.money(Decimal(amount), currency)) == words


@pytest.mark.parametrize(
    ("amount", "words"),
    [("0.0031", "$0.0031"), ("0.0000412", "$0.000041"), ("0.5", "$0.5000"), ("0", "$0.00"), ("1.005", "$1.01"),
     ("0.00000000001", "$0.0000000000"), ("-0.00000000001", "$0.0000000000"), ("123456789012.999", "$123,456,789,013.00")],
)  # fmt: skip
def test_small_amounts_keep_the_digits_that_say_something(amount: str, words: str) -> None:
    assert written.money(Decimal(amount), "USD") == words


def test_nothing_is_a_dash() -> None:
    assert written.money(None, "RUB") == "—"


def test_persian_digits_come_with_their_separators() -> None:
    with read_by("fa", digits=Digits.PERSIAN):
        assert plain(written.money(Decimal("1234.5"), "RUB")) == "₽ ۱٬۲۳۴٫۵۰"
        assert written.number(12345.6, 1) == "۱۲٬۳۴۵٫۶"
        assert plain(written.percent(7, 10)) == "۷۰ %"
    with read_by("en", digits=Digits.PERSIAN):
        assert written.money(Decimal("0.0031"), "USD") == "$۰٫۰۰۳۱"


def test_an_amount_is_isolated_in_right_to_left_text_only() -> None:
    with read_by("fa"):
        words = written.money(Decimal(8), "RUB")
        assert (words[0], words[-1]) == ("\u2066", "\u2069")
    with read_by("ru"):
        assert "\u2066" not in written.money(Decimal(8), "RUB")


def test_a_count_writes_itself_and_still_chooses_its_plural() -> None:
    with read_by("en", digits=Digits.PERSIAN):
        assert f"{written.count(12345)}" == "۱۲٬۳۴۵"
        one = ngettext("%(n)s job", "%(n)s jobs", written.count(1)) % {"n": written.count(1)}
        assert one == "۱ job"
        template = Template(
            "{% load i18n desk %}{% blocktranslate count n=many|count %}{{ n }} file{% plural %}{{ n }} files{% endblocktranslate %}"
        )
        assert template.render(Context({"many": 1})) == "۱ file"
        assert template.render(Context({"many": 1200})) == "۱٬۲۰۰ files"
    assert f"{written.count(7):03d}" == "007"
    assert written.count(7) + 1 == 8


def test_dates_are_in_the_readers_calendar_and_zone() -> None:
    with read_by("en"):
        assert written.day(AT) == "Aug. 17, 2026"
        assert written.month_day(AT) == "August 17"
    with read_by("en", zone="Asia/Tehran"):
        assert written.day(AT) == "Aug. 18, 2026"
    with read_by("en", zone="Asia/Tehran", calendar=Calendar.JALALI):
        assert written.day(AT) == "27 Mordad 1405"
    with read_by("fa", **PERSIAN):
        assert written.day(AT).startswith("۲۷ ")
        assert written.day(AT).endswith(" ۱۴۰۵")
    with read_by("ru"):
        assert written.month_day(AT) == "17 августа"


def test_the_jalali_year_begins_at_nowruz() -> None:
    with read_by("en", calendar=Calendar.JALALI):
        assert written.day(datetime(2026, 3, 20, 12, tzinfo=UTC)) == "29 Esfand 1404"
        assert written.day(datetime(2026, 3, 21, 12, tzinfo=UTC)) == "1 Farvardin 1405"


def test_the_exact_time_has_utc_in_plain_digits_beside_it() -> None:
    with read_by("en"):
        assert written.exact(AT) == "Aug. 17, 2026, 21:30:05 UTC"
    with read_by("en", zone="Europe/London"):
        assert written.exact(AT) == "Aug. 17, 2026, 22:30:05 (21:30:05 UTC)"
    with read_by("en", zone="Asia/Tehran"):
        assert written.exact(AT) == "Aug. 18, 2026, 01:00:05 (2026-08-17 21:30:05 UTC)"
    with read_by("fa", **PERSIAN):
        assert plain(written.exact(AT)).endswith("۰۱:۰۰:۰۵ (2026-08-17 21:30:05 UTC)")


def test_relative_times_stay_relative() -> None:
    with read_by("en", **PERSIAN):
        assert written.ago(AT - timedelta(minutes=5), AT) == "۵ min ago"
        assert written.until(AT + timedelta(minutes=12), AT) == "until ۰۱:۱۲, in ۱۲ min"
        assert written.until(AT + timedelta(hours=30), AT).startswith(
            "until ۲۸ Mordad, ۰۷:۰۰, in ۱ d ۶ h"
        )
        assert written.duration(3.2) == "۳٫۲ s"
    assert written.ago(AT - timedelta(minutes=5), AT) == "5 min ago"


def test_an_override_ends_with_its_block_and_an_unknown_zone_is_the_studios() -> None:
    with translation.override("ru"):
        with read_by("en", zone="Mars/Olympus", digits=Digits.PERSIAN):
            assert written.clock_time(AT) == "۲۱:۳۰"
        assert manner.current() == Manner("ru")
        assert written.clock_time(AT) == "21:30"
