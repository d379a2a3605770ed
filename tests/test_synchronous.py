"""Providers whose answer is the result: nothing that was paid for is lost, wherever the lane ends while an answer comes in."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import User
from django.db import transaction
from pytest_django import Settings

from jobs import answers, lanes, lifeline, results
from jobs.answers import AnswerFile
from jobs.engine import Engine, FencedError
from jobs.lane import LaneContext
from jobs.models import Case, Job, ProviderTask, SpoolHost, StandingDecision
from jobs.pictures import PictureProcess
from jobs.rules import ABSENCE_MARGIN_S
from jobs.stages import answers as answered
from jobs.states import CaseKind, JobState, Release
from providers import registry
from providers.adapters.openrouter import OpenRouter
from providers.contract import Account, Charge
from providers.http import Transport
from providers.models import Account as AccountRow
from providers.models import Target
from tests.flow import _TLS, Desk, Points, Wire

pytestmark = pytest.mark.flow

Make = Callable[..., "SyncDesk"]


class SyncDesk(Desk):
    """A desk whose account and target are OpenRouter's."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        key = OpenRouter.sandbox_key
        fingerprint = registry.fingerprint(key)
        url = f"http://openrouter.test{OpenRouter.sandbox_path}"
        self.account = Account("openrouter", url, fingerprint, key)
        self.account_row = AccountRow.objects.create(
            provider="openrouter", fingerprint=fingerprint, created_at=self.clock.now()
        )
        self.target = Target.objects.create(
            provider="openrouter", model=OpenRouter.default_model, price=Decimal("0.04"), currency="USD"
        )  # fmt: skip

    def _lane(self, *args: Any) -> LaneContext:
        return replace(
            super()._lane(*args),
            accounts={"openrouter": self.account},
            account_ids={"openrouter": self.account_row.pk},
        )


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(
    settings: Settings, tmp_path: Path, pictures: PictureProcess, monkeypatch: pytest.MonkeyPatch
) -> Make:
    """Makes desks, each with folders of its own."""
    monkeypatch.setattr("tests.flow.GIVE_UP_AFTER_S", 900.0)
    made: list[SyncDesk] = []

    def desk(**world: object) -> SyncDesk:
        made.append(SyncDesk(settings, tmp_path / str(len(made)), pictures, **world))
        return made[-1]

    return desk


def files() -> list[str]:
    return sorted(path.suffix for path in answers._folder().glob("*"))


# --- how a job ends ---------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fate", "state", "charge", "kinds"),
    [
        ("", JobState.SUCCEEDED, Charge.CHARGED, []),
        ("failed_free", JobState.FAILED, Charge.NONE, [CaseKind.REFUSED_BY_ALL]),
        ("failed_charged", JobState.MANUAL, Charge.CHARGED, [CaseKind.FAILED_BUT_CHARGED]),
        ("reset_after_accept", JobState.MANUAL, Charge.POSSIBLE, [CaseKind.UNKNOWN_SEND]),
        ("rate_limited=5", JobState.FAILED, Charge.NONE, [CaseKind.ATTEMPTS_EXHAUSTED]),
    ],
)
def test_a_job_ends_as_the_answer_says(
    make: Make, fate: str, state: JobState, charge: Charge, kinds: list[CaseKind]
) -> None:
    desk = make()
    job = desk.job(f"a cat [[fault:{fate}]]" if fate else "a cat")
    desk.live(job)
    task = job.tasks.order_by("created_at").first()
    assert task is not None
    assert (job.state, task.charge) == (state, charge)
    cases = Case.objects.filter(job=job, resolved_at__isnull=True)
    assert [case.kind for case in cases] == kinds
    assert task.call_deadline_s == 180
    assert task.polls == 0
    assert files() == []
    if state == JobState.SUCCEEDED:
        assert task.cost_answer is not None
        assert task.cost_poll is None
        assert desk.wrong_with(job) == []


@pytest.mark.django_db
def test_by_the_owners_standing_decision_a_lost_answer_is_asked_for_once_more_and_no_oftener(
    make: Make,
) -> None:
    desk = make()
    StandingDecision.objects.create(
        target=desk.target, what=StandingDecision.What.RESEND_UNKNOWN, reason="cheap",
        made_by=User.objects.create(username="owner"), made_at=desk.clock.now(),
    )  # fmt: skip
    once, always = desk.job("once"), desk.job("always [[fault:reset_after_accept]]")
    desk.fault = "reset_after_accept"
    for job in (once, always):
        desk.live(job)
        desk.restart()
    told = {
        job.prompt.split()[0]: [(t.state, t.charge, t.released_by) for t in job.tasks.order_by("created_at")]
        for job in (once, always)
    }  # fmt: skip
    # The duplicate stays booked as one that may have cost something.
    duplicate = ("unknown", "possible", Release.STANDING)
    assert told["once"] == [duplicate, ("stored", "charged", Release.STORED)]
    assert told["always"] == [duplicate, ("unknown", "possible", "")]
    assert (once.state, always.state) == (JobState.SUCCEEDED, JobState.MANUAL)
    kinds = Case.objects.filter(resolved_at__isnull=True).values_list("job_id", "kind")
    assert list(kinds) == [(always.pk, CaseKind.UNKNOWN_SEND)]


# --- killed -----------------------------------------------------------------------------------------------------------


def pointed(points: Points, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lane does to its disk are points of its life as well: it may be killed before or after each."""

    def point(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        @functools.wraps(plain)
        def pointing(*args: Any, **more: Any) -> Any:
            number = points.begin(name)
            done = plain(*args, **more)
            points.end(number, changed=True)
            return done

        monkeypatch.setattr(owner, name, pointing)

    for name in ("_begin", "_flush", "_settle"):
        point(AnswerFile, name)
    point(results, "keep_inline")
    point(answers, "drop")


def one_life(
    make: Make, monkeypatch: pytest.MonkeyPatch, points: Points
) -> tuple[SyncDesk, Job, Points]:
    desk = make()
    job = desk.job()
    with monkeypatch.context() as patch:
        pointed(points, patch)
        desk.live(job, points)
    return desk, job, points


@pytest.mark.django_db
def test_no_kill_from_the_send_to_the_record_loses_the_answer_or_sends_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic():
        names = one_life(make, monkeypatch, Points())[2].names
        transaction.set_rollback(True)
    first = next(number for number, name in enumerate(names) if name.startswith("POST"))
    last = names.index("drop")
    steps = names[first : last + 1]
    assert [name for name in steps if name in {"_begin", "_flush", "_settle", "keep_inline"}][:2] == ["_begin", "_flush"]  # fmt: skip
    assert steps.index("_settle") < steps.index("keep_inline") < steps.index("commit")
    on_disk = first + steps.index("_flush")
    wrong: list[str] = []
    for number in range(first, last + 1):
        with transaction.atomic():
            desk, job, points = one_life(make, monkeypatch, Points(crash_at=number, after=True))
            desk.restart()
            desk.live(job)
            found = desk.wrong_with(job)
            found += (
                [] if points.dead and points.names[-1] == names[number] else ["not killed there"]
            )
            found += (
                [f"{len(desk.world.ledger.posts)} sends"]
                if len(desk.world.ledger.posts) != ProviderTask.objects.count()
                else []
            )
            if number >= on_disk and job.state != JobState.SUCCEEDED:
                found.append(f"the answer is lost: {job.state}")
            found += [f"left: {files()}"] if files() else []
            wrong += [f"killed after {names[number]}: {what}" for what in found]
            transaction.set_rollback(True)
    assert wrong == []


@pytest.mark.django_db
def test_of_a_living_process_only_a_complete_answer_is_read_and_only_when_its_time_is_over(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane that stands still, or was fenced, may be in the middle of its answer."""
    desk, job, _ = one_life(make, monkeypatch, _killed_at("_settle", make, monkeypatch))
    task = ProviderTask.objects.get(job=job)
    whole = answers._folder() / f"{task.pk}.answer"
    desk.restart()
    lane = _idle_lane(desk)
    assert task.send_not_after is not None
    over = task.send_not_after + timedelta(seconds=180 + ABSENCE_MARGIN_S)
    with lanes.life_mark(task.run_id):
        assert not answered.replay(lane, live=[], now=over - timedelta(seconds=1)).facts
        part = whole.rename(whole.with_suffix(".part"))
        assert not answered.replay(lane, live=[], now=over + timedelta(hours=1)).facts
        part.rename(whole)
        found = answered.replay(lane, live=[], now=over)
    assert [fact.completed for fact in found.facts] == [True]
    assert found.all_read
    assert files() == []


@pytest.mark.django_db
def test_what_nobody_can_read_is_set_aside_and_the_host_is_not_called_clear(make: Make) -> None:
    desk = make()
    folder = answers._folder()
    folder.mkdir(parents=True)
    (folder / f"{uuid.uuid4()}.part").write_bytes(b"\0\0\0")
    (folder / f"{uuid.uuid4()}.answer").write_bytes(
        b'{"status": 200, "headers": {}, "run": "%b"}\n{}' % str(uuid.uuid4()).encode()
    )
    desk.live(desk.job())
    assert files() == [".bad", ".orphan"]
    assert not SpoolHost.objects.exists()
    (case,) = Case.objects.filter(kind=CaseKind.ORPHAN)
    assert ".orphan" in str(case.detail)


def _killed_at(name: str, make: Make, monkeypatch: pytest.MonkeyPatch) -> Points:
    with transaction.atomic():
        names = one_life(make, monkeypatch, Points())[2].names
        transaction.set_rollback(True)
    return Points(crash_at=names.index(name), after=True)


def _idle_lane(desk: SyncDesk) -> LaneContext:
    held = lanes.take(host="desk-1", pid=1, version="", now=desk.clock.now())
    assert held is not None
    return desk._lane(held, Points(), Transport(paid=httpx.MockTransport(_no_call), verify=_TLS))


def _no_call(_request: httpx.Request) -> httpx.Response:
    raise AssertionError("nothing is asked")


# --- stopped ----------------------------------------------------------------------------------------------------------


class Held(Wire):
    """Answers to a prompt come once it is let go."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.let_go = {word: asyncio.Event() for word in (b"early", b"late")}
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        if request.method == "POST":
            self.asked += 1
            await next(event for word, event in self.let_go.items() if word in body).wait()
        return await super().handle_async_request(request)


@pytest.mark.django_db
@pytest.mark.parametrize("how", ["stop", "slice", "fenced"])
def test_answers_under_way_are_waited_for_and_other_stages_go_on(make: Make, how: str) -> None:
    desk = make()
    early, late = desk.job("early"), desk.job("late")
    held = lanes.take(host="desk-1", pid=1, version="", now=desk.clock.now())
    assert held is not None
    async_to_sync(_ended)(desk, held, how, early, late)
    states = [ProviderTask.objects.get(job=job).state for job in (early, late)]
    # A fenced lane records what came in, and does no more than that.
    assert states == ["completed", "completed"] if how == "fenced" else ["stored", "completed"]
    assert files() == []


async def _ended(desk: SyncDesk, held: lanes.Held, how: str, early: Job, late: Job) -> None:
    points = Points()
    wire = Held(desk, points)
    async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
        stop = asyncio.Event()
        engine = Engine(desk._lane(held, points, transport), stop)
        running = asyncio.create_task(engine.run(desk.clock.boot() + 60))
        await _until(lambda: wire.asked == 2)
        match how:
            case "stop":
                stop.set()
            case "slice":
                desk.clock.advance(61)
            case _:
                await sync_to_async(lanes.free)(run_id=held.run_id)
                desk.clock.advance(lanes.HEARTBEAT_S)
        # Long enough for the lane to notice.
        await asyncio.sleep(0.3)
        wire.let_go[b"early"].set()
        wanted = "completed" if how == "fenced" else "stored"
        await _until(sync_to_async(lambda: early.tasks.filter(state=wanted).exists()))
        another = await sync_to_async(desk.job)("early, but too late")
        assert not running.done()
        wire.let_go[b"late"].set()
        if how == "fenced":
            with pytest.raises(FencedError):
                await running
        else:
            await running
    assert wire.asked == 2
    await sync_to_async(another.refresh_from_db)()
    assert another.state == JobState.PENDING


async def _until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not (await told if asyncio.iscoroutine(told := true()) else told):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# --- the file, and the bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [0, 1, 2, 3])
def test_what_a_full_disk_does_not_take_stays_in_memory(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    settings.SPOOL_DIR = tmp_path
    room = [0, 0, 70_000, 150_000][fails_at]

    class Full:
        """Takes a part of what is written when there is no room for all."""

        def __init__(self, file: Any) -> None:
            self.file, self.left = file, room

        def write(self, data: bytes) -> int:
            if not self.left:
                raise OSError(28, "No space left on device")
            taken = self.file.write(bytes(data[: self.left]))
            self.left -= taken
            return int(taken)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    plain = Path.open

    def opened(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        file = plain(path, mode, *rest, **more)
        return Full(file) if mode == "w+b" else file

    monkeypatch.setattr(Path, "open", opened)
    file = AnswerFile(uuid.uuid4(), run_id=uuid.uuid4())
    chunks = [os.urandom(60_000) for _ in range(4)]

    async def come_in() -> None:
        await file.open(200, {"content-type": "application/json", "set-cookie": "secret"})
        for chunk in chunks:
            await file.write(chunk)
        await file.complete()

    asyncio.run(come_in())
    assert file.body() == b"".join(chunks)
    file.close()
    assert b"secret" not in b"".join(path.read_bytes() for path in answers._folder().glob("*"))


def test_a_stop_may_take_longer_only_where_such_a_provider_has_a_key(settings: Settings) -> None:
    limits = (lifeline.lane_limit_s, lifeline.sentinel_limit_s, lifeline.main_limit_s)
    settings.LANE_ANSWERS_SEC = 0
    assert [limit() for limit in limits] == [11.5, 13, 14.5]
    settings.LANE_ANSWERS_SEC = 180
    assert [limit() for limit in limits] == [191.5, 193, 194.5]


def test_the_settings_give_such_calls_their_time() -> None:
    code = (
        "import os, environ; environ.Env.read_env = lambda *_: None\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'studio.settings'\n"
        "import django; django.setup()\n"
        "from django.conf import settings as s; from jobs import checks\n"
        "print(s.LANE_SLICE_SEC, s.LANE_ANSWERS_SEC, s.Q_CLUSTER['timeout'], checks.queue_settings(None))\n"
    )
    plain = {"PATH": os.environ["PATH"], "DEMO": "1", "POLZA_API_KEY": "x", "DATABASE_URL": "postgres://nobody@127.0.0.1/none"}  # fmt: skip

    def told(**more: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=plain | more,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert told() == "60.0 0.0 125 []"
    assert told(OPENROUTER_API_KEY="x") == "600.0 180.0 815 []"
