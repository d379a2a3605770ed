"""The admin in a real browser: nothing breaks the content policy, nothing overflows, and the main ways can be gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.clock import clock
from jobs.models import Hold, Job
from jobs.roles import Role
from jobs.states import JobState
from tests import factories
from tests.browser.visitor import LANGUAGES, SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def _addresses(jobs: dict[str, Job]) -> list[str]:
    unknown = jobs["unknown"]
    task = unknown.tasks.get()
    account = f"/admin/providers/providerstate/do/{task.account_id}"
    return [
        "/admin/", "/admin/jobs/job/", "/admin/jobs/job/?state=manual", "/admin/jobs/job/?q=nothing-like-it", "/admin/jobs/job/add/",
        "/admin/jobs/case/", "/admin/jobs/polzatask/", "/admin/jobs/result/", "/admin/jobs/batch/", "/admin/jobs/lane/",
        "/admin/providers/providerstate/", "/admin/providers/target/", "/admin/providers/target/add/", "/admin/jobs/tenant/add/",
        "/admin/auth/user/", "/admin/red-button/", "/admin/jobs/alert/", f"{account}/block/", f"{account}/pause/",
        f"/admin/jobs/job/{unknown.pk}/change/", f"/admin/jobs/job/{jobs['done0'].pk}/change/",
        f"/admin/jobs/job/{unknown.pk}/do/resend/", f"/admin/jobs/polzatask/{task.pk}/change/",
        f"/admin/jobs/case/{unknown.cases.get().pk}/change/",
    ]  # fmt: skip


@pytest.mark.parametrize(("language", "size"), [("en", "desk"), ("fa", "phone")])
def test_pages_break_no_policy_and_fit_their_window(
    visit: Callable[..., Visitor], size: str, language: str, settings: Any
) -> None:
    settings.LANGUAGES = LANGUAGES
    jobs = factories.everything(clock.now())
    someone = visit(viewport=SIZES[size], color_scheme="dark" if size == "phone" else "light")
    someone.page.context.add_cookies(
        [{"name": "django_language", "value": language, "url": someone.server}]
    )
    for address in _addresses(jobs):
        someone.go(address)
        assert someone.overflow() <= 0, address
    assert someone.complaints == []


def test_slash_goes_to_the_search_and_finds_a_job(visit: Callable[..., Visitor]) -> None:
    factories.job(clock.now(), reference="VIN-4711")
    someone = visit(Role.VIEWER, viewport=SIZES["desk"])
    someone.page.keyboard.press("/")
    someone.page.keyboard.type("VIN-47")
    someone.page.keyboard.press("Enter")
    someone.page.get_by_text("VIN-4711").click()
    assert someone.page.locator("h1").inner_text() == "VIN-4711"
    assert someone.complaints == []


def test_an_operator_retries_a_failed_job_with_the_mouse(visit: Callable[..., Visitor]) -> None:
    job = factories.job(clock.now(), JobState.FAILED, reason="attempts_exhausted", reference="B-1")
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    someone.page.get_by_role("link", name="Jobs", exact=True).click()
    someone.page.get_by_text("B-1").first.click()
    someone.page.get_by_role("link", name="Retry", exact=True).last.click()
    someone.page.get_by_role("button", name="Retry").click()
    someone.page.get_by_text("back in the queue").wait_for()
    job.refresh_from_db()
    assert job.state == JobState.PENDING
    assert someone.complaints == []


def test_the_bar_of_actions_comes_with_a_selection_and_cancels_what_is_selected(
    visit: Callable[..., Visitor],
) -> None:
    for number in range(3):
        factories.job(clock.now(), reference=f"B-{number}")
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    someone.go("/admin/jobs/job/")
    bar = someone.page.locator("#changelist .actions")
    assert not bar.is_visible()
    someone.page.locator(".action-select").nth(0).check()
    someone.page.locator(".action-select").nth(1).check()
    assert bar.is_visible()
    bar.locator("select").select_option("cancel_selected")
    bar.get_by_role("button").click()
    someone.page.get_by_role("button", name="Cancel · 2").click()
    someone.page.get_by_text("2 jobs done.").wait_for()
    assert Job.objects.filter(state=JobState.CANCELLED).count() == 2
    assert someone.complaints == []


def test_the_red_button_is_pressed_from_the_menu_and_lifted_from_the_banner(
    visit: Callable[..., Visitor],
) -> None:
    someone = visit(viewport=SIZES["phone"])
    someone.page.locator("summary", has=someone.page.locator("use[href$='circle-user']")).click()
    someone.page.get_by_role("link", name="Press the red button").click()
    someone.page.get_by_label("Why").fill("prices doubled")
    someone.page.get_by_role("button", name="Press the red button").click()
    someone.page.get_by_text("The red button is pressed: nothing new is sent.").wait_for()
    assert Hold.objects.filter(lifted_at__isnull=True).exists()
    someone.page.get_by_role("link", name="Lift it").click()
    someone.page.get_by_role("button", name="Lift the red button").click()
    someone.page.get_by_text("Sends go on.").wait_for()
    assert someone.complaints == []


def test_theme_and_language_are_switched_and_kept(
    visit: Callable[..., Visitor], settings: Any
) -> None:
    settings.LANGUAGES = LANGUAGES
    someone = visit(viewport=SIZES["desk"], color_scheme="light")
    someone.page.locator("button.theme-toggle").click()
    assert someone.page.evaluate("document.documentElement.dataset.theme") == "dark"
    someone.page.locator("summary[aria-label=Language]").click()
    someone.page.get_by_role("button", name="فارسی").click()
    someone.page.wait_for_load_state("networkidle")
    assert someone.page.evaluate("document.documentElement.dir") == "rtl"
    assert someone.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert someone.complaints == []


def test_the_menu_of_a_phone_opens_and_leads_on_without_scripts_too(
    visit: Callable[..., Visitor],
) -> None:
    for scripts in (True, False):
        if not scripts:
            User.objects.all().delete()
        someone = visit(Role.OPERATOR, viewport=SIZES["phone"], java_script_enabled=scripts)
        nav = someone.page.locator("#desk-nav")
        assert not nav.is_visible()
        someone.page.get_by_label("Open the menu").click()
        nav.get_by_role("link", name="Polza tasks").click()
        someone.page.wait_for_load_state("networkidle")
        assert someone.page.locator("h1").inner_text() == "Polza tasks"
