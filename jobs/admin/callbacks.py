"""Callbacks as staff see them: what was told to whom, what waits, and what was given up. The secret, shown when asked for."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from jobs import callbacks
from jobs.admin import callback_verbs, verbs
from jobs.admin.changelist import NEW_JOBS, EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin, row_button
from jobs.clock import clock
from jobs.display import Look
from jobs.lifecycle import endpoints
from jobs.lifecycle.errors import Refused
from jobs.models import Callback, Tenant
from jobs.models.callback import WAITS
from jobs.templatetags import desk

_TRYING = Q(leased_until__isnull=False) | Q(tries__gt=0)
_STATES: dict[str, tuple[Any, Q, str, str]] = {
    "new": (gettext_lazy("waiting"), WAITS & ~_TRYING, "clock", "grey"),
    "trying": (gettext_lazy("being tried"), WAITS & _TRYING, "refresh-cw", "amber"),
    "delivered": (gettext_lazy("taken"), Q(delivered_at__isnull=False), "circle-check", "green"),
    "given_up": (gettext_lazy("given up"), Q(given_up_at__isnull=False), "circle-x", "red"),
}  # fmt: skip


def state_of(row: Callback) -> str:
    if row.delivered_at is not None:
        return "delivered"
    if row.given_up_at is not None:
        return "given_up"
    return "trying" if row.tries else "new"


def look(row: Callback) -> Look:
    words, _rows, icon, tone = _STATES[state_of(row)]
    return Look(words, icon, tone)


class StateTabs(admin.SimpleListFilter):
    title = gettext_lazy("state")
    parameter_name = "state"
    tabs = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, words) for name, (words, *_rest) in _STATES.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        wanted = _STATES.get(self.value() or "")
        return queryset if wanted is None else queryset.filter(wanted[1])


@admin.register(Callback)
class CallbackAdmin(VerbsMixin, MachineAdmin):
    verbs = (callback_verbs.REPLAY,)
    keyset = ("id",)
    list_display = ("what_cell", "tenant", "url_cell", "state_cell", "next_cell", "trouble_cell", "row_cell")  # fmt: skip
    list_display_links = ("what_cell",)
    list_filter = (StateTabs, "kind", "tenant")
    list_select_related = ("tenant", "job", "batch")
    search_fields = ("job__reference", "=job__id")
    search_help_text = gettext_lazy("Reference or number of the job")
    sortable_by = ()
    actions = None
    empty = EmptyState(
        "bell",
        gettext_lazy("No callbacks yet"),
        gettext_lazy("Other programs are told here how their jobs ended. Give a tenant an address, or name one with a job; each delivery is then listed with its answer."),
        NEW_JOBS,
    )  # fmt: skip

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
            # Only where it makes a difference: the rest is being tried already.
            given_up = row.given_up_at is not None
            row.row_verbs = verbs.allowed(self.verbs, request.user, row) if given_up else []
            row.row_back = request.get_full_path()
        return rows

    @admin.display(description=gettext_lazy("what"))
    def what_cell(self, row: Callback) -> SafeString:
        return format_html(
            '<span class="what"><span class="what-first">{}</span><span class="what-second"><bdi>{}</bdi></span></span>',
            row.get_kind_display(),
            subject(row),
        )

    @admin.display(description=gettext_lazy("address"))
    def url_cell(self, row: Callback) -> SafeString:
        return format_html('<bdi class="mono ltr small">{}</bdi>', callbacks.shown(row.url))

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, row: Callback) -> SafeString:
        return desk.pill(look(row))

    @admin.display(description=gettext_lazy("last and next try"))
    def next_cell(self, row: Any) -> SafeString:
        times = [row.delivered_at or row.tried_at, row.not_before if row.tries else None]
        return format_html_join(" · ", "{}", ((desk.ago(at, row.shown_now),) for at in times if at))

    @admin.display(description=gettext_lazy("trouble"))
    def trouble_cell(self, row: Callback) -> SafeString | str:
        return format_html('<span class="small" dir="auto">{}</span>', row.trouble) if row.trouble else "—"  # fmt: skip

    @admin.display(description="", empty_value="")
    def row_cell(self, row: Any) -> SafeString:
        buttons = [row_button(self, verb, row, back=row.row_back) for verb in row.row_verbs]
        return format_html_join("", "{}", ((button,) for button in buttons))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": row.get_kind_display(),
            "now": clock.now(),
            "callback": row,
            "subject": subject(row),
            "look": look(row),
            "shown_url": callbacks.shown(row.url),
            "message": callbacks.message_id(row.message),
            "verbs": verbs.allowed(self.verbs, request.user, row),
        }
        return TemplateResponse(request, "desk/callback.html", context)


def subject(row: Callback) -> str:
    """Whose end it tells of, as people call it."""
    if row.job is not None:
        return row.job.reference or f"#{row.job_id}"
    return str(row.batch)


@require_POST
def secret(request: HttpRequest, pk: int, context: dict[str, Any]) -> HttpResponse:
    """The secret of a tenant's callbacks, on this page alone: it is kept nowhere, nor (as no page of the admin) by the browser."""
    if not request.user.has_perm("jobs.reveal_endpoint"):
        raise PermissionDenied
    assert request.user.is_authenticated
    tenant = Tenant.objects.filter(pk=pk).first()
    if tenant is None:
        raise Http404
    try:
        text = endpoints.reveal(tenant_id=pk, actor=request.user, now=clock.now())
    except Refused as refused:
        raise Http404 from refused
    shown = {**context, "title": _("The secret of callbacks"), "tenant": tenant, "secret": text}
    return TemplateResponse(request, "desk/callback_secret.html", shown)
