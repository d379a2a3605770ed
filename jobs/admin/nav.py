"""The side navigation: in the order an operator works, not by app. People see only what they may open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, Sum
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import written
from jobs.models import Case
from jobs.roles import Role


class Entry(NamedTuple):
    """One place: its name, icon, address and the permission to open it ("" for everyone)."""

    label: str | Promise
    icon: str
    url_name: str
    permission: str


@dataclass(slots=True)
class Item:
    label: str
    icon: str
    url: str
    current: bool = False
    count: int = 0
    money: str = ""


@dataclass(slots=True)
class Section:
    title: str
    items: list[Item] = field(default_factory=list)


_DESK = Entry(gettext_lazy("Desk"), "inbox", "admin:jobs_case_changelist", "jobs.view_case")
_WORK: Sequence[Entry] = (
    _DESK,
    Entry(gettext_lazy("Dashboard"), "layout-dashboard", "admin:index", ""),
    Entry(gettext_lazy("Handover"), "user-check", "admin:desk_handover", "jobs.view_trail"),
    Entry(gettext_lazy("Jobs"), "images", "admin:jobs_job_changelist", "jobs.view_job"),
    Entry(gettext_lazy("Batches"), "layers", "admin:jobs_batch_changelist", "jobs.view_batch"),
    Entry(gettext_lazy("Gallery"), "images", "admin:desk_gallery", "jobs.view_result"),
    Entry(
        gettext_lazy("Failures"),
        "octagon-alert",
        "admin:desk_failures",
        "jobs.view_job",
    ),
    Entry(
        gettext_lazy("Bulk actions"),
        "check-check",
        "admin:jobs_bulkrun_changelist",
        "jobs.view_job",
    ),
    Entry(gettext_lazy("Results"), "image", "admin:jobs_result_changelist", "jobs.view_result"),
    Entry(
        gettext_lazy("Providers"),
        "plug-zap",
        "admin:providers_providerstate_changelist",
        "providers.view_providerstate",
    ),
    Entry(
        gettext_lazy("Statements"),
        "banknote",
        "admin:jobs_statement_changelist",
        "jobs.view_statement",
    ),
    Entry(gettext_lazy("Reports"), "chart-column", "admin:desk_reports", "jobs.view_job"),
    Entry(
        gettext_lazy("Comparison of targets"),
        "gauge",
        "admin:desk_comparison",
        "jobs.view_job",
    ),
    Entry(
        gettext_lazy("Polza tasks"),
        "receipt-text",
        "admin:jobs_polzatask_changelist",
        "jobs.view_polzatask",
    ),
    Entry(
        gettext_lazy("All sends"),
        "send",
        "admin:jobs_providertask_changelist",
        "jobs.view_providertask",
    ),
)
_SETTINGS: Sequence[Entry] = (
    Entry(
        gettext_lazy("Targets"),
        "target",
        "admin:providers_target_changelist",
        "providers.view_target",
    ),
    Entry(
        gettext_lazy("Tenants"), "building-2", "admin:jobs_tenant_changelist", "jobs.view_tenant"
    ),
    Entry(
        gettext_lazy("API tokens"), "link", "admin:jobs_apitoken_changelist", "jobs.view_apitoken"
    ),
    Entry(
        gettext_lazy("Accounts"),
        "key-round",
        "admin:providers_account_changelist",
        "providers.view_account",
    ),
    Entry(
        gettext_lazy("Quota windows"),
        "gauge",
        "admin:providers_quotawindow_changelist",
        "providers.view_quotawindow",
    ),
    Entry(
        gettext_lazy("Standing decisions"),
        "gavel",
        "admin:jobs_standingdecision_changelist",
        "jobs.view_standingdecision",
    ),
    Entry(gettext_lazy("Users"), "users", "admin:auth_user_changelist", "auth.view_user"),
)
_MACHINE: Sequence[Entry] = (
    Entry(gettext_lazy("Trail"), "history", "admin:desk_trail", "jobs.view_trail"),
    Entry(
        gettext_lazy("Alerts"), "message-square", "admin:jobs_alert_changelist", "jobs.view_alert"
    ),
    Entry(
        gettext_lazy("Callbacks"), "bell", "admin:jobs_callback_changelist", "jobs.view_callback"
    ),
    Entry(gettext_lazy("Lanes"), "cpu", "admin:jobs_lane_changelist", "jobs.view_lane"),
    Entry(
        gettext_lazy("Spool hosts"),
        "hard-drive",
        "admin:jobs_spoolhost_changelist",
        "jobs.view_spoolhost",
    ),
    Entry(
        gettext_lazy("Job events"),
        "clock",
        "admin:jobs_jobevent_changelist",
        "jobs.view_jobevent",
    ),
    Entry(
        gettext_lazy("Provider events"),
        "activity",
        "admin:providers_providerevent_changelist",
        "providers.view_providerevent",
    ),
    Entry(
        gettext_lazy("Red button"), "octagon-pause", "admin:jobs_hold_changelist", "jobs.view_hold"
    ),
)


def sections(request: HttpRequest) -> list[Section]:
    """What this person may open, grouped; the desk with its count and money."""
    parts = [
        Section("", _items(request, _WORK)),
        Section(_("Settings"), _items(request, _SETTINGS)),
        Section(_("Machine room"), _items(request, _MACHINE)),
    ]
    return [part for part in parts if part.items]


def _items(request: HttpRequest, entries: Sequence[Entry]) -> list[Item]:
    items = []
    for entry in entries:
        if entry.permission and not request.user.has_perm(entry.permission):
            continue
        try:
            url = reverse(entry.url_name)
        except NoReverseMatch:
            continue
        current = (
            request.path == url if entry.url_name == "admin:index" else request.path.startswith(url)
        )
        item = Item(str(entry.label), entry.icon, url, current)
        if entry is _DESK:
            item.count, item.money = open_cases()
        items.append(item)
    return items


def open_cases() -> tuple[int, str]:
    """How many cases are open, and the money at risk in words. The partial index of the desk serves it."""
    rows = (
        Case.objects.filter(resolved_at__isnull=True)
        .values_list("currency")
        .annotate(Count("pk"), Sum("money_at_risk"))
    )
    counted = 0
    sums = {}
    for currency, count, money in rows.order_by("currency"):
        counted += count
        sums[currency] = money
    return counted, written.in_one(sums)


def role(request: HttpRequest) -> str:
    """The person's highest role in words, "" for none of ours."""
    user = request.user
    if isinstance(user, AnonymousUser):
        return ""
    if user.is_superuser:
        return _("superuser")
    names = set(user.groups.values_list("name", flat=True))
    return next((str(one.label) for one in reversed(Role) if one.value in names), "")
