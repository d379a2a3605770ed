"""Signed webhooks: whether a call that says it comes from a provider does.

The scheme is fal's (https://fal.ai/docs/model-endpoints/webhooks): Ed25519 over request id, user id, timestamp and the
SHA-256 of the raw body, with any key of a JWKS that may be kept for a day.
"""

from __future__ import annotations

import base64
import hashlib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from providers.contract import Answer, NoAnswer
from providers.evidence import parse_json

LONGEST_AGE_S = 300.0
KEYS_KEPT_S = 24 * 3600.0
# A call with a foreign signature may mean that the keys have changed; many such calls must not hammer the key server.
ASK_AGAIN_S = 60.0
MOST_KEYS = 16
_PREFIX = "x-fal-webhook-"
_SIGNATURE = re.compile(r"[0-9a-fA-F]{128}")
_SECONDS = re.compile(r"[0-9]{1,12}")


class ForgedError(ValueError):
    """Not signed by the provider."""


class OldError(ValueError):
    """Signed for another moment: a replay, or a clock that is wrong."""


class NoKeysError(Exception):
    """The provider's keys are not known, so nothing can be told of a signature."""


@dataclass(frozen=True, slots=True)
class Seal:
    """What the headers of a webhook say. `timestamp` is unix seconds."""

    request_id: str
    user_id: str
    timestamp: str
    signature: bytes

    def message(self, body: bytes) -> bytes:
        """What is signed."""
        digest = hashlib.sha256(body).hexdigest()
        return "\n".join((self.request_id, self.user_id, self.timestamp, digest)).encode()


def seal(headers: Mapping[str, str]) -> Seal:
    """`headers` has lower-case names. ForgedError where one of the four is missing or in no such form."""
    request_id, user_id, timestamp, signature = (
        headers.get(f"{_PREFIX}{name}", "")
        for name in ("request-id", "user-id", "timestamp", "signature")
    )
    if not (request_id and user_id):
        raise ForgedError("not signed")
    if not (_SECONDS.fullmatch(timestamp) and _SIGNATURE.fullmatch(signature)):
        raise ForgedError("no timestamp and signature in the known form")
    return Seal(request_id, user_id, timestamp, bytes.fromhex(signature))


def keys_in(document: bytes) -> tuple[Ed25519PublicKey, ...]:
    """The Ed25519 keys of a JWKS, at most MOST_KEYS. ValueError where it is none, or has none."""
    jwks = parse_json(document)
    listed = jwks.get("keys") if isinstance(jwks, dict) else None
    found = [_key(one) for one in (listed if isinstance(listed, list) else [])[:MOST_KEYS]]
    keys = tuple(key for key in found if key is not None)
    if not keys:
        raise ValueError("no Ed25519 keys in the answer")
    return keys


def _key(one: object) -> Ed25519PublicKey | None:
    if (
        not isinstance(one, dict)
        or one.get("kty") != "OKP"
        or one.get("crv", "Ed25519") != "Ed25519"
    ):
        return None
    x = one.get("x")
    try:
        padded = x + "=" * (-len(x) % 4) if isinstance(x, str) else ""
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(padded))
    except ValueError:  # no base64, or another length than 32 bytes
        return None


def fits(sealed: Seal, body: bytes, keys: Sequence[Ed25519PublicKey]) -> bool:
    """Whether one of the keys has signed it."""
    message = sealed.message(body)
    for key in keys:
        try:
            key.verify(sealed.signature, message)
        except InvalidSignature:
            continue
        return True
    return False


class KeyRing:
    """A provider's keys, kept for a day. `ask` gets the JWKS; several threads may come at once, and one of them asks."""

    def __init__(self, ask: Callable[[], Answer | NoAnswer]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._keys: tuple[Ed25519PublicKey, ...] = ()
        self._got_at = self._asked_at = float("-inf")
        self._answered = False  # the last time it was asked

    def check(self, sealed: Seal, body: bytes, *, now: float) -> None:
        """`now` is unix seconds. Raises OldError, ForgedError, NoKeysError; the last where asking again may help."""
        if abs(now - int(sealed.timestamp)) > LONGEST_AGE_S:
            raise OldError("signed for another moment")
        if fits(sealed, body, self._current(now)):
            return
        # Perhaps signed with a key that is newer than ours.
        if fits(sealed, body, self._renewed(now)):
            return
        if not self._answered:
            raise NoKeysError("the keys could not be renewed")
        raise ForgedError("none of the provider's keys has signed it")

    def _current(self, now: float) -> tuple[Ed25519PublicKey, ...]:
        with self._lock:
            if not 0 <= now - self._got_at < KEYS_KEPT_S:
                self._keys = ()
                self._renew(now)
            if not self._keys:
                raise NoKeysError("the keys could not be had")
            return self._keys

    def _renewed(self, now: float) -> tuple[Ed25519PublicKey, ...]:
        with self._lock:
            self._renew(now)
            return self._keys

    def _renew(self, now: float) -> None:
        if 0 <= now - self._asked_at < ASK_AGAIN_S:
            return
        self._asked_at, self._answered = now, False
        answer = self._ask()
        if isinstance(answer, NoAnswer) or answer.status != 200:
            return
        try:
            self._keys = keys_in(answer.body)
        except ValueError:
            return
        self._got_at, self._answered = now, True
