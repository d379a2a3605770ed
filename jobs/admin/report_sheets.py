"""The figures of the reports as CSV, one sheet a plot: plain digits, times in UTC, amounts as numbers beside their currency."""

from __future__ import annotations

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import content_disposition_header

from jobs.admin import report_plots as plots
from jobs.admin.report_figures import Figures, asked_for
from jobs.admin.reports import VIEW, VIEW_MONEY, VIEW_STATES
from jobs.batches import export
from jobs.budgets import Span
from jobs.clock import clock


def sheet(request: HttpRequest, name: str) -> HttpResponse:
    """One plot, by the same filters as the page."""
    makers = {
        "throughput": (VIEW, _throughput_rows),
        "latency": (VIEW, _latency_rows),
        "distribution": (VIEW, _distribution_rows),
        "spending": (VIEW_MONEY, _spending_rows),
        "states": (VIEW_STATES, _states_rows),
    }
    if name not in makers:
        raise Http404
    permission, rows = makers[name]
    if not request.user.has_perms([VIEW, permission]):
        raise PermissionDenied
    now = clock.now()
    asked, _form = asked_for(request, now=now)
    answer = HttpResponse(
        export.BOM + export.lines(rows(Figures(asked, now))), content_type="text/csv; charset=utf-8"
    )
    answer.headers["Content-Disposition"] = content_disposition_header(True, f"{name}.csv") or ""
    answer.headers["X-Content-Type-Options"] = "nosniff"
    return answer


Rows = list[list[object]]


def _when(bar: Span) -> list[object]:
    return [bar.start.isoformat(), bar.end.isoformat()]


def _throughput_rows(figures: Figures) -> Rows:
    told = figures.outcomes()
    rows: Rows = [["from", "to", *told]]
    rows += [[*_when(bar), *(told[name][n] for name in told)] for n, bar in enumerate(figures.bars)]
    return rows


def _latency_rows(figures: Figures) -> Rows:
    rows: Rows = [["from", "to", "target", "looked_at", "median_s", "p95_s"]]
    for target, times in figures.times:
        for n, bar in enumerate(figures.bars):
            if (told := times.of_bar(n)) is not None:
                seconds = [round(one, 3) for one in told]
                rows.append([*_when(bar), target.name, len(times.bars[n]), *seconds])
    return rows


def _distribution_rows(figures: Figures) -> Rows:
    rows: Rows = [["target", "from_s", "to_s", "share"]]
    bounds = plots.edges()
    for target, times in figures.times:
        rows += [
            [target.name, round(bounds[n], 3), round(bounds[n + 1], 3), round(share, 6)]
            for n, share in enumerate(plots.counted(times))
            if share
        ]
    return rows


def _spending_rows(figures: Figures) -> Rows:
    rows: Rows = [["from", "to", "tenant" if figures.asked.by else "provider", "currency", "charged", "possible"]]  # fmt: skip
    for currency, names in figures.spending().items():
        for name, sums in names.items():
            rows += [
                [*_when(figures.bars[n]), name, currency, f"{one.charged:f}", f"{one.possible:f}"]
                for n, one in enumerate(sums)
                if one.charged or one.possible
            ]
    return rows


def _states_rows(figures: Figures) -> Rows:
    rows: Rows = [["provider", "account", "model", "what", "from", "to", "cause", "by"]]
    for strip in figures.strips[0]:
        for one in strip.stretches:
            end = one.end.isoformat() if one.end else ""
            rows.append(
                [strip.provider, strip.fingerprint[-6:], strip.model, one.kind.value, one.began.isoformat(), end, one.cause, one.by]
            )  # fmt: skip
    return rows
