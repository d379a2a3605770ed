"""Hints: somebody says that there is news of a task. They make us look and decide nothing."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Q, When

from jobs import bell
from jobs.lifecycle import decide, events
from jobs.lifecycle.record import Fact, record
from jobs.models import ProviderTask
from jobs.rules import rules

# A hint that follows another so closely tells nothing new: what it is about is being asked, or will be in a moment.
AGAIN_AFTER_S = 3.0


def hint(*, task_id: UUID, proven_id: str | None, now: datetime) -> bool:
    """Look at the task at once. False: there is no such task. Any number of times, in any order.

    `proven_id`: the id that the provider itself, by its signature, gives the task. A fact like any other: it ends the search
    for a lost send, and a second, different one is a conflict.
    """
    with transaction.atomic():
        task = ProviderTask.objects.filter(pk=task_id).only("job_id", "provider_id").first()
        if task is None:
            return False
        if _ask_now(task_id, now):
            events.write(
                [events.event(job_id=task.job_id, task_id=task_id, kind="hinted", now=now)]
            )
            bell.ring()
    if proven_id is not None and proven_id != task.provider_id:
        _learn_id(task_id, proven_id, now)
    return True


def _ask_now(task_id: UUID, now: datetime) -> bool:
    """Whether anything was brought forward. `hinted_at` is set too where the send's own answer is still awaited, which
    would otherwise put the first poll off (see record)."""

    def sooner(column: str) -> Case:
        return Case(When(**{f"{column}__gt": now}, then=now), default=F(column))

    return bool(
        ProviderTask.objects.filter(
            Q(hinted_at__isnull=True) | Q(hinted_at__lte=now - timedelta(seconds=AGAIN_AFTER_S)),
            pk=task_id,
            completed_at__isnull=True,
            failed_at__isnull=True,
            stored_at__isnull=True,
        ).update(
            hinted_at=now,
            next_poll_at=sooner("next_poll_at"),
            next_look_at=sooner("next_look_at"),
        )
    )


def _learn_id(task_id: UUID, proven_id: str, now: datetime) -> None:
    touched = record(
        facts=[
            Fact(
                task_id=task_id, at=now, kind="found_by_webhook", decides=True, provider_id=proven_id, next_poll_at=now,
                data={"provider_id": proven_id},
            )
        ]
    )  # fmt: skip
    decide.decide(job_ids=touched, rules=rules(), now=now, rng=random.Random())  # noqa: S311  jitter
    bell.ring()
