"""What the API answers when it does not do a thing: one code a situation, as problem details (RFC 9457).

`code` is for programs and never changes; title and detail are for people, in the language they ask for. Nothing here tells
whether something that is not the caller's exists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.http import HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

MEDIA_TYPE = "application/problem+json"
MOST_FIELDS = 50  # further faults of a request are counted only


class Code(Enum):
    """Name, status and title of each."""

    MALFORMED = ("malformed", 400, _("The request can't be read"))
    UNAUTHORIZED = ("unauthorized", 401, _("No token that works"))
    BUDGET = ("budget", 402, _("The spending limit is reached"))
    SCOPE = ("scope", 403, _("The token may not do this"))
    NOT_FOUND = ("not_found", 404, _("There is no such thing"))
    METHOD = ("method", 405, _("This address does not do that"))
    KEY_REUSED = ("key_reused", 409, _("The idempotency key belongs to another request"))
    ENDED = ("ended", 409, _("It is over already"))
    NO_RESULT = ("no_result", 409, _("There is no result"))
    EXPIRED = ("expired", 410, _("The link is over"))
    TOO_LARGE = ("too_large", 413, _("The request is too large"))
    MEDIA_TYPE = ("media_type", 415, _("The body is of another type"))
    INVALID = ("invalid", 422, _("The request has faults"))
    PACE = ("pace", 429, _("Too many requests"))
    QUEUE_FULL = ("queue_full", 429, _("Too many jobs are waiting"))
    QUOTA = ("quota", 429, _("The quota is used up"))
    FAULT = ("fault", 500, _("Something is broken here"))
    DOWN = ("down", 503, _("Nothing can be sent now"))
    BUSY = ("busy", 503, _("The desk can't answer now"))

    def __init__(self, word: str, status: int, title: str | Promise) -> None:
        self.word = word
        self.status = status
        self.title = title


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request. `field` as in "jobs.3.prompt", or a header's or a query parameter's name; "" for the
    whole."""

    field: str
    text: str


class Problem(Exception):  # noqa: N818  an answer, not a fault
    """Raised by whatever the API will not do. `retry_after_s`: when it makes sense to ask again, None: not for that reason.
    `more` goes into the body beside what RFC 9457 names."""

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        retry_after_s: float | None = None,
        faults: Sequence[Fault] = (),
        **more: Any,
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.faults = tuple(faults)
        self.more = more


def invalid(field: str, text: str) -> Problem:
    return Problem(Code.INVALID, faults=[Fault(field, text)])


def body(problem: Problem) -> dict[str, Any]:
    told: dict[str, Any] = {
        "type": f"/api/v1/docs#{problem.code.word}",
        "title": str(problem.code.title),
        "status": problem.code.status,
        "code": problem.code.word,
        **problem.more,
    }
    if problem.detail:
        told["detail"] = problem.detail
    if problem.faults:
        told["errors"] = [
            {"field": one.field, "pointer": pointer(one.field), "detail": one.text}
            for one in problem.faults[:MOST_FIELDS]
        ]
        told["detail"] = problem.detail or "; ".join(
            f"{one.field}: {one.text}" if one.field else one.text for one in problem.faults[:3]
        )
    return told


def pointer(field: str) -> str:
    """A JSON pointer into the body (RFC 6901, as a fragment)."""
    return "#" + "".join(
        "/" + part.replace("~", "~0").replace("/", "~1") for part in field.split(".") if part
    )


def answer(problem: Problem) -> HttpResponse:
    response = HttpResponse(
        json.dumps(body(problem), ensure_ascii=False), status=problem.code.status, content_type=MEDIA_TYPE
    )  # fmt: skip
    for name, value in headers(problem).items():
        response.headers[name] = value
    return response


def headers(problem: Problem) -> Mapping[str, str]:
    """No refusal may be kept by a cache: the next moment's answer is another."""
    told = {"Cache-Control": "no-store"}
    if problem.retry_after_s is not None:
        told["Retry-After"] = str(max(1, math.ceil(problem.retry_after_s)))
    if problem.code is Code.UNAUTHORIZED:
        told["WWW-Authenticate"] = 'Bearer realm="desk"'
    return told
