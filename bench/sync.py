"""Whether one lane holds hundreds of calls whose answer is the result, in little time and little memory.

`python -m bench.sync [--json] [--quick]`. 200 calls of 30 s at once, pictures of 1.5 MB inside the answers (quick: 60 calls of
10 s), against the sandbox's OpenRouter in a process of its own. The sandbox's ledger counts, the database tells the times,
the kernel the lane's memory.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import RealDesk, until
from bench.postgres import own_server
from bench.processes import resident_mb
from providers.adapters.openrouter import OpenRouter
from providers.sandbox.server import running_sandbox

PICTURE_BYTES = 1_500_000
SPARE_S = 10.0  # for sending, receiving, reading and recording all of them
RSS_MB = 250.0
SAMPLE_S = 0.05
_TOOK = """
SELECT count(*), count(completed_at), count(stored_at),
  extract(epoch FROM max(completed_at) - min(armed_at)), extract(epoch FROM max(stored_at) - min(armed_at))
FROM jobs_providertask WHERE armed_at IS NOT NULL
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """One wave of calls, from the first that is armed to the last picture stored."""
    calls, call_s = (60, 10.0) if quick else (200, 30.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        own_server(Path(folder, "postgres")) as server,
        running_sandbox(latency_fixed_s=call_s, prepared_bytes=PICTURE_BYTES) as sandbox,
    ):
        desk = RealDesk(
            server.create("desk"),
            Path(folder),
            sandbox,
            echoes=False,
            AI_PROVIDER=OpenRouter.name,
            AI_API_KEY=OpenRouter.sandbox_key,
            AI_BASE_URL=sandbox.url + OpenRouter.sandbox_path,
            WORKER_CONCURRENCY=calls,
        )
        try:
            desk.create(calls)
            desk.start_cluster()
            pid = until(lambda: sandbox.stats()["in_flight"] and desk.lane_pid(), "the first send")
            with peak_mb(pid) as peak:
                until(
                    lambda: desk.states().get("succeeded", 0) == calls, "all stored", call_s + 120
                )
            ((sent, completed, stored, answered_s, stored_s),) = desk.ask(_TOOK)
            charged = sandbox.summary()["charged_twice"]
            wrong = desk.wrong()
        finally:
            desk.close()
        most = sandbox.stats()["max_in_flight"]
        spooled = len(list(Path(folder, "spool", "answers").glob("*")))
    figures = {
        "calls": calls,
        "call_s": call_s,
        "picture_mb": PICTURE_BYTES / 1e6,
        "at_once": most,
        "sends": sent,
        "completed": completed,
        "stored": stored,
        "all_answers_recorded_after_s": round(float(answered_s), 2),
        "all_stored_after_s": round(float(stored_s), 2),
        "lane_rss_mb_max": round(peak[0], 1),
        "charged_twice": charged,
        "answers_left_on_disk": spooled,
        "wrong": wrong,
    }
    limits = {
        "all_answers_recorded_after_s_max": call_s + SPARE_S,
        "lane_rss_mb_max": RSS_MB,
        "at_once_min": calls,
        "stored_min": calls,
        "charged_twice_max": 0,
    }
    good = (
        most == sent == stored == calls
        and not charged
        and not spooled
        and not wrong
        and float(answered_s) <= call_s + SPARE_S
        and peak[0] < RSS_MB
    )
    return figures, limits, good


@contextmanager
def peak_mb(pid: int) -> Iterator[list[float]]:
    """The most memory that the process had resident meanwhile, in MB; the kernel's own peak would count its parent's past."""
    peak, over = [0.0], threading.Event()

    def look() -> None:
        while not over.is_set():
            peak[0] = max(peak[0], resident_mb(pid))
            time.sleep(SAMPLE_S)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield peak
    finally:
        over.set()
        watching.join()


if __name__ == "__main__":
    sys.exit(
        report.run("sync", "How many calls with the result in the answer one lane holds", measure)
    )
