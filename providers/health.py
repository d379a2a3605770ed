"""Whether an account, or one of its models, may be sent to now. Pure: values in, values out, no clock, no chance.

`Health` is one row of ProviderState as a value. Four things hold sends back, each by itself: a pause by staff, a block
with an end (throttled, quota, staff), the breaker, and the ramp after either. Nothing here ever ends an outage by time:
time makes a free read due, the read makes the breaker half-open, and the success of the one probe job closes it (only a
rejected key is ended by the read itself).

The breaker counts in three dimensions, each with its own goods and bads, because every job is accepted before it fails:
counted together, accepted sends would hide that no job succeeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from providers.contract import FailureClass

WINDOW_S = 60.0
LEAST_COUNTED = 10
MOST_BAD_SHARE = 0.3
BAD_IN_A_ROW = 5
# A send without an answer that is no older may still go well. A refused connection is told at once, an accepted job later: of many
# sends that go out together, the failures are known first.
YOUNG_S = 5.0
OPEN_FIRST_S = 60.0
OPEN_MOST_S = 900.0
# The ramp allows 1, 2, 4, 8, 16 unanswered sends; from here on none is counted.
RAMP_END = 32
UNTOLD_QUOTA_S = 6 * 3600.0
UNTOLD_RATE_S = 1.0
BLOCK_MOST_S = 32 * 86_400.0
JITTER_SHARE = 0.1
JITTER_MOST_S = 2.0


class Dimension(StrEnum):
    SEND = "send"
    VERDICT = "verdict"
    POLL = "poll"


class Gate(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Cause(StrEnum):
    """Why the breaker is not closed."""

    NONE = ""
    FAILURES = "failures"
    KEY = "key"


class Block(StrEnum):
    """What a block with an end is for."""

    NONE = ""
    THROTTLED = "throttled"
    QUOTA = "quota_exhausted"
    STAFF = "blocked"


class Read(StrEnum):
    """What a free read (balance, key, status) told. NONE: the provider has no such call."""

    GOOD = "good"
    BAD = "bad"
    REJECTED = "rejected"
    NONE = "none"


class Probe(StrEnum):
    """How the probe job stands. NEUTRAL says nothing about the provider."""

    RUNNING = "running"
    GOOD = "good"
    BAD = "bad"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One counted outcome. `sent_at` is when its send was armed; None: it says nothing about a send (a poll)."""

    dimension: Dimension
    good: bool
    at: datetime
    sent_at: datetime | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counted outcomes of one dimension in the last WINDOW_S, those just learned included. `unanswered`: sends of the last
    YOUNG_S of which nothing is known yet."""

    good: int = 0
    bad: int = 0
    unanswered: int = 0

    @property
    def too_bad(self) -> bool:
        counted = self.good + self.bad
        return counted >= LEAST_COUNTED and self._stays_too_much(self.bad, of=counted)

    def all_bad(self, in_a_row: int) -> bool:
        """Whether so many failures, one after the other, are not just the first to be told."""
        return in_a_row >= BAD_IN_A_ROW and self._stays_too_much(in_a_row, of=in_a_row)

    def _stays_too_much(self, bad: int, *, of: int) -> bool:
        """Also if all that is not answered yet goes well."""
        return bad > MOST_BAD_SHARE * (of + self.unanswered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What is known of an account or a model. `ramp` None: no ramp. `*_failed`: counted failures in a row."""

    paused: bool = False
    block: Block = Block.NONE
    blocked_until: datetime | None = None
    gate: Gate = Gate.CLOSED
    cause: Cause = Cause.NONE
    opened_at: datetime | None = None
    next_try_at: datetime | None = None
    closed_at: datetime | None = None
    open_s: float = 0.0
    sends_failed: int = 0
    verdicts_failed: int = 0
    polls_failed: int = 0
    ramp: int | None = None
    ramp_won: int = 0
    probe_id: UUID | None = None
    probe_until: datetime | None = None
    since: datetime | None = None
    reason: str = ""

    def blocked(self, now: datetime) -> bool:
        return self.blocked_until is not None and self.blocked_until > now

    @property
    def ramp_from(self) -> datetime | None:
        """Sends from before it neither fill the ramp nor move it on."""
        return max(filter(None, (self.closed_at, self.blocked_until)), default=None)

    @property
    def plain(self) -> bool:
        """A good outcome changes nothing: nothing need be written."""
        failed = self.sends_failed or self.verdicts_failed or self.polls_failed
        return self.gate is Gate.CLOSED and not failed and self.ramp is None


# --- what counts ------------------------------------------------------------------------------------------------------

_BAD = frozenset({FailureClass.UNSENT, FailureClass.DOWN, FailureClass.UNKNOWN})


def counted(failure: FailureClass | None, *, ours: bool = False) -> bool | None:
    """True: good. False: a failure of the provider. None: not counted (a refusal, a quota, our own fault).

    `failure` None: it went well.
    """
    if ours:
        return None
    if failure is None:
        return True
    return False if failure in _BAD else None


def after(
    health: Health,
    outcomes: Iterable[Outcome],
    *,
    tallies: Mapping[Dimension, Tally],
    now: datetime,
) -> Health:
    """The same with `outcomes` counted; the breaker may open, the ramp may move on. Where it is not closed nothing counts
    but the probe (`after_probe`). `tallies` are looked at only for dimensions in which `outcomes` holds a failure."""
    if health.gate is not Gate.CLOSED:
        return health
    row = {
        Dimension.SEND: health.sends_failed,
        Dimension.VERDICT: health.verdicts_failed,
        Dimension.POLL: health.polls_failed,
    }
    won, failed, reason = 0, set(), ""
    for outcome in sorted(outcomes, key=lambda one: one.at):
        if _from_before(outcome, health.closed_at):
            continue
        if outcome.good:
            row[outcome.dimension] = 0
            won += outcome.dimension is Dimension.SEND and not _from_before(
                outcome, health.ramp_from
            )
            continue
        row[outcome.dimension] += 1
        failed.add(outcome.dimension)
        reason = outcome.reason
        if tallies.get(outcome.dimension, Tally()).all_bad(row[outcome.dimension]):
            return opened(health, cause=Cause.FAILURES, now=now, reason=reason)
    if any(tallies.get(dimension, Tally()).too_bad for dimension in failed):
        return opened(health, cause=Cause.FAILURES, now=now, reason=reason)
    health = replace(
        health,
        sends_failed=row[Dimension.SEND],
        verdicts_failed=row[Dimension.VERDICT],
        polls_failed=row[Dimension.POLL],
    )
    return ramped(health, won)


def _from_before(outcome: Outcome, moment: datetime | None) -> bool:
    """An outcome of a send armed before the breaker closed, or before a block ended, tells of then, not of now."""
    sent_at = outcome.at if outcome.sent_at is None else outcome.sent_at
    return moment is not None and sent_at < moment


# --- the breaker ------------------------------------------------------------------------------------------------------


def opened(health: Health, *, cause: Cause, now: datetime, reason: str) -> Health:
    """Open, or open again: 60 s, then doubling to 15 min until a ramp has been gone through to its end."""
    open_s = min(OPEN_MOST_S, max(OPEN_FIRST_S, 2 * health.open_s))
    return replace(
        health,
        gate=Gate.OPEN,
        cause=cause,
        opened_at=now if health.gate is Gate.CLOSED else health.opened_at,
        next_try_at=now + timedelta(seconds=open_s),
        open_s=open_s,
        sends_failed=0,
        verdicts_failed=0,
        polls_failed=0,
        probe_id=None,
        probe_until=None,
        reason=reason,
    )


def closed(health: Health, *, now: datetime) -> Health:
    return replace(
        health,
        gate=Gate.CLOSED,
        cause=Cause.NONE,
        opened_at=None,
        next_try_at=None,
        closed_at=now,
        ramp=1,
        ramp_won=0,
        probe_id=None,
        probe_until=None,
        reason="",
    )


def key_rejected(health: Health, *, now: datetime, reason: str) -> Health:
    """One refusal of the key is enough. Further ones, of sends that were under way, put nothing off."""
    if health.gate is not Gate.OPEN:
        return opened(health, cause=Cause.KEY, now=now, reason=reason)
    if health.cause is Cause.KEY:
        return health
    return replace(health, cause=Cause.KEY, reason=reason)


def try_now(health: Health, *, now: datetime) -> Health:
    """Staff's "probe now": the read is due at once, whatever the doubling says."""
    if health.gate is not Gate.OPEN or (
        health.next_try_at is not None and health.next_try_at <= now
    ):
        return health
    return replace(health, next_try_at=now)


def after_free_read(health: Health, read: Read, *, now: datetime, reason: str = "") -> Health:
    """A due free read. A good one, or none to be had, makes it half-open; a bad one waits on, twice as long.

    A rejected key is ended by the good read itself. A read that is not due (somebody else's came first) changes nothing.
    """
    due = health.next_try_at is not None and health.next_try_at <= now
    if health.gate is not Gate.OPEN or not due:
        return health
    match read:
        case Read.GOOD if health.cause is Cause.KEY:
            return closed(health, now=now)
        case Read.GOOD | Read.NONE:
            return replace(health, gate=Gate.HALF_OPEN, next_try_at=None)
        case Read.REJECTED:
            return opened(health, cause=Cause.KEY, now=now, reason=reason or health.reason)
        case Read.BAD:
            return opened(health, cause=health.cause, now=now, reason=reason or health.reason)


# --- the one probe ----------------------------------------------------------------------------------------------------


def take_probe(health: Health, *, task_id: UUID, until: datetime, now: datetime) -> Health | None:
    """With the lease of the probe in this task's name; None: it is not to be had."""
    if health.gate is not Gate.HALF_OPEN or health.probe_id is not None or until <= now:
        return None
    if health.paused or health.blocked(now):
        return None
    return replace(health, probe_id=task_id, probe_until=until)


def probe_lasts(health: Health, *, until: datetime) -> Health:
    """The provider has accepted the probe: its job may take until then. Never shorter than before."""
    if health.probe_until is None or health.probe_until >= until:
        return health
    return replace(health, probe_until=until)


def probe_result(
    *, state: str, failure: FailureClass | None, ours: bool, has_result: bool | None
) -> Probe:
    """What a task in `state` (of states.TaskState) tells as the probe. `has_result` None: no file yet, one may come."""
    match state:
        case "stored":
            return Probe.GOOD
        case "completed" if has_result is not None:
            return Probe.GOOD if has_result else Probe.BAD
        case "failed" | "refused" | "unknown" | "unsent":
            bad = counted(failure or FailureClass.UNKNOWN, ours=ours) is False
            return Probe.BAD if bad else Probe.NEUTRAL
        case _:
            return Probe.RUNNING


def after_probe(health: Health, probe: Probe, *, now: datetime, reason: str = "") -> Health:
    """The lease's end. One that ran out while RUNNING is a failed probe; a NEUTRAL one goes back, the next job probes."""
    if health.gate is not Gate.HALF_OPEN or health.probe_id is None:
        return health
    over = health.probe_until is not None and health.probe_until <= now
    if probe is Probe.RUNNING and not over:
        return health
    if probe is Probe.GOOD:
        return closed(health, now=now)
    if probe is Probe.NEUTRAL:
        return replace(health, probe_id=None, probe_until=None)
    return opened(health, cause=health.cause, now=now, reason=reason or health.reason)


# --- the ramp ---------------------------------------------------------------------------------------------------------


def ramped(health: Health, won: int) -> Health:
    """After `won` more answered sends: the limit doubles once as many succeeded as it allows."""
    if health.ramp is None or won <= 0:
        return health
    ramp, won = health.ramp, health.ramp_won + won
    while won >= ramp < RAMP_END:
        won -= ramp
        ramp *= 2
    if ramp >= RAMP_END:
        return replace(health, ramp=None, ramp_won=0, open_s=0.0)
    return replace(health, ramp=ramp, ramp_won=won)


# --- blocks -----------------------------------------------------------------------------------------------------------


def blocked_until(
    old: datetime | None, *, kind: Block, wait_s: float | None, now: datetime, spread: float
) -> datetime:
    """max(old, now + what was told), capped, never in the past. `spread` in [0, 1) draws the jitter, which only adds.

    `wait_s` None, or no number at all: 6 h for a quota, a second for a rate.
    """
    if wait_s is None or not math.isfinite(wait_s):
        wait_s = UNTOLD_QUOTA_S if kind is Block.QUOTA else UNTOLD_RATE_S
    wait_s = min(max(wait_s, 0.0), BLOCK_MOST_S)
    wait_s += min(max(spread, 0.0), 1.0) * min(JITTER_MOST_S, wait_s * JITTER_SHARE)
    new = now + timedelta(seconds=wait_s)
    return new if old is None else max(old, new)


def block(
    health: Health, *, kind: Block, wait_s: float | None, now: datetime, spread: float, reason: str
) -> Health:
    """Blocked by the provider's word. A longer block that stands keeps its end, its kind and its reason.

    Afterwards the ramp starts: those who waited for the same moment don't go out together.
    """
    until = blocked_until(health.blocked_until, kind=kind, wait_s=wait_s, now=now, spread=spread)
    if until == health.blocked_until:
        return health
    return replace(
        health, block=kind, blocked_until=until, reason=_reason(health, reason), ramp=1, ramp_won=0
    )


def block_by_staff(health: Health, *, until: datetime, reason: str, now: datetime) -> Health:
    """Until a moment that staff have chosen; a block of the provider that lasts longer stays."""
    if health.blocked(now) and health.blocked_until is not None and health.blocked_until >= until:
        return health
    return replace(health, block=Block.STAFF, blocked_until=until, reason=_reason(health, reason))


def unblock(health: Health) -> Health:
    if health.blocked_until is None and health.block is Block.NONE:
        return health
    return replace(health, block=Block.NONE, blocked_until=None, reason=_reason(health, ""))


def _reason(health: Health, reason: str) -> str:
    """While the breaker is not closed, its reason is the one people must see."""
    return reason if health.gate is Gate.CLOSED else health.reason


# --- what may be sent -------------------------------------------------------------------------------------------------


def may_send(health: Health, *, unanswered: int, now: datetime) -> int | None:
    """How many more sends may be claimed; None: as many as you like. `unanswered`: intents and sends without an answer
    that were written since `ramp_from`."""
    if health.paused or health.blocked(now) or health.gate is Gate.OPEN:
        return 0
    if health.gate is Gate.HALF_OPEN:
        return 0 if health.probe_id is not None else 1
    return None if health.ramp is None else max(0, health.ramp - unanswered)


def may_arm(health: Health, *, task_id: UUID, now: datetime) -> bool:
    """The last look at a claimed task. Half-open, only the holder of a live lease may go."""
    if health.paused or health.blocked(now) or health.gate is Gate.OPEN:
        return False
    if health.gate is Gate.CLOSED:
        return True
    return (
        health.probe_id == task_id and health.probe_until is not None and health.probe_until > now
    )
