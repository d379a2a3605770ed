"""How long the newest generations of each target took: what polling plans are made of."""

from __future__ import annotations

from collections.abc import Mapping

from django.conf import settings
from django.db import connection

from jobs import polling

# The newest sends of each target by an index; those that have not ended tell nothing.
_NEWEST = """
SELECT t.id, array_agg(extract(epoch FROM n.completed_at - n.accepted_at)::float8)
FROM providers_target t
CROSS JOIN LATERAL (
  SELECT completed_at, accepted_at FROM jobs_providertask
  WHERE target_id = t.id ORDER BY created_at DESC LIMIT %(most)s
) n
WHERE t.enabled AND n.completed_at > n.accepted_at
GROUP BY t.id
"""


def newest() -> Mapping[int, list[float]]:
    """By target, the seconds from the provider's taking up to our knowing of the end."""
    with connection.cursor() as cursor:
        cursor.execute(_NEWEST, {"most": polling.MOST_SAMPLES})
        return dict(cursor.fetchall())


def plans() -> Mapping[int, polling.Plan]:
    """By target; one without a plan is asked about every POLL_INTERVAL_SEC."""
    if not settings.POLL_PLAN:
        return {}
    made = {
        target: polling.plan(known, floor_s=settings.POLL_INTERVAL_SEC)
        for target, known in newest().items()
    }
    return {target: plan for target, plan in made.items() if plan is not None}
