"""poll: watched tasks whose next_poll_at has come -> completed, failed, or later."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from jobs.lane import LaneContext
from jobs.lifecycle import claim
from jobs.lifecycle.record import Fact
from jobs.models import ProviderTask
from jobs.stages import facts, inline
from providers import asking, registry
from providers.contract import Answer, NoAnswer, PollTrouble, Running, Verdict

DEADLINE_S = 20.0
NO_KEY = "there is no key for this provider any more"
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
        answer: Answer | NoAnswer = NoAnswer(sent=False, reason=NO_KEY, ours=True)
        read: Verdict | Running | PollTrouble = PollTrouble(NO_KEY)
        secrets: tuple[str, ...] = ()
    else:
        answer, read = await asking.status(
            lane.transport, adapter, account, task.named, deadline_s=DEADLINE_S
        )
        secrets = tuple(adapter.authorisation(account).values())
    if isinstance(read, Verdict) and read.provider_id not in {None, task.provider_id}:
        # A cache between us and the provider can mix up two answers.
        read = PollTrouble(f"the answer is about {read.provider_id}", status=answer.status)
    if isinstance(read, PollTrouble) and task.account_id != lane.account_ids.get(provider):
        # Asked with another key than the send had: that this one does not know the task proves nothing.
        read = replace(read, missing=False)
    keep = partial(inline.keep, task.pk, read)
    keys = await asyncio.to_thread(keep) if inline.any_in(read) else keep()
    return facts.of_poll(
        task,
        read,
        inline=keys,
        asked_at=task.claimed_at,
        at=await lane.now(),
        limits=lane.limits,
        # Of what is still running nothing is kept.
        kept={} if isinstance(read, Running) else facts.evidence(answer, secrets=secrets),
        plan=lane.plans.get(task.target_id),
    )
