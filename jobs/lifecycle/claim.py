"""Claiming work: which pending jobs may be sent now, and which watched rows are due.

Admission is serialised by one transaction-scoped advisory lock, taken in a statement of its own before anything is
counted (READ COMMITTED: a later statement sees what was committed while we waited).
"""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from jobs import spending
from jobs.lifecycle import events, providers
from jobs.lifecycle.deal import Deal, OpenTarget, Row, Turns
from jobs.models import Job, ProviderTask, Tenant
from jobs.querysets import COSTLY
from jobs.rooms import rooms
from jobs.rules import Limits
from jobs.states import JobState
from providers.models import Account, Target

ADMISSION_LOCK = 0x6465736B  # "desk"
SHARE_READ = 4  # of each tenant's even share of the places, so many times are read at first

# Also those that a provider called wrong (`stopped`): nothing is sent there, but their jobs may go on along their route.
_TARGETS = """
SELECT t.stopped_at IS NOT NULL, t.id, t.provider, t.model, t.price, t.currency, t.max_in_flight, a.id
FROM providers_target t
JOIN providers_account a ON a.provider = t.provider AND a.fingerprint = ANY(%(fingerprints)s)
WHERE t.enabled
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

# One probe of the partial index a tenant and target; the limit is the room that is left for them. Where the target is shut
# (`elsewhere`), only jobs whose route goes on to an open one, over an index of its own.
_PENDING = f"""
SELECT j.id, j.tenant_id, j.target_id, j.route
FROM unnest(%(tenants)s::bigint[], %(targets)s::bigint[], %(rooms)s::int[], %(elsewhere)s::boolean[])
  AS open(tenant_id, target_id, room, elsewhere)
CROSS JOIN LATERAL (
  SELECT id, tenant_id, target_id, priority, not_before, route FROM jobs_job
  WHERE state = 'pending' AND tenant_id = open.tenant_id AND target_id = open.target_id AND not_before <= %(now)s
    AND (NOT open.elsewhere OR (
      cardinality(route) > 1 AND route[array_position(route, target_id) + 1:] && %(open)s::bigint[]))
    -- An earlier send that was released as free or absent, and then turned out to cost: nothing more is sent.
    AND NOT EXISTS (SELECT 1 FROM jobs_providertask k WHERE k.job_id = jobs_job.id AND {COSTLY})
  ORDER BY priority DESC, not_before, id
  LIMIT open.room
  FOR NO KEY UPDATE SKIP LOCKED
) j
ORDER BY j.priority DESC, j.not_before, j.id
"""  # noqa: S608  COSTLY is our own text

_HOLD = "SELECT EXISTS (SELECT 1 FROM jobs_hold WHERE lifted_at IS NULL)"


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
            _TARGETS,
            {
                "fingerprints": list(fingerprints),
                "now": now,
                "late": late,
                "exposure": limits.exposure_prices,
            },
        )
        targets: dict[int, OpenTarget] = {}
        stopped: dict[int, OpenTarget] = {}
        for is_stopped, *row in cursor:
            target = OpenTarget(**dict(zip(OpenTarget.__slots__, row, strict=True)))
            (stopped if is_stopped else targets)[target.id] = target
        found = rooms(
            targets={target.id: (target.account_id, target.model) for target in targets.values()},
            late=late,
            patience_s=limits.patience_s,
            now=now,
        )
        deal = Deal(
            targets=targets,
            stopped=stopped,
            rooms=found,
            by_target=by_target,
            room=room,
            fallback_on=limits.fallback_on,
            price_factor=limits.price_ceiling_factor,
        )
        picked = _pick(cursor, deal=deal, by_tenant=by_tenant, room=room, now=now)
        intents = _write_intents(
            picked, targets=targets | stopped, run_id=run_id, host=host, now=now
        )
        for intent in intents:
            if intent.target.id in found.probes:
                # Where somebody's probe is on its way after all, arm holds this one back.
                providers.take_probe(
                    task_id=intent.task_id, account_id=intent.target.account_id, model=intent.target.model, now=now
                )  # fmt: skip
        return intents


def _in_flight(cursor: Any, late: datetime) -> tuple[Counter[int], Counter[int]]:
    cursor.execute(_IN_FLIGHT, {"late": late})
    by_target: Counter[int] = Counter()
    by_tenant: Counter[int] = Counter()
    for target_id, tenant_id, count in cursor.fetchall():
        by_target[target_id] += count
        by_tenant[tenant_id] += count
    return by_target, by_tenant


@dataclass(frozen=True, slots=True)
class _Picked:
    """`from_target` is where the job wanted to go; another than `target_id` where that is shut."""

    job_id: int
    tenant_id: int
    target_id: int
    from_target: int


class _Waiting:
    """The jobs that may go now, read and locked; each is given out once."""

    def __init__(
        self,
        cursor: Any,
        deal: Deal,
        opened: Sequence[int],
        free: Mapping[int, int],
        now: datetime,
    ) -> None:
        self._cursor, self._opened, self._free, self._now = cursor, opened, free, now
        self._left = {target_id: deal.left(target_id) for target_id in opened}
        self._shut = sorted(deal.shut)
        self._given: set[int] = set()

    def read(self, most: Mapping[int, int]) -> dict[int, deque[Row]]:
        """By tenant, at most so many of each of its targets, the next one first."""
        pairs = [
            (tenant_id, target_id, min(limit, left), False)
            for tenant_id, limit in most.items()
            for target_id, left in self._left.items()
        ]
        # Where they go depends on each one's route: all that could are read.
        everywhere = sum(self._left.values())
        pairs += [
            (tenant_id, target_id, everywhere, True)
            for tenant_id in most
            for target_id in self._shut
        ]
        tenants, targets, rooms_, elsewhere = (list(column) for column in zip(*pairs, strict=True))
        self._cursor.execute(
            _PENDING,
            {
                "tenants": tenants, "targets": targets, "rooms": rooms_, "elsewhere": elsewhere, "open": self._opened,
                "now": self._now,
            },
        )  # fmt: skip
        queues: dict[int, deque[Row]] = {}
        for row in self._cursor.fetchall():
            if row[0] not in self._given:
                self._given.add(row[0])
                queues.setdefault(row[1], deque()).append(row)
        return queues


def _pick(
    cursor: Any, *, deal: Deal, by_tenant: Counter[int], room: int, now: datetime
) -> list[_Picked]:
    """Deal round robin over tenants by weight."""
    opened = deal.open()
    all_tenants = {tenant.pk: tenant for tenant in Tenant.objects.order_by("pk")}
    tenant_room = {
        tenant.pk: room
        if tenant.max_in_flight is None
        else min(room, tenant.max_in_flight - by_tenant[tenant.pk])
        for tenant in all_tenants.values()
    }
    free = {tenant_id: most for tenant_id, most in tenant_room.items() if most > 0}
    if not free or not opened:
        return []
    # Of a tenant more than its likely share is read only once that is used up: else each claim would read and lock as many
    # rows as there are places, of every tenant.
    share = -(-SHARE_READ * room // len(free)) + 1
    waiting = _Waiting(cursor, deal, opened, free, now)
    queues = waiting.read({tenant_id: min(most, share) for tenant_id, most in free.items()})
    more = {tenant_id for tenant_id, most in free.items() if most > share}
    # Counted now, after the lock and after the rows: what another claim has promised is in it.
    deal.budgets = spending.budgets(
        [all_tenants[tenant_id] for tenant_id in queues],
        factor=deal.price_factor,
        now=now,
        keep=True,
    )
    turns = Turns({tenant_id: all_tenants[tenant_id].weight for tenant_id in queues}, by_tenant=by_tenant, now=now)  # fmt: skip
    picked: list[_Picked] = []
    while queues and len(picked) < room:
        tenant_id = turns.next(queues)
        queue = queues[tenant_id]
        goes_to = None
        while queue and (goes_to := deal.goes_to(queue[0])) is None:
            queue.popleft()
        if not queue and tenant_id in more and turns.got(tenant_id):
            more.discard(tenant_id)
            queue.extend(waiting.read({tenant_id: free[tenant_id]}).get(tenant_id, ()))
            continue
        if not queue or goes_to is None or tenant_room[tenant_id] <= 0:
            del queues[tenant_id]
            continue
        job_id, _tenant, target_id, _route = queue.popleft()
        tenant_room[tenant_id] -= 1
        deal.take(tenant_id, goes_to)
        turns.took(tenant_id)
        picked.append(_Picked(job_id, tenant_id, goes_to, target_id))
    return picked


def _write_intents(
    picked: list[_Picked],
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
            job_id=one.job_id,
            tenant_id=one.tenant_id,
            target_id=one.target_id,
            account_id=targets[one.target_id].account_id,
            estimated_cost=targets[one.target_id].price,
            currency=targets[one.target_id].currency,
            run_id=run_id,
            host=host,
            created_at=now,
        )
        for one in picked
    ]
    ProviderTask.objects.bulk_create(tasks)
    active = {"state": JobState.ACTIVE, "reason": "", "reason_text": ""}
    Job.objects.filter(pk__in=[one.job_id for one in picked]).update(**active)
    moved = [one for one in picked if one.target_id != one.from_target]
    for one in moved:
        Job.objects.filter(pk=one.job_id).update(target_id=one.target_id)
    events.write(
        events.event(
            job_id=one.job_id,
            kind="switched",
            now=now,
            target=targets[one.target_id].model,
            from_target=targets[one.from_target].model,
        )
        for one in moved
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
    "next_look_at": "AND (state = 'unknown' OR absent_at IS NOT NULL) AND armed_at IS NOT NULL",
    "next_receipt_at": "",
}


# Long columns that no stage reads.
_NOT_FOR_STAGES = ("evidence", "candidates", "job__prompt", "job__original_prompt", "job__params")  # fmt: skip


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
    tasks = list(
        ProviderTask.objects.filter(pk__in=due_at).select_related("job").defer(*_NOT_FOR_STAGES)
    )
    # A handful of rows that hundreds of tasks share.
    targets = Target.objects.defer("capabilities").in_bulk({task.target_id for task in tasks})
    accounts = Account.objects.in_bulk({task.account_id for task in tasks})
    for task in tasks:
        task.target, task.account = targets[task.target_id], accounts[task.account_id]
        setattr(task, column, due_at[task.pk])
        task.claimed_at = now
    return tasks
