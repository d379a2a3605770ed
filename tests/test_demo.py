"""What `make run` decides; test_make_run.py runs the real thing."""

import os
import re
import socket
from pathlib import Path

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.contrib.auth.models import Group

from jobs.management.commands.demo import Command, _free_port


@pytest.fixture
def command(tmp_path: Path) -> Command:
    for name in ("Viewer", "Operator", "Owner"):
        Group.objects.get_or_create(name=name)
    command = Command()
    command.folder = tmp_path
    return command


@pytest.mark.django_db
def test_each_account_is_staff_of_its_own_group_and_its_password_works(command: Command) -> None:
    accounts = command._accounts()
    assert [name for name, _password in accounts] == ["viewer", "operator", "owner"]
    for name, password in accounts:
        user = authenticate(username=name, password=password)
        assert user is not None
        assert user.is_staff
        assert not user.is_superuser
        assert [group.name.lower() for group in user.groups.all()] == [name]


@pytest.mark.django_db
def test_passwords_are_made_once_and_kept_for_the_owner_of_the_folder_only(
    command: Command,
) -> None:
    first = command._accounts()
    assert command._accounts() == first
    kept = command.folder / "accounts.txt"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert len(re.findall(r"^\w+ \S{12}$", kept.read_text(), re.MULTILINE)) == 3


@pytest.mark.django_db
def test_an_account_that_was_there_before_keeps_its_password(command: Command) -> None:
    get_user_model().objects.create_user("owner", password="chosen by hand")
    shown = dict(command._accounts())
    assert authenticate(username="owner", password="chosen by hand") is not None
    assert "owner " not in (command.folder / "accounts.txt").read_text()
    assert "elsewhere" in shown["owner"]


@pytest.mark.django_db
def test_the_logs_of_the_run_before_are_kept_and_no_more(command: Command) -> None:
    log, before = command.folder / "web.log", command.folder / "web.previous.log"
    command.parts = []
    for words in ("first", "second", "third"):
        command._add("web", ["-c", f"print('{words}')"], dict(os.environ))
        part = command.parts.pop()
        assert part.process is not None
        part.process.wait()
    assert (before.read_text(), log.read_text()) == ("second\n", "third\n")
    assert sorted(command.folder.iterdir()) == [log, before]


def test_a_taken_port_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert _free_port(port) != port


def test_web_and_sandbox_never_get_the_same_port() -> None:
    port = _free_port(18_000)
    assert _free_port(port, besides=f"http://127.0.0.1:{port}") != port
