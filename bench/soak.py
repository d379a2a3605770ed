"""Do tables and indexes stay bounded under traffic that is pruned meanwhile? An hour of it, compressed.

`python -m bench.soak [--json] [--quick]`. A desk of real processes works through jobs as fast as it can: a sandbox that
answers at once, lost answers and second pictures among them, callbacks to a receiver. Upkeep is hurried as the
traffic is: autovacuum and the minute's look at sums come by every 4 s, and `prune`'s own slices (jobs/lifecycle/prune.py)
remove what ended more than 20 s ago, over and over. Sizes, dead rows, bloat and the density of index leaves (pgstattuple)
are read at a quarter of the time, when what is kept has come to its length, and at the end:

- what is pruned (timelines, callbacks; sums of sends, which are put together each minute) takes no more room at the end than 1.5 of what it took then;
- what stays for ever (jobs, sends, results) takes no more bytes a job than 1.1 of what it took then;
- small tables that change all the time (lanes, the queue's messages, states of providers) stay small.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import OwnServer, own_server

HOUR_S, MINUTE_S = 3600.0, 60.0
KEEP_S = 20
PICTURE_BYTES = 16_000
PRUNED = ("jobs_jobevent", "jobs_callback", "jobs_sendsum")
KEPT = ("jobs_job", "jobs_providertask", "jobs_result")
SMALL = (
    "jobs_lane",
    "django_q_ormq",
    "django_q_schedule",
    "providers_providerstate",
    "jobs_prunerun",
    "jobs_tenant",
)
TIMES_PRUNED, TIMES_KEPT, SMALL_KB = 1.5, 1.1, 1024
WAITING = 400
SHOP = "shop"
SUPERUSER = "postgres"  # of the bench's own server: for upkeep and for looking into pages

_PRUNE = f"""
import time
from datetime import timedelta
from jobs.clock import clock
from jobs.lifecycle import prune, sums
from jobs.lifecycle.prune import Wish
from jobs.retention import USUAL
from jobs.stages.prune import go_through
while True:
    now = clock.now()
    wish = Wish(before=now - timedelta(seconds={KEEP_S}), now=now)
    run = prune.begin(asked={{}}, actor=None, now=now)
    go_through(run, {{kind: wish for kind in USUAL}}, limit=None, tell=lambda kind, told: None)
    sums.put_together()
    time.sleep(4)
"""
_SIZES = """
SELECT c.relname, pg_relation_size(c.oid), pg_indexes_size(c.oid), pg_total_relation_size(c.oid),
  t.tuple_count, t.dead_tuple_count, t.dead_tuple_percent + t.free_percent, s.autovacuum_count
FROM pg_class c CROSS JOIN LATERAL pgstattuple(c.oid) t JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relname = ANY(%s)
"""
_LEAVES = """
SELECT min(d.avg_leaf_density), (array_agg(i.relname ORDER BY d.avg_leaf_density))[1]
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class c ON c.oid = x.indrelid
JOIN pg_am a ON a.oid = i.relam AND a.amname = 'btree' CROSS JOIN LATERAL pgstatindex(i.oid) d
WHERE c.relname = ANY(%s) AND d.leaf_pages > 20
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    lasts_s = 60.0 if quick else 240.0
    factor = HOUR_S / lasts_s
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as place,
        own_server(Path(place, "postgres")) as server,
        _receiver() as url,
    ):
        _tune(server, factor=MINUTE_S / 4)
        with desk_on(
            server.create("soak"),
            _folder(Path(place, "desk")),
            sandbox={"latency_fixed_s": 0, "prepared_bytes": PICTURE_BYTES},
            WORKER_CONCURRENCY=60,
            POLL_INTERVAL_SEC=0.5,
            CALLBACK_ALLOW="127.0.0.1",
            RECONCILE_INTERVAL_SEC=1,
        ) as desk:
            early, late = _soaked(desk, url, lasts_s)
            desk.settle(180.0)
            wrong = desk.wrong()
    figures = {
        "compressed": round(factor, 1),
        "lasts_s": lasts_s,
        **_figures(early, late),
        "broken_promises": len(wrong),
    }
    limits = {
        "pruned_times_max": TIMES_PRUNED, "kept_times_per_job_max": TIMES_KEPT, "small_kb_max": SMALL_KB,
        "broken_promises_max": 0,
    }  # fmt: skip
    held = [figures[name.removesuffix("_max")] <= limit for name, limit in limits.items()]
    return figures, limits, all(held)


def _tune(server: OwnServer, *, factor: float) -> None:
    url = make_conninfo(server.url("postgres"), user=SUPERUSER)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET autovacuum_naptime = '{MINUTE_S / factor:g}s'")
        connection.execute("ALTER SYSTEM SET autovacuum = on")
        connection.execute("SELECT pg_reload_conf()")


def _soaked(desk: RealDesk, url: str, lasts_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    _look(desk, "CREATE EXTENSION pgstattuple")
    desk.create(1)
    # Its program hears of a tenth of the jobs: a receiver takes no more than a few a second.
    desk.manage("tenants", "add", SHOP)
    desk.manage("callbacks", "url", SHOP, url)
    desk.start_cluster()
    until(lambda: desk.states().get("succeeded"), "the first job")
    desk.start("pruner", "manage.py", "shell", "-v0", "-c", _PRUNE)
    begin = time.monotonic()
    early: dict[str, Any] | None = None
    while (past := time.monotonic() - begin) < lasts_s:
        if early is None and past >= max(lasts_s / 4, KEEP_S + 15):
            early = _sizes(desk)
        waiting = desk.states().get("pending", 0)
        if waiting < WAITING:
            desk.create(WAITING * 3 // 4)
            desk.create(WAITING // 10, "two of them [[fault:data_two]]", "--tenant", SHOP)
            desk.create(WAITING // 10, "a long one " + "word " * 200)
            desk.create(WAITING // 20, "a lost one [[fault:reset_before_accept:1]]")
        time.sleep(1)
    assert early is not None
    return early, _sizes(desk)


def _look(desk: RealDesk, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(make_conninfo(desk.url, user=SUPERUSER), autocommit=True) as connection:
        cursor = connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []


def _sizes(desk: RealDesk) -> dict[str, Any]:
    names = [*PRUNED, *KEPT, *SMALL]
    rows = {
        name: {
            "rows": live, "table_kb": table // 1024, "indexes_kb": indexes // 1024, "total_kb": total // 1024, "dead": dead,
            "bloat_percent": round(float(bloat), 1), "autovacuums": vacuums,
        }
        for name, table, indexes, total, live, dead, bloat, vacuums in _look(desk, _SIZES, names)
    }  # fmt: skip
    [[density, index]] = _look(desk, _LEAVES, [*PRUNED, *KEPT])
    removed = desk.ask(
        "SELECT key, sum(value::int) FROM jobs_prunerun, jsonb_each_text(removed) GROUP BY 1 HAVING sum(value::int) > 0 ORDER BY 1"
    )
    ended = desk.ask("SELECT count(*) FROM jobs_job WHERE finished_at IS NOT NULL")[0][0]
    return {
        "tables": rows, "sparsest_index": [index, round(float(density or 100), 1)], "jobs_ended": ended,
        "removed": {kind: int(count) for kind, count in removed},
    }  # fmt: skip


def _figures(early: dict[str, Any], late: dict[str, Any]) -> dict[str, Any]:
    def total(one: dict[str, Any], names: tuple[str, ...]) -> float:
        return float(
            sum(one["tables"][name]["total_kb"] for name in names if name in one["tables"])
        )

    jobs = [one["tables"]["jobs_job"]["rows"] for one in (early, late)]
    before, after = total(early, KEPT) / jobs[0], total(late, KEPT) / jobs[1]
    return {
        "jobs": jobs,
        "jobs_ended": [early["jobs_ended"], late["jobs_ended"]],
        "removed": late["removed"],
        "pruned_kb": [total(early, PRUNED), total(late, PRUNED)],
        "pruned_times": round(total(late, PRUNED) / total(early, PRUNED), 2),
        "kept_kb_per_job": [round(before, 2), round(after, 2)],
        "kept_times_per_job": round(after / before, 3),
        "small_kb": max(
            late["tables"][name]["total_kb"] for name in SMALL if name in late["tables"]
        ),
        "sparsest_index": [early["sparsest_index"], late["sparsest_index"]],
        **{name: [early["tables"][name], late["tables"][name]] for name in (*PRUNED, *KEPT)},
    }


class _Well(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.send_response(204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        return


@contextmanager
def _receiver() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Well)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook"
    finally:
        server.shutdown()
        server.server_close()


def _folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    os.environ.setdefault("DEMO", "1")
    sys.exit(report.run("soak", __doc__.splitlines()[0], measure))
