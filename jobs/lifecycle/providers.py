"""What a refusal says about its provider: blocks, states and stopped targets."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Greatest

from jobs import policy
from providers.contract import FailureClass, Refusal, Scope
from providers.models import Account, ProviderEvent, ProviderState, Target

_STATE_OF = {
    FailureClass.RATE_LIMITED: ProviderState.State.THROTTLED,
    FailureClass.QUOTA_EXHAUSTED: ProviderState.State.QUOTA_EXHAUSTED,
    FailureClass.UNAUTHORIZED: ProviderState.State.DOWN,
}


def ensure_account(*, provider: str, fingerprint: str, now: datetime) -> Account:
    """The row of the key in use."""
    account, _made = Account.objects.get_or_create(
        provider=provider, fingerprint=fingerprint, defaults={"created_at": now}
    )
    return account


def note_refusals(*, refusals: Iterable[tuple[int, int, str, Refusal]], now: datetime) -> None:
    """`refusals`: (account id, target id, model, refusal) of free refusals. Blocks only grow: max(old, new)."""
    for account_id, target_id, model, refusal in refusals:
        if refusal.target_stops:
            Target.objects.filter(pk=target_id, stopped_at__isnull=True).update(
                stopped_at=now, stopped_reason=refusal.reason[:300]
            )
        state = _STATE_OF.get(refusal.failure)
        wait_s = _wait_s(refusal)
        if state is None or wait_s is None:
            continue
        until = now + timedelta(seconds=wait_s)
        where = model if refusal.scope is Scope.MODEL else ""
        with transaction.atomic():
            row, made = ProviderState.objects.get_or_create(
                account_id=account_id, model=where, defaults={"state": state, "since": now}
            )
            ProviderState.objects.filter(pk=row.pk).update(
                blocked_until=Greatest(Coalesce(F("blocked_until"), until), until),
                reason=refusal.reason[:300],
            )
            changed = ProviderState.objects.filter(pk=row.pk).exclude(state__in=[state, "paused"])
            if changed.update(state=state, since=now) or made:
                ProviderEvent.objects.create(
                    account_id=account_id,
                    model=where,
                    at=now,
                    kind=state,
                    data={"reason": refusal.reason[:300]},
                )


def _wait_s(refusal: Refusal) -> float | None:
    if refusal.failure is FailureClass.QUOTA_EXHAUSTED:
        return refusal.wait_s if refusal.wait_s is not None else policy.UNTOLD_QUOTA_S
    if refusal.failure is FailureClass.UNAUTHORIZED:
        return policy.KEY_REJECTED_S
    return refusal.wait_s
