"""Writing a job's timeline. Always inside the transaction of the change."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser

from jobs.models import JobEvent


def event(
    *,
    job_id: int,
    kind: str,
    now: datetime,
    task_id: UUID | None = None,
    actor: AbstractBaseUser | None = None,
    **data: Any,
) -> JobEvent:
    """An unsaved event; `write` saves many in one statement."""
    return JobEvent(
        job_id=job_id,
        task_id=task_id,
        kind=kind,
        at=now,
        actor_id=actor.pk if actor else None,
        data=data,
    )


def write(events: Iterable[JobEvent]) -> None:
    JobEvent.objects.bulk_create(list(events))
