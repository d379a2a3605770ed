"""Words, icons and colours of every state. One word for one thing, everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import written
from jobs.models import Case, ProviderTask, Result
from jobs.states import CaseKind, JobState, Phase, TaskState
from providers.contract import Charge
from providers.models import in_words
from providers.word import Phrase, Told

Words = str | Promise


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown. `icon` is a symbol of desk/icons.svg, "" for the moving dot of work under way; `tone` one of
    grey, green, blue, amber, red, violet, outline."""

    word: Words
    icon: str
    tone: str


PHASES: Mapping[Phase, Look] = {
    Phase.WAITING: Look(gettext_lazy("waiting"), "clock", "grey"),
    Phase.SENDING: Look(gettext_lazy("sending"), "", "blue"),
    Phase.AT_PROVIDER: Look(gettext_lazy("at the provider"), "", "blue"),
    Phase.LATE: Look(gettext_lazy("late, still watched"), "radar", "violet"),
    Phase.LOOKING: Look(gettext_lazy("looking for it"), "radar", "violet"),
    Phase.CHECKING_COST: Look(gettext_lazy("checking what it cost"), "receipt-text", "violet"),
    Phase.FETCHING: Look(gettext_lazy("fetching"), "arrow-down-to-line", "blue"),
    Phase.SUCCEEDED: Look(gettext_lazy("succeeded"), "circle-check", "green"),
    Phase.FAILED: Look(gettext_lazy("failed"), "circle-x", "red"),
    Phase.MANUAL: Look(gettext_lazy("needs a person"), "hand", "amber"),
    Phase.CANCELLED: Look(gettext_lazy("cancelled"), "ban", "grey"),
}

JOB_STATES: Mapping[JobState, Look] = {
    JobState.PENDING: PHASES[Phase.WAITING],
    JobState.ACTIVE: Look(gettext_lazy("at work"), "", "blue"),
    JobState.MANUAL: PHASES[Phase.MANUAL],
    JobState.SUCCEEDED: PHASES[Phase.SUCCEEDED],
    JobState.FAILED: PHASES[Phase.FAILED],
    JobState.CANCELLED: PHASES[Phase.CANCELLED],
}

OVERDUE = Look(pgettext_lazy("job", "late"), "timer", "violet")

TASK_STATES: Mapping[TaskState, Look] = {
    TaskState.INTENT: Look(gettext_lazy("about to send"), "circle-dashed", "grey"),
    TaskState.SENDING: Look(gettext_lazy("sending"), "", "blue"),
    TaskState.ACCEPTED: Look(gettext_lazy("at the provider"), "", "blue"),
    TaskState.COMPLETED: Look(gettext_lazy("made, to be fetched"), "arrow-down-to-line", "blue"),
    TaskState.STORED: Look(gettext_lazy("stored"), "circle-check", "green"),
    TaskState.REFUSED: Look(gettext_lazy("refused"), "circle-x", "grey"),
    TaskState.FAILED: Look(gettext_lazy("failed there"), "circle-x", "red"),
    TaskState.UNSENT: Look(gettext_lazy("not sent"), "ban", "grey"),
    TaskState.UNKNOWN: Look(gettext_lazy("outcome unknown"), "circle-help", "violet"),
}

# A finished one whose file does not come.
_FETCH_FAILS = Look(gettext_lazy("made, fetching fails"), "triangle-alert", "amber")
_NOT_FETCHED = Look(gettext_lazy("made, could not be fetched"), "triangle-alert", "amber")
_NO_FILE = Look(gettext_lazy("made, no file given"), "image-off", "amber")

CHARGES: Mapping[Charge, Look] = {
    Charge.NONE: Look(gettext_lazy("no charge"), "circle-check", "grey"),
    Charge.POSSIBLE: Look(gettext_lazy("charge possible"), "circle-help", "amber"),
    Charge.CHARGED: Look(gettext_lazy("charged"), "banknote", "grey"),
    Charge.REFUNDED: Look(gettext_lazy("refunded"), "undo-2", "green"),
    Charge.WRITTEN_OFF: Look(gettext_lazy("written off"), "ban", "grey"),
}

# A provider's finer phrase; its words on a page are those of `providers.models.in_words`, with the end.
PROVIDER_STATES: Mapping[Phrase, Look] = {
    Phrase.AVAILABLE: Look(gettext_lazy("available"), "circle-check", "green"),
    Phrase.RAMPING: Look(gettext_lazy("available, starting gently"), "play", "green"),
    Phrase.THROTTLED: Look(gettext_lazy("throttled"), "gauge", "blue"),
    Phrase.QUOTA_EXHAUSTED: Look(gettext_lazy("quota exhausted"), "hourglass", "amber"),
    Phrase.BLOCKED: Look(gettext_lazy("blocked by staff"), "lock", "grey"),
    Phrase.PAUSED: Look(gettext_lazy("paused by staff"), "circle-pause", "grey"),
    Phrase.NEXT_IS_PROBE: Look(gettext_lazy("down"), "octagon-alert", "red"),
    Phrase.PROBING: Look(gettext_lazy("down"), "octagon-alert", "red"),
    Phrase.CHECKING: Look(gettext_lazy("down"), "octagon-alert", "red"),
    Phrase.DOWN: Look(gettext_lazy("down"), "octagon-x", "red"),
    Phrase.KEY_REJECTED: Look(gettext_lazy("down"), "octagon-x", "red"),
}
UNKNOWN_YET = Look(gettext_lazy("unknown yet"), "circle-dashed", "outline")
TARGET_STOPPED = Look(gettext_lazy("stopped"), "octagon-pause", "amber")
TARGET_OFF = Look(gettext_lazy("switched off by staff"), "ban", "grey")

# What staff think of a result, in the order of the keys 1 to 3.
RATINGS: Mapping[str, Look] = {
    Result.Rating.GOOD: Look(pgettext_lazy("result", "good"), "circle-check", "green"),
    Result.Rating.USABLE: Look(pgettext_lazy("result", "usable"), "circle-dot", "amber"),
    Result.Rating.BAD: Look(pgettext_lazy("result", "bad"), "circle-x", "red"),
}

# How a case was ended: resolutions that verbs write.
RESOLUTIONS: Mapping[str, Words] = {
    "evidence": gettext_lazy("settled by evidence"),
    "retried": gettext_lazy("retried"),
    "sent_again": gettext_lazy("sent again"),
    "done": gettext_lazy("done by hand"),
    "gave_up": gettext_lazy("given up"),
    "cancelled": gettext_lazy("job cancelled"),
    "checked": gettext_lazy("looked into, nothing to do"),
    "refund_asked": gettext_lazy("refund asked for"),
    "settled": gettext_lazy("settled with the provider"),
    "written_off": gettext_lazy("written off"),
    "refunded": gettext_lazy("refunded by the provider"),
    "absent": gettext_lazy("it never arrived, sent again"),
    "delivered": gettext_lazy("a result was chosen and delivered"),
}

EVENTS: Mapping[str, Look] = {
    "created": Look(gettext_lazy("Created"), "plus", "grey"),
    "intent": Look(gettext_lazy("Taken up"), "pencil", "grey"),
    "armed": Look(gettext_lazy("Sending"), "send", "blue"),
    "accepted": Look(gettext_lazy("Accepted by the provider"), "check", "blue"),
    "refused": Look(gettext_lazy("Refused by the provider"), "circle-x", "amber"),
    "unsent": Look(gettext_lazy("Nothing was sent"), "ban", "grey"),
    "lost": Look(gettext_lazy("Answer lost, outcome unknown"), "circle-help", "violet"),
    "found": Look(gettext_lazy("Found in the provider's history"), "radar", "green"),
    "found_by_webhook": Look(gettext_lazy("Found by the provider's webhook"), "radar", "green"),
    "absent": Look(gettext_lazy("Proven: the provider never had it"), "radar", "green"),
    "hinted": Look(gettext_lazy("The provider says that there is news"), "bell", "grey"),
    "status_word": Look(gettext_lazy("The provider used a new status word"), "info", "grey"),
    "poll_trouble": Look(gettext_lazy("A poll told nothing"), "triangle-alert", "grey"),
    "stored": Look(gettext_lazy("File stored"), "arrow-down-to-line", "green"),
    "fetch_trouble": Look(gettext_lazy("The file could not be fetched"), "triangle-alert", "amber"),
    "receipt": Look(gettext_lazy("Receipt read"), "receipt-text", "grey"),
    "no_receipt": Look(gettext_lazy("No receipt to be had"), "receipt-text", "amber"),
    "released": Look(gettext_lazy("No longer in the way of a further send"), "check", "grey"),
    "late_result": Look(
        gettext_lazy("A late result came; it is kept beside the decision"), "image", "violet"
    ),
    "case_opened": Look(gettext_lazy("Needs a person"), "hand", "amber"),
    "case_closed": Look(gettext_lazy("Case closed"), "check-check", "grey"),
    "case_taken": Look(gettext_lazy("Case taken"), "user-check", "grey"),
    "case_noted": Look(gettext_lazy("Note"), "sticky-note", "grey"),
    "callback_replayed": Look(gettext_lazy("Callbacks sent again"), "send", "blue"),
    "conflict": Look(gettext_lazy("Two different facts"), "triangle-alert", "amber"),
    "retried": Look(gettext_lazy("Retried"), "rotate-ccw", "blue"),
    "retargeted": Look(gettext_lazy("Retried on another target"), "shuffle", "blue"),
    "sent_again": Look(gettext_lazy("Sent again although a charge was possible"), "send", "amber"),
    "marked_manual": Look(gettext_lazy("Marked for manual handling"), "hand", "amber"),
    "resolved": Look(gettext_lazy("Resolved"), "check-check", "green"),
    "candidate_accepted": Look(
        gettext_lazy("A candidate of the provider's history was accepted"), "link", "green"
    ),
    "absent_confirmed": Look(
        gettext_lazy("The provider confirmed that it never arrived; sent again"), "send", "amber"
    ),
    "written_off": Look(gettext_lazy("Charge written off"), "ban", "grey"),
    "refunded": Look(gettext_lazy("Charge refunded"), "undo-2", "green"),
    "edited": Look(gettext_lazy("Retried with another prompt or target"), "pencil", "blue"),
    "delivered_instead": Look(gettext_lazy("A result was chosen and delivered"), "image", "green"),
    "rated": Look(gettext_lazy("Rated"), "gauge", "grey"),
    "rating_removed": Look(gettext_lazy("Rating taken back"), "undo-2", "grey"),
    "poll_asked": Look(gettext_lazy("Asked to poll now"), "refresh-cw", "grey"),
    "id_attached": Look(gettext_lazy("Provider id attached"), "link", "blue"),
    "adopted": Look(gettext_lazy("Adopted from the provider's history"), "link", "blue"),
    "pending": Look(gettext_lazy("Back in the queue"), "clock", "grey"),
    "active": Look(gettext_lazy("At work"), "play", "blue"),
    "succeeded": Look(gettext_lazy("Succeeded"), "circle-check", "green"),
    "failed": Look(gettext_lazy("Failed"), "circle-x", "red"),
    "manual": Look(gettext_lazy("Handed to a person"), "hand", "amber"),
    "cancelled": Look(gettext_lazy("Cancelled"), "ban", "grey"),
}

# The same words about a send, not about its job.
_TASK_EVENTS: Mapping[str, Look] = {
    "completed": Look(gettext_lazy("The provider has made it"), "circle-check", "blue"),
    "failed": Look(gettext_lazy("The provider says it failed"), "circle-x", "red"),
}

# Reasons and other constants that stand in rows and events.
REASONS: Mapping[str, Words] = {
    "retried": gettext_lazy("retried by a person"),
    "sent_again": gettext_lazy("sent again by a person"),
    "going_on": gettext_lazy("settled, going on"),
    "standing_resend": gettext_lazy("sent again by a standing decision"),
    "standing_next": gettext_lazy("next target by a standing decision"),
    "next_target": gettext_lazy("next target of the route"),
    "rate_limited": gettext_lazy("the provider asked to slow down"),
    "quota_exhausted": gettext_lazy("quota exhausted"),
    "unauthorized": gettext_lazy("key rejected"),
    "rejected": gettext_lazy("request rejected"),
    "down": gettext_lazy("failure at the provider"),
    "unknown": gettext_lazy("outcome unknown"),
    "unsent": gettext_lazy("could not be sent"),
    "target_stopped": gettext_lazy("target stopped"),
    "withdrawn": gettext_lazy("withdrawn before it was sent"),
    "not_needed": gettext_lazy("no longer needed"),
    "lane_died": gettext_lazy("its worker died before sending"),
    "done": gettext_lazy("done by hand"),
    "gave_up": gettext_lazy("given up"),
    "cancelled": gettext_lazy("cancelled by a person"),
    "free": gettext_lazy("it cost nothing"),
    "absent": gettext_lazy("it never arrived"),
    "stored": gettext_lazy("its result is stored"),
    "person": gettext_lazy("a person decided"),
    "standing": gettext_lazy("a standing decision"),
    "evidence": gettext_lazy("evidence"),
    "result_stored": gettext_lazy("its result is stored"),
    "absent_confirmed": gettext_lazy("sent again, as it never arrived"),
    "written_off": gettext_lazy("given up, its charge written off"),
    "edited": gettext_lazy("retried with another prompt or target"),
    "delivered": gettext_lazy("a person chose its result"),
}


_CASE_KINDS = frozenset(kind.value for kind in CaseKind)


def told_look(told: Told, *, now: datetime) -> Look:
    """What is told of a provider, in its own words: "down, next try 12:03"."""
    look = PROVIDER_STATES[told.phrase]
    return Look(in_words(told, now=now, moment=written.moment), look.icon, look.tone)


def task_look(task: ProviderTask) -> Look:
    """The look of a send's state, more exactly where its file does not come."""
    state = TaskState(task.state)
    if state is TaskState.COMPLETED and task.fetch_trouble:
        return _FETCH_FAILS if task.next_fetch_at is not None else _NOT_FETCHED
    if state is TaskState.COMPLETED and task.next_fetch_at is None:
        return _NO_FILE
    return TASK_STATES[state]


def event_look(kind: str, *, of_task: bool = False) -> Look:
    """A kind nobody has named yet is shown by its own name."""
    look = _TASK_EVENTS.get(kind) if of_task else None
    return (
        look or EVENTS.get(kind) or Look(kind.replace("_", " ").capitalize(), "circle-dot", "grey")
    )


def reason(constant: str) -> str:
    """A constant of a row or an event in words; "" stays "". A name unknown here is shown as it is."""
    if constant in REASONS:
        return str(REASONS[constant])
    if constant in _CASE_KINDS:
        return str(Case.Kind(constant).label)
    return constant.replace("_", " ") if constant.islower() and " " not in constant else constant


def _plain_amount(text: str) -> str:
    """A stored decimal without its trailing zeros: "5", not "5.0000000000"; what is no number stays."""
    try:
        return f"{Decimal(text).normalize():f}"
    except InvalidOperation:
        return text


def event_detail(kind: str, data: Mapping[str, Any]) -> str:
    """What an event carries, in one line; "" for nothing worth reading."""
    parts = []
    for name in ("case", "reason", "class", "by", "outcome", "resolution"):
        if value := data.get(name):
            parts += [reason(str(value))]
    for name in ("reference", "text", "note", "why", "target", "provider_id", "possible_duplicate", "money"):  # fmt: skip
        if name == "target" and kind == "created":
            continue  # the first of the route, which stands beside
        if value := data.get(name):
            parts.append(str(value))
    if (cost := data.get("cost")) is not None and "money" not in data:
        parts.append(_plain_amount(str(cost)))
    if kind == "rated" and data.get("after") in RATINGS:
        parts.append(str(RATINGS[data["after"]].word))
    if status := data.get("status"):
        parts.append(f"HTTP {status}" if isinstance(status, int) else str(status))
    if wait_s := data.get("wait_s"):
        parts.append(_("in %(time)s at the earliest") % {"time": written.duration(float(wait_s))})
    return " · ".join(dict.fromkeys(parts))
