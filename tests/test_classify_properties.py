"""Classification over made-up answers: what may be free, whose words count, and that a prompt sent back counts for nothing.

That it never raises and keeps waits within bounds is tested in test_classify_waits.py over arbitrary bytes; here the
answers look like a provider's, and each is told in many shapes.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from providers.adapters.polza import Polza
from providers.classify import classify
from providers.contract import Accepted, Answer, Charge, FailureClass, NoAnswer, Refusal, Verdict

FREE, POSSIBLE = Charge.NONE, Charge.POSSIBLE

STATUSES = st.sampled_from(
    [200, 202, 301, 307, 400, 401, 402, 403, 404, 405, 408, 409, 413, 415, 422, 424, 425, 429, 451, 499, 500, 502, 503, 504, 520, 524, 529]
)  # fmt: skip
# Each says one thing in a provider's own words.
SENTENCES = [
    "Unsupported size",
    "Invalid value for parameter n",
    "Insufficient balance, please top up",
    "Недостаточно средств на балансе",
    "You exceeded your monthly quota",
    "Rate limit reached, please try again in 20 seconds",
    "Too many requests per minute",
    "请求过于频繁",
    "Invalid API key provided",
    "The model does not exist",
    "Your prompt was rejected by the safety system",
    "The generated image was blocked",
    "The server is overloaded, please try again later",
    "No providers available",
    "Internal server error",
    "upstream timed out",
    "Something unexpected happened",
    "اعتبار شما کافی نیست",
]
CODES = [
    None,
    "invalid_request_error",
    "insufficient_quota",
    "rate_limit_exceeded",
    "server_error",
    "some_new_word",
    "429",
    "500",
]
# What a prompt may say; none of it is a provider's word.
LURES = st.lists(
    st.sampled_from(
        [
            "a poster: QUOTA EXCEEDED", "insufficient balance", "rate limit reached", "invalid api key", "service overloaded",
            "retry after 30 seconds", "model not found", "free of charge", "request rejected by the safety system",
            "недостаточно средств", "请求过于频繁", "status 503", "try again in 5 minutes", "timed out", "context length exceeded",
        ]
    ),
    min_size=1,
    max_size=4,
).map(", ".join)  # fmt: skip


def said(sentence: str, code: str | None, shape: str) -> Any:
    """A provider's error in one of the usual envelopes."""
    coded = {"code": code} if code is not None else {}
    match shape:
        case "error":
            return {"error": {"message": sentence, **coded}}
        case "flat":
            return {"message": sentence, **coded, "success": False}
        case "detail":
            return {"detail": [{"msg": sentence, "loc": ["body", "input"], **coded}]}
        case "wrapped":
            return {
                "error": {
                    "message": "upstream said: "
                    + json.dumps({"error": {"message": sentence, **coded}})
                }
            }
        case _:
            return sentence


def echoed(document: Any, lure: str, where: str) -> Any:
    """The same answer with our own request sent back in it."""
    if not isinstance(document, dict):
        return document + f" (prompt: «{lure}»)" if where == "quoted" else document
    match where:
        case "prompt":
            return {**document, "prompt": lure}
        case "input":
            return {**document, "input": {"prompt": lure, "size": "1:1"}}
        case "request":
            return {**document, "request": {"messages": [{"role": "user", "content": lure}]}}
        case "params":
            return {**document, "params": [lure], "parameters": {"caption": lure}}
        case "quoted" if (
            isinstance(document.get("error"), dict)
            and "upstream" not in document["error"]["message"]
        ):
            error = document["error"]
            return {
                **document,
                "error": {**error, "message": f'{error["message"]} (prompt: "{lure}")'},
            }
        case _:
            return document


def answer(status: int, document: Any, headers: dict[str, str] | None = None) -> Answer:
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return Answer(status, headers or {}, text.encode())


SAID = st.builds(
    said,
    st.sampled_from(SENTENCES),
    st.sampled_from(CODES),
    st.sampled_from(["error", "flat", "detail", "wrapped", "bare"]),
)
ECHOES = st.sampled_from(["prompt", "input", "request", "params", "quoted"])
HEADERS = st.sampled_from([{}, {"retry-after": "7"}, {"x-request-id": "quota exceeded"}])


def judged(refusal: Refusal) -> tuple[Any, ...]:
    return refusal.failure, refusal.charge, refusal.wait_s, refusal.scope, refusal.target_stops


@given(
    status=STATUSES, document=SAID, lure=LURES, where=ECHOES, headers=HEADERS, submit=st.booleans()
)
def test_a_prompt_sent_back_changes_nothing_that_is_judged(
    status: int, document: Any, lure: str, where: str, headers: dict[str, str], submit: bool
) -> None:
    plain = classify(answer(status, document, headers), submit=submit)
    with_echo = classify(answer(status, echoed(document, lure, where), headers), submit=submit)
    assert judged(with_echo) == judged(plain)


# --- what may be free -------------------------------------------------------------------------------------------------

# By status alone: whatever the words, the request may be running, or have run.
NEVER_FREE = {408, 424, 425, 499}
# A 5xx is free in two cases only: no room was left to begin in, or the account has no money, no right or no rate for it.
FREE_UNDER_5XX = {FailureClass.DOWN, FailureClass.QUOTA_EXHAUSTED, FailureClass.RATE_LIMITED}


@given(status=STATUSES, document=SAID, headers=HEADERS)
def test_an_answer_is_free_only_where_a_listed_rule_says_so(
    status: int, document: Any, headers: dict[str, str]
) -> None:
    refusal = classify(answer(status, document, headers))
    if refusal.charge is not FREE:
        assert refusal.charge is POSSIBLE
        return
    assert status not in NEVER_FREE
    assert refusal.failure not in {FailureClass.UNKNOWN, FailureClass.UNSENT}
    if status >= 500:
        assert refusal.failure in FREE_UNDER_5XX
        if refusal.failure is FailureClass.DOWN:
            assert status in {503, 529}
    if refusal.failure is FailureClass.REJECTED:
        assert status < 500
        assert status not in {409, 412, 423, 428}


@given(
    status=STATUSES,
    document=SAID,
    id_name=st.sampled_from(["id", "task_id"]),
    word=st.sampled_from(["failed", "cancelled"]),
)
def test_nothing_is_free_once_a_task_is_named_as_ended(
    status: int, document: Any, id_name: str, word: str
) -> None:
    if not isinstance(document, dict):
        return
    refusal = classify(answer(status, {**document, id_name: "gen_1", "status": word}))
    assert refusal.charge is POSSIBLE


@given(
    reason=st.text(max_size=40),
    status=st.none() | STATUSES,
    body=st.binary(max_size=80),
    ours=st.booleans(),
)
def test_without_a_complete_answer_only_what_never_left_is_free(
    reason: str, status: int | None, body: bytes, ours: bool
) -> None:
    left = classify(NoAnswer(sent=True, reason=reason, status=status, body=body, ours=ours))
    assert (left.failure, left.charge) == (FailureClass.UNKNOWN, POSSIBLE)
    stayed = classify(NoAnswer(sent=False, reason=reason, ours=ours))
    assert (stayed.failure, stayed.charge, stayed.ours) == (FailureClass.UNSENT, FREE, ours)


@given(status=STATUSES, words=st.sampled_from(SENTENCES), title=st.booleans())
def test_a_page_on_a_5xx_is_nobodys_word(status: int, words: str, title: bool) -> None:
    page = (
        f"<html><title>{words}</title></html>"
        if title
        else f"<html><body><h1>{words}</h1></body></html>"
    )
    refusal = classify(answer(status, page, {"content-type": "text/html"}))
    if status >= 500 or status in NEVER_FREE:
        assert (refusal.failure, refusal.charge) == (FailureClass.UNKNOWN, POSSIBLE)
    other = classify(
        answer(status, "<html><body>hello</body></html>", {"content-type": "text/html"})
    )
    assert (refusal.failure, refusal.charge) == (other.failure, other.charge)


@given(status=STATUSES, document=SAID, headers=HEADERS)
def test_asking_about_a_target_never_stops_it(
    status: int, document: Any, headers: dict[str, str]
) -> None:
    sent = classify(answer(status, document, headers))
    asked = classify(answer(status, document, headers), submit=False)
    assert not asked.target_stops
    assert (asked.failure, asked.charge, asked.wait_s) == (sent.failure, sent.charge, sent.wait_s)


# --- an adapter over the same answers -----------------------------------------------------------------------------------

POLZA = Polza()
NAMED = st.sampled_from(["", "gen_1"])


@given(status=STATUSES, document=SAID, name=NAMED, cut=st.booleans())
def test_an_id_that_was_read_is_never_thrown_away(
    status: int, document: Any, name: str, cut: bool
) -> None:
    """A 2xx that names a task is kept whatever else is in it, cut or not; without a name there is nothing to keep."""
    assume(isinstance(document, dict))
    whole = answer(status, {"id": name, **document} if name else document)
    got: Answer | NoAnswer = whole
    if cut:
        got = NoAnswer(sent=True, reason="cut", status=status, body=whole.body[:-1])
    read = POLZA.read_submit(got)
    if name and 200 <= status < 300:
        assert isinstance(read, Accepted | Verdict)
        assert read.provider_id == name
    elif cut:
        assert isinstance(read, Refusal)
        assert (read.failure, read.charge) == (FailureClass.UNKNOWN, POSSIBLE)


@given(status=STATUSES, document=SAID, lure=LURES, where=ECHOES)
def test_an_adapter_reads_past_a_prompt_sent_back_too(
    status: int, document: Any, lure: str, where: str
) -> None:
    plain = POLZA.read_submit(answer(status, document))
    with_echo = POLZA.read_submit(answer(status, echoed(document, lure, where)))
    assert type(with_echo) is type(plain)
    if isinstance(plain, Refusal) and isinstance(with_echo, Refusal):
        assert judged(with_echo) == judged(plain)
