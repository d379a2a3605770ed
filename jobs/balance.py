"""Asking an account, for nothing, what money is left on it; and what staff do with the answer."""

from __future__ import annotations

from asgiref.sync import async_to_sync
from django.utils.translation import gettext as _

from jobs.clock import clock
from jobs.lifecycle import providers
from jobs.lifecycle.errors import Refused
from jobs.panel import AccountView, reached
from providers import asking, registry
from providers.contract import Account as Reached
from providers.contract import Adapter, Answer, Balance, NoAnswer, NotToldError
from providers.http import Transport

DEADLINE_S = 15.0


class Unread(Exception):  # noqa: N818  an answer to show people, not a fault
    """Why the balance is not known, in words for people."""


def read(provider: str, fingerprint: str) -> Balance | None:
    """None: the provider has no such call, or the account no balance in money. Raises Unread. No transaction may be open: it may take its deadline."""
    found = reached(provider, fingerprint)
    if found is None:
        raise Unread(_("no key is set for it"))
    adapter = registry.adapter(provider)
    answer = async_to_sync(_ask)(adapter, found)
    if answer is None:
        return None
    if not isinstance(answer, Answer):
        raise Unread(_("no answer: %(why)s") % {"why": answer.reason})
    try:
        return adapter.read_balance(answer)
    except NotToldError:
        return None
    except ValueError as error:
        raise Unread(_("not told (HTTP %(status)s)") % {"status": answer.status}) from error


def topped_up(account: AccountView, *, actor: providers.Actor) -> None:
    """ "I have topped up": the balance is read and decides. Raises Refused where it can't be read or is too little."""
    try:
        told = read(account.provider, account.fingerprint)
    except Unread as why:
        raise Refused(_("The balance could not be read: %(why)s.") % {"why": why}) from why
    # The answer may have taken its time: what blocks is asked as of now.
    providers.topped_up(
        account_id=account.id, balance=told.amount if told else None, currency=told.currency if told else "",
        actor=actor, now=clock.now(),
    )  # fmt: skip


async def _ask(adapter: Adapter, account: Reached) -> Answer | NoAnswer | None:
    call = adapter.balance(account)
    if call is None:
        return None
    async with Transport() as transport:
        return await asking.read(
            transport, adapter, account, call, deadline_s=DEADLINE_S, retries=1
        )
