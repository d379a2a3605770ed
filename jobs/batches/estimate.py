"""What a batch will probably cost, how long it will take, and how much of it fits in the tenant's budget: by prices, and how
long its targets took of late."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from django.conf import settings
from django.db import connection

from jobs import spending
from jobs.batches.plan import Planned
from jobs.budgets import Budget, Held, Limit, Period, Why
from jobs.models import Job, Tenant
from jobs.states import JobState
from providers.models import Target

WAITING_CAP = 10_000
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
class Never:
    """Jobs of a target that the tenant's limits would hold whatever is left of them; `held` says why."""

    target: Target
    jobs: int
    held: Held


@dataclass(frozen=True, slots=True)
class Until:
    """Jobs that would wait until the limit starts anew, and what they would cost."""

    limit: Limit
    jobs: int
    cost: Decimal

    @property
    def again(self) -> bool:
        """Whether even a whole day (or month) is not enough for them."""
        return self.cost > self.limit.most


@dataclass(frozen=True, slots=True)
class Fit:
    """How jobs would fit in what is left of a budget: `now` of them do at once."""

    now: int
    until: Sequence[Until] = ()
    never: Sequence[Never] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` None: some target has made nothing yet. `waiting`: jobs of the tenant that are before this, and are not in
    `fit`; at most WAITING_CAP + 1, and not counted (0) without a limit."""

    shares: list[Share]
    cost: Mapping[str, Decimal]
    seconds: float | None
    places: int
    budget: Budget
    fit: Fit
    waiting: int

    @property
    def over_budget(self) -> bool:
        """Whether it would probably not all be sent within what is left of the tenant's limits now."""
        return bool(self.fit.until or self.fit.never)

    def over(self, limit: Limit) -> bool:
        """Whether some of it would wait for that limit."""
        return any(part.limit is limit for part in self.fit.until)


def estimate(rows: Sequence[Planned], *, tenant: Tenant, now: datetime) -> Estimate:
    """For an idle desk: other work before it makes it longer, which nobody can tell beforehand."""
    counts = Counter(row.route[0] for row in rows)
    targets = Target.objects.in_bulk(list(counts))
    shares = [
        Share(target, counts[pk], target.price * counts[pk], median_s(pk))
        for pk, target in sorted(targets.items())
    ]
    places = [settings.WORKER_CONCURRENCY]
    if tenant.max_in_flight is not None:
        places.append(tenant.max_in_flight)
    room = max(min(places), 1)
    factor = settings.PRICE_CEILING_FACTOR
    budget = spending.budgets([tenant], factor=factor, now=now)[tenant.pk]
    waiting = 0
    if budget.limits:
        pending = Job.objects.filter(tenant=tenant, state=JobState.PENDING)
        waiting = pending.order_by()[: WAITING_CAP + 1].count()
    # As the claim takes them: the higher priority first, then the older row.
    order = [row.route[0] for row in sorted(rows, key=lambda row: -row.priority)]
    fits = fit([targets[pk] for pk in order if pk in targets], budget=budget, factor=factor)
    return Estimate(shares, cost(rows, targets), _seconds(shares, room), room, budget, fits, waiting)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Way:
    """So many rows take that route. `names`: of those of its targets that there are."""

    route: tuple[int, ...]
    names: list[str]
    rows: int


def by_route(rows: Sequence[Planned]) -> list[Way]:
    """Where the rows go, the most first."""
    counts = Counter(row.route for row in rows)
    targets = Target.objects.in_bulk({pk for route in counts for pk in route})
    return [
        Way(route, [targets[pk].name for pk in route if pk in targets], n)
        for route, n in counts.most_common()
    ]


def cost(
    rows: Sequence[Planned], targets: Mapping[int, Target] | None = None
) -> dict[str, Decimal]:
    """By currency, by the price of the first target of each route."""
    if targets is None:
        targets = Target.objects.in_bulk({row.route[0] for row in rows})
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for pk, count in Counter(row.route[0] for row in rows).items():
        if (target := targets.get(pk)) is not None:
            sums[target.currency] += target.price * count
    return dict(sums)


def fit(order: Sequence[Target], *, budget: Budget, factor: float) -> Fit:
    """Jobs in the order of their sending, each given by its target. Pure.

    By the very rule of the claim, with each job costing its price once it is sent: the next one goes when there is room for
    its ceiling.
    """
    never = []
    counts = Counter(order)
    for target, jobs in counts.items():
        held = _held(target, budget, factor, Decimal(0))
        if held is not None and held.why is not Why.LIMIT:
            never.append(Never(target, jobs, held))
    left_out = {one.target for one in never}
    asked = [target for target in order if target not in left_out]
    # A limit that lasts longer holds its jobs longer, so what it would hold alone is its part of those that wait.
    until: list[Until] = []
    # On a month's last day both start anew at once.
    longest_first = sorted(budget.limits, key=lambda one: (one.until, one.period is Period.MONTH), reverse=True)  # fmt: skip
    seen: list[Limit] = []
    waits = 0
    for limit in longest_first:
        seen.append(limit)
        rest = _rest(asked, replace(budget, limits=tuple(seen)), factor)
        if len(rest) > waits:
            part = rest[: len(rest) - waits]
            until.append(Until(limit, len(part), sum((target.price for target in part), Decimal(0))))  # fmt: skip
            waits = len(rest)
    return Fit(len(asked) - waits, tuple(reversed(until)), tuple(never))


def _rest(order: Sequence[Target], budget: Budget, factor: float) -> list[Target]:
    """Those that do not fit in what is left."""
    taken = Decimal(0)
    full: set[Target] = set()
    rest = []
    for target in order:
        # What does not fit once fits no more: nothing is given back here.
        if target in full or _held(target, budget, factor, taken) is not None:
            full.add(target)
            rest.append(target)
        else:
            taken += target.price
    return rest


def _held(target: Target, budget: Budget, factor: float, taken: Decimal) -> Held | None:
    return budget.holds(price=target.price, currency=target.currency, factor=factor, taken=taken)


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
