"""Codes that mean what they say: situation -> status and code -> Retry-After. First the decisions, then the answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import OperationalError
from django.test import Client

from jobs.api import admission, problems
from jobs.api.admission import Place, Standing, judge, over, standing, within_reach
from jobs.api.problems import Code, Problem
from jobs.budgets import Budget, Limit, Period, Spent
from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.models import Batch, Hold, Job
from providers import registry
from providers.models import Target
from providers.word import Phrase, Told, Word
from tests import api_calls, factories

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BOTH = frozenset({"refused", "quota", "down"})


def at(standing_: Standing, seconds: float | None = None) -> Place:
    until = None if seconds is None else NOW + timedelta(seconds=seconds)
    return Place(target="polza:x", standing=standing_, until=until, words="w")


OPEN, SHUT = at(Standing.OPEN), at(Standing.SHUT)

# places within reach, max_wait_s -> code, Retry-After
JUDGED: list[tuple[list[Place], float | None, Code | None, float | None]] = [
    ([OPEN], None, None, None),
    ([OPEN], 0, None, None),
    ([at(Standing.DOWN, 40)], None, Code.DOWN, 40),
    ([at(Standing.DOWN, 40)], 3600, Code.DOWN, 40),
    ([at(Standing.DOWN)], None, Code.DOWN, admission.DOWN_RETRY_S),
    ([at(Standing.DOWN, 90), at(Standing.DOWN, 30)], None, Code.DOWN, 30),
    ([at(Standing.DOWN, 90), OPEN], None, None, None),
    ([at(Standing.BLOCKED, 600)], None, None, None),
    ([at(Standing.BLOCKED, 600)], 600, None, None),
    ([at(Standing.BLOCKED, 600)], 599, Code.QUOTA, 600),
    ([at(Standing.BLOCKED, 600)], 0, Code.QUOTA, 600),
    ([at(Standing.BLOCKED, 600), at(Standing.BLOCKED, 60)], 0, Code.QUOTA, 60),
    ([at(Standing.BLOCKED)], 0, Code.QUOTA, admission.UNKNOWN_QUOTA_RETRY_S),
    ([at(Standing.BLOCKED, 600), OPEN], 0, None, None),
    ([at(Standing.BLOCKED, 600), at(Standing.DOWN, 30)], None, None, None),
    ([at(Standing.BLOCKED, 600), at(Standing.DOWN, 30)], 0, Code.QUOTA, 30),
    ([SHUT], None, None, None),
    ([SHUT], 0, Code.DOWN, admission.DOWN_RETRY_S),
    ([SHUT, at(Standing.BLOCKED, 9)], 0, Code.QUOTA, 9),
]


@pytest.mark.parametrize(("places", "max_wait_s", "code", "retry_s"), JUDGED)
def test_what_is_refused_and_until_when(
    places: list[Place], max_wait_s: float | None, code: Code | None, retry_s: float | None
) -> None:
    problem = judge(places, max_wait_s=max_wait_s, now=NOW)
    if code is None:
        assert problem is None
        return
    assert problem is not None
    assert (problem.code, problem.retry_after_s) == (code, retry_s)
    answer = problems.answer(problem)
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Retry-After"] == str(int(retry_s or 0))


@pytest.mark.parametrize(
    ("places", "words", "reached"),
    [
        ([OPEN, OPEN], BOTH, 1),
        ([at(Standing.BLOCKED), OPEN], BOTH, 2),
        ([at(Standing.BLOCKED), OPEN], {"down"}, 1),
        ([at(Standing.DOWN), at(Standing.BLOCKED), OPEN], BOTH, 3),
        ([at(Standing.DOWN), at(Standing.BLOCKED), OPEN], {"down"}, 2),
        ([SHUT, OPEN], BOTH, 1),
    ],
)
def test_only_targets_that_a_job_may_come_to_count(
    places: list[Place], words: set[str], reached: int
) -> None:
    assert list(within_reach(places, words)) == places[:reached]


@pytest.mark.parametrize("phrase", list(Phrase))
def test_every_phrase_has_a_standing_and_one_to_be_tried_takes_jobs(phrase: Phrase) -> None:
    down = {Phrase.KEY_REJECTED, Phrase.DOWN, Phrase.CHECKING}
    blocked = {Phrase.QUOTA_EXHAUSTED, Phrase.BLOCKED, Phrase.THROTTLED}
    expected = Standing.OPEN
    if phrase in down:
        expected = Standing.DOWN
    elif phrase in blocked:
        expected = Standing.BLOCKED
    elif phrase is Phrase.PAUSED:
        expected = Standing.SHUT
    grave = down | {Phrase.PROBING, Phrase.NEXT_IS_PROBE}
    word = Word.DOWN if phrase in grave else Word.AVAILABLE
    assert standing(Told(word=word, phrase=phrase)) is expected


def _limit(period: Period, most: int, charged: int, possible: int = 0) -> Limit:
    end = NOW + timedelta(days=1 if period is Period.DAY else 30)
    return Limit(period, Decimal(most), Spent(Decimal(charged), Decimal(possible)), end)


@pytest.mark.parametrize(
    ("limits", "asked", "passed"),
    [
        ([], 1000, None),
        ([_limit(Period.DAY, 100, 88)], 12, None),
        ([_limit(Period.DAY, 100, 89)], 12, Period.DAY),
        # What may yet cost nothing refuses nobody.
        ([_limit(Period.DAY, 100, 0, 96)], 12, None),
        ([_limit(Period.DAY, 100, 95), _limit(Period.MONTH, 100, 95)], 12, Period.MONTH),
    ],
)
def test_a_limit_is_passed_by_what_is_charged_and_what_is_asked(
    limits: list[Limit], asked: int, passed: Period | None
) -> None:
    found = over(Budget("RUB", "UTC", limits), {"RUB": Decimal(asked), "USD": Decimal(9999)})
    assert (found and found.period) == passed


def test_a_wait_is_told_in_whole_seconds_rounded_up() -> None:
    for wait_s, told in ((0.0, "1"), (0.2, "1"), (1.0, "1"), (1.2, "2")):
        assert problems.headers(Problem(Code.PACE, retry_after_s=wait_s))["Retry-After"] == told


# --- over HTTP --------------------------------------------------------------------------------------------------------

database = pytest.mark.django_db


def _blocked(now: datetime, settings: LazySettings, **values: Any) -> None:
    fingerprint = registry.account("polza").fingerprint
    account = factories.account(now, fingerprint=fingerprint)
    factories.provider_state(now, account=account, **values)


def _down(now: datetime, settings: LazySettings) -> None:
    _blocked(now, settings, state="down", gate="open", next_try_at=now + timedelta(seconds=50))


def _half_open(now: datetime, settings: LazySettings) -> None:
    _blocked(now, settings, state="down", gate="half_open")


def _quota(now: datetime, settings: LazySettings) -> None:
    _blocked(now, settings, state="quota_exhausted", block="quota_exhausted", blocked_until=now + timedelta(hours=5))  # fmt: skip


def _held(now: datetime, settings: LazySettings) -> None:
    Hold.objects.create(kind="red_button", set_at=now, reason="prices")


def _poor(now: datetime, settings: LazySettings) -> None:
    factories.tenant().__class__.objects.update(daily_limit=Decimal(5))


def _other_money(now: datetime, settings: LazySettings) -> None:
    factories.tenant().__class__.objects.update(daily_limit=Decimal(5000), currency="USD")


def _full(now: datetime, settings: LazySettings) -> None:
    settings.API_MOST_WAITING = 2
    for _n in range(2):
        factories.job(now)


def _closed(now: datetime, settings: LazySettings) -> None:
    Target.objects.filter(pk=factories.target().pk).update(enabled=False)


def _nothing(now: datetime, settings: LazySettings) -> None:
    pass


def _no_key(now: datetime, settings: LazySettings) -> None:
    settings.PROVIDER_KEYS = {}


Situation = Callable[[datetime, LazySettings], None]
POLZA = f"polza:{factories.MODEL}"
# situation, what is added to the body -> status, code, bounds of Retry-After
SITUATIONS: dict[str, tuple[Situation, dict[str, Any], int, str, tuple[int, int] | None]] = {
    "all is well": (_nothing, {}, 202, "", None),
    "all is well, and no patience": (_nothing, {"max_wait_s": 0}, 202, "", None),
    "down": (_down, {}, 503, "down", (1, 50)),
    "one job is to try": (_half_open, {}, 202, "", None),
    "no key": (_no_key, {}, 503, "down", (60, 60)),
    "quota": (_quota, {}, 202, "", None),
    "quota, and patience": (_quota, {"max_wait_s": 6 * 3600}, 202, "", None),
    "quota, and no patience": (_quota, {"max_wait_s": 60}, 429, "quota", (17_900, 18_000)),
    "held": (_held, {}, 202, "", None),
    "held, and no patience": (_held, {"max_wait_s": 60}, 503, "down", (60, 60)),
    "no money": (_poor, {}, 402, "budget", None),
    "other money": (_other_money, {}, 402, "budget", None),
    "full queue": (_full, {}, 429, "queue_full", (30, 30)),
    "closed target": (_closed, {"target": POLZA}, 422, "invalid", None),
    "bad input": (_nothing, {"prompt": ""}, 422, "invalid", None),
}


@database
@pytest.mark.parametrize("name", list(SITUATIONS))
def test_each_situation_has_its_code(name: str, settings: LazySettings) -> None:
    situation, more, status, code, wait = SITUATIONS[name]
    now = clock.now()
    client = api_calls.caller()
    factories.target()
    situation(now, settings)
    before = Batch.objects.count(), Job.objects.count()
    answer = api_calls.create(client, **more)
    assert (answer.status_code, answer.json().get("code", "")) == (status, code), answer.content
    assert answer.headers["Cache-Control"] == "no-store"
    if wait is None:
        assert "Retry-After" not in answer.headers
    else:
        assert wait[0] <= int(answer.headers["Retry-After"]) <= wait[1]
    # Accepted is committed, refused is nowhere.
    assert Job.objects.count() - before[1] == (1 if status == 202 else 0)
    assert Batch.objects.count() - before[0] == (1 if status == 202 else 0)


@database
def test_a_quota_says_when_the_first_target_is_free_again() -> None:
    now = clock.now()
    _quota(now, None)  # type: ignore[arg-type]
    factories.target()
    told = api_calls.create(api_calls.caller(), max_wait_s=1).json()
    assert abs(datetime.fromisoformat(told["earliest"]) - now - timedelta(hours=5)) < timedelta(seconds=1)  # fmt: skip
    assert told["targets"][0]["state"] == "blocked"


@database
def test_the_pace_of_a_token_is_its_own_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    quick, slow = api_calls.caller(), api_calls.caller(per_minute=2)
    monkeypatch.setattr(tokens, "PACE_S", 60.0)
    assert [slow.get("/api/v1/budget").status_code for _n in range(3)] == [200, 200, 429]
    answer = slow.get("/api/v1/budget")
    assert answer.json()["code"] == "pace"
    assert 25 <= int(answer.headers["Retry-After"]) <= 30
    assert quick.get("/api/v1/budget").status_code == 200


@database
def test_every_fault_is_told_with_its_place() -> None:
    client = api_calls.caller()
    factories.target()
    jobs = [{"prompt": "fine"}, {"prompt": " ", "params": {"size": float("nan")}}, {"prompt": "x", "target": "none"}]  # fmt: skip
    answer = client.post("/api/v1/batches", {"jobs": jobs}, content_type="application/json")
    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == problems.MEDIA_TYPE
    fields = {one["field"]: one["pointer"] for one in answer.json()["errors"]}
    assert fields == {
        "jobs.1.prompt": "#/jobs/1/prompt",
        "jobs.1.params.size": "#/jobs/1/params/size",
        "jobs.2.target": "#/jobs/2/target",
    }
    assert not Batch.objects.exists()


@database
@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"\xff", 400),
        ("application/json", b'{"prompt": "\\ud800"}', 400),
        ("application/json", b"[]", 422),
        ("application/json", b'{"prompt": "x", "surprise": 1}', 422),
        ("application/json", b'{"prompt": "x", "priority": "5"}', 422),
        ("text/plain", b"x", 415),
        ("multipart/form-data; boundary=x", b"nonsense", 422),
        ("multipart/form-data", b"nonsense", 400),
    ],
)
def test_a_body_that_can_not_be_read_is_the_callers_fault(kind: str, body: bytes, status: int) -> None:  # fmt: skip
    answer = api_calls.caller().post("/api/v1/jobs", body, content_type=kind)
    assert answer.status_code == status, answer.content


@database
def test_a_database_that_is_away_is_told_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    client = api_calls.caller()

    def away(**_values: Any) -> Any:
        raise OperationalError("the server is away")

    monkeypatch.setattr(admission, "check", lambda *_args, **_values: away())
    monkeypatch.setattr("jobs.api.creating.connection.close", lambda: None)
    answer = api_calls.create(client)
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert answer.headers["Retry-After"] == "5"
    assert not Job.objects.exists()


@database
def test_what_is_not_there_and_what_is_not_done_are_problems_too() -> None:
    client = Client()
    assert client.get("/api/v2/jobs").json()["code"] == "not_found"
    answer = client.put("/api/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (405, "method")
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "POST"}
