"""Accounts, and what happened to them when. States, targets and limits have verbs: jobs/admin/panel.py, limits.py."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from providers.logged import LoggedAdmin
from providers.models import Account, ProviderEvent


class NoDelete(LoggedAdmin):
    """Jobs and money hang on these rows."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ReadOnly(NoDelete):
    """The machine's rows."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AccountForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    class Meta:
        help_texts = {
            "label": _(
                "What people call this key, up to 80 letters: whose it is, or where it is used. Empty, the default: its fingerprint."
            ),
            "exclusive": _(
                "No other program uses this key. Only the owner can know. Off, the default: what stands in its history may be somebody else's, so a lost send is not recognised by being the only one."
            ),
        }


@admin.register(Account)
class AccountAdmin(NoDelete):
    form = AccountForm
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


@admin.register(ProviderEvent)
class ProviderEventAdmin(ReadOnly):
    list_display = ("at", "account", "model", "kind", "actor")
    list_select_related = ("account", "actor")
    ordering = ("-id",)
    sortable_by = ()
    show_full_result_count = False
