"""A person with a browser, for the tests of this folder."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, Page

from jobs.roles import Role
from tests import factories

SIZES = {"desk": {"width": 1366, "height": 860}, "phone": {"width": 390, "height": 844}}

LANGUAGES = [("en", "English"), ("fa", "Persian")]  # offered once they are compiled


class Visitor:
    """A logged-in person; what their browser complained about is in `complaints`."""

    def __init__(self, browser: Browser, server: str, *, role: Role, **context: Any) -> None:
        self.server = server
        self.complaints: list[str] = []
        self.page: Page = browser.new_context(**context).new_page()
        self.page.on("console", lambda said: self._hear(said.type, said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("response", lambda got: self._hear_status(got.url, got.status))
        # Who listens from the start: a key may reach the page before the browser has heard that choosers are wanted.
        self.page.on("filechooser", lambda _chooser: None)
        factories.staff(role, name="someone", password="a long password")
        self.go("/admin/")
        self.page.fill("#id_username", "someone")
        self.page.fill("#id_password", "a long password")
        with self.page.expect_navigation():
            self.page.click("input[type=submit]")

    def _hear(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)

    def _hear_status(self, url: str, status: int) -> None:
        if status >= 400:
            self.complaints.append(f"{status} {url}")

    def go(self, path: str) -> None:
        self.page.goto(self.server + path)

    def overflow(self) -> int:
        """Pixels that the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
