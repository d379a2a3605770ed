"""Promise P6: nothing is stuck. One query lists every open row that nobody and nothing will come back to.

An open row is fine while it has a due time at most LATE_S past, a live lane at it, an open case, or (a pending job) a
reason to wait that can be computed. Reads only; `now` is the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from jobs import spending
from jobs.lanes import DEAD_AFTER_S
from jobs.models import Tenant
from jobs.querysets import COSTLY
from jobs.rooms import rooms
from jobs.rules import ABSENCE_MARGIN_S, FETCH_TRIES
from jobs.states import BLOCKING_CASES
from providers import registry
from providers.models import Account, Target

LATE_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """`id` is a job's or a callback's number or a task's uuid; `code` is a key of WHY."""

    kind: Literal["job", "task", "callback"]
    id: str
    code: str

    @property
    def why(self) -> str:
        """The reason as a sentence, in the language of whoever reads."""
        return _(WHY[self.code])


WHY = {
    "intent_left": gettext_noop("was about to be sent by a lane that is gone"),
    "send_left": gettext_noop("is being sent for longer than any call may take"),
    "no_poll": gettext_noop("is at the provider and nobody will ask about it"),
    "no_fetch": gettext_noop("is made and nobody will fetch it"),
    "no_look": gettext_noop("has an unknown outcome and nobody will look it up"),
    "no_receipt": gettext_noop("has failed and nobody will ask what it cost"),
    "undecided": gettext_noop("has facts that nobody has decided"),
    "overdue": gettext_noop("was due long ago and nobody came"),
    "nothing_under_way": gettext_noop("is active with nothing under way"),
    "not_released": gettext_noop("is active although its last send is settled"),
    "no_case": gettext_noop("needs a person, but no open case says so"),
    "no_key": gettext_noop("waits for a provider that no key is set for"),
    "not_sent": gettext_noop("could be sent and nobody sends it"),
    "not_told": gettext_noop("was due long ago and nobody told the other program"),
}

# The parts of `waits` are the SQL twin of phases.why_waiting, with the exposure brake of lifecycle/claim.py. While sends
# of the same target go out, a job is behind others: with a backlog the limits are full but for moments.
#
# count_deaths dates undecided_since back to created_at, so that age tells nothing; then only a living lane counts.
_OFFENDERS = f"""
WITH live AS (
  SELECT run_id FROM jobs_lane WHERE run_id IS NOT NULL AND heartbeat_at > %(beat)s
),
flying AS (
  SELECT target_id, tenant_id FROM jobs_providertask
  WHERE state IN ('intent', 'sending', 'accepted') AND (armed_at IS NULL OR armed_at > %(flight)s)
),
closed_target AS (
  SELECT t.id FROM providers_target t
  WHERE NOT t.enabled OR t.stopped_at IS NOT NULL
    OR t.id = ANY(%(shut)s)
    OR t.max_in_flight <= (SELECT count(*) FROM flying f WHERE f.target_id = t.id)
    OR (
      SELECT coalesce(sum(k.estimated_cost), 0) FROM jobs_providertask k
      WHERE k.target_id = t.id AND k.charge = 'possible'
        AND (k.state = 'unknown' OR (k.state = 'accepted' AND k.armed_at <= %(flight)s))
    ) >= greatest(t.price, 0.0001) * %(exposure)s
    OR EXISTS (
      SELECT FROM jobs_providertask k WHERE k.target_id = t.id AND k.created_at > %(late)s)
),
full_tenant AS (
  SELECT n.id FROM jobs_tenant n
  WHERE n.max_in_flight <= (SELECT count(*) FROM flying f WHERE f.tenant_id = n.id)
),
-- What a spending limit holds: the pairs of tenant and target that it leaves no room for.
held AS (
  SELECT * FROM unnest(%(held_tenants)s::bigint[], %(held_targets)s::bigint[]) AS h(tenant_id, target_id)
),
keyed AS (
  SELECT provider FROM providers_account WHERE fingerprint = ANY(%(fingerprints)s)
),
waits AS (
  SELECT EXISTS (SELECT FROM jobs_hold WHERE lifted_at IS NULL)
      OR (SELECT count(*) FROM flying) >= %(concurrency)s AS every_send
),
task AS (
  SELECT t.id, CASE
    WHEN t.undecided_since > t.created_at AND t.undecided_since <= %(late)s THEN 'undecided'
    WHEN t.undecided_since <= t.created_at AND NOT EXISTS (SELECT FROM live) THEN 'undecided'
    WHEN t.undecided_since IS NOT NULL THEN NULL
    WHEN t.state IN ('intent', 'sending') AND t.run_id IN (SELECT run_id FROM live) THEN NULL
    WHEN t.state = 'intent' AND t.created_at <= %(late)s THEN 'intent_left'
    WHEN t.state = 'sending'
      AND t.send_not_after + make_interval(secs => coalesce(t.call_deadline_s, 0) + %(margin)s) <= %(late)s
      THEN 'send_left'
    WHEN least(t.next_poll_at, t.next_fetch_at, t.next_look_at, t.next_receipt_at) <= %(late)s THEN 'overdue'
    WHEN t.state = 'accepted' AND t.next_poll_at IS NULL THEN 'no_poll'
    WHEN t.state = 'completed' AND t.next_fetch_at IS NULL AND NOT settled.by_person
      AND NOT (t.released_by IN ('person', 'standing') AND t.fetch_failures >= %(tries)s) THEN 'no_fetch'
    WHEN t.released_by IN ('person', 'standing') OR settled.by_person THEN NULL
    WHEN t.state = 'unknown' AND t.next_look_at IS NULL THEN 'no_look'
    WHEN t.state = 'failed' AND t.charge = 'possible' AND t.next_receipt_at IS NULL THEN 'no_receipt'
  END AS code
  FROM jobs_providertask t
  CROSS JOIN LATERAL (
    SELECT EXISTS (
      SELECT FROM jobs_case c WHERE c.task_id = t.id AND c.resolved_at IS NOT NULL AND c.resolution <> 'evidence'
    ) AS by_person
  ) settled
  WHERE (t.state IN ('intent', 'sending', 'accepted', 'completed', 'unknown')
      OR (t.state = 'failed' AND t.charge = 'possible')
      OR t.undecided_since IS NOT NULL
      OR t.next_poll_at IS NOT NULL OR t.next_fetch_at IS NOT NULL
      OR t.next_look_at IS NOT NULL OR t.next_receipt_at IS NOT NULL)
    AND (t.work_run_id IS NULL OR t.work_run_id NOT IN (SELECT run_id FROM live))
    AND NOT EXISTS (SELECT FROM jobs_case c WHERE c.task_id = t.id AND c.resolved_at IS NULL)
),
job AS (
  SELECT j.id, CASE
    WHEN j.state = 'manual' THEN 'no_case'
    WHEN j.state = 'active' AND b.id IS NULL THEN 'nothing_under_way'
    WHEN j.state = 'active' AND (
        b.state IN ('stored', 'refused', 'unsent') OR (b.state = 'failed' AND b.charge IN ('none', 'refunded')))
      THEN 'not_released'
    WHEN j.state <> 'pending' OR j.not_before > %(late)s OR waits.every_send THEN NULL
    WHEN j.target_id IN (SELECT id FROM closed_target) OR j.tenant_id IN (SELECT id FROM full_tenant) THEN NULL
    WHEN (j.tenant_id, j.target_id) IN (SELECT tenant_id, target_id FROM held) THEN NULL
    WHEN x.provider NOT IN (SELECT provider FROM keyed) THEN 'no_key'
    -- An earlier send turned out to cost: the claim passes the job over, and that send is looked after as a row of its own.
    WHEN EXISTS (SELECT FROM jobs_providertask k WHERE k.job_id = j.id AND {COSTLY}) THEN NULL
    ELSE 'not_sent'
  END AS code
  FROM jobs_job j
  CROSS JOIN waits
  JOIN providers_target x ON x.id = j.target_id
  LEFT JOIN jobs_providertask b ON b.job_id = j.id AND b.blocks_send
  WHERE j.state IN ('pending', 'active', 'manual')
    AND NOT EXISTS (
      SELECT FROM jobs_case c WHERE c.job_id = j.id AND c.resolved_at IS NULL AND c.kind = ANY(%(blocking)s))
    AND NOT EXISTS (
      SELECT FROM jobs_providertask t WHERE t.job_id = j.id AND t.undecided_since IS NOT NULL)
)
SELECT 'job', id::text, code FROM job WHERE code IS NOT NULL
UNION ALL
SELECT 'task', id::text, code FROM task WHERE code IS NOT NULL
UNION ALL
-- While its receiver is being tried, a callback is behind others (lifecycle/callbacks.py).
SELECT 'callback', c.id::text, 'not_told' FROM jobs_callback c
WHERE c.delivered_at IS NULL AND c.given_up_at IS NULL AND c.not_before <= %(late)s
  AND (c.leased_until IS NULL OR c.leased_until <= %(late)s)
  AND NOT EXISTS (
    SELECT FROM jobs_callback x WHERE x.tenant_id = c.tenant_id AND x.host = c.host
      AND (x.tried_at > %(late)s OR x.leased_until > %(now)s))
ORDER BY 1, 3, 2
"""  # noqa: S608  COSTLY is our own text


def stuck(*, now: datetime) -> list[Stuck]:
    """Every row that breaks P6, jobs first; an empty list where all is well."""
    fingerprints = _fingerprints()
    flight = now - timedelta(seconds=settings.POLL_DEADLINE_SEC)
    held = _held(now)
    values: dict[str, Any] = {
        "held_tenants": [tenant_id for tenant_id, _ in held],
        "held_targets": [target_id for _, target_id in held],
        "now": now,
        "late": now - timedelta(seconds=LATE_S),
        "beat": now - timedelta(seconds=DEAD_AFTER_S),
        "flight": flight,
        "margin": ABSENCE_MARGIN_S,
        "tries": FETCH_TRIES,
        "concurrency": settings.WORKER_CONCURRENCY,
        "exposure": settings.EXPOSURE_LIMIT_PRICES,
        "fingerprints": fingerprints,
        "shut": _shut(fingerprints, late=flight, now=now),
        "blocking": [kind.value for kind in BLOCKING_CASES],
    }
    with connection.cursor() as cursor:
        cursor.execute(_OFFENDERS, values)
        return [Stuck(kind=kind, id=pk, code=code) for kind, pk, code in cursor.fetchall()]


def _shut(fingerprints: list[str], *, late: datetime, now: datetime) -> list[int]:
    """Targets of which a breaker, a block, a pause or a used-up window takes nothing now."""
    accounts = dict(
        Account.objects.filter(fingerprint__in=fingerprints).values_list("provider", "pk")
    )
    targets = {
        pk: (accounts[provider], model)
        for pk, provider, model in Target.objects.values_list("pk", "provider", "model")
        if provider in accounts
    }
    found = rooms(targets=targets, late=late, patience_s=0.0, now=now)
    return [pk for pk in targets if found.left(pk) == 0]


def _held(now: datetime) -> list[tuple[int, int]]:
    """Tenants and targets of which a spending limit takes nothing more now."""
    limited = Tenant.objects.exclude(daily_limit=None, monthly_limit=None)
    budgets = spending.budgets(limited, factor=settings.PRICE_CEILING_FACTOR, now=now)
    prices = Target.objects.values_list("pk", "price", "currency")
    return [
        (tenant_id, pk)
        for tenant_id, budget in budgets.items()
        for pk, price, currency in prices
        if budget.holds(price=price, currency=currency, factor=settings.PRICE_CEILING_FACTOR)
    ]


def _fingerprints() -> list[str]:
    """Of the keys that are set: a lane sends with no others."""
    found = []
    for name in registry.ADAPTERS:
        try:
            found.append(registry.account(name).fingerprint)
        except ImproperlyConfigured:
            continue
    return found
