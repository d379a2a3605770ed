"""poll: watched tasks whose next_poll_at has come -> completed, failed, or later."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from jobs.lane import LaneContext
from jobs.lifecycle import claim
from jobs.lifecycle.record import Fact
from jobs.models import ProviderTask
from jobs.stages import facts, inline
from providers import registry
from providers.contract import Answer, NoAnswer, PollTrouble, Verdict

DEADLINE_S = 20.0
LEASE_S = 45.0  # beyond the deadline and a recording: then another lane may ask


def claim_polls(lane: LaneContext, room: int) -> list[ProviderTask]:
    return claim.claim_due(
        column="next_poll_at", run_id=lane.run_id, room=room, lease_s=LEASE_S, now=lane.clock.now()
    )


async def act(lane: LaneContext, task: ProviderTask) -> Fact:
    """Ask once about one task."""
    provider = task.account.provider
    adapter, account = registry.adapter(provider), lane.accounts.get(provider)
    if account is None:
        answer: Answer | NoAnswer = NoAnswer(
            sent=False, reason="there is no key for this provider any more", ours=True
        )
        headers: dict[str, str] = {}
    else:
        headers = dict(adapter.authorisation(account))
        answer = await lane.transport.read(
            adapter.poll(account, task.provider_id or ""), headers, deadline_s=DEADLINE_S
        )
    try:
        read = adapter.read_poll(answer)
    except Exception as error:  # noqa: BLE001 - never a verdict
        read = PollTrouble(f"the answer could not be read: {error}", status=answer.status)
    if isinstance(read, Verdict) and read.provider_id not in {None, task.provider_id}:
        # A cache between us and the provider can mix up two answers.
        read = PollTrouble(f"the answer is about {read.provider_id}", status=answer.status)
    if isinstance(read, PollTrouble) and task.account_id != lane.account_ids.get(provider):
        # Asked with another key than the send had: that this one does not know the task proves nothing.
        read = replace(read, missing=False)
    keys = await asyncio.to_thread(inline.keep, task.pk, read)
    return facts.of_poll(
        task,
        read,
        inline=keys,
        at=await lane.now(),
        limits=lane.limits,
        kept=facts.evidence(answer, secrets=tuple(headers.values())),
    )
