"""Answers as the providers' own documents and clients show them, for the contract suite: how each is to be read.

Sources: polza.ai/docs/api-reference, fal.ai/docs (queue, errors, request errors), openrouter.ai/docs (image generation,
errors), developers.sber.ru/docs/ru/gigachat/api and the SDKs beside them. Ids and addresses are made up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from providers.contract import (
    Accepted,
    Answer,
    Balance,
    Charge,
    FailureClass,
    Further,
    HistoryPage,
    Receipt,
    Refusal,
    Running,
    Token,
    Verdict,
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@dataclass(frozen=True, slots=True)
class Shape:
    """`read` is the adapter's method, `means` the type that comes of it, `told` some of its attributes."""

    read: str
    body: Any
    means: type
    told: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def answer(self) -> Answer:
        return Answer(
            self.status, {"content-type": "application/json", **self.headers}, json.dumps(self.body).encode()
        )  # fmt: skip


def _refused(
    status: int, body: Any, failure: FailureClass, charge: Charge = Charge.NONE, *, headers: Mapping[str, str] | None = None, **told: Any
) -> Shape:  # fmt: skip
    return Shape("read_submit", body, Refusal, {"failure": failure, "charge": charge, **told}, status, headers or {})  # fmt: skip


_F, _POSSIBLE = FailureClass, Charge.POSSIBLE
_MEDIA = {"object": "media.generation", "created": 1703001244, "model": "google/veo3"}
_QUEUE = "https://queue.fal.run/fal-ai/flux/requests/r-1"


def _polza_error(code: str, message: str, **metadata: Any) -> dict[str, Any]:
    error = {"code": code, "message": message, "trace_id": "t", "details": {}, "metadata": metadata}
    return {"error": error, "trace_id": "t"}


def _router_error(code: int, message: str, **metadata: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "metadata": metadata}}


def _chat(message: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return {"choices": [choice], "created": 1703001244, "model": "m", **more}


SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "polza": (
        Shape("read_submit", {**_MEDIA, "id": "aig_1", "status": "pending"}, Accepted, {"provider_id": "aig_1"}, 201),
        Shape("read_poll", {**_MEDIA, "id": "aig_1", "status": "processing"}, Running, {"known": True}),
        Shape("read_poll", {**_MEDIA, "id": "aig_1", "status": "brewing"}, Running, {"known": False}),
        Shape(
            "read_poll",
            {**_MEDIA, "id": "aig_1", "status": "completed", "data": {"url": "https://s3.polza.ai/f/1.jpg"}, "usage": {"cost_rub": 5.0, "cost": 5.0}},
            Verdict, {"outcome": "completed", "cost": Decimal(5), "currency": "RUB"},
        ),
        Shape(
            "read_poll", {**_MEDIA, "id": "aig_1", "status": "failed", "error": {"code": "BAD_GATEWAY", "message": "Ошибка генерации"}},
            Verdict, {"outcome": "failed", "error_code": "BAD_GATEWAY", "free": False},
        ),
        Shape("read_balance", {"amount": "9.28591714"}, Balance, {"amount": Decimal("9.28591714"), "currency": "RUB"}),
        Shape("read_receipt", {"id": "aig_1", "status": "failed", "clientCost": "0.12"}, Receipt, {"final": True, "cost": Decimal("0.12")}),
        Shape("read_receipt", {"id": "aig_1", "status": "pending", "clientCost": "0.12"}, Receipt, {"final": False}),
        Shape(
            "read_history",
            {"items": [{"id": "aig_1", "createdAt": "2026-11-30T12:00:00Z", "model": "m", "status": "completed", "cost": "5"}], "meta": {"page": 1, "totalPages": 2}},
            HistoryPage, {"pages": 2},
        ),
        _refused(402, _polza_error("INSUFFICIENT_BALANCE", "Недостаточно средств"), _F.QUOTA_EXHAUSTED),
        _refused(400, _polza_error("INSUFFICIENT_BALANCE", "Исчерпан лимит расходов ключа на неделю"), _F.QUOTA_EXHAUSTED),
        _refused(400, _polza_error("BAD_REQUEST", "Недопустимое значение", reason="noProvidersForModel"), _F.REJECTED, target_stops=True),
        _refused(503, _polza_error("SERVICE_UNAVAILABLE", "Нет провайдеров", reason="noProvidersForModel"), _F.DOWN, _POSSIBLE),
        _refused(403, _polza_error("FORBIDDEN", "Запрос отклонён модерацией"), _F.REJECTED),
        _refused(401, _polza_error("UNAUTHORIZED", "Неверный ключ"), _F.UNAUTHORIZED),
        _refused(500, _polza_error("INTERNAL_ERROR", "Внутренняя ошибка"), _F.DOWN, _POSSIBLE),
        _refused(408, _polza_error("REQUEST_TIMEOUT", "Время вышло"), _F.DOWN, _POSSIBLE),
    ),
    "fal": (
        Shape(
            "read_submit",
            {"request_id": "r-1", "gateway_request_id": "g-1", "response_url": _QUEUE, "status_url": f"{_QUEUE}/status", "cancel_url": f"{_QUEUE}/cancel"},
            Accepted, {"provider_id": "r-1"},
        ),
        Shape("read_poll", {"status": "IN_QUEUE", "queue_position": 3}, Running, {"known": True}),
        Shape("read_poll", {"status": "IN_PROGRESS", "logs": []}, Running, {"known": True}),
        Shape("read_poll", {"status": "COMPLETED", "logs": [], "metrics": {"inference_time": 1.2}}, Further),
        Shape(
            "read_poll", {"status": "COMPLETED", "error": "Request timed out", "error_type": "request_timeout"},
            Verdict, {"outcome": "failed", "files": ()},
        ),
        Shape(
            "read_result", {"images": [{"url": "https://v3.fal.media/1.png", "width": 512, "height": 512, "content_type": "image/png"}], "seed": 7},
            Verdict, {"outcome": "completed", "cost": None, "currency": "USD"},
        ),
        Shape(
            "read_result", {"detail": [{"loc": ["body"], "msg": "flagged", "type": "content_policy_violation", "url": "u", "input": {}}]},
            Verdict, {"outcome": "failed", "free": False}, 422, {"x-fal-retryable": "false"},
        ),
        _refused(403, {"detail": "User is locked. Reason: Exhausted balance. Top up your balance."}, _F.QUOTA_EXHAUSTED),
        _refused(403, {"detail": "User is locked. Reason: Admin lock."}, _F.UNAUTHORIZED),
        _refused(503, {"detail": "No runner", "error_type": "runner_scheduling_failure"}, _F.DOWN, headers={"x-fal-error-type": "runner_scheduling_failure"}),
        _refused(504, {"detail": "Request timed out"}, _F.DOWN, _POSSIBLE, headers={"x-fal-error-type": "request_timeout"}),
        _refused(422, {"detail": [{"loc": ["body", "seed"], "msg": "not an int", "type": "int_parsing"}]}, _F.REJECTED),
    ),
    "openrouter": (
        Shape(
            "read_submit",
            _chat({"content": "", "images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]}, id="gen-1", usage={"cost": 0.0387}),
            Verdict, {"outcome": "completed", "provider_id": "gen-1", "cost": Decimal("0.0387"), "currency": "USD"},
        ),
        Shape("read_submit", _chat({"content": "Ready"}, id="gen-1"), Verdict, {"outcome": "completed", "text": "Ready"}),
        Shape("read_submit", {"id": "gen-1", **_router_error(502, "Provider returned error")}, Verdict, {"outcome": "failed", "provider_id": "gen-1"}),
        Shape("read_receipt", {"data": {"id": "gen-1", "total_cost": 0.04, "finish_reason": "stop", "cancelled": False}}, Receipt, {"final": True, "cost": Decimal("0.04")}),
        Shape("read_balance", {"data": {"total_credits": 10, "total_usage": 2.5}}, Balance, {"amount": Decimal("7.5"), "currency": "USD"}),
        _refused(402, _router_error(402, "Insufficient credits"), _F.QUOTA_EXHAUSTED),
        _refused(402, _router_error(402, "Too much in flight", limit_source="openrouter_in_flight_budget"), _F.RATE_LIMITED, headers={"retry-after": "7"}, wait_s=7.0),
        _refused(403, _router_error(403, "Key limit exceeded (weekly limit)"), _F.QUOTA_EXHAUSTED),
        _refused(403, _router_error(403, "Input flagged", reasons=["violence"], error_type="content_policy_violation"), _F.REJECTED),
        _refused(429, _router_error(429, "Rate limit exceeded", limit_source="upstream_provider_shared_pool"), _F.RATE_LIMITED),
        _refused(200, _router_error(502, "Provider returned error"), _F.DOWN, _POSSIBLE),
        _refused(200, _router_error(400, "Invalid seed"), _F.REJECTED, _POSSIBLE, target_stops=False),
        _refused(502, _router_error(502, "Provider returned error"), _F.DOWN, _POSSIBLE),
    ),
    "gigachat": (
        Shape(
            "read_submit", _chat({"content": 'Вот <img src="b0a1c2d3-1111" fuse="true"/> рисунок'}, usage={"total_tokens": 30}),
            Verdict, {"outcome": "completed", "cost": None, "provider_id": None},
        ),
        Shape("read_submit", _chat({"content": "Готово"}), Verdict, {"text": "Готово", "files": ()}),
        Shape("read_token", {"access_token": "tok", "expires_at": 4_102_444_800_000}, Token, {"value": "tok"}),
        Shape("read_token", {"tok": "tok", "exp": 4_102_444_800}, Token, {"value": "tok"}),
        _refused(402, {"status": 402, "message": "Payment Required"}, _F.QUOTA_EXHAUSTED),
        _refused(429, {"status": 429, "message": "Too many requests"}, _F.RATE_LIMITED, headers={"retry-after": "1.5"}, wait_s=1.5),
        _refused(200, {"status": 429, "message": "Too many requests"}, _F.RATE_LIMITED),
        _refused(413, {"status": 413, "message": "Payload too large"}, _F.REJECTED),
        _refused(401, {"status": 401, "message": "Token has expired"}, _F.UNSENT, ours=True),
        _refused(401, {"status": 401, "message": "Unauthorized"}, _F.UNAUTHORIZED),
        _refused(500, {"status": 500, "message": "Internal Server Error"}, _F.DOWN, _POSSIBLE),
    ),
}  # fmt: skip
