"""Must hold 5 of issue 8: what receivers do wrong for an hour, and what of it anybody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db.models import Min

from bench.desk import RealDesk, until
from jobs import callbacks
from jobs.lane import LaneContext
from jobs.lifecycle import staff
from jobs.models import Callback
from jobs.models.callback import WAITS
from jobs.stages import deliver
from jobs.states import JobState
from tests import factories
from tests.real import real_desk
from tests.receivers import BROKEN, Receiver, receiver

JOBS, SLOTS = 60, 6
# With receivers that hang, the same jobs may take this much longer than without any: noise, no more.
MOST_RATIO = 1.25


class Teller:
    """The stage of a lane over a clock of the test's."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        clock = SimpleNamespace(now=lambda: self.now)
        self.lane = cast("LaneContext", SimpleNamespace(clock=clock, now=self._now, db=self._db))

    async def _now(self) -> datetime:
        return self.now

    async def _db(self, function: Any, *args: Any, **more: Any) -> Any:
        return await sync_to_async(function, thread_sensitive=True)(*args, **more)

    def run(self, until: datetime) -> None:
        """It looks whenever something falls due."""
        while self.now < until:
            async_to_sync(self._pass)()
            next_at = Callback.objects.filter(WAITS).aggregate(at=Min("not_before"))["at"] or until
            self.now = min(max(next_at, self.now + timedelta(seconds=1)), until)

    async def _pass(self) -> None:
        due = await self._db(deliver.claim_callbacks, self.lane, 64)
        await asyncio.gather(*(deliver.tell(self.lane, one) for one in due))


def an_hour_of_each_fault(program: Teller) -> dict[str, Any]:
    """With real sockets: each receiver is broken in its own way for an hour, then works. Returns the figures."""
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        servers = {mode: stack.enter_context(receiver(mode)) for mode in (*BROKEN, "well")}
        rows = {}
        began = program.now
        for mode, server in servers.items():
            job = factories.job(began, JobState.PENDING, callback_url=server.url)
            staff.cancel(job_id=job.pk, actor=None, now=began)
            rows[mode] = Callback.objects.get(job=job)
        program.run(began + timedelta(hours=1))
        for server in servers.values():
            server.mode = "well"
        program.run(began + timedelta(hours=3))
        for mode, row in rows.items():
            row.refresh_from_db()
            message, server = callbacks.message_id(row.message), servers[mode]
            assert row.delivered_at is not None, mode
            assert server.inside == 0, "a redirect was followed"
            assert {told for _at, told, _mode in server.told} == {message}
            assert server.ids("well") == [message], f"{mode}: delivered once it works, and once"
            after_s = (row.delivered_at - began - timedelta(hours=mode != "well")).total_seconds()
            assert 0 <= after_s <= callbacks.MOST_STEP_S
            figures[mode] = {"tries": row.tries, "delivered_after_s": round(after_s)}
    return figures


def jobs_beside_bad_receivers(folder: Path) -> dict[str, Any]:
    """With real processes: the same jobs without callbacks, and with four of five receivers broken. Returns the figures."""
    plain_s = _run(folder / "plain", [])[0]
    with _servers() as servers:
        (told_s, desk_told) = _run(folder / "told", servers)
    ratio = told_s / plain_s
    assert ratio <= MOST_RATIO, f"{told_s:.1f} s against {plain_s:.1f} s"
    return {
        "plain_s": round(plain_s, 1),
        "with_callbacks_s": round(told_s, 1),
        "ratio": round(ratio, 2),
        **desk_told,
    }


@contextlib.contextmanager
def _servers() -> Iterator[list[Receiver]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(receiver(mode)) for mode in ("well", *BROKEN)]


def _run(folder: Path, servers: Sequence[Receiver]) -> tuple[float, dict[str, Any]]:
    folder.mkdir()
    settings: dict[str, Any] = {
        "WORKER_LANES": 1,
        "WORKER_CONCURRENCY": SLOTS,
        "CALLBACK_ALLOW": "127.0.0.0/8",
    }
    with real_desk(
        folder, sandbox={"latency_fixed_s": 2.0, "prepared_bytes": 20_000}, **settings
    ) as desk:
        desk.create(JOBS)
        for number, server in enumerate(servers):
            desk.ask(
                "UPDATE jobs_job SET callback_url = %s WHERE id %% %s = %s RETURNING id", server.url, len(servers), number
            )  # fmt: skip
        desk.start_cluster()
        until(desk.lanes, "a lane")
        desk.settle(120.0, canary_every_s=None)
        assert desk.states() == {"succeeded": JOBS}
        [(took_s,)] = desk.ask("SELECT extract(epoch FROM max(finished_at) - min(armed_at))::float8 FROM jobs_job, jobs_providertask")  # fmt: skip
        figures = _told(desk, servers) if servers else {}
        assert desk.wrong() == []
    return took_s, figures


def _told(desk: RealDesk, servers: Sequence[Receiver]) -> dict[str, Any]:
    """The receiver that works has heard of all its jobs at once; the others do once they work."""
    well, *broken = servers
    each = JOBS // len(servers)
    until(lambda: len(set(well.ids("well"))) == each, "the receiver that works was told", 15.0)
    [(latest_s,)] = desk.ask(
        "SELECT extract(epoch FROM max(delivered_at - at))::float8 FROM jobs_callback WHERE url = %s", well.url
    )  # fmt: skip
    assert latest_s < 5.0
    for server in broken:
        assert server.told
        assert server.inside == 0
        server.mode = "well"
    healed = time.monotonic()
    delivered = "SELECT count(*) FROM jobs_callback WHERE delivered_at IS NOT NULL"
    until(lambda: desk.ask(delivered) == [(JOBS,)], "everybody was told", 180.0)
    doubled = sum(len(server.ids("well")) - len(set(server.ids("well"))) for server in servers)
    assert doubled == 0
    return {"told_latest_s": round(latest_s, 2), "all_told_after_healing_s": round(time.monotonic() - healed, 1)}  # fmt: skip
