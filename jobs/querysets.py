"""Named filters. Each says what it finds; the indexes that serve them are in jobs/models/."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from jobs.states import HAS_COST, JobState

if TYPE_CHECKING:
    from jobs.models import Job, ProviderTask  # noqa: F401  named in the strings below

# What the trigram index of prompts can find: three letters or digits in a row. Anything shorter would be looked for in
# every prompt there is, so it is looked for in the newest jobs only.
_TRIGRAM = re.compile(r"[^\W_]{3}")
SHORT_WORDS_AMONG = 10_000


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
        """By reference (prefix), provider id (exact), job number, or words of the prompt.

        Conditions on the job's own columns only, each with an index: PostgreSQL then reads those indexes for a rare word
        and the newest jobs first for a common one. The few jobs of a provider id are looked up before, because a join or
        a subquery in an OR would take that choice away.
        """
        words = words.strip()
        number = words.lstrip("#")
        jobs = self.model._default_manager  # noqa: SLF001  Django's documented name
        numbers = set(jobs.filter(tasks__provider_id=words).values_list("pk", flat=True)[:100])
        if number.isdecimal() and len(number) < 18:
            numbers.add(int(number))
        in_prompt = Q(prompt__icontains=words)
        if not _TRIGRAM.search(words):
            newest = jobs.order_by("-pk").values_list("pk", flat=True).first() or 0
            in_prompt &= Q(pk__gt=newest - SHORT_WORDS_AMONG)
        by_reference = Q(reference__startswith=words) & ~Q(reference="")
        return self.filter(by_reference | Q(pk__in=numbers) | in_prompt)


# A send `k` that was let go as free or absent, or is not let go, and may have cost: nothing more is sent for its job. What was
# written off has cost all the same. The SQL of TaskQuerySet.costly, for the claim, the arming and the stuck query.
COSTLY = """(k.charge IN ('possible', 'charged', 'written_off') AND k.released_by NOT IN ('person', 'standing', 'stored'))"""


class TaskQuerySet(models.QuerySet["ProviderTask"]):
    def costly(self) -> TaskQuerySet:
        """Those that let nothing more be sent for their job (COSTLY)."""
        return self.filter(charge__in=HAS_COST).exclude(
            released_by__in=["person", "standing", "stored"]
        )

    def in_flight(self, *, now: datetime, poll_deadline_s: float) -> TaskQuerySet:
        """Armed or accepted and younger than the polling deadline, plus the intents of all lanes."""
        return self.filter(state__in=["intent", "sending", "accepted"]).filter(
            Q(armed_at__isnull=True) | Q(armed_at__gt=now - timedelta(seconds=poll_deadline_s))
        )

    def blocking(self) -> TaskQuerySet:
        return self.filter(blocks_send=True)
