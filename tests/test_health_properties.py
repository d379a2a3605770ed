"""Whatever happens, and in whatever order: what never may be true of a provider's health."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from providers import health
from providers.contract import FailureClass
from providers.health import Block, Cause, Dimension, Gate, Health, Outcome, Probe, Read, Tally
from providers.word import Phrase, Word, changes, stored, word

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASKS = [uuid.UUID(int=n) for n in range(1, 6)]

dimensions = st.sampled_from(list(Dimension))
waits = st.none() | st.floats(allow_nan=True, allow_infinity=True)
spreads = st.floats(min_value=0, max_value=1, exclude_max=True)
moments = st.floats(min_value=0, max_value=3000).map(lambda s: NOW + timedelta(seconds=s))


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, Any]:
    """One thing that may happen to a provider, with the seconds that pass before it."""
    kind = draw(
        st.sampled_from(
            ["outcomes", "block", "key", "read", "take", "probe", "staff", "unblock", "pause", "try_now"]
        )
    )  # fmt: skip
    detail: Any = None
    match kind:
        case "outcomes":
            detail = (
                draw(st.lists(st.tuples(dimensions, st.booleans(), moments), max_size=12)),
                draw(st.tuples(st.integers(0, 40), st.integers(0, 40))),
            )
        case "block":
            detail = (
                draw(st.sampled_from([Block.QUOTA, Block.THROTTLED])),
                draw(waits),
                draw(spreads),
            )
        case "read":
            detail = draw(st.sampled_from(list(Read)))
        case "take":
            detail = draw(st.sampled_from(TASKS)), draw(st.floats(0, 400))
        case "probe":
            detail = draw(st.sampled_from(list(Probe)))
        case "staff":
            detail = draw(moments)
    return kind, detail


def step(one: Health, kind: str, detail: Any, now: datetime) -> Health:
    match kind, detail:
        case "outcomes", (list() as told, (good, bad)):
            outcomes = [
                Outcome(dimension=dimension, good=fine, at=at, sent_at=at, reason="x")
                for dimension, fine, at in told
            ]
            tallies = {dimension: Tally(good, bad) for dimension in Dimension}
            return health.after(one, outcomes, tallies=tallies, now=now)
        case "block", (Block() as block, wait_s, float() as spread):
            return health.block(one, kind=block, wait_s=wait_s, now=now, spread=spread, reason="r")
        case "key", _:
            return health.key_rejected(one, now=now, reason="key")
        case "read", Read() as read:
            return health.after_free_read(one, read, now=now)
        case "take", (uuid.UUID() as task_id, float() as lease_s):
            until = now + timedelta(seconds=lease_s)
            return health.take_probe(one, task_id=task_id, until=until, now=now) or one
        case "probe", Probe() as probe:
            return health.after_probe(one, probe, now=now)
        case "staff", datetime() as until:
            return health.block_by_staff(one, until=until, reason="s", now=now)
        case "unblock", _:
            return health.unblock(one)
        case "pause", _:
            return replace(one, paused=not one.paused)
        case _:
            return health.try_now(one, now=now)


stories = st.lists(st.tuples(steps(), st.floats(0, 200)), max_size=40)


def told(
    story: list[tuple[tuple[str, Any], float]],
) -> list[tuple[Health, Health, datetime, str]]:
    """(before, after, when, what) of each step."""
    one, now, found = Health(since=NOW), NOW, []
    for (kind, detail), passed in story:
        now += timedelta(seconds=passed)
        new = step(one, kind, detail, now)
        found.append((one, new, now, kind))
        one = new
    return found


@given(stories)
def test_times_are_never_set_in_the_past(story: list[tuple[tuple[str, Any], float]]) -> None:
    for old, new, now, kind in told(story):
        if new.next_try_at != old.next_try_at and new.next_try_at is not None:
            assert new.next_try_at >= now
        if new.blocked_until != old.blocked_until and new.blocked_until and kind == "block":
            assert new.blocked_until >= now
            assert new.blocked_until <= now + timedelta(seconds=health.BLOCK_MOST_S + 2)
        if new.probe_until != old.probe_until and new.probe_until is not None:
            assert new.probe_until > now


@given(stories)
def test_the_columns_agree_with_the_gate(story: list[tuple[tuple[str, Any], float]]) -> None:
    for _, one, now, _ in told(story):
        assert (one.gate is Gate.CLOSED) == (one.opened_at is None)
        assert (one.gate is Gate.OPEN) == (one.next_try_at is not None)
        assert (one.gate is Gate.CLOSED) == (one.cause is Cause.NONE)
        assert (one.probe_id is None) == (one.probe_until is None)
        assert one.probe_id is None or one.gate is Gate.HALF_OPEN
        assert health.OPEN_FIRST_S <= one.open_s <= health.OPEN_MOST_S or one.gate is Gate.CLOSED
        assert one.ramp is None or 1 <= one.ramp < health.RAMP_END
        shut = word(one, now=now)
        assert (shut.word is Word.DOWN) == (one.gate is not Gate.CLOSED)
        assert shut.until is None or shut.until > now
        if shut.phrase in {Phrase.AVAILABLE, Phrase.RAMPING}:
            assert stored(one, now=now) == "available"
            assert health.may_send(one, unanswered=0, now=now) != 0
        elif shut.phrase is not Phrase.NEXT_IS_PROBE:
            assert health.may_send(one, unanswered=0, now=now) == 0
            assert stored(one, now=now) != "available"


@given(stories)
def test_only_a_good_probe_or_a_keys_good_read_closes_it(
    story: list[tuple[tuple[str, Any], float]],
) -> None:
    for old, new, now, kind in told(story):
        if old.gate is not Gate.CLOSED and new.gate is Gate.CLOSED:
            assert (kind == "probe" and old.probe_id is not None) or (
                kind == "read" and old.cause is Cause.KEY
            )
            assert new.closed_at == now
        if old.gate is Gate.OPEN and new.gate is Gate.HALF_OPEN:
            assert kind == "read"
            assert old.next_try_at is not None
            assert old.next_try_at <= now


@given(stories)
def test_there_is_never_a_second_probe(story: list[tuple[tuple[str, Any], float]]) -> None:
    for old, new, now, kind in told(story):
        if old.probe_id is not None and new.probe_id is not None:
            assert old.probe_id == new.probe_id
        if new.probe_id is not None:
            others = [one for one in TASKS if one != new.probe_id]
            assert not any(health.may_arm(new, task_id=one, now=now) for one in others)
            assert health.may_send(new, unanswered=0, now=now) == 0
        if old.probe_id != new.probe_id and new.probe_id is not None:
            assert kind == "take"


@given(stories)
def test_what_did_not_change_is_no_event(story: list[tuple[tuple[str, Any], float]]) -> None:
    for old, new, now, _ in told(story):
        assert changes(new, new, now=now) == []
        found = [kind for kind, _ in changes(old, new, now=now)]
        assert len(found) == len(set(found))
        shown_old, shown_new = word(old, now=now), word(new, now=now)
        if shown_old.word is not shown_new.word:
            assert found
        if (old.gate, new.gate).count(Gate.CLOSED) == 1:
            assert {"opened", "key_rejected", "closed"} & set(found)


@given(dimensions, st.integers(1, 40), st.integers(0, 4))
def test_it_opens_at_the_fifth_failure_in_a_row_however_they_come(
    dimension: Dimension, batch: int, goods_before: int
) -> None:
    row = [True] * goods_before + [False] * 5
    one = Health()
    for start in range(0, len(row), batch):
        outcomes = [
            Outcome(dimension=dimension, good=good, at=NOW + timedelta(seconds=n))
            for n, good in enumerate(row[start : start + batch], start)
        ]
        assert one.gate is Gate.CLOSED
        one = health.after(one, outcomes, tallies={}, now=NOW)
    assert one.gate is Gate.OPEN


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_share_opens_it_exactly_where_it_says(good: int, bad: int) -> None:
    opens = good + bad >= 10 and bad * 10 > 3 * (good + bad)
    assert Tally(good, bad).too_bad is opens


@given(st.lists(st.integers(0, 9), max_size=80))
def test_the_ramp_only_grows_and_ends(wins: list[int]) -> None:
    one, before = Health(ramp=1), 1
    for won in wins:
        one = health.ramped(one, won)
        assert one.ramp is None or one.ramp >= before
        assert one.ramp is None or one.ramp_won < one.ramp
        if one.ramp is None:
            break
        before = one.ramp
    assert (one.ramp is None) == (sum(wins) >= 31)


@given(st.lists(st.integers(0, 9), max_size=40))
def test_the_ramp_is_the_same_one_by_one_and_together(wins: list[int]) -> None:
    one = Health(ramp=1)
    for won in wins:
        one = health.ramped(one, won)
    together = health.ramped(Health(ramp=1), sum(wins))
    assert (one.ramp, one.ramp_won) == (together.ramp, together.ramp_won)


@given(waits, spreads, st.sampled_from([Block.QUOTA, Block.THROTTLED]), st.none() | moments)
def test_jitter_only_adds_and_blocks_only_grow(
    wait_s: float | None, spread: float, kind: Block, old: datetime | None
) -> None:
    plain = health.blocked_until(old, kind=kind, wait_s=wait_s, now=NOW, spread=0)
    spread_out = health.blocked_until(old, kind=kind, wait_s=wait_s, now=NOW, spread=spread)
    assert plain <= spread_out <= plain + timedelta(seconds=health.JITTER_MOST_S)
    assert plain >= NOW
    assert old is None or plain >= old


@given(st.sampled_from(list(FailureClass)), st.booleans())
def test_our_own_faults_and_refusals_never_count_as_failures(
    failure: FailureClass, ours: bool
) -> None:
    bad = health.counted(failure, ours=ours) is False
    assert bad == (not ours and failure in {"unsent", "down", "unknown"})
