"""Alerts as staff see them: what was told, to whom, and what stands in the way. Read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import written
from jobs.admin.changelist import PANEL, EmptyState, MachineAdmin
from jobs.alert_rules import AlertKind, AlertState
from jobs.alerts import words
from jobs.alerts.channels import channels
from jobs.clock import clock
from jobs.display import Look
from jobs.models import Alert, AlertChannel
from jobs.templatetags import desk

_KINDS = {
    AlertKind.OUTAGE: ("octagon-x", "red"),
    AlertKind.NETWORK: ("unplug", "red"),
    AlertKind.KEY: ("key-round", "red"),
    AlertKind.RECOVERED: ("circle-check", "green"),
    AlertKind.BALANCE: ("wallet", "amber"),
    AlertKind.OVERDUE: ("inbox", "amber"),
    AlertKind.EXPIRING: ("hourglass", "amber"),
    AlertKind.STUCK: ("triangle-alert", "amber"),
    AlertKind.MORE: ("layers", "grey"),
}
_STATES = {
    AlertState.NEW: ("clock", "grey"),
    AlertState.DUE: ("clock", "blue"),
    AlertState.SENT: ("check", "green"),
    AlertState.FOLDED: ("layers", "grey"),
    AlertState.SILENCED: ("circle-pause", "grey"),
    AlertState.DROPPED: ("ban", "outline"),
    AlertState.NO_CHANNEL: ("unplug", "outline"),
    AlertState.GIVEN_UP: ("circle-x", "red"),
}


@admin.register(Alert)
class AlertAdmin(MachineAdmin):
    keyset = ("id",)
    list_display = ("what_cell", "kind_cell", "state_cell", "at_cell", "over_cell", "trouble_cell")
    list_display_links = ("what_cell",)
    list_filter = ("state", "kind", "account")
    sortable_by = ()
    fields = (
        "what_cell", "text_cell", "kind_cell", "state_cell", "account", "model", "at_cell", "over_cell", "sent_cell",
        "lead", "trouble_cell",
    )  # fmt: skip
    readonly_fields = fields
    empty = EmptyState(
        "message-square",
        gettext_lazy("No alerts yet"),
        gettext_lazy(
            "Outages, and what only a person can settle, are listed here once somebody was told of them. Who is told is set by ALERT_URLS."
        ),
        PANEL,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Alert]:
        return Alert.objects.select_related(
            "account", "lead", "lead__account", "lead__lead"
        ).prefetch_related("members__account", "lead__members__account")

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
        return rows

    @admin.display(description=gettext_lazy("alert"))
    def what_cell(self, alert: Alert) -> SafeString:
        return format_html('<span dir="auto">{}</span>', words.title(alert))

    @admin.display(description=gettext_lazy("text"))
    def text_cell(self, alert: Alert) -> SafeString:
        return format_html_join(
            SafeString("<br>"),
            '<span dir="auto">{}</span>',
            ((line,) for line in words.lines(alert)),
        )

    @admin.display(description=gettext_lazy("what"))
    def kind_cell(self, alert: Alert) -> SafeString:
        icon, tone = _KINDS[AlertKind(alert.kind)]
        return desk.pill(Look(alert.get_kind_display(), icon, tone))

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, alert: Alert) -> SafeString:
        icon, tone = _STATES[AlertState(alert.state)]
        return desk.pill(Look(alert.get_state_display(), icon, tone))

    @admin.display(description=gettext_lazy("at"))
    def at_cell(self, alert: Any) -> SafeString:
        return desk.ago(alert.at, getattr(alert, "shown_now", None) or clock.now())

    @admin.display(description=gettext_lazy("over"))
    def over_cell(self, alert: Any) -> SafeString:
        return desk.ago(alert.over_at, getattr(alert, "shown_now", None) or clock.now())

    @admin.display(description=gettext_lazy("sent"))
    def sent_cell(self, alert: Alert) -> str:
        if alert.sent_at is None:
            return "—"
        known = {channel.key: str(channel) for channel in channels()}
        to = ", ".join(known.get(key, f"…{key[-6:]}") for key in alert.sent_to)
        return _("%(at)s, to %(channels)s") % {"at": written.exact(alert.sent_at), "channels": to}

    @admin.display(description=gettext_lazy("trouble"))
    def trouble_cell(self, alert: Alert) -> SafeString | str:
        return format_html('<span dir="auto">{}</span>', alert.error) if alert.error else "—"


@admin.register(AlertChannel)
class AlertChannelAdmin(MachineAdmin):
    """How each channel fares, those no longer set included."""

    list_display = ("name_cell", "ok_cell", "failing_cell", "error")
    list_display_links = None
    ordering = ("scheme", "key")
    sortable_by = ()
    empty = EmptyState(
        "message-square",
        gettext_lazy("No channel was used yet"),
        gettext_lazy("Set ALERT_URLS, then send a test: manage.py alerts test"),
    )

    @admin.display(description=gettext_lazy("channel"))
    def name_cell(self, channel: AlertChannel) -> SafeString:
        return format_html('<bdi class="mono ltr">{}</bdi>', str(channel))

    @admin.display(description=gettext_lazy("last success"))
    def ok_cell(self, channel: AlertChannel) -> SafeString:
        return desk.ago(channel.ok_at, clock.now())

    @admin.display(description=gettext_lazy("failing since"))
    def failing_cell(self, channel: AlertChannel) -> SafeString:
        return desk.ago(channel.failing_since, clock.now())
