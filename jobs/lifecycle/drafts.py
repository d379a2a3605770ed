"""Imports that wait for a person's yes: kept, turned into a batch once, forgotten after a day."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils.translation import gettext as _

from jobs.batches.plan import Plan, Planned
from jobs.lifecycle.create import NewJob, create_jobs
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, BatchDraft, Tenant
from providers.models import Target

KEEP = timedelta(days=1)
_FORGET_AT_ONCE = 50


def keep(
    plan: Plan, *, tenant: Tenant, label: str, actor: AbstractBaseUser | None, now: datetime
) -> BatchDraft:
    """The draft's token becomes its batch's."""
    old = BatchDraft.objects.filter(created_at__lt=now - KEEP).order_by("created_at")
    BatchDraft.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:_FORGET_AT_ONCE])).delete()  # fmt: skip
    return BatchDraft.objects.create(
        tenant=tenant,
        label=label,
        created_at=now,
        created_by_id=actor.pk if actor else None,
        rows_read=plan.read,
        rows=[row.plain() for row in plan.rows],
        refused=[
            {"line": error.line, "field": error.field, "message": error.message}
            for error in plan.refused
        ],
        notes=plan.notes,
    )


def create(
    *, token: uuid.UUID, without_twins: bool, actor: AbstractBaseUser | None, now: datetime
) -> Batch:
    """The draft's batch: made once, however often and at how many places this is asked."""
    with transaction.atomic():
        draft = BatchDraft.objects.select_related("tenant").filter(token=token).first()
        if draft is None:
            made = Batch.objects.filter(token=token).first()
            if made is None:
                raise Refused(_("This import is gone: drafts are kept for a day. Upload it again."))
            return made
        rows = [row for row in map(Planned.of, draft.rows) if not (without_twins and row.twin)]
        if not rows:
            raise Refused(_("There is nothing to make."))
        batch = create_jobs(
            jobs=new_jobs(rows), tenant=draft.tenant, actor=actor, now=now, label=draft.label, token=token
        )  # fmt: skip
        draft.delete()
    return batch


def new_jobs(rows: list[Planned]) -> list[NewJob]:
    """Refused where a target of theirs is no more."""
    targets = Target.objects.in_bulk({pk for row in rows for pk in row.route})
    if any(pk not in targets for row in rows for pk in row.route):
        raise Refused(_("A target of this import is gone. Upload it again."))
    return [
        NewJob(
            prompt=row.prompt,
            route=[targets[pk] for pk in row.route],
            kind=row.kind,
            params=dict(row.params),
            photos=row.photos,
            reference=row.reference,
            priority=row.priority,
        )
        for row in rows
    ]
