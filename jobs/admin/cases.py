"""The desk: open cases by money and age, and the page of one with its evidence."""

from __future__ import annotations

import re
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Prefetch, QuerySet
from django.db.models.functions import Left
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import attach, display, phases, written
from jobs.admin import (
    candidate_picture,
    candidates,
    case_bulk,
    case_steps,
    case_words,
    evidence,
    filters,
    job_page,
    jobs_rows,
    notices,
    verbs,
)
from jobs.admin.changelist import JOBS, EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin, row_button
from jobs.clock import clock
from jobs.models import Case, Job, ProviderTask, Result
from jobs.templatetags import desk

_PROMPT_START = 120
_STAFF_STEPS = 30
# When and by whom a line of a note was added: in a narrow column the words themselves come first.
_SIGNED = re.compile(r"\A\d{4}-\d\d-\d\d \d\d:\d\d [^:]{0,150}: (?=.)")


@admin.register(Case)
class CaseAdmin(VerbsMixin, MachineAdmin):
    verbs = verbs.CASE_VERBS
    change_list_template = "desk/cases.html"
    list_display = (
        "what_cell",
        "step_cell",
        "money_cell",
        "owner_cell",
        "due_cell",
        "row_cell",
    )
    list_display_links = ("what_cell",)
    list_filter = (filters.CaseTabs, "kind", "job__tenant")
    search_fields = ("job__reference", "note")
    search_help_text = gettext_lazy("Reference of the job, or words of the note")
    sortable_by = ()
    actions = ("take_selected", "note_selected", "close_selected")
    empty = EmptyState(
        "circle-check",
        gettext_lazy("The desk is empty"),
        gettext_lazy(
            "Nothing needs a person. What the machine can't settle by itself (a lost answer, a paid picture without a file) appears here, with the money at risk and what you can do."
        ),
        JOBS,
    )

    # --- the list ---

    def get_queryset(self, request: HttpRequest) -> QuerySet[Case]:
        """With what the suggested step of a row hangs on: the job's sends and results, each read once for a page."""
        cases = Case.objects.select_related(
            "job__tenant", "job__target", "job__delivered", "owner", "resolved_by"
        ).prefetch_related(
            Prefetch("job__tasks", queryset=ProviderTask.objects.order_by("created_at", "id").defer(*_HEAVY)),
            Prefetch("job__results", queryset=Result.objects.only("pk", "job_id", "removed_at")),
        )  # fmt: skip
        return cases.annotate(prompt_start=Left("job__prompt", _PROMPT_START)).defer(
            "job__prompt", "job__params", "job__original_prompt"
        )

    def get_ordering(self, request: HttpRequest) -> Any:
        if request.GET.get("show") == "closed":
            return ("-resolved_at", "-pk")
        return ("-money_at_risk", "opened_at", "pk")

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for case in rows:
            _join(case)
            case.shown_now = now
            case.shown_step = case_steps.in_a_row(case) if case.resolved_at is None else None
            case.row_verbs = verbs.allowed([verbs.TAKE], request.user, case)
            case.row_back = request.get_full_path()
        return rows

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, {"title": _("Desk"), **(extra_context or {})})

    @admin.display(description=gettext_lazy("case"))
    def what_cell(self, case: Any) -> SafeString:
        """What it is, whose job and what was asked for, and what has happened."""
        of_job = SafeString()
        if case.job is not None:
            of_job = format_html(
                '<span class="what-second"><bdi class="what-of">{}</bdi> <span class="quiet" dir="auto">{}</span></span>',
                case.job.reference or f"#{case.job_id}",
                case.prompt_start,
            )
        return format_html(
            '<span class="what"><span class="what-first"><span>{}</span></span>{}<span class="what-second small" title="{}">{}</span></span>',
            case_words.title(case),
            of_job,
            case_words.hint(case),
            case_words.hint(case),
        )

    @admin.display(description=gettext_lazy("suggested next step"))
    def step_cell(self, case: Any) -> SafeString:
        """What a person would do next, and what that risks. Of a closed case: how it ended."""
        if case.resolved_at:
            return format_html("{}", display.RESOLUTIONS.get(case.resolution, case.resolution))
        if case.shown_step is None:
            return format_html('<span class="quiet">{}</span>', "—")
        label, risk = case.shown_step
        return format_html(
            '<span class="case-step"><span class="case-step-what">{}</span><span class="small ink tone-{}">{}</span></span>',
            label,
            risk.tone,
            risk.words,
        )

    @admin.display(description=gettext_lazy("money at risk"))
    def money_cell(self, case: Case) -> SafeString:
        if not case.money_at_risk:
            return format_html('<span class="quiet">{}</span>', "—")
        return desk.money(case.money_at_risk, case.currency)

    @admin.display(description=gettext_lazy("owner and note"))
    def owner_cell(self, case: Case) -> SafeString:
        owner = (
            format_html("<bdi>{}</bdi>", case.owner.get_username())
            if case.owner is not None
            else format_html('<span class="quiet">{}</span>', _("nobody"))
        )
        lines = case.note.strip().splitlines()
        if not lines:
            return owner
        return format_html(
            '<span class="case-owner">{}<span class="small quiet" dir="auto" title="{}">{}</span></span>',
            owner,
            case.note,
            _SIGNED.sub("", lines[-1]),
        )

    @admin.display(description=gettext_lazy("due, and open for"))
    def due_cell(self, case: Any) -> SafeString:
        until = case.resolved_at or case.shown_now
        age = format_html(
            '<time class="small quiet" datetime="{}" title="{}" dir="auto">{}</time>',
            case.opened_at.isoformat(),
            written.exact(case.opened_at),
            _("open for %(time)s")
            % {"time": written.short((until - case.opened_at).total_seconds())},
        )
        return format_html('<span class="case-due">{}{}</span>', self._due(case), age)

    def _due(self, case: Any) -> SafeString:
        if case.resolved_at is not None:
            return desk.ago(case.resolved_at, case.shown_now)
        if case.due_at < case.shown_now:
            late_s = (case.shown_now - case.due_at).total_seconds()
            words = _("overdue %(time)s") % {"time": written.short(late_s)}
            return desk.pill(display.Look(words, "timer", "red"))
        return desk.ago(case.due_at, case.shown_now)

    @admin.display(description="", empty_value="")
    def row_cell(self, case: Any) -> SafeString:
        buttons = [row_button(self, verb, case, back=case.row_back) for verb in case.row_verbs]
        return format_html_join("", "{}", ((button,) for button in buttons))

    # --- several at once ---

    def has_work_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(verbs.TAKE.permission)

    @admin.action(description=pgettext_lazy("verb", "Take"), permissions=["work"])
    def take_selected(self, request: HttpRequest, queryset: QuerySet[Case]) -> HttpResponse:
        return case_bulk.view(self, request, queryset, verbs.TAKE)

    @admin.action(description=gettext_lazy("Add a note"), permissions=["work"])
    def note_selected(self, request: HttpRequest, queryset: QuerySet[Case]) -> HttpResponse:
        return case_bulk.view(self, request, queryset, verbs.NOTE)

    @admin.action(description=gettext_lazy("Close the case"), permissions=["work"])
    def close_selected(self, request: HttpRequest, queryset: QuerySet[Case]) -> HttpResponse:
        return case_bulk.view(self, request, queryset, verbs.CLOSE)

    # --- the page of one ---

    def get_urls(self) -> list[URLPattern]:
        own = [
            path(
                "<int:pk>/candidate/",
                self.admin_site.admin_view(self.candidate_view),
                name="jobs_case_candidate",
            )
        ]
        return [*own, *super().get_urls()]

    def candidate_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The picture of one of the candidates (`?id=`) of the case's send."""
        if not (self.has_view_permission(request) and request.user.has_perm("jobs.view_job")):
            raise PermissionDenied
        case = Case.objects.select_related("task__account").filter(pk=pk).first()
        wanted = request.GET.get("id", "")
        if case is None or case.task is None:
            raise Http404
        if wanted not in {one["id"] for one in attach.candidates(case.task)}:
            raise Http404
        return candidate_picture.answer(case.task, wanted)

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
        back = request.get_full_path()
        job = job_page.load(case.job_id) if case.job_id else None
        case.job = job
        _join(case)
        notice = notices.of_case(case, request.user, job)
        notice.verbs = []  # they stand among the steps
        groups = case_steps.groups(case, request.user, back=back)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": case_words.title(case, job),
            "now": now,
            "case": case,
            "notice": notice,
            "resolution": display.RESOLUTIONS.get(case.resolution, case.resolution),
            "overdue": case.resolved_at is None and case.due_at < now,
            "detail": evidence.groups(case.detail),
            "job": job,
            "steps": groups,
            "primary": next((step for _name, steps in groups for step in steps if step.primary), None),
            "next_case": _next_case(case) if case.resolved_at is not None else None,
            **(self._of_job(case, job, request, now) if job is not None else {}),
        }  # fmt: skip
        return TemplateResponse(request, "desk/case.html", context)

    def _of_job(self, case: Case, job: Job, request: HttpRequest, now: Any) -> dict[str, Any]:
        """What was asked, what came of it, and what the provider's history holds beside it."""
        sends = [job_page.send(one, user=request.user) for one in reversed(job.tasks.all())]
        may_deliver = verbs.allowed([verbs.DELIVER], request.user, job)
        shown: list[candidates.Candidate] = []
        accept = None
        for send in sends:
            if send.task.pk == case.task_id:
                # Its steps and candidates have places of their own on this page.
                accept = send.accept if case.resolved_at is None else None
                shown = candidates.cards(case, send.task)
                send.verbs, send.candidates, send.accept = [], [], None
        by_people = job.events.filter(actor__isnull=False).select_related("actor")
        return {
            "staff_steps": job_page.steps(list(by_people.order_by("-id")[:_STAFF_STEPS])[::-1]),
            "look": display.PHASES[phases.phase(job, jobs_rows.blocking_task(job), now)],
            "deliver": verbs.DELIVER if may_deliver and case.resolved_at is None else None,
            "sends": sends,
            "results": job.results.all(),
            "photos": job.photos.all(),
            "candidates": shown,
            "accept": accept,
        }


# What only the page of a send shows.
_HEAVY = ("evidence", "files", "result_text", "failure_text")


def _join(case: Case) -> None:
    """Make the case's send the very row that its job has loaded, so that nothing asks for it again."""
    if case.job is not None and case.task_id is not None:
        for task in case.job.tasks.all():
            if task.pk == case.task_id:
                case.task = task


def _next_case(case: Case) -> Case | None:
    """What the desk shows first now."""
    opened = Case.objects.filter(resolved_at__isnull=True).exclude(pk=case.pk)
    return opened.order_by("-money_at_risk", "opened_at", "pk").first()
