"""When a job may start and end, by what its target took lately. A guess, and told as one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.api.schemas import EstimateOut
from jobs.models import Job, ProviderTask, Tenant
from providers.models import Target

NEWEST = 200
ENOUGH = 5
FRESH_S = 60.0
WITHIN = timedelta(days=30)
MOST_AHEAD = 10_000

# From the send to the stored file; the newest of a target are found by task_newest_of_target.
_USUAL = """
SELECT percentile_cont(ARRAY[0.1, 0.5, 0.9]) WITHIN GROUP (ORDER BY s), count(*) FROM (
  SELECT extract(epoch FROM k.stored_at - k.armed_at) AS s FROM jobs_providertask k
  WHERE k.target_id = %s AND k.created_at > %s AND k.stored_at IS NOT NULL AND k.armed_at IS NOT NULL
  ORDER BY k.created_at DESC LIMIT %s) lately
"""
# Served by the claim's index.
_AHEAD = """
SELECT count(*) FROM (
  SELECT FROM jobs_job WHERE state = 'pending' AND tenant_id = %s AND target_id = %s AND id < %s LIMIT %s) few
"""


@dataclass(frozen=True, slots=True)
class Usual:
    """Seconds: one in ten was faster, half were, one in ten slower."""

    low_s: float
    middle_s: float
    high_s: float


_known: dict[int, tuple[float, Usual | None]] = {}  # by target, for a minute


def forget() -> None:
    _known.clear()


def usual(target_id: int, *, now: datetime) -> Usual | None:
    """None: too few have been made lately."""
    kept = _known.get(target_id)
    if kept is not None and time.monotonic() - kept[0] < FRESH_S:
        return kept[1]
    with connection.cursor() as cursor:
        cursor.execute(_USUAL, [target_id, now - WITHIN, NEWEST])
        row = cursor.fetchone()
    found = Usual(*map(float, row[0])) if row and row[1] >= ENOUGH else None
    _known[target_id] = (time.monotonic(), found)
    return found


def words(one: Usual) -> str:
    """ "usually 3–6 minutes": whole units, the range widened rather than narrowed."""
    if one.high_s <= 90:
        low, high = max(1, math.floor(one.low_s)), max(1, math.ceil(one.high_s))
        if low == high:
            return ngettext("usually %(n)d second", "usually %(n)d seconds", high) % {"n": high}
        return _("usually %(low)d–%(high)d seconds") % {"low": low, "high": high}
    low, high = max(1, math.floor(one.low_s / 60)), math.ceil(one.high_s / 60)
    if low == high:
        return ngettext("usually %(n)d minute", "usually %(n)d minutes", high) % {"n": high}
    return _("usually %(low)d–%(high)d minutes") % {"low": low, "high": high}


def of_pending(
    job: Job, *, tenant: Tenant, target: Target, until: datetime | None, now: datetime
) -> EstimateOut | None:
    """`until`: what holds it up ends then, as far as that is known."""
    one = usual(target.pk, now=now)
    if one is None:
        return None
    limits = (settings.WORKER_CONCURRENCY, target.max_in_flight, tenant.max_in_flight)
    places = max(1, min(limit for limit in limits if limit is not None))
    with connection.cursor() as cursor:
        cursor.execute(_AHEAD, [tenant.pk, target.pk, job.pk, MOST_AHEAD])
        [ahead] = cursor.fetchone() or [0]
    starts_at = max(now, until or now) + timedelta(seconds=ahead // places * one.middle_s)
    return _estimate(one, starts_at)


def of_send(task: ProviderTask, *, now: datetime) -> EstimateOut | None:
    """Of a job that was sent. One that takes longer than usual has no estimate any more."""
    one = usual(task.target_id, now=now)
    if one is None or task.armed_at is None:
        return None
    if now > task.armed_at + timedelta(seconds=one.high_s):
        return None
    return _estimate(one, task.armed_at)


def _estimate(one: Usual, starts_at: datetime) -> EstimateOut:
    return EstimateOut(
        starts_at=starts_at,
        ends_from=starts_at + timedelta(seconds=one.low_s),
        ends_to=starts_at + timedelta(seconds=one.high_s),
        usually=words(one),
    )
