"""One verb on the selected jobs: first how many, which not and why, and the money; then the result, skipped ones named."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import display
from jobs.admin import verbs
from jobs.admin.changelist import ModelAdmin
from jobs.admin.jobs_rows import blocking_task
from jobs.admin.verbs import Verb
from jobs.clock import clock
from jobs.lifecycle.errors import Refused
from jobs.models import Job


@dataclass(slots=True)
class Outcome:
    done: list[Job] = field(default_factory=list)
    skipped: list[tuple[Job, str]] = field(default_factory=list)


def view(
    model_admin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Job], verb: Verb
) -> HttpResponse:
    """An action of the list: asks on the first press, does it on the second."""
    jobs = list(queryset)
    fits = [job for job in jobs if verb.offered(job)]
    confirmed = bool(request.POST.get("confirmed"))
    form = verb.form(request.POST if confirmed else None, thing=fits[0] if fits else None)
    outcome = None
    if confirmed and form.is_valid():
        outcome = _run(request, verb, jobs, form.cleaned_data)
        if not outcome.skipped:
            messages.success(request, _done_words(outcome))
            return HttpResponseRedirect(request.get_full_path())
    context = {
        **model_admin.admin_site.each_context(request),
        "title": verb.label,
        "opts": model_admin.opts,
        "verb": verb,
        "form": form,
        "action": request.POST.get("action", ""),
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "jobs": jobs,
        "fits": fits,
        "skips": [(job, skip_reason(job, verb)) for job in jobs if not verb.offered(job)],
        "money": money(fits, verb),
        "outcome": outcome,
        "outcome_words": _done_words(outcome) if outcome else "",
        "list_url": request.get_full_path(),
    }
    return TemplateResponse(request, "desk/bulk.html", context)


def skip_reason(job: Job, verb: Verb) -> str:
    """Why a job is left out, in words."""
    task = blocking_task(job)
    if verb is verbs.RETRY and task is not None:
        return _("its last send may have cost %(money)s; decide it by itself") % {
            "money": verbs.money_of(task)
        }
    return _("it is “%(state)s”") % {"state": job.get_state_display()}


def money(jobs: list[Job], verb: Verb) -> str:
    """What the verb may cost over all of them, or what stays possible."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    if verb is verbs.RETRY:
        for job in jobs:
            sums[job.target.currency] += job.target.price
        return (
            _("About %(money)s in all, if each is made once.") % {"money": display.totals(sums)}
            if sums
            else ""
        )
    for job in jobs:
        for task in verbs.under_way(job):
            sums[task.currency] += task.cost if task.cost is not None else task.estimated_cost
    if not sums:
        return _("No send of theirs is under way.")
    return _("Sends under way may have cost %(money)s; they stay watched.") % {
        "money": display.totals(sums)
    }


def _run(request: HttpRequest, verb: Verb, jobs: list[Job], data: dict[str, Any]) -> Outcome:
    """Each job by itself: what one refuses stops no other."""
    assert request.user.is_authenticated
    outcome = Outcome()
    for job in jobs:
        try:
            verb.run(job, request.user, clock.now(), data)
        except Refused as refusal:
            outcome.skipped.append((job, str(refusal)))
        else:
            outcome.done.append(job)
    return outcome


def _done_words(outcome: Outcome) -> str:
    count = len(outcome.done)
    return ngettext("%(count)d job done.", "%(count)d jobs done.", count) % {"count": count}
