"""Slots, the bell, the queue's broker and the entry points, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.db import connection, transaction
from django_q.models import OrmQ, Schedule

from jobs import bell, lanes
from jobs.broker import NotifyingBroker
from jobs.clock import clock
from jobs.models import Job, Lane, Tenant
from providers.models import Target

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def two_lanes(settings: LazySettings, tmp_path: Path) -> None:
    settings.WORKER_LANES = 2
    settings.SPOOL_DIR = tmp_path
    lanes.ensure_slots(2)


def take(now: datetime | None = None) -> lanes.Held:
    held = lanes.take(host="here", pid=1, version="v", now=now or clock.now())
    assert held is not None
    return held


def later(seconds: float) -> datetime:
    return clock.now() + timedelta(seconds=seconds)


def make_job(**fields: Any) -> Job:
    now = clock.now()
    tenant = Tenant.objects.create(slug=uuid.uuid4().hex[:10], name="T")
    target = Target.objects.create(
        provider="polza", model=uuid.uuid4().hex[:10], kind="image", price=1, currency="RUB"
    )
    values = {"not_before": now, "attempts_since": now, "created_at": now, **fields}
    return Job.objects.create(
        tenant=tenant, target=target, route=[target.pk], prompt="a cat", **values
    )


@pytest.fixture
def other_session() -> Iterator[psycopg.Connection[Any]]:
    """A second session on the tests' database."""
    with psycopg.connect(**bell.direct_parameters(), autocommit=True) as session:
        yield session


# --- slots ------------------------------------------------------------------------------------------------------------


def test_slots_are_made_once_and_never_removed() -> None:
    lanes.ensure_slots(4)
    lanes.ensure_slots(2)
    assert list(Lane.objects.order_by("slot").values_list("slot", flat=True)) == [1, 2, 3, 4]


def test_every_slot_is_taken_once_and_then_none_is_left() -> None:
    assert {take().slot, take().slot} == {1, 2}
    assert lanes.take(host="h", pid=1, version="", now=clock.now()) is None


def test_slots_above_the_setting_are_not_taken() -> None:
    lanes.ensure_slots(5)
    take(), take()
    assert lanes.take(host="h", pid=1, version="", now=clock.now()) is None


def test_a_slot_that_another_process_is_just_taking_is_passed_over(
    other_session: psycopg.Connection[Any],
) -> None:
    with other_session.transaction():
        other_session.execute("SELECT FROM jobs_lane WHERE slot = 1 FOR UPDATE")
        assert take().slot == 2


def test_a_run_is_dead_after_thirty_seconds_without_a_heartbeat_and_its_slot_is_taken_over() -> (
    None
):
    first, _second = take(), take()
    assert lanes.heartbeat(run_id=_second.run_id, now=later(29))
    assert lanes.take(host="h", pid=1, version="", now=later(29)) is None
    assert lanes.live_runs(later(29)) == {first.run_id, _second.run_id}
    assert lanes.live_runs(later(31)) == {_second.run_id}

    again = lanes.take(host="h", pid=2, version="", now=later(31))
    assert again is not None
    assert again.slot == first.slot
    assert not lanes.heartbeat(run_id=first.run_id, now=later(31)), (
        "the old run must find itself fenced"
    )
    assert not lanes.free(run_id=first.run_id), "and must not free what is no longer its own"
    assert lanes.heartbeat(run_id=again.run_id, now=later(32))


def test_a_freed_slot_is_taken_by_a_new_run() -> None:
    first = take()
    assert lanes.free(run_id=first.run_id)
    assert not lanes.heartbeat(run_id=first.run_id, now=clock.now())
    second = take()
    assert second.slot == first.slot
    assert second.run_id != first.run_id


def test_dead_runs_lose_their_slots_and_live_ones_keep_them() -> None:
    dead, living = take(), take()
    lanes.heartbeat(run_id=living.run_id, now=later(31))
    assert lanes.free_dead(later(31)) == 1
    assert set(Lane.objects.filter(run_id__isnull=False).values_list("run_id", flat=True)) == {
        living.run_id
    }
    assert dead.run_id not in lanes.live_runs(later(31))


def test_a_mark_without_a_lock_means_that_the_run_was_killed(tmp_path: Path) -> None:
    killed, living = take(), take()
    (tmp_path / "lanes").mkdir()
    (tmp_path / "lanes" / str(killed.run_id)).touch()
    with lanes.life_mark(living.run_id):
        assert lanes.free_killed() == 1
    assert lanes.live_runs(clock.now()) == {living.run_id}
    assert list((tmp_path / "lanes").iterdir()) == []


def test_a_lane_runs_without_a_mark_where_nothing_can_be_written(tmp_path: Path) -> None:
    held = take()
    (tmp_path / "lanes").write_text("no folder")
    with lanes.life_mark(held.run_id):
        assert held.run_id in lanes.live_runs(clock.now())


def test_a_disk_that_fails_under_a_running_lane_does_not_fail_its_end(tmp_path: Path) -> None:
    with lanes.life_mark(take().run_id):
        (tmp_path / "lanes").rename(tmp_path / "away")
        (tmp_path / "lanes").write_text("no folder")


def test_a_mark_that_cannot_be_opened_hides_no_other(tmp_path: Path) -> None:
    unclear, killed = sorted([take(), take()], key=lambda held: str(held.run_id))
    (tmp_path / "lanes").mkdir()
    (tmp_path / "lanes" / str(unclear.run_id)).mkdir()  # not to be opened as a file, whoever asks
    (tmp_path / "lanes" / str(killed.run_id)).touch()
    assert lanes.free_killed() == 1
    assert lanes.live_runs(clock.now()) == {unclear.run_id}


def test_a_run_of_another_machine_leaves_no_mark_and_keeps_its_slot() -> None:
    elsewhere = take()
    assert lanes.free_killed() == 0
    assert elsewhere.run_id in lanes.live_runs(clock.now())


# --- is there work ----------------------------------------------------------------------------------------------------


def test_an_empty_desk_needs_no_lane() -> None:
    assert not lanes.work_waiting(clock.now())


@pytest.mark.parametrize(("wait_s", "waits"), [(-1, True), (80, True), (200, False)])
def test_a_pending_job_needs_a_lane_unless_the_next_minutes_ring_comes_in_time(
    wait_s: float, waits: bool
) -> None:
    make_job(not_before=later(wait_s))
    assert lanes.work_waiting(clock.now()) is waits


# --- the bell ---------------------------------------------------------------------------------------------------------


def test_a_ring_calls_one_lane_for_each_that_is_missing_and_a_second_ring_none() -> None:
    bell.ring()
    assert bell.bells_waiting() == 2
    bell.ring()
    assert OrmQ.objects.count() == 2


def test_nobody_is_called_while_all_lanes_live() -> None:
    take(), take()
    bell.ring()
    assert OrmQ.objects.count() == 0


def test_a_draining_lane_does_not_count_as_one_that_would_see_the_work() -> None:
    draining, _ = take(), take()
    lanes.drain(run_id=draining.run_id)
    bell.ring()
    assert OrmQ.objects.count() == 1


def test_other_messages_in_the_queue_are_no_bells() -> None:
    NotifyingBroker().enqueue("not a signed package")
    bell.ring()
    assert OrmQ.objects.count() == 3


def test_a_popped_bell_counts_no_more() -> None:
    bell.ring()
    OrmQ.objects.update(lock=later(300))
    bell.ring()
    assert OrmQ.objects.count() == 4


def test_nothing_rings_for_a_transaction_that_is_rolled_back() -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        bell.ring()
        raise ZeroDivisionError
    assert OrmQ.objects.count() == 0


def test_the_bells_path_leads_to_the_entry_point(engine: list[lanes.Held]) -> None:
    module, _, name = bell.RUN_LANE.rpartition(".")
    assert callable(getattr(sys.modules[module], name))


async def test_a_ring_between_two_waits_is_heard_by_the_next(
    other_session: psycopg.Connection[Any],
) -> None:
    async with bell.Listener() as listener:
        assert not await listener.wait(0.01)
        other_session.execute(f"NOTIFY {bell.CHANNEL}")
        await asyncio.sleep(0.05)
        assert await listener.wait(0)
        assert not await listener.wait(0.01)


async def test_a_ring_ends_a_wait_at_once(other_session: psycopg.Connection[Any]) -> None:
    async with bell.Listener() as listener:
        waiting = asyncio.create_task(listener.wait(30))
        await asyncio.sleep(0.05)
        other_session.execute(f"NOTIFY {bell.CHANNEL}")
        assert await asyncio.wait_for(waiting, 5)


async def test_a_cancelled_wait_loses_nothing(other_session: psycopg.Connection[Any]) -> None:
    async with bell.Listener() as listener:
        waiting = asyncio.create_task(listener.wait(30))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        other_session.execute(f"NOTIFY {bell.CHANNEL}")
        assert await listener.wait(5)


async def test_a_lost_connection_is_made_again_and_counts_as_a_ring(
    other_session: psycopg.Connection[Any],
) -> None:
    end_listeners = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN %' AND datname = current_database()"
    async with bell.Listener() as listener:
        assert not await listener.wait(0.01)
        other_session.execute(end_listeners)
        assert await listener.wait(5), (
            "whatever was rung meanwhile is lost, so the waiter must look"
        )
        assert await listener.wait(5), "the new connection may have missed something too"
        assert not await listener.wait(0.01)
        other_session.execute(f"NOTIFY {bell.CHANNEL}")
        assert await listener.wait(5)


async def test_without_a_server_a_wait_times_out_and_does_not_raise(
    settings: LazySettings, tmp_path: Path
) -> None:
    settings.DATABASE_DIRECT_URL = f"postgresql://nobody@/nothing?host={tmp_path}"
    async with bell.Listener() as listener:
        assert not await listener.wait(0.05)
        settings.DATABASE_DIRECT_URL = ""
        assert await listener.wait(5), "the server is back"


# --- the queue's broker -----------------------------------------------------------------------------------------------


@pytest.fixture
def broker() -> Iterator[NotifyingBroker]:
    broker = NotifyingBroker()
    yield broker
    broker._hang_up()


def test_a_message_is_given_once_and_acknowledged_away(broker: NotifyingBroker) -> None:
    number = broker.enqueue("message")
    assert broker.dequeue() == [(number, "message")]
    assert broker._pop() == []
    broker.acknowledge(number)  # type: ignore[no-untyped-call]
    assert OrmQ.objects.count() == 0


def test_a_message_that_another_cluster_is_just_popping_is_passed_over(
    broker: NotifyingBroker, other_session: psycopg.Connection[Any]
) -> None:
    broker.enqueue("first")
    second = broker.enqueue("second")
    with other_session.transaction():
        other_session.execute("SELECT FROM django_q_ormq ORDER BY id LIMIT 1 FOR UPDATE")
        assert broker._pop() == [(second, "second")]


def test_a_stopping_cluster_leaves_messages_to_others(
    broker: NotifyingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.enqueue("message")
    monkeypatch.setattr("jobs.broker.lifeline.pulled", lambda: True)
    assert broker.dequeue() is None
    assert len(broker._pop()) == 1


def test_a_message_ends_the_wait_for_one(broker: NotifyingBroker) -> None:
    broker._listen()
    broker.enqueue("message")
    # Were it not for the notification, pytest's own patience would end before this does.
    broker._wait(3600)


def test_a_lost_connection_costs_a_wait_and_not_the_process(
    broker: NotifyingBroker, other_session: psycopg.Connection[Any], settings: LazySettings
) -> None:
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, "poll": 0.01}
    broker._listen()
    assert broker._listening is not None
    other_session.execute("SELECT pg_terminate_backend(%s)", [broker._listening.info.backend_pid])
    assert broker.dequeue() is None
    number = broker.enqueue("message")
    assert broker.dequeue() == [(number, "message")]


# --- entry points -----------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[lanes.Held]:
    """An engine that ends at once; the runs it was called with."""
    ran: list[lanes.Held] = []

    async def run_slice(held: lanes.Held, *, stop: asyncio.Event) -> None:
        ran.append(held)
        assert not stop.is_set()

    from jobs import tasks

    monkeypatch.setattr(tasks, "engine", types.SimpleNamespace(run_slice=run_slice))
    return ran


@pytest.fixture
def run_lane() -> Callable[[], str]:
    from jobs import tasks

    return tasks.run_lane


def test_a_lane_runs_a_slice_frees_its_slot_and_rings_nobody_without_work(
    engine: list[lanes.Held], run_lane: Callable[[], str]
) -> None:
    assert run_lane() == "ran"
    assert len(engine) == 1
    assert not lanes.live_runs(clock.now())
    assert OrmQ.objects.count() == 0


def test_a_lane_that_leaves_work_behind_rings_for_its_successor(
    engine: list[lanes.Held], run_lane: Callable[[], str]
) -> None:
    make_job()
    run_lane()
    assert bell.bells_waiting() == 2


def test_where_all_slots_are_held_a_bell_ends_at_once(
    engine: list[lanes.Held], run_lane: Callable[[], str]
) -> None:
    take(), take()
    assert run_lane() == "full"
    assert not engine


def test_a_bell_popped_while_stopping_rings_again(
    engine: list[lanes.Held], run_lane: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.lifeline import lifeline

    monkeypatch.setattr(lifeline, "pulled", lambda: True)
    assert run_lane() == "stopping"
    assert not engine
    assert bell.bells_waiting() == 2


def test_an_engine_that_fails_at_once_frees_its_slot_and_pauses_before_it_rings(
    run_lane: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs import tasks

    async def fail(held: lanes.Held, *, stop: asyncio.Event) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(tasks, "engine", types.SimpleNamespace(run_slice=fail))
    paused: list[float] = []

    def pause(timeout_s: float) -> bool:
        assert not lanes.live_runs(clock.now()), "the slot is free meanwhile"
        assert OrmQ.objects.count() == 0
        paused.append(timeout_s)
        return False

    monkeypatch.setattr(
        "jobs.tasks.lifeline.wait", lambda timeout_s: pause(timeout_s) if timeout_s else False
    )
    make_job()
    with pytest.raises(RuntimeError, match="broken"):
        run_lane()
    assert paused == [tasks.PAUSE_AFTER_FAILURE_S]
    assert bell.bells_waiting() == 2


def test_the_minutes_ring_frees_dead_slots_and_rings_only_where_work_waits(
    engine: list[lanes.Held],
) -> None:
    from jobs import tasks

    take()
    Lane.objects.filter(run_id__isnull=False).update(heartbeat_at=later(-31))
    assert tasks.ring_each_minute() == "nothing to do"
    assert not Lane.objects.filter(run_id__isnull=False).exists()
    make_job()
    assert tasks.ring_each_minute() == "rang"


def test_the_minutes_ring_is_scheduled_once_however_often_a_cluster_starts(
    engine: list[lanes.Held],
) -> None:
    from jobs.management.commands import qcluster

    Schedule.objects.create(name=qcluster.MINUTE_RING, func="gone", schedule_type=Schedule.HOURLY)
    Schedule.objects.create(name=qcluster.MINUTE_RING, func="gone", schedule_type=Schedule.HOURLY)
    qcluster.schedule_minute_ring()
    qcluster.schedule_minute_ring()
    (row,) = Schedule.objects.all()
    assert (row.func, row.schedule_type, row.minutes) == (qcluster.MINUTE_RING, Schedule.MINUTES, 1)


def test_our_connections_commit_to_the_disk_whatever_the_server_says() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",)
