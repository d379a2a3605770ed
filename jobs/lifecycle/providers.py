"""Changing what is known of a provider: blocks, breaker, probe, free reads, and what staff set.

Every verb locks the row, reckons with providers/health.py and writes row and event in one transaction; where nothing
changes it writes nothing and says False. Lock order: jobs, then tasks, then these rows by account and model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.db import transaction
from django.db.models import Min, Q
from django.utils.translation import gettext as _

from jobs import bell
from jobs.lifecycle import alerts
from jobs.lifecycle.errors import Refused
from jobs.models import ProviderTask
from providers import health
from providers.contract import FailureClass, Refusal, Scope
from providers.health import Block, Gate, Health, Probe, Read
from providers.models import Account, ProviderEvent, ProviderState, QuotaWindow, Target
from providers.word import changes

Actor = AbstractBaseUser | None
Key = tuple[int, str]  # account id, model ("": the whole account)

READ_LEASE_S = 60.0
# The probe's lease before the provider has accepted it: fence, call and margin. The facts end it sooner.
PROBE_LEASE_S = 120.0
_BLOCK_OF = {
    FailureClass.RATE_LIMITED: Block.THROTTLED,
    FailureClass.QUOTA_EXHAUSTED: Block.QUOTA,
}
CANCELLED = ("cancelled", "canceled")


# --- one row ----------------------------------------------------------------------------------------------------------


def locked_row(account_id: int, model: str, *, now: datetime) -> ProviderState:
    """The row under its lock, made where there is none. Inside a transaction."""
    ProviderState.objects.bulk_create(
        [ProviderState(account_id=account_id, model=model, since=now)], ignore_conflicts=True
    )
    return ProviderState.objects.select_for_update(no_key=True).get(
        account_id=account_id, model=model
    )


def write_row(
    row: ProviderState,
    new: Health,
    *,
    now: datetime,
    actor: Actor = None,
    data: Mapping[str, Any] | None = None,
) -> bool:
    """Row and events, if anything changed; `data` goes into the events. Lanes hear of it where sends may go out again."""
    old = row.health()
    if new == old:
        return False
    row.put(new, now=now)
    if new.gate is not Gate.OPEN or old.gate is not Gate.OPEN or new.next_try_at != old.next_try_at:
        row.look_until = None
    row.save()
    told = [(kind, {**said, **(data or {})}) for kind, said in changes(old, new, now=now)]
    ProviderEvent.objects.bulk_create(
        ProviderEvent(
            account_id=row.account_id, model=row.model, at=now, kind=kind, data=said,
            actor_id=actor.pk if actor else None,
        )
        for kind, said in told
    )  # fmt: skip
    episode_at = new.opened_at or old.opened_at or now
    alerts.note(
        account_id=row.account_id, model=row.model, told=told, episode_at=episode_at, now=now
    )
    shut = health.may_send(old, unanswered=0, now=now) == 0
    if shut and health.may_send(new, unanswered=0, now=now) != 0:
        bell.ring()
    return True


def _change(
    key: Key,
    change: Callable[[Health], Health],
    *,
    now: datetime,
    actor: Actor = None,
    data: Mapping[str, Any] | None = None,
    make: bool = True,
) -> bool:
    """`make` False: where there is no row, there is nothing to change."""
    with transaction.atomic():
        if not make and not ProviderState.objects.filter(account_id=key[0], model=key[1]).exists():
            return False
        row = locked_row(*key, now=now)
        return write_row(row, change(row.health()), now=now, actor=actor, data=data)


# --- accounts and refusals --------------------------------------------------------------------------------------------


def ensure_account(*, provider: str, fingerprint: str, now: datetime) -> Account:
    """The row of the key in use. A new key takes over the limits that staff have set for the one before."""
    with transaction.atomic():
        account, made = Account.objects.get_or_create(
            provider=provider, fingerprint=fingerprint, defaults={"created_at": now}
        )
        if made:
            before = Account.objects.filter(provider=provider).exclude(pk=account.pk)
            windows = QuotaWindow.objects.filter(account=before.order_by("-pk").first())
            QuotaWindow.objects.bulk_create(_copies(windows, account))
    return account


def _copies(windows: Iterable[QuotaWindow], account: Account) -> Iterable[QuotaWindow]:
    for window in windows:
        window.pk, window.account = None, account
        yield window


def note_refusals(*, refusals: Iterable[tuple[int, int, str, Refusal]], now: datetime) -> None:
    """`refusals`: (account id, target id, model, refusal) of free refusals. Blocks only grow: max(old, new)."""
    for account_id, target_id, model, refusal in refusals:
        reason = refusal.reason[:300]
        if refusal.target_stops:
            _stop_target(target_id, account_id=account_id, reason=reason, now=now)
        where = model if refusal.scope is Scope.MODEL else ""
        if refusal.failure in _BLOCK_OF:
            block = partial(
                health.block, kind=_BLOCK_OF[refusal.failure], wait_s=refusal.wait_s, now=now,
                spread=random.random(), reason=reason,  # noqa: S311  jitter
            )  # fmt: skip
            _change((account_id, where), block, now=now)
        elif refusal.failure is FailureClass.UNAUTHORIZED:
            rejected = partial(health.key_rejected, now=now, reason=reason)
            _change((account_id, ""), rejected, now=now)


def _stop_target(target_id: int, *, account_id: int, reason: str, now: datetime) -> None:
    with transaction.atomic():
        target = Target.objects.filter(pk=target_id, stopped_at__isnull=True)
        if target.update(stopped_at=now, stopped_reason=reason):
            model = Target.objects.values_list("model", flat=True).get(pk=target_id)
            ProviderEvent.objects.create(
                account_id=account_id, model=model, at=now, kind="target_stopped", data={"reason": reason}
            )  # fmt: skip


# --- the one probe ----------------------------------------------------------------------------------------------------


def take_probe(
    *, task_id: UUID, account_id: int, model: str, now: datetime, lease_s: float = PROBE_LEASE_S
) -> bool:
    """The lease of every half-open row that this send must pass, in its task's name, or none of them.

    True also where no row is half-open. False: somebody else's probe is on its way, or the way is shut.
    """
    until = now + timedelta(seconds=lease_s)
    with transaction.atomic():
        rows = list(
            ProviderState.objects.select_for_update(no_key=True)
            .filter(account_id=account_id, model__in={"", model})
            .order_by("account_id", "model")
        )
        leased = []
        for row in rows:
            old = row.health()
            if old.gate is Gate.HALF_OPEN:
                new = health.take_probe(old, task_id=task_id, until=until, now=now)
                if new is None:
                    return False
                leased.append((row, new))
            elif health.may_send(old, unanswered=0, now=now) == 0:
                return False
        for row, new in leased:
            write_row(row, new, now=now)
    return True


def settle_probes(*, poll_deadline_s: float, now: datetime) -> int:
    """End the probes whose task has come to an end, or whose lease has; how many. For the health stage, every second."""
    count = 0
    with transaction.atomic():
        for row in (
            ProviderState.objects.select_for_update(no_key=True, skip_locked=True)
            .filter(probe_id__isnull=False)
            .order_by("account_id", "model")
        ):
            new = settled(row.health(), poll_deadline_s, now=now)
            count += new.probe_id is None
            write_row(row, new, now=now)
    return count


def settled(one: Health, poll_deadline_s: float, *, now: datetime) -> Health:
    """The probe as its task's facts tell. Accepted, it may take as long as any job may be polled."""
    if one.probe_id is None:
        return one
    task = ProviderTask.objects.filter(pk=one.probe_id).first()
    if task is None:
        return health.after_probe(one, Probe.RUNNING, now=now)
    if task.state == ProviderTask.State.ACCEPTED and task.armed_at is not None:
        one = health.probe_lasts(one, until=task.armed_at + timedelta(seconds=poll_deadline_s))
    failure = task.failure_class or task.refusal_class
    cancelled = task.failed_at is not None and task.last_status in CANCELLED
    died = task.lost_at is not None and not task.evidence
    probe = health.probe_result(
        state=task.state,
        failure=FailureClass(failure) if failure else None,
        ours=task.ours or cancelled or died,
        has_result=True
        if task.files or task.result_text
        else None
        if task.next_fetch_at is not None
        else False,
    )
    return health.after_probe(one, probe, now=now, reason=task.failure_text[:300])


# --- free reads -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRead:
    """A row whose provider is to be asked, for nothing, whether it is up. `model` "": the whole account."""

    state_id: int
    account_id: int
    provider: str
    model: str


def take_reads(
    *, fingerprints: Sequence[str], now: datetime, lease_s: float = READ_LEASE_S
) -> list[DueRead]:
    """Open breakers whose next try is due, for this lane alone until the lease ends."""
    with transaction.atomic():
        rows = list(
            ProviderState.objects.select_for_update(no_key=True, skip_locked=True, of=("self",))
            .select_related("account")
            .filter(gate=Gate.OPEN, next_try_at__lte=now, account__fingerprint__in=fingerprints)
            .filter(Q(look_until__isnull=True) | Q(look_until__lte=now))
            .exclude(state=ProviderState.State.PAUSED)
            .order_by("account_id", "model")
        )
        ProviderState.objects.filter(pk__in=[row.pk for row in rows]).update(
            look_until=now + timedelta(seconds=lease_s)
        )
    return [
        DueRead(state_id=row.pk, account_id=row.account_id, provider=row.account.provider, model=row.model)
        for row in rows
    ]  # fmt: skip


def note_free_read(*, state_id: int, read: Read, now: datetime, reason: str = "") -> bool:
    """What the read told (Read.NONE where the provider has no such call). False: nothing was due any more."""
    with transaction.atomic():
        row = ProviderState.objects.select_for_update(no_key=True).get(pk=state_id)
        new = health.after_free_read(row.health(), read, now=now, reason=reason)
        return write_row(row, new, now=now)


# --- what staff may do ------------------------------------------------------------------------------------------------
# Each raises Refused with a sentence for people where there is nothing to change.


def pause(*, account_id: int, model: str = "", actor: Actor, now: datetime, reason: str) -> None:
    """Nothing more is sent there until somebody resumes; polls and fetches go on."""

    def change(one: Health) -> Health:
        quiet = one.gate is Gate.CLOSED and not one.blocked(now)
        return (
            one if one.paused else replace(one, paused=True, reason=reason if quiet else one.reason)
        )

    if not _change((account_id, model), change, now=now, actor=actor, data={"why": reason}):
        raise Refused(_("It is paused already."))


def resume(*, account_id: int, model: str = "", actor: Actor, now: datetime) -> None:
    def change(one: Health) -> Health:
        quiet = one.gate is Gate.CLOSED and not one.blocked(now)
        return replace(one, paused=False, reason="" if quiet else one.reason) if one.paused else one

    if not _change((account_id, model), change, now=now, actor=actor, make=False):
        raise Refused(_("It is not paused."))


def block_until(
    *,
    account_id: int,
    model: str = "",
    until: datetime,
    actor: Actor,
    now: datetime,
    reason: str = "",
) -> None:
    if until <= now:
        raise Refused(_("That moment is past."))
    change = partial(health.block_by_staff, until=until, reason=reason, now=now)
    if not _change((account_id, model), change, now=now, actor=actor, data={"why": reason}):
        raise Refused(_("It is blocked for longer than that already."))


def unblock(*, account_id: int, model: str = "", actor: Actor, now: datetime) -> None:
    """Whoever blocked it. What the provider then says counts anew."""

    def change(one: Health) -> Health:
        return health.unblock(one) if one.blocked(now) else one

    if not _change((account_id, model), change, now=now, actor=actor, make=False):
        raise Refused(_("It is not blocked."))


def probe_now(*, account_id: int, model: str = "", actor: Actor, now: datetime) -> None:
    """The next try is due at once: a free read where there is one, then one job."""

    def change(one: Health) -> Health:
        return health.try_now(one, now=now)

    if not _change((account_id, model), change, now=now, actor=actor, make=False):
        raise Refused(_("Nothing is to be tried: it is not down, or the next try is due already."))
    bell.ring()


def topped_up(
    *, account_id: int, balance: Decimal | None, currency: str, actor: Actor, now: datetime
) -> int:
    """ "I have topped up": a free balance read decides. Ends the account's quota blocks where it pays for one generation
    of its cheapest open target; how many. `balance` None: it could not be read."""
    if balance is None:
        raise Refused(_("The balance could not be read."))
    with transaction.atomic():
        account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        account.balance, account.balance_currency, account.balance_at = balance, currency, now
        account.save(update_fields=["balance", "balance_currency", "balance_at"])
        open_targets = Target.objects.filter(
            provider=account.provider, enabled=True, stopped_at__isnull=True
        )
        price = open_targets.aggregate(least=Min("price"))["least"] or Decimal(0)
        enough = balance > 0 and balance >= price
        rows = list(
            ProviderState.objects.select_for_update(no_key=True)
            .filter(account=account)
            .order_by("account_id", "model")
        )
        ended = 0
        for row in rows:
            old = row.health()
            if enough and old.block is Block.QUOTA and old.blocked(now):
                ended += write_row(
                    row, health.unblock(old), now=now, actor=actor, data={"balance": str(balance)}
                )
    if not enough:
        raise Refused(
            _("The balance is %(balance)s %(currency)s: too little for one generation.")
            % {"balance": f"{balance:.2f}", "currency": currency}
        )
    return ended


def silence_alerts(*, account_id: int, silenced: bool, actor: Actor, now: datetime) -> None:
    """Whether anybody is told of this account's outages and of its key and balance. They are recorded and shown anyway."""
    with transaction.atomic():
        account = Account.objects.select_for_update(no_key=True).get(pk=account_id)
        if account.alerts_silenced == silenced:
            raise Refused(
                _("Its alerts are silenced already.") if silenced
                else _("Its alerts are not silenced.")
            )  # fmt: skip
        account.alerts_silenced = silenced
        account.save(update_fields=["alerts_silenced"])
        ProviderEvent.objects.create(
            account=account, at=now, kind="alerts_silenced" if silenced else "alerts_unsilenced",
            actor_id=actor.pk if actor else None,
        )  # fmt: skip
        if silenced:
            alerts.silence(account_id=account_id)
