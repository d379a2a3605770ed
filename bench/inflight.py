"""How many generations one lane keeps in flight, and whether every poll comes in time.

`python -m bench.inflight [--json] [--quick]`. Generations of 60 s (quick: 15 s), 500 in flight allowed, prepared pictures of
64 kB from the sandbox's own process, polls every 3 s. The sandbox is what counts and what times the polls.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import desk_on, until
from bench.postgres import own_server

CONCURRENCY = 500
POLL_S = 3.0
ENOUGH = 0.95
LATE_POLL_S = 6.0
SAMPLE_S = 0.5
# Jobs come evenly over the first generation, which is not sampled. Were all to start at once, equal generations would end
# at once too, again and again, and what is measured would be the polling interval: a wave of 500 is noticed over 3 s
# whoever polls.
_ARRIVE = """
UPDATE jobs_job j SET not_before = clock_timestamp() + least(1.0, (j.id - first.id) / %s::float8)
  * make_interval(secs => %s::float8)
FROM (SELECT min(id) AS id FROM jobs_job) first
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Fill the lane, wait one generation, then sample for another two (quick: one)."""
    generation_s = 15.0 if quick else 60.0
    concurrency = 120 if quick else CONCURRENCY
    sampling_s = generation_s * (1 if quick else 2)
    jobs = int(concurrency * (1 + (generation_s + sampling_s) / generation_s) * 1.2)
    with (
        tempfile.TemporaryDirectory() as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(
            server.create("desk"),
            Path(folder),
            sandbox={"latency_fixed_s": generation_s, "prepared_bytes": 64_000},
            WORKER_CONCURRENCY=concurrency,
            POLL_INTERVAL_SEC=POLL_S,
            POST_DEADLINE_SEC=30,
        ) as desk,
    ):
        desk.create(jobs)
        desk.ask(_ARRIVE, concurrency, generation_s)
        desk.start_cluster()
        pid = until(lambda: desk.sandbox.stats()["in_flight"] and desk.lane_pid(), "the first send")
        time.sleep(generation_s)
        cpu_before, done_before = _cpu_s(pid), desk.states().get("succeeded", 0)
        begin = time.monotonic()
        samples = []
        while time.monotonic() - begin < sampling_s:
            samples.append(desk.sandbox.stats()["in_flight"])
            time.sleep(SAMPLE_S)
        took = time.monotonic() - begin
        done = desk.states().get("succeeded", 0) - done_before
        cpu_s = _cpu_s(pid) - cpu_before
        late_s = desk.sandbox.stats()["max_poll_gap_s"] - POLL_S
    samples.sort()
    full = sum(count >= ENOUGH * concurrency for count in samples) / len(samples)
    figures = {
        "generation_s": generation_s,
        "concurrency": concurrency,
        "samples": len(samples),
        "share_of_samples_nearly_full": round(full, 4),
        "in_flight_min": samples[0],
        "in_flight_median": samples[len(samples) // 2],
        "latest_poll_after_due_s": round(late_s, 2),
        "jobs_per_s": round(done / took, 2),
        "cpu_ms_per_job_of_the_lane": round(1000 * cpu_s / max(done, 1), 1) if cpu_s > 0 else None,
    }
    limits = {
        "nearly_full_means": int(ENOUGH * concurrency),
        "share_of_samples_nearly_full_min": 0.95,
        "latest_poll_after_due_s_max": LATE_POLL_S,
    }
    return figures, limits, full >= 0.95 and late_s <= LATE_POLL_S


def _cpu_s(pid: int) -> float:
    """CPU seconds a process has used; 0 when it has ended (the next slice runs in another worker)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(report.run("inflight", "How many generations one lane keeps in flight", measure))
