"""The "Must hold" lines of issue 8, one test each or several, with their figures printed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.clock import clock
from jobs.models import Batch
from jobs.stages import deliver
from providers.outside import Allowed
from tests import api_calls, callback_story, factories
from tests.api_fuzz import Fuzz
from tests.holds.suite import measured, passes

pytestmark = [pytest.mark.flow, pytest.mark.django_db(transaction=True)]


# --- line 1: the document ---------------------------------------------------------------------------------------------


def test_line_1_two_thousand_requests_by_the_document(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.WORKER_LANES = 0  # nobody to ring for
    now = clock.now()
    token = api_calls.token(per_minute=100_000)
    batch = Batch.objects.create(tenant=token.token.tenant, created_at=now)
    fuzz = Fuzz(token.text, factories.done(now, batch=batch))
    fuzz.run(each=170)
    print(
        {f"{operation} {status}": count for (operation, status), count in sorted(fuzz.seen.items())}
    )
    print(f"{fuzz.seen.total()} requests")
    assert fuzz.seen.total() >= 2000


# --- lines 2 to 4 -----------------------------------------------------------------------------------------------------


def test_line_2_each_situation_its_code_and_wait() -> None:
    assert passes("tests/test_api_codes.py")


def test_line_3_a_thousand_creates_at_once() -> None:
    assert measured("bench.api")["ok"]


def test_line_4_tokens_tell_nothing() -> None:
    assert passes("tests/test_api_tokens.py")


# --- line 5: receivers that are broken for an hour, then work ----------------------------------------------------------


def test_line_5_delivered_once_it_works(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.WORKER_LANES = 0  # nobody to ring for
    settings.CALLBACK_ALLOW = Allowed.of(["127.0.0.0/8"])
    monkeypatch.setattr(deliver, "DEADLINE_S", 0.3)
    program = callback_story.Teller(datetime(2026, 3, 1, 12, tzinfo=UTC))
    print(callback_story.an_hour_of_each_fault(program))


def test_line_5_nothing_else_is_harmed(tmp_path: Path) -> None:
    print(callback_story.jobs_beside_bad_receivers(tmp_path))


def test_line_5_the_rest() -> None:
    assert passes("tests/test_callbacks_out.py", "tests/test_callbacks_outbox.py")
