"""Error groups in a real browser: they fit, they break no policy, and all of a group is retried with three clicks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobs.clock import clock
from jobs.models import Job
from jobs.roles import Role
from jobs.states import JobState
from tests.browser.visitor import LANGUAGES, SIZES, Visitor
from tests.test_failures import failed

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def _bad_day() -> list[Job]:
    now = clock.now()
    jobs = [
        failed(f"HTTP 413: image too large ({1000 * n} bytes)", tenant="abc"[n % 3], at=now - timedelta(minutes=7 * n))
        for n in range(30)
    ]  # fmt: skip
    failed("نمی‌شود " + "w" * 300, failure="down", state=JobState.MANUAL, at=now)
    failed("", failure="unknown", state=JobState.SUCCEEDED, provider="fal", at=now)
    return jobs


@pytest.mark.parametrize(("language", "size"), [("en", "desk"), ("fa", "phone")])
def test_a_bad_day_fits_its_window(
    visit: Callable[..., Visitor], size: str, language: str, settings: Any
) -> None:
    settings.LANGUAGES = LANGUAGES
    _bad_day()
    someone = visit(viewport=SIZES[size], color_scheme="dark" if size == "phone" else "light")
    someone.page.context.add_cookies(
        [{"name": "django_language", "value": language, "url": someone.server}]
    )
    for address in ("/admin/failures/?period=30d", "/admin/failures/?failure=down"):
        someone.go(address)
        assert someone.page.locator("article, .empty").count() >= 1
        assert someone.overflow() <= 0, address
    someone.go("/admin/failures/")
    someone.page.locator(".failure summary").first.click()
    assert someone.overflow() <= 0
    someone.page.locator(".failure-what a").first.click()
    someone.page.locator(".chip-on", has_text="image too large").wait_for()
    assert someone.overflow() <= 0
    assert someone.complaints == []


def test_all_of_a_group_is_retried_by_clicks_alone(visit: Callable[..., Visitor]) -> None:
    jobs = _bad_day()[:20]
    Job.objects.exclude(pk__in=[job.pk for job in jobs]).filter(state=JobState.FAILED).update(
        state=JobState.CANCELLED
    )
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    someone.page.get_by_role("link", name="Failures").click()
    group = someone.page.locator("article").filter(has_text="image too large (N bytes)")
    group.get_by_role("button", name="Retry").click()
    someone.page.locator(".confirm-buttons button").click()
    assert "20 jobs done" in someone.page.locator(".messagelist").inner_text()
    assert Job.objects.filter(state=JobState.PENDING).count() == len(jobs)
    someone.go("/admin/failures/")
    assert "none is left like this" in group.inner_text()
    assert someone.complaints == []
