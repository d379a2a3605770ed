"""The bodies of webhooks are bounded before anything reads or keeps them. Plain ASGI, in front of Django, which would take in
any body as a whole before it looks at the address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

PREFIX = "/hooks/"
MOST_BYTES = 1024 * 1024

_Application = Callable[[Any, Any, Any], Awaitable[None]]


def bounded(application: _Application) -> _Application:
    """413 for a longer body, unread where its length is told."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await application(scope, receive, send)
            return
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or len(told) > 15 or int(told) > MOST_BYTES:
            await _refuse(send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return  # the caller left
            body += message.get("body", b"")
            if len(body) > MOST_BYTES:
                await _refuse(send)
                return
            if not message.get("more_body", False):
                break
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Any:
            return given.pop() if given else await receive()

        await application(scope, again, send)

    return call


async def _refuse(send: Any) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
