"""The minute's look for what only a person can settle: an empty balance, an overdue desk, results about to expire, rows
that nothing comes back to. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Count, Exists, Min, OuterRef, Q

from jobs.alert_rules import AlertKind, Matter
from jobs.models import Case, ProviderTask
from jobs.states import TaskState
from jobs.stuck import stuck
from providers import registry, scarcity
from providers.evidence import fold
from providers.health import Block
from providers.models import Account, ProviderState, Target

# A result that is still not here so long before the provider forgets it, and whose fetch has been tried for a while.
EXPIRY_S = 24 * 3600.0
FETCH_TAKES_S = 15 * 60.0
# Rows are told of once they have been stuck for so long since they were first seen.
STUCK_HOLD_S = 90.0
_ROWS_KEPT = 200


def matters(*, now: datetime) -> list[Matter]:
    """Everything a person must do, as it stands now."""
    return [*_balances(now), *_overdue(now), *_expiring(now), *_stuck(now)]


def accounts_in_use() -> dict[str, Account]:
    """By provider: the accounts that a key is set for, as far as they have ever been used."""
    found = {}
    for provider in registry.ADAPTERS:
        try:
            fingerprint = registry.account(provider).fingerprint
        except ImproperlyConfigured:
            continue
        account = Account.objects.filter(provider=provider, fingerprint=fingerprint).first()
        if account is not None:
            found[provider] = account
    return found


def speaks_of_money(reason: str) -> bool:
    """Whether the reason of a quota block means that somebody must pay. What comes back by itself with the next day or week
    is a quota, and nobody need wake up for it, whatever status or machine word it comes under."""
    said = fold(reason)
    money = scarcity.MONEY.search(said) or scarcity.MONEY_ADVICE.search(said)
    return bool(money or said.startswith("http 402")) and not scarcity.LONG_WINDOW.search(said)


def _balances(now: datetime) -> Iterator[Matter]:
    accounts = accounts_in_use()
    blocked = {
        row.account_id: row.reason
        for row in ProviderState.objects.filter(
            account__in=list(accounts.values()), model="", block=Block.QUOTA, blocked_until__gt=now
        )
    }
    for provider, account in accounts.items():
        reason = blocked.get(account.pk, "")
        if not speaks_of_money(reason) and not _too_little(provider, account):
            continue
        balance = None if account.balance is None else f"{account.balance:.2f}"
        yield Matter(
            kind=AlertKind.BALANCE, account_id=account.pk, silenced=account.alerts_silenced,
            data={"balance": balance, "currency": account.balance_currency, "reason": reason},
        )  # fmt: skip


def _too_little(provider: str, account: Account) -> bool:
    """By the balance last read, unless something was accepted since: then it says nothing any more."""
    if account.balance is None or account.balance_at is None:
        return False
    targets = Target.objects.filter(
        provider=provider, enabled=True, stopped_at__isnull=True, currency=account.balance_currency
    )
    least = targets.aggregate(least=Min("price"))["least"]
    if account.balance > 0 and (least is None or account.balance >= least):
        return False
    return not account.tasks.filter(
        armed_at__gt=account.balance_at, accepted_at__isnull=False
    ).exists()


def _overdue(now: datetime) -> Iterator[Matter]:
    late = Case.objects.filter(resolved_at__isnull=True, due_at__lt=now)
    told = late.aggregate(count=Count("pk"), oldest=Min("opened_at"))
    if told["count"]:
        yield Matter(
            kind=AlertKind.OVERDUE,
            data={"count": told["count"], "oldest_at": told["oldest"].isoformat()},
        )


def _expiring(now: datetime) -> Iterator[Matter]:
    """Paid for, made, not here yet. What a person has settled, with or without its file, is none of these."""
    open_case = Case.objects.filter(task=OuterRef("pk"), resolved_at__isnull=True)
    soon = ProviderTask.objects.filter(
        Q(next_fetch_at__isnull=False) | Exists(open_case),
        state=TaskState.COMPLETED,
        completed_at__lte=now - timedelta(seconds=FETCH_TAKES_S),
        watch_until__gt=now,
        watch_until__lte=now + timedelta(seconds=EXPIRY_S),
    )
    told = soon.aggregate(count=Count("pk"), first=Min("watch_until"))
    if told["count"]:
        yield Matter(
            kind=AlertKind.EXPIRING,
            data={"count": told["count"], "first_at": told["first"].isoformat()},
        )


def _stuck(now: datetime) -> Iterator[Matter]:
    found = stuck(now=now)
    if found:
        yield Matter(
            kind=AlertKind.STUCK, hold_s=STUCK_HOLD_S, data={"count": len(found)},
            rows=frozenset(f"{one.kind} {one.id}" for one in found[:_ROWS_KEPT]),
        )  # fmt: skip
