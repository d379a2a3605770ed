"""Two lanes, one budget: whatever the second sees of the first, no more is promised than may be spent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from django.conf import LazySettings

from jobs import spending
from jobs.lifecycle import tenants
from jobs.lifecycle.claim import claim_sends
from jobs.lifecycle.record import Fact, record
from jobs.models import Job, JobEvent, ProviderTask, Tenant, TenantOlder
from jobs.rules import limits
from jobs.states import JobState
from tests import factories
from tests.two import Point, Two, Work, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MOST = replace(limits(), concurrency=100, price_ceiling_factor=1.5)  # 12 a send
FITS = 3


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


@pytest.fixture(params=["daily_limit", "monthly_limit"])
def waiting(request: pytest.FixtureRequest, two: Two) -> list[Job]:
    """Six jobs of a tenant who may spend what three of them may cost."""
    factories.account(NOW)
    tenant = factories.tenant("dealer", **{request.param: Decimal("36.50")})
    return [factories.job(NOW, tenant=tenant) for _ in range(6)]


def sends(room: int) -> Work:
    return lambda: claim_sends(
        run_id=uuid.uuid4(), host="desk-1", room=room, now=NOW, limits=MOST, fingerprints=["f00dfeedcafe"]
    )  # fmt: skip


def over(tenant: Tenant) -> Decimal:
    """What is promised beyond its tighter limit; 0 where none is passed."""
    tenant.refresh_from_db()
    left = spending.budgets([tenant], factor=1.5, now=NOW)[tenant.pk].left
    assert left is not None
    return max(Decimal(0), -left)


def test_the_second_claim_counts_the_intents_of_the_first(two: Two, waiting: list[Job]) -> None:
    race = two.race(sends(2), sends(6))
    assert race.waited
    assert (len(race.first.value), len(race.second.value)) == (2, FITS - 2)
    assert over(waiting[0].tenant) == 0


def test_what_a_claim_has_written_counts_nothing_when_it_dies_before_its_commit(
    two: Two, waiting: list[Job]
) -> None:
    race = two.race(sends(2), sends(6), dies=True)
    assert (race.first.killed, len(race.second.value)) == (True, FITS)


def test_wherever_the_first_claim_stands_no_budget_is_passed(two: Two, waiting: list[Job]) -> None:
    steps = two.a.call(sends(2)).steps
    for number in range(steps.index("COMMIT") + 1):
        JobEvent.objects.all().delete()
        TenantOlder.objects.all().delete()
        ProviderTask.objects.all().delete()
        Job.objects.update(state=JobState.PENDING)
        race = two.race(sends(6), sends(6), at=Point(number=number))
        assert len(race.first.value) + len(race.second.value) == FITS, steps[number]
        assert over(waiting[0].tenant) == 0, steps[number]


def test_a_limit_that_is_lowered_while_a_claim_is_under_way_holds_the_next_one(
    two: Two, waiting: list[Job]
) -> None:
    tenant = waiting[0].tenant
    name = "daily_limit" if tenant.daily_limit is not None else "monthly_limit"

    def lower() -> None:
        tenants.change(tenant_id=tenant.pk, actor=None, now=NOW, **{name: Decimal(12)})  # type: ignore[arg-type]

    race = two.race(sends(2), lower)
    assert (len(race.first.value), race.waited) == (2, False)
    assert two.b.call(sends(6)).value == []
    assert over(tenant) == Decimal(12)


def test_a_cost_that_is_recorded_beside_a_claim_frees_the_rest_for_the_next_one(
    two: Two, waiting: list[Job]
) -> None:
    [first] = two.a.call(sends(1)).value
    ProviderTask.objects.filter(pk=first.task_id).update(armed_at=NOW, send_not_after=NOW)

    def cheap() -> None:
        fact = Fact(
            task_id=first.task_id,
            at=NOW,
            kind="completed",
            completed=True,
            cost_poll=Decimal("0.5"),
        )
        record(facts=[fact])  # fmt: skip

    race = two.race(cheap, sends(6))
    assert (race.waited, len(race.second.value)) == (False, FITS - 1)
    assert len(two.b.call(sends(6)).value) == 1
    assert over(waiting[0].tenant) == 0
