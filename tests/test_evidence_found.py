"""What bench.evidence found: sends of unknown outcome that were linked wrongly, or came before a person too late."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from pytest_django import Settings

from bench.evidence_judge import CASE_WITHIN_S
from jobs import lanes
from jobs.engine import Engine
from jobs.evidence import absence_from
from jobs.lane import LaneContext
from jobs.lifecycle.record import Fact
from jobs.models import Case, ProviderTask
from jobs.pictures import PictureProcess
from jobs.stages import reconcile, submit
from jobs.states import CaseKind, TaskState
from providers.contract import Answer, NoAnswer
from providers.http import Transport
from providers.models import Account
from tests.flow import Desk, Points, Wire, one_pass

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

Make = Callable[..., Desk]
_TLS = ssl.create_default_context()


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(settings: Settings, tmp_path: Path, pictures: PictureProcess) -> Make:
    def desk(**world: object) -> Desk:
        return Desk(settings, tmp_path, pictures, **world)  # type: ignore[arg-type]

    return desk


@asynccontextmanager
async def engine_of(desk: Desk) -> AsyncIterator[Engine]:
    """A lane's engine with the product's own times, to be moved by hand."""
    held = await sync_to_async(lanes.take)(host="desk-1", pid=1, version="", now=desk.clock.now())
    assert held is not None
    points = Points()
    wire = Wire(desk, points)
    async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
        lane = desk._lane(held, points, transport)
        limits = replace(lane.limits, post_deadline_s=30.0, reconcile_interval_s=30.0)
        yield Engine(replace(lane, limits=limits), asyncio.Event())


async def lose(desk: Desk, engine: Engine) -> ProviderTask:
    """A send that never arrives, and whose answer does not come."""
    desk.fault = "reset_before_accept"
    await sync_to_async(desk.job)("the lost one")
    await one_pass(engine, Points())
    task = await sync_to_async(ProviderTask.objects.get)()
    assert task.state == TaskState.UNKNOWN
    return task


def could_be_concluded(task: ProviderTask, lag_s: float) -> float:
    """Seconds from the arming until absence could first be concluded."""
    assert task.armed_at is not None
    assert task.send_not_after is not None
    due = absence_from(
        send_not_after=task.send_not_after, deadline_s=task.call_deadline_s or 0.0, lag_s=lag_s
    )
    return (due - task.armed_at).total_seconds()


def test_a_send_that_goes_out_while_the_history_is_read_is_not_taken_for_the_lost_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make(echo=False)
    Account.objects.update(echoes_id=False, exclusive=True)

    async def another(lane: LaneContext) -> None:
        """A lane sends it; what it learns is not recorded yet."""
        await sync_to_async(desk.job)("another one")
        [send], _ = await lane.db(submit.claim_and_arm, lane, 1)
        fact, _ = await submit.act(lane, send)
        assert fact.provider_id in desk.world.ledger.tasks

    async def scene() -> list[Fact]:
        async with engine_of(desk) as engine:
            task = await lose(desk, engine)
            desk.clock.advance(could_be_concluded(task, lag_s=0.0) + 1)
            [(provider, lost)] = await engine.lane.db(reconcile.claim_looks, engine.lane, 10)
            transport = engine.lane.transport
            read = transport.read

            async def read_late(*args: Any, **kwargs: Any) -> Answer | NoAnswer:
                monkeypatch.setattr(transport, "read", read)  # the other one goes out but once
                await another(engine.lane)
                return await read(*args, **kwargs)

            monkeypatch.setattr(transport, "read", read_late)
            return await reconcile.look(engine.lane, provider, lost)

    [fact] = async_to_sync(scene)()
    assert fact.provider_id is None


def test_without_a_history_the_case_comes_within_a_minute_at_the_products_own_times(
    make: Make,
) -> None:
    desk = make(faults={"history_404": 1.0})

    async def scene() -> float:
        async with engine_of(desk) as engine:
            task = await lose(desk, engine)
            due_s = could_be_concluded(task, lag_s=0.0)
            for second in range(int(due_s) + 120):
                desk.clock.advance(1.0)
                await one_pass(engine, Points())
                if await sync_to_async(Case.objects.filter(kind=CaseKind.UNKNOWN_SEND).exists)():
                    return second + 1 - due_s
        raise AssertionError("no case")

    assert async_to_sync(scene)() <= CASE_WITHIN_S


def test_a_history_that_does_not_answer_holds_no_case_up(make: Make) -> None:
    desk = make()

    async def scene() -> None:
        async with engine_of(desk) as engine:
            task = await lose(desk, engine)
            desk.clock.advance(could_be_concluded(task, lag_s=0.0))
            # The listing is asked for, and nothing comes.
            assert await engine.lane.db(reconcile.claim_looks, engine.lane, 10)
            desk.clock.advance(CASE_WITHIN_S - 1.0)
            await engine.lane.db(engine._sweep)

    async_to_sync(scene)()
    assert Case.objects.filter(kind=CaseKind.UNKNOWN_SEND, resolved_at__isnull=True).exists()
