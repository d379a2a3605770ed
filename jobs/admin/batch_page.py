"""What a batch's page shows: how far it is, what the machine gave up on and why, and what happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.db.models import Case as Either
from django.db.models import Count, F, Q, Sum, Value, When
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, written
from jobs.admin import batch_verbs, jobs_rows
from jobs.admin.verbs import allowed
from jobs.display import Look
from jobs.models import Batch, BatchEvent, Job, ProviderTask
from jobs.progress import Progress, plain
from jobs.states import JobState
from providers.contract import Charge

MOST_GIVEN_UP = 50
REFRESH_S = 2
_BAR = 1000  # units of the bar's width

# The order of a bar: what is certain first, what waits is its ground.
SEGMENTS = (
    JobState.SUCCEEDED,
    JobState.MANUAL,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.ACTIVE,
)
COUNTED = (*SEGMENTS, JobState.PENDING)
GIVEN_UP = (JobState.FAILED, JobState.MANUAL)

PAUSED = Look(gettext_lazy("paused by staff"), "circle-pause", "grey")
_DONE = Look(gettext_lazy("done"), "circle-check", "green")
_DONE_BUT = Look(gettext_lazy("done, some given up"), "triangle-alert", "amber")
_RUNS = Look(gettext_lazy("under way"), "", "blue")
_EMPTY = Look(gettext_lazy("empty"), "circle-dashed", "outline")

EVENTS: Mapping[str, Look] = {
    "created": Look(gettext_lazy("Created"), "plus", "grey"),
    "paused": Look(gettext_lazy("Paused"), "circle-pause", "grey"),
    "resumed": Look(gettext_lazy("Resumed"), "play", "blue"),
    "rest_cancelled": Look(gettext_lazy("The rest cancelled"), "ban", "grey"),
    "failed_retried": Look(gettext_lazy("The failed retried"), "rotate-ccw", "blue"),
    "rest_retargeted": Look(gettext_lazy("The rest sent elsewhere"), "shuffle", "blue"),
    "completed": Look(gettext_lazy("Complete"), "circle-check", "green"),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar, in thousandths of its width."""

    state: str
    tone: str
    x: int
    width: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the machine gave up, how often, and whether only those are shown."""

    constant: str
    words: str
    count: int
    query: str
    chosen: bool


def look(progress: Progress) -> Look:
    """The state of a batch, in one word."""
    if not progress.total:
        return _EMPTY
    if progress.done:
        return _DONE_BUT if progress.given_up else _DONE
    return PAUSED if progress.paused else _RUNS


def segments(counts: Mapping[JobState, int]) -> list[Segment]:
    """Every state has one, of width 0 where it has no job. A few jobs among many stay visible."""
    total = sum(counts.values())
    found, x = [], 0
    for state in SEGMENTS:
        count = counts[state]
        width = max(round(_BAR * count / total), 4) if count else 0
        width = min(width, _BAR - x)
        found.append(Segment(state.value, display.JOB_STATES[state].tone, x, width))
        x += width
    return found


def number(count: int) -> str:
    return written.number(count)


def percent(progress: Progress) -> int:
    """Of what the machine is to do; rounded down, so that 100 means the end."""
    ended = progress.total - progress.under_way
    return 100 * ended // progress.total if progress.total else 0


def words(progress: Progress) -> dict[str, str]:
    """The texts that change while a page is open, by the name of their place."""
    told = {state.value: number(progress.counts[state]) for state in COUNTED}
    told["ended"] = number(progress.total - progress.under_way)
    told["total"] = number(progress.total)
    told["percent"] = _("%(n)s %%") % {"n": percent(progress)}
    told["rate"] = _rate(progress)
    told["left"] = _left(progress)
    return told


def _rate(progress: Progress) -> str:
    if progress.done:
        took = (progress.newest_at or progress.at) - progress.created_at
        return _("took %(time)s") % {"time": written.duration(took.total_seconds())}
    if progress.per_minute is None:
        return _("none has ended lately")
    rate = progress.per_minute
    shown = written.number(rate, 0 if rate >= 10 else 1)
    return _("%(n)s a minute") % {"n": shown}


def _left(progress: Progress) -> str:
    if progress.done:
        return _("nothing is left for the machine")
    if progress.paused:
        return _("paused: no end can be told")
    if progress.left_s is None:
        return _("no end can be told yet")
    return _("about %(time)s left") % {"time": written.duration(max(progress.left_s, 1.0))}


def live(progress: Progress) -> dict[str, Any]:
    """What the page asks for every few seconds: numbers, texts, bar and newest pictures."""
    return {
        **plain(progress),
        "texts": words(progress),
        "bar": [[part.state, part.x, part.width] for part in segments(progress.counts)],
        "shown": pictures(progress),
        "every_s": 0 if progress.done else REFRESH_S,
    }


def pictures(progress: Progress) -> list[dict[str, str]]:
    return [
        {
            "id": str(result),
            "src": reverse("admin:desk_thumbnail", args=[result]),
            "href": reverse("admin:jobs_job_change", args=[job]),
            "label": _("Job %(id)s") % {"id": job},
        }
        for result, job in progress.shown
    ]


def context(
    batch: Batch, progress: Progress, *, user: Any, why: str, now: datetime
) -> dict[str, Any]:
    jobs_url = reverse("admin:jobs_job_changelist")
    verbs = allowed(batch_verbs.BATCH_VERBS, user, batch)
    primary = next(
        (verb for verb in (batch_verbs.RESUME, batch_verbs.RETRY_FAILED) if verb in verbs), None
    )
    return {
        "title": str(batch) if batch.label else _("Batch %(id)s") % {"id": batch.pk},
        "batch": batch,
        "now": now,
        "progress": progress,
        "look": look(progress),
        "segments": segments(progress.counts),
        "texts": words(progress),
        "ended": progress.total - progress.under_way,
        "states": [
            (state, display.JOB_STATES[state], number(progress.counts[state]), f"{jobs_url}?batch={batch.pk}&state={state.value}")
            for state in COUNTED
        ],
        "pictures": pictures(progress),
        "jobs_url": f"{jobs_url}?batch={batch.pk}",
        "refresh_s": 0,
        "every_s": 0 if progress.done else REFRESH_S,
        "verbs": [verb for verb in verbs if verb is not primary],
        "primary": primary,
        "money": _money(batch),
        "steps": _steps(batch),
        "targets": list(
            batch.jobs.order_by().values_list("target__provider", "target__model").annotate(n=Count("pk")).order_by("-n")[:5]
        ),
        **_given_up(batch, why=why, now=now),
    }  # fmt: skip


def _money(batch: Batch) -> list[str]:
    """What it has cost, and what it may still cost."""
    of_batch = ProviderTask.objects.filter(job__batch=batch)
    known: dict[str, Decimal] = {}
    possible: dict[str, Decimal] = {}
    amount = Either(When(cost__isnull=False, then=F("cost")), default=F("estimated_cost"))
    rows = (
        of_batch.filter(charge__in=[Charge.CHARGED, Charge.POSSIBLE])
        .order_by()
        .annotate(is_known=Either(When(charge=Charge.CHARGED, cost__isnull=False, then=Value(True)), default=Value(False)))
        .values_list("currency", "is_known")
        .annotate(money=Sum(amount))
    )  # fmt: skip
    for currency, is_known, money in rows:
        (known if is_known else possible)[currency] = money
    told = [written.totals(known)] if known else []
    if possible:
        told.append(_("%(money)s possible") % {"money": written.totals(possible)})
    return [line for line in told if line]


def _given_up(batch: Batch, *, why: str, now: datetime) -> dict[str, Any]:
    """Counts by reason, and the first jobs of the chosen one, the oldest first. `why` "": all."""
    given_up = Job.objects.filter(batch=batch, state__in=GIVEN_UP)
    counted = (
        given_up.order_by().values_list("state", "reason").annotate(n=Count("pk")).order_by("-n")
    )
    reasons = [
        Reason(
            f"{state}.{reason}",
            display.reason(reason) or str(display.JOB_STATES[JobState(state)].word),
            n,
            urlencode({"why": f"{state}.{reason}"}),
            f"{state}.{reason}" == why,
        )
        for state, reason, n in counted
    ]
    chosen = next((one for one in reasons if one.chosen), None)
    if chosen is not None:
        state, _dot, reason = chosen.constant.partition(".")
        given_up = given_up.filter(state=state, reason=reason)
    shown = list(
        jobs_rows.for_list()
        .filter(Q(pk__in=given_up.order_by("pk").values("pk")[:MOST_GIVEN_UP]))
        .order_by("pk")
    )
    jobs_rows.dress(shown, now)
    count = chosen.count if chosen is not None else sum(one.count for one in reasons)
    return {
        "reasons": reasons,
        "why": chosen,
        "given_up": [(job, jobs_rows.state_cell(job)) for job in shown],
        "given_up_more": count - len(shown),
        "first_failed": next((job.pk for job in shown if job.state == JobState.FAILED), None),
    }


def _steps(batch: Batch) -> list[tuple[Look, BatchEvent | None, datetime, str]]:
    """Newest first; its creation last."""
    steps: list[tuple[Look, BatchEvent | None, datetime, str]] = []
    for event in batch.events.select_related("actor").order_by("-pk")[:30]:
        detail = [str(event.data[name]) for name in ("target", "reason") if event.data.get(name)]
        if "jobs" in event.data:
            detail.insert(0, batch_verbs.jobs_words(event.data["jobs"]))
        steps.append((EVENTS[event.kind], event, event.at, " · ".join(detail)))
    steps.append((EVENTS["created"], None, batch.created_at, ""))
    return steps
