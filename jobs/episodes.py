"""The history of a provider's troubles, made from its timeline: outages, used-up quotas, blocks, pauses, stopped targets.

An episode has a start, an end and a cause. A block that grows goes on as one; one that runs out has ended at its time,
which no event says. Throttles are left out: they come and go by the second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db.models import F, QuerySet

from providers.models import ProviderEvent

PAGE = 50
# Events read for a page: an episode has two or three, a much extended block more. Where they don't suffice the page is
# shorter, and the next one goes on from there.
_WINDOW = 600


class What(StrEnum):
    OUTAGE = "outage"
    KEY = "key"
    QUOTA = "quota"
    BLOCK = "block"
    PAUSE = "pause"
    STOP = "stop"


_STARTS = {
    "opened": What.OUTAGE,
    "key_rejected": What.KEY,
    "quota_exhausted": What.QUOTA,
    "blocked": What.BLOCK,
    "paused": What.PAUSE,
    "target_stopped": What.STOP,
}
_ENDS: dict[str, frozenset[What]] = {
    "closed": frozenset({What.OUTAGE, What.KEY}),
    "unblocked": frozenset({What.QUOTA, What.BLOCK}),
    "resumed": frozenset({What.PAUSE}),
    "target_opened": frozenset({What.STOP}),
}
KINDS: Collection[str] = (*_STARTS, *_ENDS)
# Of each group at most one holds at a time, at one place.
_GROUPS = (
    frozenset({What.OUTAGE, What.KEY}),
    frozenset({What.QUOTA, What.BLOCK}),
    frozenset({What.PAUSE}),
    frozenset({What.STOP}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of the timeline, as far as episodes need it. `by`: who did it, "" for the machine."""

    id: int
    account_id: int
    provider: str
    fingerprint: str
    model: str
    at: datetime
    kind: str
    reason: str = ""
    until: datetime | None = None
    by: str = ""


@dataclass(slots=True, kw_only=True)
class Episode:
    """`until`: when a block that still holds will end; `end` None: it still holds. `ended_by`: who ended it."""

    id: int
    provider: str
    fingerprint: str
    model: str
    what: What
    start: datetime
    end: datetime | None = None
    until: datetime | None = None
    cause: str = ""
    by: str = ""
    ended_by: str = ""

    def length(self, now: datetime) -> timedelta:
        return max(timedelta(0), (self.end or now) - self.start)


def fold(events: Iterable[Event], *, now: datetime) -> list[Episode]:
    """`events` oldest first. The episodes they tell of, newest first."""
    told: list[Episode] = []
    holding: dict[tuple[object, str, frozenset[What]], Episode] = {}
    for event in events:
        what = _STARTS.get(event.kind)
        group = _group(event, what)
        # A target belongs to no account: the account its event stands at may change with the key.
        place = event.provider if What.STOP in group else event.account_id
        key = (place, event.model, group)
        holds = holding.get(key)
        if holds is not None and holds.until is not None and holds.until <= event.at:
            holds.end = holds.until
            holds = None
            del holding[key]
        if what is None:
            if holds is not None:
                holds.end, holds.ended_by = event.at, event.by
                del holding[key]
            continue
        if holds is not None and _goes_on(holds, what):
            holds.until = event.until or holds.until
            continue
        if holds is not None:
            holds.end = event.at
        holding[key] = Episode(
            id=event.id, provider=event.provider, fingerprint=event.fingerprint, model=event.model,
            what=what, start=event.at, until=event.until, cause=event.reason, by=event.by,
        )  # fmt: skip
        told.append(holding[key])
    for holds in holding.values():
        if holds.until is not None and holds.until <= now:
            holds.end = holds.until
    return sorted(told, key=lambda one: one.id, reverse=True)


def _group(event: Event, what: What | None) -> frozenset[What]:
    return next(
        group for group in _GROUPS if (what in group if what else _ENDS[event.kind] == group)
    )


def _goes_on(holds: Episode, what: What) -> bool:
    """An outage whose key is rejected meanwhile is the same outage; a block of another kind is another block."""
    return holds.what is what or {holds.what, what} == {What.OUTAGE, What.KEY}


# --- reading ----------------------------------------------------------------------------------------------------------


def page(*, now: datetime, older: int | None = None) -> tuple[list[Episode], int | None]:
    """The newest episodes that began before the event `older` (None: the newest of all), and the `older` of the next
    page; None: there is none."""
    rows = ProviderEvent.objects.filter(kind__in=KINDS)
    began = _events(rows if older is None else rows.filter(pk__lt=older), newest_first=True)
    after = [] if older is None else _events(rows.filter(pk__gte=older), newest_first=False)
    told = [
        one for one in fold([*reversed(began), *after], now=now) if older is None or one.id < older
    ]
    if len(told) > PAGE:
        return told[:PAGE], told[PAGE - 1].id
    more = len(began) == _WINDOW
    return told, began[-1].id if more else None


def _events(rows: QuerySet[ProviderEvent], *, newest_first: bool) -> Sequence[Event]:
    values = (
        rows.order_by("-pk" if newest_first else "pk")
        .annotate(who=F("actor__username"))
        .values_list(
            "pk", "account_id", "account__provider", "account__fingerprint", "model", "at", "kind", "data", "who"
        )[:_WINDOW]
    )  # fmt: skip
    return [
        Event(
            id=pk, account_id=account_id, provider=provider, fingerprint=fingerprint, model=model, at=at, kind=kind,
            # What staff gave as their reason, not what the provider said before.
            reason=str((data.get("why") if "why" in data else data.get("reason")) or ""),
            until=datetime.fromisoformat(data["until"]) if data.get("until") else None, by=who or "",
        )
        for pk, account_id, provider, fingerprint, model, at, kind, data, who in values
    ]  # fmt: skip
