"""The engine's real stages, pass by pass, against the sandbox's world in this process: one clock, no socket, no waiting.

A `Points` counts what a lane does to the world outside it (commits and HTTP calls) and can end it at any of them,
before or after, as a killed process ends: what was not committed is rolled back, what it knew is forgotten, and it does
nothing more.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from pytest_django import Settings as DjangoSettings

from jobs import epoch, lanes
from jobs.clock import Clock
from jobs.engine import ROOM, Engine
from jobs.lane import LaneContext
from jobs.lifecycle import create
from jobs.lifecycle.record import Fact
from jobs.models import Case, Hold, Job, ProviderTask, Result
from jobs.pictures import PictureProcess
from jobs.rules import Limits
from jobs.states import ENDED, JobState
from providers import registry
from providers.contract import Account
from providers.http import Transport
from providers.models import Account as AccountRow
from providers.models import Target
from providers.sandbox.faults import HEADER
from providers.sandbox.pictures import Painter
from providers.sandbox.reactions import HALF, PICTURE_MARK, Reaction, Request, filled_body
from providers.sandbox.reactions import Transport as Way
from providers.sandbox.settings import Settings
from providers.sandbox.world import World

KEY = "pza_flow"
MODEL = "google/gemini-2.5-flash-image"
LIMITS = Limits(
    concurrency=10,
    poll_interval_s=2,
    late_poll_interval_s=30,
    poll_deadline_s=900,
    reconcile_interval_s=30,
    post_deadline_s=20,
    exposure_prices=20,
    price_ceiling_factor=3,
)
DEATH_NOTICED_S = lanes.DEAD_AFTER_S * 2
CANARY_AFTER_S = 30.0
GIVE_UP_AFTER_S = 4 * 3600.0

# Signs of life, written in every pass whatever happens.
_BEATS = ("jobs_lane", "jobs_spoolhost")
_TLS = ssl.create_default_context()
_PAINTER = Painter()


class OffsetClock(Clock):
    """The real clocks as they stood at the start, moved on by hand only: a slow machine changes nothing."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self._boot, self._now = Clock().both()

    def now(self) -> datetime:
        return self._now + timedelta(seconds=self.offset_s)

    def boot(self) -> float:
        return self._boot + self.offset_s

    def unix(self) -> float:
        return self.now().timestamp()

    def advance(self, seconds: float) -> None:
        self.offset_s += seconds


# --- dying ------------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The lane's process was killed here."""


@dataclass(slots=True)
class Points:
    """What one lane did, in order. `crash_at` numbers from 0; `effective` holds those that changed something."""

    crash_at: int | None = None
    after: bool = False
    dead: bool = False
    names: list[str] = field(default_factory=list)
    effective: set[int] = field(default_factory=set)
    _dirty: bool = False
    _depth: int = 0

    def alive(self) -> None:
        if self.dead:
            raise Crash

    def begin(self, name: str, undo: Callable[[], object] | None = None) -> int:
        self.alive()
        self.names.append(name)
        number = len(self.names) - 1
        if number == self.crash_at and not self.after:
            self.dead = True
            if undo is not None:
                undo()
            raise Crash(name)
        return number

    def end(self, number: int, *, changed: bool) -> None:
        if changed:
            self.effective.add(number)
        if number == self.crash_at and self.after:
            self.dead = True
            raise Crash(self.names[number])

    def statement(
        self,
        execute: Callable[..., Any],
        sql: str,
        params: Any,
        many: bool,
        context: dict[str, Any],
    ) -> Any:
        """A wrapper for `connection.execute_wrapper`: each commit, and each write that is its own commit, is a point.

        A write within a transaction is none: killed there or before the commit, the database rolls back the same. The
        test's own transaction is open around everything, so a commit shows as the release of the outermost savepoint.
        """
        verb = sql.split(None, 1)[0].upper()
        if verb == "ROLLBACK":
            self._dirty = False
            return execute(sql, params, many, context)  # the database does it for a dead client too
        self.alive()
        if verb == "SAVEPOINT":
            self._depth += 1
        elif verb == "RELEASE":
            self._depth -= 1
            if self._depth == 0:
                return self._commit(execute, sql, params, many, context)
        elif verb in {"INSERT", "UPDATE", "DELETE"}:
            return self._write(execute, sql, params, many, context)
        return execute(sql, params, many, context)

    def _write(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        name = " ".join(sql.split()[:3]).replace('"', "")
        beats = any(table in name for table in _BEATS)
        number = None if self._depth or beats else self.begin(name)
        done = execute(sql, *rest)
        changed = rest[-1]["cursor"].rowcount != 0 and not beats
        if number is None:
            self._dirty |= changed
        else:
            self.end(number, changed=changed)
        return done

    def _commit(self, execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        def roll_back() -> None:
            execute(sql.replace("RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT"), *rest)

        number = self.begin("commit", undo=roll_back)
        done = execute(sql, *rest)
        dirty, self._dirty = self._dirty, False
        self.end(number, changed=dirty)
        return done


# --- the world over an httpx transport --------------------------------------------------------------------------------


class _Cut(httpx.AsyncByteStream):
    """Half an answer, then a reset."""

    def __init__(self, piece: bytes) -> None:
        self._piece = piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._piece
        raise httpx.ReadError("connection reset by peer")


class Wire(httpx.AsyncBaseTransport):
    """Calls the world. A call is a point; `fault` is asked for with the first POST only."""

    def __init__(self, desk: Desk, points: Points) -> None:
        self._desk = desk
        self._points = points

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        number = self._points.begin(f"{request.method} {request.url.path.rsplit('/', 1)[0]}")
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.method == "POST" and self._desk.fault:
            headers[HEADER], self._desk.fault = self._desk.fault, ""
        reaction = self._desk.world.handle(
            Request(
                method=request.method,
                path=request.url.path,
                query=dict(parse_qsl(request.url.query.decode())),
                headers=headers,
                body=body,
            )
        )
        self._points.end(number, changed=True)
        return _carried(reaction)


def _carried(reaction: Reaction) -> httpx.Response:
    while reaction.then is not None:
        reaction = reaction.then()
    body = reaction.body
    if reaction.picture is not None:
        painted = _PAINTER.at_hand(reaction.picture, 4000) or _PAINTER.paint(reaction.picture)
        body = filled_body(reaction, painted) if PICTURE_MARK in reaction.body else painted
    match reaction.transport:
        case Way.RESET | Way.CUT_HEADERS:
            raise httpx.ReadError("connection reset by peer")
        case Way.HANG:
            raise httpx.ReadTimeout("no answer")
        case Way.CUT:
            kept = len(body) // 2 if reaction.cut_after == HALF else reaction.cut_after
            length = ("content-length", str(len(body)))
            return httpx.Response(
                reaction.status, headers=[*reaction.headers, length], stream=_Cut(body[:kept])
            )
        case _:
            return httpx.Response(reaction.status, headers=list(reaction.headers), content=body)


# --- the desk ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Charged:
    """What the provider's ledger says about one job."""

    standing: int  # charges that were not taken back
    homeless: list[str]  # charged, and we have neither the picture nor an open case


class Desk:
    """A database (the test's), a world, a clock, and lanes that come and go. Folders below `folder` are its own."""

    def __init__(
        self,
        settings: DjangoSettings,
        folder: Path,
        pictures: PictureProcess,
        *,
        fault: str = "",
        provider: str = "polza",
        **world: Any,
    ) -> None:
        for name in ("SPOOL_DIR", "EPOCH_DIR", "MEDIA_ROOT", "TOKEN_DIR"):
            setattr(settings, name, folder / name.lower())
        self.clock = OffsetClock()
        self.world = World(
            clock=self.clock.unix,
            rng=random.Random(1),
            settings=Settings().changed(
                {"latency_fixed_s": 6, "prepared_bytes": 4000, "default_prices": {}} | world
            ),
        )
        self.pictures = pictures
        self.fault = fault
        speaks = registry.adapter(provider)
        key = KEY if provider == "polza" else speaks.sandbox_key
        self.account = Account(
            provider=provider,
            base_url=f"http://{provider}.test{speaks.sandbox_path}",
            fingerprint=registry.fingerprint(key),
            key=key,
        )
        now = self.clock.now()
        listed = {"echoes_id": True, "history_lag_s": 0} if provider == "polza" else {}
        self.account_row = AccountRow.objects.create(
            provider=provider, fingerprint=self.account.fingerprint, created_at=now, **listed
        )
        self.target = Target.objects.create(
            provider=provider,
            model=MODEL if provider == "polza" else speaks.default_model,
            price=Decimal(5),
            currency=speaks.currency,
        )
        lanes.ensure_slots(2)
        self.host = "desk-1"
        self.canary: Job | None = None

    def job(self, prompt: str = "a cat") -> Job:
        batch = create.create_jobs(
            jobs=[create.NewJob(prompt=prompt, route=[self.target])],
            tenant=create.default_tenant(),
            actor=None,
            now=self.clock.now(),
        )
        return Job.objects.get(batch=batch)

    def live(self, job: Job, points: Points | None = None) -> Points:
        """A new lane works until nothing is left to do for the job, or dies. Returns what it did."""
        points = points or Points()
        held = lanes.take(host=self.host, pid=1, version="", now=self.clock.now())
        assert held is not None
        with connection.execute_wrapper(points.statement):
            # Its database thread is this one, and so the test's transaction is its own.
            async_to_sync(self._live)(held, job, points)
        return points

    async def _live(self, held: lanes.Held, job: Job, points: Points) -> None:
        wire = Wire(self, points)
        async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
            engine = Engine(self._lane(held, points, transport), asyncio.Event())
            try:
                await self._until_quiet(engine, job, points)
            except Crash:
                assert points.dead

    def _lane(self, held: lanes.Held, points: Points, transport: Transport) -> LaneContext:
        async def db(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
            points.alive()
            return await sync_to_async(function, thread_sensitive=True)(*args, **more)

        async def now() -> datetime:
            moment: datetime = await db(self.clock.now)
            return moment

        accounts: Mapping[str, Account] = {self.account.provider: self.account}
        return LaneContext(
            run_id=held.run_id,
            slot=held.slot,
            host=self.host,
            clock=self.clock,
            limits=LIMITS,
            accounts=accounts,
            account_ids={self.account.provider: self.account_row.pk},
            fingerprints=[self.account.fingerprint],
            transport=transport,
            pictures=self.pictures,
            mark=lambda task_id: epoch.mark(slot=held.slot, task_id=task_id),
            now=now,
            db=db,
        )

    async def _until_quiet(self, engine: Engine, job: Job, points: Points) -> None:
        born, idle_s = self.clock.offset_s, 1.0
        while self.clock.offset_s - born < GIVE_UP_AFTER_S:
            moved = await one_pass(engine, points)
            if await sync_to_async(self._ended)(job):
                return
            if self.canary is None and self.clock.offset_s - born >= CANARY_AFTER_S:
                self.canary = await sync_to_async(self.job)("shows that the listing is fresh")
            idle_s = 1.0 if moved else min(idle_s * 2, 300.0)
            # Steps grow with age, as the stages' own intervals do: hours pass in few passes.
            self.clock.advance(max(idle_s, (self.clock.offset_s - born) / 8))

    def _ended(self, job: Job) -> bool:
        job.refresh_from_db()
        return job.state in ENDED

    def restart(self) -> None:
        """Time enough for the dead lane's death to be noticed."""
        self.clock.advance(DEATH_NOTICED_S)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def charged(self, job: Job) -> Charged:
        ledger = self.world.ledger
        ours = {str(task.pk): task for task in ProviderTask.objects.filter(job=job)}
        mine = [task for task in ledger.tasks.values() if task.correlation in ours]
        paid = [task for task in mine if ledger.standing(task.id) > 0]
        homeless = [
            task.id
            for task in paid
            if not Result.objects.filter(task=ours[task.correlation]).exists()
            and not Case.objects.filter(job=job, resolved_at__isnull=True).exists()
        ]
        return Charged(standing=len(paid), homeless=homeless)

    def wrong_with(self, job: Job) -> list[str]:
        """What is broken, in words; an empty list if nothing is. Any moment at which no lane is at work will do."""
        job.refresh_from_db()
        told = self.charged(job)
        known = {str(pk) for pk in ProviderTask.objects.values_list("pk", flat=True)}
        cases = Case.objects.filter(job=job, resolved_at__isnull=True)
        wrong = []
        if told.standing > 1:
            wrong.append(f"paid {told.standing} times")
        if told.homeless:
            wrong.append(f"paid, and neither a picture nor a case: {told.homeless}")
        strangers = [t.id for t in self.world.ledger.tasks.values() if t.correlation not in known]
        if strangers:
            wrong.append(f"sent without a row of ours: {strangers}")
        blocks = ProviderTask.objects.filter(job=job, blocks_send=True).exists()
        if job.state == JobState.ACTIVE and not blocks:
            wrong.append("active, and nothing it waits for")
        if job.state != JobState.SUCCEEDED and not cases.exists():
            wrong.append(f"{job.state} ({job.reason}) without a case")
        if job.state == JobState.SUCCEEDED:
            result = job.delivered
            assert result is not None
            if not (Path(self._media()) / result.key).is_file():
                wrong.append("succeeded, and the file is not there")
        if Hold.objects.filter(lifted_at__isnull=True).exists():
            wrong.append("all sends are held")
        connection.check_constraints()  # what a real commit would check
        return wrong

    def _media(self) -> str:
        from django.conf import settings

        return str(settings.MEDIA_ROOT)


async def one_pass(engine: Engine, points: Points) -> bool:
    """Beat, sweep, and every stage once, each recorded before the next begins. Whether anything was learned."""
    engine.last_sweep = float("-inf")
    await engine._beat_and_sweep()
    moved = False
    boot = engine.lane.clock.boot()
    for name in ROOM:
        # Free reads are due every minute at the most.
        if name == "health":
            if boot - engine.last_seldom < 20.0:
                continue
            engine.last_seldom = boot
        await engine._claim(name, ROOM[name])
        await asyncio.gather(*engine.at_work[name], return_exceptions=True)
        points.alive()
        batch: list[tuple[Fact, Callable[[], None] | None]] = []
        while not engine.facts.empty():
            batch.append(engine.facts.get_nowait())
        if batch:
            moved = True
            await engine._record(batch)
            points.alive()
    return moved
