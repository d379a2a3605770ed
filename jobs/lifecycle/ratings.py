"""What staff think of a delivered result: good, usable or bad; changed and taken back as often as they like."""

from __future__ import annotations

from datetime import datetime

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.utils.translation import gettext as _

from jobs.lifecycle import events
from jobs.lifecycle.errors import Refused
from jobs.models import Job, Result


def rate(*, job_id: int, rating: str, actor: AbstractBaseUser, now: datetime) -> None:
    """Of what the job delivers now; "" takes the rating back. The same once more changes nothing.

    Raises Refused where nothing is delivered, a person made it, or the rating is none of ours.
    """
    if rating not in {"", *Result.Rating.values}:
        raise Refused(_("A rating is good, usable or bad."))
    with transaction.atomic():
        job = (
            Job.objects.select_for_update(no_key=True, of=("self",))
            .select_related("delivered")
            .get(pk=job_id)
        )
        result = job.delivered
        if result is None:
            raise Refused(_("This job has delivered nothing that could be rated."))
        if result.task_id is None:
            raise Refused(_("A person made this result; only those of a target are rated."))
        before = result.rating
        if before == rating:
            return
        Result.objects.filter(pk=result.pk).update(
            rating=rating,
            rated_by_id=actor.pk if rating else None,
            rated_at=now if rating else None,
        )
        events.write(
            [
                events.event(
                    job_id=job.pk, task_id=result.task_id, kind="rated" if rating else "rating_removed", now=now,
                    actor=actor, before=before or None, after=rating or None, result=result.pk,
                )
            ]
        )  # fmt: skip
