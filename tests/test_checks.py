"""Each system check speaks when its rule is broken, names the setting and the cure, and is silent otherwise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User
from django.core import checks
from django.test import Client
from django_q.models import Schedule

from jobs import checks as ours


@pytest.fixture(autouse=True)
def usable(settings: LazySettings, tmp_path: Path) -> None:
    for name in ("MEDIA_ROOT", "SPOOL_DIR", "EPOCH_DIR"):
        setattr(settings, name, tmp_path / name.lower())
    settings.DEMO, settings.DEBUG = True, False
    settings.ALLOWED_HOSTS = ["localhost", "testserver"]
    settings.STATIC_ROOT = tmp_path  # WhiteNoise warns of a folder that collectstatic has not made


def found() -> list[checks.CheckMessage]:
    return [message for message in checks.run_checks() if str(message.id).startswith("desk.")]


def ids() -> set[str]:
    return {str(message.id) for message in found()}


def test_our_own_settings_pass() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("workers", 1, 1),
        ("queue_limit", 50, 2),
        ("bulk", 5, 3),
        ("timeout", 61, 4),
        ("retry", 300, 5),
        ("max_attempts", 0, 6),
        ("ack_failures", False, 7),
        ("save_limit", 250, 8),
        ("guard_cycle", 0.3, 9),
        ("catch_up", True, 10),
        ("broker_class", None, 11),
        ("orm", None, 12),
        ("sync", True, 13),
    ],
)
def test_every_queue_setting_is_held_to_its_rule(
    name: str, value: Any, number: int, settings: LazySettings
) -> None:
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, name: value}
    message = next(message for message in found() if message.id == f"desk.E{number:03}")
    assert name in message.msg
    assert message.hint


def test_more_lanes_need_more_workers(settings: LazySettings) -> None:
    settings.WORKER_LANES = 8
    assert "desk.E001" in ids()


@pytest.mark.condition("R40")
def test_a_longer_call_needs_a_longer_timeout(settings: LazySettings) -> None:
    settings.POST_DEADLINE_SEC = 600
    assert "desk.E004" in ids()


def test_the_stock_command_must_not_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

    monkeypatch.setattr(
        "django.apps.apps.get_app_configs", lambda: [Named("django_q"), Named("jobs")]
    )
    assert [message.id for message in ours.queue_command(None)] == ["desk.E014"]


def test_connections_closed_after_each_use_are_warned_of(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "CONN_MAX_AGE", 0)
    assert [message.id for message in ours.connections_are_kept(None)] == ["desk.W015"]


def test_a_demo_that_others_can_reach_is_refused(settings: LazySettings) -> None:
    settings.ALLOWED_HOSTS = ["localhost", "desk.example.org"]
    assert ids() == {"desk.E030"}


def test_debug_outside_the_demo_is_warned_of(settings: LazySettings) -> None:
    settings.DEMO, settings.DEBUG = False, True
    assert "desk.W031" in ids()


@pytest.mark.parametrize(
    "fallback", [["m"], ["polza:m"], ["other", "polza:m"], ["other", "polza:other"]]
)
def test_a_fallback_to_a_model_that_was_tried_already_is_refused(
    fallback: list[str], settings: LazySettings
) -> None:
    settings.AI_MODEL, settings.AI_MODEL_FALLBACK = "m", fallback
    assert ids() == {"desk.E040"}


def test_the_providers_default_model_is_no_fallback_for_itself(settings: LazySettings) -> None:
    settings.AI_MODEL, settings.AI_MODEL_FALLBACK = "", ["google/gemini-3.1-flash-image-preview"]
    assert ids() == {"desk.E040"}


def test_another_model_is_a_fallback(settings: LazySettings) -> None:
    settings.AI_MODEL, settings.AI_MODEL_FALLBACK = "m", ["n", "o"]
    assert ids() == set()


def test_a_job_timeout_below_the_polling_deadline_is_refused(settings: LazySettings) -> None:
    settings.WORKER_JOB_TIMEOUT_SEC = settings.POLL_DEADLINE_SEC
    assert ids() == {"desk.E041"}


@pytest.mark.parametrize(
    ("name", "number"), [("MEDIA_ROOT", 50), ("SPOOL_DIR", 51), ("EPOCH_DIR", 52)]
)
def test_a_path_that_is_no_folder_is_refused(
    name: str, number: int, settings: LazySettings, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    setattr(settings, name, tmp_path / "file")
    (message,) = found()
    assert message.id == f"desk.E{number:03}"
    assert name in message.msg


def test_memory_is_no_place_for_what_was_paid_for(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DEMO = False
    monkeypatch.setattr(ours, "_mounts", lambda: "tmpfs / tmpfs rw 0 0\n")
    assert ids() == {"desk.W050", "desk.W051", "desk.W052"}


def test_the_file_system_is_that_of_the_longest_mount_above() -> None:
    mounts = "/dev/a / ext4 rw\ntmpfs /tmp tmpfs rw\n/dev/b /tmp/my\\040disk xfs rw\n"
    assert ours.file_system(Path("/srv/x"), mounts) == "ext4"
    assert ours.file_system(Path("/tmp/x"), mounts) == "tmpfs"
    assert ours.file_system(Path("/tmp/my disk/x"), mounts) == "xfs"
    assert ours.file_system(Path("/srv"), "") == ""


@pytest.mark.django_db
def test_the_tests_own_server_may_do_without_fsync_and_commits_all_the_same() -> None:
    assert ours.commits_reach_the_disk(None, databases=["default"]) == []


@pytest.mark.django_db
def test_a_server_without_fsync_is_refused_in_production(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DEMO = False
    answer(monkeypatch, "on", "off")
    assert [message.id for message in ours.commits_reach_the_disk(None, databases=["default"])] == [
        "desk.E021"
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
def test_asynchronous_commits_are_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, value, "on")
    assert [message.id for message in ours.commits_reach_the_disk(None, databases=["default"])] == [
        "desk.E020"
    ]


def test_the_database_is_asked_only_where_it_is_meant() -> None:
    assert ours.commits_reach_the_disk(None, databases=None) == []


def answer(monkeypatch: pytest.MonkeyPatch, *row: str) -> None:
    class Cursor:
        def __enter__(self) -> Cursor:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def execute(self, _query: str) -> None:
            return None

        def fetchone(self) -> tuple[str, ...]:
            return row

    class Connection:
        def cursor(self) -> Cursor:
            return Cursor()

    monkeypatch.setattr(ours, "connections", {"default": Connection()})


def test_every_check_has_an_id_of_its_own() -> None:
    text = Path(ours.__file__).read_text(encoding="utf-8")
    numbers = re.findall(r'id="desk\.[EW](\d{3})"', text)
    assert len(numbers) == len(set(numbers) | {"021"}) + (numbers.count("021") - 1)


# --- the queue's own pages --------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("page", ["success", "failure", "schedule", "ormq"])
def test_the_queues_pages_are_for_superusers_only_and_to_read(page: str, client: Client) -> None:
    from jobs.admin import queue  # noqa: F401  replaces the stock pages

    User.objects.create_user("staff", password="p", is_staff=True)
    User.objects.create_superuser("root", password="p")
    client.login(username="staff", password="p")
    assert client.get(f"/admin/django_q/{page}/").status_code == 403
    client.login(username="root", password="p")
    assert client.get(f"/admin/django_q/{page}/").status_code == 200
    assert client.get(f"/admin/django_q/{page}/add/").status_code == 403


@pytest.mark.django_db
def test_a_superuser_reads_a_schedule_and_cannot_change_it(client: Client) -> None:
    from jobs.admin import queue  # noqa: F401  replaces the stock pages

    row = Schedule.objects.create(name="n", func="f", schedule_type=Schedule.HOURLY)
    User.objects.create_superuser("root", password="p")
    client.login(username="root", password="p")
    assert client.get(f"/admin/django_q/schedule/{row.pk}/change/").status_code == 200
    assert (
        client.post(f"/admin/django_q/schedule/{row.pk}/change/", {"name": "x"}).status_code == 403
    )
    assert (
        client.post(f"/admin/django_q/schedule/{row.pk}/delete/", {"post": "yes"}).status_code
        == 403
    )


def test_webhooks_need_their_host_to_be_let_in(settings: LazySettings) -> None:
    settings.PUBLIC_URL = "https://desk.example:8443/studio"
    assert ids() == set()
    settings.WEBHOOKS = frozenset({"fal"})
    assert ids() == {"desk.E042"}
    settings.DEMO, settings.ALLOWED_HOSTS = False, [".example", "localhost"]
    assert "desk.E042" not in ids()
