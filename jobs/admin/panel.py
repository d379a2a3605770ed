"""The panel: every provider account and its models at a glance, what staff may do about them, and what happened before.

It stands in the place of the stock list of provider states. What it shows comes from jobs/panel.py and jobs/episodes.py;
here it is only dressed: looks, bars, buttons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs import display, episodes, panel, written
from jobs.admin import provider_verbs as verbs
from jobs.admin.changelist import MachineAdmin
from jobs.admin.confirm import run
from jobs.admin.limits import window_name
from jobs.admin.provider_verbs import Place
from jobs.admin.verb import Verb
from jobs.clock import clock
from jobs.display import Look
from jobs.episodes import Episode, What
from jobs.panel import AccountView, Closed, ModelView, Money, Outcomes, Panel
from providers.health import Health
from providers.models import ProviderState, QuotaWindow, one_word
from providers.word import Phrase, Told, Usage, Word

REFRESH_S = 10
_ONCE = "once"  # the address's word for a window without a length
NEARLY_FULL = 0.8

_WHATS = {
    What.OUTAGE: Look(gettext_lazy("outage"), "octagon-x", "red"),
    What.KEY: Look(gettext_lazy("key rejected"), "key-round", "red"),
    What.QUOTA: Look(gettext_lazy("quota exhausted"), "hourglass", "amber"),
    What.BLOCK: Look(gettext_lazy("blocked by staff"), "lock", "grey"),
    What.PAUSE: Look(gettext_lazy("paused by staff"), "circle-pause", "grey"),
    What.STOP: Look(gettext_lazy("target stopped"), "octagon-pause", "amber"),
}
_OUTCOMES = (
    ("succeeded", gettext_lazy("succeeded"), "circle-check", "green"),
    ("refused", gettext_lazy("refused"), "ban", "grey"),
    ("failed", gettext_lazy("failed"), "circle-x", "red"),
    ("unknown", gettext_lazy("unknown"), "circle-help", "violet"),
)


# --- bars: SVG, because the content policy allows no inline style -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a bar of 100 by 8. `x` and `width` are written for SVG, the same in every language."""

    x: str
    width: str
    tone: str
    words: str = ""
    icon: str = ""
    count: int = 0


def outcome_bar(outcomes: Outcomes) -> list[Segment]:
    """Only what has happened at all; the numbers stand beside it in text."""
    segments, at = [], 0.0
    for name, words, icon, tone in _OUTCOMES:
        count = getattr(outcomes, name)
        if count:
            width = 100 * count / outcomes.total
            segments.append(Segment(f"{at:.2f}", f"{width:.2f}", tone, str(words), icon, count))
            at += width
    return segments


@dataclass(frozen=True, slots=True)
class WindowBar:
    usage: Usage
    name: str
    look: Look
    bar: Segment
    buttons: Sequence[Button]


@dataclass(frozen=True, slots=True)
class Button:
    verb: Verb
    url: str
    at_once: bool


# --- dressing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A model. `told` None: it is closed, and `since` and `reason` are the target's."""

    model: ModelView
    look: Look
    told: Told | None
    since: datetime | None
    reason: str
    bar: list[Segment]
    windows: list[WindowBar]
    at_risk: str
    asking: str
    buttons: list[Button]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """An account. `primary`: the one thing to do about its state."""

    account: AccountView
    look: Look
    bar: list[Segment]
    windows: list[WindowBar]
    balance: str
    spent: str
    lasts: str
    rows: list[Row]
    primary: Button | None
    buttons: list[Button]


@dataclass(frozen=True, slots=True)
class Line:
    """An episode as a row of the history."""

    episode: Episode
    look: Look
    length: timedelta


def episode_line(one: Episode, *, now: datetime) -> Line:
    return Line(one, _WHATS[one.what], one.length(now))


def look_of(told: Told, *, used: bool, now: datetime) -> Look:
    """An account without trouble and without a send yet is "unknown yet"."""
    if told.phrase is Phrase.AVAILABLE and not used:
        return display.UNKNOWN_YET
    return display.told_look(told, now=now)


def _cards(shown: Panel, user: Any) -> list[Card]:
    return [_card(account, user, now=shown.now) for account in shown.accounts]


def _card(account: AccountView, user: Any, *, now: datetime) -> Card:
    place = Place(now=now, account=account)
    buttons = _buttons(verbs.OF_PLACE, place, user)
    primary = _primary(account.told, buttons)
    money = account.money
    return Card(
        account=account,
        look=look_of(account.told, used=account.used, now=now),
        bar=outcome_bar(account.outcomes),
        windows=_windows(account.windows, place, user),
        balance=written.money(money.balance, money.currency) if money.balance is not None else "",
        spent=written.totals(money.spent),
        lasts=lasts(money),
        rows=[
            _row(account, model, user, now=now)
            for model in account.models
            if _tells(account, model)
        ],
        primary=primary,
        buttons=[one for one in buttons if one is not primary],
    )


def _tells(account: AccountView, model: ModelView) -> bool:
    """With a key that is no longer set, only models about which something is known."""
    known = model.own != Health() or bool(model.windows)
    return account.key_set or known or model.in_flight + model.outcomes.total > 0


def _row(account: AccountView, model: ModelView, user: Any, *, now: datetime) -> Row:
    place = Place(now=now, account=account, model=model)
    look, told = model_look(model, used=account.used, now=now), model.told
    closed = model.closed is not Closed.NO
    return Row(
        model=model,
        look=look,
        told=None if closed else told,
        since=model.closed_at if closed else told.since,
        reason=model.closed_reason if closed else told.reason,
        bar=outcome_bar(model.outcomes),
        windows=_windows(model.windows, place, user),
        at_risk=written.about(model.at_risk, model.currency) if model.at_risk else "",
        asking=asking(model),
        buttons=_buttons(verbs.OF_PLACE, place, user),
    )


def asking(model: ModelView) -> str:
    """How it is asked about, where its own latencies say when; "" elsewhere."""
    if model.plan is None:
        return ""
    return _("about %(polls)s polls a generation, noticed after %(delay)s") % {
        "polls": round(model.plan.polls),
        "delay": written.short(model.plan.delay_s),
    }


def model_look(model: ModelView, *, used: bool, now: datetime) -> Look:
    match model.closed:
        case Closed.STOPPED:
            return display.TARGET_STOPPED
        case Closed.OFF:
            return display.TARGET_OFF
    return look_of(model.told, used=used, now=now)


def lasts(money: Money) -> str:
    """How long the balance lasts, rounded as much as such a guess deserves; "" where it can't be told."""
    if money.lasts_s is None:
        return ""
    days = money.lasts_s / 86_400
    if days > 365:
        return _("more than a year")
    if days >= 2:
        return ngettext("about %(n)d day", "about %(n)d days", round(days)) % {"n": round(days)}
    return _("about %(time)s") % {"time": written.short(money.lasts_s)}


def _windows(windows: Iterable[Usage], place: Place, user: Any) -> list[WindowBar]:
    bars = []
    for usage in windows:
        row = QuotaWindow(seconds=usage.seconds)  # only to say which one
        spot = Place(now=place.now, account=place.account, model=place.model, window=row)
        bars.append(_window_bar(usage, _buttons(verbs.OF_WINDOW, spot, user)))
    return bars


def _window_bar(usage: Usage, buttons: Sequence[Button]) -> WindowBar:
    share = min(1.0, usage.used / usage.most)
    look = Look(_("room"), "circle-check", "green")
    if usage.left == 0:
        look = Look(_("full"), "hourglass", "amber")
    elif share >= NEARLY_FULL:
        look = Look(_("nearly full"), "gauge", "amber")
    bar = Segment("0", f"{100 * share:.2f}", look.tone)
    return WindowBar(usage, window_name(usage.seconds), look, bar, buttons)


_WANTED = {
    Phrase.PAUSED: verbs.RESUME,
    Phrase.DOWN: verbs.PROBE,
    Phrase.KEY_REJECTED: verbs.PROBE,
    Phrase.QUOTA_EXHAUSTED: verbs.TOPPED_UP,
    Phrase.BLOCKED: verbs.UNBLOCK,
}


def _primary(told: Told, buttons: Sequence[Button]) -> Button | None:
    wanted = _WANTED.get(told.phrase)
    return next((one for one in buttons if one.verb is wanted), None)


def _buttons(several: Sequence[Verb], place: Place, user: Any) -> list[Button]:
    """What this person may do here, and what makes sense now."""
    return [
        Button(verb, _verb_url(verb, place), verb.name in verbs.AT_ONCE)
        for verb in several
        if user.has_perm(verb.permission) and verb.offered(place)
    ]


def _verb_url(verb: Verb, place: Place) -> str:
    url = reverse("admin:providers_providerstate_do", args=[place.account.id, verb.name])
    query = {}
    if place.model is not None:
        query["model"] = place.model.model
    if place.window is not None:
        seconds = place.window.seconds
        query["window"] = _ONCE if seconds is None else str(seconds)
    return f"{url}?{urlencode(query)}" if query else url


def _counts(shown: Panel) -> list[dict[str, Any]]:
    looks = {
        Word.AVAILABLE: Phrase.AVAILABLE,
        Word.QUOTA_EXHAUSTED: Phrase.QUOTA_EXHAUSTED,
        Word.DOWN: Phrase.DOWN,
    }
    return [
        {
            "look": display.PROVIDER_STATES[looks[word]] if count else display.UNKNOWN_YET,
            "icon": display.PROVIDER_STATES[looks[word]].icon,
            "words": one_word(Told(word=word, phrase=looks[word])),
            "count": count,
        }
        for word, count in shown.counts().items()
    ]


# --- for the first page -----------------------------------------------------------------------------------------------


def differs(account: AccountView, model: ModelView) -> bool:
    """Whether a model is worth a line of its own beside its account's: it is not simply as that is, or has limits."""
    if not _tells(account, model):
        return False
    unlike = model.told.phrase is not account.told.phrase
    return model.closed is Closed.STOPPED or unlike or bool(model.windows)


def plain_windows(windows: Iterable[Usage]) -> list[WindowBar]:
    """Without buttons."""
    return [_window_bar(usage, []) for usage in windows]


def outcome_words(of: Any) -> list[Segment]:
    """How sends ended, for the line below a picture; `of` has the counts by the names of `Outcomes`."""
    return outcome_bar(Outcomes(of.succeeded, of.refused, of.failed, of.unknown))


# --- pages ------------------------------------------------------------------------------------------------------------


@admin.register(ProviderState)
class ProviderStateAdmin(MachineAdmin):
    """The list is the panel; each verb has an address, `do/<account>/<verb>/`. GET asks, POST does."""

    def get_urls(self) -> list[URLPattern]:
        own = path(
            "do/<int:account_id>/<slug:verb_name>/",
            self.admin_site.admin_view(self.do_view),
            name="providers_providerstate_do",
        )
        return [own, *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        now = clock.now()
        shown = panel.read(now=now)
        context = {
            **self.admin_site.each_context(request),
            "title": _("Providers"),
            "opts": self.opts,
            "now": now,
            "panel": shown,
            "cards": _cards(shown, request.user),
            "counts": _counts(shown),
            "refresh_s": REFRESH_S,
            # The page itself asks for its live parts every few seconds (jobs/static/desk/live.js).
            "layout": "desk/live.html" if request.headers.get("X-Live") else "admin/base_site.html",
        }
        if not request.headers.get("X-Live") and request.user.has_perm(
            "providers.view_providerevent"
        ):
            context |= _history(request, now)
        return TemplateResponse(request, "desk/panel.html", context)

    def do_view(self, request: HttpRequest, account_id: int, verb_name: str) -> HttpResponse:
        known = [*verbs.OF_PLACE, *verbs.OF_WINDOW]
        verb = next((verb for verb in known if verb.name == verb_name), None)
        if verb is None:
            raise Http404
        if not (self.has_view_permission(request) and request.user.has_perm(verb.permission)):
            raise PermissionDenied
        place = _place(request, account_id, window_needed=verb in verbs.OF_WINDOW)
        back = reverse("admin:providers_providerstate_changelist")
        if request.method == "POST":
            form = verb.form(request.POST, thing=place)
            if form.is_valid() and run(request, verb, place, form.cleaned_data):
                return HttpResponseRedirect(back)
        else:
            form = verb.form(thing=place)
        context = {
            **self.admin_site.each_context(request),
            "title": verb.title,
            "opts": self.opts,
            "thing": place,
            "thing_url": back,
            "verb": verb,
            "form": form,
            "effects": verb.effects(place),
        }
        return TemplateResponse(request, "desk/panel_confirm.html", context)


def _place(request: HttpRequest, account_id: int, *, window_needed: bool) -> Place:
    """What the address names, as it is now. Http404 where there is no such thing."""
    shown = panel.read(now=clock.now(), counts=False)
    account = next((one for one in shown.accounts if one.id == account_id), None)
    if account is None:
        raise Http404
    model = None
    if "model" in request.GET:
        name = request.GET["model"]
        model = next((one for one in account.models if one.model == name), None)
        if model is None:
            raise Http404
    window = None
    if window_needed:
        window = _window(account, model, request.GET.get("window", ""))
    return Place(now=shown.now, account=account, model=model, window=window)


def _window(account: AccountView, model: ModelView | None, which: str) -> QuotaWindow:
    if which != _ONCE and not (which.isdecimal() and len(which) < 10):
        raise Http404
    window = QuotaWindow.objects.filter(
        account=account.id,
        model="" if model is None else model.model,
        seconds=None if which == _ONCE else int(which),
    ).first()
    if window is None:
        raise Http404
    return window


def _history(request: HttpRequest, now: datetime) -> dict[str, Any]:
    raw = request.GET.get("older", "")
    older = int(raw) if raw.isdecimal() and len(raw) < 18 else None
    told, more = episodes.page(now=now, older=older)
    return {
        "episodes": [episode_line(one, now=now) for one in told],
        "older": more,
        "paged": older is not None,
    }
