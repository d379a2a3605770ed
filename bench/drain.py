"""How long a batch takes, against the best that can be planned, and beside what teams do today.

`python -m bench.drain [--json] [--quick]`. 300 jobs at most 8 at once, latencies log-normal (median 60 s, sigma 0.4), 5 % of
the POSTs answered 429 with a wait of 1 s; all times scaled by `factor`, polling every 3 s included. The limit is the list
schedule: the same latencies and refusals in the same order on 8 slots, each job taking its latency and half a polling
interval. The baselines get a sandbox of the same kind, which refuses a ninth generation.

Then 100 jobs where 5 % of the POSTs lose their answer after acceptance: whose pictures are lost, whose are paid twice.
"""

from __future__ import annotations

import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import KEY, PROJECT, desk_on
from bench.postgres import OwnServer, own_server
from providers.adapters.polza import Polza
from providers.sandbox.server import Sandbox, running_sandbox

CONCURRENCY = 8
POLL_S, WAIT_S = 3.0, 1.0  # before scaling
LONGEST = 1.05
LOST_ANSWERS = {"reset_after_accept": 0.05}


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    factor, jobs = (0.05, 100) if quick else (0.1, 300)
    refusals = {f"rate_limited_float={WAIT_S * factor:g}": 0.05}
    figures: dict[str, Any] = {"jobs": jobs, "factor": factor}
    with tempfile.TemporaryDirectory() as place, own_server(Path(place, "postgres")) as server:
        took_s, planned_s = _desk(server, Path(place, "desk"), jobs, factor, refusals, figures)
        share = took_s / planned_s
        figures |= {"desk_s": round(took_s, 1), "list_schedule_s": round(planned_s, 1), "share": round(share, 3)}  # fmt: skip
        for name in ("gather", "semaphore"):
            figures[name] = _baseline(name, Path(place, name), jobs, factor, refusals)
        many = 40 if quick else 100
        figures["lost_answers"] = {
            "desk": _desk_losing(server, Path(place, "losing"), many, factor),
            **{
                name: _baseline(name, Path(place, f"{name}-losing"), many, factor, LOST_ANSWERS)
                for name in ("gather", "semaphore")
            },
        }
    paid_twice = figures["paid_twice"] + figures["lost_answers"]["desk"]["paid_twice"]
    limits = {"share_max": LONGEST, "paid_twice_max": 0}
    return figures, limits, share <= LONGEST and not paid_twice


def _behaviour(factor: float, faults: dict[str, float]) -> dict[str, Any]:
    return {
        "latency_fixed_s": None, "latency_median_s": 60.0, "latency_sigma": 0.4, "scale": factor, "faults": faults,
        "concurrency_limit": CONCURRENCY, "prepared_bytes": 64_000,
    }  # fmt: skip


def _desk(
    server: OwnServer, folder: Path, jobs: int, factor: float, refusals: dict[str, float], figures: dict[str, Any]
) -> tuple[float, float]:  # fmt: skip
    """Seconds from the first POST to the last file, and those of the list schedule."""
    folder.mkdir()
    with desk_on(
        server.create("drain"),
        folder,
        sandbox=_behaviour(factor, refusals),
        WORKER_CONCURRENCY=CONCURRENCY,
        POLL_INTERVAL_SEC=POLL_S * factor,
        POLL_PLAN=0,
        POST_DEADLINE_SEC=30,
    ) as desk:
        desk.create(jobs)
        desk.start_cluster()
        desk.settle(jobs * 60 * factor, canary_every_s=None)
        ((stored_at,),) = desk.ask("SELECT extract(epoch FROM max(stored_at))::float8 FROM jobs_providertask")  # fmt: skip
        ledger = desk.sandbox.ledger()
        wrong = desk.wrong()
        figures["lost"] = jobs - desk.states().get("succeeded", 0)
        figures["paid_twice"] = len(wrong)
        return stored_at - ledger["posts"][0]["at"], _list_schedule(ledger, factor)


def _list_schedule(ledger: dict[str, Any], factor: float) -> float:
    """Seconds of the same POSTs in the same order: a slot is free again after latency and half a polling interval; a
    refusal takes no time and shuts all slots for its wait."""
    latency = {task["id"]: task["finish_at"] - task["created"] for task in ledger["tasks"]}
    slots = [0.0] * CONCURRENCY
    shut_until = end = 0.0
    for post in ledger["posts"]:
        begins = max(heapq.heappop(slots), shut_until)
        if post["accepted"]:
            ends = begins + latency[post["task"]] + POLL_S * factor / 2
            heapq.heappush(slots, ends)
            end = max(end, ends)
        else:
            shut_until = begins + WAIT_S * factor
            heapq.heappush(slots, begins)
    return end


def _desk_losing(server: OwnServer, folder: Path, jobs: int, factor: float) -> dict[str, Any]:
    folder.mkdir()
    with desk_on(
        server.create("losing"),
        folder,
        sandbox=_behaviour(factor, LOST_ANSWERS),
        WORKER_CONCURRENCY=CONCURRENCY,
        POLL_INTERVAL_SEC=POLL_S * factor,
        POLL_PLAN=0,
    ) as desk:
        begin = time.monotonic()
        desk.create(jobs)
        desk.start_cluster()
        desk.settle(300, canary_every_s=None)
        took_s = time.monotonic() - begin
        states = desk.states()
        waits = states.get("manual", 0)
        return {
            "got": states.get("succeeded", 0), "wait_for_a_person": waits, "paid_twice": len(desk.wrong()),
            "lost": jobs - states.get("succeeded", 0) - waits, "took_s": round(took_s, 1),
        }  # fmt: skip


def _baseline(name: str, folder: Path, jobs: int, factor: float, faults: dict[str, float]) -> dict[str, Any]:  # fmt: skip
    """What it got, and what the ledger says: jobs without a picture, jobs charged more than once."""
    folder.mkdir()
    with running_sandbox(**_behaviour(factor, faults)) as sandbox:
        given: dict[str, Any] = {
            "count": jobs, "base_url": sandbox.api_url, "key": KEY, "model": Polza.default_model, "folder": str(folder),
            "poll_s": POLL_S * factor, "deadline_s": 900 * factor,
        }  # fmt: skip
        if name == "semaphore":
            given |= {"concurrency": CONCURRENCY, "wait_s": WAIT_S * factor}
        words = [sys.executable, "-m", f"bench.baselines.{name}", json.dumps(given)]
        done = subprocess.run(words, cwd=PROJECT, env={**os.environ}, capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        told = json.loads(done.stdout)
        return {
            "got": told["got"], "lost": jobs - told["got"], **_paid(sandbox), "took_s": round(told["took_s"], 1)
        }  # fmt: skip


def _paid(sandbox: Sandbox) -> dict[str, int]:
    ledger = sandbox.ledger()
    correlation = {task["id"]: task["correlation"] for task in ledger["tasks"]}
    standing = [charge for charge in ledger["charges"] if charge["refunded_at"] is None]
    times = Counter(correlation[charge["task"]] for charge in standing)
    return {"paid": len(standing), "paid_twice": sum(count > 1 for count in times.values())}


if __name__ == "__main__":
    sys.exit(report.run("drain", __doc__.splitlines()[0], measure))
