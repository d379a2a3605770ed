"""Error groups as pages: what they show, to whom; the jobs of a group; and a verb for all of them as bulk work."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.admin import failures as page
from jobs.admin.jobs import JobAdmin
from jobs.clock import clock
from jobs.failure_groups import Group
from jobs.failures import Chosen, key
from jobs.lifecycle import bulk
from jobs.lifecycle.bulk_acts import ACTS
from jobs.models import BulkRun, Job, JobEvent
from jobs.roles import Role
from jobs.states import JobState
from tests import factories
from tests.test_failures import HOUR, failed

pytestmark = pytest.mark.django_db

LIST = "/admin/failures/"
JOBS = "/admin/jobs/job/"


def _client(role: Role) -> Client:
    client = Client()
    client.force_login(factories.staff(role))
    return client


@pytest.fixture
def client() -> Client:
    return _client(Role.OPERATOR)


def _text(client: Client, url: str = LIST) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return unescape(answer.content.decode())


def _articles(client: Client) -> list[str]:
    """The groups of the page, in its order."""
    return re.findall(r'<article class="failure.*?</article>', _text(client), re.DOTALL)


def _fail(many: int, text: str = "too large: {}", **values: Any) -> list[Job]:
    at = clock.now() - timedelta(minutes=1)
    return [failed(text.format(n), **{"at": at, **values}) for n in range(many)]


def _of(text: str = "too large: 1", *, period: str = "24h", still: bool = False) -> str:
    group = Chosen(provider="polza", key=key("rejected", text), period=period, open=still)
    return f"{JOBS}?failure={group}"


def _numbers(client: Client, url: str) -> set[int]:
    answer = client.get(url)
    assert answer.status_code == 200
    return {job.pk for job in answer.context["cl"].result_list}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_a_bad_day_is_a_line_for_each_kind_of_failure(client: Client) -> None:
    _fail(3)
    _fail(2, tenant="other", state=JobState.MANUAL)
    _fail(1, "it broke", failure="down", state=JobState.SUCCEEDED)
    first, second = _articles(client)
    for words in ("Polza", "request rejected", "too large: N", "5 sends", "5 jobs, 2 tenants", "3 jobs still failed", "2 jobs need a person"):  # fmt: skip
        assert words in first
    assert f'href="{_of()}"' in first.replace("%3A", ":")
    for words in ("failure at the provider", "it broke", "1 send<", "1 job, 1 tenant", "none is left like this"):  # fmt: skip
        assert words in second
    assert "<form" not in second
    assert "6 sends failed in this period" in _text(client)


def test_nothing_failed_says_so_and_nothing_matches_too(client: Client) -> None:
    assert "No failures in this period" in _text(client)
    _fail(1)
    assert "Nothing matches" in _text(client, f"{LIST}?failure=down")


@pytest.mark.parametrize(
    "query", ["?period=9y&order=odd&provider=nobody&failure=odd&after=-1", "?after=9999999", "?after=²", "?period=", "?x=1"]
)  # fmt: skip
def test_an_address_with_nonsense_counts_as_left_out(client: Client, query: str) -> None:
    _fail(1)
    assert "too large: N" in _text(client, LIST + query)


def test_tabs_chips_and_order_narrow_and_keep_each_other(client: Client) -> None:
    factories.target(provider="fal")
    _fail(2, "old {}", at=clock.now() - 48 * HOUR)
    _fail(1, "sudden")
    assert "old N" not in _text(client)
    text = _text(client, f"{LIST}?period=7d&provider=polza&order=newest")
    assert text.index("sudden") < text.index("old N")
    assert "?period=30d&order=newest&provider=polza" in text
    assert 'aria-label="Remove the filter provider"' in text
    assert "sudden" not in _text(client, f"{LIST}?provider=fal")


def test_more_groups_are_a_page_further(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_SHOWN", 2)
    for word in ("one", "two", "three"):
        _fail(1, word)
    text = _text(client)
    assert text.count("<article") == 2
    assert "3 groups" in text
    assert "after=2" in text
    text = _text(client, f"{LIST}?after=2")
    assert text.count("<article") == 1
    assert "First page" in text


def test_hostile_words_are_shown_and_do_nothing(client: Client) -> None:
    evil = "<script>alert(1)</script>\u202eabc\" onload='x' {{ 7 }} " + "w" * 400
    [job] = _fail(1, evil.replace("{", "{{").replace("}", "}}"))
    raw = client.get(LIST).content.decode()
    assert "<script>alert" not in raw
    assert "&lt;script&gt;alert(N)&lt;/script&gt;" in raw
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|<[^>]*\son[a-z]+=", raw)
    chip = client.get(_of(evil)).content.decode()
    assert "<script>alert" not in chip
    assert _numbers(client, _of(evil)) == {job.pk}


def test_the_page_asks_as_much_for_many_groups_as_for_few(client: Client) -> None:
    _fail(1)
    _text(client)
    with CaptureQueriesContext(connection) as few:
        _text(client)
    for n in range(20):
        _fail(1, chr(97 + n) * 3)
    with CaptureQueriesContext(connection) as many:
        _text(client)
    assert len(many) == len(few)


def test_words_of_the_provider_find_their_own_direction(client: Client, settings: Any) -> None:
    settings.LANGUAGES = [("en", "English"), ("fa", "Persian")]
    client.post(reverse("set_language"), {"language": "fa"})
    _fail(1, "سهمیه تمام شد")
    raw = client.get(LIST).content.decode()
    assert '<html lang="fa" dir="rtl">' in raw
    assert '<bdi dir="auto">سهمیه تمام شد</bdi>' in raw


def test_bars_are_as_high_as_their_share_and_never_vanish() -> None:
    bars = page._bars([0, 1, 0, 1000])
    assert [(bar.x, bar.y, bar.height) for bar in bars] == [(4, 22, 2), (12, 0, 24)]
    assert page._bars([0, 0]) == []
    assert page._busiest([0, 0], clock.now(), HOUR) == ""


# --- who may ----------------------------------------------------------------------------------------------------------


def test_a_viewer_sees_groups_and_jobs_and_no_button(client: Client) -> None:
    [job] = _fail(1)
    viewer = _client(Role.VIEWER)
    text = _text(viewer)
    assert "too large: N" in text
    assert not any("<form" in group for group in _articles(viewer))
    assert _numbers(viewer, _of()) == {job.pk}
    assert 'value="retry_selected"' in _text(client)


def test_a_verb_pressed_without_its_permission_does_nothing() -> None:
    [job] = _fail(1)
    viewer = _client(Role.VIEWER)
    told = {"action": "retry_selected", "select_across": "1", "_selected_action": "0", "confirmed": "1", "shown": "1"}  # fmt: skip
    viewer.post(_of(still=True), told)
    job.refresh_from_db()
    assert (job.state, BulkRun.objects.count()) == (JobState.FAILED, 0)


def test_whoever_sees_no_jobs_sees_no_failures_and_no_entry(client: Client) -> None:
    nobody = Client()
    nobody.force_login(factories.staff())
    assert nobody.get(LIST).status_code == 403
    assert Client().get(LIST).status_code == 302
    assert f'href="{LIST}"' not in nobody.get(reverse("admin:index")).content.decode()
    assert f'href="{LIST}"' in client.get(reverse("admin:index")).content.decode()


def test_buttons_are_for_the_states_that_their_act_is_for() -> None:
    now = clock.now()
    values = {"provider": "polza", "key": key("rejected", "x"), "tasks": 9, "jobs": 9, "tenants": 1, "first_at": now, "last_at": now}  # fmt: skip
    for failed_, manual in ((3, 0), (0, 4), (3, 4), (0, 0)):
        group = Group(failed=failed_, manual=manual, **values)  # type: ignore[arg-type]
        touched = {name: page._touched(act, group) for name, act in ACTS.items()}
        assert touched == {
            "retry": failed_ + manual, "retarget": failed_ + manual, "resolve": failed_ + manual, "manual": failed_, "cancel": manual,
        }  # fmt: skip
    # What the buttons press is there.
    for name in ACTS:
        assert f"{name}_selected" in JobAdmin.actions


# --- the jobs of a group ----------------------------------------------------------------------------------------------


def test_the_list_of_jobs_is_narrowed_to_a_group_with_a_chip(client: Client) -> None:
    wanted = _fail(2)
    [done] = _fail(1, state=JobState.SUCCEEDED)
    [old] = _fail(1, at=clock.now() - 48 * HOUR)
    _fail(1, "other")
    _fail(1, provider="fal")
    everyone = {job.pk for job in (*wanted, done)}
    assert _numbers(client, _of()) == everyone
    assert _numbers(client, _of(still=True)) == everyone - {done.pk}
    assert _numbers(client, _of(period="7d")) == everyone | {old.pk}
    assert _numbers(client, f"{_of()}&state=succeeded") == {done.pk}
    text = _text(client, _of(still=True))
    assert "still open · too large: N · Polza · request rejected" in text
    assert 'aria-label="Remove the filter failure"' in text


def test_a_group_that_is_none_finds_nothing_rather_than_all(client: Client) -> None:
    _fail(1)
    for name in ("odd", "polza:rejected-000000000000:24h", "polza:rejected:24h"):
        assert _numbers(client, f"{JOBS}?failure={name}") == set()
        assert "Nothing matches" in _text(client, f"{JOBS}?failure={name}")


# --- all of them ------------------------------------------------------------------------------------------------------


def _button(client: Client, action: str) -> tuple[str, dict[str, str]]:
    """Where a button of the page posts to, and what."""
    forms = re.findall(r'<form method="post" action="([^"]+)">(.*?)</form>', _text(client), re.DOTALL)  # fmt: skip
    for url, inside in forms:
        data = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', inside))
        if data.get("action") == action:
            return url, data
    raise AssertionError(f"no button: {action}")


def test_a_button_asks_first_and_its_yes_is_bulk_work_on_just_the_group(client: Client) -> None:
    wanted = _fail(2)
    [paid] = _fail(1)
    factories.lost(paid, clock.now())
    [done] = _fail(1, state=JobState.SUCCEEDED)
    [other] = _fail(1, "other")
    url, data = _button(client, "retry_selected")
    asked = client.post(url, data)
    seen = asked.context["seen"]
    assert (seen.total, seen.fits, dict(seen.skips)) == (3, 2, {"possible_charge": 1})
    assert not BulkRun.objects.exists()
    answer = client.post(
        url, {**data, "confirmed": "1", "shown": "3", "token": str(asked.context["token"]), "reason": "the storm is over"}
    )  # fmt: skip
    run = BulkRun.objects.get()
    assert answer.headers["Location"] == reverse("admin:jobs_bulkrun_change", args=[run.pk])
    assert (run.state, run.done, run.skipped) == (BulkRun.State.DONE, 2, 1)
    states = {
        one.pk: one.state
        for one in Job.objects.filter(pk__in=[job.pk for job in (*wanted, paid, done, other)])
    }
    assert [states[job.pk] for job in wanted] == ["pending", "pending"]
    assert (states[paid.pk], states[done.pk], states[other.pk]) == ("failed", "succeeded", "failed")
    assert set(JobEvent.objects.filter(kind="retried").values_list("job_id", flat=True)) == {job.pk for job in wanted}  # fmt: skip
    # They stand so no longer; the group stays, for what happened.
    [group] = [one for one in _articles(client) if "too large" in one]
    assert "4 sends" in group
    assert "1 job still failed" in group


@pytest.mark.parametrize(
    ("action", "state", "becomes", "more"),
    [
        ("retarget_selected", JobState.FAILED, "pending", {"reason": "x"}),
        ("manual_selected", JobState.FAILED, "manual", {"note": "x"}),
        ("resolve_selected", JobState.FAILED, "failed", {"note": "x", "outcome": "gave_up"}),
        ("cancel_selected", JobState.MANUAL, "cancelled", {"reason": "x"}),
    ],
)
def test_each_verb_does_what_it_says_to_all_of_them(
    client: Client, action: str, state: JobState, becomes: str, more: dict[str, str]
) -> None:
    jobs = _fail(2, state=state)
    [other] = _fail(1, "other", state=state)
    if action.startswith("retarget"):
        more = {**more, "target": str(factories.target("other/model").pk)}
    url, data = _button(client, action)
    asked = client.post(url, data)
    client.post(url, {**data, "confirmed": "1", "shown": "2", "token": str(asked.context["token"]), **more})  # fmt: skip
    assert set(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("state", flat=True)) == {becomes}  # fmt: skip
    assert (
        JobEvent.objects.filter(job__in=jobs).exclude(actor=None).values("job").distinct().count()
        == 2
    )
    other.refresh_from_db()
    assert other.state == state


def test_many_are_frozen_at_the_yes_and_done_by_a_worker(client: Client) -> None:
    jobs = _fail(bulk.AT_ONCE + 1)
    url, data = _button(client, "retry_selected")
    asked = client.post(url, data)
    client.post(
        url, {**data, "confirmed": "1", "shown": str(len(jobs)), "token": str(asked.context["token"])}
    )  # fmt: skip
    later = _fail(1)
    while bulk.work(now=clock.now()) is bulk.Step.WORKED:
        pass
    run = BulkRun.objects.get()
    assert (run.state, run.total, run.done) == (BulkRun.State.DONE, len(jobs), len(jobs))
    assert Job.objects.get(pk=later[0].pk).state == JobState.FAILED
