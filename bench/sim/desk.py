"""The product under test: its rows, and lanes that run the real engine on the virtual clock."""

from __future__ import annotations

import asyncio
import random
import shutil
import ssl
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import OperationalError
from django.db.models import Min
from django.db.models.functions import Least

from bench.sim.chance import Chance
from bench.sim.database import Database
from bench.sim.network import PREPARED_BYTES, Network, Wire
from bench.sim.turns import Actor, Turns, live_in_loop
from jobs import engine, epoch, lanes, latencies
from jobs.clock import Clock
from jobs.decoder import Picture, Rejected, examine
from jobs.engine import Engine, FencedError
from jobs.lane import LaneContext
from jobs.lifecycle import create, providers
from jobs.lifecycle.record import Fact, record
from jobs.models import Job, Lane, ProviderTask, SpoolHost, StandingDecision
from jobs.rules import limits
from providers import registry
from providers.contract import Account
from providers.http import Transport
from providers.models import QuotaWindow, Target
from providers.sandbox.ledger import Task as Made
from providers.sandbox.settings import Settings
from providers.sandbox.world import World

BEGINS = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
MODELS = {
    "polza": ("google/gemini-2.5-flash-image", "bytedance/seedream-4")
}  # others: their default
HOSTS = ("desk-1", "desk-2")
RETENTION_S = 6 * 3600.0
_TLS = ssl.create_default_context()


class SimClock(Clock):
    """Virtual. The wall may be set (NTP), the boot clock never is."""

    def __init__(self, turns: Turns, database: Callable[[], Database]) -> None:
        self._turns = turns
        self._database = database
        self.wall_offset_s = 0.0

    def now(self) -> datetime:
        self._database().check_up()
        return self.moment()

    def moment(self) -> datetime:
        return BEGINS + timedelta(seconds=self._turns.now + self.wall_offset_s)

    def boot(self) -> float:
        return self._turns.now

    def unix(self) -> float:
        """The provider's clock, a little off ours."""
        return BEGINS.timestamp() + self._turns.now + 3.0


class Pictures:
    """Decodes on the spot; the child process of the product is none of the simulation's business."""

    async def inspect(self, path: Path, thumbnail_to: Path | None = None) -> Picture | Rejected:
        return examine(path, thumbnail_to=thumbnail_to, max_pixels=50_000_000)


class Desk:
    """One database, one provider, lanes that come and go. `folder` holds a disk for each host, and the results."""

    def __init__(
        self, turns: Turns, chance: Chance, database: Database, folder: Path, plan: dict[str, Any]
    ) -> None:
        self.turns, self.chance, self.database, self.folder, self.plan = (
            turns,
            chance,
            database,
            folder,
            plan,
        )
        self.clock = SimClock(turns, lambda: self.database)
        self.world = World(
            clock=self.clock.unix,
            rng=chance.generator("world"),
            settings=Settings().changed(
                {
                    "latency_median_s": plan["latency_s"],
                    "prepared_bytes": PREPARED_BYTES,
                    "default_prices": {},  # one price for all
                    **plan["world"],
                }
            ),
        )
        self.network = Network(turns, self.world, chance)
        self.on_learned: Callable[[Fact], None] = lambda _fact: None
        self.on_ended: Callable[[Actor], None] = lambda _actor: None
        self.on_kept: Callable[[list[Fact]], None] = lambda _facts: None
        self.lanes: dict[Actor, str] = {}  # alive, and their host
        self.workers: set[Actor] = set()  # at bulk work or a statement
        self.planted = 0  # generations of another program with our key
        self.next_work_at = turns.now
        self.keys = ["pza_sim_1"]
        self.storage_fails = False
        self.quiet = self.disk_lost = False
        self.last_moved = turns.now
        self.next_start_at = turns.now
        self._numbers = 0
        self._silent_s = 0.0
        self._runs: dict[Actor, uuid.UUID] = {}
        self.targets = [
            self._target(provider, number) for number, provider in enumerate(plan["lineup"])
        ]
        self.tenants = [create.default_tenant()]
        self.tenants[0].max_in_flight = plan["tenant_limit"]
        self.tenants[0].daily_limit = plan["budget"]
        self.tenants[0].save()
        self.account_rows: dict[str, Any] = {}
        self.reach_account()
        for seconds, most in plan["windows"]:
            QuotaWindow.objects.create(account=self.account_row, seconds=seconds, most=most)
        for what in plan["standing"]:
            StandingDecision.objects.create(
                target=self.targets[0], what=what, reason="simulated", made_by=plan["person"], made_at=self.clock.moment()
            )  # fmt: skip
        lanes.ensure_slots(settings.WORKER_LANES)

    def _target(self, provider: str, number: int) -> Target:
        speaks = registry.adapter(provider)
        # One price for all: the ledger charges it, and the budgets of the plans are made for it.
        models = MODELS.get(provider, (speaks.default_model, f"{speaks.default_model}-2"))
        return Target.objects.create(
            provider=provider, model=models[number], price=Decimal(5), currency=speaks.currency,
            max_in_flight=self.plan["target_limit"],
        )  # fmt: skip

    def account_of(self, provider: str) -> Account:
        """As lanes that start now reach it."""
        speaks = registry.adapter(provider)
        key = self.keys[-1] if provider == "polza" else speaks.sandbox_key
        return Account(
            provider=provider,
            base_url=f"http://{provider}.sim{speaks.sandbox_path}",
            fingerprint=registry.fingerprint(key),
            key=key,
        )

    def reach_account(self) -> None:
        """The rows of the accounts with their newest keys, made where there are none."""
        for provider in dict.fromkeys(("polza", *self.plan["lineup"])):
            fingerprint = self.account_of(provider).fingerprint
            row = providers.ensure_account(
                provider=provider, fingerprint=fingerprint, now=self.clock.moment()
            )
            if provider == "polza":
                row.echoes_id, row.history_lag_s = self.plan["echoes"], self.plan["lag_s"]
                row.exclusive = self.plan["exclusive"]
                row.save()
            self.account_rows[provider] = row

    @property
    def account_row(self) -> Any:
        """The account that most sends go to."""
        return self.account_rows[self.plan["lineup"][0]]

    def rotate_key(self) -> None:
        """Lanes that start from now on have another key."""
        self.keys.append(f"pza_sim_{len(self.keys) + 1}")
        self.reach_account()
        # In the settings from the moment on: what the commands and the stuck query see.
        settings.PROVIDER_KEYS["polza"] = self.keys[-1]

    def create_job(self, prompt: str = "a cat") -> None:
        self.create_batch(1, prompt)

    def create_batch(self, jobs: int, prompt: str = "a cat") -> None:
        self._numbers += jobs
        route = self.targets if self.plan["fallback"] else self.targets[:1]
        create.create_jobs(
            jobs=[create.NewJob(prompt=f"{prompt} {self._numbers - number}", route=route, callback_url=self.plan["callback_url"]) for number in range(jobs)],
            tenant=self.tenants[0], actor=None, now=self.clock.moment(), token=uuid.uuid4(),
        )  # fmt: skip
        self.last_moved = self.turns.now

    def made_for(self, task_id: uuid.UUID) -> list[Made]:
        """What the provider made for a send of ours; nobody but the sandbox knows for sure."""
        return [one for one in self.world.ledger.tasks.values() if one.correlation == str(task_id)]

    # --- lanes --------------------------------------------------------------------------------------------------------

    def start_lanes(self) -> None:
        """As many as the plan wants, as the supervisor does: a new one a second."""
        if len(self.lanes) < self.plan["lanes"] and self.turns.now >= self.next_start_at:
            self.next_start_at = self.turns.now + 1.0
            self._start_lane()
            # Else nobody might have anything to do, and the clock would stand still for nobody.
            self.turns.after(1.0, lambda: None)

    def _start_lane(self) -> None:
        """A new process on one of the hosts; it takes a slot or goes."""
        hosts = HOSTS[: self.plan["hosts"]]
        without = [host for host in hosts if host not in self.lanes.values()]
        host = without[0] if without else self.chance.pick("lane/host", hosts)
        self._numbers += 1
        actor = self.turns.start(f"lane {self._numbers}", lambda: self._live(actor, host))
        self.lanes[actor] = host

    def disk_of(self, host: str) -> Path:
        return self.folder / host

    def lose_disk(self) -> None:
        """The second host's disk burns with its spool; a person declares it lost, as `absence` must wait for that."""
        host = HOSTS[1]
        if self.plan["hosts"] < 2 or any(on == host for on in self.lanes.values()):
            return
        shutil.rmtree(self.disk_of(host), ignore_errors=True)
        lost = {"declared_lost_at": self.clock.moment()}
        # It may burn before any lane there has said a word.
        SpoolHost.objects.update_or_create(
            host=host, defaults=lost, create_defaults={**lost, "clear_at": BEGINS}
        )
        self.plan["hosts"] = 1
        self.disk_lost = True
        self.turns.tell(f"the disk of {host} is lost")

    def switch_disk(self) -> None:
        """Settings of the host whose process moves next."""
        host = self.lanes.get(self.turns.current) if self.turns.current else None
        disk = self.disk_of(host or HOSTS[0])
        settings.SPOOL_DIR, settings.EPOCH_DIR = disk / "spool", disk / "epoch"

    def rest_s(self) -> float:
        """How long an idle lane rests: often while things move, seldom while nothing does."""
        if self.quiet:
            return self.next_due_s()
        return min(20.0, 0.5 + (self.turns.now - self.last_moved) / 6)

    def _live(self, actor: Actor, host: str) -> None:
        try:
            held = lanes.take(host=host, pid=1, version="", now=self.clock.now())
        except OperationalError:
            held = None
        if held is None:
            self.lanes.pop(actor, None)
            return
        self._runs[actor] = held.run_id
        self.turns.tell(f"starts on {host}, slot {held.slot}")
        try:
            live_in_loop(actor, lambda: self._slice(actor, held, host))
            self.on_ended(actor)
            lanes.free(run_id=held.run_id)
            self.turns.tell("ends")
        except OperationalError:
            pass
        finally:
            self.lanes.pop(actor, None)
            self._runs.pop(actor, None)

    async def _slice(self, actor: Actor, held: lanes.Held, host: str) -> None:
        wire = Wire(self.network, actor)
        async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
            stop = asyncio.Event()
            run = _WatchedEngine(self._context(held, host, transport), stop, self)
            actor.stop = stop.set
            try:
                await run.run(self.turns.now + self.plan["slice_s"])
            except FencedError:
                self.turns.tell("finds that another run holds its slot")

    def _context(self, held: lanes.Held, host: str, transport: Transport) -> LaneContext:
        accounts = {provider: self.account_of(provider) for provider in self.account_rows}

        async def db(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
            if function is record:
                return self._record(*args, **more)
            return function(*args, **more)

        async def now() -> datetime:
            return self.clock.moment()

        def mark(task_id: uuid.UUID) -> None:
            self._disk_write("mark")
            epoch.mark(slot=held.slot, task_id=task_id)

        return LaneContext(
            run_id=held.run_id, slot=held.slot, host=host, clock=self.clock, limits=limits(),
            accounts=accounts, account_ids={provider: row.pk for provider, row in self.account_rows.items()},
            fingerprints=[account.fingerprint for account in accounts.values()], transport=transport, pictures=Pictures(),  # type: ignore[arg-type]
            mark=mark, now=now, db=db, plans=latencies.plans(),
        )  # fmt: skip

    def _record(self, *, facts: list[Fact]) -> set[int]:
        """Recording, now and then twice over."""
        touched = record(facts=facts)
        self.on_kept(facts)
        if self.chance.strikes("record/twice", self.plan["rates"]["record twice"]):
            self.turns.tell("records the same facts again")
            touched |= record(facts=facts)
        return touched

    def _disk_write(self, what: str) -> None:
        self.turns.gate()
        if self.storage_fails:
            raise OSError(28, f"no space left on device ({what})")

    def spooled(self, facts: list[Fact]) -> None:
        self.on_kept(facts)

    # --- time ---------------------------------------------------------------------------------------------------------

    def beat(self, seconds: float) -> None:
        """Time passes while idle lanes rest: their hearts went on beating meanwhile."""
        alive = [
            run
            for actor, run in self._runs.items()
            if not actor.dead and actor.frozen_until <= self.turns.now
        ]
        self._silent_s += seconds
        if (
            self._silent_s >= lanes.HEARTBEAT_S
            and alive
            and self.turns.now >= self.database.down_until
        ):
            self._silent_s = 0.0
            Lane.objects.filter(run_id__in=alive).update(heartbeat_at=self.clock.moment())

    def next_due_s(self) -> float:
        """Seconds until something of ours falls due, at least one."""
        soonest = ProviderTask.objects.aggregate(
            at=Min(Least("next_poll_at", "next_fetch_at", "next_look_at", "next_receipt_at"))
        )["at"]
        # A pending job whose time has come waits for a slot, and whatever frees one wakes the lane.
        later = Job.objects.filter(state="pending", not_before__gt=self.clock.moment())
        pending = later.aggregate(at=Min("not_before"))["at"]
        moments = [moment for moment in (soonest, pending) if moment is not None]
        if not moments:
            return 10.0
        seconds: float = (min(moments) - self.clock.moment()).total_seconds()
        return min(
            max(seconds, 1.0), 30.0 if Job.objects.filter(state="pending").exists() else 600.0
        )


class _WatchedEngine(Engine):
    """The engine, seen by the judge: what it read, and what it kept."""

    def __init__(self, lane: LaneContext, stop: asyncio.Event, desk: Desk) -> None:
        super().__init__(lane, stop)
        self.desk = desk
        self.rng = random.Random(str(lane.slot))

    async def _rest(self) -> None:
        engine.TICK_S = self.desk.rest_s()
        await super()._rest()

    def _learned(self, fact: Fact, beside: Callable[[], None] | None = None) -> None:
        self.desk.on_learned(fact)
        self.desk.last_moved = self.desk.turns.now
        super()._learned(fact, beside)

    def _decide(
        self, job_ids: set[int], beside: list[Callable[[], None]], facts: Sequence[Fact] = ()
    ) -> None:
        if self.desk.chance.strikes("decide/lost", self.desk.plan["rates"]["decide lost"]):
            self.desk.turns.tell("its decision is lost")
            raise OperationalError("deadlock detected")
        super()._decide(job_ids, beside, facts)
        if self.desk.chance.strikes("decide/twice", self.desk.plan["rates"]["decide twice"]):
            super()._decide(job_ids, [])
