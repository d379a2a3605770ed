"""The one POST's facts: dated by the arming and the boot clock, whatever stood still in between."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from pytest_django import Settings

from jobs.lane import LaneContext
from jobs.lifecycle.claim import Intent
from jobs.lifecycle.deal import OpenTarget
from jobs.lifecycle.record import Fact
from jobs.rules import SEND_WINDOW_S
from jobs.stages import submit
from jobs.stages.submit import Send
from providers.contract import Account, Answer, Kind, NoAnswer, Refusal, Request
from providers.http import Transport
from tests.flow import LIMITS

pytestmark = pytest.mark.pure

ARMED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ARMED_BOOT = 5000.0


class Lane:
    """A lane whose process stands still for `still_s` before its call, which takes `takes_s`."""

    def __init__(self, answer: Answer | NoAnswer, *, still_s: float, takes_s: float) -> None:
        self._answer, self._takes_s = answer, takes_s
        self._boot = ARMED_BOOT + still_s
        self.clock = SimpleNamespace(boot=lambda: self._boot)
        self.plans: dict[int, object] = {}
        self.transport = self
        self.limits = LIMITS
        key = Account(provider="polza", base_url="http://polza.test", fingerprint="f", key="k")
        self.accounts = {"polza": key}

    async def send_paid(self, *_args: Any, **_more: Any) -> Answer | NoAnswer:
        self._boot += self._takes_s
        return self._answer


def armed(provider: str) -> Send:
    target = OpenTarget(
        id=1, provider=provider, model="m", price=Decimal(5), currency="RUB", max_in_flight=None, account_id=1
    )  # fmt: skip
    task_id = uuid.uuid4()
    return Send(
        intent=Intent(task_id=task_id, job_id=1, target=target, created_at=ARMED_AT - timedelta(hours=1)),
        request=Request(
            correlation_id=task_id, model="m", kind=Kind.IMAGE, prompt="a cat", params={}, photos=[], max_price=None
        ),
        send_not_after=ARMED_BOOT + SEND_WINDOW_S, deadline_s=30.0, at=ARMED_AT,
    )  # fmt: skip


class Giga(httpx.AsyncBaseTransport):
    """GigaChat's servers: `gives` instead of tokens where it is set, and no token is taken."""

    def __init__(self, gives: Callable[[], httpx.Response] | None = None) -> None:
        self.gives, self.tokens = gives, 0
        self.sent: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/oauth"):
            self.sent.append(request.headers["authorization"])
            return httpx.Response(401, json={"status": 401, "message": "Token has expired"})
        self.tokens += 1
        ends = int((time.time() + 1800) * 1000)
        told = {"access_token": f"t{self.tokens}", "expires_at": ends}
        return self.gives() if self.gives else httpx.Response(200, json=told)


def sent(giga: Giga, settings: Settings, folder: Path) -> tuple[Fact, Refusal | None]:
    """One send to it; its tokens and spooled answers lie in the folder."""
    settings.TOKEN_DIR, settings.SPOOL_DIR = folder / "tokens", folder / "spool"
    key = Account("gigachat", "http://giga.test/api/v1", "f", "a2V5OnNlY3JldA==")

    async def act() -> tuple[Fact, Refusal | None]:
        async with Transport(paid=giga, reads=giga) as transport:
            lane = SimpleNamespace(
                transport=transport, limits=LIMITS, accounts={"gigachat": key}, run_id=uuid.uuid4(),
                clock=SimpleNamespace(boot=lambda: ARMED_BOOT),
                plans={},
            )  # fmt: skip
            send = armed("gigachat")
            done = await submit.act(cast("LaneContext", lane), send)
            if send.file is not None:
                send.file.close()  # the engine's part, once the fact is recorded
            return done

    return asyncio.run(act())


def test_without_a_token_nothing_is_sent(tmp_path: Path, settings: Settings) -> None:
    def away() -> httpx.Response:
        raise httpx.ConnectError("refused")

    wrong = Giga(lambda: httpx.Response(401, json={"code": 6, "message": "credentials"}))
    fact, refusal = sent(wrong, settings, tmp_path / "wrong")
    assert refusal is not None
    assert (refusal.charge, fact.refusal_class) == ("none", "unauthorized")
    silent = Giga(away)
    fact, refusal = sent(silent, settings, tmp_path / "silent")
    assert refusal is not None
    assert (refusal.charge, fact.unsent, fact.ours) == ("none", True, False)
    assert wrong.sent == silent.sent == []


def test_an_expired_token_costs_no_attempt_and_the_next_send_has_another(
    tmp_path: Path, settings: Settings
) -> None:
    giga = Giga()
    for _ in range(2):
        fact, _refusal = sent(giga, settings, tmp_path)
        assert (fact.unsent, fact.ours, fact.unsent_reason) == (True, True, "token_expired")
        assert "Bearer" not in json.dumps(fact.evidence)
    assert giga.sent == ["Bearer t1", "Bearer t2"]


@pytest.mark.parametrize("still_s", [0.0, 0.4, 98.0])
@pytest.mark.parametrize(
    ("answer", "column"),
    [
        (Answer(status=200, headers={}, body=b'{"id": "gen_1", "status": "pending"}'), "provider_id"),
        (Answer(status=402, headers={}, body=b'{"error": {"message": "insufficient balance"}}'), "refusal_class"),
        (NoAnswer(sent=True, reason="reset"), "failure_class"),
    ],
)  # fmt: skip
def test_an_answer_is_dated_from_the_arming(
    answer: Answer | NoAnswer, column: str, still_s: float
) -> None:
    """Dated from the claim, an answer seemed older than its send, and no quota window counted it."""
    lane = Lane(answer, still_s=still_s, takes_s=2.5)
    fact, _refusal = asyncio.run(submit.act(cast("LaneContext", lane), armed("polza")))
    assert getattr(fact, column) is not None
    assert fact.at == ARMED_AT + timedelta(seconds=still_s + 2.5)
