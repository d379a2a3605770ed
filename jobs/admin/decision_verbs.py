"""What staff decide where the machine can't know: the words, forms and effects of the verbs of lifecycle/decisions.py and
attach.py."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import attach, written
from jobs.admin import forms as desk_forms
from jobs.admin.verb import Effect, Verb, in_the_way, money_of, provider_of
from jobs.clock import clock
from jobs.lifecycle import decisions
from jobs.models import Job, ProviderTask
from jobs.states import ENDED, HAS_COST, JobState, TaskState
from providers.contract import Charge


def _settles_nothing_running(task: ProviderTask) -> bool:
    """Whether the machine has let go of it: only then may a person say how its money stands."""
    if task.state in {TaskState.INTENT, TaskState.SENDING}:
        return False
    return not (task.job.state == JobState.ACTIVE and task.blocks_send)


def _waits_for(task: ProviderTask) -> bool:
    return task.blocks_send and task.job.state not in ENDED


# --- a candidate ------------------------------------------------------------------------------------------------------

ACCEPT = Verb(
    name="accept",
    permission="jobs.accept_providertask",
    label=gettext_lazy("Accept a candidate"),
    title=gettext_lazy("Is one of these the lost send?"),
    icon="check",
    done=gettext_lazy("The candidate is accepted; the task is watched again."),
    form=desk_forms.AcceptForm,
    effects=lambda task: [
        Effect(
            "search",
            _("%(provider)s is asked for its id first; it must know it.")
            % {"provider": provider_of(task)},
        ),
        Effect("shield", _("An id that belongs to another task of ours is refused.")),
        Effect(
            "radar", _("From then on the task is watched to its end, and its result delivered.")
        ),
    ],
    offered=lambda task: (
        task.provider_id is None
        and task.armed_at is not None
        and task.state == TaskState.UNKNOWN
        and bool(attach.candidates(task))
    ),
    run=lambda task, actor, _now, data: attach.accept(
        task_id=task.pk, provider_id=data["provider_id"], actor=actor, reason=data["reason"]
    ),
)


# --- it never arrived -------------------------------------------------------------------------------------------------


def _absent_effects(task: ProviderTask) -> list[Effect]:
    return [
        Effect("send", _("The same request is sent once more, as a new, paid send.")),
        Effect(
            "receipt-text",
            _(
                "Your word is kept with your name. The charge of the earlier send (%(money)s) stays possible until it is proven, refunded or written off."
            )
            % {"money": money_of(task)},
        ),
        Effect(
            "eye",
            _(
                "The earlier send is still looked for. If it turns up after all, its result is kept, and a case says that it was paid twice."
            ),
        ),
    ]


def _absent_money(task: ProviderTask) -> str:
    price = written.about(task.job.target.price, task.job.target.currency)
    return _("One more send costs %(price)s.") % {"price": price}


ABSENT = Verb(
    name="absent",
    permission="jobs.absent_providertask",
    label=gettext_lazy("It never arrived: send again"),
    title=gettext_lazy("Has the provider confirmed that it never arrived?"),
    icon="send",
    done=gettext_lazy("The job will be sent again."),
    form=desk_forms.AbsentForm,
    effects=_absent_effects,
    money=_absent_money,
    offered=lambda task: (
        task.state == TaskState.UNKNOWN
        and task.blocks_send
        and task.job.state not in {JobState.SUCCEEDED, JobState.PENDING}
        and not decisions.why_not_absent(task, now=clock.now())
    ),
    run=lambda task, actor, now, data: decisions.confirm_absent(
        task_id=task.pk, actor=actor, now=now, reason=data["reason"]
    ),
    dangerous=True,
)


# --- its money --------------------------------------------------------------------------------------------------------


def _refund_effects(task: ProviderTask) -> list[Effect]:
    effects = [
        Effect(
            "undo-2",
            _("%(money)s count as paid back: not spent, and no risk any more.")
            % {"money": money_of(task)},
        ),
        Effect("check-check", _("The cases about its money are closed.")),
    ]
    if _waits_for(task):
        effects.append(
            Effect(
                "rotate-ccw",
                _(
                    "The job waited for it: it goes to the next target where that is the rule after a failure, else it has failed and can be retried."
                ),
            )
        )
    return effects


REFUND = Verb(
    name="refund",
    permission="jobs.refund_providertask",
    label=gettext_lazy("Mark as refunded"),
    title=gettext_lazy("Has the provider paid it back?"),
    icon="undo-2",
    done=gettext_lazy("It is marked as refunded."),
    form=desk_forms.RefundForm,
    effects=_refund_effects,
    offered=lambda task: (
        task.charge in HAS_COST
        and (_settles_nothing_running(task) or task.state == TaskState.FAILED)
        and not _is_delivered(task)
    ),
    run=lambda task, actor, now, data: decisions.mark_refunded(
        task_id=task.pk, actor=actor, now=now, reference=data["reference"], note=data["note"]
    ),
)


def _is_delivered(task: ProviderTask) -> bool:
    delivered = task.job.delivered
    return delivered is not None and delivered.task_id == task.pk


def _write_off_effects(task: ProviderTask) -> list[Effect]:
    effects = [
        Effect(
            "ban",
            _("%(money)s are taken as lost: they stay spent, and are told apart in the statement.")
            % {"money": money_of(task)},
        ),
        Effect("check-check", _("The cases about its money are closed.")),
        Effect("eye", _("It stays watched where its id is known; what it still brings is kept.")),
    ]
    if _waits_for(task):
        effects.append(
            Effect("circle-x", _("The job waited for it: it ends as given up, by your word."))
        )
    return effects


WRITE_OFF = Verb(
    name="write-off",
    permission="jobs.writeoff_providertask",
    label=gettext_lazy("Write off"),
    title=gettext_lazy("Take its charge as lost?"),
    icon="ban",
    done=gettext_lazy("The charge is written off."),
    form=desk_forms.WriteOffForm,
    effects=_write_off_effects,
    offered=lambda task: (
        task.charge in {Charge.POSSIBLE, Charge.CHARGED}
        and _settles_nothing_running(task)
        and not _is_delivered(task)
    ),
    run=lambda task, actor, now, data: decisions.write_off(
        task_id=task.pk, actor=actor, now=now, note=data["note"], reference=data["reference"], cost=data["cost"]
    ),
    dangerous=True,
)  # fmt: skip


# --- something else is asked for --------------------------------------------------------------------------------------


def _edit_money(job: Job) -> str:
    price = written.about(job.target.price, job.target.currency)
    return _("One more send costs %(price)s. Nothing of the earlier sends was charged.") % {
        "price": price
    }


EDIT = Verb(
    name="edit",
    permission="jobs.edit_job",
    label=pgettext_lazy("verb", "Retry with another prompt"),
    title=gettext_lazy("Ask for it in other words?"),
    icon="pencil",
    done=gettext_lazy("The job is back in the queue, with what you wrote."),
    form=desk_forms.EditForm,
    effects=lambda _job: [
        Effect("rotate-ccw", _("The job goes back to the queue with this prompt, and this target.")),
        Effect(
            "history", _("What was asked at first is kept; the job's page shows the difference.")
        ),
        Effect("shield", _("Refused where any earlier send cost money or may have.")),
    ],
    money=_edit_money,
    offered=lambda job: (
        job.state in {JobState.FAILED, JobState.MANUAL, JobState.CANCELLED}
        and in_the_way(job) is None
        and not any(task.charge in HAS_COST for task in job.tasks.all())
    ),
    run=lambda job, actor, now, data: decisions.retry_edited(
        job_id=job.pk, prompt=data["prompt"], target_id=data["target"].pk if data["target"] else None, actor=actor,
        now=now, reason=data["reason"],
    ),
)  # fmt: skip


# --- which result -----------------------------------------------------------------------------------------------------

DELIVER = Verb(
    name="deliver",
    permission="jobs.deliver_job",
    label=gettext_lazy("Deliver another result"),
    title=gettext_lazy("Which result is delivered?"),
    icon="image",
    done=gettext_lazy("The result you chose is delivered."),
    form=desk_forms.DeliverForm,
    effects=lambda job: [
        Effect("image", _("The job has succeeded with the result you choose, by your word.")),
        Effect("layers", _("What was delivered before is kept beside it."))
        if job.delivered_id
        else Effect("check-check", _("Its open cases are closed.")),
    ],
    offered=lambda job: any(
        result.pk != job.delivered_id and result.removed_at is None for result in job.results.all()
    ),
    run=lambda job, actor, now, data: decisions.deliver_instead(
        job_id=job.pk, result_id=data["result"].pk, actor=actor, now=now, reason=data["reason"]
    ),
)
