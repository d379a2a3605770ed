"""A TCP proxy that misbehaves, between a client and one server on this machine. Not a benchmark itself.

It looks at no HTTP but this: an exchange begins with the first bytes of a client after an answer, and headers end with an
empty line. Each exchange draws its own fault, so kept-alive connections meet them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping
from enum import StrEnum
from typing import Any, Self

_CHUNK = 64 * 1024
_HEADER_BYTES_KEPT = 24
_DRIP_PIECES = 30


class Fault(StrEnum):
    RESET_AT_ACCEPT = "reset_at_accept"  # before a byte of the request is read
    RESET_UNSENT = "reset_unsent"  # the request's first bytes are read, none is passed on
    RESET_AFTER_REQUEST = "reset_after_request"  # the server has read it and begun to answer
    CUT_HEADERS = "cut_headers"  # reset within the answer's headers
    CUT_BODY = "cut_body"  # reset within the answer's body
    DELAY = "delay"  # the answer comes late
    DRIP = "drip"  # the answer comes in small pieces
    BLACK_HOLE = "black_hole"  # nothing is passed on, nothing comes back, the connection stays
    SWALLOW = "swallow"  # the request is passed on, nothing comes back, the connection stays


class Proxy:
    """Listens on `port` of 127.0.0.1 and passes on to `upstream`. Its event loop has a thread of its own.

    `shares` gives each fault the share of exchanges it strikes; `everything` strikes all of them. Both may be exchanged at any
    time from any thread. `delay_s` bounds how late DELAY and DRIP make an answer. `struck` counts by name.
    """

    def __init__(
        self, upstream: int, *, rng: random.Random, delay_s: tuple[float, float] = (0.2, 2.0)
    ) -> None:
        self.upstream, self.rng, self.delay_s = upstream, rng, delay_s
        self.shares: Mapping[Fault, float] = {}
        self.everything: Fault | None = None
        self.struck: Counter[str] = Counter()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._do(self._wind_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def listen(self) -> None:
        """Accept connections (again), always on the same port."""
        self._do(self._listen())

    def refuse(self) -> None:
        """Nobody listens on the port any more; connections that were open are reset."""
        self._do(self._refuse())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._accepted, "127.0.0.1", self.port, backlog=1024
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in list(self._open):
            _reset(writer)

    async def _wind_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    # --- one connection -----------------------------------------------------------------------------------------------

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            first = self._draw()
            if first is Fault.RESET_AT_ACCEPT:
                self.struck[first] += 1
                return
            answers, upstream = await asyncio.open_connection("127.0.0.1", self.upstream)
            await _Connection(self, (reader, writer), (answers, upstream), first).run()
        except OSError:
            pass  # either side has gone
        finally:
            self._open.discard(writer)
            # Always by a reset: of what was cut, a client must not take the end for a regular one.
            for one in (writer, upstream):
                if one is not None:
                    _reset(one)

    def _draw(self) -> Fault | None:
        if self.everything is not None:
            return self.everything
        point = self.rng.random()
        for fault, share in self.shares.items():
            if point < share:
                return fault
            point -= share
        return None


class _Connection:
    def __init__(
        self,
        proxy: Proxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        first: Fault | None,
    ) -> None:
        self.proxy = proxy
        self.requests, self.to_client = client
        self.answers, self.to_server = server
        self.fault, self.drawn = first, True  # for the exchange that comes or is under way
        self.asking = False  # bytes of a request have come since the last answer
        self.headers_passed = False

    async def run(self) -> None:
        """Until either side ends, or the fault says so."""
        ways = [
            asyncio.create_task(self._pass_requests()),
            asyncio.create_task(self._pass_answers()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_requests(self) -> None:
        while data := await self.requests.read(_CHUNK):
            if not self.asking:
                self.asking, self.headers_passed = True, False
                if not self.drawn:
                    self.fault = self.proxy._draw()  # noqa: SLF001  one thing in two classes
                self.drawn = False
                if self.fault is Fault.RESET_AT_ACCEPT:  # long accepted
                    self.fault = Fault.RESET_UNSENT
                if self.fault is not None:
                    self.proxy.struck[self.fault] += 1
            if self.fault is Fault.RESET_UNSENT:
                return
            if self.fault is not Fault.BLACK_HOLE:
                self.to_server.write(data)
                await self.to_server.drain()

    async def _pass_answers(self) -> None:
        while data := await self.answers.read(_CHUNK):
            begins, self.asking = self.asking, False
            if self.fault is None:
                await self._tell(data)
            elif not await self._spoil(data, begins=begins):
                return

    async def _spoil(self, data: bytes, *, begins: bool) -> bool:
        """A piece of an answer under the fault. False: the connection ends here."""
        match self.fault:
            case Fault.RESET_AFTER_REQUEST:
                return False
            case Fault.CUT_HEADERS:
                await self._tell(data[:_HEADER_BYTES_KEPT])
                return False
            case Fault.CUT_BODY:
                return await self._cut_body(data)
            case Fault.SWALLOW:
                return True
            case Fault.DELAY if begins:
                await asyncio.sleep(self.proxy.rng.uniform(*self.proxy.delay_s))
            case Fault.DRIP:
                pause_s = self.proxy.rng.uniform(*self.proxy.delay_s) / _DRIP_PIECES
                size = max(1, len(data) // _DRIP_PIECES)
                for start in range(0, len(data), size):
                    await self._tell(data[start : start + size])
                    await asyncio.sleep(pause_s)
                return True
        await self._tell(data)
        return True

    async def _cut_body(self, data: bytes) -> bool:
        """Headers and some of the body pass; True: all headers so far, the body is still to come."""
        body_at = 0 if self.headers_passed else data.find(b"\r\n\r\n") + 4
        self.headers_passed = self.headers_passed or body_at >= 4
        if not self.headers_passed or body_at == len(data):
            await self._tell(data)
            return True
        await self._tell(data[: body_at + (len(data) - body_at) // 2])
        return False

    async def _tell(self, data: bytes) -> None:
        self.to_client.write(data)
        await self.to_client.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Ends a connection by RST. What was given to the kernel is at the peer already, on this machine."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
