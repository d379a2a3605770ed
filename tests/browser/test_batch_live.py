"""Live progress in a real browser, on a real asynchronous server: the stream, what stands in for it, and the notification."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.conf import global_settings
from django.db import connections
from playwright.sync_api import Browser, Page, Request, expect

from bench.desk import until
from bench.processes import dying_with_us
from jobs.clock import clock
from jobs.lifecycle import batches
from jobs.models import Batch
from jobs.roles import Role
from jobs.states import JobState
from tests import factories
from tests.browser.visitor import SIZES, Visitor

pytestmark = [pytest.mark.flow, pytest.mark.browser, pytest.mark.django_db(transaction=True)]

PROJECT = Path(__file__).resolve().parent.parent.parent


class Server:
    """The web process as it runs in earnest, on the tests' database."""

    def __init__(self, folder: Path) -> None:
        self.media, self.log = folder / "media", folder / "web.log"
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        place = connections["default"].settings_dict
        user, password = quote(str(place["USER"])), quote(str(place["PASSWORD"] or ""))
        query = urlencode({"host": place["HOST"] or "localhost"})
        words = (
            f"-m uvicorn studio.asgi:application --host 127.0.0.1 --port {self.port} --lifespan off"
        )
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                dying_with_us(sys.executable, *words.split(), "--log-level", "error"),
                cwd=PROJECT,
                env=os.environ
                | {
                    "DATABASE_URL": f"postgres://{user}:{password}@:{place['PORT'] or 5432}/{place['NAME']}?{query}",
                    "DEMO": "1",
                    "MEDIA_ROOT": str(self.media),
                },
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + 30
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/admin/login/")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def server(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("web"))
    server.start()
    yield server
    server.kill()
    assert "Traceback" not in server.log.read_text()


@pytest.fixture
def visit(browser: Browser, server: Server, settings: Any) -> Iterator[Callable[..., Visitor]]:
    """As in conftest.py, but on that server."""
    settings.MEDIA_ROOT = server.media
    settings.PASSWORD_HASHERS = global_settings.PASSWORD_HASHERS  # which the server knows
    visitors: list[Visitor] = []

    def make(role: Role = Role.VIEWER, **context: Any) -> Visitor:
        made = Visitor(browser, f"http://127.0.0.1:{server.port}", role=role, viewport=SIZES["desk"], **context)  # fmt: skip
        visitors.append(made)
        return made

    yield make
    # Before the database is emptied under their streams.
    for one in visitors:
        one.page.context.close()


def _batch(pending: int = 8) -> Batch:
    now = clock.now()
    batch = Batch.objects.create(tenant=factories.tenant(), label="Spring", created_at=now - timedelta(minutes=1))  # fmt: skip
    for _n in range(pending):
        factories.job(now, batch=batch)
    return batch


def _make(batch: Batch, many: int) -> None:
    now = clock.now()
    for job in batch.jobs.filter(state=JobState.PENDING).order_by("pk")[:many]:
        factories.result(job, now)
        batch.jobs.filter(pk=job.pk).update(state=JobState.SUCCEEDED, finished_at=now)


def _asked(someone: Visitor, what: str = "/progress/") -> list[Request]:
    asked: list[Request] = []
    someone.page.on("request", lambda one: asked.append(one) if one.url.endswith(what) else None)
    return asked


def _open(someone: Visitor, batch: Batch) -> Page:
    someone.go(f"/admin/jobs/batch/{batch.pk}/change/")
    return someone.page


def _hide(page: Page, *, hidden: bool) -> None:
    page.evaluate(
        """hidden => {
          Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_the_bar_moves_by_the_stream_alone_and_the_stream_ends_with_the_batch(
    visit: Callable[..., Visitor],
) -> None:
    batch = _batch()
    someone = visit()
    polls, streams = _asked(someone), _asked(someone, "/stream/")
    page = _open(someone, batch)
    card = page.locator("[data-progress]")
    expect(card).to_have_attribute("data-listening", "yes")
    _make(batch, 2)
    expect(page.locator("[data-text=percent]")).to_have_text("25 %")
    expect(card.locator("[data-bar=succeeded]")).to_have_attribute("width", "250")
    expect(page.locator("[data-shown] img")).to_have_count(2)
    batches.pause(batch_id=batch.pk, actor=None, now=clock.now())
    page.locator("[data-live=state]", has_text="paused by staff").wait_for()
    batches.resume(batch_id=batch.pk, actor=None, now=clock.now())
    _make(batch, 6)
    page.locator("[data-live=state]", has_text="done").wait_for()
    expect(page.locator("[data-text=percent]")).to_have_text("100 %")
    page.wait_for_timeout(2500)
    assert polls == []
    assert len([one for one in streams if "/batch/" in one.url]) == 1
    assert someone.complaints == []


def test_after_a_lost_connection_the_page_listens_again_and_has_missed_nothing(
    visit: Callable[..., Visitor], server: Server
) -> None:
    batch = _batch()
    someone = visit()
    polls, streams = _asked(someone), _asked(someone, "/stream/")
    page = _open(someone, batch)
    expect(page.locator("[data-progress]")).to_have_attribute("data-listening", "yes")
    server.kill()
    _make(batch, 4)
    server.start()
    expect(page.locator("[data-text=percent]")).to_have_text("50 %", timeout=15_000)
    _make(batch, 2)
    expect(page.locator("[data-text=percent]")).to_have_text("75 %")
    assert len([one for one in streams if "/batch/" in one.url]) >= 2
    assert polls == []


@pytest.mark.parametrize("how", ["refused", "silent"])
def test_where_streams_are_blocked_the_page_asks(visit: Callable[..., Visitor], how: str) -> None:
    batch = _batch()
    someone = visit()
    polls = _asked(someone)
    if how == "refused":
        someone.page.route("**/stream/", lambda route: route.abort())
    else:
        # A proxy that keeps everything back.
        someone.page.route("**/stream/", lambda _route: None)
    page = _open(someone, batch)
    _make(batch, 2)
    expect(page.locator("[data-progress]")).to_have_attribute("data-listening", "no", timeout=8000)
    expect(page.locator("[data-text=percent]")).to_have_text("25 %")
    _make(batch, 2)
    expect(page.locator("[data-text=percent]")).to_have_text("50 %")
    assert len(polls) >= 2


def test_a_page_in_the_background_does_not_listen(visit: Callable[..., Visitor]) -> None:
    batch = _batch()
    someone = visit()
    polls, streams = _asked(someone), _asked(someone, "/stream/")
    page = _open(someone, batch)
    expect(page.locator("[data-progress]")).to_have_attribute("data-listening", "yes")
    _hide(page, hidden=True)
    page.wait_for_timeout(300)
    opened = len(streams)
    _make(batch, 2)
    page.wait_for_timeout(2500)
    assert page.locator("[data-text=percent]").inner_text() == "0 %"
    assert len(streams) == opened
    _hide(page, hidden=False)
    expect(page.locator("[data-text=percent]")).to_have_text("25 %")
    assert polls == []
    assert someone.complaints == []


def test_the_dashboard_reads_its_parts_again_when_something_has_changed(
    visit: Callable[..., Visitor],
) -> None:
    someone = visit(Role.OWNER)
    someone.go("/admin/")
    page = someone.page
    expect(page.locator("[data-live-version]")).to_have_attribute("data-listening", "yes")
    waiting = page.locator("[data-live=states] .stat-number").first
    expect(waiting).to_have_text("0")
    _batch(3)
    expect(waiting).to_have_text("3")
    assert someone.complaints == []


_NOTES = """
  window.notes = [];
  window.Notification = class extends EventTarget {
    static permission = "default";
    static async requestPermission() { return (Notification.permission = "granted"); }
    constructor(title, options) { super(); window.notes.push([title, options.body]); }
    close() {}
  };
"""


def test_a_notification_says_that_the_batch_is_done(visit: Callable[..., Visitor]) -> None:
    batch = _batch(2)
    someone = visit()
    someone.page.add_init_script(_NOTES)
    someone.page.clock.install()
    page = _open(someone, batch)
    button = page.get_by_role("button", name="Tell me when it is done")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    polls = _asked(someone)
    _hide(page, hidden=True)
    _make(batch, 2)
    page.clock.run_for(30_000)
    assert polls == []
    page.clock.run_for(40_000)
    # Not by wait_for_function: where it has to ask twice it needs what the pages' policy forbids.
    until(lambda: page.evaluate("window.notes.length"), "the notification", 15.0)
    assert page.evaluate("window.notes") == [
        ["Spring", "The machine has nothing left to do in this batch."]
    ]
    assert len(polls) == 1
    page.clock.run_for(180_000)
    assert len(polls) == 1
    expect(button).to_be_hidden()


def test_nothing_is_told_unless_it_was_asked_for(visit: Callable[..., Visitor]) -> None:
    batch = _batch(1)
    someone = visit()
    someone.page.add_init_script(_NOTES)
    page = _open(someone, batch)
    button = page.get_by_role("button", name="Tell me when it is done")
    button.click()
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    _make(batch, 1)
    expect(page.locator("[data-text=percent]")).to_have_text("100 %")
    assert page.evaluate("window.notes") == []
    expect(button).to_be_hidden()
