"""Bulk actions: the list, and a run's page with its progress, its stop, what it left out and why, and that as CSV."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

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
from django.utils.translation import get_language, gettext_lazy, pgettext_lazy
from django.utils.translation import gettext as _

from jobs import written
from jobs.admin import bulk_words, streams
from jobs.admin.batch_page import Segment
from jobs.admin.changelist import JOBS, EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin
from jobs.admin.forms import NothingForm
from jobs.admin.verb import Effect, Verb
from jobs.admin.verbs import allowed
from jobs.batches import export
from jobs.clock import clock
from jobs.lifecycle import bulk
from jobs.live import Subject
from jobs.models import BulkRun, BulkSkip, Job
from jobs.templatetags import desk

_SHOWN = 50
_EXPORT_AT_ONCE = 500
_EVERY_S = 2
_BAR = 1000  # units of its width

ABORT = Verb(
    name="abort",
    # Whoever may take work away from the machine job by job may stop what does so for many.
    permission="jobs.cancel_job",
    label=pgettext_lazy("bulk run", "Stop"),
    title=gettext_lazy("Stop this bulk action?"),
    icon="octagon-pause",
    done=gettext_lazy("It is stopped."),
    form=NothingForm,
    effects=lambda run: [
        Effect("ban", _("Nothing more is done, from this moment on.")),
        Effect(
            "check",
            _("What is done stays done: %(jobs)s so far.") % {"jobs": bulk_words.jobs_words(run.done)},
        ),
    ],
    offered=lambda run: run.state == BulkRun.State.OPEN,
    run=lambda run, actor, now, _data: bulk.abort(run_id=run.pk, actor=actor, now=now),
    dangerous=True,
)  # fmt: skip

BULK_VERBS: Sequence[Verb] = (ABORT,)


@admin.register(BulkRun)
class BulkRunAdmin(VerbsMixin, MachineAdmin):
    verbs = BULK_VERBS
    keyset = ("id",)
    list_display = ("what_cell", "state_cell", "bar_cell", "created_by", "created_cell")
    list_display_links = ("what_cell",)
    list_filter = ("state",)
    list_select_related = ("created_by",)
    sortable_by = ()
    actions = None
    empty = EmptyState(
        "layers",
        gettext_lazy("No bulk actions yet"),
        gettext_lazy("Choose jobs in their list, or narrow it by a filter, and choose what to do with all of them."),
        JOBS,
    )  # fmt: skip

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("jobs.view_job")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    # --- the list ---

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
        return rows

    @admin.display(description=gettext_lazy("action"))
    def what_cell(self, run: BulkRun) -> SafeString:
        return format_html(
            '<span class="what"><span class="what-first">{}<span class="quiet small">#{}</span></span>'
            '<span class="what-second" dir="auto">{}</span></span>',
            bulk_words.label(run.verb),
            run.pk,
            run.data.get("reason") or run.data.get("note") or "",
        )

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, run: BulkRun) -> SafeString:
        return desk.pill(bulk_words.look(run))

    @admin.display(description=gettext_lazy("progress"))
    def bar_cell(self, run: BulkRun) -> SafeString:
        context = {
            "segments": segments(run),
            "ended": bulk_words.number(run.ended),
            "total": bulk_words.number(run.total),
            "skipped": bulk_words.number(run.skipped) if run.skipped else "",
        }
        return SafeString(render_to_string("desk/bulk_cell.html", context))

    @admin.display(description=gettext_lazy("begun"))
    def created_cell(self, run: Any) -> SafeString:
        return desk.ago(run.created_at, run.shown_now)

    # --- pages ---

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("<int:pk>/progress/", view(self.progress_view), name="jobs_bulkrun_progress"),
            path("<int:pk>/stream/", view(self.stream_view), name="jobs_bulkrun_stream"),
            path("<int:pk>/export/", view(self.export_view), name="jobs_bulkrun_export"),
        ]
        return [*own, *super().get_urls()]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        run = _found(int(object_id) if object_id.isdecimal() and len(object_id) < 18 else 0)
        if run is None:
            raise Http404
        if not self.has_view_permission(request, run):
            raise PermissionDenied
        is_open = run.state == BulkRun.State.OPEN
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            **_context(run, why=request.GET.get("why", ""), now=clock.now()),
            "verbs": allowed(BULK_VERBS, request.user, run),
            "stream": streams.address(request, "admin:jobs_bulkrun_stream", run.pk) if is_open else "",
            "refresh_s": _EVERY_S if is_open else 0,
            "layout": "desk/live.html" if request.headers.get("X-Live") else "admin/base_site.html",
        }  # fmt: skip
        return TemplateResponse(request, "desk/bulk_run.html", context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """All there is to tell is on its page."""
        return self.change_view(request, object_id)

    def progress_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """The numbers, for programs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        run = _found(pk)
        if run is None:
            raise Http404
        answer = JsonResponse(plain(run))
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def stream_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """That there is something new to show, as it happens; the page reads what."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if _found(pk) is None:
            raise Http404
        return streams.answer(request, subject(pk))

    def export_view(self, request: HttpRequest, pk: int) -> HttpResponseBase:
        """What was left out, and why, as CSV, however many rows."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if _found(pk) is None:
            raise Http404
        # Under ASGI an asynchronous stream: a synchronous one would be read into memory as a whole.
        parts = _async_parts if isinstance(request, ASGIRequest) else _parts
        answer = StreamingHttpResponse(
            parts(pk, get_language()), content_type="text/csv; charset=utf-8"
        )
        name = content_disposition_header(True, f"bulk-{pk}-left-out.csv")
        answer.headers["Content-Disposition"] = name or ""
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer


def _found(pk: int) -> BulkRun | None:
    return BulkRun.objects.select_related("created_by", "aborted_by").filter(pk=pk).first()


def address(run: BulkRun) -> str:
    return reverse("admin:jobs_bulkrun_change", args=[run.pk])


def plain(run: BulkRun) -> dict[str, Any]:
    """The numbers for programs: JSON-ready, without words."""
    return {
        "id": run.pk,
        "verb": run.verb,
        "state": run.state,
        "total": run.total,
        "done": run.done,
        "skipped": run.skipped,
        "begun_at": run.created_at.isoformat(),
        "ended_at": run.finished_at.isoformat() if run.finished_at else None,
        "trouble": run.trouble,
    }


def subject(pk: int) -> Subject:
    """For whoever watches the page of a run."""
    return Subject(
        key=("bulk", pk),
        read=lambda: _found(pk),
        tell=lambda run: {"version": version(run)},
        over=lambda run: run.state != BulkRun.State.OPEN,
    )


def version(run: BulkRun) -> str:
    """Another one means that there is something new to show."""
    return f"{run.state}-{run.done}-{run.skipped}-{run.trouble}"


# --- the page ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs left out for one reason."""

    constant: str
    words: str
    count: str
    query: str
    chosen: bool


def segments(run: BulkRun) -> list[Segment]:
    """Done, then left out, in thousandths of the bar. A few among many stay visible."""
    found, x = [], 0
    for name, tone, count in (("done", "green", run.done), ("skipped", "amber", run.skipped)):
        width = max(round(_BAR * count / run.total), 4) if count and run.total else 0
        width = min(width, _BAR - x)
        found.append(Segment(name, tone, x, width))
        x += width
    return found


def _context(run: BulkRun, *, why: str, now: datetime) -> Mapping[str, Any]:
    counted = BulkSkip.objects.filter(run=run).values_list("reason").annotate(n=Count("pk")).order_by("-n", "reason")  # fmt: skip
    groups = [
        Group(reason, bulk_words.reason(reason), bulk_words.number(n), urlencode({"why": reason}), reason == why)
        for reason, n in counted
    ]  # fmt: skip
    chosen = next((group for group in groups if group.chosen), None)
    skips = BulkSkip.objects.filter(run=run)
    if chosen is not None:
        skips = skips.filter(reason=chosen.constant)
    shown = _with_names(list(skips.order_by("job_id")[:_SHOWN]))
    count = sum(n for reason, n in counted if chosen is None or reason == chosen.constant)
    return {
        "title": f"{bulk_words.label(run.verb)} · {bulk_words.jobs_words(run.total)}",
        "run": run,
        "now": now,
        "version": version(run),
        "look": bulk_words.look(run),
        "segments": segments(run),
        "ended": bulk_words.number(run.ended),
        "total": bulk_words.number(run.total),
        "percent": _("%(n)s %%") % {"n": 100 * run.ended // run.total if run.total else 0},
        "done_words": bulk_words.done_words(run),
        "skipped": bulk_words.number(run.skipped),
        "untouched": bulk_words.jobs_words(run.total - run.ended) if run.finished_at and run.ended < run.total else "",
        "left": _left(run, now),
        "said": bulk_words.said(run),
        "groups": groups,
        "why": chosen,
        "skips": [(skip, name, bulk_words.why(skip)) for skip, name in shown],
        "more": count - len(shown),
        "list_url": f"{reverse('admin:jobs_job_changelist')}?{run.chosen}" if run.chosen else "",
    }  # fmt: skip


def _with_names(skips: Sequence[BulkSkip]) -> list[tuple[BulkSkip, str]]:
    """Each with its job's reference, or "": it has none, or is not there any more."""
    asked = Job.objects.filter(pk__in=[skip.job_id for skip in skips])
    names = dict(asked.values_list("pk", "reference"))
    return [(skip, names.get(skip.job_id, "")) for skip in skips]


def _left(run: BulkRun, now: datetime) -> str:
    """How long it goes on at the rate so far, or took; "" where that can't be told yet."""
    if run.finished_at is not None:
        took = (run.finished_at - run.created_at).total_seconds()
        return _("took %(time)s") % {"time": written.duration(took)}
    if not run.ended:
        return ""
    so_far = max((now - run.created_at).total_seconds(), 0.1)
    left_s = so_far * (run.total - run.ended) / run.ended
    return _("about %(time)s left") % {"time": written.duration(max(left_s, 1.0))}


# --- the export -------------------------------------------------------------------------------------------------------


def _head(language: str | None) -> str:
    """Streamed after the request is over, when nobody's language is active any more."""
    with translation.override(language):
        names = [_("number"), _("reference"), _("reason"), _("in words"), _("cost"), _("currency")]
        return export.BOM + export.lines([names])


def _part(run_id: int, language: str | None, after: int) -> tuple[str, int | None]:
    """The next rows as text, and the job's number after which the rest comes; None: that was all."""
    skips = list(
        BulkSkip.objects.filter(run=run_id, job__gt=after).order_by("job_id")[:_EXPORT_AT_ONCE]
    )
    with translation.override(language):
        text = export.lines(
            [skip.job_id, name, bulk_words.reason(skip.reason), bulk_words.why(skip),
             f"{skip.money.normalize():f}" if skip.money is not None else "", skip.currency]
            for skip, name in _with_names(skips)
        )  # fmt: skip
    return text, skips[-1].job_id if len(skips) == _EXPORT_AT_ONCE else None


def _parts(run_id: int, language: str | None) -> Iterator[str]:
    yield _head(language)
    after: int | None = 0
    while after is not None:
        text, after = _part(run_id, language, after)
        yield text


async def _async_parts(run_id: int, language: str | None) -> AsyncIterator[str]:
    yield _head(language)
    after: int | None = 0
    while after is not None:
        text, after = await sync_to_async(_part)(run_id, language, after)
        yield text
