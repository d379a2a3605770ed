"""The line below a form for new jobs: it follows the chosen tenant and target, and no size or direction breaks the pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from jobs.roles import Role
from jobs.routes import ensure_configured
from providers.models import Target
from tests import factories
from tests.browser.visitor import LANGUAGES, SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("path", ["/admin/jobs/job/add/", "/admin/jobs/batch/add/"])
def test_the_line_follows_tenant_and_target(visit: Callable[..., Visitor], path: str) -> None:
    dear = factories.target("dear", price=50)
    shut = factories.target("shut", enabled=False)
    factories.tenant("dealer", default_route=[dear.pk])
    factories.tenant("closed", default_route=[shut.pk])
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    someone.go(path)
    page = someone.page
    line = page.locator("[data-route-line]")
    expect(line).to_contain_text("Studio has none of its own")
    dealer = page.locator("#id_tenant option", has_text="Dealer").get_attribute("value")
    page.select_option("#id_tenant", dealer)
    expect(line).to_contain_text("polza:dear")
    expect(line).to_contain_text("default route of Dealer")
    expect(line).to_contain_text("50.00")
    closed = page.locator("#id_tenant option", has_text="Closed").get_attribute("value")
    page.select_option("#id_tenant", closed)
    expect(line).to_contain_text("polza:shut is closed")
    expect(line).not_to_contain_text("a picture")
    page.select_option("#id_target", str(dear.pk))
    expect(line).to_contain_text("polza:dear")
    expect(line).not_to_contain_text("is closed")
    page.select_option("#id_target", "")
    expect(line).to_contain_text("is closed")
    assert someone.complaints == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("language", [code for code, _name in LANGUAGES])
def test_forms_and_preview_are_no_wider_than_their_window(
    visit: Callable[..., Visitor], size: str, language: str
) -> None:
    ensure_configured()
    long = [factories.target(f"a-rather-long-name-of-a-model/v{n}-preview") for n in range(3)]
    Target.objects.update(price=8)
    factories.tenant(
        "studio", daily_limit=100, monthly_limit=150, default_route=[target.pk for target in long]
    )
    someone = visit(Role.OPERATOR, viewport=SIZES[size])
    someone.page.context.set_extra_http_headers({"Accept-Language": language})
    for path in ("/admin/jobs/job/add/", "/admin/jobs/batch/add/"):
        someone.go(path)
        assert someone.overflow() <= 0
    someone.page.fill("#id_pasted", "\n".join(f"chair {n}" for n in range(40)))
    with someone.page.expect_navigation():
        someone.page.locator("form.confirm button").last.click()
    assert someone.page.locator("#budget").count() == 1
    assert someone.overflow() <= 0
    assert someone.complaints == []
