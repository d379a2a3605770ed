"""Creating jobs: all of them or none."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction

from jobs import bell
from jobs.intake import Taken
from jobs.lifecycle import endpoints, events
from jobs.models import Batch, JobPhoto, Tenant
from providers.contract import Kind
from providers.models import Target

DEFAULT_TENANT = "studio"

# One statement instead of the ORM's, which costs seconds of Python at ten thousand rows. Numbers are given in the order of
# the rows: a default is reckoned after the sort of an INSERT's SELECT.
_INSERT = """
INSERT INTO jobs_job (tenant_id, batch_id, kind, prompt, params, reference, priority, callback_url, route, target_id,
  state, reason, reason_text, not_before, attempts_since, created_by_id, created_at, fingerprint)
SELECT %(tenant)s, %(batch)s, r.kind, r.prompt, r.params, r.reference, r.priority, r.callback_url, r.route, r.route[1],
  'pending', '', '', %(now)s, %(now)s, %(actor)s, %(now)s, r.fingerprint
FROM ROWS FROM (
  jsonb_to_recordset(%(rows)s::jsonb)
  AS (kind text, prompt text, params jsonb, reference text, priority smallint, callback_url text, route bigint[],
    fingerprint text)
) WITH ORDINALITY AS r(kind, prompt, params, reference, priority, callback_url, route, fingerprint, number)
ORDER BY r.number
RETURNING id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """One wanted result, already checked by intake and routes. `route` is not empty."""

    prompt: str
    route: Sequence[Target]
    kind: Kind = Kind.IMAGE
    params: dict[str, Any] = field(default_factory=dict)
    photos: Sequence[Taken] = ()
    reference: str = ""
    priority: int = 0
    callback_url: str = ""  # who hears how it ends; "": the tenant's own address


def fingerprint(job: NewJob) -> str:
    """The same for jobs that ask for the same, whatever they are called and whoever wants them."""
    asked = [
        job.kind, job.prompt, job.params, [target.pk for target in job.route], [photo.sha256 for photo in job.photos],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def default_tenant() -> Tenant:
    """The one tenant there always is."""
    tenant, _made = Tenant.objects.get_or_create(slug=DEFAULT_TENANT, defaults={"name": "Studio"})
    return tenant


def create_jobs(
    *,
    jobs: Sequence[NewJob],
    tenant: Tenant,
    actor: AbstractBaseUser | None,
    now: datetime,
    label: str = "",
    token: uuid.UUID | None = None,
    callback_url: str = "",
    program: str = "",
) -> Batch:
    """One transaction: the batch, its jobs, their photos and events, and a ring of the bell.

    The same `token` twice gives the same batch, with nothing created the second time. `callback_url`: who hears once that
    the batch is complete; then its jobs are told of one by one only where they name an address themselves. Addresses
    are checked by jobs/callbacks.py. `program`: who asks, where that is none of the staff.
    """
    token = token or uuid.uuid4()
    with transaction.atomic():
        own_url = "" if callback_url else endpoints.default_url(tenant)
        batch, made = Batch.objects.get_or_create(
            token=token,
            defaults={
                "tenant": tenant,
                "label": label,
                "created_at": now,
                "created_by_id": actor.pk if actor else None,
                "callback_url": callback_url,
            },
        )
        if not made:
            return batch
        ids = _insert(jobs, batch=batch, actor=actor, now=now, own_url=own_url)
        JobPhoto.objects.bulk_create(
            [
                JobPhoto(
                    job_id=job_id,
                    position=position,
                    key=photo.key,
                    sha256=photo.sha256,
                    media_type=photo.media_type,
                    size_bytes=photo.size,
                    width=photo.width,
                    height=photo.height,
                )
                for job_id, job in zip(ids, jobs, strict=True)
                for position, photo in enumerate(job.photos)
            ]
        )
        first_at: dict[str, list[int]] = defaultdict(list)
        for job_id, job in zip(ids, jobs, strict=True):
            first_at[job.route[0].name].append(job_id)
        by: dict[str, Any] = {"by": program} if program else {}
        for target, those in first_at.items():
            events.write_same(those, kind="created", now=now, actor=actor, target=target, **by)
        bell.ring()
    return batch


def _insert(
    jobs: Sequence[NewJob],
    *,
    batch: Batch,
    actor: AbstractBaseUser | None,
    now: datetime,
    own_url: str,
) -> list[int]:
    """The ids of the new rows, in the order of `jobs`."""
    rows = [
        {
            "kind": job.kind,
            "prompt": job.prompt,
            "params": job.params,
            "reference": job.reference,
            "priority": job.priority,
            "callback_url": job.callback_url or own_url,
            "route": [target.pk for target in job.route],
            "fingerprint": fingerprint(job),
        }
        for job in jobs
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            _INSERT,
            {
                "rows": json.dumps(rows),
                "tenant": batch.tenant_id,
                "batch": batch.pk,
                "actor": actor.pk if actor else None,
                "now": now,
            },
        )
        return sorted(pk for (pk,) in cursor.fetchall())
