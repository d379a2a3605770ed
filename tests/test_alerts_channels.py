"""Alerts through real channels: apprise in its process, HTTP to servers on this machine that hear, refuse, hang or lie."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from hypothesis import given
from hypothesis import strategies as st

from jobs import tasks
from jobs.alerts import channels
from jobs.alerts.child import HIDDEN, without_address
from jobs.alerts.words import Message
from jobs.clock import clock
from jobs.lifecycle import alerts, providers
from jobs.models import Alert, AlertChannel
from providers import health
from providers.health import Cause, Health
from tests import factories
from tests.ears import SECRET, black_hole, ear, refused

pytestmark = pytest.mark.flow
ROOT = Path(__file__).resolve().parent.parent
HELLO = Message(
    alert_id=7, title="Polza is down", body="HTTP 503: <b>oops</b>\n/admin", tone="failure"
)


def go_down(*, of: Any = None) -> datetime:
    now = clock.now()
    row = providers.locked_row((of or factories.account(now)).pk, "", now=now)
    new = health.opened(Health(), cause=Cause.FAILURES, now=now, reason="HTTP 503: oops")
    providers.write_row(row, new, now=now)
    return now


def come_up() -> None:
    now = clock.now()
    row = providers.locked_row(factories.account(now).pk, "", now=now)
    providers.write_row(row, health.closed(row.health(), now=now), now=now)


def run(*words: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("alerts", *words, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


# --- the whole way ----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_one_message_at_the_opening_and_one_at_the_end(settings: Any) -> None:
    with ear() as on_call:
        settings.ALERT_URLS = (on_call.url,)
        go_down()
        assert tasks.send_alerts() == "sent 1"
        assert tasks.send_alerts() == "nothing due"
        come_up()
        assert tasks.send_alerts() == "sent 1"
    assert on_call.titles == ["Polza is down", "Polza is available again"]
    assert on_call.heard[0]["type"] == "failure"
    assert on_call.heard[0]["message"].startswith("HTTP 503: oops")
    assert set(Alert.objects.values_list("state", flat=True)) == {"sent"}


@pytest.mark.django_db
@pytest.mark.parametrize("broken", ["500", "refused", "black hole", "never answers"])
def test_a_broken_channel_is_seen_tried_again_and_stops_no_other(
    settings: Any, broken: str
) -> None:
    with ear() as good, ear(500) as bad, ear(None) as mute, black_hole() as hole:
        settings.ALERT_URLS = (
            {"500": bad.url, "refused": refused(), "black hole": hole, "never answers": mute.url}[broken],
            good.url,
        )  # fmt: skip
        go_down()
        began = time.monotonic()
        assert tasks.send_alerts() == "sent 1"
        assert time.monotonic() - began < channels.LIMIT_S + 4
        assert good.titles == ["Polza is down"]
        row = Alert.objects.get()
        assert (row.state, row.tries) == ("due", 1)
        assert row.error.startswith("json: ")
        failing = AlertChannel.objects.get(failing_since__isnull=False)
        text = f"{row.error} {failing.error} {list(Alert.objects.values())}"
        assert SECRET not in text
        assert "127.0.0.1" not in failing.error
        bad.answer = mute.answer = 200
        mute.done.set()
        settings.ALERT_URLS = (settings.ALERT_URLS[0], good.url) if broken in {"500", "never answers"} else (good.url,)  # fmt: skip
        Alert.objects.update(not_before=clock.now())
        assert tasks.send_alerts() == "sent 1"
        assert Alert.objects.get().state == "sent"
        assert good.titles == ["Polza is down"]  # not told twice because another channel failed


@pytest.mark.django_db
def test_ten_messages_for_a_channel_that_hangs_take_no_longer_than_one(settings: Any) -> None:
    with ear(None) as mute, ear() as good:
        settings.ALERT_URLS = (mute.url, good.url)
        for number in range(10):
            go_down(of=factories.account(clock.now(), fingerprint=f"k{number}"))
        assert tasks.send_alerts() == "sent 10"
        assert len(mute.heard) == 1
        assert len(good.heard) == 10
    assert set(Alert.objects.values_list("state", "tries")) == {("due", 1)}


def test_what_the_limit_cuts_off_counts_as_not_sent_and_the_rest_as_sent(settings: Any) -> None:
    """The limit is below apprise's own patience, so that our kill is what ends it."""
    with ear(None) as mute, ear() as good:
        settings.ALERT_URLS = (mute.url, good.url)
        to = channels.channels()
        began = time.monotonic()
        tries = channels.deliver([HELLO], to=to, limit_s=3.0)
        assert time.monotonic() - began < 8
    assert {one.channel: one.error for one in tries} == {
        to[0].key: channels.TOO_SLOW,
        to[1].key: "",
    }


def test_a_sending_process_that_dies_is_told_and_raises_nothing(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    start = subprocess.Popen

    def start_and_kill(*args: Any, **values: Any) -> subprocess.Popen[bytes]:
        child = start(*args, **values)
        killed.append(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        return child

    monkeypatch.setattr(subprocess, "Popen", start_and_kill)
    settings.ALERT_URLS = (refused(),)
    (one,) = channels.deliver([HELLO], to=channels.channels())
    assert len(killed) == 1
    assert one.error == "the sending process died"


def test_without_a_process_to_be_had_it_is_told_too(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    settings.ALERT_URLS = (refused(),)
    (one,) = channels.deliver([HELLO], to=channels.channels())
    assert one.error == "no process to send with: No such file or directory"


@pytest.mark.django_db(transaction=True)
def test_a_sender_that_dies_after_sending_sends_once_more_and_then_never(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between the channel's answer and our record of it."""

    class Died(BaseException):
        pass

    def die(**_values: Any) -> None:
        raise Died

    monkeypatch.setattr(alerts, "record", die)
    with ear() as on_call:
        settings.ALERT_URLS = (on_call.url,)
        go_down_committed()
        for _sender in range(4):
            try:
                tasks.send_alerts()
            except Died:
                past = clock.now() - timedelta(seconds=1)
                Alert.objects.filter(leased_until__isnull=False).update(leased_until=past)
    assert on_call.titles == ["Polza is down"] * 2
    assert Alert.objects.get().state == "given_up"


def go_down_committed() -> None:
    from django.db import transaction

    with transaction.atomic():
        go_down()


def test_the_child_ends_by_itself_when_nobody_is_left_to_kill_it() -> None:
    with ear(None) as mute:
        order = {
            "limit_s": 1,
            "channels": [{"key": "k", "url": mute.url, "messages": [
                {"id": 1, "title": "t", "body": "b", "tone": "info"}]}],
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "jobs.alerts.child"], input=json.dumps(order).encode(), cwd=ROOT,
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == -signal.SIGALRM


def test_the_address_is_in_no_list_of_processes_and_the_keys_not_in_the_childs_environment(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLZA_API_KEY", "pza_very_secret")
    monkeypatch.setenv("ALERT_URLS", "json://x")
    started: list[int] = []
    start = subprocess.Popen

    def start_and_tell(*args: Any, **values: Any) -> subprocess.Popen[bytes]:
        child = start(*args, **values)
        started.append(child.pid)
        return child

    monkeypatch.setattr(subprocess, "Popen", start_and_tell)
    with ear(None) as mute:
        settings.ALERT_URLS = (mute.url,)
        thread = threading.Thread(target=lambda: channels.deliver([HELLO], to=channels.channels()))
        thread.start()
        assert mute.came.wait(30)  # it has the address by now, and waits for an answer
        about = Path(f"/proc/{started[0]}")
        command, environment = (about / "cmdline").read_bytes(), (about / "environ").read_bytes()
        mute.done.set()
        thread.join()
    assert b"jobs.alerts.child" in command
    assert SECRET.encode() not in command + environment
    assert b"pza_very_secret" not in environment


def test_a_broken_plugin_or_an_address_that_is_none_is_an_error_of_its_channel(
    settings: Any,
) -> None:
    with ear() as good:
        settings.ALERT_URLS = (f"nothing-like-it://{SECRET}", good.url)
        tries = channels.deliver([HELLO], to=channels.channels())
    assert [bool(one.error) for one in tries] == [True, False]
    assert SECRET not in str(tries)


def test_text_is_sent_as_it_is(settings: Any) -> None:
    with ear() as on_call:
        settings.ALERT_URLS = (on_call.url,)
        channels.deliver([HELLO], to=channels.channels())
    assert on_call.heard[0]["message"] == HELLO.body


# --- no address in any text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"Failed to reach json://desk:{SECRET}@host/{SECRET}",
        f"401 for {SECRET.upper()}",
        f"HTTPSConnectionPool(host='example.org'): /{SECRET}?x=1",
        "https://hooks.example/T000/B000/XXXX said no",
    ],
)
def test_no_part_of_an_address_stays_in_an_error(text: str) -> None:
    shown = without_address(text, f"json://desk:{SECRET}@example.org/{SECRET}?x=1")
    for part in (SECRET, SECRET.upper(), "example.org", "hooks.example", "T000"):
        assert part not in shown
    assert HIDDEN in shown


@given(
    st.lists(
        st.text("abcdefghijklmnopqrstuvwxyz0123456789%-_", min_size=6), min_size=1, max_size=4
    ),
    st.text(),
)
def test_whatever_an_error_repeats_of_an_address_is_hidden(parts: list[str], around: str) -> None:
    url = "tgram://" + "/".join(parts)
    for part in parts:
        shown = without_address(f"{around} {part} {around}", url)
        assert part not in shown or part in HIDDEN


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_test_message_reaches_each_channel_and_says_which_failed(settings: Any) -> None:
    with ear() as good, ear(500) as bad:
        settings.ALERT_URLS = (good.url, bad.url)
        code, text = run("test", "--json")
        told = json.loads(text)["channels"]
        assert code == 1
        assert [line["ok"] for line in told] == [True, False]
        assert good.titles == ["A test of the generation desk's alerts"]
        assert SECRET not in text
        assert AlertChannel.objects.filter(failing_since__isnull=False).count() == 1
        bad.answer = 200
        code, text = run("test")
        assert code == 0
        assert text.count("sent") == 2
    assert not AlertChannel.objects.filter(failing_since__isnull=False).exists()
    assert Alert.objects.count() == 0


@pytest.mark.django_db
def test_the_list_tells_alerts_and_channels(settings: Any) -> None:
    assert run() == (
        0, "No channel is set: ALERT_URLS is empty, so nobody is told.\nNo alerts yet.\n",
    )  # fmt: skip
    assert run("test")[0] == 2
    assert run("list", "--most", "-1")[0] == 2
    with ear(500) as bad:
        settings.ALERT_URLS = (bad.url,)
        go_down()
        tasks.send_alerts()
    code, text = run("list")
    assert code == 0
    assert "failing: " in text
    assert "to be sent: Polza is down  (json: " in text
    told = json.loads(run("list", "--json")[1])
    assert told["alerts"][0]["title"] == "Polza is down"
    assert told["channels"][0]["failing_since"]
    assert SECRET not in text + str(told)


# --- the settings -----------------------------------------------------------------------------------------------------


def start(**environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import environ; environ.Env.read_env = lambda *_: None\n"
        "from studio import settings as s\n"
        "import sys; print(len(s.ALERT_URLS), 'apprise' in sys.modules, s.ALERT_URLS)"
    )
    plain = {"DEMO": "1", "DATABASE_URL": "postgres://nobody@127.0.0.1/none", "PATH": os.environ["PATH"]}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=plain | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "urls",
    [
        f"tgram://{SECRET}",
        f"nothing-like-it://{SECRET}/x",
        f"json://127.0.0.1/ok, tgram:/{SECRET}",
        f"json://127.0.0.1/ok {SECRET}",
        f"{SECRET}",
        f"https://desk:{SECRET}@example.org/hook",
    ],
)
def test_a_malformed_address_stops_the_start_and_is_not_shown(urls: str) -> None:
    done = start(ALERT_URLS=urls)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "ALERT_URLS: address " in last
    assert "appriseit.com" in last
    assert SECRET not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("urls", "count"),
    [
        ("", 0),
        (" , ", 0),
        (f"json://a/{SECRET},jsons://b/{SECRET}", 2),
        (f"json://a/{SECRET}\njson://b/{SECRET}  json://a/{SECRET}", 2),
        (f"mailto://me:{SECRET}@example.org?to=a@example.org,b@example.org", 1),
    ],
)
def test_addresses_come_apart_at_commas_and_blanks_and_only_they_load_apprise(
    urls: str, count: int
) -> None:
    done = start(ALERT_URLS=urls)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == [str(count), str(count > 0)]
    assert SECRET not in done.stdout


@pytest.mark.parametrize(
    "url", ["desk.example", "https://", "https://desk.example?x", "https://u:p@desk"]
)
def test_a_public_address_that_is_none_stops_the_start(url: str) -> None:
    done = start(PUBLIC_URL=url)
    assert done.returncode != 0
    assert "PUBLIC_URL:" in done.stderr
