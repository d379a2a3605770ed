"""The gallery: what is shown to whom, its pages and filters, and what can be done to many."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import gallery, results
from jobs.clock import clock
from jobs.gallery import Asked
from jobs.models import Job, JobEvent, Result
from jobs.roles import Role
from tests import factories

pytestmark = pytest.mark.django_db

PAGE = "/admin/gallery/"
ZIP, RATE = f"{PAGE}zip/", f"{PAGE}rate/"
CHOSEN = "_selected_action"


@pytest.fixture
def now(settings: Any, tmp_path: Path) -> datetime:
    settings.MEDIA_ROOT = tmp_path
    return clock.now()


def client(role: Role = Role.OPERATOR) -> Client:
    made = Client()
    made.force_login(factories.staff(role, name=f"gallery-{role.value}"))
    return made


def shown(by: Client, query: str = "") -> list[int]:
    """The jobs of the tiles, in their order."""
    page = by.get(PAGE + query)
    assert page.status_code == 200
    return [int(pk) for pk in re.findall(r'id="job-(\d+)"', page.content.decode())]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_what_was_delivered_stands_newest_first(now: datetime) -> None:
    done = [factories.done(now).pk for _n in range(3)]
    factories.job(now)
    assert shown(client()) == done[::-1]


def test_each_filter_alone_and_all_together(now: datetime) -> None:
    one, two = factories.target("one"), factories.target("two")
    dealer = factories.tenant("dealer")
    a = factories.done(now, target=one, tenant=dealer)
    b = factories.done(now, target=two, tenant=dealer)
    c = factories.done(now, target=two)
    Result.objects.filter(job=b).update(rating="good", rated_at=now)
    by = client()
    assert shown(by, f"?tenant={dealer.pk}") == [b.pk, a.pk]
    assert shown(by, f"?target={two.pk}") == [c.pk, b.pk]
    assert shown(by, "?rating=good") == [b.pk]
    assert shown(by, "?rating=none") == [c.pk, a.pk]
    assert shown(by, f"?tenant={dealer.pk}&target={two.pk}&rating=good") == [b.pk]
    assert shown(by, "?rating=bad") == []


@pytest.mark.parametrize(
    "query", ["?tenant=x", "?rating=superb", "?before=-1", "?batch=" + "9" * 40, "?target=%00"]
)
def test_nonsense_in_the_address_counts_as_left_out(now: datetime, query: str) -> None:
    job = factories.done(now)
    assert shown(client(), query) == [job.pk]


def test_pages_go_on_to_older_ones_and_back(now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "PAGE", 2)
    done = [factories.done(now).pk for _n in range(5)][::-1]
    pages, asked = [], Asked()
    while True:
        found = gallery.page(asked)
        pages.append([job.pk for job in found.jobs])
        if found.older is None:
            break
        asked = Asked(before=found.older)
    assert pages == [done[:2], done[2:4], done[4:]]
    back = gallery.page(Asked(after=found.newer))
    assert [job.pk for job in back.jobs] == done[2:4]
    assert back.newer is not None
    assert back.older is not None
    assert gallery.page(Asked(after=back.newer)).newer is None


def test_a_filter_stays_on_the_way_to_older_ones(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "PAGE", 1)
    jobs = [factories.done(now) for _n in range(2)]
    page = client().get(f"{PAGE}?tenant={jobs[0].tenant_id}").content.decode()
    assert f"?tenant={jobs[0].tenant_id}&amp;before={jobs[1].delivered_id}" in page


def test_a_page_costs_the_same_whatever_is_on_it(now: datetime) -> None:
    by = client()
    factories.done(now)
    by.get(PAGE)
    with CaptureQueriesContext(connection) as few:
        by.get(PAGE)
    for _n in range(12):
        factories.done(now)
    with CaptureQueriesContext(connection) as many:
        by.get(PAGE)
    assert len(many) == len(few) <= 30


def test_without_results_the_page_says_what_to_do(now: datetime) -> None:
    page = client().get(PAGE).content.decode()
    assert "No results yet" in page
    assert "/admin/jobs/job/add/" in page
    viewers = client(Role.VIEWER).get(PAGE).content.decode()
    assert "/admin/jobs/job/add/" not in viewers


def test_other_peoples_words_are_escaped(now: datetime) -> None:
    factories.done(now, prompt="<script>alert(1)</script>" + "w" * 3000, reference="<b>x</b>")
    page = client().get(PAGE).content.decode()
    assert "<script>alert" not in page
    assert "<b>x</b>" not in page
    assert "w" * 1100 not in page


# --- who may ----------------------------------------------------------------------------------------------------------


def test_a_viewer_looks_and_downloads_but_rates_and_retries_nothing(now: datetime) -> None:
    job = factories.done(now)
    viewer = client(Role.VIEWER)
    page = viewer.get(PAGE).content.decode()
    assert RATE not in page
    assert "retry_selected" not in page
    assert viewer.post(RATE, {CHOSEN: job.pk, "rating": "good"}).status_code == 403
    assert viewer.post(ZIP, {CHOSEN: job.pk}).status_code == 200


def test_a_stranger_sees_nothing(now: datetime) -> None:
    assert Client().get(PAGE).status_code == 302
    stranger = Client()
    stranger.force_login(factories.staff(None, name="stranger"))
    for answer in (
        stranger.get(PAGE),
        stranger.post(ZIP, {CHOSEN: 1}),
        stranger.post(RATE, {CHOSEN: 1}),
    ):
        assert answer.status_code in {302, 403}


@pytest.mark.parametrize("address", [ZIP, RATE])
def test_nothing_is_done_by_a_get(now: datetime, address: str) -> None:
    assert client().get(address).status_code == 405


# --- many at once -----------------------------------------------------------------------------------------------------


def test_all_chosen_ones_are_rated_and_what_can_not_be_is_told(now: datetime) -> None:
    jobs = [factories.done(now) for _n in range(3)]
    by_hand = factories.job(now)
    factories.result(by_hand, now)
    by = client()
    chosen = [*(job.pk for job in jobs[:2]), by_hand.pk, 10**12]
    answer = by.post(
        RATE, {CHOSEN: chosen, "rating": "usable", "next": f"{PAGE}?rating=none"}, follow=True
    )
    assert answer.redirect_chain == [(f"{PAGE}?rating=none", 302)]
    assert list(Result.objects.order_by("pk").values_list("rating", flat=True)) == [
        "usable",
        "usable",
        "",
        "",
    ]
    assert JobEvent.objects.filter(kind="rated").count() == 2
    said = answer.content.decode()
    assert "2 results are rated." in said
    assert "2 were left as they are" in said


@pytest.mark.parametrize(
    "there", ["https://evil.example/", "//evil.example", "javascript:alert(1)", ""]
)
def test_the_way_back_stays_on_this_site(now: datetime, there: str) -> None:
    job = factories.done(now)
    answer = client().post(RATE, {CHOSEN: job.pk, "rating": "good", "next": there})
    assert answer["Location"] == PAGE


# --- the archive ------------------------------------------------------------------------------------------------------


def unpacked(by: Client, pks: list[int]) -> tuple[zipfile.ZipFile, list[dict[str, str]]]:
    answer: Any = by.post(ZIP, {CHOSEN: pks})
    assert answer["Content-Type"] == "application/zip"
    archive = zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content)))
    assert archive.testzip() is None
    told = archive.read("manifest.csv").decode("utf-8-sig")
    return archive, list(csv.DictReader(io.StringIO(told)))


def test_the_archive_holds_the_files_and_a_list_of_them(now: datetime) -> None:
    jobs = [factories.done(now, reference="VIN-1"), factories.done(now, reference="VIN-1")]
    archive, rows = unpacked(client(), [job.pk for job in jobs])
    assert len(rows) == 2
    for row, job in zip(rows, jobs[::-1], strict=True):
        delivered = job.delivered
        assert delivered is not None
        assert archive.read(row["file"]) == results.path_of(delivered.key).read_bytes()
        assert row["file"] == f"VIN-1-{job.pk}-{delivered.pk}.png"
        assert row["trouble"] == ""


def test_a_file_that_is_gone_is_named_and_the_rest_comes(now: datetime) -> None:
    jobs = [factories.done(now) for _n in range(2)]
    gone = jobs[0].delivered
    assert gone is not None
    results.path_of(gone.key).unlink()
    _archive, rows = unpacked(client(), [job.pk for job in jobs])
    assert [bool(row["trouble"]) for row in rows] == [False, True]


@pytest.mark.parametrize(
    "reference", ["../../etc/passwd", "a/b\\c:d*?", "=1+1", "\u202egnp.exe", "имя نام", ""]
)
def test_no_reference_makes_a_name_that_leads_elsewhere(now: datetime, reference: str) -> None:
    job = factories.done(now, reference=reference)
    archive, rows = unpacked(client(), [job.pk])
    name = next(name for name in archive.namelist() if name != "manifest.csv")
    assert re.fullmatch(r"[\w.-]+\.png", name)
    assert ".." not in name
    assert not name.startswith((".", "-"))
    assert not rows[0]["reference"].startswith("=")


def test_nothing_chosen_is_said_and_more_than_a_lot_is_cut(now: datetime) -> None:
    by = client()
    assert "Choose some pictures first." in by.post(ZIP, follow=True).content.decode()
    job = factories.done(now)
    _archive, rows = unpacked(by, [job.pk, *range(10**9, 10**9 + 900)])
    assert len(rows) == 1


# --- more like this ---------------------------------------------------------------------------------------------------


def test_more_like_this_fills_the_form_and_sends_nothing(now: datetime) -> None:
    job = factories.done(now, prompt="first line\nsecond line", params={"aspect_ratio": "3:4"})
    by = client()
    page = by.get(f"/admin/jobs/job/add/?like={job.pk}").content.decode()
    assert "first line second line" in page
    assert "aspect_ratio=3:4" in page
    assert Job.objects.count() == 1
    form = {
        "prompts": "another", "count": 1, "tenant": job.tenant_id, "target": job.target_id, "reference": "",
        "token": "8d9ab1c6-90a8-4f0b-a6f8-2dd2cb3c9e0f", "like": job.pk,
    }  # fmt: skip
    assert by.post("/admin/jobs/job/add/", form).status_code == 302
    made = Job.objects.get(prompt="another")
    assert made.params == {"aspect_ratio": "3:4"}
    assert made.target_id == job.target_id


@pytest.mark.parametrize("like", ["999999", "x", "", "9" * 30])
def test_a_job_that_is_not_there_fills_nothing(now: datetime, like: str) -> None:
    assert client().get(f"/admin/jobs/job/add/?like={like}").status_code == 200
