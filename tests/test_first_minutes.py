"""The first minutes: empty lists that say what to do next, help at each setting, and the demo's trouble at a button."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from jobs.admin import drill as drill_page
from jobs.clock import clock
from jobs.lifecycle.create import default_tenant
from jobs.models import Batch, Job
from jobs.pictures import PictureProcess
from jobs.roles import Role
from providers.drill import Trouble
from providers.sandbox.server import Sandbox, running_sandbox
from providers.word import Word, word
from tests import factories
from tests.switchboard import FIRST, Switchboard

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

URL = "/admin/sandbox/{}/"
CARD = "Try it out"
PANEL = "/admin/providers/providerstate/"


def _client(role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(factories.staff(role))
    return client


def _text(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return answer.content.decode()


@pytest.fixture(scope="module")
def running() -> Iterator[Sandbox]:
    with running_sandbox(latency_fixed_s=60) as started:
        yield started


@pytest.fixture
def sandbox(running: Sandbox, settings: Any) -> Sandbox:
    """The demo, with its provider at a sandbox of this test."""
    running.control("reset")
    settings.ON_SANDBOX, settings.SANDBOX_URL = True, running.url
    return running


# --- the demo's trouble -----------------------------------------------------------------------------------------------


def test_a_button_breaks_the_provider_for_a_minute_and_another_ends_it(sandbox: Sandbox) -> None:
    client = _client()
    assert "break Polza for a minute" in _text(client, PANEL)
    answer = client.post(URL.format("outage"), {"next": PANEL})
    assert (answer.status_code, answer["Location"]) == (302, PANEL)
    stats = sandbox.stats()
    assert stats["outage"] == "turned_away"
    assert 50 < stats["outage_left_s"] <= 60
    page = _text(client, PANEL)
    assert "plays an outage" in page
    assert "data-countdown" in page
    assert "break Polza" not in page
    client.post(URL.format("end"), {"next": PANEL})
    assert sandbox.stats()["outage"] is None
    assert "break Polza for a minute" in _text(client, PANEL)


def test_the_quota_is_used_up_for_a_minute_instead_of_an_outage(sandbox: Sandbox) -> None:
    client = _client(Role.OWNER)
    client.post(URL.format("outage"))
    client.post(URL.format("quota"))
    stats = sandbox.stats()
    assert stats["outage"] is None
    assert 50 < stats["quota_left_s"] <= 60
    assert "its quota is used up" in _text(client, PANEL)
    client.post(URL.format("end"))
    assert sandbox.stats()["quota_left_s"] == 0


def test_pictures_are_asked_for_meanwhile_only_where_that_is_wanted(sandbox: Sandbox) -> None:
    client = _client()
    client.post(URL.format("outage"))
    assert not Job.objects.exists()
    client.post(URL.format("outage"), {"pictures": "1"})
    batch = Batch.objects.get()
    assert batch.jobs.count() == drill_page.PICTURES
    assert sandbox.summary()["tasks"] == 0  # workers send them, no page does


def test_only_operators_and_owners_see_and_press_it(sandbox: Sandbox) -> None:
    viewer = _client(Role.VIEWER)
    assert CARD not in _text(viewer, PANEL)
    for what in (*Trouble, "end"):
        assert viewer.post(URL.format(what)).status_code == 403
        assert Client().post(URL.format(what)).status_code == 302  # to the login
    assert sandbox.stats()["outage"] is None


def test_looking_starts_nothing_and_a_post_needs_its_token(sandbox: Sandbox) -> None:
    client = _client()
    for what in (*Trouble, "end"):
        assert client.get(URL.format(what)).status_code == 405
    assert client.post(URL.format("flood")).status_code == 404
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(factories.staff(Role.OWNER))
    assert careful.post(URL.format("outage")).status_code == 403
    assert sandbox.stats()["outage"] is None


def test_one_is_sent_back_to_the_desk_only(sandbox: Sandbox) -> None:
    answer = _client().post(URL.format("end"), {"next": "https://elsewhere.example/"})
    assert answer["Location"] == "/admin/"
    assert sandbox.stats()["outage"] is None


def test_outside_the_demo_there_is_nothing_of_it(running: Sandbox, settings: Any) -> None:
    """As in production: a real key, or no demo."""
    settings.ON_SANDBOX, settings.SANDBOX_URL = False, running.url
    root = Client()
    root.force_login(factories.staff(superuser=True))
    for client in (_client(Role.OWNER), root):
        for what in (*Trouble, "end"):
            assert client.post(URL.format(what)).status_code == 404
            assert client.get(URL.format(what)).status_code == 404
        assert CARD not in _text(client, PANEL)
        assert CARD not in _text(client, "/admin/")
    assert running.stats()["outage"] is None


def test_a_sandbox_that_is_away_is_said_to_be_so(settings: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        settings.ON_SANDBOX = True
        settings.SANDBOX_URL = f"http://127.0.0.1:{taken.getsockname()[1]}"
        client = _client()
        assert "The sandbox does not answer." in _text(client, PANEL)
        answer = client.post(URL.format("outage"), {"pictures": "1"}, follow=True)
    assert "The sandbox does not answer" in answer.content.decode()
    assert not Job.objects.exists()


@pytest.fixture
def board(settings: Any, tmp_path: Path) -> Iterator[Callable[[], Switchboard]]:
    pictures = PictureProcess()
    yield lambda: Switchboard(settings, tmp_path, pictures)
    pictures.close()


def test_the_desk_calls_a_used_up_quota_by_its_name_and_goes_on_after_it(
    board: Callable[[], Switchboard],
) -> None:
    desk = board()
    desk.worlds[FIRST].use_up(60)
    desk.order(3, route=[desk.targets[FIRST]])
    desk.work(9)
    told = word(desk.state(FIRST).health(), now=desk.clock.now())
    assert told.word is Word.QUOTA_EXHAUSTED
    assert told.until is not None
    assert (told.until - desk.clock.now()).total_seconds() < 75
    desk.work(120)
    assert desk.states() == {"succeeded": 3}
    assert desk.wrong() == []


def test_five_pictures_are_enough_to_see_an_outage(board: Callable[[], Switchboard]) -> None:
    desk = board()
    desk.worlds[FIRST].start_outage("turned_away", seconds=60)
    desk.order(drill_page.PICTURES, route=[desk.targets[FIRST]])
    desk.work(30)
    assert word(desk.state(FIRST).health(), now=desk.clock.now()).word is Word.DOWN
    desk.work(900, step_s=10)
    assert desk.states() == {"succeeded": drill_page.PICTURES}
    assert desk.wrong() == []


# --- the first set ----------------------------------------------------------------------------------------------------


def test_a_batch_may_be_given_a_name(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("prompt\nA red bicycle\nA blue one\n")
    call_command("generate", file=str(path), label="Demo", stdout=StringIO())
    batch = Batch.objects.get()
    assert (batch.label, batch.jobs.count()) == ("Demo", 2)
    assert "Demo" in _text(_client(), reverse("admin:jobs_batch_changelist"))


# --- empty lists ------------------------------------------------------------------------------------------------------

LISTS = [
    "jobs_job",
    "jobs_batch",
    "jobs_case",
    "jobs_tenant",
    "jobs_statement",
    "jobs_apitoken",
    "jobs_standingdecision",
    "jobs_bulkrun",
    "jobs_result",
    "jobs_callback",
    "jobs_orphan",
    "jobs_alert",
    "jobs_providertask",
    "jobs_polzatask",
    "providers_target",
    "providers_quotawindow",
    "providers_providerstate",
]


@pytest.mark.parametrize("name", LISTS)
def test_an_empty_list_says_what_it_is_and_what_to_do_next(name: str) -> None:
    page = _text(_client(Role.OWNER), reverse(f"admin:{name}_changelist"))
    (shown,) = re.findall(r'<div class="card empty">(.*?)</div>', page, re.DOTALL)
    assert "<h2>" in shown
    (text,) = re.findall(r"<p>(.*?)</p>", shown, re.DOTALL)
    assert len(text) > 40
    (button,) = re.findall(r'<a class="button" href="([^"]+)"', shown)
    assert _client(Role.OWNER).get(button).status_code == 200


@pytest.mark.parametrize("name", LISTS)
def test_no_button_leads_where_one_may_not_go(name: str) -> None:
    client = _client(Role.VIEWER)
    page = _text(client, reverse(f"admin:{name}_changelist"))
    (shown,) = re.findall(r'<div class="card empty">(.*?)</div>', page, re.DOTALL)
    for button in re.findall(r'<a [^>]*href="([^"]+)"', shown):
        assert client.get(button).status_code == 200


def test_a_list_with_a_row_says_none_of_it() -> None:
    factories.job(clock.now())
    assert "No jobs yet" not in _text(_client(), reverse("admin:jobs_job_changelist"))


# --- help at each setting ---------------------------------------------------------------------------------------------


def _fields(page: str) -> dict[str, str]:
    """Of the form on the page: what stands by each field that can be filled in."""
    found = {}
    for name in re.findall(r'<(?:input|select|textarea)[^>]*\bname="([a-z_]+)"', page):
        if name not in {
            "csrfmiddlewaretoken",
            "q",
            "language",
            "next",
            "id",
            "why",
            "reason",
        } and not name.startswith("_"):
            found[name] = "".join(
                re.findall(rf'id="id_{name}_helptext"[^>]*>(.*?)</', page, re.DOTALL)
            )
    return found


@pytest.mark.parametrize(
    ("address", "make"),
    [
        ("jobs_tenant_change", default_tenant),
        ("providers_target_change", factories.target),
        ("providers_account_change", lambda: factories.account(clock.now())),
        ("providers_target_add", None),
        ("jobs_tenant_add", None),
        ("jobs_standingdecision_add", None),
        ("jobs_apitoken_add", None),
        ("auth_user_change", lambda: factories.staff(Role.VIEWER)),
    ],
)
def test_each_setting_has_its_help(address: str, make: Callable[[], Any] | None) -> None:
    args = [make().pk] if make else []
    page = _text(_client(Role.OWNER), reverse(f"admin:{address}", args=args))
    fields = {name: " ".join(help_text.split()) for name, help_text in _fields(page).items()}
    fields.pop("scopes", None)  # each choice tells itself
    if "Viewer looks, Operator works" in page:
        fields.pop("groups")  # told below its boxes
    assert fields
    assert [name for name, help_text in fields.items() if len(help_text) < 15] == []


def test_the_window_of_a_quota_has_its_help() -> None:
    account = factories.account(clock.now())
    add = reverse("admin:providers_providerstate_do", args=[account.pk, "add-window"])
    fields = _fields(_text(_client(Role.OWNER), add))
    assert [name for name, help_text in fields.items() if len(help_text) < 15] == []
