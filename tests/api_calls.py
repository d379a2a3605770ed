"""Calling the API in tests: tokens and clients that carry them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client

from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.lifecycle.tokens import Issued
from jobs.models import Tenant
from tests import factories

ALL = ("submit", "read", "cancel")


def token(tenant: Tenant | None = None, *, scopes: Any = ALL, **values: Any) -> Issued:
    return tokens.issue(
        tenant=tenant or factories.tenant(), name="site", scopes=scopes, actor=None, now=clock.now(),
        **{"per_minute": 10_000} | values,
    )  # fmt: skip


def caller(tenant: Tenant | None = None, *, scopes: Any = ALL, **values: Any) -> Client:
    return with_text(token(tenant, scopes=scopes, **values).text)


def with_text(text: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {text}"})


def create(client: Client, prompt: str = "A red bicycle", *, key: str = "", **more: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    body = {"prompt": prompt, **more}
    return client.post("/api/v1/jobs", body, content_type="application/json", headers=headers)


@contextmanager
def one_connection() -> Iterator[None]:
    """As Django's own test client does it: the test's transaction outlives the requests."""
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    try:
        yield
    finally:
        request_started.connect(close_old_connections)
        request_finished.connect(close_old_connections)
