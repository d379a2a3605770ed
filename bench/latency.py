"""How soon an idle desk sends a job that was just made, and how soon a finished picture is in our own storage.

`python -m bench.latency [--json] [--quick]`. Single jobs, 6 to 12 s apart so that most find nothing under way (some find the
lane lingering, some none at all), generations of about 4 s, polls every 3 s. From the row's creation to the POST's arrival at the
sandbox, and from the generation's end there to the stored file, all by this machine's clock.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import desk_on
from bench.postgres import own_server

POLL_S, SEND_P95_S, STORE_MARGIN_S = 3.0, 1.0, 1.0
_MAKE = """
import random, time
from django.core.management import call_command
for number in range({jobs}):
    call_command("generate", f"a lighthouse {{number}}", "--json")
    time.sleep(random.uniform(6, 12))
"""
_STEPS = """
SELECT k.id::text, extract(epoch FROM j.created_at)::float8, extract(epoch FROM k.stored_at)::float8
FROM jobs_job j JOIN jobs_providertask k ON k.job_id = j.id WHERE k.stored_at IS NOT NULL
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    jobs = 8 if quick else 60
    with (
        tempfile.TemporaryDirectory() as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(
            server.create("desk"),
            Path(folder),
            sandbox={"latency_fixed_s": None, "latency_median_s": 4.0, "prepared_bytes": 64_000},
            POLL_INTERVAL_SEC=POLL_S,
            LANE_SLICE_SEC=20,  # so that some jobs find no lane
        ) as desk,
    ):
        desk.start_cluster()
        desk.python(_MAKE.format(jobs=jobs))
        desk.settle(60, canary_every_s=None)
        ledger = desk.sandbox.ledger()
        tasks = {task["correlation"]: task for task in ledger["tasks"]}
        posted = {post["correlation"]: post["at"] for post in ledger["posts"]}
        steps = desk.ask(_STEPS)
    to_post = [posted[task_id] - created for task_id, created, _stored in steps]
    to_file = [stored - tasks[task_id]["finish_at"] for task_id, _created, stored in steps]
    send_s, store_s = (statistics.quantiles(values, n=20)[-1] for values in (to_post, to_file))
    figures = {
        "jobs": len(steps),
        "creation_to_post_s": {"median": round(statistics.median(to_post), 3), "p95": round(send_s, 3)},
        "completion_to_file_s": {"median": round(statistics.median(to_file), 3), "p95": round(store_s, 3)},
    }  # fmt: skip
    limits = {
        "creation_to_post_p95_s_max": SEND_P95_S,
        "completion_to_file_p95_s_max": POLL_S + STORE_MARGIN_S,
    }
    good = len(steps) == jobs and send_s < SEND_P95_S and store_s < POLL_S + STORE_MARGIN_S
    return figures, limits, good


if __name__ == "__main__":
    sys.exit(report.run("latency", __doc__.splitlines()[0], measure))
