"""One seed from beginning to end."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from django.conf import settings
from django.contrib.auth.models import User
from django.db import connections

from bench.sim import database, hooks, nemesis, office, staffing
from bench.sim.chance import Chance
from bench.sim.database import Database
from bench.sim.desk import RETENTION_S, Desk
from bench.sim.judge import Judge
from bench.sim.nemesis import Nemesis
from bench.sim.receivers import Receiver
from bench.sim.turns import Turns
from jobs import bell, engine, lanes, results, spool
from jobs.lifecycle.record import Fact
from jobs.models import Tenant
from jobs.stages import facts, reconcile
from providers import health, registry, tokens
from providers.contract import Account, Call, Request
from providers.sandbox.submission import MARK

STEPS = 300
QUIET_STEPS = 40_000  # six hours, until a task whose key is gone becomes a case
WATCHING_STEPS = 8_000  # after so many, what is only watched any more (a task that never ends) may go on by itself
CANARY_EVERY_S, CANARIES_FOR_S = 200.0, 2400.0
SELDOM_S = 240.0  # in the quiet, whatever is asked again and again for hours
_SETTINGS: dict[str, Any] = {
    "POLL_DEADLINE_SEC": 900.0, "POLL_INTERVAL_SEC": 3.0, "RECONCILE_INTERVAL_SEC": 30.0, "POST_DEADLINE_SEC": 30.0,
    "WORKER_MAX_RETRIES": 1, "FREE_REFUSAL_ATTEMPTS": 5, "JOB_PATIENCE_SEC": 120.0, "EXPOSURE_LIMIT_PRICES": 20,
    "PRICE_CEILING_FACTOR": 1.5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a seed went. `struck` names the faults that happened; `steps` were taken in all."""

    seed: int
    wrong: list[str]
    steps: int
    simulated_s: float
    struck: list[str]
    story: list[str] = field(repr=False)
    ledger: dict[str, Any] = field(default_factory=dict)


def prepare() -> None:
    """Once a process, on a migrated database: the trigger, and people."""
    database.install()
    User.objects.get_or_create(username="person", defaults={"is_staff": True})


def run(seed: int, *, without: Collection[str] = (), steps: int = STEPS) -> Outcome:
    """`steps` of trouble, then quiet until all has come to its end. Never raises for a violation."""
    chance = Chance(seed, without=without)
    turns = Turns(chance)
    with _fresh(chance) as folder:
        return _run(chance, turns, folder, steps)


@contextlib.contextmanager
def _fresh(chance: Chance) -> Iterator[Path]:
    """Empty tables, empty disks, and identifiers that depend on the seed alone."""
    with connections["default"].cursor() as cursor:
        cursor.execute(database.TABLES)
        cursor.execute(f"TRUNCATE {cursor.fetchone()[0]} RESTART IDENTITY CASCADE")
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  in memory where there is such a place
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir=place))
    bits = chance.generator("identifiers")
    random.seed(chance.seed)  # jitter
    kept = {name: getattr(settings, name) for name in (*_SETTINGS, "WORKER_CONCURRENCY", "WORKER_LANES", "MEDIA_ROOT",
                                                      "SPOOL_DIR", "EPOCH_DIR", "TOKEN_DIR", "PROVIDER_KEYS",
                                                      "WEBHOOKS", "PUBLIC_URL")}  # fmt: skip
    for name, value in _SETTINGS.items():
        setattr(settings, name, value)
    settings.MEDIA_ROOT = folder / "media"
    settings.TOKEN_DIR = folder / "tokens"
    keys = {one.name: one.sandbox_key for one in registry.REGISTERED}
    settings.PROVIDER_KEYS = {**settings.PROVIDER_KEYS, **keys, "polza": "pza_sim_1"}
    try:
        with (
            mock.patch("os.urandom", bits.randbytes),
            mock.patch.object(bell, "ring"),
            mock.patch.object(engine, "TICK_S", engine.TICK_S),  # lanes here set it (desk.rest_s)
            _told_apart(),
        ):
            yield folder
    finally:
        for name, value in kept.items():
            setattr(settings, name, value)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _told_apart() -> Iterator[None]:
    """Each send bears its task's id in a header that only the sandbox reads, or nobody could judge what a provider without
    any field for it has made. And no provider keeps anything for longer than the quiet may last."""
    with contextlib.ExitStack() as stack:
        for adapter in registry.REGISTERED:
            build = adapter.submit

            def marked(account: Account, request: Request, build: Any = build) -> Call:
                call: Call = build(account, request)
                return replace(call, headers={**call.headers, MARK: str(request.correlation_id)})

            stack.enter_context(mock.patch.object(adapter, "submit", marked))
            stack.enter_context(mock.patch.object(type(adapter), "retention_s", RETENTION_S))
        yield


def _run(chance: Chance, turns: Turns, folder: Path, steps: int) -> Outcome:
    plan = nemesis.plan(chance, User.objects.get(username="person"))
    settings.WORKER_CONCURRENCY = plan["concurrency"]
    settings.WORKER_LANES = plan["lanes"]
    settings.POLL_INTERVAL_SEC = plan["poll_s"]
    settings.WEBHOOKS, settings.PUBLIC_URL = plan["webhooks"], hooks.ADDRESS
    base = Database(turns)
    database.limit(concurrency=plan["concurrency"], at_target=plan["target_limit"])
    desk = Desk(turns, chance, base, folder, plan)
    trouble = Nemesis(desk)
    base.on_gate = trouble.at_gate
    trouble.interrupt = lambda: staffing.act(desk)
    receiver = Receiver(desk)
    judge = Judge(desk, trouble, receiver)
    desk.network.trouble = plan["trouble"]
    turns.on_advance = desk.beat
    if plan["rates"]["batch"]:
        turns.after(0.0, lambda: desk.create_batch(plan["jobs"]))
    else:
        for number in range(plan["jobs"]):
            turns.after(chance.number("job/at", 0, 120) if number else 0.0, desk.create_job)
    day = _Day(desk, trouble, judge)
    turns.between = day.between
    row, open_s = (2, 12.0) if plan["fragile"] else (health.BAD_IN_A_ROW, health.OPEN_FIRST_S)
    edges = mock.patch.multiple(health, BAD_IN_A_ROW=row, OPEN_FIRST_S=open_s)
    wall = mock.patch.multiple(
        tokens, unix=desk.clock.unix, time=SimpleNamespace(monotonic=desk.clock.boot)
    )
    with (
        _storage_gates(desk),
        base.watched(),
        office.small_slices(desk),
        edges,
        wall,
        hooks.keys_at_hand(desk),
        receiver.listening(),
    ):
        try:
            turns.run(lambda: turns.steps >= steps or bool(judge.wrong))
            if not judge.wrong:
                day.settle()
        except Exception as error:  # noqa: BLE001  the harness must tell which seed broke it
            judge.wrong.append(f"the harness failed: {type(error).__name__}: {error}")
            turns.story.append("".join(traceback.format_exception(error)))
        finally:
            turns.bury()
            for task in (task for actor in turns.everybody for task in actor.left):
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
    return Outcome(
        seed=chance.seed, wrong=judge.wrong, steps=turns.steps, simulated_s=turns.now - 1000.0,
        struck=list(chance.struck), story=turns.story, ledger=desk.world.ledger.summary(),
    )  # fmt: skip


class _Day:
    """What happens between two steps, in the storm and in the quiet after it."""

    def __init__(self, desk: Desk, trouble: Nemesis, judge: Judge) -> None:
        self.desk, self.trouble, self.judge = desk, trouble, judge
        self._quiet_since = self._next_canary_at = self._next_look_at = float("inf")
        self._settled = False
        self._quiet_step = 0

    def between(self) -> None:
        self.judge.after_step()
        self.desk.start_lanes()
        hooks.deliver_due(self.desk)
        if not self.trouble.quiet:
            self.trouble.between_steps()
            staffing.act_sometimes(self.desk)
            staffing.act_on_a_batch_sometimes(self.desk)
            office.act_sometimes(self.desk)
        elif self.desk.turns.now >= self._next_look_at:
            self._look()

    def settle(self) -> None:
        """Nothing breaks any more, traffic goes on, and all comes to its end."""
        turns = self.desk.turns
        self.trouble.be_quiet()
        turns.tell("--- quiet ---")
        # New lanes that ask seldom: hours pass in few steps. One on each host, so that each host's spool is read.
        settings.POLL_INTERVAL_SEC, settings.RECONCILE_INTERVAL_SEC = 30.0, SELDOM_S
        for actor in list(self.desk.lanes):
            actor.inbox.append(actor.stop)
        self.desk.plan["slice_s"] = 3600.0
        self.desk.plan["lanes"] = self.desk.plan["hosts"]
        settings.WORKER_LANES = max(settings.WORKER_LANES, self.desk.plan["hosts"])
        lanes.ensure_slots(settings.WORKER_LANES)
        Tenant.objects.update(
            daily_limit=None
        )  # the owner raises it: no job ends while it waits for money
        self.desk.quiet = True
        self.judge.calm_since = self._quiet_since = turns.now
        self._next_canary_at, self._next_look_at = turns.now + CANARY_EVERY_S, turns.now + 30
        self._quiet_step = turns.steps
        last = turns.steps + QUIET_STEPS
        with (
            mock.patch.object(reconcile, "RECEIPT_EVERY_S", SELDOM_S),
            mock.patch.object(facts, "RECEIPT_EVERY_S", SELDOM_S),
        ):
            turns.run(lambda: self._settled or turns.steps >= last or bool(self.judge.wrong))
        if not self.judge.wrong:
            self.judge.at_the_end()

    def _look(self) -> None:
        now = self.desk.turns.now
        self._next_look_at = now + 20
        self.judge.stuck_now()
        staffing.top_up(self.desk)
        self.trouble.open_up()
        office.work_sometimes(self.desk)
        long = self.desk.turns.steps - self._quiet_step >= WATCHING_STEPS
        self._settled = self.judge.settled(watching=not long)
        if now < self._quiet_since + CANARIES_FOR_S and self.judge.outages():
            self._settled = False
            if self.judge.probe_wanted():
                self.desk.create_job("a probe")
        if not self._settled and self._next_canary_at <= now < self._quiet_since + CANARIES_FOR_S:
            self._next_canary_at = now + CANARY_EVERY_S
            if self.judge.lost_sends():
                self.desk.create_job("a canary")


@contextlib.contextmanager
def _storage_gates(desk: Desk) -> Iterator[None]:
    """Writing to a disk is visible too: a process can die before it, and the disk may be full."""
    put, settle = spool.put, results.settle

    def put_gated(learned: list[Fact]) -> None:
        desk._disk_write("spool")  # noqa: SLF001
        put(learned)
        desk.turns.tell(f"spools {len(learned)} facts")
        desk.spooled(learned)

    def settle_gated(*args: Any, **more: Any) -> bool:
        desk._disk_write("result")  # noqa: SLF001
        done = settle(*args, **more)
        desk.turns.gate()
        return done

    desk.turns.before_move = desk.switch_disk
    with (
        mock.patch.object(spool, "put", put_gated),
        mock.patch.object(results, "settle", settle_gated),
    ):
        yield
