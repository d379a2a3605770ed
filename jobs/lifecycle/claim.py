"""Claiming work: which pending jobs may be sent now, and which watched rows are due.

Admission is serialised by one transaction-scoped advisory lock, taken in a statement of its own before anything is
counted (READ COMMITTED: a later statement sees what was committed while we waited).
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection, transaction

from jobs.lifecycle import events
from jobs.models import Job, ProviderTask
from jobs.rules import Limits
from jobs.states import JobState

ADMISSION_LOCK = 0x6465736B  # "desk"

_OPEN_TARGETS = """
SELECT t.id, t.provider, t.model, t.price, t.currency, t.max_in_flight, a.id
FROM providers_target t
JOIN providers_account a ON a.provider = t.provider AND a.fingerprint = ANY(%(fingerprints)s)
WHERE t.enabled AND t.stopped_at IS NULL
  AND NOT EXISTS (
    SELECT 1 FROM providers_providerstate s
    WHERE s.account_id = a.id AND s.model IN ('', t.model)
      AND (s.state = 'paused' OR s.blocked_until > %(now)s))
  AND (
    SELECT coalesce(sum(k.estimated_cost), 0) FROM jobs_providertask k
    WHERE k.target_id = t.id AND k.charge = 'possible'
      AND (k.state = 'unknown' OR (k.state = 'accepted' AND k.armed_at <= %(late)s))
  ) < greatest(t.price, 0.0001) * %(exposure)s
"""

_IN_FLIGHT = """
SELECT target_id, tenant_id, count(*)
FROM jobs_providertask
WHERE state IN ('intent', 'sending', 'accepted') AND (armed_at IS NULL OR armed_at > %(late)s)
GROUP BY 1, 2
"""

# One probe of the partial index a tenant and target; the limit is the room that is left for them.
_PENDING = """
SELECT j.id, j.tenant_id, j.target_id
FROM unnest(%(tenants)s::bigint[], %(targets)s::bigint[], %(rooms)s::int[]) AS open(tenant_id, target_id, room)
CROSS JOIN LATERAL (
  SELECT id, tenant_id, target_id, priority, not_before FROM jobs_job
  WHERE state = 'pending' AND tenant_id = open.tenant_id AND target_id = open.target_id AND not_before <= %(now)s
    -- An earlier send that was released as free or absent, and then turned out to cost: nothing more is sent.
    AND NOT EXISTS (
      SELECT 1 FROM jobs_providertask k
      WHERE k.job_id = jobs_job.id AND k.charge IN ('possible', 'charged')
        AND k.released_by NOT IN ('person', 'standing', 'stored'))
  ORDER BY priority DESC, not_before, id
  LIMIT open.room
  FOR NO KEY UPDATE SKIP LOCKED
) j
ORDER BY j.priority DESC, j.not_before, j.id
"""

_HOLD = "SELECT EXISTS (SELECT 1 FROM jobs_hold WHERE lifted_at IS NULL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTarget:
    id: int
    provider: str
    model: str
    price: Decimal
    currency: str
    max_in_flight: int | None
    account_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A claimed job with the row that stands for its one possible POST."""

    task_id: uuid.UUID
    job_id: int
    target: OpenTarget
    created_at: datetime


def claim_sends(
    *,
    run_id: uuid.UUID,
    host: str,
    room: int,
    fingerprints: Sequence[str],
    limits: Limits,
    now: datetime,
) -> list[Intent]:
    """Write the intents of at most `room` jobs, fairly over tenants, within every limit. Often an empty list."""
    if room <= 0:
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ADMISSION_LOCK])
        cursor.execute(_HOLD)
        if cursor.fetchone() == (True,):
            return []
        late = now - timedelta(seconds=limits.poll_deadline_s)
        by_target, by_tenant = _in_flight(cursor, late)
        room = min(room, limits.concurrency - sum(by_target.values()))
        if room <= 0:
            return []
        cursor.execute(
            _OPEN_TARGETS,
            {
                "fingerprints": list(fingerprints),
                "now": now,
                "late": late,
                "exposure": limits.exposure_prices,
            },
        )
        targets = {
            row[0]: OpenTarget(**dict(zip(OpenTarget.__slots__, row, strict=True)))
            for row in cursor
        }
        picked = _pick(
            cursor, targets=targets, by_target=by_target, by_tenant=by_tenant, room=room, now=now
        )
        return _write_intents(picked, targets=targets, run_id=run_id, host=host, now=now)


def _in_flight(cursor: Any, late: datetime) -> tuple[Counter[int], Counter[int]]:
    cursor.execute(_IN_FLIGHT, {"late": late})
    by_target: Counter[int] = Counter()
    by_tenant: Counter[int] = Counter()
    for target_id, tenant_id, count in cursor.fetchall():
        by_target[target_id] += count
        by_tenant[tenant_id] += count
    return by_target, by_tenant


def _pick(
    cursor: Any,
    *,
    targets: dict[int, OpenTarget],
    by_target: Counter[int],
    by_tenant: Counter[int],
    room: int,
    now: datetime,
) -> list[tuple[int, int, int]]:
    """Deal round robin over tenants. Returns (job id, tenant id, target id)."""
    target_room = {
        target.id: room
        if target.max_in_flight is None
        else min(room, target.max_in_flight - by_target[target.id])
        for target in targets.values()
    }
    cursor.execute("SELECT id, max_in_flight FROM jobs_tenant ORDER BY id")
    tenant_room = {
        tenant_id: room if most is None else min(room, most - by_tenant[tenant_id])
        for tenant_id, most in cursor.fetchall()
    }
    pairs = [
        (tenant_id, target_id, min(free, target_room[target_id]))
        for tenant_id, free in tenant_room.items()
        if free > 0
        for target_id in target_room
        if target_room[target_id] > 0
    ]
    if not pairs:
        return []
    tenants, target_ids, rooms = (list(column) for column in zip(*pairs, strict=True))
    cursor.execute(
        _PENDING, {"tenants": tenants, "targets": target_ids, "rooms": rooms, "now": now}
    )
    queues: dict[int, deque[tuple[int, int, int]]] = {}
    for row in cursor.fetchall():
        queues.setdefault(row[1], deque()).append(row)
    # Who has least in flight goes first, so that a small tenant is not always behind a big one.
    order = deque(sorted(queues, key=lambda tenant_id: (by_tenant[tenant_id], tenant_id)))
    picked: list[tuple[int, int, int]] = []
    while order and len(picked) < room:
        tenant_id = order.popleft()
        queue = queues[tenant_id]
        while queue and target_room[queue[0][2]] <= 0:
            queue.popleft()
        if not queue or tenant_room[tenant_id] <= 0:
            continue
        job = queue.popleft()
        tenant_room[tenant_id] -= 1
        target_room[job[2]] -= 1
        picked.append(job)
        order.append(tenant_id)
    return picked


def _write_intents(
    picked: list[tuple[int, int, int]],
    *,
    targets: dict[int, OpenTarget],
    run_id: uuid.UUID,
    host: str,
    now: datetime,
) -> list[Intent]:
    if not picked:
        return []
    tasks = [
        ProviderTask(
            job_id=job_id,
            tenant_id=tenant_id,
            target_id=target_id,
            account_id=targets[target_id].account_id,
            estimated_cost=targets[target_id].price,
            currency=targets[target_id].currency,
            run_id=run_id,
            host=host,
            created_at=now,
        )
        for job_id, tenant_id, target_id in picked
    ]
    ProviderTask.objects.bulk_create(tasks)
    Job.objects.filter(pk__in=[job_id for job_id, _, _ in picked]).update(
        state=JobState.ACTIVE, reason="", reason_text=""
    )
    events.write(
        events.event(
            job_id=task.job_id,
            task_id=task.id,
            kind="intent",
            now=now,
            target=targets[task.target_id].model,
        )
        for task in tasks
    )
    return [
        Intent(task_id=task.id, job_id=task.job_id, target=targets[task.target_id], created_at=now)
        for task in tasks
    ]


# --- rows that are due ------------------------------------------------------------------------------------------------

_DUE = """
UPDATE jobs_providertask t SET {column} = %(lease)s, work_run_id = %(run)s
FROM (
  SELECT id, {column} AS due_at FROM jobs_providertask
  WHERE {column} <= %(now)s AND deaths < 3 {where}
  ORDER BY {column}
  LIMIT %(room)s
  FOR NO KEY UPDATE SKIP LOCKED
) due
WHERE t.id = due.id
RETURNING t.id, due.due_at
"""
DUE_COLUMNS = {
    "next_poll_at": "",
    "next_fetch_at": "",
    "next_look_at": "AND state = 'unknown' AND armed_at IS NOT NULL",
    "next_receipt_at": "",
}


def claim_due(
    *, column: str, run_id: uuid.UUID, room: int, lease_s: float, now: datetime
) -> list[ProviderTask]:
    """Take rows whose `column` has come. Their due time moves to the lease's end, so a dead lane's rows come back; the
    objects returned still tell when they were due."""
    if room <= 0:
        return []
    sql = _DUE.format(column=column, where=DUE_COLUMNS[column])
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            sql, {"now": now, "lease": now + timedelta(seconds=lease_s), "run": run_id, "room": room}
        )  # fmt: skip
        due_at = dict(cursor.fetchall())
    if not due_at:
        return []
    tasks = ProviderTask.objects.filter(pk__in=due_at).select_related("target", "account", "job")
    for task in tasks:
        setattr(task, column, due_at[task.pk])
    return list(tasks)
