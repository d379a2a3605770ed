"""Free reads of an account, with whatever opens it; and how a task stands, by as many reads as its provider needs."""

from __future__ import annotations

from providers.contract import (
    Account,
    Adapter,
    Answer,
    Call,
    Further,
    Named,
    NoAnswer,
    PollTrouble,
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
    """One read. Never raises for what the network did."""
    return await transport.read(
        call, adapter.authorisation(account), deadline_s=deadline_s, retries=retries
    )


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
