"""The only place that knows the HTTP client.

It carries `Call`s out and brings `Answer`s or `NoAnswer`s back, and never raises for what the network did. Paid POSTs and
reads have nothing in common but that: a paid POST gets a connection of its own, is sent once, and is watched closely
enough to say whether a byte of it left; reads share kept-alive connections and may be repeated by whoever asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

import aiohttp
import httpx
import tenacity
from django.conf import settings
from httpx_aiohttp import AiohttpTransport

from providers.contract import Answer, Call, NoAnswer
from providers.download import Downloaded, TooLargeError, remove, to_disk
from providers.redaction import redact_headers, redact_text, sanitise
from providers.sending import FencedError, Sending, body_until, fence, paid_socket_options

__all__ = [
    "Downloaded",
    "Sending",
    "Transport",
    "redact_headers",
    "redact_text",
    "sanitise",
]

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # answers may hold pictures as base64
MAX_ERROR_BYTES = 64 * 1024  # what is kept of a download's refusal
CONNECT_S = 10.0
KEEP_ALIVE_S = 60.0  # longer than the slowest poll interval
READ_CONNECTIONS = 512
MAX_REDIRECTS = 3
STALL_S = 1.0  # a deadline noticed this much too late means that our own process stood still
GRACE_S = 2.0  # then what the kernel has already received may still be read
PATIENT_S = 10.0  # a deadline shorter than this says nothing about the provider

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CONNECT_ERRORS = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)
# Failures to connect that this machine caused: out of descriptors, ports or memory.
_OWN_ERRNOS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
_HEADERS = {"accept": "application/json", "user-agent": "studio-generation-desk"}


class Transport:
    """The HTTP connections of one lane. Made and used inside one event loop; `aclose` it there.

    `paid` and `reads` replace the network for tests and the simulation (any httpx transport). A paid replacement that
    calls the request's `trace` extension itself, as httpcore does, says so by an attribute `narrates = True`; for all
    others the two send events are announced on their behalf just before they are called.
    """

    def __init__(
        self,
        *,
        paid: httpx.AsyncBaseTransport | None = None,
        reads: httpx.AsyncBaseTransport | None = None,
        verify: ssl.SSLContext | None = None,
        read_connections: int = READ_CONNECTIONS,
    ) -> None:
        self._verify = verify or _trusted()
        self._paid = paid
        self._read_connections = read_connections
        self._reads = reads or AiohttpTransport(
            verify=self._verify, trust_env=False, client=self._session
        )

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the kept-alive connections. Calls under way must have ended."""
        await self._reads.aclose()
        if self._paid is not None:
            await self._paid.aclose()

    # --- paid calls ---------------------------------------------------------------------------------------------------

    async def send_paid(
        self,
        call: Call,
        account_headers: Mapping[str, str],
        *,
        send_not_after: float,
        deadline_s: float,
        boot: Callable[[], float],
        sending: Sending | None = None,
    ) -> Answer | NoAnswer:
        """Send one paid call, at most once.

        `send_not_after` and `boot` are seconds of the same clock, one that also counts while the machine sleeps. At or
        after that moment no header is sent (`sent=False, ours=True`), nor a body after headers (`sent=True`).
        `deadline_s` bounds everything from here to the last byte of the answer. A cancellation passes through; pass
        `sending` to learn afterwards how far the call had come; with a sink in it, the body is there and nowhere else.
        """
        sending = Sending() if sending is None else sending
        once = self._send_once(
            call, account_headers, send_not_after=send_not_after, deadline_s=deadline_s, boot=boot,
            sending=sending,
        )  # fmt: skip
        del call
        got = await once
        if sending.sink is not None and sending.answer is not None:
            # Beyond the deadline, which is the provider's: a slow disk must not make a complete answer none.
            await sending.sink.complete()
        return got

    async def _send_once(
        self,
        call: Call,
        account_headers: Mapping[str, str],
        *,
        send_not_after: float,
        deadline_s: float,
        boot: Callable[[], float],
        sending: Sending,
    ) -> Answer | NoAnswer:
        secrets = tuple(account_headers.values())
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            content = _encode(call)
            request = httpx.Request(
                call.method,
                call.url,
                params=dict(call.params) or None,
                # identity: an id must be readable in a body that was cut
                headers=_headers(call, account_headers, length=len(content), encoding="identity"),
                content=body_until(content, boot=boot, until=boot() + deadline_s),
                extensions={
                    "timeout": {"connect": CONNECT_S, "pool": CONNECT_S},
                    "trace": fence(sending, boot=boot, send_not_after=send_not_after),
                },
            )
            # Photos are megabytes, and an answer may take minutes: the generator lets them go once they are sent.
            del call, content
            if boot() >= send_not_after:
                return _fenced(sending)
            started = loop.time()
            async with _deadline(deadline_s), self._paid_transport() as transport:
                await self._exchange(transport, request, sending)
        except TimeoutError:
            stalled = loop.time() - started > deadline_s + STALL_S
            ours = stalled or (
                sending.headers_started and (not sending.request_sent or deadline_s < PATIENT_S)
            )
            what = "complete answer" if sending.headers_started else "connection"
            return sending.so_far(f"no {what} within {deadline_s:g} s", ours=ours)
        except FencedError:
            return _fenced(sending)
        except TooLargeError:
            return sending.so_far(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        except httpx.HTTPError as error:
            if self._paid is not None and isinstance(error, _CONNECT_ERRORS):
                sending.headers_started = False  # an injected transport that never connected
            return sending.so_far(_reason(error, secrets), ours=_is_ours(error))
        except Exception:  # noqa: BLE001 - whatever broke here, the caller must learn whether bytes left
            text = sanitise(redact_text(traceback.format_exc(), secrets=secrets), limit=8000)
            return sending.so_far(text, ours=True)
        if sending.answer is None:  # unreachable by construction; an answer must never be made up
            return sending.so_far("the exchange ended without an answer", ours=True)
        return sending.answer

    @contextlib.asynccontextmanager
    async def _paid_transport(self) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """A transport for one call: a pool of its own, so that a kept-alive connection is never reused for money."""
        if self._paid is not None:
            yield self._paid if getattr(self._paid, "narrates", False) else _Narrator(self._paid)
            return
        transport = httpx.AsyncHTTPTransport(
            verify=self._verify,
            trust_env=False,
            http1=True,
            http2=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
            retries=0,
            socket_options=paid_socket_options(),
        )
        try:
            yield transport
        finally:
            await transport.aclose()

    async def _exchange(
        self, transport: httpx.AsyncBaseTransport, request: httpx.Request, sending: Sending
    ) -> None:
        response = await transport.handle_async_request(request)
        try:
            sending.status = response.status_code
            sending.headers = _lower(response.headers)
            sink, size = sending.sink, 0
            if sink is not None:
                await sink.open(sending.status, sending.headers)
            async for chunk in response.aiter_bytes():
                room = MAX_ANSWER_BYTES - size
                size += len(chunk)
                if sink is not None:
                    await sink.write(chunk[:room])
                else:
                    sending.body += chunk[:room]
                if len(chunk) > room:
                    raise TooLargeError
            sending.answer = Answer(sending.status, sending.headers, bytes(sending.body))
        finally:
            # A complete answer counts, whatever closing the connection brings.
            with contextlib.suppress(httpx.HTTPError, OSError):
                await response.aclose()

    # --- reads --------------------------------------------------------------------------------------------------------

    async def read(
        self,
        call: Call,
        account_headers: Mapping[str, str],
        *,
        deadline_s: float,
        retries: int = 0,
    ) -> Answer | NoAnswer:
        """A call that costs nothing. `retries` (at most 2) repeats a GET that got no answer, within `deadline_s`.

        Leave `retries` at 0 where the caller asks again anyway, as for polls.
        """
        secrets = tuple(account_headers.values())
        retries = min(retries, 2) if call.method.upper() == "GET" else 0
        if not retries:
            try:
                async with _deadline(deadline_s):
                    return await self._read_once(call, account_headers, secrets)
            except TimeoutError:
                return _too_late(deadline_s)
        last: list[Answer | NoAnswer] = []

        async def once() -> Answer | NoAnswer:
            last[:] = [await self._read_once(call, account_headers, secrets)]
            return last[0]

        repeat = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(1 + retries),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=0.5),
            retry=tenacity.retry_if_result(lambda got: isinstance(got, NoAnswer)),
            retry_error_callback=lambda _: last[0],
        )
        try:
            async with _deadline(deadline_s):
                got: Answer | NoAnswer = await repeat(once)
                return got
        except TimeoutError:
            return _too_late(deadline_s)

    async def _read_once(
        self, call: Call, account_headers: Mapping[str, str], secrets: Collection[str]
    ) -> Answer | NoAnswer:
        sending = Sending(headers_started=True)
        try:
            request = httpx.Request(
                call.method,
                call.url,
                params=dict(call.params) or None,
                headers=_headers(call, account_headers, encoding="gzip, deflate"),
                content=_encode(call),
                extensions={"timeout": {"connect": CONNECT_S, "pool": CONNECT_S}},
            )
            await self._exchange(self._reads, request, sending)
        except TooLargeError:
            return sending.so_far(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - httpx-aiohttp lets some of aiohttp's own errors through
            sending.headers_started = not _never_connected(error)
            return sending.so_far(_reason(error, secrets), ours=_is_ours(error))
        return sending.so_far("")

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            ssl=self._verify, limit=self._read_connections, keepalive_timeout=KEEP_ALIVE_S
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )

    # --- downloads ----------------------------------------------------------------------------------------------------

    async def download(
        self,
        url: str,
        target: Path,
        *,
        max_bytes: int,
        deadline_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> Downloaded | Answer | NoAnswer:
        """Stream `url` to `target`, synced to disk. Redirects are followed to http(s) only; `headers`, for a file that only
        the key opens, reach no other server than that of `url`.

        `Answer`: the server refused (its body is kept up to 64 kB). `NoAnswer`: cut, too large, too late, or the disk
        failed (`ours`). In both cases `target` does not exist afterwards.
        """
        complete = False
        try:
            async with _deadline(deadline_s):
                got = await self._download(url, target, max_bytes, headers or {})
                complete = isinstance(got, Downloaded)
                return got
        except TimeoutError:
            return NoAnswer(sent=True, reason=f"not downloaded within {deadline_s:g} s")
        except TooLargeError:
            return NoAnswer(sent=True, reason=f"the file is larger than {max_bytes} bytes")
        except Exception as error:  # noqa: BLE001 - every failure here means the same: no file
            ours = isinstance(error, OSError) or _is_ours(error)
            return NoAnswer(sent=not _never_connected(error), reason=_reason(error, ()), ours=ours)
        finally:
            if not complete:
                remove(target)

    async def _download(
        self, url: str, target: Path, max_bytes: int, account_headers: Mapping[str, str]
    ) -> Downloaded | Answer:
        home = _origin(url)
        for _ in range(MAX_REDIRECTS + 1):
            if urlsplit(url).scheme not in ("http", "https"):
                raise httpx.UnsupportedProtocol(f"not an http(s) address: {url[:80]}")
            request = httpx.Request(
                "GET",
                url,
                headers={
                    "user-agent": _HEADERS["user-agent"],
                    "accept-encoding": "identity",
                    **(account_headers if _origin(url) == home else {}),
                },
                extensions={"timeout": {"connect": CONNECT_S, "pool": CONNECT_S}},
            )
            response = await self._reads.handle_async_request(request)
            try:
                location = response.headers.get("location", "")
                if response.status_code in _REDIRECTS and location:
                    url = urljoin(url, location)
                    continue
                if response.status_code != httpx.codes.OK:
                    body = await _first(response, MAX_ERROR_BYTES)
                    return Answer(response.status_code, _lower(response.headers), body)
                declared = response.headers.get("content-length", "")
                if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
                    raise TooLargeError
                media_type = response.headers.get("content-type", "").partition(";")[0]
                return await to_disk(
                    response.aiter_bytes(),
                    target,
                    max_bytes=max_bytes,
                    media_type=media_type.strip().lower()[:100],
                )
            finally:
                with contextlib.suppress(httpx.HTTPError, OSError):
                    await response.aclose()
        raise httpx.TooManyRedirects(f"more than {MAX_REDIRECTS} redirects")


def _trusted() -> ssl.SSLContext:
    """The usual certificates, and those of authorities that the settings add for a provider."""
    context = httpx.create_ssl_context(trust_env=False)
    for bundle in settings.PROVIDER_CA_BUNDLES:
        context.load_verify_locations(bundle)
    return context


class _Narrator(httpx.AsyncBaseTransport):
    """Announces the send events for an injected transport that knows nothing of them."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        trace = request.extensions["trace"]
        await trace("http11.send_request_headers.started", {})
        await trace("http11.send_request_body.started", {})
        await request.aread()
        await trace("http11.send_request_body.complete", {})
        return await self._inner.handle_async_request(request)


@contextlib.asynccontextmanager
async def _deadline(seconds: float) -> AsyncIterator[None]:
    """A total deadline; TimeoutError when it passes.

    A process that stood still (SIGSTOP, a swapped-out machine) notices its deadline late. The answer may then be lying in
    the socket's buffer, so reading goes on for a moment before the call is given up.
    """
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds

    def passed() -> None:
        now = loop.time()
        limit.reschedule(now + (GRACE_S if now - due > STALL_S else 0))

    async with asyncio.timeout(None) as limit:
        timer = loop.call_at(due, passed)
        try:
            yield
        finally:
            timer.cancel()


def _fenced(sending: Sending) -> Answer | NoAnswer:
    return sending.so_far("fenced: too late to send", ours=True)


def _too_late(deadline_s: float) -> NoAnswer:
    """Of a read."""
    reason = f"no complete answer within {deadline_s:g} s"
    return NoAnswer(sent=True, reason=reason, ours=deadline_s < PATIENT_S)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme.lower(), parts.netloc.lower()


def _encode(call: Call) -> bytes:
    if call.form is not None:
        return urlencode(call.form).encode()
    if call.json is None:
        return b""
    return json.dumps(call.json, ensure_ascii=False, allow_nan=False).encode()


def _headers(
    call: Call, account: Mapping[str, str], *, encoding: str, length: int | None = None
) -> dict[str, str]:
    headers = {**_HEADERS, "accept-encoding": encoding}
    if call.form is not None:
        headers["content-type"] = "application/x-www-form-urlencoded"
    elif call.json is not None:
        headers["content-type"] = "application/json"
    if length is not None:
        headers["content-length"] = str(length)  # else httpx would send the body in chunks
    for name, value in (*call.headers.items(), *account.items()):
        headers[name.lower()] = value
    return headers


def _lower(headers: httpx.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def _first(response: httpx.Response, size: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk[: size - len(body)]
        if len(body) >= size:
            break
    return bytes(body)


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what caused it, outermost first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        if isinstance(current, BaseExceptionGroup):
            current = current.exceptions[0]
        else:
            current = current.__cause__ or current.__context__
    return chain


def _reason(error: BaseException, secrets: Collection[str]) -> str:
    chain = _chain(error)
    told = [f"{type(error).__name__}: {error}".rstrip(": ")]
    root = next((str(link) for link in reversed(chain) if str(link)), "")
    if root and root not in told[0]:
        told.append(f"({root})")
    return sanitise(redact_text(" ".join(told), secrets=secrets), limit=500)


def _never_connected(error: BaseException) -> bool:
    """Whether a read failed before a connection stood.

    httpx-aiohttp reports any broken connection as ConnectTimeout, so aiohttp's own error below it decides.
    """
    below = [link for link in _chain(error) if isinstance(link, aiohttp.ClientError)]
    if below:
        kinds = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
        return any(isinstance(link, kinds) for link in below)
    return isinstance(error, _CONNECT_ERRORS)


def _is_ours(error: BaseException) -> bool:
    """Whether this machine, not the provider or the way to it, made the call fail."""
    return any(
        isinstance(link, httpx.PoolTimeout | httpx.UnsupportedProtocol | httpx.LocalProtocolError)
        or (isinstance(link, OSError) and link.errno in _OWN_ERRNOS)
        for link in _chain(error)
    )
