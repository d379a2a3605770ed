"""Who asks: a token in the Authorization header, what it may do, and its pace.

The scope is looked at before anything else is, and a token that is wrong, revoked or over gets one and the same answer, so
that no answer tells what exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _

from jobs.api.problems import Code, Problem
from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.models import ApiToken, Tenant

Scope = ApiToken.Scope


@dataclass(frozen=True, slots=True)
class Caller:
    token: ApiToken
    tenant: Tenant

    @property
    def program(self) -> str:
        """As it stands in timelines."""
        return str(self.token)


class Bearer:
    """For one scope."""

    openapi_security_schema = {"type": "http", "scheme": "bearer"}

    def __init__(self, scope: str) -> None:
        self.scope = scope

    def __call__(self, request: HttpRequest) -> Caller:
        kind, _space, text = request.headers.get("Authorization", "").partition(" ")
        now = clock.now()
        token = tokens.find(text.strip(), now=now) if kind.lower() == "bearer" else None
        if token is None:
            raise Problem(
                Code.UNAUTHORIZED, _("Send “Authorization: Bearer …” with a token that works.")
            )
        wait_s = tokens.spend(token=token, now=now)
        if wait_s:
            raise Problem(
                Code.PACE,
                _("This token may ask %(n)d times a minute.") % {"n": token.per_minute},
                retry_after_s=wait_s,
            )
        if self.scope not in token.scopes:
            raise Problem(
                Code.SCOPE, _("It lacks the scope “%(scope)s”.") % {"scope": str(self.scope)}
            )
        return Caller(token, token.tenant)


SUBMIT, READ, CANCEL = Bearer(Scope.SUBMIT), Bearer(Scope.READ), Bearer(Scope.CANCEL)


def caller(request: Any) -> Caller:
    """Of a request that has passed."""
    found: Caller = request.auth
    return found
