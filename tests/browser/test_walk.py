"""A walk over the desk as each role, in each language that is compiled, light and dark, on a screen and on a phone: in calm, with a
quota used up, in an outage. A picture of each page goes to SCREENSHOTS (var/screenshots where it is not set)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from jobs.clock import clock
from jobs.models import Lane
from jobs.roles import Role
from tests.browser import looks, story
from tests.browser.story import Story
from tests.browser.visitor import SIZES

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PROJECT = Path(__file__).resolve().parent.parent.parent
SCREENSHOTS = Path(os.environ.get("SCREENSHOTS", "") or PROJECT / "var/screenshots")
LANGUAGES = [code for code, _name in settings.LANGUAGES]
# What shows the trouble of a provider; the other pages are the same whatever its state.
TROUBLED = ("dashboard", "providers")


class Album:
    """Pages looked at by somebody's browser; `wrong` says what was found on which."""

    def __init__(self, server: str, desk: Story) -> None:
        self.server, self.given = server, desk.given
        self.wrong: list[str] = []

    def look(self, context: BrowserContext, address: str, name: str, *, foreign: bool) -> None:
        Lane.objects.update(heartbeat_at=clock.now())
        page = context.new_page()
        page.on("console", lambda said: self._hear(name, said))
        page.on("pageerror", lambda error: self.wrong.append(f"{name}: {error}"))
        page.goto(self.server + address)
        self.wrong += [
            f"{name}: {line}" for line in looks.wrong(page, foreign=foreign, given=self.given)
        ]
        shoot(page, name)
        page.close()

    def _hear(self, name: str, said: ConsoleMessage) -> None:
        """A breach of the content policy is an error of the console. That a candidate has no picture is none of ours."""
        if said.type in {"error", "warning"} and "/candidate/" not in said.location["url"]:
            self.wrong.append(f"{name}: {said.text} {said.location['url']}")


# Those that come only when they are to be seen too; at most 5 s.
_PICTURES = """
() => Promise.race([
  Promise.all([...document.images].map((one) => one.complete || new Promise((done) => { one.onload = one.onerror = done; }))),
  new Promise((done) => setTimeout(done, 5000)),
]).then(() => null)
"""


def shoot(page: Page, name: str) -> None:
    """The whole of it: in a window as high as the page, as what sticks to the window's edge would else lie in the middle."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    size: Any = page.viewport_size or SIZES["desk"]
    high = int(page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": size["width"], "height": max(high, size["height"])})
    page.evaluate(_PICTURES)
    page.screenshot(path=SCREENSHOTS / f"{re.sub('[^a-z0-9]+', '-', name)}.png")
    page.set_viewport_size(size)


def _contexts(
    browser: Browser,
    server: str,
    person: User | None,
    language: str,
    ways: Sequence[tuple[str, str]],
) -> dict[str, BrowserContext]:
    return {
        f"{language} {size} {scheme}": story.arrive(
            browser, server, person, language=language, viewport=SIZES[size], color_scheme=scheme, reduced_motion="reduce",
        )
        for size, scheme in ways
    }  # fmt: skip


# Each language in one way; with --whole in all four.
WAYS = {"en": ("phone", "dark"), "ru": ("desk", "light"), "fa": ("desk", "dark")}


@pytest.fixture
def ways(request: pytest.FixtureRequest, language: str) -> Sequence[tuple[str, str]]:
    """Sizes and schemes."""
    if request.config.getoption("whole"):
        return [(size, scheme) for size in SIZES for scheme in story.SCHEMES]
    return [WAYS[language]]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_looks_right(
    browser: Browser, live_server: Any, desk: Story, language: str, ways: Sequence[tuple[str, str]]
) -> None:
    album = Album(live_server.url, desk)
    foreign = language != "en"
    for look, context in _contexts(browser, live_server.url, None, language, ways).items():
        album.look(context, "/admin/login/", f"login {look}", foreign=foreign)
    operators = _contexts(browser, live_server.url, desk.people[Role.OPERATOR], language, ways)
    for situation, set_up in (("calm", desk.calm), ("quota", desk.quota_exhausted), ("outage", desk.outage)):  # fmt: skip
        set_up()
        for name in desk.pages if situation == "calm" else TROUBLED:
            called = f"{name} {situation}" if name in TROUBLED else name
            for look, context in operators.items():
                album.look(context, desk.pages[name], f"{called} {look}", foreign=foreign)
    assert not album.wrong, "\n" + "\n".join(album.wrong)


@pytest.mark.parametrize("role", list(Role))
def test_each_role_logs_in_and_finds_what_is_theirs(
    browser: Browser, live_server: Any, desk: Story, role: Role
) -> None:
    """By the form, as they do. Whoever works at the desk begins there while something is open; a viewer presses nothing."""
    album = Album(live_server.url, desk)
    context = story.arrive(browser, live_server.url, None, viewport=SIZES["desk"], reduced_motion="reduce")  # fmt: skip
    page = context.new_page()
    page.goto(live_server.url + "/admin/")
    page.fill("#id_username", role.value.lower())
    page.fill("#id_password", "a long password")
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("Dashboard" if role is Role.VIEWER else "Desk")
    shoot(page, f"first page as {role.value.lower()}")
    main = page.locator("#content")
    page.goto(live_server.url + desk.pages["job with a lost send"])
    offered = {
        verb: main.locator(f"a[href*='/do/{verb}/']").count() > 0 for verb in ("resolve", "resend")
    }
    works = role is not Role.VIEWER
    assert offered == {"resolve": works, "resend": role is Role.OWNER}
    page.goto(live_server.url + "/admin/")
    assert (main.get_by_role("link", name="New jobs").count() > 0) == works
    for name in ("dashboard", "desk", "batch", "gallery", "providers"):
        if name in desk.pages:
            album.look(context, desk.pages[name], f"{name} as {role.value.lower()}", foreign=False)
    assert album.wrong == []
