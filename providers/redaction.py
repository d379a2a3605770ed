"""What must not be stored: keys and tokens, and text that a database or a terminal chokes on."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping

HIDDEN = "[hidden]"
_SHORTEST_SECRET = 6  # a shorter "key" would blank out ordinary words

_SECRET_HEADER = re.compile(
    r"authorization|cookie|api-?key|token|secret|signature|credential|password", re.IGNORECASE
)
# "Bearer abc", "Key id:secret", "Basic …" as a whole header value already handed over by a caller
_SCHEME = re.compile(r"^(?:bearer|key|basic|token)\s+", re.IGNORECASE)

# Controls but line breaks and tabs, lone surrogates, and bidirectional overrides, which could make a page show another text
# than the one stored.
_NOT_PLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")

_PATTERNS = (
    re.compile(r"(?i)\b(?P<keep>(?:bearer|basic)\s+)[A-Za-z0-9+/_.~=:-]{8,}"),
    re.compile(r"(?i)\b(?P<keep>authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?)[^\s'\",;}]{6,}"),
    re.compile(
        r"(?i)(?P<keep>\b(?:api[_-]?key|access[_-]?token|refresh[_-]?token|client[_-]?secret|token|secret|password|"
        r"x-amz-(?:signature|credential|security-token)|sig|signature)['\"]?\s*[:=]\s*['\"]?)[^\s'\"&,;}]{6,}"
    ),
    re.compile(r"(?P<keep>\b(?:sk|pk|rk|pza|key|r8|hf|gsk|xai|whsec)[-_])[A-Za-z0-9_*-]{12,}"),
    re.compile(r"(?P<keep>\bAIza)[A-Za-z0-9_-]{20,}"),
    re.compile(r"(?P<keep>\beyJ)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"),
    re.compile(  # fal: <uuid>:<hex>
        r"(?i)(?P<keep>\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}:)[0-9a-f]{16,}"
    ),
)


def redact_headers(headers: Mapping[str, str], *, secrets: Collection[str] = ()) -> dict[str, str]:
    """Headers fit to be stored: lower-case names, values of secret-looking ones hidden, the rest through `redact_text`."""
    hidden = tuple(secrets)
    return {name.lower(): _header(name, value, hidden) for name, value in headers.items()}


@functools.lru_cache(maxsize=512)  # most of a server's headers are the same each time
def _header(name: str, value: str, secrets: tuple[str, ...]) -> str:
    if _SECRET_HEADER.search(name):
        return HIDDEN
    return sanitise(redact_text(value, secrets=secrets), limit=1000)


def redact_text(text: str, *, secrets: Collection[str] = ()) -> str:
    """`text` without the given secrets (with or without their scheme word) and without anything that looks like a key."""
    known = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
    known |= {
        bare for secret in secrets if len(bare := _SCHEME.sub("", secret)) >= _SHORTEST_SECRET
    }
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<keep>{HIDDEN}", text)
    return text


def sanitise(text: str, *, limit: int) -> str:
    """`text` that PostgreSQL and a page can take: no NUL, no lone surrogate, no control or direction override, at most
    `limit` characters. Line breaks and tabs stay."""
    kept = _NOT_PLAIN.sub("\ufffd", text[: limit + 1].replace("\r\n", "\n"))
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"
