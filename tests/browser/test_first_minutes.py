"""The first minutes in a real browser: one's own settings, Persian digits typed into number fields, and trouble to try."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.clock import clock
from jobs.models import Preferences
from jobs.roles import Role
from providers.sandbox.server import Sandbox, running_sandbox
from tests import factories
from tests.browser.visitor import LANGUAGES, SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PANEL = "/admin/providers/providerstate/"
SHOTS = os.environ.get("SHOTS", "")  # a folder: pictures to look at are left in it


@pytest.fixture
def sandbox(settings: Any) -> Iterator[Sandbox]:
    with running_sandbox(latency_fixed_s=60) as started:
        settings.ON_SANDBOX, settings.SANDBOX_URL = True, started.url
        yield started


def _shot(someone: Visitor, name: str) -> None:
    if SHOTS:
        someone.page.screenshot(path=str(Path(SHOTS) / f"{name}.png"), full_page=True)


@pytest.mark.parametrize("size", SIZES)
def test_what_one_chooses_is_how_the_desk_is_written(
    size: str, visit: Callable[..., Visitor]
) -> None:
    someone = visit(Role.VIEWER, viewport=SIZES[size])
    page = someone.page
    someone.go("/admin/")
    page.locator("summary.button").click()
    page.get_by_role("link", name="My settings").click()
    _shot(someone, f"settings-{size}")
    page.select_option("#id_zone", "Asia/Tehran")
    page.get_by_label("Jalali").check()
    page.get_by_label("Persian: ۰").check()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("written your way").wait_for()
    samples = page.locator("section .kv").inner_text()
    assert "۱۲٬۳۴۵٫۶" in samples
    assert Preferences.objects.get().zone == "Asia/Tehran"
    # Fields keep what browsers and programs read.
    assert page.input_value("#id_zone") == "Asia/Tehran"
    assert someone.overflow() == 0
    assert someone.complaints == []
    _shot(someone, f"settings-chosen-{size}")


def test_settings_in_persian_are_mirrored_and_fit_a_phone(
    visit: Callable[..., Visitor], settings: Any
) -> None:
    settings.LANGUAGES = LANGUAGES
    for size in SIZES:
        User.objects.all().delete()
        someone = visit(Role.VIEWER, viewport=SIZES[size], locale="fa", color_scheme="dark")
        someone.go("/admin/my-settings/")
        assert someone.page.evaluate("document.dir") == "rtl"
        assert someone.overflow() == 0
        assert someone.complaints == []
        _shot(someone, f"settings-fa-dark-{size}")


def test_persian_and_arabic_digits_can_be_typed_into_number_fields(
    visit: Callable[..., Visitor],
) -> None:
    tenant = factories.tenant()
    someone = visit(Role.OWNER, viewport=SIZES["desk"])
    someone.go(f"/admin/jobs/tenant/{tenant.pk}/change/")
    page = someone.page
    page.fill("#id_weight", "")
    page.focus("#id_weight")
    page.keyboard.insert_text("۱۲")
    assert page.input_value("#id_weight") == "12"
    page.focus("#id_daily_limit")
    page.keyboard.insert_text("١٢٠٫٥")
    assert page.input_value("#id_daily_limit") == "120.5"
    # Elsewhere they stay what they are.
    page.focus("#id_contact")
    page.keyboard.insert_text("۰۹۱۲")
    assert page.input_value("#id_contact") == "۰۹۱۲"
    _shot(someone, "tenant-help")
    assert someone.complaints == []


@pytest.mark.parametrize("size", SIZES)
def test_a_button_breaks_the_sandbox_and_the_card_counts_down(
    size: str, sandbox: Sandbox, visit: Callable[..., Visitor]
) -> None:
    factories.account(clock.now())
    someone = visit(Role.OPERATOR, viewport=SIZES[size])
    page = someone.page
    someone.go(PANEL)
    _shot(someone, f"drill-calm-{size}")
    page.get_by_label("and ask for").uncheck()
    page.get_by_role("button", name="Sandbox: break Polza for a minute").click()
    left = page.locator("[data-countdown]")
    left.wait_for()
    assert page.url.endswith(PANEL)
    assert sandbox.stats()["outage"] == "turned_away"
    first = left.inner_text()
    page.wait_for_function(
        "first => document.querySelector('[data-countdown]').textContent !== first", arg=first
    )
    assert someone.overflow() == 0
    _shot(someone, f"drill-outage-{size}")
    page.get_by_role("button", name="End it now").click()
    page.get_by_role("button", name="Use up its quota for a minute").click()
    page.locator(".drill.card", has_text="quota is used up").wait_for()
    _shot(someone, f"drill-quota-{size}")
    # It ends by itself, and so does the card.
    sandbox.control("quota/use-up", seconds=0)
    someone.go(PANEL)
    page.get_by_role("button", name="break Polza").wait_for()
    assert someone.complaints == []


def test_the_card_is_well_again_by_itself_when_the_trouble_is_over(
    sandbox: Sandbox, visit: Callable[..., Visitor]
) -> None:
    factories.account(clock.now())
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    sandbox.control("outage/start", kind="turned_away", seconds=3)
    someone.go(PANEL)
    someone.page.locator("[data-countdown]").wait_for()
    someone.page.get_by_role("button", name="break Polza").wait_for(timeout=15_000)
    assert someone.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_empty_system_leads_on(scheme: str, visit: Callable[..., Visitor]) -> None:
    someone = visit(Role.OWNER, viewport=SIZES["phone"], color_scheme=scheme)
    for name in ("jobs/job", "jobs/batch", "jobs/case", "jobs/tenant", "providers/providerstate"):
        someone.go(f"/admin/{name}/")
        assert someone.page.locator(".card.empty a.button").count() == 1
        assert someone.overflow() == 0
        _shot(someone, f"empty-{name.replace('/', '-')}-{scheme}")
    assert someone.complaints == []
