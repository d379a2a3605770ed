"""Sends: the list as Polza's own dashboard shows it, and the page of one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy

from jobs import display, written
from jobs.admin import filters, job_page, verbs
from jobs.admin.changelist import NEW_JOBS, EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin, row_button
from jobs.clock import clock
from jobs.models import PolzaTask, ProviderTask
from jobs.states import TaskState
from jobs.templatetags import desk
from providers.contract import Charge
from providers.models import Target


@admin.register(ProviderTask)
class ProviderTaskAdmin(VerbsMixin, MachineAdmin):
    """Newest job first, a job's sends together: that order has an index whatever the table's size."""

    verbs = verbs.TASK_VERBS
    keyset = ("job_id", "created_at")
    list_display = (
        "what_cell",
        "model_cell",
        "state_cell",
        "charge_cell",
        "cost_cell",
        "age_cell",
        "polls",
        "row_cell",
    )
    list_display_links = ("what_cell",)
    list_filter = (
        filters.TaskStateTabs,
        ("charge", admin.ChoicesFieldListFilter),
        "target",
        "tenant",
    )
    search_fields = ("provider_id",)
    search_help_text = gettext_lazy("Provider id, our id or job number")
    sortable_by = ()
    empty = EmptyState(
        "send",
        gettext_lazy("Nothing was sent yet"),
        gettext_lazy(
            "Each row is one possible paid call to a provider. The first appears when a worker takes up a job."
        ),
        NEW_JOBS,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        heavy = ("evidence", "files", "result_text", "candidates", "failure_text")
        return (
            super()
            .get_queryset(request)
            .select_related("target", "account", "job")
            .defer(*heavy, "job__prompt")
        )

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        words = search_term.strip()
        if not words:
            return queryset, False
        if words.lstrip("#").isdecimal() and len(words) < 18:
            return queryset.filter(job_id=int(words.lstrip("#"))), False
        found = queryset.filter(provider_id=words)
        try:
            found |= queryset.filter(pk=words)
        except (ValueError, TypeError):
            return found, False
        return found, False

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for task in rows:
            task.shown_now = now
            task.row_verbs = verbs.allowed([verbs.POLL], request.user, task)
            task.row_back = request.get_full_path()
        return rows

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(
            request, {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        )

    @admin.display(description=gettext_lazy("id"))
    def what_cell(self, task: ProviderTask) -> SafeString:
        shown = task.provider_id or str(task.pk)
        first = format_html(
            '<bdi class="ltr mono">{}</bdi>',
            shown if len(shown) <= 28 else f"{shown[:12]}…{shown[-8:]}",
        )
        label = format_html("<bdi>{}</bdi>", task.job.reference) if task.job.reference else ""
        return format_html(
            '<span class="what"><span class="what-first">{}</span><span class="what-second">#{} {}</span></span>',
            first,
            task.job_id,
            label,
        )

    @admin.display(description=gettext_lazy("model"))
    def model_cell(self, task: ProviderTask) -> SafeString:
        return desk.target_name(task.target)

    @admin.display(description=gettext_lazy("status"))
    def state_cell(self, task: ProviderTask) -> SafeString:
        look = display.task_look(task)
        said = task.last_status if task.state == TaskState.ACCEPTED else ""
        if not said and task.state in {TaskState.REFUSED, TaskState.FAILED, TaskState.UNSENT}:
            said = display.reason(task.failure_class)
        below = format_html('<span class="small">{}</span>', said) if said else ""
        return format_html('<span class="state-cell">{}{}</span>', desk.pill(look), below)

    @admin.display(description=gettext_lazy("charge"))
    def charge_cell(self, task: ProviderTask) -> SafeString:
        if task.charge == Charge.NONE:
            return format_html('<span class="quiet">{}</span>', display.CHARGES[Charge.NONE].word)
        return desk.pill(display.CHARGES[Charge(task.charge)])

    @admin.display(description=gettext_lazy("cost"))
    def cost_cell(self, task: ProviderTask) -> str:
        if task.cost is not None:
            return written.both(task.cost, task.currency)
        return (
            written.both(task.estimated_cost, task.currency, estimate=True)
            if task.charge != Charge.NONE
            else "—"
        )

    @admin.display(description=gettext_lazy("age"))
    def age_cell(self, task: Any) -> SafeString:
        at = task.armed_at or task.created_at
        words = written.short((task.shown_now - at).total_seconds())
        return format_html(
            '<time datetime="{}" title="{}" dir="auto">{}</time>',
            at.isoformat(),
            written.exact(at),
            words,
        )

    @admin.display(description="", empty_value="")
    def row_cell(self, task: Any) -> SafeString:
        buttons = [row_button(self, verb, task, back=task.row_back) for verb in task.row_verbs]
        return format_html_join("", "{}", ((button,) for button in buttons))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        found = self.get_object(request, object_id)
        if found is None:
            raise Http404
        if not self.has_view_permission(request, found):
            raise PermissionDenied
        task = ProviderTask.objects.select_related(
            "target",
            "account",
            "job__delivered",
            "job__target",
            "released_user",
            "staff_user",
            "tenant",
        ).get(pk=found.pk)
        now = clock.now()
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": task.provider_id or str(task.pk)[:8],
            "now": now,
            "task": task,
            "send": job_page.send(task, user=request.user),
            "reason": display.reason(task.failure_class),
            "released": display.reason(task.released_by),
            "costs": [
                (label, written.both(cost, task.currency))
                for label, cost in (
                    (gettext_lazy("told with the answer"), task.cost_answer),
                    (gettext_lazy("told by a poll"), task.cost_poll),
                    (gettext_lazy("told by the receipt"), task.cost_receipt),
                    (gettext_lazy("set by staff"), task.cost_staff),
                )
                if cost is not None
            ],
            "results": task.results.order_by("position"),
            "steps": job_page.steps(list(task.events.select_related("actor").order_by("id"))),
            "cases": task.cases.filter(resolved_at__isnull=True).select_related("owner"),
        }
        return TemplateResponse(request, "desk/task.html", context)


@admin.register(PolzaTask)
class PolzaTaskAdmin(ProviderTaskAdmin):
    empty = EmptyState(
        "receipt-text",
        gettext_lazy("Nothing was sent to Polza yet"),
        gettext_lazy(
            "Here are the same rows as in Polza's own dashboard: id, model, status, cost in ₽, age."
        ),
        NEW_JOBS,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        polza = Target.objects.filter(provider="polza").values("pk")
        return super().get_queryset(request).filter(target__in=polza)
