"""What needs a decision, and what goes on: the notices on top of a job's and a case's page, and the one on every page that
nobody is told of outages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from jobs import display, phases, written
from jobs.admin import case_words, verbs
from jobs.admin.jobs_rows import reason_words
from jobs.admin.verb import Verb, money_of
from jobs.alerts.channels import channels
from jobs.models import AlertChannel, Case, Job, ProviderTask
from jobs.states import CaseKind, Phase

# These end a job: what they say and what the job's end says is one thing.
_ENDINGS = frozenset({CaseKind.REFUSED_BY_ALL, CaseKind.ATTEMPTS_EXHAUSTED})


@dataclass(slots=True)
class Notice:
    """What happened, whether money is involved, what the machine does next."""

    tone: str
    icon: str
    title: str
    lines: list[str] = field(default_factory=list)
    case: Case | None = None
    verbs: list[Verb] = field(default_factory=list)


def of_case(case: Case, user: Any, job: Job | None) -> Notice:
    """`job` is the case's own, with its tasks."""
    lines = [] if case_words.tells_end(case, job) else [case_words.hint(case)]
    if job is not None and case.kind in _ENDINGS:
        lines += [job.reason_text] if job.reason_text and case.kind == job.reason else []
        lines.append(case_words.charge_line(job))
    if case.money_at_risk:
        lines.append(
            _("Money at risk: %(money)s.")
            % {"money": written.both(case.money_at_risk, case.currency)}
        )
    if case.resolved_at is None:
        lines.append(case_words.advice(case, job))
    return Notice(
        "amber",
        "hand",
        case_words.title(case, job),
        lines,
        case,
        verbs.allowed(verbs.CASE_VERBS, user, case),
    )


def of_job(
    job: Job,
    *,
    task: ProviderTask | None,
    phase: Phase,
    wait: phases.Waiting | None,
    open_cases: Sequence[Case],
    user: Any,
    now: datetime,
) -> list[Notice]:
    """First the open cases, then what the machine does, unless a case says that already."""
    notices = [of_case(case, user, job) for case in open_cases]
    told = phase is Phase.MANUAL or any(
        case.kind == job.reason and case.kind in _ENDINGS for case in open_cases
    )
    notice = None if notices and told else _phase_notice(job, task, phase, wait, now)
    return notices if notice is None else [*notices, notice]


def _phase_notice(
    job: Job, task: ProviderTask | None, phase: Phase, wait: phases.Waiting | None, now: datetime
) -> Notice | None:
    look = display.PHASES[phase]
    provider = task.account.provider.title() if task else job.target.provider.title()
    money = money_of(task) if task else ""
    values = {"provider": provider, "money": money}
    match phase:
        case Phase.WAITING if wait is not None:
            until = [written.until(wait.until, now).capitalize()] if wait.until else []
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
            lines = [job.reason_text] if job.reason_text else []
            title = reason_words(job).capitalize() or str(look.word).capitalize()
            return Notice(look.tone, look.icon, title, [*lines, case_words.charge_line(job)])
        case Phase.CANCELLED | Phase.MANUAL if job.reason_text:
            return Notice(
                look.tone, look.icon, display.reason(job.reason).capitalize(), [job.reason_text]
            )
        case _:
            return None


def failing_channels() -> list[AlertChannel]:
    """Channels of the present settings whose last message did not get through, longest first. Without ALERT_URLS nothing is
    asked."""
    keys = [channel.key for channel in channels()]
    if not keys:
        return []
    return list(
        AlertChannel.objects.filter(key__in=keys, failing_since__isnull=False).order_by(
            "failing_since"
        )
    )
