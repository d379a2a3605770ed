"""providers: what state each account and model is in."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand
from django.db.models import Count
from django.utils.translation import gettext as _

from jobs.clock import clock
from jobs.models import ProviderTask
from providers import registry
from providers.contract import Account as Reached
from providers.contract import Adapter, Answer, NoAnswer
from providers.http import Transport
from providers.models import Account, ProviderState, Target

EXIT_UNREAD = 3
DEADLINE_S = 15.0


class Command(BaseCommand):
    help = (
        "Show each account and model: state, since, until, why, in flight and limit. "
        "Exit codes: 0 done, 3 a balance could not be read."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        parser.add_argument(
            "--balance", action="store_true", help="ask each account what money is left (free)"
        )

    def handle(self, **options: Any) -> None:
        now = clock.now()
        told = {
            "in_flight": _flying(now).count(),
            "limit": settings.WORKER_CONCURRENCY,
            "accounts": [_account(account, now) for account in Account.objects.order_by("pk")],
        }
        if options["balance"]:
            _add_balances(told["accounts"], now)
        if options["as_json"]:
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        else:
            self._print(told)
        if any(account.get("balance_trouble") for account in told["accounts"]):
            sys.exit(EXIT_UNREAD)

    def _print(self, told: dict[str, Any]) -> None:
        self.stdout.write(
            _("In flight: %(n)s of %(most)s") % {"n": told["in_flight"], "most": told["limit"]}
        )
        for account in told["accounts"]:
            key = "" if account["key_set"] else " " + _("(no key is set for it)")
            self.stdout.write(f"{account['name']}{key}: {_words(account)}")
            if account.get("balance"):
                self.stdout.write(f"  {_('balance')}: {account['balance']} {account['currency']}")
            if account.get("balance_trouble"):
                self.stdout.write(f"  {_('balance')}: {account['balance_trouble']}")
            for model in account["models"]:
                most = model["limit"] if model["limit"] is not None else "-"
                self.stdout.write(
                    f"  {model['name']}: {_words(model)}; {model['in_flight']}/{most} {_('in flight')}"
                )
        if not told["accounts"]:
            self.stdout.write(_("No account has been used yet."))


def _words(row: dict[str, Any]) -> str:
    parts = [str(row["words"])]
    if row["since"]:
        parts.append(_("since %(at)s") % {"at": row["since"][:19]})
    if row["until"]:
        parts.append(_("until %(at)s") % {"at": row["until"][:19]})
    if row["reason"]:
        parts.append(row["reason"])
    return ", ".join(parts)


def _flying(now: datetime) -> Any:
    return ProviderTask.objects.in_flight(now=now, poll_deadline_s=settings.POLL_DEADLINE_SEC)


def _account(account: Account, now: datetime) -> dict[str, Any]:
    """An account with the models of its provider, as plain values."""
    states = {row.model: row for row in account.states.all()}
    flying = dict(
        _flying(now)
        .filter(account=account)
        .order_by()
        .values_list("target_id")
        .annotate(n=Count("pk"))
    )
    targets = Target.objects.filter(provider=account.provider).order_by("pk")
    return {
        "id": account.pk,
        "provider": account.provider,
        "name": str(account),
        "key_set": _reached(account) is not None,
        **_state(states.get(""), now),
        "models": [
            {
                "name": target.name,
                **(_state(states.get(target.model), now) if target.open else _closed(target)),
                "in_flight": flying.get(target.pk, 0),
                "limit": target.max_in_flight,
            }
            for target in targets
        ],
    }


def _state(row: ProviderState | None, now: datetime) -> dict[str, Any]:
    """A block whose end has passed no longer holds sends back, whatever the row says."""
    if row is None:
        available = ProviderState.State.AVAILABLE
        return {"state": available.value, "words": str(available.label), "since": None, "until": None, "reason": ""}  # fmt: skip
    blocked = row.blocked_until is not None and row.blocked_until > now
    words = str(row.get_state_display())
    if row.blocked_until is not None and not blocked and row.state != ProviderState.State.PAUSED:
        words = _("%(state)s, but the wait is over") % {"state": words}
    return {
        "state": row.state,
        "words": words,
        "since": row.since.isoformat(),
        "until": row.blocked_until.isoformat() if blocked and row.blocked_until else None,
        "reason": row.reason,
    }


def _closed(target: Target) -> dict[str, Any]:
    stopped = target.stopped_at is not None
    return {
        "state": "stopped" if stopped else "disabled",
        "words": _("stopped") if stopped else _("switched off by staff"),
        "since": target.stopped_at.isoformat() if target.stopped_at else None,
        "until": None,
        "reason": target.stopped_reason,
    }


# --- balances ---------------------------------------------------------------------------------------------------------


def _reached(account: Account) -> Reached | None:
    """The account with its key; None where the settings name another key, or none."""
    try:
        found = registry.account(account.provider)
    except (ImproperlyConfigured, registry.UnknownProviderError):
        return None
    return found if found.fingerprint == account.fingerprint else None


def _add_balances(rows: list[dict[str, Any]], now: datetime) -> None:
    """Ask each account that has a key, and keep what it told."""
    for row in rows:
        account = Account.objects.get(pk=row["id"])
        reached = _reached(account)
        if reached is None:
            continue
        adapter = registry.adapter(account.provider)
        answer = asyncio.run(_ask(adapter, reached))
        if answer is None:
            continue
        if not isinstance(answer, Answer):
            row["balance_trouble"] = _("no answer: %(why)s") % {"why": answer.reason}
            continue
        try:
            read = adapter.read_balance(answer)
        except ValueError:
            row["balance_trouble"] = _("not told (HTTP %(status)s)") % {"status": answer.status}
            continue
        row |= {"balance": f"{read.amount.normalize():f}", "currency": read.currency}
        Account.objects.filter(pk=account.pk).update(
            balance=read.amount, balance_currency=read.currency, balance_at=now
        )


async def _ask(adapter: Adapter, account: Reached) -> Answer | NoAnswer | None:
    """None: the provider has no such call."""
    call = adapter.balance(account)
    if call is None:
        return None
    async with Transport() as transport:
        return await transport.read(
            call, adapter.authorisation(account), deadline_s=DEADLINE_S, retries=1
        )
