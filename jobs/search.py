"""One search over everything people name: jobs, batches, tenants, sends and cases. Reading only, each kind bounded."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import OperationalError, connection, transaction
from django.db.models import Q

from jobs.models import Batch, Case, Job, ProviderTask, Tenant

SHOWN = 8
LONGEST = 200
BATCHES_AMONG = 20_000  # the newest ones whose labels are looked through
TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class Found:
    """What one kind holds. `more`: there are others; `late`: it took too long to look, so nothing is known."""

    kind: str
    rows: Sequence[Any] = ()
    more: bool = False
    late: bool = False


def search(words: str, kinds: Collection[str]) -> list[Found]:
    """Of each wanted kind the first few, exact ones before like ones."""
    words = words.replace("\0", "").strip()[:LONGEST]
    if not words:
        return []
    return [_bounded(kind, look, words) for kind, look in _KINDS.items() if kind in kinds]


def exact(words: str) -> Job | None:
    """The job that is meant without doubt: by its number behind `#`, or by the number of one of its sends, ours or the
    provider's."""
    words = words.strip()[:LONGEST]
    if words.startswith("#"):
        return Job.objects.filter(pk=_number(words[1:])).first()
    sends = ProviderTask.objects.filter(_send(words)).select_related("job").order_by("created_at")
    found = list(sends[:2])
    return found[0].job if len({task.job_id for task in found}) == 1 else None


def _bounded(kind: str, look: Callable[[str], Iterable[Any]], words: str) -> Found:
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, true)", [str(TIMEOUT_MS)]
                )
            rows = list(look(words))
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", "") != "57014":  # query_canceled
            raise
        return Found(kind, late=True)
    return Found(kind, rows[:SHOWN], more=len(rows) > SHOWN)


def _jobs(words: str) -> Iterable[Job]:
    found = Job.objects.search(words).select_related("tenant", "target").defer("prompt", "params")
    return found.order_by("-pk")[: SHOWN + 1]


def _batches(words: str) -> Iterable[Batch]:
    newest = Batch.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    like = Q(label__icontains=words, pk__gt=newest - BATCHES_AMONG)
    return Batch.objects.filter(like | Q(pk=_number(words))).select_related("tenant").order_by("-pk")[: SHOWN + 1]  # fmt: skip


def _tenants(words: str) -> Iterable[Tenant]:
    return Tenant.objects.filter(Q(name__icontains=words) | Q(slug__icontains=words)).order_by("name")[: SHOWN + 1]  # fmt: skip


def _sends(words: str) -> Iterable[ProviderTask]:
    sends = ProviderTask.objects.filter(_send(words)).select_related("job", "target", "account")
    return sends.defer("evidence", "candidates", "job__prompt").order_by("-created_at")[: SHOWN + 1]


def _cases(words: str) -> Iterable[Case]:
    return Case.objects.filter(pk=_number(words)).select_related("job").defer("job__prompt")[: SHOWN + 1]  # fmt: skip


_KINDS: dict[str, Callable[[str], Iterable[Any]]] = {
    "jobs": _jobs, "batches": _batches, "tenants": _tenants, "sends": _sends, "cases": _cases,
}  # fmt: skip


def _send(words: str) -> Q:
    by_id = Q(provider_id=words)
    try:
        return by_id | Q(pk=uuid.UUID(words))
    except ValueError:
        return by_id


def _number(words: str) -> int:
    """0, which no row has, where it is none."""
    digits = words.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 18 else 0
