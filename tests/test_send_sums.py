"""The sums of sends: equal to the sums over the sends themselves at any moment, whatever is done to them by whom."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from django.db import connection

from jobs import bell, sums
from jobs.budgets import Period, Span, span
from jobs.lifecycle import sums as keeping
from jobs.models import ProviderTask, SendSum
from jobs.models.sums import DAY, QUARTER
from jobs.states import JobState
from tests import factories

NOW = datetime(2026, 3, 17, 10, 20, 30, tzinfo=UTC)
FACTS: list[dict[str, Any]] = [
    {},
    {"armed_at": NOW, "send_not_after": NOW},
    {"provider_id": "x", "accepted_at": NOW},
    {"refusal_class": "rejected", "refused_at": NOW},
    {"unsent_at": NOW, "unsent_reason": "fenced"},
    {"lost_at": NOW},
    {"failed_at": NOW, "provider_id": "x"},
    {"failed_at": NOW, "provider_id": "x", "receipt_final_at": NOW, "cost_receipt": Decimal(0)},
    {"completed_at": NOW, "provider_id": "x"},
    {"completed_at": NOW, "provider_id": "x", "cost_poll": Decimal("7.8412345678")},
    {"stored_at": NOW, "completed_at": NOW, "provider_id": "x", "cost_poll": Decimal("7.84")},
    {"stored_at": NOW, "completed_at": NOW, "provider_id": "x", "cost_answer": Decimal(0)},
    {"lost_at": NOW, "staff_charge": "written_off", "cost_staff": Decimal("3.5")},
    {"failed_at": NOW, "provider_id": "x", "staff_charge": "refunded", "cost_staff": Decimal(5)},
]

# Plain SQL over the rows, written anew: what each send is worth by itself.
BY_ROWS = """
SELECT date_trunc('hour', created_at AT TIME ZONE 'UTC') + floor(extract(minute FROM created_at) / 15) * interval '15 minutes',
  account_id, target_id, tenant_id, currency,
  count(*) FILTER (WHERE state IN ('sending', 'accepted', 'completed', 'stored', 'refused', 'failed', 'unknown')),
  count(*) FILTER (WHERE completed_at IS NOT NULL OR stored_at IS NOT NULL),
  count(*) FILTER (WHERE state = 'refused'), count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'unknown'),
  coalesce(sum(cost) FILTER (WHERE charge IN ('charged', 'written_off')), 0),
  coalesce(sum(estimated_cost) FILTER (WHERE state = 'intent' OR charge = 'possible'
    OR charge IN ('charged', 'written_off') AND cost IS NULL), 0)
FROM jobs_providertask GROUP BY 1, 2, 3, 4, 5
"""
BY_SUMS = """
SELECT start_at AT TIME ZONE 'UTC', account_id, target_id, tenant_id, currency, sum(sends), sum(succeeded), sum(refused), sum(failed),
  sum(unknown), sum(charged), sum(possible)
FROM jobs_sendsum WHERE span_s = 900 GROUP BY 1, 2, 3, 4, 5
"""
DAYS = """
SELECT date_trunc('day', start_at AT TIME ZONE 'UTC'), account_id, target_id, tenant_id, currency, sum(sends), sum(succeeded),
  sum(refused), sum(failed), sum(unknown), sum(charged), sum(possible)
FROM jobs_sendsum WHERE span_s = {span_s} GROUP BY 1, 2, 3, 4, 5
"""


def rows_of(query: str) -> dict[Any, Any]:
    """By key; groups that come to nothing are left out."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return {row[:5]: row[5:] for row in cursor.fetchall() if any(row[5:])}


def assert_equal() -> None:
    assert rows_of(BY_SUMS) == rows_of(BY_ROWS)
    assert rows_of(DAYS.format(span_s=86_400)) == rows_of(DAYS.format(span_s=900))


class Desk:
    """Sends of a few tenants and targets, changed at random."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.tenants = [factories.tenant(slug) for slug in ("studio", "dealer", "publisher")]
        self.targets = [
            factories.target(),
            factories.target("other"),
            factories.target("flux", provider="fal", currency="USD", price=Decimal("0.04")),
        ]

    def send(self) -> ProviderTask:
        dice = self.dice
        job = factories.job(
            NOW, JobState.ACTIVE, tenant=dice.choice(self.tenants), target=dice.choice(self.targets)
        )
        ago = timedelta(
            seconds=dice.choice([60, 900, 3600, 86_400 * 3, 86_400 * 20]) * dice.random()
        )
        return factories.task(job, NOW, armed=False, created_at=NOW - ago)

    def change(self, task: ProviderTask) -> None:
        facts = dict(self.dice.choice(FACTS))
        if facts and "armed_at" not in facts and "unsent_at" not in facts:
            facts |= {"armed_at": NOW, "send_not_after": NOW}
        if "provider_id" in facts:
            facts["provider_id"] = uuid.uuid4().hex
        ProviderTask.objects.filter(pk=task.pk).update(**facts)

    def work(self, steps: int) -> None:
        tasks = [self.send()]
        for _step in range(steps):
            match self.dice.random():
                case below if below < 0.4:
                    tasks.append(self.send())
                case below if below < 0.92:
                    self.change(self.dice.choice(tasks))
                case below if below < 0.96:
                    keeping.put_together()
                case _:
                    # Nobody removes a send today; the sums would follow.
                    task = tasks.pop(self.dice.randrange(len(tasks))) if len(tasks) > 1 else None
                    if task is not None:
                        task.events.all().delete()
                        task.delete()


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(6))
def test_the_sums_equal_the_sends_whatever_is_done_to_them(seed: int) -> None:
    desk = Desk(seed)
    for _round in range(4):
        desk.work(40)
        assert_equal()
        keeping.put_together()
        assert_equal()
        assert not SendSum.objects.filter(loose=True).exists()
    keys = SendSum.objects.values_list(
        "span_s", "start_at", "account_id", "target_id", "tenant_id", "currency"
    )
    assert len(keys) == len(set(keys)), "put together, there is one row a key"
    with connection.cursor() as cursor:
        cursor.execute("SELECT jobs_sum_sends_anew()")
    assert_equal()


@pytest.mark.django_db
def test_polls_and_leases_write_no_sum() -> None:
    task = factories.accepted(factories.job(NOW, JobState.ACTIVE), NOW)
    before = SendSum.objects.count()
    ProviderTask.objects.filter(pk=task.pk).update(
        polls=7, next_poll_at=NOW, last_status="processing"
    )
    assert SendSum.objects.count() == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    "zone", ["UTC", "Europe/Moscow", "Asia/Tehran", "Asia/Kathmandu", "America/New_York"]
)
@pytest.mark.parametrize("period", list(Period))
def test_a_day_and_a_month_of_any_zone_are_what_their_sends_come_to(
    zone: str, period: Period
) -> None:
    desk = Desk(7)
    desk.work(60)
    midnight = NOW.astimezone(ZoneInfo(zone)).replace(hour=0, minute=0, second=0)
    for second in (-1, 0, 1):
        job = factories.job(NOW, tenant=desk.tenants[0])
        factories.task(
            job, NOW, armed=False, created_at=(midnight + timedelta(seconds=second)).astimezone(UTC)
        )
    asked = span(period, zone=zone, now=NOW)
    told = {
        line.by[0]: line.sums
        for line in sums.read([asked], by=["tenant"])
        if line.currency == "RUB"
    }
    for tenant in desk.tenants:
        rows = ProviderTask.objects.filter(
            tenant=tenant, created_at__gte=asked.start, created_at__lt=asked.end, currency="RUB"
        )
        sent = [row for row in rows if row.state not in {"intent", "unsent"}]
        assert told.get(tenant.pk, sums.Sums()).sends == len(sent)
        charged = sum(
            (row.cost or 0 for row in rows if row.charge in {"charged", "written_off"}), Decimal(0)
        )
        assert told.get(tenant.pk, sums.Sums()).charged == charged


def test_a_span_is_cut_into_quarters_and_whole_days_without_a_gap() -> None:
    dice = random.Random(3)
    for _try in range(300):
        start = sums.floor(NOW - timedelta(seconds=dice.randrange(10**7)))
        one = Span(start, start + QUARTER * dice.randrange(1, 5000))
        parts = sums.pieces(one)
        assert parts[0][1].start == one.start
        assert parts[-1][1].end == one.end
        for (_length, before), (_other, after) in itertools.pairwise(parts):
            assert before.end == after.start
        days = [part for length, part in parts if length == DAY]
        assert all(sums.floor(part.start, DAY) == part.start for part in days)
        assert sum(length == QUARTER for length, _part in parts) <= 2


@pytest.mark.django_db(transaction=True)
def test_two_who_put_together_while_sends_go_on_lose_nothing(
    settings: Any, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    settings.WORKER_LANES = 0
    desk = Desk(1)
    desk.work(40)
    with (
        psycopg.connect(**bell.direct_parameters()) as one,
        psycopg.connect(**bell.direct_parameters()) as two,
    ):
        one.execute(keeping._TOGETHER)
        # Not committed yet: its rows are as they were for everybody else.
        assert_equal()
        two.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            two.execute(keeping._TOGETHER)
        two.rollback()
        desk.change(desk.send())
        one.commit()
        assert_equal()
        two.execute(keeping._TOGETHER)
        two.commit()
    with django_assert_max_num_queries(1):
        keeping.put_together()
    assert_equal()
