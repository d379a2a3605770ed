"""Waking lanes. Messages carry no truth: a lost ring costs at most a minute and a half, a doubled one nothing.

`ring` is called by whoever made work. Live lanes hear NOTIFY; where lanes are missing, django-q2 gets messages that start
some. The order that loses no work: the creator commits, then looks for live lanes; a lane frees its slot, then looks for
work, then rings. Whichever commits later sees the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from typing import Any, Self

import psycopg
from django.conf import settings
from django.db import connection, connections, transaction
from django.utils import timezone
from django_q.conf import Conf
from django_q.models import OrmQ
from django_q.tasks import async_task

from jobs import lanes
from jobs.clock import clock

logger = logging.getLogger(__name__)

CHANNEL = "desk_work"
RUN_LANE = "jobs.tasks.run_lane"
_RECONNECT_S = 1.0
# How far back among waiting messages bells are looked for.
_LOOK_AT_MESSAGES = 200


def ring() -> None:
    """Inside the transaction that makes work (outside one: at once). Nobody hears it before the commit."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])
    # Robust: the work is committed; that the bell could not be hung must not look like a failure to its creator.
    transaction.on_commit(start_missing_lanes, robust=True)


def start_missing_lanes() -> int:
    """Enqueue a bell for each lane that neither runs nor is called already; how many. After the work's commit only."""
    live = lanes.alive(clock.now()).filter(draining=False, slot__lte=settings.WORKER_LANES).count()
    missing = settings.WORKER_LANES - lanes.closed() - live
    if missing > 0:
        missing -= bells_waiting()
    for _ in range(missing):
        async_task(RUN_LANE)
    return max(0, missing)


def bells_waiting() -> int:
    """Bells that no cluster has popped yet. Popped ones are not counted: they may have found no slot."""
    # The queue compares its locks with the web server's own clock, not the database's.
    waiting = OrmQ.objects.filter(key=Conf.CLUSTER_NAME, lock__lte=timezone.now())
    return sum(
        message.func() == RUN_LANE for message in waiting.order_by("-pk")[:_LOOK_AT_MESSAGES]
    )


def direct_parameters() -> dict[str, Any]:
    """psycopg's connection parameters of a session of its own: DATABASE_DIRECT_URL, else the default database's."""
    # A peer that vanished without a word is noticed in a minute, not after TCP's two hours.
    alive = {
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "connect_timeout": 5,
    }
    if settings.DATABASE_DIRECT_URL:
        return {**psycopg.conninfo.conninfo_to_dict(settings.DATABASE_DIRECT_URL), **alive}
    parameters = connections["default"].get_connection_params()
    for own in ("context", "cursor_factory", "prepare_threshold"):
        parameters.pop(own, None)
    return {**alive, **parameters}


class Listener:
    """Hears `ring` in a running event loop. One waiter at a time.

    The connection is read as notifications arrive, so one that came between two waits ends the next at once. A lost
    connection is made again by the next wait, which then counts as notified: something may have been missed.
    """

    def __init__(self, channel: str = CHANNEL) -> None:
        self._channel = channel
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._fd = -1
        self._heard = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._disconnect()

    async def wait(self, timeout_s: float) -> bool:
        """True: rung since the last wait, or perhaps so. False: nothing for `timeout_s`. Never raises."""
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        if self._connection is None or self._connection.closed:
            await self._disconnect()
            if not await self._connect():
                await asyncio.sleep(max(0.0, min(_RECONNECT_S, until - loop.time())))
                return False
            self._heard.clear()
            return True
        try:
            async with asyncio.timeout_at(until):
                await self._heard.wait()
        except TimeoutError:
            return False
        self._heard.clear()
        return True

    async def _connect(self) -> bool:
        made = None
        try:
            made = await psycopg.AsyncConnection.connect(**direct_parameters(), autocommit=True)
            made.add_notify_handler(lambda _notify: self._heard.set())
            await made.execute(f'LISTEN "{self._channel}"')
        except (psycopg.Error, OSError) as error:
            logger.warning("listener.no_connection %s", error)
            if made is not None:
                await made.close()
            return False
        self._connection, self._fd = made, made.fileno()
        asyncio.get_running_loop().add_reader(self._fd, functools.partial(self._read, made))
        return True

    def _read(self, made: psycopg.AsyncConnection[Any]) -> None:
        try:
            made.pgconn.consume_input()
            while made.pgconn.notifies() is not None:
                self._heard.set()
        except psycopg.Error as error:
            logger.warning("listener.lost_connection %s", error)
            # Stop reading here and now: a dead socket stays readable, and the loop would spin on it.
            asyncio.get_running_loop().remove_reader(self._fd)
            made.pgconn.finish()
            self._heard.set()

    async def _disconnect(self) -> None:
        old, self._connection = self._connection, None
        if old is None:
            return
        asyncio.get_running_loop().remove_reader(self._fd)
        with contextlib.suppress(psycopg.Error, OSError):
            await old.close()
