"""What a case is called, what it means, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin.jobs_rows import blocking_task, reason_words
from jobs.models import Case, Job
from jobs.states import ENDED, CaseKind, TaskState
from providers.contract import Charge

Words = str | Promise

# What a case means and what a person can do. Money stands beside it.
_HINTS: Mapping[CaseKind, tuple[Words, Words]] = {
    CaseKind.UNKNOWN_SEND: (
        gettext_lazy(
            "The request left us, but its answer never came. The provider may have made and charged it."
        ),
        gettext_lazy(
            "If one of the candidates below is it, accept that one. Else look into the provider's own dashboard and attach its id, or ask its support whether it ever arrived."
        ),
    ),
    CaseKind.PAID_WITHOUT_RESULT: (
        gettext_lazy("The provider says it is done and charged for it, but gave no file."),
        gettext_lazy(
            "Ask the provider's support with the id below, or resolve the job with a file of your own."
        ),
    ),
    CaseKind.FAILED_BUT_CHARGED: (
        gettext_lazy("The provider failed, and its receipt shows a charge."),
        gettext_lazy(
            "Ask for a refund with the id below and mark it when it has come, or write it off. Sending again costs again."
        ),
    ),
    CaseKind.LOST_AT_PROVIDER: (
        gettext_lazy(
            "The provider accepted it, and for an hour has said that it does not know the id."
        ),
        gettext_lazy(
            "It is still watched. Ask the provider's support, or send again if the money may be risked."
        ),
    ),
    CaseKind.NEVER_ANSWERED: (
        gettext_lazy("The provider accepted it and has never said how it ended."),
        gettext_lazy("Look it up in the provider's dashboard; then resolve, or send again."),
    ),
    CaseKind.FETCH_FAILED: (
        gettext_lazy("The picture is made and paid for, but its file could not be fetched."),
        gettext_lazy("Download it in the provider's dashboard and resolve the job with the file."),
    ),
    CaseKind.CONFLICT: (
        gettext_lazy(
            "Two facts about the same send disagree. The first is kept; the other is below."
        ),
        gettext_lazy(
            "Compare both with the provider's dashboard, then close the case with what you found."
        ),
    ),
    CaseKind.POISON: (
        gettext_lazy("Workers died three times while they were at this one."),
        gettext_lazy(
            "Look at the evidence before it is let go on: closing the case lets workers try again."
        ),
    ),
    CaseKind.RESTORE: (
        gettext_lazy("A restored database no longer knows whether this was sent."),
        gettext_lazy("Compare with the provider's history since the backup."),
    ),
    CaseKind.BY_HAND: (
        gettext_lazy("A person took this job over. The machine sends nothing more for it."),
        gettext_lazy("Resolve it with a note (and a file, if you made one), or retry it."),
    ),
    CaseKind.REFUSED_BY_ALL: (
        gettext_lazy("Every target of the route refused it or failed at it."),
        gettext_lazy("Change the prompt or the target, or close the case."),
    ),
    CaseKind.ATTEMPTS_EXHAUSTED: (
        gettext_lazy("The provider turned it away as often as we ask."),
        gettext_lazy("Retry when the provider is well again, or close the case."),
    ),
    CaseKind.LATE_RESULT: (
        gettext_lazy(
            "A result came after a person had decided, or was made with an earlier prompt. It is kept beside the others."
        ),
        gettext_lazy("Deliver it instead, or close the case and leave everything as it is."),
    ),
    CaseKind.PAID_TWICE: (
        gettext_lazy("More than one send of this job cost money, or may have."),
        gettext_lazy(
            "Compare the sends below; ask for a refund where one is due, and close the case."
        ),
    ),
    CaseKind.DEAD_CALLBACK: (
        gettext_lazy("The other program did not take the news about this job for a day."),
        gettext_lazy(
            "Tell its people. Once it works again, send the callbacks again; the case closes by itself when they are taken."
        ),
    ),
    CaseKind.ORPHAN: (
        gettext_lazy("Something at the provider that no job of ours belongs to."),
        gettext_lazy("Find out who made it; adopt or dispute it, and close the case."),
    ),
}


def tells_end(case: Case, job: Job | None) -> bool:
    """Whether the case is about the job's end, which is told more exactly than by its kind."""
    return job is not None and case.kind == job.reason == CaseKind.REFUSED_BY_ALL


def title(case: Case, job: Job | None = None) -> str:
    """How the job ended, where the case says so and the job is at hand with its tasks; else the kind."""
    if tells_end(case, job) and job is not None:
        return reason_words(job).capitalize()
    return str(case.get_kind_display()).capitalize()


def hint(case: Case) -> str:
    """What has happened."""
    task = case.task
    if case.kind == CaseKind.FAILED_BUT_CHARGED and task is not None:
        if task.state in {TaskState.REFUSED, TaskState.UNSENT}:
            return _("It was turned away, and cost money all the same.")
        if task.charge == Charge.POSSIBLE:
            return _("The provider failed, and no receipt tells whether it charged.")
    return str(_HINTS[CaseKind(case.kind)][0])


def advice(case: Case, job: Job | None) -> str:
    """What a person can do. `job` is the case's own, with its tasks."""
    if case.kind == CaseKind.UNKNOWN_SEND and case.task is not None and not case.task.candidates:
        return _(
            "Look into the provider's own dashboard and attach its id, or ask its support whether it ever arrived."
        )
    if case.kind == CaseKind.BY_HAND and job is not None and blocking_task(job) is not None:
        return _(
            "Resolve it with a note (and a file, if you made one). It can't simply be retried: its send may have cost money."
        )
    if case.kind == CaseKind.LATE_RESULT and job is not None and job.state not in ENDED:
        return _(
            "Nothing is sent while a person looks: deliver it, or send again with the prompt of now."
        )
    if case.kind == CaseKind.FETCH_FAILED and case.task is not None and case.task.next_fetch_at:
        return _(
            "It is still tried by itself. To be sooner, download it in the provider's dashboard and resolve the job with the file."
        )
    return str(_HINTS[CaseKind(case.kind)][1])


def charge_line(job: Job) -> str:
    """Whether an ended job cost anything."""
    if all(task.charge in {Charge.NONE, Charge.REFUNDED} for task in job.tasks.all()):
        return _("Nothing was charged.")
    return _("Money was charged, or may have been: see the sends below.")
