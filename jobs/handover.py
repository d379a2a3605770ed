"""What whoever comes on duty must know: what came, what was settled and how, who has what, what cost money, what was down.

Since a time: a person's last visit, by their own word (jobs/lifecycle/visits.py), or one of their choice. Each part is a
query of a range of time by an index, and shows its first rows and how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, TypeVar

from django.db.models import Count, Q, QuerySet, Sum

from jobs import episodes, trail
from jobs.alert_rules import AlertState
from jobs.episodes import Episode
from jobs.models import Alert, Batch, BulkRun, Case, Hold, Job, Visit
from jobs.states import JobState
from jobs.trail import Wanted
from jobs.trail_sources import Deed, On

FIRST = timedelta(hours=24)  # for whoever has never been here
LONGEST = timedelta(days=31)
# A long transaction's events become visible after their time: who has read up to now is told of the last moments again.
OVERLAP = timedelta(seconds=20)
SHOWN = 12
MONEY = ("sent_again", "absent_confirmed", "written_off", "refunded")
_SETTINGS = (On.TENANT, On.TARGET, On.ACCOUNT, On.STANDING, On.USER, On.GROUP)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Part(Generic[_T]):
    """The first rows, and how many there are in all."""

    rows: Sequence[_T]
    count: int

    @property
    def more(self) -> int:
        return self.count - len(self.rows)


@dataclass(frozen=True, slots=True)
class Settled:
    """Cases closed by one person (None: the machine, by evidence) in one way."""

    by: str | None
    resolution: str
    count: int


@dataclass(frozen=True, slots=True)
class Noted:
    """An open case, and what was written to it since then, oldest first."""

    case: Case
    notes: Sequence[Deed]


@dataclass(frozen=True, slots=True)
class Lot:
    """A batch with its jobs by state."""

    batch: Batch
    counts: Mapping[JobState, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """`read_at`: when the person last said that they had read it; None: never. Money by currency."""

    since: datetime
    until: datetime
    read_at: datetime | None
    people: Mapping[str, int]
    holds: Sequence[Hold]
    opened: Part[Case]
    opened_money: Mapping[str, Decimal]
    settled: Sequence[Settled]
    closed: Part[Case]
    taken: Part[Deed]
    noted: Sequence[Noted]
    money: Part[Deed]
    orphans: Sequence[Deed]
    episodes: Sequence[Episode]
    ended: Part[Lot]
    running: Part[Lot]
    bulk: Part[BulkRun]
    alerts: Part[Alert]
    settings: Part[Deed]
    open_cases: int
    open_money: Mapping[str, Decimal]

    @property
    def quiet(self) -> bool:
        """Nothing happened since then; what has been open or under way before is no news."""
        return not (
            self.people or self.holds or self.opened.count or self.closed.count or self.episodes or self.ended.count
            or self.bulk.count or self.alerts.count
        )  # fmt: skip


def since_of(user_id: int | None, *, now: datetime) -> tuple[datetime, datetime | None]:
    """From when a person is to be told, and when they last said they had read it (None: never, or nobody is named)."""
    read_at = Visit.objects.filter(user=user_id).values_list("read_at", flat=True).first()
    return (now - FIRST if read_at is None else max(read_at, now - LONGEST)), read_at


def read(*, since: datetime, read_at: datetime | None, now: datetime) -> Handover:
    opened = Case.objects.filter(opened_at__gte=since)
    closed = Case.objects.filter(resolved_at__gte=since)
    standing = Case.objects.filter(resolved_at__isnull=True)
    at_money = standing.values_list("currency").annotate(Sum("money_at_risk"))
    return Handover(
        since=since,
        until=now,
        read_at=read_at,
        people=trail.counts(since=since),
        holds=_holds(since),
        opened=_part(_cases(opened).order_by("-opened_at"), opened),
        opened_money=_sums(opened.values_list("currency").annotate(Sum("money_at_risk"))),
        settled=_settled(closed),
        closed=_part(_cases(closed).order_by("-resolved_at"), closed),
        taken=_deeds(["case_taken"], since=since),
        noted=_noted(since),
        money=_deeds(MONEY, since=since),
        orphans=trail.page(Wanted(on=On.ORPHAN, since=since), most=SHOWN)[0],
        episodes=[one for one in episodes.page(now=now)[0] if one.end is None or one.end >= since],
        ended=_lots(Batch.objects.filter(completed_at__gte=since).order_by("-completed_at")),
        running=_lots(_running()),
        bulk=_part(_bulk(since).select_related("created_by").order_by("-pk"), _bulk(since)),
        alerts=_alerts(since),
        settings=_settings(since),
        open_cases=standing.count(),
        open_money=_sums(at_money),
    )


# --- parts ------------------------------------------------------------------------------------------------------------


def _part(rows: QuerySet[Any], counted: QuerySet[Any]) -> Part[Any]:
    shown = list(rows[:SHOWN])
    return Part(shown, len(shown) if len(shown) < SHOWN else counted.count())


def _cases(rows: QuerySet[Case]) -> QuerySet[Case]:
    return rows.select_related("job", "owner", "resolved_by", "task", "orphan").defer(
        "job__prompt", "job__params", "task__evidence", "task__files", "task__result_text", "task__candidates"
    )  # fmt: skip


def _sums(rows: Iterable[tuple[str, Decimal]]) -> dict[str, Decimal]:
    return {currency: money for currency, money in rows if money}


def _settled(closed: QuerySet[Case]) -> list[Settled]:
    rows = (
        closed.order_by().values_list("resolved_by__username", "resolution").annotate(n=Count("pk"))
    )
    return [Settled(*row) for row in rows.order_by("-n", "resolution", "resolved_by__username")]


def _deeds(whats: Sequence[str], *, since: datetime) -> Part[Deed]:
    """Together, newest first."""
    found = [
        deed
        for what in whats
        for deed in trail.page(Wanted(what=what, since=since), most=10 * SHOWN)[0]
    ]
    found.sort(key=lambda deed: deed.at, reverse=True)
    return Part(found[:SHOWN], len(found))


def _noted(since: datetime) -> list[Noted]:
    """The cases that are open still."""
    notes, _rest = trail.page(Wanted(what="case_noted", since=since), most=10 * SHOWN)
    jobs = {int(deed.pk) for deed in notes if deed.pk.isdecimal()}
    alone = {int(deed.pk.removeprefix("case-")) for deed in notes if not deed.pk.isdecimal()}
    wanted = Case.objects.filter(Q(job__in=jobs) | Q(pk__in=alone), resolved_at__isnull=True)
    told = []
    for case in _cases(wanted).order_by("-money_at_risk", "opened_at", "pk"):
        of_it = [deed for deed in reversed(notes) if _is_about(deed, case)]
        if of_it:
            told.append(Noted(case, of_it))
    return told[:SHOWN]


def _is_about(deed: Deed, case: Case) -> bool:
    if case.job_id is None:
        return deed.pk == f"case-{case.pk}"
    send = str(case.task_id) if case.task_id else None
    return (
        deed.pk == str(case.job_id)
        and deed.data.get("case") == case.kind
        and deed.data.get("send") == send
        and deed.at >= case.opened_at
    )


def _holds(since: datetime) -> list[Hold]:
    """Those that stand, and those that were set or lifted since then."""
    rows = Hold.objects.filter(
        Q(lifted_at__isnull=True) | Q(set_at__gte=since) | Q(lifted_at__gte=since)
    )
    return list(rows.select_related("set_by", "lifted_by").order_by("-set_at")[:SHOWN])


def _running() -> QuerySet[Batch]:
    return Batch.objects.filter(completed_at__isnull=True).order_by("-pk")


def _lots(rows: QuerySet[Batch]) -> Part[Lot]:
    part: Part[Batch] = _part(rows.select_related("tenant", "created_by"), rows)
    counts = {batch.pk: dict.fromkeys(JobState, 0) for batch in part.rows}
    counted = Job.objects.filter(batch__in=counts).order_by().values_list("batch_id", "state")
    for batch_id, state, n in counted.annotate(n=Count("pk")):
        if batch_id is not None:
            counts[batch_id][JobState(state)] = n
    return Part([Lot(batch, counts[batch.pk]) for batch in part.rows], part.count)


def _bulk(since: datetime) -> QuerySet[BulkRun]:
    return BulkRun.objects.filter(
        Q(created_at__gte=since) | Q(finished_at__gte=since) | Q(state=BulkRun.State.OPEN)
    )


def _alerts(since: datetime) -> Part[Alert]:
    """Those told by themselves, and those that nobody could be told of."""
    rows = Alert.objects.filter(at__gte=since).exclude(
        state__in=[AlertState.FOLDED, AlertState.DROPPED]
    )
    shown = rows.select_related("account", "lead", "lead__account", "lead__lead").prefetch_related(
        "members__account", "lead__members__account"
    )
    return _part(shown.order_by("-pk"), rows)


def _settings(since: datetime) -> Part[Deed]:
    found = [
        deed
        for kind in _SETTINGS
        for deed in trail.page(Wanted(on=kind, since=since), most=SHOWN)[0]
    ]
    found.sort(key=lambda deed: deed.at, reverse=True)
    return Part(found[:SHOWN], len(found))
