"""What a job's page shows: first what needs a decision, then the facts, then every send and every step."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Prefetch
from django.utils import timezone
from django.utils.translation import gettext as _

from jobs import attach, course, display, phases, written
from jobs.admin import evidence, notices, rating, verbs
from jobs.admin.jobs_rows import blocking_task, money_lines
from jobs.admin.verb import Verb, money_of
from jobs.display import Look
from jobs.models import Case, Job, JobEvent, ProviderTask, Result
from jobs.states import ENDED, JobState, Phase, TaskState
from providers.contract import Charge
from providers.models import Target

MOST_EVENTS = 300


@dataclass(slots=True)
class Step:
    """One row of the timeline; `gap` is the time since the step before, `new_day` where the date changed since then."""

    event: JobEvent
    look: Look
    detail: str
    gap: timedelta | None
    new_day: bool


@dataclass(slots=True)
class Moment:
    """A point in a send's course."""

    word: str
    at: datetime
    gap: timedelta | None


@dataclass(slots=True)
class Send:
    """A ProviderTask as an evidence block."""

    task: ProviderTask
    look: Look
    charge: Look
    money: str
    course: list[Moment]
    said: str
    evidence: list[evidence.Group]
    verbs: list[Verb]
    candidates: list[dict[str, str]]
    accept: Verb | None  # what a candidate's own button does
    settled: str  # how a person settled its money, and when


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the course, as it is drawn."""

    look: Look
    begin: datetime
    length: timedelta
    send: int
    open: bool
    weight: int


def load(pk: int) -> Job | None:
    """The job with everything its page needs; None where there is none."""
    tasks = ProviderTask.objects.order_by("created_at", "id").select_related(
        "target", "account", "released_user", "staff_user", "job__target", "job__delivered"
    )
    return (
        Job.objects.select_related(
            "tenant", "target", "batch", "delivered__rated_by", "created_by", "decided_by"
        )
        .prefetch_related(
            Prefetch("tasks", queryset=tasks),
            Prefetch(
                "results",
                queryset=Result.objects.select_related("uploaded_by").order_by(
                    "created_at", "position", "id"
                ),
            ),
            Prefetch(
                "cases",
                queryset=Case.objects.select_related("owner", "resolved_by", "task").order_by(
                    "resolved_at", "opened_at"
                ),
            ),
            "photos",
        )
        .filter(pk=pk)
        .first()
    )


def context(job: Job, *, user: Any, now: datetime) -> dict[str, Any]:
    task = blocking_task(job)
    phase = phases.phase(job, task, now)
    wait = phases.why_waiting([job], now).get(job.pk) if job.state == JobState.PENDING else None
    allowed = verbs.allowed(verbs.JOB_VERBS, user, job)
    events = list(job.events.select_related("actor").order_by("-id")[: MOST_EVENTS + 1])
    open_cases = [case for case in job.cases.all() if case.resolved_at is None]
    return {
        "title": job.reference or f"#{job.pk}",
        "job": job,
        "now": now,
        "look": display.PHASES[phase],
        "overdue": display.OVERDUE
        if phases.is_late(job, task, now) and phase is not Phase.LATE
        else None,
        "notices": notices.of_job(
            job, task=task, phase=phase, wait=wait, open_cases=open_cases, user=user, now=now
        ),
        "primary": _primary(job, allowed),
        "verbs": allowed,
        "money": money_lines(job),
        "route": _route(job),
        "params": sorted(job.params.items()),
        "difference": difference(job.original_prompt, job.prompt),
        "results": job.results.all(),
        "deliver": verbs.DELIVER if verbs.DELIVER in allowed else None,
        "rate": verbs.RATE if verbs.RATE in allowed else None,
        "ratings": rating.buttons(job),
        "photos": job.photos.all(),
        "sends": [send(one, user=user) for one in reversed(job.tasks.all())],
        "closed_cases": [case for case in job.cases.all() if case.resolved_at is not None],
        "steps": steps(events[:MOST_EVENTS][::-1]),
        "more_events": len(events) > MOST_EVENTS,
        "course": parts(job, now),
        "several_sends": len(job.tasks.all()) > 1,
        # Each timeline begins with the job's making; what people did outlives the rest (lifecycle/prune.py).
        "pruned": job.state in ENDED
        and len(events) <= MOST_EVENTS
        and all(one.kind != "created" for one in events),
        "took": (job.finished_at or now) - job.created_at,
        "refresh_s": refresh_s(job),
    }


def refresh_s(job: Job) -> int | None:
    """How often the page should look again by itself; None where nothing will change without a person."""
    if job.state in {JobState.ACTIVE, JobState.PENDING}:
        return 4
    if job.state not in ENDED or any(task.charge == Charge.POSSIBLE for task in job.tasks.all()):
        return 15
    return None


def _primary(job: Job, allowed: Sequence[Verb]) -> Verb | None:
    """The one action at the end of the title row."""
    wanted = {
        JobState.MANUAL: verbs.RESOLVE,
        JobState.FAILED: verbs.RETRY,
        JobState.CANCELLED: verbs.RETRY,
    }
    verb = wanted.get(JobState(job.state))
    return verb if verb in allowed else None


def _route(job: Job) -> list[tuple[str, bool]]:
    """The targets of the route in order, and which one is next."""
    if job.route == [job.target_id]:
        return [(job.target.name, True)]
    names = {target.pk: target.name for target in Target.objects.filter(pk__in=job.route)}
    return [(names.get(pk, f"#{pk}"), pk == job.target_id) for pk in job.route]


_WORDS = re.compile(r"\s+|[^\s]+")


def difference(before: str, after: str) -> list[tuple[str, str]]:
    """What an edit of the prompt changed, word by word: ("same" | "gone" | "new", text). Empty where nobody edited it."""
    if not before:
        return []
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    found: list[tuple[str, str]] = []
    for what, i, j, k, m in difflib.SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        if what == "equal":
            found.append(("same", "".join(old[i:j])))
            continue
        found += [("gone", "".join(old[i:j]))] if j > i else []
        found += [("new", "".join(new[k:m]))] if m > k else []
    return found


def parts(job: Job, now: datetime) -> list[Part]:
    """Where the time went."""
    found = course.course(
        job.tasks.all(), state=JobState(job.state), created_at=job.created_at, finished_at=job.finished_at,
        by_person=job.decided_at is not None, deadline=timedelta(seconds=settings.POLL_DEADLINE_SEC), now=now,
    )  # fmt: skip
    whole = sum((one.length for one in found), timedelta(0))
    return [
        Part(
            display.PHASES[one.phase], one.begin, one.length, one.send, one.open, course.weight(one, whole)
        )
        for one in found
    ]  # fmt: skip


# --- timeline and sends -----------------------------------------------------------------------------------------------


def steps(events: Sequence[JobEvent]) -> list[Step]:
    before: datetime | None = None
    rows = []
    for event in events:
        gap = (
            event.at - before
            if before is not None and event.at - before >= timedelta(milliseconds=50)
            else None
        )
        new_day = before is not None and timezone.localdate(before) != timezone.localdate(event.at)
        look = display.event_look(event.kind, of_task=event.task_id is not None)
        rows.append(Step(event, look, display.event_detail(event.kind, event.data), gap, new_day))
        before = event.at
    return rows


def send(task: ProviderTask, *, user: Any) -> Send:
    charge = Charge(task.charge)
    if charge is Charge.POSSIBLE or (charge is Charge.CHARGED and task.cost is None):
        money = money_of(task)
    else:
        money = written.both(task.cost, task.currency) if task.cost is not None else ""
    allowed = verbs.allowed(verbs.TASK_VERBS, user, task)
    return Send(
        task=task,
        look=display.task_look(task),
        charge=display.CHARGES[charge],
        money=money,
        course=_course(task),
        said=said(task),
        evidence=evidence.of_task(task),
        verbs=allowed,
        candidates=attach.candidates(task),
        accept=verbs.ACCEPT if verbs.ACCEPT in allowed else None,
        settled=_settled(task),
    )


def _settled(task: ProviderTask) -> str:
    if task.staff_charge is None or task.staff_at is None:
        return ""
    return f"{display.CHARGES[Charge(task.staff_charge)].word}, {written.exact(task.staff_at)}"


def said(task: ProviderTask) -> str:
    """What went wrong with the send. Nothing once its file is stored: an earlier failure is history then."""
    if task.state == TaskState.STORED:
        return ""
    return " ".join(text for text in (task.failure_text, task.fetch_trouble) if text)


def _course(task: ProviderTask) -> list[Moment]:
    points: list[tuple[str, datetime | None]] = [
        (_("taken up"), task.created_at),
        (_("sending"), task.armed_at),
        (_("accepted"), task.accepted_at),
        (_("refused"), task.refused_at),
        (_("not sent"), task.unsent_at),
        (_("answer lost"), task.lost_at),
        (_("proven absent"), task.absent_at),
        (_("failed there"), task.failed_at),
        (_("made"), task.completed_at),
        (_("receipt"), task.receipt_final_at),
        (_("stored"), task.stored_at),
    ]
    known = sorted(
        ((at, word) for word, at in points if at is not None), key=lambda point: point[0]
    )
    course, before = [], None
    for at, word in known:
        course.append(Moment(word, at, at - before if before is not None else None))
        before = at
    return course
