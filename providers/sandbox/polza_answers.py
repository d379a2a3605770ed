"""Polza's words: the error envelope and each refusal it is known (or feared) to give."""

from __future__ import annotations

import math
from email.utils import formatdate
from typing import Any

from .reactions import Reaction, json_reaction

# name -> status, code, message, metadata
_ERRORS: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "bad_request": (
        400,
        "BAD_REQUEST",
        "Недопустимое значение параметра",
        {"raw": "The parameter `seed` is not valid"},
    ),
    "bad_model": (
        400,
        "BAD_REQUEST",
        "Недопустимое значение параметра",
        {"reason": "noProvidersForModel", "raw": "The parameter `model` is not valid"},
    ),
    "too_dear": (
        400,
        "BAD_REQUEST",
        "Нет провайдеров с ценой не выше max_price",
        {"reason": "noProvidersForModel", "raw": "No provider matches provider.max_price"},
    ),
    "unauthorized": (401, "UNAUTHORIZED", "Неверный API ключ", {}),
    "key_revoked": (401, "api_key_revoked", "API ключ отозван", {}),
    "no_balance": (402, "INSUFFICIENT_BALANCE", "Недостаточно средств на балансе", {}),
    "key_limit": (402, "INSUFFICIENT_BALANCE", "Исчерпан лимит расходов ключа на неделю", {}),
    "key_limit_400": (400, "INSUFFICIENT_BALANCE", "Исчерпан лимит расходов ключа на неделю", {}),
    "tariff": (402, "FORBIDDEN", "Model is not enabled for this tariff", {}),
    "moderation": (403, "FORBIDDEN", "Запрос отклонён модерацией", {"reason": "moderation"}),
    "not_found": (404, "NOT_FOUND", "Не найдено", {}),
    "own_408": (408, "REQUEST_TIMEOUT", "Превышено время ожидания", {}),
    "conflict": (409, "CONFLICT", "Конфликт", {}),
    "too_large": (413, "PAYLOAD_TOO_LARGE", "Слишком большой запрос", {}),
    "unprocessable": (422, "BAD_REQUEST", "Параметры запроса не могут быть обработаны", {}),
    "rate_limited": (429, "TOO_MANY_REQUESTS", "Слишком много запросов", {}),
    "internal": (500, "INTERNAL_ERROR", "Внутренняя ошибка сервера", {}),
    "own_502": (502, "BAD_GATEWAY", "Ошибка вышестоящего провайдера", {}),
    "unavailable": (503, "SERVICE_UNAVAILABLE", "Сервис временно недоступен", {}),
    "no_providers": (
        503,
        "SERVICE_UNAVAILABLE",
        "Сервис временно недоступен",
        {"reason": "noProvidersForModel"},
    ),
    "overloaded": (
        503,
        "SERVICE_UNAVAILABLE",
        "The model is overloaded. Please try again later.",
        {"raw": "overloaded"},
    ),
    "turned_away": (
        503,
        "SERVICE_UNAVAILABLE",
        "The service is overloaded. Please try again later.",
        {"raw": "overloaded"},
    ),
    "own_504": (504, "REQUEST_TIMEOUT", "Превышено время ожидания провайдера", {}),
}


def own_error(name: str, *, trace: str, wait_s: float, now: float) -> Reaction:
    """One of faults.OWN_ERRORS (or `too_dear`). `wait_s` is what a 429 tells, in whatever way its name says."""
    match name:
        case "ok_empty":
            return Reaction(headers=(("content-type", "application/json"),))
        case "ok_garbage":
            return Reaction(headers=(("content-type", "application/json"),), body=b'{"id": gen_')
        case "ok_no_id":
            return json_reaction({"object": "media.generation", "status": "pending"})
        case "ok_error":
            return _envelope(200, "INTERNAL_ERROR", "Внутренняя ошибка сервера", {}, trace)
    headers: tuple[tuple[str, str], ...] = ()
    base = "rate_limited" if name.startswith("rate_limited") else name
    status, code, message, metadata = _ERRORS[base]
    if name.startswith("rate_limited_"):
        style = name.removeprefix("rate_limited_")
        headers = retry_after(style, wait_s, now)
        if style == "body":
            message = f"Слишком много запросов. Повторите через {wait_s:g} секунд"
    return _envelope(status, code, message, metadata, trace, *headers)


def retry_after(style: str, wait_s: float, now: float) -> tuple[tuple[str, str], ...]:
    """The header that tells a wait, in one of the ways servers have. `none` and `body` give no header."""
    told = {
        "seconds": ("retry-after", str(max(1, math.ceil(wait_s)))),
        "float": ("retry-after", f"{wait_s:.3f}"),
        "date": ("retry-after", formatdate(math.ceil(now + wait_s), usegmt=True)),
        "past": ("retry-after", formatdate(now - 3600, usegmt=True)),
        "ms": ("retry-after-ms", str(math.ceil(wait_s * 1000))),
        "junk": ("retry-after", "soon, perhaps"),
        "negative": ("retry-after", "-5"),
        "zero": ("retry-after", "0"),
        "nan": ("retry-after", "NaN"),
    }
    return (told[style],) if style in told else ()


def error_at(status: int, *, trace: str, wait_s: float, now: float) -> Reaction:
    """Polza's envelope for a bare status, as reads give it."""
    names = {
        400: "bad_request",
        401: "unauthorized",
        403: "moderation",
        404: "not_found",
        500: "internal",
    }
    if status == 429:
        return own_error("rate_limited_seconds", trace=trace, wait_s=wait_s, now=now)
    return own_error(names.get(status, "unavailable"), trace=trace, wait_s=wait_s, now=now)


def complaint(message: str, *, trace: str) -> Reaction:
    """A 400 with a message of its own."""
    return _envelope(400, "BAD_REQUEST", message, {}, trace)


def _envelope(
    status: int,
    code: str,
    message: str,
    metadata: dict[str, Any],
    trace: str,
    *headers: tuple[str, str],
) -> Reaction:
    error = {"code": code, "message": message, "trace_id": trace, "details": {}}
    if metadata:
        error["metadata"] = metadata
    return json_reaction({"error": error, "trace_id": trace}, status, *headers)
