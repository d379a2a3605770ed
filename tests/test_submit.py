"""The one POST's facts: dated by the arming and the boot clock, whatever stood still in between."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobs.lane import LaneContext
from jobs.lifecycle.claim import Intent, OpenTarget
from jobs.rules import SEND_WINDOW_S
from jobs.stages import submit
from jobs.stages.submit import Send
from providers.contract import Account, Answer, Kind, NoAnswer, Request
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
        self.transport = self
        self.limits = LIMITS
        key = Account(provider="polza", base_url="http://polza.test", fingerprint="f", key="k")
        self.accounts = {"polza": key}

    async def send_paid(self, *_args: Any, **_more: Any) -> Answer | NoAnswer:
        self._boot += self._takes_s
        return self._answer


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
    target = OpenTarget(
        id=1, provider="polza", model="m", price=Decimal(5), currency="RUB", max_in_flight=None, account_id=1
    )  # fmt: skip
    task_id = uuid.uuid4()
    send = Send(
        intent=Intent(task_id=task_id, job_id=1, target=target, created_at=ARMED_AT - timedelta(hours=1)),
        request=Request(
            correlation_id=task_id, model="m", kind=Kind.IMAGE, prompt="a cat", params={}, photos=[], max_price=None
        ),
        send_not_after=ARMED_BOOT + SEND_WINDOW_S, deadline_s=30.0, at=ARMED_AT,
    )  # fmt: skip
    fact, _refusal = asyncio.run(submit.act(cast("LaneContext", lane), send))
    assert getattr(fact, column) is not None
    assert fact.at == ARMED_AT + timedelta(seconds=still_s + 2.5)
