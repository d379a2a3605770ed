"""The search over everything: exact numbers, each kind, who sees what, hostile words."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from jobs import search
from jobs.clock import clock
from jobs.models import Batch, ProviderTask
from jobs.roles import Role
from tests import factories

pytestmark = pytest.mark.django_db
PAGE = "/admin/search/"


@pytest.fixture
def now(settings: Any, tmp_path: Path) -> datetime:
    settings.MEDIA_ROOT = tmp_path
    return clock.now()


def client(role: Role | None = Role.VIEWER) -> Client:
    made = Client()
    made.force_login(factories.staff(role, name=f"search-{role}"))
    return made


def kinds(words: str, *wanted: str) -> dict[str, int]:
    found = search.search(words, wanted or ("jobs", "batches", "tenants", "sends", "cases"))
    return {one.kind: len(one.rows) for one in found if one.rows}


def test_each_kind_is_found_by_its_own_names(now: datetime) -> None:
    tenant = factories.tenant("dealer-nord")
    batch = Batch.objects.create(tenant=tenant, label="Autumn covers", created_at=now)
    job = factories.job(
        now, tenant=tenant, batch=batch, reference="VIN-77", prompt="a red lighthouse"
    )
    send = factories.accepted(job, now, provider_id="gen_abc123")
    assert kinds("VIN-77") == {"jobs": 1}
    assert kinds("lighthouse") == {"jobs": 1}
    assert kinds("autumn") == {"batches": 1}
    assert kinds("dealer") == {"tenants": 1}
    assert kinds("gen_abc123") == {"jobs": 1, "sends": 1}
    assert kinds(str(send.pk)) == {"sends": 1}
    assert kinds("nothing of the kind") == {}


@pytest.mark.parametrize("words", ["", "   ", "\0", "\0 \0"])
def test_no_words_find_nothing(now: datetime, words: str) -> None:
    factories.job(now)
    assert search.search(words, ["jobs", "tenants"]) == []


@pytest.mark.parametrize(
    "words",
    ["%", "_" * 50, "x" * 5000, "'; DROP TABLE jobs_job; --", "#" + "9" * 40, "\\", "٣٤", "<b>"],
)
def test_hostile_words_are_only_words(now: datetime, words: str) -> None:
    factories.done(now)
    page = client().get(PAGE, {"q": words})
    assert page.status_code == 200
    assert "<b></bdi>" not in page.content.decode()


def test_a_number_leads_straight_to_its_job(now: datetime) -> None:
    job = factories.job(now)
    send = factories.accepted(job, now, provider_id="gen_1")
    there = f"/admin/jobs/job/{job.pk}/change/"
    by = client()
    for words in (f"#{job.pk}", "gen_1", str(send.pk), f"  {send.pk} "):
        assert by.get(PAGE, {"q": words})["Location"] == there
    assert by.get(PAGE, {"q": str(job.pk)}).status_code == 200  # a batch or case may be meant


def test_an_id_of_two_jobs_is_listed_not_guessed(now: datetime) -> None:
    for name in ("one", "two"):
        account = factories.account(now, fingerprint=name)
        factories.accepted(factories.job(now), now, provider_id="gen_same", account=account)
    assert ProviderTask.objects.filter(provider_id="gen_same").count() == 2
    assert client().get(PAGE, {"q": "gen_same"}).status_code == 200


def test_a_list_is_cut_and_leads_on(now: datetime) -> None:
    for _n in range(search.SHOWN + 1):
        factories.job(now, reference="SKU-1")
    (found,) = search.search("SKU-1", ["jobs"])
    assert (len(found.rows), found.more) == (search.SHOWN, True)
    assert "/admin/jobs/job/?q=SKU-1" in client().get(PAGE, {"q": "SKU-1"}).content.decode()


def test_what_takes_too_long_says_so_and_hides_nothing_else(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.tenant("slow-one")
    monkeypatch.setattr(search, "TIMEOUT_MS", 50)

    def slow(_words: str) -> Any:
        return ProviderTask.objects.raw(
            "SELECT pg_sleep(2), * FROM jobs_providertask RIGHT JOIN generate_series(1, 1) ON true"
        )

    monkeypatch.setitem(search._KINDS, "sends", slow)
    found = {one.kind: one for one in search.search("slow-one", ["tenants", "sends"])}
    assert found["sends"].late
    assert len(found["tenants"].rows) == 1


def test_nobody_sees_a_kind_they_may_not_open(now: datetime) -> None:
    factories.job(now, reference="SECRET-1")
    stranger = client(None)
    assert stranger.get(PAGE, {"q": "SECRET-1"}).status_code in {302, 403}
    assert Client().get(PAGE, {"q": "SECRET-1"}).status_code == 302


def test_the_box_of_every_page_leads_here(now: datetime) -> None:
    assert f'action="{PAGE}"' in client().get("/admin/jobs/job/").content.decode()
