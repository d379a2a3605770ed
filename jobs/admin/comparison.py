"""Comparison of targets: one table of what each brings, costs and takes, for a period and perhaps a tenant. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.functional import Promise
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import comparison, display, written
from jobs.admin.bulk_words import number
from jobs.batches import export
from jobs.clock import clock
from jobs.comparison import Line
from jobs.display import Look
from jobs.models import Tenant

_PERIODS: dict[int, str | Promise] = {
    1: gettext_lazy("24 hours"),
    7: gettext_lazy("7 days"),
    30: gettext_lazy("30 days"),
    90: gettext_lazy("90 days"),
}
_USUAL = 30


@dataclass(frozen=True, slots=True)
class _Asked:
    """The address, read. What it does not know counts as left out."""

    days: int
    tenant: Tenant | None

    def query(self) -> str:
        told = {"days": self.days, "tenant": self.tenant.slug if self.tenant else ""}
        return "?" + urlencode({name: value for name, value in told.items() if value})


@dataclass(frozen=True, slots=True)
class Part:
    """A rating's part of the bar, of 100, written for SVG."""

    look: Look
    count: str
    x: str
    width: str


@dataclass(frozen=True, slots=True)
class Money:
    """In its own currency, and in the studio's where a rate is set."""

    words: str
    own: str


@dataclass(frozen=True, slots=True)
class Row:
    line: Line
    sends: str
    delivered: str
    delivered_share: str
    good_share: str
    rated: str
    parts: Sequence[Part]
    spent: Money
    possible: str
    per_delivered: Money
    per_good: Money
    others: Sequence[tuple[str, str]]  # what else came of its sends, in words, and how often


def page(request: HttpRequest) -> HttpResponse:
    asked, lines, now = _read(request)
    tenants = Tenant.objects.order_by("name")
    context = {
        **admin.site.each_context(request),
        "title": _("Comparison of targets"),
        "now": now,
        "rows": [_row(line) for line in lines],
        "periods": [
            (words, replace(asked, days=days).query(), days == asked.days)
            for days, words in _PERIODS.items()
        ],
        "chip": {
            "title": _("tenant"),
            "choices": [
                {"display": "", "query_string": replace(asked, tenant=None).query()},
                *({"display": one.name, "query_string": replace(asked, tenant=one).query()} for one in tenants),
            ],
            "active": {"display": asked.tenant.name} if asked.tenant else None,
            "clear": replace(asked, tenant=None).query(),
        },
        "query": asked.query(),
        "partly": any(line.rated < line.delivered for line in lines if line.rated),
    }  # fmt: skip
    return TemplateResponse(request, "desk/comparison.html", context)


def sheet(request: HttpRequest) -> HttpResponse:
    """The same as CSV."""
    _asked, lines, _now = _read(request)
    rows = [list(comparison.plain(line).values()) for line in lines]
    answer = HttpResponse(
        export.BOM + export.lines([comparison.HEAD, *rows]), content_type="text/csv; charset=utf-8"
    )
    answer.headers["Content-Disposition"] = content_disposition_header(True, "comparison.csv") or ""
    answer.headers["X-Content-Type-Options"] = "nosniff"
    return answer


def _read(request: HttpRequest) -> tuple[_Asked, list[Line], datetime]:
    if not request.user.has_perm("jobs.view_job"):
        raise PermissionDenied
    told = request.GET.get("days", "")
    days = int(told) if told in {str(one) for one in _PERIODS} else _USUAL
    tenant = Tenant.objects.filter(slug=request.GET.get("tenant", "")).first()
    now = clock.now()
    lines = comparison.read(
        since=now - timedelta(days=days), until=now, tenant_id=tenant.pk if tenant else None
    )
    return _Asked(days, tenant), lines, now


def _row(line: Line) -> Row:
    return Row(
        line=line,
        sends=number(line.sends),
        delivered=number(line.delivered),
        delivered_share=written.percent(line.delivered, line.sends),
        good_share=written.percent(line.good, line.rated),
        rated=_("%(n)s of %(all)s rated") % {"n": number(line.rated), "all": number(line.delivered)},
        parts=_parts(line),
        spent=_money(line.spent, line.currency),
        possible=written.about(line.possible, line.currency) if line.possible else "",
        per_delivered=_money(line.per_delivered, line.currency),
        per_good=_money(line.per_good, line.currency),
        others=_others(line),
    )  # fmt: skip


def _money(amount: Decimal | None, currency: str) -> Money:
    return Money(written.money(amount, currency), written.own(amount, currency))


def _parts(line: Line) -> list[Part]:
    parts, at = [], 0.0
    for value, look in display.RATINGS.items():
        n = int(getattr(line, value))
        if n:
            width = 100 * n / line.rated
            parts.append(Part(look, number(n), f"{at:.2f}", f"{width:.2f}"))
            at += width
    return parts


def _others(line: Line) -> list[tuple[str, str]]:
    told: list[tuple[Any, int]] = [(display.reason(name), n) for name, n in line.refusals.items()]
    told += [(_("failed there"), line.failed), (_("outcome unknown"), line.unknown)]
    return [(str(words), number(n)) for words, n in told if n]
