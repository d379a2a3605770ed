"""The gallery: what was delivered as a grid to look through, with what can be done to one or to many of them.

Looking changes nothing; the rating of many is a POST. The verbs on jobs are those of the list of jobs: their buttons open its
confirmations, which count and price first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from jobs import display, gallery
from jobs.admin import archive, verbs
from jobs.admin.bulk_words import number
from jobs.admin.verb import money_of
from jobs.clock import clock
from jobs.display import Look
from jobs.gallery import UNRATED, Asked
from jobs.lifecycle import ratings
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, Job, Result, Tenant
from providers.models import Target

NEWEST_BATCHES = 12
MOST_CHOSEN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    job: Job
    result: Result
    name: str
    prompt: str
    cost: str
    took_s: float | None
    rating: Look | None
    like_url: str


@dataclass(frozen=True, slots=True)
class Chip:
    """For desk/filter_chip.html: a menu, or a chip once one is chosen."""

    title: str
    choices: Sequence[dict[str, str]]
    active: dict[str, str] | None
    clear: str


def page(request: HttpRequest) -> HttpResponse:
    _check(request)
    asked = Asked.read(request.GET)
    found = gallery.page(asked)
    user = request.user
    context = {
        **admin.site.each_context(request),
        "title": _("Gallery"),
        "now": clock.now(),
        "asked": asked,
        "tiles": [tile(job) for job in found.jobs],
        "chips": _chips(asked),
        "older": asked.query(before=found.older) if found.older else "",
        "newer": asked.query(after=found.newer) if found.newer else "",
        "first": asked.query() if asked.before or asked.after else "",
        "ratings": [(value, key, look) for key, (value, look) in enumerate(display.RATINGS.items(), 1)],
        "can_rate": user.has_perm(verbs.RATE.permission),
        "can_retry": user.has_perm(verbs.RETRY.permission),
        "can_again": user.has_perm("jobs.add_batch"),
        "can_make": user.has_perm("jobs.add_job"),
        "checkbox_name": ACTION_CHECKBOX_NAME,
    }  # fmt: skip
    return TemplateResponse(request, "desk/gallery.html", context)


def tile(job: Any) -> Tile:
    result: Result = job.delivered
    task = result.task
    began = task and (task.accepted_at or task.armed_at)
    took = (task.completed_at - began).total_seconds() if task and began and task.completed_at else None  # fmt: skip
    return Tile(
        job=job,
        result=result,
        name=job.reference or f"#{job.pk}",
        prompt=job.prompt_start,
        cost=money_of(task) if task else _("by hand"),
        took_s=took,
        rating=display.RATINGS.get(result.rating),
        like_url=f"{reverse('admin:jobs_job_add')}?{urlencode({'like': job.pk})}",
    )


@require_POST
def rate(request: HttpRequest) -> HttpResponse:
    """One rating for all that are chosen, each by itself."""
    _check(request)
    if not request.user.has_perm(verbs.RATE.permission):
        raise PermissionDenied
    assert request.user.is_authenticated
    rating = request.POST.get("rating", "")
    pks = chosen_numbers(request)
    done, refused = 0, ""
    for pk in pks:
        try:
            ratings.rate(job_id=pk, rating=rating, actor=request.user, now=clock.now())
            done += 1
        except Refused as error:
            refused = str(error)
        except Job.DoesNotExist:
            refused = _("A job is not there any more.")
    if not pks:
        messages.warning(request, _("Choose some pictures first."))
    if done:
        words = ngettext("%(n)s result is rated.", "%(n)s results are rated.", done)
        messages.success(request, words % {"n": number(done)})
    if refused:
        words = ngettext("%(n)s was left as it is: %(why)s", "%(n)s were left as they are: %(why)s", len(pks) - done)  # fmt: skip
        messages.warning(request, words % {"n": number(len(pks) - done), "why": refused})
    return HttpResponseRedirect(_back(request))


@require_POST
def download(request: HttpRequest) -> HttpResponseBase:
    """The chosen ones as one archive, made while it is sent. A POST, as so many numbers fit into no address; it changes
    nothing."""
    _check(request)
    pks = chosen_numbers(request)
    if not pks:
        messages.warning(request, _("Choose some pictures first."))
        return HttpResponseRedirect(_back(request))
    return archive.answer(request, [tile(job) for job in gallery.chosen(pks)])


def chosen_numbers(request: HttpRequest) -> list[int]:
    told = request.POST.getlist(ACTION_CHECKBOX_NAME)[:MOST_CHOSEN]
    return sorted({int(pk) for pk in told if pk.isascii() and pk.isdecimal() and len(pk) < 18})


def _back(request: HttpRequest) -> str:
    told = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(told, allowed_hosts={request.get_host()}, require_https=request.is_secure())  # fmt: skip
    return told if safe else reverse("admin:desk_gallery")


def _check(request: HttpRequest) -> None:
    if not (request.user.has_perm("jobs.view_job") and request.user.has_perm("jobs.view_result")):
        raise PermissionDenied


def _chips(asked: Asked) -> list[Chip]:
    tenants = [(one.pk, one.name) for one in Tenant.objects.order_by("name").only("name")[:200]]
    targets = [(one.pk, one.name) for one in Target.objects.order_by("provider", "model").only("provider", "model")]  # fmt: skip
    batches = [(one.pk, str(one)) for one in Batch.objects.order_by("-pk").only("label")[:NEWEST_BATCHES]]  # fmt: skip
    if asked.batch and asked.batch not in dict(batches):
        older = Batch.objects.filter(pk=asked.batch).only("label").first()
        batches.append((asked.batch, str(older or f"#{asked.batch}")))
    marks = [*((value, str(look.word)) for value, look in display.RATINGS.items()), (UNRATED, _("not rated yet"))]  # fmt: skip
    return [
        _chip(_("batch"), "batch", batches, asked),
        _chip(_("tenant"), "tenant", tenants, asked),
        _chip(_("target"), "target", targets, asked),
        _chip(_("rating"), "rating", marks, asked),
    ]


def _chip(title: str, name: str, values: Sequence[tuple[Any, str]], asked: Asked) -> Chip:
    chosen = getattr(asked, name)
    active = next(({"display": words} for value, words in values if value == chosen), None)
    if active is None and chosen:
        active = {"display": f"#{chosen}"}
    clear = asked.query(**{name: None})
    choices = [{"display": "", "query_string": clear}]
    choices += [{"display": words, "query_string": asked.query(**{name: value})} for value, words in values]  # fmt: skip
    return Chip(title, choices, active, clear)
