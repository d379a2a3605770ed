"""Behind a pooler in transaction mode: the whole flow, and what is said where something is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import batch
from bench.desk import PROJECT, RealDesk, desk_on, ledger_line, until
from bench.postgres import OwnServer, own_server
from jobs.checks import LANE_TIMEOUTS
from tests.poolers import pgbouncer, program, sessions

pytestmark = pytest.mark.flow

POOL = 6
LANES = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnServer]:
    program()
    with own_server(tmp_path / "postgres") as made:
        yield made


def pooled(port: int, database: str) -> str:
    return f"postgres://app@127.0.0.1:{port}/{database}"


def with_role(desk: RealDesk, name: str) -> None:
    """What a pooler does not pass on belongs to the role, or as here to the database."""
    for setting, value in {**LANE_TIMEOUTS, "synchronous_commit": "on"}.items():
        desk.ask(f"ALTER DATABASE {name} SET {setting} = '{value}'")


def test_web_commands_and_two_lanes_work_through_a_pool_of_six_connections(
    server: OwnServer, tmp_path: Path
) -> None:
    url = server.create("pooled")
    with (
        pgbouncer(server, tmp_path / "pgbouncer", size=POOL) as port,
        desk_on(
            url, _folder(tmp_path / "desk"), sandbox={"latency_fixed_s": 0.3},
            DATABASE_URL=pooled(port, "pooled"), DATABASE_DIRECT_URL=url, WORKER_LANES=LANES, WORKER_CONCURRENCY=12,
        ) as desk,
    ):  # fmt: skip
        with_role(desk, "pooled")
        with pgbouncer(server, tmp_path / "fresh", size=POOL) as fresh:
            desk.environment["DATABASE_URL"] = pooled(fresh, "pooled")
            desk.python(
                "from django.contrib.auth import get_user_model\n"
                f"get_user_model().objects.create_superuser({batch.NAME!r}, password={batch.PASSWORD!r})\n"
            )
            desk.create(12)
            desk.start_cluster()
            until(lambda: len(desk.lanes()) == LANES, "two lanes")
            web = batch._free_port()
            desk.start_web(web)
            person = batch.Person(web)
            made = person.confirm(person.upload(24))
            until(lambda: person.progress(made)["done"], "the batch's end", 90)
            desk.settle(60.0, canary_every_s=None)
            assert desk.states() == {"succeeded": 36}
            assert desk.wrong() == []
            heard = [query for query in sessions(server, "pooled") if query.startswith("LISTEN")]
            assert heard, "nobody listens on the server itself"
            # Lanes, their threads, workers, the web: more clients than sessions.
            assert len(sessions(server, "pooled")) - len(heard) <= POOL + 1
            person._client.close()
            print(ledger_line(desk))  # noqa: T201


def test_what_a_pooler_does_not_pass_on_is_asked_for_at_the_start(
    server: OwnServer, tmp_path: Path
) -> None:
    url = server.create("bare")
    with (
        pgbouncer(server, tmp_path / "pgbouncer") as port,
        desk_on(url, _folder(tmp_path / "desk")) as desk,
    ):
        through = {"DATABASE_URL": pooled(port, "bare"), "DATABASE_DIRECT_URL": url}
        desk.environment |= through
        said = _refused(desk, "qcluster")
        assert "desk.E025" in said
        assert 'ALTER ROLE "app" IN DATABASE "bare" SET lock_timeout = \'10s\';' in said
        desk.ask("ALTER DATABASE bare SET synchronous_commit = 'off'")
        with pgbouncer(server, tmp_path / "fresh") as fresh:
            desk.environment["DATABASE_URL"] = pooled(fresh, "bare")
            said = _refused(desk, "qcluster")
            assert "desk.E020" in said
            assert "SET synchronous_commit = 'on';" in said


def test_a_missing_or_wrong_direct_address_is_told(server: OwnServer, tmp_path: Path) -> None:
    url = server.create("lost")
    elsewhere = server.create("elsewhere")
    check = ("check", "--database", "default")
    with desk_on(url, _folder(tmp_path / "desk")) as desk:
        with pgbouncer(server, tmp_path / "strict") as port:
            desk.environment["DATABASE_URL"] = pooled(port, "lost")
            said = _refused(desk, "qcluster")
            assert "desk.E022" in said
            assert "name the server itself in DATABASE_DIRECT_URL" in said
        with pgbouncer(
            server, tmp_path / "lax", more="ignore_startup_parameters = options"
        ) as port:
            desk.environment["DATABASE_URL"] = pooled(port, "lost")
            assert "desk.W023" in _said(desk, *check).stderr
            for wrong in (elsewhere, pooled(port, "lost"), server.url("none")):
                desk.environment["DATABASE_DIRECT_URL"] = wrong
                assert "desk.E024" in _refused(desk, *check)
            desk.environment["DATABASE_DIRECT_URL"] = url
            assert "desk." not in _said(desk, *check).stderr
        desk.environment |= {"DATABASE_URL": url, "DATABASE_DIRECT_URL": ""}
        assert "desk." not in _said(desk, *check).stderr


def _refused(desk: RealDesk, *words: str) -> str:
    done = _said(desk, *words)
    assert done.returncode != 0, done.stderr
    return done.stderr


def _said(desk: RealDesk, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *words], cwd=PROJECT, env=desk.environment, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip


def _folder(folder: Path) -> Path:
    folder.mkdir()
    return folder
