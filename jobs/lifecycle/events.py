"""Writing a job's timeline. Always inside the transaction of the change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection

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


def write_same(
    job_ids: Sequence[int], *, kind: str, now: datetime, actor: AbstractBaseUser | None, **data: Any
) -> None:
    """The same event for many jobs, in one statement of one row's length."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO jobs_jobevent (job_id, at, kind, data, actor_id)"
            " SELECT id, %(at)s, %(kind)s, %(data)s::jsonb, %(actor)s FROM unnest(%(ids)s::bigint[]) id ORDER BY id",
            {
                "ids": list(job_ids),
                "at": now,
                "kind": kind,
                "data": json.dumps(data),
                "actor": actor.pk if actor else None,
            },
        )
