"""Orphans: generations at a provider that no job of ours belongs to. A person adopts or disputes each, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import written
from jobs.admin.changelist import STATEMENTS, EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin
from jobs.admin.forms import VerbForm
from jobs.admin.verb import Effect, Verb
from jobs.admin.verbs import allowed
from jobs.clock import clock
from jobs.display import Look
from jobs.lifecycle import statement
from jobs.models import Orphan, Tenant
from jobs.templatetags import desk

OPEN = Look(gettext_lazy("to decide"), "hand", "amber")
_OUTCOMES = {
    Orphan.Outcome.ADOPTED: Look(gettext_lazy("adopted"), "link", "green"),
    Orphan.Outcome.DISPUTED: Look(gettext_lazy("disputed"), "gavel", "grey"),
}


class AdoptForm(VerbForm):
    tenant = forms.ModelChoiceField(
        label=gettext_lazy("Tenant"),
        queryset=Tenant.objects.none(),
        empty_label=None,
        help_text=gettext_lazy("Whose job it becomes, and whose money it counts as."),
    )
    reference = forms.CharField(
        label=gettext_lazy("Reference"),
        max_length=200,
        required=False,
        help_text=gettext_lazy("The customer's own."),
    )
    prompt = forms.CharField(
        label=gettext_lazy("Prompt"),
        max_length=20_000,
        required=False,
        help_text=gettext_lazy("If you know what was asked for. The history doesn't tell."),
        widget=forms.Textarea(attrs={"rows": 3, "dir": "auto"}),
    )
    note = forms.CharField(
        label=gettext_lazy("Why"),
        max_length=2000,
        required=False,
        help_text=gettext_lazy("Kept with your name."),
        widget=forms.Textarea(attrs={"rows": 2}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Tenant.objects.order_by("name", "pk")


class DisputeForm(VerbForm):
    reference = forms.CharField(
        label=gettext_lazy("The provider's reference"),
        max_length=200,
        help_text=gettext_lazy("The number of the ticket or letter in which they were told."),
        widget=forms.TextInput(attrs={"dir": "auto", "autocomplete": "off"}),
    )
    note = forms.CharField(
        label=gettext_lazy("Note"),
        max_length=2000,
        required=False,
        help_text=gettext_lazy("What the next person should know."),
        widget=forms.Textarea(attrs={"rows": 3}),
    )


def _charged(orphan: Orphan) -> str:
    if orphan.cost is None:
        return ""
    return _("The provider charged %(money)s for it.") % {
        "money": written.money(orphan.cost, orphan.currency)
    }


def _adopt(orphan: Orphan, actor: Any, now: Any, data: dict[str, Any]) -> None:
    statement.adopt(
        orphan_id=orphan.pk, tenant_id=data["tenant"].pk, prompt=data["prompt"], reference=data["reference"],
        note=data["note"], actor=actor, now=now,
    )  # fmt: skip


ADOPT = Verb(
    name="adopt",
    permission="jobs.adopt_orphan",
    label=pgettext_lazy("verb", "Adopt"),
    title=gettext_lazy("Make it a job of ours?"),
    icon="link",
    done=gettext_lazy("It is a job now, and its result will be fetched."),
    form=AdoptForm,
    effects=lambda _orphan: [
        Effect("plus", _("A new job of the tenant you choose gets this generation as its only send.")),
        Effect("radar", _("It is watched to its end, and its result is fetched and delivered. Nothing is sent.")),
        Effect("shield", _("Refused where it may be a lost send of ours: its id then belongs to that one.")),
    ],
    money=_charged,
    offered=lambda orphan: not orphan.outcome,
    run=_adopt,
)  # fmt: skip

DISPUTE = Verb(
    name="dispute",
    permission="jobs.dispute_orphan",
    label=pgettext_lazy("verb", "Dispute"),
    title=gettext_lazy("Dispute this charge?"),
    icon="gavel",
    done=gettext_lazy("It is noted as disputed."),
    form=DisputeForm,
    effects=lambda _orphan: [
        Effect("gavel", _("It is noted as disputed under the provider's reference, with your name.")),
        Effect("check-check", _("Its case is closed; later statements tell it as disputed.")),
    ],
    money=_charged,
    offered=lambda orphan: not orphan.outcome,
    run=lambda orphan, actor, now, data: statement.dispute(
        orphan_id=orphan.pk, reference=data["reference"], note=data["note"], actor=actor, now=now
    ),
)  # fmt: skip

ORPHAN_VERBS: Sequence[Verb] = (ADOPT, DISPUTE)


@admin.register(Orphan)
class OrphanAdmin(VerbsMixin, MachineAdmin):
    verbs = ORPHAN_VERBS
    keyset = ("id",)
    list_display = ("id_cell", "model", "cost_cell", "made_cell", "outcome_cell", "decided_by")
    list_display_links = ("id_cell",)
    list_filter = ("outcome", "account")
    list_select_related = ("account", "decided_by")
    search_fields = ("provider_id", "reference")
    search_help_text = gettext_lazy("The provider's id or its reference")
    sortable_by = ()
    empty = EmptyState(
        "package-search",
        gettext_lazy("No orphans"),
        gettext_lazy("What a provider charged and no job of ours belongs to. A statement, which reads the provider's history, finds it."),
        STATEMENTS,
    )  # fmt: skip

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
        return rows

    @admin.display(description=gettext_lazy("the provider's id"))
    def id_cell(self, orphan: Orphan) -> SafeString:
        return format_html('<bdi class="mono ltr">{}</bdi>', orphan.provider_id)

    @admin.display(description=gettext_lazy("charged"))
    def cost_cell(self, orphan: Orphan) -> SafeString:
        return desk.money(orphan.cost, orphan.currency)

    @admin.display(description=gettext_lazy("made"))
    def made_cell(self, orphan: Any) -> SafeString:
        return desk.ago(orphan.made_at, orphan.shown_now)

    @admin.display(description=gettext_lazy("outcome"))
    def outcome_cell(self, orphan: Orphan) -> SafeString:
        return desk.pill(look(orphan))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        orphan = self.get_object(request, object_id)
        if orphan is None:
            raise Http404
        if not self.has_view_permission(request, orphan):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": orphan.provider_id,
            "now": clock.now(),
            "orphan": orphan,
            "look": look(orphan),
            "case": getattr(orphan, "case", None),
            "verbs": allowed(self.verbs, request.user, orphan),
        }
        return TemplateResponse(request, "desk/statement_orphan.html", context)


def look(orphan: Orphan) -> Look:
    return _OUTCOMES[Orphan.Outcome(orphan.outcome)] if orphan.outcome else OPEN
