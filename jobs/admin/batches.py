"""Batches: the list, and where a batch's page, its progress, its export and the import hang."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Count
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    JsonResponse,
    StreamingHttpResponse,
)
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import translation
from django.utils.html import format_html
from django.utils.http import content_disposition_header
from django.utils.safestring import SafeString
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from jobs import display, progress
from jobs.admin import batch_import, batch_page, batch_verbs, jobs_rows, streams
from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin
from jobs.batches import export
from jobs.clock import clock
from jobs.models import Batch, Job
from jobs.states import JobState
from jobs.templatetags import desk

_EXPORT_AT_ONCE = 500


@admin.register(Batch)
class BatchAdmin(VerbsMixin, MachineAdmin):
    verbs = batch_verbs.BATCH_VERBS
    keyset = ("id",)
    list_display = ("what_cell", "bar_cell", "tenant", "created_by", "created_cell")
    list_display_links = ("what_cell",)
    list_filter = ("tenant",)
    list_select_related = ("tenant", "created_by")
    search_fields = ("label",)
    search_help_text = gettext_lazy("Name of the batch")
    sortable_by = ()
    empty = EmptyState(
        "layers",
        gettext_lazy("No batches yet"),
        gettext_lazy(
            "A batch is many jobs created at once: from a CSV or XLSX file, from pasted lines, or from jobs that exist. It shows how far they are, what they cost and when they end. Start with a file of prompts, one a line."
        ),
    )

    # --- the list ---

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        counts: dict[int, dict[JobState, int]] = defaultdict(lambda: dict.fromkeys(JobState, 0))
        found = (
            Job.objects.filter(batch__in=[row.pk for row in rows])
            .order_by()
            .values_list("batch_id", "state")
            .annotate(n=Count("pk"))
        )
        for batch_id, state, n in found:
            counts[batch_id][JobState(state)] = n
        now = clock.now()
        for row in rows:
            row.shown_counts, row.shown_now = counts[row.pk], now
        return rows

    @admin.display(description=gettext_lazy("batch"))
    def what_cell(self, batch: Batch) -> SafeString:
        number = format_html('<span class="quiet small">#{}</span>', batch.pk) if batch.label else ""  # fmt: skip
        return format_html(
            '<span class="what"><span class="what-first"><bdi>{}</bdi>{}</span></span>',
            batch.label or f"#{batch.pk}",
            number,
        )

    @admin.display(description=gettext_lazy("progress"))
    def bar_cell(self, batch: Any) -> SafeString:
        counts = batch.shown_counts
        total = sum(counts.values())
        ended = total - counts[JobState.PENDING] - counts[JobState.ACTIVE]
        given_up = counts[JobState.FAILED] + counts[JobState.MANUAL]
        return SafeString(
            render_to_string(
                "desk/batch_cell.html",
                {
                    "segments": batch_page.segments(counts),
                    "paused": batch_page.PAUSED if batch.paused_at and ended < total else None,
                    "ended": batch_page.number(ended),
                    "total": batch_page.number(total),
                    "given_up": batch_page.number(given_up) if given_up else "",
                },
            )
        )

    @admin.display(description=gettext_lazy("created"))
    def created_cell(self, batch: Any) -> SafeString:
        return desk.ago(batch.created_at, batch.shown_now)

    # --- pages ---

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("draft/<uuid:token>/", view(self.draft_view), name="jobs_batch_draft"),
            path("<int:pk>/progress/", view(self.progress_view), name="jobs_batch_progress"),
            path("<int:pk>/stream/", view(self.stream_view), name="jobs_batch_stream"),
            path("<int:pk>/export/", view(self.export_view), name="jobs_batch_export"),
        ]
        return [*own, *super().get_urls()]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("jobs.add_batch")

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        return batch_import.new_batch(request, context=self.admin_site.each_context(request))

    def draft_view(self, request: HttpRequest, token: uuid.UUID) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        return batch_import.preview(request, token, context=self.admin_site.each_context(request))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        pk = int(object_id) if object_id.isdecimal() and len(object_id) < 18 else 0
        batch = Batch.objects.select_related("tenant", "created_by").filter(pk=pk).first()
        if batch is None:
            raise Http404
        if not self.has_view_permission(request, batch):
            raise PermissionDenied
        now = clock.now()
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            **batch_page.context(
                batch, batch_verbs.of(batch), user=request.user, why=request.GET.get("why", ""), now=now
            ),
            "stream": streams.address(request, "admin:jobs_batch_stream", pk),
            "layout": "desk/live.html" if request.headers.get("X-Live") else "admin/base_site.html",
        }  # fmt: skip
        return TemplateResponse(request, "desk/batch.html", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A batch's history is on its page."""
        return HttpResponseRedirect(
            reverse("admin:jobs_batch_change", args=[object_id]) + "#history"
        )

    def progress_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Numbers and texts for an open page, of one query."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        seen = progress.read(pk, now=clock.now())
        if seen is None:
            raise Http404
        answer = JsonResponse(batch_page.live(seen))
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def stream_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """The same as it changes, as server-sent events."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if not Batch.objects.filter(pk=pk).exists():
            raise Http404
        return streams.answer(request, streams.of_batch(pk))

    def export_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """`?only=given-up` (what the machine gave up on) or everything, as CSV, however many rows."""
        if not (self.has_view_permission(request) and request.user.has_perm("jobs.view_job")):
            raise PermissionDenied
        if not Batch.objects.filter(pk=pk).exists():
            raise Http404
        states = batch_page.GIVEN_UP if request.GET.get("only") == "given-up" else tuple(JobState)
        # Under ASGI an asynchronous stream: a synchronous one would be read into memory as a whole.
        parts = _async_parts if isinstance(request, ASGIRequest) else _parts
        answer = StreamingHttpResponse(
            parts(pk, states, get_language()), content_type="text/csv; charset=utf-8"
        )
        name = f"batch-{pk}-given-up.csv" if states == batch_page.GIVEN_UP else f"batch-{pk}.csv"
        answer.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer


# --- the export -------------------------------------------------------------------------------------------------------


def _head(language: str | None) -> str:
    """Streamed after the request is over, when nobody's language is active any more."""
    with translation.override(language):
        return _head_line()


def _head_line() -> str:
    names = [_("number"), _("reference"), _("state"), _("reason"), _("in words"), _("prompt"), _("target"), _("cost"), _("created"), _("finished")]  # fmt: skip
    return export.BOM + export.lines([names])


def _part(
    batch_id: int, states: tuple[JobState, ...], language: str | None, after: int
) -> tuple[str, int | None]:
    """The next rows as text, and the number after which the rest comes; None: that was all."""
    jobs = list(
        jobs_rows.with_tasks(Job.objects.select_related("target"))
        .filter(batch_id=batch_id, state__in=states, pk__gt=after)
        .order_by("pk")[:_EXPORT_AT_ONCE]
    )
    with translation.override(language):
        text = export.lines(_row(job) for job in jobs)
    return text, jobs[-1].pk if len(jobs) == _EXPORT_AT_ONCE else None


def _row(job: Job) -> list[object]:
    return [
        job.pk, job.reference, str(display.JOB_STATES[JobState(job.state)].word), jobs_rows.reason_words(job),
        job.reason_text, job.prompt, job.target.name, " ".join(jobs_rows.money_lines(job)),
        job.created_at.isoformat(timespec="seconds"),
        job.finished_at.isoformat(timespec="seconds") if job.finished_at else "",
    ]  # fmt: skip


def _parts(batch_id: int, states: tuple[JobState, ...], language: str | None) -> Iterator[str]:
    yield _head(language)
    after: int | None = 0
    while after is not None:
        text, after = _part(batch_id, states, language, after)
        yield text


async def _async_parts(
    batch_id: int, states: tuple[JobState, ...], language: str | None
) -> AsyncIterator[str]:
    yield _head(language)
    after: int | None = 0
    while after is not None:
        text, after = await sync_to_async(_part)(batch_id, states, language, after)
        yield text
