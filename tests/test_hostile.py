"""Interleavings and inputs that once paid twice, lost an id, or stopped a lane. Each is here so that it never does again."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone
from pytest_django.fixtures import Settings

from jobs import engine as engine_module
from jobs import lanes, results
from jobs.clock import clock
from jobs.engine import ROOM, Engine, Now
from jobs.lane import LaneContext
from jobs.lifecycle import decide, recover, staff
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.record import Fact, record
from jobs.models import Case, Job, JobEvent, JobPhoto, Lane, ProviderTask
from jobs.pictures import PictureProcess
from jobs.rules import rules
from jobs.stages import facts as stage_facts
from jobs.stages import inline
from jobs.states import CaseKind, JobState
from providers import registry
from providers.adapters.polza import Polza
from providers.contract import Account, Answer
from providers.http import Transport
from providers.models import Account as AccountRow
from tests import factories
from tests.flow import _TLS, LIMITS, Desk, Points, Wire, one_pass

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

Make = Callable[..., Desk]
Body = Callable[[Engine, Points], Awaitable[Any]]
ALL = tuple(ROOM)


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(settings: Settings, tmp_path: Path, pictures: PictureProcess) -> Make:
    made: list[Desk] = []

    def desk(**world: Any) -> Desk:
        made.append(Desk(settings, tmp_path / str(len(made)), pictures, **world))
        return made[-1]

    return desk


@pytest.fixture(autouse=True)
def _one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's transaction lives in it."""
    monkeypatch.setattr(engine_module, "close_old_connections", lambda: None)


def with_engine(
    desk: Desk, body: Body, change: Callable[[LaneContext], LaneContext] = lambda lane: lane
) -> Any:
    """Run `body` with an engine of a new lane of the desk."""
    held = lanes.take(host="desk-1", pid=1, version="", now=desk.clock.now())
    assert held is not None
    points = Points()

    async def go() -> Any:
        wire = Wire(desk, points)
        async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
            lane = change(desk._lane(held, points, transport))
            return await body(Engine(lane, asyncio.Event()), points)

    return async_to_sync(go)()


async def settle(engine: Engine) -> None:
    """The acts end, and what they learned is recorded and decided."""
    for tasks in list(engine.at_work.values()):
        await asyncio.gather(*list(tasks), return_exceptions=True)
    batch = []
    while not engine.facts.empty():
        batch.append(engine.facts.get_nowait())
    if batch:
        await engine._record(batch)


def passes(count: int, stages: tuple[str, ...] = ALL, *, sweeping: bool = False) -> Body:
    async def body(engine: Engine, _points: Points) -> None:
        for _ in range(count):
            if sweeping:
                engine.last_sweep = float("-inf")
            await engine._pass(stages)
            await settle(engine)

    return body


def failing_db(when: Callable[[], Exception | None]) -> Callable[[LaneContext], LaneContext]:
    """The lane's database raises what `when` gives, and its clock asks that database."""

    def change(lane: LaneContext) -> LaneContext:
        inner = lane.db

        async def db(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if (error := when()) is not None:
                raise error
            return await inner(function, *args, **kwargs)

        return replace(lane, db=db, now=Now(db))

    return change


def after_post(desk: Desk, then: Callable[[], None]) -> None:
    """Call `then` as soon as the provider has had a POST."""
    handle = desk.world.handle

    def handled(request: Any) -> Any:
        reaction = handle(request)
        if request.method == "POST":
            then()
        return reaction

    desk.world.handle = handled  # type: ignore[method-assign]


def sent(desk: Desk) -> int:
    return len(desk.world.ledger.tasks)


# --- paying twice -----------------------------------------------------------------------------------------------------


def test_another_keys_history_proves_no_absence(make: Make) -> None:
    desk = make(fault="reset_after_accept")
    job = desk.job()
    with_engine(desk, passes(1, ("submit",)))
    assert ProviderTask.objects.get(job=job).state == "unknown"
    Lane.objects.update(run_id=None)
    desk.account = Account(
        provider="polza",
        base_url=desk.account.base_url,
        fingerprint=registry.fingerprint("pza_new"),
        key="pza_new",
    )
    desk.account_row = AccountRow.objects.create(
        provider="polza",
        fingerprint=desk.account.fingerprint,
        created_at=desk.clock.now(),
        echoes_id=True,
        history_lag_s=0,
    )

    async def on(engine: Engine, points: Points) -> None:
        desk.clock.advance(60)
        await sync_to_async(desk.job)("canary")
        for _ in range(12):
            await one_pass(engine, points)
            desk.clock.advance(40)

    with_engine(desk, on)
    ours = {str(pk) for pk in ProviderTask.objects.filter(job=job).values_list("pk", flat=True)}
    assert sum(task.correlation in ours for task in desk.world.ledger.tasks.values()) == 1
    assert Case.objects.filter(job=job, kind=CaseKind.UNKNOWN_SEND, resolved_at=None).exists()


@pytest.mark.parametrize("noticed", [True, False], ids=["with an error", "without any error"])
def test_a_failover_that_forgot_a_send_is_noticed_before_the_next_one(
    make: Make, noticed: bool
) -> None:
    desk = make(latency_fixed_s=600)
    job = desk.job()
    down: list[Exception] = []

    def forget() -> None:
        JobEvent.objects.filter(job=job, task__isnull=False).delete()
        ProviderTask.objects.filter(job=job).delete()
        Job.objects.filter(pk=job.pk).update(state="pending")

    async def body(engine: Engine, _points: Points) -> None:
        await engine._pass(("submit",))
        await settle(engine)
        await sync_to_async(forget)()
        if noticed:
            down.append(OperationalError("terminating connection"))
            await engine._pass(("submit",))
        await engine._pass(("submit",))
        await settle(engine)

    with_engine(desk, body, failing_db(lambda: down.pop() if down else None))
    assert sent(desk) == 1


def test_a_retry_after_giving_up_is_refused_while_the_send_may_have_cost(make: Make) -> None:
    now = make().clock.now()
    job = factories.job(now, JobState.ACTIVE)
    factories.accepted(job, now)
    person: User = factories.staff()
    staff.resolve(job_id=job.pk, actor=person, now=now, outcome="gave_up", note="customer left")
    with pytest.raises(Refused):
        staff.retry(job_id=job.pk, actor=person, now=now)


# --- losing what was learned ------------------------------------------------------------------------------------------


def test_an_id_is_kept_when_the_database_goes_away_before_the_clock_was_ever_read(
    make: Make,
) -> None:
    desk = make()
    desk.job()
    down: list[Exception] = []
    after_post(desk, lambda: down.append(OperationalError("gone")))

    async def body(engine: Engine, _points: Points) -> int:
        await engine._pass(("submit",))
        await asyncio.gather(*list(engine.at_work["submit"]), return_exceptions=True)
        return engine.facts.qsize()

    assert with_engine(desk, body, failing_db(lambda: down[0] if down else None)) == 1


def test_an_id_is_kept_when_the_lane_is_stopped_while_the_database_hangs(make: Make) -> None:
    desk = make()
    desk.job()
    hanging: list[bool] = []
    after_post(desk, lambda: hanging.append(True))

    def change(lane: LaneContext) -> LaneContext:
        inner = lane.db

        async def db(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if hanging:
                await asyncio.Event().wait()
            return await inner(function, *args, **kwargs)

        return replace(lane, db=db, now=Now(db))

    async def body(engine: Engine, _points: Points) -> int:
        await engine._pass(("submit",))
        await asyncio.wait(list(engine.at_work["submit"]), timeout=0.5)
        hanging.clear()
        await engine._give_up_acts()
        return engine.facts.qsize()

    assert with_engine(desk, body, change) == 1


def test_a_lane_can_date_its_first_answer_though_the_database_has_left(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = lanes.take(host="desk-1", pid=1, version="", now=make().clock.now())
    assert held is not None
    dated: list[datetime] = []

    def gone() -> tuple[float, datetime]:
        raise OperationalError("gone")

    class FirstAnswer(Engine):
        async def run(self, until: float) -> None:
            monkeypatch.setattr(clock, "both", gone)
            dated.append(await self.lane.now())

    monkeypatch.setattr(engine_module, "Engine", FirstAnswer)
    async_to_sync(engine_module.run_slice)(held, stop=asyncio.Event())
    assert abs(dated[0] - timezone.now()) < timedelta(minutes=1)


def test_facts_outlive_a_database_and_a_disk_that_fail_together(
    make: Make, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make()
    now = desk.clock.now()
    monkeypatch.setattr(engine_module, "SPOOL_AFTER_S", 0.0)
    no_folder, spool_dir = tmp_path / "file", settings.SPOOL_DIR
    no_folder.write_text("")
    first, second = (factories.task(factories.job(now, JobState.ACTIVE), now) for _ in range(2))
    down = [True]

    def recording(facts: list[Fact]) -> set[int]:
        if down:
            raise OperationalError("gone")
        return record(facts=facts)

    monkeypatch.setattr(engine_module, "record", recording)

    async def body(engine: Engine, _points: Points) -> bool:
        recorder = asyncio.create_task(engine._record_for_ever())
        settings.SPOOL_DIR = no_folder
        engine._learned(
            Fact(task_id=first.pk, at=now, kind="accepted", decides=True, provider_id="gen_a")
        )
        while not engine.stop.is_set():  # nothing is sent while there is no place to keep an id
            await asyncio.wait([recorder], timeout=0.05)
        down.clear()
        settings.SPOOL_DIR = spool_dir
        engine._learned(
            Fact(task_id=second.pk, at=now, kind="accepted", decides=True, provider_id="gen_b")
        )
        await engine.facts.join()
        alive = not recorder.done()
        recorder.cancel()
        await asyncio.gather(recorder, return_exceptions=True)
        return alive

    assert with_engine(desk, body)
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.provider_id, second.provider_id) == ("gen_a", "gen_b")


def test_bytes_inside_an_answer_are_on_the_disk_before_it_is_recorded(make: Make) -> None:
    make()
    body = b'{"status":"completed","data":[{"b64_json":"aGVsbG8gd29ybGQ="}],"usage":{"cost_rub":7}}'
    read, task_id = Polza().read_submit(Answer(200, {}, body)), uuid.uuid4()
    keys = inline.keep(task_id, read)
    fact = stage_facts.of_submit(
        task_id, read, at=timezone.now(), limits=LIMITS, kept={}, inline=keys
    )
    assert fact.provider_id is None
    assert fact.files is not None
    assert [inline.load(item).data for item in fact.files] == [b"hello world"]
    results.drop_inline(task_id)
    assert inline.load(fact.files[0]).data is None


# --- stopping a lane --------------------------------------------------------------------------------------------------


def test_a_lost_send_whose_arm_was_forgotten_becomes_a_case_and_holds_up_nobody(make: Make) -> None:
    desk = make()
    now = desk.clock.now()
    bad = factories.job(now, JobState.ACTIVE)
    row = factories.task(bad, now, armed=False)
    ProviderTask.objects.filter(pk=row.pk).update(armed_at=None, send_not_after=None)
    record(
        facts=[Fact(task_id=row.pk, at=now, kind="lost", decides=True, lost=True, next_look_at=now)]
    )
    desk.clock.advance(60)
    good = desk.job()
    with_engine(desk, passes(3, sweeping=True))
    good.refresh_from_db()
    assert good.state != JobState.PENDING
    assert Case.objects.filter(job=bad, resolved_at=None).exists()


def test_a_job_that_cannot_be_decided_becomes_a_case_and_holds_up_nobody(make: Make) -> None:
    desk = make()
    bad = factories.job(desk.clock.now(), JobState.ACTIVE)
    row = factories.accepted(bad, desk.clock.now())
    absurd = b'{"id":"x","status":"completed","usage":{"cost_rub":9999999999.99999}}'
    read = Polza().read_poll(Answer(200, {}, absurd))
    record(facts=[stage_facts.of_poll(row, read, at=desk.clock.now(), limits=LIMITS, kept={})])
    desk.clock.advance(60)
    good = desk.job()
    with_engine(desk, passes(5))
    good.refresh_from_db()
    assert good.state != JobState.PENDING
    assert Case.objects.filter(job=bad, resolved_at=None).exists()


def test_a_mark_that_cannot_be_written_sends_nothing_and_costs_nothing(
    make: Make, settings: Settings, tmp_path: Path
) -> None:
    desk = make()
    job = desk.job()
    no_folder = tmp_path / "file"
    no_folder.write_text("")
    settings.EPOCH_DIR = no_folder
    with_engine(desk, passes(1))
    desk.clock.advance(120)
    recover.declare_lost(now=desk.clock.now())
    task = ProviderTask.objects.get(job=job)
    assert (task.state, task.charge, sent(desk)) == ("unsent", "none", 0)


def test_a_mark_that_cannot_be_read_holds_all_sends_and_ends_no_lane(
    make: Make, settings: Settings
) -> None:
    desk = make()
    settings.EPOCH_DIR.mkdir(parents=True)
    (settings.EPOCH_DIR / "1").write_text("")
    desk.job()
    with_engine(desk, passes(2))
    assert sent(desk) == 0


def test_a_photo_that_is_gone_ends_the_job_with_a_case(make: Make) -> None:
    desk = make()
    job = desk.job()
    JobPhoto.objects.create(
        job=job, position=0, key="photos/gone.png", sha256="0" * 64, media_type="image/png",
        size_bytes=1, width=1, height=1,
    )  # fmt: skip
    with_engine(desk, passes(10, ("submit",)))
    assert ProviderTask.objects.filter(job=job).count() == 1
    assert Case.objects.filter(job=job, resolved_at=None).exists()


def test_parameters_no_request_can_be_built_from_cost_nothing(make: Make) -> None:
    desk = make()
    job = desk.job()
    Job.objects.filter(pk=job.pk).update(params=[1])
    with_engine(desk, passes(1, ("submit",)))
    task = ProviderTask.objects.get(job=job)
    assert (task.state, task.charge, sent(desk)) == ("refused", "none", 0)


def test_workers_that_die_again_at_a_row_open_its_case_again(make: Make) -> None:
    now = make().clock.now()
    job = factories.job(now, JobState.ACTIVE)
    row = factories.accepted(job, now, next_poll_at=now)

    def decided() -> None:
        decide.decide(job_ids=[job.pk], rules=rules(), now=now, rng=random.Random(1))

    for _ in range(2):
        ProviderTask.objects.filter(pk=row.pk).update(deaths=3, undecided_since=now)
        decided()
        case = Case.objects.get(job=job, kind=CaseKind.POISON, resolved_at=None)
        staff.close_case(
            case_id=case.pk, actor=factories.staff(), now=now, resolution="ok", note="restarted"
        )
        decided()
