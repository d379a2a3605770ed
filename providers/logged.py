"""What the admin's own forms change stands in Django's log with the values before and after (read by jobs/trail_sources.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest

# Django's class is generic only for the type checker.
if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

_MOST_CHARACTERS = 500
_SECRET = ("password", "token", "secret")


class LoggedAdmin(ModelAdmin):
    """Beside Django's message, which names fields only, its log entry holds {"values": {field: [before, after]}}, and
    {"why": …} where the form asks for it in a field of that name."""

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> list[dict[str, Any]]:
        message: list[dict[str, Any]] = list(
            super().construct_change_message(request, form, formsets, add) or []
        )
        changed = values(form)
        if not add and not changed:
            return []  # Django calls some fields changed that are not; a reason for nothing is none
        if changed:
            message.append({"values": changed})
            if why := form.cleaned_data.get("why"):
                message.append({"why": str(why)})
        return message


def values(form: ModelForm[Any]) -> dict[str, list[Any]]:
    """Before and after of what the form changes. Secrets are never written."""
    told = {
        name: [plain(form.initial.get(name)), plain(form.cleaned_data.get(name))]
        for name in form.changed_data
        if name in form.cleaned_data and name != "why" and not any(word in name for word in _SECRET)
    }
    return {name: pair for name, pair in told.items() if pair[0] != pair[1]}


def plain(value: Any) -> str | bool | None:
    """As text; several things by their names in order."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | Mapping | Model) or not isinstance(value, Iterable):
        return str(value)[:_MOST_CHARACTERS]
    return ", ".join(sorted(str(one) for one in value))[:_MOST_CHARACTERS]
