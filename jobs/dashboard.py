"""What the first page tells: does anything need a person, is every provider well, how far are the batches, what do we spend.

Numbers only, without words: for the page, for metrics, for programs. Each part is asked for by name, and costs the same
whatever the number of jobs. What is summed over days and months comes from jobs/sums.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.db.models import Count, Exists, Min, Q, Sum

from jobs import figures, panel, progress, sums
from jobs import lanes as slots
from jobs.budgets import Budget, Limit, Period, Span, Spent, span
from jobs.figures import HOUR, Callbacks, Generations, Queue, Timeouts
from jobs.models import Batch, Case, Job, Lane, Result, Tenant
from jobs.panel import AccountView
from jobs.progress import Progress
from jobs.states import JobState
from jobs.sums import Sums
from providers import registry

STATES = (
    JobState.PENDING, JobState.ACTIVE, JobState.MANUAL, JobState.FAILED, JobState.SUCCEEDED,
)  # fmt: skip
TOP_CASES = 5
MOST_BATCHES = 5
NEWEST = 12
HOURS = 24
LANE_GRACE = timedelta(seconds=120)  # beyond the minute's ring, which starts missing lanes


class Part(StrEnum):
    DESK = "desk"
    JOBS = "jobs"
    PROVIDERS = "providers"
    BATCHES = "batches"
    MONEY = "money"
    LANES = "lanes"
    CALLBACKS = "callbacks"
    NEWEST = "newest"


class Step(StrEnum):
    """What an empty system needs first."""

    KEY = "key"
    WORKER = "worker"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The open cases. Money by currency."""

    count: int
    money: Mapping[str, Decimal]
    oldest: datetime | None
    overdue: int
    first: Sequence[Case]


@dataclass(frozen=True, slots=True)
class Provider:
    """An account with what became of its sends, by the hour (UTC) of their intents: HOURS of them from `since`."""

    account: AccountView
    since: datetime
    hours: tuple[Sums, ...]

    @property
    def day(self) -> Sums:
        return sum(self.hours, Sums())


@dataclass(frozen=True, slots=True)
class Running:
    """A batch that is not complete. `ends_at` None: no end can be told."""

    batch: Batch
    progress: Progress
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class Batches:
    """The newest of them, and whether there are more."""

    rows: Sequence[Running]
    more: bool


@dataclass(frozen=True, slots=True)
class AtProvider:
    """Spent at one provider in one currency, by the days of `settings.TIME_ZONE`."""

    provider: str
    currency: str
    today: Spent
    month: Spent


@dataclass(frozen=True, slots=True)
class OfTenant:
    """Spent for one tenant, by its own days and by currency, and its limits with what counts against them."""

    tenant: Tenant
    today: Mapping[str, Spent]
    month: Mapping[str, Spent]
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What is possible is counted with its ceiling, as for the limits."""

    providers: Sequence[AtProvider]
    tenants: Sequence[OfTenant]
    zone: str


@dataclass(frozen=True, slots=True)
class LaneView:
    lane: Lane
    alive: bool

    @property
    def dead(self) -> bool:
        """Its run has not freed the slot, and is heard no more."""
        return self.lane.run_id is not None and not self.alive

    @property
    def old(self) -> bool:
        """It runs other code than this process."""
        return self.alive and self.lane.version != settings.RELEASE[:40]


@dataclass(frozen=True, slots=True)
class Lanes:
    """`missing`: work waits, and no lane has come for it. `shut`: staff keep every slot that may run out of work."""

    rows: Sequence[LaneView]
    missing: bool

    @property
    def alive(self) -> int:
        return sum(row.alive for row in self.rows)

    @property
    def slots(self) -> int:
        return len(self.rows)

    @property
    def shut(self) -> bool:
        mine = [row for row in self.rows if row.lane.slot <= settings.WORKER_LANES]
        return bool(mine) and all(row.lane.closed_at is not None for row in mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """None: not asked for. `step`: what an empty system needs first; None where there are jobs."""

    now: datetime
    desk: Desk | None = None
    states: Mapping[JobState, int] | None = None
    queues: Sequence[Queue] | None = None
    generations: Sequence[Generations] | None = None
    timeouts: Timeouts | None = None
    providers: Sequence[Provider] | None = None
    batches: Batches | None = None
    money: Money | None = None
    lanes: Lanes | None = None
    callbacks: Callbacks | None = None
    newest: Sequence[Result] | None = None
    step: Step | None = None


def read(parts: Collection[Part], *, now: datetime) -> Dashboard:
    found: dict[str, Any] = {}
    if Part.DESK in parts:
        found["desk"] = desk(now=now)
    if Part.JOBS in parts:
        found |= {
            "states": figures.job_states(STATES),
            "queues": figures.queues(),
            "generations": figures.generations(now=now),
            "timeouts": figures.timeouts(deadline_s=settings.POLL_DEADLINE_SEC, now=now),
        }
        if not any(found["states"].values()):
            found["step"] = first_step()
    if Part.PROVIDERS in parts:
        found["providers"] = providers(now=now)
    if Part.BATCHES in parts:
        found["batches"] = running(now=now)
    if Part.MONEY in parts:
        found["money"] = money(now=now)
    if Part.LANES in parts:
        found["lanes"] = lanes(now=now)
    if Part.CALLBACKS in parts:
        found["callbacks"] = figures.callbacks()
    if Part.NEWEST in parts:
        found["newest"] = newest()
    return Dashboard(now=now, **found)


# --- parts ------------------------------------------------------------------------------------------------------------


def desk(*, now: datetime) -> Desk:
    opened = Case.objects.filter(resolved_at__isnull=True)
    rows = list(
        opened.order_by()
        .values_list("currency")
        .annotate(
            count=Count("pk"),
            money=Sum("money_at_risk"),
            oldest=Min("opened_at"),
            overdue=Count("pk", filter=Q(due_at__lt=now)),
        )
    )
    first = (
        opened.select_related("job", "owner")
        .defer("job__prompt", "job__params")
        .order_by("-money_at_risk", "opened_at", "pk")[:TOP_CASES]
    )
    return Desk(
        count=sum(row[1] for row in rows),
        money={row[0]: row[2] for row in rows if row[2]},
        oldest=min((row[3] for row in rows), default=None),
        overdue=sum(row[4] for row in rows),
        first=list(first) if rows else [],
    )


def providers(*, now: datetime) -> list[Provider]:
    """Each account. Keys of earlier days only where nothing else is to be shown."""
    accounts = panel.read(now=now, counts=False).accounts
    shown = [one for one in accounts if one.key_set or one.in_flight] or list(accounts)
    since = sums.floor(now, HOUR) - HOUR * (HOURS - 1)
    by_hour: dict[tuple[int, datetime], Sums] = defaultdict(Sums)
    if shown:
        for line in sums.read([Span(since, since + HOUR * HOURS)], by=["account", "hour"]):
            by_hour[line.by[0], line.by[1]] += line.sums
    return [
        Provider(
            one,
            since,
            tuple(by_hour.get((one.id, since + HOUR * place), Sums()) for place in range(HOURS)),
        )
        for one in shown
    ]


def running(*, now: datetime) -> Batches:
    """Batches that are not complete, newest first."""
    batches = list(
        Batch.objects.filter(completed_at__isnull=True)
        .select_related("tenant")
        .order_by("-pk")[: MOST_BATCHES + 1]
    )
    shown = batches[:MOST_BATCHES]
    told = progress.several([one.pk for one in shown], now=now, shown=0) if shown else {}
    rows = [
        Running(one, far, None if far.left_s is None else now + timedelta(seconds=far.left_s))
        for one in shown
        if (far := told.get(one.pk)) is not None and not far.done
    ]
    return Batches(rows, len(batches) > MOST_BATCHES)


def money(*, now: datetime) -> Money:
    zone = settings.TIME_ZONE
    tenants = list(
        Tenant.objects.only(
            "pk", "slug", "name", "currency", "zone", "daily_limit", "monthly_limit"
        ).order_by("pk")
    )
    zones = sorted({zone, *(tenant.zone for tenant in tenants)})
    asked = [one for name in zones for one in _day_and_month(name, now)]
    studio = 2 * zones.index(zone)  # its day is the span of that place, its month the next
    providers: dict[tuple[str, str], list[Spent]] = defaultdict(lambda: [Spent(), Spent()])
    of: dict[tuple[int, int], dict[str, Spent]] = defaultdict(lambda: defaultdict(Spent))
    for line in sums.read(asked, by=["provider", "tenant"]):
        (provider, tenant_id), spent = line.by, _spent(line.sums)
        of[line.span, tenant_id][line.currency] += spent
        if line.span in {studio, studio + 1}:
            providers[provider, line.currency][line.span - studio] += spent
    rows = []
    for tenant in tenants:
        place = 2 * zones.index(tenant.zone)
        today, month = (dict(of.get((place + n, tenant.pk), {})) for n in (0, 1))
        if month or tenant.daily_limit is not None or tenant.monthly_limit is not None:
            rows.append(OfTenant(tenant, today, month, _budget(tenant, today, month, now)))
    return Money(
        providers=[AtProvider(*key, *spent) for key, spent in sorted(providers.items())],
        tenants=rows,
        zone=zone,
    )


def _day_and_month(zone: str, now: datetime) -> list[Span]:
    return [span(period, zone=zone, now=now) for period in (Period.DAY, Period.MONTH)]


def _spent(of: Sums) -> Spent:
    return Spent(of.charged, of.possible * Decimal(str(settings.PRICE_CEILING_FACTOR)))


def _budget(
    tenant: Tenant, today: Mapping[str, Spent], month: Mapping[str, Spent], now: datetime
) -> Budget:
    limits = [
        Limit(period, most, spent.get(tenant.currency, Spent()), span(period, zone=tenant.zone, now=now).end)
        for period, most, spent in (
            (Period.DAY, tenant.daily_limit, today), (Period.MONTH, tenant.monthly_limit, month)
        )
        if most is not None
    ]  # fmt: skip
    return Budget(currency=tenant.currency, zone=tenant.zone, limits=tuple(limits))


def lanes(*, now: datetime) -> Lanes:
    # A desk without work has no lane: one starts with the next job. With work that waits, somebody must look.
    waits = Job.objects.filter(
        state__in=[JobState.PENDING, JobState.ACTIVE],
        created_at__lt=now - LANE_GRACE,
        not_before__lt=now,
    )
    found = list(Lane.objects.annotate(work_waits=Exists(waits)).order_by("slot"))
    rows = [lane_view(lane, now=now) for lane in found]
    work_waits = found[0].work_waits if found else waits.exists()
    return Lanes(rows, missing=work_waits and not any(row.alive for row in rows))


def lane_view(lane: Lane, *, now: datetime) -> LaneView:
    dead_after = timedelta(seconds=slots.DEAD_AFTER_S)
    beats = lane.heartbeat_at is not None and now - lane.heartbeat_at < dead_after
    return LaneView(lane, alive=lane.run_id is not None and beats)


def newest() -> list[Result]:
    return list(Result.objects.select_related("job").defer("job__prompt").order_by("-pk")[:NEWEST])


def first_step() -> Step:
    """Asked only while there is no job at all."""
    if not any(_has_key(name) for name in registry.ADAPTERS):
        return Step.KEY
    return Step.JOB if Lane.objects.exists() else Step.WORKER


def _has_key(provider: str) -> bool:
    try:
        registry.account(provider)
    except ImproperlyConfigured:
        return False
    return True


# --- that there is something new --------------------------------------------------------------------------------------

# Whatever the page shows changes one of these; the minute is there for the ages. Numbers of events are given before their
# transactions commit, so the newest number alone would miss one that commits late. Each part is small or read from the
# end of a primary key.
_DIGEST = """
SELECT md5(concat_ws(' ',
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobs_jobevent ORDER BY id DESC LIMIT 200) newest),
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM providers_providerevent ORDER BY id DESC LIMIT 50) newest),
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobs_result ORDER BY id DESC LIMIT 50) newest),
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobs_batchevent ORDER BY id DESC LIMIT 20) newest),
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobs_tenantevent ORDER BY id DESC LIMIT 20) newest),
  (SELECT concat_ws(' ', count(*), sum(id), sum(money_at_risk), count(owner_id)) FROM jobs_case WHERE resolved_at IS NULL),
  (SELECT string_agg(id::text, ',' ORDER BY id) FROM jobs_hold WHERE lifted_at IS NULL),
  (SELECT string_agg(concat_ws('-', slot, run_id, draining, closed_at), ',' ORDER BY slot) FROM jobs_lane
   WHERE closed_at IS NOT NULL
     OR run_id IS NOT NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %(dead_after_s)s)),
  date_trunc('minute', clock_timestamp())))
"""


def digest() -> str:
    """Another one means that the page has something new to show."""
    with connection.cursor() as cursor:
        cursor.execute(_DIGEST, {"dead_after_s": slots.DEAD_AFTER_S})
        row = cursor.fetchone()
    assert row is not None
    return str(row[0])
