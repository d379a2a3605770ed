"""Forms of the confirmations. What may be done is checked by lifecycle; here only what must be filled in."""

from __future__ import annotations

import uuid
from datetime import datetime
from decimal import Decimal
from typing import Any

from asgiref.sync import async_to_sync
from django import forms
from django.conf import settings
from django.core.files.uploadedfile import UploadedFile
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import attach, display, results
from jobs.display import RESOLUTIONS
from jobs.intake import MAX_PROMPT_CHARS
from jobs.lifecycle.errors import Refused
from jobs.models import Job, Result
from jobs.results import Stored
from providers.contract import Kind
from providers.models import Target


def _text(label: Any, *, required: bool, help_text: Any = "") -> forms.CharField:
    return forms.CharField(
        label=label,
        required=required,
        help_text=help_text,
        max_length=2000,
        widget=forms.Textarea(attrs={"rows": 3}),
    )


class VerbForm(forms.Form):
    """Any of the forms below; `thing` is the row the verb is for."""

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
    )


class ResendForm(VerbForm):
    reason = _text(
        gettext_lazy("Why"),
        required=True,
        help_text=gettext_lazy("Kept with the possible duplicate."),
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
    provider_id = forms.CharField(
        label=gettext_lazy("The provider's id"),
        max_length=200,
        help_text=gettext_lazy("As its dashboard or support names it."),
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
    )
    reason = _text(
        gettext_lazy("How you know"),
        required=True,
        help_text=gettext_lazy("Kept in the timeline with your name."),
    )


class AcceptForm(VerbForm):
    provider_id = forms.ChoiceField(
        label=gettext_lazy("Which of them is it?"), choices=(), widget=forms.RadioSelect
    )
    reason = _text(
        gettext_lazy("How you know"),
        required=False,
        help_text=gettext_lazy("Kept in the timeline with your name."),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["provider_id"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (one["id"], " · ".join(filter(None, [one["id"], one.get("model"), one.get("status"), one.get("created_at")])))
            for one in attach.candidates(self.thing)
        ]  # fmt: skip


class AbsentForm(VerbForm):
    reason = _text(
        gettext_lazy("Who confirmed it, and how"),
        required=True,
        help_text=gettext_lazy("The name or number of the answer of the provider's support."),
    )


class RefundForm(VerbForm):
    reference = forms.CharField(
        label=gettext_lazy("The provider's reference"),
        max_length=200,
        help_text=gettext_lazy("Of the refund: a number of its books, or of the support's answer."),
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
    )
    note = _text(gettext_lazy("Note"), required=False)


class WriteOffForm(VerbForm):
    cost = forms.DecimalField(
        label=gettext_lazy("What it cost"),
        required=False,
        min_value=Decimal("0.01"),
        max_digits=10,
        decimal_places=4,
        help_text=gettext_lazy("If you know it. Empty: as known, or as estimated."),
    )
    reference = forms.CharField(
        label=gettext_lazy("The provider's reference"),
        required=False,
        max_length=200,
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
    )
    note = _text(
        gettext_lazy("Why"),
        required=True,
        help_text=gettext_lazy("Kept in the timeline with your name."),
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
        return f"{display.exact(obj.created_at)} · {whose} · {display.size(obj.size_bytes)}"


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
            Result.objects.filter(job=self.thing)
            .exclude(pk=self.thing.delivered_id or 0)
            .order_by("created_at", "position", "id")
        )


class CloseForm(VerbForm):
    resolution = forms.ChoiceField(
        label=gettext_lazy("How it was settled"),
        choices=[
            (name, RESOLUTIONS[name]) for name in ("checked", "settled", "refund_asked", "gave_up")
        ],
    )
    note = _text(gettext_lazy("Note"), required=True, help_text=gettext_lazy("What you found."))


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
