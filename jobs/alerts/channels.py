"""The channels of ALERT_URLS, and sending messages through them within a bounded time (the other side: child.py)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.conf import settings

from jobs.alerts.child import without_address
from jobs.alerts.words import Message
from jobs.lifecycle.alerts import Try

# For all channels and messages of one sending together, the child's start included.
LIMIT_S = 16.0
TOO_SLOW = "no answer in time"
_ROOT = Path(__file__).resolve().parent.parent.parent
# What reaching the world may need. The keys of the providers are not among it.
_PASSED_ON = (
    "PATH", "HOME", "TMPDIR", "TZ", "PYTHONPATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy",
    "https_proxy", "no_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Channel:
    """One address. `key` is a short hash of it; its scheme is all of it that may be shown."""

    key: str
    scheme: str
    url: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.scheme} …{self.key[-6:]}"


def channels() -> tuple[Channel, ...]:
    """Those of the settings, each once."""
    return tuple(
        Channel(
            key=hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:12],
            scheme=url.partition("://")[0].lower(),
            url=str(url),
        )
        for url in settings.ALERT_URLS
    )


def deliver(
    messages: Sequence[Message],
    *,
    to: Sequence[Channel],
    done: Mapping[int, Collection[str]] | None = None,
    limit_s: float = LIMIT_S,
) -> list[Try]:
    """Each message through each channel that has not had it (`done`: alert id -> channel keys). Never raises, and is back
    after `limit_s`: what was not told of by then counts as not sent."""
    wanted = {
        channel.key: [m for m in messages if channel.key not in (done or {}).get(m.alert_id, ())]
        for channel in to
    }
    order = {
        "limit_s": limit_s,
        "channels": [
            {"key": c.key, "url": c.url, "messages": [_plain(m) for m in wanted[c.key]]}
            for c in to
            if wanted[c.key]
        ],
    }
    if not order["channels"]:
        return []
    told, trouble = _run(json.dumps(order).encode(), limit_s=limit_s)
    found = {
        (line["channel"], line["id"]): _shown(line["error"], line["channel"], to) for line in told
    }
    return [
        Try(alert_id=m.alert_id, channel=key, error=found.get((key, m.alert_id), trouble))
        for key, own in wanted.items()
        for m in own
    ]


def _plain(message: Message) -> dict[str, Any]:
    return {
        "id": message.alert_id,
        "title": message.title,
        "body": message.body,
        "tone": message.tone,
    }


def _shown(error: str, key: str, to: Sequence[Channel]) -> str:
    """Once more on this side: nothing that is stored may hold an address."""
    return next((without_address(error, c.url) for c in to if c.key == key), error)


def _run(order: bytes, *, limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """The child's lines, and what is to be said of whatever it did not tell."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "jobs.alerts.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback may hold an address
            cwd=_ROOT,
            env={"LC_ALL": "C.UTF-8"} | {n: os.environ[n] for n in _PASSED_ON if n in os.environ},
            start_new_session=True,
        )
    except OSError as error:
        return [], f"no process to send with: {error.strerror}"
    trouble = "the sending process died"
    try:
        out, _none = child.communicate(order, timeout=limit_s)
    except subprocess.TimeoutExpired:
        trouble = TOO_SLOW
        child.kill()
        out, _none = child.communicate()
    return _lines(out), trouble


def _lines(out: bytes) -> list[dict[str, Any]]:
    """The whole ones; a line that the kill cut tells nothing."""
    found = []
    for raw in out.splitlines():
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and {"channel", "id", "error"} <= line.keys():
            found.append(line)
    return found
