"""OpenRouter's chat contract (https://openrouter.ai/docs/api-reference): the answer to the POST is the result; receipt, credits and key."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from . import files
from .common import LIMITS, NotUnderstoodError, Speaker, a_prompt, an_object, told_at_the_end
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Task, fingerprint
from .polza_answers import retry_after
from .reactions import PICTURE_MARK, Reaction, Request, json_reaction
from .submission import Limit, Submission

# name -> status, message, metadata
_ERRORS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "bad_request": (400, "Invalid value for parameter `seed`", {}),
    "bad_model": (400, "The model asked for is not a valid model ID", {}),
    "too_dear": (400, "No provider matches provider.max_price", {}),
    "unauthorized": (401, "No auth credentials found", {}),
    "key_revoked": (401, "User not found.", {}),
    "no_balance": (402, "Insufficient credits. Add more using https://openrouter.ai/settings/credits", {"limit_source": "openrouter_credits"}),
    "in_flight": (402, "Your credits are held by requests in flight", {"limit_source": "openrouter_in_flight_budget", "error_type": "payment_required"}),
    "key_limit": (403, "Key limit exceeded (weekly limit). Manage it using https://openrouter.ai/settings/keys", {}),
    "key_limit_400": (400, "Key limit exceeded (weekly limit)", {}),
    "tariff": (402, "This model requires a paid plan", {"error_type": "payment_required"}),
    "moderation": (403, "Your chosen model requires moderation and your input was flagged", {"reasons": ["violence"], "provider_name": "sandbox"}),
    "not_found": (404, "No endpoints found for the model", {}),
    "own_408": (408, "Request timed out", {"error_type": "timeout"}),
    "conflict": (409, "Conflict", {}),
    "too_large": (413, "Request entity too large", {}),
    "unprocessable": (422, "Unprocessable request", {}),
    "rate_limited": (429, "Rate limit exceeded", {"error_type": "rate_limit_exceeded"}),
    "internal": (500, "Internal Server Error", {"error_type": "server"}),
    "own_502": (502, "Provider returned error", {"error_type": "provider_unavailable", "provider_name": "sandbox"}),
    "unavailable": (503, "Service temporarily unavailable", {}),
    "no_providers": (503, "Service temporarily unavailable", {"error_type": "provider_unavailable"}),
    "overloaded": (503, "There is no available model provider that meets your routing requirements", {"error_type": "provider_overloaded"}),
    "own_504": (524, "Request timed out. Please try again later.", {"error_type": "timeout"}),
}  # fmt: skip
_AT_STATUS = {400: "bad_request", 401: "unauthorized", 403: "moderation", 404: "not_found", 500: "internal"}  # fmt: skip
# Fates of which no receipt tells.
_NO_RECEIPT = frozenset({"vanished", "lost", "failed_unlisted", "failed_pending"})


class OpenRouter(Speaker):
    """`/openrouter/api/v1/...` of the sandbox. Any `Bearer sk-or-...` is an account of its own."""

    name = "openrouter"
    prefix = "/openrouter/"
    limits = {**LIMITS, Limit.CONCURRENCY: "in_flight"}

    def key_of(self, request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return fingerprint(key) if scheme.lower() == "bearer" and key.startswith("sk-or-") else ""

    def new_id(self) -> str:
        return f"gen-{self.world.rng.randrange(10**17, 10**18)}"

    def error(self, name: str, now: float, wait_s: float = 0.0) -> Reaction:
        match name:
            case "ok_empty":
                return Reaction(headers=(("content-type", "application/json"),))
            case "ok_garbage":
                return Reaction(
                    headers=(("content-type", "application/json"),), body=b'{"choices": [gen-'
                )
            case "ok_no_id":
                return json_reaction({"object": "chat.completion"})
            case "ok_error":
                status, message, metadata = _ERRORS["internal"]
                return json_reaction(_envelope(status, message, metadata))
        style = name.removeprefix("rate_limited").removeprefix("_")
        base = "rate_limited" if name.startswith("rate_limited") else name
        status, message, metadata = _ERRORS[base]
        headers = retry_after(style, wait_s, now)
        if style == "body":
            message = f"Rate limit exceeded. Please try again in {wait_s:g} seconds"
        if name == "in_flight":
            headers = (("retry-after", str(max(1, math.ceil(wait_s)))),)
        return json_reaction(_envelope(status, message, metadata), status, *headers)

    def error_at(self, status: int, now: float, wait_s: float) -> Reaction:
        name = "rate_limited_seconds" if status == 429 else _AT_STATUS.get(status, "unavailable")
        return self.error(name, now, wait_s)

    def complain(self, message: str) -> Reaction:
        return json_reaction(_envelope(400, message, {}), 400)

    # --- routing ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request, now: float) -> Reaction:
        key = self.key_of(request)
        path = request.path.removeprefix(self.prefix).removeprefix("api/v1/")
        if request.method == "POST" and path == "chat/completions":
            return self.submit(request, key, now)
        denied = self.denied(request, key, now)
        if denied is not None:
            return denied
        try:
            specs = asked_for(header=request.headers.get(HEADER, ""))
        except ValueError as wrong:
            return self.complain(str(wrong))
        if request.method == "GET" and path == "generation":
            return self._receipt(key, request.query.get("id", ""), specs, now)
        if request.method == "GET" and path in {"credits", "key"}:
            return self._money(key, path, specs, now)
        return self.error("not_found", now)

    # --- submit -------------------------------------------------------------------------------------------------------

    def read(self, request: Request, key: str) -> Submission:
        body = an_object(request.body, "The body must be a JSON object")
        model, messages = body.get("model"), body.get("messages")
        if not isinstance(model, str) or not model:
            raise NotUnderstoodError("`model` is missing")
        if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
            raise NotUnderstoodError("`messages` is missing")
        content = messages[-1].get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        told = [part.get("text") for part in parts if isinstance(part, dict) and "text" in part]
        prompt = a_prompt(told[0] if told else None, "`messages` hold no text")
        wants = body.get("modalities") or ["text"]
        if not isinstance(wants, list) or not isinstance(body.get("user", ""), str):
            raise NotUnderstoodError("`modalities` or `user` is malformed")
        config = body.get("image_config")
        return Submission(
            provider=self.name,
            key=key,
            model=model,
            correlation=body.get("user", ""),
            prompt=prompt,
            kind="image" if "image" in wants and not model.startswith("text/") else "text",
            params=config if isinstance(config, dict) else {},
            photos=len(parts) - len(told),
            specs=self.specs_of(request, prompt=prompt, model=model),
        )

    def accepted(self, task: Task, request: Request, now: float) -> Reaction:
        return told_at_the_end(task, now, lambda _: self._told(task, request), self.world.tick)

    def _told(self, task: Task, request: Request) -> Reaction:
        body: dict[str, Any] = {
            "id": task.id,
            "provider": "sandbox",
            "model": task.model,
            "object": "chat.completion",
            "created": int(task.created),
        }
        if task.outcome == "completed":
            choice = {"finish_reason": "stop", "index": 0, "message": _message(task, request)}
            reaction = json_reaction(body | {"choices": [choice]} | _usage(task))
            if PICTURE_MARK in reaction.body:
                return replace(reaction, picture=files.picture(task))
            return reaction
        message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
        if "failed_moderation" in task.fate:
            message["refusal"] = "I can't help with that picture."
            choice = {"finish_reason": "content_filter", "index": 0, "message": message}
            return json_reaction(body | {"choices": [choice]})
        name = "own_504" if "failed_timeout" in task.fate else "own_502"
        status, words, metadata = _ERRORS[name]
        error = _envelope(status, words, metadata)
        choice = {"finish_reason": "error", "index": 0, "message": message} | error
        return json_reaction(body | {"choices": [choice]})

    # --- receipt and money --------------------------------------------------------------------------------------------

    def _receipt(self, key: str, task_id: str, specs: tuple[Spec, ...], now: float) -> Reaction:
        world = self.world
        world.ledger.requests["receipts"] += 1
        task = world.ledger.tasks.get(task_id)
        if task is not None and task.key != key:
            task = None
        spec = world.pick(Stage.RECEIPT, (*specs, *(task.specs if task else ())), task_id)
        pending = spec is not None and spec.name == "receipt_pending"
        moment = now - world.settings.history_lag_s

        def good() -> Reaction:
            hidden = task is None or pending or bool(_NO_RECEIPT & task.fate.keys())
            if task is None or hidden or not task.ended_at(moment):
                return json_reaction(_envelope(404, f"Generation {task_id} not found", {}), 404)
            cost = world.ledger.standing(task.id, at=moment)
            status = task.status_at(moment)
            told = {
                "id": task.id,
                "total_cost": float(cost),
                "usage": float(cost),
                "created_at": datetime.fromtimestamp(task.created, UTC).isoformat(),
                "model": task.model,
                "provider_name": "sandbox",
                "generation_time": round((task.finish_at - task.created) * 1000),
                "finish_reason": "stop" if status == "completed" else "error",
                "cancelled": status == "cancelled",
                "external_user": task.correlation if world.settings.echo else None,
            }
            return json_reaction({"data": told})

        return self.troubled(None if pending else spec, good, now)

    def _money(self, key: str, path: str, specs: tuple[Spec, ...], now: float) -> Reaction:
        world = self.world
        world.ledger.requests["balance"] += 1

        def good() -> Reaction:
            spent, left, limit = world.ledger.spent(key), world.balance(key), world.settings.key_limit  # fmt: skip
            if path == "credits":
                bought = Decimal(1_000_000) if left is None else left + spent
                return json_reaction(
                    {"data": {"total_credits": float(bought), "total_usage": float(spent)}}
                )
            told = {
                "label": f"sandbox {key}",
                "limit": None if limit is None else float(limit),
                "limit_remaining": None if limit is None else float(limit - spent),
                "usage": float(spent),
                "is_free_tier": False,
            }
            return json_reaction({"data": told})

        return self.troubled(world.pick(Stage.BALANCE, specs, key), good, now)


def _envelope(status: int, message: str, metadata: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = {"code": status, "message": message}
    return {"error": error | ({"metadata": metadata} if metadata else {})}


def _message(task: Task, request: Request) -> dict[str, Any]:
    """What was made, in one of the shapes that were seen."""
    text = f"Here is the result: {task.prompt[:200]}"
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if task.kind == "text" or "content_only" in task.fate:
        return message
    link = {"type": "image_url", "image_url": {"url": files.url(task, request)}}
    inline = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{PICTURE_MARK.decode()}"},
    }
    shapes: dict[str, dict[str, Any]] = {
        "no_result": {"content": ""},
        "data_list": {"images": [link]},
        "data_strings": {"images": [link["image_url"]]},
        "data_two": {"images": [inline, link]},
        "data_b64": {"content": [{"type": "text", "text": text}, inline]},
    }
    shape = next((name for name in task.fate if name in shapes), "")
    return message | shapes.get(shape, {"content": "", "images": [inline]})


def _usage(task: Task) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 1290, "total_tokens": 1300}
    if "usage_missing" in task.fate:
        return {}
    if "cost_missing" in task.fate:
        return {"usage": usage}
    cost = task.price / 2 if "cost_wrong" in task.fate else task.price
    told: Any = str(cost) if "cost_string" in task.fate else float(cost)
    return {"usage": usage | {"cost": None if "cost_null" in task.fate else told}}
