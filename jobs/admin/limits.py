"""Limits as staff set them: targets and quota windows. What is saved here goes through jobs/lifecycle/limits.py."""

from __future__ import annotations

from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import written
from jobs.admin.changelist import PANEL, DeskAdmin, EmptyState, MachineAdmin
from jobs.admin.forms import VerbForm
from jobs.clock import clock
from jobs.lifecycle import limits
from jobs.lifecycle.errors import Refused
from providers.logged import LoggedAdmin
from providers.models import QuotaWindow, Target

LENGTHS = {
    60: gettext_lazy("a minute"),
    3600: gettext_lazy("an hour"),
    86_400: gettext_lazy("a day"),
    604_800: gettext_lazy("a week"),
}
AT_ONCE = gettext_lazy("at once")
_ONCE, _OTHER = "once", "other"


def window_name(seconds: int | None) -> str:
    """What the number of a limit is per: "a day", "at once", "in 3 h"."""
    if seconds is None:
        return str(AT_ONCE)
    if seconds in LENGTHS:
        return str(LENGTHS[seconds])
    return _("in %(time)s") % {"time": written.duration(seconds)}


# --- forms of the panel ---------------------------------------------------------------------------------------------


def _why(**more: Any) -> forms.CharField:
    return forms.CharField(
        label=gettext_lazy("Why"), required=False, max_length=300, help_text=gettext_lazy("Kept in the trail."),
        widget=forms.TextInput(attrs={"dir": "auto"}), **more,
    )  # fmt: skip


class InFlightForm(VerbForm):
    most = forms.IntegerField(
        label=gettext_lazy("Most in flight"),
        required=False,
        min_value=1,
        max_value=100_000,
        help_text=gettext_lazy("Empty: only the account's and the overall limit hold."),
    )
    reason = _why()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.thing.model is not None:
            self.initial.setdefault("most", self.thing.model.own_limit)


class WindowForm(VerbForm):
    """A new window, or (the thing has one) other values for it: then its length stays."""

    most = forms.IntegerField(
        label=gettext_lazy("How many"),
        min_value=1,
        max_value=100_000_000,
        help_text=gettext_lazy(
            "Sends that the provider allows in that time. Nothing is sent beyond it."
        ),
    )
    length = forms.ChoiceField(
        label=gettext_lazy("In how long a time"),
        choices=[
            *((str(seconds), words) for seconds, words in LENGTHS.items()),
            (_ONCE, gettext_lazy("in flight at once")),
            (_OTHER, gettext_lazy("another time")),
        ],
        initial="86400",
        help_text=gettext_lazy("As the provider's documents say. By default a day."),
    )
    seconds = forms.IntegerField(
        label=gettext_lazy("Another time, in seconds"),
        required=False,
        min_value=1,
        max_value=366 * 86_400,
        help_text=gettext_lazy("Only for another time: from 1 to 31,622,400 (a year)."),
    )
    resets = forms.ChoiceField(
        label=gettext_lazy("Starts anew"),
        choices=QuotaWindow.Resets.choices,
        initial=QuotaWindow.Resets.ROLLING,
        help_text=gettext_lazy(
            "Rolling: what was sent longer ago counts no more. At fixed times: all at once, like a day at midnight."
        ),
    )
    anchor_at = forms.DateTimeField(
        label=gettext_lazy("Anchor"),
        required=False,
        help_text=gettext_lazy("At fixed times: any moment at which the window started anew."),
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )
    zone = forms.CharField(
        label=gettext_lazy("Time zone"),
        initial="UTC",
        max_length=40,
        help_text=gettext_lazy(
            "At fixed times: by whose clock a day or a week begins, like Europe/Moscow. By default UTC."
        ),
        widget=forms.TextInput(attrs={"dir": "ltr", "autocomplete": "off", "spellcheck": "false"}),
    )
    reason = _why()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        window = self.thing.window
        if window is not None:
            del self.fields["length"], self.fields["seconds"]
            for name in ("most", "resets", "anchor_at", "zone"):
                self.initial.setdefault(name, getattr(window, name))

    def clean_zone(self) -> str:
        zone = str(self.cleaned_data["zone"])
        if zone not in available_timezones():
            raise forms.ValidationError(
                _("“%(name)s” is no time zone. Write one like Europe/Moscow.") % {"name": zone}
            )
        return zone

    def clean(self) -> dict[str, Any]:
        data = super().clean() or {}
        if self.thing.window is not None:
            data["seconds"] = self.thing.window.seconds
        elif data.get("length") == _OTHER:
            if not data.get("seconds") and "seconds" not in self.errors:
                self.add_error("seconds", _("Say how long."))
        else:
            length = data.get("length", "")
            data["seconds"] = int(length) if length.isdecimal() else None
        return data


# --- the stock pages ------------------------------------------------------------------------------------------------


class TargetForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    why = _why()

    class Meta:
        help_texts = {
            "provider": gettext_lazy(
                "One that the desk knows (polza, fal, openrouter, gigachat), or the name of a further account. It can't be changed later."
            ),
            "model": gettext_lazy(
                "As the provider calls it, like google/gemini-2.5-flash-image. It can't be changed later."
            ),
            "kind": gettext_lazy(
                "What comes out: a picture, the default, or a text. It can't be changed later."
            ),
            "price": gettext_lazy(
                "What one generation usually costs, in the currency below. Budgets and money at risk are reckoned with it; the most that a provider may charge is this times PRICE_CEILING_FACTOR (1.5)."
            ),
            "currency": gettext_lazy(
                "In which this provider charges: three capital letters. By default RUB. It can't be changed later."
            ),
            "max_in_flight": gettext_lazy(
                "How many jobs may be at this model at the same time. Empty, the default: only the account's and the overall limit hold."
            ),
            "enabled": gettext_lazy(
                "On, the default: jobs are sent to it. Off: nothing new; what is under way is still watched and fetched."
            ),
            "capabilities": gettext_lazy(
                "What it can do beyond a plain prompt, as a JSON object that its adapter understands. {}, the default, is right for most."
            ),
        }


@admin.register(Target)
class TargetAdmin(LoggedAdmin, DeskAdmin):
    form = TargetForm
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
        "why",
    )
    actions = ("open_again",)
    empty = EmptyState(
        "target",
        gettext_lazy("No targets yet"),
        gettext_lazy(
            "A target is a provider's model, written provider:model, with its price and its limit. The configured one is made with the first job; add others to route jobs to them."
        ),
    )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Jobs and money hang on a target."""
        return False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Who may only look is asked for no reason."""
        may = self.has_change_permission(request, obj) if obj else True
        return [name for name in self.fields if may or name != "why"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (
            ("provider", "model", "kind", "currency", "stopped_reason")
            if obj
            else ("stopped_reason",)
        )

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Its limit has a verb of its own; the rest is the row."""
        if not change or "max_in_flight" not in form.changed_data:
            super().save_model(request, obj, form, change)
            return
        assert request.user.is_authenticated
        most, obj.max_in_flight = obj.max_in_flight, form.initial["max_in_flight"]
        super().save_model(request, obj, form, change)
        try:
            limits.limit_target(
                target_id=obj.pk, most=most, actor=request.user, now=clock.now(), reason=form.cleaned_data["why"]
            )  # fmt: skip
        except Refused as refused:
            self.message_user(request, str(refused), messages.ERROR)

    @admin.display(description=gettext_lazy("target"))
    def name_cell(self, target: Target) -> SafeString:
        return format_html('<bdi class="ltr">{}</bdi>', target.name)

    @admin.display(description=gettext_lazy("price"), ordering="price")
    def price_cell(self, target: Target) -> str:
        return written.money(target.price, target.currency)

    @admin.display(description=gettext_lazy("stopped"))
    def stopped_cell(self, target: Target) -> str:
        return target.stopped_reason if target.stopped_at else "—"

    def has_open_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("providers.change_target")

    @admin.action(description=gettext_lazy("Open stopped targets again"), permissions=["open"])
    def open_again(self, request: HttpRequest, queryset: Any) -> None:
        assert request.user.is_authenticated
        count = 0
        for target in queryset.filter(stopped_at__isnull=False):
            try:
                limits.open_target(target_id=target.pk, actor=request.user, now=clock.now())
                count += 1
            except Refused as refused:  # somebody else has opened it meanwhile
                self.message_user(request, str(refused), messages.ERROR)
        self.message_user(request, _("%(count)d targets are open again.") % {"count": count})


@admin.register(QuotaWindow)
class QuotaWindowAdmin(MachineAdmin):
    """All of them in one list; they are set on the page of the providers."""

    list_display = ("account", "model", "window_cell", "most", "resets")
    list_display_links = None
    list_select_related = ("account",)
    ordering = ("account", "model", "seconds")
    sortable_by = ()
    empty = EmptyState(
        "gauge",
        gettext_lazy("No quota windows"),
        gettext_lazy(
            "A window tells how much a provider allows in a minute, a day or a week, so that a request that must fail is not sent. Each is set beside its account, on the page of the providers."
        ),
        PANEL,
    )

    @admin.display(description=gettext_lazy("window"))
    def window_cell(self, window: QuotaWindow) -> str:
        return window_name(window.seconds)
