"""What the sandbox does with a request: an answer, and how its transport misbehaves. Values only, no I/O."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

PICTURE_MARK = b"@@picture@@"


class Transport(StrEnum):
    """How the reaction travels. Every one waits `delay_s` first."""

    ANSWER = "answer"
    RESET = "reset"  # RST, not a byte of an answer
    HANG = "hang"  # nothing at all until the client gives up
    CUT = "cut"  # headers and `cut_after` bytes of the body, then RST
    CUT_HEADERS = "cut_headers"  # half a header block, then RST
    DRIP = "drip"  # the whole body, `drip_bytes` every `drip_s`


HALF = -1  # a `cut_after` for bodies whose length is not known yet


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `headers` has lower-case names; `query` keeps the last of repeated values."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def base_url(self) -> str:
        """Scheme and host under which the client reached us, without a slash at the end."""
        return "http://" + self.headers.get("host", "sandbox")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture to be drawn by whoever carries the reaction out; the same value always gives the same bytes.

    `keep` is the share of the file that is kept (1: whole).
    """

    task_id: str
    prompt: str
    correlation: str
    number: int = 1
    width: int = 640
    height: int = 640
    form: str = "PNG"
    keep: float = 1.0


@dataclass(frozen=True, slots=True)
class Reaction:
    """`then` set: wait `delay_s`, call it, and carry out what it returns instead of this.

    `picture` set: the body is that picture; or, where `body` holds PICTURE_MARK, the picture in base64 in its place.
    `padding_bytes` zero bytes follow the body. Whoever carries it out adds `date` (World.date) and `content-length`.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    picture: Picture | None = None
    padding_bytes: int = 0
    delay_s: float = 0.0
    transport: Transport = Transport.ANSWER
    cut_after: int = 0
    drip_bytes: int = 1
    drip_s: float = 0.0
    then: Callable[[], Reaction] | None = None


def json_reaction(payload: Any, status: int = 200, *headers: tuple[str, str]) -> Reaction:
    body = json.dumps(payload, ensure_ascii=False).encode()
    return Reaction(
        status=status,
        headers=(("content-type", "application/json; charset=utf-8"), *headers),
        body=body,
    )


def filled_body(reaction: Reaction, picture: bytes) -> bytes:
    """The body of a reaction once its picture is drawn."""
    if PICTURE_MARK in reaction.body:
        return reaction.body.replace(PICTURE_MARK, base64.b64encode(picture))
    return picture
