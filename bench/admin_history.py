"""What a studio leaves in its database, written by SQL: so many jobs with their sends, events, files, cases. Not a benchmark
itself.

The same studio at the same pace (2,740 jobs a day), on its first day or after a year: what is open and under way, and what
happened within the last hours, is alike in both; only the past is longer. A job has three events here (it has about seven
in earnest): the tables of a million jobs are loaded within a few minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from bench.postgres import OwnServer

A_DAY = 2_740
PENDING, LIVE = 100, 300  # the newest jobs: waiting, and under way
TENANTS, BATCH = 10, 20
TARGETS = (
    ("polza", "google/gemini-3.1-flash-image-preview", "7.84", "RUB"),
    ("polza", "openai/gpt-5-image", "11.50", "RUB"),
    ("fal", "fal-ai/flux-pro/v1.1", "0.04", "USD"),
    ("openrouter", "google/gemini-2.5-flash-image", "0.039", "USD"),
    ("openrouter", "openai/gpt-5-image-mini", "0.05", "USD"),
    ("gigachat", "GigaChat-2-Max", "4.00", "RUB"),
)
ACCOUNTS = ("polza", "fal", "openrouter", "gigachat")
BIG = ("jobs_job", "jobs_providertask", "jobs_jobevent", "jobs_result")

# A value for each column that must have one and of which nothing is told here, by its type.
_EMPTY = {
    "jsonb": "'{}'::jsonb", "text": "''", "character varying": "''", "integer": "0", "smallint": "0", "boolean": "false",
    "double precision": "0", "numeric": "0", "bigint": "0", "ARRAY": "'{}'",
}  # fmt: skip

# One line a job; everything else is made from it. `k` counts from the newest, `h` from 0 to 99 again and again.
_PLAN = """
CREATE UNLOGGED TABLE bench_plan AS
SELECT i AS id, %(jobs)s - i AS k, i %% 100 AS h,
  (%(now)s)::timestamptz - make_interval(secs => (%(jobs)s - i) * (86400.0 / %(a_day)s) + 5) AS at,
  (ARRAY[1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])[(i - 1) / %(batch)s %% 12 + 1] AS tenant,
  CASE WHEN (i - 1) / %(batch)s %% 3 < 2 THEN (i - 1) / %(batch)s + 1 END AS batch,
  (ARRAY[1, 1, 1, 1, 2, 2, 3, 4, 5, 6])[i * 7 %% 10 + 1] AS target,
  (ARRAY['sending', 'at_provider', 'fetching', 'checking', 'looking'])[i %% 5 + 1] AS phase,
  md5('send ' || i)::uuid AS task,
  CASE WHEN %(jobs)s - i < %(pending)s THEN 'pending'
    WHEN %(jobs)s - i < %(pending)s + %(live)s THEN CASE WHEN i %% 5 = 4 THEN 'manual' ELSE 'active' END
    WHEN i %% 100 < 10 THEN 'failed' WHEN i %% 100 < 19 THEN 'cancelled' ELSE 'succeeded' END AS state
FROM generate_series(1, %(jobs)s) i
"""

_JOBS = {
    "id": "p.id",
    "tenant_id": "p.tenant",
    "batch_id": "p.batch",
    "kind": "CASE WHEN p.target = 6 THEN 'text' ELSE 'image' END",
    "prompt": """
      (ARRAY['A red bicycle', 'Обложка: зимний лес', 'A lighthouse at dusk', 'Silver sedan in a showroom', 'باغ ایرانی با حوض آبی',
        'A wooden chair', 'Портрет рыжего кота', 'An old harbour', 'A bowl of cherries', 'Ceramic vase'])[p.id %% 10 + 1]
      || (ARRAY[' against a white wall', ' in the morning fog', ', акварель', ' on a marble table', ', three-quarter view',
        ' under northern light', ', масло, холст'])[p.id %% 7 + 1]
      || (ARRAY[', film grain', ', soft shadows', ', studio light', ''])[p.id / 3 %% 4 + 1] || ', set ' || p.id / 50""",
    "params": """'{"aspect_ratio": "3:4"}'::jsonb""",
    "reference": "CASE WHEN p.id %% 5 > 0 THEN (ARRAY['VIN-', 'SKU-', 'B-'])[p.id %% 3 + 1] || lpad(p.id::text, 7, '0') ELSE '' END",
    "route": "ARRAY[p.target]",
    "target_id": "p.target",
    "state": "p.state",
    "reason": """CASE p.state WHEN 'failed' THEN 'refused_by_all' WHEN 'manual' THEN 'unknown_send'
      WHEN 'cancelled' THEN 'cancelled' ELSE '' END""",
    "reason_text": "CASE WHEN p.state = 'failed' THEN 'HTTP 400: prompt was rejected by the safety system' ELSE '' END",
    "not_before": "p.at",
    "attempts_since": "p.at",
    "delivered_id": "CASE WHEN p.state = 'succeeded' THEN p.id END",
    "decided_at": "CASE WHEN p.state = 'cancelled' THEN p.at + interval '1 minute' END",
    "created_at": "p.at",
    "finished_at": "CASE WHEN p.state IN ('succeeded', 'failed', 'cancelled') THEN p.at + make_interval(secs => 20 + p.h) END",
    "fingerprint": "md5(p.id::text)",
}

# A cancelled job was never sent. `a`: when it was armed.
_SENDS = {
    "id": "p.task",
    "job_id": "p.id",
    "tenant_id": "p.tenant",
    "target_id": "p.target",
    "account_id": "t.account",
    "estimated_cost": "t.price",
    "currency": "t.currency",
    "run_id": "md5('run ' || p.id / 400)::uuid",
    "host": "'desk-1'",
    "created_at": "p.at + interval '1 second'",
    "armed_at": "a",
    "send_not_after": "a + interval '10 seconds'",
    "call_deadline_s": "30",
    "blocks_send": "p.state IN ('active', 'manual')",
    "released_by": "CASE p.state WHEN 'succeeded' THEN 'stored' WHEN 'failed' THEN 'free' ELSE '' END",
    "provider_id": """CASE WHEN p.state = 'succeeded' OR p.state = 'active' AND p.phase <> 'sending' THEN 'gen_' || md5(p.id::text)
      END""",
    "accepted_at": "CASE WHEN p.state = 'succeeded' OR p.state = 'active' AND p.phase <> 'sending' THEN a + interval '1 second' END",
    "refusal_class": "CASE WHEN p.state = 'failed' THEN 'rejected' END",
    "refused_at": "CASE WHEN p.state = 'failed' THEN a + interval '2 seconds' END",
    "lost_at": "CASE WHEN p.state = 'manual' THEN a + interval '30 seconds' END",
    "completed_at": """CASE WHEN p.state = 'succeeded' OR p.state = 'active' AND p.phase = 'fetching'
      THEN a + make_interval(secs => 12 + p.h * p.h / 160.0) END""",
    "failed_at": "CASE WHEN p.state = 'active' AND p.phase = 'checking' THEN a + interval '20 seconds' END",
    "stored_at": "CASE WHEN p.state = 'succeeded' THEN a + make_interval(secs => 14 + p.h * p.h / 160.0) END",
    "cost_poll": "CASE WHEN p.state = 'succeeded' THEN t.price END",
    "polls": "p.h / 4",
    "last_status": "CASE WHEN p.state = 'succeeded' THEN 'completed' ELSE '' END",
    "failure_class": "CASE p.state WHEN 'failed' THEN 'rejected' WHEN 'manual' THEN 'unknown' ELSE '' END",
    "failure_text": """CASE p.state WHEN 'failed' THEN 'HTTP 400: prompt was rejected by the safety system'
      WHEN 'manual' THEN 'connection reset by peer' ELSE '' END""",
    "failure_key": "CASE p.state WHEN 'failed' THEN %(refused_key)s WHEN 'manual' THEN %(lost_key)s END",
    "failure_at": "CASE WHEN p.state IN ('failed', 'manual') THEN a + interval '30 seconds' END",
    "evidence": """jsonb_build_object('submit', jsonb_build_object('status', 200, 'headers', '{}'::jsonb, 'body', '{"id":"gen_1"}'))""",
    "files": "'[]'::jsonb",
    "candidates": "'[]'::jsonb",
}
_OF_SENDS = """
bench_plan p JOIN (SELECT t.id, t.price, t.currency, a.id AS account FROM providers_target t
  JOIN providers_account a USING (provider)) t ON t.id = p.target
CROSS JOIN LATERAL (SELECT p.at + interval '2 seconds' AS a) x
WHERE p.state NOT IN ('pending', 'cancelled')
"""

_EVENTS = {
    "job_id": "p.id",
    "task_id": "CASE WHEN e.kind IN ('armed', 'stored') AND p.state NOT IN ('pending', 'cancelled') THEN p.task END",
    "at": "p.at + e.after",
    "kind": "e.kind",
    "data": """CASE e.kind WHEN 'created' THEN '{"target": "polza:google/gemini-3.1-flash-image-preview"}'::jsonb ELSE '{}'::jsonb END""",
}
_OF_EVENTS = """
bench_plan p JOIN (VALUES ('created', interval '0'), ('armed', interval '2 seconds'), ('stored', interval '30 seconds'))
  AS e (kind, after) ON e.kind = 'created' OR p.state NOT IN ('pending', 'cancelled') AND (e.kind = 'armed' OR p.state = 'succeeded')
ORDER BY p.id, e.after
"""

_RESULTS = {
    "id": "p.id",
    "job_id": "p.id",
    "task_id": "p.task",
    "key": "'results/' || p.task || '.png'",
    "thumb_key": "'results/' || p.task || '.thumb.webp'",
    "sha256": "md5(p.id::text) || md5((p.id + 1)::text)",
    "media_type": "'image/png'",
    "size_bytes": "400000 + p.id %% 900000",
    "width": "1024",
    "height": "1024",
    "created_at": "p.at + make_interval(secs => 20 + p.h)",
    "rating": "CASE WHEN p.id %% 9 = 0 THEN (ARRAY['good', 'usable', 'bad'])[p.h %% 3 + 1] ELSE '' END",
    "rated_at": "CASE WHEN p.id %% 9 = 0 THEN p.at + interval '2 hours' END",
    "rated_by_id": "CASE WHEN p.id %% 9 = 0 THEN 1 END",
}

# Lost sends are open; of the jobs that nobody made, the newest are, and a tenth of the older ones were cases once.
_CASES = {
    "kind": "CASE p.state WHEN 'manual' THEN 'unknown_send' ELSE 'refused_by_all' END",
    "job_id": "p.id",
    "task_id": "CASE WHEN p.state = 'manual' THEN p.task END",
    "money_at_risk": "CASE WHEN p.state = 'manual' THEN 7.84 ELSE 0 END",
    "currency": "CASE WHEN p.state = 'manual' THEN 'RUB' ELSE '' END",
    "owner_id": "CASE WHEN p.id %% 3 = 0 THEN 1 END",
    "note": "CASE WHEN p.id %% 4 = 0 THEN 'The customer was told.' ELSE '' END",
    "opened_at": "p.at + interval '1 minute'",
    "due_at": "p.at + interval '4 hours'",
    "resolution": "CASE WHEN p.state = 'failed' AND p.nth > %(open_cases)s THEN 'gave_up' ELSE '' END",
    "resolved_at": "CASE WHEN p.state = 'failed' AND p.nth > %(open_cases)s THEN p.at + interval '3 hours' END",
    "resolved_by_id": "CASE WHEN p.state = 'failed' AND p.nth > %(open_cases)s THEN 1 END",
}
_OF_CASES = """
(SELECT *, row_number() OVER (PARTITION BY state ORDER BY id DESC) AS nth FROM bench_plan WHERE state IN ('failed', 'manual')) p
WHERE p.state = 'manual' OR p.nth <= %(open_cases)s OR p.id %% 20 < 3
"""

_CALLBACKS = {
    "tenant_id": "p.tenant",
    "job_id": "p.id",
    "kind": "'job.' || p.state",
    "url": "'https://shop.example.com/hooks/pictures'",
    "at": "p.at + interval '2 minutes'",
    "tried_at": "p.at + interval '2 minutes'",
    "tries": "1",
    "status": "CASE WHEN p.id %% 500 = 1 THEN 500 ELSE 204 END",
    "delivered_at": "CASE WHEN p.id %% 500 <> 1 THEN p.at + interval '2 minutes' END",
    "given_up_at": "CASE WHEN p.id %% 500 = 1 THEN p.at + interval '1 day' END",
    "trouble": "CASE WHEN p.id %% 500 = 1 THEN 'HTTP 500' ELSE '' END",
}
_OF_CALLBACKS = (
    "bench_plan p WHERE p.tenant IN (1, 2) AND p.state IN ('succeeded', 'failed') ORDER BY p.id"
)

_BATCHES = {
    "id": "p.batch",
    "tenant_id": "min(p.tenant)",
    "token": "gen_random_uuid()",
    "label": "'Catalogue ' || p.batch",
    "created_at": "min(p.at)",
    "created_by_id": "1",
    "completed_at": "CASE WHEN min(p.k) > %(pending)s + %(live)s THEN max(p.at) + interval '2 minutes' END",
    "completions": "CASE WHEN min(p.k) > %(pending)s + %(live)s THEN 1 ELSE 0 END",
}

_PROVIDER_EVENTS = {
    "account_id": "n %% 4 + 1",
    "at": "(%(now)s)::timestamptz - make_interval(hours => n)",
    "kind": "(ARRAY['throttled', 'quota_exhausted', 'unblocked', 'opened', 'closed'])[n %% 5 + 1]",
}


def load(server: OwnServer, database: str, *, jobs: int, open_cases: int, now: datetime) -> None:
    """Into a migrated database with a user 1 and nothing else. What the planner must know is gathered too."""
    from jobs import failures

    values = {
        "jobs": jobs, "a_day": A_DAY, "now": now, "pending": PENDING, "live": LIVE, "batch": BATCH, "open_cases": open_cases,
        "refused_key": failures.key("rejected", "HTTP 400: prompt was rejected by the safety system"),
        "lost_key": failures.key("unknown", "connection reset by peer"),
        "hours": jobs * 24 // A_DAY,
    }  # fmt: skip
    url = make_conninfo(server.url(database), user="postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        # Neither triggers nor foreign keys are asked: what goes in is consistent by its making.
        connection.execute("SET session_replication_role = replica")
        connection.execute("SET maintenance_work_mem = '512MB'")
        connection.execute("SET synchronous_commit = off")
        # Else a server of this size does nothing but write checkpoints.
        connection.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
        connection.execute("SELECT pg_reload_conf()")
        _settings(connection, now)
        connection.execute(_PLAN, values)
        connection.execute("ANALYZE bench_plan")
        with _without_indexes(connection):
            insert = _Insert(connection, values)
            insert("jobs_batch", _BATCHES, "bench_plan p WHERE p.batch IS NOT NULL GROUP BY p.batch ORDER BY p.batch")  # fmt: skip
            insert("jobs_job", _JOBS, "bench_plan p ORDER BY p.id")
            insert("jobs_providertask", _SENDS, _OF_SENDS + " ORDER BY p.id")
            insert("jobs_jobevent", _EVENTS, _OF_EVENTS)
            insert("jobs_result", _RESULTS, "bench_plan p WHERE p.state = 'succeeded' ORDER BY p.id")  # fmt: skip
            insert("jobs_case", _CASES, _OF_CASES + " ORDER BY p.id")
            insert("jobs_callback", _CALLBACKS, _OF_CALLBACKS)
            insert("providers_providerevent", _PROVIDER_EVENTS, "generate_series(1, %(hours)s) n ORDER BY n DESC")  # fmt: skip
        connection.execute("SELECT jobs_sum_sends_anew()")
        connection.execute("SELECT jobs_sum_sends_anew()")  # its trigger was not asked either
        connection.execute("DROP TABLE bench_plan")
        for table in ("jobs_job", "jobs_batch", "jobs_result"):
            name = sql.Identifier(table)
            connection.execute(
                sql.SQL(
                    "SELECT setval(pg_get_serial_sequence({}, 'id'), (SELECT max(id) FROM {}))"
                ).format(table, name)
            )
        connection.execute("VACUUM ANALYZE")
        connection.execute("ALTER SYSTEM RESET max_wal_size")
        connection.execute("SELECT pg_reload_conf()")
        connection.execute("CHECKPOINT")


def _settings(connection: psycopg.Connection[Any], now: datetime) -> None:
    """Tenants, targets, accounts and what is known of them, windows, lanes."""
    insert = _Insert(connection, {"now": now})
    for n in range(1, TENANTS + 1):
        limits = {"daily_limit": "20000", "monthly_limit": "400000"} if n <= 3 else {}
        insert("jobs_tenant", {
            "id": str(n), "slug": f"'tenant-{n}'", "name": f"'Tenant {n}'", "weight": "1", "currency": "'RUB'",
            "zone": "'Europe/Moscow'", "created_at": "%(now)s", "split": "'[]'::jsonb", **limits,
        })  # fmt: skip
    for n, provider in enumerate(ACCOUNTS, 1):
        insert("providers_account", {
            "id": str(n), "provider": f"'{provider}'", "fingerprint": f"'f00dfeed000{n}'", "balance": "5000",
            "balance_currency": "'RUB'", "balance_at": "%(now)s", "created_at": "%(now)s",
        })  # fmt: skip
        insert("providers_providerstate", {
            "id": str(n), "account_id": str(n), "state": "'available'", "since": "%(now)s", "gate": "'closed'",
        })  # fmt: skip
        insert("providers_quotawindow", {
            "id": str(n), "account_id": str(n), "seconds": "86400", "most": "5000", "resets": "'rolling'", "zone": "'UTC'",
        })  # fmt: skip
    for n, (provider, model, price, currency) in enumerate(TARGETS, 1):
        insert("providers_target", {
            "id": str(n), "provider": f"'{provider}'", "model": f"'{model}'", "kind": "'text'" if n == 6 else "'image'",
            "price": price, "currency": f"'{currency}'", "enabled": "true", "created_at": "%(now)s",
        })  # fmt: skip
    for n in (1, 2):
        insert("jobs_lane", {
            "slot": str(n), "run_id": "gen_random_uuid()", "host": "'desk-1'", "heartbeat_at": "%(now)s", "started_at": "%(now)s",
        })  # fmt: skip


class _Insert:
    """INSERT … SELECT of the columns told, and something empty for those that must have a value and have none."""

    def __init__(self, connection: psycopg.Connection[Any], values: dict[str, Any]) -> None:
        self._connection, self._values = connection, values

    def __call__(self, table: str, columns: dict[str, str], source: str = "") -> None:
        known = self._connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s"
            " AND is_nullable = 'NO' AND column_default IS NULL AND is_generated = 'NEVER' AND is_identity = 'NO'",
            (table,),
        ).fetchall()
        columns = {name: _EMPTY[kind] for name, kind in known if name not in columns} | columns
        query = sql.SQL("INSERT INTO {} ({}) SELECT {} {}").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, columns)),
            sql.SQL(", ".join(columns.values())),  # written above, nobody's input
            sql.SQL(f"FROM {source}" if source else ""),
        )
        self._connection.execute(query, self._values)


@contextlib.contextmanager
def _without_indexes(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Made anew at the end, which takes a fraction of the time. Primary keys and what belongs to constraints stay."""
    found = connection.execute(
        "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i"
        " WHERE i.indrelid = ANY (%s::regclass[]) AND NOT EXISTS"
        " (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)",
        (list(BIG),),
    ).fetchall()
    for name, _definition in found:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.SQL(name)))
    yield
    for _name, definition in found:
        connection.execute(definition)
