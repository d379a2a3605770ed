"""When a provider, or one of its models, could not be sent to: stretches of a span of time, from the providers' timeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.db import connection

from jobs import episodes
from jobs.budgets import Span
from jobs.episodes import Event, What
from providers.models import EPISODE_KINDS

MOST, MOST_BEFORE, MOST_THROTTLES = 2000, 500, 2000  # events read of an account


class Kind(StrEnum):
    """What hides what: of several that hold at once, the first is what people see."""

    PAUSE = "pause"
    KEY = "key"
    OUTAGE = "outage"
    STOP = "stop"
    QUOTA = "quota"
    BLOCK = "block"
    THROTTLE = "throttle"


_OF = {
    What.PAUSE: Kind.PAUSE,
    What.KEY: Kind.KEY,
    What.OUTAGE: Kind.OUTAGE,
    What.STOP: Kind.STOP,
    What.QUOTA: Kind.QUOTA,
    What.BLOCK: Kind.BLOCK,
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """`end` None: it still holds. `began`: when it really did, perhaps before the span."""

    kind: Kind
    began: datetime
    start: datetime
    end: datetime | None
    cause: str = ""
    by: str = ""

    def length(self, now: datetime) -> timedelta:
        return max(timedelta(0), (self.end or now) - self.start)


@dataclass(frozen=True, slots=True)
class Strip:
    """An account (`model` empty) or one of its models, and what happened there, oldest first."""

    account_id: int
    provider: str
    fingerprint: str
    model: str
    stretches: Sequence[Stretch]

    def lengths(self, now: datetime) -> dict[Kind, timedelta]:
        """How long each held; what hides is not subtracted from what it hides."""
        sums: dict[Kind, timedelta] = defaultdict(timedelta)
        for one in self.stretches:
            sums[one.kind] += one.length(now)
        return {kind: sums[kind] for kind in Kind if kind in sums}


# By the partial indexes provider_event_episodes and provider_event_throttles.
_EVENTS = """
SELECT e.id, e.account_id, a.provider, a.fingerprint, e.model, e.at, e.kind, e.data ->> 'why', e.data ->> 'reason',
  e.data ->> 'until', u.username
FROM providers_account a
CROSS JOIN LATERAL (
  (SELECT * FROM providers_providerevent
   WHERE account_id = a.id AND kind IN ({kinds}) AND at < %(start)s ORDER BY at DESC LIMIT %(before)s)
  UNION ALL
  (SELECT * FROM providers_providerevent
   WHERE account_id = a.id AND kind IN ({kinds}) AND at >= %(start)s AND at < %(end)s ORDER BY at DESC LIMIT %(most)s)
  UNION ALL
  (SELECT * FROM providers_providerevent
   WHERE account_id = a.id AND kind = 'throttled' AND at >= %(day_before)s AND at < %(end)s
   ORDER BY at DESC LIMIT %(throttles)s)
) e
LEFT JOIN auth_user u ON u.id = e.actor_id
WHERE a.id = ANY(%(accounts)s)
ORDER BY e.id
""".replace("{kinds}", ", ".join(f"'{kind}'" for kind in EPISODE_KINDS))


def read(span: Span, *, accounts: Collection[int], now: datetime) -> list[Strip]:
    """Of these accounts and their models, those where something held within the span. `span` ends by `now`."""
    with connection.cursor() as cursor:
        cursor.execute(
            _EVENTS,
            {
                "start": span.start,
                "end": span.end,
                "day_before": span.start - timedelta(days=1),
                "accounts": list(accounts),
                "before": MOST_BEFORE,
                "most": MOST,
                "throttles": MOST_THROTTLES,
            },
        )
        events = [
            Event(
                id=pk, account_id=account_id, provider=provider, fingerprint=fingerprint, model=model, at=at, kind=kind,
                reason=str((why if why is not None else reason) or ""),
                until=datetime.fromisoformat(until) if until else None, by=by or "",
            )
            for pk, account_id, provider, fingerprint, model, at, kind, why, reason, until, by in cursor.fetchall()
        ]  # fmt: skip
    return strips(events, span=span, now=now)


def strips(events: Sequence[Event], *, span: Span, now: datetime) -> list[Strip]:
    """`events` oldest first. By provider, account and model."""
    told: dict[tuple[str, int, str, str], list[Stretch]] = defaultdict(list)
    places = {
        (one.provider, one.fingerprint, one.model): (one.provider, one.account_id, one.fingerprint, one.model)
        for one in events
    }  # fmt: skip
    plain = [one for one in events if one.kind in episodes.KINDS]
    for one in episodes.fold(plain, now=now):
        place = places[one.provider, one.fingerprint, one.model]
        told[place].append(Stretch(_OF[one.what], one.start, one.start, one.end, one.cause, one.by))
    for place in set(places.values()):
        here = [one for one in events if (one.account_id, one.model) == (place[1], place[3])]
        told[place] += _throttles(here, now=now)
    made = []
    for (provider, account_id, fingerprint, model), stretches in sorted(told.items()):
        within = [cut for one in stretches if (cut := _within(one, span, now)) is not None]
        if within:
            within.sort(key=lambda one: one.start)
            made.append(Strip(account_id, provider, fingerprint, model, within))
    return made


def _throttles(events: Iterable[Event], *, now: datetime) -> list[Stretch]:
    """Of one place. One that begins while another holds goes on as one; "unblocked" and other blocks end it."""
    made: list[Stretch] = []
    for event in events:
        last = made[-1] if made else None
        holds = last is not None and last.end is not None and last.end > event.at
        if event.kind in {"unblocked", "quota_exhausted", "blocked"} and last is not None and holds:
            made[-1] = Stretch(Kind.THROTTLE, last.began, last.start, event.at, last.cause)
        if event.kind != "throttled" or event.until is None:
            continue
        if last is not None and last.end is not None and last.end >= event.at:
            end = max(last.end, event.until)
            made[-1] = Stretch(Kind.THROTTLE, last.began, last.start, end, last.cause)
        else:
            made.append(Stretch(Kind.THROTTLE, event.at, event.at, event.until, event.reason))
    return [
        one if one.end is None or one.end <= now else Stretch(one.kind, one.began, one.start, None, one.cause)
        for one in made
    ]  # fmt: skip


def _within(one: Stretch, span: Span, now: datetime) -> Stretch | None:
    """The part that lies in the span; None: nothing does."""
    if one.start >= span.end or (one.end is not None and one.end <= span.start):
        return None
    end = one.end
    if (end is None and span.end < now) or (end is not None and end > span.end):
        end = span.end
    return Stretch(one.kind, one.began, max(one.start, span.start), end, one.cause, one.by)
