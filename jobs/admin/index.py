"""The first page: what needs a person, how the work stands, how the providers are, and the newest results. A handful of
queries over small or indexed sets, whatever the number of jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import Count, Min, Sum
from django.http import HttpRequest
from django.urls import reverse

from jobs import display, written
from jobs.admin import panel
from jobs.admin.changelist import COUNT_CAP, capped_words
from jobs.models import Case, Job, Lane, Result
from jobs.states import JobState

LANE_DEAD_AFTER = timedelta(seconds=30)
LANE_GRACE = timedelta(seconds=120)  # beyond the minute's ring, which starts missing lanes
REFRESH_S = 15  # where the page hears of no changes
_NEWEST = 12
_TOP_CASES = 5


def context(request: HttpRequest, *, now: datetime) -> dict[str, Any]:
    user = request.user
    # The version comes first: what changes while the rest is read makes another one.
    shown: dict[str, Any] = {"now": now, "version": digest(), "refresh_s": REFRESH_S}
    if user.has_perm("jobs.view_case"):
        shown |= _desk(now)
    if user.has_perm("jobs.view_job"):
        shown |= {"states": _states(), "newest": _newest()}
    if user.has_perm("providers.view_providerstate"):
        shown["providers"] = panel.dashboard(now=now)
    if user.has_perm("jobs.view_lane"):
        shown["lanes"] = _lanes(now)
    return shown


def starts_at_the_desk(user: Any) -> bool:
    """Whether the desk, not this page, is what a person sees first: they work there, and something is open."""
    return (
        user.has_perm("jobs.work_case") and Case.objects.filter(resolved_at__isnull=True).exists()
    )


# Whatever this page shows changes one of these; the minute is there for the ages. Numbers of events are given before their
# transactions commit, so the newest number alone would miss one that commits late. Each part is small or read from the
# end of a primary key.
_DIGEST = """
SELECT md5(concat_ws(' ',
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobs_jobevent ORDER BY id DESC LIMIT 200) newest),
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM providers_providerevent ORDER BY id DESC LIMIT 50) newest),
  (SELECT string_agg(id::text, ',') FROM (SELECT id FROM jobs_result ORDER BY id DESC LIMIT 50) newest),
  (SELECT concat_ws(' ', count(*), sum(id), sum(money_at_risk), count(owner_id)) FROM jobs_case WHERE resolved_at IS NULL),
  (SELECT string_agg(id::text, ',' ORDER BY id) FROM jobs_hold WHERE lifted_at IS NULL),
  (SELECT string_agg(concat_ws('-', slot, run_id), ',' ORDER BY slot) FROM jobs_lane
   WHERE run_id IS NOT NULL AND heartbeat_at > clock_timestamp() - make_interval(secs => %(dead_after_s)s)),
  date_trunc('minute', clock_timestamp())))
"""


def digest() -> str:
    """Another one means that the page has something new to show."""
    with connection.cursor() as cursor:
        cursor.execute(_DIGEST, {"dead_after_s": LANE_DEAD_AFTER.total_seconds()})
        row = cursor.fetchone()
    assert row is not None
    return str(row[0])


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
        "case_money": written.totals({currency: money for currency, _n, money, _o in rows}),
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
