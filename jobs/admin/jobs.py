"""Jobs: the list, and where its page and its verbs hang."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from jobs import display, written
from jobs.admin import batch_import, bulk, filters, job_page, jobs_rows, verbs
from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin
from jobs.clock import clock
from jobs.models import Job, JobEvent
from jobs.templatetags import desk


@admin.register(Job)
class JobAdmin(VerbsMixin, MachineAdmin):
    verbs = verbs.JOB_VERBS
    keyset = ("id",)
    list_display = (
        "thumb_cell",
        "what_cell",
        "state_cell",
        "target_cell",
        "tenant",
        "cost_cell",
        "age_cell",
    )
    list_display_links = ("what_cell",)
    list_filter = (
        filters.JobStateTabs,
        filters.PhaseFilter,
        "tenant",
        "target",
        "kind",
        filters.CreatedFilter,
        filters.BatchFilter,
        filters.FailureFilter,
    )
    search_fields = ("reference",)
    search_help_text = gettext_lazy("Reference, prompt, number or provider id")
    actions = (
        "retry_selected",
        "retarget_selected",
        "again_selected",
        "manual_selected",
        "resolve_selected",
        "cancel_selected",
    )
    empty = EmptyState(
        "images",
        gettext_lazy("No jobs yet"),
        gettext_lazy(
            "A job is one picture or text that somebody wants. Ask for the first ones: write a prompt or give a file, see what it may cost, and watch them here."
        ),
    )

    # --- the list ---

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        return jobs_rows.for_list()

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        return (queryset.search(search_term) if search_term.strip() else queryset), False

    def dress(self, rows: list[Job], request: HttpRequest) -> list[Job]:
        jobs_rows.dress(rows, clock.now())
        return rows

    @admin.display(description=gettext_lazy("picture"))
    def thumb_cell(self, job: Job) -> SafeString:
        return jobs_rows.thumb(job)

    @admin.display(description=gettext_lazy("job"))
    def what_cell(self, job: Any) -> SafeString:
        first = (
            format_html("<bdi>{}</bdi>", job.reference)
            if job.reference
            else format_html("<bdi>#{}</bdi>", job.pk)
        )
        number = (
            format_html('<span class="quiet small">#{}</span>', job.pk) if job.reference else ""
        )
        return format_html(
            '<span class="what"><span class="what-first">{}{}</span><span class="what-second" dir="auto">{}</span></span>',
            first,
            number,
            job.prompt_start,
        )

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, job: Any) -> SafeString:
        return jobs_rows.state_cell(job)

    @admin.display(description=gettext_lazy("target"))
    def target_cell(self, job: Job) -> SafeString:
        return desk.target_name(job.target)

    @admin.display(description=gettext_lazy("cost"))
    def cost_cell(self, job: Job) -> SafeString:
        lines = jobs_rows.money_lines(job)
        if not lines:
            return format_html('<span class="quiet">{}</span>', "—")
        return (
            format_html("{}", lines[0])
            if len(lines) == 1
            else format_html("{}<br>{}", lines[0], " ".join(lines[1:]))
        )

    @admin.display(description=gettext_lazy("age"))
    def age_cell(self, job: Any) -> SafeString:
        words = written.short((job.shown_now - job.created_at).total_seconds())
        return format_html(
            '<time datetime="{}" title="{}" dir="auto">{}</time>',
            job.created_at.isoformat(),
            written.exact(job.created_at),
            words,
        )

    # --- pages ---

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        pk = int(object_id) if object_id.isdecimal() and len(object_id) < 18 else 0
        job = job_page.load(pk)
        if job is None:
            raise Http404
        if not self.has_view_permission(request, job):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            **job_page.context(job, user=request.user, now=clock.now()),
            # The page itself asks for its live parts every few seconds (jobs/static/desk/live.js).
            "layout": "desk/live.html" if request.headers.get("X-Live") else "admin/base_site.html",
        }
        return TemplateResponse(request, "desk/job.html", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A job's history is its timeline."""
        return HttpResponseRedirect(
            reverse("admin:jobs_job_change", args=[object_id]) + "#timeline"
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobs.add_job")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        from jobs.admin import create

        if not self.has_add_permission(request):
            raise PermissionDenied
        return create.new_jobs(request, context=self.admin_site.each_context(request))

    # --- verbs on many; sends with a possible charge are never among them ---

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(verbs.RETRY.permission)

    def has_retarget_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(verbs.RETARGET.permission)

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(verbs.RESOLVE.permission)

    def has_manual_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(verbs.MANUAL.permission)

    def has_again_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobs.add_batch")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(verbs.CANCEL.permission)

    @admin.action(description=gettext_lazy("Retry"), permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return bulk.view(self, request, queryset, verbs.RETRY)

    @admin.action(description=gettext_lazy("Change the target"), permissions=["retarget"])
    def retarget_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return bulk.view(self, request, queryset, verbs.RETARGET)

    @admin.action(
        description=gettext_lazy("Generate again with an edited prompt"), permissions=["again"]
    )
    def again_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return batch_import.generate_again(self, request, queryset)

    @admin.action(description=gettext_lazy("Mark for manual handling"), permissions=["manual"])
    def manual_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return bulk.view(self, request, queryset, verbs.MANUAL)

    @admin.action(description=gettext_lazy("Resolve"), permissions=["resolve"])
    def resolve_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return bulk.view(self, request, queryset, verbs.RESOLVE)

    @admin.action(description=gettext_lazy("Cancel"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse:
        return bulk.view(self, request, queryset, verbs.CANCEL)


@admin.register(JobEvent)
class JobEventAdmin(MachineAdmin):
    keyset = ("id",)
    list_display = ("at_cell", "kind_cell", "job", "actor")
    list_select_related = ("job", "actor")

    @admin.display(description=gettext_lazy("at"))
    def at_cell(self, event: JobEvent) -> SafeString:
        return desk.clock_time(event.at, day=True)

    @admin.display(description=gettext_lazy("what"))
    def kind_cell(self, event: JobEvent) -> str:
        return str(display.event_look(event.kind, of_task=event.task_id is not None).word)
