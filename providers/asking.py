"""Free reads of an account, with whatever opens it; and how a task stands, by as many reads as its provider needs."""

from __future__ import annotations

from collections.abc import Mapping

from providers import tokens
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Call,
    Further,
    Named,
    NoAnswer,
    PollTrouble,
    Refusal,
    Running,
    Verdict,
)
from providers.http import Transport


async def read(
    transport: Transport,
    adapter: Adapter,
    account: Account,
    call: Call,
    *,
    deadline_s: float,
    retries: int = 0,
) -> Answer | NoAnswer:
    """One read. Never raises for what the network did.

    Where the account opens by a token and none is given, the token server's own answer comes back instead. A token that is
    refused is renewed, and the read repeated, once.
    """
    answer: Answer | NoAnswer
    for last_try in (False, True):
        headers = await _opened(transport, adapter, account)
        if isinstance(headers, tokens.Denied):
            return _denied(headers)
        answer = await transport.read(call, headers, deadline_s=deadline_s, retries=retries)
        if last_try or answer.status != 401 or not refused(adapter, account, headers):
            break
    return answer


async def entry(
    transport: Transport, adapter: Adapter, account: Account
) -> Mapping[str, str] | Refusal:
    """The headers that open the account. A Refusal (always free): it does not open now, so nothing can be sent."""
    got = await _opened(transport, adapter, account)
    return got.refusal if isinstance(got, tokens.Denied) else got


def refused(adapter: Adapter, account: Account, headers: Mapping[str, str]) -> bool:
    """The provider answered 401 to these headers: the token in them is dropped, unless another has come meanwhile. Whether
    there is a token at all, so that asking again can help."""
    call = adapter.token(account)
    if call is None:
        return False
    token = tokens.stored(adapter, account, call)
    if token is not None and adapter.authorisation(account, token.value).items() <= headers.items():
        tokens.drop(adapter, account, call, token)
    return True


async def _opened(
    transport: Transport, adapter: Adapter, account: Account
) -> Mapping[str, str] | tokens.Denied:
    call = adapter.token(account)
    if call is None:
        return adapter.authorisation(account)
    got = await tokens.current(transport, adapter, account, call)
    return got if isinstance(got, tokens.Denied) else adapter.authorisation(account, got.value)


def _denied(denied: tokens.Denied) -> Answer | NoAnswer:
    """A good answer without a token in it would be taken for one to the read itself."""
    if isinstance(denied.answer, NoAnswer):
        return denied.answer
    if isinstance(denied.answer, Answer) and denied.answer.status >= 300:
        return denied.answer
    return NoAnswer(sent=False, reason=denied.refusal.reason, ours=denied.refusal.ours)


async def status(
    transport: Transport,
    adapter: Adapter,
    account: Account,
    named: Named,
    *,
    deadline_s: float,
    retries: int = 0,
) -> tuple[Answer | NoAnswer, Verdict | Running | PollTrouble]:
    """The last answer, and what it says of the task. Where the end is told by one more read, that is asked too; as long as
    it can't be read, nothing is known. Never raises: an answer in no known shape is trouble."""
    call = adapter.poll(account, named)
    if call is None:
        silent = NoAnswer(
            sent=False, reason=f"{adapter.name} can't be asked about a task", ours=True
        )
        return silent, PollTrouble(silent.reason)
    answer = await read(transport, adapter, account, call, deadline_s=deadline_s, retries=retries)
    try:
        told = adapter.read_poll(answer)
        if not isinstance(told, Further):
            return answer, told
        further = adapter.result(account, named)
        if further is None:
            return answer, PollTrouble(f"ended ({told.status}), and no call tells how")
        answer = await read(
            transport, adapter, account, further, deadline_s=deadline_s, retries=retries
        )
        return answer, adapter.read_result(answer)
    except Exception as error:  # noqa: BLE001 - never a verdict
        return answer, PollTrouble(f"the answer could not be read: {error}", status=answer.status)
