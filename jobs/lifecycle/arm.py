"""Arming: the last look at our rows before the socket opens."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import connection, transaction

from jobs.clock import Clock
from jobs.lifecycle import events
from jobs.querysets import COSTLY
from jobs.rooms import MAY_ARM
from jobs.rules import SEND_WINDOW_S

# Guarded by everything that could have changed since the claim. A cancel and a dead lane's reconcile update the same
# row first or wait for it, so exactly one of them wins.
_ARM = f"""
UPDATE jobs_providertask t
SET armed_at = %(now)s, send_not_after = %(fence)s, call_deadline_s = d.deadline, watch_until = %(now)s + d.retention,
  webhook = t.id = ANY(%(hooked)s)
FROM unnest(%(ids)s::uuid[], %(deadlines)s::float8[], %(retentions)s::float8[]) AS r(id, deadline, retention_s)
CROSS JOIN LATERAL (SELECT r.id, r.deadline, make_interval(secs => r.retention_s) AS retention) d
JOIN jobs_providertask self ON self.id = d.id
JOIN jobs_job j ON j.id = self.job_id
JOIN providers_target g ON g.id = self.target_id
WHERE t.id = d.id
  AND t.run_id = %(run)s AND t.blocks_send
  AND t.armed_at IS NULL AND t.unsent_at IS NULL
  AND j.state = 'active'
  AND g.enabled AND g.stopped_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM jobs_hold WHERE lifted_at IS NULL)
  AND {MAY_ARM}
  -- As in the claim: an earlier send may have turned out to cost in the meantime.
  AND NOT EXISTS (SELECT 1 FROM jobs_providertask k WHERE k.job_id = j.id AND k.id <> t.id AND {COSTLY})
RETURNING t.id, t.job_id
"""  # noqa: S608  MAY_ARM and COSTLY are our own text


class Armed(NamedTuple):
    """`send_not_after`: on the boot clock, the moment after which none of `ids` may start; on the wall that is `at` plus
    SEND_WINDOW_S."""

    ids: set[uuid.UUID]
    send_not_after: float
    at: datetime


def arm(
    *,
    run_id: uuid.UUID,
    calls: Mapping[uuid.UUID, tuple[float, float]],
    clock: Clock,
    hooked: Collection[uuid.UUID] = (),
) -> Armed:
    """intent -> sending for the tasks that may still be sent; `calls` maps id to (deadline_s, retention_s);
    `hooked` are those that carry a webhook's address.

    Both moments come from one reading, the boot clock first: whatever stalls in between makes the fence earlier, never
    later. A task that is not returned must not be sent. If this raises, nothing may be sent: the COMMIT's answer may be
    lost.
    """
    ids: Sequence[uuid.UUID] = sorted(calls)
    boot, now = clock.both()
    with transaction.atomic(), connection.cursor() as cursor:
        # Lock in id order first: the UPDATE itself promises no order.
        cursor.execute(
            "SELECT id FROM jobs_providertask WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE",
            [list(ids)],
        )
        cursor.execute(
            _ARM,
            {
                "ids": list(ids),
                "deadlines": [calls[task_id][0] for task_id in ids],
                "retentions": [calls[task_id][1] for task_id in ids],
                "now": now,
                "fence": now + timedelta(seconds=SEND_WINDOW_S),
                "run": run_id,
                "hooked": list(hooked),
            },
        )
        armed = cursor.fetchall()
        events.write(
            events.event(job_id=job_id, task_id=task_id, kind="armed", now=now)
            for task_id, job_id in armed
        )
    return Armed({task_id for task_id, _ in armed}, boot + SEND_WINDOW_S, now)
