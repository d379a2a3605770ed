"""The Polza adapter against every recorded shape of its answers."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.adapters.polza import Polza
from providers.contract import (
    Accepted,
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
    Photo,
    PollTrouble,
    Receipt,
    Refusal,
    Request,
    Running,
    Verdict,
)

POLZA: Adapter = Polza()
ACCOUNT = Account("polza", "https://polza.example/api/v1", "f00d", "pza_secret")
TASK = UUID("0194f000-0000-7000-8000-000000000001")
PNG = base64.b64encode(b"\x89PNG picture").decode()


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return Answer(status, headers or {}, raw)


def generation(status: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "aig_abc123",
        "object": "media.generation",
        "status": status,
        "created": 1703001244,
        "model": "google/gemini-3.1-flash-image-preview",
        **more,
    }


def request(**more: Any) -> Request:
    return Request(
        **{
            "correlation_id": TASK,
            "model": "google/veo3",
            "kind": Kind.IMAGE,
            "prompt": "кот",
            **more,
        }
    )


# --- what is asked --------------------------------------------------------------------------------------------------------


def test_a_submit_is_asynchronous_and_carries_our_id() -> None:
    call = POLZA.submit(ACCOUNT, request(params={"aspect_ratio": "16:9", "prompt": "not this"}))
    assert (call.method, call.url) == ("POST", "https://polza.example/api/v1/media")
    assert call.json == {
        "model": "google/veo3",
        "async": True,
        "user": str(TASK),
        "input": {"prompt": "кот", "aspect_ratio": "16:9"},
    }
    assert "pza_secret" not in repr(call)
    assert "pza_secret" not in repr(ACCOUNT)
    assert POLZA.authorisation(ACCOUNT) == {"authorization": "Bearer pza_secret"}


def test_a_submit_carries_photos_a_ceiling_and_a_callback(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"\x89PNG picture")
    call = POLZA.submit(
        ACCOUNT,
        request(
            photos=[Photo(photo, "image/png")],
            max_price=Decimal("7.50"),
            webhook_url="https://desk.example/hook",
        ),
    )
    assert call.json["input"]["images"] == [
        {"type": "base64", "data": f"data:image/png;base64,{PNG}"}
    ]
    assert call.json["input"]["callBackUrl"] == "https://desk.example/hook"
    assert call.json["provider"] == {"max_price": {"image": 7.5, "request": 7.5}}
    json.dumps(call.json)


def test_reads_name_the_task_and_can_not_leave_their_path() -> None:
    poll = POLZA.poll(ACCOUNT, Named("aig_1"))
    assert poll is not None
    assert poll.url == "https://polza.example/api/v1/media/aig_1"
    elsewhere = POLZA.poll(ACCOUNT, Named("../key?x=1"))
    assert elsewhere is not None
    assert elsewhere.url.endswith("/media/..%2Fkey%3Fx%3D1")
    receipt = POLZA.receipt(ACCOUNT, Named("aig_1"))
    assert receipt is not None
    assert receipt.url == "https://polza.example/api/v1/history/generations/aig_1"
    balance = POLZA.balance(ACCOUNT)
    assert balance is not None
    assert (balance.method, balance.url) == ("GET", "https://polza.example/api/v1/balance")


def test_the_history_is_asked_without_any_filter_but_the_window() -> None:
    since = datetime(2025, 12, 31, 21, 0, 0, 500_000, tzinfo=timezone(timedelta(hours=3)))
    call = POLZA.history(ACCOUNT, since=since, until=since + timedelta(minutes=5), page=2)
    assert call is not None
    assert call.params == {
        "page": "2",
        "limit": "100",
        "dateFrom": "2025-12-31T18:00:00.500Z",
        "dateTo": "2025-12-31T18:05:00.500Z",
        "sortBy": "createdAt",
        "sortOrder": "desc",
    }


# --- submit: accepted -----------------------------------------------------------------------------------------------------


@pytest.mark.condition("R43")
@pytest.mark.parametrize("status", [200, 201, 202])
@pytest.mark.parametrize("word", ["pending", "processing", "queued", "running", "brand_new_word"])
def test_an_id_is_accepted_whatever_else_is_in_it_r43(status: int, word: str) -> None:
    """R43: a create answer that is not final means accepted, not an empty result."""
    body = generation(word, error={"code": "BAD_GATEWAY"}, data=[], warnings=["x"])
    assert POLZA.read_submit(answer(body, status)) == Accepted("aig_abc123", word)


@pytest.mark.parametrize(
    ("body", "provider_id"),
    [
        ({"id": "gen_581761234567890123"}, "gen_581761234567890123"),
        ({"id": 18503}, "18503"),
        ({"data": {"id": "aig_inside"}}, "aig_inside"),
        ({"id": " aig_1 ", "status": None}, "aig_1"),
        (b'{"id":"aig_cut","object":"media.gen', "aig_cut"),
        (b'\xff garbage {"id" : "gen_12"} tail', "gen_12"),
    ],
)
def test_ids_are_found_in_every_shape(body: Any, provider_id: str) -> None:
    got = POLZA.read_submit(answer(body))
    assert isinstance(got, Accepted)
    assert got.provider_id == provider_id


@pytest.mark.condition("R49")
def test_an_id_in_a_body_that_was_cut_is_still_accepted_r49() -> None:
    """R49: the id must survive, or the result that is being paid for can't be reached."""
    cut = NoAnswer(sent=True, reason="cut", status=201, body=b'{"id":"aig_abc123","object":"med')
    assert POLZA.read_submit(cut) == Accepted("aig_abc123")


@pytest.mark.parametrize("body", [b"", b'{"id":"aig_ab', b'{"trace_id":"aig_1"', b'{"id":null'])
def test_a_cut_body_without_a_whole_id_is_unknown(body: bytes) -> None:
    got = POLZA.read_submit(NoAnswer(sent=True, reason="cut", status=200, body=body))
    assert isinstance(got, Refusal)
    assert (got.failure, got.charge) == (FailureClass.UNKNOWN, Charge.POSSIBLE)


def test_a_task_that_stumbles_at_birth_but_has_a_name_is_watched() -> None:
    got = POLZA.read_submit(answer(generation("pending"), 500))
    assert got == Accepted("aig_abc123", "pending")


# --- submit: a verdict at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 402, 403, 408, 409, 422, 429, 500, 503])
@pytest.mark.parametrize("word", ["pending", "failed", "PROCESSING"])
def test_an_error_that_names_a_generation_is_no_free_refusal(status: int, word: str) -> None:
    """A gateway that limits the answer instead of the request: 429, and the generation it speaks of has begun."""
    body = generation(
        word, error={"code": "TOO_MANY_REQUESTS", "message": "Слишком много запросов"}
    )
    got = POLZA.read_submit(answer(body, status))
    assert isinstance(got, Accepted)
    assert got.provider_id == "aig_abc123"


@pytest.mark.parametrize("data", ["none", ["done"], "null", {"url": "0" * 32}])
def test_a_word_in_place_of_data_is_no_result(data: Any) -> None:
    got = POLZA.read_submit(answer({"message": "ok", "data": data}))
    assert isinstance(got, Refusal)
    assert (got.failure, got.charge) == (FailureClass.UNKNOWN, Charge.POSSIBLE)
    poll = POLZA.read_poll(answer({"id": "aig_abc123", "data": data}))
    assert isinstance(poll, PollTrouble)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_an_answer_with_a_byte_order_mark_is_read(encoding: str) -> None:
    body = json.dumps(generation("pending")).encode(encoding)
    assert POLZA.read_submit(answer(body)) == Accepted("aig_abc123", "pending")


def test_an_id_told_as_a_number_is_the_same_id_in_every_answer() -> None:
    """One API tells 18503, another "18503": a send whose id is only found as text elsewhere would be taken for lost."""
    accepted = POLZA.read_submit(answer({"id": 18503, "status": "QUEUED"}))
    page = POLZA.read_history(Answer(200, {}, b'{"items":[{"id":18503},{"id":"18503"}]}'))
    verdict = POLZA.read_poll(answer({"id": 18503, "status": "COMPLETED", "data": URL}))
    assert isinstance(accepted, Accepted)
    assert isinstance(verdict, Verdict)
    named = {accepted.provider_id, verdict.provider_id, *(item.provider_id for item in page.items)}
    assert named == {"18503"}


@pytest.mark.parametrize("word", ["COMPLETED", " Completed\n", "Canceled", "CANCELLED", "Failed"])
def test_a_verdict_is_heard_in_capitals_too(word: str) -> None:
    got = POLZA.read_poll(answer(generation(word, data={"url": URL})))
    assert isinstance(got, Verdict)
    assert got.outcome in {"completed", "cancelled", "failed"}


def test_a_submit_answer_may_be_the_verdict() -> None:
    body = generation("completed", data={"url": "https://s3.polza.ai/f/1.jpg"}, usage={"cost": 5})
    got = POLZA.read_submit(answer(body))
    assert isinstance(got, Verdict)
    assert (got.outcome, got.provider_id, got.cost) == ("completed", "aig_abc123", Decimal(5))
    failed = POLZA.read_submit(
        answer(generation("failed", error={"code": "FORBIDDEN", "message": "Нельзя"}))
    )
    assert isinstance(failed, Verdict)
    assert (failed.outcome, failed.error_code, failed.reason) == ("failed", "FORBIDDEN", "Нельзя")


def test_a_file_without_id_and_status_is_a_result() -> None:
    got = POLZA.read_submit(answer({"created": 1, "data": [{"b64_json": PNG}]}))
    assert isinstance(got, Verdict)
    assert (got.outcome, got.provider_id) == ("completed", None)
    assert got.files == (FileRef(data=b"\x89PNG picture"),)


# --- submit: refused ------------------------------------------------------------------------------------------------------


def refused(body: Any, status: int, headers: dict[str, str] | None = None) -> Refusal:
    got = POLZA.read_submit(answer(body, status, headers))
    assert isinstance(got, Refusal)
    return got


def envelope(code: str, message: str = "…", **more: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "trace_id": "t", **more}, "trace_id": "t"}


NO_PROVIDERS = {"reason": "noProvidersForModel"}


@pytest.mark.parametrize(
    "message", ["…", "Нет доступных провайдеров для модели", "No available providers"]
)
@pytest.mark.parametrize("status", [500, 502, 503])
def test_no_providers_under_5xx_is_an_outage_that_may_have_cost_whatever_its_sentence(
    status: int, message: str
) -> None:
    got = refused(envelope("SERVICE_UNAVAILABLE", message, metadata=NO_PROVIDERS), status)
    assert (got.failure.value, got.charge.value) == ("down", "possible")


@pytest.mark.parametrize(
    ("raw", "stops"),
    [
        ("The parameter `model` is not valid", True),
        ("", True),
        ("The parameter `duration` of the request is not valid", False),
    ],
)
def test_no_providers_under_400_is_free_and_stops_the_target_unless_one_parameter_is_to_blame(
    raw: str, stops: bool
) -> None:
    body = envelope(
        "BAD_REQUEST", "Нет доступных провайдеров для модели", metadata=NO_PROVIDERS | {"raw": raw}
    )
    got = refused(body, 400)
    assert (got.failure.value, got.charge.value, got.target_stops) == ("rejected", "none", stops)


@pytest.mark.parametrize(
    ("status", "body", "failure", "charge"),
    [
        (400, envelope("BAD_REQUEST", "Недопустимое значение параметра"), "rejected", "none"),
        (401, envelope("UNAUTHORIZED", "Неверный ключ"), "unauthorized", "none"),
        (403, envelope("api_key_revoked"), "unauthorized", "none"),
        (402, envelope("INSUFFICIENT_BALANCE", "Недостаточно средств"), "quota_exhausted", "none"),
        (
            400,
            envelope("INSUFFICIENT_BALANCE", "Исчерпан лимит расходов ключа на неделю"),
            "quota_exhausted",
            "none",
        ),
        (402, envelope("FORBIDDEN", "Model is not enabled for this tariff"), "rejected", "none"),
        (403, envelope("FORBIDDEN", "Доступ запрещён"), "rejected", "none"),
        (404, envelope("NOT_FOUND", "Модель не найдена"), "rejected", "none"),
        (408, envelope("REQUEST_TIMEOUT"), "down", "possible"),
        (409, envelope("CONFLICT"), "rejected", "possible"),
        (413, envelope("PAYLOAD_TOO_LARGE"), "rejected", "none"),
        (429, envelope("TOO_MANY_REQUESTS"), "rate_limited", "none"),
        (500, envelope("INTERNAL_ERROR"), "down", "possible"),
        (502, envelope("BAD_GATEWAY"), "down", "possible"),
        (503, envelope("SERVICE_UNAVAILABLE"), "down", "possible"),
        (503, envelope("SERVICE_UNAVAILABLE", metadata=NO_PROVIDERS), "down", "possible"),
        (503, envelope("SERVICE_UNAVAILABLE", "Модель перегружена"), "down", "none"),
        (400, envelope("BAD_REQUEST", metadata=NO_PROVIDERS), "rejected", "none"),
        (200, envelope("INSUFFICIENT_BALANCE"), "quota_exhausted", "none"),
        (200, envelope("TOO_MANY_REQUESTS"), "rate_limited", "none"),
        (200, envelope("INTERNAL_ERROR"), "down", "possible"),
        (418, envelope("TEAPOT"), "unknown", "possible"),
    ],
)
def test_every_documented_code_has_its_class_and_charge(
    status: int, body: Any, failure: str, charge: str
) -> None:
    got = refused(body, status)
    assert (got.failure.value, got.charge.value) == (failure, charge)
    assert got.code == body["error"]["code"].lower()


@pytest.mark.condition("R12")
@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"object": "media.generation"},
        {"data": []},
        {"id": ""},
        b"",
        b"OK",
        b"<html></html>",
    ],
)
def test_a_2xx_without_id_result_or_error_is_unknown_and_may_cost_r12(body: Any) -> None:
    """R12: a 2xx without a usable result."""
    got = refused(body, 200)
    assert (got.failure, got.charge) == (FailureClass.UNKNOWN, Charge.POSSIBLE)


def test_a_page_on_a_5xx_is_unknown_and_may_cost() -> None:
    got = refused(
        b"<html><title>502 Bad Gateway</title></html>", 502, {"content-type": "text/html"}
    )
    assert (got.failure, got.charge) == (FailureClass.UNKNOWN, Charge.POSSIBLE)


def test_a_call_that_never_left_is_unsent() -> None:
    got = POLZA.read_submit(NoAnswer(sent=False, reason="refused"))
    assert got == Refusal(FailureClass.UNSENT, Charge.NONE, "refused")


def test_a_bad_model_stops_the_target_and_a_bad_parameter_does_not() -> None:
    assert refused(envelope("BAD_REQUEST", metadata=NO_PROVIDERS), 400).target_stops
    raw = {
        **NO_PROVIDERS,
        "raw": "The parameter `duration` is not valid",
        "provider_name": "alibaba",
    }
    assert not refused(envelope("BAD_REQUEST", metadata=raw), 400).target_stops
    assert not refused(envelope("FORBIDDEN", "Запрос отклонён модерацией"), 403).target_stops


# --- poll -----------------------------------------------------------------------------------------------------------------

URL = "https://s3.polza.ai/f/205141/2026/03/aig_abc123.jpg"
LONG_PNG = base64.b64encode(b"\x89PNG" + bytes(90)).decode()


@pytest.mark.parametrize(
    ("data", "files"),
    [
        ({"url": URL}, [FileRef(url=URL)]),
        ([{"url": URL}], [FileRef(url=URL)]),
        (
            [{"url": URL}, {"url": URL + "2"}, {"url": URL}],
            [FileRef(url=URL), FileRef(url=URL + "2")],
        ),
        ([URL], [FileRef(url=URL)]),
        (URL, [FileRef(url=URL)]),
        ({"images": [{"url": URL}]}, [FileRef(url=URL)]),
        ({"images": [URL]}, [FileRef(url=URL)]),
        ({"image_url": {"url": URL}}, [FileRef(url=URL)]),
        ([{"b64_json": PNG}], [FileRef(data=b"\x89PNG picture")]),
        ({"url": f"data:image/png;base64,{PNG}"}, [FileRef(data=b"\x89PNG picture")]),
        ([None, {"url": None}, {"url": URL}, None], [FileRef(url=URL)]),
        ({"url": URL.replace("https", "HTTPS")}, [FileRef(url=URL.replace("https", "HTTPS"))]),
        ({"url": URL.removeprefix("https:")}, [FileRef(url=URL)]),
        ({"url": LONG_PNG}, [FileRef(data=base64.b64decode(LONG_PNG))]),
        ([{"url": "ftp://x/y"}, {"url": ""}, {"b64_json": "%%%"}, None, 7], []),
        # Words that happen to be base64: no file is so short, and an id or a hash is none.
        (["done", "null", "none", "pending1", "aig0123456789abc", "0" * 32, "f" * 64], []),
        (None, []),
        ({}, []),
    ],
)
def test_a_result_is_found_in_every_shape_of_data(data: Any, files: list[FileRef]) -> None:
    got = POLZA.read_poll(answer(generation("completed", data=data)))
    assert isinstance(got, Verdict)
    assert (got.outcome, got.files) == ("completed", tuple(files))


def test_a_completed_task_may_hold_words_only() -> None:
    got = POLZA.read_poll(answer(generation("completed", content="Не могу\x00 нарисовать")))
    assert isinstance(got, Verdict)
    assert (got.files, got.text) == ((), "Не могу\ufffd нарисовать")


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost_rub": 5.0, "cost": 5.0}, "5.0"),
        ({"cost": 5}, "5"),
        ({"cost_rub": "3.10"}, "3.10"),
        ({"cost_rub": "7,84"}, "7.84"),
        ({"cost_rub": " 0,5 "}, "0.5"),
        ({"cost_rub": "1,234", "cost": "1,234.50"}, None),  # thousands or a comma: nobody knows
        ({"cost_rub": "1_000"}, None),
        ({"cost_rub": "7.84 ₽"}, None),
        ({"cost_rub": None, "cost": "2"}, "2"),
        ({"cost_rub": 0}, "0"),
        ({"cost_rub": "NaN", "cost": 1}, "1"),
        ({"cost": "Infinity"}, None),
        ({"cost": -1}, None),
        ({"cost": "1e99"}, None),
        ({"cost": True}, None),
        ({"cost": "много"}, None),
        ({"cost": {}}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_cost_comes_as_number_string_or_not_at_all(usage: Any, cost: str | None) -> None:
    got = POLZA.read_poll(answer(generation("completed", usage=usage)))
    assert isinstance(got, Verdict)
    assert got.cost == (None if cost is None else Decimal(cost))
    assert got.currency == "RUB"


def test_a_cost_keeps_every_digit() -> None:
    raw = b'{"id":"a","status":"completed","usage":{"cost_rub":0.1234567890123456789}}'
    got = POLZA.read_poll(answer(raw))
    assert isinstance(got, Verdict)
    assert got.cost == Decimal("0.1234567890123456789")


@pytest.mark.parametrize("word", ["pending", "processing", "queued", "running", "PENDING"])
def test_a_task_under_way_is_running(word: str) -> None:
    assert POLZA.read_poll(answer(generation(word))) == Running(word.lower())


def test_an_unknown_word_means_still_running() -> None:
    assert POLZA.read_poll(answer(generation("archived"))) == Running("archived", known=False)


@pytest.mark.parametrize(
    ("word", "outcome"),
    [("cancelled", "cancelled"), ("canceled", "cancelled"), ("failed", "failed")],
)
def test_a_failed_task_tells_why_and_may_have_a_cost(word: str, outcome: str) -> None:
    body = generation(
        word,
        error={"code": "BAD_GATEWAY", "message": "Ошибка генерации медиа контента"},
        usage={"cost_rub": "1.5"},
    )
    got = POLZA.read_poll(answer(body))
    assert got == Verdict(
        outcome,
        "aig_abc123",
        cost=Decimal("1.5"),
        currency="RUB",
        reason="Ошибка генерации медиа контента",
        error_code="BAD_GATEWAY",
        failure=FailureClass.DOWN,
        status=word,
    )


def test_a_failed_task_without_a_reason_has_one_for_people() -> None:
    got = POLZA.read_poll(answer(generation("failed")))
    assert isinstance(got, Verdict)
    assert got.reason.startswith("HTTP 200")


@pytest.mark.condition("R32", "R45")
@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (401, envelope("UNAUTHORIZED"), FailureClass.UNAUTHORIZED),
        (429, envelope("TOO_MANY_REQUESTS"), FailureClass.RATE_LIMITED),
        (500, envelope("INTERNAL_ERROR"), FailureClass.DOWN),
        (502, b"<html>", FailureClass.UNKNOWN),
        (404, b"<html>404</html>", FailureClass.REJECTED),
        (200, b"not json", FailureClass.UNKNOWN),
        (200, {}, FailureClass.UNKNOWN),
        (200, envelope("INTERNAL_ERROR"), FailureClass.DOWN),
    ],
)
def test_trouble_while_polling_is_never_a_verdict_r32_r45(
    status: int, body: Any, failure: FailureClass
) -> None:
    """R32: a 401 after a key rotation keeps the id. R45: no JSON for minutes keeps the job alive."""
    got = POLZA.read_poll(answer(body, status))
    assert isinstance(got, PollTrouble)
    assert (got.status, got.failure, got.missing) == (status, failure, False)


@pytest.mark.condition("R47")
def test_only_the_providers_own_404_counts_as_missing_r47() -> None:
    """R47: absence is not a verdict, and a gateway's page is not even absence."""
    own = POLZA.read_poll(answer(envelope("NOT_FOUND", "Не найдено"), 404))
    page = POLZA.read_poll(answer(b"<html>404</html>", 404, {"content-type": "text/html"}))
    assert isinstance(own, PollTrouble)
    assert isinstance(page, PollTrouble)
    assert (own.missing, page.missing) == (True, False)


@pytest.mark.condition("R52")
def test_a_poll_without_an_answer_keeps_the_task_r52() -> None:
    """R52: a lost status answer is no failure of the task."""
    got = POLZA.read_poll(NoAnswer(sent=True, reason="reset", status=200))
    assert got == PollTrouble("reset", 200)


def test_a_poll_passes_the_wait_on() -> None:
    got = POLZA.read_poll(answer(envelope("TOO_MANY_REQUESTS"), 429, {"retry-after": "7"}))
    assert isinstance(got, PollTrouble)
    assert got.wait_s == 7


# --- history, receipt, balance --------------------------------------------------------------------------------------------


def test_a_history_page_is_read() -> None:
    body = {
        "items": [
            {
                "id": "aig_1",
                "createdAt": "2025-12-31T21:00:00.123Z",
                "model": "google/veo3",
                "status": "completed",
                "cost": "4.5",
                "user": str(TASK),
            },
            {
                "id": "aig_2",
                "createdAt": "2025-12-31T21:00:00",
                "clientCost": 1,
                "status": "PENDING",
            },
            {"id": "aig_3", "createdAt": "yesterday"},
        ],
        "meta": {"page": 1, "limit": 100, "total": 203, "totalPages": 3},
    }
    page = POLZA.read_history(answer(body))
    assert (page.page, page.pages) == (1, 3)
    first, second, third = page.items
    assert first.created_at == datetime(2025, 12, 31, 21, 0, 0, 123_000, tzinfo=UTC)
    assert (first.correlation_id, first.cost) == (str(TASK), Decimal("4.5"))
    assert second.created_at == datetime(2025, 12, 31, 21, tzinfo=UTC)
    assert (second.status, second.cost, second.correlation_id) == ("pending", Decimal(1), "")
    assert third.created_at is None


@pytest.mark.parametrize(
    ("meta", "count", "pages"),
    [
        ({"total": 203, "limit": 100}, 100, 3),
        ({"totalPages": "2"}, 1, 2),
        ({"totalPages": 0}, 0, 1),
        ({}, 100, 2),
        (None, 99, 1),
        ({"page": 4}, 100, 5),
        ({"totalPages": -1, "total": True, "limit": 0}, 3, 1),
    ],
)
def test_pages_are_never_told_too_few(meta: Any, count: int, pages: int) -> None:
    items = [{"id": f"aig_{number}"} for number in range(count)]
    assert POLZA.read_history(answer({"items": items, "meta": meta})).pages == pages


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 200),
        ([], 200),
        (b"<html>", 200),
        ({"items": None}, 200),
        ({"items": [{"model": "x"}]}, 200),
        ({"items": ["aig_1"]}, 200),
        ({"items": []}, 500),
    ],
)
def test_a_history_that_can_not_be_read_proves_no_absence(body: Any, status: int) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        POLZA.read_history(answer(body, status))


@pytest.mark.parametrize(
    ("body", "receipt"),
    [
        (
            {"status": "completed", "clientCost": "0.1234567890123456789"},
            Receipt(True, "completed", Decimal("0.1234567890123456789")),
        ),
        ({"status": "failed", "clientCost": "1.5"}, Receipt(True, "failed", Decimal("1.5"))),
        ({"status": "failed", "clientCost": "0"}, Receipt(True, "failed", Decimal(0))),
        ({"status": "failed", "cost": 0}, Receipt(True, "failed", Decimal(0))),
        ({"status": "pending", "clientCost": "0"}, Receipt(False, "pending", Decimal(0))),
        ({"status": "failed"}, Receipt(False, "failed", None)),
        ({"status": "failed", "clientCost": "?"}, Receipt(False, "failed", None)),
        ({"status": "odd", "clientCost": "0"}, Receipt(False, "odd", Decimal(0))),
    ],
)
def test_a_receipt_proves_something_only_in_the_end(body: Any, receipt: Receipt) -> None:
    assert POLZA.read_receipt(answer({"id": "aig_1", **body})) == receipt


def test_a_receipt_that_is_none_is_an_error() -> None:
    for body, status in (({}, 200), ({"status": "failed"}, 404), (b"", 200)):
        with pytest.raises(ValueError, match=r"\w"):
            POLZA.read_receipt(answer(body, status))


def test_the_balance_is_a_string_of_roubles() -> None:
    assert POLZA.read_balance(answer({"amount": "9.28591714"})) == Balance(
        Decimal("9.28591714"), "RUB"
    )
    assert POLZA.read_balance(answer({"amount": -3})).amount == Decimal(-3)
    with pytest.raises(ValueError, match="amount"):
        POLZA.read_balance(answer({"amount": None}))


# --- anything at all ------------------------------------------------------------------------------------------------------

_KEYS = st.sampled_from(
    "id status data url b64_json error code message usage cost cost_rub items meta content images".split()  # noqa: SIM905
)
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["completed", "failed", "pending", "aig_1", URL, PNG, "1.5", "data:;base64,"]
    ),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(_KEYS, inside, max_size=5),
    max_leaves=15,
)


@given(
    body=st.binary(max_size=60) | _JSON.map(lambda document: json.dumps(document).encode()),
    status=st.sampled_from([200, 201, 204, 301, 400, 402, 404, 429, 500, 503]),
    cut=st.booleans(),
)
def test_no_answer_makes_the_adapter_raise(body: bytes, status: int, cut: bool) -> None:
    whole = Answer(status, {}, body)
    got: Answer | NoAnswer = (
        NoAnswer(sent=True, reason="cut", status=status, body=body) if cut else whole
    )
    submitted = POLZA.read_submit(got)
    if isinstance(submitted, Refusal) and status >= 500:
        assert submitted.charge is Charge.POSSIBLE or submitted.failure is not FailureClass.UNKNOWN
    POLZA.read_poll(got)
    for read in (POLZA.read_history, POLZA.read_receipt, POLZA.read_balance):
        try:
            read(whole)
        except ValueError:
            continue
