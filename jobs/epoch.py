"""Marks outside the database that tell whether it has forgotten a send (a restored dump, a failover that lost commits).

After each arm's commit and before the first byte, a lane writes the id of its last armed task to `epoch/<slot>`.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from uuid import UUID

from django.conf import settings

from jobs.models import Hold, ProviderTask


def mark(*, slot: int, task_id: UUID) -> None:
    """Write the mark and flush it to the disk. OSError passes through: then nothing may be sent."""
    folder = settings.EPOCH_DIR
    folder.mkdir(parents=True, exist_ok=True)
    # Of its own: a zombie may be writing for the same slot.
    temporary = folder / f".{slot}.{os.getpid()}.new"
    with temporary.open("w", encoding="ascii") as file:
        file.write(str(task_id))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / str(slot))


def _read(path: Path) -> UUID:
    try:
        return UUID(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return UUID(
            int=0
        )  # unreadable: the send it stood for can't be shown to be known, so all sends are held


def check(*, now: datetime) -> bool:
    """Whether the database knows every marked send. If not, all sends are held until `after-restore`."""
    folder = settings.EPOCH_DIR
    if not folder.is_dir():
        return True
    marked = [_read(path) for path in folder.iterdir() if path.name.isdigit()]
    known = set(
        ProviderTask.objects.filter(pk__in=marked, armed_at__isnull=False).values_list(
            "pk", flat=True
        )
    )
    if known >= set(marked):
        return True
    Hold.objects.bulk_create(
        [
            Hold(
                kind=Hold.Kind.RESTORE,
                set_at=now,
                reason="The database does not know a send that was made: it was restored or has lost commits.",
            )
        ],
        ignore_conflicts=True,
    )
    return False
