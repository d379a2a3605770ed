"""One POST to an address that somebody else wrote: bounded in time and size, to the open internet or where it is allowed.

Redirects are not followed: what answers is what was asked. Nothing of the answer but its status is believed.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import httpx

from providers.outside import Allowed, Outside, Resolve
from providers.redaction import sanitise
from providers.waits import header_wait

# What is read of an answer that is no success, for whoever looks into it.
MOST_BYTES = 1024
_KEPT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """`text`: the beginning of the body of an answer that is no success. `retry_after_s`: as its header asks."""

    status: int
    text: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreached:
    """No answer came, or the address leads where nothing is sent."""

    reason: str


async def post(
    url: str,
    *,
    body: bytes,
    headers: Mapping[str, str],
    allowed: Allowed,
    deadline_s: float,
    now: datetime,
    inner: httpx.AsyncBaseTransport | None = None,
    resolve: Resolve | None = None,
) -> Replied | Unreached:
    """Send it once, over a connection of its own. Never raises for what the network or the receiver did.

    `inner` and `resolve` replace the network and the look-up of names.
    """
    try:
        request = httpx.Request(
            "POST",
            url,
            content=body,
            # identity: a kilobyte that is packed may be a gigabyte
            headers={"user-agent": "studio-generation-desk", **headers, "accept-encoding": "identity"},
            extensions={"timeout": httpx.Timeout(deadline_s).as_dict()},
        )  # fmt: skip
        inner = inner or httpx.AsyncHTTPTransport(verify=_tls(), trust_env=False, retries=0)
        outside = Outside(allowed=allowed, inner=inner, resolve=resolve)
        async with asyncio.timeout(deadline_s), outside:
            response = await outside.handle_async_request(request)
            try:
                told = b"" if response.is_success else await _beginning(response)
            finally:
                await response.aclose()
    except TimeoutError:
        return Unreached(reason=f"no answer within {deadline_s:g} s")
    except Exception as error:  # noqa: BLE001  a receiver that finds a gap in the HTTP library must not be tried for ever
        return Unreached(reason=sanitise(str(error) or type(error).__name__, limit=_KEPT))
    return Replied(
        status=response.status_code,
        text=sanitise(told.decode("utf-8", "replace"), limit=_KEPT),
        retry_after_s=header_wait(response.headers, now=now),
    )


async def _beginning(response: httpx.Response) -> bytes:
    found = b""
    async for piece in response.aiter_raw():
        found += piece
        if len(found) >= MOST_BYTES:
            break
    return found[:MOST_BYTES]


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
