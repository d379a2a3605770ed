"""How long an answer asks us to wait: every form, and that nonsense is the same as silence."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers import sentences, waits
from providers.classify import classify
from providers.contract import Answer, Charge, FailureClass

DATE = "Wed, 31 Dec 2025 22:00:00 GMT"
EPOCH = 1_767_218_400  # the same moment


def wait(
    headers: dict[str, str] | None = None,
    body: Any = None,
    *,
    status: int = 429,
    now: datetime | None = None,
) -> float | None:
    text = body if isinstance(body, str) else json.dumps(body or {})
    return classify(Answer(status, headers or {}, text.encode()), now=now).wait_s


def said(message: str, **headers: str) -> float | None:
    return wait(headers, {"error": {"message": message}})


@pytest.mark.parametrize(
    ("value", "told"),
    [("5", 5), ("0", 0), ("0.25", 0.25), (" 7 ", 7), ("86400", 86_400), ("30s", 30), ("1m30s", 90)],
)
def test_retry_after_in_seconds(value: str, told: float) -> None:
    assert wait({"retry-after": value}) == told


@pytest.mark.condition("R16")
def test_a_date_counts_from_the_answers_own_date_r16() -> None:
    """R16: Retry-After as HTTP date on a 429."""
    assert wait({"retry-after": "Wed, 31 Dec 2025 22:02:00 GMT", "date": DATE}) == 120
    assert wait({"retry-after": "Wed, 31 Dec 2025 22:02:00 GMT"}) is None
    now = datetime(2025, 12, 31, 22, 1, tzinfo=UTC)
    assert wait({"retry-after": "Wed, 31 Dec 2025 22:02:00 GMT"}, now=now) == 60


@pytest.mark.condition("R18")
@pytest.mark.parametrize(
    "value", ["-5", "-0.1", "Wed, 31 Dec 2025 21:59:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT"]
)
def test_negative_and_past_waits_are_absent_r18(value: str) -> None:
    """R18: a negative wait led to an immediate retry; absent means the normal backoff applies."""
    assert wait({"retry-after": value, "date": DATE}) is None


@pytest.mark.condition("R19")
@pytest.mark.parametrize(
    "value",
    [
        "Fri, 29 Sep 100000 16:26:57 GMT",
        "Wed, 31 Dec 99999 22:00:00 GMT",
        "9" * 5000,
        "1e400",
        "inf",
        "Infinity",
        "nan",
        "NaN",
        "120, 240",
        "Wed, 31 Dec 2025 22:02:00 -0000",
        "soon",
        "",
        "٣٠",
        "0x10",
        "99999999",
        "\x00",
        "Wed, 99 Foo 2025 99:99:99 GMT",
    ],
)
def test_junk_is_absent_and_raises_nothing_r19(value: str) -> None:
    """R19: years beyond 9999, digit runs, infinities, naive dates and lists."""
    assert wait({"retry-after": value, "date": DATE}) is None


@pytest.mark.condition("R22")
def test_each_answer_tells_its_own_wait_r22() -> None:
    """R22: a loop kept using the wait of the first refusal."""
    assert [wait({"retry-after": str(told)}) for told in (3, 30, 74)] == [3, 30, 74]


@pytest.mark.condition("R23")
def test_body_hints_come_after_headers_r23() -> None:
    """R23: no header, retryDelay "52s" and "retry in 52.454646382s" in the body."""
    body = {
        "error": {
            "message": "Quota exceeded. Please retry in 52.454646382s.",
            "details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "52s"}],
        }
    }
    told = wait(body=body)
    assert told is not None
    assert 52 <= told < 53
    assert wait({"retry-after": "9"}, body) == 9


@pytest.mark.condition("R25")
def test_an_epoch_is_told_by_its_magnitude_and_past_is_absent_r25() -> None:
    """R25: X-RateLimit-Reset as epoch was used as seconds; a past one stalled the client."""
    for value, told in (
        (str(EPOCH + 30), 30),
        (str((EPOCH + 30) * 1000), 30),
        ("30", 30),
        (str(EPOCH - 5), None),
        ("2025-12-31T22:00:30Z", 30),
        ("2025-12-31T22:00:30+01:00", None),
        ("6m0s", 360),
    ):
        assert wait({"x-ratelimit-reset": value, "date": DATE}) == told
    assert wait({"x-ratelimit-reset": str(EPOCH + 30)}) is None


def test_the_finer_header_goes_first() -> None:
    assert wait({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert wait({"retry-after-ms": "junk", "retry-after": "2"}) == 2


def test_a_field_in_milliseconds_goes_before_one_in_seconds() -> None:
    assert wait(body={"error": {"retry_after": 2, "retry_after_ms": 1500}}) == 1.5


def test_the_reset_of_the_exhausted_bucket_counts() -> None:
    headers = {
        "x-ratelimit-remaining-requests": "50",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert wait(headers) == 360
    headers["x-ratelimit-remaining-tokens"] = "7"
    assert wait(headers) is None


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('"default";r=0;t=30', 30),
        ('"daily";r=120;t=3600, "burst";r=0;t=12', 12),
        ('"minute";r=0;t=40, "day";r=0;t=7200', 7200),
        ('"default";r=5;t=30', None),
        ("limit=100, remaining=0, reset=42", 42),
        ("limit=100, remaining=3, reset=42", None),
        ('"default";r=0;t=99999999', None),
        ('"default";r=0;t=-5', None),
        ("r=0;t=", None),
    ],
)
def test_the_standard_ratelimit_field_in_both_drafts(value: str, told: float | None) -> None:
    assert wait({"ratelimit": value}) == told


def test_the_reset_headers_of_several_houses() -> None:
    anthropic = {
        "date": DATE,
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": "2025-12-31T22:00:25Z",
        "anthropic-ratelimit-tokens-remaining": "9000",
        "anthropic-ratelimit-tokens-reset": "2025-12-31T22:05:00Z",
    }
    assert wait(anthropic) == 25
    assert wait({"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "1.5"}) == 1.5
    assert wait({"ratelimit-remaining": "0", "ratelimit-reset": "31"}) == 31
    assert wait({"x-msh-retry-after": "4"}) == 4


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("retry_after", 5, 5),
        ("retryAfter", "30s", 30),
        ("retry_after_ms", 2500, 2.5),
        ("resets_in_seconds", 3600, 3600),
        ("estimated_time", 577.375, 577.375),
        ("retryDelay", {"seconds": "4", "nanos": 500_000_000}, 4.5),
        ("quotaResetDelay", "539.477544ms", 0.539477544),
        ("resets_at", EPOCH + 60, 60),
        ("reset_at", "2025-12-31T22:01:00.000Z", 60),
        ("retryAfterMs", 4200, 4.2),
        ("retry_after_seconds", 17, 17),
        ("retry_after_minutes", 5, 300),
        ("retry_after", "2025-12-31T22:01:10Z", 70),
        ("rateLimitNext", "2025-12-31T22:00:49.123456Z", 49),
        ("retry_count", 3, None),
        ("max_retries", 3, None),
        ("retry_after", -1, None),
        ("retry_after", True, None),
        ("retry_after", 1e300, None),
        ("estimated_time", None, None),
        ("resets_at", -5, None),
        ("reset_at", "2025-02-30T25:61:00Z", None),
    ],
)
def test_machine_fields_of_a_body(field: str, value: Any, told: float | None) -> None:
    got = wait({"date": DATE}, {"error": {"message": "slow down", field: value}})
    assert got == (told if told is None else pytest.approx(told))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Please try again in 7m12s.", 432),
        ("try again in 467ms", 0.467),
        ("Please try again in 1m30.002s.", 90.002),
        ("Please retry after 86400 seconds.", 86_400),
        ("Your rate limit resets in ~5s.", 5),
        ("Your quota will reset after 18h31m10s.", 66_670),
        ("try again after 1 minute 30 seconds", 90),
        ("Try again in 3 days, 4 hours and 12 minutes", 274_320),
        ("Expected available in 37 seconds.", 37),
        ("you have been timed out for 60 seconds", 60),
        ("Retry after 30", 30),
        ("Quota will be replenished in 02:33:15.", 9195),
        ("You will regain access on 2026-01-01 at 00:00 UTC", 7200),
        ("It will reset at 2026-01-01 06:30:00 +0800", 1800),
        ("Повторите попытку через 15 секунд", 15),
        ("Попробуйте через 2 минуты", 120),
        ("Подождите 45 сек.", 45),
        ("Лимит обновится через 5 часов", 18_000),
        ("لطفا ۳۰ ثانیه دیگر تلاش کنید", 30),
        ("بعد از ۲ دقیقه دوباره تلاش کنید", 120),
        ("حاول مرة أخرى بعد 20 ثانية", 20),
        ("请在 30 秒后重试", 30),
        ("请等待5分钟后重试", 300),
        ("将在 2026-01-01 06:10:00 重置", 600),
        ("10秒後に再試行してください", 10),
        ("Weekly usage limit reached. Resets in 6hr 29min.", 23_340),
        ("Retry in 1,200 seconds", 1200),
        ("Please try again after a minute.", 60),
        ("Try again in half an hour", 1800),
        ("You can submit the request after 49 seconds", 49),
        ("150 requests within a 10 second period; you are timed out for 60 seconds", 60),
        ("Rate limit of 50 per 86400s exceeded. Please wait 48236 seconds", 48_236),
        ("Попробуйте ещё раз через минуту", 60),
        ("Следующая генерация будет доступна через 5 ч 12 мин", 18_720),
        ("Повторите через 30 сек", 30),
        ("следующий запрос через полминуты", 30),
        ("۵ دقیقه دیگر دوباره تلاش کنید", 300),
        ("محدودیت ۱۰ درخواست در دقیقه؛ ۲۵ ثانیه دیگر مجددا تلاش کنید", 25),
        ("۲ ساعت و ۳۰ دقیقه دیگر تلاش کنید", 9000),
        ("يرجى الانتظار 15 دقيقة قبل المحاولة مجددا", 900),
        ("انتظر دقيقتين ثم حاول مجددًا", 120),
        ("请等待1分30秒后再试", 90),
        ("一分钟后重试", 60),
        ("20초 후에 다시 시도해 주세요", 20),
        ("Veuillez réessayer après 20 secondes.", 20),
        ("Inténtalo de nuevo en 45 segundos.", 45),
        ("Bitte versuchen Sie es in 2 Minuten erneut.", 120),
        ("Lütfen 30 saniye sonra tekrar deneyin.", 30),
        ("riprova tra 10 secondi", 10),
        ("Tente novamente em 1 minuto.", 60),
        ("Limit: 10 requests in 60 seconds", None),
        ("10 requests in 60 seconds are allowed, try again later", None),
        ("Only 10 requests per 60 seconds; wait and retry", None),
        ("If you created it within the last 5 minutes, please wait a moment and retry", None),
        ("Timed out after 60 seconds, please retry", None),
        ("It took 90 seconds and was cut off, try again", None),
        ("Free calls reset every 24 hours", None),
        ("Wait and try your request again", None),
        ("Wait a day or so: 100 requests a day", 86_400),
        ("Retry with a 3D image of 4M pixels", None),
        ("1分钟内最多请求10次，请稍后再试", None),
        ("本月额度已用尽，下月1日重置", None),
        ("Не более 5 запросов в 60 секунд, попробуйте позже", None),
        ("در ۶۰ ثانیه فقط ۱۰ درخواست، بعدا تلاش کنید", None),
        ("limited to 6 requests per minute", None),
        ("Limit: 3.000000 / min. Current: 3.000000 / min.", None),
        ("wait a few minutes", None),
        ("try again later", None),
        ("try again in 999999999 days", None),
        ("the period of 10 second", None),
    ],
)
def test_sentences_in_several_languages(message: str, told: float | None) -> None:
    got = said(message, date=DATE)
    assert got == (told if told is None else pytest.approx(told))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Daily limit reached, resets at 00:00 UTC", 7200),
        ("Resets at midnight UTC", 7200),
        ("Your limit will reset at 3pm (UTC).", 61_200),
        ("resets 2:30pm (Asia/Calcutta)", 39_600),
        ("resets Jan 2, 7pm (Asia/Riyadh)", 151_200),
        ("resets at 01:30 UTC+3", 1800),
        ("Лимит обновится в 03:00 по московскому времени", 7200),
        ("将于明天 10:00 重置", 100_800),
        ("resets tomorrow at 23:00 UTC", 90_000),
        ("resets at 22:00 UTC", 86_400),
        ("Your limit resets at 3pm", None),
        ("resets at 25:61 UTC", None),
        ("resets Feb 30, 7pm (UTC)", None),
        ("resets at 7pm (Asia/Nowhere)", None),
        ("it failed at 23:00 UTC", None),
    ],
)
def test_clock_times_need_a_zone_and_count_from_the_answers_date(
    message: str, told: float | None
) -> None:
    assert said(message, date=DATE) == told
    assert said(message) is None


def test_a_unix_time_after_a_bar_is_a_moment() -> None:
    assert wait({"date": DATE}, f"usage limit reached|{EPOCH + 600}") == 600


def _names(listed: str) -> st.SearchStrategy[str]:
    return st.sampled_from(listed.split())


# --- fuzzing --------------------------------------------------------------------------------------------------------------

_WORDS = _names(
    """quota exceeded rate limit resets at 25:61 7pm Feb 30 (Asia/Tehran) UTC+99 midnight полминуты دقیقتین retry after in try again 5 s ms minutes -1 1e999 9999999999999999 nan per day : | " ' { } [ ]
    prompt insufficient balance \x00 \ud800 7m12s 2025-12-31T22:00:00Z 31 Dec через секунд 秒后 ثانیه 401 429 limit: 0"""
)
_SENTENCES = st.lists(_WORDS | st.text(max_size=12), max_size=25).map(" ".join)
_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | _SENTENCES
    | st.integers(10**11, 10**16)
)
_KEYS = _names(
    """error message code status type detail reason retry_after retryDelay resets_at reset retry_after_ms estimated_time
    id data prompt base_resp errors metadata raw headers wait seconds nanos"""
) | st.text(max_size=6)
_JSON = st.recursive(
    _LEAVES,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(_KEYS, inside, max_size=5),
    max_leaves=20,
)
_BODIES = (
    st.binary(max_size=200)
    | _SENTENCES.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | _JSON.map(lambda document: json.dumps(document).encode())
    | _JSON.map(lambda document: b"data: " + json.dumps(document).encode() + b"\n\n")
    | _JSON.map(lambda document: f"upstream said {document!r}".encode("utf-8", "surrogatepass"))
)
_HEADERS = st.dictionaries(
    _names(
        """retry-after retry-after-ms date x-ratelimit-reset x-ratelimit-remaining ratelimit-reset content-type
        x-ratelimit-reset-requests x-ratelimit-remaining-requests x-retry-after ratelimit"""
    ),
    _SENTENCES
    | st.text(max_size=40)
    | st.integers().map(str)
    | st.floats().map(str)
    | st.datetimes().map(lambda moment: moment.strftime("%a, %d %b %Y %H:%M:%S GMT"))
    | st.datetimes().map(datetime.isoformat),
    max_size=5,
)


@given(status=st.integers(100, 999), headers=_HEADERS, body=_BODIES, submit=st.booleans())
def test_nothing_that_arrives_makes_classification_raise_or_wait_out_of_bounds(
    status: int, headers: dict[str, str], body: bytes, submit: bool
) -> None:
    refusal = classify(Answer(status, headers, body), submit=submit)
    assert isinstance(refusal.failure, FailureClass)
    assert refusal.charge in (Charge.NONE, Charge.POSSIBLE)
    if refusal.failure is FailureClass.UNKNOWN or status in (408, 424, 425, 499):
        assert refusal.charge is Charge.POSSIBLE
    assert refusal.wait_s is None or (
        math.isfinite(refusal.wait_s) and 0 <= refusal.wait_s <= sentences.MAX_WAIT_S
    )
    assert len(refusal.reason) <= 300
    refusal.reason.encode()
    refusal.code.encode()
    assert "\x00" not in refusal.reason + refusal.code


@given(text=st.text(max_size=80) | _SENTENCES)
def test_no_text_is_a_duration_or_date_out_of_bounds(text: str) -> None:
    told = sentences.duration(text)
    assert told is None or 0 <= told <= sentences.MAX_WAIT_S
    date = waits.http_date(text)
    assert date is None or date.tzinfo is not None


@pytest.mark.parametrize(
    "body",
    [
        b"limit " * 40_000,
        b'"' * 20_000,
        b"1 s " * 9000,
        b"prompt: '" * 9000,
        b'{"a":' * 5000,
        b"[" * 100_000,
    ],
    ids=lambda body: body[:8].decode(),
)
def test_a_hostile_body_is_judged_like_any_other(body: bytes) -> None:
    assert classify(Answer(400, {}, body)).failure is not FailureClass.UNSENT
