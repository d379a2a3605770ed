"""Does a second lane cost more CPU a job, and do three clusters on one database lose or double anything?

`python -m bench.lanes [--json] [--quick]`. Each desk has a database and a sandbox of its own:

1. An instant provider; a desk with one lane and a desk with two take turns at the same number of jobs. What the database used for
   it is printed: CPU of its processes, commits, WAL, and connections of one cluster. CPU seconds a job of
   the lanes' processes (their idle time left out, as in bench.throughput), medians of several rounds. Jobs a second are
   printed beside it; with six cores or more they are judged too, with fewer the lanes share them with everything else.
2. Three clusters with two lanes each, every one with a host name and a spool of its own where the kernel allows it, on one
   database. The sandbox loses answers. One cluster is killed at a third and one stopped at two thirds of the way, and each comes
   back. The sandbox's ledger judges.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import OwnServer, own_server
from bench.processes import children, cpu_s

TIMES_CPU, TIMES_RATE, CORES_FOR_RATE = 1.15, 1.6, 6
PICTURE_BYTES = 64_000
CONCURRENCY, POLL_S = 100, 0.5
WARM_UP, IDLE_S = 100, 3.0  # CPU is told in hundredths of a second
CLUSTERS, LANES_EACH = 3, 2
FAULTS = {
    "reset_after_accept": 0.02,
    "cut_after_id": 0.02,
    "reset_before_accept": 0.02,
    "data_two": 0.05,
}
# Jobs are taken up together, once all of them are there.
_SHUT = "UPDATE providers_target SET max_in_flight = 0"
_OPEN = "UPDATE providers_target SET max_in_flight = NULL"
# A machine of its own, as far as names go: asked for before the program starts.
_ELSEWHERE = """
import ctypes, os, socket, sys
if ctypes.CDLL(None, use_errno=True).unshare(0x04000000) == 0:
    socket.sethostname(sys.argv[1])
os.execv(sys.executable, [sys.executable, "manage.py", "qcluster"])
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    jobs, rounds, many = (300, 3, 60) if quick else (500, 5, 600)
    with (
        tempfile.TemporaryDirectory(prefix="lanes-") as place,
        own_server(Path(place, "postgres")) as server,
    ):
        folder = Path(place)
        cpu_ms, rates, database = _in_turns(server, folder, jobs, rounds)
        with desk_on(
            server.create("three"), _folder(folder, "three"), sandbox=sandbox(), **settings()
        ) as desk:
            found = three_clusters(desk, jobs=many)
    times_cpu = statistics.median(cpu_ms[2]) / statistics.median(cpu_ms[1])
    times_rate = statistics.median(rates[2]) / statistics.median(rates[1])
    judged = (os.cpu_count() or 1) >= CORES_FOR_RATE
    figures = {
        **{f"cpu_ms_per_job_{lanes}": [round(one, 2) for one in cpu_ms[lanes]] for lanes in cpu_ms},
        "cpu_times": round(times_cpu, 3),
        **{f"jobs_per_s_{lanes}": [round(one, 1) for one in rates[lanes]] for lanes in rates},
        "rate_times": round(times_rate, 2),
        "rate_judged": judged,
        **database,
        **{f"three_{name}": value for name, value in found.items()},
    }
    limits = {
        "cpu_times_max": TIMES_CPU,
        "three_lost_max": 0,
        "three_broken_promises_max": 0,
        "three_hosts_min": 1,
    }
    if judged:
        limits["rate_times_min"] = TIMES_RATE
    ok = (
        times_cpu <= TIMES_CPU
        and (times_rate >= TIMES_RATE or not judged)
        and found["lost"] == found["broken_promises"] == 0
    )
    return figures, limits, ok


# --- one lane beside two ----------------------------------------------------------------------------------------------


def _in_turns(
    server: OwnServer, folder: Path, jobs: int, rounds: int
) -> tuple[dict[int, list[float]], dict[int, list[float]], dict[str, Any]]:
    cpu_ms: dict[int, list[float]] = {1: [], 2: []}
    rates: dict[int, list[float]] = {1: [], 2: []}
    used: list[tuple[float, ...]] = []
    with ExitStack() as stack:
        desks = {}
        for lanes in cpu_ms:
            desks[lanes] = stack.enter_context(
                desk_on(
                    server.create(f"lanes{lanes}"),
                    _folder(folder, f"lanes{lanes}"),
                    sandbox={"latency_fixed_s": 0, "prepared_bytes": PICTURE_BYTES},
                    WORKER_CONCURRENCY=CONCURRENCY,
                    WORKER_LANES=lanes,
                    POLL_INTERVAL_SEC=POLL_S,
                    POST_DEADLINE_SEC=30,
                    LANE_SLICE_SEC=600,
                )
            )
            desks[lanes].create(40)
            desks[lanes].start_cluster()
            until(lambda desk=desks[lanes], n=lanes: len(desk.lanes()) == n, "its lanes", 90)  # type: ignore[misc]
            # All of them have worked once: what a first job costs a process is no job's cost.
            desks[lanes].create(WARM_UP)
            _ended(desks[lanes], 40 + WARM_UP)
        for number in range(rounds):
            # Each goes first as often as the other.
            for lanes in (1, 2) if number % 2 else (2, 1):
                before = _database(server, desks[lanes])
                spent_ms, rate = _round(desks[lanes], jobs)
                cpu_ms[lanes].append(spent_ms)
                rates[lanes].append(rate)
                after = _database(server, desks[lanes])
                used.append(tuple((b - a) / jobs for a, b in zip(before, after, strict=True)))
        connections = {lanes: _connections(desk) for lanes, desk in desks.items()}
    names = ("database_cpu_ms_per_job", "database_commits_per_job", "database_wal_kb_per_job")
    told = {
        name: round(statistics.median(column), 1)
        for name, column in zip(names, zip(*used, strict=True), strict=True)
    }
    return cpu_ms, rates, {**told, "connections": connections}


def _database(server: OwnServer, desk: RealDesk) -> tuple[float, float, float]:
    """What the server has used so far: CPU milliseconds of its processes, commits of this database, kilobytes of WAL. With
    the making of the jobs, and what upkeep comes by."""
    [[commits, wal]] = desk.ask(
        "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') FROM pg_stat_database WHERE datname = current_database()"
    )
    return 1000 * _cpu(children(server.pid)), float(commits), float(wal) / 1024


def _connections(desk: RealDesk) -> int:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return int(desk.ask(query)[0][0])


def _round(desk: RealDesk, jobs: int) -> tuple[float, float]:
    """CPU milliseconds a job of all its lanes, and jobs a second."""
    before, pids = desk.states().get("succeeded", 0), sorted(desk.lanes().values())
    desk.ask(_SHUT)
    desk.create(jobs)
    idle = _cpu(pids)
    time.sleep(IDLE_S)
    idle_s = (_cpu(pids) - idle) / IDLE_S
    begin, spent = time.monotonic(), _cpu(pids)
    desk.ask(_OPEN)
    _ended(desk, before + jobs)
    took = time.monotonic() - begin
    assert sorted(desk.lanes().values()) == pids, "other lanes took over meanwhile"
    return 1000 * (_cpu(pids) - spent - idle_s * took) / jobs, jobs / took


def _cpu(pids: list[int]) -> float:
    return sum(map(cpu_s, pids))


def _ended(desk: RealDesk, count: int) -> None:
    until(lambda: desk.states().get("succeeded", 0) >= count, f"{count} jobs done", 180)


# --- three clusters ---------------------------------------------------------------------------------------------------


def sandbox() -> dict[str, Any]:
    return {
        "latency_median_s": 1.0,
        "latency_fixed_s": None,
        "prepared_bytes": 16_000,
        "faults": FAULTS,
    }


def settings() -> dict[str, Any]:
    return {
        "WORKER_LANES": LANES_EACH * CLUSTERS,
        "WORKER_CONCURRENCY": 24,
        "POST_DEADLINE_SEC": 5,
        "RECONCILE_INTERVAL_SEC": 2,
        "EXPOSURE_LIMIT_PRICES": 1000,
    }


def three_clusters(desk: RealDesk, *, jobs: int) -> dict[str, Any]:
    """Jobs over three clusters and six lanes, with a kill and a stop in the middle. `lost`: jobs that neither succeeded nor
    wait for a person with an open case; `broken_promises`: what the ledger says."""
    clusters = [_start(desk, number) for number in range(CLUSTERS)]
    desk.create(jobs)
    for number, (how, share) in enumerate(((signal.SIGKILL, 1 / 3), (signal.SIGTERM, 2 / 3))):
        until(partial(_succeeded, desk, share * jobs), "progress", 240)
        cluster = clusters[number]
        (os.killpg if how is signal.SIGKILL else os.kill)(cluster.pid, how)
        cluster.wait(60)
        clusters[number] = _start(desk, number, wait=False)
    begin = time.monotonic()
    desk.settle(240.0, canary_every_s=5.0)
    hosts = desk.ask("SELECT count(DISTINCT host) FROM jobs_providertask")[0][0]
    runs = desk.ask("SELECT count(DISTINCT run_id) FROM jobs_providertask")[0][0]
    wrong = desk.wrong()
    for line in wrong:
        print(line, file=sys.stderr)
    [[made, fine, accounted]] = desk.ask(
        "SELECT count(*), count(*) FILTER (WHERE state = 'succeeded'), count(*) FILTER (WHERE state = 'succeeded' OR"
        " EXISTS (SELECT FROM jobs_case c WHERE c.job_id = j.id AND c.resolved_at IS NULL)) FROM jobs_job j"
    )
    summary = desk.sandbox.summary()
    return {
        "jobs": made,
        "succeeded": fine,
        "lost": made - accounted,
        "broken_promises": len(wrong),
        "posts": summary["posts"],
        "charges": summary["charges"],
        "hosts": hosts,
        "lanes_that_sent": runs,
        "settled_after_s": round(time.monotonic() - begin, 1),
    }


def _succeeded(desk: RealDesk, count: float) -> bool:
    return desk.states().get("succeeded", 0) >= count


def _start(desk: RealDesk, number: int, *, wait: bool = True) -> subprocess.Popen[bytes]:
    """The clusters come one after the other, each with two lanes more than there were: so each has two."""
    lanes = LANES_EACH * (number + 1)
    name = f"machine{number}"
    cluster = desk.start(
        name, "-c", _ELSEWHERE, name, WORKER_LANES=lanes if wait else LANES_EACH * CLUSTERS, SPOOL_DIR=desk.folder / name,
        EPOCH_DIR=desk.folder / name / "epoch",
    )  # fmt: skip
    end = time.monotonic() + 90
    while wait and len(desk.lanes()) < lanes:
        assert time.monotonic() < end, f"no {lanes} lanes"
        # A bell may ring at a cluster that has its two; with more work others ring.
        desk.create(4)
        time.sleep(1)
    return cluster


def _folder(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(report.run("lanes", __doc__.splitlines()[0], measure))
