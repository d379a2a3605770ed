"""The candidates for a lost send as cards: what the provider's history showed at that time, and how each differs from what we
asked for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from urllib.parse import urlencode

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from jobs import attach, written
from jobs.models import Case, ProviderTask
from providers import registry
from providers.contract import Kind

# What the provider says is not done has no picture yet, or never; any other word may.
_WAITING = frozenset({"pending", "processing", "queued", "running"})
_WITHOUT_PICTURE = _WAITING | {"failed", "cancelled", "canceled", "error"}


@dataclass(frozen=True, slots=True)
class Candidate:
    """`distance` is the time between our send and this, in words. `taken_by`: the job that has this id already; such a one is
    shown and not offered. `picture` is an address of ours, "" where there is nothing to ask for."""

    id: str
    model: str
    same_model: bool
    status: str
    waiting: bool
    cost: str
    made_at: datetime | None
    distance: str
    taken_by: int | None
    picture: str


def cards(case: Case, task: ProviderTask) -> list[Candidate]:
    """The likely ones first: not another send's, of our model, nearest in time. One query, whatever their number."""
    found = attach.candidates(task)
    if not found:
        return []
    taken = _taken(task, [one["id"] for one in found])
    picture = reverse("admin:jobs_case_candidate", args=[case.pk])
    pictures = task.job.kind != Kind.TEXT and _reached(task)
    made = []
    for one in found:
        at = _moment(one.get("created_at"))
        status = str(one.get("status") or "")
        shown = pictures and status not in _WITHOUT_PICTURE
        card = Candidate(
            id=one["id"],
            model=str(one.get("model") or ""),
            same_model=one.get("model") == task.target.model,
            status=status,
            waiting=status in _WAITING,
            cost=_cost(one.get("cost"), task.currency),
            made_at=at,
            distance=distance(at, task.armed_at),
            taken_by=taken.get(one["id"]),
            picture=f"{picture}?{urlencode({'id': one['id']})}" if shown else "",
        )
        made.append((_rank(card, task.armed_at), card))
    return [card for _rank_of, card in sorted(made, key=lambda pair: pair[0])]


def _reached(task: ProviderTask) -> bool:
    """Whether the settings still have the key that could be asked with."""
    try:
        return registry.reached(task.account.provider, task.account.fingerprint) is not None
    except registry.UnknownProviderError:
        return False


def _rank(card: Candidate, armed_at: datetime | None) -> tuple[bool, bool, float, str]:
    apart = abs((card.made_at - armed_at).total_seconds()) if card.made_at and armed_at else 1e12
    return card.taken_by is not None, not card.same_model, apart, card.id


def _taken(task: ProviderTask, ids: list[str]) -> dict[str, int]:
    """Which job has an id already, with whichever key: a provider gives an id once."""
    rows = ProviderTask.objects.filter(
        account__provider=task.account.provider, provider_id__in=ids
    ).exclude(pk=task.pk)
    return {str(provider_id): job for provider_id, job in rows.values_list("provider_id", "job_id")}


def distance(made_at: datetime | None, armed_at: datetime | None) -> str:
    """`1.4 s after our send`; "" where either time is not known."""
    if made_at is None or armed_at is None:
        return ""
    apart_s = (made_at - armed_at).total_seconds()
    if abs(apart_s) < 0.5:
        return _("at the moment of our send")
    words = _("%(time)s after our send") if apart_s > 0 else _("%(time)s before our send")
    return words % {"time": written.duration(abs(apart_s))}


def _moment(text: str | None) -> datetime | None:
    """What a candidate tells as its time; None for what is none."""
    try:
        at = datetime.fromisoformat(str(text or ""))
    except ValueError:
        return None
    return at if timezone.is_aware(at) else None


def _cost(text: str | None, currency: str) -> str:
    try:
        amount = Decimal(str(text or ""))
    except InvalidOperation:
        return ""
    told = amount.is_finite() and -9 < amount.adjusted() < 9
    return written.money(amount, currency) if told else ""
