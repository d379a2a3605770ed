"""The arithmetic of spending limits over random money and random days; its twin in SQL over random sends."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import spending
from jobs.budgets import Budget, Limit, Period, Spent, Why, ceiling, counted, span
from jobs.models import Job, ProviderTask
from jobs.states import Facts, TaskState, task_charge, task_state
from providers.contract import Charge
from tests import factories

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ZONES = ["UTC", "Europe/Moscow", "America/New_York", "Asia/Tehran", "Asia/Beirut", "Pacific/Apia",
         "America/Havana", "Australia/Lord_Howe", "Africa/Cairo", "America/Santiago"]  # fmt: skip
MOMENTS = st.datetimes(datetime(2015, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
PERIODS = st.sampled_from(Period)
FACTOR = 1.5


# --- days and months --------------------------------------------------------------------------------------------------


@given(period=PERIODS, zone=st.sampled_from(ZONES), now=MOMENTS)
def test_a_moment_is_in_its_day_and_the_days_follow_on_each_other(
    period: Period, zone: str, now: datetime
) -> None:
    here = span(period, zone=zone, now=now)
    assert here.start <= now < here.end
    assert span(period, zone=zone, now=here.start) == here
    assert span(period, zone=zone, now=here.end).start == here.end
    assert span(period, zone=zone, now=here.end - timedelta(microseconds=1)) == here


@given(period=PERIODS, zone=st.sampled_from(ZONES), now=MOMENTS)
def test_a_day_begins_with_the_date_there_and_a_month_with_its_first(
    period: Period, zone: str, now: datetime
) -> None:
    here, there = span(period, zone=zone, now=now), ZoneInfo(zone)
    today, begin = now.astimezone(there).date(), here.start.astimezone(there)
    assert begin.date() == (today if period is Period.DAY else today.replace(day=1))
    # Midnight, or the moment at which the clocks were put forward over it.
    assert (here.start - timedelta(microseconds=1)).astimezone(there).date() < begin.date()


@given(zone=st.sampled_from(ZONES), now=MOMENTS)
def test_a_day_never_reaches_over_the_end_of_its_month(zone: str, now: datetime) -> None:
    day, month = (span(period, zone=zone, now=now) for period in (Period.DAY, Period.MONTH))
    assert month.start <= day.start < day.end <= month.end


# --- money ------------------------------------------------------------------------------------------------------------

AMOUNTS = st.decimals(0, 500, places=2)
PRICES = st.decimals(Decimal("0.01"), 60, places=2)


def budget(*limits: tuple[Decimal, Spent], currency: str = "RUB") -> Budget:
    periods = list(Period)
    return Budget(
        currency=currency,
        zone="UTC",
        limits=[
            Limit(periods[number], most, spent, NOW + timedelta(days=1 + 20 * number))
            for number, (most, spent) in enumerate(limits)
        ],
    )


SPENT = st.builds(Spent, AMOUNTS, AMOUNTS)


@given(limits=st.lists(st.tuples(AMOUNTS, SPENT), max_size=2), price=PRICES, taken=AMOUNTS)
def test_a_send_is_held_exactly_where_its_ceiling_could_pass_a_limit(
    limits: list[tuple[Decimal, Spent]], price: Decimal, taken: Decimal
) -> None:
    held = budget(*limits).holds(price=price, currency="RUB", factor=FACTOR, taken=taken)
    passes = [
        spent.charged + spent.possible + taken + ceiling(price, FACTOR) > most
        for most, spent in limits
    ]
    assert (held is not None) == any(passes)
    if held is not None:
        assert held.limit is not None
        assert passes[list(Period).index(held.limit.period)]
        # No limit that holds it lasts longer than the one that is told.
        if held.why is Why.LIMIT:
            assert held.limit.until == max(
                limit.until for limit, one in zip(budget(*limits).limits, passes, strict=True) if one
            )  # fmt: skip
        assert (held.why is Why.TOO_DEAR) == (ceiling(price, FACTOR) > held.limit.most)


@given(limits=st.lists(st.tuples(AMOUNTS, SPENT), min_size=1, max_size=2), price=PRICES)
def test_money_that_cannot_be_compared_is_not_spent(
    limits: list[tuple[Decimal, Spent]], price: Decimal
) -> None:
    other = budget(*limits).holds(price=price, currency="USD", factor=FACTOR)
    unknown = budget(*limits).holds(price=Decimal(0), currency="RUB", factor=FACTOR)
    assert other is not None
    assert unknown is not None
    assert (other.why, unknown.why) == (Why.CURRENCY, Why.NO_PRICE)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Sends of some price, and what becomes of those under way: a cost within the ceiling, nothing, or no answer."""
    return draw(
        st.lists(
            st.one_of(
                st.tuples(st.just("send"), PRICES),
                st.tuples(st.just("costs"), st.fractions(0, 1)),
                st.tuples(st.just("free"), st.none()),
                st.tuples(st.just("lost"), st.none()),
            ),
            max_size=60,
        )
    )


@given(most=AMOUNTS, story=stories())
def test_whatever_comes_of_the_sends_no_more_is_spent_than_the_limit(
    most: Decimal, story: list[tuple[str, Any]]
) -> None:
    """The claim asks `holds` before each send; costs are within the ceilings that the provider was told."""
    rows: list[dict[str, Any]] = []

    def now_spent() -> Spent:
        return sum(
            (counted(state=row["state"], charge=row["charge"], cost=row["cost"], ceiling=row["ceiling"]) for row in rows),
            Spent(),
        )  # fmt: skip

    for what, value in story:
        under_way = [row for row in rows if row["charge"] is not Charge.CHARGED and row["open"]]
        if what == "send":
            held = budget((most, now_spent())).holds(price=value, currency="RUB", factor=FACTOR)
            if held is None:
                rows.append(
                    {"state": TaskState.INTENT, "charge": Charge.NONE, "cost": None, "open": True,
                     "ceiling": ceiling(value, FACTOR)}
                )  # fmt: skip
        elif under_way:
            row = under_way[0]
            match what:
                case "costs":
                    cost = row["ceiling"] * value.numerator / value.denominator
                    row |= {"state": TaskState.STORED, "charge": Charge.CHARGED, "cost": cost}
                case "free":
                    row |= {"state": TaskState.REFUSED, "charge": Charge.NONE, "open": False}
                case _:
                    row |= {"state": TaskState.UNKNOWN, "charge": Charge.POSSIBLE}
        assert now_spent().total <= most


# --- the twin in SQL --------------------------------------------------------------------------------------------------

_AT = st.none() | st.just(NOW)
_COST = st.none() | st.decimals(0, 40, places=2)
FACTS = st.fixed_dictionaries(
    {
        "armed_at": _AT, "provider_id": st.none() | st.just("id"), "refusal_class": st.none() | st.just("down"),
        "unsent_at": _AT, "absent_at": _AT, "lost_at": _AT, "completed_at": _AT, "failed_at": _AT, "stored_at": _AT,
        "receipt_final_at": _AT, "cost_answer": _COST, "cost_poll": _COST, "cost_receipt": _COST, "cost_staff": _COST,
        "staff_charge": st.sampled_from([None, None, None, "refunded", "written_off"]),
    }
)  # fmt: skip
# Around the edges of the day and the month in Moscow.
_EDGES = [datetime(2026, 2, 28, 21, tzinfo=UTC), datetime(2026, 3, 1, 21, tzinfo=UTC), datetime(2026, 3, 31, 21, tzinfo=UTC)]  # fmt: skip
CREATED = st.builds(
    lambda edge, off: edge + timedelta(seconds=off),
    st.sampled_from(_EDGES),
    st.sampled_from([-1, 0, 1, 60]),
)
SENDS = st.lists(
    st.tuples(FACTS, CREATED, PRICES, st.sampled_from(["RUB", "RUB", "RUB", "USD"]), st.booleans()), max_size=8
)  # fmt: skip


@pytest.mark.django_db
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(sends=SENDS)
def test_sql_counts_what_the_arithmetic_counts(
    sends: list[tuple[dict[str, Any], datetime, Decimal, str, bool]],
) -> None:
    with transaction.atomic():
        mine = factories.tenant(
            "mine", daily_limit=100, monthly_limit=1000, currency="RUB", zone="Europe/Moscow"
        )
        other = factories.tenant("other", daily_limit=100)
        account, target = factories.account(NOW), factories.target()
        for number, (facts, created_at, price, currency, ours) in enumerate(sends):
            tenant = mine if ours else other
            job = Job.objects.create(tenant=tenant, target=target, route=[target.pk], prompt="a cat", not_before=NOW,
                                     attempts_since=NOW, created_at=NOW)  # fmt: skip
            values = facts | ({"provider_id": f"id{number}"} if facts["provider_id"] else {})
            ProviderTask.objects.create(
                job=job, tenant=tenant, target=target, account=account, estimated_cost=price, currency=currency,
                run_id=uuid.UUID(int=1), host="h", created_at=created_at,
                send_not_after=NOW if facts["armed_at"] else None, **values,
            )  # fmt: skip
        found = spending.budgets([mine], factor=FACTOR, now=NOW)[mine.pk]
        for limit in found.limits:
            inside = span(limit.period, zone="Europe/Moscow", now=NOW)
            wanted = sum(
                (
                    counted(
                        state=task_state(Facts(**facts)),
                        charge=task_charge(Facts(**facts)),
                        cost=next((facts[name] for name in ("cost_staff", "cost_receipt", "cost_poll", "cost_answer")
                                   if facts[name] is not None), None),
                        ceiling=ceiling(price, FACTOR),
                    )
                    for facts, created_at, price, currency, ours in sends
                    if ours and currency == "RUB" and inside.start <= created_at < inside.end
                ),
                Spent(),
            )  # fmt: skip
            assert limit.spent == wanted
        transaction.set_rollback(True)
