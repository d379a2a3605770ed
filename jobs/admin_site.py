"""The admin site: navigation in the operator's order, what every page shows, the index, and a few addresses of its own.

Outside the package jobs.admin, and with imports inside: the site must exist before anything registers with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.apps import AdminConfig
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy as _

from jobs.clock import clock

if TYPE_CHECKING:
    from jobs.models import Hold


class DeskAdminConfig(AdminConfig):
    """Puts the desk's own site in the place of Django's stock one."""

    default_site = "jobs.admin_site.DeskAdminSite"


def _holds() -> list[Hold]:
    from jobs.models import Hold

    return list(
        Hold.objects.filter(lifted_at__isnull=True).select_related("set_by").order_by("kind")
    )


class DeskAdminSite(admin.AdminSite):
    site_header = _("Generation desk")
    site_title = _("Generation desk")
    index_title = _("Dashboard")
    index_template = "desk/index.html"
    empty_value_display = "—"
    site_url = None

    def get_urls(self) -> list[URLPattern | URLResolver]:
        from jobs.admin import (
            comparison,
            drill,
            failures,
            files,
            gallery,
            handover,
            holds,
            preferences,
            report_sheets,
            reports,
            saved_filters,
            search,
            streams,
            trail,
        )

        own: list[URLPattern | URLResolver] = [
            path("file/<int:pk>/", self.admin_view(files.result_file), name="desk_file"),
            path(
                "file/<int:pk>/thumbnail/",
                self.admin_view(files.result_thumbnail),
                name="desk_thumbnail",
            ),
            path("photo/<int:pk>/", self.admin_view(files.photo_file), name="desk_photo"),
            path("search/", self.admin_view(search.page), name="desk_search"),
            path("filters/save/", self.admin_view(saved_filters.save), name="desk_filter_save"),
            path(
                "filters/<int:pk>/forget/",
                self.admin_view(saved_filters.forget),
                name="desk_filter_forget",
            ),
            path("gallery/", self.admin_view(gallery.page), name="desk_gallery"),
            path("gallery/rate/", self.admin_view(gallery.rate), name="desk_gallery_rate"),
            path("gallery/zip/", self.admin_view(gallery.download), name="desk_gallery_zip"),
            path("my-settings/", self.admin_view(preferences.page), name="desk_preferences"),
            path("stream/", self.admin_view(streams.dashboard), name="desk_stream"),
            path("failures/", self.admin_view(failures.page), name="desk_failures"),
            path("comparison/", self.admin_view(comparison.page), name="desk_comparison"),
            path(
                "comparison/sheet/",
                self.admin_view(comparison.sheet),
                name="desk_comparison_sheet",
            ),
            path("reports/", self.admin_view(reports.page), name="desk_reports"),
            path(
                "reports/sheet/<slug:name>/",
                self.admin_view(report_sheets.sheet),
                name="desk_reports_sheet",
            ),
            path("red-button/", self.admin_view(holds.press), name="desk_red_button"),
            path("red-button/lift/", self.admin_view(holds.lift), name="desk_lift"),
            path("sandbox/<slug:what>/", self.admin_view(drill.page), name="desk_drill"),
            path("trail/", self.admin_view(trail.page), name="desk_trail"),
            path("trail/sheet/", self.admin_view(trail.sheet), name="desk_trail_sheet"),
            *(
                path(
                    f"{app}/{model}/<path:object_id>/history/",
                    self.admin_view(trail.history),
                    {"app": app, "model": model},
                )
                for app, model in trail.HISTORIES
            ),
            path("handover/", self.admin_view(handover.page), name="desk_handover"),
            path("handover/read/", self.admin_view(handover.note_read), name="desk_handover_read"),
        ]
        return [*own, *super().get_urls()]

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        context: dict[str, Any] = super().each_context(request)
        if not self.has_permission(request):
            return context
        from jobs.admin import drill, nav, notices

        # Lazy: popups and plain forms that show none of it ask the database nothing.
        holds = SimpleLazyObject(_holds)
        context |= {
            "desk_now": clock.now,
            "desk_holds": holds,
            "desk_failing_channels": SimpleLazyObject(notices.failing_channels),
            "desk_red_button": SimpleLazyObject(lambda: any(h.kind == "red_button" for h in holds)),
            "desk_drill": SimpleLazyObject(lambda: drill.shown(request)),
            "desk_nav": SimpleLazyObject(lambda: nav.sections(request)),
            "desk_role": SimpleLazyObject(lambda: nav.role(request)),
        }
        return context

    def login(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Whoever works at the desk lands there while something is open, unless they were on their way elsewhere."""
        from jobs.admin import index

        answer: HttpResponse = super().login(request, extra_context)
        to_index = isinstance(answer, HttpResponseRedirect) and answer.url == reverse("admin:index")
        if to_index and index.starts_at_the_desk(request.user):
            return HttpResponseRedirect(reverse("admin:jobs_case_changelist"))
        return answer

    def index(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> TemplateResponse:
        from jobs.admin import index, streams

        context = {
            **self.each_context(request),
            "title": self.index_title,
            "subtitle": None,
            **index.context(request, now=clock.now()),
            "stream": streams.address(request, "admin:desk_stream"),
            "layout": "desk/live.html" if request.headers.get("X-Live") else "admin/base_site.html",
            **(extra_context or {}),
        }
        request.current_app = self.name
        return TemplateResponse(request, self.index_template, context)
