"""A job's page in a real browser keeps itself fresh while its job is under way."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from playwright.sync_api import Request

from jobs.admin import job_page
from jobs.clock import clock
from jobs.models import Job, ProviderTask
from jobs.roles import Role
from jobs.states import JobState
from tests import factories
from tests.browser.visitor import SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again each second, so that nobody waits."""
    true = job_page.refresh_s
    monkeypatch.setattr(job_page, "refresh_s", lambda job: true(job) and 1)


def _open(someone: Visitor, job: Job) -> list[Request]:
    """The page of the job; its own looks gather in the list."""
    looks: list[Request] = []
    someone.page.on("request", lambda one: looks.append(one) if "x-live" in one.headers else None)
    someone.go(f"/admin/jobs/job/{job.pk}/change/")
    return looks


def _end(job: Job, task: ProviderTask) -> None:
    now = clock.now()
    ProviderTask.objects.filter(pk=task.pk).update(
        completed_at=now, stored_at=now, blocks_send=False, released_by="stored"
    )
    factories.result(job, now, by=task)
    factories.event(job, "succeeded", now)
    Job.objects.filter(pk=job.pk).update(state=JobState.SUCCEEDED, finished_at=now)


def test_the_page_shows_the_end_by_itself_and_then_looks_no_more(
    visit: Callable[..., Visitor],
) -> None:
    now = clock.now()
    job = factories.job(now, JobState.ACTIVE, created_at=now - timedelta(seconds=20))
    task = factories.accepted(job, now)
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    looks = _open(someone, job)
    page = someone.page
    page.locator("h1 + [data-live=state]", has_text="at the provider").wait_for()
    fold = page.locator(f"#send-{task.pk} details.fold")
    fold.locator("summary").click()
    _end(job, task)
    page.locator("[data-live=state]", has_text="succeeded").wait_for()
    page.locator("[data-live=result] img").wait_for()
    assert fold.evaluate("fold => fold.open")
    assert page.locator("[data-every]").count() == 0
    done = len(looks)
    page.wait_for_timeout(2500)
    assert len(looks) == done
    assert someone.complaints == []


def test_a_page_in_the_background_does_not_look(visit: Callable[..., Visitor]) -> None:
    job = factories.job(clock.now(), JobState.ACTIVE)
    factories.accepted(job, clock.now())
    someone = visit(Role.VIEWER, viewport=SIZES["desk"])
    looks = _open(someone, job)
    with someone.page.expect_request(lambda one: "x-live" in one.headers):
        pass
    _hide(someone, hidden=True)
    someone.page.wait_for_timeout(300)  # what was under way
    seen = len(looks)
    someone.page.wait_for_timeout(2500)
    assert len(looks) == seen
    with someone.page.expect_request(lambda one: "x-live" in one.headers, timeout=900):
        _hide(someone, hidden=False)


def _hide(someone: Visitor, *, hidden: bool) -> None:
    someone.page.evaluate(
        """hidden => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_an_open_menu_is_not_pulled_away(visit: Callable[..., Visitor]) -> None:
    job = factories.job(clock.now(), JobState.ACTIVE)
    task = factories.accepted(job, clock.now())
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    _open(someone, job)
    actions = someone.page.locator("[data-live=actions]")
    actions.locator("summary").click()
    _end(job, task)
    someone.page.locator("[data-live=state]", has_text="succeeded").wait_for()
    assert actions.get_by_role("link", name="Cancel the job").is_visible()
    someone.page.keyboard.press("Escape")
    someone.page.locator("a[data-reload]").click()
    actions.get_by_role("link", name="Cancel the job").wait_for(state="detached")


def test_the_reload_button_reads_the_page_again(visit: Callable[..., Visitor]) -> None:
    job = factories.job(clock.now(), JobState.FAILED, reason="attempts_exhausted")
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    looks = _open(someone, job)
    assert looks == []
    Job.objects.filter(pk=job.pk).update(state=JobState.MANUAL, finished_at=None)
    someone.page.locator("a[data-reload]").click()
    someone.page.locator("[data-live=state]", has_text="needs a person").wait_for()
    someone.go("/admin/jobs/job/")
    factories.job(clock.now(), reference="B-new")
    someone.page.locator("a[data-reload]").click()
    someone.page.get_by_text("B-new").wait_for()
    assert someone.complaints == []
