"""Two real clusters on one database, and three: the limit at the provider, one send a job, and stops that leave nothing
unclear."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from bench import lanes
from bench.desk import RealDesk, ledger_line, until
from tests.real import real_desk

pytestmark = [pytest.mark.flow, pytest.mark.django_db(transaction=True)]

LIMIT = 6
# Far above the slow answers: what is lost here is lost by a stop, not by a busy machine.
DEADLINE_S = 15
STOP_S = 15.0


def two_clusters(desk: RealDesk, *, jobs: int) -> dict[str, float]:
    """Jobs over two clusters, each stopped once in the middle: seconds each stop took. Asserts the promise."""
    first, second = desk.start_cluster(), desk.start_cluster()
    until(
        lambda: len(desk.ask("SELECT 1 FROM jobs_lane WHERE run_id IS NOT NULL")) == 2, "two lanes"
    )
    # Half of them are answered just within the 5 s that a stop waits for.
    desk.create(jobs // 2, "a slow one [[fault:slow_answer=4.9]]")
    desk.create(jobs - jobs // 2)
    took = {}
    for name, stopped, whole_group in (("main", first, False), ("group", second, True)):
        wanted = desk.states().get("succeeded", 0) + jobs // 6
        until(partial(_succeeded, desk, wanted), "progress", 90.0)
        begin = time.monotonic()
        (os.killpg if whole_group else os.kill)(stopped.pid, signal.SIGTERM)
        stopped.wait(timeout=STOP_S + 5)
        took[name] = time.monotonic() - begin
        assert desk.ask("SELECT 1 FROM jobs_providertask WHERE lost_at IS NOT NULL") == []
        desk.start_cluster()
    desk.settle(180.0, canary_every_s=None)
    assert desk.wrong() == []
    assert desk.states() == {"succeeded": jobs}
    assert desk.sandbox.summary()["posts"] == jobs
    assert desk.sandbox.stats()["max_in_flight"] <= LIMIT
    assert max(took.values()) <= STOP_S, took
    return took


def test_two_clusters_keep_the_limit_and_a_stop_leaves_nothing_unclear(tmp_path: Path) -> None:
    with real_desk(
        tmp_path,
        WORKER_CONCURRENCY=LIMIT,
        WORKER_LANES=2,
        POST_DEADLINE_SEC=DEADLINE_S,
    ) as desk:
        took = two_clusters(desk, jobs=48)
        print(took, desk.sandbox.stats()["max_in_flight"], ledger_line(desk))  # noqa: T201


def test_kill_9_of_main_leaves_no_ghost_and_loses_nothing(tmp_path: Path) -> None:
    with real_desk(tmp_path, WORKER_CONCURRENCY=LIMIT) as desk:
        cluster = desk.start_cluster()
        desk.lane_pid()
        desk.create(20)
        until(lambda: desk.states().get("succeeded", 0) >= 3, "progress")
        os.kill(cluster.pid, signal.SIGKILL)
        cluster.wait()
        until(lambda: not _in_group(cluster.pid), "the whole group gone", STOP_S)
        desk.start_cluster()
        desk.settle(120.0)
        assert desk.wrong() == []
        assert desk.states().keys() == {"succeeded"}


def test_three_clusters_with_six_lanes_lose_and_double_nothing(tmp_path: Path) -> None:
    """One of them is killed, one is stopped; `python -m bench.lanes` does the same with more jobs."""
    with real_desk(tmp_path, sandbox=lanes.sandbox(), **lanes.settings()) as desk:
        found = lanes.three_clusters(desk, jobs=60)
        print(found, ledger_line(desk))  # noqa: T201
        assert (found["lost"], found["broken_promises"]) == (0, 0)
        assert found["succeeded"] == found["jobs"]


def _succeeded(desk: RealDesk, count: int) -> bool:
    return desk.states().get("succeeded", 0) >= count


def _in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
