"""Lanes as staff see them, and what an owner may ask of one: to begin anew, to stay out of work, to come back."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import AbstractBaseUser
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs.admin.changelist import EmptyState, MachineAdmin
from jobs.admin.confirm import VerbsMixin
from jobs.admin.verb import Effect, Verb
from jobs.admin.verbs import allowed
from jobs.clock import clock
from jobs.dashboard import LaneView, lane_view
from jobs.display import Look
from jobs.lifecycle import lanes as verbs
from jobs.models import Lane
from jobs.templatetags import desk

PERMISSION = "jobs.drain_lane"


def look(view: LaneView) -> Look:
    if view.dead:
        return Look(_("dead"), "unplug", "red")
    if view.alive:
        if view.lane.draining:
            return Look(pgettext_lazy("lane", "ending"), "hourglass", "amber")
        return Look(_("alive"), "", "green")
    if view.lane.closed_at is not None:
        return Look(_("out of work"), "circle-pause", "grey")
    return Look(_("free"), "circle-dashed", "outline")


def _kept(lane: Lane, actor: AbstractBaseUser, words: str, reason: str) -> None:
    """In the trail: who asked for what, and why."""
    LogEntry.objects.create(
        user_id=actor.pk, content_type=ContentType.objects.get_for_model(Lane), object_id=str(lane.pk),
        object_repr=f"{lane}: {words}", action_flag=CHANGE, action_time=clock.now(),
        change_message=json.dumps([{"changed": {"fields": [words]}, "why": reason.strip()}]),
    )  # fmt: skip


def _restart(lane: Lane, actor: AbstractBaseUser, now: datetime, data: dict[str, Any]) -> None:
    verbs.restart(slot=lane.slot, now=now)
    _kept(lane, actor, "restart", data["reason"])


def _drain(lane: Lane, actor: AbstractBaseUser, now: datetime, data: dict[str, Any]) -> None:
    verbs.drain(slot=lane.slot, now=now)
    _kept(lane, actor, "drain", data["reason"])


def _reopen(lane: Lane, actor: AbstractBaseUser, now: datetime, data: dict[str, Any]) -> None:
    verbs.reopen(slot=lane.slot, now=now)
    _kept(lane, actor, "reopen", data["reason"])


def _ends(_lane: Lane) -> list[Effect]:
    return [
        Effect("hourglass", _("Within five seconds it sends nothing more, and its slice ends.")),
        Effect("eye", _("Calls under way come to their end; what was sent is still watched and fetched, by other lanes.")),
    ]  # fmt: skip


RESTART = Verb(
    name="restart",
    permission=PERMISSION,
    label=pgettext_lazy("lane", "Restart"),
    title=gettext_lazy("Let this lane end and begin anew?"),
    icon="rotate-ccw",
    done=gettext_lazy("The lane ends. Another run takes its slot as soon as there is work."),
    effects=lambda lane: [
        *_ends(lane),
        Effect("play", _("Another run takes its slot as soon as there is work.")),
        Effect("info", _("It runs the same code as before: new code comes with a restart of the workers.")),
    ],
    offered=lambda lane: lane.run_id is not None and not lane.draining,
    run=_restart,
)  # fmt: skip
DRAIN = Verb(
    name="drain",
    permission=PERMISSION,
    label=pgettext_lazy("lane", "Drain"),
    title=gettext_lazy("Take this lane out of work?"),
    icon="circle-pause",
    done=gettext_lazy("The lane ends, and stays out of work until somebody puts it back."),
    effects=lambda lane: [
        *_ends(lane),
        Effect("lock", _("Nobody takes its slot until somebody puts it back. The other lanes go on.")),
    ],
    offered=lambda lane: lane.closed_at is None,
    run=_drain,
)  # fmt: skip
REOPEN = Verb(
    name="reopen",
    permission=PERMISSION,
    label=pgettext_lazy("lane", "Put back to work"),
    title=gettext_lazy("Put this lane back to work?"),
    icon="play",
    done=gettext_lazy("The lane may run again."),
    effects=lambda _lane: [Effect("play", _("A run takes its slot as soon as there is work."))],
    offered=lambda lane: lane.closed_at is not None,
    run=_reopen,
)
VERBS = (REOPEN, RESTART, DRAIN)


@admin.register(Lane)
class LaneAdmin(VerbsMixin, MachineAdmin):
    verbs = VERBS
    list_display = (
        "slot", "state_cell", "host", "pid", "version", "heartbeat_cell", "started_cell",
    )  # fmt: skip
    ordering = ("slot",)
    sortable_by = ()
    actions = None
    empty = EmptyState(
        "cpu",
        gettext_lazy("No lane has ever run"),
        gettext_lazy("Start workers with: manage.py qcluster"),
    )

    @admin.display(description=gettext_lazy("state"))
    def state_cell(self, lane: Lane) -> SafeString:
        return desk.pill(look(lane_view(lane, now=clock.now())))

    @admin.display(description=gettext_lazy("heartbeat"))
    def heartbeat_cell(self, lane: Lane) -> SafeString:
        return desk.ago(lane.heartbeat_at, clock.now())

    @admin.display(description=gettext_lazy("started"))
    def started_cell(self, lane: Lane) -> SafeString:
        return desk.ago(lane.started_at, clock.now())

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        lane = self.get_object(request, object_id)
        if lane is None:
            raise Http404
        if not self.has_view_permission(request, lane):
            raise PermissionDenied
        now = clock.now()
        view = lane_view(lane, now=now)
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "title": _("Lane %(n)s") % {"n": lane.slot},
            "now": now,
            "lane": lane,
            "view": view,
            "look": look(view),
            "release": settings.RELEASE,
            "verbs": allowed(self.verbs, request.user, lane),
        }
        return TemplateResponse(request, "desk/lane.html", context)
