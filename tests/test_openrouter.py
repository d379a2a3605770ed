"""The OpenRouter adapter against every recorded shape of its answers."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from providers.adapters.openrouter import OpenRouter
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Balance,
    Charge,
    FailureClass,
    FileRef,
    Kind,
    Named,
    NoAnswer,
    NotToldError,
    Photo,
    Receipt,
    Refusal,
    Request,
    Scope,
    Verdict,
)

OPENROUTER: Adapter = OpenRouter()
ACCOUNT = Account("openrouter", "https://router.example/api/v1", "f00d", "sk-or-secret")
TASK = UUID("0194f000-0000-7000-8000-000000000001")
PNG = b"\x89PNG picture"
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
IN_FLIGHT = {"limit_source": "openrouter_in_flight_budget", "error_type": "payment_required"}


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return Answer(status, headers or {}, raw)


def request(**more: Any) -> Request:
    given = {"correlation_id": TASK, "model": "google/nano", "kind": Kind.IMAGE, "prompt": "кот"}
    return Request(**{**given, **more})


def chat(
    message: dict[str, Any], *, finish: str = "stop", cost: Any = 0.0387, **more: Any
) -> dict[str, Any]:
    choice = {"finish_reason": finish, "message": {"role": "assistant", "content": "", **message}}
    return {"id": "gen-1", "choices": [choice], "usage": {"cost": cost}, **more}


def image(url: Any) -> dict[str, Any]:
    return {"images": [{"type": "image_url", "image_url": {"url": url}}]}


def error(code: int, message: str, **metadata: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "metadata": metadata}}


def read(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Verdict:
    got = OPENROUTER.read_submit(answer(body, status, headers))
    assert isinstance(got, Verdict)
    return got


def refused(body: Any, status: int, headers: dict[str, str] | None = None) -> Refusal:
    got = OPENROUTER.read_submit(answer(body, status, headers))
    assert isinstance(got, Refusal)
    return got


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_a_picture_is_asked_for_by_modalities_and_carries_our_id() -> None:
    call = OPENROUTER.submit(
        ACCOUNT, request(params={"aspect_ratio": "16:9", "seed": 7, "model": "x", "stream": True})
    )
    assert (call.method, call.url) == ("POST", "https://router.example/api/v1/chat/completions")
    assert call.json == {
        "modalities": ["image", "text"],
        "image_config": {"aspect_ratio": "16:9"},
        "seed": 7,
        "model": "google/nano",
        "messages": [{"role": "user", "content": "кот"}],
        "user": str(TASK),
        "usage": {"include": True},
    }
    assert OPENROUTER.authorisation(ACCOUNT) == {"authorization": "Bearer sk-or-secret"}


def test_a_text_asks_for_no_picture_and_photos_go_inline(tmp_path: Path) -> None:
    assert "modalities" not in OPENROUTER.submit(ACCOUNT, request(kind=Kind.TEXT)).json
    photo = tmp_path / "photo.png"
    photo.write_bytes(PNG)
    call = OPENROUTER.submit(ACCOUNT, request(photos=[Photo(photo, "image/png")]))
    assert call.json["messages"][0]["content"] == [
        {"type": "text", "text": "кот"},
        {"type": "image_url", "image_url": {"url": DATA_URL}},
    ]


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "file"),
    [
        (image(DATA_URL), FileRef(data=PNG)),
        (image("https://cdn.example/1.png"), FileRef(url="https://cdn.example/1.png")),
        ({"images": [{"image_url": DATA_URL}]}, FileRef(data=PNG)),
        (
            {
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "image_url", "image_url": {"url": DATA_URL}},
                ]
            },
            FileRef(data=PNG),
        ),
    ],
    ids=["data url", "link", "flat", "content parts"],
)
def test_a_picture_comes_in_the_answer(message: dict[str, Any], file: FileRef) -> None:
    verdict = read(chat(message))
    assert (verdict.outcome, verdict.provider_id, verdict.files) == ("completed", "gen-1", (file,))
    assert (verdict.cost, verdict.currency) == (Decimal("0.0387"), "USD")


def test_a_text_is_the_result_and_stays_beside_a_picture() -> None:
    assert read(chat({"content": "Once\u0000 upon"})).text == "Once\ufffd upon"
    assert read(chat(image(DATA_URL) | {"content": "Here it is"})).text == "Here it is"


@pytest.mark.parametrize("cost", [None, "free", -1, True, 1e300])
def test_a_cost_that_is_none_is_not_told(cost: Any) -> None:
    assert read(chat(image(DATA_URL), cost=cost)).cost is None


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ({"id": "gen-1"} | error(502, "Provider returned error"), FailureClass.DOWN),
        (chat({}, finish="error", error={"code": 502, "message": "boom"}), FailureClass.DOWN),
        (chat({"content": "half a te"}, finish="error"), FailureClass.DOWN),
        (chat({"refusal": "I can't"}), FailureClass.REJECTED),
        (chat({"content": "no"}, finish="content_filter"), FailureClass.REJECTED),
        (chat({}), FailureClass.DOWN),
        ({"id": "gen-1"}, FailureClass.DOWN),
    ],
    ids=["error", "beside choices", "half a text", "refusal", "filter", "empty", "id alone"],
)
def test_an_id_without_a_result_is_a_failure_whose_cost_the_receipt_tells(
    body: dict[str, Any], failure: FailureClass
) -> None:
    verdict = read(body)
    assert (verdict.outcome, verdict.provider_id, verdict.failure) == ("failed", "gen-1", failure)
    assert verdict.files == ()
    assert verdict.reason


def test_work_that_has_begun_without_an_id_is_paid_without_a_result() -> None:
    body = chat({}, finish="error")
    del body["id"]
    verdict = read(body)
    assert (verdict.outcome, verdict.provider_id, verdict.files, verdict.text) == (
        "completed", None, (), "",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "failure", "charge"),
    [
        (error(502, "Provider returned error"), FailureClass.DOWN, Charge.POSSIBLE),
        (error(400, "Invalid input"), FailureClass.REJECTED, Charge.POSSIBLE),
        (error(429, "Rate limit exceeded"), FailureClass.RATE_LIMITED, Charge.NONE),
        (error(402, "Insufficient credits"), FailureClass.QUOTA_EXHAUSTED, Charge.NONE),
        ({}, FailureClass.UNKNOWN, Charge.POSSIBLE),
        (b"", FailureClass.UNKNOWN, Charge.POSSIBLE),
        (b'{"choices": [', FailureClass.UNKNOWN, Charge.POSSIBLE),
        ([], FailureClass.UNKNOWN, Charge.POSSIBLE),
    ],
)
def test_a_2xx_that_names_nothing_is_free_only_where_no_model_can_have_begun(
    body: Any, failure: FailureClass, charge: Charge
) -> None:
    got = refused(body, 200)
    assert (got.failure, got.charge, got.target_stops) == (failure, charge, False)


# --- an answer that broke off -----------------------------------------------------------------------------------------


def cut(body: bytes, *, status: int | None = 200, sent: bool = True) -> Verdict | Refusal:
    got = OPENROUTER.read_submit(NoAnswer(sent=sent, reason="reset", status=status, body=body))
    assert isinstance(got, Verdict | Refusal)
    return got


def test_a_cut_answer_with_an_id_leaves_the_cost_to_the_receipt() -> None:
    whole = json.dumps(chat(image(DATA_URL))).encode()
    got = cut(whole[:-40])
    assert isinstance(got, Verdict)
    assert (got.outcome, got.provider_id, got.error_code) == ("failed", "gen-1", "cut")
    complete = cut(whole)
    assert isinstance(complete, Verdict)
    assert complete.files == (FileRef(data=PNG),)


@pytest.mark.parametrize(
    ("got", "failure", "charge"),
    [
        (cut(b""), FailureClass.UNKNOWN, Charge.POSSIBLE),
        (cut(b'{"choices"'), FailureClass.UNKNOWN, Charge.POSSIBLE),
        (cut(b'{"id": "gen-1", ', status=502), FailureClass.UNKNOWN, Charge.POSSIBLE),
        (cut(b"", status=None, sent=False), FailureClass.UNSENT, Charge.NONE),
    ],
)
def test_a_cut_answer_without_an_id_is_lost(
    got: Verdict | Refusal, failure: FailureClass, charge: Charge
) -> None:
    assert isinstance(got, Refusal)
    assert (got.failure, got.charge) == (failure, charge)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "failure", "charge"),
    [
        (402, error(402, "Insufficient credits", limit_source="openrouter_credits"), "quota_exhausted", "none"),
        (402, error(402, "Credits are held", **IN_FLIGHT), "rate_limited", "none"),
        (402, error(402, "Free requests are used", limit_source="openrouter_free_tier_daily"), "quota_exhausted", "none"),
        (403, error(403, "Key limit exceeded (monthly limit)."), "quota_exhausted", "none"),
        (403, error(403, "Input was flagged", reasons=["violence"], flagged_input="key limit exceeded"), "rejected", "none"),
        (401, error(401, "No auth credentials found"), "unauthorized", "none"),
        (408, error(408, "Request timed out"), "unknown", "possible"),
        (413, error(413, "Payload too large"), "rejected", "none"),
        (429, error(429, "Rate limit exceeded"), "rate_limited", "none"),
        (500, error(500, "Internal Server Error"), "down", "possible"),
        (502, error(502, "Provider returned error", raw="upstream"), "down", "possible"),
        (503, error(503, "There is no available model provider that meets your routing requirements"), "down", "none"),
        (503, error(503, "Service temporarily unavailable"), "down", "possible"),
        (502, b"<html><title>502 Bad Gateway</title></html>", "unknown", "possible"),
    ],
)  # fmt: skip
def test_a_refusal_has_its_class_and_its_charge(
    status: int, body: Any, failure: str, charge: str
) -> None:
    got = refused(body, status)
    assert (got.failure, got.charge, got.status) == (failure, charge, status)


def test_a_wrong_model_stops_the_target_and_an_ill_parameter_does_not() -> None:
    assert refused(error(404, "No endpoints found for foo/bar."), 404).target_stops
    assert refused(error(400, "foo/bar is not a valid model ID"), 400).target_stops
    assert not refused(error(400, "Invalid value for `seed`"), 400).target_stops


def test_waits_come_from_the_header_and_from_the_limits_reset() -> None:
    held = refused(error(402, "Credits are held", **IN_FLIGHT), 402, {"retry-after": "5"})
    assert held.wait_s == 5.0
    date = {"date": "Tue, 01 Dec 2026 00:00:00 GMT"}
    told = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1796083230000"}
    pool = error(429, "Provider returned error", limit_source="upstream_provider_shared_pool", headers=told)  # fmt: skip
    got = refused(pool, 429, date)
    assert (got.failure, got.scope, got.wait_s) == (FailureClass.RATE_LIMITED, Scope.MODEL, 30.0)


# --- receipt and credits ----------------------------------------------------------------------------------------------


def test_a_receipt_is_final_once_it_tells_how_it_ended() -> None:
    call = OPENROUTER.receipt(ACCOUNT, Named("gen-1"))
    assert call is not None
    assert (call.url, call.params) == ("https://router.example/api/v1/generation", {"id": "gen-1"})

    def told(**more: Any) -> Receipt:
        return OPENROUTER.read_receipt(answer({"data": {"id": "gen-1", **more}}))

    assert told(total_cost=0.02, finish_reason="stop") == Receipt(True, "stop", Decimal("0.02"))
    assert told(total_cost=0, cancelled=True) == Receipt(True, "cancelled", Decimal(0))
    assert not told(total_cost=0).final
    assert not told(finish_reason="stop", total_cost="?").final
    with pytest.raises(ValueError, match="404"):
        OPENROUTER.read_receipt(answer(error(404, "not found"), 404))


def test_the_balance_is_what_was_bought_less_what_was_used() -> None:
    told = answer({"data": {"total_credits": 10.5, "total_usage": 0.25}})
    assert OPENROUTER.read_balance(told) == Balance(Decimal("10.25"), "USD")
    with pytest.raises(NotToldError):
        OPENROUTER.read_balance(answer(error(403, "Only management keys"), 403))
    with pytest.raises(ValueError, match="credits"):
        OPENROUTER.read_balance(answer({"data": {}}))
