"""What webhooks pass before Django, in plain ASGI: a bound for their bodies, and one thread.

Django would take in any body as a whole before it looks at the address; and it gives each request a thread, and so a
connection to the database, of its own: pictures that end together would take more than the server has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext

PREFIX = "/hooks/"
MOST_BYTES = 1024 * 1024

_Application = Callable[[Any, Any, Any], Awaitable[None]]


def gated(application: _Application) -> _Application:
    """413 for a longer body, unread where its length is told. One call at a time goes on from here."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="webhooks")

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

        async with ThreadSensitiveContext(executor=thread):
            await application(scope, again, send)

    return call


async def _refuse(send: Any) -> None:
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
