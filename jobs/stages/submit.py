"""submit: pending jobs of open routes -> accepted, refused, unsent, unknown, or the result itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from jobs import epoch, results
from jobs.lane import LaneContext
from jobs.lifecycle import arm, claim, providers
from jobs.lifecycle.claim import Intent
from jobs.lifecycle.record import Fact
from jobs.models import Job
from jobs.rules import SEND_WINDOW_S
from jobs.stages import facts, inline
from providers import registry
from providers.contract import (
    Account,
    Adapter,
    Call,
    Charge,
    FailureClass,
    Kind,
    NoAnswer,
    Photo,
    Refusal,
    Request,
)
from providers.http import Sending


@dataclass(slots=True)
class Send:
    """An armed intent on its way out."""

    intent: Intent
    request: Request
    send_not_after: float
    deadline_s: float
    at: datetime  # the database's clock when it was armed: SEND_WINDOW_S before `send_not_after`
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
    armed, fence, armed_at = arm.arm(
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
            at=armed_at,
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
        try:
            # The marks of earlier sends are looked at before this one replaces ours: a database that has forgotten them
            # (a failover a moment ago) must not be sent for.
            if not epoch.check(now=now):
                raise OSError("the database does not know an earlier send")  # noqa: TRY301
            lane.mark(max(armed))
        except OSError as error:
            # No mark, no send: proven unsent.
            not_armed += [
                Fact(
                    task_id=task_id,
                    at=armed_at,
                    kind="unsent",
                    decides=True,
                    unsent=True,
                    unsent_reason="no_mark",
                    failure_text=f"epoch mark: {error}"[:500],
                    ours=True,
                )
                for task_id in armed
            ]
            armed = set()
    return [
        Send(
            intent=i,
            request=requests[i.task_id],
            send_not_after=fence,
            deadline_s=deadline_s,
            at=armed_at,
        )
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


class NotBuiltError(Exception):
    """The request can't be built from the job."""


def _build(adapter: Adapter, account: Account, request: Request) -> Call:
    try:
        return adapter.submit(account, request)
    except FileNotFoundError as error:
        raise NotBuiltError(f"a file of the job is gone: {error}") from error
    except OSError:
        raise
    except Exception as error:
        raise NotBuiltError(f"the request could not be built: {error!r}") from error


async def act(lane: LaneContext, send: Send) -> tuple[Fact, Refusal | None]:
    """The one POST. Whatever happens to it, even a cancellation, comes back as a fact."""
    target = send.intent.target
    adapter, account = registry.adapter(target.provider), lane.accounts[target.provider]
    headers = adapter.authorisation(account)
    try:
        call = await asyncio.to_thread(_build, adapter, account, send.request)
        answer = await lane.transport.send_paid(
            call, headers, send_not_after=send.send_not_after, deadline_s=send.deadline_s, boot=lane.clock.boot,
            sending=send.sending,
        )  # fmt: skip
    except asyncio.CancelledError:
        # The drain's end: what is known by now is recorded, then the lane goes.
        answer = send.sending.so_far("the worker was stopped", ours=True)
    except NotBuiltError as error:
        # It will not be built the next time either (a photo is gone, odd parameters): nothing left, a person looks.
        return facts.of_submit(
            send.intent.task_id, Refusal(FailureClass.REJECTED, Charge.NONE, str(error)), at=send.at,
            limits=lane.limits, kept={},
        ), None  # fmt: skip
    except (OSError, ValueError) as error:
        answer = NoAnswer(
            sent=send.sending.headers_started, reason=f"{type(error).__name__}: {error}", ours=True
        )
    # No await, no database between the answer and its fact. From the arming's own reading: the process may have stood
    # still at any moment since.
    at = send.at + timedelta(seconds=lane.clock.boot() - send.send_not_after + SEND_WINDOW_S)
    try:
        read = adapter.read_submit(answer)
    except Exception as error:  # noqa: BLE001 - an answer we can't read may stand for a charge
        read = Refusal(
            FailureClass.UNKNOWN, Charge.POSSIBLE, f"the answer could not be read: {error}"
        )
    kept = facts.evidence(answer, secrets=tuple(headers.values()))
    keys = inline.keep(send.intent.task_id, read)
    fact = facts.of_submit(
        send.intent.task_id,
        read,
        at=at,
        limits=lane.limits,
        kept=kept,
        kind=send.request.kind,
        inline=keys,
    )
    free = isinstance(read, Refusal) and read.charge is Charge.NONE
    return fact, read if free and isinstance(read, Refusal) else None


def note_refusal(lane: LaneContext, send: Send, refusal: Refusal) -> None:
    """In the database thread, before the job is decided: the block stands before anyone sends again."""
    target = send.intent.target
    providers.note_refusals(
        refusals=[(target.account_id, target.id, target.model, refusal)], now=lane.clock.now()
    )
