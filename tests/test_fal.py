"""The fal adapter against every recorded shape of its answers."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import rules
from jobs.stages import facts
from providers.adapters.fal import Fal
from providers.contract import (
    Accepted,
    Account,
    Adapter,
    Answer,
    Charge,
    FailureClass,
    FileRef,
    Further,
    Kind,
    Named,
    NoAnswer,
    Photo,
    PollTrouble,
    Refusal,
    Request,
    Running,
    Verdict,
)

FAL: Adapter = Fal()
BASE = "https://queue.fal.run"
ACCOUNT = Account("fal", BASE, "f00d", "key-id:secret")
TASK = UUID("0194f000-0000-7000-8000-000000000001")
ID = "764cabcf-b745-4b3e-ae38-1200304cf45b"
MODEL = "fal-ai/flux/schnell"
HERE = f"{BASE}/fal-ai/flux/requests/{ID}"
LINKS = {"status": f"{HERE}/status", "result": HERE, "cancel": f"{HERE}/cancel"}
QUEUED = {
    "status": "IN_QUEUE",
    "request_id": ID,
    "gateway_request_id": "another",
    "response_url": HERE,
    "status_url": f"{HERE}/status",
    "cancel_url": f"{HERE}/cancel",
    "queue_position": 0,
}
PNG = base64.b64encode(b"\x89PNG picture").decode()
HTML = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, headers or {}, raw)


def model_error(kind: str, words: str = "It is wrong") -> dict[str, Any]:
    one = {"loc": ["body", "prompt"], "msg": words, "type": kind, "url": "https://docs.fal.ai/errors", "input": "a cat"}  # fmt: skip
    return {"detail": [one]}


def asked(**more: Any) -> Any:
    """The call of a submit."""
    common = {"correlation_id": TASK, "model": MODEL, "kind": Kind.IMAGE, "prompt": "кот"}
    return FAL.submit(ACCOUNT, Request(**{**common, **more}))


def url_of(call: Any) -> str:
    assert call is not None
    return str(call.url)


# --- what is asked --------------------------------------------------------------------------------------------------------


def test_a_submit_is_the_models_input_and_asks_the_queue_not_to_repeat_it() -> None:
    call = asked(params={"image_size": "square", "prompt": "not this"}, max_price=Decimal(1))
    assert (call.method, call.url) == ("POST", f"{BASE}/{MODEL}")
    assert call.json == {"image_size": "square", "prompt": "кот"}
    assert (call.headers, call.params) == ({"x-fal-no-retry": "1"}, {})
    assert "secret" not in repr(call)
    assert FAL.authorisation(ACCOUNT) == {"authorization": "Key key-id:secret"}


def test_a_webhook_travels_in_the_address_not_in_the_input() -> None:
    call = asked(webhook_url="https://desk.example/hooks/fal/1/n/")
    assert call.params == {"fal_webhook": "https://desk.example/hooks/fal/1/n/"}
    assert call.json == {"prompt": "кот"}


def test_one_photo_is_an_address_and_several_or_those_of_an_editor_are_a_list(tmp_path: Path) -> None:  # fmt: skip
    path = tmp_path / "photo.png"
    path.write_bytes(b"\x89PNG picture")
    photo, uri = Photo(path, "image/png"), f"data:image/png;base64,{PNG}"
    assert asked(photos=[photo]).json == {"prompt": "кот", "image_url": uri}
    assert asked(photos=[photo, photo]).json["image_urls"] == [uri, uri]
    assert asked(photos=[photo], model="fal-ai/nano-banana/edit").json["image_urls"] == [uri]


@pytest.mark.parametrize("model", ["", "flux", "fal-ai/", "../flux", "fal-ai/../x", "fal-ai//x"])
def test_a_model_that_is_no_path_is_not_sent(model: str) -> None:
    with pytest.raises(ValueError, match="no model"):
        asked(model=model)


def test_a_model_can_not_leave_its_path() -> None:
    assert url_of(asked(model="fal-ai/flux?x=1#y")) == f"{BASE}/fal-ai/flux%3Fx=1%23y"


def test_a_task_is_asked_about_at_the_addresses_it_came_with() -> None:
    told = {name: url + "?of=them" for name, url in LINKS.items()}
    named = Named(ID, MODEL, told)
    assert url_of(FAL.poll(ACCOUNT, named)) == told["status"]
    assert url_of(FAL.result(ACCOUNT, named)) == told["result"]
    cancel = FAL.cancel(ACCOUNT, named)
    assert cancel is not None
    assert (cancel.method, cancel.url) == ("PUT", told["cancel"])


@pytest.mark.parametrize(
    "link",
    [
        f"https://evil.example/{ID}/status",
        f"https://queue.fal.run.evil.example/{ID}",
        f"https://queue.fal.run@evil.example/{ID}",
        f"http://queue.fal.run/{ID}",
        f"https://queue.fal.run:444/{ID}",
        f"{BASE}/fal-ai/flux/requests/another/status",
        "",
    ],
)
def test_an_address_elsewhere_or_of_another_request_is_not_followed(link: str) -> None:
    assert url_of(FAL.poll(ACCOUNT, Named(ID, MODEL, {"status": link}))) == f"{HERE}/status"


@pytest.mark.parametrize(
    ("model", "app"),
    [
        ("fal-ai/flux/schnell", "fal-ai/flux"),
        ("fal-ai/any-llm", "fal-ai/any-llm"),
        ("workflows/me/mine/run", "workflows/me/mine"),
    ],
)
def test_an_address_made_of_the_id_names_owner_and_app_alone(model: str, app: str) -> None:
    assert url_of(FAL.poll(ACCOUNT, Named(ID, model))) == f"{BASE}/{app}/requests/{ID}/status"
    assert url_of(FAL.result(ACCOUNT, Named("../x", model))) == f"{BASE}/{app}/requests/..%2Fx"
    assert FAL.poll(ACCOUNT, Named(ID, "")) is None


def test_there_is_nothing_else_to_ask() -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    assert FAL.history(ACCOUNT, since=now, until=now, page=1) is None
    assert FAL.receipt(ACCOUNT, Named(ID, MODEL)) is None
    assert FAL.balance(ACCOUNT) is None
    assert FAL.token(ACCOUNT) is None


# --- submit ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 500])
@pytest.mark.parametrize("more", [{}, {"error": "oh", "detail": "oh", "error_type": "internal_error"}])  # fmt: skip
def test_an_answer_that_names_the_request_accepts_it(status: int, more: dict[str, str]) -> None:
    read = FAL.read_submit(answer(QUEUED | more, status))
    assert read == Accepted(ID, "in_queue", links=LINKS)


def test_an_id_survives_a_cut() -> None:
    whole = json.dumps(QUEUED)
    cut = whole[: whole.index(ID) + len(ID) + 1].encode()
    assert FAL.read_submit(NoAnswer(True, "cut", status=200, body=cut)) == Accepted(ID)
    headers = {"x-fal-request-id": ID}
    assert FAL.read_submit(NoAnswer(True, "cut", status=200, headers=headers)) == Accepted(ID)
    for lost in (
        NoAnswer(True, "cut", status=200, body=cut[:-1]),
        NoAnswer(True, "cut", status=200, body=b'{"gateway_request_id": "abc", '),
        NoAnswer(True, "cut", status=502, headers=headers, body=cut),
    ):
        read = FAL.read_submit(lost)
        assert isinstance(read, Refusal)
        assert (read.failure, read.charge) == (FailureClass.UNKNOWN, Charge.POSSIBLE)


def test_a_picture_at_once_is_a_verdict() -> None:
    read = FAL.read_submit(answer({"images": [{"url": "https://fal.media/a.png"}], "seed": 1}))
    assert isinstance(read, Verdict)
    assert (read.outcome, read.files) == ("completed", (FileRef(url="https://fal.media/a.png"),))


LOCKED = "User is locked. Reason: "
REFUSALS: list[tuple[Answer, str, bool]] = [
    (answer({"detail": f"{LOCKED}Exhausted balance. Top up your balance at fal.ai/dashboard/billing."}, 403), "quota_exhausted", True),
    (answer({"detail": f"{LOCKED}TOP_UP."}, 403), "quota_exhausted", True),
    (answer({"detail": f"{LOCKED}Admin lock. Please contact support"}, 403), "unauthorized", True),
    (answer({"detail": "Authentication is required to access this application."}, 401), "unauthorized", True),
    (answer({"detail": "No user found for Key ID and Secret"}, 401), "unauthorized", True),
    (answer({"detail": "Application 'fluks' not found"}, 404), "rejected", True),
    (answer({"detail": "Not Found"}, 404), "rejected", True),
    (answer({"detail": "Too many requests"}, 429), "rate_limited", True),
    (answer(model_error("missing", "Field required"), 422), "rejected", True),
    (answer(model_error("content_policy_violation", "The prompt was flagged as unsafe."), 422), "rejected", True),
    (answer(model_error("content_policy_violation", "The content was flagged by a content checker."), 422), "rejected", False),
    (answer(model_error("no_media_generated"), 422), "rejected", False),
    (answer({"detail": "The request was malformed", "error_type": "bad_request"}, 400), "rejected", True),
    (answer({"detail": "No runner could be allocated", "error_type": "runner_scheduling_failure"}, 503), "down", True),
    (answer({"detail": "It is full"}, 503, {"x-fal-error-type": "runner_scheduling_failure"}), "down", True),
    (answer({"detail": "The runner disconnected", "error_type": "runner_disconnected"}, 503), "down", False),
    (answer({"detail": "The connection timed out", "error_type": "runner_connection_timeout"}, 503), "down", False),
    (answer({"detail": "The runner did not start in time", "error_type": "startup_timeout"}, 504), "down", False),
    (answer({"detail": "Request timed out", "error_type": "request_timeout"}, 504), "down", False),
    (answer(b"", 504, {"x-fal-request-timeout-type": "user"}), "down", False),
    (answer(model_error("internal_server_error"), 500), "down", False),
    (answer({"detail": "An error", "error_type": "internal_error"}, 500), "down", False),
    (answer({"detail": "Internal Server Error"}, 500), "down", False),
    (answer(HTML, 502, {"content-type": "text/html"}), "unknown", False),
    (answer(HTML, 429, {"content-type": "text/html"}), "rate_limited", True),
    (answer({"status": "IN_QUEUE"}), "unknown", False),
    (answer(b""), "unknown", False),
    (answer(b"{not json"), "unknown", False),
    (answer({"detail": "An error", "error_type": "internal_error"}), "down", False),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "failure", "free"), REFUSALS, ids=range(len(REFUSALS)))
def test_a_refusal_has_its_class_and_is_free_only_where_that_is_known(seen: Answer, failure: str, *, free: bool) -> None:  # fmt: skip
    read = FAL.read_submit(seen)
    assert isinstance(read, Refusal)
    assert (read.failure, read.charge is Charge.NONE) == (failure, free), read
    assert read.target_stops == (seen.status == 404)


def test_a_wait_that_is_told_is_kept() -> None:
    read = FAL.read_submit(answer({"detail": "Too many requests"}, 429, {"retry-after": "7"}))
    assert isinstance(read, Refusal)
    assert read.wait_s == 7


def test_a_send_that_never_left_is_unsent() -> None:
    read = FAL.read_submit(NoAnswer(False, "refused", status=200, body=json.dumps(QUEUED).encode()))
    assert isinstance(read, Refusal)
    assert (read.failure, read.charge) == (FailureClass.UNSENT, Charge.NONE)


# --- poll -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "known"), [("IN_QUEUE", True), ("IN_PROGRESS", True), ("WARMING_UP", False)]
)
def test_a_request_runs_until_it_is_completed(word: str, *, known: bool) -> None:
    assert FAL.read_poll(answer(QUEUED | {"status": word}, 202)) == Running(word.lower(), known=known)  # fmt: skip


def test_completed_alone_only_means_that_the_result_tells() -> None:
    told = QUEUED | {"status": "COMPLETED", "metrics": {"inference_time": 3.7}, "error": None}
    assert FAL.read_poll(answer(told)) == Further("completed")


@pytest.mark.parametrize(
    ("more", "failure", "free"),
    [
        ({"error": "Runner gone", "error_type": "runner_disconnected"}, "down", True),
        ({"error": "Timed out", "error_type": "request_timeout"}, "down", True),
        ({"error_type": "startup_timeout"}, "down", True),
        ({"error": "Flagged", "error_type": "content_policy_violation"}, "rejected", False),
        ({"error": "It broke", "error_type": "of_another_kind"}, "unknown", False),
        ({"error": "It broke"}, "unknown", False),
    ],
)
def test_completed_with_an_error_has_failed_and_is_free_by_its_type(more: dict[str, str], failure: str, *, free: bool) -> None:  # fmt: skip
    read = FAL.read_poll(answer(QUEUED | {"status": "COMPLETED"} | more))
    assert isinstance(read, Verdict)
    assert (read.outcome, read.provider_id, read.free, read.cost) == ("failed", ID, free, None)
    assert (read.failure, read.error_code) == (failure, more.get("error_type", ""))
    assert read.reason


@pytest.mark.parametrize(
    ("told", "free"),
    [
        ({"status": "CANCELLED"}, False),
        ({"status": "COMPLETED", "error": "Gone", "error_type": "client_cancelled"}, False),
        ({"status": "CANCELED", "queue_position": 3}, True),
    ],
)
def test_a_cancelled_request_is_free_where_it_stood_in_the_queue(told: dict[str, Any], *, free: bool) -> None:  # fmt: skip
    shown = {name: value for name, value in QUEUED.items() if name != "queue_position"}
    read = FAL.read_poll(answer(shown | told))
    assert isinstance(read, Verdict)
    assert (read.outcome, read.status, read.free) == ("cancelled", "cancelled", free)


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        (NoAnswer(True, "reset", status=200, body=json.dumps(QUEUED).encode()), False),
        (answer({"detail": "Request not found"}, 404), True),
        (answer(HTML, 404), False),
        (answer({"detail": "Unauthorized"}, 401), False),
        (answer({"detail": "Too many requests"}, 429), False),
        (answer(QUEUED | {"status": "COMPLETED"}, 500), False),
        (answer(HTML, 502), False),
        (answer({"status": 3}), False),
        (answer([]), False),
    ],
)
def test_a_poll_that_tells_nothing_is_trouble(seen: Answer | NoAnswer, *, missing: bool) -> None:
    for read in (FAL.read_poll(seen), FAL.read_result(seen) if seen.status != 200 else None):
        if read is not None:
            assert isinstance(read, PollTrouble)
            assert read.missing == missing


# --- result ---------------------------------------------------------------------------------------------------------------

A, B = "https://v3.fal.media/files/a.png", "https://v3.fal.media/files/b.png"
RESULTS: list[tuple[dict[str, Any], list[FileRef]]] = [
    ({"images": [{"url": A, "width": 512, "height": 512, "content_type": "image/png"}], "seed": 1, "has_nsfw_concepts": [False]}, [FileRef(url=A)]),
    ({"images": [{"url": A}, {"url": B}, {"url": A}]}, [FileRef(url=A), FileRef(url=B)]),
    ({"images": [A]}, [FileRef(url=A)]),
    ({"image": {"url": A}}, [FileRef(url=A)]),
    ({"image": A}, [FileRef(url=A)]),
    ({"video": {"url": A, "file_size": 3}}, [FileRef(url=A)]),
    ({"data": {"images": [{"url": A}]}}, [FileRef(url=A)]),
    ({"images": [{"url": f"data:image/png;base64,{PNG}"}]}, [FileRef(data=b"\x89PNG picture")]),
    ({"images": [{"url": "file:///etc/passwd"}, {"url": 3}, None]}, []),
    ({"images": []}, []),
    ({}, []),
]  # fmt: skip


@pytest.mark.parametrize(("told", "files"), RESULTS)
def test_a_result_gives_its_files(told: dict[str, Any], files: list[FileRef]) -> None:
    read = FAL.read_result(answer(told))
    assert isinstance(read, Verdict)
    assert (read.outcome, list(read.files), read.cost, read.currency) == ("completed", files, None, "USD")  # fmt: skip


def test_words_are_a_result_of_text_models() -> None:
    read = FAL.read_result(answer({"output": "A cat sat.", "reasoning": None}))
    assert isinstance(read, Verdict)
    assert (read.files, read.text) == ((), "A cat sat.")


@pytest.mark.parametrize(
    ("seen", "failure", "free"),
    [
        (answer(model_error("content_policy_violation"), 422), "rejected", False),
        (answer(model_error("image_load_error", "Failed to load the image"), 422), "rejected", False),
        (answer({"detail": "Unprocessable"}, 422), "rejected", False),
        (answer({"detail": "Wrong size"}, 400, {"x-fal-retryable": "false"}), "rejected", False),
        (answer(model_error("internal_server_error"), 500), "down", True),
        (answer(model_error("generation_timeout"), 504), "down", True),
        (answer(model_error("generation_timeout"), 504, {"x-fal-request-timeout-type": "user"}), "down", False),
        (answer({"detail": "Broken"}, 500, {"x-fal-retryable": "true"}), "down", False),
        (answer({"detail": "Gone", "error_type": "runner_disconnected"}, 503), "down", True),
        (answer(model_error("no_media_generated")), "rejected", False),
    ],
    ids=range(10),
)  # fmt: skip
def test_a_result_that_is_the_models_own_error_is_a_failed_verdict(seen: Answer, failure: str, *, free: bool) -> None:  # fmt: skip
    read = FAL.read_result(seen)
    assert isinstance(read, Verdict)
    assert (read.outcome, read.failure, read.free, read.files) == ("failed", failure, free, ())
    assert read.reason


@pytest.mark.parametrize(
    "seen",
    [
        answer({"detail": "Request is still in progress"}, 400),
        answer({"detail": f"{LOCKED}Exhausted balance."}, 403),
        answer(model_error("missing"), 404),
        answer({"detail": "Internal Server Error"}, 500),
        # The read itself may have met these.
        answer({"detail": "An error", "error_type": "internal_error"}, 500),
        answer({"detail": "Request timed out", "error_type": "request_timeout"}, 504),
        answer(b"{"),
    ],
    ids=range(7),
)
def test_trouble_with_reading_a_result_is_no_verdict(seen: Answer) -> None:
    assert isinstance(FAL.read_result(seen), PollTrouble)


# --- hostile answers ------------------------------------------------------------------------------------------------------

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(
        st.sampled_from(["request_id", "status", "error", "error_type", "detail", "type", "msg", "images", "url",
                         "status_url", "output", "queue_position"]), inside, max_size=6),
    max_leaves=12,
)  # fmt: skip


@given(anything, st.sampled_from([200, 202, 400, 404, 422, 500, 503]))
def test_no_answer_breaks_the_reading_and_an_id_is_never_overlooked(told: Any, status: int) -> None:
    seen = answer(told, status, {"x-fal-error-type": "runner_disconnected"})
    read = FAL.read_submit(seen)
    named = told.get("request_id") if isinstance(told, dict) else None
    if status < 300 and isinstance(named, str) and named.isprintable() and named.strip():
        assert isinstance(read, Accepted)
    elif status < 300 and not isinstance(told, dict):
        assert isinstance(read, Refusal)
        assert read.charge is Charge.POSSIBLE
    for more in (FAL.read_poll(seen), FAL.read_result(seen)):
        assert not (isinstance(more, Verdict) and more.free and (more.files or status == 422))


# --- what it costs --------------------------------------------------------------------------------------------------------


def fact_of(verdict: Verdict) -> Any:
    at = datetime(2026, 11, 30, tzinfo=UTC)
    return at, facts.of_submit(TASK, verdict, at=at, limits=rules.limits(), kept={})


def test_a_failure_that_is_never_charged_is_settled_without_a_receipt() -> None:
    _at, fact = fact_of(Verdict("failed", free=True))
    assert (fact.failed, fact.receipt_final, fact.cost_receipt) == (True, True, Decimal(0))
    assert fact.next_receipt_at is None


@pytest.mark.parametrize(
    "verdict", [Verdict("failed"), Verdict("failed", free=True, cost=Decimal(1))]
)
def test_a_failure_that_may_have_cost_something_waits_for_its_receipt(verdict: Verdict) -> None:
    at, fact = fact_of(verdict)
    assert (fact.receipt_final, fact.cost_receipt) == (False, None)
    assert fact.next_receipt_at == at + timedelta(seconds=rules.RECEIPT_EVERY_S)
