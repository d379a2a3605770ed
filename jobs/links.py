"""Links to results that work without a login or a token, for a while: for programs, their callbacks, and browsers they send.

A link names a result and its end, signed with SECRET_KEY; whoever has it may read that one file until then.
"""

from __future__ import annotations

from datetime import UTC, datetime

from django.conf import settings
from django.core.signing import BadSignature, Signer
from django.urls import reverse

_SALT = "jobs.links"


class LinkExpiredError(Exception):
    """It was a link of ours."""


def result_link(result_id: int, *, now: datetime, lasts_s: float) -> str:
    """The address; with the site in front where PUBLIC_URL is set."""
    ends_at = int(now.timestamp() + lasts_s)
    signed = _signer().sign(f"{result_id}.{ends_at}")
    return settings.PUBLIC_URL + reverse("api:file", args=[signed])


def result_of(signed: str, *, now: datetime) -> int | None:
    """The result that a link's last part names; None where it is none of ours. Raises LinkExpiredError."""
    try:
        result_id, _dot, ends_at = _signer().unsign(signed).partition(".")
    except BadSignature:
        return None
    if now >= datetime.fromtimestamp(int(ends_at), UTC):
        raise LinkExpiredError
    return int(result_id)


def _signer() -> Signer:
    return Signer(salt=_SALT, sep=".")
