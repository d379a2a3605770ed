"""The sandbox's side of webhooks: when it calls, what it signs, how often it tries."""

from __future__ import annotations

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import pytest

from providers import webhooks
from providers.sandbox.hooks import MOST_TRIES, Delivery, jwks
from providers.sandbox.reactions import Request
from providers.sandbox.server import running_sandbox
from providers.sandbox.settings import Settings
from providers.sandbox.world import World

KEYS = webhooks.keys_in(json.dumps(jwks()).encode())


class Post:
    """A world in which one picture is asked for, with a webhook."""

    def __init__(self, fault: str = "") -> None:
        self.now = 1000.0
        settings = Settings().changed({"latency_fixed_s": 60})
        self.world = World(clock=lambda: self.now, rng=random.Random(1), settings=settings)
        headers = {"authorization": "Key fal_a", "host": "h"} | ({"x-sandbox-fault": fault} if fault else {})  # fmt: skip
        answer = self.world.handle(
            Request("POST", "/fal/fal-ai/flux/schnell", {"fal_webhook": "http://desk/x"}, headers, b'{"prompt": "a cat"}')
        )  # fmt: skip
        self.id = json.loads(answer.body)["request_id"]

    def at(self, moment: float) -> list[Delivery]:
        self.now = 1000 + moment
        return self.world.hooks.due(self.world.tick(), Request("GET", "/", headers={"host": "h"}))


@pytest.mark.parametrize(
    ("fault", "moments"),
    [
        ("", [60]), ("webhook_lost", []), ("webhook_twice", [60, 61]), ("webhook_late", [90]), ("webhook_late=5", [65]),
        ("webhook_early", [30]), ("failed_free", [60]), ("never", []),
    ],
)  # fmt: skip
def test_the_sandbox_calls_when_its_faults_say_so(fault: str, moments: list[int]) -> None:
    post, seen = Post(fault), []
    for moment in range(200):
        for delivery in post.at(moment):
            seen.append(moment)
            body = json.loads(delivery.body)
            assert (delivery.url, body["request_id"]) == ("http://desk/x", post.id)
            assert webhooks.fits(webhooks.seal(delivery.headers), delivery.body, KEYS)
            post.world.hooks.answered(delivery, 200, post.now)
    assert seen == moments
    assert post.world.hooks.open is (fault == "never")


def test_the_sandbox_forges_and_replays_on_demand() -> None:
    (forged,) = Post("webhook_forged").at(60)
    assert not webhooks.fits(webhooks.seal(forged.headers), forged.body, KEYS)
    (old,) = Post("webhook_old").at(60)
    assert webhooks.fits(webhooks.seal(old.headers), old.body, KEYS)
    assert int(webhooks.seal(old.headers).timestamp) == 1060 - 400


@pytest.mark.parametrize("status", [None, 503])
def test_the_sandbox_calls_again_a_few_times_where_it_is_not_heard(status: int | None) -> None:
    post, seen = Post(), []
    for moment in range(200):
        for delivery in post.at(moment):
            seen.append(moment)
            post.world.hooks.answered(delivery, status, post.now)
    assert seen == [60, 61, 63, 67, 75]
    assert len(seen) == MOST_TRIES
    assert not post.world.hooks.open


class Desk(BaseHTTPRequestHandler):
    """Hears the second call."""

    bodies: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200 if len(self.bodies) > 1 else 503)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.mark.flow
def test_the_sandbox_really_calls_and_publishes_its_keys() -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), Desk) as desk,
        running_sandbox(latency_fixed_s=0.1, scale=0.1) as sandbox,
        httpx.Client(base_url=f"{sandbox.url}/fal", trust_env=False) as client,
    ):
        threading.Thread(target=desk.serve_forever, daemon=True).start()
        published = client.get("/.well-known/jwks.json").content
        assert [key.public_bytes_raw() for key in webhooks.keys_in(published)] == [
            KEYS[0].public_bytes_raw()
        ]
        client.post(
            "/fal-ai/flux/schnell", json={"prompt": "a cat"}, headers={"authorization": "Key fal_a"},
            params={"fal_webhook": f"http://127.0.0.1:{desk.server_port}/x"},
        ).raise_for_status()  # fmt: skip
        until = time.monotonic() + 10
        while not (counts := sandbox.stats()["requests"]).get("webhooks_taken"):
            assert time.monotonic() < until, counts
            time.sleep(0.02)
        desk.shutdown()
    assert counts["webhooks"] == len(Desk.bodies) == 2
    assert [json.loads(body)["status"] for body in Desk.bodies] == ["OK", "OK"]
