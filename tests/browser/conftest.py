"""A real Chromium for these tests. Where none is installed they are left out, and the report says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from playwright.sync_api import Browser, sync_playwright

from jobs.roles import Role
from providers.sandbox.server import running_sandbox
from tests.browser import story
from tests.browser.story import Story
from tests.browser.visitor import Visitor

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

if CHROMIUM is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return (
        f"browser: {CHROMIUM or 'no Chromium found (apt install chromium), tests/browser left out'}"
    )


@pytest.fixture
def browser(
    transactional_db: None,
    live_server: Any,
    settings: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Browser]:
    """Ends before the database is emptied: while Playwright's loop runs, Django takes this thread for asynchronous."""
    settings.MEDIA_ROOT = tmp_path
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    # The server's threads must not hold their connections when the test database is dropped.
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()
        # Under the running loop this thread has had connections of its own.
        connections.close_all()


@pytest.fixture
def visit(browser: Browser, live_server: Any) -> Callable[..., Visitor]:
    """Makes a logged-in member of staff; what it takes is Visitor's."""

    def make(role: Role = Role.OWNER, **context: Any) -> Visitor:
        return Visitor(browser, live_server.url, role=role, **context)

    return make


@pytest.fixture
def desk(browser: Browser, settings: Any) -> Iterator[Story]:
    """In the middle of its day, as in the demo: with a sandbox."""
    with running_sandbox(latency_fixed_s=60) as sandbox:
        settings.ON_SANDBOX, settings.SANDBOX_URL = True, sandbox.url
        yield story.told(settings)
