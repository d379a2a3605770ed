"""A person's word that they have read the handover."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from jobs.models import Visit


def note_read(*, user_id: int, read_at: datetime, now: datetime) -> datetime:
    """Everything up to `read_at` was before them; what they will be told from next time. Never back, never ahead of now."""
    with transaction.atomic():
        visit, made = Visit.objects.select_for_update().get_or_create(
            user_id=user_id, defaults={"read_at": min(read_at, now)}
        )
        if not made and visit.read_at < min(read_at, now):
            visit.read_at = min(read_at, now)
            visit.save(update_fields=["read_at"])
    return visit.read_at
