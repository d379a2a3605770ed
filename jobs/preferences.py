"""Each request is written for whoever makes it: in their language, zone, calendar and digits.

Pages of the admin only: the API and webhooks speak to programs.
"""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.utils import translation
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_POST
from django.views.i18n import set_language as set_language_cookie

from jobs import manner
from jobs.clock import clock
from jobs.lifecycle.preferences import prefer
from jobs.manner import Manner
from jobs.models import Preferences


class PreferencesMiddleware:
    """Behind the session's and the user's. What is written after it (a stream's messages) is written in no manner."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path.startswith(reverse("admin:index")) or not request.user.is_authenticated:
            return self.get_response(request)
        with manner.override(of(request.user.pk)):
            request.LANGUAGE_CODE = translation.get_language() or settings.LANGUAGE_CODE
            response = self.get_response(request)
            response.headers.setdefault("Content-Language", request.LANGUAGE_CODE)
        patch_vary_headers(response, ("Cookie",))
        return response


def of(user_id: int) -> Manner:
    """What this person has chosen; their language before that of the browser."""
    asked = translation.get_language()
    row = Preferences.objects.filter(pk=user_id).first()
    if row is None:
        return Manner(asked)
    if row.language and row.language not in dict(settings.LANGUAGES):
        row.language = ""  # it is not offered any more
    return row.manner(asked)


@require_POST
def set_language(request: HttpRequest) -> HttpResponse:
    """Django's, which leaves a cookie; whoever is logged in finds the language again in any browser."""
    language = request.POST.get("language", "")
    if request.user.is_authenticated and language in dict(settings.LANGUAGES):
        assert request.user.pk is not None
        prefer(user_id=request.user.pk, language=language, now=clock.now())
    return set_language_cookie(request)
