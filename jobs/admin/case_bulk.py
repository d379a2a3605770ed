"""One verb on several cases that were ticked on the desk: each is a transaction by itself, and what one refuses is told by name
and stops no other. Few rows and quick verbs, so it happens at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.admin import case_words, verbs
from jobs.admin.changelist import ModelAdmin
from jobs.admin.forms import VerbForm
from jobs.admin.verb import Verb
from jobs.clock import clock
from jobs.lifecycle.errors import Refused
from jobs.models import Case

MOST = 100

_DONE: Mapping[str, Callable[[int], str]] = {
    "take": lambda n: ngettext("%(n)s case is yours.", "%(n)s cases are yours.", n),
    "note": lambda n: ngettext("The note is on %(n)s case.", "The note is on %(n)s cases.", n),
    "close": lambda n: ngettext("%(n)s case is closed.", "%(n)s cases are closed.", n),
}


def view(
    model_admin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Case], verb: Verb
) -> HttpResponse:
    """An action of the list; who may is asked by the list. A verb with a form asks on the first press and does on the second."""
    back = HttpResponseRedirect(request.get_full_path())
    cases = list(queryset[: MOST + 1])
    if len(cases) > MOST:
        messages.error(request, _("No more than %(most)s cases at once.") % {"most": MOST})
        return back
    form = None
    if not verb.form.base_fields or request.POST.get("confirmed"):
        form = verb.form(request.POST, thing=None)
        if form.is_valid():
            _do(request, verb, cases, form.cleaned_data)
            return back
    return _ask(model_admin, request, cases, verb, form or verb.form(thing=None))


def _do(request: HttpRequest, verb: Verb, cases: Sequence[Case], data: dict[str, Any]) -> None:
    skipped = [(case, why) for case in cases if (why := _one(request, verb, case, data))]
    done = len(cases) - len(skipped)
    if done:
        messages.success(request, _DONE[verb.name](done) % {"n": done})
    if skipped:
        messages.warning(request, _skipped(skipped))


def _one(request: HttpRequest, verb: Verb, case: Case, data: dict[str, Any]) -> str:
    """Why it was not done, "" where it was."""
    if why := why_not(verb, case, request.user):
        return why
    assert request.user.is_authenticated
    try:
        verb.run(case, request.user, clock.now(), data)
    except Refused as refused:
        return str(refused)
    return ""


def why_not(verb: Verb, case: Case, user: Any) -> str:
    """Why the row is left as it is, "" where it can be done. The verb itself decides under the case's lock."""
    if verb is not verbs.NOTE and case.resolved_at is not None:
        return _("closed already")
    if verb is verbs.TAKE and case.owner is not None:
        if case.owner_id == user.pk:
            return _("yours already")
        return _("%(who)s has it") % {"who": case.owner.get_username()}
    if verb is verbs.CLOSE and not verb.offered(case):
        return _("its job must be decided first")
    return ""


def name_of(case: Case) -> str:
    """A case among others: its kind, and whose job."""
    title = case_words.title(case)
    if case.job is None:
        return title
    return f"{title}, {case.job.reference or f'#{case.job_id}'}"


def _skipped(skipped: Sequence[tuple[Case, str]]) -> SafeString:
    lines = format_html_join(
        "",
        '<br><a href="{}"><bdi>{}</bdi></a>: {}',
        (
            (reverse("admin:jobs_case_change", args=[case.pk]), name_of(case), why)
            for case, why in skipped
        ),
    )
    left = ngettext("%(n)s is left as it is:", "%(n)s are left as they are:", len(skipped))
    return format_html("{}{}", left % {"n": len(skipped)}, lines)


def _ask(
    model_admin: ModelAdmin,
    request: HttpRequest,
    cases: Sequence[Case],
    verb: Verb,
    form: VerbForm,
) -> HttpResponse:
    told = [(case, name_of(case), why_not(verb, case, request.user)) for case in cases]
    fits = [name for _case, name, why in told if not why]
    context = {
        **model_admin.admin_site.each_context(request),
        "title": capfirst(str(verb.label)),
        "opts": model_admin.opts,
        "verb": verb,
        "form": form,
        "action": request.POST.get("action", ""),
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "chosen": [case.pk for case in cases],
        "fits": fits,
        "skips": [(case, name, why) for case, name, why in told if why],
        "list_url": request.get_full_path(),
    }
    return TemplateResponse(request, "desk/cases_bulk.html", context)
