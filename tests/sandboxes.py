"""A client of the sandbox for its own tests: says what it saw, whatever happened to the connection."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx

from providers.sandbox.server import Sandbox

MODEL = "google/gemini-2.5-flash-image"
KEY = "pza_test"


@dataclass(frozen=True)
class Seen:
    """What a client saw: `broken` and `timed_out` exclude a status; `body` is what arrived of it."""

    status: int | None = None
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    body: bytes = b""
    broken: bool = False
    timed_out: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Customer:
    """One account at a sandbox."""

    def __init__(self, sandbox: Sandbox, key: str = KEY) -> None:
        self.sandbox = sandbox
        self.headers = {"authorization": f"Bearer {key}"}

    def call(
        self, method: str, path: str, *, timeout_s: float = 5, fault: str = "", body: Any = None
    ) -> Seen:
        """One call on a connection of its own. `path` may be a whole URL."""
        url = path if path.startswith("http") else self.sandbox.api_url + path
        headers = self.headers | ({"x-sandbox-fault": fault} if fault else {})
        status, got, arrived = None, httpx.Headers(), b""
        try:
            with (
                httpx.Client(timeout=timeout_s, trust_env=False, verify=False) as client,
                client.stream(method, url, headers=headers, json=body) as response,
            ):
                status, got = response.status_code, response.headers
                for piece in response.iter_raw():
                    arrived += piece
        except httpx.TimeoutException:
            return Seen(status, got, arrived, timed_out=True)
        except httpx.TransportError:
            return Seen(status, got, arrived, broken=True)
        return Seen(status, got, arrived)

    def get(self, path: str, *, timeout_s: float = 5, fault: str = "") -> Seen:
        return self.call("GET", path, timeout_s=timeout_s, fault=fault)

    def post(
        self,
        prompt: str = "a cat",
        *,
        user: str = "",
        model: str = MODEL,
        fault: str = "",
        timeout_s: float = 5,
        **more: Any,
    ) -> Seen:
        body = {"model": model, "async": True, "user": user, "input": {"prompt": prompt}} | more
        return self.call("POST", "/media", timeout_s=timeout_s, fault=fault, body=body)

    def made(self, prompt: str = "a cat", **more: Any) -> str:
        """The id of a task that was accepted and has ended."""
        user = uuid.uuid4().hex
        assert self.post(prompt, user=user, **more).status == 200
        (task,) = self.sandbox.ledger(correlation=user)["tasks"]
        self.sandbox.control("finish", id=task["id"])
        return str(task["id"])

    def poll(self, task_id: str) -> Any:
        return self.get(f"/media/{task_id}").json

    def receipt(self, task_id: str) -> Seen:
        return self.get(f"/history/generations/{task_id}")
