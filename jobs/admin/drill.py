"""The demo's trouble at the push of a button: the sandbox breaks for a minute, or its quota is used up.

Only where the configured provider is the sandbox (settings.ON_SANDBOX: the demo without a key); elsewhere there is no such
address, and nothing of it is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
)
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from jobs import manner, routes, written
from jobs.clock import clock
from jobs.intake import check_prompt
from jobs.lifecycle.create import NewJob, create_jobs, default_tenant
from jobs.manner import Digits
from providers import drill
from providers.contract import Kind
from providers.drill import LENGTH_S, Away, Trouble

PERMISSION = "jobs.press_hold"  # whoever may stop all sends may try what stops them
PICTURES = 5
_END = "end"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the card says. `going` None: all is well; `ends_at` None: it ends by hand. `away`: why nothing is known."""

    provider: str
    going: Trouble | None = None
    ends_at: datetime | None = None
    left: str = ""
    numbering: str = "latn"  # the digits of the countdown, as browsers call them
    away: str = ""
    length_s: int = LENGTH_S
    pictures: int = PICTURES


def shown(request: HttpRequest) -> Shown | None:
    """None: not in the demo on the sandbox, or not for this person."""
    if not settings.ON_SANDBOX or not request.user.has_perm(PERMISSION):
        return None
    provider = settings.AI_PROVIDER.title()
    try:
        found = async_to_sync(drill.going)(settings.SANDBOX_URL)
    except Away as away:
        return Shown(provider, away=str(away))
    if found is None:
        return Shown(provider)
    if found.left_s is None:
        return Shown(provider, going=found.trouble)
    return Shown(
        provider,
        going=found.trouble,
        ends_at=clock.now() + timedelta(seconds=found.left_s),
        left=written.duration(round(found.left_s)),
        numbering="arabext" if manner.digits() is Digits.PERSIAN else "latn",
    )


def page(request: HttpRequest, what: str) -> HttpResponse:
    """POST begins a trouble or ends it, and goes back to where it was pressed."""
    if not settings.ON_SANDBOX or what not in {*Trouble, _END}:
        raise Http404
    if not request.user.has_perm(PERMISSION):
        raise PermissionDenied
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    try:
        _do(request, what)
    except Away as away:
        messages.error(
            request,
            _("The sandbox does not answer (%(why)s). Is the demo running?") % {"why": away},
        )
    return HttpResponseRedirect(_back(request))


def _do(request: HttpRequest, what: str) -> None:
    provider = settings.AI_PROVIDER.title()
    if what == _END:
        async_to_sync(drill.end)(settings.SANDBOX_URL)
        messages.success(request, _("The sandbox is well again; what was noted of %(provider)s lasts a little longer.") % {"provider": provider})  # fmt: skip
        return
    async_to_sync(drill.begin)(settings.SANDBOX_URL, Trouble(what))
    words = (
        _("The sandbox plays an outage of %(provider)s for a minute: watch its state.")
        if what == Trouble.OUTAGE
        else _(
            "The sandbox says that the quota of %(provider)s is used up, for a minute: watch its state."
        )
    )
    messages.success(request, words % {"provider": provider})
    # Only sends show what a provider is like.
    if request.POST.get("pictures") and request.user.has_perm("jobs.add_job"):
        _ask_for_pictures(request)


def _ask_for_pictures(request: HttpRequest) -> None:
    assert request.user.is_authenticated
    now = clock.now()
    tenant = default_tenant()
    prompts = [
        check_prompt(_("A lighthouse in a storm, number %(n)s") % {"n": n})
        for n in range(1, PICTURES + 1)
    ]
    routing = routes.routing([], tenant=tenant)
    create_jobs(
        jobs=[NewJob(prompt=one, route=route, kind=Kind(route[0].kind)) for one in prompts for route in (routing.of(one),)],
        tenant=tenant, actor=request.user, now=now, label=_("Sandbox: pictures asked for in trouble"),
    )  # fmt: skip


def _back(request: HttpRequest) -> str:
    wanted = request.POST.get("next", "")
    fine = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, request.is_secure())
    return wanted if fine else reverse("admin:index")
