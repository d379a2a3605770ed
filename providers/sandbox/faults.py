"""The repertoire of misbehaviour: names, how a fault is asked for, and which one strikes. Pure.

A fault is written `name`, `name=value` (seconds, where the fault knows a time) or with `:n` behind it (only the first n
times). It is asked for by a share of all requests (settings), by the model (`fault/NAME`, `MODEL@NAME`), by a marker in
the prompt (`[[fault:NAME]]`), or by the header `x-sandbox-fault` (several with commas). At most one fault of each stage
strikes a request; header before prompt before model before share.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

HEADER = "x-sandbox-fault"
MARKER = re.compile(r"\[\[fault:([^\]\s]+)\]\]")


class Stage(StrEnum):
    """Where a fault strikes. The first ends a request; those of TASK_STAGES are decided when a task is accepted."""

    HEAD = "head"
    SUBMIT = "submit"
    FATE = "fate"
    LATENCY = "latency"
    SHAPE = "shape"
    COST = "cost"
    PRICE = "price"
    POLL = "poll"
    FILE = "file"
    HISTORY = "history"
    RECEIPT = "receipt"
    BALANCE = "balance"
    WEBHOOK = "webhook"
    TOKEN = "token"  # noqa: S105  the name of a stage


TASK_STAGES = (Stage.FATE, Stage.LATENCY, Stage.SHAPE, Stage.COST, Stage.PRICE, Stage.WEBHOOK)


@dataclass(frozen=True, slots=True)
class Fault:
    """`accepts` tells whether a task exists (and is billed) although the client may not learn of it; None: not about that.

    `value` is the default of `name=value`; None: a value means nothing (or, for transport faults, a delay in seconds).
    `deceptive`: a task is created behind an answer that says that none was, and that clients rightly take for free. No
    client can be safe from those, so they are for tests of what happens then, never for a mixture that must end well.
    """

    name: str
    stage: Stage
    says: str
    accepts: bool | None = None
    value: float | None = None
    deceptive: bool = False


CATALOGUE: dict[str, Fault] = {}


def _add(
    name: str,
    stage: Stage,
    says: str,
    *,
    accepts: bool | None = None,
    value: float | None = None,
    deceptive: bool = False,
) -> None:
    CATALOGUE[name] = Fault(name, stage, says, accepts, value, deceptive)


# --- submit: the connection -------------------------------------------------------------------------------------------

_add("reset_before_read", Stage.HEAD, "connection reset before the body is read", accepts=False)
_add(
    "reset_before_accept",
    Stage.SUBMIT,
    "the request is read, then the connection is reset",
    accepts=False,
)
_add(
    "reset_after_accept",
    Stage.SUBMIT,
    "task created and billed, then the connection is reset",
    accepts=True,
)
_add(
    "accept_late",
    Stage.SUBMIT,
    "connection reset; the task is created so many seconds later",
    accepts=False,
    value=240,
)
_add("hang_before_accept", Stage.SUBMIT, "no answer, no task", accepts=False)
_add("hang_after_accept", Stage.SUBMIT, "task created, no answer", accepts=True)
_add(
    "slow_answer",
    Stage.SUBMIT,
    "task created, the answer comes so many seconds later",
    accepts=True,
    value=45,
)
_add(
    "slow_drip",
    Stage.SUBMIT,
    "task created, the answer comes a byte every so many seconds",
    accepts=True,
    value=1,
)
_add(
    "cut_after_id", Stage.SUBMIT, "task created, the answer is cut just after its id", accepts=True
)
_add("cut_before_id", Stage.SUBMIT, "task created, the answer is cut before its id", accepts=True)
_add(
    "cut_headers", Stage.SUBMIT, "task created, the answer is cut within its headers", accepts=True
)

# --- submit: answers --------------------------------------------------------------------------------------------------

EDGE_STATUSES = (403, 408, 429, 499, 500, 502, 503, 504, 520, 521, 522, 524)
for _status in EDGE_STATUSES:
    _add(
        f"edge_{_status}",
        Stage.SUBMIT,
        f"HTML page of a proxy with status {_status}, no task",
        accepts=False,
    )
    _add(
        f"edge_{_status}_after",
        Stage.SUBMIT,
        f"task created, HTML page of a proxy, status {_status}",
        accepts=True,
        deceptive=_status in {403, 429},
    )

OWN_ERRORS: dict[str, str] = {
    "bad_request": "400 wrong parameter",
    "bad_model": "400 noProvidersForModel",
    "unauthorized": "401 wrong key",
    "key_revoked": "401 api_key_revoked",
    "no_balance": "402 not enough money",
    "key_limit": "402 weekly limit of the key used up",
    "key_limit_400": "the same under 400",
    "tariff": "402 the model is not in this tariff",
    "moderation": "403 moderation of this request",
    "not_found": "404",
    "own_408": "408 REQUEST_TIMEOUT in the provider's own shape",
    "conflict": "409",
    "too_large": "413",
    "unprocessable": "422",
    "rate_limited": "429 without any hint when to come back",
    "rate_limited_seconds": "429, Retry-After in seconds",
    "rate_limited_float": "429, Retry-After as a decimal fraction",
    "rate_limited_date": "429, Retry-After as an HTTP date",
    "rate_limited_ms": "429, retry-after-ms",
    "rate_limited_body": "429, the wait only in the message",
    "rate_limited_junk": "429, Retry-After is not a time",
    "rate_limited_negative": "429, Retry-After below zero",
    "rate_limited_zero": "429, Retry-After 0",
    "rate_limited_nan": "429, Retry-After NaN",
    "rate_limited_past": "429, Retry-After as an HTTP date in the past",
    "internal": "500 INTERNAL_ERROR",
    "own_502": "502 BAD_GATEWAY in the provider's own shape",
    "unavailable": "503 SERVICE_UNAVAILABLE",
    "no_providers": "503 noProvidersForModel",
    "overloaded": "503 overloaded",
    "own_504": "504 in the provider's own shape",
    "ok_error": "200 with the error envelope",
    "ok_empty": "200 without a body",
    "ok_garbage": "200 with a body that is not JSON",
    "ok_no_id": "200 JSON without an id",
}
# After these nobody can know; every other own error tells that the request was refused.
_UNSURE = {"own_408", "conflict", "internal", "own_502", "unavailable", "no_providers", "own_504"}
_UNSURE |= {name for name in OWN_ERRORS if name.startswith("ok_")}

for _name, _says in OWN_ERRORS.items():
    _wait = 20.0 if _name.startswith("rate_limited") else None
    _add(_name, Stage.SUBMIT, f"{_says}, no task", accepts=False, value=_wait)
    _add(
        f"{_name}_after",
        Stage.SUBMIT,
        f"task created, answered with {_says}",
        accepts=True,
        value=_wait,
        deceptive=_name not in _UNSURE,
    )

_add("accepted_with_error", Stage.SUBMIT, "2xx with an id and an error beside it", accepts=True)
_add("status_201", Stage.SUBMIT, "accepted with 201 instead of 200", accepts=True)
_add("status_200", Stage.SUBMIT, "accepted with 200", accepts=True)
_add(
    "instant_completed",
    Stage.SUBMIT,
    "the answer to the POST is already the completed task",
    accepts=True,
)
_add(
    "instant_failed",
    Stage.SUBMIT,
    "the answer to the POST is already a failed task (free)",
    accepts=True,
)

# --- the fate of an accepted task -------------------------------------------------------------------------------------

_add("latency", Stage.LATENCY, "takes exactly so many seconds", value=1)
_add("failed_free", Stage.FATE, "ends failed, the charge is taken back (receipt 0)")
_add("failed_moderation", Stage.FATE, "ends failed with FORBIDDEN, the charge is taken back")
_add("failed_timeout", Stage.FATE, "ends failed with REQUEST_TIMEOUT, the charge is taken back")
_add("failed_charged", Stage.FATE, "ends failed, the charge stays (receipt above 0)")
_add("failed_pending", Stage.FATE, "ends failed, charged, the receipt stays pending for ever")
_add("failed_unlisted", Stage.FATE, "ends failed, charged, and has no receipt (404)")
_add(
    "failed_then_completed",
    Stage.FATE,
    "failed and free; completed and charged so many seconds later",
    value=3600,
)
_add("cancelled", Stage.FATE, "ends cancelled, the charge is taken back")
_add("cancelled_charged", Stage.FATE, "ends cancelled, the charge stays")
_add("unknown_status", Stage.FATE, "an unknown status word while it runs, then completed")
_add("unknown_final", Stage.FATE, "an unknown status word for ever (charged)")
_add("late", Stage.FATE, "completes only after so many seconds", value=960)
_add("never", Stage.FATE, "runs for ever (charged)")
_add("lost", Stage.FATE, "404 to every poll for ever; charged, the history shows it as pending")
_add(
    "lost_later",
    Stage.FATE,
    "404 to every poll from half of its time on; charged, the history shows the truth",
)
_add("vanished", Stage.FATE, "404 to every poll, and the history does not know it; charged")
_add("missing_first", Stage.FATE, "404 to polls for so many seconds after creation", value=10)

_add("content_only", Stage.SHAPE, "completed with text and without a file")
_add("no_result", Stage.SHAPE, "completed with neither file nor text")
_add("with_content", Stage.SHAPE, "a file with text and warnings beside it")
_add("data_list", Stage.SHAPE, "data is a list of objects")
_add("data_two", Stage.SHAPE, "data is a list of two objects with different files")
_add("data_strings", Stage.SHAPE, "data is a list of strings")
_add("data_string", Stage.SHAPE, "data is a string")
_add("data_images", Stage.SHAPE, "data is an object with a list of images")
_add("data_b64", Stage.SHAPE, "data is a list of objects with b64_json")
_add("data_b64_object", Stage.SHAPE, "data is an object with b64_json")
_add("data_data_url", Stage.SHAPE, "the URL is a data: URL")

_add("cost_string", Stage.COST, "costs as strings")
_add("cost_missing", Stage.COST, "usage without a cost")
_add("cost_null", Stage.COST, "costs null")
_add("cost_alias", Stage.COST, "only `cost`, not `cost_rub`")
_add("usage_missing", Stage.COST, "no usage at all")
_add("cost_wrong", Stage.COST, "the poll tells half of what the receipt tells")
_add("overcharged", Stage.PRICE, "billed at twice the price")

_add("webhook_lost", Stage.WEBHOOK, "the webhook never comes")
_add("webhook_twice", Stage.WEBHOOK, "the webhook comes again so many seconds later", value=1)
_add(
    "webhook_late", Stage.WEBHOOK, "the webhook comes so many seconds late, after others'", value=30
)
_add("webhook_early", Stage.WEBHOOK, "the webhook comes in the middle, and not at the end")
_add("webhook_old", Stage.WEBHOOK, "the webhook was signed so many seconds ago", value=400)
_add("webhook_forged", Stage.WEBHOOK, "the webhook is signed with a key that is not the provider's")

# --- reads ------------------------------------------------------------------------------------------------------------

READ_TROUBLES: dict[str, tuple[str, float | None]] = {
    "400": ("400", None),
    "401": ("401", None),
    "403": ("403", None),
    "404": ("404", None),
    "429": ("429 with Retry-After", 2.0),
    "500": ("500", None),
    "502_html": ("HTML page of a proxy, 502", None),
    "503": ("503", None),
    "524_html": ("HTML page of a proxy, 524", None),
    "reset": ("connection reset", None),
    "hang": ("no answer", None),
    "cut": ("half of the body, then a reset", None),
    "garbage": ("200 with a body that is not JSON", None),
    "empty": ("200 without a body", None),
    "slow": ("the right answer so many seconds later", 5.0),
    "drip": ("the right answer, a piece every so many seconds", 0.2),
}
for _prefix, _stage, _what in (
    ("poll", Stage.POLL, "poll"),
    ("file", Stage.FILE, "download"),
    ("history", Stage.HISTORY, "listing"),
    ("receipt", Stage.RECEIPT, "receipt"),
    ("balance", Stage.BALANCE, "balance and key reads"),
    ("token", Stage.TOKEN, "token request"),
):
    for _trouble, (_says, _value) in READ_TROUBLES.items():
        _add(f"{_prefix}_{_trouble}", _stage, f"{_what}: {_says}", value=_value)

_add("receipt_pending", Stage.RECEIPT, "receipt: pending although the task has ended")
_add("history_blind", Stage.HISTORY, "listing: an empty page although there are items")
_add(
    "result_expired",
    Stage.FILE,
    "the URL is gone; the next poll gives a fresh one (use it with :n)",
)
_add("result_gone", Stage.FILE, "the file is gone for ever")
_add("result_html", Stage.FILE, "200 with an HTML page instead of a picture")
_add("result_text", Stage.FILE, "200 with plain text under image/png")
_add("result_empty", Stage.FILE, "200 with no bytes")
_add("result_truncated", Stage.FILE, "a whole answer with half a picture")
_add("result_bomb", Stage.FILE, "a tiny PNG that claims 60,000 x 60,000 pixels")
_add("result_jpeg", Stage.FILE, "a JPEG under a name that ends in .png")
_add("result_oversize", Stage.FILE, "a picture followed by so many megabytes of zeros", value=64)


@dataclass(frozen=True, slots=True)
class Spec:
    """A fault as it was asked for. `times` None: always. `source` is header, prompt, model or share."""

    name: str
    value: float | None = None
    times: int | None = None
    source: str = "share"

    @property
    def fault(self) -> Fault:
        return CATALOGUE[self.name]

    def value_or_default(self, scale: float = 1.0) -> float:
        """The value asked for; without one the default times `scale`, 0 where there is no default."""
        return self.value if self.value is not None else (self.fault.value or 0.0) * scale


def parse_spec(text: str, source: str = "share") -> Spec:
    """`name[=value][:n]`; `name_before` is another spelling of `name`. Raises ValueError naming what is wrong."""
    head, colon, times = text.strip().partition(":")
    name, equals, value = head.partition("=")
    if name not in CATALOGUE:
        name = name.removesuffix("_before")
    if name not in CATALOGUE:
        raise ValueError(f"no sandbox fault is named {name!r}; `GET /_sandbox/faults` lists them")
    try:
        spec = Spec(name, float(value) if equals else None, int(times) if colon else None, source)
    except ValueError:
        raise ValueError(
            f"{text!r}: expected name, name=number, name:times or name=number:times"
        ) from None
    if (spec.value is not None and not 0 <= spec.value < 1e9) or (
        spec.times is not None and spec.times < 0
    ):
        raise ValueError(f"{text!r}: number out of range")
    return spec


def asked_for(*, header: str = "", prompt: str = "", model: str = "") -> tuple[Spec, ...]:
    """The faults a request asks for, most specific first. Raises ValueError for a fault that does not exist."""
    specs = [parse_spec(part, "header") for part in header.split(",") if part.strip()]
    if "[[fault:" in prompt:
        specs += [parse_spec(found, "prompt") for found in MARKER.findall(prompt)]
    if model.startswith("fault/"):
        specs += [parse_spec(part, "model") for part in model.removeprefix("fault/").split("+")]
    elif "@" in model:
        specs += [parse_spec(part, "model") for part in model.partition("@")[2].split("+")]
    return tuple(specs)


class Shares:
    """Faults by share of the requests, ready to draw from. Shares of one stage may not exceed 1 together."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        self._by_stage: dict[Stage, list[tuple[Spec, float]]] = {}
        for text, share in sorted(shares.items()):
            spec = parse_spec(text)
            if not 0 <= share <= 1:
                raise ValueError(f"the share of {text!r} must be between 0 and 1")
            self._by_stage.setdefault(spec.fault.stage, []).append((spec, share))
        for stage, found in self._by_stage.items():
            if sum(share for _, share in found) > 1 + 1e-9:
                raise ValueError(f"the shares of the {stage} faults exceed 1 together")

    def draw(self, stage: Stage, rng: random.Random) -> Spec | None:
        found = self._by_stage.get(stage)
        if not found:
            return None
        point = rng.random()
        for spec, share in found:
            if point < share:
                return spec
            point -= share
        return None


class Strikes:
    """Counts how often a fault asked for with `:n` has struck. The subject is a prompt, or a task for reads."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def pick(self, stage: Stage, specs: Iterable[Spec], subject: str) -> Spec | None:
        """The first of `specs` that belongs to `stage` and is not used up; counts it."""
        for spec in specs:
            if spec.fault.stage is not stage:
                continue
            key = (spec.source, spec.name, subject)
            if spec.times is not None and self._counts[key] >= spec.times:
                continue
            self._counts[key] += 1
            return spec
        return None
