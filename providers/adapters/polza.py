"""Polza.ai, media API: asynchronous, a task id at once, the picture by polling.

https://polza.ai/docs/api-reference/media/create. Quirks: 200 or 201 on submit; `data` comes in five shapes; costs are
numbers, strings or missing, always roubles; a verdict may come with the first answer; `user` carries our correlation id
(whether the history shows it is measured, not assumed); there is no idempotency key and no way to cancel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from providers.adapters.reading import (
    LONGEST_TEXT,
    data_uri,
    error_of,
    file_in,
    good,
    money,
    one_id,
    parse,
)
from providers.classify import Meaning, Rules, classify
from providers.contract import (
    Accepted,
    Account,
    Adapter,
    Answer,
    Balance,
    Call,
    Charge,
    FailureClass,
    FileRef,
    HistoryItem,
    HistoryPage,
    Named,
    NoAnswer,
    Photo,
    PollTrouble,
    Receipt,
    Refusal,
    Request,
    Running,
    Verdict,
    Webhooks,
)
from providers.redaction import sanitise

PAGE_SIZE = 100
_RUNNING = frozenset({"pending", "processing", "queued", "running"})
_OUTCOMES = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
}
# An id in a body that was cut in the middle, or that is not quite JSON.
_ID = re.compile(r'"id"\s*:\s*"((?:aig|gen)_[A-Za-z0-9_-]{1,190})"')
_INLINE = frozenset({"b64_json", "base64"})

RULES = Rules(
    sure={
        "insufficient_balance": Meaning(FailureClass.QUOTA_EXHAUSTED, free=True),
        "too_many_requests": Meaning(FailureClass.RATE_LIMITED, free=True),
        "unauthorized": Meaning(FailureClass.UNAUTHORIZED, free=True),
        "api_key_revoked": Meaning(FailureClass.UNAUTHORIZED, free=True),
        "payload_too_large": Meaning(FailureClass.REJECTED, free=True),
        "request_timeout": Meaning(FailureClass.DOWN),
    },
    plain={
        "bad_request": Meaning(FailureClass.REJECTED, free=True),
        "forbidden": Meaning(
            FailureClass.REJECTED, free=True
        ),  # usually moderation of this one request
        "not_found": Meaning(FailureClass.REJECTED, free=True, target_stops=True),
        "conflict": Meaning(FailureClass.REJECTED),
        "bad_gateway": Meaning(FailureClass.DOWN),
        "service_unavailable": Meaning(FailureClass.DOWN),
        "internal_error": Meaning(FailureClass.DOWN),
    },
)
# "No provider serves this": under 400 the request names a wrong model or parameter, under 5xx Polza's upstreams are away
# and one of them may have begun. The code decides; the sentence beside it is the same in both.
_NO_PROVIDERS = "noprovidersformodel"
_NOT_THE_MODEL = re.compile(r"parameter\W+(?!model\b)\w", re.IGNORECASE)


def _rules(answer: Answer | NoAnswer) -> Rules:
    if isinstance(answer, NoAnswer):
        return RULES
    if not 400 <= answer.status < 500:
        meaning = Meaning(FailureClass.DOWN)
    else:
        one_job_only = _NOT_THE_MODEL.search(answer.body[:65_536].decode("utf-8", "replace"))
        meaning = Meaning(FailureClass.REJECTED, free=True, target_stops=one_job_only is None)
    return Rules(sure={**RULES.sure, _NO_PROVIDERS: meaning}, plain=RULES.plain)


class Polza(Adapter):
    """Adapter for Polza.ai; see `contract.Adapter` for what each method promises."""

    name = "polza"
    currency = "RUB"
    asynchronous = True
    default_base_url = "https://polza.ai/api/v1"
    default_model = "google/gemini-3.1-flash-image-preview"
    default_price = Decimal(8)
    key_setting = "POLZA_API_KEY"
    sandbox_path = "/api/v1"
    sandbox_key = "pza_sandbox_demo"
    retention_s = 7 * 86_400.0
    missing_grace_s = 3600.0
    webhooks = Webhooks.UNSIGNED  # `callBackUrl`, of which the documents tell nothing but the name

    def authorisation(self, account: Account, token: str = "") -> Mapping[str, str]:
        return {"authorization": f"Bearer {account.key}"}

    # --- submit -------------------------------------------------------------------------------------------------------

    def submit(self, account: Account, request: Request) -> Call:
        """Reads the photos from disk: call it in a thread where they are large. OSError if one is gone."""
        given: dict[str, Any] = {**request.params, "prompt": request.prompt}
        if request.photos:
            given["images"] = [_inline(photo) for photo in request.photos]
        if request.webhook_url:
            given["callBackUrl"] = request.webhook_url
        body: dict[str, Any] = {
            "model": request.model,
            "async": True,
            "user": str(request.correlation_id),
            "input": given,
        }
        if request.max_price is not None:
            ceiling = float(request.max_price)
            body["provider"] = {"max_price": {"image": ceiling, "request": ceiling}}
        return Call("POST", f"{account.base_url}/media", json=body)

    def read_submit(self, answer: Answer | NoAnswer) -> Accepted | Verdict | Refusal:
        if isinstance(answer, NoAnswer):
            found = _ID.search(answer.body.decode("utf-8", "replace")) if answer.sent else None
            if found and (answer.status is None or 200 <= answer.status < 300):
                return Accepted(found[1])
            return classify(answer, rules=_rules(answer))
        document = parse(answer.body)
        if 200 <= answer.status < 300:
            provider_id = _task_id(document)
            if provider_id is None and not isinstance(document, dict):
                found = _ID.search(answer.body[:65_536].decode("utf-8", "replace"))
                provider_id = found[1] if found else None
            verdict = _verdict(document, answer, provider_id)
            if verdict is not None:
                return verdict
            if provider_id is not None:
                return Accepted(provider_id, _word(document))
            return _bare_refusal(answer)
        if (
            isinstance(document, dict)
            and document.get("object") == "media.generation"
            and (provider_id := _task_id(document)) is not None
        ):
            # Named although it stumbled, or limited by a gateway on its way back: polling tells.
            return Accepted(provider_id, _word(document))
        return classify(answer, rules=_rules(answer))

    # --- poll ---------------------------------------------------------------------------------------------------------

    def poll(self, account: Account, named: Named) -> Call:
        return Call("GET", f"{account.base_url}/media/{quote(named.provider_id, safe='')}")

    def read_poll(self, answer: Answer | NoAnswer) -> Verdict | Running | PollTrouble:
        if isinstance(answer, NoAnswer):
            return PollTrouble(answer.reason, answer.status)
        document = parse(answer.body)
        if 200 <= answer.status < 300 and isinstance(document, dict):
            verdict = _verdict(document, answer, _task_id(document))
            if verdict is not None:
                return verdict
            word = _word(document)
            if word:
                return Running(word, known=word in _RUNNING)
        refusal = classify(answer, submit=False, rules=_rules(answer))
        own_words = isinstance(document, dict) and ("error" in document or "message" in document)
        return PollTrouble(
            refusal.reason,
            answer.status,
            missing=answer.status == 404 and own_words,
            wait_s=refusal.wait_s,
            failure=refusal.failure,
        )

    # --- history, receipt, balance ------------------------------------------------------------------------------------

    def history(self, account: Account, *, since: datetime, until: datetime, page: int) -> Call:
        """All generations of the key in the window, of every type and status: absence must not hide behind a filter."""
        return Call(
            "GET",
            f"{account.base_url}/history/generations",
            params={
                "page": str(page),
                "limit": str(PAGE_SIZE),
                "dateFrom": _iso(since),
                "dateTo": _iso(until),
                "sortBy": "createdAt",
                "sortOrder": "desc",
            },
        )

    def read_history(self, answer: Answer) -> HistoryPage:
        document = good(answer)
        items, meta = document.get("items"), document.get("meta")
        if not isinstance(items, list):
            raise ValueError("the history answer has no items")  # noqa: TRY004 - the contract's error
        meta = meta if isinstance(meta, dict) else {}
        page = _count(meta.get("page")) or 1
        pages = _count(meta.get("totalPages"))
        if pages is None:
            total = _count(meta.get("total"))
            limit = _count(meta.get("limit")) or PAGE_SIZE
            # Without any total a full page means that there may be another one.
            pages = -(-total // limit) if total is not None else page + (len(items) >= limit)
        return HistoryPage(tuple(_item(item) for item in items), page, max(pages, 1))

    def receipt(self, account: Account, named: Named) -> Call:
        path = f"history/generations/{quote(named.provider_id, safe='')}"
        return Call("GET", f"{account.base_url}/{path}")

    def read_receipt(self, answer: Answer) -> Receipt:
        """Final only with a final status and a cost: a price beside `pending` proves nothing, nor does silence."""
        document = good(answer)
        status = _word(document)
        if not status:
            raise ValueError("the receipt has no status")
        cost = money(document.get("clientCost"))
        if cost is None:
            cost = money(document.get("cost"))
        return Receipt(final=status in _OUTCOMES and cost is not None, status=status, cost=cost)

    def balance(self, account: Account) -> Call:
        return Call("GET", f"{account.base_url}/balance")

    def read_balance(self, answer: Answer) -> Balance:
        amount = money(good(answer).get("amount"), negative=True)
        if amount is None:
            raise ValueError("the balance answer has no amount")
        return Balance(amount, self.currency)


def _verdict(document: Any, answer: Answer, provider_id: str | None) -> Verdict | None:
    """The last word in a 2xx answer, None if it has none. Files without a status word are a result all the same."""
    if not isinstance(document, dict):
        return None
    word = _word(document)
    outcome = _OUTCOMES.get(word)
    if outcome is None and (word or not (files := _files(document))):
        return None
    usage = document.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    costs = (
        usage.get("cost_rub"),
        usage.get("cost"),
        document.get("clientCost"),
        document.get("cost"),
    )
    cost = next((paid for told in costs if (paid := money(told)) is not None), None)
    if outcome in ("failed", "cancelled"):
        refusal = classify(answer, rules=RULES)
        reason, code = error_of(document)
        return Verdict(
            outcome,
            provider_id,
            cost=cost,
            currency=Polza.currency,
            reason=reason or refusal.reason,
            error_code=code,
            failure=refusal.failure,
            status=word,
        )
    files = _files(document)
    content = document.get("content")
    return Verdict(
        "completed",
        provider_id,
        files=files,
        text=sanitise(content, limit=LONGEST_TEXT) if isinstance(content, str) else "",
        cost=cost,
        currency=Polza.currency,
        status=word,
    )


def _bare_refusal(answer: Answer) -> Refusal:
    """A 2xx without an id: an error envelope counts, anything else says nothing about whether work has begun."""
    refusal = classify(answer, rules=RULES)
    if refusal.failure is FailureClass.UNKNOWN:
        return Refusal(
            FailureClass.UNKNOWN,
            Charge.POSSIBLE,
            f"HTTP {answer.status} without a task id",
            status=answer.status,
        )
    return refusal


def _word(document: Any) -> str:
    status = document.get("status") if isinstance(document, dict) else None
    return sanitise(status.strip().lower(), limit=40) if isinstance(status, str) else ""


def _task_id(document: Any) -> str | None:
    """The task's id, None if the document names none. Opaque: a string, or a number in an old shape."""
    if not isinstance(document, dict):
        return None
    inside = document.get("data")
    for place in (document, inside if isinstance(inside, dict) else {}):
        found = one_id(place.get("id"))
        if found is not None:
            return found
    return None


def _files(document: Mapping[str, Any]) -> tuple[FileRef, ...]:
    found = dict.fromkeys(_walk_files(document.get("data"), depth=0))
    return tuple(found)


def _walk_files(value: Any, *, depth: int, inline: bool = False) -> Iterator[FileRef]:
    """Every shape `data` was seen in: {"url"}, [{"url"}], [{"b64_json"}], ["https://…"], {"images": […]}."""
    if depth > 4:
        return
    if isinstance(value, str):
        file = file_in(value, inline=inline)
        if file is not None:
            yield file
    elif isinstance(value, list):
        for inside in value[:100]:
            yield from _walk_files(inside, depth=depth + 1, inline=inline)
    elif isinstance(value, dict):
        names = (
            "url",
            "b64_json",
            "base64",
            "image_url",
            "images",
            "image",
            "data",
            "urls",
            "videos",
        )
        for name in names:
            if name in value:
                yield from _walk_files(value[name], depth=depth + 1, inline=name in _INLINE)


def _inline(photo: Photo) -> dict[str, str]:
    return {"type": "base64", "data": data_uri(photo)}


def _count(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _item(item: Any) -> HistoryItem:
    """An item without an id can't be told from a lost send, so it makes the whole page unreadable."""
    provider_id = _task_id(item)
    if provider_id is None:
        raise ValueError("a history item has no id")
    model = item.get("model")
    cost = money(item.get("cost"))
    return HistoryItem(
        provider_id=provider_id,
        created_at=_moment(item.get("createdAt", item.get("created"))),
        model=sanitise(model, limit=200) if isinstance(model, str) else "",
        status=_word(item),
        correlation_id=_echo(item),
        cost=cost if cost is not None else money(item.get("clientCost")),
    )


def _echo(item: Mapping[str, Any]) -> str:
    for name in ("user", "userId", "externalUser", "external_user", "endUser", "clientUser"):
        value = item.get(name)
        if isinstance(value, str) and value.strip():
            return sanitise(value.strip(), limit=200)
    return ""


def _moment(value: Any) -> datetime | None:
    """An ISO time or unix seconds as aware UTC; a time without a zone is UTC; None if it is neither."""
    try:
        if isinstance(value, str):
            parsed = datetime.fromisoformat(value.strip())
            return parsed.replace(tzinfo=parsed.tzinfo or UTC).astimezone(UTC)
        if isinstance(value, int | Decimal) and not isinstance(value, bool):
            return datetime.fromtimestamp(float(value), UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")[:-4] + "Z"
