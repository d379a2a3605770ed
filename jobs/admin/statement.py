"""Statements: the list, asking for one, and its page. A worker reads the history; no page waits for a provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.html import format_html
from django.utils.http import content_disposition_header
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, statement_sheet, written
from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.clock import clock
from jobs.display import Look
from jobs.lifecycle import statement as lifecycle
from jobs.lifecycle.errors import Refused
from jobs.models import Orphan, Statement
from jobs.stages import statement as stage
from jobs.statement import DISCREPANCIES, MONEY, Kind
from jobs.templatetags import desk
from providers.models import Account

READ = "jobs.read_statement"
REFRESH_S = 2
_SHOWN = 200  # lines of one kind on the page; the sheet has them all
_STATES = {
    Statement.State.READING: Look(gettext_lazy("reading"), "", "blue"),
    Statement.State.READY: Look(gettext_lazy("ready"), "circle-check", "green"),
    Statement.State.FAILED: Look(gettext_lazy("could not be read"), "unplug", "red"),
}
_STOPPED = Look(gettext_lazy("reading has stopped"), "triangle-alert", "amber")
_SHEETS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "support": statement_sheet.support,
    "days": statement_sheet.books,
    "months": lambda told: statement_sheet.books(told, by="months"),
}


def _date(label: Any, **more: Any) -> forms.DateField:
    return forms.DateField(
        label=label, widget=forms.DateInput(attrs={"type": "date"}, format="%Y-%m-%d"), **more
    )


class AskForm(forms.Form):
    account = forms.ModelChoiceField(
        label=gettext_lazy("Account"),
        queryset=Account.objects.none(),
        empty_label=None,
        help_text=gettext_lazy("Whose history is read. One key at a time."),
    )
    since = _date(gettext_lazy("From"))
    until = _date(
        gettext_lazy("Up to and including"),
        required=False,
        help_text=gettext_lazy("Empty: up to this moment."),
    )

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        kwargs.setdefault("label_suffix", "")
        super().__init__(*args, **kwargs)
        field = self.fields["account"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Account.objects.order_by("provider", "-created_at")
        self.fields["since"].help_text = _("Days begin by the clock of %(zone)s.") % {
            "zone": timezone.get_default_timezone_name()
        }
        self.initial.setdefault(
            "since", timezone.localtime(now - timedelta(days=7), timezone.get_default_timezone()).date()
        )  # fmt: skip
        self._now = now

    def period(self) -> tuple[datetime, datetime]:
        zone = timezone.get_default_timezone()

        def midnight(day: Any) -> datetime:
            return datetime(day.year, day.month, day.day, tzinfo=zone)

        until = self.cleaned_data["until"]
        # The day after by its date: a day may have 23 or 25 hours.
        end = min(midnight(until + timedelta(days=1)), self._now) if until else self._now
        return midnight(self.cleaned_data["since"]), end


@admin.register(Statement)
class StatementAdmin(MachineAdmin):
    keyset = ("id",)
    list_display = ("what_cell", "period_cell", "state_cell", "open_cell", "read_cell", "asked_by")
    list_display_links = ("what_cell",)
    list_filter = ("provider", "state")
    list_select_related = ("account", "asked_by")
    sortable_by = ()
    empty = EmptyState(
        "receipt-text",
        gettext_lazy("No statements yet"),
        gettext_lazy(
            "A statement compares our sends of some days with the provider's own history: what is charged and unknown to us, where the prices differ, what failed and was charged all the same. Reading it costs nothing."
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Statement]:
        return Statement.objects.select_related("account", "asked_by").defer("kept")

    def dress(self, rows: list[Any], request: HttpRequest) -> list[Any]:
        now = clock.now()
        for row in rows:
            row.shown_now = now
        return rows

    @admin.display(description=gettext_lazy("account"))
    def what_cell(self, row: Statement) -> SafeString:
        return format_html("<bdi>{}</bdi>", row.account or row.provider)

    @admin.display(description=gettext_lazy("period"))
    def period_cell(self, row: Statement) -> str:
        return _period(row)

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, row: Any) -> SafeString:
        return desk.pill(_look(row, row.shown_now))

    @admin.display(description=gettext_lazy("to settle"))
    def open_cell(self, row: Statement) -> str:
        return str(row.open_count) if row.state == Statement.State.READY else "—"

    @admin.display(description=gettext_lazy("read"))
    def read_cell(self, row: Any) -> SafeString:
        return desk.ago(row.read_at, row.shown_now)

    # --- pages ---

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("<int:pk>/sheet/<slug:which>/", view(self.sheet_view), name="jobs_statement_sheet"),
            path("<int:pk>/go-on/", view(self.go_on_view), name="jobs_statement_go_on"),
        ]  # fmt: skip
        return [*own, *super().get_urls()]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(READ)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Asks whose history, and from when; POST has a worker read it."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        now = clock.now()
        if request.method == "POST":
            form = AskForm(request.POST, now=now)
            if form.is_valid():
                try:
                    row = self._ask(request, form, now)
                except Refused as refused:
                    form.add_error(None, str(refused))
                else:
                    return HttpResponseRedirect(reverse("admin:jobs_statement_change", args=[row.pk]))  # fmt: skip
        else:
            form = AskForm(now=now)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("New statement"),
            "form": form,
        }
        return TemplateResponse(request, "desk/statement_new.html", context)

    def _ask(self, request: HttpRequest, form: AskForm, now: datetime) -> Statement:
        assert request.user.is_authenticated
        since, until = form.period()
        account = form.cleaned_data["account"]
        with transaction.atomic():
            row = lifecycle.ask(
                provider=account.provider, account_id=account.pk, since=since, until=until, actor=request.user, now=now
            )  # fmt: skip
            transaction.on_commit(lambda: stage.start(row.pk))
        return row

    def go_on_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Calls a worker to a reading whose own has died. One that is at work is not disturbed."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        if request.method != "POST":
            raise Http404
        row = Statement.objects.filter(pk=pk).defer("kept").first()
        if row is None:
            raise Http404
        if row.state == Statement.State.READING:
            stage.start(pk)
            messages.success(request, _("A worker goes on where the last one stopped."))
        return HttpResponseRedirect(reverse("admin:jobs_statement_change", args=[pk]))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        now = clock.now()
        reading = row.state == Statement.State.READING
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Statement of %(provider)s") % {"provider": row.account or row.provider},
            "now": now,
            "row": row,
            "look": _look(row, now),
            "period": _period(row),
            "stopped": reading and _has_stopped(row, now),
            "may_read": self.has_add_permission(request),
            "refresh_s": REFRESH_S if reading else 0,
            "layout": "desk/live.html" if request.headers.get("X-Live") else "admin/base_site.html",
        }
        if row.state == Statement.State.READY:
            context |= _shown(row)
        return TemplateResponse(request, "desk/statement.html", context)

    def sheet_view(self, request: HttpRequest, pk: int, which: str) -> HttpResponse:
        """A sheet as CSV: for the provider's support, or for the bookkeeper."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = (
            Statement.objects.filter(pk=pk, state=Statement.State.READY)
            .only("told", "provider", "since")
            .first()
        )
        if row is None or which not in _SHEETS:
            raise Http404
        answer = HttpResponse(_SHEETS[which](row.told), content_type="text/csv; charset=utf-8")
        name = f"statement-{row.provider}-{row.since:%Y-%m-%d}-{which}.csv"
        answer.headers["Content-Disposition"] = content_disposition_header(True, name) or ""
        answer.headers["X-Content-Type-Options"] = "nosniff"
        return answer


def _has_stopped(row: Statement, now: datetime) -> bool:
    """Nobody has been at it for so long that somebody else may go on."""
    return (row.beat_at or row.asked_at) < now - timedelta(seconds=lifecycle.LEASE_S)


def _look(row: Statement, now: datetime) -> Look:
    if row.state == Statement.State.READING and _has_stopped(row, now):
        return _STOPPED
    return _STATES[Statement.State(row.state)]


def _period(row: Statement) -> str:
    zone = timezone.get_default_timezone()
    since, until = (
        timezone.localtime(row.since, zone),
        timezone.localtime(row.until - timedelta(microseconds=1), zone),
    )
    return f"{since:%Y-%m-%d} – {until:%Y-%m-%d}"


# --- what the page shows ----------------------------------------------------------------------------------------------


def _shown(row: Statement) -> dict[str, Any]:
    told = row.told
    orphans = dict(
        Orphan.objects.filter(
            provider_id__in=[one["provider_id"] for one in told["findings"] if one["kind"] == Kind.ORPHAN]
        ).values_list("provider_id", "pk")
    )  # fmt: skip
    groups = [
        {
            "said": statement_sheet.KINDS[Kind(count["kind"])],
            "kind": count["kind"],
            "discrepancy": count["discrepancy"],
            "count": count["count"],
            "settled": count["settled"],
            "money": written.totals({name: Decimal(one) for name, one in count["money"].items()}),
            "lines": [
                _line(one, orphans) for one in told["findings"] if one["kind"] == count["kind"]
            ][:_SHOWN],
        }
        for count in told["counts"]
        if count["count"]
    ]
    words = statement_sheet.money_words()
    return {
        "told": told,
        "groups": groups,
        "discrepancies": [one for one in groups if one["discrepancy"]],
        "others": [one for one in groups if not one["discrepancy"]],
        "stats": [
            {"said": statement_sheet.KINDS[kind], "count": next((one["count"] - one["settled"] for one in groups if one["kind"] == kind), 0)}
            for kind in DISCREPANCIES
        ],
        "columns": words,
        "sums": [
            {"name": name, "title": title, "rows": [_sum(one) for one in told[name]]}
            for name, title in (("months", _("By month")), ("days", _("By day")))
        ],
        "shown_most": _SHOWN,
        "not_read": [one for one in told["accounts"] if one["unread"]],
        "shared": [one for one in told["accounts"] if not one["exclusive"]],
        "rates": [(name, rate) for name, rate in told["rates"].items() if name != told["currency"]],
    }  # fmt: skip


def _line(one: dict[str, Any], orphans: dict[str, int]) -> dict[str, Any]:
    return {
        **one,
        "when": parse_datetime(one["at"]) if one["at"] else None,
        "ours_words": _money(one["ours"], one["currency"]),
        "theirs_words": _money(one["theirs"], one["currency"]),
        "settled_words": display.RESOLUTIONS.get(one["settled"], _settled(one["settled"])),
        "orphan": orphans.get(one["provider_id"]) if one["kind"] == Kind.ORPHAN else None,
    }


def _settled(word: str) -> str:
    words = {"refunded": _("refunded"), "written_off": _("written off")}
    return words.get(word, word)


def _sum(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "money": [_money(row[name], row["currency"]) if Decimal(row[name]) else "" for name in MONEY],
    }  # fmt: skip


def _money(amount: str | None, currency: str) -> str:
    return written.money(None if amount is None else Decimal(amount), currency)
