"""The chips of kept filters above a list, and their two POSTs."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from jobs.clock import clock
from jobs.lifecycle import saved_filters
from jobs.lifecycle.errors import Refused


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    assert request.user.is_authenticated
    told = request.POST
    shared = bool(told.get("shared"))
    if shared and not request.user.has_perm("jobs.share_savedfilter"):
        raise PermissionDenied
    try:
        kept = saved_filters.save(
            user_id=request.user.pk, place=told.get("place", ""), query=told.get("query", ""), name=told.get("name", ""),
            shared=shared, now=clock.now(),
        )  # fmt: skip
    except Refused as refused:
        messages.error(request, str(refused))
    else:
        messages.success(request, _("The filter is kept as “%(name)s”.") % {"name": kept.name})
    return HttpResponseRedirect(_back(request))


@require_POST
def forget(request: HttpRequest, pk: int) -> HttpResponse:
    assert request.user.is_authenticated
    others = request.user.has_perm("jobs.forget_savedfilter")
    try:
        gone = saved_filters.forget(pk=pk, user_id=request.user.pk, others=others)
    except Refused as refused:
        messages.error(request, str(refused))
    else:
        if gone is not None:
            messages.success(request, _("“%(name)s” is removed. The list can still be narrowed in the same way.") % {"name": gone.name})  # fmt: skip
    return HttpResponseRedirect(_back(request))


def _back(request: HttpRequest) -> str:
    told = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(told, allowed_hosts={request.get_host()}, require_https=request.is_secure())  # fmt: skip
    return told if safe else reverse("admin:index")
