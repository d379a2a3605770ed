"""Writing a job's timeline. Always inside the transaction of the change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
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


_SAME = """
INSERT INTO jobs_jobevent (job_id, at, kind, data, actor_id)
SELECT job.id, %(at)s, %(kind)s, %(data)s::jsonb || {before}, %(actor)s
FROM jobs_job job JOIN providers_target target ON target.id = job.target_id
WHERE job.id = ANY(%(ids)s) ORDER BY job.id
"""
_BEFORE: Mapping[str, str] = {
    "": "'{}'::jsonb",
    "state": "jsonb_build_object('before', job.state)",
    "target": "jsonb_build_object('before', target.provider || ':' || target.model)",
}


def write_same(
    job_ids: Sequence[int],
    *,
    kind: str,
    now: datetime,
    actor: AbstractBaseUser | None,
    before: Literal["", "state", "target"] = "",
    **data: Any,
) -> None:
    """The same event for many jobs, in one statement of one row's length. `before`: which column is kept as it is now, so
    it is called ahead of the change."""
    with connection.cursor() as cursor:
        cursor.execute(
            _SAME.format(before=_BEFORE[before]),
            {
                "ids": list(job_ids),
                "at": now,
                "kind": kind,
                "data": json.dumps(data),
                "actor": actor.pk if actor else None,
            },
        )
