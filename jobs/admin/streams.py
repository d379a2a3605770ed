"""Server-sent events of the desk: a batch's progress, and that something on the dashboard has changed.

Only where the server is asynchronous; elsewhere there is no address to listen at, and pages ask every few seconds.
"""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponseBase
from django.urls import get_script_prefix, reverse, set_script_prefix

from jobs import progress
from jobs.admin import batch_page, index
from jobs.clock import clock
from jobs.live import EventStream, Subject, answer
from jobs.progress import Progress

__all__ = ["DASHBOARD", "EventStream", "address", "answer", "dashboard", "of_batch"]

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


def dashboard(request: HttpRequest) -> HttpResponseBase:
    """Any member of staff may know that something has changed; what it is the page tells each as they may see it."""
    return answer(request, DASHBOARD)
