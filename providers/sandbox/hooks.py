"""Webhooks out: which are due, with which body and signature. Values only, no I/O: courier.py carries them."""

from __future__ import annotations

import base64
import hashlib
import heapq
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .ledger import Task
from .reactions import Request

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from .world import World

MOST_TRIES = 5
USER_ID = "sandbox-user"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One POST. `tries`: how many went before it."""

    task: Task
    url: str
    headers: Mapping[str, str]
    body: bytes
    tries: int = 0


@dataclass(order=True, slots=True)
class _Planned:
    at: float
    number: int
    task: Task = field(compare=False)
    tries: int = field(compare=False, default=0)


class Hooks:
    """The webhooks of one world. Their faults are decided with a task's fate."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._running: set[str] = set()
        self._planned: list[_Planned] = []
        self._number = 0

    @property
    def open(self) -> bool:
        """Whether any is still to come."""
        return bool(self._running or self._planned)

    def expect(self, task: Task) -> None:
        """The task is under way, and its end is to be told."""
        if "webhook_early" in task.fate and task.id not in self._running:
            self._plan(task, (task.created + min(task.finish_at, task.created + 60)) / 2)
        self._running.add(task.id)

    def ended(self, task: Task, now: float) -> None:
        self._running.discard(task.id)
        if "webhook_lost" in task.fate or "webhook_early" in task.fate:
            return
        self._plan(task, now + task.fate.get("webhook_late", 0.0))
        if "webhook_twice" in task.fate:
            self._plan(task, now + task.fate["webhook_twice"])

    def due(self, now: float, request: Request) -> list[Delivery]:
        """Those whose time has come; each is given out once. `request`: any, to tell under which host files are."""
        due = []
        while self._planned and self._planned[0].at <= now:
            planned = heapq.heappop(self._planned)
            self._world.ledger.requests["webhooks"] += 1
            due.append(self._delivery(planned, now, request))
        return due

    def answered(self, delivery: Delivery, status: int | None, now: float) -> None:
        """`status` None: no answer. What was not taken is tried again a few times, longer and longer after."""
        if status is not None and 200 <= status < 300:
            self._world.ledger.requests["webhooks_taken"] += 1
        elif delivery.tries + 1 < MOST_TRIES:
            wait_s = self._world.settings.scale * 2**delivery.tries
            self._plan(delivery.task, now + wait_s, tries=delivery.tries + 1)

    def clear(self) -> None:
        self._running.clear()
        self._planned.clear()

    def _plan(self, task: Task, at: float, *, tries: int = 0) -> None:
        self._number += 1
        heapq.heappush(self._planned, _Planned(at, self._number, task, tries))

    def _delivery(self, planned: _Planned, now: float, request: Request) -> Delivery:
        task = planned.task
        contract = self._world.contract_of(task)
        body = json.dumps(contract.webhook(task, request, now), ensure_ascii=False).encode()
        headers = {"content-type": "application/json"}
        if contract.signs_webhooks:
            forged = "webhook_forged" in task.fate
            signed_at = int(now - task.fate.get("webhook_old", 0.0))
            headers |= seal(body, task.id, at=signed_at, key="another" if forged else "sandbox")
        return Delivery(task, task.webhook, headers, body, planned.tries)


def seal(body: bytes, request_id: str, *, at: int, key: str = "sandbox") -> dict[str, str]:
    """fal's four headers. `key`: whose signature, by a name."""
    digest = hashlib.sha256(body).hexdigest()
    message = "\n".join((request_id, USER_ID, str(at), digest)).encode()
    return {
        "x-fal-webhook-request-id": request_id,
        "x-fal-webhook-user-id": USER_ID,
        "x-fal-webhook-timestamp": str(at),
        "x-fal-webhook-signature": _key(key).sign(message).hex(),
    }


def jwks(key: str = "sandbox") -> dict[str, Any]:
    """What the key server answers."""
    x = base64.urlsafe_b64encode(_key(key).public_key().public_bytes_raw()).decode().rstrip("=")
    return {"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": key, "x": x}]}


def _key(name: str) -> Ed25519PrivateKey:
    """The same for the same name, over restarts: no secret."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"key of {name}".encode()).digest())
