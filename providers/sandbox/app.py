"""Carries the world's reactions out over real connections: a raw ASGI app for uvicorn."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from . import control
from .pictures import Painter
from .reactions import HALF, PICTURE_MARK, Reaction, Request, Transport, filled_body, json_reaction
from .world import World

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 64 * 1024 * 1024
_ZEROS = bytes(64 * 1024)


class SandboxApp:
    """ASGI 3 over one world. Everything runs in one event loop; only drawing leaves it, two pictures at a time."""

    def __init__(self, world: World, painter: Painter | None = None) -> None:
        self.world = world
        self.control = control.Control(world, first_settings=world.settings)
        self.painter = painter or Painter()
        self._drawing = asyncio.Semaphore(2)
        self._courier: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the sandbox speaks HTTP, not {scope['type']}")
        request = Request(
            method=scope["method"],
            path=scope["path"],
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers={
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            },
        )
        try:
            reaction = await self._react(request, receive)
        except ClientLeftError:
            self.world.never_read(request, why="the client left")
            return
        if self.world.hooks.open and (self._courier is None or self._courier.done()):
            from .courier import carry  # an HTTP client, which few sandboxes need

            self._courier = asyncio.create_task(carry(self.world, request))
        while reaction.then is not None:
            await asyncio.sleep(reaction.delay_s)
            reaction = reaction.then()
        await self._carry_out(reaction, receive, send)

    async def _react(self, request: Request, receive: Receive) -> Reaction:
        steering = request.path.startswith(control.PREFIX)
        early = None if steering else self.world.head(request)
        if early is not None:
            return early
        if request.method in {"POST", "PUT", "PATCH"}:
            body = await _whole_body(receive)
            if body is None:
                self.world.never_read(request, why="too large")
                error = {"code": "PAYLOAD_TOO_LARGE", "message": "Слишком большой запрос"}
                return json_reaction({"error": error}, 413)
            request = replace(request, body=body)
        return self.control.answer(request) if steering else self.world.rest(request)

    async def _carry_out(self, reaction: Reaction, receive: Receive, send: Send) -> None:
        if reaction.delay_s:
            await asyncio.sleep(reaction.delay_s)
        match reaction.transport:
            case Transport.HANG:
                await _until_gone(receive)
            case Transport.RESET:
                await _reset(receive, send)
            case Transport.CUT_HEADERS:
                _transport(send).write(b"HTTP/1.1 200 OK\r\ncontent-type: applicat")
                await _reset(receive, send)
            case Transport.CUT:
                body = await self._body(reaction)
                await self._send_head(send, reaction, len(body))
                cut_after = len(body) // 2 if reaction.cut_after == HALF else reaction.cut_after
                await _send_piece(send, body[:cut_after])
                await _reset(receive, send)
            case Transport.DRIP:
                await self._drip(reaction, send)
            case Transport.ANSWER:
                body = await self._body(reaction)
                await self._send_head(send, reaction, len(body) + reaction.padding_bytes)
                left = reaction.padding_bytes
                while left > 0 and not _transport(send).is_closing():
                    await _send_piece(send, body)
                    body = _ZEROS[:left]
                    left -= len(body)
                await _send_piece(send, body, last=True)

    async def _drip(self, reaction: Reaction, send: Send) -> None:
        body = await self._body(reaction)
        await self._send_head(send, reaction, len(body))
        for start in range(0, len(body), reaction.drip_bytes):
            await _send_piece(send, body[start : start + reaction.drip_bytes])
            if _transport(send).is_closing():
                return
            await asyncio.sleep(reaction.drip_s)
        await _send_piece(send, b"", last=True)

    async def _send_head(self, send: Send, reaction: Reaction, length: int) -> None:
        headers = [(name.encode(), value.encode()) for name, value in reaction.headers]
        headers.append((b"date", self.world.date().encode()))
        headers.append((b"content-length", str(length).encode()))
        await send({"type": "http.response.start", "status": reaction.status, "headers": headers})

    async def _body(self, reaction: Reaction) -> bytes:
        picture = reaction.picture
        if picture is None:
            return reaction.body
        painted = self.painter.at_hand(picture, self.world.settings.prepared_bytes)
        if painted is None:
            async with self._drawing:
                painted = await asyncio.to_thread(self.painter.paint, picture)
        return filled_body(reaction, painted) if PICTURE_MARK in reaction.body else painted


class ClientLeftError(Exception):
    """The client gave up before its request was here as a whole: no provider would accept it."""


async def _send_piece(send: Send, piece: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": not last})


async def _whole_body(receive: Receive) -> bytes | None:
    """The request's body; None: longer than MAX_BODY_BYTES. Raises ClientLeftError."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _transport(send: Send) -> asyncio.Transport:
    """The connection under an ASGI `send`. ASGI has no word for a reset, so this knows uvicorn: `send` is a method of its
    request cycle, which holds the transport (httptools and h11 alike)."""
    transport: asyncio.Transport = send.__self__.transport  # type: ignore[attr-defined]
    return transport


async def _reset(receive: Receive, send: Send) -> None:
    """Ends the connection by RST instead of FIN, after what was written has left.

    SO_LINGER with time 0 makes close() send RST at once and drop what the kernel still holds; on loopback, what was given
    to the kernel is already at the peer.
    """
    transport = _transport(send)
    while transport.get_write_buffer_size() and not transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(0.001)  # asyncio tells nobody when the buffer is empty
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    # The cycle must have seen the end before this returns, else uvicorn takes it for a crash and logs it.
    await _until_gone(receive)
