"""Jobs that a program asks for, made once however often it asks.

A key is claimed in the transaction that makes the jobs: a second request with it waits at the unique constraint until the
first has committed, and then finds what that has made. Whatever refuses the jobs takes the claim back with them, so that
the program may come again with the same key.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import connection, transaction

from jobs.lifecycle.create import NewJob, create_jobs, fingerprint
from jobs.models import Batch, IdempotencyKey, Job, Tenant
from jobs.states import JobState

KEPT = timedelta(hours=24)
# What is over is looked at a few at a time, by each new key; one with a live job is looked at again after an hour.
_FORGET = 4
_LIVE = (JobState.PENDING, JobState.ACTIVE, JobState.MANUAL)
_JOINABLE = (JobState.PENDING, JobState.ACTIVE)

_CLAIM = """
INSERT INTO jobs_idempotencykey (tenant_id, key, digest, created_at, kept_until)
VALUES (%(tenant)s, %(key)s, %(digest)s, %(now)s, %(until)s)
ON CONFLICT (tenant_id, key) DO NOTHING RETURNING id
"""
_FORGET_SOME = """
WITH old AS MATERIALIZED (
  SELECT k.id, k.job_id, k.batch_id FROM jobs_idempotencykey k WHERE k.kept_until < %(now)s
  ORDER BY k.kept_until LIMIT %(most)s FOR UPDATE SKIP LOCKED
), live AS MATERIALIZED (
  SELECT o.id FROM old o WHERE EXISTS (
    SELECT FROM jobs_job j WHERE j.id = o.job_id AND j.state IN ('pending', 'active', 'manual'))
  OR EXISTS (
    SELECT FROM jobs_job j WHERE j.batch_id = o.batch_id AND j.state IN ('pending', 'active', 'manual'))
), gone AS (
  DELETE FROM jobs_idempotencykey WHERE id IN (SELECT id FROM old EXCEPT SELECT id FROM live)
), later AS (
  UPDATE jobs_idempotencykey SET kept_until = %(now)s + interval '1 hour' WHERE id IN (SELECT id FROM live)
)
SELECT (SELECT count(*) FROM old), (SELECT count(*) FROM live)
"""


class KeyReusedError(Exception):
    """The key came with another request before."""


class How(StrEnum):
    CREATED = "created"
    REPEATED = "repeated"  # the key was known: what its first request made
    JOINED = "joined"  # the same was under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """`job` where one was asked for, else `batch`."""

    how: How
    job: Job | None = None
    batch: Batch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a program asks for. `digest` is that of its request, `key` "" where it gave none. `alone`: one job by itself;
    `join`: a live one that is the same will do."""

    jobs: Sequence[NewJob]
    tenant: Tenant
    program: str
    digest: str
    key: str = ""
    alone: bool = False
    join: bool = False
    label: str = ""
    callback_url: str = ""  # of the batch; jobs have their own
    # The batch's own: whether it was made can be asked by it where the answer to the COMMIT was lost.
    token: uuid.UUID = field(default_factory=uuid.uuid4)


def place(order: Order, *, admit: Callable[[], None], now: datetime) -> Placed:
    """One transaction. `admit` is asked only where jobs would be made, and raises to refuse them.

    Raises KeyReusedError. Nothing is changed by whatever raises.
    """
    with transaction.atomic():
        claimed = 0
        if order.key:
            forget(now)
            claimed = _claim(order, now)
            if not claimed:
                found = _known(order, now)
                if isinstance(found, Placed):
                    return found
                claimed = found
        placed = _joined(order) if order.join and order.alone else None
        if placed is None:
            admit()
            placed = _made(order, now)
        if claimed:
            IdempotencyKey.objects.filter(pk=claimed).update(job=placed.job, batch=placed.batch)
    return placed


def _made(order: Order, now: datetime) -> Placed:
    batch = create_jobs(
        jobs=order.jobs, tenant=order.tenant, actor=None, now=now, label=order.label, program=order.program,
        callback_url=order.callback_url, token=order.token,
    )  # fmt: skip
    if not order.alone:
        return Placed(how=How.CREATED, batch=batch)
    return Placed(how=How.CREATED, job=batch.jobs.get())


def _joined(order: Order) -> Placed | None:
    """Of two that ask for the same at once, the second waits here and finds the first's. Where this one wants to be called
    back, only a job that calls back there will do."""
    [job] = order.jobs
    print_ = fingerprint(job)
    lock = zlib.crc32(f"join {order.tenant.pk} {print_}".encode()) - 2**31
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('desk_join'), %s)", [lock])
    live = Job.objects.filter(tenant=order.tenant, fingerprint=print_, state__in=_JOINABLE)
    if job.callback_url:
        live = live.filter(callback_url=job.callback_url)
    same = live.order_by("pk").first()
    return None if same is None else Placed(how=How.JOINED, job=same)


def made_after_all(order: Order) -> Placed | None:
    """What an order has made whose COMMIT was not answered; None: nothing."""
    batch = Batch.objects.filter(token=order.token).first()
    if batch is None:
        return None
    return Placed(
        how=How.CREATED, **({"job": batch.jobs.get()} if order.alone else {"batch": batch})
    )


# --- keys -------------------------------------------------------------------------------------------------------------


def _claim(order: Order, now: datetime) -> int:
    """The new row's id; 0 where the key is known. Waits for another request that is claiming it."""
    values: dict[str, Any] = {
        "tenant": order.tenant.pk, "key": order.key, "digest": order.digest, "now": now, "until": now + KEPT,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, values)
        row = cursor.fetchone()
    return row[0] if row else 0


def _known(order: Order, now: datetime) -> Placed | int:
    """What the key's first request has made; the row's id where that is over, and the key is this request's now."""
    row = (
        IdempotencyKey.objects.select_for_update(of=("self",))
        .select_related("job", "batch")
        .filter(tenant=order.tenant, key=order.key)
        .first()
    )
    if row is None:  # forgotten between the two statements
        return _claim(order, now)
    if row.kept_until <= now and not _live(row):
        IdempotencyKey.objects.filter(pk=row.pk).update(
            digest=order.digest, job=None, batch=None, created_at=now, kept_until=now + KEPT
        )
        return row.pk
    if row.digest != order.digest:
        raise KeyReusedError
    return Placed(how=How.REPEATED, job=row.job, batch=row.batch)


def _live(row: IdempotencyKey) -> bool:
    if row.job is not None:
        return row.job.state in _LIVE
    return row.batch is not None and Job.objects.filter(batch=row.batch, state__in=_LIVE).exists()


def forget(now: datetime, *, most: int = _FORGET) -> tuple[int, int]:
    """Look at so many keys that are over: how many there were, and how many of them are gone."""
    with connection.cursor() as cursor:
        cursor.execute(_FORGET_SOME, {"now": now, "most": most})
        looked, live = cursor.fetchone()
    return looked, looked - live


def over(now: datetime) -> int:
    """How many keys are over; those with a live job stay all the same."""
    return IdempotencyKey.objects.filter(kept_until__lt=now).count()
