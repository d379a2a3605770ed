"""Two accounts of one provider, each with a world of its own, and the real stages between them: one clock, no socket.

As tests/flow.py, for what one provider alone can't show: where a job goes when its first target takes nothing.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
from asgiref.sync import async_to_sync, sync_to_async
from pytest_django import Settings as DjangoSettings

from jobs import epoch, lanes
from jobs.engine import Engine
from jobs.lane import LaneContext
from jobs.lifecycle import create
from jobs.models import Job, Lane, ProviderTask
from jobs.pictures import PictureProcess
from jobs.rules import Limits
from providers import registry
from providers.contract import Account
from providers.http import Transport
from providers.models import Account as AccountRow
from providers.models import ProviderEvent, ProviderState, Target
from providers.sandbox.ledger import Post
from providers.sandbox.settings import Settings
from providers.sandbox.world import World
from tests import flow
from tests.flow import MODEL, OffsetClock, Points, Wire

FIRST, SECOND = "polza", "polza_b"
KEYS = {FIRST: "pza_first", SECOND: "pza_second"}
_TLS = ssl.create_default_context()


class _Roads(httpx.AsyncBaseTransport):
    """To each account's world by the host of its address."""

    def __init__(self, worlds: dict[str, World]) -> None:
        # All that a wire asks of a desk.
        self._wires = {
            f"{name}.test": Wire(
                cast("flow.Desk", SimpleNamespace(world=world, fault="")), Points()
            )
            for name, world in worlds.items()
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._wires[request.url.host].handle_async_request(request)


class Switchboard:
    """`first` and `second`: settings of their worlds. `limits` and FALLBACK_ON bound the lane."""

    def __init__(
        self,
        settings: DjangoSettings,
        folder: Path,
        pictures: PictureProcess,
        *,
        first: dict[str, Any] | None = None,
        second: dict[str, Any] | None = None,
        **limits: Any,
    ) -> None:
        for name in ("SPOOL_DIR", "EPOCH_DIR", "MEDIA_ROOT"):
            setattr(settings, name, folder / name.lower())
        settings.PROVIDER_KEYS = KEYS
        settings.AI_ACCOUNTS = {SECOND: FIRST}
        self.settings, self.pictures = settings, pictures
        self.clock = OffsetClock()
        self.limits: Limits = replace(flow.LIMITS, **limits)
        self.worlds = {FIRST: self._world(1, first), SECOND: self._world(2, second)}
        self.accounts = {
            name: Account(
                provider=name, base_url=f"http://{name}.test/api/v1", key=key, fingerprint=registry.fingerprint(key)
            )
            for name, key in KEYS.items()
        }  # fmt: skip
        self.rows = {
            name: AccountRow.objects.create(
                provider=name, fingerprint=account.fingerprint, created_at=self.clock.now(),
                echoes_id=True, history_lag_s=0,
            )
            for name, account in self.accounts.items()
        }  # fmt: skip
        self.targets = {name: self.target(name) for name in KEYS}
        lanes.ensure_slots(1)

    def _world(self, seed: int, changes: dict[str, Any] | None) -> World:
        plain = {"latency_fixed_s": 5, "prepared_bytes": 4000}
        return World(
            clock=self.clock.unix,
            rng=random.Random(seed),
            settings=Settings().changed(plain | (changes or {})),
        )

    def target(self, provider: str, model: str = MODEL) -> Target:
        return Target.objects.create(provider=provider, model=model, price=Decimal(5))

    @property
    def route(self) -> list[Target]:
        return [self.targets[FIRST], self.targets[SECOND]]

    def order(
        self, count: int = 1, prompt: str = "a cat", *, route: Sequence[Target] | None = None
    ) -> list[Job]:
        batch = create.create_jobs(
            jobs=[create.NewJob(prompt=prompt, route=route or self.route) for _ in range(count)],
            tenant=create.default_tenant(), actor=None, now=self.clock.now(),
        )  # fmt: skip
        return list(Job.objects.filter(batch=batch).order_by("pk"))

    # --- working ------------------------------------------------------------------------------------------------------

    def work(self, seconds: float, *, step_s: float = 3.0) -> None:
        """A lane works for so long by the desk's clock: every stage once a step, what is learned recorded in between."""
        held = lanes.take(host="desk-1", pid=1, version="", now=self.clock.now())
        assert held is not None
        async_to_sync(self._work)(held, seconds, step_s)
        Lane.objects.update(run_id=None)  # its slice is over

    async def _work(self, held: lanes.Held, seconds: float, step_s: float) -> None:
        roads = _Roads(self.worlds)
        async with Transport(paid=roads, reads=roads, verify=_TLS) as transport:
            engine = Engine(self._lane(held, transport), asyncio.Event())
            until = self.clock.offset_s + seconds
            while self.clock.offset_s < until:
                await flow.one_pass(engine, Points())
                self.clock.advance(step_s)

    def _lane(self, held: lanes.Held, transport: Transport) -> LaneContext:
        async def db(function: Any, *args: Any, **more: Any) -> Any:
            return await sync_to_async(function, thread_sensitive=True)(*args, **more)

        async def now() -> datetime:
            moment: datetime = await db(self.clock.now)
            return moment

        return LaneContext(
            run_id=held.run_id, slot=held.slot, host="desk-1", clock=self.clock,
            limits=replace(self.limits, fallback_on=self.settings.FALLBACK_ON), accounts=self.accounts,
            account_ids={name: row.pk for name, row in self.rows.items()},
            fingerprints=[account.fingerprint for account in self.accounts.values()],
            transport=transport, pictures=self.pictures,
            mark=lambda task_id: epoch.mark(slot=held.slot, task_id=task_id), now=now, db=db,
        )  # fmt: skip

    # --- looking ------------------------------------------------------------------------------------------------------

    def posts(self, provider: str) -> list[Post]:
        return self.worlds[provider].ledger.posts

    def states(self) -> dict[str, int]:
        """How many jobs are in each state."""
        told: dict[str, int] = {}
        for state in Job.objects.values_list("state", flat=True):
            told[state] = told.get(state, 0) + 1
        return told

    def state(self, provider: str, model: str = "") -> ProviderState:
        return ProviderState.objects.get(account=self.rows[provider], model=model)

    def events(self, provider: str) -> list[str]:
        found = ProviderEvent.objects.filter(account=self.rows[provider]).order_by("pk")
        return list(found.values_list("kind", flat=True))

    def charged(self) -> int:
        """Charges that stand, over both accounts."""
        return sum(
            world.ledger.standing(task.id) > 0
            for world in self.worlds.values()
            for task in world.ledger.tasks.values()
        )

    def wrong(self) -> list[str]:
        """POSTs without a row of ours, rows with two POSTs, jobs charged twice; in words."""
        arrived = [post.correlation for name in KEYS for post in self.posts(name)]
        known = {str(pk): job for pk, job in ProviderTask.objects.values_list("pk", "job_id")}
        said = [f"no row: {one}" for one in arrived if one and one not in known]
        said += [f"posted twice: {one}" for one in {*arrived} if one and arrived.count(one) > 1]
        paid: dict[int, int] = {}
        for world in self.worlds.values():
            for task in world.ledger.tasks.values():
                job = known.get(task.correlation)
                if job is not None and world.ledger.standing(task.id) > 0:
                    paid[job] = paid.get(job, 0) + 1
        return said + [
            f"job {job} is charged {times} times" for job, times in paid.items() if times > 1
        ]
