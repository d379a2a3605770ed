"""Splits: a share of a tenant's jobs by weight for each target, drawn the same way whenever it is asked again."""

from __future__ import annotations

import io
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import routes, split, written
from jobs.batches.plan import plan
from jobs.batches.table import read_lines
from jobs.clock import clock
from jobs.intake import InputError
from jobs.lifecycle import tenants
from jobs.lifecycle.errors import Refused
from jobs.models import Job, Tenant, TenantEvent
from jobs.roles import Role
from providers.models import Target
from tests import factories

PARTS = st.dictionaries(st.integers(1, 500), st.integers(1, 100), min_size=1, max_size=5)
KEYS = [f"order-{n}" for n in range(2000)]


# --- drawing, pure ----------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(PARTS)
def test_shares_approach_the_weights(parts: dict[int, int]) -> None:
    drawn = Counter(split.draw(parts, key=key) for key in KEYS)
    whole = sum(parts.values())
    for target, weight in parts.items():
        # Six standard deviations of 2000 draws are less than 0.07.
        assert abs(drawn[target] / len(KEYS) - weight / whole) < 0.07


@given(PARTS, st.text())
def test_a_key_always_draws_the_same_whatever_the_order_of_the_parts(
    parts: dict[int, int], key: str
) -> None:
    turned = dict(reversed(parts.items()))
    assert split.draw(parts, key=key) == split.draw(turned, key=key)
    assert split.draw(parts, key=key) in parts


@settings(max_examples=20)
@given(PARTS.filter(lambda parts: len(parts) > 1), st.data())
def test_one_that_drops_out_moves_only_its_own_keys(parts: dict[int, int], data: Any) -> None:
    gone = data.draw(st.sampled_from(sorted(parts)))
    left = {target: weight for target, weight in parts.items() if target != gone}
    for key in KEYS[:200]:
        before, after = split.draw(parts, key=key), split.draw(left, key=key)
        assert before in {after, gone}


# --- routes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(db: None) -> list[Target]:
    return [factories.target("one", price=8), factories.target("two", price=4)]


def _split(slug: str, parts: dict[Target, int], **values: Any) -> Tenant:
    stored = split.stored({target.pk: weight for target, weight in parts.items()})
    return factories.tenant(slug, split=stored, **values)


def test_the_drawn_one_comes_first_and_the_fallbacks_stay(pair: list[Target]) -> None:
    one, two = pair
    spare = factories.target("spare")
    dealer = _split("dealer", {one: 50, two: 50}, default_route=[spare.pk, one.pk])
    ways = {target.model: way for way in routes.routing([], tenant=dealer).ways() for target in way[:1]}  # fmt: skip
    # `one` is a fallback itself, so the first becomes one too; to where nobody fell back, nothing does.
    assert ways == {"one": [one, spare], "two": [two, one]}
    assert routes.resolve(["polza:spare"], tenant=dealer) == [spare]
    drawn = [routes.resolve([], tenant=dealer, key=key) for key in ("a", "b", "a")]
    assert drawn[0] == drawn[2]
    assert all(way in ways.values() for way in drawn)


def test_closed_targets_drop_out_with_their_share_and_all_closed_is_told(
    pair: list[Target],
) -> None:
    one, two = pair
    dealer = _split("dealer", {one: 70, two: 30}, default_route=[one.pk])
    Target.objects.filter(pk=one.pk).update(enabled=False)
    routing = routes.routing([], tenant=dealer)
    assert {tuple(routing.of(key)) for key in KEYS[:50]} == {(two,)}
    Target.objects.filter(pk=two.pk).update(enabled=False)
    with pytest.raises(InputError, match="polza:one, polza:two"):
        routes.routing([], tenant=dealer)


def test_an_import_draws_by_the_reference_and_twins_stay_twins(pair: list[Target]) -> None:
    one, two = pair
    dealer = _split("dealer", {one: 50, two: 50}, default_route=[one.pk])
    text = "a cat\n" * 40
    first, again = (plan(read_lines(text), tenant=dealer) for _time in range(2))
    assert first.rows == again.rows
    assert {row.route[0] for row in first.rows} == {one.pk, two.pk}
    assert [row.twin for row in first.rows] == [False] + [True] * 39


def test_new_jobs_of_the_form_are_shared_out(pair: list[Target], settings: Any) -> None:
    one, two = pair
    dealer = _split("dealer", {one: 50, two: 50})
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    page = client.get(f"/admin/jobs/job/add/?tenant={dealer.pk}").content.decode()
    assert "50 % polza:one" in page.replace("\u00a0", " ")
    data = {"prompts": "a cat", "tenant": dealer.pk, "count": 20, "token": "0b7f6dfa-9b0b-4c31-8a0f-5f5a1a2b3c4d"}  # fmt: skip
    for _time in range(2):  # the second is the same batch
        assert client.post("/admin/jobs/job/add/", data).status_code == 302
    jobs = Job.objects.all()
    assert len(jobs) == 20
    assert {job.target_id for job in jobs} == {one.pk, two.pk}
    assert all(job.route == [job.target_id] for job in jobs)


# --- setting it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([("one", 0)], "weight"),
        ([("one", 1001)], "weight"),
        ([("one", 1), ("one", 2)], "twice"),
        ([("gone", 1)], "not known"),
        ([("one", 1), ("words", 1)], "make the same"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(
    pair: list[Target], parts: list[tuple[str, int]], why: str
) -> None:
    factories.target("words", kind="text")
    known = dict(Target.objects.values_list("model", "pk"))
    stored = [{"target": known.get(name, 999_999), "weight": weight} for name, weight in parts]
    tenant = factories.tenant()
    with pytest.raises(Refused, match=why):
        tenants.change(tenant_id=tenant.pk, actor=None, now=clock.now(), split=stored)


@pytest.mark.parametrize(
    "stored", [[{"target": 1, "weight": 0}], [{"target": 1}], [{"target": 1, "weight": "x"}], {"a": 1}, 5]
)  # fmt: skip
def test_the_database_keeps_no_split_without_weights(db: None, stored: Any) -> None:
    with pytest.raises(IntegrityError, match="tenant_split_weights"), transaction.atomic():
        Tenant.objects.create(slug="t", name="T", split=stored)


def test_the_command_sets_and_ends_a_split_and_the_trail_tells(pair: list[Target]) -> None:
    factories.tenant("dealer")
    owner = factories.staff(Role.OWNER, name="olga")
    out = io.StringIO()
    call_command("tenants", "split", "dealer", "polza:one=70", "polza:two=30", "--as", "olga", "--json", stdout=out)  # fmt: skip
    [told] = json.loads(out.getvalue())["tenants"]
    assert told["split"] == [
        {"target": "polza:one", "weight": 70, "open": True},
        {"target": "polza:two", "weight": 30, "open": True},
    ]
    out = io.StringIO()
    call_command("tenants", "list", stdout=out)
    assert "split: polza:one 70 %, polza:two 30 %" in out.getvalue().replace("\u00a0", " ")
    with pytest.raises(CommandError, match="provider:model=70"):
        call_command("tenants", "split", "dealer", "polza:one")
    call_command("tenants", "split", "dealer", "none", "--as", "olga", stdout=out)
    assert Tenant.objects.get(slug="dealer").split == []
    assert list(TenantEvent.objects.values_list("kind", "actor")) == [("changed", owner.pk)] * 2


def test_the_owner_sets_it_on_the_tenant_s_page(pair: list[Target]) -> None:
    tenant = factories.tenant("dealer")
    client = Client()
    client.force_login(factories.staff(Role.OWNER))
    url = f"/admin/jobs/tenant/{tenant.pk}/change/"
    data = {"name": "Dealer", "weight": 1, "currency": "RUB", "zone": "Europe/Moscow", "route_names": ""}  # fmt: skip
    answer = client.post(url, data | {"split_names": "polza:one=70\npolza:two"})
    assert answer.status_code == 200
    assert "polza:two" in answer.context["adminform"].form.errors["split_names"][0]
    assert client.post(url, data | {"split_names": "polza:one=70\npolza:two=30"}).status_code == 302
    page = client.get(url).content.decode()
    assert "polza:one=70, polza:two=30" in page  # who set what
    assert "polza:one=70\npolza:two=30" in page  # the field
    client.force_login(factories.staff(Role.VIEWER))
    assert "polza:one=70" in client.get(url).content.decode()


# --- currencies -------------------------------------------------------------------------------------------------------


def test_another_currency_is_shown_beside_the_studio_s_by_the_owner_s_rate(settings: Any) -> None:
    settings.CURRENCY, settings.CURRENCY_RATES = "RUB", {"RUB": Decimal(1), "USD": Decimal(92)}
    plain = str.maketrans("\u00a0", " ")
    assert written.both(Decimal("0.003"), "USD").translate(plain) == "$0.0030 (≈ ₽0.2760)"
    assert written.both(Decimal(8), "RUB").translate(plain) == "₽8.00"
    sums = {
        "RUB": Decimal(8),
        "USD": Decimal(2),
        "EUR": Decimal(1),
    }  # without a rate sums stay apart
    assert written.totals(sums).translate(plain) == "€1.00 + ₽8.00 + $2.00 (≈ ₽184.00)"
    assert written.in_one(sums).translate(plain) == "≈ ₽192.00 + €1.00"
    assert written.in_one({"RUB": Decimal(8)}).translate(plain) == "₽8.00"
    assert written.in_one({}) == ""
