"""The desk: open cases by money and age, and the page of one with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, phases
from jobs.admin import case_words, evidence, filters, job_page, jobs_rows, notices, verbs
from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin, row_button
from jobs.admin.verb import Verb
from jobs.clock import clock
from jobs.models import Case, Job
from jobs.states import CaseKind
from jobs.templatetags import desk


@admin.register(Case)
class CaseAdmin(VerbsMixin, MachineAdmin):
    verbs = verbs.CASE_VERBS
    list_display = (
        "what_cell",
        "job_cell",
        "money_cell",
        "owner_cell",
        "due_cell",
        "age_cell",
        "row_cell",
    )
    list_display_links = ("what_cell",)
    list_filter = (filters.CaseTabs, "kind", "job__tenant")
    search_fields = ("job__reference", "note")
    search_help_text = gettext_lazy("Reference of the job, or words of the note")
    sortable_by = ()
    empty = EmptyState(
        "circle-check",
        gettext_lazy("The desk is empty"),
        gettext_lazy(
            "Nothing needs a person. What the machine can't settle by itself appears here, with its money."
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Case]:
        cases = Case.objects.select_related(
            "job", "job__tenant", "owner", "task__target", "resolved_by"
        )
        return cases.annotate(prompt_start=Left("job__prompt", 120)).defer(
            "job__prompt",
            "job__params",
            "task__evidence",
            "task__files",
            "task__result_text",
            "task__candidates",
        )

    def get_ordering(self, request: HttpRequest) -> Any:
        if request.GET.get("show") == "closed":
            return ("-resolved_at", "-pk")
        return ("-money_at_risk", "opened_at", "pk")

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for case in rows:
            case.shown_now = now
            case.row_verbs = verbs.allowed([verbs.TAKE], request.user, case)
            case.row_back = request.get_full_path()
        return rows

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Desk"), **(extra_context or {})})

    @admin.display(description=gettext_lazy("case"))
    def what_cell(self, case: Any) -> SafeString:
        second = (
            display.RESOLUTIONS.get(case.resolution, case.resolution)
            if case.resolved_at
            else case_words.hint(case)
        )
        return format_html(
            '<span class="what"><span class="what-first"><span>{}</span></span><span class="what-second" title="{}">{}</span></span>',
            case_words.title(case),
            second,
            second,
        )

    @admin.display(description=gettext_lazy("job"))
    def job_cell(self, case: Any) -> SafeString:
        if case.job is None:
            return format_html('<span class="quiet">{}</span>', _("none"))
        return format_html(
            '<span class="what"><span class="what-first"><bdi>{}</bdi></span><span class="what-second" dir="auto">{}</span></span>',
            case.job.reference or f"#{case.job_id}",
            case.prompt_start,
        )

    @admin.display(description=gettext_lazy("money at risk"))
    def money_cell(self, case: Case) -> SafeString:
        if not case.money_at_risk:
            return format_html('<span class="quiet">{}</span>', "—")
        return desk.money(case.money_at_risk, case.currency)

    @admin.display(description=gettext_lazy("owner"))
    def owner_cell(self, case: Case) -> SafeString:
        if case.owner is None:
            return format_html('<span class="quiet">{}</span>', _("nobody"))
        return format_html("<bdi>{}</bdi>", case.owner.get_username())

    @admin.display(description=gettext_lazy("due"))
    def due_cell(self, case: Any) -> SafeString:
        if case.resolved_at is not None:
            return desk.ago(case.resolved_at, case.shown_now)
        if case.due_at < case.shown_now:
            late = display.Look(_("overdue %(time)s") % {"time": display.short((case.shown_now - case.due_at).total_seconds())},
                                "timer", "red")  # fmt: skip
            return desk.pill(late)
        return desk.ago(case.due_at, case.shown_now)

    @admin.display(description=gettext_lazy("open for"))
    def age_cell(self, case: Any) -> SafeString:
        until = case.resolved_at or case.shown_now
        return format_html(
            '<time datetime="{}" title="{}" dir="auto">{}</time>',
            case.opened_at.isoformat(),
            display.exact(case.opened_at),
            display.short((until - case.opened_at).total_seconds()),
        )

    @admin.display(description="", empty_value="")
    def row_cell(self, case: Any) -> SafeString:
        buttons = [row_button(self, verb, case, back=case.row_back) for verb in case.row_verbs]
        return format_html_join("", "{}", ((button,) for button in buttons))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        case = self.get_object(request, object_id)
        if case is None:
            raise Http404
        if not self.has_view_permission(request, case):
            raise PermissionDenied
        now = clock.now()
        job = job_page.load(case.job_id) if case.job_id else None
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": case_words.title(case, job),
            "now": now,
            "case": case,
            "notice": notices.of_case(case, request.user, job),
            "resolution": display.RESOLUTIONS.get(case.resolution, case.resolution),
            "overdue": case.resolved_at is None and case.due_at < now,
            "detail": evidence.groups(case.detail),
            "job": job,
        }
        if job is not None:
            job_verbs = (
                verbs.allowed(verbs.JOB_VERBS, request.user, job)
                if case.resolved_at is None
                else []
            )
            context |= {
                "look": display.PHASES[phases.phase(job, jobs_rows.blocking_task(job), now)],
                "job_verbs": job_verbs,
                "deliver": verbs.DELIVER if verbs.DELIVER in job_verbs else None,
                **_primary(case, job, request.user, job_verbs),
                "sends": [
                    job_page.send(one, user=request.user) for one in reversed(job.tasks.all())
                ],
                "results": job.results.all(),
                "photos": job.photos.all(),
            }
        return TemplateResponse(request, "desk/case.html", context)


_WANTED = {
    CaseKind.REFUSED_BY_ALL: verbs.RETRY,
    CaseKind.ATTEMPTS_EXHAUSTED: verbs.RETRY,
    CaseKind.LATE_RESULT: verbs.DELIVER,
}


def _primary(case: Case, job: Job, user: Any, job_verbs: Sequence[Verb]) -> dict[str, Any]:
    """The one likely next step: accept a candidate, else attach the id of a lost send, else whatever ends the job."""
    if case.resolved_at is not None:
        return {}
    task = next((one for one in job.tasks.all() if one.pk == case.task_id), None)
    of_task = verbs.allowed(verbs.TASK_VERBS, user, task) if task is not None else []
    for verb in (verbs.ACCEPT, verbs.ATTACH):
        if verb in of_task:
            return {"primary": verb, "primary_thing": task}
    wanted = _WANTED.get(CaseKind(case.kind), verbs.RESOLVE)
    return {"primary": wanted, "primary_thing": job} if wanted in job_verbs else {}
