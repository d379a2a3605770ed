"""Live progress: what many pages watch is read once a second, for all of them together.

A `Hub` belongs to one event loop, so to one web process. While somebody watches, it reads each watched subject once a
round, in one thread with one database connection; when the last one leaves, both are given back. Who watches gets the
newest state, never a queue of states: a client that is slow skips some, and costs no memory.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import (
    InterfaceError,
    OperationalError,
    close_old_connections,
    connection,
    connections,
    transaction,
)
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from jobs import manner
from jobs.manner import Manner

EVERY_S = 1.0
PING_S = 15.0
# Then the client comes back, and whether it may is asked again. Spread, so that many do not come back at once.
LONGEST_S = (240.0, 300.0)
RETRY_MS = (1_000, 10_000)
STATEMENT_TIMEOUT_S = 5
MOST_STREAMS = 2_000

PING = b"event: ping\ndata: {}\n\n"
END = b"event: end\ndata: {}\n\n"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What can be watched; the same `key`, the same subject.

    `read` asks the database; None: it is gone. `tell` puts what was read into words of the active language, and in the
    active manner (zone, calendar, digits), JSON-ready.
    `over`: nothing more will change by itself.
    """

    key: Hashable
    read: Callable[[], Any]
    tell: Callable[[Any], Mapping[str, Any]]
    over: Callable[[Any], bool] = lambda _read: False


@dataclass(frozen=True, slots=True)
class _Reading:
    messages: Mapping[Manner, bytes]
    over: bool


_GONE = _Reading({}, over=True)


@dataclass(slots=True)
class _Watched:
    """A subject that somebody watches. `changed` is set once and replaced at each change."""

    subject: Subject
    manners: Counter[Manner] = field(default_factory=Counter)
    reading: _Reading | None = None
    read_at: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def lacks(self, wanted: Manner) -> bool:
        return self.reading is None or (
            wanted not in self.reading.messages and self.reading is not _GONE
        )

    def learn(self, reading: _Reading, at: float) -> None:
        self.read_at = at
        if reading != self.reading:
            self.reading = reading
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()


class Hub:
    """Everything here runs in the event loop, but for `_Reader`."""

    def __init__(self) -> None:
        self._watched: dict[Hashable, _Watched] = {}
        self._wanted = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None

    async def stream(self, subject: Subject, wanted: Manner) -> AsyncGenerator[bytes, None]:
        """Messages of an event stream: the state as it is, then each change, and a ping where nothing changes.

        Pings stop while the database can't be read, so that the client notices.
        """
        mark = object()
        _open.add(mark)
        watched = self._join(subject, wanted)
        try:
            yield b"retry: %d\n\n" % random.randint(*RETRY_MS)  # noqa: S311  a wait
            ends_at = time.monotonic() + random.uniform(*LONGEST_S)  # noqa: S311
            ping_at = time.monotonic() + PING_S
            told: bytes | None = None
            while (now := time.monotonic()) < ends_at:
                reading = watched.reading
                message = reading.messages.get(wanted) if reading else None
                if message is not None and message != told:
                    told, ping_at = message, now + PING_S
                    yield message
                elif reading is not None and reading.over and not watched.lacks(wanted):
                    yield END
                    return
                elif now >= ping_at:
                    ping_at = now + PING_S
                    if now - watched.read_at < PING_S:
                        yield PING
                else:
                    # Nothing was awaited since `reading` was looked at, so no change lies in between.
                    await _within(watched.changed, min(ping_at, ends_at) - now)
        finally:
            _open.discard(mark)
            self._leave(watched, wanted)

    def _join(self, subject: Subject, wanted: Manner) -> _Watched:
        watched = self._watched.setdefault(subject.key, _Watched(subject))
        watched.manners[wanted] += 1
        if watched.lacks(wanted):
            self._wanted.set()
        if self._rounds is None:
            # In a context of its own: not that of whichever request came first.
            self._rounds = asyncio.create_task(self._go_round(), context=contextvars.Context())
        return watched

    def _leave(self, watched: _Watched, wanted: Manner) -> None:
        watched.manners[wanted] -= 1
        watched.manners += Counter()  # drops those that nobody reads any more
        if not watched.manners:
            del self._watched[watched.subject.key]
        if not self._watched:
            self._wanted.set()

    async def _go_round(self) -> None:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="live")
        reader = _Reader()
        try:
            while self._watched:
                self._wanted.clear()
                begin = time.monotonic()
                asked = [(one.subject, tuple(one.manners)) for one in self._watched.values()]
                for key, reading in (
                    await loop.run_in_executor(thread, reader.read, asked)
                ).items():
                    if key in self._watched:
                        self._watched[key].learn(reading, time.monotonic())
                # At most half of the time is spent reading, however slow the database is.
                took_s = time.monotonic() - begin
                await _within(self._wanted, max(EVERY_S - took_s, took_s))
        finally:
            self._rounds = None
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)


class _Reader:
    """Runs in the hub's thread only."""

    def __init__(self) -> None:
        self._failing: set[Hashable] = set()

    def read(self, asked: list[tuple[Subject, tuple[Manner, ...]]]) -> dict[Hashable, _Reading]:
        """What could be read; a subject that could not is left out, and said so once until it can be again."""
        close_old_connections()
        found: dict[Hashable, _Reading] = {}
        # What fails comes last, so that it holds up nothing else.
        for subject, manners in sorted(asked, key=lambda one: one[0].key in self._failing):
            try:
                with transaction.atomic():
                    _limit()
                    found[subject.key] = _told(subject, manners)
                self._failing.discard(subject.key)
            except Exception as error:  # noqa: BLE001  whatever broke, the others are read
                if subject.key not in self._failing:
                    self._failing.add(subject.key)
                    _log.exception("live.read_failed", extra={"subject": str(subject.key)})
                connection.close()
                if isinstance(error, OperationalError | InterfaceError):
                    break  # the others would only wait for the same server
        return found


def _limit() -> None:
    """A slow statement of this transaction ends, so that the thread does not hang on it."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_S}s'")


def message(told: Mapping[str, Any]) -> bytes:
    """As it stands in an event stream."""
    return f"data: {json.dumps(told, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _told(subject: Subject, manners: tuple[Manner, ...]) -> _Reading:
    seen = subject.read()
    if seen is None:
        return _GONE
    messages = {}
    for wanted in manners:
        with manner.override(wanted):
            messages[wanted] = message(subject.tell(seen))
    return _Reading(messages, over=subject.over(seen))


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, or the time is over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = WeakKeyDictionary()
_open: set[object] = set()  # one a stream, of the whole process


def hub() -> Hub:
    """The one of the running event loop."""
    return _hubs.setdefault(asyncio.get_running_loop(), Hub())


def full() -> bool:
    """This process holds as many streams as it should."""
    return len(_open) >= MOST_STREAMS


# --- the answer -------------------------------------------------------------------------------------------------------


class EventStream(StreamingHttpResponse):
    """Its messages end when it does; the stock response leaves what it iterates over to the garbage collector."""

    def __init__(self, messages: AsyncGenerator[bytes, None]) -> None:
        super().__init__(messages, content_type="text/event-stream")
        self._messages = messages
        self.headers["Cache-Control"] = "no-store, no-transform"
        self.headers["X-Accel-Buffering"] = "no"  # nginx would keep the messages back

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._messages) as messages:
            async for message in messages:
                yield message


def answer(request: HttpRequest, subject: Subject) -> HttpResponseBase:
    """The stream of a subject. Who may watch it was asked before."""
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=501)
    if full():
        return HttpResponse(status=503)
    return EventStream(_messages(subject, manner.current()))


async def _messages(subject: Subject, wanted: Manner) -> AsyncGenerator[bytes, None]:
    # The request's thread lives as long as the stream, and with it the connection on which the middleware has looked up
    # the session and the user.
    await sync_to_async(connections.close_all)()
    async with aclosing(hub().stream(subject, wanted)) as messages:
        async for message in messages:
            yield message


# --- the address ------------------------------------------------------------------------------------------------------

ADDRESS_ENDS = ("/stream/", "/events")  # of the desk's pages, of the API

_Application = Callable[[Any, Any, Any], Awaitable[None]]


def in_one_thread(application: _Application) -> _Application:
    """Requests for streams share one thread of the process, and so one connection for sessions and permissions.

    By themselves each has its own, which lives as long as the stream: 500 that come at once, as after a restart, take
    more connections than the server has, from the workers too.
    """
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="streams")

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith(ADDRESS_ENDS):
            async with ThreadSensitiveContext(executor=thread):
                await application(scope, receive, send)
        else:
            await application(scope, receive, send)

    return call
