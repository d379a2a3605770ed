"""P6: a row of each kind that nothing will come back to is listed, and every excuse the promise knows is accepted."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from jobs import phases
from jobs.clock import clock
from jobs.models import Case, Hold, Job, Lane, ProviderTask
from jobs.states import CaseKind, JobState
from jobs.stuck import WHY, stuck
from providers import registry
from providers.models import Account
from tests import factories

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def account(now: datetime) -> Account:
    """The account whose key the settings hold."""
    return factories.account(now, fingerprint=registry.account("polza").fingerprint)


def codes(now: datetime) -> set[tuple[str, str, str]]:
    return {(one.kind, one.id, one.code) for one in stuck(now=now)}


def lane(now: datetime, run_id: uuid.UUID, *, beat: timedelta = timedelta(0)) -> Lane:
    return Lane.objects.create(slot=1, run_id=run_id, heartbeat_at=now - beat, started_at=now)


def _completed(of: Job, now: datetime, **values: Any) -> ProviderTask:
    return factories.accepted(of, now, completed_at=now - MINUTE, **values)


def _failed(of: Job, now: datetime, **values: Any) -> ProviderTask:
    return factories.accepted(of, now, failed_at=now - MINUTE, failure_class="down", **values)


TASKS: dict[str, Any] = {
    "intent_left": lambda of, now: factories.task(of, now, armed=False, created_at=now - HOUR),
    "send_left": lambda of, now: factories.task(of, now, armed_at=now - HOUR),
    "no_poll": factories.accepted,
    "no_fetch": _completed,
    "no_look": factories.lost,
    "no_receipt": _failed,
    "undecided": lambda of, now: factories.accepted(
        of, now, armed_at=now - HOUR, next_poll_at=now, undecided_since=now - 2 * MINUTE
    ),
    "overdue": lambda of, now: factories.accepted(
        of, now, armed_at=now - HOUR, next_poll_at=now - 2 * MINUTE
    ),
}
JOBS = {"nothing_under_way", "not_released", "no_case", "no_key", "not_sent"}


def test_every_reason_is_tried_here() -> None:
    assert set(WHY) == set(TASKS) | JOBS | {"not_told"}  # tests/test_callbacks_outbox.py
    assert all(text for text in WHY.values())


@pytest.mark.parametrize("code", TASKS)
def test_a_task_that_nobody_comes_back_to_is_listed(code: str, now: datetime) -> None:
    task = TASKS[code](factories.job(now, JobState.ACTIVE), now)
    assert codes(now) == {("task", str(task.pk), code)}
    assert all(one.why for one in stuck(now=now))


@pytest.mark.parametrize("code", TASKS)
def test_an_open_case_excuses_a_task(code: str, now: datetime) -> None:
    of = factories.job(now, JobState.ACTIVE)
    factories.case(CaseKind.POISON, now, of=of, by=TASKS[code](of, now))
    assert codes(now) == set()


@pytest.mark.parametrize("code", ["intent_left", "send_left"])
def test_a_live_lane_excuses_its_send_and_a_dead_one_does_not(code: str, now: datetime) -> None:
    task = TASKS[code](factories.job(now, JobState.ACTIVE), now)
    held = lane(now, task.run_id)
    assert codes(now) == set()
    Lane.objects.filter(pk=held.pk).update(heartbeat_at=now - timedelta(seconds=31))
    assert codes(now) == {("task", str(task.pk), code)}


def test_a_live_lane_at_work_excuses_an_overdue_task(now: datetime) -> None:
    task = TASKS["overdue"](factories.job(now, JobState.ACTIVE), now)
    ProviderTask.objects.filter(pk=task.pk).update(work_run_id=lane(now, uuid.uuid4()).run_id)
    assert codes(now) == set()


@pytest.mark.parametrize(
    ("make", "column"),
    [
        (factories.accepted, "next_poll_at"),
        (_completed, "next_fetch_at"),
        (factories.lost, "next_look_at"),
        (_failed, "next_receipt_at"),
    ],
)
@pytest.mark.parametrize(("late_s", "listed"), [(-60, False), (89, False), (91, True)])
def test_a_due_time_excuses_for_ninety_seconds(
    make: Any, column: str, late_s: int, listed: bool, now: datetime
) -> None:
    of = factories.job(now, JobState.ACTIVE)
    make(of, now, armed_at=now - HOUR, **{column: now - timedelta(seconds=late_s)})
    assert bool(codes(now)) is listed


def test_a_persons_release_ends_the_search_but_not_the_watch(now: datetime) -> None:
    released = {"blocks_send": False, "released_by": "person"}
    factories.lost(factories.job(now, JobState.CANCELLED, decided_at=now), now, **released)
    watched = factories.accepted(
        factories.job(now, JobState.CANCELLED, decided_at=now), now, **released
    )
    assert codes(now) == {("task", str(watched.pk), "no_poll")}


def test_a_case_closed_by_a_person_settles_a_paid_task_without_a_file(now: datetime) -> None:
    of = factories.job(now, JobState.SUCCEEDED)
    task = _completed(of, now, blocks_send=False, released_by="person")
    case = factories.case(CaseKind.PAID_WITHOUT_RESULT, now, of=of, by=task)
    Case.objects.filter(pk=case.pk).update(resolved_at=now, resolution="done")
    assert codes(now) == set()


def test_a_death_just_counted_is_not_old(now: datetime) -> None:
    of = factories.job(now, JobState.ACTIVE)
    task = factories.accepted(of, now, armed_at=now - HOUR, next_poll_at=now)
    ProviderTask.objects.filter(pk=task.pk).update(undecided_since=task.created_at, deaths=1)
    held = lane(now, uuid.uuid4())
    assert codes(now) == set()
    Lane.objects.filter(pk=held.pk).update(run_id=None)
    assert codes(now) == {("task", str(task.pk), "undecided")}


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_an_active_job_without_a_send_is_listed(now: datetime) -> None:
    of = factories.job(now, JobState.ACTIVE)
    assert codes(now) == {("job", str(of.pk), "nothing_under_way")}


def test_an_active_job_whose_send_is_settled_is_listed_once_nobody_will_decide(
    now: datetime,
) -> None:
    of = factories.job(now, JobState.ACTIVE)
    task = factories.task(
        of, now, refusal_class="rejected", refused_at=now, undecided_since=now - timedelta(seconds=2)
    )  # fmt: skip
    assert codes(now) == set()
    ProviderTask.objects.filter(pk=task.pk).update(undecided_since=None)
    assert codes(now) == {("job", str(of.pk), "not_released")}


def test_a_manual_job_needs_an_open_blocking_case(now: datetime) -> None:
    of = factories.job(now, JobState.MANUAL, reason="by_hand")
    factories.case(CaseKind.PAID_TWICE, now, of=of)
    assert codes(now) == {("job", str(of.pk), "no_case")}
    factories.case(CaseKind.BY_HAND, now, of=of)
    assert codes(now) == set()


def test_a_pending_job_that_could_go_is_listed(now: datetime, account: Account) -> None:
    of = factories.job(now, created_at=now - HOUR)
    factories.job(now, created_at=now - timedelta(seconds=80))
    assert codes(now) == {("job", str(of.pk), "not_sent")}
    assert phases.why_waiting([of], now)[of.pk].text == "next in line"


def test_a_pending_job_of_a_provider_without_a_key_is_listed(now: datetime) -> None:
    factories.account(now, fingerprint="of an old key")
    of = factories.job(now, created_at=now - HOUR)
    assert codes(now) == {("job", str(of.pk), "no_key")}


def _wait_hold(of: Job, now: datetime, account: Account) -> None:
    Hold.objects.create(kind=Hold.Kind.RED_BUTTON, set_at=now, reason="test")


def _wait_stopped(of: Job, now: datetime, account: Account) -> None:
    type(of.target).objects.filter(pk=of.target_id).update(stopped_at=now, stopped_reason="wrong")


def _wait_paused(of: Job, now: datetime, account: Account) -> None:
    factories.provider_state(now, "paused", account=account)


def _wait_blocked(of: Job, now: datetime, account: Account) -> None:
    factories.provider_state(
        now, "throttled", account=account, model=of.target.model, blocked_until=now + MINUTE
    )


def _fly(of: Job, now: datetime) -> None:
    factories.accepted(of, now, armed_at=now - 5 * MINUTE, next_poll_at=now)


def _wait_tenant(of: Job, now: datetime, account: Account) -> None:
    type(of.tenant).objects.filter(pk=of.tenant_id).update(max_in_flight=1)
    _fly(factories.job(now, JobState.ACTIVE), now)


def _wait_target(of: Job, now: datetime, account: Account) -> None:
    type(of.target).objects.filter(pk=of.target_id).update(max_in_flight=1)
    _fly(factories.job(now, JobState.ACTIVE), now)


def _wait_budget(of: Job, now: datetime, account: Account) -> None:
    type(of.tenant).objects.filter(pk=of.tenant_id).update(monthly_limit=1)


def _wait_full(of: Job, now: datetime, account: Account) -> None:
    for _ in range(2):
        _fly(factories.job(now, JobState.ACTIVE), now)


@pytest.mark.parametrize(
    "make_wait",
    [_wait_hold, _wait_stopped, _wait_paused, _wait_blocked, _wait_tenant, _wait_target, _wait_budget,
     _wait_full],
)  # fmt: skip
@override_settings(WORKER_CONCURRENCY=2)
def test_a_reason_to_wait_excuses_and_people_are_told_the_same(
    make_wait: Any, now: datetime, account: Account
) -> None:
    of = factories.job(now, created_at=now - HOUR)
    make_wait(of, now, account)
    assert codes(now) == set()
    fresh = Job.objects.select_related("tenant").get(pk=of.pk)
    assert phases.why_waiting([fresh], now)[of.pk].text != "next in line"


@override_settings(EXPOSURE_LIMIT_PRICES=1)
def test_the_exposure_brake_excuses(now: datetime, account: Account) -> None:
    factories.job(now, created_at=now - HOUR)
    of = factories.job(now, JobState.ACTIVE)
    factories.lost(of, now, armed_at=now - HOUR, next_look_at=now)
    assert codes(now) == set()


def test_a_block_that_has_ended_excuses_nothing(now: datetime, account: Account) -> None:
    of = factories.job(now, created_at=now - HOUR)
    factories.provider_state(now, "throttled", account=account, blocked_until=now - MINUTE)
    assert codes(now) == {("job", str(of.pk), "not_sent")}


def test_a_job_behind_others_that_go_out_is_not_stuck(now: datetime, account: Account) -> None:
    factories.job(now, created_at=now - HOUR)
    done = factories.job(now, JobState.CANCELLED, decided_at=now)
    factories.task(done, now, armed=False, created_at=now - timedelta(seconds=20), unsent_at=now,
                   blocks_send=False, released_by="unsent")  # fmt: skip
    assert codes(now) == set()


def test_jobs_that_ended_well_are_never_listed(now: datetime) -> None:
    factories.done(now)
    factories.job(now, JobState.FAILED)
    factories.job(now, JobState.CANCELLED, decided_at=now)
    assert codes(now) == set()
