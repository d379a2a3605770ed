"""What the preview of a batch says about the tenant's money: what is left, what fits, what waits and until when."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from jobs.batches.estimate import Fit, fit
from jobs.budgets import Budget, Limit, Period, Spent, Why
from jobs.models import Batch, Job, Tenant
from jobs.roles import Role
from jobs.states import JobState
from providers.models import Target
from tests import factories

ADD = "/admin/jobs/batch/add/"
NOW = datetime(2026, 3, 10, 9, 0, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 10, 21, 0, tzinfo=UTC)  # in Moscow
APRIL = datetime(2026, 3, 31, 21, 0, tzinfo=UTC)
FACTOR = 1.5


# --- what fits, without a database ------------------------------------------------------------------------------------


def _budget(day: int | None = None, month: int | None = None, *, spent: int = 0) -> Budget:
    limits = [
        Limit(period, Decimal(most), Spent(charged=Decimal(spent)), until)
        for period, most, until in ((Period.DAY, day, MIDNIGHT), (Period.MONTH, month, APRIL))
        if most is not None
    ]
    return Budget("RUB", "Europe/Moscow", tuple(limits))


def _target(price: str = "8", currency: str = "RUB", pk: int = 1) -> Target:
    return Target(pk=pk, provider="polza", model=f"m{pk}", price=Decimal(price), currency=currency)


def _waits(fits: Fit) -> list[tuple[Period, int]]:
    return [(part.limit.period, part.jobs) for part in fits.until]


@pytest.mark.parametrize(
    ("budget", "jobs", "now", "waits"),
    [
        (_budget(), 1000, 1000, []),
        (_budget(day=100), 12, 12, []),  # 88 + a ceiling of 12 are exactly 100
        (_budget(day=100), 13, 12, [(Period.DAY, 1)]),
        (_budget(day=99), 12, 11, [(Period.DAY, 1)]),
        (_budget(day=100, spent=80), 5, 2, [(Period.DAY, 3)]),
        (_budget(day=100, spent=100), 5, 0, [(Period.DAY, 5)]),
        (_budget(day=100, spent=120), 5, 0, [(Period.DAY, 5)]),
        (_budget(month=100), 20, 12, [(Period.MONTH, 8)]),
        (_budget(day=100, month=1000), 20, 12, [(Period.DAY, 8)]),
        (_budget(day=100, month=148), 20, 12, [(Period.DAY, 6), (Period.MONTH, 2)]),
        (_budget(day=1000, month=100), 20, 12, [(Period.MONTH, 8)]),
    ],
)
def test_so_many_jobs_fit_and_the_rest_wait_for_the_limit_that_holds_them(
    budget: Budget, jobs: int, now: int, waits: list[tuple[Period, int]]
) -> None:
    fits = fit([_target()] * jobs, budget=budget, factor=FACTOR)
    assert (fits.now, _waits(fits), fits.never) == (now, waits, ())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (_target("80"), Why.TOO_DEAR),
        (_target(currency="USD"), Why.CURRENCY),
        (_target("0"), Why.NO_PRICE),
    ],
)
def test_what_no_limit_can_ever_take_is_told_apart_from_what_waits(target: Target, why: Why) -> None:  # fmt: skip
    cheap = _target(pk=2)
    fits = fit([target, cheap, target], budget=_budget(day=100), factor=FACTOR)
    assert (fits.now, _waits(fits)) == (1, [])
    assert [(one.target, one.jobs, one.held.why) for one in fits.never] == [(target, 2, why)]


def test_on_the_last_day_of_a_month_both_limits_are_told_although_they_start_anew_at_once() -> None:
    day, month = (replace(limit, until=APRIL) for limit in _budget(day=100, month=150).limits)
    fits = fit([_target()] * 40, budget=Budget("RUB", "UTC", (day, month)), factor=FACTOR)
    assert (fits.now, _waits(fits)) == (12, [(Period.DAY, 6), (Period.MONTH, 22)])


def test_a_cheap_job_goes_before_a_dear_one_that_does_not_fit() -> None:
    dear, cheap = _target("40", pk=1), _target("4", pk=2)
    fits = fit([dear, dear, cheap, cheap], budget=_budget(day=90), factor=FACTOR)
    assert (fits.now, _waits(fits)) == (3, [(Period.DAY, 1)])


def test_more_than_a_whole_day_is_told() -> None:
    [part] = fit([_target()] * 100, budget=_budget(day=100), factor=FACTOR).until
    assert (part.jobs, part.cost, part.again) == (88, Decimal(704), True)
    [part] = fit([_target()] * 14, budget=_budget(day=100), factor=FACTOR).until
    assert not part.again


@given(
    prices=st.lists(st.integers(0, 60), max_size=30),
    day=st.none() | st.integers(0, 300),
    month=st.none() | st.integers(0, 300),
    spent=st.integers(0, 100),
)
def test_every_job_is_counted_once_and_what_fits_stays_within_each_limit(
    prices: list[int], day: int | None, month: int | None, spent: int
) -> None:
    order = [_target(str(price), pk=price) for price in prices]
    budget = _budget(day, month, spent=spent)
    fits = fit(order, budget=budget, factor=FACTOR)
    parts = [part.jobs for part in fits.until] + [one.jobs for one in fits.never]
    assert fits.now + sum(parts) == len(order)
    assert fits.now >= 0
    assert all(count > 0 for count in parts)
    if budget.limits and fits.now:
        cheapest = sum(sorted(target.price for target in order if target.price)[: fits.now])
        assert all(cheapest <= limit.left for limit in budget.limits)


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _noon(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.PRICE_CEILING_FACTOR = FACTOR
    monkeypatch.setattr("jobs.clock.Clock.now", lambda _self: NOW)


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    client.get(ADD)
    Target.objects.update(price=8, currency="RUB")
    return client


def _limit(**values: Any) -> Tenant:
    Tenant.objects.filter(slug="studio").update(**values)
    return Tenant.objects.get(slug="studio")


def _preview(client: Client, rows: int, *, more: str = "") -> Any:
    pasted = "\n".join(f"chair {n}" for n in range(rows)) + more
    tenant = Tenant.objects.get(slug="studio")
    return client.post(ADD, {"tenant": tenant.pk, "pasted": pasted}, follow=True)


def _text(page: Any) -> str:
    """What a person reads: without tags, in single spaces."""
    plain = re.sub(r"<[^>]+>", " ", page.content.decode()).replace("&#x27;", "'")
    return re.sub(r"\s+", " ", plain)


def test_what_is_left_of_the_day_and_the_month_stands_beside_the_cost(client: Client) -> None:
    tenant = _limit(daily_limit=100, monthly_limit=1000)
    factories.task(
        factories.job(NOW, JobState.ACTIVE, tenant=tenant), NOW,
        estimated_cost=Decimal(8), created_at=NOW - timedelta(minutes=1),
    )  # fmt: skip
    text = _text(_preview(client, 3))
    assert "Cost, about ₽24.00" in text
    assert "Left today ₽88.00 of ₽100.00, anew tomorrow 00:00 Europe/Moscow" in text
    assert "Left this month ₽988.00 of ₽1,000.00, anew April 1 00:00 Europe/Moscow" in text
    assert "All of it fits in what is left of the budget." in text
    assert "starts anew" not in text


def test_without_a_limit_nothing_is_said_of_one(client: Client) -> None:
    text = _text(_preview(client, 3))
    assert "Left today" not in text
    assert "budget" not in text


def test_what_does_not_fit_today_is_said_to_wait_until_tomorrow(client: Client) -> None:
    _limit(daily_limit=100, monthly_limit=1000)
    page = _preview(client, 15)
    text = _text(page)
    assert "This is more than what is left of the budget: about 12 jobs fit now." in text
    assert "About 3 jobs wait until tomorrow 00:00 Europe/Moscow, when the day's budget starts anew." in text  # fmt: skip
    assert "Nothing is sent beyond a limit." in text
    assert "several days" not in text
    marked = re.findall(r'stat( tone-red)?" data-limit="(\w+)"', page.content.decode())
    assert marked == [(" tone-red", "day"), ("", "month")]


def test_a_batch_over_both_limits_says_how_much_waits_for_each(client: Client) -> None:
    _limit(daily_limit=100, monthly_limit=250)
    text = _text(_preview(client, 60))
    assert "about 12 jobs fit now" in text
    assert "About 18 jobs wait until tomorrow 00:00 Europe/Moscow" in text
    assert "About 30 jobs wait until April 1 00:00 Europe/Moscow, when the month's budget starts anew." in text  # fmt: skip
    assert "so it takes several days" in text


def test_a_day_that_is_spent_says_that_nothing_fits(client: Client) -> None:
    tenant = _limit(daily_limit=10)
    task = factories.task(
        factories.job(NOW, JobState.ACTIVE, tenant=tenant), NOW, created_at=NOW - timedelta(minutes=1)
    )  # fmt: skip
    assert task.estimated_cost * Decimal("1.5") == 12
    text = _text(_preview(client, 2))
    assert "Left today over by ₽2.00 of ₽10.00" in text
    assert "not sent until somebody changes that" in text
    assert "no job of it fits now" in text


def test_money_that_can_not_be_compared_is_said_to_stop_the_jobs(client: Client) -> None:
    _limit(daily_limit=100, currency="USD")
    text = _text(_preview(client, 2))
    assert "2 jobs are not sent until somebody changes that: Studio has a budget in USD" in text


def test_duplicates_that_will_be_left_out_use_up_no_budget(client: Client) -> None:
    _limit(daily_limit=20)
    text = _text(_preview(client, 2, more="\nchair 0\nchair 1"))
    assert "Cost, about ₽16.00 with the duplicates ₽32.00" in text
    assert "All of it fits" in text


def test_jobs_that_wait_already_are_told_and_not_counted(client: Client) -> None:
    tenant = _limit(daily_limit=100)
    for _n in range(2):
        factories.job(NOW, tenant=tenant)
    factories.job(NOW, tenant=factories.tenant("other"))
    text = _text(_preview(client, 1))
    assert "2 jobs of Studio wait already and are not counted here" in text


def test_the_higher_priority_takes_the_budget_first(client: Client) -> None:
    _limit(daily_limit=50)
    dear = factories.target("dear", price=30)
    tenant = Tenant.objects.get(slug="studio")
    pasted = f"prompt\tpriority\ttarget\na\t0\t\nb\t0\t\nc\t5\t{dear.name}"
    page = client.post(ADD, {"tenant": tenant.pk, "pasted": pasted}, follow=True)
    # Its 30 leave 20: one of 8 with a ceiling of 12 goes, and then 12 for the other.
    assert page.context["estimate"].fit.now == 3
    _limit(daily_limit=49)
    assert client.get(page.wsgi_request.path).context["estimate"].fit.now == 2


def test_of_many_routes_the_commonest_are_shown_and_the_others_counted(client: Client) -> None:
    names = [factories.target(f"m{n:02}").name for n in range(12)]
    tenant = Tenant.objects.get(slug="studio")
    pasted = "prompt\ttarget\n" + "".join(f"{n}\t{name}\n" for n, name in enumerate(names)) + f"x\t{names[11]}"  # fmt: skip
    page = client.post(ADD, {"tenant": tenant.pk, "pasted": pasted}, follow=True)
    shown = page.context["routes"]
    assert (len(shown), shown[0].names, shown[0].rows) == (10, names[11], 2)
    assert "and 2 more" in _text(page)


def test_a_raised_limit_shows_on_the_next_look(client: Client) -> None:
    _limit(daily_limit=10)
    page = _preview(client, 2)
    assert page.context["estimate"].over_budget
    _limit(daily_limit=100)
    assert not client.get(page.wsgi_request.path).context["estimate"].over_budget


# --- the command's dry run --------------------------------------------------------------------------------------------


def _dry(*words: str) -> str:
    out = io.StringIO()
    call_command("generate", *words, "--dry-run", stdout=out, stderr=io.StringIO())
    return out.getvalue().replace("\u00a0", " ")


def test_a_dry_run_says_cost_route_and_budget_and_creates_nothing(client: Client, tmp_path: Path) -> None:  # fmt: skip
    dealer = factories.tenant("dealer", daily_limit=20, default_route=[factories.target("m").pk])
    file = tmp_path / "rows.csv"
    file.write_text("prompt\na\nb\nc\nc\n")
    words = ("--from", str(file), "--tenant", "dealer")
    text = _dry(*words)
    assert "4 jobs for Dealer would be created, 1 of them duplicates." in text
    assert "polza:m: 4" in text
    assert "Cost, about: ₽32.00" in text
    assert "Left today: ₽20.00 of ₽20.00, anew tomorrow 00:00 Europe/Moscow" in text
    assert "about 2 jobs fit now" in text
    assert "About 2 jobs wait until tomorrow 00:00 Europe/Moscow" in text
    assert text.endswith("Nothing was created.\n")
    told = json.loads(_dry(*words, "--json"))
    assert told["cost"] == {"RUB": "32"}
    assert told["limits"] == {"day": {"left": "20", "until": MIDNIGHT.isoformat()}}
    assert told["fit"] == {"now": 2, "until": [{"period": "day", "jobs": 2}], "never": []}
    assert told["routes"] == [{"route": ["polza:m"], "jobs": 4}]
    assert not Job.objects.filter(tenant=dealer).exists()
    assert not Batch.objects.exists()


def test_a_dry_run_of_one_prompt_counts_its_copies_and_names_bad_lines(client: Client, tmp_path: Path) -> None:  # fmt: skip
    assert "Cost, about: ₽40.00" in _dry("A chair", "--count", "5")
    file = tmp_path / "rows.csv"
    file.write_text("prompt,priority\na,1\nb,high\n")
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("generate", "--from", str(file), "--dry-run", "--json", stdout=out)
    told = json.loads(out.getvalue())
    assert (ended.value.code, told["jobs"], [error["line"] for error in told["refused"]]) == (2, 1, [3])  # fmt: skip
    assert not Batch.objects.exists()
