"""Error groups: like failures of a period as one line each, with the jobs that still stand so, and the verbs for all of them.

A verb's button opens the list of jobs, narrowed to the group, with that bulk action chosen: from there on it is bulk work like
any other (jobs/admin/bulk.py). Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs import display, failure_groups, failures, written
from jobs.admin import verbs
from jobs.admin.bulk_words import jobs_words, label, number
from jobs.clock import clock
from jobs.display import Look
from jobs.failure_groups import Group, Order
from jobs.failures import FETCH, PERIODS, Chosen
from jobs.lifecycle.bulk_acts import ACTS, Act
from jobs.states import JobState
from providers.contract import FailureClass
from providers.models import Target

_SHOWN = 50
_PARTS = {"24h": 24, "7d": 28, "30d": 30}
_PERIODS: dict[str, str | Promise] = {
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
    "30d": gettext_lazy("30 days"),
}
_ORDERS: dict[Order, str | Promise] = {
    Order.BIGGEST: gettext_lazy("biggest first"),
    Order.NEWEST: gettext_lazy("newest first"),
}
_LOOKS = {
    FailureClass.UNSENT.value: ("ban", "grey"),
    FailureClass.RATE_LIMITED.value: ("gauge", "blue"),
    FailureClass.QUOTA_EXHAUSTED.value: ("hourglass", "amber"),
    FailureClass.UNAUTHORIZED.value: ("key-round", "red"),
    FailureClass.REJECTED.value: ("circle-x", "amber"),
    FailureClass.DOWN.value: ("octagon-x", "red"),
    FailureClass.UNKNOWN.value: ("circle-help", "violet"),
    FETCH: ("arrow-down-to-line", "amber"),
}
_STRIP_HEIGHT = 24


def look(failure: str) -> Look:
    icon, tone = _LOOKS.get(failure, ("circle-dot", "grey"))
    return Look(display.reason(failure), icon, tone)


# --- what the page shows ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Button:
    """Opens the bulk action of the job list. `action`: its name there. `count`: of the jobs that it is for."""

    name: str
    action: str
    label: str
    icon: str
    count: str


@dataclass(frozen=True, slots=True)
class Bar:
    x: int
    y: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    group: Group
    message: str
    look: Look
    jobs_url: str
    open_url: str
    sends: str
    jobs: str
    tenants: str
    states: Sequence[Look]
    bars: Sequence[Bar]
    busiest: str
    buttons: Sequence[Button]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The address, read. What it does not know counts as left out."""

    period: str = "24h"
    order: Order = Order.BIGGEST
    provider: str = ""
    failure: str = ""
    after: int = 0

    def query(self, **others: Any) -> str:
        wanted = replace(self, **{"after": 0, **others})
        told = {"period": wanted.period, "order": wanted.order.value, "provider": wanted.provider,
                "failure": wanted.failure, "after": wanted.after}  # fmt: skip
        return "?" + urlencode({name: value for name, value in told.items() if value})


def _asked(request: HttpRequest, providers: Sequence[str]) -> _Asked:
    told = request.GET
    period, provider, failure, after = (
        told.get(name, "") for name in ("period", "provider", "failure", "after")
    )
    return _Asked(
        period=period if period in PERIODS else "24h",
        order=Order.NEWEST if told.get("order") == Order.NEWEST else Order.BIGGEST,
        provider=provider if provider in providers else "",
        failure=failure if failure in failures.CLASSES else "",
        after=int(after) if after.isascii() and after.isdecimal() and len(after) < 7 else 0,
    )


def _row(group: Group, asked: _Asked, since: datetime, user: Any) -> Row:
    chosen = Chosen(provider=group.provider, key=group.key, period=asked.period)
    return Row(
        group=group,
        message=group.message,
        look=look(group.failure),
        jobs_url=_jobs_url(chosen),
        open_url=_jobs_url(replace(chosen, open=True)),
        sends=ngettext("%(n)s send", "%(n)s sends", group.tasks) % {"n": number(group.tasks)},
        jobs=jobs_words(group.jobs),
        tenants=ngettext("%(n)s tenant", "%(n)s tenants", group.tenants) % {"n": number(group.tenants)},
        states=list(_states(group)),
        bars=_bars(group.counts),
        busiest=_busiest(group.counts, since, PERIODS[asked.period]),
        buttons=[_button(act, n) for act in ACTS.values() if (n := _touched(act, group)) and user.has_perm(act.permission)],
    )  # fmt: skip


def _jobs_url(chosen: Chosen) -> str:
    return f"{reverse('admin:jobs_job_changelist')}?{urlencode({'failure': str(chosen)})}"


def _states(group: Group) -> Iterator[Look]:
    failed, manual = display.JOB_STATES[JobState.FAILED], display.JOB_STATES[JobState.MANUAL]
    if group.failed:
        words = ngettext("%(n)s job still failed", "%(n)s jobs still failed", group.failed)
        yield Look(words % {"n": number(group.failed)}, failed.icon, failed.tone)
    if group.manual:
        words = ngettext("%(n)s job needs a person", "%(n)s jobs need a person", group.manual)
        yield Look(words % {"n": number(group.manual)}, manual.icon, manual.tone)
    if not (group.failed or group.manual):
        yield Look(_("none is left like this"), "circle-check", "green")


def _touched(act: Act, group: Group) -> int:
    """How many of the group's open jobs stand in a state that the act is for. The bulk action's preview looks closer."""
    counts = {JobState.FAILED: group.failed, JobState.MANUAL: group.manual}
    return sum(n for state, n in counts.items() if state in act.states)


def _button(act: Act, count: int) -> Button:
    verb = next(one for one in verbs.JOB_VERBS if one.name == act.name)
    return Button(act.name, f"{act.name}_selected", label(act.name), verb.icon, number(count))


def _bars(counts: Sequence[int]) -> list[Bar]:
    """A bar of 3 units for each part with a gap of 1; the highest fills the strip, one among many stays visible."""
    most = max(counts, default=0)
    bars = []
    for place, n in enumerate(counts):
        if n:
            height = max(round(_STRIP_HEIGHT * n / most), 2)
            bars.append(Bar(4 * place, _STRIP_HEIGHT - height, height))
    return bars


def _busiest(counts: Sequence[int], since: datetime, span: timedelta) -> str:
    """What the strip says, in words."""
    most = max(counts, default=0)
    if not most:
        return ""
    at = timezone.localtime(since + span * counts.index(most) / len(counts))
    moment = f"{written.month_day(at)}, {written.clock_time(at)}"
    return _("most from %(moment)s on: %(n)s") % {"moment": moment, "n": number(most)}


@dataclass(frozen=True, slots=True)
class _Choices:
    """For desk/filter_chip.html: a menu, or a chip once one is chosen."""

    title: str
    choices: Sequence[dict[str, str]]
    active: dict[str, str] | None
    clear: str


def _choices(title: str, name: str, values: Sequence[tuple[str, str]], asked: _Asked) -> _Choices:
    clear = asked.query(**{name: ""})
    choices = [{"display": "", "query_string": clear}]
    choices += [
        {"display": words, "query_string": asked.query(**{name: value})} for value, words in values
    ]
    chosen = getattr(asked, name)
    active = next(({"display": words} for value, words in values if value == chosen), None)
    return _Choices(title, choices, active, clear)


def page(request: HttpRequest) -> HttpResponse:
    """Reads only."""
    if not request.user.has_perm("jobs.view_job"):
        raise PermissionDenied
    providers = sorted(set(Target.objects.order_by().values_list("provider", flat=True)))
    asked = _asked(request, providers)
    until = clock.now()
    since = until - PERIODS[asked.period]
    found = failure_groups.read(
        since=since, until=until, provider=asked.provider, failure=asked.failure, order=asked.order,
        limit=_SHOWN, offset=asked.after, parts=_PARTS[asked.period],
    )  # fmt: skip
    more = asked.after + len(found.groups) < found.total
    context = {
        **admin.site.each_context(request),
        "title": _("Failures"),
        "now": until,
        "asked": asked,
        "rows": [_row(group, asked, since, request.user) for group in found.groups],
        "groups_words": ngettext("%(n)s group", "%(n)s groups", found.total) % {"n": number(found.total)},
        "sends_words": ngettext("%(n)s send", "%(n)s sends", found.tasks) % {"n": number(found.tasks)},
        "periods": [(words, asked.query(period=name), name == asked.period) for name, words in _PERIODS.items()],
        "orders": [(words, asked.query(order=order), order == asked.order) for order, words in _ORDERS.items()],
        "chips": [
            _choices(_("provider"), "provider", [(name, name.title()) for name in providers], asked),
            _choices(_("class"), "failure", [(name, display.reason(name)) for name in failures.CLASSES], asked),
        ],
        "strip_width": 4 * _PARTS[asked.period],
        "strip_height": _STRIP_HEIGHT,
        "checkbox_name": ACTION_CHECKBOX_NAME,
        "first_query": asked.query() if asked.after else "",
        "more_query": asked.query(after=asked.after + _SHOWN) if more else "",
    }  # fmt: skip
    return TemplateResponse(request, "desk/failures.html", context)
