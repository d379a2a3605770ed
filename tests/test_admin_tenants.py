"""The tenants' pages: who may see and set what, what the bars say, and hostile names."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs import tenancy
from jobs.admin import tenants as pages
from jobs.budgets import Budget, Limit, Period, Spent
from jobs.clock import clock
from jobs.models import Tenant, TenantEvent
from jobs.roles import Role
from tests import factories

pytestmark = pytest.mark.django_db

LIST = "/admin/jobs/tenant/"


@pytest.fixture(autouse=True)
def _factor(settings: Any) -> None:
    settings.PRICE_CEILING_FACTOR = 1.5


@pytest.fixture
def dealer() -> Tenant:
    """64 of 100 spent today, 24 possible."""
    now = clock.now()
    made = factories.tenant("dealer", daily_limit=Decimal(100), zone="UTC")
    for cost in (30, 34):
        factories.accepted(
            factories.job(now, tenant=made), now, armed_at=now, created_at=now, completed_at=now, cost_poll=Decimal(cost)
        )  # fmt: skip
    for _ in range(2):
        factories.lost(factories.job(now, tenant=made), now, armed_at=now, created_at=now)
    return made


def client(role: Role = Role.OWNER) -> Client:
    made = Client()
    made.force_login(factories.staff(role))
    return made


def url(tenant: Tenant) -> str:
    return reverse("admin:jobs_tenant_change", args=[tenant.pk])


def page(by: Client, address: str) -> str:
    response = by.get(address)
    assert response.status_code == 200, address
    return response.content.decode()


def filled(**values: Any) -> dict[str, Any]:
    """The form as the page sends it."""
    return {
        "name": "Dealer", "contact": "", "weight": "1", "max_in_flight": "", "currency": "RUB", "daily_limit": "100.00",
        "monthly_limit": "", "zone": "UTC", "route_names": "", **values,
    }  # fmt: skip


# --- looking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
def test_everybody_sees_what_is_spent_possible_and_left(dealer: Tenant, role: Role) -> None:
    words = "₽64.00 spent, ₽24.00 possible of ₽100.00: ₽12.00 left"
    for address in (LIST, url(dealer)):
        shown = page(client(role), address)
        assert words in shown
        assert "nearly used" in shown
        assert re.search(r'x="0" y="0" width="64.00".*x="64.00" y="0" width="24.00"', shown)


def test_the_limit_that_holds_is_named(dealer: Tenant) -> None:
    Tenant.objects.update(daily_limit=Decimal(90))
    shown = page(client(), url(dealer))
    assert "no send fits any more" in shown
    assert "waits for the budget of Dealer until it is known what sends under way cost" in shown
    Tenant.objects.update(daily_limit=Decimal(80))
    shown = page(client(), LIST)
    assert "over the limit, nothing is sent" in shown
    assert "over by ₽8.00" in shown
    Tenant.objects.update(daily_limit=None, max_in_flight=0)
    shown = page(client(), url(dealer))
    assert "Dealer has its most in flight" in shown
    assert "No spending limit is set." in shown


def test_a_bar_is_never_wider_than_its_box() -> None:
    now = clock.now()
    limit = Limit(Period.DAY, Decimal(10), Spent(Decimal(30), Decimal(10)), now)
    view = tenancy.View(
        tenant=Tenant(name="a"), budget=Budget("RUB", "UTC", [limit]), in_flight=0, waiting=0, now=now
    )  # fmt: skip
    [bar] = pages.bars(view)
    assert (bar.charged, bar.at, bar.possible, bar.look.tone) == ("75.00", "75.00", "25.00", "red")
    none = Limit(Period.DAY, Decimal(0), Spent(), now)
    view = tenancy.View(
        tenant=Tenant(name="a"), budget=Budget("RUB", "UTC", [none]), in_flight=0, waiting=0, now=now
    )  # fmt: skip
    assert pages.bars(view)[0].charged == "0.00"


def test_the_list_asks_no_query_per_tenant(dealer: Tenant) -> None:
    root = client()
    page(root, LIST)
    with CaptureQueriesContext(connection) as few:
        page(root, LIST)
    assert len(few) > 5
    for number in range(10):
        factories.tenant(f"more-{number}", daily_limit=Decimal(5), monthly_limit=Decimal(50))
    page(root, LIST)  # what they spent earlier in the month is kept for a minute
    with CaptureQueriesContext(connection) as many:
        page(root, LIST)
    assert asked(many) == asked(few)


def asked(queries: CaptureQueriesContext) -> int:
    """All but those for the time, which is asked anew now and then."""
    return sum("clock_timestamp" not in query["sql"] for query in queries.captured_queries)


def test_hostile_names_are_escaped_and_no_script_or_style_is_inline(dealer: Tenant) -> None:
    evil = "<script>alert(1)</script>\"'&"
    Tenant.objects.update(name=evil, contact=evil, daily_limit=Decimal(80))
    TenantEvent.objects.create(
        tenant=dealer, at=clock.now(), kind="changed", data={"name": ["a", evil]}
    )
    for address in (LIST, url(dealer)):
        shown = page(client(), address)
        assert "<script>alert" not in shown
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", shown)


# --- setting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_only_owners_set_limits(dealer: Tenant, role: Role) -> None:
    by = client(role)
    assert "the configured route" in page(by, url(dealer))
    assert by.post(url(dealer), filled(daily_limit="900")).status_code == 403
    assert by.get(reverse("admin:jobs_tenant_add")).status_code == 403
    dealer.refresh_from_db()
    assert dealer.daily_limit == 100


def test_an_owner_sets_limits_and_the_page_tells_who_did(dealer: Tenant) -> None:
    one, two = factories.target("one"), factories.target("two", enabled=False)
    by = client()
    said = by.post(
        url(dealer),
        filled(
            daily_limit="200",
            weight="3",
            zone="Asia/Tehran",
            route_names="polza:two\n polza:one \n",
        ),
    )
    assert said.status_code == 302
    dealer.refresh_from_db()
    assert dealer.daily_limit == 200
    assert (dealer.weight, dealer.zone) == (3, "Asia/Tehran")
    assert dealer.default_route == [two.pk, one.pk]
    event = TenantEvent.objects.get()
    assert event.data["daily_limit"] == ["100.00", "200"]
    shown = page(by, url(dealer))
    assert re.search(r"most a day: <bdi>100.00</bdi>.*<bdi>200</bdi>", shown)
    assert "polza:two, polza:one" in shown
    assert event.actor is not None
    assert event.actor.get_username() in shown


def test_saving_without_a_change_writes_no_event(dealer: Tenant) -> None:
    assert client().post(url(dealer), filled()).status_code == 302
    assert not TenantEvent.objects.exists()


def test_an_owner_makes_a_tenant(dealer: Tenant) -> None:
    made = client().post(
        reverse("admin:jobs_tenant_add"), filled(name="Shop", slug="shop", monthly_limit="900.50")
    )
    assert made.status_code == 302
    shop = Tenant.objects.get(slug="shop")
    assert (shop.name, shop.monthly_limit) == ("Shop", Decimal("900.50"))
    assert TenantEvent.objects.get().kind == "created"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"daily_limit": "-1"}, "greater than or equal to 0"),
        ({"daily_limit": "NaN"}, "Enter a number"),
        ({"weight": "0"}, "greater than or equal to 1"),
        ({"zone": "Mars"}, "is no time zone"),
        ({"currency": "₽"}, "three capital letters"),
        ({"route_names": "polza:nothing"}, "is not a target"),
        ({"route_names": "polza:one\npolza:one"}, "stands in the route twice"),
    ],
)
def test_nonsense_is_told_beside_the_field(
    dealer: Tenant, values: dict[str, str], words: str
) -> None:
    factories.target("one")
    said = client().post(url(dealer), filled(**values))
    assert said.status_code == 200
    assert words in said.content.decode()
    assert not TenantEvent.objects.exists()


def test_the_short_name_stays(dealer: Tenant) -> None:
    client().post(url(dealer), filled(slug="other"))
    dealer.refresh_from_db()
    assert dealer.slug == "dealer"


def test_a_tenant_is_never_deleted(dealer: Tenant) -> None:
    assert client().get(reverse("admin:jobs_tenant_delete", args=[dealer.pk])).status_code == 403


def test_yesterdays_money_is_gone_from_todays_bar(dealer: Tenant) -> None:
    dealer.refresh_from_db()
    tomorrow = clock.now() + timedelta(days=1)
    [view] = tenancy.views([dealer], now=tomorrow)
    assert view.budget.left == 100
