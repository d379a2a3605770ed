"""Webhooks in: providers tell us that a task has ended, and we look. docs/webhooks.md.

A call proves at most which id a task has, and only by the provider's signature; what became of the task is asked of the
provider itself.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from datetime import datetime
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from jobs import webhook_address
from jobs.clock import clock
from jobs.hook_gate import MOST_BYTES
from jobs.lifecycle import hints
from providers import registry, webhooks
from providers.contract import Account, Adapter, Answer, Call, NoAnswer, Webhooks
from providers.http import Transport

logger = logging.getLogger(__name__)

KEYS_DEADLINE_S = 5.0


@csrf_exempt
@require_POST
def receive(request: HttpRequest, provider: str, task_id: UUID, nonce: str) -> HttpResponse:
    """200: heard, also where it is no news. 404: no such address or task; 413: too long; 401: not signed by the provider;
    400: signed for another moment, or about nothing; 503: the provider's keys can't be had, so call again."""
    if not webhook_address.is_ours(provider, task_id, nonce):
        return HttpResponse(status=404)
    body = _body(request)
    if body is None:
        return HttpResponse(status=413)
    adapter = registry.adapter(provider)
    now = clock.now()
    proven_id: str | None = None
    if adapter.webhooks is Webhooks.SIGNED:
        refused = _refused(request, adapter, provider, body, now=now)
        if refused is not None:
            return HttpResponse(status=refused)
        proven_id = adapter.read_webhook(body)
        if proven_id is None:
            return HttpResponse(status=400)
    known = hints.hint(task_id=task_id, proven_id=proven_id, now=now)
    return HttpResponse(status=200 if known else 404)


def _body(request: HttpRequest) -> bytes | None:
    """None: longer than MOST_BYTES. Never reads more; behind ASGI, hook_gate.py has bounded it before."""
    told = request.META.get("CONTENT_LENGTH") or "0"
    if told.isdigit() and int(told[:15]) > MOST_BYTES:
        return None
    try:
        body = request.read(MOST_BYTES + 1)
    except UnreadablePostError:
        return b""  # the caller left: nothing it could have said is signed
    return body if len(body) <= MOST_BYTES else None


def _refused(
    request: HttpRequest, adapter: Adapter, provider: str, body: bytes, *, now: datetime
) -> int | None:
    """The status that refuses it; None: the provider has signed it, a moment ago."""
    try:
        ring = _ring(adapter, registry.account(provider))
        headers = {name.lower(): value for name, value in request.headers.items()}
        ring.check(webhooks.seal(headers), body, now=now.timestamp())
    except webhooks.OldError:
        logger.warning("hooks.old %s", provider)
        return 400
    except webhooks.ForgedError:
        logger.warning("hooks.forged %s", provider)
        return 401
    except (webhooks.NoKeysError, ImproperlyConfigured):
        logger.warning("hooks.no_keys %s", provider)
        return 503
    return None


def _ring(adapter: Adapter, account: Account) -> webhooks.KeyRing:
    call = adapter.webhook_keys(account)
    if call is None:
        raise webhooks.NoKeysError(f"{adapter.name} names no keys")
    return _ring_at(call.url)


@functools.cache
def _ring_at(url: str) -> webhooks.KeyRing:
    """One for each key server and process."""
    return webhooks.KeyRing(lambda: asyncio.run(_read(Call("GET", url))))


async def _read(call: Call) -> Answer | NoAnswer:
    async with Transport() as transport:
        return await transport.read(call, {}, deadline_s=KEYS_DEADLINE_S)
