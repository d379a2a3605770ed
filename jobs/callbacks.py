"""Callbacks as the receiving program sees them: addresses, secrets, signatures, and when the next try is.

Messages and signatures are those of Standard Webhooks (https://www.standardwebhooks.com): a receiver checks them with any
of its libraries.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import random
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from providers.outside import Allowed, is_public

URL_LENGTH = 500
# A day of tries from the first one on; then it is given up.
TRY_FOR_S = 24 * 3600.0
# Full jitter: a wait between LEAST_S and the step, which doubles.
FIRST_STEP_S, MOST_STEP_S, LEAST_S = 10.0, 3600.0, 1.0
# The secret before the last rotation signs too for so long.
OVERLAP_S = 24 * 3600.0
_SALT = "jobs.callbacks"
_NO_URL = gettext_lazy(
    "Write an address of at most %(n)s characters, like https://shop.example/hook."
)
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")


class BadUrlError(ValueError):
    """An address that is no place to call back; in words for whoever gave it."""


# --- addresses --------------------------------------------------------------------------------------------------------


def check_url(url: str, *, allowed: Allowed) -> str:
    """The address as it is kept: scheme and host in small letters, no fragment. Raises BadUrlError.

    Where its host leads is looked at when it is called, every time: a name may lead elsewhere by then.
    """
    url = url.strip()
    if not url or _NOT_IN_A_URL.search(url):
        raise BadUrlError(_NO_URL % {"n": URL_LENGTH})
    try:
        parts = urlsplit(url)
        host, port = _plain_host(parts.hostname or ""), parts.port
    except ValueError:  # UnicodeError is one
        raise BadUrlError(_NO_URL % {"n": URL_LENGTH}) from None
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise BadUrlError(_NO_URL % {"n": URL_LENGTH})
    if "@" in parts.netloc:
        raise BadUrlError(_("An address may hold no user name and no password."))
    if not allowed.names(host):
        _check_outside(parts.scheme, host)
    netloc = f"[{host}]" if ":" in host else host
    if port is not None:
        netloc += f":{port}"
    kept = urlunsplit((parts.scheme, netloc, parts.path or "/", parts.query, ""))
    if len(kept) > URL_LENGTH:
        raise BadUrlError(_NO_URL % {"n": URL_LENGTH})
    return kept


def _plain_host(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode("ascii").lower()


def _check_outside(scheme: str, host: str) -> None:
    """Of a host that no setting allows."""
    if scheme != "https":
        raise BadUrlError(
            _("Only https:// is called; plain http:// where the settings allow the host.")
        )
    if _is_inside(host):
        raise BadUrlError(_("This address is none of the open internet."))


def _is_inside(host: str) -> bool:
    """Told at once where it can be; the call itself looks again."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local", ".internal"))
    return not is_public(host)


def shown(url: str) -> str:
    """For pages and logs: without the query, which may hold a token of the receiver's."""
    return url.partition("?")[0] + ("?…" if "?" in url else "")


# --- secrets and signatures -------------------------------------------------------------------------------------------


def secret(*, tenant_id: int, generation: int) -> bytes:
    """32 bytes that follow from SECRET_KEY, so that no database and no backup of one holds them."""
    digest = salted_hmac(_SALT, f"{tenant_id}:{generation}", algorithm="sha256").digest()
    return bytes(digest)


def secrets(
    *, tenant_id: int, generation: int, rotated_at: datetime | None, now: datetime
) -> tuple[bytes, ...]:
    """Those that sign now: the one in force, and for a day after a rotation the one before."""
    numbers = [generation]
    if generation > 1 and rotated_at and now < rotated_at + timedelta(seconds=OVERLAP_S):
        numbers.append(generation - 1)
    return tuple(secret(tenant_id=tenant_id, generation=number) for number in numbers)


def secret_text(key: bytes) -> str:
    """As receivers' libraries take it."""
    return "whsec_" + base64.b64encode(key).decode("ascii")


def message_id(message: UUID) -> str:
    return f"msg_{message.hex}"


def headers(
    *, message: str, body: bytes, keys: Iterable[bytes], now: datetime
) -> Mapping[str, str]:
    """What goes with `body`: the id, stable over tries, the moment of this try, and a signature by each key."""
    at = str(int(now.timestamp()))
    signed = b".".join([message.encode("ascii"), at.encode("ascii"), body])
    found = [
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode("ascii")
        for key in keys
    ]
    return {
        "content-type": "application/json",
        "webhook-id": message,
        "webhook-timestamp": at,
        "webhook-signature": " ".join(found),
    }


def body(*, kind: str, at: datetime, data: Mapping[str, Any]) -> bytes:
    """The JSON text that is signed and sent."""
    told = {"type": kind, "timestamp": at.isoformat(), "data": dict(data)}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


# --- the next try -----------------------------------------------------------------------------------------------------


def next_try(
    *,
    failures: int,
    since: datetime,
    now: datetime,
    told_s: float | None,
    rng: random.Random,
) -> datetime | None:
    """When to try again after so many failures (one or more) since the first try at `since`; None: give up.

    `told_s`: what the receiver asks for (Retry-After), kept up to an hour. The last try falls on the end of the day.
    """
    end = since + timedelta(seconds=TRY_FOR_S)
    if now >= end:
        return None
    step = min(FIRST_STEP_S * 2.0 ** min(failures - 1, 30), MOST_STEP_S)
    wait = max(LEAST_S, rng.uniform(0.0, step))
    if told_s is not None:
        wait = max(wait, min(told_s, MOST_STEP_S))
    return min(now + timedelta(seconds=wait), end)
