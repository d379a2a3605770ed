"""New jobs from a form: everything is checked first, then all are created together or none is."""

from __future__ import annotations

import uuid
from collections import defaultdict
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs import intake, routes, written
from jobs.admin import route_choice
from jobs.admin.route_choice import TargetField, TenantField
from jobs.clock import clock
from jobs.intake import InputError, Taken
from jobs.lifecycle.create import NewJob, create_jobs, default_tenant
from jobs.models import Job
from providers.contract import Kind
from providers.models import Target

MOST_PROMPTS = 200
MOST_COPIES = 20
MOST_JOBS = 500
MOST_PHOTOS = 8


class PhotosInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class PhotosField(forms.FileField):
    """Several uploads in one field; always a list."""

    widget = PhotosInput

    def clean(self, data: Any, initial: Any = None) -> Any:
        files = data if isinstance(data, list | tuple) else [data] if data else []
        return [super(PhotosField, self).clean(file, initial) for file in files]


class NewJobsForm(forms.Form):
    prompts = forms.CharField(
        label=gettext_lazy("Prompts"),
        help_text=gettext_lazy("One a line; each line becomes a job."),
        max_length=2_000_000,
        widget=forms.Textarea(attrs={"rows": 6, "dir": "auto"}),
        strip=False,
    )
    reference = forms.CharField(
        label=gettext_lazy("Reference"),
        required=False,
        help_text=gettext_lazy(
            "The customer's own name for it. Several jobs get -1, -2, … behind it."
        ),
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    target = TargetField(help_text=gettext_lazy("Empty: the tenant's default route, with its fallbacks."))  # fmt: skip
    tenant = TenantField()
    count = forms.IntegerField(
        label=gettext_lazy("How many of each"), min_value=1, max_value=MOST_COPIES, initial=1
    )
    photos = PhotosField(
        label=gettext_lazy("Photos to start from"),
        required=False,
        help_text=gettext_lazy("PNG, JPEG, WEBP or GIF; every job gets all of them."),
    )
    token = forms.UUIDField(widget=forms.HiddenInput)
    like = forms.IntegerField(widget=forms.HiddenInput, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)
        route_choice.offer(self)

    def clean_prompts(self) -> list[str]:
        lines = [
            (at, line)
            for at, line in enumerate(self.cleaned_data["prompts"].splitlines(), 1)
            if line.strip()
        ]
        if not lines:
            raise forms.ValidationError(
                _("The prompt is empty. Write what the picture should show.")
            )
        if len(lines) > MOST_PROMPTS:
            raise forms.ValidationError(
                _(
                    "%(count)d lines; at most %(most)d at a time. Longer lists: manage.py generate --from FILE.csv."
                )
                % {"count": len(lines), "most": MOST_PROMPTS}
            )
        prompts, problems = [], []
        for at, line in lines:
            try:
                prompts.append(intake.check_prompt(line))
            except InputError as error:
                problems.append(
                    _("Line %(line)d: %(problem)s") % {"line": at, "problem": error.message}
                )
        if problems:
            raise forms.ValidationError(problems[:20])
        return prompts

    def clean_reference(self) -> str:
        try:
            return intake.check_reference(self.cleaned_data["reference"])
        except InputError as error:
            raise forms.ValidationError(error.message) from None

    def clean_photos(self) -> list[UploadedFile[Any]]:
        photos: list[UploadedFile[Any]] = self.cleaned_data["photos"]
        if len(photos) > MOST_PHOTOS:
            raise forms.ValidationError(_("At most %(most)d photos.") % {"most": MOST_PHOTOS})
        return photos

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        many = len(data.get("prompts", ())) * data.get("count", 1)
        if many > MOST_JOBS:
            raise forms.ValidationError(
                _("That would be %(count)d jobs; at most %(most)d at a time.")
                % {"count": many, "most": MOST_JOBS}
            )
        return data


def new_jobs(request: HttpRequest, *, context: dict[str, Any]) -> HttpResponse:
    """The page and its POST. The caller has checked the permission."""
    tenant = default_tenant()  # exists from the first look at this form on
    if request.method == "POST":
        form = NewJobsForm(request.POST, request.FILES)
        if form.is_valid():
            done = _create(request, form)
            if done is not None:
                return done
    else:
        like = _like(request.GET.get("like", ""))
        form = NewJobsForm(
            initial={
                "tenant": request.GET.get("tenant") or tenant.pk,
                "token": uuid.uuid4(),
                "prompts": request.GET.get("prompt", ""),
                **(_as(like) if like is not None else {}),
            }
        )
    context |= {
        "title": _("New jobs"),
        "form": form,
        "line": route_choice.chosen(form),
        "like": _like(str(form["like"].value() or "")),
    }
    return TemplateResponse(request, "desk/new_jobs.html", context)


def _like(number: str) -> Job | None:
    """The job that more are wanted of."""
    pk = int(number) if number.isascii() and number.isdecimal() and len(number) < 18 else 0
    return Job.objects.select_related("target").filter(pk=pk).first()


def _as(like: Job) -> dict[str, Any]:
    """Its prompt as one line, as each line is a job; its photos are not taken along."""
    return {
        "prompts": " ".join(like.prompt.split()), "tenant": like.tenant_id, "target": like.target_id, "like": like.pk
    }  # fmt: skip


def _create(request: HttpRequest, form: NewJobsForm) -> HttpResponse | None:
    """None: something was refused after all, and the form says what; nothing was created."""
    data = form.cleaned_data
    try:
        target: Target | None = data["target"]
        routing = routes.routing([target.name] if target else [], tenant=data["tenant"])
        photos: list[Taken] = [intake.take_photo(photo.file) for photo in data["photos"]]
        prompts = [prompt for prompt in data["prompts"] for _copy in range(data["count"])]
        like = _like(str(data["like"] or ""))
        jobs = []
        for at, prompt in enumerate(prompts, 1):
            reference = intake.numbered_reference(data["reference"], at, len(prompts))
            route = routing.of(reference or f"{data['token']} {at}")
            kind = Kind(route[0].kind)
            # Parameters are a target's own: elsewhere they may mean nothing.
            params = like.params if like is not None and like.target_id == route[0].pk else {}
            jobs.append(
                NewJob(prompt=prompt, route=route, kind=kind, params=params, photos=photos, reference=reference)
            )  # fmt: skip
    except InputError as error:
        field = {"photo": "photos", "prompt": "prompts"}.get(error.field, error.field)
        form.add_error(field if field in form.fields else None, error.message)
        return None
    assert request.user.is_authenticated
    batch = create_jobs(
        jobs=jobs, tenant=data["tenant"], actor=request.user, now=clock.now(), token=data["token"]
    )
    prices: dict[str, Decimal] = defaultdict(Decimal)
    for job in jobs:
        prices[job.route[0].currency] += job.route[0].price
    messages.success(
        request,
        ngettext(
            "%(count)d job is on its way, about %(money)s.",
            "%(count)d jobs are on their way, about %(money)s.",
            len(jobs),
        )
        % {"count": len(jobs), "money": written.totals(prices) or "—"},
    )
    if len(jobs) == 1:
        only = batch.jobs.first()
        return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[only.pk if only else 0]))
    return HttpResponseRedirect(reverse("admin:jobs_batch_change", args=[batch.pk]))
