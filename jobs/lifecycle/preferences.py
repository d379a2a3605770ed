"""How a person wants things written, in their own word."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction

from jobs.manner import Calendar, Digits
from jobs.models import Preferences


def prefer(
    *,
    user_id: int,
    now: datetime,
    language: str | None = None,
    zone: str | None = None,
    calendar: Calendar | None = None,
    digits: Digits | None = None,
) -> Preferences:
    """What is None stays as it was. The caller has checked that the language is offered and the zone exists."""
    given: dict[str, Any] = {
        "language": language, "zone": zone, "calendar": calendar, "digits": digits,
    }  # fmt: skip
    chosen = {name: value for name, value in given.items() if value is not None}
    with transaction.atomic():
        row, _made = Preferences.objects.update_or_create(
            user_id=user_id, defaults={**chosen, "changed_at": now}
        )
    return row
