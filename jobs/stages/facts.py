"""From what an adapter read to the facts that are recorded. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from jobs.lifecycle.record import Fact
from jobs.models import ProviderTask
from jobs.polling import Plan, jittered
from jobs.rules import RECEIPT_EVERY_S, Limits
from providers.contract import (
    Accepted,
    Answer,
    Charge,
    FailureClass,
    FileRef,
    Kind,
    NoAnswer,
    PollTrouble,
    Refusal,
    Running,
    Verdict,
)
from providers.http import redact_headers, redact_text, sanitise

BODY_KEPT = 4000
RESULT_LATE_S = 5.0
HINT_FRESH_S = 60.0


def evidence(answer: Answer | NoAnswer, *, secrets: tuple[str, ...]) -> dict[str, Any]:
    """How a call went, for people: redacted and cut."""
    kept: dict[str, Any] = {
        "status": answer.status,
        "headers": dict(redact_headers(answer.headers)),
        "body": sanitise(
            redact_text(answer.body[:BODY_KEPT].decode("utf-8", "replace"), secrets=secrets),
            limit=BODY_KEPT,
        ),
    }
    if isinstance(answer, NoAnswer):
        kept["broke"] = sanitise(answer.reason, limit=4000)
        kept["left"] = answer.sent
    return kept


def _text(value: str, limit: int = 500) -> str:
    return sanitise(value, limit=limit)


def _where(file: FileRef, position: int, inline: Sequence[str]) -> dict[str, Any]:
    if file.url:
        return {"url": file.url}
    if file.file_id:
        return {"file_id": file.file_id}
    return {"inline": True, "key": inline[position]}


def _verdict(
    verdict: Verdict, *, at: datetime, kind: Kind, inline: Sequence[str]
) -> dict[str, Any]:
    files: list[dict[str, Any]] = [
        _where(file, position, inline) for position, file in enumerate(verdict.files)
    ]
    common: dict[str, Any] = {
        "cost_poll": verdict.cost,
        "last_status": _text(verdict.status or verdict.outcome, 80),
    }
    if verdict.outcome == "completed":
        # Words instead of a picture are no result: they stay beside the case for a person to read. A file's address may
        # be written a moment after the completion, so it is asked for again.
        fetchable = bool(files or (kind is Kind.TEXT and verdict.text.strip()))
        wait = timedelta(seconds=0 if fetchable else RESULT_LATE_S)
        return common | {
            "kind": "completed", "completed": True, "files": files, "result_text": sanitise(verdict.text, limit=200_000),
            "next_fetch_at": at + wait,
        }  # fmt: skip
    # What the provider says it never charges for is settled by that; a cost told beside it speaks against it.
    settled: dict[str, Any] = {"receipt_final": True, "cost_receipt": Decimal(0)}
    asked: dict[str, Any] = {"next_receipt_at": at + timedelta(seconds=RECEIPT_EVERY_S)}
    return common | (settled if verdict.free and not verdict.cost else asked) | {
        "kind": "failed", "failed": True, "failure_class": verdict.failure or FailureClass.DOWN,
        "failure_code": _text(verdict.error_code, 80), "failure_text": _text(verdict.reason),
    }  # fmt: skip


def of_submit(
    task_id: Any,
    read: Accepted | Verdict | Refusal,
    *,
    at: datetime,
    limits: Limits,
    kept: dict[str, Any],
    kind: Kind = Kind.IMAGE,
    inline: Sequence[str] = (),
    asked_at: datetime | None = None,
    hooked: bool = False,
    plan: Plan | None = None,
) -> Fact:
    """What a paid POST's answer, or its absence, means. `hooked`: the provider was asked to call us at the end. `plan`:
    when its target's generations are asked about."""
    base: dict[str, Any] = {
        "task_id": task_id,
        "at": at,
        "asked_at": asked_at,
        "decides": True,
        "evidence": {"submit": kept},
    }
    first_s = limits.poll_interval_s if plan is None else _jittered(plan.next_s(0.0), task_id, 0)
    poll_at = at + timedelta(seconds=_net_s(limits) if hooked else first_s)
    if isinstance(read, Accepted):
        return Fact(
            **base, kind="accepted", provider_id=read.provider_id[:200], next_poll_at=poll_at,
            last_status=_text(read.status, 80), data={"provider_id": read.provider_id[:200]},
            provider_links=dict(read.links) or None,
        )  # fmt: skip
    if isinstance(read, Verdict):
        verdict = _verdict(read, at=at, kind=kind, inline=inline)
        verdict["cost_answer"] = verdict.pop("cost_poll")
        return Fact(**base, provider_id=(read.provider_id or "")[:200] or None, **verdict)
    base |= {
        "failure_class": read.failure, "failure_code": _text(read.code, 80), "failure_text": _text(read.reason),
        "failure_scope": read.scope, "wait_s": read.wait_s, "ours": read.ours, "target_stops": read.target_stops,
        "data": {"class": read.failure, "reason": _text(read.reason, 300), "status": read.status},
    }  # fmt: skip
    if read.charge is not Charge.NONE:
        return Fact(**base, kind="lost", lost=True, next_look_at=at)
    if read.failure is FailureClass.UNSENT:
        return Fact(
            **base,
            kind="unsent",
            unsent=True,
            unsent_reason=_text(read.code, 40) or ("fenced" if read.ours else "not_connected"),
        )
    return Fact(**base, kind="refused", refusal_class=read.failure)


def of_poll(
    task: ProviderTask,
    read: Verdict | Running | PollTrouble,
    *,
    at: datetime,
    limits: Limits,
    kept: dict[str, Any],
    inline: Sequence[str] = (),
    asked_at: datetime | None = None,
    plan: Plan | None = None,
) -> Fact:
    """What a poll told. Trouble is never a verdict: the id is kept and asked about again."""
    base: dict[str, Any] = {"task_id": task.pk, "at": at, "asked_at": asked_at, "polled": True}
    if isinstance(read, Verdict):
        return Fact(
            **base,
            decides=True,
            evidence={"verdict": kept},
            **_verdict(read, at=at, kind=Kind(task.job.kind), inline=inline),
        )
    # From due time to due time: what a poll takes does not stretch the interval.
    interval = timedelta(seconds=poll_interval_s(task, at=at, limits=limits, plan=plan))
    due = (task.next_poll_at or at) + interval
    if not at < due <= at + interval:
        due = at + interval
    if isinstance(read, Running):
        new_word = not read.known and task.last_status != read.status[:80]
        return Fact(
            **base, kind="status_word" if new_word else "", last_status=_text(read.status, 80), next_poll_at=due,
            decides=task.missing_since is not None or _watch_over(task, at), data={"status": _text(read.status, 80)},
        )  # fmt: skip
    if read.wait_s is not None:
        due = max(due, at + timedelta(seconds=min(read.wait_s, 300.0)))
    first = task.poll_failures == 0
    return Fact(
        **base, kind="poll_trouble" if first else "", poll_failed=True, missing=read.missing, next_poll_at=due,
        decides=read.missing or _watch_over(task, at), evidence={"poll": kept} if first else None,
        data={"reason": _text(read.reason, 300), "status": read.status},
    )  # fmt: skip


def _watch_over(task: ProviderTask, at: datetime) -> bool:
    return task.watch_until is not None and at >= task.watch_until


def poll_interval_s(
    task: ProviderTask, *, at: datetime, limits: Limits, plan: Plan | None = None
) -> float:
    """Before the deadline by the target's plan, every few seconds where it has none, or seldom where a webhook will tell;
    then as late, and slower with age (an hour at most)."""
    age_s = (at - (task.armed_at or task.created_at)).total_seconds()
    if age_s < limits.poll_deadline_s:
        if task.webhook:
            return limits.poll_interval_s if _just_hinted(task, at) else _net_s(limits)
        if plan is None or task.accepted_at is None:
            return limits.poll_interval_s
        planned_s = plan.next_s((at - task.accepted_at).total_seconds())
        return _jittered(planned_s, task.pk, task.polls)
    return min(max(limits.late_poll_interval_s, (age_s - limits.poll_deadline_s) / 100), 3600.0)


def _jittered(interval_s: float, task_id: UUID, polls: int) -> float:
    """By the task's own number: the same each time it is reckoned, another for each poll."""
    part = zlib.crc32(task_id.bytes + polls.to_bytes(4, "big")) / 2**32
    return jittered(interval_s, part=part)


def _net_s(limits: Limits) -> float:
    return max(limits.webhook_poll_s, limits.poll_interval_s)


def _just_hinted(task: ProviderTask, at: datetime) -> bool:
    """It was called about a moment ago, and the provider did not say then that it has ended: the call may have been quicker
    than what answers a poll."""
    return task.hinted_at is not None and at - task.hinted_at < timedelta(seconds=HINT_FRESH_S)
