"""OpenRouter: synchronous, pictures and texts through chat; the answer to the paid call is the result.

https://openrouter.ai/docs/api-reference/overview and …/errors. Quirks: an error before the model starts has its own HTTP
status, one after it comes under HTTP 200; a 402 means three things; 403 is moderation or the key's own cap; `id` ("gen-…")
opens the receipt, where the cost stands also for an answer that never arrived whole; `user` carries our correlation id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from providers.adapters.reading import (
    data_uri,
    error_of,
    file_in,
    good,
    money,
    one_id,
    parse,
    within,
    words,
)
from providers.classify import Meaning, Rules, classify
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Balance,
    Call,
    Charge,
    FailureClass,
    FileRef,
    Kind,
    Named,
    NoAnswer,
    NotToldError,
    Receipt,
    Refusal,
    Request,
    Scope,
    Verdict,
)

# An id in a body that was cut in the middle: it stands at the beginning.
_ID = re.compile(r'"id"\s*:\s*"(gen-[A-Za-z0-9_-]{1,190})"')
_LOOK_BYTES = 65_536
_WRONG_MODEL = re.compile(r"not a valid model", re.IGNORECASE)
# What our own words never override, and what the chat takes in a place of its own.
_OWN = frozenset({"model", "messages", "user", "stream", "prompt"})
_OF_PICTURES = frozenset({"aspect_ratio", "image_size"})

RULES = Rules(
    sure={
        # metadata.limit_source
        "openrouter_credits": Meaning(FailureClass.QUOTA_EXHAUSTED, free=True),
        "openrouter_free_tier_daily": Meaning(FailureClass.QUOTA_EXHAUSTED, free=True),
        "openrouter_in_flight_budget": Meaning(FailureClass.RATE_LIMITED, free=True),
        "upstream_provider_shared_pool": Meaning(
            FailureClass.RATE_LIMITED, free=True, scope=Scope.MODEL
        ),
    },
    plain={
        # metadata.error_type
        "rate_limit_exceeded": Meaning(FailureClass.RATE_LIMITED, free=True),
        "payment_required": Meaning(FailureClass.QUOTA_EXHAUSTED, free=True),
        "provider_overloaded": Meaning(FailureClass.DOWN, free=True, scope=Scope.MODEL),
        "provider_unavailable": Meaning(FailureClass.DOWN, scope=Scope.MODEL),
        "content_policy_violation": Meaning(FailureClass.REJECTED, free=True),
        "refusal": Meaning(FailureClass.REJECTED),
        "context_length_exceeded": Meaning(FailureClass.REJECTED, free=True),
        "timeout": Meaning(FailureClass.DOWN),
        "server": Meaning(FailureClass.DOWN),
    },
)
# Refusals by what the account has left; no model has begun, under whatever status they come.
_BEFORE_ANY_START = frozenset(
    {FailureClass.QUOTA_EXHAUSTED, FailureClass.RATE_LIMITED, FailureClass.UNAUTHORIZED}
)


class OpenRouter(Adapter):
    """Adapter for OpenRouter; see `contract.Adapter` for what each method promises."""

    name = "openrouter"
    currency = "USD"
    asynchronous = False
    default_base_url = "https://openrouter.ai/api/v1"
    default_model = "google/gemini-2.5-flash-image"
    default_price = Decimal("0.04")
    key_setting = "OPENROUTER_API_KEY"
    sandbox_path = "/openrouter/api/v1"
    sandbox_key = "sk-or-sandbox-demo"
    retention_s = 86_400.0
    missing_grace_s = 3600.0

    def authorisation(self, account: Account, token: str = "") -> Mapping[str, str]:
        return {"authorization": f"Bearer {account.key}"}

    def submit(self, account: Account, request: Request) -> Call:
        """Reads the photos from disk. OSError if one is gone. No ceiling is sent: theirs is by the token, not by the job."""
        content: Any = request.prompt
        if request.photos:
            content = [
                {"type": "text", "text": request.prompt},
                *(
                    {"type": "image_url", "image_url": {"url": data_uri(photo)}}
                    for photo in request.photos
                ),
            ]
        given = {name: value for name, value in request.params.items() if name not in _OWN}
        body: dict[str, Any] = {}
        if request.kind is Kind.IMAGE:
            pictures = {name: given.pop(name) for name in _OF_PICTURES & given.keys()}
            body["modalities"] = ["image", "text"]
            if pictures:
                body["image_config"] = pictures
        body |= given | {
            "model": request.model,
            "messages": [{"role": "user", "content": content}],
            "user": str(request.correlation_id),
            "usage": {"include": True},
        }
        return Call("POST", f"{account.base_url}/chat/completions", json=body)

    def read_submit(self, answer: Answer | NoAnswer) -> Verdict | Refusal:
        if isinstance(answer, NoAnswer):
            return _cut(answer)
        document = parse(answer.body)
        if not 200 <= answer.status < 300:
            refusal = classify(answer, rules=RULES)
            if answer.status == 400 and _WRONG_MODEL.search(refusal.reason):
                return replace(refusal, target_stops=True)
            return refusal
        if isinstance(document, dict):
            verdict = _verdict(document, answer)
            if verdict is not None:
                return verdict
        return _without_id(answer)

    # --- receipt, balance ---------------------------------------------------------------------------------------------

    def receipt(self, account: Account, named: Named) -> Call:
        return Call("GET", f"{account.base_url}/generation", params={"id": named.provider_id})

    def read_receipt(self, answer: Answer) -> Receipt:
        """Final once it tells how the generation ended beside what it cost: while it runs, a 0 proves nothing."""
        told = within(good(answer), "data")
        if one_id(told.get("id")) is None:
            raise ValueError("the receipt names no generation")
        cost = money(told.get("total_cost"))
        status = words(told.get("finish_reason"), limit=40)
        if told.get("cancelled") is True:
            status = "cancelled"
        return Receipt(final=bool(status) and cost is not None, status=status, cost=cost)

    def balance(self, account: Account) -> Call:
        return Call("GET", f"{account.base_url}/credits")

    def read_balance(self, answer: Answer) -> Balance:
        if answer.status == 403 and parse(answer.body) is not None:
            raise NotToldError("this key may not read the credits")
        told = within(good(answer), "data")
        bought = money(told.get("total_credits"))
        used = money(told.get("total_usage"))
        if bought is None or used is None:
            raise ValueError("the answer tells no credits")
        return Balance(bought - used, self.currency)


def _verdict(document: dict[str, Any], answer: Answer) -> Verdict | None:
    """What a 2xx says; None where it names neither a generation nor anything that one made."""
    provider_id = one_id(document.get("id"))
    choices = document.get("choices")
    choice = within(choices[0]) if isinstance(choices, list) and choices else {}
    message = within(choice, "message")
    files = tuple(dict.fromkeys(_files(message)))
    text = _text(message.get("content"))
    status = words(choice.get("finish_reason"), limit=40)
    common = Verdict(
        "completed", provider_id, cost=money(within(document, "usage").get("cost")),
        currency=OpenRouter.currency, status=status,
    )  # fmt: skip
    refused = words(message.get("refusal")) or ("" if status != "content_filter" else status)
    broken = bool(document.get("error") or choice.get("error")) or status == "error"
    if files or (text and not refused and not broken):
        return replace(common, files=files, text=text)
    if provider_id is not None:
        # Begun, and nothing came of it: the receipt tells what it cost.
        told = classify(answer, rules=RULES)
        reason, code = error_of(document if document.get("error") else choice)
        failure = told.failure if told.failure is not FailureClass.UNKNOWN else FailureClass.DOWN
        if refused:
            reason, code, failure = refused, "refusal", FailureClass.REJECTED
        return replace(
            common, outcome="failed", reason=(reason or "an answer without content")[:300],
            error_code=code, failure=failure,
        )  # fmt: skip
    return common if choice else None


def _cut(answer: NoAnswer) -> Verdict | Refusal:
    """What had arrived still counts: all of it, or at least the id by which the receipt is asked."""
    if answer.sent and (answer.status is None or 200 <= answer.status < 300):
        document = parse(answer.body)
        if isinstance(document, dict):
            whole = Answer(200, answer.headers, answer.body)
            verdict = _verdict(document, whole)
            if verdict is not None:
                return verdict
        found = _ID.search(answer.body[:_LOOK_BYTES].decode("utf-8", "replace"))
        if found:
            return Verdict(
                "failed", found[1], currency=OpenRouter.currency, reason=answer.reason[:300],
                error_code="cut", failure=FailureClass.UNKNOWN, status="cut",
            )  # fmt: skip
    return classify(answer, rules=RULES)


def _without_id(answer: Answer) -> Refusal:
    """An error under 200 comes after the model's start, so it may have cost something, unless no model is the reason."""
    refusal = classify(answer, rules=RULES)
    free = refusal.charge is Charge.NONE and refusal.failure in _BEFORE_ANY_START
    return replace(refusal, charge=Charge.NONE if free else Charge.POSSIBLE, target_stops=False)


def _text(content: Any) -> str:
    if isinstance(content, list):
        parts = [part.get("text") for part in content[:100] if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    return words(content).strip()


def _files(message: Mapping[str, Any]) -> Iterator[FileRef]:
    """`images` beside the content, or parts of a content that is a list: {"image_url": {"url"}} or {"image_url": "…"}."""
    for place in (message.get("images"), message.get("content")):
        for part in place[:100] if isinstance(place, list) else ():
            told = part.get("image_url") if isinstance(part, dict) else part
            url = told.get("url") if isinstance(told, dict) else told
            found = file_in(url, inline=False) if isinstance(url, str) else None
            if found is not None:
                yield found
