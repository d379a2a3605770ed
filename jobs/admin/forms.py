"""Forms of the confirmations. What may be done is checked by lifecycle; here only what must be filled in."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

from asgiref.sync import async_to_sync
from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import attach, results, written
from jobs.admin.amounts import AmountField
from jobs.display import RESOLUTIONS
from jobs.intake import MAX_PROMPT_CHARS
from jobs.lifecycle.errors import Refused
from jobs.models import Job, Result
from jobs.results import Stored
from providers.contract import Kind
from providers.models import Target


class Words(forms.CharField):
    """A text whose usual contents are ready to be pressed (jobs/static/desk/ready.js): nobody has to type them at 3 a.m.
    `paste`: it is copied from elsewhere as a rule, so there is a button for that as well."""

    def __init__(self, *, ready: Sequence[Any] = (), paste: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ready = ready
        self.paste = paste


def _text(label: Any, *, required: bool, help_text: Any = "", ready: Sequence[Any] = ()) -> Words:
    return Words(
        label=label,
        required=required,
        help_text=help_text,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3, "dir": "auto"}),
        ready=ready,
    )


def _number(label: Any, *, required: bool, help_text: Any = "", ready: Sequence[Any] = ()) -> Words:
    """An id or number of the provider's."""
    return Words(
        label=label,
        required=required,
        max_length=200,
        help_text=help_text,
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
        ready=ready,
        paste=True,
    )


class VerbForm(forms.Form):
    """Any of the forms below; `thing` is the row the verb is for. `presets`: fields that a link to the page may fill in."""

    presets: ClassVar[Sequence[str]] = ()

    def __init__(self, *args: Any, thing: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)
        self.thing = thing


class NothingForm(VerbForm):
    pass


class ReasonForm(VerbForm):
    reason = _text(
        gettext_lazy("Why"),
        required=False,
        help_text=gettext_lazy("Kept in the timeline with your name."),
    )


class NoteForm(VerbForm):
    note = _text(
        gettext_lazy("Note"),
        required=True,
        help_text=gettext_lazy("What the next person should know."),
        ready=(
            gettext_lazy("Waiting for the provider's support."),
            gettext_lazy("Asked the customer."),
            gettext_lazy("I'll look at it again."),
        ),
    )


class ResendForm(VerbForm):
    reason = _text(
        gettext_lazy("Why"),
        required=True,
        help_text=gettext_lazy("Kept with the possible duplicate."),
        ready=(
            gettext_lazy("The customer can't wait."),
            gettext_lazy("The provider's support can't find it."),
        ),
    )
    sure = forms.BooleanField(
        label=gettext_lazy("I know that this may be paid twice."), required=True
    )


class RetargetForm(VerbForm):
    target = forms.ModelChoiceField(
        label=gettext_lazy("Target"), queryset=Target.objects.none(), empty_label=None
    )
    reason = _text(
        gettext_lazy("Why"),
        required=False,
        help_text=gettext_lazy("Kept in the timeline with your name."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["target"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Target.objects.filter(
            kind=self.thing.kind, enabled=True, stopped_at__isnull=True
        ).order_by("provider", "model")
        self.initial.setdefault(
            "target", next((pk for pk in self.thing.route if pk != self.thing.target_id), None)
        )


class ResolveForm(VerbForm):
    outcome = forms.ChoiceField(
        label=gettext_lazy("How it ends"),
        choices=[
            ("done", gettext_lazy("Done: the customer has what they wanted")),
            ("gave_up", gettext_lazy("Given up: there will be no result")),
        ],
        widget=forms.RadioSelect,
        initial="done",
    )
    note = _text(
        gettext_lazy("Note"),
        required=True,
        help_text=gettext_lazy("What was done, and how the money stands."),
        ready=(
            gettext_lazy("Made by hand and handed over."),
            gettext_lazy("The customer no longer wants it."),
            gettext_lazy("It can't be had; the customer knows."),
            gettext_lazy("The money is being asked back."),
        ),
    )
    file = forms.FileField(
        label=gettext_lazy("Result made by hand"),
        required=False,
        help_text=gettext_lazy("Delivered as this job's result. Empty: there is no file."),
    )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if data.get("file") and data.get("outcome") == "gave_up":
            self.add_error("file", _("A job that is given up delivers no file."))
        return data


class AttachForm(VerbForm):
    provider_id = _number(
        gettext_lazy("The provider's id"),
        required=True,
        help_text=gettext_lazy("As its dashboard or support names it."),
    )
    reason = _text(
        gettext_lazy("How you know"),
        required=True,
        help_text=gettext_lazy("Kept in the timeline with your name."),
        ready=(
            gettext_lazy("Seen in the provider's dashboard."),
            gettext_lazy("The provider's support named it."),
        ),
    )


class AcceptForm(VerbForm):
    presets = ("provider_id",)
    provider_id = forms.ChoiceField(
        label=gettext_lazy("Which of them is it?"), choices=(), widget=forms.RadioSelect
    )
    reason = _text(
        gettext_lazy("How you know"),
        required=False,
        help_text=gettext_lazy("Kept in the timeline with your name."),
        ready=(
            gettext_lazy("The picture is what was asked for."),
            gettext_lazy("Only this one fits the time."),
        ),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["provider_id"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (one["id"], " · ".join(filter(None, [one["id"], one.get("model"), one.get("status")])))
            for one in attach.candidates(self.thing)
        ]


class AbsentForm(VerbForm):
    reason = _text(
        gettext_lazy("Who confirmed it, and how"),
        required=True,
        help_text=gettext_lazy("The name or number of the answer of the provider's support."),
        ready=(
            gettext_lazy("The provider's support says that it never arrived."),
            gettext_lazy("It isn't in the provider's dashboard."),
        ),
    )


class RefundForm(VerbForm):
    reference = _number(
        gettext_lazy("The provider's reference"),
        required=True,
        help_text=gettext_lazy("Of the refund: a number of its books, or of the support's answer."),
        ready=(gettext_lazy("seen in the balance"), gettext_lazy("promised by the support")),
    )
    note = _text(gettext_lazy("Note"), required=False)


class WriteOffForm(VerbForm):
    cost = AmountField(
        label=gettext_lazy("What it cost"),
        required=False,
        min_value=Decimal("0.01"),
        max_digits=10,
        decimal_places=4,
        help_text=gettext_lazy("If you know it. Empty: as known, or as estimated."),
    )
    reference = _number(gettext_lazy("The provider's reference"), required=False)
    note = _text(
        gettext_lazy("Why"),
        required=True,
        help_text=gettext_lazy("Kept in the timeline with your name."),
        ready=(
            gettext_lazy("Too small to argue about."),
            gettext_lazy("The provider won't pay it back."),
            gettext_lazy("The provider's support doesn't answer."),
        ),
    )


class EditForm(VerbForm):
    prompt = forms.CharField(
        label=gettext_lazy("Prompt"),
        max_length=MAX_PROMPT_CHARS,
        widget=forms.Textarea(attrs={"rows": 8, "dir": "auto"}),
        help_text=gettext_lazy("The prompt of now is kept, and the difference shown."),
    )
    target = forms.ModelChoiceField(
        label=gettext_lazy("Target"),
        queryset=Target.objects.none(),
        required=False,
        empty_label=gettext_lazy("as before"),
    )
    reason = _text(gettext_lazy("Why"), required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["target"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Target.objects.filter(
            kind=self.thing.kind, enabled=True, stopped_at__isnull=True
        ).order_by("provider", "model")
        self.initial.setdefault("prompt", self.thing.prompt)


class _ResultField(forms.ModelChoiceField):  # type: ignore[type-arg]  # not subscriptable at run time
    def label_from_instance(self, obj: Result) -> str:
        whose = _("by hand") if obj.task_id is None else _("by the provider")
        return f"{written.exact(obj.created_at)} · {whose} · {written.size(obj.size_bytes)}"


class DeliverForm(VerbForm):
    result = _ResultField(
        label=gettext_lazy("Result"),
        queryset=Result.objects.none(),
        empty_label=None,
        widget=forms.RadioSelect,
    )
    reason = _text(
        gettext_lazy("Why"),
        required=False,
        help_text=gettext_lazy("Kept in the timeline with your name."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["result"]
        assert isinstance(field, _ResultField)
        field.queryset = (
            Result.objects.filter(job=self.thing, removed_at=None)
            .exclude(pk=self.thing.delivered_id or 0)
            .order_by("created_at", "position", "id")
        )
        found = list(field.queryset[:2])
        if len(found) == 1:
            self.initial.setdefault("result", found[0].pk)


class CloseForm(VerbForm):
    resolution = forms.ChoiceField(
        label=gettext_lazy("How it was settled"),
        choices=[
            (name, RESOLUTIONS[name]) for name in ("checked", "settled", "refund_asked", "gave_up")
        ],
    )
    note = _text(
        gettext_lazy("Note"),
        required=True,
        help_text=gettext_lazy("What you found."),
        ready=(
            gettext_lazy("Looked into it: nothing to do."),
            gettext_lazy("Agreed with the provider's support."),
            gettext_lazy("A refund is asked for."),
        ),
    )


class RedButtonForm(VerbForm):
    reason = _text(
        gettext_lazy("Why"),
        required=True,
        help_text=gettext_lazy("Everybody sees it on every page until it is lifted."),
    )


def keep_upload(upload: UploadedFile[Any], *, job: Job, now: datetime) -> Stored:
    """Check and store a file made by hand, like a fetched one. Raises Refused for what can't be a result."""
    temporary = results.new_temporary()
    with temporary.open("xb") as out:
        out.writelines(upload.chunks())
    kept = async_to_sync(results.keep)(
        temporary,
        key_base=results.key_base(uuid.uuid4(), now),
        index=0,
        kind=Kind(job.kind),
        pictures=results.picture_process(),
        max_bytes=settings.MAX_RESULT_BYTES,
    )
    if isinstance(kept, Stored):
        return kept
    raise Refused(_("The file can't be a result: %(reason)s.") % {"reason": kept.reason})
