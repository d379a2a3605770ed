"""Whether a spending limit of 100 ₽ holds at 8 ₽ a picture, whatever becomes of the sends.

`python -m bench.budget [--json] [--quick]`. Two parts, each judged by a trigger of the bench's own, which reckons from the
raw facts what is charged and possible whenever an intent is written.

Race: twenty runs claim for one tenant at once, in threads with connections of their own; what they send costs less than
its ceiling, nothing, or is lost. Again and again, with a new tenant each time.
Desk: twenty tenants at once on two clusters with four lanes, against a sandbox that refuses, loses answers, fails with and
without a charge, and comes late. The sandbox's ledger says what each of them has paid.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import django
import psycopg

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import OwnServer, own_server

if TYPE_CHECKING:
    from jobs.lifecycle.record import Fact

_KEY = "pza_race"
LIMIT, PRICE, FACTOR = Decimal(100), Decimal(8), Decimal("1.5")
CEILING = PRICE * FACTOR
RUNS = 20
JOBS = 30  # of each tenant: more than any luck with their costs could pay for
# Few enough failures that the breaker stays closed: it is the budget that must stop the sends.
FAULTS = {
    "reset_after_accept": 0.02, "reset_before_accept": 0.02, "cut_after_id": 0.02, "edge_524_after": 0.01,
    "overloaded": 0.02, "moderation": 0.03, "failed_free": 0.03, "failed_charged": 0.02, "late=20": 0.05,
    "cost_missing": 0.05, "receipt_pending": 0.1,
}  # fmt: skip

# Not by `charge`, `cost` or jobs/spending.py, which are what is judged.
_JUDGE = f"""
CREATE TABLE bench_spent (at timestamptz NOT NULL DEFAULT clock_timestamp(), tenant_id bigint NOT NULL, total numeric NOT NULL);
CREATE FUNCTION bench_total(wanted bigint) RETURNS numeric LANGUAGE sql AS $$
  SELECT coalesce(sum(CASE
    WHEN coalesce(cost_receipt, cost_poll, cost_answer) > 0 THEN coalesce(cost_receipt, cost_poll, cost_answer)
    WHEN completed_at IS NOT NULL OR stored_at IS NOT NULL
      THEN coalesce(cost_receipt, cost_poll, cost_answer, {CEILING})
    WHEN failed_at IS NOT NULL AND receipt_final_at IS NOT NULL AND cost_receipt = 0 THEN 0
    WHEN provider_id IS NULL AND failed_at IS NULL
      AND (refusal_class IS NOT NULL OR unsent_at IS NOT NULL OR absent_at IS NOT NULL) THEN 0
    ELSE {CEILING}
  END), 0) FROM jobs_providertask WHERE tenant_id = wanted
$$;
CREATE FUNCTION bench_judge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO bench_spent (tenant_id, total) SELECT n.tenant_id, bench_total(n.tenant_id)
    FROM (SELECT DISTINCT tenant_id FROM written) n;
  RETURN NULL;
END $$;
CREATE TRIGGER bench_judge AFTER INSERT ON jobs_providertask REFERENCING NEW TABLE AS written
  FOR EACH STATEMENT EXECUTE FUNCTION bench_judge();
"""  # noqa: S608  our own numbers
_MOST = "SELECT coalesce(max(total), 0), count(*) FROM bench_spent"


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    with (
        tempfile.TemporaryDirectory(prefix="budget-") as folder,
        own_server(Path(folder, "postgres")) as server,
    ):
        race = _race(server, rounds=3 if quick else 20)
        desk = _desk(server, Path(folder), within_s=60.0 if quick else 150.0)
    figures = {f"race_{name}": value for name, value in race.items()}
    figures |= {f"desk_{name}": value for name, value in desk.items()}
    limits = {
        "race_most_charged_and_possible_max": float(LIMIT),
        "race_least_used_min": float(LIMIT - CEILING),
        "race_runs_that_claimed_min": 2,
        "desk_most_charged_and_possible_max": float(LIMIT),
        "desk_most_paid_by_the_ledger_max": float(LIMIT),
        "desk_least_used_min": float(LIMIT - CEILING),
        "desk_broken_promises_max": 0,
    }
    ok = all(
        figures[name.removesuffix("_max")] <= limit
        if name.endswith("_max")
        else figures[name.removesuffix("_min")] >= limit
        for name, limit in limits.items()
        # Used up to less than one more ceiling: a limit that is never reached would prove nothing.
    )
    return figures, limits, ok


def _noon_zone() -> str:
    """A time zone where it is about noon: no day ends while we measure. The signs of these names are turned round."""
    ahead = 12 - datetime.now(UTC).hour
    return f"Etc/GMT{-ahead:+d}" if ahead else "Etc/GMT"


# --- the race ---------------------------------------------------------------------------------------------------------


def _race(server: OwnServer, *, rounds: int) -> dict[str, Any]:
    url = server.create("race")
    os.environ.update(
        DJANGO_SETTINGS_MODULE="studio.settings", DATABASE_URL=url, DEMO="1", AI_API_KEY=_KEY, PRICE_CEILING_FACTOR=str(FACTOR),
    )  # fmt: skip
    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    used, claimed = [], []
    with psycopg.connect(url, autocommit=True) as judge:
        judge.execute(_JUDGE)
        for number in range(rounds):
            tenant_id = _new_tenant(number)
            starts = Barrier(RUNS)
            with ThreadPoolExecutor(RUNS) as threads:
                each = list(threads.map(lambda run, at=starts: _run(run, at), range(RUNS)))
            claimed.append(sum(count > 0 for count in each))
            used.append(_one(judge, "SELECT bench_total(%s)", tenant_id)[0])
        most, claims = _one(judge, _MOST)
    return {
        "rounds": rounds,
        "runs": RUNS,
        "claims": claims,
        "runs_that_claimed": min(claimed),
        "most_charged_and_possible": float(most),
        "least_used": float(min(used)),
    }


def _one(connection: psycopg.Connection[Any], query: str, *values: Any) -> tuple[Any, ...]:
    row = connection.execute(query, values or None).fetchone()
    assert row is not None
    return tuple(row)


def _new_tenant(number: int) -> int:
    """With jobs; those of earlier rounds are out of the way."""
    from django.utils.timezone import now

    from jobs.lifecycle import create, tenants
    from jobs.models import Job, Tenant
    from providers.models import Account, Target
    from providers.registry import fingerprint

    Job.objects.pending().update(state="cancelled", finished_at=now())
    Account.objects.get_or_create(
        provider="polza", fingerprint=fingerprint(_KEY), defaults={"created_at": now()}
    )
    target, _ = Target.objects.get_or_create(
        provider="polza", model="race", defaults={"price": PRICE, "currency": "RUB"}
    )
    tenant: Tenant = tenants.create(
        slug=f"race-{number}", name="Race", zone=_noon_zone(), actor=None, now=now(),
        daily_limit=LIMIT if number % 2 else None, monthly_limit=None if number % 2 else LIMIT,
    )  # fmt: skip
    wanted = [create.NewJob(prompt="a lighthouse", route=[target])] * JOBS
    create.create_jobs(jobs=wanted, tenant=tenant, actor=None, now=now())
    return tenant.pk


def _run(number: int, starts: Barrier) -> int:
    """Claims, arms and learns at random what came of it, until three times nothing was to be had; how many it claimed."""
    from django.db import connections

    from jobs import rules
    from jobs.clock import clock
    from jobs.lifecycle.arm import arm
    from jobs.lifecycle.claim import claim_sends
    from jobs.lifecycle.record import record
    from providers.registry import fingerprint

    chance, run_id, claimed, idle = random.Random(number), uuid.uuid4(), 0, 0
    limits = replace(rules.limits(), concurrency=1000, exposure_prices=1000)
    starts.wait()
    try:
        while idle < 3:
            intents = claim_sends(
                run_id=run_id, host="here", room=chance.randint(1, 3), fingerprints=[fingerprint(_KEY)], limits=limits,
                now=clock.now(),
            )  # fmt: skip
            claimed += len(intents)
            idle = 0 if intents else idle + 1
            # Some die here, between claim and arm: their intents stand for money.
            alive = [intent for intent in intents if chance.random() > 0.05]
            armed = arm(
                run_id=run_id, calls={i.task_id: (30.0, 3600.0) for i in alive}, clock=clock
            ).ids
            record(facts=[_came_of(task_id, chance) for task_id in sorted(armed)])
    finally:
        connections.close_all()
    return claimed


def _came_of(task_id: uuid.UUID, chance: random.Random) -> Fact:
    from django.utils.timezone import now

    from jobs.lifecycle.record import Fact

    fact = partial(Fact, task_id=task_id, at=now(), kind="")
    lot = chance.random()
    if lot < 0.2:
        return fact(refusal_class="down")
    if lot < 0.3:
        return fact(lost=True)
    if lot < 0.4:
        return fact(provider_id=str(task_id))
    cost = Decimal(chance.randint(100, int(100 * CEILING))) / 100
    return fact(provider_id=str(task_id), completed=True, cost_poll=cost)


# --- the desk ---------------------------------------------------------------------------------------------------------

_TENANTS = f"""
from decimal import Decimal
from django.utils.timezone import now
from jobs import routes
from jobs.lifecycle import tenants
from jobs.lifecycle.create import NewJob, create_jobs
route = routes.resolve([])
for number in range({RUNS}):
    which = "daily_limit" if number % 2 else "monthly_limit"
    tenant = tenants.create(slug=f"t{{number:02}}", name=f"T {{number}}", zone="{{zone}}", actor=None, now=now(),
                            **{{which: Decimal({LIMIT})}})
    create_jobs(jobs=[NewJob(prompt="a lighthouse", route=route)] * {JOBS}, tenant=tenant, actor=None, now=now())
"""
_NEWEST = "SELECT count(*), max(created_at) > now() - interval '6 seconds' FROM jobs_providertask"
_UNDER_WAY = "SELECT count(*) FROM jobs_job WHERE state = 'active'"


def _desk(server: OwnServer, folder: Path, *, within_s: float) -> dict[str, Any]:
    with desk_on(
        server.create("desk"),
        folder,
        sandbox={"latency_fixed_s": None, "latency_median_s": 1.0, "latency_sigma": 0.5, "prepared_bytes": 20_000,
                 "default_price": str(PRICE), "faults": FAULTS},
        AI_PRICE=PRICE,
        PRICE_CEILING_FACTOR=FACTOR,
        WORKER_CONCURRENCY=40,
        WORKER_LANES=4,
        POLL_DEADLINE_SEC=10,
        POST_DEADLINE_SEC=10,
        EXPOSURE_LIMIT_PRICES=10_000,
    ) as desk:  # fmt: skip
        desk.ask(_JUDGE)
        desk.python(_TENANTS.replace("{zone}", _noon_zone()))
        desk.start_cluster()
        desk.start_cluster()
        until(desk.tasks, "the first send", 90.0)
        begin = time.monotonic()
        _until_used_up(desk, begin + within_s)
        took_s = time.monotonic() - begin
        most, claims = desk.ask(_MOST)[0]
        used = [
            row[0]
            for row in desk.ask("SELECT bench_total(id) FROM jobs_tenant WHERE slug ~ '^t[0-9]'")
        ]
        return {
            "tenants": RUNS,
            "took_s": round(took_s, 1),
            "claims": claims,
            "runs_that_sent": desk.ask("SELECT count(DISTINCT run_id) FROM jobs_providertask")[0][0],
            "most_charged_and_possible": float(most),
            "most_paid_by_the_ledger": float(max(_paid(desk).values(), default=0)),
            "least_used": float(min(used)),
            "jobs_done": desk.states().get("succeeded", 0),
            "jobs_that_wait_for_money": desk.states().get("pending", 0),
            "sends_unknown_or_late": desk.ask("SELECT count(*) FROM jobs_providertask WHERE charge = 'possible'")[0][0],
            "broken_promises": len(_wrong(desk)),
        }  # fmt: skip


def _until_used_up(desk: RealDesk, end: float) -> None:
    """Until nobody sends any more: every tenant has less left than one more send may cost."""
    least = "SELECT min(bench_total(id)) FROM jobs_tenant WHERE slug ~ '^t[0-9]'"
    while time.monotonic() < end:
        sent, lately = desk.ask(_NEWEST)[0]
        used_up = desk.ask(least)[0][0] > LIMIT - CEILING
        if sent and not lately and used_up and not desk.ask(_UNDER_WAY)[0][0]:
            return
        time.sleep(1.0)


def _paid(desk: RealDesk) -> dict[int, Decimal]:
    """By tenant, what the provider has charged and not given back."""
    tenant_of = dict(desk.ask("SELECT id::text, tenant_id FROM jobs_providertask"))
    ledger = desk.sandbox.ledger()
    correlation = {task["id"]: task["correlation"] for task in ledger["tasks"]}
    paid: defaultdict[int, Decimal] = defaultdict(Decimal)
    for charge in ledger["charges"]:
        if charge["refunded_at"] is None:
            paid[tenant_of[correlation[charge["task"]]]] += Decimal(charge["amount"])
    return paid


def _wrong(desk: RealDesk) -> list[str]:
    """Where the time is up, some sends are still looked after; a charge without a file or a case is then no breach."""
    said = [word for word in desk.wrong() if not word.startswith("a charge that is no file")]
    if said:
        print(*said, sep="\n", file=sys.stderr)
    return said


if __name__ == "__main__":
    sys.exit(
        report.run("budget", "Is a spending limit of 100 ₽ ever passed at 8 ₽ a picture?", measure)
    )
