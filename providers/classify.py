"""What a refusing answer means: who must act, whether it may have cost money, how long to wait. Pure; never raises.

Class and charge are separate. The class comes from the body before the status. The charge is `possible` unless the answer
is of a kind known to precede acceptance, and however sure a text sounds, a started task, a timeout or an unlisted status
keeps it `possible`: taking that for free is how a picture gets paid for twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from providers import patterns as say
from providers import scarcity as lack
from providers import waits
from providers.contract import Answer, Charge, FailureClass, NoAnswer, Refusal, Scope
from providers.evidence import Evidence
from providers.evidence import read as take_apart
from providers.redaction import redact_text, sanitise

SHORT_WAIT_S = 3600.0  # from an hour on, a limit is a quota
REASON_LENGTH = 300

_RATE = FailureClass.RATE_LIMITED
_QUOTA = FailureClass.QUOTA_EXHAUSTED
_UNAUTHORIZED = FailureClass.UNAUTHORIZED
_REJECTED = FailureClass.REJECTED
_DOWN = FailureClass.DOWN
_UNKNOWN = FailureClass.UNKNOWN

# Refusals of a request that was looked at and turned away, and never begun.
_REFUSING = frozenset({400, 403, 404, 405, 406, 410, 411, 413, 414, 415, 416, 422, 431, 451})
# The request may be running: whatever the text says, nothing is free.
_OUTCOME_OPEN = frozenset({408, 424, 425, 499, 504, 524})
# Refusing by their meaning, but the request may stand in conflict with one that was accepted.
_CONFLICTING = frozenset({409, 412, 423, 428})
# The only 5xx by which a provider without room turns away what it has not begun.
_TURNS_AWAY = frozenset({503, 529})
# Asked elsewhere, not handled here. (302 and 303 may follow on work done.)
_MOVED = frozenset({301, 307, 308})
_DAY_NAME = re.compile(
    r"(?i)per[-_]?(?:model[-_]?per[-_]?)?(?:day|week|month)(?![a-z])|PerDay|PerWeek|PerMonth"
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one machine word of a provider means. `free`: it is known to precede acceptance."""

    failure: FailureClass
    free: bool = False
    target_stops: bool = False
    scope: Scope | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """One provider's own words beside the generic ones; keys in lower case.

    `sure` codes decide before any text is looked at; `plain` codes decide only what the texts leave open.
    """

    sure: Mapping[str, Meaning] = field(default_factory=dict)
    plain: Mapping[str, Meaning] = field(default_factory=dict)


GENERIC = Rules()

# Machine words that their own sentence belies.
_SURE_CODES: Mapping[str, Meaning] = {
    "throttling.allocationquota": Meaning(_RATE, free=True),  # tokens per minute
    "throttling.ratequota": Meaning(_RATE, free=True),
}
_PLAIN_CODES: Mapping[str, Meaning] = {
    "invalid_request_error": Meaning(_REJECTED, free=True),
    "invalid_request": Meaning(_REJECTED, free=True),
    "invalid_argument": Meaning(_REJECTED, free=True),
    "invalidparameter": Meaning(_REJECTED, free=True),
    "validation_error": Meaning(_REJECTED, free=True),
    "bad_request": Meaning(_REJECTED, free=True),
    "permission_error": Meaning(_REJECTED, free=True),
    "permission_denied": Meaning(_REJECTED, free=True),
    "not_found_error": Meaning(_REJECTED, free=True),
    "failed_precondition": Meaning(_REJECTED, free=True),
    "server_error": Meaning(_DOWN),
    "api_error": Meaning(_DOWN),
    "internal_error": Meaning(_DOWN),
    "internal": Meaning(_DOWN),
    "unavailable": Meaning(_DOWN),
    "deadline_exceeded": Meaning(_DOWN),
}


def classify(
    answer: Answer | NoAnswer,
    *,
    submit: bool = True,
    rules: Rules = GENERIC,
    now: datetime | None = None,
) -> Refusal:
    """What `answer` means, taken as a refusal; what no rule knows is `unknown` with a possible charge.

    `submit` False: the answer to a read, which can't show that a target is wrong. `now` serves moments told by an answer
    that has no Date header.
    """
    if isinstance(answer, NoAnswer):
        return _unanswered(answer)
    evidence = take_apart(answer)
    wait_s = waits.told(evidence, now=now)
    meaning = _meaning(evidence, rules, wait_s)
    free = meaning.free and not _may_have_begun(evidence, meaning.failure)
    return Refusal(
        failure=meaning.failure,
        charge=Charge.NONE if free else Charge.POSSIBLE,
        reason=reason(evidence),
        wait_s=wait_s,
        scope=meaning.scope or _scope(evidence, meaning.failure),
        status=answer.status,
        code=code(evidence),
        target_stops=submit and meaning.target_stops,
    )


def reason(evidence: Evidence) -> str:
    """What people read: the status and the provider's own words, short, without keys."""
    words = redact_text(evidence.raw) or ", ".join(evidence.codes)
    told = f"HTTP {evidence.status}: {words}" if words else f"HTTP {evidence.status}"
    return sanitise(" ".join(told.split()), limit=REASON_LENGTH)


def code(evidence: Evidence) -> str:
    """The machine word that tells most: the first that is not just the status again."""
    words = [word for word in evidence.codes if not word.isdigit()] or list(evidence.codes)
    return sanitise(redact_text(words[0]), limit=80) if words else ""


def _may_have_begun(evidence: Evidence, failure: FailureClass) -> bool:
    """Whether work may have been begun, however sure the meaning of the answer is."""
    if evidence.started or evidence.status in _OUTCOME_OPEN or failure is _UNKNOWN:
        return True
    if evidence.status < 500:
        return False
    if say.TIMEOUT.search(evidence.said) or say.BEGUN.search(evidence.said):
        return True
    if evidence.status in _TURNS_AWAY or evidence.inner in (402, 429):
        return False
    return lack.REFUSED_OUTRIGHT.search(evidence.said) is None


def _unanswered(answer: NoAnswer) -> Refusal:
    if answer.sent:
        return Refusal(
            _UNKNOWN, Charge.POSSIBLE, answer.reason, status=answer.status, ours=answer.ours
        )
    return Refusal(FailureClass.UNSENT, Charge.NONE, answer.reason, ours=answer.ours)


def _meaning(evidence: Evidence, rules: Rules, wait_s: float | None) -> Meaning:
    if evidence.page:
        return _of_page(evidence.status)
    good = 200 <= evidence.status < 300
    if good and evidence.json and not evidence.error:
        return Meaning(_UNKNOWN)
    for word in evidence.codes:
        meaning = rules.sure.get(word) or _SURE_CODES.get(word)
        # Under a 5xx a gateway tells of its own key, or of an upstream's: nothing that this account could cure.
        if meaning is not None and not (
            evidence.status >= 500 and meaning.failure is _UNAUTHORIZED
        ):
            return meaning
    status = _inner_status(evidence)
    for found in (
        _of_words(evidence, status, wait_s),
        _of_codes(evidence, rules),
        _of_status(evidence, status),
    ):
        if found is not None:
            return found
    return Meaning(_UNKNOWN)


def _inner_status(evidence: Evidence) -> int:
    """The status that counts: a gateway's 200, 400 or 5xx may wrap another one."""
    outer = evidence.status
    wraps = outer < 300 or outer == 400 or outer >= 500
    return evidence.inner if wraps and evidence.inner is not None else outer


def _of_page(status: int) -> Meaning:
    """A page is a gateway's word. On a 4xx the request was stopped there; otherwise nothing is known."""
    if status == 401:
        return Meaning(_UNAUTHORIZED, free=True)
    if status == 429:
        return Meaning(_RATE, free=True)
    if status in _MOVED:
        return Meaning(_REJECTED, free=True, target_stops=True)
    if status in _REFUSING:
        return Meaning(_REJECTED, free=True, target_stops=status in (404, 405))
    return Meaning(_UNKNOWN)


def _of_words(evidence: Evidence, status: int, wait_s: float | None) -> Meaning | None:
    """By what the texts and machine words say. The order is the rule: what can never succeed, then money, then room,
    then limits by their window, then keys and models."""
    said = evidence.said
    refused_free = evidence.status < 500 and evidence.status not in _CONFLICTING
    if status == 402 and _transient(evidence):
        return Meaning(_RATE, free=True)
    if status != 402 and say.NEVER_FITS.search(said):
        return Meaning(_REJECTED, free=refused_free)
    if say.MODERATION.search(said):
        drawn = say.AFTER_DRAWING.search(said) is not None
        return Meaning(_REJECTED, free=refused_free and not drawn)
    if lack.NOT_IN_PLAN.search(said):
        return Meaning(_REJECTED, free=refused_free, target_stops=True)
    if _about_money(said, wait_s):
        return Meaning(_QUOTA, free=True, scope=None)
    if lack.OVERLOAD.search(said) and not _is_limit_of_ours(said):
        begun = say.TIMEOUT.search(said) is not None
        return Meaning(_DOWN, free=_turns_away(evidence.status) and not begun)
    limit = _of_limits(evidence, status, wait_s)
    if limit is not None:
        return limit
    if not evidence.json and evidence.status >= 500 and say.EDGE_WORDS.search(said):
        return Meaning(_UNKNOWN)
    if status < 500 and status not in _OUTCOME_OPEN:
        return _of_caller_words(evidence, status)
    return None


def _transient(evidence: Evidence) -> bool:
    """A 402 that only says "your credit is held by calls in flight": it names them, or gives a short Retry-After."""
    wait_s = waits.header_wait(evidence.headers)
    return lack.IN_FLIGHT.search(evidence.said) is not None or (
        wait_s is not None and wait_s < SHORT_WAIT_S
    )


def _about_money(said: str, wait_s: float | None) -> bool:
    if lack.SURE_QUOTA.search(said):
        return True
    soon = wait_s is not None and wait_s < SHORT_WAIT_S
    fast = lack.RATE.search(said) is not None
    if lack.MONEY.search(said):  # "your per-minute budget, retry in 18s" is speed
        return not (fast and soon and lack.PER_MOMENT.search(said))
    return lack.MONEY_ADVICE.search(said) is not None and not (fast and (soon or _is_short(said)))


def _is_short(said: str) -> bool:
    """A limit on speed or on what runs at once."""
    return lack.PER_MOMENT.search(said) is not None or lack.AT_ONCE.search(said) is not None


def _turns_away(status: int) -> bool:
    """Whether a provider without room answers so before it begins."""
    if status >= 500:
        return status in _TURNS_AWAY
    return status not in _OUTCOME_OPEN and status not in _CONFLICTING


def _is_limit_of_ours(said: str) -> bool:
    """Words of load inside a message about our own limit: so many a day of a quota, or so many a minute."""
    if lack.CAP.search(said) and lack.LONG_WINDOW.search(said):
        return True
    return lack.RATE.search(said) is not None and lack.PER_MOMENT.search(said) is not None


def _of_limits(evidence: Evidence, status: int, wait_s: float | None) -> Meaning | None:
    said = evidence.said
    cap = lack.CAP.search(said) is not None
    fast = lack.RATE.search(said) is not None
    if not (cap or fast or status == 429):
        return None
    long_window = lack.LONG_WINDOW.search(said) is not None
    short_window = _is_short(said)
    # A bucket named like an identifier ("GenerateRequestsPerDay…") tells a short wait that only means "one more try".
    named_day = _DAY_NAME.search(" ".join((*evidence.codes, evidence.raw))) is not None
    if named_day or "limit: 0" in f"{said} ".replace("limit: 0.", ""):
        return Meaning(_QUOTA, free=True)
    if wait_s is not None:
        return Meaning(_RATE if wait_s < SHORT_WAIT_S else _QUOTA, free=True)
    if long_window or (cap and not short_window):
        return Meaning(_QUOTA, free=True)
    return Meaning(_RATE, free=True)


def _of_caller_words(evidence: Evidence, status: int) -> Meaning | None:
    said = evidence.said
    free = evidence.status < 500 and status not in _CONFLICTING
    if status == 401 and evidence.status < 500:
        return Meaning(_UNAUTHORIZED, free=True)
    if say.WRONG_TARGET.search(said):
        return Meaning(_REJECTED, free=free, target_stops=not say.ONE_JOBS_OWN.search(said))
    if say.UNAUTHORIZED.search(said) and evidence.status < 500:
        return Meaning(_UNAUTHORIZED, free=free)
    if evidence.status >= 300 or status in _REFUSING:
        return None
    if say.TIMEOUT.search(said) or say.FAULT.search(said):
        return Meaning(_DOWN)
    if say.INVALID.search(said):
        return Meaning(_REJECTED, free=True)
    return Meaning(_DOWN) if say.TROUBLE.search(said) else None


def _of_codes(evidence: Evidence, rules: Rules) -> Meaning | None:
    for word in evidence.codes:
        meaning = rules.plain.get(word)
        if meaning is not None:
            return meaning
    if evidence.status < 300 or evidence.status >= 500:
        for word in evidence.codes:
            meaning = _PLAIN_CODES.get(word)
            if meaning is not None:
                free = meaning.free and evidence.status < 500
                return Meaning(meaning.failure, free=free)
    return None


def _of_status(evidence: Evidence, status: int) -> Meaning | None:
    said = evidence.said
    if status in _MOVED:
        return Meaning(_REJECTED, free=True, target_stops=True)
    if status == 401:
        inner = evidence.status >= 500
        return Meaning(_DOWN) if inner else Meaning(_UNAUTHORIZED, free=True)
    if status == 402:
        return Meaning(_QUOTA, free=True)
    if status in (400, 422) and say.BEGUN.search(said) and not say.INVALID.search(said):
        return Meaning(_DOWN)
    if status in _REFUSING:
        missing = status in (404, 405) and not say.ONE_JOBS_OWN.search(said)
        free = evidence.status < 500 and not say.NOTHING_CAME.search(said)
        return Meaning(_REJECTED, free=free, target_stops=missing)
    if status in _CONFLICTING:
        return Meaning(_REJECTED)
    if status == 529:
        return Meaning(_DOWN, free=evidence.status == 529)
    if status >= 500 and evidence.json:
        return Meaning(_DOWN)
    return None


def _scope(evidence: Evidence, failure: FailureClass) -> Scope:
    """What a wait or an outage applies to. Money and keys are the account's."""
    if failure in (_RATE, _QUOTA, _DOWN) and lack.ONE_MODEL.search(evidence.said):
        return Scope.ACCOUNT if lack.MONEY.search(evidence.said) else Scope.MODEL
    return Scope.ACCOUNT
