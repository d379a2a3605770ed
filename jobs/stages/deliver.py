"""deliver: callbacks due -> delivered, later, or given up (a case)."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import Error
from django.db.models import Count, Sum
from django.db.models.functions import Coalesce

from jobs import callbacks, links
from jobs.lane import LaneContext
from jobs.lifecycle import callbacks as outbox
from jobs.models import Batch, Callback, Endpoint, Job, ProviderTask, Result
from jobs.states import HAS_COST
from providers import outward
from providers.contract import Charge

logger = logging.getLogger(__name__)

DEADLINE_S = 10.0
LINK_LASTS_S = 24 * 3600.0
_rng = random.Random()  # noqa: S311  jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A claimed callback with what is sent, and the keys that sign it."""

    callback: Callback
    body: bytes
    keys: tuple[bytes, ...]


def claim_callbacks(lane: LaneContext, room: int) -> list[Due]:
    now = lane.clock.now()
    rows = outbox.claim(room=room, now=now)
    return messages(rows, now=now) if rows else []


async def tell(lane: LaneContext, due: Due) -> None:
    """Send it, and note what came of it. While the database is away nothing is noted: it is sent once more later."""
    row, now = due.callback, await lane.now()
    message = callbacks.message_id(row.message)
    told = await outward.post(
        row.url,
        body=due.body,
        headers=callbacks.headers(message=message, body=due.body, keys=due.keys, now=now),
        allowed=settings.CALLBACK_ALLOW,
        deadline_s=DEADLINE_S,
        now=now,
    )
    try:
        await lane.db(outbox.record, callback=row, told=told, now=await lane.now(), rng=_rng)
    except Error as error:
        logger.warning("deliver.not_recorded %s %s", row.pk, error)


# --- what is told -----------------------------------------------------------------------------------------------------


def messages(rows: Sequence[Callback], *, now: datetime) -> list[Due]:
    """What each says. Five queries, however many: states and reasons as they were then, cost and link as of now."""
    jobs = Job.objects.in_bulk([row.job_id for row in rows if row.job_id is not None])
    batches = Batch.objects.in_bulk([row.batch_id for row in rows if row.batch_id is not None])
    costs, counts = _costs(list(jobs)), _counts(list(batches))
    results = Result.objects.in_bulk([row.result_id for row in rows if row.result_id is not None])
    endpoints = Endpoint.objects.in_bulk([row.tenant_id for row in rows])
    found = []
    for row in rows:
        if row.job_id is not None:
            data = _of_job(row, jobs[row.job_id], costs[row.job_id], results, now=now)
        else:
            assert row.batch_id is not None
            data = _of_batch(batches[row.batch_id], counts[row.batch_id])
        assert row.at is not None  # set by the claim
        endpoint = endpoints.get(row.tenant_id) or Endpoint()
        keys = callbacks.secrets(
            tenant_id=row.tenant_id, generation=endpoint.generation, rotated_at=endpoint.rotated_at, now=now
        )  # fmt: skip
        body = callbacks.body(kind=row.kind, at=row.at, data=data)
        found.append(Due(callback=row, body=body, keys=keys))
    return found


def _of_job(
    row: Callback,
    job: Job,
    cost: Mapping[str, str],
    results: Mapping[int, Result],
    *,
    now: datetime,
) -> dict[str, Any]:
    result = results.get(row.result_id or 0)
    return {
        "job": job.pk,
        "batch": job.batch_id,
        "reference": job.reference,
        "state": row.kind.partition(".")[2],
        "reason": row.reason,
        "cost": dict(cost),
        "result": None if result is None else _of_result(result, now=now),
    }


def _of_result(result: Result, *, now: datetime) -> dict[str, Any]:
    """`url` expires; the API gives a new one. None where PUBLIC_URL does not say how this desk is reached."""
    return {
        "url": result_url(result, now=now),
        "media_type": result.media_type,
        "size_bytes": result.size_bytes,
        "sha256": result.sha256,
    }


def result_url(result: Result, *, now: datetime) -> str | None:
    """Where the file is for whoever holds the link, for LINK_LASTS_S."""
    if not settings.PUBLIC_URL:
        return None
    return links.result_link(result.pk, now=now, lasts_s=LINK_LASTS_S)


def _of_batch(batch: Batch, counts: Mapping[str, int]) -> dict[str, Any]:
    return {
        "batch": batch.pk,
        "label": batch.label,
        "completion": batch.completions,
        "jobs": dict(counts),
    }


def _costs(job_ids: Sequence[int]) -> Mapping[int, dict[str, str]]:
    """By job and currency: what its sends have cost; where no receipt has told yet, the price."""
    found: dict[int, dict[str, str]] = defaultdict(dict)
    sends = ProviderTask.objects.filter(job_id__in=job_ids, charge__in=HAS_COST - {Charge.POSSIBLE})
    for job_id, currency, cost in (
        sends.values_list("job_id", "currency")
        .annotate(sum=Sum(Coalesce("cost", "estimated_cost")))
        .order_by("job_id", "currency")
    ):
        found[job_id][currency] = f"{cost.normalize():f}"
    return found


def _counts(batch_ids: Sequence[int]) -> Mapping[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = defaultdict(dict)
    jobs = Job.objects.filter(batch_id__in=batch_ids).values_list("batch_id", "state")
    for batch_id, state, count in jobs.annotate(Count("pk")).order_by("batch_id", "state"):
        if batch_id is not None:
            found[batch_id][state] = count
    return found
