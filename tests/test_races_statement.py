"""Two at one orphan, or at one statement, at the same moment: one case, one job, one outcome."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.conf import LazySettings

from jobs.lifecycle import statement
from jobs.lifecycle.record import Fact, record
from jobs.models import Case, Job, Orphan, ProviderTask, Statement
from jobs.statement import Finding, Kind
from jobs.states import CaseKind, JobState
from tests import factories
from tests.two import Two, Work, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAME = "gen_orphan"


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    settings.PROVIDER_KEYS = {"polza": "pza_races"}
    with two_connections() as pair:
        yield pair


def _orphan() -> Orphan:
    made = Orphan.objects.create(
        provider="polza", provider_id=NAME, account=factories.account(NOW), model=factories.MODEL, status="completed",
        cost=Decimal(5), currency="RUB", made_at=NOW - HOUR, found_at=NOW,
    )  # fmt: skip
    factories.case(CaseKind.ORPHAN, NOW, orphan=made)
    return made


def adopt(row: Orphan) -> Work:
    tenant_id = factories.tenant("dealer").pk
    return lambda: statement.adopt(
        orphan_id=row.pk, tenant_id=tenant_id, prompt="", reference="", actor=None, now=NOW
    )


def dispute(row: Orphan) -> Work:
    return lambda: statement.dispute(orphan_id=row.pk, reference="T-17", actor=None, now=NOW)


@pytest.mark.parametrize("first", [adopt, dispute], ids=["adopt", "dispute"])
@pytest.mark.parametrize("second", [adopt, dispute], ids=["adopt", "dispute"])
def test_an_orphan_is_decided_once(two: Two, first: Any, second: Any) -> None:
    row = _orphan()
    race = two.race(first(row), second(row))
    assert (race.waited, race.first.refused, bool(race.second.refused)) == (True, "", True)
    row.refresh_from_db()
    adopted = first is adopt
    assert row.outcome == ("adopted" if adopted else "disputed")
    assert Case.objects.get(orphan=row).resolution == row.outcome
    assert Job.objects.count() == int(adopted)


def _lost_send() -> ProviderTask:
    """Of a day before, so that the orphan can't be it by its time; the provider names it all the same."""
    at = NOW - 24 * HOUR
    return factories.lost(factories.job(at, JobState.ACTIVE), at, armed_at=at)


def test_an_id_that_a_send_learns_at_the_same_moment_stays_with_one_of_them(two: Two) -> None:
    row, task = _orphan(), _lost_send()

    def learns() -> None:
        record(facts=[Fact(task_id=task.pk, at=NOW, kind="found", decides=True, provider_id=NAME)])

    race = two.race(learns, adopt(row))
    assert (race.waited, bool(race.second.refused)) == (True, True)
    assert ProviderTask.objects.get(provider_id=NAME).pk == task.pk
    assert Job.objects.count() == 1


def test_an_id_adopted_first_opens_a_conflict_for_the_send_that_learns_it(two: Two) -> None:
    row, task = _orphan(), _lost_send()

    def learns() -> None:
        record(facts=[Fact(task_id=task.pk, at=NOW, kind="found", decides=True, provider_id=NAME)])

    race = two.race(adopt(row), learns)
    assert race.waited
    assert ProviderTask.objects.get(provider_id=NAME).orphan == row
    assert Case.objects.filter(kind=CaseKind.CONFLICT, task=task, resolved_at=None).count() == 1


def _reading() -> tuple[Statement, uuid.UUID]:
    factories.account(NOW)
    claim = uuid.uuid4()
    made = Statement.objects.create(
        provider="polza", since=NOW - HOUR, until=NOW + timedelta(seconds=Statement.objects.count()), asked_at=NOW,
        claim=claim, beat_at=NOW,
    )  # fmt: skip
    return made, claim


def _store(row: Statement, claim: uuid.UUID) -> Work:
    finding = Finding(
        kind=Kind.ORPHAN, at=NOW - HOUR, account_id=factories.account(NOW).pk, model=factories.MODEL, currency="RUB",
        provider_id=NAME, theirs=Decimal(5),
    )  # fmt: skip
    return lambda: statement.store(statement_id=row.pk, claim=claim, told={}, findings=[finding], read_at=NOW, now=NOW)  # fmt: skip


def test_two_statements_that_find_one_orphan_open_one_case(two: Two) -> None:
    race = two.race(_store(*_reading()), _store(*_reading()))
    assert (race.waited, race.first.value, race.second.value) == (True, 1, 0)
    assert Case.objects.get().orphan == Orphan.objects.get()


def test_one_statement_is_stored_once(two: Two) -> None:
    row, claim = _reading()
    race = two.race(_store(row, claim), _store(row, claim))
    assert (race.waited, race.first.value, race.second.value) == (True, 1, None)
    assert Case.objects.count() == 1


def test_two_presses_of_the_button_are_one_reading(two: Two) -> None:
    task = _lost_send()

    def asks() -> int:
        return statement.ask(
            provider="polza", account_id=task.account_id, since=NOW - 48 * HOUR, until=NOW, actor=None, now=NOW
        ).pk  # fmt: skip

    race = two.race(asks, asks)
    assert race.first.value == race.second.value == Statement.objects.get().pk
