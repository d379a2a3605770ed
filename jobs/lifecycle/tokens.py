"""API tokens: made, replaced, revoked, and what each request takes of its pace.

A token's text is in no row, event or log: whoever makes one gets it once, from the call that makes it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils.translation import gettext as _

from jobs.lifecycle.errors import Refused
from jobs.lifecycle.providers import Actor
from jobs.models import ApiToken, Tenant, TenantEvent

# The first part names the token to people and finds its row, the second is the secret: 256 bits, so that one round of
# sha256 is enough to keep it.
_TEXT = re.compile(r"(desk_[a-z2-7]{10})_[A-Za-z0-9_-]{43}")
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
_NO_DIGEST = "0" * 64
PACE_S = 60.0
USED_EVERY_S = 60.0
MOST_OVERLAP = timedelta(days=30)

# One statement a request. `paced_at` runs ahead of the clock by 60 s / per_minute each time and never by more than 60 s:
# a full minute's requests may come at once. When the token was used is written once a minute. Neither is worth waiting
# for the disk: what a crash takes back is a few requests of a count.
_SPEND = """
WITH quick AS (SELECT set_config('synchronous_commit', 'off', true))
UPDATE jobs_apitoken t SET
  paced_at = greatest(t.paced_at, %(now)s) + make_interval(secs => %(pace)s / t.per_minute),
  last_used_at = CASE WHEN t.last_used_at > %(now)s - make_interval(secs => %(every)s) THEN t.last_used_at ELSE %(now)s END
FROM quick
WHERE t.id = %(token)s
  AND greatest(t.paced_at, %(now)s) + make_interval(secs => %(pace)s / t.per_minute) <= %(now)s + make_interval(secs => %(pace)s)
"""


@dataclass(frozen=True, slots=True)
class Issued:
    """`text` is what the program shows; it can't be had again."""

    token: ApiToken
    text: str

    def __repr__(self) -> str:
        return f"Issued({self.token!r})"


def issue(
    *,
    tenant: Tenant,
    name: str,
    scopes: Sequence[str],
    actor: Actor,
    now: datetime,
    per_minute: int = 600,
    expires_at: datetime | None = None,
    token_id: uuid.UUID | None = None,
    reason: str = "",
) -> Issued:
    """A new token. `token_id`: the same id twice is refused, so that a form sent twice makes one."""
    with transaction.atomic():
        made = _issue(
            tenant_id=tenant.pk, name=name, scopes=scopes, per_minute=per_minute, expires_at=expires_at, actor=actor,
            now=now, token_id=token_id, replaces=None,
        )  # fmt: skip
        _note(made.token, "token_issued", actor=actor, now=now, reason=reason, scopes=list(scopes))
    return made


def rotate(
    *,
    token_id: uuid.UUID,
    overlap: timedelta,
    actor: Actor,
    now: datetime,
    new_id: uuid.UUID | None = None,
    reason: str = "",
) -> Issued:
    """A successor with the same name, scopes and pace. The old one works for `overlap` more, unless it ends sooner."""
    if not timedelta(0) <= overlap <= MOST_OVERLAP:
        raise Refused(
            _("The old token may go on for at most %(n)d days.") % {"n": MOST_OVERLAP.days}
        )
    with transaction.atomic():
        old = ApiToken.objects.select_for_update(no_key=True).filter(pk=token_id).first()
        if old is None or not old.works(now):
            raise Refused(_("This token works no more. Make a new one."))
        made = _issue(
            tenant_id=old.tenant_id, name=old.name, scopes=old.scopes, per_minute=old.per_minute,
            expires_at=old.expires_at, actor=actor, now=now, token_id=new_id, replaces=old,
        )  # fmt: skip
        ends_at = now + overlap
        if old.expires_at is not None:
            ends_at = min(ends_at, old.expires_at)
        ApiToken.objects.filter(pk=old.pk).update(expires_at=ends_at)
        _note(
            made.token, "token_rotated", actor=actor, now=now, reason=reason,
            replaces=old.prefix, until=ends_at.isoformat(),
        )  # fmt: skip
    return made


def revoke(*, token_id: uuid.UUID, actor: Actor, now: datetime, reason: str = "") -> None:
    """From the next request on, it is as if it had never been."""
    with transaction.atomic():
        token = ApiToken.objects.select_for_update(no_key=True).filter(pk=token_id).first()
        if token is None or token.revoked_at is not None:
            raise Refused(_("This token is revoked already."))
        ApiToken.objects.filter(pk=token.pk).update(
            revoked_at=now, revoked_by_id=actor.pk if actor else None
        )
        _note(token, "token_revoked", actor=actor, now=now, reason=reason)


# --- at a request -----------------------------------------------------------------------------------------------------


def find(text: str, *, now: datetime) -> ApiToken | None:
    """The token with this text that works now, with its tenant. Whatever is wrong with it, the same is done and told."""
    match = _TEXT.fullmatch(text)
    token = (
        ApiToken.objects.select_related("tenant").filter(prefix=match[1]).first() if match else None
    )
    same = secrets.compare_digest(_digest(text), token.digest if token else _NO_DIGEST)
    return token if token is not None and same and token.works(now) else None


def spend(*, token: ApiToken, now: datetime) -> float:
    """Take one request of its pace: 0, or the seconds to wait where there is none left (and then none was taken)."""
    values: dict[str, Any] = {"token": token.pk, "now": now, "pace": PACE_S, "every": USED_EVERY_S}
    with connection.cursor() as cursor:
        cursor.execute(_SPEND, values)
        if cursor.rowcount:
            return 0.0
    paced_at = ApiToken.objects.filter(pk=token.pk).values_list("paced_at", flat=True).first()
    return wait_s(paced_at=paced_at or now, per_minute=token.per_minute, now=now)


def wait_s(*, paced_at: datetime, per_minute: int, now: datetime) -> float:
    """Until the next request fits. Above zero, as rounding and other requests may have moved either end."""
    over = (paced_at - now).total_seconds() + PACE_S / per_minute - PACE_S
    return max(over, 0.001)


def _issue(
    *,
    tenant_id: int,
    name: str,
    scopes: Sequence[str],
    per_minute: int,
    expires_at: datetime | None,
    actor: Actor,
    now: datetime,
    token_id: uuid.UUID | None,
    replaces: ApiToken | None,
) -> Issued:
    if expires_at is not None and expires_at <= now:
        raise Refused(_("That is over already. Choose a later end."))
    prefix = "desk_" + "".join(secrets.choice(_LETTERS) for _n in range(10))
    text = f"{prefix}_{secrets.token_urlsafe(32)}"
    token = ApiToken(
        id=token_id or uuid.uuid4(), tenant_id=tenant_id, name=name.strip(), prefix=prefix, digest=_digest(text),
        scopes=sorted(set(scopes)), per_minute=per_minute, created_at=now, created_by_id=actor.pk if actor else None,
        expires_at=expires_at, replaces=replaces,
    )  # fmt: skip
    try:
        token.clean_fields()
    except ValidationError as error:
        raise Refused(" ".join(f"{field}: {' '.join(words)}" for field, words in error.message_dict.items())) from None  # fmt: skip
    try:
        with transaction.atomic():
            token.save(force_insert=True)
    except IntegrityError:
        raise Refused(_("This token was made already, and its text was shown then.")) from None
    return Issued(token, text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _note(
    token: ApiToken, kind: str, *, actor: Actor, now: datetime, reason: str, **data: Any
) -> None:
    TenantEvent.objects.create(
        tenant_id=token.tenant_id, kind=kind, at=now, data={"token": f"{token.name} ({token.prefix}…)", **data},
        reason=reason.strip(), actor_id=actor.pk if actor else None,
    )  # fmt: skip
