"""What a job's page shows: first what needs a decision, then the facts, then every send and every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Prefetch
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, phases
from jobs.admin import verbs
from jobs.admin.jobs_rows import blocking_task, money_lines
from jobs.display import Look
from jobs.models import Case, Job, JobEvent, ProviderTask, Result
from jobs.states import CaseKind, JobState, Phase, TaskState
from providers.contract import Charge
from providers.models import Target

MOST_EVENTS = 300


@dataclass(slots=True)
class Notice:
    """What happened, whether money is involved, what the machine does next."""

    tone: str
    icon: str
    title: str
    lines: list[str] = field(default_factory=list)
    case: Case | None = None
    verbs: list[verbs.Verb] = field(default_factory=list)


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
    evidence: list[tuple[str, list[Line]]]
    verbs: list[Any]


def load(pk: int) -> Job | None:
    """The job with everything its page needs; None where there is none."""
    tasks = ProviderTask.objects.order_by("created_at", "id").select_related(
        "target", "account", "released_user"
    )
    return (
        Job.objects.select_related(
            "tenant", "target", "batch", "delivered", "created_by", "decided_by"
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
                queryset=Case.objects.select_related("owner", "resolved_by").order_by(
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
        if phases.is_late(job, now) and phase is not Phase.LATE
        else None,
        "notices": _notices(
            job, task=task, phase=phase, wait=wait, open_cases=open_cases, user=user, now=now
        ),
        "primary": _primary(job, allowed),
        "verbs": allowed,
        "money": money_lines(job),
        "route": _route(job),
        "params": sorted(job.params.items()),
        "results": job.results.all(),
        "photos": job.photos.all(),
        "sends": [send(one, user=user) for one in reversed(job.tasks.all())],
        "closed_cases": [case for case in job.cases.all() if case.resolved_at is not None],
        "steps": steps(events[:MOST_EVENTS][::-1]),
        "more_events": len(events) > MOST_EVENTS,
        "took": (job.finished_at or now) - job.created_at,
    }


def _primary(job: Job, allowed: Sequence[verbs.Verb]) -> verbs.Verb | None:
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


# --- notices ----------------------------------------------------------------------------------------------------------


def case_notice(case: Case, user: Any) -> Notice:
    hint, advice = display.CASE_HINTS[CaseKind(case.kind)]
    lines = [str(hint)]
    if case.money_at_risk:
        lines.append(
            _("Money at risk: %(money)s.")
            % {"money": display.money(case.money_at_risk, case.currency)}
        )
    if case.resolved_at is None:
        lines.append(str(advice))
    return Notice(
        "amber",
        "hand",
        str(case.get_kind_display()).capitalize(),
        lines,
        case,
        verbs.allowed(verbs.CASE_VERBS, user, case),
    )


def _notices(
    job: Job,
    *,
    task: ProviderTask | None,
    phase: Phase,
    wait: phases.Waiting | None,
    open_cases: Sequence[Case],
    user: Any,
    now: datetime,
) -> list[Notice]:
    notices = [case_notice(case, user) for case in open_cases]
    notice = _phase_notice(job, task, phase, wait, now)
    if notice is not None and not (phase is Phase.MANUAL and notices):
        notices.append(notice)
    return notices


def _phase_notice(
    job: Job, task: ProviderTask | None, phase: Phase, wait: phases.Waiting | None, now: datetime
) -> Notice | None:
    look = display.PHASES[phase]
    provider = task.account.provider.title() if task else job.target.provider.title()
    money = verbs.money_of(task) if task else ""
    values = {"provider": provider, "money": money}
    match phase:
        case Phase.WAITING if wait is not None:
            until = [display.until(wait.until, now).capitalize()] if wait.until else []
            return Notice("grey", "clock", str(wait.text).capitalize(), until)
        case Phase.LOOKING:
            return Notice(
                look.tone,
                look.icon,
                _("The connection broke after the request was sent."),
                [
                    _("%(provider)s may have charged about %(money)s.")
                    % {**values, "money": money.removeprefix("≈\u00a0")},
                    _(
                        "Looking for it in %(provider)s's history; nothing is sent again until that is known."
                    )
                    % values,
                ],
            )
        case Phase.LATE:
            return Notice(
                look.tone,
                look.icon,
                _("%(provider)s takes longer than it should.") % values,
                [
                    _(
                        "It is asked every so often until it answers. Nothing is sent again meanwhile: %(money)s may be charged."
                    )
                    % values
                ],
            )
        case Phase.CHECKING_COST:
            return Notice(
                look.tone,
                look.icon,
                _("%(provider)s says it failed.") % values,
                [
                    _(
                        "Its receipt will tell whether %(money)s were charged; until then nothing is sent again."
                    )
                    % values
                ],
            )
        case Phase.FAILED:
            free = all(one.charge in {Charge.NONE, Charge.REFUNDED} for one in job.tasks.all())
            lines = [job.reason_text] if job.reason_text else []
            lines.append(
                _("Nothing was charged.")
                if free
                else _("Money was charged, or may have been: see the sends below.")
            )
            return Notice(
                look.tone,
                look.icon,
                display.reason(job.reason).capitalize() or str(look.word).capitalize(),
                lines,
            )
        case Phase.CANCELLED | Phase.MANUAL if job.reason_text:
            return Notice(
                look.tone, look.icon, display.reason(job.reason).capitalize(), [job.reason_text]
            )
        case _:
            return None


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
    state, charge = TaskState(task.state), Charge(task.charge)
    if charge is Charge.POSSIBLE or (charge is Charge.CHARGED and task.cost is None):
        money = verbs.money_of(task)
    else:
        money = display.money(task.cost, task.currency) if task.cost is not None else ""
    return Send(
        task=task,
        look=display.TASK_STATES[state],
        charge=display.CHARGES[charge],
        money=money,
        course=_course(task),
        evidence=evidence_lines(task.evidence),
        verbs=verbs.allowed(verbs.TASK_VERBS, user, task),
    )


def _course(task: ProviderTask) -> list[Moment]:
    points: list[tuple[str, datetime | None]] = [
        (_("intent"), task.created_at),
        (_("armed"), task.armed_at),
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


_EVIDENCE_NAMES = {
    "submit": gettext_lazy("The paid request"),
    "verdict": gettext_lazy("The provider's last word"),
    "poll": gettext_lazy("A poll that told nothing"),
    "status": gettext_lazy("HTTP status"),
    "headers": gettext_lazy("headers"),
    "body": gettext_lazy("body"),
    "broke": gettext_lazy("how it broke"),
    "left": gettext_lazy("bytes left us"),
    "why": gettext_lazy("why"),
    "fact": gettext_lazy("the other fact"),
    "traceback": gettext_lazy("traceback"),
}


@dataclass(slots=True)
class Line:
    """One piece of evidence; `block` for what needs its own box."""

    label: str
    value: str
    block: bool


def evidence_lines(evidence: dict[str, Any]) -> list[tuple[str, list[Line]]]:
    """Evidence in named groups. Its shape is the recorder's own, so whatever is there is shown."""
    groups: list[tuple[str, list[Line]]] = []
    loose: list[Line] = []
    for name, value in evidence.items():
        if isinstance(value, dict):
            groups.append((_evidence_name(name), [_line(key, one) for key, one in value.items()]))
        else:
            loose.append(_line(name, value))
    return [*([("", loose)] if loose else []), *groups]


def _evidence_name(name: str) -> str:
    return str(_EVIDENCE_NAMES.get(name) or name.replace("_", " "))


def _line(name: str, value: Any) -> Line:
    if isinstance(value, dict):
        text = "\n".join(f"{key}: {one}" for key, one in value.items())
    elif isinstance(value, list):
        text = "\n".join(str(one) for one in value)
    elif isinstance(value, bool):
        text = _("yes") if value else _("no")
    else:
        text = "" if value is None else _indented(str(value))
    return Line(_evidence_name(name), text, "\n" in text or len(text) > 120)


def _indented(text: str) -> str:
    """JSON on several lines; anything else as it is."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
