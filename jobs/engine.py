"""The loop of a lane: claim what is due, act on it, record what came, decide. One slice at a time.

Everything that touches the database runs in one thread, so a slow database never stops the loop from reading answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error, close_old_connections

from jobs import answers, epoch, lanes, latencies, results, spool
from jobs.bell import Listener
from jobs.clock import clock
from jobs.lane import LaneContext
from jobs.lanes import Held
from jobs.lifecycle import decide, outcomes, providers
from jobs.lifecycle.record import Fact, record
from jobs.lifecycle.recover import hand_back
from jobs.rules import limits, rules
from jobs.stages import answers as answered
from jobs.stages import deliver, fetch, health, poll, reconcile, submit
from providers import registry
from providers.http import Transport

logger = logging.getLogger(__name__)

ROOM = {
    "submit": 320, "poll": 512, "fetch": 24, "look": 100, "receipt": 32, "health": 8, "deliver": 64,
}  # fmt: skip
GATHER_S = 0.02  # facts that come within it are recorded in one statement
TICK_S = 0.25
PASS_S = 0.04  # a claim costs as much for one row as for many: what ends within it makes one pass
SWEEP_S = 5.0
# Looks, receipts, free reads and callbacks can wait a second: not asked for in every pass.
_SELDOM = frozenset({"look", "receipt", "health", "deliver"})
SELDOM_S = 1.0
SPOOL_AFTER_S = 2.0
# What goes on while calls end that began before: nothing that sends.
_BESIDE = ("poll", "fetch", "look", "receipt", "health", "deliver")


_ONE_BY_ONE: dict[str, tuple[Callable[..., Any], Callable[..., Coroutine[Any, Any, Fact]]]] = {
    "poll": (poll.claim_polls, poll.act),
    "fetch": (fetch.claim_fetches, fetch.act),
    "receipt": (reconcile.claim_receipts, reconcile.receipt),
}


class FencedError(Exception):
    """Another run holds our slot."""


class Engine:
    """One run of one lane."""

    def __init__(self, lane: LaneContext, stop: asyncio.Event) -> None:
        self.lane = lane
        self.stop = stop
        self.facts: asyncio.Queue[tuple[Fact, Callable[[], None] | None]] = asyncio.Queue()
        self.at_work: dict[str, set[asyncio.Task[None]]] = {name: set() for name in ROOM}
        self.answering: set[asyncio.Task[None]] = set()  # sends whose answer is the result
        self.files_done: set[UUID] = set()  # answers that go once their facts are recorded
        self.wake = asyncio.Event()
        self.rng = random.Random()  # noqa: S311  jitter
        self.last_sweep = self.last_beat = self.last_seldom = float("-inf")

    async def run(self, until: float) -> None:
        """Until the boot clock reaches `until`, or `stop`; then drain."""
        recorder = asyncio.create_task(self._record_for_ever())
        try:
            while not self.stop.is_set() and self.lane.clock.boot() < until:
                await self._pass(tuple(ROOM))
                await self._rest()
            # The slice is over: sends and downloads under way end by their own deadlines, all else goes on beside them.
            until += self._longest_call_s()
            while not self.stop.is_set() and self._long_calls() and self.lane.clock.boot() < until:
                await self._pass(_BESIDE if self.answering else ("poll",))
                await self._rest()
            await self._drain()
        except Exception:
            # Another run holds the slot, or a fault of ours. What was paid for comes in all the same, and is recorded.
            if self.answering:
                await asyncio.wait(self.answering, timeout=self._longest_call_s())
            raise
        finally:
            await self._give_up_acts()
            await self.facts.join()
            recorder.cancel()
            await asyncio.gather(recorder, return_exceptions=True)

    # --- one pass -----------------------------------------------------------------------------------------------------

    async def _pass(self, stages: tuple[str, ...]) -> None:
        try:
            await self._beat_and_sweep()
            boot = self.lane.clock.boot()
            seldom = boot - self.last_seldom >= SELDOM_S
            if seldom:
                self.last_seldom = boot
            for name in stages:
                if (name in _SELDOM and not seldom) or (name == "submit" and self.stop.is_set()):
                    continue
                free = ROOM[name] - len(self.at_work[name])
                if free > 0:
                    await self._claim(name, free)
        except Error as error:
            # The database is away: nothing is claimed or armed; answers are still read and kept.
            logger.warning("engine.database %s", error)
            self.last_sweep = float("-inf")
            await self.lane.db(close_old_connections)
            await asyncio.sleep(TICK_S)

    async def _claim(self, name: str, free: int) -> None:
        lane = self.lane
        match name:
            case "submit":
                sends, not_armed = await lane.db(submit.claim_and_arm, lane, free)
                for fact in not_armed:
                    self._learned(fact)
                acts = [self._submit(send) for send in sends if not send.answers_with_result]
                for send in sends:
                    if send.answers_with_result:
                        task = self._start(name, self._submit(send))
                        self.answering.add(task)
                        task.add_done_callback(self.answering.discard)
            case "look":
                lost = await lane.db(reconcile.claim_looks, lane, free)
                acts = [self._many(reconcile.look(lane, *one)) for one in lost]
            case "health":
                due = await lane.db(health.claim_reads, lane, free)
                acts = [health.look(lane, one) for one in due]
            case "deliver":
                told = await lane.db(deliver.claim_callbacks, lane, free)
                acts = [deliver.tell(lane, one) for one in told]
            case _:
                claim, act = _ONE_BY_ONE[name]
                acts = [self._one(act(lane, task)) for task in await lane.db(claim, lane, free)]
        for act_of_one in acts:
            self._start(name, act_of_one)

    async def _submit(self, send: submit.Send) -> None:
        try:
            fact, refusal = await submit.act(self.lane, send)
        finally:
            if send.file is not None:
                send.file.close()
        if send.file_done:
            self.files_done.add(fact.task_id)
        self._learned(
            fact, None if refusal is None else lambda: submit.note_refusal(self.lane, send, refusal)
        )

    async def _one(self, act: Coroutine[Any, Any, Fact]) -> None:
        fact = await act
        # Inline bytes are dropped only once the kept file is recorded.
        self._learned(fact, partial(results.drop_inline, fact.task_id) if fact.stored else None)

    async def _many(self, act: Coroutine[Any, Any, list[Fact]]) -> None:
        for fact in await act:
            self._learned(fact)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.at_work[name].add(task)
        task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self.at_work[name].discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("engine.act %s", name, exc_info=error)
        self.wake.set()

    def _learned(self, fact: Fact, beside: Callable[[], None] | None = None) -> None:
        self.facts.put_nowait((fact, beside))

    # --- recording ----------------------------------------------------------------------------------------------------

    async def _record_for_ever(self) -> None:
        while True:
            batch = [await self.facts.get()]
            await asyncio.sleep(GATHER_S)
            while not self.facts.empty():
                batch.append(self.facts.get_nowait())
            try:
                await self._record(batch)
            except Exception:
                # A fault of ours must not end the recording: what was learned goes to the disk.
                logger.exception("engine.recorder")
                try:
                    await asyncio.to_thread(spool.put, [fact for fact, _ in batch])
                    await self._drop_answers([fact for fact, _ in batch])
                except OSError:
                    # Neither database nor disk: keep them in memory, and send nothing more until they are somewhere.
                    logger.exception("engine.spool")
                    self.stop.set()
                    await asyncio.sleep(TICK_S)
                    for item in batch:
                        self.facts.put_nowait(item)
            for _ in batch:
                self.facts.task_done()
            self.wake.set()

    async def _drop_answers(self, recorded: Iterable[Fact]) -> None:
        """These facts are in the database, or on the disk."""
        if done := self.files_done & {fact.task_id for fact in recorded}:
            self.files_done -= done
            await asyncio.to_thread(answers.drop, done)

    async def _record(self, batch: list[tuple[Fact, Callable[[], None] | None]]) -> None:
        """Ids before everything else. When the database stays away, the facts go to the disk."""
        plain = sorted(
            (fact for fact, _ in batch if fact.refusal_class is None),
            key=lambda fact: fact.provider_id is None,
        )
        refused = [fact for fact, _ in batch if fact.refusal_class is not None]
        facts = plain + refused
        notes = [note for fact, note in batch if fact.refusal_class is not None and note]
        give_up_at = self.lane.clock.boot() + SPOOL_AFTER_S
        while True:
            try:
                touched = await self.lane.db(record, facts=plain)
                if refused:
                    # A recorded refusal frees its place. The block stands before that, or another job would be sent into
                    # the same refusal.
                    await self.lane.db(_run_all, notes)
                    touched |= await self.lane.db(record, facts=refused)
                break
            except Error as error:
                logger.warning("engine.record %s", error)
                self.last_sweep = float("-inf")
                await self.lane.db(close_old_connections)
                if self.lane.clock.boot() >= give_up_at:
                    await asyncio.to_thread(spool.put, facts)
                    await self._drop_answers(facts)
                    return
                await asyncio.sleep(TICK_S)
        await self._drop_answers(facts)
        try:
            beside = [note for fact, note in batch if fact.refusal_class is None and note]
            await self.lane.db(self._decide, touched, beside, facts)
        except Error as error:
            logger.warning(
                "engine.decide %s", error
            )  # the rows stay undecided; reconcile comes back to them

    def _decide(
        self,
        job_ids: set[int],
        beside: list[Callable[[], None]],
        facts: Sequence[Fact] = (),
    ) -> None:
        now = self.lane.clock.now()
        _run_all(beside)
        outcomes.note_outcomes(
            facts=facts, poll_deadline_s=self.lane.limits.poll_deadline_s, now=now
        )
        decide.decide(job_ids=job_ids, rules=rules(), now=now, rng=self.rng)

    # --- beating, sweeping, resting, draining -------------------------------------------------------------------------

    async def _beat_and_sweep(self) -> None:
        boot = self.lane.clock.boot()
        if boot - self.last_beat >= lanes.HEARTBEAT_S:
            if not await self.lane.db(_beat, self.lane):
                self.stop.set()
                raise FencedError
            self.last_beat = boot
            if await self.lane.db(_asked_to_end, self.lane):
                self.stop.set()
        if boot - self.last_sweep >= SWEEP_S and await self.lane.db(self._sweep):
            self.last_sweep = boot

    def _sweep(self) -> bool:
        """False: there is more of it, and the next pass goes on."""
        now = self.lane.clock.now()
        live = lanes.live_runs(now) | {self.lane.run_id}
        replayed = answered.replay(self.lane, live=live, now=now)
        touched = replayed.touched
        touched |= spool.replay(host=self.lane.host, now=now, clear=replayed.all_read)
        epoch.check(now=now)
        if not replayed.more:
            touched |= reconcile.sweep(self.lane)
        self._decide(touched, [], replayed.facts)
        return not replayed.more

    async def _rest(self) -> None:
        await asyncio.sleep(PASS_S)
        with_deadline = asyncio.timeout(TICK_S)
        try:
            async with with_deadline:
                await self.wake.wait()
        except TimeoutError:
            pass
        self.wake.clear()

    def _long_calls(self) -> bool:
        return bool(self.at_work["submit"] or self.at_work["fetch"])

    def _longest_call_s(self) -> float:
        """Of any provider that this lane reaches."""
        limits = self.lane.limits
        reached = [limits.call_deadline_s(registry.adapter(name)) for name in self.lane.accounts]
        return max([limits.post_deadline_s, *reached])

    async def _drain(self) -> None:
        """Nothing new is claimed; the calls under way may end, bounded. Where the answer is the result, it is waited for up to
        the call's own deadline, and the lane does its other work meanwhile."""
        until = self.lane.clock.boot() + self._longest_call_s()
        while self.answering and self.lane.clock.boot() < until:
            await self._pass(_BESIDE)
            await self._rest()
        left = [task for tasks in self.at_work.values() for task in tasks]
        if left:
            await asyncio.wait(left, timeout=settings.LANE_DRAIN_SEC)

    async def _give_up_acts(self) -> None:
        left = [task for tasks in self.at_work.values() for task in tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if left:
            try:
                await self.lane.db(_hand_back, self.lane)
            except Error as error:
                logger.warning(
                    "engine.hand_back %s", error
                )  # then they come back when their lease ends


def _run_all(notes: Sequence[Callable[[], None]]) -> None:
    for note in notes:
        note()


def _hand_back(lane: LaneContext) -> None:
    hand_back(run_id=lane.run_id, now=lane.clock.now())


def _beat(lane: LaneContext) -> bool:
    return lanes.heartbeat(run_id=lane.run_id, now=lane.clock.now())


def _asked_to_end(lane: LaneContext) -> bool:
    return lanes.asked_to_end(run_id=lane.run_id)


class Now:
    """The database's clock, read once a beat and carried on by the boot clock in between."""

    def __init__(self, db: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._db = db
        self._read_at = float("-inf")
        self._moment: datetime | None = None

    async def __call__(self) -> datetime:
        boot = clock.boot()
        if self._moment is None or boot - self._read_at > lanes.HEARTBEAT_S:
            try:
                self._read_at, self._moment = await self._db(clock.both)
            except Error:
                if self._moment is None:
                    raise
        return self._moment + timedelta(seconds=clock.boot() - self._read_at)


async def run_slice(held: Held, *, stop: asyncio.Event) -> None:
    """Run the engine for at most LANE_SLICE_SEC in the slot that is held."""

    def db(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return sync_to_async(function, thread_sensitive=True)(*args, **kwargs)

    until = clock.boot() + settings.LANE_SLICE_SEC
    host = socket.gethostname()
    accounts, account_ids = await db(_accounts)
    plans = await db(latencies.plans)
    now = Now(db)
    # From here on it can be told while the database is away: answers must not wait for it, nor be lost.
    await now()
    async with Transport() as transport, Listener() as listener:
        lane = LaneContext(
            run_id=held.run_id,
            slot=held.slot,
            host=host,
            clock=clock,
            limits=limits(),
            accounts=accounts,
            account_ids=account_ids,
            fingerprints=[account.fingerprint for account in accounts.values()],
            transport=transport,
            pictures=results.picture_process(),
            mark=lambda task_id: epoch.mark(slot=held.slot, task_id=task_id),
            now=now,
            db=db,
            plans=plans,
        )
        engine = Engine(lane, stop)
        listening = asyncio.create_task(_listen(listener, engine.wake))
        try:
            await engine.run(until)
        except FencedError:
            logger.warning("engine.fenced slot %s", held.slot)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def _listen(listener: Listener, wake: asyncio.Event) -> None:
    while True:
        if await listener.wait(30.0):
            wake.set()


def _accounts() -> tuple[dict[str, Any], dict[str, int]]:
    """The accounts that the settings give keys for, with their rows."""
    accounts, ids = {}, {}
    now = clock.now()
    for name in registry.ADAPTERS:
        try:
            account = registry.account(name)
        except ImproperlyConfigured:
            continue
        accounts[name] = account
        ids[name] = providers.ensure_account(
            provider=name, fingerprint=account.fingerprint, now=now
        ).pk
    return accounts, ids
