"""prune: the removals of lifecycle/prune.py, slice by slice, until the end or for some seconds; once a day where
RETENTION_DAILY says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from zoneinfo import ZoneInfo

from django.conf import settings

from jobs import retention
from jobs.clock import clock
from jobs.lifecycle import prune
from jobs.lifecycle.prune import Slice, Wish
from jobs.models import PruneRun
from jobs.retention import Kind

WORK = "jobs.tasks.work_prune"
# Of a worker, which it shares with the minute's ring and the sender of alerts.
SLICE_S = 10.0
# Between two slices, so that a long run is never all that the disk does.
BREATH_S = 0.01

Tell = Callable[[Kind, Slice], None]


def daily_kinds() -> tuple[Kind, ...]:
    return tuple(kind for kind in Kind if retention.days(kind) is not None)


def due(now: datetime) -> bool:
    """Whether a worker should be called for today's run."""
    if not settings.RETENTION_DAILY:
        return False
    had = PruneRun.objects.filter(day=_today(now)).values_list("ended_at", "lease_until").first()
    if had is None:
        return True
    ended_at, lease_until = had
    return ended_at is None and (lease_until is None or lease_until <= now)


def work(*, for_s: float = SLICE_S) -> bool:
    """Today's run, for so long. True: there is more to remove; False: it has ended, or somebody is at it."""
    now = clock.now()
    run = prune.take(prune.begin_day(day=_today(now), now=now), now=now)
    if run is None:
        return False
    # All slices of a run mean the same moment, however late they come.
    started_at, end = run.started_at, time.monotonic() + for_s
    try:
        for kind, _told in _slices(run, daily_kinds(), lambda kind: _usual(kind, started_at)):
            if time.monotonic() >= end and not _over(run, kind):
                return True
        prune.end(run, now=clock.now())
    finally:
        prune.let_go(run)
    return False


def go_through(run: PruneRun, wishes: dict[Kind, Wish], *, limit: int | None, tell: Tell) -> None:
    """A run from start to end. `limit`: of each kind no more than so many, and what the last slice brings."""
    for kind, told in _slices(run, wishes, wishes.__getitem__, limit=limit):
        tell(kind, told)
    prune.end(run, now=clock.now())


def _slices(
    run: PruneRun, kinds: Iterable[Kind], wish: Callable[[Kind], Wish], *, limit: int | None = None
) -> Iterator[tuple[Kind, Slice]]:
    for kind in kinds:
        while not _over(run, kind):
            most = prune.SLICE if limit is None else min(prune.SLICE, limit)
            told = prune.step(run, kind, wish(kind), most=most)
            yield kind, told
            if limit is not None and run.removed[kind.value] >= limit:
                break
            if told.removed:
                time.sleep(BREATH_S)


def _over(run: PruneRun, kind: Kind) -> bool:
    return bool(run.position.get(kind.value, {}).get("over"))


def _usual(kind: Kind, now: datetime) -> Wish:
    before = retention.before(kind, now=now)
    assert before is not None  # of the kinds that are kept for ever none is asked for
    return Wish(before=before, now=now)


def _today(now: datetime) -> date:
    return now.astimezone(ZoneInfo(settings.TIME_ZONE)).date()
