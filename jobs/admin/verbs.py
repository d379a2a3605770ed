"""What staff may do, told once: name, permission, words, form, effects and the one verb of lifecycle that is called.

The pages (jobs/admin/confirm.py, jobs/admin/bulk.py) draw and run these; nothing here writes a row itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Model
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import attach, display, written
from jobs.admin import callback_verbs, decision_verbs, rating
from jobs.admin import forms as desk_forms
from jobs.admin.verb import Effect, Verb, has_result, in_the_way, money_of, provider_of
from jobs.lifecycle import staff
from jobs.models import Case, Job, ProviderTask
from jobs.states import BLOCKING_CASES, ENDED, CaseKind, JobState, TaskState
from providers.contract import Charge


def under_way(job: Job) -> list[ProviderTask]:
    """Sends that were or may have been made and are not settled."""
    return [task for task in job.tasks.all() if task.charge == Charge.POSSIBLE]


def _costs_again(job: Job) -> str:
    price = written.about(job.target.price, job.target.currency)
    if any(task.charge != Charge.NONE for task in job.tasks.all()):
        return _(
            "One more send costs %(price)s, beside what earlier sends have cost or may cost."
        ) % {"price": price}
    return _("One more send costs %(price)s. Nothing of the earlier sends was charged.") % {
        "price": price
    }


# --- jobs: what will happen -------------------------------------------------------------------------------------------


def _retry_effects(job: Job) -> list[Effect]:
    return [
        Effect(
            "rotate-ccw", _("The job goes back to the queue and is sent as soon as there is room.")
        ),
        Effect("check-check", _("Its open cases are closed as “retried”.")),
        Effect("shield", _("Refused where an earlier send may have been charged.")),
    ]


def _resend_effects(job: Job) -> list[Effect]:
    task = in_the_way(job)
    effects = [Effect("send", _("The same request is sent once more, as a new, paid send."))]
    if task is not None:
        effects.append(
            Effect(
                "triangle-alert",
                _(
                    "The earlier send (%(state)s) may have cost %(money)s. If it did, the studio pays twice."
                )
                % {
                    "state": display.task_look(task).word,
                    "money": money_of(task),
                },
            )
        )
    effects.append(
        Effect(
            "eye",
            _("The earlier send stays watched. If its result comes, it is kept beside the other."),
        )
    )
    effects.append(
        Effect("receipt-text", _("It is booked under your name as a possible duplicate."))
    )
    return effects


def _resend_money(job: Job) -> str:
    task = in_the_way(job)
    if task is None:
        return ""
    return _("Up to %(earlier)s for the earlier send, and %(again)s for this one.") % {
        "earlier": money_of(task),
        "again": written.about(job.target.price, job.target.currency),
    }


def _manual_effects(job: Job) -> list[Effect]:
    return [
        Effect("hand", _("The job is yours: the machine sends nothing more for it.")),
        *_watched(job),
        Effect("inbox", _("A case in your name is put on the desk, with the note.")),
    ]


def _watched(job: Job) -> list[Effect]:
    sends = under_way(job)
    if not sends:
        return []
    money = ", ".join(money_of(task) for task in sends)
    return [
        Effect(
            "eye",
            _(
                "A send is not settled (%(money)s possible). It is still watched, and what it brings is kept."
            )
            % {"money": money},
        )
    ]


def _resolve_effects(job: Job) -> list[Effect]:
    return [
        Effect("check-check", _("The job ends by your word, and its open cases are closed.")),
        *_watched(job),
        Effect(
            "image",
            _(
                "A result that comes later is kept and announced, never delivered over your decision."
            ),
        ),
    ]


def _cancel_effects(job: Job) -> list[Effect]:
    return [Effect("ban", _("Nothing more is sent for this job.")), *_watched(job)]


def _retarget_effects(job: Job) -> list[Effect]:
    return [
        Effect("shuffle", _("The job goes back to the queue, first for the target you choose.")),
        Effect("layers", _("The rest of its route stays behind it.")),
        Effect("shield", _("Refused where an earlier send may have been charged.")),
    ]


def _free(job: Job) -> bool:
    return in_the_way(job) is None and not has_result(job)


RETRY = Verb(
    name="retry",
    permission="jobs.retry_job",
    label=pgettext_lazy("verb", "Retry"),
    title=gettext_lazy("Retry this job?"),
    icon="rotate-ccw",
    done=gettext_lazy("The job is back in the queue."),
    effects=_retry_effects,
    money=_costs_again,
    offered=lambda job: (
        job.state in {JobState.FAILED, JobState.MANUAL, JobState.CANCELLED} and _free(job)
    ),
    run=lambda job, actor, now, data: staff.retry(
        job_id=job.pk, actor=actor, now=now, reason=data["reason"]
    ),
)

RESEND = Verb(
    name="resend",
    permission="jobs.resend_job",
    label=gettext_lazy("Send again although a charge is possible"),
    title=gettext_lazy("Send again, and perhaps pay twice?"),
    icon="send",
    done=gettext_lazy("The job will be sent again. The possible duplicate is on the books."),
    form=desk_forms.ResendForm,
    effects=_resend_effects,
    money=_resend_money,
    offered=lambda job: (
        job.state not in {JobState.SUCCEEDED, JobState.PENDING}
        and (task := in_the_way(job)) is not None
        and task.state not in {TaskState.INTENT, TaskState.SENDING}
        and not has_result(job)
    ),
    run=lambda job, actor, now, data: staff.resend(
        job_id=job.pk, actor=actor, now=now, reason=data["reason"]
    ),
    dangerous=True,
)

RETARGET = Verb(
    name="retarget",
    permission="jobs.retarget_job",
    label=gettext_lazy("Retry on another target"),
    title=gettext_lazy("Retry on another target?"),
    icon="shuffle",
    done=gettext_lazy("The job is back in the queue, for the target you chose."),
    form=desk_forms.RetargetForm,
    effects=_retarget_effects,
    offered=lambda job: job.state != JobState.SUCCEEDED and _free(job),
    run=lambda job, actor, now, data: staff.retry_on_target(
        job_id=job.pk, target_id=data["target"].pk, actor=actor, now=now, reason=data["reason"]
    ),
)

MANUAL = Verb(
    name="manual",
    permission="jobs.manual_job",
    label=gettext_lazy("Mark for manual handling"),
    title=gettext_lazy("Take this job out of the machine's hands?"),
    icon="hand",
    done=gettext_lazy("The job is marked for manual handling."),
    form=desk_forms.NoteForm,
    effects=_manual_effects,
    # A job that needs a person has its case already: it is taken, not opened a second time.
    offered=lambda job: job.state in {JobState.PENDING, JobState.ACTIVE, JobState.FAILED},
    run=lambda job, actor, now, data: staff.mark_manual(
        job_id=job.pk, actor=actor, now=now, note=data["note"]
    ),
)

RESOLVE = Verb(
    name="resolve",
    permission="jobs.resolve_job",
    label=pgettext_lazy("verb", "Resolve"),
    title=gettext_lazy("Resolve this job"),
    icon="check-check",
    done=gettext_lazy("The job is resolved."),
    form=desk_forms.ResolveForm,
    effects=_resolve_effects,
    offered=lambda job: (
        job.state in {JobState.MANUAL, JobState.ACTIVE, JobState.PENDING, JobState.FAILED}
    ),
    run=lambda job, actor, now, data: staff.resolve(
        job_id=job.pk,
        actor=actor,
        now=now,
        outcome=data["outcome"],
        note=data["note"],
        stored=desk_forms.keep_upload(data["file"], job=job, now=now) if data["file"] else None,
    ),
    multipart=True,
)

CANCEL = Verb(
    name="cancel",
    permission="jobs.cancel_job",
    label=gettext_lazy("Cancel the job"),
    title=gettext_lazy("Cancel this job?"),
    icon="ban",
    done=gettext_lazy("The job is cancelled."),
    effects=_cancel_effects,
    offered=lambda job: job.state not in ENDED,
    run=lambda job, actor, now, data: staff.cancel(
        job_id=job.pk, actor=actor, now=now, reason=data["reason"]
    ),
    dangerous=True,
)

DELIVER, EDIT = decision_verbs.DELIVER, decision_verbs.EDIT
RATE = rating.RATE
JOB_VERBS: Sequence[Verb] = (RETRY, EDIT, RETARGET, DELIVER, RATE, RESOLVE, MANUAL, RESEND, CANCEL)


# --- tasks ------------------------------------------------------------------------------------------------------------


POLL = Verb(
    name="poll",
    permission="jobs.poll_providertask",
    label=gettext_lazy("Poll now"),
    title=gettext_lazy("Ask the provider now?"),
    icon="refresh-cw",
    done=gettext_lazy("The provider will be asked within seconds."),
    form=desk_forms.NothingForm,
    effects=lambda task: [
        Effect(
            "refresh-cw",
            _("%(provider)s is asked about this task at once. It costs nothing.")
            % {"provider": provider_of(task)},
        )
    ],
    offered=lambda task: (
        task.provider_id is not None and task.completed_at is None and task.stored_at is None
    ),
    run=lambda task, actor, now, _data: staff.poll_now(task_id=task.pk, actor=actor, now=now),
)

ATTACH = Verb(
    name="attach",
    permission="jobs.attach_providertask",
    label=gettext_lazy("Attach a provider id"),
    title=gettext_lazy("Attach the provider's id"),
    icon="link",
    done=gettext_lazy("The id is attached; the task is watched again."),
    form=desk_forms.AttachForm,
    effects=lambda task: [
        Effect(
            "search",
            _("%(provider)s is asked for this id first; it must know it.")
            % {"provider": provider_of(task)},
        ),
        Effect("shield", _("An id that belongs to another task of ours is refused.")),
        Effect(
            "radar", _("From then on the task is watched to its end, and its result delivered.")
        ),
    ],
    offered=lambda task: (
        task.provider_id is None and task.armed_at is not None and task.state == TaskState.UNKNOWN
    ),
    run=lambda task, actor, _now, data: attach.attach(
        task_id=task.pk, provider_id=data["provider_id"], actor=actor, reason=data["reason"]
    ),
)

ACCEPT, ABSENT = decision_verbs.ACCEPT, decision_verbs.ABSENT
REFUND, WRITE_OFF = decision_verbs.REFUND, decision_verbs.WRITE_OFF
TASK_VERBS: Sequence[Verb] = (POLL, ACCEPT, ATTACH, ABSENT, REFUND, WRITE_OFF)


# --- cases ------------------------------------------------------------------------------------------------------------


def _holds_job(case: Case) -> bool:
    """Whether the case is closed only by what settles its job."""
    kind = CaseKind(case.kind)
    blocks = kind in BLOCKING_CASES and kind not in {CaseKind.CONFLICT, CaseKind.POISON}
    return blocks and case.job is not None and case.job.state not in ENDED


TAKE = Verb(
    name="take",
    permission="jobs.work_case",
    label=pgettext_lazy("verb", "Take"),
    title=gettext_lazy("Take this case?"),
    icon="user-check",
    done=gettext_lazy("The case is yours."),
    form=desk_forms.NothingForm,
    effects=lambda _case: [
        Effect("user-check", _("The case carries your name, so that nobody else starts on it."))
    ],
    offered=lambda case: case.resolved_at is None and case.owner_id is None,
    run=lambda case, actor, now, _data: staff.take_case(case_id=case.pk, actor=actor, now=now),
)

NOTE = Verb(
    name="note",
    permission="jobs.work_case",
    label=gettext_lazy("Add a note"),
    title=gettext_lazy("Add a note"),
    icon="sticky-note",
    done=gettext_lazy("The note is kept."),
    form=desk_forms.NoteForm,
    effects=lambda _case: [
        Effect(
            "sticky-note",
            _("A line with your name and the time is added to the case and the timeline."),
        )
    ],
    run=lambda case, actor, now, data: staff.note_case(
        case_id=case.pk, actor=actor, now=now, note=data["note"]
    ),
)

CLOSE = Verb(
    name="close",
    permission="jobs.work_case",
    label=gettext_lazy("Close the case"),
    title=gettext_lazy("Close this case?"),
    icon="check-check",
    done=gettext_lazy("The case is closed."),
    form=desk_forms.CloseForm,
    effects=lambda _case: [
        Effect(
            "check-check",
            _("The case leaves the desk. It can still be found among the closed ones."),
        )
    ],
    offered=lambda case: case.resolved_at is None and not _holds_job(case),
    run=lambda case, actor, now, data: staff.close_case(
        case_id=case.pk, actor=actor, now=now, resolution=data["resolution"], note=data["note"]
    ),
)

REPLAY = callback_verbs.REPLAY_CASE
CASE_VERBS: Sequence[Verb] = (TAKE, NOTE, CLOSE, REPLAY)


def allowed(verbs: Sequence[Verb], user: Any, thing: Model) -> list[Verb]:
    """The verbs this person may use and that make sense now, in their order."""
    return [verb for verb in verbs if user.has_perm(verb.permission) and verb.offered(thing)]
