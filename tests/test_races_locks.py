"""Nobody is locked out for good: all lock in one order, what PostgreSQL breaks off is done again, and what must exist once
is made once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import LazySettings
from django.db import connection, transaction
from django.db.models import Model

from jobs.engine import Engine
from jobs.lane import LaneContext
from jobs.lifecycle import providers, staff
from jobs.lifecycle.arm import arm
from jobs.lifecycle.create import NewJob, create_jobs, default_tenant
from jobs.lifecycle.record import Fact, record
from jobs.lifecycle.recover import count_deaths
from jobs.models import Batch, Hold, Job, JobEvent, ProviderTask, Tenant
from jobs.rules import limits
from jobs.states import JobState
from providers.contract import Charge, FailureClass, Refusal
from providers.models import Account, ProviderState
from tests import factories
from tests.two import COMMIT, Point, Still, Two, Work, kinds_of, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


# --- one order of locks -----------------------------------------------------------------------------------------------

RUN = uuid.uuid4()


@pytest.fixture
def high_and_low(two: Two) -> list[ProviderTask]:
    """Two tasks that everything below wants both of; the one with the higher id lies first in the table."""
    low, high = sorted(uuid.uuid4() for _ in range(2))
    return [
        factories.task(factories.job(NOW, JobState.ACTIVE), NOW, armed=False, id=pk, run_id=RUN, work_run_id=RUN)
        for pk in (high, low)
    ]  # fmt: skip


def facts(tasks: list[ProviderTask], **values: Any) -> list[Fact]:
    return [Fact(task_id=task.pk, at=NOW, **{"kind": "learned", **values}) for task in tasks]


LOCKERS: dict[str, Callable[[list[ProviderTask]], object]] = {
    "record": lambda tasks: record(facts=facts(tasks, polled=True)),
    # The id of none: each fact is written on its own, and becomes a case.
    "record one by one": lambda tasks: record(facts=facts(tasks, provider_id="x" * 201)),
    "arm": lambda tasks: arm(
        run_id=RUN, calls={task.pk: (30.0, 60.0) for task in tasks}, clock=Still(NOW)
    ),
    "count_deaths": lambda tasks: count_deaths(live=(), now=NOW),
}


@pytest.mark.parametrize("name", LOCKERS)
def test_whoever_needs_several_tasks_waits_for_the_lowest_id_with_none_in_hand(
    two: Two, high_and_low: list[ProviderTask], name: str
) -> None:
    high, low = high_and_low
    two.b.begin(lambda: record(facts=facts([low], polled=True)), stop=COMMIT)
    assert two.b.until_held()
    two.a.begin(lambda: LOCKERS[name](high_and_low))
    waits = two.a.until_blocked_by(two.b)
    with transaction.atomic():
        free = ProviderTask.objects.select_for_update(skip_locked=True).filter(pk=high.pk).exists()
    two.b.go_on()
    two.b.end()
    two.a.end()
    assert (waits, free) == (True, True)


# --- what PostgreSQL breaks off ---------------------------------------------------------------------------------------


def waits_briefly() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10ms'")


def records_as_a_lane(task: ProviderTask) -> Work:
    """The engine's own recording of one fact, its database thread being the session's."""

    async def db(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return await sync_to_async(function, thread_sensitive=True)(*args, **more)

    def run() -> None:
        lane = cast("LaneContext", SimpleNamespace(db=db, clock=Still(NOW), limits=limits()))
        engine = Engine(lane, asyncio.Event())
        [fact] = facts([task], provider_id="gen_1", decides=True)
        async_to_sync(engine._record)([(fact, None)])

    return run


@pytest.fixture
def task(two: Two, settings: LazySettings, tmp_path: Path) -> ProviderTask:
    settings.SPOOL_DIR = tmp_path
    return factories.task(factories.job(NOW, JobState.ACTIVE), NOW)


def is_recorded_once(task: ProviderTask, spool: Path) -> bool:
    task.refresh_from_db()
    return (
        task.provider_id == "gen_1"
        and kinds_of(task.job_id).count("learned") == 1
        and not list(spool.iterdir())
    )


def test_a_fact_whose_recording_ran_into_a_deadlock_is_recorded_again(
    two: Two, task: ProviderTask, tmp_path: Path
) -> None:
    other = factories.task(factories.job(NOW, JobState.ACTIVE), NOW)

    def stranger() -> None:
        """Has what the recording will want, wants what it has, and takes it all back."""
        with transaction.atomic():
            ProviderTask.objects.filter(pk=other.pk).update(provider_id="gen_1")
            ProviderTask.objects.filter(pk=task.pk).update(last_status="?")
            transaction.set_rollback(True)

    two.a.begin(records_as_a_lane(task), stop=Point("UPDATE jobs_providertask"))
    assert two.a.until_held()
    two.b.begin(stranger)
    assert two.b.until_blocked_by(two.a)
    two.b.until_it_has_looked_for_deadlocks()  # each waiter does so once: the next one will be broken off
    two.a.go_on()
    two.b.end()
    steps = two.a.end().steps
    assert sum("UPDATE jobs_providertask" in step and "provider_id" in step for step in steps) == 2
    assert is_recorded_once(task, tmp_path)


def test_a_fact_whose_recording_waited_too_long_for_a_lock_is_recorded_again(
    two: Two, task: ProviderTask, tmp_path: Path
) -> None:
    two.a.call(waits_briefly)
    two.b.begin(lambda: record(facts=facts([task], polled=True, kind="")), stop=COMMIT)
    assert two.b.until_held()
    two.a.begin(records_as_a_lane(task))
    two.a.until_step("FOR NO KEY UPDATE", times=2)
    two.b.go_on()
    two.b.end()
    two.a.end()
    assert is_recorded_once(task, tmp_path)


# --- what must exist once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dies", [False, True])
def test_the_same_token_twice_at_once_is_one_batch(two: Two, dies: bool) -> None:
    tenant, target, token = default_tenant(), factories.target(), uuid.uuid4()

    def creates() -> Batch:
        jobs = [NewJob(prompt=prompt, route=[target]) for prompt in ("a cat", "a dog")]
        return create_jobs(jobs=jobs, tenant=tenant, actor=None, now=NOW, token=token)

    race = two.race(creates, creates, dies=dies)
    assert race.waited
    assert race.second.value == Batch.objects.get()
    assert (Job.objects.count(), JobEvent.objects.filter(kind="created").count()) == (2, 2)


ONCE: dict[str, tuple[Callable[[], Model], type[Model]]] = {
    "the default tenant": (default_tenant, Tenant),
    "a key's account": (
        lambda: providers.ensure_account(provider="polza", fingerprint="f00d", now=NOW),
        Account,
    ),
}


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("name", ONCE)
def test_two_that_find_it_missing_make_it_once(two: Two, name: str, dies: bool) -> None:
    makes, model = ONCE[name]
    race = two.race(makes, makes, dies=dies)
    assert race.waited
    assert race.second.value == model._default_manager.get()


@pytest.mark.parametrize("waits_s", [(60.0, 600.0), (600.0, 60.0)])
def test_of_two_refusals_at_once_the_longer_block_stands(
    two: Two, waits_s: tuple[float, float]
) -> None:
    account, target = factories.account(NOW), factories.target()

    def notes(wait_s: float) -> Work:
        refusal = Refusal(FailureClass.RATE_LIMITED, Charge.NONE, "too many", wait_s=wait_s)
        told = [(account.pk, target.pk, target.model, refusal)]
        return lambda: providers.note_refusals(refusals=told, now=NOW)

    race = two.race(*(notes(wait_s) for wait_s in waits_s))
    until = ProviderState.objects.get(blocked_until__isnull=False).blocked_until
    assert until is not None
    assert (race.waited, until >= NOW + timedelta(seconds=600)) == (True, True)


# --- the red button ---------------------------------------------------------------------------------------------------


def presses(reason: str) -> Work:
    return lambda: staff.press_red_button(actor=None, now=NOW, reason=reason)


def lifts() -> None:
    staff.lift_red_button(actor=None, now=NOW, reason="")


def standing() -> list[str]:
    return list(Hold.objects.filter(lifted_at=None).values_list("reason", flat=True))


@pytest.mark.parametrize(("dies", "stands"), [(False, "first"), (True, "second")])
def test_two_presses_are_one(two: Two, dies: bool, stands: str) -> None:
    race = two.race(presses("first"), presses("second"), dies=dies)
    assert (race.waited, standing(), Hold.objects.count()) == (True, [stands], 1)


def test_a_press_that_meets_a_lift_waits_and_stands(two: Two) -> None:
    two.a.call(presses("first"))
    race = two.race(lifts, presses("second"))
    assert (race.waited, standing(), Hold.objects.count()) == (True, ["second"], 2)


def test_a_press_that_meets_a_lift_that_dies_finds_the_button_pressed(two: Two) -> None:
    two.a.call(presses("first"))
    race = two.race(lifts, presses("second"), dies=True)
    assert (race.waited, standing(), Hold.objects.count()) == (True, ["first"], 1)


@pytest.mark.parametrize("dies", [False, True])
def test_two_lifts_lift_once(two: Two, dies: bool) -> None:
    two.a.call(presses("first"))
    race = two.race(lifts, lifts, dies=dies)
    assert (race.waited, bool(race.second.refused), standing()) == (True, not dies, [])


def test_a_press_that_is_not_committed_cannot_be_lifted_and_stands(two: Two) -> None:
    race = two.race(presses("first"), lifts)
    assert (race.waited, bool(race.second.refused), standing()) == (False, True, ["first"])
