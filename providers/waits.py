"""How long an answer asks us to wait. Pure; never raises.

What is junk, negative, past, endless or absurd is the same as not told: None. Headers come before the body, the finer of
two headers before the coarser, a machine field of the body before a sentence (sentences.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from providers.evidence import Evidence
from providers.sentences import bounded, duration, in_words, iso_moment, since_1970, until

_PLAIN_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,12})?", re.ASCII)
_EPOCH_S = 1_000_000_000  # 2001: a smaller number is a delay, not a moment

# RateLimit: "default";r=0;t=30 (RFC draft 8 on), or limit=10, remaining=0, reset=30 (before).
_LEFT = re.compile(r"(?<!\w)(?:r|remaining)=(\d+)")
_RESET = re.compile(r"(?<!\w)(?:t|reset)=(\d+)")

# Fields of a body that tell a wait, folded: lower case, without "_" and "-". What it is, a delay or a moment, the value shows.
_TELLING = re.compile(
    r"(?:x|ms|xms|rate|limit|ratelimit|quota|usage|next|estimated|cooldown|seconds|time|blocked|available|remaining)*"
    r"(?:retryafter|retryin|retryat|retrydelay|retrywait|retrytime|resets?|resets?(?:in|at|on|after|time|delay|date)|wait"
    r"|wait(?:time|for|seconds|in)|cooldown|estimatedtime|(?:available|allowed|request|attempt)(?:at|in|after|on)|until"
    r"|untilreset|toreset|towait|seconds|next|nextreset(?:time|at)?)"
    r"(?:in|at|after|time|timestamp|stamp|epoch|delay|period)?(?P<unit>ms|millis|milliseconds|s|secs?|seconds|insec|inseconds"
    r"|inms|minutes|mins)?"
)
_FACTORS = {"ms": 0.001, "inms": 0.001, "millis": 0.001, "milliseconds": 0.001} | dict.fromkeys(
    ("minutes", "mins"), 60.0
)


def told(evidence: Evidence, *, now: datetime | None = None) -> float | None:
    """The wait in seconds, 0 to MAX_WAIT_S, or None.

    Moments are counted from the answer's own Date header, which shares the sender's clock; `now` serves where it is
    missing. Without either a moment tells nothing.
    """
    base = http_date(evidence.headers.get("date", "")) or now
    return next((wait for wait in _candidates(evidence, base) if wait is not None), None)


def header_wait(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """What Retry-After and its relatives tell, without rate-limit reset headers."""
    base = http_date(headers.get("date", "")) or now
    names = [name for name in headers if "retry-after" in name]
    for name in sorted(names, key=lambda name: (not name.endswith("-ms"), len(name))):
        value = headers[name].strip()
        waits = (
            (_seconds(value, 0.001),)
            if name.endswith("-ms")
            else (_seconds(value), until(http_date(value), base), _moment(value, base))
        )
        for wait in waits:
            if wait is not None:
                return wait
    return None


def http_date(value: str) -> datetime | None:
    """An HTTP date as an aware time; None for anything else, years beyond 9999 and dates without a zone."""
    if not 8 < len(value) < 64:
        return None
    try:
        parsed = parsedate_to_datetime(value)
        return None if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _candidates(evidence: Evidence, base: datetime | None) -> Iterator[float | None]:
    yield header_wait(evidence.headers, now=base)
    yield _exhausted_bucket(evidence.headers, base)
    fields = list(_telling(evidence.document))
    fields.sort(key=lambda field: field[0] >= 1)  # milliseconds first
    yield from (_delay(value, factor) for factor, value in fields)
    yield in_words(evidence.raw, base)
    yield from (_moment(value, base, evidence.raw) for _, value in fields)
    yield _reset_header(evidence.headers, base)


def _seconds(value: str, unit: float = 1.0) -> float | None:
    value = value.strip()
    return bounded(float(value) * unit) if _PLAIN_NUMBER.fullmatch(value) else None


def _delay(value: Any, unit: float) -> float | None:
    """A number of `unit` seconds, a duration in words, or protobuf's Duration."""
    if isinstance(value, dict):
        parts = [_delay(value.get("seconds", 0), 1), _delay(value.get("nanos", 0), 1e-9)]
        return None if None in parts else bounded(sum(part for part in parts if part is not None))
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return bounded(float(value) * unit)
        except OverflowError:
            return None
    if isinstance(value, str):
        told_s = _seconds(value, unit)
        return told_s if told_s is not None else duration(value)
    return None


def _moment(value: Any, base: datetime | None, context: str = "") -> float | None:
    """A reset told as delay, seconds or milliseconds since 1970 (by magnitude), ISO time, HTTP date or duration."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        value = f"{value:.3f}" if abs(value) < 1e15 else ""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if _PLAIN_NUMBER.fullmatch(value):
        number = float(value)
        return bounded(number) if number < _EPOCH_S else since_1970(number, base)
    waits = (iso_moment(value, base, context), until(http_date(value), base), duration(value))
    return next((wait for wait in waits if wait is not None), None)


def _exhausted_bucket(headers: Mapping[str, str], base: datetime | None) -> float | None:
    """The longest reset among the buckets of which nothing is left."""
    waits = [
        _moment(headers.get(name.replace("remaining", "reset")), base)
        for name, value in headers.items()
        if "remaining" in name and value.strip() in ("0", "0.0")
    ]
    field = headers.get("ratelimit", "")
    for item in field.split(",") if ";" in field else [field]:
        left, reset = _LEFT.search(item), _RESET.search(item)
        if left and reset and int(left[1]) == 0:
            waits.append(_seconds(reset[1]))
    return max((wait for wait in waits if wait is not None), default=None)


def _reset_header(headers: Mapping[str, str], base: datetime | None) -> float | None:
    """A reset header that stands alone, without a `remaining` that contradicts it."""
    for name, value in headers.items():
        if "reset" in name and "ratelimit" in name.replace("-", ""):
            remaining = headers.get(name.replace("reset", "remaining"), "").strip()
            if remaining in ("", "0"):
                wait = _moment(value, base)
                if wait is not None:
                    return wait
    return None


def _telling(value: Any, depth: int = 0) -> Iterator[tuple[float, Any]]:
    """Each field of a document that tells a wait: the seconds of its unit, and its value."""
    if depth > 8:
        return
    if isinstance(value, list):
        for inside in value[:50]:
            yield from _telling(inside, depth + 1)
    elif isinstance(value, dict):
        for name, inside in list(value.items())[:100]:
            folded = re.sub(r"[-_ ]", "", str(name)).lower()
            if folded in ("prompt", "input", "messages", "parameters", "params"):
                continue
            telling = _TELLING.fullmatch(folded)
            if telling:
                yield _FACTORS.get(telling["unit"] or "", 1.0), inside
            elif isinstance(inside, dict | list):
                yield from _telling(inside, depth + 1)
