"""Tenants at the claim: shares by weight, money that is never promised twice, and what people are told while it waits."""

from __future__ import annotations

import io
import json
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from jobs import phases, rules, spending, tenancy
from jobs.bell import CHANNEL, direct_parameters
from jobs.lifecycle import recover, staff, tenants
from jobs.lifecycle.arm import arm
from jobs.lifecycle.claim import Intent, claim_sends
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.record import Fact, record
from jobs.models import Job, ProviderTask, Tenant, TenantEvent, TenantOlder
from jobs.states import CaseKind, JobState
from providers import registry
from tests import factories
from tests.two import Still

pytestmark = pytest.mark.django_db

# Sunday, 15:00 in Moscow.
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 1, 21, tzinfo=UTC)
CEILING = Decimal(12)  # 8 a picture, times 1.5
RUN = uuid.UUID(int=1)


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.PRICE_CEILING_FACTOR = 1.5
    settings.WORKER_LANES = 0  # nobody to ring for
    settings.PROVIDER_KEYS = {"polza": "pza_budget"}


def fingerprint() -> str:
    return registry.fingerprint("pza_budget")


@pytest.fixture
def dealer() -> Tenant:
    """May spend 100 a day: eight pictures at their ceiling, twelve at their price."""
    factories.account(NOW, fingerprint=fingerprint())
    return factories.tenant("dealer", daily_limit=Decimal(100))


def jobs(tenant: Tenant, count: int, **values: Any) -> list[Job]:
    return [factories.job(NOW, tenant=tenant, **values) for _ in range(count)]


def claim(*, room: int = 100, now: datetime = NOW, concurrency: int = 100) -> list[Intent]:
    return claim_sends(
        run_id=RUN,
        host="here",
        room=room,
        fingerprints=[fingerprint()],
        limits=replace(rules.limits(), concurrency=concurrency, price_ceiling_factor=1.5),
        now=now,
    )


def sent(intents: list[Intent], *, now: datetime = NOW) -> None:
    armed = arm(run_id=RUN, calls={i.task_id: (30.0, 3600.0) for i in intents}, clock=Still(now))
    assert armed.ids == {intent.task_id for intent in intents}


def learned(intents: list[Intent], *, now: datetime = NOW, **what: Any) -> None:
    record(facts=[Fact(task_id=intent.task_id, at=now, kind="", **what) for intent in intents])


def made(intents: list[Intent], cost: str) -> None:
    learned(intents, completed=True, cost_poll=Decimal(cost))


def left(tenant: Tenant, *, now: datetime = NOW) -> Decimal | None:
    tenant.refresh_from_db()
    return spending.budgets([tenant], factor=1.5, now=now)[tenant.pk].left


def why(job: Job, *, now: datetime = NOW) -> str:
    job.refresh_from_db()
    return phases.why_waiting([Job.objects.select_related("tenant").get(pk=job.pk)], now)[
        job.pk
    ].text


# --- money is stopped before it is spent ------------------------------------------------------------------------------


def test_ceilings_count_until_the_real_cost_is_known(dealer: Tenant) -> None:
    jobs(dealer, 20)
    first = claim()
    assert (len(first), left(dealer)) == (8, Decimal(4))
    assert claim() == []
    sent(first)
    assert claim() == []
    made(first, "8")  # 64 spent, room for three ceilings
    assert len(claim()) == 3
    assert left(dealer) == 0


def test_a_free_refusal_and_an_unsent_one_give_their_money_back(dealer: Tenant) -> None:
    jobs(dealer, 20)
    first = claim()
    sent(first[:1])
    learned(first[:1], refusal_class="rejected")
    learned(first[1:2], unsent=True)
    assert left(dealer) == 4 + 2 * CEILING
    assert len(claim()) == 2


def test_a_refund_gives_it_back_and_what_is_written_off_stays_spent(dealer: Tenant) -> None:
    one, two = jobs(dealer, 2)
    factories.accepted(one, NOW, completed_at=NOW, cost_poll=Decimal(40), staff_charge="refunded")
    assert left(dealer) == 100
    factories.accepted(
        two, NOW, completed_at=NOW, cost_poll=Decimal(40), staff_charge="written_off"
    )
    assert left(dealer) == 60


def test_an_unknown_outcome_counts_as_money_that_may_be_gone(dealer: Tenant) -> None:
    waiting = jobs(dealer, 20)
    for job in waiting[:8]:
        factories.lost(job, NOW)
        Job.objects.filter(pk=job.pk).update(state=JobState.MANUAL)
    assert left(dealer) == 4
    assert claim() == []


def test_a_late_one_counts_after_its_place_is_free_again(dealer: Tenant) -> None:
    jobs(dealer, 20)
    first = claim()
    sent(first)
    for number, intent in enumerate(first):
        learned([intent], provider_id=f"x{number}")
    later = NOW + timedelta(hours=1)
    assert not ProviderTask.objects.in_flight(now=later, poll_deadline_s=900).exists()
    assert claim(now=later) == []
    assert left(dealer, now=later) == 4


def test_what_a_dead_lane_has_claimed_counts_until_it_is_withdrawn(dealer: Tenant) -> None:
    """It died between claim and arm: the intents stand for money until reconcile proves that nothing was sent."""
    jobs(dealer, 20)
    assert len(claim()) == 8
    assert claim() == []
    recover.withdraw_dead_intents(live=[], now=NOW + timedelta(minutes=2))
    assert left(dealer) == 100
    assert ProviderTask.objects.filter(charge="none", state="unsent").count() == 8


def test_a_charge_above_its_ceiling_is_shown_and_nothing_more_is_sent(dealer: Tenant) -> None:
    waiting = jobs(dealer, 20)
    first = claim()
    sent(first)
    made(first, "20")
    assert left(dealer) == Decimal(-60)
    assert claim() == []
    [view] = tenancy.views([dealer], now=NOW)
    [limit] = view.budget.limits
    assert tenancy.look(limit, fits=False).tone == "red"
    assert tenancy.limit_words(limit, "RUB").endswith("over by ₽60.00")
    assert why(waiting[-1]) == "waits for the budget of Dealer until tomorrow 00:00 Europe/Moscow"


def test_a_send_that_turns_out_to_cost_after_all_counts_again(dealer: Tenant) -> None:
    jobs(dealer, 20)
    first = claim()
    sent(first)
    learned(first, refusal_class="down")
    assert left(dealer) == 100
    learned(first[:1], provider_id="late")
    assert left(dealer) == 100 - CEILING


def test_the_day_and_the_month_both_hold(dealer: Tenant) -> None:
    Tenant.objects.update(daily_limit=Decimal(40), monthly_limit=Decimal(60))
    jobs(dealer, 20)
    assert len(claim()) == 3
    assert claim(now=MIDNIGHT - timedelta(seconds=1)) == []
    assert len(claim(now=MIDNIGHT)) == 2, "a new day, but 36 of 60 are gone"
    assert claim(now=MIDNIGHT + timedelta(days=1)) == []
    assert len(claim(now=datetime(2026, 3, 31, 21, tzinfo=UTC))) == 3, "a new month"


def test_a_send_counts_in_the_day_it_was_claimed_whenever_it_is_charged(dealer: Tenant) -> None:
    jobs(dealer, 20)
    first = claim(now=MIDNIGHT - timedelta(seconds=1))
    sent(first, now=MIDNIGHT + timedelta(seconds=1))
    learned(first, now=MIDNIGHT + timedelta(hours=1), completed=True, cost_poll=Decimal(8))
    assert left(dealer, now=MIDNIGHT + timedelta(hours=2)) == 100


def test_the_older_part_of_a_month_is_summed_up_once_a_minute(dealer: Tenant) -> None:
    """Half a million old sends must not be read by each claim; new ones, and what becomes of them, are."""
    Tenant.objects.update(daily_limit=None, monthly_limit=Decimal(60))
    waiting = jobs(dealer, 20)
    old = factories.accepted(
        waiting[0],
        NOW,
        created_at=NOW - timedelta(hours=2),
        completed_at=NOW,
        cost_poll=Decimal(20),
    )
    Job.objects.filter(pk=waiting[0].pk).update(state=JobState.MANUAL)
    assert len(claim(room=1)) == 1
    kept = TenantOlder.objects.get()
    assert kept.charged == 20
    assert kept.possible == 0
    assert kept.end_at == NOW - timedelta(hours=1)
    assert left(dealer) == 28
    assert len(claim()) == 2, "the claims since are counted at once"
    ProviderTask.objects.filter(pk=old.pk).update(staff_charge="refunded")
    assert claim(now=NOW + timedelta(seconds=59)) == []
    assert len(claim(now=NOW + timedelta(seconds=60))) == 2
    assert left(dealer, now=NOW + timedelta(seconds=61)) == 0


@pytest.mark.parametrize(
    "change",
    [{"currency": "USD"}, {"zone": "Asia/Kamchatka"}],
)
def test_what_was_summed_up_for_another_currency_or_month_is_not_used(
    dealer: Tenant, change: dict[str, Any]
) -> None:
    Tenant.objects.update(daily_limit=None, monthly_limit=Decimal(60))
    jobs(dealer, 1)
    claim()
    TenantOlder.objects.update(charged=1000)
    assert left(dealer) == 60 - 1000 - CEILING
    Tenant.objects.filter(pk=dealer.pk).update(**change)
    assert left(dealer) in {Decimal(60), 60 - CEILING}


def test_a_limit_of_nothing_sends_nothing(dealer: Tenant) -> None:
    tenants.change(tenant_id=dealer.pk, actor=None, now=NOW, daily_limit=Decimal(0))
    [job] = jobs(dealer, 1)
    assert claim() == []
    assert "may cost ₽12.00, more than Dealer may spend a day (₽0.00)" in why(job)


def test_money_that_cannot_be_compared_is_not_spent(dealer: Tenant) -> None:
    [dear] = jobs(dealer, 1, target=factories.target("abroad", currency="USD"))
    [free] = jobs(dealer, 1, target=factories.target("unpriced", price=0))
    assert claim() == []
    assert why(dear) == "Dealer has a budget in RUB, and polza:abroad is paid in another currency"
    assert why(free) == "Dealer has a budget, and polza:unpriced has no price"
    tenants.change(tenant_id=dealer.pk, actor=None, now=NOW, daily_limit=None)
    assert len(claim()) == 2, "without a limit there is nothing to compare"


def test_a_cheap_job_goes_where_a_dear_one_does_not_fit(dealer: Tenant) -> None:
    [dear] = jobs(dealer, 1, target=factories.target("dear", price=70), priority=5)
    jobs(dealer, 10)
    assert {intent.target.model for intent in claim()} == {factories.MODEL}
    assert "polza:dear may cost ₽105.00" in why(dear)


def test_the_budget_of_one_stops_nobody_else(dealer: Tenant) -> None:
    jobs(dealer, 20)
    other = factories.tenant("other")
    jobs(other, 20)
    assert Counter(Job.objects.get(pk=i.job_id).tenant.slug for i in claim()) == {
        "dealer": 8,
        "other": 20,
    }


def test_another_tenants_money_is_not_mine(dealer: Tenant) -> None:
    other = factories.tenant("other", daily_limit=Decimal(50))
    [job] = jobs(other, 1)
    factories.accepted(job, NOW, completed_at=NOW, cost_poll=Decimal(40))
    assert left(dealer) == 100
    assert left(other) == 10


def test_a_fallback_is_paid_from_the_same_budget(dealer: Tenant, settings: Any) -> None:
    shut, dear = factories.target(), factories.target("dear", price=30)
    factories.provider_state(NOW, "quota_exhausted", account=factories.account(NOW, fingerprint=fingerprint()),
                             model=shut.model, blocked_until=NOW + timedelta(days=1), block="quota_exhausted")  # fmt: skip
    jobs(dealer, 5, target=shut, route=[shut.pk, dear.pk])
    taken = claim_sends(
        run_id=RUN, host="here", room=10, fingerprints=[fingerprint()], now=NOW,
        limits=replace(rules.limits(), concurrency=100, price_ceiling_factor=1.5, fallback_on=frozenset({"quota"})),
    )  # fmt: skip
    assert [intent.target.model for intent in taken] == ["dear"] * 2, "45 each"


# --- people obey it as well -------------------------------------------------------------------------------------------


def test_a_persons_retry_and_resend_wait_for_the_money(dealer: Tenant) -> None:
    Tenant.objects.update(daily_limit=Decimal(20))
    failed = factories.job(NOW, JobState.FAILED, tenant=dealer, reason="refused_by_all")
    unknown = factories.job(NOW, JobState.MANUAL, tenant=dealer, reason="unknown_send")
    by = factories.lost(unknown, NOW)
    factories.case(CaseKind.UNKNOWN_SEND, NOW, of=unknown, by=by)
    staff.retry(job_id=failed.pk, actor=None, now=NOW)
    staff.resend(job_id=unknown.pk, actor=None, now=NOW, reason="the customer waits")
    assert claim() == []
    assert why(failed).startswith("waits for the budget of Dealer")
    tenants.change(tenant_id=dealer.pk, actor=None, now=NOW, daily_limit=Decimal(36))
    assert {intent.job_id for intent in claim()} == {failed.pk, unknown.pk}


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_waiting_job_says_which_budget_holds_it_and_until_when(dealer: Tenant) -> None:
    waiting = jobs(dealer, 9)
    first = claim()
    last = next(job for job in waiting if job.pk not in {intent.job_id for intent in first})
    assert why(last) == (
        "waits for the budget of Dealer until it is known what sends under way cost (₽96.00 at most),"
        " or until tomorrow 00:00 Europe/Moscow"
    )
    sent(first)
    made(first, "12")
    assert why(last) == "waits for the budget of Dealer until tomorrow 00:00 Europe/Moscow"
    assert why(last, now=MIDNIGHT) == "next in line"
    Tenant.objects.update(monthly_limit=Decimal(100), zone="Asia/Tehran")
    assert why(last) == "waits for the budget of Dealer until April 1 00:00 Asia/Tehran"
    assert why(last, now=datetime(2026, 3, 31, 19, tzinfo=UTC)) == (
        "waits for the budget of Dealer until tomorrow 00:00 Asia/Tehran"
    )


def test_reasons_of_many_jobs_cost_one_statement_for_all_budgets(
    dealer: Tenant, django_assert_max_num_queries: Any
) -> None:
    other = factories.tenant("other", daily_limit=Decimal(1))
    rows = [*jobs(dealer, 5), *jobs(other, 5)]
    with django_assert_max_num_queries(8):
        assert len(phases.why_waiting(rows, NOW)) == 10


# --- shares -----------------------------------------------------------------------------------------------------------


def shares(taken: list[Intent]) -> Counter[str]:
    names = dict(Job.objects.values_list("pk", "tenant__slug"))
    return Counter(names[intent.job_id] for intent in taken)


def test_places_are_dealt_by_weight(dealer: Tenant) -> None:
    a, b = factories.tenant("a", weight=3), factories.tenant("b")
    for tenant in (a, b):
        jobs(tenant, 50)
    assert shares(claim(room=20)) == {"a": 15, "b": 5}


def test_a_share_that_its_owner_does_not_use_is_lent(dealer: Tenant) -> None:
    a, b = factories.tenant("a", weight=9), factories.tenant("b")
    jobs(a, 2)
    jobs(b, 50)
    assert shares(claim(room=20)) == {"a": 2, "b": 18}


def test_one_place_at_a_time_goes_to_who_has_least_for_its_weight(dealer: Tenant) -> None:
    a, b = factories.tenant("a", weight=3), factories.tenant("b")
    for tenant in (a, b):
        jobs(tenant, 50)
    got: Counter[str] = Counter()
    for second in range(16):
        got += shares(claim(room=1, concurrency=16, now=NOW + timedelta(seconds=second)))
    assert got == {"a": 12, "b": 4}


def test_one_place_for_many_is_drawn_by_weight_and_nobody_starves(dealer: Tenant) -> None:
    a, b = factories.tenant("a", weight=3), factories.tenant("b")
    for tenant in (a, b):
        jobs(tenant, 100)
    got: Counter[str] = Counter()
    for second in range(100):
        taken = claim(room=1, concurrency=1, now=NOW + timedelta(seconds=second))
        got += shares(taken)
        learned(taken, unsent=True)
        Job.objects.filter(pk=taken[0].job_id).update(state=JobState.CANCELLED, finished_at=NOW)
    assert 60 <= got["a"] <= 90
    assert got["b"] == 100 - got["a"]


# --- setting it -------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_raising_a_limit_rings_the_bell_and_is_on_record() -> None:
    tenant, person = factories.tenant("dealer", daily_limit=Decimal(100)), factories.staff()
    with _ear() as ear:
        tenants.change(tenant_id=tenant.pk, actor=person, now=NOW, daily_limit=Decimal(200))
        assert [notify.channel for notify in ear.notifies(timeout=5, stop_after=1)] == [CHANNEL]
    event = TenantEvent.objects.get()
    assert (event.kind, event.actor, event.at) == ("changed", person, NOW)
    assert event.data == {"daily_limit": ["100.00", "200"]}


def _ear() -> psycopg.Connection[Any]:
    ear = psycopg.connect(**direct_parameters(), autocommit=True)
    ear.execute(f'LISTEN "{CHANNEL}"')
    return ear


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": 101}, "weight"),
        ({"daily_limit": Decimal(-1)}, "most a day"),
        ({"daily_limit": Decimal("NaN")}, "most a day"),
        ({"monthly_limit": Decimal(10) ** 15}, "most a month"),
        ({"currency": "rub"}, "currency"),
        ({"zone": "Moscow"}, "time zone"),
        ({"zone": "../etc/passwd"}, "time zone"),
        ({"default_route": [999]}, "default route"),
        ({"name": ""}, "name"),
        ({"name": "Dealer"}, "Nothing was changed."),
    ],
)
def test_nonsense_is_refused_and_nothing_is_changed(
    dealer: Tenant, values: dict[str, Any], word: str
) -> None:
    before = Tenant.objects.values().get(pk=dealer.pk)
    with pytest.raises(Refused, match=word):
        tenants.change(tenant_id=dealer.pk, actor=None, now=NOW, **values)
    assert Tenant.objects.values().get(pk=dealer.pk) == before
    assert not TenantEvent.objects.exists()


def test_a_default_route_holds_its_open_targets_in_order(dealer: Tenant) -> None:
    one, two, shut = (
        factories.target("one"),
        factories.target("two"),
        factories.target("shut", enabled=False),
    )
    route = [two.pk, shut.pk, one.pk]
    tenant = tenants.change(tenant_id=dealer.pk, actor=None, now=NOW, default_route=route)
    assert tenants.default_route(tenant) == [two, one]
    with pytest.raises(Refused, match="twice"):
        tenants.change(tenant_id=dealer.pk, actor=None, now=NOW, default_route=[one.pk, one.pk])


# --- the command ------------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("tenants", *words, stdout=out, stderr=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


def test_the_command_lists_tenants_with_their_money(dealer: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr("jobs.clock.Clock.now", lambda _self: NOW)
    jobs(dealer, 20)
    made(claim(), "8")
    code, text = run("--json")
    [told] = json.loads(text)["tenants"]
    assert code == 0
    assert told["limits"] == {
        "day": {"most": "100.00", "charged": "64.00", "possible": "0.00", "left": "36.00",
                "until": "2026-03-01T21:00:00+00:00"}
    }  # fmt: skip
    assert (told["slug"], told["waiting"], told["weight"], told["held"]) == ("dealer", 12, 1, "")
    code, text = run("list")
    assert "today: ₽64.00 spent, ₽0.00 possible of ₽100.00: ₽36.00 left" in text


def test_the_command_makes_and_sets_tenants(dealer: Tenant) -> None:
    target = factories.target("one")
    code, text = run(
        "add", "shop", "--daily", "50,5", "--weight", "2", "--route", "polza:one", "--json"
    )
    assert (code, json.loads(text)["tenants"][0]["limits"]["day"]["most"]) == (0, "50.50")
    code, _ = run(
        "set",
        "shop",
        "--daily",
        "none",
        "--monthly",
        "900",
        "--in-flight",
        "4",
        "--zone",
        "Asia/Tehran",
    )
    shop = Tenant.objects.get(slug="shop")
    assert code == 0
    assert shop.daily_limit is None
    assert shop.monthly_limit == 900
    assert (shop.max_in_flight, shop.zone) == (4, "Asia/Tehran")
    assert (shop.weight, shop.default_route) == (2, [target.pk])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["set", "nobody", "--daily", "1"], 2),
        (["set", "dealer", "--daily", "much"], 2),
        (["set", "dealer", "--daily", "Infinity"], 2),
        (["set", "dealer", "--in-flight", "-1"], 2),
        (["set", "dealer", "--route", "polza:nothing"], 2),
        (["set", "dealer", "--as", "nobody", "--daily", "1"], 2),
        (["set", "dealer", "--daily", "100"], 3),
        (["set", "dealer", "--zone", "Nowhere"], 3),
        (["add", "dealer"], 3),
        (["add", "Not A Slug"], 3),
    ],
)
def test_the_command_refuses_nonsense(dealer: Tenant, words: list[str], code: int) -> None:
    assert run(*words)[0] == code
    assert Tenant.objects.count() == 1
    assert Tenant.objects.get().daily_limit == 100
