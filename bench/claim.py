"""Does a claim cost the same with a million jobs waiting as with a thousand?

`python -m bench.claim [--json] [--quick]`. 1,000 tenants (quick: 100), one target that is open and one that is shut by a
block. Four databases, claims in turns: few jobs waiting (one a tenant), many of them (1,000 a tenant), many of which all but
one a tenant wait at the shut target, and many of which all but one a tenant must wait for six hours. Three priorities.
Each claim takes its jobs as in earnest and is then rolled back, so that every one finds the same.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import django
import psycopg

from bench import report
from bench.postgres import own_server

ROOM = 100
RATIO_MAX = 2.0
SCENES = ("few", "many", "shut", "later")

# Of each tenant's jobs the first is ready to go; the scene says what the rest do.
_JOBS = """
INSERT INTO jobs_job (tenant_id, kind, prompt, params, reference, priority, callback_url, route, target_id, state, reason,
  reason_text, not_before, attempts_since, created_at, fingerprint)
SELECT t.id, 'image', 'a lighthouse', '{}', '', i %% 3, '', ARRAY[target], target, 'pending', '', '', not_before, now(), now(), ''
FROM jobs_tenant t CROSS JOIN generate_series(0, %(each)s - 1) i
CROSS JOIN LATERAL (SELECT CASE WHEN i = 0 OR %(scene)s <> 'shut' THEN %(open)s ELSE %(shut)s END AS target,
  CASE WHEN i = 0 OR %(scene)s <> 'later' THEN now() - interval '1 minute' ELSE now() + interval '6 hours' END AS not_before) of
ORDER BY i, t.id
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    tenants, each, rounds = (100, 200, 20) if quick else (1_000, 1_000, 60)
    with tempfile.TemporaryDirectory() as folder, own_server(Path(folder, "postgres")) as server:
        os.environ.update(
            DJANGO_SETTINGS_MODULE="studio.settings", DEMO="1", DATABASE_URL=server.create("few"), AI_API_KEY="pza_claim", WORKER_CONCURRENCY=str(ROOM),
        )  # fmt: skip
        django.setup()
        urls = {"few": os.environ["DATABASE_URL"]}
        _prepare(tenants)
        for scene in SCENES[1:]:
            with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{scene}" TEMPLATE "few"')
            urls[scene] = server.url(scene)
        for scene in SCENES:
            _fill(urls[scene], scene, 1 if scene == "few" else each)
        took_ms = _take_turns(urls, rounds)
    p95 = {scene: statistics.quantiles(values, n=20)[-1] for scene, values in took_ms.items()}
    ratios = {scene: p95[scene] / p95["few"] for scene in SCENES[1:]}
    figures = {
        "tenants": tenants,
        "waiting": {"few": tenants, "many": tenants * each},
        "room": ROOM,
        "rounds": rounds,
        "p95_ms": {scene: round(value, 1) for scene, value in p95.items()},
        "median_ms": {
            scene: round(statistics.median(values), 1) for scene, values in took_ms.items()
        },
        "ratio_to_few": {scene: round(value, 2) for scene, value in ratios.items()},
    }
    return figures, {"ratio_to_few_max": RATIO_MAX}, max(ratios.values()) <= RATIO_MAX


def _prepare(tenants: int) -> None:
    """Tables, tenants, two targets, and the block of one of them."""
    from django.core.management import call_command
    from django.db import connection

    from jobs.clock import clock
    from jobs.lifecycle import providers
    from jobs.lifecycle import tenants as verbs
    from providers import registry
    from providers.models import Target

    call_command("migrate", verbosity=0)
    now = clock.now()
    account = registry.account("polza")
    row = providers.ensure_account(provider="polza", fingerprint=account.fingerprint, now=now)
    for model in ("open", "shut"):
        Target.objects.create(provider="polza", model=model, price=8)
    providers.block_until(
        account_id=row.pk, model="shut", until=now + timedelta(hours=6), actor=None, now=now
    )
    for number in range(tenants):
        verbs.create(slug=f"t{number}", name=f"T{number}", actor=None, now=now)
    connection.close()


def _fill(url: str, scene: str, each: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        found: dict[str, int] = dict(connection.execute("SELECT model, id FROM providers_target").fetchall())
        connection.execute("DELETE FROM jobs_tenant WHERE slug = 'studio'")
        connection.execute(
            _JOBS,
            {"each": each, "scene": scene, "open": found["open"], "shut": found["shut"]},
        )
        connection.execute("VACUUM ANALYZE")


def _take_turns(urls: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each claim."""
    import environ
    from django.db import connections, transaction

    from jobs.clock import clock
    from jobs.lifecycle import claim
    from jobs.rules import limits
    from providers import registry

    fingerprints = [registry.account("polza").fingerprint]
    took: dict[str, list[float]] = {scene: [] for scene in urls}
    bounds = limits()
    for number in range(rounds + 2):
        for scene, url in urls.items():
            connections["default"].close()
            connections["default"].settings_dict.update(_place(environ.Env.db_url_config(url)))
            connections["default"].ensure_connection()
            with transaction.atomic():
                begin = time.perf_counter()
                got = claim.claim_sends(
                    run_id=uuid.uuid4(), host="bench", room=ROOM, fingerprints=fingerprints, limits=bounds, now=clock.now()
                )  # fmt: skip
                spent = time.perf_counter() - begin
                transaction.set_rollback(True)
            assert len(got) == bounds.concurrency, f"{scene}: {len(got)} claimed"
            if number >= 2:  # the first ones read the catalogues
                took[scene].append(1000 * spent)
    return took


def _place(config: dict[str, Any]) -> dict[str, Any]:
    host = config.get("OPTIONS", {}).get("host") or config["HOST"]
    return {"NAME": config["NAME"], "HOST": host, "PORT": config["PORT"], "USER": config["USER"]}


if __name__ == "__main__":
    sys.exit(report.run("claim", __doc__.splitlines()[0], measure))
