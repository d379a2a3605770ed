"""Over all facts, tasks and listings: what states, decisions and evidence may never say."""

from __future__ import annotations

import random
import uuid
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs import evidence, policy
from jobs.evidence import Finding, Listing, LostSend, absence_from, judge
from jobs.policy import Decision, JobView, Rules, TaskView
from jobs.states import (
    BLOCKING_CASES,
    CaseKind,
    Facts,
    JobState,
    Release,
    TaskState,
    known_cost,
    task_charge,
    task_state,
)
from providers.contract import Charge, FailureClass, HistoryItem

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FREE = {Charge.NONE, Charge.REFUNDED}
COSTS = {Charge.POSSIBLE, Charge.CHARGED}
DECIDED = {"person", "standing", "stored"}

# --- facts ------------------------------------------------------------------------------------------------------------

_FACTS = [item.name for item in fields(Facts)]
_MONEY = ("cost_answer", "cost_poll", "cost_receipt", "cost_staff")
_AMOUNTS = st.sampled_from([Decimal(0), Decimal("0.01"), Decimal("7.84")])


def _value(name: str) -> st.SearchStrategy[Any]:
    if name in _MONEY:
        return _AMOUNTS
    if name == "staff_charge":
        return st.sampled_from(["refunded", "written_off"])
    if name in {"provider_id", "refusal_class"}:
        return st.just("told")
    return st.just(NOW)


def told(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these facts (all where none are named)."""
    return st.fixed_dictionaries({}, optional={name: _value(name) for name in names or _FACTS})


_STRENGTH = [
    TaskState.INTENT, TaskState.SENDING, TaskState.UNKNOWN, TaskState.UNSENT, TaskState.REFUSED, TaskState.ACCEPTED,
    TaskState.FAILED, TaskState.COMPLETED, TaskState.STORED,
]  # fmt: skip


@given(some=told(), more=told())
def test_what_is_learned_later_never_weakens_a_state(
    some: dict[str, Any], more: dict[str, Any]
) -> None:
    before, after = task_state(Facts(**some)), task_state(Facts(**{**more, **some}))
    assert _STRENGTH.index(after) >= _STRENGTH.index(before)


@given(some=told(), more=told())
def test_a_charge_becomes_free_only_where_a_more_trusted_source_says_zero_or_a_person_decides(
    some: dict[str, Any], more: dict[str, Any]
) -> None:
    before, after = Facts(**some), Facts(**{**more, **some})
    if task_charge(before) is not Charge.CHARGED or task_charge(after) is not Charge.NONE:
        return
    assert known_cost(after) == 0
    assert after.completed_at is None
    assert after.stored_at is None
    assert after.failed_at is None or (after.receipt_final_at and after.cost_receipt == 0)


@given(some=told("armed_at", "lost_at", "provider_id", "failed_at", *_MONEY[:3]), more=told())
def test_a_possible_charge_becomes_free_only_by_proof(
    some: dict[str, Any], more: dict[str, Any]
) -> None:
    """A refusal known to be free, absence, a send that never left, or a final receipt of zero for a failure."""
    before, after = Facts(**some), Facts(**{**more, **some})
    if task_charge(before) is not Charge.POSSIBLE or task_charge(after) is not Charge.NONE:
        return
    if after.provider_id is None and after.failed_at is None:
        assert after.refusal_class or after.absent_at or after.unsent_at
    else:
        assert after.failed_at is not None
        assert after.receipt_final_at is not None
        assert after.cost_receipt == 0


@given(some=told("armed_at", "lost_at", "provider_id", "completed_at", "stored_at"))
def test_a_result_is_never_free_of_charge_by_itself(some: dict[str, Any]) -> None:
    facts = Facts(**some)
    if facts.completed_at or facts.stored_at:
        assert task_charge(facts) is Charge.CHARGED
    elif facts.provider_id or facts.lost_at or facts.armed_at:
        assert task_charge(facts) is Charge.POSSIBLE


# --- decisions --------------------------------------------------------------------------------------------------------

ROUTE = (1, 2, 3)
HALF = settings(max_examples=settings().max_examples // 2)  # a job takes long to make up
RULES = st.builds(
    Rules,
    max_retries=st.integers(1, 2),
    free_refusal_attempts=st.integers(1, 5),
    fallback_on=st.frozensets(st.sampled_from(["refused", "quota", "down"])),
    patience_s=st.sampled_from([0.0, 120.0]),
)


@st.composite
def tasks(draw: st.DrawFn, number: int, *, last: bool) -> TaskView:
    """A task of any facts; the ones before the last do not block any more."""
    facts = Facts(**draw(told(*(name for name in _FACTS if name != "staff_charge"))))
    if (
        task_state(facts) is TaskState.INTENT
    ):  # nothing is known of it, and it can only be the one that blocks
        facts = Facts() if last else Facts(unsent_at=NOW)
    blocks = last and (task_state(facts) is TaskState.INTENT or draw(st.booleans()))
    released = "" if blocks else draw(st.sampled_from(list(Release))).value
    flag = st.booleans()
    return TaskView(
        id=uuid.UUID(int=number + 1),
        state=task_state(facts),
        charge=task_charge(facts),
        target_id=draw(st.sampled_from(ROUTE)),
        account_id=draw(st.integers(1, 2)),
        created_at=NOW + timedelta(seconds=number),
        estimated_cost=Decimal(8),
        currency="RUB",
        cost=known_cost(facts),
        blocks_send=released == "",
        released_by=released,
        undecided=draw(flag),
        failure_class=draw(st.sampled_from(["", *FailureClass])),
        wait_s=draw(st.none() | st.floats(0, 100_000)),
        ours=draw(flag),
        target_stops=draw(flag),
        unsent_reason=draw(st.sampled_from(["", policy.LANE_DIED, "fenced"])),
        absent=facts.absent_at is not None,
        has_result=draw(flag),
        receipts_over=draw(flag),
        fetch_given_up=draw(flag),
        missing_long=draw(flag),
        watch_over=draw(flag),
        unclear=draw(flag),
        deaths=draw(st.sampled_from([0, 0, 0, 2, 3])),
    )


@st.composite
def jobs(draw: st.DrawFn) -> JobView:
    count = draw(st.integers(0, 4))
    made = [draw(tasks(number, last=number == count - 1)) for number in range(count)]
    blocked = any(task.blocks_send for task in made)
    states = [s for s in JobState if s is not (JobState.PENDING if blocked else JobState.ACTIVE)]
    keys = st.tuples(
        st.sampled_from(list(CaseKind)), st.sampled_from([None, *(task.id for task in made)])
    )
    stored = [task.id for task in made if task.state is TaskState.STORED]
    return JobView(
        id=1,
        state=draw(st.sampled_from(states)),
        route=draw(st.sampled_from([ROUTE, ROUTE[:1], ROUTE[1:]])),
        target_id=1,
        attempts_since=NOW + timedelta(seconds=draw(st.integers(0, 2))),
        tasks=made,
        decided_by_person=draw(st.booleans()),
        open_cases=draw(st.frozensets(keys, max_size=3)),
        closed_by_person=draw(st.frozensets(keys, max_size=2)),
        results=dict.fromkeys(stored, 7),
        accounts={1: 1, 2: 1, 3: 2},
        standing_resend=draw(st.frozensets(st.sampled_from(ROUTE))),
        standing_next=draw(st.frozensets(st.sampled_from(ROUTE))),
    )


def meant(job: JobView, rules: Rules) -> Decision:
    return policy.decide(job=job, rules=rules, rng=random.Random(7))


def written(job: JobView, decision: Decision) -> JobView:
    """The job once the decision is written, as lifecycle/decide.py writes it."""
    released = dict(decision.release) | dict.fromkeys(decision.withdraw, Release.UNSENT)
    after = []
    for task in job.tasks:
        changes: dict[str, Any] = {"undecided": False}
        if task.id in released:
            changes |= {"blocks_send": False, "released_by": released[task.id].value}
        if task.id in decision.withdraw:
            changes |= {"state": TaskState.UNSENT, "ours": True, "unsent_reason": "not_needed"}
        after.append(replace(task, **changes))
    opened = {(case.kind, case.task_id) for case in decision.open}
    return replace(
        job,
        state=decision.state or job.state,
        target_id=decision.target_id or job.target_id,
        tasks=after,
        open_cases=(job.open_cases - set(decision.close)) | opened,
    )


@HALF
@given(job=jobs(), rules=RULES)
def test_a_decision_is_the_same_each_time_and_once_written_leaves_nothing_to_decide(
    job: JobView, rules: Rules
) -> None:
    decision = meant(job, rules)
    assert meant(job, rules) == decision
    again = meant(written(job, decision), rules)
    assert (again.state, again.release, again.open, again.close) == (None, [], [], [])


@HALF
@given(job=jobs(), rules=RULES)
def test_a_send_is_released_only_by_proof_or_by_a_standing_decision(
    job: JobView, rules: Rules
) -> None:
    by_id = {task.id: task for task in job.tasks}
    for task_id, why in meant(job, rules).release:
        task = by_id[task_id]
        assert task.blocks_send
        match why:
            case Release.STORED:
                assert task.state is TaskState.STORED
            case Release.FREE:
                assert task.state in {TaskState.REFUSED, TaskState.FAILED}
                assert task.charge in FREE
            case Release.UNSENT | Release.ABSENT:
                assert task.state is TaskState.UNSENT
                assert task.charge in FREE
                assert task.absent is (why is Release.ABSENT)
            case Release.STANDING if task.state is TaskState.UNKNOWN:
                assert task.target_id in job.standing_resend
            case Release.STANDING:
                assert task.state is TaskState.FAILED
                assert task.target_id in job.standing_next
            case _:
                raise AssertionError(why)


@HALF
@given(job=jobs(), rules=RULES)
def test_a_job_moves_only_as_its_state_and_its_cases_allow(job: JobView, rules: Rules) -> None:
    decision = meant(job, rules)
    after = written(job, decision)
    if decision.state is None:
        assert (decision.wait_s, decision.target_id) == (
            0.0,
            None,
        ) or after.state is JobState.MANUAL
        return
    assert job.state not in {JobState.CANCELLED, JobState.SUCCEEDED}
    assert not job.decided_by_person
    blocked = any(task.blocks_send for task in after.tasks)
    for_a_person = {kind for kind, _ in after.open_cases} & BLOCKING_CASES
    match decision.state:
        case JobState.SUCCEEDED:
            stored = [t for t in job.tasks if t.state is TaskState.STORED and t.id in job.results]
            assert stored
            assert decision.deliver == job.results[stored[0].id]
        case JobState.MANUAL:
            assert for_a_person
        case JobState.ACTIVE:
            assert blocked
            assert not for_a_person
        case _:
            assert decision.state in {JobState.PENDING, JobState.FAILED}
            assert not blocked
            assert not for_a_person
    if decision.state is not JobState.SUCCEEDED:
        assert not any(t.state is TaskState.STORED and t.id in job.results for t in job.tasks)


@HALF
@given(job=jobs(), rules=RULES)
def test_no_job_is_sent_or_waits_to_be_sent_beside_a_case_that_blocks(
    job: JobView, rules: Rules
) -> None:
    after = written(job, meant(job, rules))
    if not job.decided_by_person and {kind for kind, _ in after.open_cases} & BLOCKING_CASES:
        assert after.state not in {JobState.PENDING, JobState.ACTIVE}


@HALF
@given(job=jobs(), rules=RULES)
def test_the_next_target_is_further_down_the_route_and_only_after_a_free_send_or_a_standing_decision(
    job: JobView, rules: Rules
) -> None:
    decision = meant(job, rules)
    if decision.target_id is None:
        return
    [(task_id, why)] = decision.release
    task = next(task for task in job.tasks if task.id == task_id)
    assert why is Release.STANDING or (task.charge in FREE and rules.fallback_on)
    assert decision.target_id in job.route
    if task.target_id in job.route:
        assert job.route.index(decision.target_id) > job.route.index(task.target_id)


@HALF
@given(job=jobs(), rules=RULES)
def test_a_wait_is_never_shorter_than_told_and_never_endless(job: JobView, rules: Rules) -> None:
    decision = meant(job, rules)
    longest = max([policy.UNTOLD_QUOTA_S, *(t.wait_s or 0.0 for t in job.tasks)])
    assert 0 <= decision.wait_s <= longest + policy.JITTER_S
    if decision.state is JobState.PENDING and decision.reason in {
        "rate_limited",
        "quota_exhausted",
    }:
        [(task_id, _)] = decision.release
        told_s = next(task.wait_s for task in job.tasks if task.id == task_id)
        assert decision.wait_s >= (told_s or 0.0)


@HALF
@given(job=jobs(), rules=RULES)
def test_money_beside_the_result_is_on_the_desk_unless_somebody_decided_it(
    job: JobView, rules: Rules
) -> None:
    """P4: of two tasks that cost, and that nobody released by a decision, one at least has a case of its own."""
    after = written(job, meant(job, rules))
    paid = [
        task
        for task in after.tasks
        if task.charge is Charge.CHARGED and task.released_by not in {"person", "standing"}
    ]
    if len(paid) < 2:
        return
    known = {pk for _, pk in after.open_cases} | {pk for _, pk in job.closed_by_person}
    assert {task.id for task in paid} & known


@HALF
@given(job=jobs(), rules=RULES, seed=st.integers(0, 5))
def test_the_order_in_which_tasks_are_listed_changes_no_release_and_no_case_of_theirs(
    job: JobView, rules: Rules, seed: int
) -> None:
    assume(not any(task.unsent_reason == policy.LANE_DIED for task in job.tasks))
    shuffled = list(job.tasks)
    random.Random(seed).shuffle(shuffled)
    one, other = meant(job, rules), meant(replace(job, tasks=shuffled), rules)
    assert set(one.release) == set(other.release)
    assert _cases(one) == _cases(other)


def _cases(decision: Decision) -> set[tuple[CaseKind, uuid.UUID | None]]:
    return {(c.kind, c.task_id) for c in decision.open if c.kind not in {CaseKind.PAID_TWICE, CaseKind.POISON}}  # fmt: skip


# --- evidence ---------------------------------------------------------------------------------------------------------

FENCE = NOW + timedelta(seconds=10)
_MOMENTS = st.integers(-300, 4000).map(lambda seconds: NOW + timedelta(seconds=seconds))
_LAGS = st.none() | st.sampled_from([0.0, 20.0, 600.0])
SENDS = st.builds(
    LostSend,
    task_id=st.just(uuid.UUID(int=1)),
    model=st.just("painter"),
    armed_at=st.just(NOW),
    send_not_after=st.just(FENCE),
    deadline_s=st.sampled_from([0.0, 30.0, 180.0]),
    absent_seen_at=st.none() | _MOMENTS,
    spool_clear=st.booleans(),
)
ITEMS = st.builds(
    HistoryItem,
    provider_id=st.sampled_from([f"gen_{number}" for number in range(6)]),
    created_at=st.none() | _MOMENTS,
    model=st.sampled_from(["painter", "painter", "writer"]),
    status=st.just("completed"),
    correlation_id=st.sampled_from(["", "", "a stranger's", str(uuid.UUID(int=1)), str(uuid.UUID(int=2))]),
)  # fmt: skip
LISTINGS = st.builds(
    Listing,
    items=st.lists(ITEMS, max_size=5, unique_by=lambda item: item.provider_id).map(tuple),
    read_at=_MOMENTS,
    linked=st.dictionaries(st.sampled_from([f"gen_{number}" for number in range(6)]), _MOMENTS),
    unsettled=st.dictionaries(st.sampled_from([uuid.UUID(int=1), uuid.UUID(int=2)]), _MOMENTS),
    echoes=st.sampled_from([True, False, None]),
    lag_s=_LAGS,
    exclusive=st.booleans(),
)


@given(send=SENDS, listing=LISTINGS)
def test_absence_is_concluded_only_with_a_lag_a_canary_a_clear_spool_and_a_second_look(
    send: LostSend, listing: Listing
) -> None:
    if judge(send, listing).finding is not Finding.ABSENT:
        return
    assert listing.lag_s is not None
    assert send.spool_clear
    assert send.absent_seen_at is not None
    assert listing.read_at - send.absent_seen_at >= timedelta(seconds=listing.lag_s)
    over = absence_from(send_not_after=FENCE, deadline_s=send.deadline_s, lag_s=listing.lag_s)
    assert listing.read_at >= over
    listed = {item.provider_id for item in listing.items}
    assert any(pk in listed and at > FENCE for pk, at in listing.linked.items()), "no canary"
    since, until = evidence.window(send, lag_s=listing.lag_s)
    for item in listing.items:
        assert item.correlation_id != str(send.task_id)
        inside = item.created_at is None or since <= item.created_at <= until
        assert not inside or listing.echoes or item.provider_id in listing.linked


@given(send=SENDS, listing=LISTINGS)
def test_a_send_is_found_only_by_its_own_id_or_as_the_only_one_it_can_be(
    send: LostSend, listing: Listing
) -> None:
    judged = judge(send, listing)
    if judged.finding is not Finding.FOUND:
        return
    [found] = [item for item in listing.items if item.provider_id == judged.provider_id]
    if found.correlation_id == str(send.task_id):
        return
    since, until = evidence.window(send, lag_s=listing.lag_s)
    for pk, armed_at in listing.unsettled.items():
        assert pk == send.task_id or abs(armed_at - send.armed_at) >= until - since
    assert listing.exclusive
    assert not listing.echoes
    assert found.provider_id not in listing.linked
    assert found.model == send.model


@given(send=SENDS, listing=LISTINGS, more=ITEMS)
def test_one_more_generation_of_unknown_origin_never_proves_absence(
    send: LostSend, listing: Listing, more: HistoryItem
) -> None:
    assume(more.provider_id not in listing.linked)
    assume(more.provider_id not in {item.provider_id for item in listing.items})
    with_more = replace(listing, items=(*listing.items, more))
    absent = {Finding.ABSENT, Finding.ABSENT_ONCE}
    if judge(send, with_more).finding in absent:
        assert judge(send, listing).finding in absent


@given(send=SENDS, listing=LISTINGS, seed=st.integers(0, 3))
def test_the_order_of_a_listing_proves_nothing(send: LostSend, listing: Listing, seed: int) -> None:
    items = list(listing.items)
    random.Random(seed).shuffle(items)
    one, other = judge(send, listing), judge(send, replace(listing, items=tuple(items)))
    assert one.finding is other.finding


@given(send=SENDS, lag_s=_LAGS, now=_MOMENTS, more_s=st.floats(0, 9999))
def test_what_is_overdue_stays_overdue_and_never_before_absence_could_be_concluded(
    send: LostSend, lag_s: float | None, now: datetime, more_s: float
) -> None:
    def late(at: datetime) -> bool:
        return evidence.overdue(
            send_not_after=FENCE, deadline_s=send.deadline_s, lag_s=lag_s, absent_seen_at=send.absent_seen_at, now=at,
        )  # fmt: skip

    if late(now):
        assert late(now + timedelta(seconds=more_s))
        assert now > absence_from(send_not_after=FENCE, deadline_s=send.deadline_s, lag_s=lag_s)
