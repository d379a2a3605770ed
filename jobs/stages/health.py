"""health: open breakers whose next try is due -> a free read, and by it half-open, or closed, or open for longer.

It runs whether or not a job waits, so that a provider which is well again is seen to be.
"""

from __future__ import annotations

from jobs.lane import LaneContext
from jobs.lifecycle import providers
from jobs.lifecycle.providers import DueRead
from providers import asking, registry
from providers.classify import classify
from providers.contract import Answer, FailureClass, NotToldError
from providers.health import Read

DEADLINE_S = 20.0


def claim_reads(lane: LaneContext, _room: int) -> list[DueRead]:
    """Also ends the probes whose job has come to its end."""
    now = lane.clock.now()
    providers.settle_probes(poll_deadline_s=lane.limits.poll_deadline_s, now=now)
    return providers.take_reads(fingerprints=lane.fingerprints, now=now)


async def look(lane: LaneContext, due: DueRead) -> None:
    """Ask for the balance, and note what that told of the provider."""
    read, reason = await _read(lane, due)
    now = await lane.now()
    await lane.db(
        providers.note_free_read, state_id=due.state_id, read=read, now=now, reason=reason
    )


async def _read(lane: LaneContext, due: DueRead) -> tuple[Read, str]:
    adapter, account = registry.adapter(due.provider), lane.accounts.get(due.provider)
    call = adapter.balance(account) if account is not None else None
    if call is None or account is None:
        return Read.NONE, ""
    answer = await asking.read(
        lane.transport, adapter, account, call, deadline_s=DEADLINE_S, retries=1
    )
    if not isinstance(answer, Answer):
        return Read.BAD, answer.reason
    try:
        adapter.read_balance(answer)
    except NotToldError:
        return Read.GOOD, ""
    except ValueError:
        refusal = classify(answer, submit=False)
        rejected = refusal.failure is FailureClass.UNAUTHORIZED
        return (Read.REJECTED if rejected else Read.BAD), refusal.reason
    return Read.GOOD, ""
