"""Everybody can use the pages: axe-core finds nothing serious, the keyboard reaches everything and shows where it is, nothing
moves for whoever wants no motion, and no page is wider than a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Browser, Page

from jobs.roles import Role
from tests.browser import axe, story
from tests.browser.story import Story
from tests.browser.visitor import SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

LANGUAGES = [code for code, _name in settings.LANGUAGES if code in {"en", "fa"}]


@pytest.mark.parametrize("scheme", story.SCHEMES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_axe_finds_nothing_serious(
    browser: Browser, live_server: Any, desk: Story, language: str, scheme: str
) -> None:
    """Twelve pages and more; on a screen and, as other things are shown there, some on a phone."""
    desk.outage()
    found, seen = [], 0
    stranger = story.arrive(browser, live_server.url, None, language=language, color_scheme=scheme)
    owner = {
        size: story.arrive(
            browser, live_server.url, desk.people[Role.OWNER], language=language, color_scheme=scheme,
            viewport=SIZES[size], reduced_motion="reduce",
        )
        for size in SIZES
    }  # fmt: skip
    visits = [("login", "/admin/login/", stranger)]
    visits += [(name, address, owner["desk"]) for name, address in desk.pages.items()]
    visits += [(f"{name} on a phone", desk.pages[name], owner["phone"]) for name in ("dashboard", "jobs", "case")]  # fmt: skip
    for name, address, context in visits:
        page = context.new_page()
        page.goto(live_server.url + address)
        found += [f"{name}: {line}" for line in axe.findings(page)]
        page.close()
        seen += 1
    assert seen >= 12
    assert not found, "\n" + "\n".join(found)


# What somebody can press or write into, shown now.
_REACHABLE = """
() => [...document.querySelectorAll('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')]
  .filter((one) => !one.disabled && one.checkVisibility({visibilityProperty: true}) && one.getClientRects().length)
"""
# Of each, whether it looks different with the focus: an outline, or a border or shadow of its own.
_UNSEEN = f"""
() => {{
  const look = (one) => {{
    const style = getComputedStyle(one);
    const line = style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 1 ? "" : style.outlineColor;
    return [line, style.boxShadow, style.borderColor, style.backgroundColor].join("|");
  }};
  const unseen = [];
  for (const one of ({_REACHABLE})()) {{
    document.activeElement.blur();
    const before = look(one);
    one.focus();
    if (document.activeElement === one && look(one) === before) unseen.push(one.outerHTML.slice(0, 120));
  }}
  return unseen;
}}
"""


def test_the_focus_is_seen_on_whatever_can_be_pressed(
    browser: Browser, live_server: Any, desk: Story
) -> None:
    context = story.arrive(browser, live_server.url, desk.people[Role.OWNER], viewport=SIZES["desk"], reduced_motion="reduce")  # fmt: skip
    page = context.new_page()
    for name, address in desk.pages.items():
        page.goto(live_server.url + address)
        page.keyboard.press("Tab")  # from here on the browser shows where the focus is
        assert page.evaluate(_UNSEEN) == [], name


def test_the_keyboard_comes_to_everything_in_turn(
    browser: Browser, live_server: Any, desk: Story
) -> None:
    """From the way past the menu to the last thing on the page, each once, and nothing holds it."""
    context = story.arrive(browser, live_server.url, desk.people[Role.OPERATOR], viewport=SIZES["desk"])  # fmt: skip
    page = context.new_page()
    for name in ("dashboard", "jobs", "case"):
        page.goto(live_server.url + desk.pages[name])
        many = page.evaluate(f"({_REACHABLE})().filter((one) => one.tabIndex >= 0).length")
        page.keyboard.press("Tab")
        assert "skip-to-content-link" in str(_active(page, "className")), name
        page.evaluate("window.reached = new Set([document.activeElement])")
        for _n in range(many + 40):
            page.keyboard.press("Tab")
            page.evaluate("window.reached.add(document.activeElement)")
        missed = page.evaluate(
            f"({_REACHABLE})().filter((one) => one.tabIndex >= 0 && !window.reached.has(one) && !(one.type === 'radio'))"
            ".map((one) => one.outerHTML.slice(0, 120))"
        )
        assert missed == [], name


def _active(page: Page, what: str) -> Any:
    return page.evaluate(f"document.activeElement.{what}")


def test_past_the_menu_in_two_presses(visit: Callable[..., Visitor]) -> None:
    someone = visit(Role.OPERATOR, viewport=SIZES["desk"])
    someone.go("/admin/jobs/job/")
    someone.page.keyboard.press("Tab")
    someone.page.keyboard.press("Enter")
    assert _active(someone.page, "id") == "content-start"


def test_nothing_moves_for_whoever_wants_no_motion(
    browser: Browser, live_server: Any, desk: Story
) -> None:
    context = story.arrive(browser, live_server.url, desk.people[Role.OWNER], reduced_motion="reduce")  # fmt: skip
    page = context.new_page()
    for name, address in desk.pages.items():
        page.goto(live_server.url + address)
        moving = page.evaluate(
            "[...document.querySelectorAll('*')].filter((one) => ['', '::before', '::after'].some((part) => {"
            " const style = getComputedStyle(one, part || null);"
            " return style.animationName !== 'none' || parseFloat(style.transitionDuration) > 0.001 }))"
            ".map((one) => one.outerHTML.slice(0, 120))"
        )
        assert moving == [], name


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_page_scrolls_sideways_on_a_phone(
    browser: Browser, live_server: Any, desk: Story, language: str
) -> None:
    desk.quota_exhausted()
    context = story.arrive(browser, live_server.url, desk.people[Role.OWNER], language=language, viewport=SIZES["phone"])  # fmt: skip
    page = context.new_page()
    wide = {}
    for name, address in desk.pages.items():
        page.goto(live_server.url + address)
        over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if over > 0:
            wide[name] = over
    assert wide == {}
