"""A batch from a file, pasted lines or jobs that exist: the form, the preview of what it would make, and the yes.

Nothing is created before the preview's button. What was read waits as a draft, whose token makes the yes idempotent.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs import routes, written
from jobs.admin import route_choice
from jobs.admin.changelist import ModelAdmin
from jobs.admin.route_choice import TargetField, TenantField
from jobs.batches import again, archive, budget_words, table
from jobs.batches.estimate import by_route, cost, estimate
from jobs.batches.plan import Columns, Plan, Planned, plan
from jobs.clock import clock
from jobs.intake import InputError, Taken
from jobs.lifecycle import drafts
from jobs.lifecycle.create import default_tenant
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, BatchDraft, Job, Tenant
from jobs.prompt_files import MAX_ROWS
from providers.models import Target

_SHOWN_ROWS = 12
_SHOWN_REFUSED = 200
_SHOWN_ROUTES = 10
_MOST_PASTED = 4_000_000

# Which field of the form an error is about; all others are about the file.
_FIELDS = {
    "template": "template",
    "target": "target",
    "reference_column": "reference_column",
    "priority_column": "priority_column",
    "photo_column": "photo_column",
}


def _text_input(**attributes: str) -> forms.TextInput:
    return forms.TextInput(attrs={"autocomplete": "off", "dir": "auto", **attributes})


class TargetsForm(forms.Form):
    """What all ways to a batch ask for."""

    template = forms.CharField(
        label=gettext_lazy("Prompt template"),
        required=False,
        max_length=8000,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 3, "dir": "auto", "spellcheck": "true"}),
    )
    target = TargetField()
    label = forms.CharField(
        label=gettext_lazy("Name of the batch"),
        required=False,
        max_length=200,
        widget=_text_input(),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)
        route_choice.offer(self)

    def refuse(self, error: InputError) -> None:
        """Say at its field what spoils the whole."""
        field = _FIELDS.get(error.field)
        if field in self.fields:
            self.add_error(field, error.message)
        else:
            self.add_error(None, str(error))


class ImportForm(TargetsForm):
    file = forms.FileField(
        label=gettext_lazy("File"),
        required=False,
        help_text=gettext_lazy("CSV (UTF-8) or XLSX. The first line names the columns."),
        widget=forms.FileInput(attrs={"accept": ".csv,.tsv,.txt,.xlsx"}),
    )
    pasted = forms.CharField(
        label=gettext_lazy("Or paste lines"),
        required=False,
        max_length=_MOST_PASTED,
        strip=False,
        help_text=gettext_lazy(
            "One prompt a line, or rows copied from a spreadsheet with their header."
        ),
        widget=forms.Textarea(attrs={"rows": 5, "dir": "auto"}),
    )
    photos = forms.FileField(
        label=gettext_lazy("Photos"),
        required=False,
        help_text=gettext_lazy("A ZIP archive; the column “photo” names a file in it."),
        widget=forms.FileInput(attrs={"accept": ".zip"}),
    )
    tenant = TenantField()
    reference_column = forms.CharField(
        label=gettext_lazy("Column with the reference"), required=False, max_length=80, widget=_text_input(placeholder="reference"),
    )  # fmt: skip
    priority_column = forms.CharField(
        label=gettext_lazy("Column with the priority"), required=False, max_length=80, widget=_text_input(placeholder="priority"),
    )  # fmt: skip
    photo_column = forms.CharField(
        label=gettext_lazy("Column with the photo"), required=False, max_length=80, widget=_text_input(placeholder="photo"),
    )  # fmt: skip

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["template"].help_text = _(
            "{name} stands for the column of that name, as in: A {colour} {product} on a white wall. Empty: the column “prompt”."
        )

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        pasted = bool((data.get("pasted") or "").strip())
        if "file" not in self.errors and bool(data.get("file")) == pasted:
            raise forms.ValidationError(
                _("Give a file or pasted lines, not both.")
                if pasted
                else _("Give a file, or paste lines.")
            )
        photos = data.get("photos")
        if photos is not None and photos and photos.size > archive.MAX_ARCHIVE_BYTES:
            self.add_error(
                "photos",
                _("The archive has more than %(limit)d MB. Split it.")
                % {"limit": archive.MAX_ARCHIVE_BYTES // 2**20},
            )
        return data


class AgainForm(TargetsForm):
    photos = forms.ChoiceField(
        label=gettext_lazy("Start from"),
        choices=[
            ("same", gettext_lazy("the photos each job started from")),
            ("result", gettext_lazy("the finished picture of each job")),
            ("none", gettext_lazy("no photo")),
        ],
        initial="same",
        widget=forms.RadioSelect,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["template"].required = True
        self.fields["template"].help_text = _(
            "{prompt} stands for the prompt of each job, {reference} for its reference."
        )
        targets = self.fields["target"]
        assert isinstance(targets, TargetField)
        targets.empty_label = _("each job's own route")


# --- the form ---------------------------------------------------------------------------------------------------------


def new_batch(request: HttpRequest, *, context: dict[str, Any]) -> HttpResponse:
    """The page and its POST. The caller has checked the permission."""
    tenant = default_tenant()
    if request.method == "POST":
        form = ImportForm(request.POST, request.FILES)
        if form.is_valid():
            draft = _draft(request, form)
            if draft is not None:
                return HttpResponseRedirect(preview_url(draft.token))
    else:
        form = ImportForm(initial={"tenant": request.GET.get("tenant") or tenant.pk})
    context |= {
        "title": _("New batch"),
        "form": form,
        "line": route_choice.chosen(form),
        "more": _("up to %(most)s rows") % {"most": written.number(MAX_ROWS)},
    }
    return TemplateResponse(request, "desk/batch_new.html", context)


def _draft(request: HttpRequest, form: ImportForm) -> BatchDraft | None:
    """None: something spoils the whole, and the form says what."""
    data = form.cleaned_data
    upload, photos = data["file"], data["photos"]
    read = table.read_file(upload.file) if upload else table.read_lines(data["pasted"])
    target: Target | None = data["target"]
    try:
        with contextlib.ExitStack() as stack:
            taken = _Taking(stack, photos.file) if photos else None
            made = plan(
                read,
                template=data["template"],
                columns=Columns(
                    data["reference_column"], data["priority_column"], data["photo_column"]
                ),
                target=target.name if target else "",
                tenant=data["tenant"],
                photo=taken.take if taken else None,
            )
    except InputError as error:
        form.refuse(error)
        return None
    if taken is not None:
        made.notes += taken.notes()
    assert request.user.is_authenticated
    label = data["label"] or (PurePath(upload.name).name[:200] if upload else "")
    return drafts.keep(
        made, tenant=data["tenant"], label=label, actor=request.user, now=clock.now()
    )


@dataclass(slots=True)
class _Taking:
    """Photos of an archive; one that can't be opened is told once, and by every row that names a photo."""

    photos: archive.Photos | None
    error: InputError | None

    def __init__(self, stack: contextlib.ExitStack, file: Any) -> None:
        self.photos = self.error = None
        try:
            self.photos = stack.enter_context(archive.Photos(file))
        except InputError as error:
            self.error = error

    def take(self, name: str) -> Taken:
        if archive.leads_out(name):
            raise archive.leads_out_error(name)
        if self.photos is None:
            assert self.error is not None
            raise self.error
        return self.photos.take(name)

    def notes(self) -> list[str]:
        if self.error is not None:
            return [_("Photos: %(problem)s") % {"problem": self.error.message}]
        assert self.photos is not None
        return [
            _("Left out of the archive, as its name leads out of it: %(name)s") % {"name": name[:80]}
            for name in self.photos.unsafe[:5]
        ]  # fmt: skip


def preview_url(token: uuid.UUID) -> str:
    return reverse("admin:jobs_batch_draft", args=[token])


# --- the preview ------------------------------------------------------------------------------------------------------


def preview(request: HttpRequest, token: uuid.UUID, *, context: dict[str, Any]) -> HttpResponse:
    """What would be made, and the POST that makes it. The caller has checked the permission."""
    made = Batch.objects.filter(token=token).first()
    if made is not None:  # the button was pressed before, perhaps without the answer having arrived
        return HttpResponseRedirect(reverse("admin:jobs_batch_change", args=[made.pk]))
    if request.method == "POST":
        done = _create(request, token)
        if done is not None:
            return done
    draft = get_object_or_404(BatchDraft.objects.select_related("tenant"), token=token)
    rows = [Planned.of(row) for row in draft.rows]
    twins = sum(row.twin for row in rows)
    now = clock.now()
    refused = [InputError(one["field"], one["message"], one["line"]) for one in draft.refused]
    tenant = draft.tenant
    ways = _routes(rows, tenant)
    # Duplicates are left out unless somebody wants them, so the figures are without them.
    told = estimate([row for row in rows if not row.twin], tenant=tenant, now=now)
    context |= {
        "title": draft.label or _("Preview"),
        "now": now,
        "draft": draft,
        "rows": rows[:_SHOWN_ROWS],
        "rows_more": len(rows) - _SHOWN_ROWS,
        "rows_count": len(rows),
        "columns": {
            "reference": any(row.reference for row in rows[:_SHOWN_ROWS]),
            "priority": any(row.priority for row in rows[:_SHOWN_ROWS]),
            "photo": any(row.photos for row in rows[:_SHOWN_ROWS]),
        },
        "refused": refused[:_SHOWN_REFUSED],
        "refused_more": len(refused) - _SHOWN_REFUSED,
        "refused_count": len({one.line for one in refused}),
        "twins": twins,
        "known_references": _known_references(tenant, rows),
        "estimate": told,
        "cost": written.totals(told.cost) or "—",
        "cost_with_twins": written.totals(cost(rows)) if twins else "",
        "routes": ways[:_SHOWN_ROUTES],
        "routes_more": len(ways) - _SHOWN_ROUTES,
        "limits": [
            (limit, budget_words.left_name(limit), budget_words.left(limit, tenant.currency),
             budget_words.limit_words(limit, tenant=tenant, now=now), told.over(limit))
            for limit in told.budget.limits
        ],
        "budget_headline": budget_words.headline(told) if rows else "",
        "budget_details": budget_words.details(told, tenant=tenant, now=now) if rows else [],
    }  # fmt: skip
    return TemplateResponse(request, "desk/batch_preview.html", context)


def _create(request: HttpRequest, token: uuid.UUID) -> HttpResponse | None:
    assert request.user.is_authenticated
    try:
        batch = drafts.create(
            token=token,
            without_twins="without_twins" in request.POST,
            actor=request.user,
            now=clock.now(),
        )
    except Refused as refused:
        messages.error(request, str(refused))
        if BatchDraft.objects.filter(token=token).exists():
            return None
        return HttpResponseRedirect(reverse("admin:jobs_batch_add"))
    return HttpResponseRedirect(reverse("admin:jobs_batch_change", args=[batch.pk]))


@dataclass(frozen=True, slots=True)
class _Way:
    """So many rows take that route; `whose`: why, where it is that of rows that name no target."""

    names: str
    rows: int
    whose: str


def _routes(rows: Sequence[Planned], tenant: Tenant) -> list[_Way]:
    default = routes.defaults([tenant])[tenant.pk]
    own = [] if isinstance(default, InputError) else default.ways()
    of_tenant = {tuple(target.pk for target in way) for way in own}
    return [
        _Way(
            " → ".join(way.names),
            way.rows,
            route_choice.whose_words(tenant) if way.route in of_tenant else "",
        )
        for way in by_route(rows)
    ]


def _known_references(tenant: Tenant, rows: Sequence[Planned]) -> int:
    """How many of the references the tenant's jobs bear already: perhaps the file was uploaded before."""
    asked = {row.reference for row in rows if row.reference}
    if not asked:
        return 0
    known = Job.objects.filter(tenant=tenant, reference__in=asked).exclude(reference="")
    return known.values("reference").distinct().count()


# --- jobs once more ---------------------------------------------------------------------------------------------------


def generate_again(
    model_admin: ModelAdmin, request: HttpRequest, jobs: QuerySet[Job]
) -> HttpResponse:
    """An action of the list of jobs: asks for the prompt on the first press, shows the preview on the second."""
    count = jobs.count()
    confirmed = bool(request.POST.get("confirmed"))
    form = AgainForm(
        request.POST if confirmed else None,
        initial={"template": "{prompt}", "photos": "same", "label": _common_label(jobs)},
    )
    if count > MAX_ROWS:
        messages.error(
            request,
            _("%(count)d jobs; at most %(most)d at a time.") % {"count": count, "most": MAX_ROWS},
        )
        return HttpResponseRedirect(request.get_full_path())
    if confirmed and form.is_valid():
        draft = _draft_again(request, form, jobs)
        if draft is not None:
            return HttpResponseRedirect(preview_url(draft.token))
    context = {
        **model_admin.admin_site.each_context(request),
        "title": _("Generate again with an edited prompt"),
        "opts": model_admin.opts,
        "form": form,
        "count": count,
        "lead": ngettext(
            "One new job for the one you chose.", "One new job for each of %(n)s.", count
        )
        % {"n": count},
        "examples": list(jobs.order_by("pk").values_list("prompt", flat=True)[:3]),
        "action": request.POST.get("action", ""),
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "chosen": request.POST.getlist(ACTION_CHECKBOX_NAME),
        "select_across": request.POST.get("select_across", "0"),
        "list_url": request.get_full_path(),
    }
    return TemplateResponse(request, "desk/batch_again.html", context)


def _draft_again(request: HttpRequest, form: AgainForm, jobs: QuerySet[Job]) -> BatchDraft | None:
    data = form.cleaned_data
    tenants = list(Tenant.objects.filter(pk__in=jobs.order_by().values("tenant")))
    if len(tenants) > 1:
        form.add_error(None, _("These jobs belong to several tenants. Choose those of one tenant."))
        return None
    if not tenants:
        form.add_error(None, _("There is nothing to make."))
        return None
    try:
        made: Plan = again.plan_again(
            jobs, template=data["template"], target=data["target"], photos=data["photos"]
        )
    except InputError as error:
        form.refuse(error)
        return None
    assert request.user.is_authenticated
    return drafts.keep(
        made, tenant=tenants[0], label=data["label"], actor=request.user, now=clock.now()
    )


def _common_label(jobs: QuerySet[Job]) -> str:
    """“Spring, again”, where all are of one batch."""
    ids = list(jobs.order_by().values_list("batch", flat=True).distinct()[:2])
    batch = Batch.objects.filter(pk=ids[0]).first() if len(ids) == 1 and ids[0] else None
    return _("%(name)s, again") % {"name": str(batch)[:180]} if batch is not None else ""
