"""Tokens that open an account for a while: asked for once, shared by all processes of this host.

One file for each account and token address, under TOKEN_DIR (0600 in 0700), never in the database or a log. Whoever finds
it old takes the lock beside it and asks; the others wait for the file. A lock dies with its process. A failed request is
kept in the file for a moment too, so that not everybody asks a server that has just said no.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from providers.classify import classify
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Call,
    Charge,
    FailureClass,
    NoAnswer,
    Refusal,
    Scope,
    Token,
)
from providers.http import Transport
from providers.redaction import redact_text, sanitise

logger = logging.getLogger(__name__)

DEADLINE_S = 15.0
MARGIN_S = 60.0  # of life left, below which a token is renewed …
JITTER_S = 15.0  # … by each process a little earlier or later
WAIT_FIRST_S, WAIT_MOST_S = 0.02, 0.3  # between two looks at a lock that somebody holds
HELD_S = 3.0  # a failed request answers for all for so long
HELD_MOST_S = 60.0
_LONGEST_TOKEN = 16_000


@dataclass(frozen=True, slots=True)
class Denied:
    """No token. `answer` is the token server's own, None where a failure of a moment ago stands for it."""

    refusal: Refusal
    answer: Answer | NoAnswer | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the file holds: a token and when it was got, or why there is none and until when that counts. Unix seconds."""

    token: Token | None = None
    got_at: float = 0.0
    refusal: Refusal | None = None
    until: float = 0.0


def unix() -> float:
    """The wall clock; a seam for the simulation."""
    return time.time()


async def current(
    transport: Transport, adapter: Adapter, account: Account, call: Call
) -> Token | Denied:
    """A token that lives for a while yet, asked for by `call` only where the file has none. Never raises for what the network
    or the disk did; waits at most DEADLINE_S for whoever is asking already, and as long again for its own answer."""
    path = _path(adapter, account, call)
    give_up = time.monotonic() + DEADLINE_S
    wait_s = WAIT_FIRST_S
    try:
        while True:
            known = _usable(path)
            if known is not None:
                return known
            with _locked(path) as mine:
                if mine:
                    # It may have been got between the look and the lock.
                    known = _usable(path)
                    return known or await _ask(transport, adapter, account, call, path)
            if time.monotonic() >= give_up:
                return _ours(f"another process has been asking for a token for {DEADLINE_S:g} s")
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311  jitter
            wait_s = min(wait_s * 2, WAIT_MOST_S)
    except OSError as error:
        return _ours(f"TOKEN_DIR: {error.strerror or type(error).__name__}")


def stored(adapter: Adapter, account: Account, call: Call) -> Token | None:
    """The token in the file, whatever its age."""
    return _read(_path(adapter, account, call)).token


def drop(adapter: Adapter, account: Account, call: Call, token: Token) -> None:
    """The provider does not take this token: nobody uses it again. Another one that has come meanwhile stays.

    Its mark stands in a file of its own, so this needs no lock and can't remove what somebody is writing.
    """
    path = _path(adapter, account, call)
    try:
        _write(path.with_suffix(".refused"), _digest(token.value))
    except OSError as error:
        logger.warning("tokens.not_dropped %s", type(error).__name__)


# --- asking -----------------------------------------------------------------------------------------------------------


async def _ask(
    transport: Transport, adapter: Adapter, account: Account, call: Call, path: Path
) -> Token | Denied:
    """The request itself. The lock is held, and let go by whoever holds it, also where this is cancelled."""
    headers = adapter.authorisation(account)
    answer = await transport.read(call, headers, deadline_s=DEADLINE_S)
    now = datetime.fromtimestamp(unix(), UTC)
    token = _token(adapter, answer, now)
    if token is None:
        refusal = refused(answer, secrets=tuple(headers.values()))
        left = _read(path).token
        if left is not None and not _is_refused(path, left) and left.expires_at > now + timedelta(seconds=5):  # fmt: skip
            return left  # old, but it still opens
        until = now.timestamp() + min(max(refusal.wait_s or 0.0, HELD_S), HELD_MOST_S)
        _keep(path, _Kept(refusal=refusal, until=until))
        return Denied(refusal, answer)
    _keep(path, _Kept(token=token, got_at=now.timestamp()))
    return token


def _token(adapter: Adapter, answer: Answer | NoAnswer, now: datetime) -> Token | None:
    if not isinstance(answer, Answer):
        return None
    try:
        token = adapter.read_token(answer, now=now)
    except ValueError:
        return None
    fits = 0 < len(token.value) <= _LONGEST_TOKEN and token.value.isascii()
    # It becomes a header.
    return token if fits and token.value.isprintable() and " " not in token.value else None


def refused(answer: Answer | NoAnswer, *, secrets: tuple[str, ...] = ()) -> Refusal:
    """What it means that there is no token. It costs nothing, and no job is at fault: a wrong key or scope is the account's."""
    told = classify(answer, submit=False)
    if isinstance(answer, NoAnswer):
        failure = FailureClass.UNSENT
    elif told.failure in (FailureClass.RATE_LIMITED, FailureClass.QUOTA_EXHAUSTED):
        failure = told.failure
    elif 400 <= answer.status < 500:
        failure = FailureClass.UNAUTHORIZED
    else:
        failure = FailureClass.DOWN
    reason = sanitise(f"no token: {redact_text(told.reason, secrets=secrets)}", limit=300)
    return replace(
        told,
        failure=failure,
        charge=Charge.NONE,
        reason=reason,
        scope=Scope.ACCOUNT,
        code=told.code or "no_token",
    )


def _ours(reason: str) -> Denied:
    told = Refusal(
        FailureClass.UNSENT, Charge.NONE, f"no token: {reason}", code="no_token", ours=True
    )
    return Denied(told)


# --- the file ---------------------------------------------------------------------------------------------------------


def _path(adapter: Adapter, account: Account, call: Call) -> Path:
    """Named by what opens the account and where: another address or scope is another token."""
    asked = _digest(json.dumps([call.url, sorted((call.form or {}).items())]))
    return Path(settings.TOKEN_DIR) / f"{adapter.name}-{account.fingerprint}-{asked}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _usable(path: Path) -> Token | Denied | None:
    """What the file says that still counts; None: somebody must ask."""
    kept, now = _read(path), unix()
    if kept.refusal is not None and now < kept.until <= now + HELD_MOST_S:
        return Denied(kept.refusal)
    if kept.token is None or _is_refused(path, kept.token):
        return None
    expires = kept.token.expires_at.timestamp()
    # A token that lives for a minute only is renewed at half of its life.
    margin_s = min(MARGIN_S + random.uniform(0, JITTER_S), max(expires - kept.got_at, 0) / 2)  # noqa: S311  jitter
    return kept.token if now < expires - margin_s else None


def _is_refused(path: Path, token: Token) -> bool:
    try:
        mark = path.with_suffix(".refused").read_text("ascii")
    except (OSError, ValueError):
        return False
    return mark == _digest(token.value)


def _read(path: Path) -> _Kept:
    """What cannot be read is not there."""
    try:
        held = json.loads(path.read_text("utf-8"))
        if "value" in held:
            expires = datetime.fromtimestamp(held["expires_at"], UTC)
            return _Kept(token=Token(str(held["value"]), expires), got_at=float(held["got_at"]))
        refusal = Refusal(
            FailureClass(held["failure"]), Charge.NONE, str(held["reason"]), wait_s=held["wait_s"],
            status=held["status"], code=str(held["code"]), ours=bool(held["ours"]),
        )  # fmt: skip
        return _Kept(refusal=refusal, until=float(held["until"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return _Kept()


def _keep(path: Path, kept: _Kept) -> None:
    """A disk that fails must not cost the token that was just got: it then serves this call alone."""
    held: dict[str, Any] = {}
    if kept.token is not None:
        expires = kept.token.expires_at.timestamp()
        held = {"value": kept.token.value, "expires_at": expires, "got_at": kept.got_at}
    elif kept.refusal is not None:
        one = kept.refusal
        held = {"failure": one.failure, "reason": one.reason, "wait_s": one.wait_s, "status": one.status,
                "code": one.code, "ours": one.ours, "until": kept.until}  # fmt: skip
    try:
        _write(path, json.dumps(held))
    except OSError as error:
        logger.warning("tokens.not_kept %s", type(error).__name__)


def _write(path: Path, text: str) -> None:
    """The whole file or the old one; readable by its owner only."""
    _folder(path)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _folder(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether the lock is ours. Never waits: the event loop goes on, and a cancelled wait leaves nothing behind."""
    _folder(path)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(lock)  # which lets it go
