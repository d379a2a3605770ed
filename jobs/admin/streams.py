"""Server-sent events of the desk: a batch's progress, and that something on the dashboard has changed.

Only where the server is asynchronous; elsewhere there is no address to listen at, and pages ask every few seconds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import get_script_prefix, reverse, set_script_prefix
from django.utils.translation import get_language

from jobs import live, progress
from jobs.admin import batch_page, index
from jobs.clock import clock
from jobs.live import Subject
from jobs.progress import Progress

# They move with every second; the texts tell them as far as a person sees a difference.
_TICKING = {"at", "per_minute", "left_s"}


def address(request: HttpRequest, name: str, *arguments: Any) -> str:
    """Where a page can listen; empty: nowhere."""
    return reverse(name, args=arguments) if isinstance(request, ASGIRequest) else ""


def of_batch(pk: int) -> Subject:
    # Below which folder of the site we are is known to requests only.
    prefix = get_script_prefix()

    def tell(seen: Progress) -> dict[str, Any]:
        set_script_prefix(prefix)
        told = batch_page.live(seen)
        return {name: value for name, value in told.items() if name not in _TICKING}

    return Subject(
        key=("batch", pk),
        read=lambda: progress.read(pk, now=clock.now()),
        tell=tell,
        over=lambda seen: seen.done,
    )


DASHBOARD = Subject(key="dashboard", read=index.digest, tell=lambda version: {"version": version})


class EventStream(StreamingHttpResponse):
    """Its messages end when it does; the stock response leaves what it iterates over to the garbage collector."""

    def __init__(self, messages: AsyncGenerator[bytes, None]) -> None:
        super().__init__(messages, content_type="text/event-stream")
        self._messages = messages
        self.headers["Cache-Control"] = "no-store, no-transform"
        self.headers["X-Accel-Buffering"] = "no"  # nginx would keep the messages back

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._messages) as messages:
            async for message in messages:
                yield message


def answer(request: HttpRequest, subject: Subject) -> HttpResponseBase:
    """The stream of a subject. Who may watch it was asked before."""
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=501)
    if live.full():
        return HttpResponse(status=503)
    return EventStream(_messages(subject, get_language()))


async def _messages(subject: Subject, language: str | None) -> AsyncGenerator[bytes, None]:
    # The request's thread lives as long as the stream, and with it the connection on which the middleware has looked up
    # the session and the user.
    await sync_to_async(connections.close_all)()
    async with aclosing(live.hub().stream(subject, language)) as messages:
        async for message in messages:
            yield message


def dashboard(request: HttpRequest) -> HttpResponseBase:
    """Any member of staff may know that something has changed; what it is the page tells each as they may see it."""
    return answer(request, DASHBOARD)
