"""Kept filters: whose they are, what of an address they keep, and the way back to a narrowed list."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from jobs.clock import clock
from jobs.lifecycle import saved_filters
from jobs.lifecycle.errors import Refused
from jobs.models import SavedFilter
from jobs.narrowing import plain
from jobs.roles import Role
from tests import factories

SAVE = "/admin/filters/save/"
LIST = "/admin/jobs/job/"


@pytest.fixture
def now(db: None) -> datetime:
    return clock.now()


def client(role: Role = Role.OPERATOR, name: str = "anna") -> Client:
    made = Client()
    made.force_login(factories.staff(role, name=name))
    return made


def kept(by: Client, **values: Any) -> Any:
    told = {"place": "jobs_job", "query": "state=failed&p=3", "name": "Failed ones", "next": LIST}
    return by.post(SAVE, told | values)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_where_one_is_in_a_list_is_not_kept() -> None:
    assert (
        plain("?state=failed&older=99&p=3&q=red+car&_changelist_filters=x")
        == "q=red+car&state=failed"
    )


@given(st.text(max_size=200))
def test_whatever_an_address_carries_comes_out_as_a_plain_query(query: str) -> None:
    found = plain(query) if query.count("&") < 50 else ""
    assert not set(found) & set("<>\"' \n\0#?")
    assert plain(found) == found


# --- the chips --------------------------------------------------------------------------------------------------------


def test_a_kept_filter_is_a_chip_of_its_list_and_of_no_other(now: datetime) -> None:
    by = client()
    assert "Keep this filter" in by.get(f"{LIST}?state=failed").content.decode()
    answer = kept(by)
    assert answer["Location"] == LIST
    page = by.get(LIST).content.decode()
    assert "Failed ones" in page
    assert 'href="?state=failed"' in page
    assert "Failed ones" not in by.get("/admin/jobs/batch/").content.decode()
    assert "Keep this filter" not in by.get(f"{LIST}?state=failed").content.decode()  # it is


def test_the_same_name_once_more_replaces(now: datetime) -> None:
    by = client()
    kept(by)
    kept(by, query="state=pending")
    assert SavedFilter.objects.get().query == "state=pending"


def test_ones_own_are_ones_own_and_shared_ones_everybodys(now: datetime) -> None:
    anna, boris = client(), client(name="boris")
    kept(anna, name="mine")
    kept(anna, name="ours", shared="1")
    page = boris.get(LIST).content.decode()
    assert "ours" in page
    assert ">mine<" not in page


@pytest.mark.parametrize(
    "wrong",
    [{"name": " "}, {"name": "x" * 61}, {"place": "auth_user"}, {"query": ""}, {"query": "p=3"}, {"query": "q=" + "x" * 200 + "&" + "&".join(f"a{n}=" + "y" * 200 for n in range(20))}],
)  # fmt: skip
def test_what_can_not_be_kept_says_why(now: datetime, wrong: dict[str, str]) -> None:
    by = client()
    kept(by, **wrong)
    assert not SavedFilter.objects.exists()


def test_nobody_keeps_more_than_fit_a_list(now: datetime) -> None:
    user = factories.staff(Role.VIEWER, name="many")
    for number in range(saved_filters.MOST_EACH):
        saved_filters.save(
            user_id=user.pk,
            place="jobs_job",
            query=f"q={number}",
            name=f"{number}",
            shared=False,
            now=now,
        )
    with pytest.raises(Refused):
        saved_filters.save(
            user_id=user.pk, place="jobs_job", query="q=x", name="one more", shared=False, now=now
        )
    saved_filters.save(
        user_id=user.pk,
        place="gallery",
        query="rating=good",
        name="elsewhere",
        shared=False,
        now=now,
    )


# --- who may ----------------------------------------------------------------------------------------------------------


def test_a_viewer_keeps_filters_but_shares_none(now: datetime) -> None:
    viewer = client(Role.VIEWER)
    kept(viewer)
    assert SavedFilter.objects.count() == 1
    assert kept(viewer, name="ours", shared="1").status_code == 403


def test_only_its_owner_or_an_owner_of_the_desk_removes_one(now: datetime) -> None:
    kept(client(), name="ours", shared="1")
    kept(client(name="anna2"), name="mine")
    ours, mine = SavedFilter.objects.order_by("name").values_list("pk", flat=True)[::-1]
    boris = client(name="boris")
    for pk in (ours, mine):
        boris.post(f"/admin/filters/{pk}/forget/")
    assert SavedFilter.objects.count() == 2
    owner = client(Role.OWNER, name="olga")
    for pk in (ours, mine):
        owner.post(f"/admin/filters/{pk}/forget/")
    assert list(SavedFilter.objects.values_list("name", flat=True)) == ["mine"]


def test_nothing_happens_by_a_get_or_without_a_login(now: datetime) -> None:
    kept(client())
    pk = SavedFilter.objects.get().pk
    assert client(name="x").get(f"/admin/filters/{pk}/forget/").status_code == 405
    assert client(name="y").get(SAVE).status_code == 405
    Client().post(f"/admin/filters/{pk}/forget/")
    assert SavedFilter.objects.exists()


@pytest.mark.parametrize("there", ["https://evil.example/", "//evil.example", ""])
def test_the_way_back_stays_on_this_site(now: datetime, there: str) -> None:
    assert kept(client(), next=there)["Location"] == "/admin/"


# --- the way back to the list ------------------------------------------------------------------------------------------


def test_a_jobs_page_leads_back_to_the_list_as_it_was(now: datetime) -> None:
    job = factories.job(now)
    page = client().get(f"{LIST}{job.pk}/change/", {"_changelist_filters": "state=pending&older=7"})
    assert f'href="{LIST}?state=pending"' in page.content.decode()
    hostile = client(name="h").get(
        f"{LIST}{job.pk}/change/", {"_changelist_filters": '"><script>alert(1)</script>=1'}
    )
    assert "<script>alert" not in hostile.content.decode()
