"""The provider calls us: the real view, at whatever moment, with what the sandbox signs, forges, doubles and loses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from unittest import mock
from urllib.parse import urlsplit
from uuid import UUID

from django.db import Error
from django.test import RequestFactory

from bench.sim.desk import Desk
from jobs import hooks
from providers import webhooks
from providers.contract import Answer
from providers.sandbox.hooks import Delivery, jwks
from providers.sandbox.reactions import Request

ADDRESS = "https://desk.sim"
_ANY = Request("GET", "/", {}, {"host": "fal.sim"})


@contextlib.contextmanager
def keys_at_hand(desk: Desk) -> Iterator[None]:
    """The provider's keys without a socket, and the simulation's clock."""
    ring = webhooks.KeyRing(lambda: Answer(200, {}, json.dumps(jwks()).encode()))
    with (
        mock.patch.object(hooks, "_ring_at", return_value=ring),
        mock.patch.object(hooks, "clock", desk.clock),
    ):
        yield


def deliver_due(desk: Desk) -> None:
    """Each call is an actor of its own: two of them, and a lane, may be at the same task."""
    if desk.world.hooks.open:
        for delivery in desk.world.hooks.due(desk.clock.unix(), _ANY):
            desk.turns.start("the web", lambda delivery=delivery: _call(desk, delivery))  # type: ignore[misc]


def _call(desk: Desk, delivery: Delivery) -> None:
    _empty, _hooks, provider, task_id, nonce, _end = urlsplit(delivery.url).path.split("/")
    request = RequestFactory().post(
        delivery.url, data=delivery.body, content_type="application/json", headers=delivery.headers
    )
    try:
        answer = hooks.receive(request, provider, UUID(task_id), nonce)
    except Error as error:
        desk.turns.tell(f"webhook: {error}")
        status = 500
    else:
        status = answer.status_code
    desk.turns.tell(f"webhook for {task_id[:8]} -> {status}")
    desk.world.hooks.answered(delivery, status, desk.clock.unix())
