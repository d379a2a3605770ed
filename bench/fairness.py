"""Whether a small tenant waits behind a big one, and whether the big one's limit holds over two clusters.

`python -m bench.fairness [--json] [--quick]`. Concurrency 8, tenants A and B limited to 4 each, two clusters. First B's
orders of ten jobs alone, then the same with 5,000 jobs of A waiting. What B's job takes is from its order to its result:
the wait and one generation. How many of A are at the provider at once is counted in the sandbox's ledger.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import own_server

CONCURRENCY, EACH = 8, 4
STORM, ORDER = 5000, 10
RATIO_MAX = 1.3
GENERATION_S = 2.0
POLL_S = 0.5

_TENANTS = f"""
from django.utils.timezone import now
from jobs.lifecycle import tenants
for slug in ("a", "b"):
    tenants.create(slug=slug, name=slug.upper(), max_in_flight={EACH}, actor=None, now=now())
"""
_TOOK = """
SELECT extract(epoch FROM j.finished_at - j.created_at)::float8 FROM jobs_job j
JOIN jobs_tenant t ON t.id = j.tenant_id
WHERE t.slug = 'b' AND j.state = 'succeeded' ORDER BY j.id
"""
_OF_A = "SELECT k.id::text FROM jobs_providertask k JOIN jobs_tenant t ON t.id = k.tenant_id WHERE t.slug = 'a'"


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Orders alone, then orders beside the storm, on the same clusters."""
    orders = 2 if quick else 6
    with (
        tempfile.TemporaryDirectory(prefix="fairness-") as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(
            server.create("desk"),
            Path(folder),
            sandbox={"latency_median_s": GENERATION_S, "latency_sigma": 0.1, "latency_fixed_s": None,
                     "prepared_bytes": 20_000},
            WORKER_CONCURRENCY=CONCURRENCY,
            WORKER_LANES=2,
            POLL_INTERVAL_SEC=POLL_S,
            POST_DEADLINE_SEC=15,
        ) as desk,
    ):  # fmt: skip
        desk.python(_TENANTS)
        desk.start_cluster()
        desk.start_cluster()
        until(lambda: len(desk.lanes()) == 2, "two lanes", 90.0)
        for _ in range(orders):
            _order(desk)
        alone = _took(desk)
        desk.create(STORM, "a storm", "--tenant", "a")
        until(lambda: _running(desk) >= EACH, "the storm")
        for _ in range(orders):
            _order(desk)
        beside = _took(desk)[len(alone) :]
        time.sleep(2 * GENERATION_S)  # the storm goes on alone: what B leaves free, A may not take
        runs = desk.ask("SELECT count(DISTINCT run_id) FROM jobs_providertask")[0][0]
        waiting = desk.states().get("pending", 0)
        of_a = {row[0] for row in desk.ask(_OF_A)}
        tasks = desk.sandbox.ledger()["tasks"]
    most_of_a = _most_at_once(task for task in tasks if task["correlation"] in of_a)
    ratio = statistics.median(beside) / statistics.median(alone)
    figures = {
        "orders_of_b_each_way": orders,
        "jobs_of_b": len(alone) + len(beside),
        "b_alone_median_s": round(statistics.median(alone), 2),
        "b_beside_the_storm_median_s": round(statistics.median(beside), 2),
        "ratio": round(ratio, 3),
        "b_alone_max_s": round(max(alone), 2),
        "b_beside_the_storm_max_s": round(max(beside), 2),
        "a_most_at_once": most_of_a,
        "a_sent": len(of_a),
        "a_waiting_at_the_end": waiting,
        "runs_that_sent": runs,
    }
    limits = {
        "ratio_max": RATIO_MAX,
        "a_most_at_once": EACH,
        "jobs_of_b": 2 * orders * ORDER,
        "a_waiting_at_the_end_min": 1,
        "runs_that_sent_min": 2,
    }
    ok = (
        ratio <= RATIO_MAX
        and most_of_a == EACH
        and len(alone) == len(beside) == orders * ORDER
        and waiting >= 1
        and runs >= 2
    )
    return figures, limits, ok


def _order(desk: RealDesk) -> None:
    """Ten jobs of B, to their end."""
    done = len(_took(desk))
    desk.create(ORDER, "a small order", "--tenant", "b")
    until(lambda: len(_took(desk)) >= done + ORDER, "B's order", 120.0)


def _took(desk: RealDesk) -> list[float]:
    return [float(seconds) for (seconds,) in desk.ask(_TOOK)]


def _running(desk: RealDesk) -> int:
    return desk.states().get("active", 0)


def _most_at_once(tasks: Iterable[dict[str, Any]]) -> int:
    """From being taken to being ready, by the provider's clock. One that ends as another begins makes room for it."""
    steps = []
    for task in tasks:
        steps += [(float(task["created"]), 1), (float(task["finish_at"]), -1)]
    now = most = 0
    for _at, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


if __name__ == "__main__":
    sys.exit(report.run("fairness", "Does a small tenant wait behind a big one?", measure))
