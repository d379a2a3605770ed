"""How whoever is reading wants times and numbers: their zone, calendar and digits, and the language of the moment.

What nobody has chosen is the studio's zone, the Gregorian calendar and Latin digits: so commands and the API stay as they
are. Kept in a context variable: requests, threads and the event loop's tasks have each their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.db.models import TextChoices
from django.utils import timezone, translation
from django.utils.translation import gettext_lazy as _


class Calendar(TextChoices):
    GREGORIAN = "gregorian", _("Gregorian")
    JALALI = "jalali", _("Jalali (Solar Hijri)")


class Digits(TextChoices):
    LATIN = "latin", _("Latin: 0 1 2 3")
    PERSIAN = "persian", _("Persian: ۰ ۱ ۲ ۳")


@dataclass(frozen=True, slots=True)
class Manner:
    """`language` None: none is active. `zone` an IANA name, "" the studio's."""

    language: str | None = None
    zone: str = ""
    calendar: Calendar = Calendar.GREGORIAN
    digits: Digits = Digits.LATIN


_STUDIO = Manner()
_chosen: ContextVar[Manner] = ContextVar("manner", default=_STUDIO)


def calendar() -> Calendar:
    return _chosen.get().calendar


def digits() -> Digits:
    return _chosen.get().digits


def current() -> Manner:
    """All that one needs to know to write for the same person elsewhere, as in the thread that feeds event streams."""
    chosen = _chosen.get()
    return Manner(translation.get_language(), chosen.zone, chosen.calendar, chosen.digits)


@contextmanager
def override(manner: Manner) -> Iterator[None]:
    """Everything within is written in this manner; afterwards as before."""
    before = _chosen.get()
    zone = _zone(manner.zone)
    with translation.override(manner.language), timezone.override(zone):
        _chosen.set(manner)
        try:
            yield
        finally:
            # Not by a token: a response may end in another context than it began in.
            _chosen.set(before)


def _zone(name: str) -> ZoneInfo | None:
    """None, the studio's, also for a name that this machine's list does not know (any more)."""
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError):  # unknown is a KeyError
        return None
