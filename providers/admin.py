"""Providers as staff see them: accounts, targets, states, limits and what happened when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from providers.models import Account, ProviderEvent, ProviderState, QuotaWindow, Target

# Django's class is generic only for the type checker.
if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class NoDelete(ModelAdmin):
    """Jobs and money hang on these rows."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnly(NoDelete):
    """The machine's rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Account)
class AccountAdmin(NoDelete):
    list_display = (
        "name_cell",
        "label",
        "exclusive",
        "echoes_id",
        "history_lag_s",
        "balance_cell",
        "created_at",
    )
    list_display_links = ("name_cell",)
    ordering = ("provider", "pk")
    fields = (
        "provider", "fingerprint", "label", "exclusive", "echoes_id", "history_lag_s", "balance_cell", "balance_at",
        "created_at",
    )  # fmt: skip
    # The key decides provider and fingerprint; the rest is measured. Only the owner can know what is left to edit.
    readonly_fields = (
        "provider", "fingerprint", "echoes_id", "history_lag_s", "balance_cell", "balance_at", "created_at",
    )  # fmt: skip

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @admin.display(description=_("account"))
    def name_cell(self, account: Account) -> SafeString:
        return format_html(
            '<bdi>{}</bdi> <bdi class="mono ltr">{}</bdi>',
            account.provider.title(),
            account.fingerprint,
        )

    @admin.display(description=_("balance"))
    def balance_cell(self, account: Account) -> str:
        if account.balance is None:
            return "—"
        return f"{account.balance:.2f} {account.balance_currency}"


@admin.register(Target)
class TargetAdmin(NoDelete):
    list_display = ("name_cell", "kind", "price_cell", "max_in_flight", "enabled", "stopped_cell")
    list_display_links = ("name_cell",)
    list_filter = ("provider", "kind", "enabled")
    search_fields = ("model",)
    ordering = ("provider", "model")
    fields = (
        "provider",
        "model",
        "kind",
        "price",
        "currency",
        "max_in_flight",
        "enabled",
        "capabilities",
        "stopped_reason",
    )
    actions = ("open_again",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (
            ("provider", "model", "kind", "currency", "stopped_reason")
            if obj
            else ("stopped_reason",)
        )

    @admin.display(description=_("target"))
    def name_cell(self, target: Target) -> SafeString:
        return format_html('<bdi class="ltr">{}</bdi>', target.name)

    @admin.display(description=_("price"), ordering="price")
    def price_cell(self, target: Target) -> str:
        return f"{target.price.normalize():f} {target.currency}"

    @admin.display(description=_("stopped"))
    def stopped_cell(self, target: Target) -> str:
        return target.stopped_reason if target.stopped_at else "—"

    def has_open_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("providers.change_target")

    @admin.action(description=_("Open stopped targets again"), permissions=["open"])
    def open_again(self, request: HttpRequest, queryset: Any) -> None:
        count = queryset.filter(stopped_at__isnull=False).update(stopped_at=None, stopped_reason="")
        self.message_user(request, _("%(count)d targets are open again.") % {"count": count})


@admin.register(ProviderState)
class ProviderStateAdmin(ReadOnly):
    list_display = ("account_cell", "model_cell", "state_cell", "since", "blocked_until", "reason")
    list_display_links = None
    list_select_related = ("account",)
    ordering = ("account__provider", "account", "model")
    sortable_by = ()

    @admin.display(description=_("provider"))
    def account_cell(self, state: ProviderState) -> SafeString:
        return format_html(
            '<bdi>{}</bdi> <bdi class="mono ltr">…{}</bdi>',
            state.account.provider.title(),
            state.account.fingerprint[-6:],
        )

    @admin.display(description=_("model"))
    def model_cell(self, state: ProviderState) -> SafeString:
        if not state.model:
            return format_html('<span class="quiet">{}</span>', _("the whole account"))
        return format_html('<bdi class="ltr">{}</bdi>', state.model)

    @admin.display(description=_("state"))
    def state_cell(self, state: ProviderState) -> SafeString:
        return SafeString(
            render_to_string("desk/provider_state.html", {"state": state, "now": timezone.now()})
        )


@admin.register(QuotaWindow)
class QuotaWindowAdmin(ModelAdmin):
    list_display = ("account", "model", "seconds", "most")
    list_select_related = ("account",)
    ordering = ("account", "model", "seconds")


@admin.register(ProviderEvent)
class ProviderEventAdmin(ReadOnly):
    list_display = ("at", "account", "model", "kind", "actor")
    list_select_related = ("account", "actor")
    ordering = ("-id",)
    sortable_by = ()
    show_full_result_count = False
