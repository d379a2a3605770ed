"""What people read about a provider: available, quota exhausted or down, the finer phrase, what has changed. Pure.

Admin, command, API and engine all ask `word`; nothing else turns rows into words, so they can't disagree. It reckons at
`now`: a block that has ended reads "available" without any job passing by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from providers.health import Block, Cause, Gate, Health

EXTENDED_S = 60.0  # a block that grows by less is no news
# A full window of an hour or more reads "quota exhausted", a shorter one "throttled".
SHORT_WINDOW_S = 3600


class Word(StrEnum):
    """Three things to tell apart at a glance: go on, wait (nobody need wake up), somebody must look."""

    AVAILABLE = "available"
    QUOTA_EXHAUSTED = "quota_exhausted"
    DOWN = "down"


class Phrase(StrEnum):
    """The finer phrase, in the order in which one hides another."""

    PAUSED = "paused"
    KEY_REJECTED = "key_rejected"  # until: the next free read
    DOWN = "down"  # until: the next try
    CHECKING = "checking"  # the next try is due
    PROBING = "probing"  # one job is on its way to find out
    NEXT_IS_PROBE = "next_is_probe"
    QUOTA_EXHAUSTED = "quota_exhausted"
    BLOCKED = "blocked"  # by staff
    THROTTLED = "throttled"
    RAMPING = "ramping"  # available, starting gently
    AVAILABLE = "available"


_RANK = {phrase: rank for rank, phrase in enumerate(Phrase)}
_OF_BLOCK = {
    Block.QUOTA: Phrase.QUOTA_EXHAUSTED,
    Block.STAFF: Phrase.BLOCKED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much of a limit is used now. `seconds` None: in flight at once. `resets_at`: when there is room again, or (a
    fixed window) when it starts anew; None where that can't be told. A full one's `used` may stop at `most`."""

    account_id: int
    model: str
    seconds: int | None
    most: int
    used: int
    resets_at: datetime | None = None

    @property
    def left(self) -> int:
        return max(0, self.most - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """`until` None: no time can be told. `since` None: as long as we know."""

    word: Word
    phrase: Phrase
    since: datetime | None = None
    until: datetime | None = None
    reason: str = ""


def word(*healths: Health, now: datetime, usage: Iterable[Usage] = ()) -> Told:
    """What holds for all of them together: an account alone, or an account and one of its models, with their windows.

    The gravest word; the phrase that hides the others; `until` the latest end of what holds sends back.
    """
    all_told = [_one(health, now) for health in healths]
    all_told += [_full(one) for one in usage if one.left == 0 and one.seconds is not None]
    if not all_told:
        return Told(word=Word.AVAILABLE, phrase=Phrase.AVAILABLE)
    shown = min(all_told, key=lambda told: _RANK[told.phrase])
    gravest = max((told.word for told in all_told), key=list(Word).index)
    until = shown.until
    if shown.phrase in _TIMED:
        ends = [told.until for told in all_told if told.phrase in _TIMED]
        until = None if None in ends else max(filter(None, ends), default=None)
    return Told(
        word=gravest, phrase=shown.phrase, since=shown.since, until=until, reason=shown.reason
    )


_TIMED = frozenset({Phrase.QUOTA_EXHAUSTED, Phrase.BLOCKED, Phrase.THROTTLED})


def _one(health: Health, now: datetime) -> Told:
    blocked = health.blocked(now)
    what = Word.AVAILABLE
    if health.gate is not Gate.CLOSED:
        what = Word.DOWN
    elif blocked and health.block is Block.QUOTA:
        what = Word.QUOTA_EXHAUSTED
    phrase, until = _phrase(health, now=now, blocked=blocked)
    quiet = phrase in {Phrase.AVAILABLE, Phrase.RAMPING}
    since = health.since
    if quiet and health.blocked_until is not None and since is not None:
        since = max(
            since, health.blocked_until
        )  # the block ended by itself; nobody wrote that down
    return Told(
        word=what, phrase=phrase, since=since, until=until, reason="" if quiet else health.reason
    )


def _phrase(health: Health, *, now: datetime, blocked: bool) -> tuple[Phrase, datetime | None]:
    if health.paused:
        return Phrase.PAUSED, None
    if health.gate is Gate.OPEN:
        if health.next_try_at is None or health.next_try_at <= now:
            return Phrase.CHECKING, None
        key = health.cause is Cause.KEY
        return Phrase.KEY_REJECTED if key else Phrase.DOWN, health.next_try_at
    if health.gate is Gate.HALF_OPEN:
        return Phrase.NEXT_IS_PROBE if health.probe_id is None else Phrase.PROBING, None
    if blocked:
        return _OF_BLOCK.get(health.block, Phrase.THROTTLED), health.blocked_until
    return Phrase.AVAILABLE if health.ramp is None else Phrase.RAMPING, None


def _full(usage: Usage) -> Told:
    if (usage.seconds or 0) >= SHORT_WINDOW_S:
        return Told(word=Word.QUOTA_EXHAUSTED, phrase=Phrase.QUOTA_EXHAUSTED, until=usage.resets_at)
    return Told(word=Word.AVAILABLE, phrase=Phrase.THROTTLED, until=usage.resets_at)


def stored(health: Health, *, now: datetime) -> str:
    """The `state` column of ProviderState: the phrase in the five words that rows are filtered by."""
    if health.paused:
        return "paused"
    if health.gate is not Gate.CLOSED:
        return "down"
    return str(health.block) if health.blocked(now) and health.block else "available"


# --- what changed -----------------------------------------------------------------------------------------------------


def changes(old: Health, new: Health, *, now: datetime) -> list[tuple[str, dict[str, Any]]]:
    """What is worth an event, as (kind, data). Counters, the ramp and small growth of a block are not."""
    told: list[tuple[str, dict[str, Any]]] = []
    if old.paused != new.paused:
        told.append(("paused" if new.paused else "resumed", {}))
    told += _gate_changes(old, new, now)
    if new.blocked_until is not None and new.blocked(now):
        before = old.blocked_until if old.blocked(now) and old.block is new.block else None
        if before is None or new.blocked_until - before > timedelta(seconds=EXTENDED_S):
            told.append((str(new.block), {"until": new.blocked_until.isoformat()}))
    elif old.blocked(now):
        told.append(("unblocked", {}))
    return [(kind, data | ({"reason": new.reason} if new.reason else {})) for kind, data in told]


def _gate_changes(old: Health, new: Health, now: datetime) -> list[tuple[str, dict[str, Any]]]:
    match new.gate:
        case Gate.OPEN if (
            old.gate is not Gate.OPEN
            or (old.cause, old.open_s) != (new.cause, new.open_s)
            or (old.next_try_at != new.next_try_at)
        ):
            newly = old.gate is Gate.CLOSED
            kind = "opened" if newly else "still_down"
            if new.cause is Cause.KEY and (newly or old.cause is not Cause.KEY):
                kind = "key_rejected"
            next_try = new.next_try_at.isoformat() if new.next_try_at else None
            return [(kind, {"next_try_at": next_try})]
        case Gate.HALF_OPEN if old.gate is not Gate.HALF_OPEN:
            return [("half_open", {})]
        case Gate.HALF_OPEN if old.probe_id != new.probe_id:
            if new.probe_id is None:
                return [("probe_returned", {"task": str(old.probe_id)})]
            return [("probe_taken", {"task": str(new.probe_id)})]
        case Gate.CLOSED if old.gate is not Gate.CLOSED:
            lasted = (now - old.opened_at).total_seconds() if old.opened_at else None
            return [("closed", {"lasted_s": lasted, "cause": str(old.cause)})]
        case _:
            return []
