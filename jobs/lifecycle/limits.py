"""What staff set about limits: a target's own, an account's quota windows; and opening a target that was stopped.

Each raises Refused with a sentence for people where there is nothing to change, and writes its event with the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils.translation import gettext as _

from jobs import bell
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.providers import Actor
from providers.models import Account, ProviderEvent, QuotaWindow, Target


def limit_target(
    *, target_id: int, most: int | None, actor: Actor, now: datetime, reason: str = ""
) -> None:
    """At most so many of the target in flight; None: only the other limits hold."""
    if most is not None and most < 1:
        raise Refused(_("Pause it instead of allowing none."))
    with transaction.atomic():
        target = Target.objects.select_for_update(no_key=True).get(pk=target_id)
        if target.max_in_flight == most:
            raise Refused(_("That is its limit already."))
        before, target.max_in_flight = target.max_in_flight, most
        target.save(update_fields=["max_in_flight"])
        _target_event(
            target.provider, target.model, "limits_changed", actor=actor, now=now, before=before, after=most, **_why(reason)
        )  # fmt: skip
        bell.ring()


def limit_window(
    *,
    account_id: int,
    model: str = "",
    seconds: int | None,
    most: int | None,
    actor: Actor,
    now: datetime,
    resets: str = QuotaWindow.Resets.ROLLING,
    anchor_at: datetime | None = None,
    zone: str = "UTC",
    reason: str = "",
) -> None:
    """Set the window of that length, or (`most` None) drop it. `seconds` None: so many in flight at once."""
    values = {"most": most, "resets": resets, "anchor_at": anchor_at, "zone": zone}
    with transaction.atomic():
        account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        window = QuotaWindow.objects.filter(account=account, model=model, seconds=seconds)
        old = window.values(*values).first()
        if (old is None and most is None) or old == values:
            raise Refused(_("Nothing was changed."))
        if most is None:
            window.delete()
        else:
            new = QuotaWindow(account=account, model=model, seconds=seconds, **values)
            _check(new)
            window.delete()
            new.save()
        ProviderEvent.objects.create(
            account=account, model=model, at=now, kind="limits_changed", actor_id=actor.pk if actor else None,
            data={
                "seconds": seconds, "before": old["most"] if old else None, "after": most,
                "set": _differences(old, values) if old and most is not None else {}, **_why(reason),
            },
        )  # fmt: skip
        bell.ring()


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, list[str]]:
    """Before and after of what changed beside the number, as text."""
    return {
        name: [str(old[name] or ""), str(value or "")]
        for name, value in new.items()
        if name != "most" and old[name] != value
    }


def _check(window: QuotaWindow) -> None:
    try:
        window.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        raise Refused(" ".join(error.messages)) from error
    fixed = window.resets == QuotaWindow.Resets.FIXED
    if fixed and (window.anchor_at is None or window.seconds is None):
        raise Refused(_("A window at fixed times needs its length and its anchor."))
    if window.most < 1 or window.seconds == 0:
        raise Refused(_("Pause it instead of allowing none."))


def open_target(*, target_id: int, actor: Actor, now: datetime) -> None:
    """A target that the provider called wrong has been mended."""
    with transaction.atomic():
        target = Target.objects.select_for_update(no_key=True).get(pk=target_id)
        if target.stopped_at is None:
            raise Refused(_("It is not stopped."))
        Target.objects.filter(pk=target_id).update(stopped_at=None, stopped_reason="")
        _target_event(target.provider, target.model, "target_opened", actor=actor, now=now)
        bell.ring()


def _why(reason: str) -> dict[str, str]:
    return {"why": reason.strip()} if reason.strip() else {}


def _target_event(
    provider: str, model: str, kind: str, *, actor: Actor, now: datetime, **data: Any
) -> None:
    """A target belongs to no account; its event stands in the timeline of the newest one of its provider."""
    account = Account.objects.filter(provider=provider).order_by("-pk").first()
    if account is not None:
        ProviderEvent.objects.create(
            account=account, model=model, at=now, kind=kind, data=data, actor_id=actor.pk if actor else None
        )  # fmt: skip
