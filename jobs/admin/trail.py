"""The trail: what people did, over all or to one object, on a page and as a sheet."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django import forms
from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import translation
from django.utils.http import content_disposition_header
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from jobs import trail
from jobs.admin import trail_words
from jobs.batches import export
from jobs.clock import clock
from jobs.display import Look
from jobs.trail import Place, Wanted
from jobs.trail_sources import Deed, On

VIEW = "jobs.view_trail"
_AT_ONCE = 500
_PK = re.compile(r"[\w-]{1,40}", re.ASCII)
_HOURS = {"1h": 1, "24h": 24, "7d": 7 * 24, "30d": 30 * 24}


class WantedForm(forms.Form):
    """The filters; all by GET, so that a view of the trail has an address."""

    who = forms.ChoiceField(label=gettext_lazy("Who"), required=False)
    what = forms.ChoiceField(label=gettext_lazy("What"), required=False)
    on = forms.ChoiceField(label=gettext_lazy("To what"), required=False)
    when = forms.ChoiceField(
        label=gettext_lazy("When"),
        required=False,
        choices=[
            ("", gettext_lazy("at any time")),
            ("1h", gettext_lazy("in the last hour")),
            ("24h", gettext_lazy("in the last 24 hours")),
            ("7d", gettext_lazy("in the last 7 days")),
            ("30d", gettext_lazy("in the last 30 days")),
        ],
    )
    since = forms.DateTimeField(
        label=gettext_lazy("From"), required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )  # fmt: skip
    until = forms.DateTimeField(
        label=gettext_lazy("To"), required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
    )  # fmt: skip
    words = forms.CharField(
        label=gettext_lazy("Words of the reason"), required=False, max_length=100
    )

    def __init__(self, data: Mapping[str, Any]) -> None:
        super().__init__(data, label_suffix="")
        names = get_user_model().objects.order_by("username").values_list("pk", "username")
        self._choose("who", _("anybody"), {str(pk): name for pk, name in names})
        known = sorted(trail_words.whats().items(), key=lambda one: one[1])
        self._choose("what", _("anything"), dict(known))
        things = {kind.value: str(trail_words.ON[kind]) for kind in On}
        kind, _colon, pk = str(data.get("on", "")).partition(":")
        if kind in things and _PK.fullmatch(pk):
            things[f"{kind}:{pk}"] = f"{things[kind]} #{pk}"  # the one that a link led to
        self._choose("on", _("anything"), things)

    def _choose(self, name: str, nothing: str, choices: Mapping[str, str]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", nothing), *choices.items()]

    def wanted(self, *, now: datetime) -> Wanted:
        """What is no value of a filter does not narrow."""
        self.is_valid()
        said = self.cleaned_data
        hours = _HOURS.get(said.get("when") or "")
        kind, _colon, pk = (said.get("on") or "").partition(":")
        return Wanted(
            who=int(said["who"]) if said.get("who") else None,
            what=said.get("what") or "",
            on=On(kind) if kind else None,
            pk=pk,
            since=said.get("since") or (now - timedelta(hours=hours) if hours else None),
            until=said.get("until"),
            words=(said.get("words") or "").strip(),
        )

    def query(self, **more: str) -> str:
        """The filters in use, as an address has them."""
        kept = {name: self.data[name] for name in self.fields if self.data.get(name)}
        return urlencode({**kept, **more})


@dataclass(frozen=True, slots=True)
class Line:
    """A deed as it is shown."""

    deed: Deed
    look: Look
    who: str
    on: str
    url: str
    changes: list[tuple[str, str, str]]
    detail: str


def line(deed: Deed) -> Line:
    return Line(
        deed, trail_words.look(deed), trail_words.who(deed), str(trail_words.ON[deed.on]), trail_words.address(deed),
        trail_words.change_lines(deed), trail_words.detail(deed),
    )  # fmt: skip


def page(request: HttpRequest) -> HttpResponse:
    _check(request)
    now = clock.now()
    form = WantedForm(request.GET)
    wanted = form.wanted(now=now)
    older = Place.parse(request.GET.get("older", ""))
    deeds, rest = trail.page(wanted, older=older)
    context = {
        **admin.site.each_context(request),
        "title": _("Trail"),
        "now": now,
        "form": form,
        "narrowed": wanted != Wanted(),
        "one": _one(wanted, deeds),
        "lines": [line(deed) for deed in deeds],
        "paged": older is not None,
        "first_query": form.query(),
        "older_query": form.query(older=str(rest)) if rest is not None else "",
        "among": trail.WORDS_AMONG if wanted.words else 0,
    }
    return TemplateResponse(request, "desk/trail.html", context)


def _one(wanted: Wanted, deeds: list[Deed]) -> str:
    """The name of the one object that it is about."""
    if wanted.on is None or not wanted.pk:
        return ""
    name = deeds[0].name if deeds and deeds[0].name else f"#{wanted.pk}"
    return f"{trail_words.ON[wanted.on]} {name}"


def _check(request: HttpRequest) -> None:
    if not request.user.has_perm(VIEW):
        raise PermissionDenied


# Whose history, as the stock pages' link names it, is their part of the trail.
HISTORIES: Mapping[tuple[str, str], On] = {
    ("providers", "account"): On.ACCOUNT,
    ("providers", "target"): On.TARGET,
    ("jobs", "tenant"): On.TENANT,
    ("jobs", "standingdecision"): On.STANDING,
    ("auth", "user"): On.USER,
    ("auth", "group"): On.GROUP,
}


def history(request: HttpRequest, object_id: str, app: str, model: str) -> HttpResponseBase:
    """The trail of one object; for whoever may not read it, Django's own page."""
    if request.user.has_perm(VIEW):
        query = urlencode({"on": f"{HISTORIES[app, model].value}:{object_id}"})
        return HttpResponseRedirect(f"{reverse('admin:desk_trail')}?{query}")
    model_admin = admin.site.get_model_admin(apps.get_model(app, model))
    answer: HttpResponseBase = model_admin.history_view(request, object_id)
    return answer


# --- the sheet --------------------------------------------------------------------------------------------------------


def sheet(request: HttpRequest) -> HttpResponseBase:
    """All that passes the filters, as CSV, however many rows."""
    _check(request)
    wanted = WantedForm(request.GET).wanted(now=clock.now())
    # Under ASGI an asynchronous stream: a synchronous one would be read into memory as a whole.
    parts = _async_parts if isinstance(request, ASGIRequest) else _parts
    answer = StreamingHttpResponse(
        parts(wanted, get_language()), content_type="text/csv; charset=utf-8"
    )
    answer.headers["Content-Disposition"] = content_disposition_header(True, "trail.csv") or ""
    answer.headers["X-Content-Type-Options"] = "nosniff"
    return answer


def _head(language: str | None) -> str:
    """Streamed after the request is over, when nobody's language is active any more."""
    with translation.override(language):
        return export.BOM + export.lines([trail_words.head()])


def _part(wanted: Wanted, language: str | None, older: Place | None) -> tuple[str, Place | None]:
    """The next rows as text, and the place after which the rest comes; None: that was all."""
    deeds, rest = trail.page(wanted, older=older, most=_AT_ONCE)
    with translation.override(language):
        return export.lines(trail_words.row(deed) for deed in deeds), rest


def _parts(wanted: Wanted, language: str | None) -> Iterator[str]:
    yield _head(language)
    text, older = _part(wanted, language, None)
    yield text
    while older is not None:
        text, older = _part(wanted, language, older)
        yield text


async def _async_parts(wanted: Wanted, language: str | None) -> AsyncIterator[str]:
    yield _head(language)
    text, older = await sync_to_async(_part)(wanted, language, None)
    yield text
    while older is not None:
        text, older = await sync_to_async(_part)(wanted, language, older)
        yield text
