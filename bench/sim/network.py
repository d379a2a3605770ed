"""The way between us and the provider: it takes time, loses requests and answers, and delivers what has left for ever.

A request whose bytes have left arrives even if the process that sent it is dead by then; an answer is only ever read by the
process that waits for it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qsl

import httpx

from bench.sim.chance import Chance
from bench.sim.turns import Actor, Turns
from providers.sandbox.pictures import Painter
from providers.sandbox.reactions import HALF, PICTURE_MARK, Reaction, Request, filled_body
from providers.sandbox.reactions import Transport as Way
from providers.sandbox.submission import MARK
from providers.sandbox.world import World

PREPARED_BYTES = 1500
ON_THE_WAY_S = (0.01, 0.4)
# A request that left is unacknowledged for 10 s at most, then the kernel gives it up (sending.USER_TIMEOUT_MS).
SLOW_THERE_S = (1.0, 9.0)
SLOW_BACK_S = (5.0, 90.0)
_PAINTER = Painter()


class Network:
    """`on_sent` is told of each paid POST when its bytes leave, `on_post` just before the provider sees it, `on_accepted` when
    a lane reads that it was taken."""

    def __init__(self, turns: Turns, world: World, chance: Chance) -> None:
        self.turns, self.world, self.chance = turns, world, chance
        self.on_sent: Callable[[Request], None] = lambda _request: None
        self.on_post: Callable[[Request], None] = lambda _request: None
        self.on_accepted: Callable[[Request, Actor], None] = lambda _request, _actor: None
        self.trouble = 0.0  # share of requests that meet trouble on the way

    def carry(self, request: Request, answer: Callable[[Reaction | None], None]) -> None:
        """From now on the request is on its way. `answer` gets the reaction, or None: the connection broke."""
        if MARK in request.headers:
            self.on_sent(request)
        there = self._time("there", SLOW_THERE_S)
        if self.chance.strikes("network/request lost", self.trouble / 4):
            self.turns.tell(f"network: {request.method} lost on the way")
            self.turns.after(there, lambda: answer(None))
            return
        self.turns.after(there, lambda: self._arrive(request, answer))

    def _arrive(self, request: Request, answer: Callable[[Reaction | None], None]) -> None:
        if MARK in request.headers:
            self.on_post(request)
        reaction = self.world.handle(request)
        self._react(request, reaction, answer)

    def _react(
        self, request: Request, reaction: Reaction, answer: Callable[[Reaction | None], None]
    ) -> None:
        then = reaction.then
        if then is not None:
            self.turns.after(reaction.delay_s, lambda: self._react(request, then(), answer))
            return
        if request.method == "POST" or reaction.transport is not Way.ANSWER:
            self.turns.tell(
                f"provider: {request.method} {request.path[-24:]} -> {reaction.status} {reaction.transport.value}"
            )
        if self.chance.strikes("network/answer lost", self.trouble / 4):
            self.turns.tell("network: the answer is lost on the way")
            self.turns.after(1.0, lambda: answer(None))
            return
        back = reaction.delay_s + self._time("back", SLOW_BACK_S)
        self.turns.after(back, lambda: answer(reaction))

    def _time(self, way: str, slow: tuple[float, float]) -> float:
        if self.chance.strikes(f"network/slow {way}", self.trouble / 4):
            return self.chance.number(f"network/{way}", *slow)
        return self.chance.number(f"network/{way}", *ON_THE_WAY_S)


class Wire(httpx.AsyncBaseTransport):
    """One lane's connections. Tells the paid call's trace hook what httpcore would, so the fence is the real one."""

    narrates = True

    def __init__(self, network: Network, actor: Actor) -> None:
        self._network = network
        self._actor = actor

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        network = self._network
        trace = request.extensions.get("trace")
        await asyncio.sleep(network.chance.number("network/connect", *ON_THE_WAY_S))
        if network.chance.strikes("network/not connected", network.trouble / 4):
            raise httpx.ConnectError("connection refused")
        if trace is not None:
            await trace("http11.send_request_headers.started", {})
            await asyncio.sleep(0)  # here a process can stand still, with its headers sent
            if network.chance.strikes("network/slow body", network.trouble / 8):
                await asyncio.sleep(network.chance.number("network/body", 1.0, 12.0))
            await trace("http11.send_request_body.started", {})
        body = await request.aread()
        if trace is not None:
            await trace("http11.send_request_body.complete", {})
        arrived: asyncio.Future[Reaction | None] = asyncio.get_running_loop().create_future()

        asked = Request(
            method=request.method,
            path=request.url.path,
            query=dict(parse_qsl(request.url.query.decode())),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=body,
        )

        def answer(reaction: Reaction | None) -> None:
            def deliver() -> None:
                if arrived.done():
                    return
                arrived.set_result(reaction)
                if trace is not None and reaction is not None and _accepts(reaction):
                    network.on_accepted(asked, self._actor)

            self._actor.inbox.append(deliver)

        network.carry(asked, answer)
        reaction = await arrived
        if reaction is None:
            raise httpx.ReadError("connection reset by peer")
        return await _response(reaction)


# What only an answer to a request that was taken holds, by provider.
_NAMES = (b'"id": "gen', b'"request_id"', b'"choices"')


def _accepts(reaction: Reaction) -> bool:
    return (
        reaction.transport is Way.ANSWER
        and reaction.status < 300
        and any(name in reaction.body for name in _NAMES)
    )


async def _response(reaction: Reaction) -> httpx.Response:
    body = reaction.body
    if reaction.picture is not None:
        painted = _PAINTER.at_hand(reaction.picture, PREPARED_BYTES)
        painted = painted or _PAINTER.paint(reaction.picture)
        body = filled_body(reaction, painted) if PICTURE_MARK in reaction.body else painted
    match reaction.transport:
        case Way.RESET | Way.CUT_HEADERS:
            raise httpx.ReadError("connection reset by peer")
        case Way.HANG:
            await asyncio.sleep(math.inf if reaction.delay_s else 86_400.0)
            raise httpx.ReadTimeout("no answer")
        case Way.CUT:
            kept = len(body) // 2 if reaction.cut_after == HALF else reaction.cut_after
            length = ("content-length", str(len(body)))
            return httpx.Response(
                reaction.status, headers=[*reaction.headers, length], stream=_Pieces(body[:kept], cut=True)
            )  # fmt: skip
        case Way.DRIP:
            whole_s = reaction.drip_s * len(body) / max(reaction.drip_bytes, 1)
            pieces = _Pieces(body, pause_s=whole_s / 4)
            return httpx.Response(reaction.status, headers=list(reaction.headers), stream=pieces)
        case _:
            body += bytes(reaction.padding_bytes)
            return httpx.Response(reaction.status, headers=list(reaction.headers), content=body)


class _Pieces(httpx.AsyncByteStream):
    """A body in four pieces, with pauses; `cut`: then a reset."""

    def __init__(self, body: bytes, *, pause_s: float = 0.0, cut: bool = False) -> None:
        self._body, self._pause_s, self._cut = body, pause_s, cut

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = max(1, -(-len(self._body) // 4))
        for start in range(0, len(self._body), size):
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            yield self._body[start : start + size]
        if self._cut:
            raise httpx.ReadError("connection reset by peer")
