"""How many generations one lane keeps in flight, and whether every poll comes in time.

`python -m bench.inflight [--json] [--quick]`. The sandbox is what counts, in a process of its own.
1. Short ones: 500 generations of 60 s (quick: 120 of 15 s), prepared pictures of 64 kB, polls every 3 s.
2. Long ones: 10,000 generations of 10 minutes (quick: 1,500, a minute watched), each polled every 30 s. After the ramp-up:
   the lane's memory, and the longest that any generation waited for its next poll, sampled from the rows.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import desk_on, until
from bench.postgres import own_server
from bench.processes import cpu_s, resident_mb

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


MANY, LONG_S, SELDOM_S = 10_000, 600.0, 30.0
RSS_MB = 400.0
_WAITS = """
SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(coalesce(last_poll_at, accepted_at))), 0)::float8
FROM jobs_providertask WHERE state = 'accepted'
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    figures, limits, short_ok = _short(quick)
    long_figures, long_limits, long_ok = _long(quick)
    return figures | long_figures, limits | long_limits, short_ok and long_ok


def _long(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Fill the lane, then watch it."""
    many, watched_s = (1_500, 60.0) if quick else (MANY, 150.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(
            server.create("desk"),
            Path(folder),
            sandbox={"latency_fixed_s": LONG_S, "prepared_bytes": 64_000},
            WORKER_CONCURRENCY=many,
            POLL_INTERVAL_SEC=SELDOM_S,
            POST_DEADLINE_SEC=30,
        ) as desk,
    ):
        desk.create(many)
        begin = time.monotonic()
        desk.start_cluster()
        until(lambda: desk.ask(_WAITS)[0][0] >= many, "all in flight", LONG_S)
        ramp_s = time.monotonic() - begin
        polls_before, begin = desk.sandbox.stats()["requests"], time.monotonic()
        rss_mb, longest_s, fewest = 0.0, 0.0, many
        while time.monotonic() - begin < watched_s:
            ((count, waited_s),) = desk.ask(_WAITS)
            rss_mb = max(rss_mb, resident_mb(desk.lane_pid()))
            longest_s, fewest = max(longest_s, waited_s), min(fewest, count)
            time.sleep(SAMPLE_S)
        took = time.monotonic() - begin
        polls = sum(desk.sandbox.stats()["requests"].values()) - sum(polls_before.values())
    figures = {
        "long_in_flight": many,
        "long_in_flight_min": fewest,
        "long_ramp_up_s": round(ramp_s, 1),
        "long_requests_per_s": round(polls / took, 1),
        "long_longest_wait_for_a_poll_s": round(longest_s, 1),
        "long_lane_rss_mb": round(rss_mb, 1),
    }
    limits = {"long_longest_wait_for_a_poll_s_max": 2 * SELDOM_S, "long_lane_rss_mb_max": RSS_MB}
    good = fewest == many and longest_s <= 2 * SELDOM_S and rss_mb < RSS_MB
    return figures, limits, good


def _short(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
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
        cpu_before, done_before = cpu_s(pid), desk.states().get("succeeded", 0)
        begin = time.monotonic()
        samples = []
        while time.monotonic() - begin < sampling_s:
            samples.append(desk.sandbox.stats()["in_flight"])
            time.sleep(SAMPLE_S)
        took = time.monotonic() - begin
        done = desk.states().get("succeeded", 0) - done_before
        spent_s = cpu_s(pid) - cpu_before
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
        "cpu_ms_per_job_of_the_lane": round(1000 * spent_s / max(done, 1), 1) if spent_s > 0 else None,
    }
    limits = {
        "nearly_full_means": int(ENOUGH * concurrency),
        "share_of_samples_nearly_full_min": 0.95,
        "latest_poll_after_due_s_max": LATE_POLL_S,
    }
    return figures, limits, full >= 0.95 and late_s <= LATE_POLL_S


if __name__ == "__main__":
    sys.exit(report.run("inflight", "How many generations one lane keeps in flight", measure))
