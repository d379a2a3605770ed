"""submit: pending jobs of open routes -> accepted, refused, unsent, unknown, or the result itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

from jobs import epoch, results, webhook_address
from jobs.answers import AnswerFile
from jobs.lane import LaneContext
from jobs.lifecycle import arm, claim, providers
from jobs.lifecycle.claim import Intent
from jobs.lifecycle.record import Fact
from jobs.models import Job
from jobs.rules import SEND_WINDOW_S
from jobs.stages import facts, inline
from jobs.stages.answers import Reading, understood
from providers import asking, registry
from providers.contract import (
    Account,
    Adapter,
    Answer,
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

# Answers of some megabytes are read so many at a time: what else is here lies on the disk.
_READERS = ThreadPoolExecutor(2, thread_name_prefix="answers")
KEEP_TRIES, KEEP_AGAIN_S = 15, 2.0


@dataclass(slots=True)
class Send:
    """An armed intent on its way out."""

    intent: Intent
    request: Request
    send_not_after: float
    deadline_s: float
    at: datetime  # the database's clock when it was armed: SEND_WINDOW_S before `send_not_after`
    sending: Sending = field(default_factory=Sending)
    file: AnswerFile | None = None  # of an answer that is the result
    file_done: bool = False  # it is not needed once the fact is recorded

    @property
    def answers_with_result(self) -> bool:
        return not registry.adapter(self.intent.target.provider).asynchronous


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
    deadlines_s = {
        i.task_id: lane.limits.call_deadline_s(registry.adapter(i.target.provider)) for i in intents
    }
    armed, fence, armed_at = arm.arm(
        run_id=lane.run_id,
        calls={
            i.task_id: (deadlines_s[i.task_id], registry.adapter(i.target.provider).retention_s)
            for i in intents
        },
        clock=lane.clock,
        hooked=[task_id for task_id, request in requests.items() if request.webhook_url],
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
            deadline_s=deadlines_s[i.task_id],
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
            Photo(path=results.photo_path(p.key), media_type=p.media_type) for p in job.photos.all()
        ],
        max_price=ceiling if ceiling > 0 else None,
        webhook_url=webhook_address.of(intent.target.provider, intent.task_id),
    )


class NotBuiltError(Exception):
    """The request can't be built from the job."""


def _build(adapter: Adapter, account: Account, request: Request) -> Call:
    try:
        for photo in request.photos:
            results.at_hand(photo.path)
        return adapter.submit(account, request)
    except FileNotFoundError as error:
        raise NotBuiltError(f"a file of the job is gone: {error}") from error
    except OSError:
        raise
    except Exception as error:
        raise NotBuiltError(f"the request could not be built: {error!r}") from error


async def act(lane: LaneContext, send: Send) -> tuple[Fact, Refusal | None]:
    """The one POST. Whatever happens to it, even a cancellation, comes back as a fact."""
    task_id, target = send.intent.task_id, send.intent.target
    adapter, account = registry.adapter(target.provider), lane.accounts[target.provider]
    opened: Mapping[str, str] | Refusal = {}
    reading: Reading | None = None
    if not adapter.asynchronous:
        send.file = send.sending.sink = AnswerFile(task_id, run_id=lane.run_id)
    try:
        opened = await asking.entry(lane.transport, adapter, account)
        if isinstance(opened, Refusal):
            answer: Answer | NoAnswer = NoAnswer(sent=False, reason=opened.reason, ours=opened.ours)
        else:
            # The call is kept by nobody here: its photos may be megabytes.
            answer = await lane.transport.send_paid(
                await asyncio.to_thread(_build, adapter, account, send.request), opened,
                send_not_after=send.send_not_after, deadline_s=send.deadline_s, boot=lane.clock.boot, sending=send.sending,
            )  # fmt: skip
    except asyncio.CancelledError:
        # The drain's end: what is known by now is recorded, then the lane goes.
        answer = send.sending.so_far("the worker was stopped", ours=True)
        reading = _read(adapter, send, answer, opened)
    except NotBuiltError as error:
        # It will not be built the next time either (a photo is gone, odd parameters): nothing left, a person looks.
        return facts.of_submit(
            task_id, Refusal(FailureClass.REJECTED, Charge.NONE, str(error)), at=send.at,
            limits=lane.limits, kept={},
        ), None  # fmt: skip
    except (OSError, ValueError) as error:
        answer = NoAnswer(
            sent=send.sending.headers_started, reason=f"{type(error).__name__}: {error}", ours=True
        )
    # From the arming's own reading: the process may have stood still at any moment since.
    at = send.at + timedelta(seconds=lane.clock.boot() - send.send_not_after + SEND_WINDOW_S)
    if reading is None and send.sending.status is not None and send.file is not None:
        reading = await _read_aside(adapter, send, answer, opened)
    # No await, no database between the answer and its fact, but where it lies in a file.
    if reading is None:
        reading = _read(adapter, send, answer, opened)
    if answer.status == 401 and not isinstance(opened, Refusal):
        asking.refused(adapter, account, opened)
    read = reading.read
    fact = facts.of_submit(
        task_id,
        read,
        at=at,
        limits=lane.limits,
        kept=reading.kept,
        kind=send.request.kind,
        inline=reading.keys,
        asked_at=send.at,
        hooked=send.request.webhook_url is not None,
        plan=lane.plans.get(send.intent.target.id),
    )
    free = isinstance(read, Refusal) and read.charge is Charge.NONE
    return fact, read if free and isinstance(read, Refusal) else None


def _read(
    adapter: Adapter, send: Send, answer: Answer | NoAnswer, opened: Mapping[str, str] | Refusal
) -> Reading:
    if isinstance(opened, Refusal):
        return Reading(opened, facts.evidence(answer, secrets=()))
    unread = False
    if send.file is not None:
        try:
            answer = replace(answer, body=send.file.body())
        except OSError as error:
            unread = True
            why = f"the file of the answer can't be read: {error}"
            answer = NoAnswer(True, why, ours=True, status=answer.status, headers=answer.headers)
    reading = understood(adapter, send.intent.task_id, answer, secrets=tuple(opened.values()))
    send.file_done = reading.safe and not unread
    return reading


async def _read_aside(
    adapter: Adapter, send: Send, answer: Answer | NoAnswer, opened: Mapping[str, str] | Refusal
) -> Reading:
    """An answer that may be megabytes long, a few at a time, in a thread. Its bytes may be nowhere else: a disk that does not
    take them is tried again for a while, and then the file stays for the next lane."""
    read = partial(_read, adapter, send, answer, opened)
    run = asyncio.get_running_loop().run_in_executor
    try:
        reading = await run(_READERS, read)
        for _ in range(KEEP_TRIES):
            if not inline.missing(reading.read, reading.keys):
                break
            await asyncio.sleep(KEEP_AGAIN_S)
            reading = await run(_READERS, read)
    except asyncio.CancelledError:
        return read()  # the drain's end
    return reading


def note_refusal(lane: LaneContext, send: Send, refusal: Refusal) -> None:
    """In the database thread, before the job is decided: the block stands before anyone sends again."""
    target = send.intent.target
    providers.note_refusals(
        refusals=[(target.account_id, target.id, target.model, refusal)], now=lane.clock.now()
    )
