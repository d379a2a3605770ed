"""Facts and decisions that meet: every fact is kept whoever wins, each is told once, and nobody is locked out."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings

from jobs.lifecycle import decide as deciding
from jobs.lifecycle import staff
from jobs.lifecycle.decide import decide
from jobs.lifecycle.record import Fact, FileFact, record
from jobs.lifecycle.recover import count_deaths, declare_lost, undecided_jobs
from jobs.models import Case, Job, ProviderTask, Result
from jobs.rules import rules
from jobs.states import CaseKind, JobState
from tests import factories
from tests.two import Point, Two, Work, kinds_of, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON = NOW + timedelta(seconds=3)


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


@pytest.fixture
def task(two: Two) -> ProviderTask:
    """Armed long ago: no answer can come any more, unless a spool holds it."""
    return factories.task(
        factories.job(NOW, JobState.ACTIVE), NOW, armed_at=NOW - timedelta(minutes=5)
    )


def learns(of: ProviderTask, **values: Any) -> Work:
    defaults: dict[str, Any] = {"at": NOW, "kind": "learned", "decides": True}
    return lambda: record(facts=[Fact(task_id=of.pk, **defaults | values)])


def decides(*jobs: int) -> Work:
    return lambda: decide(job_ids=jobs, rules=rules(), now=NOW, rng=random.Random(1))


def told(of: ProviderTask, kind: str = "learned") -> int:
    return kinds_of(of.job_id).count(kind)


def conflicts() -> list[Case]:
    return list(Case.objects.filter(kind=CaseKind.CONFLICT))


def fresh(of: ProviderTask) -> ProviderTask:
    return ProviderTask.objects.get(pk=of.pk)


# --- fact against fact ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", [False, True])
def test_the_same_fact_twice_at_once_is_one_fact_told_once(
    two: Two, task: ProviderTask, dies: bool
) -> None:
    race = two.race(learns(task, provider_id="gen_1"), learns(task, provider_id="gen_1"), dies=dies)
    assert race.waited
    assert (fresh(task).provider_id, told(task), conflicts()) == ("gen_1", 1, [])


CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"provider_id": "gen_1"}, {"provider_id": "gen_2"}, "provider_id"),
    ({"provider_id": "gen_1"}, {"refusal_class": "down"}, "accepted_and_refused"),
    ({"provider_id": "gen_1"}, {"unsent": True}, "accepted_and_unsent"),
    ({"failed": True}, {"completed": True}, "failed_then_completed"),
    ({"completed": True}, {"failed": True}, "completed_then_failed"),
]


@pytest.mark.parametrize(("first", "second", "why"), CONTRADICTIONS)
def test_the_first_fact_stays_and_the_one_that_waited_becomes_a_case_with_all_it_said(
    two: Two, task: ProviderTask, first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    race = two.race(learns(task, **first), learns(task, **second))
    [case] = conflicts()
    assert (race.waited, case.detail["why"]) == (True, why)
    assert case.detail["fact"].items() >= second.items()
    assert (told(task, "conflict"), fresh(task).undecided_since) == (1, NOW)


@pytest.mark.parametrize(("first", "second", "why"), CONTRADICTIONS)
def test_a_fact_whose_recorder_died_contradicts_nobody(
    two: Two, task: ProviderTask, first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    two.race(learns(task, **first), learns(task, **second), dies=True)
    assert (conflicts(), told(task)) == ([], 1)


def test_of_three_ids_for_one_send_none_is_lost(two: Two, task: ProviderTask) -> None:
    two.a.call(learns(task, provider_id="gen_1"))
    two.race(learns(task, provider_id="gen_2"), learns(task, provider_id="gen_3"))
    [case] = conflicts()
    assert all(name in str(case.detail) for name in ("gen_2", "gen_3"))


def test_different_facts_of_one_task_are_both_written(two: Two, task: ProviderTask) -> None:
    race = two.race(
        learns(task, lost=True, next_look_at=SOON, kind="lost"),
        learns(task, provider_id="gen_1", next_poll_at=SOON),
    )
    task = fresh(task)
    assert (race.waited, task.state, task.lost_at) == (True, "accepted", NOW)
    assert (task.next_poll_at, task.next_look_at, conflicts()) == (SOON, None, [])
    assert (told(task), told(task, "lost")) == (1, 1)


@pytest.mark.parametrize("dies", [False, True])
def test_one_id_for_two_tasks_goes_to_whoever_committed_it(
    two: Two, task: ProviderTask, dies: bool
) -> None:
    other = factories.task(factories.job(NOW, JobState.ACTIVE), NOW)
    race = two.race(
        learns(task, provider_id="gen_1"), learns(other, provider_id="gen_1"), dies=dies
    )
    assert race.waited
    assert (fresh(task).provider_id, fresh(other).provider_id) == (
        (None, "gen_1") if dies else ("gen_1", None)
    )
    assert [case.task_id for case in conflicts()] == ([] if dies else [other.pk])


def test_a_file_fetched_by_two_lanes_is_one_result(two: Two, task: ProviderTask) -> None:
    def stores(key: str) -> Work:
        file = FileFact(
            position=0, key=key, thumb_key="", sha256="0" * 64, media_type="image/png", size_bytes=3
        )
        return learns(task, completed=True, stored=True, results=(file,))

    race = two.race(stores("a.png"), stores("b.png"))
    assert (race.waited, Result.objects.get(task=task).key) == (True, "a.png")
    assert (told(task), conflicts()) == (1, [])


def orphan(name: str) -> Work:
    fact = Fact(task_id=uuid.uuid4(), at=NOW, kind="accepted", provider_id=name)
    return lambda: record(facts=[fact])


def test_facts_of_forgotten_tasks_that_come_at_once_are_both_kept(two: Two) -> None:
    race = two.race(orphan("gen_7"), orphan("gen_8"))
    case = Case.objects.get(kind=CaseKind.ORPHAN)
    assert race.waited
    assert [kept["fact"]["provider_id"] for kept in case.detail["facts"]] == ["gen_7", "gen_8"]


def test_a_fact_of_a_forgotten_task_is_kept_though_its_case_is_closed_at_that_moment(
    two: Two,
) -> None:
    two.a.call(orphan("gen_7"))
    case = Case.objects.get(kind=CaseKind.ORPHAN)

    def closes() -> None:
        staff.close_case(case_id=case.pk, actor=None, now=NOW, resolution="seen", note="theirs")

    # The fact has seen an open case, and is about to write in it.
    race = two.race(orphan("gen_8"), closes, at=Point("FOR UPDATE"))
    case.refresh_from_db()
    assert (race.waited, case.resolution) == (False, "seen")
    kept = Case.objects.get(kind=CaseKind.ORPHAN, resolved_at=None)
    assert [item["fact"]["provider_id"] for item in kept.detail["facts"]] == ["gen_8"]


# --- fact against decision --------------------------------------------------------------------------------------------


def test_a_decision_that_meets_a_fact_half_recorded_waits_and_reads_it(
    two: Two, task: ProviderTask
) -> None:
    race = two.race(
        learns(task, refusal_class="rejected", failure_class="rejected"), decides(task.job_id)
    )
    task = fresh(task)
    assert (race.waited, task.blocks_send, task.undecided_since) == (True, False, None)
    assert Job.objects.get(pk=task.job_id).state == "failed"


def test_a_fact_that_meets_a_decision_waits_and_is_decided_next_time(
    two: Two, task: ProviderTask
) -> None:
    two.a.call(learns(task, lost=True, next_look_at=SOON))
    race = two.race(decides(task.job_id), learns(task, provider_id="gen_1", next_poll_at=SOON))
    assert (race.waited, fresh(task).undecided_since) == (True, NOW)
    assert undecided_jobs(now=NOW + timedelta(minutes=1)) == {task.job_id}


def test_one_of_two_decisions_decides_and_the_other_leaves_at_once(
    two: Two, task: ProviderTask
) -> None:
    two.a.call(learns(task, refusal_class="rejected", failure_class="rejected"))
    race = two.race(decides(task.job_id), decides(task.job_id))
    assert not race.waited
    assert [told(task, kind) for kind in ("released", "failed")] == [1, 1]
    assert Case.objects.filter(kind=CaseKind.REFUSED_BY_ALL).count() == 1


def test_what_a_dead_decision_left_is_decided_by_the_next(two: Two, task: ProviderTask) -> None:
    two.a.call(learns(task, refusal_class="rejected", failure_class="rejected"))
    race = two.race(decides(task.job_id), decides(task.job_id), dies=True)
    assert (race.first.killed, told(task, "released"), fresh(task).blocks_send) == (True, 0, True)
    two.b.call(decides(*undecided_jobs(now=NOW + timedelta(minutes=1))))
    assert (told(task, "released"), fresh(task).blocks_send) == (1, False)


def test_a_job_that_cannot_be_decided_is_set_aside_in_the_common_lock_order(
    two: Two, task: ProviderTask
) -> None:
    two.a.call(learns(task, lost=True))

    def sets_aside() -> None:
        deciding._set_aside(task.job_id, now=NOW, why="ValueError")

    def cancels() -> None:
        staff.cancel(job_id=task.job_id, actor=None, now=NOW)

    race = two.race(sets_aside, cancels, at=Point('UPDATE "jobs_job"'))
    assert (race.waited, Job.objects.get(pk=task.job_id).state) == (True, "cancelled")
    assert kinds_of(task.job_id)[-1] == "cancelled"


# --- fact against the sweep -------------------------------------------------------------------------------------------


def calls_it_lost() -> set[int]:
    return declare_lost(now=NOW)


REFUSAL = {"refusal_class": "rate_limited", "failure_class": "rate_limited", "wait_s": 30.0}


@pytest.mark.parametrize("answer", [REFUSAL, {"provider_id": "gen_1"}])
def test_an_answer_stands_though_the_sweep_calls_the_send_lost_while_it_is_recorded(
    two: Two, task: ProviderTask, answer: dict[str, Any]
) -> None:
    race = two.race(learns(task, **answer), calls_it_lost)
    after = fresh(task)
    assert (race.waited, race.second.value, told(task, "lost")) == (False, set(), 0)
    assert (after.lost_at, after.failure_class) == (None, answer.get("failure_class", ""))


def test_wherever_the_sweep_stands_the_answer_is_what_counts(two: Two, task: ProviderTask) -> None:
    numbers = range(len(two.a.call(calls_it_lost).steps))
    assert fresh(task).state == "unknown"
    for number in numbers:
        send = factories.task(
            factories.job(NOW, JobState.ACTIVE), NOW, armed_at=NOW - timedelta(minutes=5)
        )
        two.race(calls_it_lost, learns(send, **REFUSAL), at=Point(number=number))
        send = fresh(send)
        assert (send.state, send.failure_class) == ("refused", "rate_limited"), number
        assert send.next_look_at is None


def test_a_send_whose_answer_never_came_is_called_lost_once(two: Two, task: ProviderTask) -> None:
    race = two.race(calls_it_lost, calls_it_lost)
    assert (race.first.value, told(task, "lost"), fresh(task).state) == (
        {task.job_id},
        1,
        "unknown",
    )


def counts_deaths() -> None:
    count_deaths(live=(), now=NOW)


@pytest.fixture
def at_work(two: Two) -> ProviderTask:
    """Being polled by a run that is dead, or slow."""
    job = factories.job(NOW, JobState.ACTIVE)
    return factories.accepted(job, NOW, work_run_id=uuid.uuid4(), next_poll_at=SOON)


def test_a_death_is_counted_once_by_two_sweeps_at_once(two: Two, at_work: ProviderTask) -> None:
    race = two.race(counts_deaths, counts_deaths)
    assert (race.waited, fresh(at_work).deaths) == (True, 1)


def test_no_death_is_counted_where_the_slow_lanes_answer_is_just_recorded(
    two: Two, at_work: ProviderTask
) -> None:
    race = two.race(learns(at_work, polled=True, next_poll_at=SOON), counts_deaths)
    at_work = fresh(at_work)
    assert (race.waited, at_work.deaths, at_work.next_poll_at) == (True, 0, SOON)


def test_a_slow_lanes_answer_clears_the_death_that_was_just_counted(
    two: Two, at_work: ProviderTask
) -> None:
    race = two.race(counts_deaths, learns(at_work, polled=True, next_poll_at=SOON))
    at_work = fresh(at_work)
    assert (race.waited, at_work.deaths, at_work.next_poll_at) == (True, 0, SOON)
