"""Recovering what dead lanes left: intents, sends without an answer, rows at work, facts nobody decided."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from jobs.evidence import CASE_GRACE_S
from jobs.lifecycle.claim import DUE_COLUMNS
from jobs.lifecycle.record import Fact, record
from jobs.models import ProviderTask
from jobs.policy import LANE_DIED
from jobs.rules import ABSENCE_MARGIN_S
from jobs.states import TaskState

UNDECIDED_S = 5.0

# A send is over when its fence, its deadline and a margin have passed, whoever held it. Earlier an answer may still be
# on its way to a lane that lives, or into a dead one's spool.
_OVERDUE_SENDS = """
SELECT id FROM jobs_providertask
WHERE state = 'sending' AND send_not_after + make_interval(secs => coalesce(call_deadline_s, 0) + %(margin)s) <= %(now)s
ORDER BY id LIMIT 500
FOR NO KEY UPDATE SKIP LOCKED
"""


def withdraw_dead_intents(*, live: Collection[UUID], now: datetime) -> set[int]:
    """Intents of runs that are no more become unsent. An arm by a run that was only slow either came first, and then
    the row is armed, or finds it withdrawn."""
    dead = ProviderTask.objects.filter(state=TaskState.INTENT, unsent_at__isnull=True).exclude(
        run_id__in=list(live)
    )
    ids = list(dead.order_by("pk").values_list("pk", flat=True)[:500])
    with transaction.atomic():
        locked = list(
            ProviderTask.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(pk__in=ids, armed_at__isnull=True, unsent_at__isnull=True)
            .order_by("pk")
            .values_list("pk", flat=True)
        )
        return record(
            facts=[
                Fact(
                    task_id=pk,
                    at=now,
                    kind="unsent",
                    decides=True,
                    unsent=True,
                    unsent_reason=LANE_DIED,
                    ours=True,
                )
                for pk in locked
            ]
        )


def declare_lost(*, now: datetime) -> set[int]:
    """Sends whose answer can't come any more: outcome unknown.

    Under their locks: an answer that is recorded after all at this moment is not written over with "unknown".
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_OVERDUE_SENDS, {"margin": ABSENCE_MARGIN_S, "now": now})
            ids = [row[0] for row in cursor.fetchall()]
        return record(
            facts=[
                Fact(
                    task_id=pk, at=now, kind="lost", decides=True, lost=True, next_look_at=now,
                    failure_class="unknown", failure_text="The worker died or stood still during the send.",
                    data={"class": "unknown", "reason": "the worker died or stood still during the send"},
                )
                for pk in ids
            ]
        )  # fmt: skip


# Whoever worked at the rows is gone: what it had put off to the end of its lease is due at once.
_AT_WORK = """
SELECT id FROM jobs_providertask
WHERE work_run_id IS NOT NULL AND {whose}
ORDER BY id FOR NO KEY UPDATE
"""
_GIVE_BACK = """
UPDATE jobs_providertask
SET work_run_id = NULL, deaths = deaths + %(died)s,
  undecided_since = CASE WHEN %(died)s > 0 THEN created_at ELSE undecided_since END, {columns}
WHERE id = ANY(%(ids)s)
"""
_COLUMNS = ", ".join(
    f"{column} = CASE WHEN {column} BETWEEN %(now)s AND %(leases)s THEN %(now)s ELSE {column} END"
    for column in DUE_COLUMNS
)
LONGEST_LEASE_S = 200.0


def hand_back(*, run_id: UUID, now: datetime) -> None:
    """A stopping lane gives back the rows it was working at; no death is counted."""
    _give_back("work_run_id = %(run)s", {"run": run_id, "died": 0}, now=now)


def count_deaths(*, live: Collection[UUID], now: datetime) -> None:
    """Rows that a dead run was polling, fetching or looking up: one death more, due for the next."""
    _give_back("NOT work_run_id = ANY(%(live)s::uuid[])", {"live": list(live), "died": 1}, now=now)


def _give_back(whose: str, values: dict[str, Any], *, now: datetime) -> None:
    leases = now + timedelta(seconds=LONGEST_LEASE_S)
    with transaction.atomic(), connection.cursor() as cursor:
        # Lock in id order first: the UPDATE itself promises no order.
        cursor.execute(_AT_WORK.format(whose=whose), values)
        ids = [row[0] for row in cursor.fetchall()]
        cursor.execute(
            _GIVE_BACK.format(columns=_COLUMNS),
            {"now": now, "leases": leases, "ids": ids, **values},
        )


def undecided_jobs(*, now: datetime) -> set[int]:
    """Jobs whose facts nobody has decided for a while."""
    waiting = ProviderTask.objects.filter(undecided_since__lte=now - timedelta(seconds=UNDECIDED_S))
    return set(waiting.order_by("undecided_since").values_list("job_id", flat=True)[:500])


# What evidence.overdue says of one send. A look that hangs, or a history that nobody can read, must hold up no person.
_OVERDUE_LOOKS = """
SELECT DISTINCT t.job_id FROM jobs_providertask t JOIN providers_account a ON a.id = t.account_id
WHERE t.next_look_at IS NOT NULL AND t.state = 'unknown' AND t.blocks_send
  AND greatest(t.send_not_after + make_interval(secs => coalesce(t.call_deadline_s, 0) + %(margin)s), t.absent_seen_at)
    + make_interval(secs => coalesce(a.history_lag_s, 0) + %(grace)s) <= %(now)s
  AND NOT EXISTS (SELECT FROM jobs_case c WHERE c.task_id = t.id AND c.kind = 'unknown_send')
LIMIT 500
"""


def overdue_jobs(*, now: datetime) -> set[int]:
    """Jobs with a lost send that a person should see by now, and that is no case yet."""
    with connection.cursor() as cursor:
        cursor.execute(
            _OVERDUE_LOOKS, {"margin": ABSENCE_MARGIN_S, "grace": CASE_GRACE_S, "now": now}
        )
        return {job_id for (job_id,) in cursor.fetchall()}
