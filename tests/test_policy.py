"""The table of design, section 5, row by row: what a task's facts mean for its job."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from jobs.policy import Decision, JobView, Rules, TaskView, decide, free_wait_s
from jobs.states import CaseKind, JobState, Release, TaskState
from providers.contract import Charge

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FIRST, SECOND, THIRD = 1, 2, 3
ALL = frozenset({"refused", "quota", "down"})
CHARGES = {
    TaskState.INTENT: Charge.NONE,
    TaskState.SENDING: Charge.POSSIBLE,
    TaskState.ACCEPTED: Charge.POSSIBLE,
    TaskState.COMPLETED: Charge.CHARGED,
    TaskState.STORED: Charge.CHARGED,
    TaskState.REFUSED: Charge.NONE,
    TaskState.FAILED: Charge.POSSIBLE,
    TaskState.UNSENT: Charge.NONE,
    TaskState.UNKNOWN: Charge.POSSIBLE,
}


def task(state: TaskState, **values: Any) -> TaskView:
    defaults: dict[str, Any] = {
        "id": uuid.uuid4(),
        "charge": CHARGES[state],
        "target_id": FIRST,
        "account_id": 1,
        "created_at": NOW,
        "estimated_cost": Decimal(8),
        "currency": "RUB",
    }
    if values.get("released_by"):
        values["blocks_send"] = False
    return TaskView(state=state, **defaults | values)


def refused(failure: str, **values: Any) -> TaskView:
    return task(TaskState.REFUSED, failure_class=failure, **values)


def job(*tasks: TaskView, state: JobState = JobState.ACTIVE, **values: Any) -> JobView:
    defaults: dict[str, Any] = {
        "id": 1,
        "route": (FIRST, SECOND, THIRD),
        "target_id": FIRST,
        "attempts_since": NOW,
        "accounts": {FIRST: 1, SECOND: 1, THIRD: 2},
    }
    return JobView(state=state, tasks=tasks, **defaults | values)


def meant(view: JobView, **values: Any) -> Decision:
    defaults: dict[str, Any] = {
        "max_retries": 1,
        "free_refusal_attempts": 5,
        "fallback_on": ALL,
        "patience_s": 120.0,
    }
    return decide(job=view, rules=Rules(**defaults | values), rng=random.Random(7))


def opened(decision: Decision) -> list[CaseKind]:
    return [case.kind for case in decision.open]


def waits(decision: Decision) -> bool:
    return decision.state is None and not decision.release and not decision.open


NOTHING: frozenset[str] = frozenset()


# --- unsent -----------------------------------------------------------------------------------------------------------


def test_an_unsent_request_is_tried_again_on_the_same_target_after_a_wait() -> None:
    decision = meant(job(task(TaskState.UNSENT)))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)
    assert [why for _, why in decision.release] == [Release.UNSENT]
    assert 0.1 <= decision.wait_s <= 1 + 2


def test_an_unsent_request_of_our_own_making_uses_up_no_attempt_and_first_waits_for_nothing() -> (
    None
):
    decision = meant(job(task(TaskState.UNSENT, ours=True, unsent_reason="fenced")))
    assert (decision.state, decision.reason, decision.wait_s) == (JobState.PENDING, "fenced", 0.0)


def test_a_fault_of_ours_that_stays_does_not_turn_in_circles_at_full_speed() -> None:
    earlier = [task(TaskState.UNSENT, ours=True, released_by="unsent") for _ in range(20)]
    decision = meant(job(*earlier, task(TaskState.UNSENT, ours=True, unsent_reason="fenced")))
    assert (decision.state, decision.reason) == (JobState.PENDING, "fenced")
    assert decision.wait_s >= 0.1


def test_the_fifth_unsent_request_goes_to_the_next_target() -> None:
    earlier = [task(TaskState.UNSENT, released_by="unsent") for _ in range(4)]
    decision = meant(job(*earlier, task(TaskState.UNSENT)))
    assert (decision.state, decision.target_id) == (JobState.PENDING, SECOND)


def test_the_fifth_unsent_request_ends_the_job_where_nothing_falls_back() -> None:
    earlier = [task(TaskState.UNSENT, released_by="unsent") for _ in range(4)]
    decision = meant(job(*earlier, task(TaskState.UNSENT)), fallback_on=NOTHING)
    assert (decision.state, decision.reason) == (JobState.FAILED, CaseKind.ATTEMPTS_EXHAUSTED)
    assert opened(decision) == [CaseKind.ATTEMPTS_EXHAUSTED]


def test_a_send_proven_absent_is_released_as_absent_and_sent_again() -> None:
    decision = meant(job(task(TaskState.UNSENT, absent=True, failure_class="unknown")))
    assert [why for _, why in decision.release] == [Release.ABSENT]
    assert decision.state is JobState.PENDING


def test_attempts_before_a_new_start_do_not_count() -> None:
    old = NOW - timedelta(hours=1)
    earlier = [task(TaskState.UNSENT, released_by="unsent", created_at=old) for _ in range(9)]
    assert meant(job(*earlier, task(TaskState.UNSENT))).target_id is None


def test_attempts_at_another_target_do_not_count() -> None:
    earlier = [task(TaskState.UNSENT, released_by="unsent") for _ in range(5)]
    decision = meant(job(*earlier, task(TaskState.UNSENT, target_id=SECOND), target_id=SECOND))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)


# --- rate limits and quota --------------------------------------------------------------------------------------------


def test_a_rate_limit_waits_at_least_as_long_as_told() -> None:
    decision = meant(job(refused("rate_limited", wait_s=30.0)))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)
    assert 30 <= decision.wait_s <= 32


@pytest.mark.condition("R10")
def test_a_rate_limit_beyond_the_jobs_patience_goes_to_the_next_target() -> None:
    decision = meant(job(refused("rate_limited", wait_s=121.0)))
    assert (decision.target_id, decision.wait_s) == (SECOND, 0.0)


def test_a_rate_limit_beyond_patience_waits_where_quota_does_not_fall_back() -> None:
    view = job(refused("rate_limited", wait_s=600.0))
    decision = meant(view, fallback_on=frozenset({"refused", "down"}))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)
    assert decision.wait_s >= 600


def test_a_rate_limit_exactly_at_the_jobs_patience_is_waited_for() -> None:
    assert meant(job(refused("rate_limited", wait_s=120.0))).target_id is None


@pytest.mark.condition("R10")
def test_an_exhausted_quota_goes_to_the_next_target() -> None:
    decision = meant(job(refused("quota_exhausted", wait_s=5.0)))
    assert (decision.state, decision.target_id) == (JobState.PENDING, SECOND)


def test_an_exhausted_quota_on_the_last_target_waits_and_never_fails_the_job() -> None:
    earlier = [refused("quota_exhausted", target_id=THIRD, released_by="free") for _ in range(30)]
    last = refused("quota_exhausted", wait_s=3600.0, target_id=THIRD)
    decision = meant(job(*earlier, last))
    assert (decision.state, opened(decision)) == (JobState.PENDING, [])
    assert decision.wait_s >= 3600


def test_an_exhausted_quota_that_tells_no_end_is_asked_again_after_six_hours() -> None:
    decision = meant(job(refused("quota_exhausted")), fallback_on=NOTHING)
    assert 6 * 3600 <= decision.wait_s <= 6 * 3600 + 2


# --- key, rejection, down ---------------------------------------------------------------------------------------------


def test_a_rejected_key_goes_to_the_next_target_on_another_account() -> None:
    assert meant(job(refused("unauthorized"))).target_id == THIRD


def test_a_rejected_key_waits_where_every_target_has_the_same_account() -> None:
    decision = meant(job(refused("unauthorized"), accounts={FIRST: 1, SECOND: 1, THIRD: 1}))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)
    assert decision.wait_s >= 60


def test_a_rejected_prompt_goes_to_the_next_target() -> None:
    assert meant(job(refused("rejected"))).target_id == SECOND


def test_a_prompt_rejected_by_the_last_target_ends_the_job_with_a_case() -> None:
    decision = meant(job(refused("rejected", target_id=THIRD, failure_text="not allowed")))
    assert (decision.state, decision.reason) == (JobState.FAILED, CaseKind.REFUSED_BY_ALL)
    assert (decision.text, opened(decision)) == ("not allowed", [CaseKind.REFUSED_BY_ALL])


@pytest.mark.condition("R09")
def test_a_rejected_prompt_ends_the_job_where_refusals_do_not_fall_back() -> None:
    decision = meant(job(refused("rejected")), fallback_on=frozenset({"quota", "down"}))
    assert decision.state is JobState.FAILED


def test_a_stopped_target_keeps_its_jobs_waiting_instead_of_failing_them() -> None:
    decision = meant(job(refused("rejected", target_stops=True), route=(FIRST,)))
    assert (decision.state, decision.reason) == (JobState.PENDING, "target_stopped")
    assert opened(decision) == []


def test_a_provider_that_is_down_hands_over_at_once() -> None:
    decision = meant(job(refused("down")))
    assert (decision.target_id, decision.wait_s) == (SECOND, 0.0)


def test_a_provider_that_is_down_is_tried_again_where_down_does_not_fall_back() -> None:
    decision = meant(job(refused("down")), fallback_on=frozenset({"refused", "quota"}))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)
    assert decision.wait_s > 0


def test_a_provider_that_stays_down_exhausts_the_attempts() -> None:
    earlier = [refused("down", released_by="free") for _ in range(4)]
    decision = meant(job(*earlier, refused("down"), route=(FIRST,)))
    assert (decision.state, decision.reason) == (JobState.FAILED, CaseKind.ATTEMPTS_EXHAUSTED)


@pytest.mark.parametrize("state", [TaskState.REFUSED, TaskState.UNSENT])
def test_a_refusal_that_cost_money_after_all_is_not_sent_again(state: TaskState) -> None:
    decision = meant(job(task(state, charge=Charge.CHARGED, cost=Decimal(7))))
    assert (decision.state, decision.release) == (JobState.MANUAL, [])
    assert opened(decision) == [CaseKind.FAILED_BUT_CHARGED]


@pytest.mark.parametrize("attempt", [1, 2, 3, 5, 9])
def test_an_untold_wait_grows_to_thirty_seconds_and_is_never_nothing(attempt: int) -> None:
    rng = random.Random(attempt)
    drawn = [free_wait_s(attempt=attempt, told_s=None, rng=rng) for _ in range(300)]
    assert min(drawn) >= 0.1
    assert max(drawn) <= min(30, 2 ** (attempt - 1)) + 2


@pytest.mark.condition("R18")
@pytest.mark.parametrize("attempt", [1, 3, 5])
def test_a_wait_told_as_nothing_leaves_the_usual_backoff(attempt: int) -> None:
    """Retry-After: 0 is a floor, no order to try at once: five tries within a second or two would end the job."""
    rng = random.Random(attempt)
    drawn = [free_wait_s(attempt=attempt, told_s=0.0, rng=rng) for _ in range(300)]
    ceiling = min(30, 2 ** (attempt - 1))
    assert min(drawn) >= 0.1
    assert ceiling < max(drawn) <= ceiling + 2


@pytest.mark.parametrize("attempt", [1, 5, 12])
def test_a_wait_that_was_told_is_a_floor_and_is_spread(attempt: int) -> None:
    rng = random.Random(attempt)
    drawn = [free_wait_s(attempt=attempt, told_s=600.0, rng=rng) for _ in range(300)]
    assert 600 <= min(drawn) < 600.1
    assert 601.9 < max(drawn) <= 602


def test_a_fault_of_ours_that_lasts_for_days_still_only_waits() -> None:
    """A disk that is full over a weekend makes thousands of intents; 2 ** n is then too large for a float."""
    earlier = [
        task(TaskState.UNSENT, ours=True, unsent_reason="no_mark", released_by="unsent")
        for _ in range(3000)
    ]
    decision = meant(job(*earlier, task(TaskState.UNSENT, ours=True, unsent_reason="no_mark")))
    assert (decision.state, decision.reason) == (JobState.PENDING, "no_mark")
    assert 0.1 <= decision.wait_s <= 32


# --- unknown ----------------------------------------------------------------------------------------------------------


def test_an_unknown_send_waits_for_evidence() -> None:
    assert waits(meant(job(task(TaskState.UNKNOWN))))


def test_one_means_one_an_unknown_send_is_never_sent_again_however_many_retries_are_allowed() -> (
    None
):
    for most in (0, 1, 5):
        assert waits(meant(job(task(TaskState.UNKNOWN)), max_retries=most))


@pytest.mark.parametrize("failure", ["down", "rate_limited", "quota_exhausted", "rejected"])
def test_an_unknown_send_falls_back_for_no_class_of_failure(failure: str) -> None:
    assert waits(meant(job(task(TaskState.UNKNOWN, failure_class=failure))))


def test_an_unknown_send_without_evidence_becomes_a_persons_case_with_its_money() -> None:
    decision = meant(job(task(TaskState.UNKNOWN, unclear=True)))
    assert (decision.state, decision.release) == (JobState.MANUAL, [])
    [case] = decision.open
    assert (case.kind, case.money, case.currency) == (CaseKind.UNKNOWN_SEND, Decimal(8), "RUB")


def test_an_unknown_send_found_at_the_provider_closes_its_case_and_goes_on() -> None:
    found = task(TaskState.ACCEPTED)
    key = (CaseKind.UNKNOWN_SEND, found.id)
    decision = meant(job(found, state=JobState.MANUAL, open_cases=frozenset({key})))
    assert (decision.state, decision.close, decision.release) == (JobState.ACTIVE, [key], [])


def test_an_absent_send_closes_its_case_and_is_sent_again() -> None:
    gone = task(TaskState.UNSENT, absent=True)
    key = (CaseKind.UNKNOWN_SEND, gone.id)
    decision = meant(job(gone, state=JobState.MANUAL, open_cases=frozenset({key})))
    assert (decision.state, decision.close) == (JobState.PENDING, [key])


def test_a_standing_decision_sends_an_unknown_again_once() -> None:
    decision = meant(job(task(TaskState.UNKNOWN), standing_resend=frozenset({FIRST})))
    assert (decision.state, decision.target_id) == (JobState.PENDING, None)
    assert [why for _, why in decision.release] == [Release.STANDING]


def test_a_standing_decision_is_used_at_most_worker_max_retries_times() -> None:
    earlier = task(TaskState.UNKNOWN, released_by="standing")
    view = job(earlier, task(TaskState.UNKNOWN), standing_resend=frozenset({FIRST}))
    assert meant(view, max_retries=1).release == []
    assert [why for _, why in meant(view, max_retries=2).release] == [Release.STANDING]


def test_a_standing_decision_for_another_target_changes_nothing() -> None:
    assert waits(meant(job(task(TaskState.UNKNOWN), standing_resend=frozenset({SECOND}))))


# --- under way and verdicts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [TaskState.INTENT, TaskState.SENDING, TaskState.ACCEPTED])
def test_a_send_under_way_is_waited_for(state: TaskState) -> None:
    assert waits(meant(job(task(state))))


def test_a_completion_with_a_file_waits_for_the_fetch() -> None:
    assert waits(meant(job(task(TaskState.COMPLETED, has_result=True))))


def test_a_completion_without_a_file_is_a_case() -> None:
    decision = meant(job(task(TaskState.COMPLETED)))
    assert (decision.state, opened(decision)) == (JobState.MANUAL, [CaseKind.PAID_WITHOUT_RESULT])


def test_a_file_that_could_not_be_fetched_is_a_case() -> None:
    view = job(task(TaskState.COMPLETED, has_result=True, fetch_given_up=True))
    assert opened(meant(view)) == [CaseKind.FETCH_FAILED]


def test_a_stored_result_succeeds_and_is_delivered() -> None:
    done = task(TaskState.STORED)
    decision = meant(job(done, results={done.id: 77}))
    assert (decision.state, decision.deliver) == (JobState.SUCCEEDED, 77)
    assert decision.release == [(done.id, Release.STORED)]


def test_a_failed_verdict_keeps_blocking_until_its_cost_is_known() -> None:
    assert waits(meant(job(task(TaskState.FAILED, failure_class="down"))))


@pytest.mark.parametrize(
    ("failure", "word"), [("rejected", "refused"), ("down", "down"), ("", "down")]
)
def test_a_failure_proven_free_falls_back_where_its_word_is_allowed(
    failure: str, word: str
) -> None:
    view = job(task(TaskState.FAILED, charge=Charge.NONE, failure_class=failure))
    assert meant(view, fallback_on=frozenset({word})).target_id == SECOND
    assert meant(view, fallback_on=ALL - {word}).state is JobState.FAILED


def test_a_failure_that_was_charged_is_a_case_with_what_it_cost() -> None:
    view = job(task(TaskState.FAILED, charge=Charge.CHARGED, cost=Decimal("7.84")))
    decision = meant(view)
    [case] = decision.open
    assert (case.kind, case.money) == (CaseKind.FAILED_BUT_CHARGED, Decimal("7.84"))
    assert (decision.state, decision.release) == (JobState.MANUAL, [])


def test_a_failure_whose_cost_is_never_told_is_a_case() -> None:
    decision = meant(job(task(TaskState.FAILED, receipts_over=True)))
    assert (opened(decision), decision.release) == ([CaseKind.FAILED_BUT_CHARGED], [])


@pytest.mark.parametrize("values", [{"charge": Charge.CHARGED}, {"receipts_over": True}])
def test_a_standing_decision_moves_on_after_a_charged_failure(values: dict[str, Any]) -> None:
    view = job(task(TaskState.FAILED, **values), standing_next=frozenset({FIRST}))
    decision = meant(view, fallback_on=NOTHING)
    assert (decision.state, decision.target_id) == (JobState.PENDING, SECOND)
    assert ([why for _, why in decision.release], opened(decision)) == ([Release.STANDING], [])


def test_a_standing_decision_does_not_run_ahead_of_the_receipt() -> None:
    assert waits(meant(job(task(TaskState.FAILED), standing_next=frozenset({FIRST}))))


@pytest.mark.parametrize(
    ("flag", "kind"),
    [("missing_long", CaseKind.LOST_AT_PROVIDER), ("watch_over", CaseKind.NEVER_ANSWERED)],
)
def test_a_task_the_provider_no_longer_answers_for_is_a_case_and_still_blocks(
    flag: str, kind: CaseKind
) -> None:
    decision = meant(job(task(TaskState.ACCEPTED, **{flag: True})))
    assert (decision.state, opened(decision), decision.release) == (JobState.MANUAL, [kind], [])


def test_nothing_that_may_have_been_charged_is_ever_released_by_the_machine_alone() -> None:
    for state in TaskState:
        if state is TaskState.STORED:
            continue
        for charge in (Charge.POSSIBLE, Charge.CHARGED):
            for failure in ("", "down", "rejected", "quota_exhausted", "rate_limited"):
                for flags in ({}, {"unclear": True}, {"receipts_over": True}, {"absent": True}):
                    view = job(task(state, charge=charge, failure_class=failure, **flags))
                    decision = meant(view)
                    assert decision.release == []
                    assert decision.state is not JobState.PENDING
                    assert decision.target_id is None


# --- persons ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.SUCCEEDED, JobState.CANCELLED])
def test_a_late_result_is_announced_and_never_delivered_over_a_persons_decision(
    state: JobState,
) -> None:
    late = task(TaskState.STORED)
    decision = meant(job(late, state=state, decided_by_person=True, results={late.id: 5}))
    assert (decision.state, decision.deliver) == (None, None)
    assert decision.late_results == [late.id]


def test_a_late_result_that_was_announced_is_not_announced_again() -> None:
    late = task(TaskState.STORED, released_by="stored", undecided=False)
    view = job(late, state=JobState.CANCELLED, decided_by_person=True, results={late.id: 5})
    assert meant(view).late_results == []


def test_a_late_result_serves_a_job_that_only_the_machine_had_given_up() -> None:
    late = task(TaskState.STORED, released_by="absent")
    key = (CaseKind.REFUSED_BY_ALL, None)
    view = job(late, state=JobState.FAILED, results={late.id: 5}, open_cases=frozenset({key}))
    decision = meant(view)
    assert (decision.state, decision.deliver, decision.close) == (JobState.SUCCEEDED, 5, [key])


def test_a_late_result_withdraws_the_intent_that_was_to_replace_it() -> None:
    late = task(TaskState.STORED, released_by="person")
    intent = task(TaskState.INTENT)
    decision = meant(job(late, intent, results={late.id: 5}))
    assert (decision.withdraw, decision.state) == ([intent.id], JobState.SUCCEEDED)


def test_a_cancelled_job_is_not_sent_again_after_a_free_refusal() -> None:
    view = job(refused("down"), state=JobState.CANCELLED, decided_by_person=True)
    decision = meant(view)
    assert (decision.state, decision.target_id) == (None, None)
    assert [why for _, why in decision.release] == [Release.FREE]


def test_a_job_handled_by_hand_stays_with_its_person_whatever_the_send_answers() -> None:
    by_hand = frozenset({(CaseKind.BY_HAND, None)})
    decision = meant(job(refused("down"), state=JobState.MANUAL, open_cases=by_hand))
    assert decision.state is None


def test_a_case_that_a_person_closed_is_not_opened_again() -> None:
    lost = task(TaskState.UNKNOWN, unclear=True)
    closed = frozenset({(CaseKind.UNKNOWN_SEND, lost.id)})
    assert opened(meant(job(lost, closed_by_person=closed))) == []


def test_deciding_twice_opens_nothing_twice() -> None:
    lost = task(TaskState.UNKNOWN, unclear=True)
    known = frozenset({(CaseKind.UNKNOWN_SEND, lost.id)})
    decision = meant(job(lost, state=JobState.MANUAL, open_cases=known))
    assert waits(decision)
    assert decision.close == []


# --- paid twice, poison -----------------------------------------------------------------------------------------------


def test_an_absent_send_that_turns_up_beside_a_served_one_is_paid_twice() -> None:
    served = task(TaskState.STORED, released_by="stored")
    back = task(TaskState.ACCEPTED, released_by="absent")
    view = job(back, served, state=JobState.SUCCEEDED, results={served.id: 1})
    decision = meant(view)
    [case] = decision.open
    assert (case.kind, case.task_id, decision.state) == (CaseKind.PAID_TWICE, back.id, None)


def test_a_send_that_a_person_repeated_is_paid_twice_only_once_it_did_cost() -> None:
    served = task(TaskState.STORED, released_by="stored")
    results = {served.id: 1}
    for state, kinds in [(TaskState.UNKNOWN, []), (TaskState.COMPLETED, [CaseKind.PAID_TWICE])]:
        first = task(state, released_by="person")
        view = job(first, served, state=JobState.SUCCEEDED, results=results)
        assert opened(meant(view)) == kinds


def test_a_free_refusal_beside_a_served_send_is_not_paid_twice() -> None:
    served = task(TaskState.STORED, released_by="stored")
    view = job(refused("down", released_by="free"), served, results={served.id: 1})
    assert opened(meant(view)) == []


def test_three_lanes_dying_in_a_row_at_a_job_set_it_aside() -> None:
    died = {"ours": True, "unsent_reason": "lane_died"}
    earlier = [task(TaskState.UNSENT, released_by="unsent", **died) for _ in range(2)]
    decision = meant(job(*earlier, task(TaskState.UNSENT, **died)))
    assert (decision.state, opened(decision)) == (JobState.MANUAL, [CaseKind.POISON])


def test_two_dead_lanes_are_bad_luck() -> None:
    died = {"ours": True, "unsent_reason": "lane_died"}
    first = task(TaskState.UNSENT, released_by="unsent", **died)
    decision = meant(job(first, task(TaskState.UNSENT, **died)))
    assert (decision.state, opened(decision)) == (JobState.PENDING, [])


def test_dying_lanes_with_a_sound_one_between_are_not_in_a_row() -> None:
    died = {"ours": True, "unsent_reason": "lane_died"}
    tasks = [
        task(TaskState.UNSENT, released_by="unsent", **died),
        task(TaskState.UNSENT, released_by="unsent", **died),
        refused("rate_limited", released_by="free"),
        task(TaskState.UNSENT, **died),
    ]
    assert opened(meant(job(*tasks))) == []


def test_a_row_at_which_three_lanes_died_is_set_aside_and_still_blocks() -> None:
    decision = meant(job(task(TaskState.ACCEPTED, deaths=3)))
    assert (decision.state, opened(decision)) == (JobState.MANUAL, [CaseKind.POISON])
    assert decision.release == []


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.ACTIVE, JobState.MANUAL])
def test_what_a_person_has_decided_is_moved_by_no_case(state: JobState) -> None:
    cases = frozenset({(CaseKind.CONFLICT, None)})
    assert meant(job(state=state, decided_by_person=True, open_cases=cases)).state is None


@pytest.mark.parametrize("clear", [True, False])
def test_the_owners_decision_waits_for_the_disk_that_may_hold_the_answer(*, clear: bool) -> None:
    lost = task(TaskState.UNKNOWN, spool_clear=clear)
    decision = meant(job(lost, standing_resend=frozenset({FIRST})))
    assert decision.release == ([(lost.id, Release.STANDING)] if clear else [])
