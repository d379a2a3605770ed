"""Jobs as rows of lists: what is loaded for a page, and the cells. No query per row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.db.models.functions import Left
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobs import display, phases, written
from jobs.models import Job, ProviderTask
from jobs.states import CaseKind, JobState, Phase, TaskState
from jobs.templatetags import desk
from providers.contract import Charge

_PROMPT_START = 160
_HEAVY = ("evidence", "files", "result_text", "candidates", "failure_text")


def with_tasks(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """Each job's sends in their order, without what only its page shows."""
    light = ProviderTask.objects.order_by("created_at", "id").defer(*_HEAVY)
    return jobs.prefetch_related(Prefetch("tasks", queryset=light))


def blocking_task(job: Job) -> ProviderTask | None:
    """The task that stands in the way of a further send, if any; the job's phase is about it."""
    return next((task for task in job.tasks.all() if task.blocks_send), None)


def money_lines(job: Job) -> list[str]:
    """What the job cost, and what it may still cost; nothing where nothing was sent."""
    known: dict[str, Decimal] = defaultdict(Decimal)
    possible: dict[str, Decimal] = defaultdict(Decimal)
    for task in job.tasks.all():
        if task.charge == Charge.CHARGED:
            into, amount = (
                (known, task.cost) if task.cost is not None else (possible, task.estimated_cost)
            )
            into[task.currency] += amount
        elif task.charge == Charge.POSSIBLE:
            possible[task.currency] += task.cost if task.cost is not None else task.estimated_cost
    lines = [written.both(amount, currency) for currency, amount in sorted(known.items())]
    lines += [
        _("%(money)s possible") % {"money": written.both(amount, currency, estimate=True)}
        for currency, amount in sorted(possible.items())
    ]
    return lines


def reason_words(job: Job) -> str:
    """Why the job stands as it does, in words; "" for nothing to tell. More exact than the constant where no target made
    it: the last one refused it, or failed at it."""
    if job.reason == CaseKind.REFUSED_BY_ALL:
        last = max(job.tasks.all(), key=lambda task: task.created_at, default=None)
        if last is not None and last.state == TaskState.FAILED:
            return _("failed at the provider")
        if last is not None and last.state == TaskState.REFUSED:
            return _("refused by every target") if len(job.route) > 1 else _("refused")
    return display.reason(job.reason)


def dress(jobs: Sequence[Job], now: datetime) -> None:
    """Hang onto each job what lists show: `shown_phase`, `shown_overdue`, `shown_wait`, `shown_now`."""
    waits = phases.why_waiting(jobs, now)
    for job in jobs:
        task = blocking_task(job)
        job.shown_now = now  # type: ignore[attr-defined]
        job.shown_phase = phases.phase(job, task, now)  # type: ignore[attr-defined]
        job.shown_overdue = phases.is_late(job, task, now)  # type: ignore[attr-defined]
        job.shown_wait = waits.get(job.pk)  # type: ignore[attr-defined]


def for_list() -> QuerySet[Job]:
    """Jobs as lists show them: of the prompt only its start."""
    jobs = Job.objects.select_related("tenant", "target", "delivered", "batch")
    return with_tasks(
        jobs.annotate(prompt_start=Left("prompt", _PROMPT_START)).defer("prompt", "params")
    )


# --- cells that other lists use too -----------------------------------------------------------------------------------


def thumb(job: Job) -> SafeString:
    """The delivered result in a fixed box; a checkerboard while there is none."""
    result = job.delivered
    if result is None:
        return format_html('<span class="{}"></span>', "thumb")
    if not result.thumb_key:
        return format_html('<span class="thumb thumb-text">{}</span>', desk.icon("file-text"))
    return format_html(
        '<span class="thumb"><img src="{}" alt="" loading="lazy" width="40" height="40"></span>',
        reverse("admin:desk_thumbnail", args=[result.pk]),
    )


def state_cell(job: Any) -> SafeString:
    """The pill, "late" where it is, and the reason why it waits."""
    pills = desk.pill(display.PHASES[job.shown_phase])
    if job.shown_overdue and job.shown_phase is not Phase.LATE:
        pills += desk.pill(display.OVERDUE)
    below = ""
    if job.shown_wait is not None:
        until = job.shown_wait.until
        below = (
            format_html("{}, {}", job.shown_wait.text, desk.until(until, job.shown_now))
            if until
            else job.shown_wait.text
        )
    elif job.state in {JobState.FAILED, JobState.MANUAL, JobState.CANCELLED}:
        below = reason_words(job)
    return format_html(
        '<span class="state-cell"><span class="state-pills">{}</span>{}</span>',
        pills,
        format_html('<span class="small">{}</span>', below) if below else "",
    )
