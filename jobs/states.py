"""Names of states, and the state of a task as a pure function of its facts.

PostgreSQL computes the same function in generated columns (jobs/models.py), so a task's state can't disagree with its
facts; a test compares the two over every combination.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from providers.contract import Charge


class JobState(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MANUAL = "manual"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})

# A send has cost something, or may have. What was written off is spent all the same.
HAS_COST = frozenset({Charge.POSSIBLE, Charge.CHARGED, Charge.WRITTEN_OFF})


class TaskState(StrEnum):
    INTENT = "intent"
    SENDING = "sending"
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    STORED = "stored"
    REFUSED = "refused"
    FAILED = "failed"
    UNSENT = "unsent"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """What people see of a job; derived, never stored."""

    WAITING = "waiting"
    SENDING = "sending"
    AT_PROVIDER = "at_provider"
    LATE = "late"
    LOOKING = "looking"
    CHECKING_COST = "checking_cost"
    FETCHING = "fetching"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MANUAL = "manual"
    CANCELLED = "cancelled"


class Release(StrEnum):
    """Why a task no longer blocks a further send. A person's or a standing decision names who."""

    UNSENT = "unsent"
    FREE = "free"
    ABSENT = "absent"
    STORED = "stored"
    PERSON = "person"
    STANDING = "standing"


class CaseKind(StrEnum):
    UNKNOWN_SEND = "unknown_send"
    PAID_WITHOUT_RESULT = "paid_without_result"
    FAILED_BUT_CHARGED = "failed_but_charged"
    LOST_AT_PROVIDER = "lost_at_provider"
    NEVER_ANSWERED = "never_answered"
    FETCH_FAILED = "fetch_failed"
    CONFLICT = "conflict"
    POISON = "poison"
    RESTORE = "restore"
    BY_HAND = "by_hand"
    REFUSED_BY_ALL = "refused_by_all"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    LATE_RESULT = "late_result"
    PAID_TWICE = "paid_twice"
    DEAD_CALLBACK = "dead_callback"
    ORPHAN = "orphan"


BLOCKING_CASES = frozenset(
    {
        CaseKind.UNKNOWN_SEND,
        CaseKind.PAID_WITHOUT_RESULT,
        CaseKind.FAILED_BUT_CHARGED,
        CaseKind.LOST_AT_PROVIDER,
        CaseKind.NEVER_ANSWERED,
        CaseKind.FETCH_FAILED,
        CaseKind.CONFLICT,
        CaseKind.POISON,
        CaseKind.RESTORE,
        CaseKind.BY_HAND,
        CaseKind.LATE_RESULT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one paid call. Each is written once; None means not known."""

    armed_at: datetime | None = None
    provider_id: str | None = None
    refusal_class: str | None = None
    unsent_at: datetime | None = None
    absent_at: datetime | None = None
    lost_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    stored_at: datetime | None = None
    receipt_final_at: datetime | None = None
    cost_answer: Decimal | None = None
    cost_poll: Decimal | None = None
    cost_receipt: Decimal | None = None
    cost_staff: Decimal | None = None
    staff_charge: str | None = None


def task_state(facts: Facts) -> TaskState:
    """The strongest fact wins: stored > verdict > provider id > refusal or unsent > outcome lost > armed > intent.

    A completion beats a failure: a task that failed and completes later has a picture to fetch.
    """
    if facts.stored_at is not None:
        return TaskState.STORED
    if facts.completed_at is not None:
        return TaskState.COMPLETED
    if facts.failed_at is not None:
        return TaskState.FAILED
    if facts.provider_id is not None:
        return TaskState.ACCEPTED
    if facts.refusal_class is not None:
        return TaskState.REFUSED
    if facts.unsent_at is not None or facts.absent_at is not None:
        return TaskState.UNSENT
    if facts.lost_at is not None:
        return TaskState.UNKNOWN
    if facts.armed_at is not None:
        return TaskState.SENDING
    return TaskState.INTENT


def known_cost(facts: Facts) -> Decimal | None:
    """The most trusted source that told: staff, receipt, poll, answer."""
    for cost in (facts.cost_staff, facts.cost_receipt, facts.cost_poll, facts.cost_answer):
        if cost is not None:
            return cost
    return None


def task_charge(facts: Facts) -> Charge:
    """Whether the call may have cost money.

    A failed verdict stays `possible` until a final receipt says zero; a completed one is `charged` even before its cost
    is known.
    """
    if facts.staff_charge is not None:
        return Charge(facts.staff_charge)
    cost = known_cost(facts)
    if cost is not None and cost > 0:
        return Charge.CHARGED
    state = task_state(facts)
    if state in {TaskState.STORED, TaskState.COMPLETED}:
        return Charge.CHARGED
    if state is TaskState.FAILED:
        settled_free = facts.receipt_final_at is not None and facts.cost_receipt == 0
        return Charge.NONE if settled_free else Charge.POSSIBLE
    if state in {TaskState.ACCEPTED, TaskState.UNKNOWN, TaskState.SENDING}:
        return Charge.POSSIBLE
    return Charge.NONE
