"""Where a provider is asked to call us about one task. The address holds a nonce, so that nobody can guess another's."""

from __future__ import annotations

import base64
from uuid import UUID

from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac


def of(provider: str, task_id: UUID) -> str | None:
    """None: webhooks are not switched on for this provider (or account)."""
    if provider not in settings.WEBHOOKS:
        return None
    return f"{settings.PUBLIC_URL}/hooks/{provider}/{task_id}/{_nonce(provider, task_id)}/"


def is_ours(provider: str, task_id: UUID, nonce: str) -> bool:
    """Whether we gave out this address, and webhooks are still on."""
    return provider in settings.WEBHOOKS and constant_time_compare(nonce, _nonce(provider, task_id))


def _nonce(provider: str, task_id: UUID) -> str:
    """256 bits that only the SECRET_KEY gives: nothing needs to be kept."""
    mac = salted_hmac("jobs.webhook_address", f"{provider}/{task_id}", algorithm="sha256").digest()
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")
