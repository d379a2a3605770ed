"""One verb on the jobs chosen in a list, or on all that its filter finds: first how many, which not and why, and the money;
then a run (jobs/lifecycle/bulk.py), whose page tells how far it is."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobs.admin import bulk_runs, bulk_words
from jobs.admin.changelist import ModelAdmin
from jobs.admin.forms import VerbForm
from jobs.admin.verb import Verb
from jobs.clock import clock
from jobs.lifecycle import bulk, bulk_acts
from jobs.lifecycle.bulk_acts import ACTS, Act
from jobs.lifecycle.errors import Refused
from jobs.models import BulkRun, Job

_NAMED = 200  # up to so many jobs, those left out are named on the preview


def view(
    model_admin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Job], verb: Verb
) -> HttpResponse:
    """An action of the list: asks on the first press, starts the run on the second. Who may is asked by the list."""
    act = ACTS[verb.name]
    back = HttpResponseRedirect(request.get_full_path())
    if not bulk.has_condition(queryset):
        messages.error(request, _("All jobs there are? Narrow the list by a filter first."))
        return back
    form_type = bulk_words.form_of(act)
    form = None
    # How many were shown is how many were agreed to; a selection by hand names each of them anyway.
    agreed = _whole(request.POST.get("shown", ""))
    by_hand = request.POST.get("select_across", "0") != "1"
    if request.POST.get("confirmed") and (by_hand or agreed is not None):
        form = form_type(request.POST, thing=None)
        if form.is_valid():
            try:
                run = _start(request, act, queryset, form, at_most=agreed)
            except Refused as refused:
                messages.error(request, str(refused))
                return back
            return _answer(request, run, back)
    return _ask(model_admin, request, queryset, verb, act, form)


def _start(
    request: HttpRequest, act: Act, jobs: QuerySet[Job], form: VerbForm, *, at_most: int | None
) -> BulkRun:
    assert request.user.is_authenticated
    return bulk.start(
        act=act,
        jobs=jobs,
        data=bulk_words.plain(form.cleaned_data),
        actor=request.user,
        now=clock.now(),
        token=_token(request.POST.get("token", "")),
        at_most=at_most,
        chosen=request.GET.urlencode(),
    )


def _answer(request: HttpRequest, run: BulkRun, back: HttpResponse) -> HttpResponse:
    """To the run's page; back to the list where all is done and nothing was left out."""
    page = bulk_runs.address(run)
    if run.state != BulkRun.State.DONE or run.skipped:
        return HttpResponseRedirect(page)
    messages.success(
        request,
        format_html('{} <a href="{}">{}</a>', bulk_words.done_words(run), page, _("What was done")),
    )
    return back


def _ask(
    model_admin: ModelAdmin,
    request: HttpRequest,
    jobs: QuerySet[Job],
    verb: Verb,
    act: Act,
    bound: VerbForm | None,
) -> HttpResponse:
    seen = bulk.preview(act, jobs)
    form = bulk_words.form_of(act)(request.POST if bound is not None else None, thing=seen)
    by_hand = request.POST.get("select_across", "0") != "1"
    chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": bulk_words.label(act.name),
        "opts": model_admin.opts,
        "verb": verb,
        "label": bulk_words.label(act.name),
        "form": form,
        "action": request.POST.get("action", ""),
        "checkbox_name": ACTION_CHECKBOX_NAME,
        # The list wants one to be chosen, also where all that the filter finds are meant.
        "chosen": chosen if by_hand else chosen[:1],
        "select_across": 0 if by_hand else 1,
        "shown": seen.total,
        "token": uuid.uuid4(),
        "seen": seen,
        "fits": bulk_words.jobs_words(seen.fits),
        "skipped": bulk_words.number(seen.total - seen.fits),
        "skipped_count": seen.total - seen.fits,
        "skips": [(bulk_words.reason(one), bulk_words.number(n)) for one, n in seen.skips.items()],
        "named": _named(act, jobs) if seen.skips and seen.total <= _NAMED else [],
        "money": bulk_words.money(act, seen) if seen.fits else "",
        "background": seen.total > bulk.AT_ONCE,
        "list_url": request.get_full_path(),
    }
    return TemplateResponse(request, "desk/bulk.html", context)


def _named(act: Act, jobs: QuerySet[Job]) -> list[tuple[dict[str, Any], str]]:
    """Those that would be left out, each with why."""
    rows = bulk_acts.looked_at(Job.objects.filter(pk__in=jobs.order_by().values("pk")))
    named = []
    for row in rows.order_by("pk").values("pk", "reference", *bulk_acts.SEEN):
        job = {"pk": row.pop("pk"), "reference": row.pop("reference")}
        if reason := bulk_acts.why_not(act, bulk_acts.Seen(**row)):
            named.append((job, bulk_words.reason(reason)))
    return named


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _token(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        return uuid.uuid4()
