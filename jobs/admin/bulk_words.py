"""What bulk actions say and ask: reasons in words, the forms of their yes, what they may cost."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy

from jobs import display, written
from jobs.admin import forms as desk_forms
from jobs.display import Look
from jobs.lifecycle import bulk_acts
from jobs.lifecycle.bulk import Preview
from jobs.lifecycle.bulk_acts import Act
from jobs.models import BulkRun, BulkSkip
from providers.models import Target

LABELS: Mapping[str, str | Promise] = {
    "retry": pgettext_lazy("verb", "Retry"),
    "resolve": pgettext_lazy("verb", "Resolve"),
    "retarget": gettext_lazy("Change the target"),
    "manual": gettext_lazy("Mark for manual handling"),
    "cancel": pgettext_lazy("verb", "Cancel"),
}
_REASONS: Mapping[str, str | Promise] = {
    bulk_acts.POSSIBLE_CHARGE: gettext_lazy("an earlier send has cost or may have cost money; decide it by itself"),
    bulk_acts.ABOUT_TO_BE_SENT: gettext_lazy("it is about to be sent"),
    bulk_acts.HAS_RESULT: gettext_lazy("a result of it is here already: deliver that"),
    bulk_acts.OTHER_KIND: gettext_lazy("the target makes another kind"),
    bulk_acts.GONE: gettext_lazy("it is not there any more"),
    bulk_acts.REFUSED: gettext_lazy("refused"),
    bulk_acts.BROKEN: gettext_lazy("an error; see the log"),
}  # fmt: skip

STATES: Mapping[str, Look] = {
    BulkRun.State.OPEN: Look(gettext_lazy("under way"), "", "blue"),
    BulkRun.State.DONE: Look(gettext_lazy("done"), "circle-check", "green"),
    BulkRun.State.ABORTED: Look(pgettext_lazy("bulk run", "stopped"), "ban", "grey"),
    BulkRun.State.FORBIDDEN: Look(
        gettext_lazy("stopped: no longer permitted"), "lock", "amber"
    ),
}  # fmt: skip
_WAITS = Look(pgettext_lazy("bulk run", "waits for a worker"), "clock", "grey")


def look(run: BulkRun) -> Look:
    if run.state == BulkRun.State.OPEN and run.worked_at is None:
        return _WAITS
    return STATES[run.state]


def label(verb: str) -> str:
    return str(LABELS.get(verb, verb))


def reason(constant: str) -> str:
    """Why jobs were left out, in words; the same for all of one constant."""
    state = bulk_acts.state_of(constant)
    if state is not None:
        return _("it is “%(state)s”") % {"state": display.JOB_STATES[state].word}
    return str(_REASONS.get(constant, constant))


def why(skip: BulkSkip) -> str:
    """Why this one was left out, with its money or the refusal's own sentence."""
    words = skip.said or reason(skip.reason)
    if skip.money is not None:
        return _("its last send has cost or may have cost %(money)s; decide it by itself") % {
            "money": written.money(skip.money, skip.currency)
        }
    return words


def number(count: int) -> str:
    return written.number(count)


def jobs_words(n: int) -> str:
    return ngettext("%(n)s job", "%(n)s jobs", n) % {"n": number(n)}


def done_words(run: BulkRun) -> str:
    return ngettext("%(n)s job done.", "%(n)s jobs done.", run.done) % {"n": number(run.done)}


def money(act: Act, seen: Preview) -> str:
    """What it may cost in all, or what stays possible."""
    if act is bulk_acts.RETARGET:
        return ""  # each target on offer says its own
    if act.sends:
        told = written.totals(seen.costs)
        return _("About %(money)s in all, if each is made once.") % {"money": told} if told else ""
    told = written.totals(seen.possible)
    if told:
        return _("Sends under way may have cost %(money)s; they stay watched.") % {"money": told}
    return "" if act.spares else _("No send of theirs is under way.")


# Django's class is generic only for the type checker.
if TYPE_CHECKING:
    TargetChoice = forms.ModelChoiceField[Target]
else:
    TargetChoice = forms.ModelChoiceField

# --- forms ------------------------------------------------------------------------------------------------------------


class _TargetField(TargetChoice):
    """Names a target with what the chosen jobs would cost there."""

    kinds: Mapping[str, int] = {}

    def label_from_instance(self, obj: Any) -> str:
        n = self.kinds.get(obj.kind, 0)
        if not n:
            return str(obj.name)
        told = {"target": obj.name, "jobs": jobs_words(n), "money": written.about(obj.price * n, obj.currency)}  # fmt: skip
        return _("%(target)s · %(jobs)s, %(money)s") % told


class BulkRetargetForm(desk_forms.ReasonForm):
    target = _TargetField(
        label=gettext_lazy("Target"), queryset=Target.objects.none(), empty_label=None
    )
    field_order = ("target", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["target"]
        assert isinstance(field, _TargetField)
        targets = Target.objects.filter(enabled=True, stopped_at__isnull=True)
        if isinstance(self.thing, Preview):
            field.kinds = self.thing.kinds
            targets = targets.filter(kind__in=[*self.thing.kinds])
        field.queryset = targets.order_by("provider", "model")


class BulkResolveForm(desk_forms.ResolveForm):
    """A file is one job's result, not many jobs'."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["file"]


_FORMS: Mapping[str, type[desk_forms.VerbForm]] = {
    "retarget": BulkRetargetForm,
    "resolve": BulkResolveForm,
    "manual": desk_forms.NoteForm,
}


def form_of(act: Act) -> type[desk_forms.VerbForm]:
    return _FORMS.get(act.name, desk_forms.ReasonForm)


def plain(cleaned: Mapping[str, Any]) -> dict[str, Any]:
    """The form's fields, to be kept with the run."""
    return {
        name: value.pk if isinstance(value, Target) else value
        for name, value in cleaned.items()
        if name in {"reason", "note", "outcome", "target"}
    }


def said(run: BulkRun) -> list[str]:
    """What its maker gave with the yes, in words."""
    lines = []
    if target := run.data.get("target"):
        found = Target.objects.filter(pk=target).first()
        lines.append(str(found.name) if found is not None else f"#{target}")
    if outcome := run.data.get("outcome"):
        lines.append(display.reason(outcome))
    return [*lines, *(str(run.data[name]) for name in ("reason", "note") if run.data.get(name))]


def totals(sums: Mapping[str, Decimal]) -> str:
    return written.totals(sums)
