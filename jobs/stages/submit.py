"""submit: pending jobs of open routes -> accepted, refused, unsent, unknown, or the result itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal

from jobs import results
from jobs.lane import LaneContext
from jobs.lifecycle import arm, claim, providers
from jobs.lifecycle.claim import Intent
from jobs.lifecycle.record import Fact
from jobs.models import Job
from jobs.stages import facts
from providers import registry
from providers.contract import Charge, FailureClass, Kind, NoAnswer, Photo, Refusal, Request
from providers.http import Sending


@dataclass(slots=True)
class Send:
    """An armed intent on its way out."""

    intent: Intent
    request: Request
    send_not_after: float
    deadline_s: float
    sending: Sending = field(default_factory=Sending)


def claim_and_arm(lane: LaneContext, room: int) -> tuple[list[Send], list[Fact]]:
    """In the database thread: claim jobs, arm their intents, leave the epoch mark.

    Also facts: intents that were not armed are `unsent`. If arming raises, or the mark can't be written, nothing was
    sent; the intents, or the armed tasks, of this run go back by reconcile.
    """
    now = lane.clock.now()
    intents = claim.claim_sends(
        run_id=lane.run_id,
        host=lane.host,
        room=room,
        fingerprints=lane.fingerprints,
        limits=lane.limits,
        now=now,
    )
    if not intents:
        return [], []
    jobs = Job.objects.prefetch_related("photos").in_bulk([intent.job_id for intent in intents])
    requests = {intent.task_id: _request(intent, jobs[intent.job_id], lane) for intent in intents}
    deadline_s = lane.limits.post_deadline_s
    armed, fence = arm.arm(
        run_id=lane.run_id,
        calls={
            i.task_id: (deadline_s, registry.adapter(i.target.provider).retention_s)
            for i in intents
        },
        clock=lane.clock,
    )
    not_armed = [
        Fact(
            task_id=i.task_id,
            at=now,
            kind="unsent",
            decides=True,
            unsent=True,
            unsent_reason="not_armed",
            ours=True,
        )
        for i in intents
        if i.task_id not in armed
    ]
    if armed:
        lane.mark(max(armed))
    return [
        Send(intent=i, request=requests[i.task_id], send_not_after=fence, deadline_s=deadline_s)
        for i in intents
        if i.task_id in armed
    ], not_armed


def _request(intent: Intent, job: Job, lane: LaneContext) -> Request:
    ceiling = intent.target.price * Decimal(str(lane.limits.price_ceiling_factor))
    return Request(
        correlation_id=intent.task_id,
        model=intent.target.model,
        kind=Kind(job.kind),
        prompt=job.prompt,
        params=job.params,
        photos=[
            Photo(path=results.path_of(p.key), media_type=p.media_type) for p in job.photos.all()
        ],
        max_price=ceiling if ceiling > 0 else None,
    )


async def act(lane: LaneContext, send: Send) -> tuple[Fact, Refusal | None]:
    """The one POST. Whatever happens to it, even a cancellation, comes back as a fact."""
    target = send.intent.target
    adapter, account = registry.adapter(target.provider), lane.accounts[target.provider]
    headers = adapter.authorisation(account)
    try:
        call = await asyncio.to_thread(adapter.submit, account, send.request)
        answer = await lane.transport.send_paid(
            call, headers, send_not_after=send.send_not_after, deadline_s=send.deadline_s, boot=lane.clock.boot,
            sending=send.sending,
        )  # fmt: skip
    except asyncio.CancelledError:
        # The drain's end: what is known by now is recorded, then the lane goes.
        answer = send.sending.so_far("the worker was stopped", ours=True)
    except (OSError, ValueError) as error:
        # The request could not be built (a photo is gone): nothing left.
        answer = NoAnswer(
            sent=send.sending.headers_started, reason=f"{type(error).__name__}: {error}", ours=True
        )
    at = await lane.now()
    try:
        read = adapter.read_submit(answer)
    except Exception as error:  # noqa: BLE001 - an answer we can't read may stand for a charge
        read = Refusal(
            FailureClass.UNKNOWN, Charge.POSSIBLE, f"the answer could not be read: {error}"
        )
    kept = facts.evidence(answer, secrets=tuple(headers.values()))
    fact = facts.of_submit(send.intent.task_id, read, at=at, limits=lane.limits, kept=kept)
    free = isinstance(read, Refusal) and read.charge is Charge.NONE
    return fact, read if free and isinstance(read, Refusal) else None


def note_refusal(lane: LaneContext, send: Send, refusal: Refusal) -> None:
    """In the database thread, before the job is decided: the block stands before anyone sends again."""
    target = send.intent.target
    providers.note_refusals(
        refusals=[(target.account_id, target.id, target.model, refusal)], now=lane.clock.now()
    )
