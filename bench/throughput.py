"""How many generations a second come out at the end, beside a queue task for each job; and what a job costs the engine.

`python -m bench.throughput [--json] [--quick]`. In one run, each on a database and a sandbox of its own:
1. generations of 10 s, polled every 3 s: the desk with one lane, and the baseline's five workers (bench/baselines);
2. an instant provider: CPU seconds a job of the lane's process, and of the floor, which makes the same calls and files by the
   same clients and nothing else (decoding runs in a process of its own, in neither figure); medians of several rounds;
3. the baseline without any sleep against the instant provider: printed, not judged.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.baselines import queue_task
from bench.desk import KEY, PROJECT, RealDesk, desk_on, until
from bench.postgres import OwnServer, own_server
from bench.processes import cpu_s
from providers.adapters.polza import Polza
from providers.sandbox.server import running_sandbox

GENERATION_S, POLL_S = 10.0, 3.0
CONCURRENCY = 250
TIMES_BASELINE, TIMES_FLOOR = 20.0, 2.0
PICTURE_BYTES = 64_000
# At once, so that the lane never waits for the provider: what is measured is its work.
INSTANT_CONCURRENCY = 100
INSTANT_POLL_S = 0.5
# Jobs are taken up together, once all of them are there.
_SHUT = "UPDATE providers_target SET max_in_flight = 0"
_OPEN = "UPDATE providers_target SET max_in_flight = NULL"


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    with tempfile.TemporaryDirectory() as place, own_server(Path(place, "postgres")) as server:
        folder = Path(place)
        desk_rate = _desk_rate(server, folder, sampling_s=20 if quick else 60)
        baseline_rate = _baseline_rate(server, folder, quick)
        jobs, rounds = (200, 2) if quick else (600, 5)
        desk_ms, floor_ms = _cpu_ms(server, folder, jobs, rounds)
        unslept = _unslept(server, folder, seconds=5 if quick else 15)
    times = desk_rate / baseline_rate
    share = statistics.median(desk_ms) / statistics.median(floor_ms)
    figures = {
        "desk_jobs_per_s": round(desk_rate, 2),
        "baseline_jobs_per_s": round(baseline_rate, 3),
        "times_the_baseline": round(times, 1),
        "desk_cpu_ms_per_job": [round(one, 2) for one in desk_ms],
        "floor_cpu_ms_per_job": [round(one, 2) for one in floor_ms],
        "times_the_floor": round(share, 2),
        "baseline_without_sleep_jobs_per_s": round(unslept, 2),
    }
    limits = {"times_the_baseline_min": TIMES_BASELINE, "times_the_floor_max": TIMES_FLOOR}
    return figures, limits, times >= TIMES_BASELINE and share <= TIMES_FLOOR


def _desk_rate(server: OwnServer, folder: Path, sampling_s: float) -> float:
    """Jobs a second with every place taken, after a first generation."""
    with desk_on(
        server.create("desk"),
        _folder(folder, "desk"),
        sandbox={"latency_fixed_s": GENERATION_S, "prepared_bytes": PICTURE_BYTES},
        WORKER_CONCURRENCY=CONCURRENCY,
        POLL_INTERVAL_SEC=POLL_S,
        POST_DEADLINE_SEC=30,
    ) as desk:
        desk.create(int(CONCURRENCY * (4 + sampling_s / GENERATION_S)))
        desk.start_cluster()
        until(
            lambda: desk.states().get("succeeded", 0) >= CONCURRENCY, "the first generations", 120
        )
        begin, before = time.monotonic(), desk.states()["succeeded"]
        time.sleep(sampling_s)
        states, took = desk.states(), time.monotonic() - begin
        assert states.get("pending", 0) > 0, "the jobs ran out"
        summary = desk.sandbox.summary()
        assert not summary["charged_twice"]
        assert not summary["posted_twice"]
        return (states["succeeded"] - before) / took


def _baseline_rate(server: OwnServer, folder: Path, quick: bool) -> float:
    with running_sandbox(latency_fixed_s=GENERATION_S, prepared_bytes=PICTURE_BYTES) as sandbox:
        return queue_task.run(
            database_url=server.create("baseline"), base_url=sandbox.api_url, key=KEY, model=Polza.default_model,
            folder=_folder(folder, "baseline"), poll_s=POLL_S, jobs=200, seconds=40 if quick else 90,
        )  # fmt: skip


def _unslept(server: OwnServer, folder: Path, seconds: float) -> float:
    with running_sandbox(latency_fixed_s=0, prepared_bytes=PICTURE_BYTES) as sandbox:
        return queue_task.run(
            database_url=server.create("unslept"), base_url=sandbox.api_url, key=KEY, model=Polza.default_model,
            folder=_folder(folder, "unslept"), poll_s=0, jobs=2_000, seconds=seconds,
        )  # fmt: skip


def _cpu_ms(
    server: OwnServer, folder: Path, jobs: int, rounds: int
) -> tuple[list[float], list[float]]:
    """CPU milliseconds a job, of the lane and of the floor, taken in turns."""
    desk_ms, floor_ms = [], []
    with desk_on(
        server.create("instant"),
        _folder(folder, "instant"),
        sandbox={"latency_fixed_s": 0, "prepared_bytes": PICTURE_BYTES},
        WORKER_CONCURRENCY=INSTANT_CONCURRENCY,
        POLL_INTERVAL_SEC=INSTANT_POLL_S,
        POST_DEADLINE_SEC=30,
        LANE_SLICE_SEC=600,
    ) as desk:
        desk.create(30)
        desk.start_cluster()
        _ended(desk, 30)
        for number in range(rounds):
            desk_ms.append(_desk_cpu_ms(desk, jobs))
            floor_ms.append(
                _floor_cpu_ms(desk.sandbox.api_url, _folder(folder, f"floor{number}"), jobs)
            )
    return desk_ms, floor_ms


def _desk_cpu_ms(desk: RealDesk, jobs: int) -> float:
    before = desk.states().get("succeeded", 0)
    pid = desk.lane_pid()
    desk.ask(_SHUT)
    desk.create(jobs)
    idle = cpu_s(pid)
    time.sleep(1)
    idle_s = (
        cpu_s(pid) - idle
    )  # what the lane costs a second without work is another bench's matter
    begin, spent = time.monotonic(), cpu_s(pid)
    desk.ask(_OPEN)
    _ended(desk, before + jobs)
    took = time.monotonic() - begin
    assert desk.lane_pid() == pid, "another lane took over meanwhile"
    return 1000 * (cpu_s(pid) - spent - idle_s * took) / jobs


def _ended(desk: RealDesk, count: int) -> None:
    until(lambda: desk.states().get("succeeded", 0) >= count, f"{count} jobs done", 180)


def _floor_cpu_ms(base_url: str, folder: Path, jobs: int) -> float:
    given = {
        "count": jobs, "base_url": base_url, "key": KEY, "model": Polza.default_model, "folder": str(folder),
        "poll_s": INSTANT_POLL_S, "concurrency": INSTANT_CONCURRENCY,
    }  # fmt: skip
    words = [sys.executable, "-m", "bench.baselines.floor", json.dumps(given)]
    done = subprocess.run(words, cwd=PROJECT, env=os.environ | {"DEMO": "1"}, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return 1000 * float(json.loads(done.stdout)["cpu_s"]) / jobs


def _folder(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(report.run("throughput", __doc__.splitlines()[0], measure))
