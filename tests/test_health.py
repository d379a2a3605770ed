"""Breaker, probe, ramp, blocks and words: each rule by example."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from providers import health
from providers.contract import FailureClass
from providers.health import Block, Cause, Dimension, Gate, Health, Outcome, Probe, Read, Tally
from providers.word import Phrase, Told, Usage, Word, changes, stored, word

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TASK = uuid.UUID(int=7)
SEND, VERDICT, POLL = Dimension.SEND, Dimension.VERDICT, Dimension.POLL


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def outcomes(word_of: str, dimension: Dimension = SEND, *, start: float = 0) -> list[Outcome]:
    """ "gbb": good, bad, bad, a second apart, each sent at its own moment."""
    return [
        Outcome(
            dimension=dimension, good=letter == "g", at=at(start + n), sent_at=at(start + n),
            reason="HTTP 503" if letter == "b" else "",
        )
        for n, letter in enumerate(word_of)
    ]  # fmt: skip


def after(
    one: Health, word_of: str, dimension: Dimension = SEND, *, tally: tuple[int, int] = (0, 0)
) -> Health:
    return health.after(
        one, outcomes(word_of, dimension), tallies={dimension: Tally(*tally)}, now=at(10)
    )


def down(open_s: float = 60, **values: Any) -> Health:
    base = Health(
        gate=Gate.OPEN,
        cause=Cause.FAILURES,
        opened_at=NOW,
        next_try_at=at(open_s),
        open_s=open_s,
        reason="HTTP 503",
    )
    return replace(base, **values)


def half_open(**values: Any) -> Health:
    return down(gate=Gate.HALF_OPEN, next_try_at=None, **values)


def probing(until: datetime | None = None) -> Health:
    taken = health.take_probe(half_open(), task_id=TASK, until=until or at(200), now=at(60))
    assert taken is not None
    return taken


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "counts"),
    [
        (None, True),
        (FailureClass.UNSENT, False),
        (FailureClass.DOWN, False),
        (FailureClass.UNKNOWN, False),
        (FailureClass.RATE_LIMITED, None),
        (FailureClass.QUOTA_EXHAUSTED, None),
        (FailureClass.UNAUTHORIZED, None),
        (FailureClass.REJECTED, None),
    ],
)
def test_outages_count_and_what_a_living_provider_says_does_not(
    failure: FailureClass | None, counts: bool | None
) -> None:
    assert health.counted(failure) is counts


@pytest.mark.condition("R72")
@pytest.mark.parametrize("failure", [None, *FailureClass])
def test_our_own_faults_never_count(failure: FailureClass | None) -> None:
    """R72: six calls with a limit of their own of 100 ms benched a deployment that everybody shared."""
    assert health.counted(failure, ours=True) is None


# --- opening ----------------------------------------------------------------------------------------------------------


@pytest.mark.condition("R73")
@pytest.mark.parametrize("dimension", list(Dimension))
def test_five_failures_in_a_row_open_it_even_alone(dimension: Dimension) -> None:
    """R73: 25 failures one after another left the target in rotation."""
    four = after(Health(), "bbbb", dimension)
    assert four.gate is Gate.CLOSED
    five = after(four, "b", dimension)
    assert (five.gate, five.cause, five.reason) == (Gate.OPEN, Cause.FAILURES, "HTTP 503")
    assert (five.opened_at, five.next_try_at) == (at(10), at(70))


def test_a_success_ends_the_row() -> None:
    assert after(Health(), "bbbbgbbbb").gate is Gate.CLOSED
    assert after(Health(), "bbbbgbbbb").sends_failed == 4
    assert after(after(Health(), "bbbb"), "g") == Health()


def test_a_row_of_failed_jobs_is_not_broken_by_the_sends_that_were_accepted_in_between() -> None:
    one = Health()
    for _ in range(4):
        one = after(after(one, "g", SEND), "b", VERDICT)
    assert (one.gate, one.verdicts_failed) == (Gate.CLOSED, 4)
    assert after(after(one, "g", SEND), "b", VERDICT).gate is Gate.OPEN


@pytest.mark.parametrize(
    ("good", "bad", "opens"),
    [(6, 4, True), (7, 3, False), (5, 4, False), (0, 9, False), (0, 10, True), (70, 30, False), (69, 31, True)],
)  # fmt: skip
def test_a_share_above_three_in_ten_opens_it_from_ten_outcomes_on(
    good: int, bad: int, opens: bool
) -> None:
    assert (after(Health(), "b", tally=(good, bad)).gate is Gate.OPEN) is opens


@pytest.mark.condition("R69")
def test_a_busy_provider_is_judged_by_the_share_of_its_failures() -> None:
    """R69: five failures in five seconds, at 840 calls a second, opened it for every tenant."""
    assert after(Health(), "bgbgbgbgbg", tally=(50_000, 71)).gate is Gate.CLOSED


def test_a_share_that_stands_does_not_open_it_at_a_success() -> None:
    assert after(Health(), "g", tally=(0, 50)).gate is Gate.CLOSED


@pytest.mark.parametrize(
    ("unanswered", "gate"), [(0, Gate.OPEN), (37, Gate.OPEN), (38, Gate.CLOSED)]
)
def test_failures_wait_for_what_went_out_with_them(unanswered: int, gate: Gate) -> None:
    """A refused connection is told before an accepted job: the first answers of many sends are not their share."""
    counted = Tally(good=0, bad=16, unanswered=unanswered)
    told = outcomes("b" * 16)
    assert health.after(Health(), told, tallies={SEND: counted}, now=at(20)).gate is gate


@pytest.mark.parametrize(
    ("unanswered", "gate"), [(0, Gate.OPEN), (11, Gate.OPEN), (12, Gate.CLOSED)]
)
def test_five_in_a_row_are_the_first_to_be_told_while_many_are_under_way(
    unanswered: int, gate: Gate
) -> None:
    counted = Tally(good=90, bad=5, unanswered=unanswered)
    assert (
        health.after(Health(), outcomes("bbbbb"), tallies={SEND: counted}, now=at(9)).gate is gate
    )


def test_successes_of_a_healthy_provider_change_nothing() -> None:
    assert after(Health(), "ggg") == Health()
    assert Health().plain


def test_outcomes_of_sends_from_before_the_outage_ended_tell_nothing() -> None:
    one = Health(closed_at=at(100))
    assert health.after(one, outcomes("bbbbb"), tallies={SEND: Tally(0, 0)}, now=at(101)) == one
    later = outcomes("bbbbb", start=100)
    assert health.after(one, later, tallies={}, now=at(110)).gate is Gate.OPEN


@pytest.mark.condition("R70")
@pytest.mark.parametrize("gate", ["open", "half_open", "probing"])
def test_nothing_but_the_probe_closes_it(gate: str) -> None:
    """R70: a cooldown of 60 s was configured; the circuit closed within 3 s, on whatever call succeeded first."""
    one = {"open": down(), "half_open": half_open(), "probing": probing()}[gate]
    assert after(one, "gggggggggg", tally=(50, 0)) == one
    assert health.after_probe(down(), Probe.GOOD, now=at(1)) == down()
    assert health.after_probe(half_open(), Probe.GOOD, now=at(1)) == half_open()


def test_each_opening_of_an_episode_lasts_twice_as_long_up_to_a_quarter_of_an_hour() -> None:
    one, lasted = after(Health(), "bbbbb"), []
    for _ in range(6):
        assert one.next_try_at is not None
        lasted.append(one.open_s)
        one = health.after_free_read(one, Read.BAD, now=one.next_try_at)
    assert lasted == [60, 120, 240, 480, 900, 900]
    assert one.opened_at == at(10)


def test_the_doubling_is_forgotten_only_once_the_ramp_is_through() -> None:
    up = health.closed(down(open_s=240), now=at(300))
    again = health.opened(up, cause=Cause.FAILURES, now=at(310), reason="")
    assert (again.open_s, again.opened_at) == (480, at(310))
    through = health.ramped(up, 31)
    assert (through.ramp, through.open_s) == (None, 0)
    assert health.opened(through, cause=Cause.FAILURES, now=at(400), reason="").open_s == 60


# --- free reads -------------------------------------------------------------------------------------------------------


def test_a_good_free_read_makes_it_half_open_and_the_next_job_is_the_probe() -> None:
    one = health.after_free_read(down(), Read.GOOD, now=at(60))
    assert (one.gate, one.opened_at, one.next_try_at) == (Gate.HALF_OPEN, NOW, None)
    assert health.may_send(one, unanswered=0, now=at(60)) == 1
    assert word(one, now=at(60)).phrase is Phrase.NEXT_IS_PROBE


def test_where_there_is_no_free_read_the_probe_comes_at_once() -> None:
    assert health.after_free_read(down(), Read.NONE, now=at(60)).gate is Gate.HALF_OPEN


def test_a_read_that_is_not_due_changes_nothing() -> None:
    for read in Read:
        assert health.after_free_read(down(), read, now=at(59)) == down()
        assert health.after_free_read(half_open(), read, now=at(60)) == half_open()
        assert health.after_free_read(Health(), read, now=at(60)) == Health()


def test_time_alone_ends_no_outage() -> None:
    years = at(3e8)
    assert health.may_send(down(), unanswered=0, now=years) == 0
    assert word(down(), now=years).word is Word.DOWN
    assert health.may_send(half_open(), unanswered=0, now=years) == 1
    assert word(half_open(), now=years).word is Word.DOWN


def test_a_rejected_key_is_down_at_once_and_ended_by_the_read_itself() -> None:
    one = health.key_rejected(Health(), now=NOW, reason="HTTP 401")
    assert (one.gate, one.cause, one.next_try_at) == (Gate.OPEN, Cause.KEY, at(60))
    assert word(one, now=NOW).phrase is Phrase.KEY_REJECTED
    good = health.after_free_read(one, Read.GOOD, now=at(60))
    assert (good.gate, good.closed_at, good.cause, good.ramp) == (
        Gate.CLOSED,
        at(60),
        Cause.NONE,
        1,
    )
    assert health.after_free_read(one, Read.NONE, now=at(60)).gate is Gate.HALF_OPEN


def test_the_key_refused_by_many_sends_under_way_puts_nothing_off() -> None:
    one = health.key_rejected(Health(), now=NOW, reason="HTTP 401")
    assert health.key_rejected(one, now=at(30), reason="HTTP 401, again") == one
    turned = health.key_rejected(down(), now=at(30), reason="HTTP 401")
    assert (turned.cause, turned.next_try_at) == (Cause.KEY, at(60))


def test_an_outage_whose_read_finds_the_key_rejected_becomes_that() -> None:
    one = health.after_free_read(down(), Read.REJECTED, now=at(60), reason="HTTP 401")
    assert (one.gate, one.cause, one.reason, one.open_s) == (Gate.OPEN, Cause.KEY, "HTTP 401", 120)


def test_staff_may_have_it_tried_at_once() -> None:
    one = health.try_now(down(open_s=900), now=at(5))
    assert health.after_free_read(one, Read.GOOD, now=at(5)).gate is Gate.HALF_OPEN
    assert health.try_now(one, now=at(6)) == one
    assert health.try_now(Health(), now=at(6)) == Health()


# --- the probe --------------------------------------------------------------------------------------------------------


def test_one_probe_and_no_second() -> None:
    one = probing()
    assert (one.probe_id, one.probe_until) == (TASK, at(200))
    assert health.may_send(one, unanswered=0, now=at(61)) == 0
    assert health.take_probe(one, task_id=uuid.uuid4(), until=at(300), now=at(61)) is None


@pytest.mark.parametrize(
    "one",
    [Health(), down(), half_open(paused=True), half_open(blocked_until=at(61))],
    ids=["closed", "open", "paused", "blocked"],
)
def test_no_probe_is_to_be_had(one: Health) -> None:
    assert health.take_probe(one, task_id=TASK, until=at(200), now=at(60)) is None


def test_only_the_holder_of_a_live_lease_is_armed() -> None:
    one = probing()
    assert health.may_arm(one, task_id=TASK, now=at(199))
    assert not health.may_arm(one, task_id=uuid.uuid4(), now=at(199))
    assert not health.may_arm(one, task_id=TASK, now=at(200))
    assert not health.may_arm(half_open(), task_id=TASK, now=at(60))
    assert not health.may_arm(down(), task_id=TASK, now=at(600))
    assert health.may_arm(Health(ramp=1), task_id=TASK, now=NOW)


def test_a_good_probe_closes_it_and_the_ramp_begins() -> None:
    one = health.after_probe(probing(), Probe.GOOD, now=at(90))
    assert (one.gate, one.closed_at, one.ramp, one.probe_id) == (Gate.CLOSED, at(90), 1, None)
    assert (one.opened_at, one.next_try_at, one.reason) == (None, None, "")


def test_a_failed_probe_opens_it_for_twice_as_long() -> None:
    one = health.after_probe(probing(), Probe.BAD, now=at(90), reason="HTTP 500")
    assert (one.gate, one.next_try_at, one.opened_at) == (Gate.OPEN, at(90 + 120), NOW)
    assert (one.probe_id, one.reason) == (None, "HTTP 500")


@pytest.mark.condition("R61")
def test_a_probe_that_says_nothing_gives_its_lease_back() -> None:
    """R61: the probe ended in an exception that the breaker ignored, and it stayed half-open for ever."""
    one = health.after_probe(probing(), Probe.NEUTRAL, now=at(90))
    assert one == half_open()
    assert health.may_send(one, unanswered=0, now=at(90)) == 1


@pytest.mark.condition("R63")
def test_a_probe_that_never_returns_has_failed_when_its_lease_is_over() -> None:
    """R63: the probe hung, or its process died, and nobody else was let through."""
    assert health.after_probe(probing(), Probe.RUNNING, now=at(199)) == probing()
    one = health.after_probe(probing(), Probe.RUNNING, now=at(200))
    assert (one.gate, one.next_try_at, one.probe_id) == (Gate.OPEN, at(320), None)


def test_an_accepted_probe_may_take_as_long_as_any_job() -> None:
    one = health.probe_lasts(probing(), until=at(960))
    assert one.probe_until == at(960)
    assert health.probe_lasts(one, until=at(100)) == one
    assert health.probe_lasts(half_open(), until=at(960)) == half_open()


@pytest.mark.parametrize(
    ("state", "failure", "told"),
    [
        ("intent", None, Probe.RUNNING),
        ("sending", None, Probe.RUNNING),
        ("accepted", None, Probe.RUNNING),
        ("stored", None, Probe.GOOD),
        ("completed", None, Probe.GOOD),
        ("failed", FailureClass.DOWN, Probe.BAD),
        ("failed", FailureClass.REJECTED, Probe.NEUTRAL),
        ("refused", FailureClass.DOWN, Probe.BAD),
        ("refused", FailureClass.RATE_LIMITED, Probe.NEUTRAL),
        ("refused", FailureClass.QUOTA_EXHAUSTED, Probe.NEUTRAL),
        ("refused", FailureClass.REJECTED, Probe.NEUTRAL),
        ("unknown", FailureClass.UNKNOWN, Probe.BAD),
        ("unknown", None, Probe.BAD),
        ("unsent", FailureClass.UNSENT, Probe.BAD),
    ],
)
def test_what_a_task_tells_as_the_probe(
    state: str, failure: FailureClass | None, told: Probe
) -> None:
    assert health.probe_result(state=state, failure=failure, ours=False, has_result=True) is told


@pytest.mark.parametrize("state", ["unsent", "unknown"])
def test_a_probe_that_failed_by_our_own_fault_is_neutral(state: str) -> None:
    told = health.probe_result(state=state, failure=None, ours=True, has_result=False)
    assert told is Probe.NEUTRAL


def test_a_probe_that_was_paid_and_brought_nothing_has_failed() -> None:
    for has_result, told in ((False, Probe.BAD), (None, Probe.RUNNING), (True, Probe.GOOD)):
        assert told is health.probe_result(
            state="completed", failure=None, ours=False, has_result=has_result
        )


# --- the ramp ---------------------------------------------------------------------------------------------------------


def test_the_ramp_allows_one_two_four_and_so_on_and_then_all() -> None:
    one, allowed = Health(ramp=1), []
    for _ in range(32):
        allowed.append(health.may_send(one, unanswered=0, now=NOW))
        one = health.ramped(one, 1)
    assert allowed[:8] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert allowed[15] == 16
    assert allowed[31] is None
    assert one.plain


def test_unanswered_sends_fill_the_ramp() -> None:
    assert health.may_send(Health(ramp=4), unanswered=3, now=NOW) == 1
    assert health.may_send(Health(ramp=4), unanswered=9, now=NOW) == 0
    assert health.may_send(Health(), unanswered=9, now=NOW) is None


def test_only_sends_from_after_the_block_move_the_ramp_on() -> None:
    one = Health(ramp=1, blocked_until=at(100))
    assert after(one, "gggg") == one
    late = health.after(one, outcomes("g", start=100), tallies={}, now=at(101))
    assert late.ramp == 2


# --- blocks -----------------------------------------------------------------------------------------------------------


def blocked(one: Health, wait_s: float | None, *, kind: Block = Block.THROTTLED) -> Health:
    return health.block(one, kind=kind, wait_s=wait_s, now=NOW, spread=0, reason="HTTP 429")


def test_a_block_lasts_as_long_as_was_told_and_then_one_goes_first() -> None:
    one = blocked(Health(), 30)
    assert (one.block, one.blocked_until, one.reason) == (Block.THROTTLED, at(30), "HTTP 429")
    assert health.may_send(one, unanswered=0, now=at(29.9)) == 0
    assert health.may_send(one, unanswered=0, now=at(30)) == 1


def test_a_quota_without_a_hint_waits_six_hours_and_a_rate_a_second() -> None:
    assert blocked(Health(), None, kind=Block.QUOTA).blocked_until == at(6 * 3600)
    assert blocked(Health(), None).blocked_until == at(1)
    assert blocked(Health(), float("nan"), kind=Block.QUOTA).blocked_until == at(6 * 3600)


def test_blocks_only_grow_and_the_longer_one_keeps_its_kind_and_reason() -> None:
    long = blocked(Health(), 3600, kind=Block.QUOTA)
    assert blocked(long, 5) == long
    longer = blocked(long, 7200)
    assert (longer.block, longer.blocked_until) == (Block.THROTTLED, at(7200))


def test_an_endless_or_past_wait_is_bounded() -> None:
    assert blocked(Health(), 1e12).blocked_until == at(32 * 86_400)
    assert blocked(Health(), -5).blocked_until == NOW
    assert blocked(Health(), float("inf")).blocked_until == at(1)


@pytest.mark.condition("R26")
def test_whoever_waits_for_one_end_goes_out_one_by_one_and_never_before_it() -> None:
    """R26: 19 of 20 workers woke at exactly 600.0 s and hit the limit again."""
    ends = {
        health.blocked_until(None, kind=Block.THROTTLED, wait_s=600, now=NOW, spread=n / 20)
        for n in range(20)
    }
    assert len(ends) == 20
    assert min(ends) == at(600)
    assert max(ends) < at(602)
    one = blocked(Health(), 600)
    assert health.may_send(one, unanswered=0, now=at(600)) == 1
    assert health.may_send(one, unanswered=1, now=at(600)) == 0


def test_a_short_wait_is_not_drowned_by_its_jitter() -> None:
    end = health.blocked_until(None, kind=Block.THROTTLED, wait_s=1, now=NOW, spread=0.999)
    assert at(1) < end <= at(1.1)


def test_staff_block_until_a_moment_of_their_own() -> None:
    one = health.block_by_staff(Health(), until=at(50), reason="their maintenance", now=NOW)
    assert (one.block, one.blocked_until, one.ramp) == (Block.STAFF, at(50), None)
    long = blocked(Health(), 3600)
    assert health.block_by_staff(long, until=at(50), reason="", now=NOW) == long
    assert health.unblock(one) == Health()
    assert health.unblock(Health()) == Health()


def test_a_block_during_an_outage_does_not_hide_the_outages_reason() -> None:
    assert blocked(down(), 30).reason == "HTTP 503"


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "what", "phrase", "until"),
    [
        (Health(), Word.AVAILABLE, Phrase.AVAILABLE, None),
        (Health(ramp=2), Word.AVAILABLE, Phrase.RAMPING, None),
        (Health(paused=True), Word.AVAILABLE, Phrase.PAUSED, None),
        (down(paused=True), Word.DOWN, Phrase.PAUSED, None),
        (down(), Word.DOWN, Phrase.DOWN, 60),
        (down(open_s=5), Word.DOWN, Phrase.CHECKING, None),
        (down(cause=Cause.KEY), Word.DOWN, Phrase.KEY_REJECTED, 60),
        (half_open(), Word.DOWN, Phrase.NEXT_IS_PROBE, None),
        (half_open(blocked_until=at(600)), Word.DOWN, Phrase.NEXT_IS_PROBE, None),
        (probing(), Word.DOWN, Phrase.PROBING, None),
        (Health(block=Block.QUOTA, blocked_until=at(30)), Word.QUOTA_EXHAUSTED, Phrase.QUOTA_EXHAUSTED, 30),
        (Health(block=Block.THROTTLED, blocked_until=at(30)), Word.AVAILABLE, Phrase.THROTTLED, 30),
        (Health(block=Block.STAFF, blocked_until=at(30)), Word.AVAILABLE, Phrase.BLOCKED, 30),
        (Health(block=Block.QUOTA, blocked_until=at(10)), Word.AVAILABLE, Phrase.AVAILABLE, None),
    ],
)  # fmt: skip
def test_the_word_and_the_phrase(
    one: Health, what: Word, phrase: Phrase, until: float | None
) -> None:
    told = word(one, now=at(10))
    end = None if until is None else at(until)
    assert (told.word, told.phrase, told.until) == (what, phrase, end)


def test_available_again_needs_no_job_to_pass_by() -> None:
    one = Health(block=Block.QUOTA, blocked_until=at(30), since=NOW, reason="weekly limit")
    assert word(one, now=at(29)).word is Word.QUOTA_EXHAUSTED
    assert word(one, now=at(30)) == Told(word=Word.AVAILABLE, phrase=Phrase.AVAILABLE, since=at(30))
    assert (stored(one, now=at(29)), stored(one, now=at(30))) == ("quota_exhausted", "available")


def test_an_account_and_its_model_are_told_as_one() -> None:
    quota = Health(block=Block.QUOTA, blocked_until=at(600), reason="weekly limit")
    short = Health(block=Block.THROTTLED, blocked_until=at(900))
    both = word(short, quota, now=NOW)
    assert (both.word, both.phrase, both.reason) == (Word.QUOTA_EXHAUSTED, Phrase.QUOTA_EXHAUSTED, "weekly limit")  # fmt: skip
    assert both.until == at(900)
    assert word(quota, down(), now=NOW).until == at(60)
    assert word(quota, down(), now=NOW).word is Word.DOWN
    assert word(now=NOW).word is Word.AVAILABLE


def window(seconds: int | None, used: int = 5) -> Usage:
    return Usage(account_id=1, model="", seconds=seconds, most=5, used=used, resets_at=at(90))


def test_a_full_window_is_told_before_the_provider_says_so() -> None:
    week = word(Health(), now=NOW, usage=[window(604_800)])
    assert (week.word, week.until) == (Word.QUOTA_EXHAUSTED, at(90))
    minute = word(Health(), now=NOW, usage=[window(60)])
    assert (minute.word, minute.phrase) == (Word.AVAILABLE, Phrase.THROTTLED)
    for one in (window(604_800, used=4), window(None)):
        assert word(Health(), now=NOW, usage=[one]).phrase is Phrase.AVAILABLE


# --- events -----------------------------------------------------------------------------------------------------------


def kinds(*story: Health) -> list[str]:
    return [kind for old, new in pairwise(story) for kind, _ in changes(old, new, now=NOW)]


def test_an_outage_is_one_episode_however_often_it_is_tried() -> None:
    """One `opened` and one `closed`, whatever comes in between: what alerts hang on."""
    again = health.after_free_read(down(), Read.BAD, now=at(60))
    half = health.after_free_read(again, Read.GOOD, now=at(180))
    probe = health.take_probe(half, task_id=TASK, until=at(300), now=at(180))
    assert probe is not None
    back = health.after_probe(probe, Probe.NEUTRAL, now=at(190))
    failed = health.after_probe(probe, Probe.BAD, now=at(190))
    up = health.after_probe(probe, Probe.GOOD, now=at(190))
    assert kinds(Health(), down(), again, half, probe, up) == [
        "opened", "still_down", "half_open", "probe_taken", "closed",
    ]  # fmt: skip
    assert kinds(probe, back) == ["probe_returned"]
    assert kinds(probe, failed) == ["still_down"]


def test_a_rejected_key_has_an_event_of_its_own() -> None:
    rejected = health.key_rejected(Health(), now=NOW, reason="HTTP 401")
    assert kinds(Health(), rejected) == ["key_rejected"]
    assert kinds(down(), health.key_rejected(down(), now=NOW, reason="")) == ["key_rejected"]


def test_blocks_pauses_and_their_ends_are_told() -> None:
    quota = blocked(Health(), 3600, kind=Block.QUOTA)
    assert kinds(Health(), quota, health.unblock(quota)) == ["quota_exhausted", "unblocked"]
    assert kinds(Health(), replace(Health(), paused=True), Health()) == ["paused", "resumed"]
    staff = health.block_by_staff(Health(), until=at(50), reason="", now=NOW)
    assert kinds(Health(), staff) == ["blocked"]


def test_a_block_that_grows_a_little_is_no_news() -> None:
    one = blocked(Health(), 100)
    assert kinds(one, blocked(one, 160)) == []
    assert kinds(one, blocked(one, 161)) == ["throttled"]
    assert kinds(blocked(Health(), 100), blocked(one, 101, kind=Block.QUOTA)) == ["quota_exhausted"]
