"""fal.ai, the queue: asynchronous, a request id at once, the end by polling, the result by one more read.

https://fal.ai/docs/documentation/model-apis/inference/queue, …/errors and …/request-errors. Quirks: `COMPLETED` also
stands for failed, with `error` and `error_type` beside it or under the result's own HTTP status; what was in the queue is
addressed by owner and app alone, without the endpoint's sub-path; an empty balance is a 403; no answer tells a cost, and
there are neither receipts nor a listing; no field carries our correlation id; there is no idempotency key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from providers.adapters.reading import data_uri, error_of, file_in, one_id, parse, words
from providers.classify import Meaning, Rules, classify
from providers.contract import (
    Accepted,
    Account,
    Adapter,
    Answer,
    Call,
    Charge,
    FailureClass,
    FileRef,
    Further,
    Named,
    NoAnswer,
    PollTrouble,
    Refusal,
    Request,
    Running,
    Verdict,
    Webhooks,
)
from providers.redaction import redact_text, sanitise

_LOOK_BYTES = 65_536
_LONGEST_LINK = 2000
# An id in a body that was cut in the middle, or that is not quite JSON; not that of `gateway_request_id`.
_ID = re.compile(r'"request_id"\s*:\s*"([A-Za-z0-9_-]{1,190})"')
_RUNNING = frozenset({"in_queue", "in_progress"})
_CANCELLED = frozenset({"cancelled", "canceled"})
# Owners whose apps have one part more in their names.
_NAMESPACES = frozenset({"workflows", "comfy"})
_KEYS_AT = "https://rest.fal.ai"
_LINKS = {"status": "status_url", "result": "response_url", "cancel": "cancel_url"}

_DOWN = Meaning(FailureClass.DOWN)
_REJECTED = Meaning(FailureClass.REJECTED)
# `error_type` of what befell a request on its way through fal's own machines, all 5xx.
_REQUEST_ERRORS = frozenset(
    {
        "request_timeout",
        "startup_timeout",
        "runner_scheduling_failure",
        "runner_connection_timeout",
        "runner_disconnected",
        "runner_connection_refused",
        "runner_connection_error",
        "runner_incomplete_response",
        "runner_server_error",
        "internal_error",
    }
)
# `type` of a model's own errors that are not the caller's doing, all 5xx.
_SERVER_ERRORS = frozenset(
    {"internal_server_error", "generation_timeout", "downstream_service_unavailable"}
)
# "Server errors (HTTP 500+) are never charged", says fal's FAQ. Nothing says so of a 4xx: a 422 may have used a runner.
_NEVER_CHARGED = _REQUEST_ERRORS | _SERVER_ERRORS
_BY_CLIENT = frozenset({"client_cancelled", "client_disconnected"})
# Those which a read of the result could meet by itself; with them it tells nothing of the work.
_OF_ANY_REQUEST = frozenset({"request_timeout", "internal_error"})
_OF_THE_WORK = (_REQUEST_ERRORS - _OF_ANY_REQUEST) | {"client_cancelled"}

RULES = Rules(
    sure={
        **dict.fromkeys(_NEVER_CHARGED, _DOWN),
        # The one that tells of a request that reached no runner.
        "runner_scheduling_failure": Meaning(FailureClass.DOWN, free=True),
        "downstream_service_error": _DOWN,
        "no_media_generated": _REJECTED,
    },
    plain={
        "content_policy_violation": Meaning(FailureClass.REJECTED, free=True),
        "bad_request": Meaning(FailureClass.REJECTED, free=True),
        **dict.fromkeys(_BY_CLIENT, _DOWN),
    },
)


class Fal(Adapter):
    """Adapter for fal.ai's queue; see `contract.Adapter` for what each method promises."""

    name = "fal"
    currency = "USD"
    asynchronous = True
    default_base_url = "https://queue.fal.run"
    default_model = "fal-ai/flux/schnell"
    default_price = Decimal("0.003")
    key_setting = "FAL_KEY"
    sandbox_path = "/fal"
    sandbox_key = "fal_sandbox_demo"
    retention_s = 7 * 86_400.0
    missing_grace_s = 3600.0
    tells_cost = False
    webhooks = Webhooks.SIGNED

    def authorisation(self, account: Account, token: str = "") -> Mapping[str, str]:
        return {"authorization": f"Key {account.key}"}

    # --- submit -------------------------------------------------------------------------------------------------------

    def submit(self, account: Account, request: Request) -> Call:
        """Reads the photos from disk: OSError if one is gone. ValueError where the model is no path. No ceiling is sent,
        and no id of ours: fal has no field for either."""
        given: dict[str, Any] = {**request.params, "prompt": request.prompt}
        photos = [data_uri(photo) for photo in request.photos]
        if len(photos) > 1 or (photos and _edits(request.model)):
            given["image_urls"] = photos
        elif photos:
            given["image_url"] = photos[0]
        return Call(
            "POST",
            f"{account.base_url}/{'/'.join(_parts(request.model))}",
            # Their queue's own repeats would multiply what one send of ours may cost.
            headers={"x-fal-no-retry": "1"},
            params={"fal_webhook": request.webhook_url} if request.webhook_url else {},
            json=given,
        )

    def read_submit(self, answer: Answer | NoAnswer) -> Accepted | Verdict | Refusal:
        if isinstance(answer, NoAnswer):
            return _cut(answer)
        document = parse(answer.body)
        provider_id = _request_id(document)
        if not 200 <= answer.status < 300:
            if provider_id is not None and document.get("status_url"):
                # Named although it stumbled: polling tells.
                return Accepted(provider_id, _word(document), links=_links(document))
            return _refusal(answer)
        if provider_id is not None:
            return Accepted(provider_id, _word(document), links=_links(document))
        if not isinstance(document, dict):
            found = _ID.search(answer.body[:_LOOK_BYTES].decode("utf-8", "replace"))
            if found:
                return Accepted(found[1])
        elif files := _files(document):  # an address that does not queue
            return Verdict("completed", files=files, currency=self.currency, status="completed")
        refusal = _refusal(answer)
        if refusal.failure is FailureClass.UNKNOWN:
            return replace(refusal, reason=f"HTTP {answer.status} without a request id")
        return refusal

    # --- poll, result, cancel -----------------------------------------------------------------------------------------

    def poll(self, account: Account, named: Named) -> Call | None:
        return _about("GET", account, named, "status", "/status")

    def read_poll(self, answer: Answer | NoAnswer) -> Verdict | Running | PollTrouble | Further:
        document = parse(answer.body)
        word = _word(document)
        if (
            isinstance(answer, NoAnswer)
            or not isinstance(document, dict)
            or not 200 <= answer.status < 300
            or not word
        ):
            return _trouble(answer)
        if word == "completed":
            if not (document.get("error") or document.get("error_type")):
                return Further(word)
            return _failed(answer, document)
        if word in _CANCELLED:
            return _failed(answer, document, cancelled=True)
        return Running(word, known=word in _RUNNING)

    def result(self, account: Account, named: Named) -> Call | None:
        return _about("GET", account, named, "result", "")

    def read_result(self, answer: Answer | NoAnswer) -> Verdict | PollTrouble:
        """Only an answer that is the model's own, or tells what became of the request, is a verdict: a gateway's trouble
        with this read says nothing of the work."""
        document = parse(answer.body)
        if isinstance(answer, NoAnswer) or not isinstance(document, dict):
            return _trouble(answer)
        if 200 <= answer.status < 300:
            files = _files(document)
            text = words(document.get("output")) or words(document.get("text"))
            if not files and not text and (document.get("detail") or document.get("error")):
                return _failed(answer, document)
            return Verdict(
                "completed", files=files, text=text, currency=self.currency, status="completed"
            )
        if _told_of_the_work(answer, document):
            return _failed(answer, document)
        return _trouble(answer)

    def cancel(self, account: Account, named: Named) -> Call | None:
        """Takes it out of the queue; a request that runs is only asked to stop."""
        return _about("PUT", account, named, "cancel", "/cancel")

    # --- webhooks -----------------------------------------------------------------------------------------------------

    def webhook_keys(self, account: Account) -> Call:
        """https://fal.ai/docs/model-endpoints/webhooks; another address than fal's own has its keys beside its queue."""
        own = account.base_url == self.default_base_url
        return Call("GET", f"{_KEYS_AT if own else account.base_url}/.well-known/jwks.json")

    def read_webhook(self, body: bytes) -> str | None:
        """`request_id` is the queue's; `gateway_request_id` beside it may be that of one of its own tries."""
        return _request_id(parse(body))


# --- addresses --------------------------------------------------------------------------------------------------------


def _parts(model: str) -> list[str]:
    """The quoted parts of `owner/app[/path]`. ValueError for what would lead elsewhere."""
    parts = [part.strip() for part in model.strip().strip("/").split("/")]
    if len(parts) < 2 or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{model!r} is no model of fal's, such as fal-ai/flux/schnell")
    return [quote(part, safe=":@+=,~") for part in parts]


def _edits(model: str) -> bool:
    """Endpoints that edit take a list, even of one; the others one picture."""
    return "edit" in model.lower().split("/")


def _about(method: str, account: Account, named: Named, link: str, tail: str) -> Call | None:
    """A call about a request: to the address that came with the acceptance, where that is on the account's own server and
    about this request; else to the one that such addresses have. None where neither is known."""
    asked = quote(named.provider_id, safe="")
    told = named.links.get(link, "")
    if told.startswith(f"{account.base_url}/") and f"/{asked}" in told:
        return Call(method, told)
    try:
        parts = _parts(named.model)
    except ValueError:
        return None
    app = parts[: 3 if parts[0] in _NAMESPACES else 2]
    return Call(method, f"{account.base_url}/{'/'.join(app)}/requests/{asked}{tail}")


# --- reading ----------------------------------------------------------------------------------------------------------


def _cut(answer: NoAnswer) -> Accepted | Refusal:
    """What had arrived of a good answer still names the request, in the body or, before any of it came, in a header."""
    if answer.sent and answer.status is not None and 200 <= answer.status < 300:
        found = _ID.search(answer.body[:_LOOK_BYTES].decode("utf-8", "replace"))
        provider_id = found[1] if found else one_id(answer.headers.get("x-fal-request-id"))
        if provider_id is not None:
            return Accepted(provider_id)
    return classify(answer, rules=RULES)


def _request_id(document: Any) -> str | None:
    return one_id(document.get("request_id")) if isinstance(document, dict) else None


def _links(document: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: told
        for name, key in _LINKS.items()
        if isinstance(told := document.get(key), str)
        and told.isprintable()
        and len(told) <= _LONGEST_LINK
    }


def _word(document: Any) -> str:
    status = document.get("status") if isinstance(document, dict) else None
    return sanitise(status.strip().lower(), limit=40) if isinstance(status, str) else ""


def _refusal(answer: Answer, *, submit: bool = True) -> Refusal:
    """A refusal in fal's words. The type of a request error also comes in a header, alone where the body tells none."""
    error_type = answer.headers.get("x-fal-error-type", "").strip()
    document = parse(answer.body)
    if error_type and isinstance(document, dict) and not document.get("error_type"):
        body = json.dumps({**document, "error_type": error_type}, default=str).encode()
        answer = replace(answer, body=body)
    refusal = classify(answer, submit=submit, rules=RULES)
    if answer.status == 504 and answer.headers.get("x-fal-request-timeout-type") == "user":
        return replace(refusal, failure=FailureClass.DOWN, charge=Charge.POSSIBLE)
    return refusal


def _trouble(answer: Answer | NoAnswer) -> PollTrouble:
    if isinstance(answer, NoAnswer):
        return PollTrouble(answer.reason, answer.status)
    refusal = _refusal(answer, submit=False)
    document = parse(answer.body)
    return PollTrouble(
        refusal.reason,
        answer.status,
        missing=answer.status == 404 and isinstance(document, dict) and "detail" in document,
        wait_s=refusal.wait_s,
        failure=refusal.failure,
    )


def _told_of_the_work(answer: Answer, document: Mapping[str, Any]) -> bool:
    """Whether a result that is an error tells of the request, rather than of this read of it.

    A model's errors are a list of objects, or come with X-Fal-Retryable; a request's have a type of its own list.
    """
    if answer.status in (401, 403, 404, 408, 429):
        return False
    if _types(answer, document) & _OF_THE_WORK:
        return True
    if _listed(document):
        return True
    told = isinstance(document.get("detail"), str) and "x-fal-retryable" in answer.headers
    return told or answer.status == 422


def _listed(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The errors of a model, as it lists them."""
    detail = document.get("detail")
    listed = detail if isinstance(detail, list) else []
    return [one for one in listed if isinstance(one, dict) and ("msg" in one or "type" in one)]


def _types(answer: Answer, document: Mapping[str, Any]) -> frozenset[str]:
    """The machine words of an error, of whichever of the two forms."""
    listed = (one.get("type") for one in _listed(document))
    told = (document.get("error_type"), answer.headers.get("x-fal-error-type"), *listed)
    return frozenset(one.strip().lower() for one in told if isinstance(one, str) and one.strip())


def _failed(answer: Answer, document: Mapping[str, Any], *, cancelled: bool = False) -> Verdict:
    """The end of a request that made nothing. Free only where fal names errors that it never charges for, or where the
    request never left the queue."""
    refusal = _refusal(answer, submit=False)
    types = _types(answer, document)
    cancelled = cancelled or "client_cancelled" in types
    code = next(iter(sorted(types)), "")
    if cancelled:
        free = isinstance(document.get("queue_position"), int)
    elif answer.status >= 500:
        free = bool(types) and answer.headers.get("x-fal-request-timeout-type") != "user"
    else:  # a 200 that tells of another status only by the error's type; a 4xx
        free = bool(types) and types <= _NEVER_CHARGED and answer.status < 300
    return Verdict(
        "cancelled" if cancelled else "failed",
        _request_id(document),
        currency=Fal.currency,
        reason=_reason(document) or refusal.reason,
        error_code=sanitise(redact_text(code), limit=80),
        failure=refusal.failure,
        status="cancelled" if cancelled else "failed",
        free=free,
    )


def _reason(document: Mapping[str, Any]) -> str:
    """A sentence for people: of `error`, or of `detail` in either of its forms."""
    listed = "; ".join(words(one.get("msg"), limit=300) for one in _listed(document)[:5])
    told = error_of(document)[0] or listed or words(document.get("detail"), limit=300)
    return sanitise(redact_text(told), limit=300)


# What holds files in the results of fal's many models.
_NAMES = ("images", "image", "video", "videos", "audio", "url", "image_url", "video_url", "file", "files", "data", "output", "outputs")  # fmt: skip


def _files(document: Mapping[str, Any]) -> tuple[FileRef, ...]:
    return tuple(dict.fromkeys(_walk(document, depth=0)))


def _walk(value: Any, *, depth: int) -> Iterator[FileRef]:
    """{"images": [{"url"}]}, {"image": {"url"}}, {"video": {"url"}}, {"images": ["…"]}, with data URIs for addresses."""
    if depth > 5:
        return
    if isinstance(value, str):
        if value.lstrip()[:5].lower() in ("https", "http:", "data:") or value.startswith("//"):
            file = file_in(value, inline=False)
            if file is not None:
                yield file
    elif isinstance(value, list):
        for inside in value[:100]:
            yield from _walk(inside, depth=depth + 1)
    elif isinstance(value, dict):
        for name in _NAMES:
            if name in value:
                yield from _walk(value[name], depth=depth + 1)
