"""What a provider may say of a task at each stage, as the facts that the stages record of it."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from jobs.lifecycle.record import Fact, FileFact
from jobs.models import ProviderTask
from jobs.rules import limits
from jobs.stages import facts
from providers.contract import (
    Accepted,
    Charge,
    FailureClass,
    FileRef,
    PollTrouble,
    Refusal,
    Running,
    Verdict,
)

LIMITS = replace(limits(), concurrency=4, poll_deadline_s=900)

SUBMITS = [
    "accepted", "done", "done_without_file", "failed_at_once", "rate_limited", "quota_exhausted", "unauthorized",
    "rejected", "down", "unsent", "fenced", "lost",
]  # fmt: skip
POLLS = ["running", "trouble", "missing", "completed", "completed_without_file", "failed"]
FETCHES = ["stored", "not_fetched"]
LOOKS = ["unclear", "found", "absent_once", "absent"]
RECEIPTS = ["receipt", "receipt_pending", "no_receipt"]
OF_COLUMN = {
    "next_poll_at": POLLS,
    "next_fetch_at": FETCHES,
    "next_look_at": LOOKS,
    "next_receipt_at": RECEIPTS,
}


def fact_of(
    task_id: uuid.UUID,
    what: str,
    *,
    gen: str,
    at: datetime,
    wait_s: float | None,
    spent: Decimal | None,
) -> Fact:
    """What the stages record when a provider says `what`."""
    base: dict[str, Any] = {"task_id": task_id, "at": at}
    if what in SUBMITS:
        return facts.of_submit(
            task_id, _submitted(what, gen, wait_s, spent), at=at, limits=LIMITS, kept={}
        )
    if what in POLLS:
        task = ProviderTask.objects.select_related("job").get(pk=task_id)
        return facts.of_poll(task, _polled(what, gen, spent), at=at, limits=LIMITS, kept={})
    soon = at + timedelta(seconds=30)
    match what:
        case "stored":
            return Fact(**base, kind="stored", decides=True, stored=True, results=(_FILE,))
        case "not_fetched":
            return Fact(
                **base,
                kind="fetch_trouble",
                decides=True,
                fetch_failed=True,
                fetch_trouble="gone",
                next_fetch_at=soon,
            )
        case "unclear" | "absent_once":
            once = what == "absent_once"
            return Fact(
                **base, kind="", decides=True, looked=True, next_look_at=soon, absent_seen=once
            )
        case "found":
            return Fact(
                **base, kind="found", decides=True, looked=True, provider_id=gen, next_poll_at=at
            )
        case "absent":
            return Fact(**base, kind="absent", decides=True, looked=True, absent=True)
        case "receipt":
            cost = spent or Decimal(0)
            again = at + timedelta(seconds=3600) if cost == 0 else None
            return Fact(**base, kind="receipt", decides=True, receipt_looked=True, receipt_final=True, cost_receipt=cost,
                        receipts_end_at=at, next_receipt_at=again)  # fmt: skip
        case "receipt_pending":
            return Fact(**base, kind="", receipt_looked=True, next_receipt_at=soon)
        case _:
            return Fact(
                **base, kind="no_receipt", decides=True, receipt_looked=True, receipts_end_at=at
            )


_FILE = FileFact(
    position=0, key="a.png", thumb_key="", sha256="0" * 64, media_type="image/png", size_bytes=3
)
_URL = (FileRef(url="https://example.org/a.png"),)


def _submitted(
    what: str, gen: str, wait_s: float | None, spent: Decimal | None
) -> Accepted | Verdict | Refusal:
    match what:
        case "accepted":
            return Accepted(gen, "pending")
        case "done":
            return Verdict("completed", gen, files=_URL, cost=spent)
        case "done_without_file":
            return Verdict("completed", gen, cost=spent)
        case "failed_at_once":
            return Verdict("failed", gen, cost=spent, reason="no luck")
        case "unsent" | "fenced":
            return Refusal(FailureClass.UNSENT, Charge.NONE, what, ours=what == "fenced")
        case "lost":
            return Refusal(FailureClass.UNKNOWN, Charge.POSSIBLE, "reset")
        case _:
            return Refusal(FailureClass(what), Charge.NONE, what, wait_s=wait_s)


def _polled(what: str, gen: str, spent: Decimal | None) -> Verdict | Running | PollTrouble:
    match what:
        case "running":
            return Running("processing")
        case "trouble" | "missing":
            return PollTrouble("not now", missing=what == "missing")
        case "completed":
            return Verdict("completed", files=_URL, cost=spent)
        case "completed_without_file":
            return Verdict("completed", cost=spent)
        case _:
            return Verdict("failed", cost=spent, reason="no luck", failure=FailureClass.DOWN)
