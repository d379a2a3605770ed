"""Where a callback may go, and what a receiver can do to us: a socket of our own, or no network at all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest

from providers import outward
from providers.outside import Allowed
from providers.outward import Replied, Unreached

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HERE = Allowed.of(["127.0.0.0/8"])
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Wire(httpx.AsyncBaseTransport):
    """The network: remembers where connections would go, and takes everything."""

    def __init__(self) -> None:
        self.went: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.went.append(request.url.host)
        return httpx.Response(204)


async def _post(
    url: str,
    *,
    allowed: Allowed = Allowed(),  # noqa: B008  frozen
    found: Sequence[Sequence[str]] = (),
    wire: Wire | None = None,
    deadline_s: float = 2.0,
) -> Replied | Unreached:
    answers = list(found)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return answers.pop(0)

    return await outward.post(
        url, body=b"{}", headers={"webhook-id": "msg_1"}, allowed=allowed, deadline_s=deadline_s, now=NOW,
        inner=wire, resolve=resolve if found else None,
    )  # fmt: skip


# --- where to ---------------------------------------------------------------------------------------------------------

INSIDE = [
    "127.0.0.1", "10.0.0.7", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "::1", "::",
    "fe80::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "2002:7f00:1::", "no address",
]  # fmt: skip


@pytest.mark.parametrize("address", INSIDE)
async def test_a_name_that_leads_inside_is_not_called(address: str) -> None:
    wire = Wire()
    told = await _post("https://shop.example/", found=[[address]], wire=wire)
    assert isinstance(told, Unreached)
    assert wire.went == []


async def test_one_inside_address_among_public_ones_is_enough_to_refuse() -> None:
    wire = Wire()
    await _post("https://shop.example/", found=[["93.184.216.34", "10.0.0.7"]], wire=wire)
    assert wire.went == []


async def test_a_name_that_changes_between_look_up_and_connection_leads_nowhere_else() -> None:
    wire = Wire()
    # The look-up of the second call is that of somebody who rebinds the name.
    for addresses in (["93.184.216.34"], ["127.0.0.1"]):
        await _post("https://shop.example/", found=[addresses], wire=wire)
    assert wire.went == ["93.184.216.34"]


@pytest.mark.parametrize("host", ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]", "[::ffff:7f00:1]", "localhost"])  # fmt: skip
async def test_no_way_to_write_this_machine_gets_through(host: str) -> None:
    wire = Wire()
    assert isinstance(await _post(f"https://{host}/", wire=wire), Unreached)
    assert wire.went == []


async def test_the_setting_opens_a_name_or_a_network_and_nothing_beside_it() -> None:
    wire = Wire()
    allowed = Allowed.of(["crm.internal", "10.1.0.0/16"])
    await _post("http://crm.internal/", found=[["10.9.9.9"]], allowed=allowed, wire=wire)
    await _post("https://other.example/", found=[["10.1.2.3"]], allowed=allowed, wire=wire)
    await _post("https://other.example/", found=[["10.2.2.3"]], allowed=allowed, wire=wire)
    assert wire.went == ["10.9.9.9", "10.1.2.3"]


# --- what comes back --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def receiver(serve: Serve) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server on this machine; what it was asked is in the list."""
    asked: list[bytes] = []
    at_work: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            told = next(line for line in head.lower().split(b"\r\n") if b"content-length" in line)
            asked.append(head + await reader.readexactly(int(told.partition(b":")[2])))
            await serve(reader, writer)
        except ConnectionError:
            pass  # the caller had enough
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at_work.add(asyncio.create_task(handle(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/hook", asked
    finally:
        server.close()
        for task in at_work:
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)


def answers(text: str) -> Serve:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text.replace("\n", "\r\n").encode())
        await writer.drain()

    return serve


async def test_a_message_arrives_as_it_was_signed() -> None:
    async with receiver(answers("HTTP/1.1 204 No Content\n\n")) as (url, asked):
        assert await _post(url, allowed=HERE) == Replied(status=204)
    assert asked[0].endswith(b"\r\n\r\n{}")
    assert b"webhook-id: msg_1" in asked[0]


async def test_a_redirect_is_not_followed_wherever_it_leads() -> None:
    async with receiver(answers("HTTP/1.1 200 OK\ncontent-length: 0\n\n")) as (inside, reached):
        where = f"HTTP/1.1 307 Go\nlocation: {inside}\ncontent-length: 0\n\n"
        async with receiver(answers(where)) as (url, _asked):
            told = await _post(url, allowed=HERE)
    assert isinstance(told, Replied)
    assert told.status == 307
    assert reached == []


async def test_a_slow_receiver_costs_the_deadline_and_no_more() -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Oops\r\n\r\n")
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.02)

    started = time.monotonic()
    async with receiver(drip) as (url, _asked):
        told = await _post(url, allowed=HERE, deadline_s=0.2)
    assert isinstance(told, Unreached)
    assert time.monotonic() - started < 1.5


async def test_the_body_of_a_success_is_not_waited_for() -> None:
    async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(5)

    async with receiver(never) as (url, _asked):
        assert await _post(url, allowed=HERE, deadline_s=1.0) == Replied(status=200)


async def test_of_a_long_answer_only_the_beginning_is_read() -> None:
    body = "x\x00\u202e" + "y" * 2_000_000
    said = f"HTTP/1.1 500 Oops\nretry-after: 90\ncontent-length: {len(body.encode())}\n\n{body}"
    async with receiver(answers(said)) as (url, _asked):
        told = await _post(url, allowed=HERE)
    assert isinstance(told, Replied)
    assert (told.status, told.retry_after_s) == (500, 90.0)
    assert told.text.startswith("x\ufffd\ufffdyy")
    assert len(told.text) <= 200


@pytest.mark.parametrize("said", ["", "SSH-2.0-OpenSSH\n\n", "HTTP/1.1 99999 Hm\n\n"])
async def test_what_is_no_answer_is_told_and_raises_nothing(said: str) -> None:
    async with receiver(answers(said)) as (url, _asked):
        assert isinstance(await _post(url, allowed=HERE), Unreached)


async def test_a_reset_and_a_closed_port_are_told_and_raise_nothing() -> None:
    async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with receiver(reset) as (url, _asked):
        assert isinstance(await _post(url, allowed=HERE), Unreached)
    assert isinstance(await _post(url, allowed=HERE), Unreached)
