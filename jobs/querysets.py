"""Named filters. Each says what it finds; the indexes that serve them are in jobs/models/."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from jobs.states import JobState

if TYPE_CHECKING:
    from jobs.models import Job, ProviderTask  # noqa: F401  named in the strings below


class JobQuerySet(models.QuerySet["Job"]):
    def pending(self) -> JobQuerySet:
        return self.filter(state=JobState.PENDING)

    def ended(self) -> JobQuerySet:
        return self.filter(state__in=[JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])

    def move(
        self, pk: int, *, old: JobState | tuple[JobState, ...], new: JobState, **fields: object
    ) -> bool:
        """False means someone else moved the job first."""
        states = old if isinstance(old, tuple) else (old,)
        return self.filter(pk=pk, state__in=states).update(state=new, **fields) == 1

    def search(self, words: str) -> JobQuerySet:
        """By reference (prefix), provider id (exact), job number, or words of the prompt."""
        words = words.strip()
        found = (
            Q(reference__startswith=words)
            | Q(tasks__provider_id=words)
            | Q(prompt__icontains=words)
        )
        if words.lstrip("#").isdigit() and len(words) < 18:
            found |= Q(pk=int(words.lstrip("#")))
        return self.filter(found).distinct()


class TaskQuerySet(models.QuerySet["ProviderTask"]):
    def in_flight(self, *, now: datetime, poll_deadline_s: float) -> TaskQuerySet:
        """Armed or accepted and younger than the polling deadline, plus the intents of all lanes."""
        return self.filter(state__in=["intent", "sending", "accepted"]).filter(
            Q(armed_at__isnull=True) | Q(armed_at__gt=now - timedelta(seconds=poll_deadline_s))
        )

    def blocking(self) -> TaskQuerySet:
        return self.filter(blocks_send=True)
