"""What every adapter does alike with an answer: JSON with exact decimals, money, ids, bytes inside a text. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from providers.contract import Answer, FileRef, Photo
from providers.redaction import redact_text, sanitise

LONGEST_ID = 200
LONGEST_TEXT = 200_000
_LONGEST_URL = 4096
_SHORTEST_FILE = 92  # characters of base64: the smallest PNG there can be
_DECIMAL_COMMA = re.compile(r"\d+,\d{1,2}", re.ASCII)
_DATA_URI = re.compile(r"data:[\w/+.-]*(?:;[\w=.-]+)*;base64,", re.IGNORECASE)


def parse(body: bytes) -> Any:
    """JSON with exact decimals; None for anything else."""
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def good(answer: Answer) -> dict[str, Any]:
    """The object of a 200; ValueError for anything else."""
    document = parse(answer.body)
    if answer.status != 200 or not isinstance(document, dict):
        raise ValueError(f"HTTP {answer.status} instead of a JSON object")
    return document


def within(document: Any, *names: str) -> dict[str, Any]:
    """The object under these names; {} where there is none."""
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, dict) else {}


def one_id(value: Any) -> str | None:
    """An id as the provider names it. Opaque: a string, or a number in an old shape."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 10**30 else None
    if isinstance(value, str) and 0 < len(value.strip()) <= LONGEST_ID and value.isprintable():
        return value.strip()
    return None


def words(value: Any, *, limit: int = LONGEST_TEXT) -> str:
    """A text fit to be stored; "" for anything else."""
    return sanitise(value, limit=limit) if isinstance(value, str) else ""


def error_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """The message and the code of `error`, be it an object or a text."""
    error = document.get("error")
    if isinstance(error, str):
        return sanitise(redact_text(error), limit=300), ""
    if not isinstance(error, dict):
        return "", ""
    message, code = error.get("message"), error.get("code")
    return (
        sanitise(redact_text(message), limit=300) if isinstance(message, str) else "",
        sanitise(str(code), limit=80) if isinstance(code, str | int) else "",
    )


def file_in(text: str, *, inline: bool) -> FileRef | None:
    """An address, or bytes in base64. Without a data URI or a name that says so (`inline`) only a long text is taken for
    bytes: "done" and a bare id are base64 as well."""
    text = text.strip()
    if text.startswith("//"):
        text = f"https:{text}"
    if text[:8].lower().startswith(("https://", "http://")):
        return FileRef(url=text) if len(text) <= _LONGEST_URL else None
    head = _DATA_URI.match(text)
    if head is None and not inline and len(text) < _SHORTEST_FILE:
        return None
    try:
        data = base64.b64decode(text[head.end() if head else 0 :], validate=True)
    except (binascii.Error, ValueError):
        return None
    return FileRef(data=data) if data else None


def data_uri(photo: Photo) -> str:
    """A photo as a text. OSError if it is gone."""
    encoded = base64.b64encode(photo.path.read_bytes()).decode("ascii")
    return f"data:{photo.media_type};base64,{encoded}"


def money(value: Any, *, negative: bool = False) -> Decimal | None:
    """A finite amount told as number or decimal string; None for anything else, and for a negative cost.

    "7,84" is 7.84; "1,234" may be either of two amounts, so it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    text = str(value).strip()
    if _DECIMAL_COMMA.fullmatch(text):
        text = text.replace(",", ".")
    try:
        amount = Decimal("" if "_" in text else text)
    except (InvalidOperation, ValueError):
        return None
    if not amount.is_finite() or amount.adjusted() > 12 or (amount < 0 and not negative):
        return None
    return amount
