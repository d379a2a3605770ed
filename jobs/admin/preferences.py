"""My settings: how a person wants times and numbers written. Each sees and sets their own only."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import manner, written, zones
from jobs.clock import clock
from jobs.lifecycle.preferences import prefer
from jobs.manner import Calendar, Digits
from jobs.models import Preferences
from jobs.templatetags import desk


class PreferencesForm(forms.Form):
    zone = forms.ChoiceField(
        label=gettext_lazy("Time zone"), required=False,
        help_text=gettext_lazy(
            "All times on the desk are shown in it; UTC is told when you point at one. Times that you enter are taken in it too."
        ),
    )  # fmt: skip
    calendar = forms.ChoiceField(
        label=gettext_lazy("Calendar"), choices=Calendar.choices, widget=forms.RadioSelect,
        help_text=gettext_lazy("For dates that you read. Fields for dates, files and the API stay Gregorian."),
    )  # fmt: skip
    digits = forms.ChoiceField(
        label=gettext_lazy("Digits"), choices=Digits.choices, widget=forms.RadioSelect,
        help_text=gettext_lazy(
            "For numbers, money and times that you read. Ids, code and files keep Latin ones; you can enter either."
        ),
    )  # fmt: skip

    def __init__(self, *args: Any, now: datetime, **kwargs: Any) -> None:
        super().__init__(*args, **{"label_suffix": "", **kwargs})
        studio = zones.label(settings.TIME_ZONE, settings.TIME_ZONE, now)
        field = self.fields["zone"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            ("", _("The studio's: %(zone)s") % {"zone": studio}),
            *zones.choices(now),
        ]


def page(request: HttpRequest) -> HttpResponse:
    """GET shows, POST keeps what was chosen."""
    if request.method not in {"GET", "HEAD", "POST"}:
        return HttpResponseNotAllowed(["GET", "POST"])
    assert request.user.pk is not None
    now = clock.now()
    row = Preferences.objects.filter(pk=request.user.pk).first() or Preferences()
    form = PreferencesForm(
        request.POST if request.method == "POST" else None,
        initial={"zone": row.zone, "calendar": row.calendar, "digits": row.digits},
        now=now,
    )
    if request.method == "POST" and form.is_valid():
        chosen = form.cleaned_data
        prefer(
            user_id=request.user.pk, zone=chosen["zone"], calendar=Calendar(chosen["calendar"]),
            digits=Digits(chosen["digits"]), now=now,
        )  # fmt: skip
        messages.success(request, _("Saved: the desk is written your way from now on."))
        return HttpResponseRedirect(reverse("admin:desk_preferences"))
    context = {
        **admin.site.each_context(request),
        "title": _("My settings"),
        "form": form,
        "language": dict(settings.LANGUAGES).get(manner.current().language or "", ""),
        "samples": _samples(now),
    }
    return TemplateResponse(request, "desk/preferences.html", context)


def _samples(now: datetime) -> list[tuple[str, Any]]:
    """How the desk is written at present."""
    return [
        (_("Date"), written.day(now)),
        (_("Time"), desk.clock_time(now)),
        (_("Number"), written.number(Decimal("12345.6"), 1)),
        (_("Money"), desk.money(Decimal("1234.5"), settings.CURRENCY)),
        (_("A small amount"), desk.money(Decimal("0.0031"), "USD")),
    ]
