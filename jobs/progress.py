"""How far a batch is: counts, rate, the end that can be expected, the newest pictures. One query, and arithmetic."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from jobs.states import JobState

SHOWN_RESULTS = 12
# The rate is taken over the shorter span where it holds enough, else over the longer: fresh, but not jumpy.
SPANS_S = (60.0, 600.0)
ENOUGH = 8

# Answered by the index job_of_batch alone (migration 0007), but for the newest pictures.
_PROGRESS = """
SELECT b.id, b.created_at, b.paused_at, b.completed_at, b.completions,
  (SELECT coalesce(json_object_agg(state, n), '{}') FROM (
     SELECT state, count(*) AS n FROM jobs_job WHERE batch_id = b.id GROUP BY state) counted)::text,
  recent.short, recent.long, recent.newest, recent.ended,
  (SELECT coalesce(json_agg(json_build_array(r.id, r.job_id) ORDER BY shown.finished_at DESC), '[]') FROM (
     SELECT delivered_id, finished_at FROM jobs_job
     WHERE batch_id = b.id AND state = 'succeeded' AND delivered_id IS NOT NULL
     ORDER BY finished_at DESC LIMIT %(shown)s) shown
   JOIN jobs_result r ON r.id = shown.delivered_id AND r.thumb_key <> '')::text
FROM jobs_batch b
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE finished_at > %(short)s) AS short, count(*) FILTER (WHERE finished_at > %(long)s) AS long,
    max(finished_at) AS newest, count(*) AS ended
  FROM jobs_job WHERE batch_id = b.id AND state IN ('succeeded', 'failed')
) recent
WHERE b.id = ANY(%(batches)s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`counts` by state, 0 for absent ones. `per_minute` None: nothing has ended lately. `left_s` None: no end can be told.
    `shown`: (result, job) of the newest pictures, newest first."""

    at: datetime
    counts: Mapping[JobState, int]
    created_at: datetime
    paused: bool
    completed_at: datetime | None
    completions: int
    newest_at: datetime | None
    per_minute: float | None
    left_s: float | None
    shown: tuple[tuple[int, int], ...]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def under_way(self) -> int:
        return self.counts[JobState.PENDING] + self.counts[JobState.ACTIVE]

    @property
    def given_up(self) -> int:
        """What the machine gave up on: failed, or handed to a person."""
        return self.counts[JobState.FAILED] + self.counts[JobState.MANUAL]

    @property
    def done(self) -> bool:
        """The machine has nothing left to do. Told from the rows; `completed_at` follows within a minute."""
        return self.total > 0 and self.under_way == 0

    @property
    def version(self) -> str:
        """Another one means that more than numbers changed: a page reads itself anew."""
        return f"{self.done:d}{self.paused:d}-{self.given_up}-{self.counts[JobState.CANCELLED]}"


def read(batch_id: int, *, now: datetime) -> Progress | None:
    """None: there is no such batch."""
    return several([batch_id], now=now).get(batch_id)


def several(
    batch_ids: Collection[int], *, now: datetime, shown: int = SHOWN_RESULTS
) -> dict[int, Progress]:
    """By id, in one query. `shown`: of how many pictures each tells, at most."""
    with connection.cursor() as cursor:
        cursor.execute(
            _PROGRESS,
            {
                "batches": list(batch_ids),
                "shown": shown,
                "short": now - timedelta(seconds=SPANS_S[0]),
                "long": now - timedelta(seconds=SPANS_S[1]),
            },
        )
        return {row[0]: _progress(row[1:], now) for row in cursor.fetchall()}


def _progress(row: Sequence[Any], now: datetime) -> Progress:
    created_at, paused_at, completed_at, completions, counted, short, long, newest, ended, shown = (
        row
    )
    counts = dict.fromkeys(JobState, 0) | _counts(json.loads(counted))
    under_way = counts[JobState.PENDING] + counts[JobState.ACTIVE]
    rate = per_minute(short=short, long=long, ended=ended, age_s=(now - created_at).total_seconds())
    return Progress(
        at=now,
        counts=counts,
        created_at=created_at,
        paused=paused_at is not None,
        completed_at=completed_at,
        completions=completions,
        newest_at=newest,
        per_minute=rate if under_way else None,
        left_s=left_s(under_way=under_way, per_minute=rate, paused=paused_at is not None),
        shown=tuple((result, job) for result, job in json.loads(shown)),
    )


def _counts(counted: Mapping[str, int]) -> dict[JobState, int]:
    return {JobState(state): n for state, n in counted.items()}


def per_minute(*, short: int, long: int, ended: int, age_s: float) -> float | None:
    """Ended jobs a minute: over the last minute where it holds enough of them, else over ten; a younger batch over its age.

    None where nothing has ended in ten minutes. `ended`: of the whole batch; `age_s` since its creation.
    """
    short_s, long_s = SPANS_S
    if short >= ENOUGH or (short == long and short and age_s <= short_s):
        return 60 * short / max(min(short_s, age_s), 1.0)
    if long:
        # A batch that has only just brought its first: over its age, as nothing ended before it began.
        span_s = min(long_s, age_s) if long == ended else long_s
        return 60 * long / max(span_s, 1.0)
    return None


def left_s(*, under_way: int, per_minute: float | None, paused: bool) -> float | None:
    """Seconds until nothing is under way, at this rate. None where that can't be told: paused, or nothing ends."""
    if under_way == 0:
        return 0.0
    if paused or not per_minute:
        return None
    return 60 * under_way / per_minute


def plain(progress: Progress) -> dict[str, Any]:
    """The numbers for programs: JSON-ready, without words."""
    return {
        "at": progress.at.isoformat(),
        "total": progress.total,
        "counts": {state.value: n for state, n in progress.counts.items()},
        "given_up": progress.given_up,
        "paused": progress.paused,
        "done": progress.done,
        "completions": progress.completions,
        "per_minute": progress.per_minute and round(progress.per_minute, 2),
        "left_s": progress.left_s and round(progress.left_s, 1),
        "version": progress.version,
    }
