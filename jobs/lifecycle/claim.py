"""Claiming work: which pending jobs may be sent now, and which watched rows are due.

Admission is serialised by one transaction-scoped advisory lock, taken in a statement of its own before anything is
counted (READ COMMITTED: a later statement sees what was committed while we waited).
"""

from __future__ import annotations

import random
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import connection, transaction

from jobs import spending
from jobs.budgets import Budget, ceiling
from jobs.lifecycle import events, providers
from jobs.models import Job, ProviderTask, Tenant
from jobs.querysets import COSTLY
from jobs.rooms import Rooms, rooms
from jobs.rules import Limits
from jobs.states import JobState

ADMISSION_LOCK = 0x6465736B  # "desk"

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
        deal = _Deal(
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


_Row = tuple[int, int, int, list[int]]  # job, tenant, target, route


@dataclass(frozen=True, slots=True)
class _Picked:
    """`from_target` is where the job wanted to go; another than `target_id` where that is shut."""

    job_id: int
    tenant_id: int
    target_id: int
    from_target: int


class _Deal:
    """What is left of the targets, and where a job can go."""

    def __init__(
        self,
        *,
        targets: dict[int, OpenTarget],
        stopped: Collection[int],
        rooms: Rooms,
        by_target: Counter[int],
        room: int,
        fallback_on: Collection[str],
        price_factor: float,
    ) -> None:
        self.price_factor = price_factor
        self.budgets: dict[int, Budget] = {}
        self._targets = targets
        self._taken: defaultdict[int, Decimal] = defaultdict(Decimal)  # tenant -> ceilings dealt
        self._rooms = rooms
        self._room = {
            target.id: room
            if target.max_in_flight is None
            else min(room, target.max_in_flight - by_target[target.id])
            for target in targets.values()
        }
        self.shut = {
            target_id for target_id in targets if rooms.goes_elsewhere(target_id, fallback_on)
        }
        if "refused" in fallback_on:
            self.shut |= set(stopped)

    def left(self, target_id: int) -> int:
        most = self._rooms.left(target_id)
        here = self._room.get(target_id, 0)
        return here if most is None else min(here, most)

    def open(self) -> list[int]:
        return [target_id for target_id in self._room if self.left(target_id) > 0]

    def goes_to(self, row: _Row) -> int | None:
        """The job's own target; where that is shut, the next of its route that takes something. None: it waits.

        A budget never sends a job elsewhere: it waits for the money.
        """
        _job, tenant_id, target_id, route = row
        if target_id not in self.shut:
            to = target_id if self.left(target_id) > 0 else None
        else:
            after = route[route.index(target_id) + 1 :]
            to = next(
                (other for other in after if other not in self.shut and self.left(other) > 0), None
            )
        return to if to is not None and self._pays(tenant_id, to) else None

    def _pays(self, tenant_id: int, target_id: int) -> bool:
        target = self._targets[target_id]
        held = self.budgets[tenant_id].holds(
            price=target.price,
            currency=target.currency,
            factor=self.price_factor,
            taken=self._taken[tenant_id],
        )
        return held is None

    def take(self, tenant_id: int, target_id: int) -> None:
        self._room[target_id] -= 1
        self._rooms.take(target_id)
        self._taken[tenant_id] += ceiling(self._targets[target_id].price, self.price_factor)


class _Turns:
    """Whose turn it is: who has got least for its weight in this deal; then who has least in flight for it, so that a small
    tenant is not always behind a big one.

    Among equals lots are drawn, by weight: with fewer places than tenants, any fixed order would serve the same ones for
    ever. By the clock, so that a simulated run can be repeated.
    """

    def __init__(
        self, weights: Mapping[int, int], *, by_tenant: Counter[int], now: datetime
    ) -> None:
        lots = random.Random(now.timestamp())  # noqa: S311  no secret
        self._weights = weights
        self._got: Counter[int] = Counter()
        # The least of such lots falls to each with a chance of its share of the weights.
        self._after = {
            tenant_id: (by_tenant[tenant_id] / weight, lots.expovariate(weight))
            for tenant_id, weight in weights.items()
        }

    def next(self, waiting: Collection[int]) -> int:
        return min(
            waiting,
            key=lambda tenant_id: (self._got[tenant_id] / self._weights[tenant_id], *self._after[tenant_id]),
        )  # fmt: skip

    def took(self, tenant_id: int) -> None:
        self._got[tenant_id] += 1


def _pick(
    cursor: Any, *, deal: _Deal, by_tenant: Counter[int], room: int, now: datetime
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
    asked = [(target_id, deal.left(target_id), False) for target_id in opened]
    if opened:
        asked += [(target_id, room, True) for target_id in sorted(deal.shut)]
    pairs = [
        (tenant_id, target_id, min(free, left), elsewhere)
        for tenant_id, free in tenant_room.items()
        if free > 0
        for target_id, left, elsewhere in asked
    ]
    if not pairs:
        return []
    tenants, target_ids, most, elsewhere = (list(column) for column in zip(*pairs, strict=True))
    cursor.execute(
        _PENDING,
        {
            "tenants": tenants,
            "targets": target_ids,
            "rooms": most,
            "elsewhere": elsewhere,
            "open": opened,
            "now": now,
        },
    )
    queues: dict[int, deque[_Row]] = {}
    for row in cursor.fetchall():
        queues.setdefault(row[1], deque()).append(row)
    # Counted now, after the lock and after the rows: what another claim has promised is in it.
    deal.budgets = spending.budgets(
        [all_tenants[tenant_id] for tenant_id in queues],
        factor=deal.price_factor,
        now=now,
        keep=True,
    )
    turns = _Turns({tenant_id: all_tenants[tenant_id].weight for tenant_id in queues}, by_tenant=by_tenant, now=now)  # fmt: skip
    picked: list[_Picked] = []
    while queues and len(picked) < room:
        tenant_id = turns.next(queues)
        queue = queues[tenant_id]
        goes_to = None
        while queue and (goes_to := deal.goes_to(queue[0])) is None:
            queue.popleft()
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
_NOT_FOR_STAGES = ("evidence", "candidates", "job__prompt", "job__original_prompt", "job__params", "target__capabilities")  # fmt: skip


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
    tasks = (
        ProviderTask.objects.filter(pk__in=due_at)
        .select_related("target", "account", "job")
        .defer(*_NOT_FOR_STAGES)
    )
    for task in tasks:
        setattr(task, column, due_at[task.pk])
        task.claimed_at = now
    return list(tasks)
