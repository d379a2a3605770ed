"""Signed webhooks: what a signature is good for, and what keys that are known, new or out of reach make of it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from providers import webhooks
from providers.contract import Account, Answer, NoAnswer
from providers.registry import adapter
from providers.sandbox.hooks import jwks, seal

AT = 1_796_040_000
KEYS = webhooks.keys_in(json.dumps(jwks()).encode())
BODY = b'{"request_id": "abc", "status": "OK", "payload": {}}'


# --- signatures -------------------------------------------------------------------------------------------------------


def test_only_the_body_and_headers_that_were_signed_fit() -> None:
    headers = seal(BODY, "abc", at=AT)
    assert webhooks.fits(webhooks.seal(headers), BODY, KEYS)
    assert not webhooks.fits(webhooks.seal(headers), BODY + b" ", KEYS)
    for name, other in (
        ("request-id", "abd"), ("user-id", "somebody"), ("timestamp", str(AT + 1)), ("signature", "0" * 128),
    ):  # fmt: skip
        changed = headers | {f"x-fal-webhook-{name}": other}
        assert not webhooks.fits(webhooks.seal(changed), BODY, KEYS), name
    assert not webhooks.fits(webhooks.seal(seal(BODY, "abc", at=AT, key="another")), BODY, KEYS)


@pytest.mark.parametrize("name", ["request-id", "user-id", "timestamp", "signature"])
@pytest.mark.parametrize("value", [None, "", "no hex", "-5", "1e9", "٣٠", "9" * 400])
def test_headers_that_no_provider_sends_are_forged(name: str, value: str | None) -> None:
    headers = seal(BODY, "abc", at=AT)
    del headers[f"x-fal-webhook-{name}"]
    if value is not None:
        headers[f"x-fal-webhook-{name}"] = value
    server = KeyServer()
    with pytest.raises(webhooks.ForgedError):
        server.ring.check(webhooks.seal(headers), BODY, now=AT)


def test_of_a_key_servers_answer_the_ed25519_keys_are_taken() -> None:
    good = jwks()["keys"][0]
    odd: list[Any] = [None, 5, {"kty": "RSA", "x": good["x"]}, good | {"crv": "X25519"}, good | {"x": "AAAA"}, good | {"x": 7}]  # fmt: skip
    found = webhooks.keys_in(json.dumps({"keys": [*odd, good]}).encode())
    assert [key.public_bytes_raw() for key in found] == [KEYS[0].public_bytes_raw()]
    assert len(webhooks.keys_in(json.dumps({"keys": [good] * 1000}).encode())) == webhooks.MOST_KEYS
    for none in (b"", b"[]", b"<html>", b'{"keys": 5}', json.dumps({"keys": odd}).encode()):
        with pytest.raises(ValueError, match="no Ed25519 keys"):
            webhooks.keys_in(none)


# --- the keys ---------------------------------------------------------------------------------------------------------


class KeyServer:
    def __init__(self, key: str = "sandbox") -> None:
        self.key, self.status, self.asked = key, 200, 0
        self.ring = webhooks.KeyRing(self.answer)

    def answer(self) -> Answer | NoAnswer:
        self.asked += 1
        if not self.status:
            return NoAnswer(sent=False, reason="connection refused")
        return Answer(self.status, {}, json.dumps(jwks(self.key)).encode())

    def judges(self, now: float, *, key: str = "sandbox", at: float | None = None) -> str:
        sealed = webhooks.seal(seal(BODY, "abc", at=int(now if at is None else at), key=key))
        try:
            self.ring.check(sealed, BODY, now=now)
        except (webhooks.ForgedError, webhooks.OldError, webhooks.NoKeysError) as error:
            return type(error).__name__
        return "good"


def test_keys_are_asked_for_once_a_day() -> None:
    server = KeyServer()
    assert [server.judges(AT + s) for s in (0, 5, 86_399)] == ["good"] * 3
    assert server.asked == 1
    server.judges(AT + 86_400)
    assert server.asked == 2


def test_however_many_calls_are_forged_the_keys_are_asked_for_once_a_minute() -> None:
    server = KeyServer()
    assert {server.judges(AT + s / 10, key="another") for s in range(599)} == {"ForgedError"}
    assert server.asked == 1
    assert server.judges(AT + 61, key="another") == "ForgedError"
    assert server.asked == 2
    assert server.judges(AT + 62) == "good"


def test_a_new_key_is_known_at_its_first_use() -> None:
    server = KeyServer()
    server.judges(AT)
    server.key = "newer"
    assert server.judges(AT + 60, key="newer") == "good"
    assert server.judges(AT + 61, key="sandbox") == "ForgedError"
    assert server.asked == 2


@pytest.mark.parametrize("status", [0, 404, 500])
def test_without_keys_nobody_is_called_a_forger(status: int) -> None:
    server = KeyServer()
    server.status = status
    assert [server.judges(AT + s) for s in (0, 59)] == ["NoKeysError"] * 2
    assert server.asked == 1
    server.status = 200
    assert server.judges(AT + 60) == "good"
    server.status = status
    assert server.judges(AT + 120, key="newer") == "NoKeysError"  # it may be a new key
    assert server.judges(AT + 121) == "good"
    assert server.judges(AT + 60 + 86_400) == "NoKeysError"  # too old to go by


def test_of_many_threads_one_asks() -> None:
    server, told = KeyServer(), []
    threads = [threading.Thread(target=lambda: told.append(server.judges(AT))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (server.asked, told) == (1, ["good"] * 20)


@pytest.mark.parametrize(("off_s", "told"), [(300, "good"), (301, "OldError"), (-300, "good"), (-301, "OldError")])  # fmt: skip
def test_a_signature_is_good_for_five_minutes(off_s: int, told: str) -> None:
    server = KeyServer()
    assert server.judges(AT, at=AT - off_s) == told
    assert server.asked == (told == "good")


def test_fals_keys_are_where_fal_says_and_another_servers_beside_it() -> None:
    def at(base_url: str) -> str:
        call = adapter("fal").webhook_keys(Account("fal", base_url, "", ""))
        assert call is not None
        return call.url

    assert at("https://queue.fal.run") == "https://rest.fal.ai/.well-known/jwks.json"
    assert at("http://127.0.0.1:8700/fal") == "http://127.0.0.1:8700/fal/.well-known/jwks.json"
