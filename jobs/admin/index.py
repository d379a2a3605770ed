"""The first page: what needs a person, how the work stands, how the providers are, and the newest results. A handful of
queries over small or indexed sets, whatever the number of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Sum
from django.http import HttpRequest
from django.urls import reverse

from jobs import display
from jobs.admin import panel
from jobs.admin.changelist import COUNT_CAP, capped_words
from jobs.models import Case, Job, Lane, Result
from jobs.states import JobState

LANE_DEAD_AFTER = timedelta(seconds=30)
LANE_GRACE = timedelta(seconds=120)  # beyond the minute's ring, which starts missing lanes
_NEWEST = 12
_TOP_CASES = 5


def context(request: HttpRequest, *, now: datetime) -> dict[str, Any]:
    user = request.user
    shown: dict[str, Any] = {"now": now}
    if user.has_perm("jobs.view_case"):
        shown |= _desk(now)
    if user.has_perm("jobs.view_job"):
        shown |= {"states": _states(), "newest": _newest()}
    if user.has_perm("providers.view_providerstate"):
        shown["providers"] = panel.dashboard(now=now)
    if user.has_perm("jobs.view_lane"):
        shown["lanes"] = _lanes(now)
    return shown


def _desk(now: datetime) -> dict[str, Any]:
    opened = Case.objects.filter(resolved_at__isnull=True)
    sums = (
        opened.values_list("currency")
        .annotate(Count("pk"), Sum("money_at_risk"), Min("opened_at"))
        .order_by("currency")
    )
    rows = list(sums)
    top = (
        opened.select_related("job", "owner")
        .defer("job__prompt")
        .order_by("-money_at_risk", "opened_at", "pk")[:_TOP_CASES]
    )
    return {
        "case_count": sum(count for _c, count, _m, _o in rows),
        "case_money": display.totals({currency: money for currency, _n, money, _o in rows}),
        "case_oldest": min((oldest for _c, _n, _m, oldest in rows), default=None),
        "case_overdue": opened.filter(due_at__lt=now).count(),
        "cases": list(top),
    }


def _states() -> list[dict[str, Any]]:
    """Jobs by state now; each count stops at the cap, so that it costs the same at a million jobs."""
    url = reverse("admin:jobs_job_changelist")
    states = []
    for state in (
        JobState.PENDING,
        JobState.ACTIVE,
        JobState.MANUAL,
        JobState.FAILED,
        JobState.SUCCEEDED,
    ):
        count = Job.objects.filter(state=state)[: COUNT_CAP + 1].count()
        states.append(
            {
                "look": display.JOB_STATES[state],
                "count": capped_words(count),
                "url": f"{url}?state={state.value}",
            }
        )
    return states


def _newest() -> list[Result]:
    return list(Result.objects.select_related("job").defer("job__prompt").order_by("-pk")[:_NEWEST])


def _lanes(now: datetime) -> dict[str, Any]:
    lanes = list(Lane.objects.order_by("slot"))
    alive = [
        lane
        for lane in lanes
        if lane.run_id and lane.heartbeat_at and now - lane.heartbeat_at < LANE_DEAD_AFTER
    ]
    return {
        "alive": len(alive),
        "all": len(lanes),
        # A desk without work has no lane: one starts with the next job. With work that waits, somebody must look.
        "missing": not alive
        and Job.objects.filter(
            state__in=[JobState.PENDING, JobState.ACTIVE],
            created_at__lt=now - LANE_GRACE,
            not_before__lt=now,
        ).exists(),
        "rows": lanes,
        "alive_slots": {lane.slot for lane in alive},
    }
