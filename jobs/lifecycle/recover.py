"""Recovering what dead lanes left: intents, sends without an answer, rows at work, facts nobody decided."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F

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
    """Sends whose answer can't come any more: outcome unknown."""
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


def count_deaths(*, live: Collection[UUID]) -> int:
    """Rows that a dead run was polling, fetching or looking up: one death more, free for the next."""
    dead = ProviderTask.objects.filter(work_run_id__isnull=False).exclude(
        work_run_id__in=list(live)
    )
    return dead.update(work_run_id=None, deaths=F("deaths") + 1, undecided_since=F("created_at"))


def undecided_jobs(*, now: datetime) -> set[int]:
    """Jobs whose facts nobody has decided for a while."""
    waiting = ProviderTask.objects.filter(undecided_since__lte=now - timedelta(seconds=UNDECIDED_S))
    return set(waiting.order_by("undecided_since").values_list("job_id", flat=True)[:500])
