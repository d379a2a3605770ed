"""What the reports are asked for, and what is known of it: an address read, and the figures it wants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import reports
from jobs.admin import report_plots, report_strips
from jobs.admin.report_plots import Across
from jobs.budgets import Span
from jobs.models import Tenant
from jobs.reports import DAY, HOUR, Times
from jobs.strips import Strip
from jobs.sums import Line, Sums
from providers.models import Target

OWN = "own"
_USUAL = "day"
RANGES: Mapping[str, tuple[str | Promise, timedelta]] = {
    "hour": (gettext_lazy("Last hour"), HOUR),
    "day": (gettext_lazy("Last 24 hours"), DAY),
    "week": (gettext_lazy("Last 7 days"), 7 * DAY),
    "month": (gettext_lazy("Last 30 days"), 30 * DAY),
}
UNDER_WAY = "under_way"
OUTCOMES = ("succeeded", "refused", "failed", "unknown", UNDER_WAY)


# --- what is asked for ------------------------------------------------------------------------------------------------


class OwnForm(forms.Form):
    """A span of one's own, by the reader's clock."""

    start = forms.DateTimeField(
        label=gettext_lazy("From"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    end = forms.DateTimeField(
        label=gettext_lazy("To"),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )

    def __init__(self, data: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(data, label_suffix="", **more)

    def add_prefix(self, field_name: str) -> str:
        """In the address they are called `from` and `to`."""
        return {"start": "from", "end": "to"}.get(field_name, field_name)

    def clean(self) -> dict[str, Any]:
        said: dict[str, Any] = super().clean() or {}
        if said.get("start") and said.get("end") and said["start"] >= said["end"]:
            raise forms.ValidationError(_("The beginning must be before the end."))
        return said


@dataclass(frozen=True, slots=True)
class Asked:
    """The address, read. What it does not know counts as left out. `span` ends by now."""

    range: str
    span: Span
    tenant: Tenant | None
    provider: str
    target: Target | None
    by: str
    given: Mapping[str, str]  # `from` and `to` of a span of one's own, as they stand in the address

    def query(self, **other: str) -> str:
        told = {
            "range": self.range, **self.given, "tenant": self.tenant.slug if self.tenant else "", "provider": self.provider,
            "model": self.target.name if self.target else "", "by": self.by,
        } | other  # fmt: skip
        return "?" + urlencode({name: value for name, value in told.items() if value})

    @property
    def narrowed(self) -> bool:
        return bool(self.tenant or self.provider or self.target)


def asked_for(request: HttpRequest, *, now: datetime) -> tuple[Asked, OwnForm]:
    get = request.GET
    known = get.get("range", "")
    form = OwnForm(get) if known == OWN else OwnForm()
    given: dict[str, str] = {}
    if known == OWN and form.is_valid():
        end = min(form.cleaned_data["end"], now)
        start = max(min(form.cleaned_data["start"], end - timedelta(minutes=1)), end - reports.LONGEST)  # fmt: skip
        span = Span(start.astimezone(UTC), end.astimezone(UTC))
        given = {name: get[name] for name in ("from", "to")}
    else:
        known = known if known in RANGES else _USUAL
        span = Span(now - RANGES[known][1], now)
        if not form.is_bound:
            form = OwnForm(initial={"start": timezone.localtime(span.start), "end": timezone.localtime(now)})  # fmt: skip
    targets = Target.objects.all()
    model, provider = get.get("model", ""), get.get("provider", "")
    asked = Asked(
        range=known,
        span=span,
        tenant=Tenant.objects.filter(slug=get.get("tenant", "").replace("\0", "")).first(),
        provider=provider if any(one.provider == provider for one in targets) else "",
        target=next((one for one in targets if one.name == model), None),
        by="tenant" if get.get("by") == "tenant" else "",
        given=given,
    )
    return asked, form


# --- what is known ----------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What was read for one address, each thing once and only where it is wanted. Bars are whole, so the first may begin a
    little before what was asked for."""

    asked: Asked
    now: datetime
    targets: Mapping[int, Target] = field(init=False)
    bars: Sequence[Span] = field(init=False)

    def __post_init__(self) -> None:
        self.bars = reports.bars(self.asked.span, timezone.get_current_timezone())
        self.targets = Target.objects.in_bulk()

    @property
    def span(self) -> Span:
        return Span(self.bars[0].start, min(self.bars[-1].end, self.now))

    def _wanted(self, target_id: int) -> bool:
        asked, target = self.asked, self.targets.get(target_id)
        return target is not None and (
            (asked.target is None or asked.target.pk == target_id)
            and (not asked.provider or asked.provider == target.provider)
        )

    @property
    def _tenant_id(self) -> int | None:
        return self.asked.tenant.pk if self.asked.tenant else None

    @cached_property
    def across(self) -> Across:
        return report_plots.across(self.bars)

    @cached_property
    def lines(self) -> list[Line]:
        """By account and target."""
        told = reports.lines(self.bars, by=("account", "target"), tenant_id=self._tenant_id)
        return [line for line in told if self._wanted(line.by[1])]

    @cached_property
    def by_tenant(self) -> list[Line]:
        told = reports.lines(self.bars, by=("tenant", "target"), tenant_id=self._tenant_id)
        return [line for line in told if self._wanted(line.by[1])]

    @cached_property
    def times(self) -> list[tuple[Target, Times]]:
        """The most used first."""
        told = reports.times(self.bars, self.lines, tenant_id=self._tenant_id)
        known = [(self.targets[pk], one) for pk, one in told.items()]
        return sorted(known, key=lambda one: (-one[1].made, one[0].name))

    @cached_property
    def strips(self) -> tuple[list[Strip], list[Strip]]:
        return report_strips.read(
            self.span,
            provider=self.asked.target.provider if self.asked.target else self.asked.provider,
            model=self.asked.target.model if self.asked.target else "",
            used={line.by[0] for line in self.lines},
            now=self.now,
        )

    def outcomes(self) -> dict[str, list[int]]:
        """By outcome, the count of each bar."""
        told = {name: [0] * len(self.bars) for name in OUTCOMES}
        for line in self.lines:
            for name, counts in told.items():
                counts[line.span] += (
                    line.sums.sends - line.sums.ended if name == UNDER_WAY else getattr(line.sums, name)
                )  # fmt: skip
        return told

    def spending(self) -> dict[str, dict[str, list[Sums]]]:
        """By currency and by provider or tenant, the sums of each bar; the dearest first."""
        told: dict[str, dict[str, list[Sums]]] = defaultdict(dict)
        names = dict(Tenant.objects.values_list("pk", "name")) if self.asked.by else {}
        for line in self.by_tenant if self.asked.by else self.lines:
            if not line.sums.charged and not line.sums.possible:
                continue
            name = names.get(line.by[0], "?") if self.asked.by else self.targets[line.by[1]].provider.title()  # fmt: skip
            row = told[line.currency].setdefault(name, [Sums()] * len(self.bars))
            row[line.span] += line.sums
        return {
            currency: dict(sorted(told[currency].items(), key=lambda one: (-_charged(one[1]), one[0])))
            for currency in sorted(told)
        }  # fmt: skip


def _charged(row: Sequence[Sums]) -> Decimal:
    return sum((one.charged + one.possible for one in row), Decimal(0))
