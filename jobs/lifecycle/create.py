"""Creating jobs: all of them or none."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction

from jobs import bell
from jobs.intake import Taken
from jobs.lifecycle import events
from jobs.models import Batch, Job, JobPhoto, Tenant
from providers.contract import Kind
from providers.models import Target

DEFAULT_TENANT = "studio"


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
) -> Batch:
    """One transaction: the batch, its jobs, their photos and events, and a ring of the bell.

    The same `token` twice gives the same batch, with nothing created the second time.
    """
    token = token or uuid.uuid4()
    with transaction.atomic():
        batch, made = Batch.objects.get_or_create(
            token=token,
            defaults={
                "tenant": tenant,
                "label": label,
                "created_at": now,
                "created_by_id": actor.pk if actor else None,
            },
        )
        if not made:
            return batch
        rows = Job.objects.bulk_create(
            [
                Job(
                    tenant=tenant,
                    batch=batch,
                    kind=job.kind,
                    prompt=job.prompt,
                    params=job.params,
                    reference=job.reference,
                    priority=job.priority,
                    route=[target.pk for target in job.route],
                    target=job.route[0],
                    not_before=now,
                    attempts_since=now,
                    created_by_id=actor.pk if actor else None,
                    created_at=now,
                )
                for job in jobs
            ],
            batch_size=1000,
        )
        JobPhoto.objects.bulk_create(
            [
                JobPhoto(
                    job=row,
                    position=position,
                    key=photo.key,
                    sha256=photo.sha256,
                    media_type=photo.media_type,
                    size_bytes=photo.size,
                    width=photo.width,
                    height=photo.height,
                )
                for row, job in zip(rows, jobs, strict=True)
                for position, photo in enumerate(job.photos)
            ]
        )
        events.write(
            events.event(
                job_id=row.pk, kind="created", now=now, actor=actor, target=job.route[0].name
            )
            for row, job in zip(rows, jobs, strict=True)
        )
        bell.ring()
    return batch
