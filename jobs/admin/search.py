"""The page behind the search box of every page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, search
from jobs.clock import clock
from jobs.display import Look
from jobs.search import Found
from jobs.states import JobState

# Kind: its title, icon, the permission to see it, and the list that shows all of them ("" where none takes the words).
_KINDS: dict[str, tuple[str | Promise, str, str, str]] = {
    "jobs": (gettext_lazy("Jobs"), "images", "jobs.view_job", "admin:jobs_job_changelist"),
    "batches": (gettext_lazy("Batches"), "layers", "jobs.view_batch", ""),
    "tenants": (gettext_lazy("Tenants"), "building-2", "jobs.view_tenant", ""),
    "sends": (gettext_lazy("Sends"), "send", "jobs.view_providertask", ""),
    "cases": (gettext_lazy("Cases"), "inbox", "jobs.view_case", ""),
}


@dataclass(frozen=True, slots=True)
class Row:
    url: str
    name: str
    detail: str
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Group:
    title: str | Promise
    icon: str
    rows: Sequence[Row]
    late: bool
    more_url: str


def page(request: HttpRequest) -> HttpResponse:
    """An exact number leads straight to its job; everything else is listed by kind. Nobody sees a kind they may not open."""
    allowed = [kind for kind, (_t, _i, permission, _l) in _KINDS.items() if request.user.has_perm(permission)]  # fmt: skip
    if not allowed:
        raise PermissionDenied
    words = request.GET.get("q", "").replace("\0", "").strip()[: search.LONGEST]
    if words and "jobs" in allowed and (job := search.exact(words)) is not None:
        return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))
    groups = [_group(found, words) for found in search.search(words, allowed)]
    context = {
        **admin.site.each_context(request),
        "title": _("Search"),
        "now": clock.now(),
        "words": words,
        "groups": [group for group in groups if group.rows or group.late],
    }
    return TemplateResponse(request, "desk/search.html", context)


def _group(found: Found, words: str) -> Group:
    title, icon, _permission, all_of = _KINDS[found.kind]
    more = f"{reverse(all_of)}?{urlencode({'q': words})}" if found.more and all_of else ""
    return Group(title, icon, [_row(found.kind, row) for row in found.rows], found.late, more)


def _row(kind: str, row: Any) -> Row:
    match kind:
        case "jobs":
            detail = f"{row.tenant.name} · {row.target.name}"
            look = display.JOB_STATES[JobState(row.state)]
            return Row(_page("jobs_job", row.pk), row.reference or f"#{row.pk}", detail, look)
        case "batches":
            return Row(_page("jobs_batch", row.pk), str(row), row.tenant.name)
        case "tenants":
            return Row(_page("jobs_tenant", row.pk), row.name, row.slug)
        case "sends":
            detail = f"{row.target.name} · {row.provider_id or row.pk}"
            return Row(_page("jobs_providertask", row.pk), row.job.reference or f"#{row.job_id}", detail, display.task_look(row))  # fmt: skip
        case _:
            name = row.job.reference or f"#{row.job_id}" if row.job else f"#{row.pk}"
            return Row(_page("jobs_case", row.pk), name, row.get_kind_display())


def _page(name: str, pk: Any) -> str:
    return reverse(f"admin:{name}_change", args=[pk])
