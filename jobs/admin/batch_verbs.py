"""What staff may do to a batch: the words, forms and effects of the verbs of lifecycle/batches.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib.auth.models import AbstractBaseUser
from django.db.models import Sum
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from jobs import progress, written
from jobs.admin.forms import ReasonForm
from jobs.admin.verb import Effect, Verb
from jobs.clock import clock
from jobs.lifecycle import batches
from jobs.models import Batch, Job
from jobs.progress import Progress
from jobs.states import JobState
from providers.models import Target


def of(batch: Batch) -> Progress:
    """How far it is, read once a request."""
    if not hasattr(batch, "shown_progress"):
        batch.shown_progress = progress.read(batch.pk, now=clock.now())  # type: ignore[attr-defined]
    seen: Progress = batch.shown_progress  # type: ignore[attr-defined]
    return seen


class RetargetRestForm(ReasonForm):
    target = forms.ModelChoiceField(
        label=gettext_lazy("Target"), queryset=Target.objects.none(), empty_label=None
    )
    field_order = ("target", "reason")

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["target"]
        assert isinstance(field, forms.ModelChoiceField)
        kinds = Job.objects.filter(batch=self.thing, state=JobState.PENDING).values("kind")
        field.queryset = Target.objects.filter(
            kind__in=kinds, enabled=True, stopped_at__isnull=True
        ).order_by("provider", "model")


def jobs_words(n: int) -> str:
    return ngettext("%(n)s job", "%(n)s jobs", n) % {"n": n}


def _waiting(batch: Batch) -> int:
    return of(batch).counts[JobState.PENDING]


def _active(batch: Batch) -> list[Effect]:
    active = of(batch).counts[JobState.ACTIVE]
    if not active:
        return []
    text = ngettext(
        "%(n)s is being sent or made: it is or may be paid for, and goes on.",
        "%(n)s are being sent or made: they are or may be paid for, and go on.",
        active,
    )
    return [Effect("eye", text % {"n": active})]


def _pause_effects(batch: Batch) -> list[Effect]:
    return [
        Effect(
            "circle-pause",
            _("Nothing more of it is sent until somebody resumes it. Waiting: %(jobs)s.")
            % {"jobs": jobs_words(_waiting(batch))},
        ),
        *_active(batch),
    ]


def _resume_effects(batch: Batch) -> list[Effect]:
    return [
        Effect(
            "play",
            _("%(jobs)s may be sent again, in the order they had before.")
            % {"jobs": jobs_words(_waiting(batch))},
        )
    ]


def _cancel_effects(batch: Batch) -> list[Effect]:
    return [
        Effect("ban", _("Cancelled before anything is sent: %(jobs)s.") % {"jobs": jobs_words(_waiting(batch))}),
        *_active(batch),
        Effect("rotate-ccw", _("Cancelled jobs can be retried one by one later.")),
    ]  # fmt: skip


def _failed(batch: Batch) -> list[int]:
    failed = Job.objects.filter(batch=batch, state=JobState.FAILED).values_list("pk", flat=True)
    return list(failed)


def _retry_effects(batch: Batch) -> list[Effect]:
    failed = _failed(batch)
    free = batches.free(failed)
    effects = [
        Effect(
            "rotate-ccw",
            _("Back to the queue, with a new start: %(jobs)s.") % {"jobs": jobs_words(len(free))},
        )
    ]
    if left := len(failed) - len(free):
        effects.append(
            Effect(
                "shield",
                _("Left as they are, because an earlier send may have cost money: %(jobs)s.")
                % {"jobs": jobs_words(left)},
            )
        )
    if of(batch).paused:
        effects.append(Effect("circle-pause", _("The batch is paused: they wait until it is resumed.")))  # fmt: skip
    return effects


def _retry_money(batch: Batch) -> str:
    sums = (
        Job.objects.filter(pk__in=batches.free(_failed(batch)))
        .values_list("target__currency")
        .annotate(money=Sum("target__price"))
    )
    told = written.totals({currency: money or Decimal(0) for currency, money in sums})
    return _("About %(money)s in all, if each is made once.") % {"money": told} if told else ""


def _retarget_effects(batch: Batch) -> list[Effect]:
    return [
        Effect(
            "shuffle",
            _("What waits goes to that target first: %(jobs)s.")
            % {"jobs": jobs_words(_waiting(batch))},
        ),
        Effect("layers", _("The rest of each route stays behind it.")),
        *_active(batch),
    ]


def _by(change: Callable[..., batches.Done]) -> Callable[..., None]:
    """A verb of lifecycle/batches.py with the form's fields. The page tells what became of it by its counts."""

    def run(batch: Batch, actor: AbstractBaseUser, now: datetime, data: dict[str, Any]) -> None:
        chosen = {"target_id": data["target"].pk} if "target" in data else {}
        change(batch_id=batch.pk, actor=actor, now=now, reason=data["reason"], **chosen)

    return run


PAUSE = Verb(
    name="pause",
    permission="jobs.pause_batch",
    label=pgettext_lazy("verb", "Pause"),
    title=gettext_lazy("Pause this batch?"),
    icon="circle-pause",
    done=gettext_lazy("The batch is paused."),
    form=ReasonForm,
    effects=_pause_effects,
    offered=lambda batch: batch.paused_at is None and _waiting(batch) > 0,
    run=_by(batches.pause),
)

RESUME = Verb(
    name="resume",
    permission="jobs.pause_batch",
    label=pgettext_lazy("verb", "Resume"),
    title=gettext_lazy("Resume this batch?"),
    icon="play",
    done=gettext_lazy("The batch goes on."),
    form=ReasonForm,
    effects=_resume_effects,
    offered=lambda batch: batch.paused_at is not None,
    run=_by(batches.resume),
)

RETRY_FAILED = Verb(
    name="retry-failed",
    permission="jobs.retry_batch",
    label=gettext_lazy("Retry the failed"),
    title=gettext_lazy("Retry the failed jobs of this batch?"),
    icon="rotate-ccw",
    done=gettext_lazy("The failed jobs are back in the queue."),
    form=ReasonForm,
    effects=_retry_effects,
    money=_retry_money,
    offered=lambda batch: of(batch).counts[JobState.FAILED] > 0,
    run=_by(batches.retry_failed),
)

RETARGET_REST = Verb(
    name="retarget-rest",
    permission="jobs.retarget_batch",
    label=gettext_lazy("Change the target of the rest"),
    title=gettext_lazy("Change the target of what waits?"),
    icon="shuffle",
    done=gettext_lazy("What waits goes to the target you chose."),
    form=RetargetRestForm,
    effects=_retarget_effects,
    offered=lambda batch: _waiting(batch) > 0,
    run=_by(batches.retarget_rest),
)

CANCEL_REST = Verb(
    name="cancel-rest",
    permission="jobs.cancel_batch",
    label=gettext_lazy("Cancel the rest"),
    title=gettext_lazy("Cancel the rest of this batch?"),
    icon="ban",
    done=gettext_lazy("The rest of the batch is cancelled."),
    form=ReasonForm,
    effects=_cancel_effects,
    offered=lambda batch: _waiting(batch) > 0,
    run=_by(batches.cancel_rest),
    dangerous=True,
)

BATCH_VERBS: Sequence[Verb] = (RETRY_FAILED, PAUSE, RESUME, RETARGET_REST, CANCEL_REST)
