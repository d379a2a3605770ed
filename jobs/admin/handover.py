"""The handover: what happened since a person's last visit. Looking changes nothing; "I have read this" is theirs to say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import handover, written
from jobs.admin import bulk_words, trail
from jobs.admin import handover_words as words
from jobs.alerts import words as alert_words
from jobs.clock import clock
from jobs.handover import OVERLAP, Handover
from jobs.lifecycle import visits

VIEW = trail.VIEW
_HOURS = {"8h": 8, "24h": 24, "3d": 72, "7d": 168}
_CHOICES: Mapping[str, Any] = {
    "": gettext_lazy("since my last visit"),
    "8h": gettext_lazy("8 hours"),
    "24h": gettext_lazy("24 hours"),
    "3d": gettext_lazy("3 days"),
    "7d": gettext_lazy("7 days"),
}


def page(request: HttpRequest) -> HttpResponse:
    if not request.user.has_perm(VIEW):
        raise PermissionDenied
    now = clock.now()
    since, read_at, chosen = _since(request, now)
    told = handover.read(since=since, read_at=read_at, now=now)
    context = {
        **admin.site.each_context(request),
        "title": _("Handover"),
        "now": now,
        "told": told,
        "chosen": chosen,
        "choices": [(name, label, name == chosen) for name, label in _CHOICES.items()],
        # What is being written while this is read must not be lost.
        "read_at": (now - OVERLAP).isoformat(),
        "stats": _stats(told),
        "opened": [words.case_line(case) for case in told.opened.rows],
        "closed": [words.case_line(case) for case in told.closed.rows],
        "settled": [(one.by or _("the machine"), words.resolution(one), one.count) for one in told.settled],
        "taken": [trail.line(deed) for deed in told.taken.rows],
        "noted": [(words.case_line(one.case), one.notes) for one in told.noted],
        "money": [trail.line(deed) for deed in [*told.money.rows, *told.orphans]],
        "settings": [trail.line(deed) for deed in told.settings.rows],
        "episodes": words.episode_lines(told, now),
        "ended": [words.lot_line(lot) for lot in told.ended.rows],
        "running": [words.lot_line(lot) for lot in told.running.rows],
        "bulk": [(run, bulk_words.label(run.verb), bulk_words.look(run), bulk_words.done_words(run)) for run in told.bulk.rows],
        "alerts": [(alert, alert_words.title(alert)) for alert in told.alerts.rows],
    }  # fmt: skip
    return TemplateResponse(request, "desk/handover.html", context)


def note_read(request: HttpRequest) -> HttpResponse:
    """Up to what was on the page, not up to the press: what has come meanwhile is told next time."""
    if not request.user.has_perm(VIEW):
        raise PermissionDenied
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    now = clock.now()
    try:
        read_at = parse_datetime(request.POST.get("read_at", "")[:64])
    except ValueError:
        read_at = None
    if read_at is None or read_at.tzinfo is None:
        messages.error(request, _("Nothing was noted: look at the handover again."))
    else:
        assert request.user.pk is not None
        visits.note_read(user_id=request.user.pk, read_at=read_at, now=now)
        messages.success(request, _("Noted: the next handover begins here."))
    return HttpResponseRedirect(reverse("admin:desk_handover"))


def _since(request: HttpRequest, now: datetime) -> tuple[datetime, datetime | None, str]:
    """From when, the last visit, and which choice it is."""
    since, read_at = handover.since_of(request.user.pk, now=now)
    chosen = request.GET.get("since", "")
    if chosen in _HOURS:
        return now - timedelta(hours=_HOURS[chosen]), read_at, chosen
    return since, read_at, ""


# --- dressing ---------------------------------------------------------------------------------------------------------


def _stats(told: Handover) -> list[dict[str, Any]]:
    """The first look: how much of each."""
    cases = reverse("admin:jobs_case_changelist")
    return [
        {"label": _("opened"), "icon": "inbox", "tone": "amber" if told.opened.count else "grey", "n": told.opened.count,
         "more": written.totals(told.opened_money), "url": "#opened"},
        {"label": _("closed"), "icon": "check-check", "tone": "green" if told.closed.count else "grey", "n": told.closed.count,
         "more": "", "url": "#closed"},
        {"label": _("decisions about money"), "icon": "banknote", "tone": "violet" if told.money.count else "grey",
         "n": told.money.count + len(told.orphans), "more": words.decided_money(told.money.rows), "url": "#money"},
        {"label": _("troubles at providers"), "icon": "plug-zap", "tone": "red" if told.episodes else "grey",
         "n": len(told.episodes), "more": "", "url": "#episodes"},
        {"label": _("open now"), "icon": "hand", "tone": "amber" if told.open_cases else "green", "n": told.open_cases,
         "more": written.totals(told.open_money), "url": cases},
    ]  # fmt: skip
