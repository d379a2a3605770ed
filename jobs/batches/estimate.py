"""What a batch will probably cost and how long it will take: prices, and how long its targets took of late."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.conf import settings
from django.db import connection

from jobs import spending
from jobs.batches.plan import Planned
from jobs.models import Tenant
from providers.models import Target

# The newest stored sends of a target; index task_newest_of_target.
_SAMPLES = 200
_MEDIAN = """
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM stored_at - armed_at)), count(*)
FROM (
  SELECT stored_at, armed_at FROM (
    SELECT stored_at, armed_at FROM jobs_providertask WHERE target_id = %(target)s ORDER BY created_at DESC LIMIT %(among)s
  ) newest WHERE stored_at IS NOT NULL AND armed_at IS NOT NULL LIMIT %(samples)s
) taken
"""


@dataclass(frozen=True, slots=True)
class Share:
    """The jobs that go to one target. `median_s` of its newest generations, None where it has made none."""

    target: Target
    jobs: int
    cost: Decimal
    median_s: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` None: some target has made nothing yet. `budget_left` None: the tenant has no limit."""

    shares: list[Share]
    cost: Mapping[str, Decimal]
    seconds: float | None
    places: int
    budget_left: Decimal | None
    budget_currency: str

    @property
    def over_budget(self) -> bool:
        """Whether it would probably not all fit in what is left of the tenant's limits now."""
        asked = self.cost.get(self.budget_currency, Decimal(0))
        return self.budget_left is not None and asked > self.budget_left


def estimate(rows: list[Planned], *, tenant: Tenant, now: datetime) -> Estimate:
    """For an idle desk: other work before it makes it longer, which nobody can tell beforehand."""
    counts = Counter(row.route[0] for row in rows)
    targets = Target.objects.in_bulk(list(counts))
    shares = [
        Share(target, counts[pk], target.price * counts[pk], median_s(pk))
        for pk, target in sorted(targets.items())
    ]
    cost: dict[str, Decimal] = defaultdict(Decimal)
    for share in shares:
        cost[share.target.currency] += share.cost
    places = [settings.WORKER_CONCURRENCY]
    if tenant.max_in_flight is not None:
        places.append(tenant.max_in_flight)
    room = max(min(places), 1)
    budget = spending.budgets([tenant], factor=settings.PRICE_CEILING_FACTOR, now=now)[tenant.pk]
    return Estimate(shares, dict(cost), _seconds(shares, room), room, budget.left, budget.currency)


def _seconds(shares: list[Share], room: int) -> float | None:
    """The longer of what all places together need, and what each target's own places need."""
    if not shares or any(share.median_s is None for share in shares):
        return None
    work = [(share, share.median_s or 0.0) for share in shares]
    longest = sum(share.jobs * median for share, median in work) / room
    for share, median in work:
        own = min(room, share.target.max_in_flight or room)
        longest = max(longest, math.ceil(share.jobs / max(own, 1)) * median)
    return longest


def median_s(target_id: int) -> float | None:
    """From the send to the stored file, over its newest generations; None where there are none."""
    with connection.cursor() as cursor:
        cursor.execute(_MEDIAN, {"target": target_id, "samples": _SAMPLES, "among": 5 * _SAMPLES})
        median, count = cursor.fetchone() or (None, 0)
    return float(median) if count and median is not None else None
