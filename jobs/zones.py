"""The time zones of the IANA list that people live in, as choices: by continent, with the time there now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from jobs import written

# The list has further names for the same places ("US/Eastern"), and some that are no places ("EST5EDT").
_AREAS: Mapping[str, str | Promise] = {
    "Africa": _("Africa"),
    "America": _("America"),
    "Antarctica": _("Antarctica"),
    "Arctic": _("Arctic"),
    "Asia": _("Asia"),
    "Atlantic": _("Atlantic Ocean"),
    "Australia": _("Australia"),
    "Europe": _("Europe"),
    "Indian": _("Indian Ocean"),
    "Pacific": _("Pacific Ocean"),
}


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """In order; `UTC` first."""
    places = sorted(
        name for name in available_timezones() if name.partition("/")[0] in _AREAS and "/" in name
    )
    return ("UTC", *places)


def known(name: str) -> bool:
    return name in names()


def choices(now: datetime) -> list[tuple[str, Any]]:
    """For a form: groups of `Tehran · 17:35 (UTC+03:30)`."""
    groups: dict[str, list[tuple[str, str]]] = {area: [] for area in _AREAS}
    for name in names()[1:]:
        area, _slash, place = name.partition("/")
        groups[area].append((name, label(name, place, now)))
    return [
        ("UTC", label("UTC", "UTC", now)),
        *((str(_AREAS[area]), found) for area, found in groups.items() if found),
    ]


def label(name: str, place: str, now: datetime) -> str:
    there = now.astimezone(ZoneInfo(name))
    shift = f"{there:%z}"
    utc = "" if name == "UTC" else f" (UTC{shift[:3]}:{shift[3:5]})"
    return f"{place.replace('_', ' ').replace('/', ', ')} · {written.digits(f'{there:%H:%M}')}{utc}"
