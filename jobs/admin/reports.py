"""Reports: what came of the sends of a span of time, how long they took, what they cost, when providers could not be sent to.

By GET, so that a view has an address. Reads only. The figures: report_figures.py; their sheets: report_sheets.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import written
from jobs.admin import report_plots as plots
from jobs.admin import report_strips
from jobs.admin.report_figures import OWN, RANGES, UNDER_WAY, Asked, Figures, asked_for
from jobs.admin.report_plots import Distribution, Plot, Series, Table
from jobs.clock import clock
from jobs.models import Tenant
from jobs.reports import total
from jobs.sums import Sums

VIEW, VIEW_MONEY, VIEW_STATES = "jobs.view_job", "jobs.view_providertask", "providers.view_providerstate"  # fmt: skip
_MOST_SERIES = 5  # the others are one
_MOST_LINES = 4
_OUTCOMES: Sequence[tuple[str, str | Promise, str, int]] = (
    ("succeeded", gettext_lazy("succeeded"), "green", 0),
    ("refused", gettext_lazy("refused"), "grey", 1),
    ("failed", gettext_lazy("failed"), "red", 2),
    ("unknown", gettext_lazy("outcome unknown"), "violet", 3),
    (UNDER_WAY, gettext_lazy("under way"), "blue", 4),
)


# --- the plots --------------------------------------------------------------------------------------------------------


def _throughput(figures: Figures) -> Plot:
    told = figures.outcomes()
    return plots.plot(
        id="throughput", title=_("Sends by outcome"), sheet="throughput", axis_across=figures.across,
        series=[
            Series(name=words, tone=tone, pattern=pattern, values=told[name])
            for name, words, tone, pattern in _OUTCOMES
            if any(told[name])
        ],
        write=written.number, steps=plots.COUNTS,
    )  # fmt: skip


def _latency(figures: Figures) -> Plot | None:
    series = []
    for number, (target, times) in enumerate(figures.times[:_MOST_LINES]):
        of_bars = [times.of_bar(n) for n in range(len(figures.bars))]
        short = target.model.rsplit("/", 1)[-1]
        for place, (what, dashed) in enumerate(((_("half within"), False), (_("95 % within"), True))):  # fmt: skip
            series.append(
                Series(
                    name=f"{short}: {what}", tone=plots.TONES[number], mark=number, dashed=dashed,
                    values=[None if told is None else told[place] for told in of_bars],
                )
            )  # fmt: skip
    if not series:
        return None
    return plots.plot(
        id="latency", title=_("How long generations took"), sheet="latency", axis_across=figures.across, series=series,
        write=written.duration, steps=plots.SECONDS, stacked=False,
    )  # fmt: skip


def _spending(figures: Figures) -> list[Plot]:
    spending = figures.spending()
    # Whoever is blue in one currency is blue in the next.
    places = {name: n for n, name in enumerate(dict.fromkeys(one for rows in spending.values() for one in rows))}  # fmt: skip
    return [_spent_in(currency, rows, places, figures) for currency, rows in spending.items()]


def _spent_in(
    currency: str,
    rows: Mapping[str, Sequence[Sums]],
    places: Mapping[str, int],
    figures: Figures,
) -> Plot:
    names = list(rows)
    several = len(names) > _MOST_SERIES + 1
    groups = {name: [name] for name in (names[:_MOST_SERIES] if several else names)}
    if several:
        groups[_("others")] = names[_MOST_SERIES:]
    bars = range(len(figures.bars))
    series = []
    for name, group in groups.items():
        place = places.get(name)
        series.append(
            Series(
                name=name, tone="outline" if place is None else plots.TONES[place % len(plots.TONES)], pattern=1 if place is None else place,
                values=[float(sum((rows[one][n].charged for one in group), Decimal(0))) for n in bars],
            )
        )  # fmt: skip
    possible = [float(sum((row[n].possible for row in rows.values()), Decimal(0))) for n in bars]
    if any(possible):
        series.append(Series(name=_("possible, not settled yet"), tone="outline", pattern=4, values=possible))  # fmt: skip
    return plots.plot(
        id=f"spending-{currency.lower()}", title=_("Spending"), sheet="spending", axis_across=figures.across, series=series, unit=currency,
        write=lambda value: written.money(Decimal(repr(value)).quantize(Decimal("0.000001")), currency),
        write_tick=_amount, steps=plots.MONEY,
    )  # fmt: skip


def _amount(value: float) -> str:
    """With as many places as it has."""
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return written.number(value, len(text.partition(".")[2]))


@dataclass(frozen=True, slots=True)
class Distributions:
    rows: Sequence[Distribution]
    scale: Sequence[tuple[str, str]]
    table: Table


def _distributions(figures: Figures) -> Distributions | None:
    known = figures.times
    if not known:
        return None
    all_shares = [plots.counted(times) for _target, times in known]
    shown = plots.used(all_shares)
    rows = []
    for number, ((target, times), shares) in enumerate(zip(known, all_shares, strict=True)):
        median, p95 = times.quantiles()
        rows.append(
            Distribution(
                name=target.name, tone=plots.TONES[number % len(plots.TONES)], made=written.number(times.made),
                looked_at=written.number(times.looked_at) if times.looked_at < times.made else "",
                median=written.duration(median), p95=written.duration(p95), bins=plots.bins(shares, shown),
            )
        )  # fmt: skip
    table = Table(
        [_("took"), *(target.name for target, _times in known)],
        [
            [plots.band(n), *(written.percent(shares[n], 1) if shares[n] else "—" for shares in all_shares)]
            for n in shown
        ],
    )  # fmt: skip
    return Distributions(rows, plots.scale(shown), table)


# --- the page ---------------------------------------------------------------------------------------------------------


def page(request: HttpRequest) -> HttpResponse:
    user = request.user
    if not user.has_perm(VIEW):
        raise PermissionDenied
    now = clock.now()
    asked, form = asked_for(request, now=now)
    figures = Figures(asked, now)
    money, states = user.has_perm(VIEW_MONEY), user.has_perm(VIEW_STATES)
    troubled, well = figures.strips if states else ([], [])
    sums = total(figures.lines)
    context = {
        **admin.site.each_context(request),
        "title": _("Reports"),
        "now": now,
        "asked": asked,
        "form": form,
        "span": figures.span,
        "zone_name": timezone.get_current_timezone_name(),
        "bar_length": written.duration((figures.bars[0].end - figures.bars[0].start).total_seconds()),
        "kept": [(name, value) for name, value in _kept(asked) if value],
        "ranges": [
            (words, replace(asked, range=name, given={}).query(), name == asked.range)
            for name, (words, _length) in RANGES.items()
        ],
        "chips": _chips(asked, figures),
        "query": asked.query(),
        "zoom": asked.query(**{"range": OWN, "from": "FROM", "to": "TO"}),
        "sums": sums,
        "succeeded_share": written.percent(sums.succeeded, sums.ended),
        "not_succeeded": sums.refused + sums.failed + sums.unknown,
        "may_see_money": money,
        "spent": written.in_one(_by_currency(figures)) if money else "",
        "anything": bool(figures.lines or troubled),
    }  # fmt: skip
    if context["anything"]:
        context |= {
            "throughput": _throughput(figures) if figures.lines else None,
            "latency": _latency(figures),
            "more_lines": max(0, len(figures.times) - _MOST_LINES),
            "distributions": _distributions(figures),
            "spending": _spending(figures) if money else [],
            "spending_by": [
                (_("by provider"), asked.query(by="") + "#spending", not asked.by),
                (_("by tenant"), asked.query(by="tenant") + "#spending", bool(asked.by)),
            ],
            "strips": report_strips.dressed(troubled, well, span=figures.span, now=now) if states else None,
        }  # fmt: skip
    return TemplateResponse(request, "desk/reports.html", context)


def _by_currency(figures: Figures) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for line in figures.lines:
        sums[line.currency] += line.sums.charged
    return sums


def _kept(asked: Asked) -> list[tuple[str, str]]:
    """What a form must carry along."""
    return [
        ("tenant", asked.tenant.slug if asked.tenant else ""),
        ("provider", asked.provider),
        ("model", asked.target.name if asked.target else ""),
        ("by", asked.by),
    ]


def _chips(asked: Asked, figures: Figures) -> list[dict[str, Any]]:
    tenants = Tenant.objects.order_by("name").values_list("slug", "name")
    targets = sorted(figures.targets.values(), key=lambda one: one.name)
    providers = sorted({one.provider for one in targets})
    models = [one for one in targets if not asked.provider or one.provider == asked.provider]
    chosen_tenant = asked.tenant.name if asked.tenant else ""
    return [
        _chip(asked, _("tenant"), "tenant", list(tenants), chosen_tenant),
        _chip(asked, _("provider"), "provider", [(one, one.title()) for one in providers], asked.provider.title()),
        _chip(asked, _("model"), "model", [(one.name, one.name) for one in models], asked.target.name if asked.target else ""),
    ]  # fmt: skip


def _chip(
    asked: Asked, title: str, name: str, values: Sequence[tuple[str, str]], chosen: str
) -> dict[str, Any]:
    # Another provider's model would leave nothing.
    other = partial(asked.query, **({"model": ""} if name == "provider" else {}))
    clear = other(**{name: ""})
    return {
        "title": title,
        "choices": [
            {"display": "", "query_string": clear},
            *({"display": words, "query_string": other(**{name: value})} for value, words in values),
        ],
        "active": {"display": chosen} if chosen else None,
        "clear": clear,
    }  # fmt: skip
