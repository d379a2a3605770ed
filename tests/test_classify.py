"""What a refusing answer means: the order of tests, the table of classes and charges, and the corpora."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import classify as bench
from providers.adapters.polza import RULES as POLZA
from providers.classify import classify
from providers.contract import Answer, Charge, FailureClass, NoAnswer, Refusal, Scope

RATE = FailureClass.RATE_LIMITED
QUOTA = FailureClass.QUOTA_EXHAUSTED
UNAUTHORIZED = FailureClass.UNAUTHORIZED
REJECTED = FailureClass.REJECTED
DOWN = FailureClass.DOWN
UNKNOWN = FailureClass.UNKNOWN
UNSENT = FailureClass.UNSENT
FREE = Charge.NONE
POSSIBLE = Charge.POSSIBLE

HTML = {"content-type": "text/html"}
DATA = Path(__file__).parent / "data"


def answer(status: int, body: Any = "", headers: dict[str, str] | None = None) -> Answer:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return Answer(status, headers or {}, text.encode())


def meaning(status: int, body: Any = "", headers: dict[str, str] | None = None) -> Refusal:
    return classify(answer(status, body, headers))


def error(message: str, **more: object) -> dict[str, object]:
    return {"error": {"message": message, **more}}


# --- the corpora ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "corpus", ["error-corpus.jsonl", "error-gathered.jsonl", "error-composed.jsonl"]
)
def test_the_corpora_are_understood(corpus: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = bench.measure(DATA / corpus)
    with capsys.disabled():
        print(f"\n{corpus}\n{bench.table(report['figures'])}")  # noqa: T201 - the confusion table belongs in the test's output
    assert report["ok"], report["figures"]["wrong"]
    assert report["figures"]["waits_invented"] == 0, "a window or a timeout was taken for a wait"


def test_the_bench_prints_one_object_and_its_exit_code_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"name", "ok", "figures", "limits", "machine"}
    assert report["figures"]["lines"] == 131
    assert report["figures"]["gathered"]["lines"] > 500
    wrong = tmp_path / "wrong.jsonl"
    line = {
        "id": "x",
        "provider": "x",
        "status": 429,
        "headers": {},
        "body": "",
        "expected": "down",
        "retry_after_s": 3,
        "charge_risk": "possible",
    }
    wrong.write_text(json.dumps(line))
    assert bench.main(["--corpus", str(wrong)]) == 1
    assert "NOT ok" in capsys.readouterr().out


# --- 1 and 2: no complete answer ------------------------------------------------------------------------------------------


def test_what_never_left_is_unsent_and_free() -> None:
    assert classify(NoAnswer(sent=False, reason="refused", ours=True)) == Refusal(
        UNSENT, FREE, "refused", ours=True
    )


@pytest.mark.condition("R74")
def test_an_unreachable_host_is_unsent_and_counts_against_the_provider_r74() -> None:
    """R74: connection errors must not be excluded from what is known about a provider."""
    refusal = classify(NoAnswer(sent=False, reason="ConnectError: no route to host"))
    assert (refusal.failure, refusal.ours) == (UNSENT, False)


def test_what_may_have_left_without_an_answer_is_unknown_and_may_cost() -> None:
    for got in (
        NoAnswer(sent=True, reason="reset"),
        NoAnswer(sent=True, reason="cut", status=429, body=b'{"error":"rate limit'),
        NoAnswer(
            sent=True, reason="cut", status=200, body=b'{"error":{"code":"INSUFFICIENT_BALANCE'
        ),
    ):
        refusal = classify(got)
        assert (refusal.failure, refusal.charge) == (UNKNOWN, POSSIBLE)


@pytest.mark.condition("R29")
def test_a_type_survives_every_layer_r29() -> None:
    """R29: unsent, refused and unknown must not be flattened into one error."""
    unsent = classify(NoAnswer(sent=False, reason="x"))
    unknown = classify(NoAnswer(sent=True, reason="x"))
    refused = meaning(400, error("bad"))
    assert len({unsent.failure, unknown.failure, refused.failure}) == 3
    assert [one.charge for one in (unsent, unknown, refused)] == [FREE, POSSIBLE, FREE]


# --- 3: success that is none ----------------------------------------------------------------------------------------------


@pytest.mark.condition("R12")
@pytest.mark.parametrize("body", [{"data": []}, {"choices": []}, [], {}, "", "OK", {"created": 1}])
def test_a_200_without_a_result_is_unknown_and_may_cost_r12(body: Any) -> None:
    """R12: an empty list under 200 is no success, and what it cost is not known."""
    refusal = meaning(200, body)
    assert (refusal.failure, refusal.charge) == (UNKNOWN, POSSIBLE)


def test_an_error_under_200_is_judged_by_its_envelope() -> None:
    refusal = meaning(200, {"status": 429, "message": "Too many requests"})
    assert (refusal.failure, refusal.charge) == (RATE, FREE)


@pytest.mark.parametrize(
    "body",
    [
        {"id": "gen-1", "error": {"message": "Rate limit exceeded", "code": 429}},
        {"code": 402, "msg": "Insufficient credits", "data": {"taskId": "t1"}},
        {
            "output": {
                "task_status": "FAILED",
                "code": "DataInspectionFailed",
                "message": "Bad input",
            }
        },
        {"choices": [{"finish_reason": "error"}], "error": {"message": "Insufficient credits"}},
        'data: {"error":{"message":"Rate limit exceeded","code":429}}\n\n',
    ],
    ids=["an id", "a task id inside", "a task that ended", "some of a result", "a stream"],
)
def test_an_error_after_the_start_may_cost_however_it_is_worded(body: Any) -> None:
    assert meaning(200, body).charge is POSSIBLE


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        ({"id": "x", "state": "failed", "failure_reason": "Moderation failed"}, REJECTED),
        ({"id": "x", "status": "FAILED", "failure": "Content policy violation"}, REJECTED),
        ({"id": "x", "status": "Request Moderated", "result": None}, REJECTED),
        ({"name": "x", "done": True, "error": {"code": 3, "message": "Bad request"}}, REJECTED),
        ({"data": {"task_id": "x", "task_status": "failed", "task_status_msg": "NSFW"}}, REJECTED),
    ],
)
def test_a_task_that_ended_badly_tells_why_under_each_providers_keys(
    body: Any, failure: FailureClass
) -> None:
    refusal = meaning(200, body)
    assert (refusal.failure, refusal.charge) == (failure, POSSIBLE)


# --- 4: not the provider speaking -----------------------------------------------------------------------------------------

PAGE = "<!DOCTYPE html><html><head><title>Sorry: quota exceeded, rate limit</title></head></html>"


@pytest.mark.parametrize(
    "status", [200, 302, 408, 499, 500, 502, 503, 504, 520, 521, 522, 524, 529]
)
def test_a_page_is_not_the_provider_speaking(status: int) -> None:
    refusal = meaning(status, PAGE, HTML)
    assert (refusal.failure, refusal.charge) == (UNKNOWN, POSSIBLE)


@pytest.mark.parametrize(
    ("status", "failure"), [(401, UNAUTHORIZED), (403, REJECTED), (413, REJECTED), (429, RATE)]
)
def test_a_page_on_a_4xx_goes_by_the_status(status: int, failure: FailureClass) -> None:
    refusal = meaning(status, PAGE, HTML)
    assert (refusal.failure, refusal.charge, refusal.target_stops) == (failure, FREE, False)


@pytest.mark.parametrize(
    "text",
    [
        "upstream connect error or disconnect/reset before headers",
        "no healthy upstream",
        "error code: 522",
    ],
)
def test_a_gateways_plain_words_on_a_5xx_are_unknown(text: str) -> None:
    refusal = meaning(503, text)
    assert (refusal.failure, refusal.charge) == (UNKNOWN, POSSIBLE)


# --- 5: the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "failure", "charge"),
    [
        (429, error("Too many requests"), RATE, FREE),
        (429, {}, RATE, FREE),
        (402, error("Insufficient credits"), QUOTA, FREE),
        (403, error("Exhausted balance. Top up your balance"), QUOTA, FREE),
        (403, error("Key limit exceeded"), QUOTA, FREE),
        (429, error("You have reached your weekly limit"), QUOTA, FREE),
        (401, {}, UNAUTHORIZED, FREE),
        (403, error("Your API key has been revoked"), UNAUTHORIZED, FREE),
        (400, error("bad size"), REJECTED, FREE),
        (404, error("no such picture"), REJECTED, FREE),
        (413, {}, REJECTED, FREE),
        (422, {}, REJECTED, FREE),
        (400, error("Rejected by our content policy"), REJECTED, FREE),
        (503, error("The model is overloaded"), DOWN, FREE),
        (503, error("Model is currently loading"), DOWN, FREE),
        (503, error("No capacity available for model x"), DOWN, FREE),
        (429, error("The engine is currently overloaded"), DOWN, FREE),
        (500, error("Internal server error"), DOWN, POSSIBLE),
        (503, error("Service unavailable"), DOWN, POSSIBLE),
        (500, error("The model is overloaded"), DOWN, POSSIBLE),
        (503, error("Timed out because of high load"), DOWN, POSSIBLE),
        (504, error("Request timed out"), DOWN, POSSIBLE),
        (409, error("conflict"), REJECTED, POSSIBLE),
        (498, error("This tier is at capacity"), DOWN, FREE),
        (500, error("Rate limit exceeded"), RATE, FREE),
        (500, error("Insufficient balance"), QUOTA, FREE),
        (500, error("The worker could not slow down: too many active jobs"), RATE, POSSIBLE),
        (502, error("Budget used while drawing"), QUOTA, POSSIBLE),
        (500, error("Generation failed: rate limit exceeded"), RATE, POSSIBLE),
        (500, error("Memory limit exceeded"), DOWN, POSSIBLE),
        (422, error("No media was generated"), REJECTED, POSSIBLE),
        (400, error("Downstream service error"), DOWN, POSSIBLE),
        (422, error("Generation failed"), DOWN, POSSIBLE),
        (418, {}, UNKNOWN, POSSIBLE),
        (302, "", UNKNOWN, POSSIBLE),
        (500, "", UNKNOWN, POSSIBLE),
    ],
)
def test_class_and_charge_by_the_table(
    status: int, body: Any, failure: FailureClass, charge: Charge
) -> None:
    refusal = meaning(status, body)
    assert (refusal.failure, refusal.charge) == (failure, charge)


@pytest.mark.parametrize("status", [408, 424, 425, 499, 504, 524])
@pytest.mark.parametrize(
    "message", ["timeout", "rate limit exceeded", "insufficient balance", "invalid"]
)
def test_an_open_outcome_is_never_free_whatever_it_says(status: int, message: str) -> None:
    assert meaning(status, error(message)).charge is POSSIBLE


def test_a_moderated_result_may_have_cost_and_a_moderated_prompt_has_not() -> None:
    before = meaning(400, error("Your prompt was flagged by the content filter"))
    after = meaning(400, error("The generated image was filtered by the content filter"))
    assert (before.failure, before.charge) == (REJECTED, FREE)
    assert (after.failure, after.charge) == (REJECTED, POSSIBLE)


@pytest.mark.condition("R04")
def test_a_402_in_flight_is_transient_and_any_other_is_quota_r04() -> None:
    """R04: credit held by calls in flight comes back by itself; an empty account does not."""
    marked = meaning(
        402, error("Credit is held", metadata={"limit_source": "openrouter_in_flight_budget"})
    )
    hinted = meaning(402, error("Insufficient credits"), {"retry-after": "4"})
    empty = meaning(402, error("Insufficient credits"))
    assert [one.failure for one in (marked, hinted, empty)] == [RATE, RATE, QUOTA]
    assert hinted.wait_s == 4


@pytest.mark.condition("R06")
def test_the_outer_status_never_hides_the_inner_class_r06() -> None:
    """R06: a gateway that wraps a 429 into a 500 still tells a rate limit, and its wait."""
    inner = "{'error': {'message': 'Rate limit reached. Please try again in 20s.', 'code': 'rate_limit_exceeded'}}"
    for body in (
        error(f"upstream answered 429: {inner}", code=500),
        error("x", code=429, metadata={"headers": {"Retry-After": "20"}}),
    ):
        refusal = meaning(500, body)
        assert (refusal.failure, refusal.wait_s) == (RATE, 20)


@pytest.mark.condition("R07")
def test_a_402_is_quota_and_no_server_error_r07() -> None:
    """R07: a 402 was logged as a 5xx and retried with backoff."""
    for body in ("", {}, error("5xx error"), error("Payment Required")):
        assert meaning(402, body).failure is QUOTA


def test_an_upstreams_rejected_key_is_not_ours() -> None:
    body = error("Provider error", metadata={"raw": '{"error":{"code":"unauthorized"}}'})
    refusal = classify(answer(502, body), rules=POLZA)
    assert (refusal.failure, refusal.charge) == (DOWN, POSSIBLE)


# --- windows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("You exceeded your current quota. Please retry in 44.1s.", RATE),
        ("You exceeded your current quota.", QUOTA),
        ("Rate limit reached on requests per day (RPD). Please try again in 7m12s.", RATE),
        ("Rate limit reached on requests per day (RPD).", QUOTA),
        ("Rate limit reached. Try again in 59 minutes.", RATE),
        ("Rate limit reached. Try again in 1 hour.", QUOTA),
        ("Quota exceeded for GenerateRequestsPerDayPerProject. Please retry in 10s.", QUOTA),
        ("rate quota limit exceeded: 10 requests per second", RATE),
        ("Превышен лимит запросов в минуту", RATE),
        ("Исчерпан лимит расходов ключа на неделю", QUOTA),
        ("سهمیه روزانه شما تمام شد", QUOTA),
        ("Rate limit exceeded: your per-minute image budget is used. Retry in 18s.", RATE),
        ("High demand: limited to 1 requests per minute. Rate limit exceeded.", RATE),
        ("Individual quota reached. Resets in 164h27m24s.", QUOTA),
        ("60-minute credit limit exceeded", RATE),
        ("Вы израсходовали все бесплатные генерации", QUOTA),
        ("Дождитесь конца: уже две одновременных генерации, превышен лимит", RATE),
        ("ظرفیت روزانه شما تکمیل شده است", QUOTA),
        ("今日免费次数已用完", QUOTA),
        ("Tageslimit erreicht", QUOTA),
        ("请求过于频繁", RATE),
        ("账户余额不足，请充值", QUOTA),
    ],
)
def test_short_windows_are_speed_and_long_ones_or_money_are_quota(
    message: str, failure: FailureClass
) -> None:
    assert meaning(429, error(message)).failure is failure


def test_try_again_later_alone_is_not_quota() -> None:
    assert meaning(503, error("Please try again later")).failure is DOWN
    assert meaning(524, error("Request timed out. Please try again later.")).failure is DOWN


def test_what_can_never_fit_is_rejected_even_under_429() -> None:
    body = error(
        "Request too large on tokens per min (TPM): Limit 30000, Requested 45000. Must be reduced.",
        code="rate_limit_exceeded",
    )
    assert meaning(429, body).failure is REJECTED


# --- echoes ---------------------------------------------------------------------------------------------------------------

LURE = "a poster: QUOTA EXCEEDED, insufficient balance, rate limit, invalid api key, retry after 30 seconds"


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Unsupported size", "prompt": LURE}},
        {"error": {"message": "Unsupported size"}, "input": {"prompt": LURE}},
        {"error": {"message": "Unsupported size"}, "request": {"messages": [{"content": LURE}]}},
        {"detail": [{"loc": ["body"], "msg": "Bad size", "input": LURE, "ctx": {"given": LURE}}]},
        error(f"Bad value for prompt: '{LURE}'"),
        error(f'The text "{LURE}" could not be drawn'),
        error(f"Invalid prompt: {LURE}"),
        error(f"Недопустимый промпт: «{LURE}»"),
        error(f"无效的提示词：{LURE}"),
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_an_echoed_prompt_fools_nobody(body: Any, status: int) -> None:
    refusal = meaning(status, body)
    assert (refusal.failure, refusal.charge, refusal.wait_s) == (REJECTED, FREE, None)


def test_an_echoed_prompt_makes_no_500_free() -> None:
    refusal = meaning(500, error(f"Failed on prompt: {LURE}"))
    assert (refusal.failure, refusal.charge) == (DOWN, POSSIBLE)


# --- what else a refusal tells --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "stops"),
    [
        (404, error("The model `x` does not exist or you do not have access to it"), True),
        (400, error("Model 'x' does not exist", code="model_not_found"), True),
        (404, "404 page not found", True),
        (404, error("App not found: x"), True),
        (402, error("Model is not enabled for this tariff"), True),
        (301, "", True),
        (404, error("Image not found"), False),
        (404, error("Record not found"), False),
        (422, error("Requested model does not support functions"), False),
        (400, error("Invalid size"), False),
        (403, error("Forbidden"), False),
    ],
)
def test_a_wrong_model_or_route_stops_the_target_and_one_bad_job_does_not(
    status: int, body: Any, stops: bool
) -> None:
    assert meaning(status, body).target_stops is stops
    assert not classify(answer(status, body), submit=False).target_stops


def test_a_limit_of_one_model_leaves_the_account_alone() -> None:
    assert meaning(429, error("Rate limit reached for model x")).scope is Scope.MODEL
    assert meaning(503, error("The model is overloaded")).scope is Scope.MODEL
    assert meaning(429, error("Too many requests")).scope is Scope.ACCOUNT
    assert meaning(402, error("Insufficient credit to run this model")).scope is Scope.ACCOUNT


def test_the_reason_is_short_readable_and_without_keys() -> None:
    refusal = meaning(
        401, error("Incorrect API key provided: sk-abcdefghijklmnop1234", code="invalid_api_key")
    )
    assert refusal.reason.startswith("HTTP 401: Incorrect API key provided: sk-[hidden]")
    assert refusal.code == "invalid_api_key"
    assert refusal.status == 401
    long = meaning(400, json.dumps(error("bad\x00\ud800 " * 500)))
    assert len(long.reason) <= 300
    assert "\x00" not in long.reason
