"""The cluster with real processes, real signals and a database of its own; the engine is a stand-in that claims nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from django.db import connections

pytestmark = pytest.mark.flow

PROJECT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0  # for what no rule bounds; the machine may be busy
ONE_PENDING_JOB = """
    WITH t AS (
        INSERT INTO jobs_tenant (slug, name, weight, currency, zone, default_route, contact, created_at)
        VALUES ('t', 't', 1, 'RUB', 'UTC', '{}', '', now()) RETURNING id
    ),
    g AS (
        INSERT INTO providers_target (provider, model, kind, price, currency, capabilities, enabled, stopped_reason, created_at)
        VALUES ('polza', 'm', 'image', 1, 'RUB', '{}', true, '', now()) RETURNING id
    )
    INSERT INTO jobs_job (tenant_id, target_id, kind, prompt, params, reference, priority, route, state, reason, reason_text,
        not_before, attempts_since, created_at)
    SELECT t.id, g.id, 'image', 'p', '{}', '', 0, ARRAY[g.id], 'pending', '', '', now(), now(), now() FROM t, g
"""


def until(condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> Any:
    """The condition's first true value; fails after `within_s`."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {within_s:g} s: {what}")


def running(pid: int) -> bool:
    """Exists and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


class Desk:
    """One database, and what its clusters wrote."""

    def __init__(self, parameters: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        host, port = (
            str(parameters.get("HOST") or "localhost"),
            str(parameters.get("PORT") or "5432"),
        )
        user, password = (
            quote(str(parameters["USER"])),
            quote(str(parameters.get("PASSWORD") or "")),
        )
        query = urlencode({"host": host}) if host.startswith("/") else ""
        place = f":{port}" if query else f"{host}:{port}"
        self.url = f"postgres://{user}:{password}@{place}/{parameters['NAME']}?{query}"
        self.environment = {
            **os.environ,
            "DEMO": "1",  # the tests' own server does without fsync
            "DATABASE_URL": self.url,
            "SPOOL_DIR": str(folder / "spool"),
            "MEDIA_ROOT": str(folder / "media"),
            "STANDIN_LOG": str(self.log),
            "PYTHONUNBUFFERED": "1",
        }

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]

    def held(self) -> dict[int, int]:
        """Slot to pid of the slots that are held."""
        return dict(self.ask("SELECT slot, pid FROM jobs_lane WHERE run_id IS NOT NULL"))

    def bells(self) -> int:
        return int(self.ask("SELECT count(*) FROM django_q_ormq WHERE lock <= now()")[0][0])


class ACluster:
    """A process group of its own, as systemd and a terminal make one."""

    def __init__(self, desk: Desk, **environment: object) -> None:
        self.errors = desk.folder / f"errors-{uuid.uuid4().hex[:6]}"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.standin_cluster"],
                cwd=PROJECT,
                env={
                    **desk.environment,
                    **{name: str(value) for name, value in environment.items()},
                },
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.main = self.process.pid

    @property
    def sentinel(self) -> int:
        return children(self.main)[0]

    @property
    def parts(self) -> list[int]:
        """Workers, monitor, pusher; none while it starts."""
        return [part for sentinel in children(self.main) for part in children(sentinel)]

    @property
    def all(self) -> list[int]:
        return [self.main, self.sentinel, *self.parts]

    def said(self) -> str:
        return self.errors.read_text()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.main, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def database() -> Iterator[dict[str, Any]]:
    """A migrated database beside the tests' own; children commit to it."""
    server = {**connections["default"].settings_dict}
    name = f"cluster_{uuid.uuid4().hex[:8]}"
    maker = psycopg.connect(
        host=server["HOST"] or None,
        port=server["PORT"] or None,
        user=server["USER"],
        password=server["PASSWORD"] or None,
        dbname="postgres",
        autocommit=True,
    )
    with maker:
        maker.execute(f'CREATE DATABASE "{name}"')
        try:
            yield {**server, "NAME": name}
        finally:
            maker.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="module")
def migrated(database: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    desk = Desk(database, tmp_path_factory.mktemp("migrate"))
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        cwd=PROJECT,
        env=desk.environment,
        check=True,
    )
    return database


@pytest.fixture
def desk(migrated: dict[str, Any], tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(migrated, tmp_path)
    yield desk
    desk.ask(
        "TRUNCATE jobs_lane, jobs_tenant, providers_target, django_q_ormq, django_q_schedule CASCADE"
    )


@pytest.fixture
def start(desk: Desk) -> Iterator[Callable[..., ACluster]]:
    """Start a cluster and wait until `lanes` of its own run; whatever is left at the end is killed."""
    started: list[ACluster] = []

    def begin(*, lanes: int | None = None, **environment: object) -> ACluster:
        cluster = ACluster(desk, **environment)
        started.append(cluster)
        wanted = int(str(environment.get("WORKER_LANES", 1))) if lanes is None else lanes

        def stands() -> bool:
            parts = cluster.parts
            return (
                bool(parts)
                and sum(event["pid"] in parts for event in desk.events("start")) >= wanted
            )

        until(stands, f"a cluster with {wanted} lanes")
        return cluster

    yield begin
    for cluster in started:
        cluster.end()


def gone(pids: list[int], within_s: float) -> float:
    """How long until none of them runs."""
    begin = time.monotonic()
    until(
        lambda: not any(map(running, pids)),
        f"processes {[p for p in pids if running(p)]} gone",
        within_s,
    )
    return time.monotonic() - begin


def assert_stops(cluster: ACluster, desk: Desk, stop: Callable[[], None]) -> None:
    """Within 15 s, in order: lanes drain and free their slots, main tells success, nobody is left."""
    everyone, ended = cluster.all, len(desk.events("end"))
    lanes = [pid for pid in desk.held().values() if pid in everyone]
    stop()
    assert cluster.process.wait(15) == 0, cluster.said()
    assert not [pid for pid in everyone if running(pid)]
    assert len(desk.events("end")) >= ended + len(lanes) > 0
    assert not set(lanes) & set(desk.held().values())


def test_lanes_that_do_not_drain_or_hang_are_ended_within_the_bound(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    # The lane in slot 2 holds the interpreter's lock with all signals blocked: only SIGKILL ends it.
    cluster = start(WORKER_LANES=2, STANDIN_DRAIN_S=600, STANDIN_HANG_SLOT=2)
    everyone = cluster.all
    begin = time.monotonic()
    os.killpg(cluster.main, signal.SIGTERM)
    cluster.process.wait(PATIENCE_S)
    assert time.monotonic() - begin < 15
    assert not [pid for pid in everyone if running(pid)]


def test_killing_main_leaves_no_ghost_and_lets_its_lane_drain(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    cluster = start(STANDIN_DRAIN_S=0.5)
    everyone = cluster.all
    os.kill(cluster.main, signal.SIGKILL)
    assert gone(everyone, 5) < 5
    assert len(desk.events("end")) == 1
    assert desk.held() == {}


def test_killing_the_sentinel_ends_the_cluster_with_an_error(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    cluster = start(STANDIN_DRAIN_S=0.5)
    everyone = cluster.all
    os.kill(cluster.sentinel, signal.SIGKILL)
    assert cluster.process.wait(10) == 70, cluster.said()
    assert not [pid for pid in everyone if running(pid)]
    assert desk.held() == {}


def test_killing_an_idle_worker_ends_the_cluster_rather_than_wedging_it(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    cluster = start()
    everyone = cluster.all
    # Workers are forked first: of the two, the one without the lane is idle.
    idle = next(pid for pid in cluster.parts[:2] if pid not in desk.held().values())
    os.kill(idle, signal.SIGKILL)
    assert cluster.process.wait(10) == 70, cluster.said()
    assert not [pid for pid in everyone if running(pid)]


def test_a_killed_lane_is_replaced_within_five_seconds_and_sigterm_to_main_lets_all_drain(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    desk.ask(ONE_PENDING_JOB)
    cluster = start(WORKER_LANES=2, STANDIN_DRAIN_S=0.3)
    killed, other = desk.events("start")
    begin = time.monotonic()
    os.kill(killed["pid"], signal.SIGKILL)
    successor = until(lambda: desk.events("start")[2:], "another lane")[0]
    assert time.monotonic() - begin < 5
    assert (successor["slot"], successor["run"] != killed["run"]) == (killed["slot"], True)
    assert running(other["pid"])
    assert not (desk.folder / "spool" / "lanes" / killed["run"]).exists()

    assert_stops(cluster, desk, lambda: os.kill(cluster.main, signal.SIGTERM))


def test_slices_follow_one_another_while_work_waits_and_sigterm_to_the_group_lets_all_drain(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    desk.ask(ONE_PENDING_JOB)
    cluster = start(LANE_SLICE_SEC=1.5, STANDIN_DRAIN_S=0.3)
    until(lambda: len(desk.events("start")) >= 4, "four slices")
    ends = [event["at"] for event in desk.events("end")]
    starts = [event["at"] for event in desk.events("start")][1:]
    gaps = [begin - end for end, begin in zip(ends, starts, strict=False)]
    assert min(gaps) < 1, gaps  # a poll of 2 s would show

    until(desk.held, "a lane at work")
    assert_stops(cluster, desk, lambda: os.killpg(cluster.main, signal.SIGTERM))


def test_two_clusters_never_hold_more_slots_than_there_are_and_one_takes_over_from_the_other(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    desk.ask(ONE_PENDING_JOB)
    one = start(WORKER_LANES=2, LANE_SLICE_SEC=1.5, STANDIN_DRAIN_S=0.3)
    two = start(WORKER_LANES=2, LANE_SLICE_SEC=1.5, lanes=0)
    until(
        lambda: len({event["pid"] for event in desk.events("start")}) >= 3, "lanes in both clusters"
    )
    until(lambda: set(desk.held().values()) & set(one.parts), "a lane in the first")
    assert_stops(one, desk, lambda: os.killpg(one.main, signal.SIGINT))
    until(lambda: len(desk.held()) == 2, "the other cluster runs both")

    # Without a job the desk falls asleep: no lane, no bell, and none comes.
    desk.ask("TRUNCATE jobs_job CASCADE")
    until(lambda: not desk.held() and not desk.bells(), "no lane and no bell")
    slices = len(desk.events("start"))
    time.sleep(1)
    assert (desk.held(), len(desk.events("start"))) == ({}, slices)
    assert running(two.main)

    now = 0
    for event in sorted(desk.events(), key=lambda event: event["at"]):
        now += {"start": 1, "end": -1}.get(event["event"], 0)
        assert now <= 2, desk.events()


def test_a_frozen_lane_is_replaced_and_finds_itself_fenced(
    desk: Desk, start: Callable[..., ACluster]
) -> None:
    desk.ask(ONE_PENDING_JOB)
    short = {"DEAD_AFTER_S": 2, "BEAT_S": 0.3, "WORKER_LANES": 1}
    one = start(**short)
    frozen = desk.events("start")[0]
    os.kill(frozen["pid"], signal.SIGSTOP)
    try:
        time.sleep(2.5)  # longer than a lane may be silent
        start(**short, lanes=0)
        until(
            lambda: frozen["pid"] not in desk.held().values() and desk.held(),
            "another lane holds the slot",
        )
    finally:
        os.kill(frozen["pid"], signal.SIGCONT)
    until(lambda: desk.events("fenced"), "the frozen lane saw that it is fenced", 5)
    assert [event["run"] for event in desk.events("fenced")] == [frozen["run"]]
    assert running(one.main)
