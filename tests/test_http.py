"""The transport over real sockets: what left, what came back, and that nothing is sent twice or too late."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from providers import download as downloading
from providers import http
from providers.contract import Answer, Call, NoAnswer
from providers.download import Downloaded
from providers.http import Sending, Transport

KEY = "pza_0123456789abcdef"
ACCOUNT = {"authorization": f"Bearer {KEY}"}
ID_ANSWER = b'{"id":"aig_abc123","object":"media.generation","status":"pending"}'

Handler = Callable[["Server", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


boot = time.monotonic


@dataclass
class Server:
    """A tiny server that counts connections and keeps the requests it read."""

    handler: Handler
    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1/media"

    def post(self, **json: Any) -> Call:
        return Call("POST", self.url, json=json or {"prompt": "a cat"})

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self.handler(self, reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one whole request."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


@contextlib.asynccontextmanager
async def serving(handler: Handler, **options: Any) -> AsyncIterator[Server]:
    server = Server(handler)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, **options)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


def answering(
    body: bytes, *, status: str = "200 OK", headers: str = "", length: int | None = None
) -> Handler:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            await server.request(reader)
            told = len(body) if length is None else length
            writer.write(
                f"HTTP/1.1 {status}\r\ncontent-length: {told}\r\n{headers}\r\n".encode() + body
            )
            await writer.drain()
            if told != len(body):
                return

    return handler


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST, as a crashed or overloaded server does."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
    )
    writer.transport.abort()


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    async with Transport() as made:
        yield made


async def send(
    transport: Transport,
    call: Call,
    *,
    late_s: float = 10.0,
    deadline_s: float = 10.0,
    clock: Callable[[], float] = boot,
    sending: Sending | None = None,
) -> Answer | NoAnswer:
    return await transport.send_paid(
        call,
        ACCOUNT,
        send_not_after=clock() + late_s,
        deadline_s=deadline_s,
        boot=clock,
        sending=sending,
    )


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- paid calls: what an ordinary answer takes --------------------------------------------------------------------------


async def test_a_paid_call_is_one_connection_and_one_request(transport: Transport) -> None:
    async with serving(answering(ID_ANSWER, status="201 Created")) as server:
        answer = await send(transport, server.post(prompt="кот"))
        again = await send(transport, server.post(prompt="кот"))
    assert answer == Answer(201, {"content-length": str(len(ID_ANSWER))}, ID_ANSWER)
    assert isinstance(again, Answer)
    assert server.connections == 2, "a kept-alive connection was reused for money"
    assert len(server.requests) == 2
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == '{"prompt": "кот"}'.encode()
    assert b"transfer-encoding" not in head.lower()
    assert f"authorization: Bearer {KEY}".encode() in head
    assert b"accept-encoding: identity" in head
    assert b"cookie" not in head.lower()


async def test_a_redirect_of_a_paid_call_is_an_answer_and_not_followed(
    transport: Transport,
) -> None:
    elsewhere = answering(ID_ANSWER)
    async with serving(elsewhere) as target:
        moved = answering(
            b"", status="307 Temporary Redirect", headers=f"location: {target.url}\r\n"
        )
        async with serving(moved) as server:
            answer = await send(transport, server.post())
    assert isinstance(answer, Answer)
    assert answer.status == 307
    assert target.connections == 0


async def test_proxies_and_netrc_of_the_environment_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{unused_port()}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{unused_port()}")
    async with Transport() as transport, serving(answering(ID_ANSWER)) as server:
        paid = await send(transport, server.post())
        read = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5)
    assert isinstance(paid, Answer)
    assert isinstance(read, Answer)


async def test_an_early_refusal_of_a_large_body_is_still_read(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass

    async with serving(handler) as server:
        answer = await send(transport, server.post(prompt="x" * 3_000_000))
    assert isinstance(answer, Answer)
    assert answer.status == 413


# --- paid calls: nothing left -------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_unsent(transport: Transport) -> None:
    call = Call("POST", f"http://127.0.0.1:{unused_port()}/", json={})
    answer = await send(transport, call)
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert not answer.ours, "R74: a host that can't be reached counts as down"
    assert "refused" in answer.reason.lower() or "ConnectError" in answer.reason


async def test_a_name_that_does_not_resolve_is_unsent(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_name(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
    answer = await send(transport, Call("POST", "http://no-such-name.invalid/", json={}))
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert "not known" in answer.reason


async def test_a_failed_tls_handshake_is_unsent(transport: Transport) -> None:
    async def plain(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 this is not TLS\r\n\r\n")
        await writer.drain()

    async with serving(plain) as server:
        answer = await send(transport, Call("POST", f"https://127.0.0.1:{server.port}/", json={}))
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert not answer.ours


async def test_a_certificate_nobody_vouches_for_is_unsent(
    transport: Transport, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
        *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    async with serving(answering(ID_ANSWER), ssl=context) as server:
        answer = await send(transport, Call("POST", f"https://127.0.0.1:{server.port}/", json={}))
    assert isinstance(answer, NoAnswer)
    assert not answer.sent
    assert "certificate" in answer.reason.lower()
    assert server.requests == []


async def test_a_connection_that_never_opens_ends_at_the_deadline_and_is_unsent() -> None:
    class BlackHole(httpx.AsyncBaseTransport):
        narrates = True

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    async with Transport(paid=BlackHole()) as transport:
        answer = await send(
            transport, Call("POST", "http://hole.invalid/", json={}), deadline_s=0.1
        )
    assert answer == NoAnswer(sent=False, reason="no connection within 0.1 s")


async def test_running_out_of_descriptors_is_our_own_fault() -> None:
    def exhausted(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no connection") from OSError(24, "Too many open files")

    async with Transport(paid=httpx.MockTransport(exhausted)) as transport:
        answer = await send(transport, Call("POST", "http://any.invalid/", json={}))
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (False, True)


@pytest.mark.parametrize(
    "call",
    [
        Call("POST", "http://127.0.0.1:9/", json={"prompt": "\ud800"}),
        Call("POST", "http://127.0.0.1:9/", json={"seed": float("nan")}),
        Call("POST", "http://127.0.0.1:9/", json={"what": object()}),
        Call("POST", "ftp://127.0.0.1:9/", json={}),
        Call("POST", "http://[::bad/", json={}),
    ],
    ids=["lone surrogate", "not a number", "no json", "no http", "no address"],
)
async def test_a_call_that_can_not_be_built_is_unsent_and_our_fault(
    transport: Transport, call: Call
) -> None:
    answer = await send(transport, call)
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (False, True)
    assert answer.reason


async def test_a_key_with_a_line_break_is_unsent_and_never_shown(transport: Transport) -> None:
    async with serving(answering(ID_ANSWER)) as server:
        answer = await transport.send_paid(
            server.post(),
            {"authorization": "Bearer secret-secret\nx"},
            send_not_after=boot() + 10,
            deadline_s=5,
            boot=boot,
        )
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (False, True)
    assert "secret-secret" not in answer.reason
    assert server.requests == []


# --- paid calls: something left and no complete answer came ---------------------------------------------------------------


async def test_a_reset_before_the_request_is_read_counts_as_sent(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        reset(writer)

    async with serving(handler) as server:
        answer = await send(transport, server.post())
    assert isinstance(answer, NoAnswer)
    assert answer.sent, "bytes had left: whether anybody read them, nobody knows"
    assert server.connections == 1


@pytest.mark.condition("R28")
@pytest.mark.parametrize("how", ["reset", "end of file"])
async def test_a_connection_lost_after_the_request_is_sent_once_only_r28(
    transport: Transport, how: str
) -> None:
    """R28: a read error after a POST must not lead to a second POST."""

    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        if how == "reset":
            reset(writer)

    async with serving(handler) as server:
        answer = await send(transport, server.post())
        await asyncio.sleep(0.05)
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours, answer.status) == (True, False, None)
    assert len(server.requests) == 1
    assert server.connections == 1


@pytest.mark.condition("R28")
async def test_a_read_timeout_leads_to_no_second_post_r28(transport: Transport) -> None:
    """R28 with a timeout instead of an error."""

    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        await reader.read()

    async with serving(handler) as server:
        answer = await send(transport, server.post(), deadline_s=3)
        await asyncio.sleep(0.05)
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert answer.ours, "three seconds say nothing about the provider"
    assert len(server.requests) == 1
    assert server.connections == 1


async def test_silence_for_a_patient_deadline_is_the_providers_fault(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PATIENT_S", 0.2)

    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        await reader.read()

    async with serving(handler) as server:
        answer = await send(transport, server.post(), deadline_s=2)
    assert answer == NoAnswer(sent=True, reason="no complete answer within 2 s")


async def test_headers_that_are_cut_leave_the_outcome_open(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: appl")
        await writer.drain()

    async with serving(handler) as server:
        answer = await send(transport, server.post())
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert answer.status is None


@pytest.mark.parametrize("framing", ["content-length: 500", "transfer-encoding: chunked"])
async def test_a_cut_body_keeps_what_had_arrived(transport: Transport, framing: str) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        part = b'{"id":"aig_abc123","sta'
        if "chunked" in framing:
            part = b"%x\r\n%b\r\n" % (len(part), part)
        writer.write(f"HTTP/1.1 201 Created\r\nX-Trace: t1\r\n{framing}\r\n\r\n".encode() + part)
        await writer.drain()

    async with serving(handler) as server:
        answer = await send(transport, server.post())
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert answer.status == 201
    assert answer.headers["x-trace"] == "t1"
    assert answer.body == b'{"id":"aig_abc123","sta'


@pytest.mark.condition("R57", "R59")
async def test_a_slow_drip_ends_at_the_total_deadline_r57_r59(transport: Transport) -> None:
    """R57: one byte inside every read timeout never ends a call. R59: the deadline holds on this path too."""

    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)  # 20 s in all

    async with serving(handler) as server:
        started = time.monotonic()
        answer = await send(transport, server.post(), deadline_s=2)
        took = time.monotonic() - started
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert answer.body.startswith(b"xxx")
    assert took < 10


@pytest.mark.condition("R59")
async def test_the_deadline_holds_while_a_large_body_is_uploaded_r59(
    transport: Transport,
) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(30)  # reads nothing more: the socket's buffers fill up

    async with serving(handler, limit=1024) as server:
        answer = await send(transport, server.post(prompt="x" * 30_000_000), deadline_s=3)
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (True, True)


async def test_an_answer_beyond_the_cap_is_cut_there(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_ANSWER_BYTES", 100)
    async with serving(answering(ID_ANSWER + b" " * 1000)) as server:
        answer = await send(transport, server.post())
        read = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5)
    assert isinstance(answer, NoAnswer)
    assert answer.sent
    assert answer.body.startswith(ID_ANSWER)
    assert len(answer.body) == 100
    assert isinstance(read, NoAnswer)
    assert len(read.body) == 100


async def test_an_exception_of_our_own_keeps_its_traceback_and_what_left() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise KeyError("a bug")

    async with Transport(paid=httpx.MockTransport(broken)) as transport:
        answer = await send(transport, Call("POST", "http://any.invalid/", json={}))
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (True, True)
    assert "Traceback" in answer.reason
    assert "a bug" in answer.reason


async def test_a_cancellation_passes_through_and_tells_what_had_left(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"id":"aig_1"')
        await writer.drain()
        await reader.read()

    sending = Sending()
    async with serving(handler) as server:
        task = asyncio.create_task(send(transport, server.post(), sending=sending))
        async with asyncio.timeout(5):
            while not sending.body:  # noqa: ASYNC110 - the transport has nothing to announce it by
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sending.so_far("stopped") == NoAnswer(
        sent=True,
        reason="stopped",
        status=200,
        headers={"content-length": "99"},
        body=b'{"id":"aig_1"',
    )


async def test_a_cancellation_before_the_connection_stands_is_known_as_unsent() -> None:
    class BlackHole(httpx.AsyncBaseTransport):
        narrates = True

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    sending = Sending()
    async with Transport(paid=BlackHole()) as transport:
        task = asyncio.create_task(
            send(transport, Call("POST", "http://hole.invalid/", json={}), sending=sending)
        )
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not sending.headers_started


async def test_a_stalled_process_still_reads_an_answer_that_had_arrived(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen lane wakes after its deadline; the answer lies in the socket's buffer and its id must not be lost."""
    monkeypatch.setattr(http, "STALL_S", 0.2)
    sent = asyncio.Event()

    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(ID_ANSWER), ID_ANSWER)
        )
        sent.set()

    async with serving(handler) as server:
        call = asyncio.create_task(send(transport, server.post(), deadline_s=2))
        await sent.wait()
        time.sleep(2 + http.STALL_S + 0.3)  # noqa: ASYNC251 - the whole loop stands still, like a stopped process
        answer = await call
    assert isinstance(answer, Answer)
    assert answer.body == ID_ANSWER


# --- paid calls: the fence ------------------------------------------------------------------------------------------------


class Clock:
    """A boot clock that jumps ahead at its n-th reading, as after a freeze or a sleep of the machine."""

    def __init__(self, *, jump_at: int, by_s: float = 60.0) -> None:
        self.readings = 0
        self.jump_at = jump_at
        self.by_s = by_s

    def __call__(self) -> float:
        self.readings += 1
        return 1000.0 + (self.by_s if self.readings >= self.jump_at else 0.0)


async def test_a_freeze_before_the_connection_is_fenced_without_a_connection(
    transport: Transport,
) -> None:
    async with serving(answering(ID_ANSWER)) as server:
        answer = await transport.send_paid(
            server.post(), ACCOUNT, send_not_after=boot() - 1, deadline_s=5, boot=boot
        )
    assert answer == NoAnswer(sent=False, reason="fenced: too late to send", ours=True)
    assert server.connections == 0


@pytest.mark.parametrize(
    ("reading", "sent"),
    [(4, False), (5, True)],
    ids=["between connection and headers", "between headers and body"],
)
async def test_a_freeze_while_sending_is_fenced(
    transport: Transport, reading: int, sent: bool
) -> None:
    """The clock is read: by this test, for the body's deadline, before the connection, before headers, before the body."""
    clock = Clock(jump_at=reading)
    async with serving(answering(ID_ANSWER)) as server:
        answer = await transport.send_paid(
            server.post(), ACCOUNT, send_not_after=clock() + 10, deadline_s=5, boot=clock
        )
        await asyncio.sleep(0.05)
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (sent, True)
    assert "fenced" in answer.reason
    assert server.requests == [], "a whole request got through"


async def test_a_freeze_between_two_chunks_of_the_body_ends_the_call_as_sent(
    transport: Transport,
) -> None:
    clock = Clock(jump_at=8)
    async with serving(answering(ID_ANSWER)) as server:
        answer = await transport.send_paid(
            server.post(prompt="x" * 400_000),
            ACCOUNT,
            send_not_after=clock() + 10,
            deadline_s=5,
            boot=clock,
        )
        await asyncio.sleep(0.05)
    assert isinstance(answer, NoAnswer)
    assert (answer.sent, answer.ours) == (True, True)
    assert server.requests == []


async def test_the_fence_holds_for_an_injected_transport_too() -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.content)
        return httpx.Response(200, json={"id": "aig_1"})

    async with Transport(paid=httpx.MockTransport(handler)) as transport:
        call = Call("POST", "http://any.invalid/", json={"a": 1})
        good = await send(transport, call)
        clock = Clock(jump_at=4)
        late = await transport.send_paid(
            call, ACCOUNT, send_not_after=clock() + 10, deadline_s=5, boot=clock
        )
    assert isinstance(good, Answer)
    assert asked == [b'{"a": 1}']
    assert isinstance(late, NoAnswer)
    assert (late.sent, late.ours) == (False, True)


async def test_a_paid_socket_drops_unsent_data_and_gives_up_on_silence(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bytes, int]] = []
    original = http.Transport._exchange

    async def spy(self: Transport, inner: Any, request: Any, sending: Sending) -> None:
        async def trace(event: str, info: dict[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                raw = info["return_value"].get_extra_info("socket")
                linger = raw.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
                seen.append((linger, raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)))
            await outer(event, info)

        outer = request.extensions["trace"]
        request.extensions["trace"] = trace
        await original(self, inner, request, sending)

    monkeypatch.setattr(http.Transport, "_exchange", spy)
    async with serving(answering(ID_ANSWER)) as server:
        await send(transport, server.post())
    assert seen == [(b"\x01\x00\x00\x00\x00\x00\x00\x00", 10_000)]


# --- reads ----------------------------------------------------------------------------------------------------------------


async def test_reads_share_a_kept_alive_connection_and_no_cookies(transport: Transport) -> None:
    async with serving(answering(b"{}", headers="set-cookie: a=b\r\n")) as server:
        for _ in range(3):
            answer = await transport.read(
                Call("GET", server.url, params={"page": "1"}), ACCOUNT, deadline_s=5
            )
            assert isinstance(answer, Answer)
        await transport.aclose()
    assert server.connections == 1
    assert server.requests[0].startswith(b"GET /v1/media?page=1 HTTP/1.1\r\n")
    assert all(b"cookie" not in request.lower() for request in server.requests)


async def test_a_compressed_read_is_unpacked(transport: Transport) -> None:
    import gzip

    packed = gzip.compress(ID_ANSWER)
    async with serving(answering(packed, headers="content-encoding: gzip\r\n")) as server:
        answer = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5)
    assert isinstance(answer, Answer)
    assert answer.body == ID_ANSWER


async def test_a_read_is_repeated_only_when_asked_to(transport: Transport) -> None:
    """aiohttp itself repeats a GET once where the connection was closed without a word: the kept one may have been old."""

    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)

    async with serving(handler) as server:
        once = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5)
        assert server.connections == 2
        thrice = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5, retries=9)
        assert server.connections == 2 + 3 * 2, "at most two repeats"
    for answer in (once, thrice):
        assert isinstance(answer, NoAnswer)
        assert answer.sent


async def test_a_repeated_read_ends_with_the_first_answer(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        if server.connections > 2:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()

    async with serving(handler) as server:
        answer = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5, retries=1)
    assert isinstance(answer, Answer)
    assert server.connections == 3


async def test_a_read_by_post_is_never_repeated(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)

    async with serving(handler) as server:
        answer = await transport.read(server.post(), ACCOUNT, deadline_s=5, retries=2)
    assert isinstance(answer, NoAnswer)
    assert server.connections == 1


async def test_a_read_of_a_closed_port_is_unsent_and_a_slow_one_ends(transport: Transport) -> None:
    refused = await transport.read(
        Call("GET", f"http://127.0.0.1:{unused_port()}/"), ACCOUNT, deadline_s=5, retries=1
    )
    assert isinstance(refused, NoAnswer)
    assert not refused.sent

    async def silent(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read()

    async with serving(silent) as server:
        slow = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=0.2)
    assert isinstance(slow, NoAnswer)
    assert slow.sent


async def test_nonsense_instead_of_http_is_no_answer(transport: Transport) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
        await writer.drain()

    async with serving(handler) as server:
        read = await transport.read(Call("GET", server.url), ACCOUNT, deadline_s=5)
        paid = await send(transport, server.post())
    assert isinstance(read, NoAnswer)
    assert isinstance(paid, NoAnswer)
    assert paid.sent


# --- downloads ------------------------------------------------------------------------------------------------------------


async def fetch(
    transport: Transport,
    url: str,
    target: Path,
    *,
    max_bytes: int = 10_000_000,
    deadline_s: float = 5,
) -> Downloaded | Answer | NoAnswer:
    return await transport.download(url, target, max_bytes=max_bytes, deadline_s=deadline_s)


async def test_a_file_arrives_whole_with_its_hash_and_without_our_key(
    transport: Transport, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 4000  # several chunks
    target = tmp_path / "file"
    async with serving(answering(data, headers="content-type: Image/PNG; q=1\r\n")) as server:
        got = await fetch(transport, server.url, target)
    assert got == Downloaded(len(data), hashlib.sha256(data).hexdigest(), "image/png")
    assert target.read_bytes() == data
    assert b"authorization" not in server.requests[0].lower()


async def test_a_file_that_is_gone_is_an_answer(transport: Transport, tmp_path: Path) -> None:
    target = tmp_path / "file"
    async with serving(answering(b"gone" * 100_000, status="410 Gone")) as server:
        got = await fetch(transport, server.url, target)
    assert isinstance(got, Answer)
    assert got.status == 410
    assert len(got.body) == http.MAX_ERROR_BYTES
    assert not target.exists()


@pytest.mark.parametrize("declared", [True, False])
async def test_a_file_beyond_its_cap_is_not_kept(
    transport: Transport, tmp_path: Path, declared: bool
) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        length = b"content-length: 5000\r\n" if declared else b"connection: close\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + b"x" * 5000)
        await writer.drain()

    target = tmp_path / "file"
    async with serving(handler) as server:
        got = await fetch(transport, server.url, target, max_bytes=1000)
    assert isinstance(got, NoAnswer)
    assert "larger than 1000" in got.reason
    assert not target.exists()


async def test_a_cut_file_is_not_kept(transport: Transport, tmp_path: Path) -> None:
    target = tmp_path / "file"
    async with serving(answering(b"half", length=8)) as server:
        got = await fetch(transport, server.url, target)
    assert isinstance(got, NoAnswer)
    assert not target.exists()


@pytest.mark.condition("R57")
async def test_a_dripping_file_ends_at_its_deadline(transport: Transport, tmp_path: Path) -> None:
    async def handler(
        server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await server.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    target = tmp_path / "file"
    async with serving(handler) as server:
        got = await fetch(transport, server.url, target, deadline_s=0.4)
    assert isinstance(got, NoAnswer)
    assert not target.exists()


async def test_redirects_of_a_download_are_followed_a_little(
    transport: Transport, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    async with serving(answering(b"picture")) as real:
        moved = answering(b"", status="302 Found", headers=f"location: {real.url}\r\n")
        async with serving(moved) as server:
            got = await fetch(transport, server.url, target)
    assert isinstance(got, Downloaded)
    assert target.read_bytes() == b"picture"


async def test_the_headers_that_open_a_file_follow_no_redirect_to_another_server(
    transport: Transport, tmp_path: Path
) -> None:
    opened = {"authorization": "Bearer secret"}
    async with serving(answering(b"picture")) as elsewhere:
        moved = answering(b"", status="302 Found", headers=f"location: {elsewhere.url}\r\n")
        async with serving(moved) as server:
            got = await transport.download(
                server.url, tmp_path / "file", max_bytes=100, deadline_s=5, headers=opened
            )
            assert isinstance(got, Downloaded)
            assert b"secret" in server.requests[0].lower()
        assert b"secret" not in b"".join(elsewhere.requests).lower()


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "/v1/media"], ids=["to a file", "endless"]
)
async def test_redirects_elsewhere_or_without_end_are_refused(
    transport: Transport, tmp_path: Path, location: str
) -> None:
    moved = answering(b"", status="302 Found", headers=f"location: {location}\r\n")
    async with serving(moved) as server:
        got = await fetch(transport, server.url, tmp_path / "file")
    assert isinstance(got, NoAnswer)
    assert len(server.requests) <= 1 + http.MAX_REDIRECTS


async def test_only_http_addresses_are_downloaded(transport: Transport, tmp_path: Path) -> None:
    for url in ("file:///etc/passwd", "ftp://host/x", "data:text/plain,x", "", "http://[bad"):
        got = await fetch(transport, url, tmp_path / "file")
        assert isinstance(got, NoAnswer)


async def test_a_full_disk_is_our_own_fault(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloading._File, "append", full)
    target = tmp_path / "file"
    async with serving(answering(b"picture")) as server:
        got = await fetch(transport, server.url, target)
    assert isinstance(got, NoAnswer)
    assert got.ours
    assert "No space left" in got.reason
    assert not target.exists()
