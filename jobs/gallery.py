"""What was delivered, newest first: one tile a job, by its delivered result. Reading only.

Every filter has an index that also gives the order, so a page costs the same whatever the past; pages go by the number of the
result (keyset), as counting on through a million would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.db.models.functions import Left

from jobs.models import Job, Result

PAGE = 60
PROMPT_SHOWN = 1000
UNRATED = "none"
RATINGS = (*Result.Rating.values, UNRATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is shown. `before`: results older than this one; `after`: the nearest ones that are newer."""

    tenant: int | None = None
    target: int | None = None
    batch: int | None = None
    rating: str = ""
    before: int | None = None
    after: int | None = None

    @classmethod
    def read(cls, told: Any) -> Asked:
        """From an address's query; what is nonsense counts as left out."""
        rating = told.get("rating", "")
        return cls(
            tenant=_number(told, "tenant"),
            target=_number(told, "target"),
            batch=_number(told, "batch"),
            rating=rating if rating in RATINGS else "",
            before=_number(told, "before"),
            after=_number(told, "after"),
        )

    def query(self, **others: Any) -> str:
        """The address's query with some of it changed; a page of its own only where `before` or `after` is given."""
        wanted = replace(self, **{"before": None, "after": None, **others})
        names = ("tenant", "target", "batch", "rating", "before", "after")
        return "?" + urlencode({name: value for name in names if (value := getattr(wanted, name))})

    @property
    def narrowed(self) -> bool:
        return bool(self.tenant or self.target or self.batch or self.rating)


@dataclass(frozen=True, slots=True)
class Page:
    """`older` and `newer`: the number to go on from, None where that way there is nothing more."""

    jobs: Sequence[Any]  # Job, with `prompt_start`
    older: int | None
    newer: int | None


def page(asked: Asked) -> Page:
    jobs = _narrowed(asked)
    newer_first = asked.after is None
    if asked.after is not None:
        jobs = jobs.filter(delivered__gt=asked.after).order_by("delivered_id")
    else:
        jobs = jobs.order_by("-delivered_id")
        if asked.before is not None:
            jobs = jobs.filter(delivered__lt=asked.before)
    rows = list(_dressed(jobs)[: PAGE + 1])
    more, rows = len(rows) > PAGE, rows[:PAGE]
    if not newer_first:
        rows.reverse()
    if not rows:
        return Page([], None, None)
    first, last = rows[0].delivered_id, rows[-1].delivered_id
    has_older = more if newer_first else True
    has_newer = asked.before is not None if newer_first else more
    return Page(rows, last if has_older else None, first if has_newer else None)


def chosen(pks: Sequence[int]) -> QuerySet[Job]:
    """Jobs by number that have delivered something, newest result first."""
    return _dressed(Job.objects.filter(pk__in=pks, delivered__isnull=False)).order_by(
        "-delivered_id"
    )


def _narrowed(asked: Asked) -> QuerySet[Job]:
    jobs = Job.objects.filter(delivered__isnull=False)
    for name in ("tenant", "target", "batch"):
        if (wanted := getattr(asked, name)) is not None:
            jobs = jobs.filter(**{name: wanted})
    if asked.rating:
        jobs = jobs.filter(delivered__rating="" if asked.rating == UNRATED else asked.rating)
    return jobs


def _dressed(jobs: QuerySet[Job]) -> QuerySet[Job]:
    return (
        jobs.select_related("delivered__task", "target", "tenant", "batch")
        .only(
            "id", "reference", "state", "kind", "created_at", "finished_at", "params",
            "delivered__id", "delivered__key", "delivered__thumb_key", "delivered__media_type", "delivered__size_bytes",
            "delivered__width", "delivered__height", "delivered__rating", "delivered__created_at", "delivered__sha256",
            "delivered__task__id", "delivered__task__cost", "delivered__task__currency", "delivered__task__charge",
            "delivered__task__estimated_cost", "delivered__task__accepted_at", "delivered__task__armed_at",
            "delivered__task__completed_at",
            "target__provider", "target__model", "tenant__name", "batch__id", "batch__label",
        )
        .annotate(prompt_start=Left("prompt", PROMPT_SHOWN))
    )  # fmt: skip


def _number(told: Any, name: str) -> int | None:
    text = told.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 18 else None
