"""Requests of the API share a few threads of the process, and so a few database connections.

By themselves each has a thread and a connection of its own: a thousand that come at once take more connections than the
server has, from the workers too. Here they wait for their turn instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import ThreadSensitiveContext

from jobs.live import ADDRESS_ENDS

ADDRESS_START = "/api/"
THREADS = 8

_Application = Callable[[Any, Any, Any], Awaitable[None]]


def in_few_threads(application: _Application) -> _Application:
    """Streams are left to `jobs.live.in_one_thread`."""
    threads = [ThreadPoolExecutor(1, thread_name_prefix=f"api{n}") for n in range(THREADS)]
    there = [0] * THREADS

    async def call(scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        if not path.startswith(ADDRESS_START) or path.endswith(ADDRESS_ENDS):
            await application(scope, receive, send)
            return
        at = min(range(THREADS), key=there.__getitem__)
        there[at] += 1
        try:
            async with ThreadSensitiveContext(executor=threads[at]):
                await application(scope, receive, send)
        finally:
            there[at] -= 1

    return call
