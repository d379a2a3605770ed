"""Moments as commands take them: "24h" ago, a day, an ISO time."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.translation import gettext as _

from jobs.management.who import EXIT_BAD_INPUT

_AGO = re.compile(r"(\d{1,6})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def moment(text: str, *, now: datetime) -> datetime:
    """`90m`, `24h`, `7d` before now; `2026-12-01` or `2026-12-01T09:00`, by TIME_ZONE where it names none. CommandError
    (exit code 2) for anything else."""
    if ago := _AGO.fullmatch(text):
        try:
            return now - int(ago[1]) * _UNITS[ago[2]]
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        at = (
            datetime.combine(date.fromisoformat(text), datetime.min.time())
            if len(text) == 10
            else datetime.fromisoformat(text)
        )
    except ValueError:
        raise CommandError(
            _("“%(text)s” is no time. Write 24h, 2026-12-01 or 2026-12-01T09:00.") % {"text": text},
            returncode=EXIT_BAD_INPUT,
        ) from None
    return at if at.tzinfo else timezone.make_aware(at, timezone.get_default_timezone())
