"""Results, standing decisions and spool hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, written
from jobs.admin.changelist import NEW_JOBS, DeskAdmin, EmptyState, MachineAdmin
from jobs.admin.filters import CreatedFilter
from jobs.clock import clock
from jobs.models import Job, Result, SpoolHost, StandingDecision
from jobs.templatetags import desk


@admin.register(Result)
class ResultAdmin(MachineAdmin):
    keyset = ("id",)
    list_display = ("thumb_cell", "what_cell", "type_cell", "size_cell", "made_cell", "age_cell")
    list_display_links = ("what_cell",)
    list_filter = ("job__tenant", CreatedFilter)
    search_fields = ("job__reference",)
    search_help_text = gettext_lazy("Reference, prompt, number or provider id of the job")
    sortable_by = ()
    empty = EmptyState(
        "image",
        gettext_lazy("No results yet"),
        gettext_lazy(
            "Finished pictures and texts appear here as soon as they are stored. Ask for the first ones."
        ),
        NEW_JOBS,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Result]:
        return Result.objects.select_related("job", "uploaded_by").defer(
            "job__prompt", "job__params"
        )

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        if not search_term.strip():
            return queryset, False
        return queryset.filter(job__in=Job.objects.search(search_term).values("pk")), False

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
        return rows

    @admin.display(description=gettext_lazy("picture"))
    def thumb_cell(self, result: Result) -> SafeString:
        if not result.thumb_key:
            return format_html('<span class="thumb thumb-text">{}</span>', desk.icon("file-text"))
        return format_html(
            '<span class="thumb"><img src="{}" alt="" loading="lazy" width="40" height="40"></span>',
            reverse("admin:desk_thumbnail", args=[result.pk]),
        )

    @admin.display(description=gettext_lazy("job"))
    def what_cell(self, result: Result) -> SafeString:
        return format_html(
            '<span class="what"><span class="what-first"><bdi>{}</bdi></span><span class="what-second">#{}</span></span>',
            result.job.reference or f"#{result.job_id}",
            result.job_id,
        )

    @admin.display(description=gettext_lazy("type"))
    def type_cell(self, result: Result) -> SafeString:
        size = f"{result.width} × {result.height}" if result.width and result.height else ""
        return format_html('<bdi class="ltr">{} {}</bdi>', result.media_type.split(";")[0], size)

    @admin.display(description=gettext_lazy("size"))
    def size_cell(self, result: Result) -> str:
        return written.size(result.size_bytes)

    @admin.display(description=gettext_lazy("made by"))
    def made_cell(self, result: Result) -> SafeString:
        if result.task_id is None:
            who = result.uploaded_by.get_username() if result.uploaded_by else _("staff")
            return desk.pill(display.Look(_("%(who)s, by hand") % {"who": who}, "hand", "amber"))
        if result.job.delivered_id == result.pk:
            return desk.pill(display.Look(_("delivered"), "circle-check", "green"))
        return desk.pill(display.Look(_("kept beside"), "layers", "outline"))

    @admin.display(description=gettext_lazy("age"))
    def age_cell(self, result: Any) -> SafeString:
        return desk.ago(result.created_at, result.shown_now)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """A result is shown on its job's page."""
        result = self.get_object(request, object_id)
        if result is None:
            return HttpResponseRedirect(reverse("admin:jobs_result_changelist"))
        return HttpResponseRedirect(
            reverse("admin:jobs_job_change", args=[result.job_id]) + f"#result-{result.pk}"
        )


def _moment(name: str, words: Any) -> Callable[[Any], SafeString]:
    """A column with a moment, as the reader has it."""

    @admin.display(description=words, ordering=name)
    def cell(row: Any) -> SafeString:
        at = getattr(row, name)
        return desk.clock_time(at, day=True) if at else format_html("{}", "—")

    return cell


class StandingDecisionForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    class Meta:
        help_texts = {
            "target": gettext_lazy(
                "The one target for which this holds; all others go on as before."
            ),
            "what": gettext_lazy(
                "What the machine may then do by itself. Each such send may be paid twice, and is booked as a possible duplicate."
            ),
            "reason": gettext_lazy(
                "Why you take the risk. Kept on record with your name; a decision is ended, never edited."
            ),
        }


@admin.register(StandingDecision)
class StandingDecisionAdmin(DeskAdmin):
    """Made and ended by the owner; never edited, so that what was decided when stays on record."""

    form = StandingDecisionForm
    list_display = (
        "target", "what", "made_by", _moment("made_at", gettext_lazy("made")),
        _moment("ended_at", gettext_lazy("ended")), "ended_by",
    )  # fmt: skip
    list_select_related = ("target", "made_by", "ended_by")
    ordering = ("-made_at",)
    fields = ("target", "what", "reason")
    actions = ("end",)
    empty = EmptyState(
        "gavel",
        gettext_lazy("No standing decisions"),
        gettext_lazy(
            "Without one, nothing is ever sent again by the machine while a charge is possible: each such send becomes a case. The owner may decide otherwise for one target, and then pays for possible duplicates."
        ),
    )

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        obj.made_by = request.user
        obj.made_at = clock.now()
        super().save_model(request, obj, form, change)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.fields, "made_by", "made_at", "ended_at", "ended_by") if obj else self.fields

    def has_end_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobs.change_standingdecision")

    @admin.action(description=gettext_lazy("End the selected decisions"), permissions=["end"])
    def end(self, request: HttpRequest, queryset: QuerySet[StandingDecision]) -> None:
        ended = queryset.filter(ended_at__isnull=True).update(
            ended_at=clock.now(), ended_by=request.user
        )
        self.message_user(request, _("%(count)d ended.") % {"count": ended})


@admin.register(SpoolHost)
class SpoolHostAdmin(MachineAdmin):
    list_display = (
        "host", _moment("clear_at", gettext_lazy("replayed")),
        _moment("declared_lost_at", gettext_lazy("declared lost")),
    )  # fmt: skip
    empty = EmptyState(
        "hard-drive",
        gettext_lazy("No host yet"),
        gettext_lazy(
            "Each machine that runs lanes is listed here, with the time its spool was last replayed."
        ),
    )
