"""How the work stands, in numbers: jobs by state, who waits, how long generations take, polls that ran out of time, receivers
that can't be reached. Each is one statement whose cost does not grow with the jobs there are: a count stops at its cap, the
rest is read from an index up to a time or a number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from jobs.states import CaseKind, JobState
from providers import registry

COUNT_CAP = 10_000
HOUR = timedelta(hours=1)
NEWEST_SENDS = 200
SENDS_OF = timedelta(days=7)
WAITING_CAP = 1_000  # of callbacks

_EPOCH = datetime.fromisoformat("2000-01-01T00:00:00+00:00")


def _rows(query: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values or {})
        return list(cursor.fetchall())


# --- jobs -------------------------------------------------------------------------------------------------------------

_STATES = """
SELECT s.state, (SELECT count(*) FROM (SELECT FROM jobs_job j WHERE j.state = s.state LIMIT %(most)s) few)
FROM unnest(%(states)s::text[]) AS s (state)
"""


def job_states(states: Sequence[JobState]) -> dict[JobState, int]:
    """How many jobs are in each now; COUNT_CAP + 1 means more than the cap."""
    asked = {"states": [state.value for state in states], "most": COUNT_CAP + 1}
    found = dict(_rows(_STATES, asked))
    return {state: found[state.value] for state in states}


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One tenant's jobs that wait. `waiting`: those that a lane would take, at most COUNT_CAP + 1; `oldest`: since when the
    first of them does, None where none does. `paused`: in paused batches; None where that can't be told for sure."""

    tenant_id: int
    tenant: str
    waiting: int
    oldest: datetime | None
    paused: int | None


# The first two by the index job_waiting, the last by job_claim.
_QUEUES = """
SELECT t.id, t.name,
  (SELECT count(*) FROM (SELECT FROM jobs_job j
    WHERE j.tenant_id = t.id AND j.state = 'pending' AND j.not_before < '2900-01-01 00:00:00+00' LIMIT %(most)s) few),
  (SELECT j.created_at FROM jobs_job j
    WHERE j.tenant_id = t.id AND j.state = 'pending' AND j.not_before < '2900-01-01 00:00:00+00'
    ORDER BY j.created_at LIMIT 1),
  (SELECT count(*) FROM (SELECT FROM jobs_job j WHERE j.tenant_id = t.id AND j.state = 'pending' LIMIT %(most)s) few)
FROM jobs_tenant t
WHERE EXISTS (SELECT FROM jobs_job j WHERE j.tenant_id = t.id AND j.state = 'pending')
ORDER BY 4 NULLS LAST, 1
"""


def queues() -> list[Queue]:
    """Of the tenants that have any, who has waited longest first."""
    return [
        Queue(
            tenant_id=tenant_id,
            tenant=name,
            waiting=waiting,
            oldest=oldest,
            paused=pending - waiting if pending <= COUNT_CAP else None,
        )
        for tenant_id, name, waiting, oldest, pending in _rows(_QUEUES, {"most": COUNT_CAP + 1})
    ]


# --- generations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Generations:
    """The newest sends of one target (at most NEWEST_SENDS, none older than SENDS_OF).

    `made` of them came to their end with a result; `median_s`, `p95_s`: from the sending until we knew. `asked` of them had
    an end after being asked about `polls` times in all; both 0 for a provider whose answer is the result.
    """

    target_id: int
    provider: str
    model: str
    made: int
    median_s: float | None
    p95_s: float | None
    asked: int
    polls: int

    @property
    def polls_each(self) -> float | None:
        return self.polls / self.asked if self.asked else None


_GENERATIONS = """
SELECT t.id, t.provider, t.model, count(*) FILTER (WHERE n.completed_at > n.armed_at),
  percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM n.completed_at - n.armed_at))
    FILTER (WHERE n.completed_at > n.armed_at),
  count(*) FILTER (WHERE n.provider_id IS NOT NULL AND coalesce(n.completed_at, n.failed_at) IS NOT NULL),
  coalesce(sum(n.polls) FILTER (WHERE n.provider_id IS NOT NULL AND coalesce(n.completed_at, n.failed_at) IS NOT NULL), 0)
FROM providers_target t
CROSS JOIN LATERAL (
  SELECT k.armed_at, k.completed_at, k.failed_at, k.provider_id, k.polls FROM jobs_providertask k
  WHERE k.target_id = t.id AND k.created_at > %(since)s
  ORDER BY k.created_at DESC LIMIT %(most)s
) n
GROUP BY t.id
ORDER BY t.provider, t.model
"""


def generations(*, now: datetime) -> list[Generations]:
    """Of the targets that something was sent to lately."""
    asked = {"since": now - SENDS_OF, "most": NEWEST_SENDS}
    return [_generations(row) for row in _rows(_GENERATIONS, asked)]


def _generations(row: Sequence[Any]) -> Generations:
    target_id, provider, model, made, times, asked, polls = row
    median_s, p95_s = (float(one) for one in times) if times else (None, None)
    adapter = registry.ADAPTERS.get(provider)
    if adapter is not None and not adapter.asynchronous:
        asked = polls = 0
    return Generations(
        target_id=target_id, provider=provider, model=model, made=made, median_s=median_s, p95_s=p95_s, asked=asked, polls=polls
    )  # fmt: skip


# --- polling timeouts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Generations whose polling deadline came before their end, by the hour (UTC) of the deadline: the last 24, the one that
    is going on last."""

    since: datetime
    hours: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.hours)

    @property
    def last(self) -> int:
        """Of the hour that is going on and the one before."""
        return sum(self.hours[-2:])

    @property
    def stays(self) -> bool:
        """Above 0 for two hours in a row, the newest of which is over or going on."""
        *_older, third, second, newest = self.hours
        return bool((second and newest) or (third and second))


# Those that have ended, by the index task_took; those that have not are few, and stand in task_in_flight.
_TIMEOUTS = """
SELECT date_bin('1 hour', late.at, '2000-01-01 00:00:00+00'), count(*)
FROM (
  SELECT k.armed_at + %(deadline)s AS at
  FROM generate_series(%(first)s::timestamptz, %(now)s::timestamptz, interval '1 hour') AS h (hour)
  JOIN jobs_providertask k ON date_bin('1 hour', k.armed_at, '2000-01-01 00:00:00+00') = h.hour
    AND k.provider_id IS NOT NULL AND coalesce(k.completed_at, k.failed_at) - k.armed_at > %(deadline)s
  UNION ALL
  SELECT k.armed_at + %(deadline)s
  FROM jobs_providertask k
  WHERE k.state = 'accepted' AND k.armed_at <= %(now)s - %(deadline)s AND k.armed_at >= %(since)s - %(deadline)s
) late
WHERE late.at >= %(since)s AND late.at <= %(now)s
GROUP BY 1
"""


def timeouts(*, deadline_s: float, now: datetime, hours: int = 24) -> Timeouts:
    deadline = timedelta(seconds=deadline_s)
    since = _hour(now) - HOUR * (hours - 1)
    values = {"deadline": deadline, "since": since, "first": _hour(since - deadline), "now": now}
    found = dict(_rows(_TIMEOUTS, values))
    return Timeouts(
        since=since, hours=tuple(found.get(since + HOUR * place, 0) for place in range(hours))
    )


def _hour(at: datetime) -> datetime:
    return at - (at - _EPOCH) % HOUR


# --- callbacks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """A receiver whose last try failed, and that has callbacks waiting: at most WAITING_CAP + 1 are counted."""

    tenant: str
    host: str
    waiting: int
    tried_at: datetime
    next_at: datetime | None  # None: at once
    status: int | None
    trouble: str


@dataclass(frozen=True, slots=True)
class Callbacks:
    """`given_up`: receivers that the desk has an open case for."""

    failing: tuple[Failing, ...]
    given_up: int


# Receivers by steps along the index, as the claim does (lifecycle/callbacks.py).
_FAILING = """
WITH RECURSIVE r AS (
  (SELECT tenant_id, host FROM jobs_callback WHERE delivered_at IS NULL AND given_up_at IS NULL
   ORDER BY tenant_id, host LIMIT 1)
  UNION ALL
  SELECT n.tenant_id, n.host FROM r CROSS JOIN LATERAL (
    SELECT tenant_id, host FROM jobs_callback
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND (tenant_id, host) > (r.tenant_id, r.host)
    ORDER BY tenant_id, host LIMIT 1) n
), failing AS (
  SELECT r.tenant_id, r.host, l.tried_at, l.status, l.trouble FROM r CROSS JOIN LATERAL (
    SELECT c.tried_at, c.status, c.trouble, c.delivered_at FROM jobs_callback c
    WHERE c.tenant_id = r.tenant_id AND c.host = r.host AND c.tried_at IS NOT NULL
    ORDER BY c.tried_at DESC LIMIT 1) l
  WHERE l.delivered_at IS NULL
)
SELECT t.name, f.host,
  (SELECT count(*) FROM (SELECT FROM jobs_callback c WHERE c.tenant_id = f.tenant_id AND c.host = f.host
    AND c.delivered_at IS NULL AND c.given_up_at IS NULL LIMIT %(most)s) few),
  f.tried_at,
  (SELECT c.not_before FROM jobs_callback c WHERE c.tenant_id = f.tenant_id AND c.host = f.host
    AND c.delivered_at IS NULL AND c.given_up_at IS NULL ORDER BY c.not_before NULLS FIRST LIMIT 1),
  f.status, f.trouble, (SELECT count(*) FROM jobs_case WHERE resolved_at IS NULL AND kind = %(dead)s)
FROM (SELECT 1) one LEFT JOIN failing f ON true LEFT JOIN jobs_tenant t ON t.id = f.tenant_id
ORDER BY 3 DESC NULLS LAST, 1, 2
"""


def callbacks() -> Callbacks:
    rows = _rows(_FAILING, {"most": WAITING_CAP + 1, "dead": CaseKind.DEAD_CALLBACK.value})
    failing = [
        Failing(
            tenant=tenant, host=host, waiting=waiting, tried_at=tried_at, next_at=next_at, status=status, trouble=trouble
        )
        for tenant, host, waiting, tried_at, next_at, status, trouble, _dead in rows
        if tenant is not None
    ]  # fmt: skip
    return Callbacks(tuple(failing), rows[0][-1])
