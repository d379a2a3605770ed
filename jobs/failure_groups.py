"""Like failures of a period, gathered: how many sends and jobs, of how many tenants, when, and in which words.

All is counted from one partial index (`task_failures`), however big the tables are. A send counts in the group of the
failure that it has met last, whatever has become of its job since; `failed` and `manual` are the jobs that still stand so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from jobs import failures
from jobs.failures import Chosen
from jobs.models import ProviderTask
from jobs.states import JobState
from providers.models import Target

# The states of jobs that something is still to be done about.
OPEN = (JobState.FAILED, JobState.MANUAL)


class Order(StrEnum):
    BIGGEST = "biggest"
    NEWEST = "newest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`text`: the newest one's own words. `counts`: sends by equal parts of the period, oldest first."""

    provider: str
    key: str
    tasks: int
    jobs: int
    tenants: int
    failed: int
    manual: int
    first_at: datetime
    last_at: datetime
    text: str = ""
    counts: Sequence[int] = ()

    @property
    def failure(self) -> str:
        """The class."""
        return failures.class_of(self.key)

    @property
    def message(self) -> str:
        return failures.pattern(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`groups`: those asked for, of `total` with `tasks` sends in all."""

    groups: Sequence[Group] = field(default=())
    total: int = 0
    tasks: int = 0


# Jobs first, so that each is looked up once, and only among those that still stand failed or wait: an index knows them.
_GROUPS = """
WITH met AS (
  SELECT g.provider, k.failure_key AS key, k.job_id, min(k.tenant_id) AS tenant_id, count(*) AS tasks,
    min(k.failure_at) AS first_at, max(k.failure_at) AS last_at
  FROM jobs_providertask k JOIN providers_target g ON g.id = k.target_id
  WHERE k.failure_at >= %(since)s AND k.failure_at <= %(until)s AND starts_with(k.failure_key, %(failure)s)
    AND (%(provider)s = '' OR g.provider = %(provider)s)
  GROUP BY 1, 2, 3)
SELECT met.provider, met.key, sum(met.tasks)::bigint AS tasks, count(*), count(DISTINCT met.tenant_id),
  count(*) FILTER (WHERE j.state = 'failed'), count(*) FILTER (WHERE j.state = 'manual'),
  min(met.first_at), max(met.last_at) AS last_at, count(*) OVER (), (sum(sum(met.tasks)) OVER ())::bigint
FROM met LEFT JOIN jobs_job j ON j.id = met.job_id AND j.state IN ('failed', 'manual')
GROUP BY 1, 2
ORDER BY {order}, met.provider, met.key
LIMIT %(limit)s OFFSET %(offset)s
"""
_ORDERS = {Order.BIGGEST: "tasks DESC, last_at DESC", Order.NEWEST: "last_at DESC, tasks DESC"}

_COUNTS = """
SELECT g.provider, k.failure_key, least(floor(extract(epoch FROM k.failure_at - %(since)s) / %(part_s)s)::int, %(parts)s - 1), count(*)
FROM jobs_providertask k JOIN providers_target g ON g.id = k.target_id
WHERE k.failure_at >= %(since)s AND k.failure_at <= %(until)s AND k.failure_key = ANY(%(keys)s)
GROUP BY 1, 2, 3
"""

# The newest of each group, found by its time.
_TEXTS = """
SELECT w.provider, w.key, k.text
FROM unnest(%(providers)s::text[], %(keys)s::text[], %(lasts)s::timestamptz[]) AS w (provider, key, last_at)
CROSS JOIN LATERAL (
  SELECT CASE WHEN w.key LIKE %(fetch)s THEN k.fetch_trouble ELSE k.failure_text END AS text
  FROM jobs_providertask k JOIN providers_target g ON g.id = k.target_id
  WHERE k.failure_at = w.last_at AND k.failure_key = w.key AND g.provider = w.provider
  ORDER BY k.id LIMIT 1) k
"""


def read(
    *,
    since: datetime,
    until: datetime,
    provider: str = "",
    failure: str = "",
    order: Order = Order.BIGGEST,
    limit: int = 50,
    offset: int = 0,
    parts: int = 0,
) -> Found:
    """Groups of failures met from `since` to `until`. `provider`, `failure` (a class): only theirs. `parts`: into how many
    the counts are parted; 0: there are none."""
    asked: dict[str, Any] = {
        "since": since, "until": until, "provider": provider, "failure": f"{failure}-" if failure else "",
        "limit": limit, "offset": offset,
    }  # fmt: skip
    rows = _rows(_GROUPS.format(order=_ORDERS[order]), asked)
    names = [(row[0], row[1]) for row in rows]
    texts = _texts(names, [row[8] for row in rows])
    counts = _counts(names, since, until, parts) if parts else {}
    return Found(
        groups=[
            Group(
                provider=row[0], key=row[1], tasks=row[2], jobs=row[3], tenants=row[4], failed=row[5], manual=row[6],
                first_at=row[7], last_at=row[8], text=texts.get((row[0], row[1]), ""),
                counts=counts.get((row[0], row[1]), ()),
            )
            for row in rows
        ],
        total=rows[0][9] if rows else 0,
        tasks=rows[0][10] if rows else 0,
    )  # fmt: skip


def sends(chosen: Chosen, now: datetime) -> QuerySet[ProviderTask]:
    """Those of a group."""
    return ProviderTask.objects.filter(
        failure_at__gte=now - chosen.span,
        failure_key=chosen.key,
        target__in=Target.objects.filter(provider=chosen.provider),
    )


def words(chosen: Chosen, now: datetime) -> str:
    """The message of a group, "" where it has no send in its period."""
    newest = sends(chosen, now).order_by("-failure_at")
    column = "fetch_trouble" if failures.class_of(chosen.key) == failures.FETCH else "failure_text"
    return failures.pattern(newest.values_list(column, flat=True).first() or "")


def _texts(
    names: Sequence[tuple[str, str]], lasts: Sequence[datetime]
) -> Mapping[tuple[str, str], str]:
    rows = _rows(
        _TEXTS,
        {"providers": [one for one, _key in names], "keys": [key for _one, key in names], "lasts": [*lasts],
         "fetch": f"{failures.FETCH}-%".replace("_", r"\_")},
    )  # fmt: skip
    return {(provider, key): text for provider, key, text in rows}


def _counts(
    names: Sequence[tuple[str, str]], since: datetime, until: datetime, parts: int
) -> Mapping[tuple[str, str], Sequence[int]]:
    part_s = max((until - since) / timedelta(seconds=parts), 1e-6)
    found = {name: [0] * parts for name in names}
    asked = {"since": since, "until": until, "part_s": part_s, "parts": parts, "keys": [key for _one, key in names]}  # fmt: skip
    for provider, key, part, n in _rows(_COUNTS, asked):
        if (provider, key) in found:
            found[provider, key][part] = n
    return found


def _rows(query: str, asked: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, asked)
        return list(cursor.fetchall())
