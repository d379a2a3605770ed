"""Two lanes at the same queue: no job and no row goes to both, and no limit is passed, wherever the first stands."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import IntegrityError
from django.db.models import Model

from jobs.lifecycle import claim, staff
from jobs.lifecycle.claim import DUE_COLUMNS, claim_due, claim_sends
from jobs.lifecycle.record import Fact, record
from jobs.models import Job, JobEvent, ProviderTask
from jobs.rules import Limits, limits
from jobs.states import JobState
from tests import factories
from tests.two import Point, Two, Work, kinds_of, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE_S = 45.0


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


def ids(rows: list[Any]) -> set[Any]:
    return {row.job_id for row in rows}


# --- sends ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(two: Two) -> list[Job]:
    """Five jobs of one tenant, for one target with a known key."""
    factories.account(NOW)
    return [factories.job(NOW) for _ in range(5)]


def sends(*, room: int, most: Limits | None = None) -> Work:
    return lambda: claim_sends(
        run_id=uuid.uuid4(), host="desk-1", room=room, now=NOW, limits=most or replace(limits(), concurrency=100),
        fingerprints=["f00dfeedcafe"],
    )  # fmt: skip


def in_flight() -> int:
    return ProviderTask.objects.in_flight(now=NOW, poll_deadline_s=900).count()


@pytest.fixture(params=["all", "tenant", "target"])
def three(request: pytest.FixtureRequest, waiting: list[Job]) -> Limits:
    """A limit of three in flight: of everything, or of the tenant or the target of the waiting jobs."""
    if request.param == "all":
        return replace(limits(), concurrency=3)
    row: Model = getattr(waiting[0], request.param)
    row.max_in_flight = 3  # type: ignore[attr-defined]
    row.save()
    return replace(limits(), concurrency=100)


def test_the_second_claim_counts_what_the_first_has_taken_though_it_began_before(
    two: Two, three: Limits
) -> None:
    race = two.race(sends(room=2, most=three), sends(room=5, most=three))
    assert race.waited
    assert (len(race.first.value), len(race.second.value), in_flight()) == (2, 1, 3)
    assert not ids(race.first.value) & ids(race.second.value)


def test_a_claim_that_dies_before_its_commit_has_taken_nothing(two: Two, three: Limits) -> None:
    race = two.race(sends(room=2, most=three), sends(room=5, most=three), dies=True)
    assert (race.waited, race.first.killed) == (True, True)
    assert (len(race.second.value), in_flight()) == (3, 3)


def test_wherever_a_claim_stands_no_job_is_claimed_twice_and_no_limit_is_passed(
    two: Two, waiting: list[Job]
) -> None:
    most = replace(limits(), concurrency=3)
    steps = two.a.call(sends(room=2, most=most)).steps
    for number in range(steps.index("COMMIT") + 1):
        all_wait_again()
        race = two.race(sends(room=2, most=most), sends(room=2, most=most), at=Point(number=number))
        both = [*race.first.value, *race.second.value]
        assert (len(both), len(ids(both)), in_flight()) == (3, 3, 3), steps[number]
        # Until the first has asked for the lock, the second does not wait for it.
        assert race.waited == (number > 0), steps[number]


def all_wait_again() -> None:
    JobEvent.objects.all().delete()
    ProviderTask.objects.all().delete()
    Job.objects.update(state=JobState.PENDING)


def test_two_intents_for_one_job_are_impossible_though_every_guard_of_the_claim_is_gone(
    two: Two, waiting: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = claim._PENDING.replace("FOR NO KEY UPDATE SKIP LOCKED", "")
    monkeypatch.setattr(claim, "_PENDING", blind)

    def with_a_lock_of_its_own() -> object:
        monkeypatch.setattr(claim, "ADMISSION_LOCK", 2)
        try:
            return sends(room=5)()
        except IntegrityError as error:
            return error

    race = two.race(sends(room=5), with_a_lock_of_its_own)
    assert race.waited
    assert "task_one_blocks_send" in str(race.second.value)
    assert ProviderTask.objects.count() == len(race.first.value) == 5


# --- a claim and what else happens to a waiting job -------------------------------------------------------------------


def cancels(job: Job) -> Work:
    return lambda: staff.cancel(job_id=job.pk, actor=None, now=NOW)


def retargets(job: Job) -> Work:
    other = factories.target("other")
    return lambda: staff.retry_on_target(job_id=job.pk, target_id=other.pk, actor=None, now=NOW)


@pytest.mark.parametrize("verb", [cancels, retargets])
def test_a_claim_passes_by_a_job_that_somebody_has_in_hand(
    two: Two, waiting: list[Job], verb: Any
) -> None:
    for dies in (True, False):
        race = two.race(verb(waiting[0]), sends(room=5), dies=dies)
        assert not race.waited
        assert ids(race.second.value) == {job.pk for job in waiting[1:]}
        assert not waiting[0].tasks.exists()
        if dies:
            all_wait_again()


def test_a_cancel_that_meets_a_claim_waits_and_withdraws_its_intent(
    two: Two, waiting: list[Job]
) -> None:
    race = two.race(sends(room=5), cancels(waiting[0]))
    waiting[0].refresh_from_db()
    task = waiting[0].tasks.get()
    assert (race.waited, waiting[0].state) == (True, "cancelled")
    assert (task.state, task.blocks_send, task.released_by) == ("unsent", False, "unsent")


def test_a_job_that_is_being_claimed_is_not_sent_elsewhere(two: Two, waiting: list[Job]) -> None:
    race = two.race(sends(room=5), retargets(waiting[0]))
    waiting[0].refresh_from_db()
    assert (race.waited, bool(race.second.refused)) == (True, True)
    assert (waiting[0].state, waiting[0].tasks.count()) == ("active", 1)


# --- rows that are due ------------------------------------------------------------------------------------------------

DUE: dict[str, Callable[[Job, datetime], ProviderTask]] = {
    "next_poll_at": lambda job, at: factories.accepted(job, NOW, next_poll_at=at),
    "next_fetch_at": lambda job, at: factories.accepted(
        job, NOW, completed_at=at, next_fetch_at=at
    ),
    "next_look_at": lambda job, at: factories.lost(job, NOW, next_look_at=at),
    "next_receipt_at": lambda job, at: factories.accepted(
        job, NOW, failed_at=at, next_receipt_at=at
    ),
}


def due(column: str, *, room: int = 10) -> Work:
    return lambda: claim_due(
        column=column, run_id=uuid.uuid4(), room=room, lease_s=LEASE_S, now=NOW
    )


def due_rows(column: str, count: int) -> list[ProviderTask]:
    """The longest due first."""
    times = [NOW - timedelta(seconds=count - number) for number in range(count)]
    return [DUE[column](factories.job(NOW, JobState.ACTIVE), at) for at in times]


def test_every_column_that_is_claimed_by_its_time_is_tried_here() -> None:
    assert DUE.keys() == DUE_COLUMNS.keys()


@pytest.mark.parametrize("column", DUE)
def test_no_row_goes_to_two_lanes_and_neither_waits_for_the_other(two: Two, column: str) -> None:
    rows = due_rows(column, 4)
    race = two.race(due(column, room=2), due(column))
    first, second = race.first.value, race.second.value
    assert not race.waited
    assert {task.pk for task in first} == {task.pk for task in rows[:2]}
    assert {task.pk for task in second} == {task.pk for task in rows[2:]}
    # What is returned still tells when it was due.
    assert {getattr(task, column) for task in [*first, *second]} == {
        getattr(row, column) for row in rows
    }
    assert claimed_until(column) == [NOW + timedelta(seconds=LEASE_S)] * 4


@pytest.mark.parametrize("column", DUE)
def test_rows_of_a_lane_that_died_before_its_commit_are_due_as_before(
    two: Two, column: str
) -> None:
    due_rows(column, 4)
    race = two.race(due(column, room=2), due(column), dies=True)
    assert (race.first.killed, len(race.second.value)) == (True, 2)
    assert len(two.b.call(due(column)).value) == 2


@pytest.mark.parametrize("column", DUE)
def test_what_a_lane_took_and_never_brought_back_is_due_again_at_the_end_of_its_lease(
    two: Two, column: str
) -> None:
    (row,) = due_rows(column, 1)
    for moment, found in ((0.0, [row.pk]), (LEASE_S - 1, []), (LEASE_S, [row.pk])):
        again = claim_due(
            column=column, run_id=uuid.uuid4(), room=9, lease_s=LEASE_S, now=NOW + timedelta(seconds=moment)
        )  # fmt: skip
        assert [task.pk for task in again] == found, moment


def claimed_until(column: str) -> list[datetime]:
    return list(ProviderTask.objects.values_list(column, flat=True))


def running(task: ProviderTask, at: datetime = NOW) -> Work:
    """What a poll that began at `at` tells: still at it, ask again in three seconds."""
    again = at + timedelta(seconds=3)
    return lambda: record(
        facts=[Fact(task_id=task.pk, at=at, kind="", polled=True, next_poll_at=again)]
    )


def completed(task: ProviderTask) -> Work:
    return lambda: record(
        facts=[Fact(task_id=task.pk, at=NOW, kind="completed", decides=True, completed=True)]
    )


def test_a_row_whose_answer_is_being_recorded_is_not_polled_again(two: Two) -> None:
    [task] = due_rows("next_poll_at", 1)
    for answer in (running(task), completed(task)):
        race = two.race(answer, due("next_poll_at"))
        assert (race.waited, race.second.value) == (False, [])


def test_a_zombies_verdict_ends_the_polling_though_another_lane_has_just_claimed_the_row(
    two: Two,
) -> None:
    [task] = due_rows("next_poll_at", 1)
    race = two.race(due("next_poll_at"), completed(task))
    task.refresh_from_db()
    assert (race.waited, len(race.first.value)) == (True, 1)
    assert (task.state, task.next_poll_at, task.work_run_id) == ("completed", None, None)


# --- asking now, and the answer to an older poll ----------------------------------------------------------------------


def asks(task: ProviderTask) -> Work:
    return lambda: staff.poll_now(task_id=task.pk, actor=None, now=NOW)


@pytest.mark.parametrize("asked_first", [True, False])
def test_an_older_polls_answer_does_not_put_off_what_a_person_asked_for(
    two: Two, asked_first: bool
) -> None:
    [task] = due_rows("next_poll_at", 1)
    answer = running(task, NOW - timedelta(seconds=1))
    race = two.race(*((asks(task), answer) if asked_first else (answer, asks(task))))
    task.refresh_from_db()
    assert (race.waited, task.next_poll_at, task.polls) == (True, NOW, 1)


def test_asking_while_the_verdict_is_being_recorded_is_refused(two: Two) -> None:
    [task] = due_rows("next_poll_at", 1)
    race = two.race(completed(task), asks(task))
    task.refresh_from_db()
    assert (race.waited, bool(race.second.refused)) == (True, True)
    assert (task.next_poll_at, task.hinted_at) == (None, None)
    assert "poll_asked" not in kinds_of(task.job_id)


def test_asking_just_before_the_verdict_polls_no_more(two: Two) -> None:
    [task] = due_rows("next_poll_at", 1)
    race = two.race(asks(task), completed(task))
    task.refresh_from_db()
    assert (race.waited, task.state, task.next_poll_at) == (True, "completed", None)
