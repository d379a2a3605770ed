"""The admin's pages: what they show, how many queries they ask, and what their markup may not hold."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation

from jobs.admin.changelist import COUNT_CAP, capped_words
from jobs.clock import clock
from jobs.models import Case, Job, Lane
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(factories.staff(superuser=True))
    return client


def _page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, url
    return response.content.decode()


def _list(name: str = "job", query: str = "") -> str:
    return reverse(f"admin:jobs_{name}_changelist") + query


def test_every_page_opens_with_rows_in_every_phase(root: Client) -> None:
    jobs = factories.everything(clock.now())
    Lane.objects.create(slot=1)
    for model in ("job", "providertask", "polzatask", "case", "jobevent", "lane", "hold", "result", "batch", "tenant",
                  "standingdecision", "spoolhost", "apitoken"):  # fmt: skip
        _page(root, _list(model))
    for model in ("account", "target", "providerstate", "quotawindow", "providerevent"):
        _page(root, reverse(f"admin:providers_{model}_changelist"))
    _page(root, reverse("admin:index"))
    for job in jobs.values():
        _page(root, reverse("admin:jobs_job_change", args=[job.pk]))
        for task in job.tasks.all():
            _page(root, reverse("admin:jobs_polzatask_change", args=[task.pk]))
    for case in Case.objects.all():
        _page(root, reverse("admin:jobs_case_change", args=[case.pk]))


def test_every_page_opens_with_no_rows_at_all(root: Client) -> None:
    for model in (
        "job",
        "providertask",
        "polzatask",
        "case",
        "lane",
        "hold",
        "result",
        "batch",
        "standingdecision",
    ):
        _page(root, _list(model))
    assert "No jobs yet" in _page(root, _list())
    assert "No results yet" in _page(root, reverse("admin:index"))


def test_no_page_holds_inline_script_or_style(root: Client) -> None:
    jobs = factories.everything(clock.now())
    urls = [
        reverse("admin:index"), _list(), _list("case"), _list("polzatask"), reverse("admin:jobs_job_add"),
        reverse("admin:jobs_job_change", args=[jobs["unknown"].pk]), reverse("admin:providers_target_add"),
        reverse("admin:jobs_job_do", args=[jobs["unknown"].pk, "resend"]), reverse("admin:desk_red_button"),
    ]  # fmt: skip
    for url in urls:
        page = _page(root, url)
        assert not re.search(r"<script(?![^>]*\bsrc=)", page), url
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page), url


def test_the_list_asks_no_query_per_row(root: Client) -> None:
    now = clock.now()
    for number in range(3):
        factories.done(now, reference=f"few-{number}")
    factories.job(now)
    with CaptureQueriesContext(connection) as few:
        _page(root, _list())
    for number in range(20):
        factories.done(now, reference=f"many-{number}")
        factories.accepted(factories.job(now, JobState.ACTIVE), now)
        factories.job(now)
    with CaptureQueriesContext(connection) as many:
        _page(root, _list())
    assert len(many) == len(few) <= 24


@pytest.mark.parametrize("name", ["case", "polzatask", "result"])
def test_other_lists_ask_no_query_per_row_either(root: Client, name: str) -> None:
    now = clock.now()

    def rows(count: int) -> None:
        for _number in range(count):
            job = factories.done(now)
            factories.case(CaseKind.PAID_TWICE, now, of=job, by=job.tasks.get())

    rows(2)
    with CaptureQueriesContext(connection) as few:
        _page(root, _list(name))
    rows(15)
    with CaptureQueriesContext(connection) as many:
        _page(root, _list(name))
    assert len(many) == len(few)


def test_the_index_costs_the_same_for_few_and_many(root: Client) -> None:
    factories.everything(clock.now())
    with CaptureQueriesContext(connection) as one:
        _page(root, reverse("admin:index"))
    factories.everything(clock.now())
    with CaptureQueriesContext(connection) as two:
        _page(root, reverse("admin:index"))
    assert len(two) == len(one) <= 30


def test_counts_stop_at_the_cap_and_say_so() -> None:
    assert capped_words(17) == "17"
    with translation.override("en"):
        assert capped_words(COUNT_CAP) == "10,000"
        assert capped_words(COUNT_CAP + 1) == "10,000+"


def test_older_and_newer_walk_over_every_row_once(root: Client) -> None:
    now = clock.now()
    created = [factories.job(now).pk for _ in range(120)]
    seen: list[int] = []
    url = _list()
    pages = 0
    while url:
        page = _page(root, url)
        seen += [int(pk) for pk in re.findall(r'name="_selected_action" value="(\d+)"', page)]
        found = re.search(r'rel="next" href="([^"]+)"', page)
        url = _list() + found.group(1).replace("&amp;", "&") if found else ""
        pages += 1
    assert pages == 3
    assert seen == sorted(created, reverse=True)
    back = _page(root, _list(query=f"?newer={seen[100]}"))
    assert [int(pk) for pk in re.findall(r'name="_selected_action" value="(\d+)"', back)] == seen[
        50:100
    ]


def test_a_page_of_sends_walks_too_although_their_ids_have_no_order(root: Client) -> None:
    now = clock.now()
    for minute in range(60):
        at = now - timedelta(minutes=60 - minute)
        factories.task(factories.job(now), now, armed_at=at, blocks_send=False, unsent_at=at)
    first = _page(root, _list("providertask"))
    found = re.search(r'rel="next" href="([^"]+)"', first)
    assert found is not None
    second = _page(root, _list("providertask") + found.group(1).replace("&amp;", "&"))
    ids = re.compile(r"/admin/jobs/providertask/([0-9a-f-]{36})/change/")
    assert len(set(ids.findall(first))) == 50
    assert len(set(ids.findall(second))) == 10
    assert not set(ids.findall(first)) & set(ids.findall(second))


@pytest.mark.parametrize(
    "query", ["?older=junk", "?newer=999999999999", "?older=", "?batch=x", "?phase=nonsense"]
)
def test_a_senseless_address_shows_a_page_and_no_error(root: Client, query: str) -> None:
    factories.job(clock.now())
    response = root.get(_list(query=query), follow=True)
    assert response.status_code == 200


@pytest.mark.parametrize("words", ["B-77", "lighthouse", "gen_attached_1", "#NUMBER"])
def test_search_finds_by_reference_prompt_provider_id_and_number(root: Client, words: str) -> None:
    now = clock.now()
    wanted = factories.job(now, JobState.ACTIVE, reference="B-7731", prompt="A lighthouse in fog")
    factories.accepted(wanted, now, provider_id="gen_attached_1")
    factories.job(now, reference="C-1", prompt="Something else")
    page = _page(root, _list(query=f"?q={words.replace('#NUMBER', str(wanted.pk))}"))
    assert "B-7731" in page
    assert "C-1" not in page


def test_filters_show_what_they_say(root: Client) -> None:
    jobs = factories.everything(clock.now())
    manual = _page(root, _list(query="?state=manual"))
    assert "VIN-88190" in manual
    assert "B-2041" not in manual
    looking = _page(root, _list(query="?phase=looking"))
    assert "VIN-88214" in looking
    assert "VIN-88213" not in looking
    tenant = _page(root, _list(query=f"?tenant__id__exact={jobs['sending'].tenant_id}"))
    assert "VIN-88213" in tenant
    assert "B-2041" not in tenant


def test_the_list_tells_money_known_and_possible_and_why_a_job_waits(root: Client) -> None:
    now = clock.now()
    factories.done(now)
    factories.lost(factories.job(now, JobState.ACTIVE), now)
    factories.job(now)
    page = _page(root, _list())
    assert "₽7.84" in page
    assert "≈\u00a0₽8.00 possible" in page
    assert "next in line" in page


def test_a_job_sent_longer_ago_than_the_timeout_is_marked_late_on_its_list_and_page(
    root: Client,
) -> None:
    now = clock.now()
    waiting = factories.job(now, created_at=now - timedelta(hours=2))
    late = "<span>late</span>"
    assert late not in _page(root, _list())
    job = factories.job(now, JobState.ACTIVE, created_at=now - timedelta(hours=2))
    factories.lost(job, now, armed_at=now - timedelta(hours=1))
    assert late in _page(root, _list())
    assert late in _page(root, reverse("admin:jobs_job_change", args=[job.pk]))
    assert late not in _page(root, reverse("admin:jobs_job_change", args=[waiting.pk]))


def test_a_lost_send_is_told_with_its_money_and_what_the_machine_does(root: Client) -> None:
    now = clock.now()
    job = factories.job(now, JobState.ACTIVE)
    factories.lost(job, now)
    page = _page(root, reverse("admin:jobs_job_change", args=[job.pk]))
    assert "The connection broke after the request was sent." in page
    assert "Polza may have charged about ₽8.00." in page
    assert "nothing is sent again until that is known" in page


def test_what_a_stranger_wrote_is_shown_and_never_run(root: Client) -> None:
    evil = "<script>alert(1)</script>"
    now = clock.now()
    job = factories.job(
        now, JobState.MANUAL, reference=evil, prompt=evil, reason_text=evil, params={"a": evil}
    )
    task = factories.lost(
        job,
        now,
        failure_text=evil,
        evidence={"submit": {"body": evil}, "x": evil},
        candidates=[{"id": evil}],
    )
    factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=task, note=evil, detail={"why": evil})
    urls = [_list(), _list("case"), _list("polzatask"), reverse("admin:index"), reverse("admin:jobs_job_change", args=[job.pk]),
            reverse("admin:jobs_case_change", args=[Case.objects.get().pk]), reverse("admin:jobs_polzatask_change", args=[task.pk]),
            reverse("admin:jobs_job_do", args=[job.pk, "resend"])]  # fmt: skip
    for url in urls:
        assert evil not in _page(root, url), url


def test_the_desk_is_the_open_cases_by_money(root: Client) -> None:
    now = clock.now()
    small = factories.case(CaseKind.ORPHAN, now, money_at_risk=1)
    large = factories.case(CaseKind.PAID_TWICE, now, money_at_risk=90)
    closed = factories.case(
        CaseKind.ORPHAN, now, of=factories.job(now), resolved_at=now, resolution="checked"
    )
    page = _page(root, _list("case"))
    places = [page.find(f"/case/{case.pk}/change/") for case in (large, small)]
    assert -1 < places[0] < places[1]
    assert f"/case/{closed.pk}/change/" not in page
    assert f"/case/{closed.pk}/change/" in _page(root, _list("case", "?show=closed"))


def test_people_see_only_the_places_they_may_open() -> None:
    client = Client()
    client.force_login(factories.staff(Role.VIEWER))
    page = _page(client, reverse("admin:index"))
    assert reverse("admin:jobs_job_changelist") in page
    assert reverse("admin:auth_user_changelist") not in page
    nobody = Client()
    nobody.force_login(factories.staff())
    assert reverse("admin:jobs_job_changelist") not in _page(nobody, reverse("admin:index"))


def test_a_language_is_offered_once_its_words_are_compiled(root: Client, settings: Any) -> None:
    for code, _name in settings.LANGUAGES:
        assert (
            code == "en" or (settings.BASE_DIR / f"locale/{code}/LC_MESSAGES/django.mo").is_file()
        )
    settings.LANGUAGES = [("en", "English")]
    assert reverse("set_language") not in _page(root, _list())
    settings.LANGUAGES = [("en", "English"), ("fa", "Persian")]
    assert reverse("set_language") in _page(root, _list())


def test_persian_pages_run_from_right_to_left(root: Client, settings: Any) -> None:
    settings.LANGUAGES = [("en", "English"), ("fa", "Persian")]
    factories.everything(clock.now())
    root.post(reverse("set_language"), {"language": "fa"})
    assert '<html lang="fa" dir="rtl">' in _page(root, _list())


def test_unknown_rows_answer_404(root: Client) -> None:
    for url in ("/admin/jobs/job/99999999999999999999/change/", "/admin/jobs/job/abc/change/", "/admin/jobs/case/7/change/",
                "/admin/jobs/job/7/do/retry/", "/admin/jobs/polzatask/nonsense/change/"):  # fmt: skip
        assert root.get(url).status_code == 404, url


def test_jobs_are_counted_by_state_on_the_index(root: Client) -> None:
    factories.everything(clock.now())
    response = root.get(reverse("admin:index"))
    shown = {str(one["look"].word): one["count"] for one in response.context["states"]}
    assert shown["needs a person"] == str(Job.objects.filter(state="manual").count())
    assert shown["succeeded"] == str(Job.objects.filter(state="succeeded").count())
    assert response.context["case_count"] == Case.objects.filter(resolved_at__isnull=True).count()


def test_a_refused_page_leaves_no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert logging.getLogger("django.request").level == logging.ERROR
    client = Client()
    client.force_login(factories.staff(Role.VIEWER))
    assert client.get(reverse("admin:jobs_job_add")).status_code == 403
    assert [record for record in caplog.records if record.exc_info] == []
