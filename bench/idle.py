"""What a desk without work costs: CPU of its processes, and statements that the database counts.

`python -m bench.idle [--json] [--quick]`. One cluster, two lanes, no jobs, 5 minutes (quick: 40 s), after one job has been
made and its lane's slice is over. Statements are those of pg_stat_statements, BEGIN, COMMIT and the like left out.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from bench import report
from bench.desk import desk_on, until
from bench.postgres import OwnServer, own_server, rows
from bench.processes import cpu_s, members

CPU_PERCENT, STATEMENTS_PER_S = 1.0, 2.0
LANES, SLICE_S = 2, 15
_COUNT = """
SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database()
  AND query !~* '^(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|DEALLOCATE|DISCARD)' AND query !~* 'pg_stat_statements'
"""
_WHICH = """
SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 90) FROM pg_stat_statements s
JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database() AND query !~* 'pg_stat_statements'
ORDER BY calls DESC LIMIT 16
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    watched_s = 130.0 if quick else 300.0
    with tempfile.TemporaryDirectory() as folder, own_server(Path(folder, "postgres")) as server:
        _count_statements(server)
        with desk_on(
            server.create("desk"),
            Path(folder),
            sandbox={"latency_fixed_s": 0.5, "prepared_bytes": 64_000},
            WORKER_LANES=LANES,
            LANE_SLICE_SEC=SLICE_S,
            POLL_INTERVAL_SEC=3,
            RECONCILE_INTERVAL_SEC=30,
        ) as desk:
            everything = server.url("desk", user="postgres")  # whose statements are not the desk's
            rows(everything, "CREATE EXTENSION pg_stat_statements")
            desk.create(1)
            cluster = desk.start_cluster()
            desk.settle(60, canary_every_s=None)
            until(lambda: not desk.lanes(), "the lanes have gone", 2 * SLICE_S + 30)
            time.sleep(5)
            rows(everything, "SELECT pg_stat_statements_reset()")
            group, cpu = cluster.pid, _cpu_s(cluster.pid)
            begin = time.monotonic()
            time.sleep(watched_s)
            took = time.monotonic() - begin
            spent = _cpu_s(group) - cpu
            ((statements,),) = rows(everything, _COUNT)
            most = rows(everything, _WHICH)
    cpu_percent, per_s = 100 * spent / took, statements / took
    figures = {
        "watched_s": round(took, 1),
        "processes": LANES + 4,
        "cpu_percent_of_one_core": round(cpu_percent, 3),
        "statements_per_s": round(per_s, 3),
        "most_often": [f"{calls} x {query}" for calls, query in most],
    }
    limits = {"cpu_percent_max": CPU_PERCENT, "statements_per_s_max": STATEMENTS_PER_S}
    return figures, limits, cpu_percent < CPU_PERCENT and per_s <= STATEMENTS_PER_S


def _count_statements(server: OwnServer) -> None:
    """The module is loaded at a start only."""
    everything = server.url("postgres", user="postgres")
    rows(everything, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
    server.stop("fast")
    until(lambda: not _answers(server), "the server has ended")
    server.start()
    until(lambda: _answers(server), "the server is back")


def _answers(server: OwnServer) -> bool:
    try:
        return bool(rows(server.url("postgres"), "SELECT 1"))
    except psycopg.Error:
        return False


def _cpu_s(group: int) -> float:
    return sum(cpu_s(pid) for pid in members(group))


if __name__ == "__main__":
    sys.exit(report.run("idle", __doc__.splitlines()[0], measure))
