"""Trying out trouble: tells the sandbox on this machine to break, to have its quota used up, and to be well again.

Speaks its control API (docs/sandbox.md) over HTTP; nothing here reaches a real provider. Each call is one read without a
key, with a short deadline: a sandbox that is away is said to be so at once.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from providers.contract import Answer, Call
from providers.http import Transport

DEADLINE_S = 2.0
LENGTH_S = 60


class Trouble(StrEnum):
    OUTAGE = "outage"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Going:
    """What goes on at the sandbox; `left_s` None: until somebody ends it."""

    trouble: Trouble
    left_s: float | None


class Away(Exception):  # noqa: N818  an answer to show people, not a fault
    """The sandbox does not answer, or not as it should."""


async def going(base_url: str) -> Going | None:
    """None: all is well there. Raises Away."""
    stats = await _told(base_url, "GET", "stats")
    if stats.get("outage"):
        return Going(Trouble.OUTAGE, _seconds(stats.get("outage_left_s")))
    left_s = _seconds(stats.get("quota_left_s"))
    return Going(Trouble.QUOTA, left_s) if left_s else None


async def begin(base_url: str, trouble: Trouble, *, seconds: float = LENGTH_S) -> None:
    """In place of any other. An outage turns everybody away before anything begins, so that no money is at stake. Raises Away."""
    await end(base_url)
    if trouble is Trouble.OUTAGE:
        await _told(base_url, "POST", "outage/start", {"kind": "turned_away", "seconds": seconds})
    else:
        await _told(base_url, "POST", "quota/use-up", {"seconds": seconds})


async def end(base_url: str) -> None:
    """All is well again, also where nothing went on. Raises Away."""
    await _told(base_url, "POST", "outage/stop", {})
    await _told(base_url, "POST", "quota/use-up", {"seconds": 0})


async def _told(base_url: str, method: str, what: str, body: Any = None) -> dict[str, Any]:
    call = Call(method, f"{base_url}/_sandbox/{what}", json=body)
    async with Transport() as transport:
        answer = await transport.read(call, {}, deadline_s=DEADLINE_S)
    if not isinstance(answer, Answer):
        raise Away(answer.reason)
    try:
        told = json.loads(answer.body)
    except ValueError as error:
        raise Away(f"HTTP {answer.status}") from error
    if answer.status != 200 or not isinstance(told, dict):
        raise Away(f"HTTP {answer.status}")
    return told


def _seconds(told: Any) -> float | None:
    number = isinstance(told, int | float) and not isinstance(told, bool) and math.isfinite(told)
    return float(told) if number else None
