"""What the facts mean for a job. Pure: reads views, returns a Decision; saves, sleeps and logs nothing.

The table of design.md section 5 lives here. `decide` may be called any number of times with the same facts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from jobs.states import BLOCKING_CASES, CaseKind, JobState, Release, TaskState
from providers.contract import Charge, FailureClass

JITTER_S = 2.0
BACKOFF_FIRST_S = 1.0
BACKOFF_MOST_S = 30.0
UNTOLD_QUOTA_S = 6 * 3600.0
KEY_REJECTED_S = 60.0
POISON_DEATHS = 3
MISSING_FOR_S = 3600.0  # a task the provider does not know for this long becomes a case
LANE_DIED = "lane_died"
_FREE = frozenset({Charge.NONE, Charge.REFUNDED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that decisions depend on."""

    max_retries: int
    free_refusal_attempts: int
    fallback_on: frozenset[str]
    patience_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task as decide sees it; the flags are reckoned at `now` by whoever loads it."""

    id: UUID
    state: TaskState
    charge: Charge
    target_id: int
    account_id: int
    created_at: datetime
    estimated_cost: Decimal
    currency: str
    cost: Decimal | None = None
    blocks_send: bool = True
    released_by: str = ""
    undecided: bool = True
    failure_class: str = ""
    failure_text: str = ""
    wait_s: float | None = None
    ours: bool = False
    target_stops: bool = False
    unsent_reason: str = ""
    absent: bool = False
    has_result: bool = False  # the verdict named a file (or, where words are wanted, words)
    receipts_over: bool = False  # asked to the end, never told
    fetch_given_up: bool = False
    fetch_trouble: str = ""
    missing_long: bool = False
    watch_over: bool = False
    unclear: bool = False  # absence could have been concluded by now and was not
    spool_clear: bool = True  # what its host keeps on its disk was read since
    deaths: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as decide sees it. `results` maps a stored task's id to the id of its first result."""

    id: int
    state: JobState
    route: tuple[int, ...]
    target_id: int
    attempts_since: datetime
    tasks: Sequence[TaskView]
    decided_by_person: bool = False
    open_cases: frozenset[tuple[CaseKind, UUID | None]] = frozenset()
    closed_by_person: frozenset[tuple[CaseKind, UUID | None]] = frozenset()
    edited_at: datetime | None = None  # sends before this were made with an earlier prompt
    results: dict[UUID, int] = field(default_factory=dict)
    accounts: dict[int, int | None] = field(default_factory=dict)  # target id -> account id
    standing_resend: frozenset[int] = frozenset()  # target ids with a live decision of the owner
    standing_next: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCase:
    kind: CaseKind
    task_id: UUID | None
    money: Decimal = Decimal(0)
    currency: str = ""
    detail: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where a job goes once its task is released."""

    state: JobState
    reason: str
    text: str = ""
    wait_s: float = 0.0
    target_id: int | None = None
    case: CaseKind | None = None


@dataclass(slots=True, kw_only=True)
class Decision:
    """What to write, in one guarded transaction. `state` None: the job stays as it is."""

    state: JobState | None = None
    reason: str = ""
    text: str = ""
    wait_s: float = 0.0
    target_id: int | None = None
    deliver: int | None = None
    late_results: list[UUID] = field(default_factory=list)
    release: list[tuple[UUID, Release]] = field(default_factory=list)
    withdraw: list[UUID] = field(default_factory=list)  # intents that need no sending any more
    open: list[NewCase] = field(default_factory=list)
    close: list[tuple[CaseKind, UUID | None]] = field(default_factory=list)


def decide(*, job: JobView, rules: Rules, rng: random.Random) -> Decision:
    """What the job's facts mean for it now."""
    decision = Decision()
    movable = job.state in {JobState.ACTIVE, JobState.MANUAL} and not job.decided_by_person
    step: Step | None = None
    blocking = next((task for task in job.tasks if task.blocks_send), None)
    if blocking is not None:
        released = _release(job, blocking, rules=rules)
        if released is not None:
            decision.release.append((blocking.id, released))
            if movable and released is not Release.STORED:
                step = _next_step(job, blocking, released, rules=rules, rng=rng)
            blocking = None
    wanted = _wanted_cases(job, released=dict(decision.release))
    decision.open = [
        case
        for key, case in wanted.items()
        if key not in job.open_cases
        and (key not in job.closed_by_person or _stands_again(case, job))
    ]
    decision.close = [key for key in job.open_cases if key[0] in _DERIVED and key not in wanted]

    stored = [
        task for task in job.tasks if task.state is TaskState.STORED and task.id in job.results
    ]
    _announce(job, decision, stored)
    fitting = [task for task in stored if not _outdated(job, task)]
    if fitting:
        _deliver(job, decision, fitting[0])
    elif movable:
        _move(job, decision, step=step, blocked_by=blocking)
    elif (
        job.state is JobState.PENDING
        and not job.decided_by_person
        and (kind := _for_a_person(job, decision)) is not None
    ):
        # An earlier send, released as free, turned out otherwise: nothing is sent while a person looks.
        decision.state, decision.reason = JobState.MANUAL, kind
    return decision


def _outdated(job: JobView, task: TaskView) -> bool:
    return job.edited_at is not None and task.created_at < job.edited_at


def _announce(job: JobView, decision: Decision, stored: Sequence[TaskView]) -> None:
    """A result that comes after a person's decision, or was made with an earlier prompt, is told in a case, once."""
    decided = job.decided_by_person or job.state is JobState.CANCELLED
    late = [task for task in stored if task.undecided and (decided or _outdated(job, task))]
    decision.late_results = [task.id for task in late]
    for task in late:
        key = (CaseKind.LATE_RESULT, task.id)
        # What was released as stored before was seen by whoever decided.
        news = task.released_by != Release.STORED
        if news and key not in job.open_cases and key not in job.closed_by_person:
            decision.open.append(_case(CaseKind.LATE_RESULT, task))


def _deliver(job: JobView, decision: Decision, stored: TaskView) -> None:
    """A stored result ends the job, unless a person has decided it: then it is kept and announced."""
    decision.withdraw = [task.id for task in job.tasks if task.state is TaskState.INTENT]
    if job.decided_by_person or job.state in {JobState.CANCELLED, JobState.SUCCEEDED}:
        return
    decision.state, decision.reason = JobState.SUCCEEDED, "result_stored"
    decision.deliver = job.results[stored.id]
    decision.close += [
        key for key in job.open_cases if key[0] in _ENDED_BY_RESULT and key not in decision.close
    ]


def _move(
    job: JobView, decision: Decision, *, step: Step | None, blocked_by: TaskView | None
) -> None:
    """Set the state of a job that is under way: a person's turn, the provider's, or the next send's."""
    for_a_person = _for_a_person(job, decision)
    if step is not None:
        decision.target_id, decision.wait_s = step.target_id, step.wait_s
        decision.reason, decision.text = step.reason, step.text
    if for_a_person is not None:
        if job.state is not JobState.MANUAL:
            decision.state, decision.reason = JobState.MANUAL, for_a_person
    elif step is not None:
        decision.state = step.state
        if step.case is not None:
            decision.open.append(NewCase(kind=step.case, task_id=None))
    elif blocked_by is not None:
        if job.state is JobState.MANUAL:
            decision.state, decision.reason = JobState.ACTIVE, "going_on"
    else:
        decision.state, decision.reason = JobState.PENDING, "going_on"


def _for_a_person(job: JobView, decision: Decision) -> CaseKind | None:
    """The open case, once this decision is written, that makes the job a person's turn."""
    open_after = (job.open_cases - set(decision.close)) | {
        (case.kind, case.task_id) for case in decision.open
    }
    return next((kind for kind, _ in sorted(open_after, key=str) if kind in BLOCKING_CASES), None)


# --- releasing --------------------------------------------------------------------------------------------------------


def _release(job: JobView, task: TaskView, *, rules: Rules) -> Release | None:
    """Why the task need not block any more; None while a charge stays possible and nobody has decided otherwise."""
    match task.state:
        case TaskState.STORED:
            return Release.STORED
        case TaskState.REFUSED if task.charge in _FREE:
            return Release.FREE
        case TaskState.UNSENT if task.charge in _FREE:
            return Release.ABSENT if task.absent else Release.UNSENT
        case TaskState.FAILED if task.charge in _FREE:
            return Release.FREE
        case TaskState.ACCEPTED | TaskState.COMPLETED | TaskState.UNKNOWN if (
            task.charge is Charge.REFUNDED
        ):
            return Release.FREE
        case TaskState.FAILED if task.target_id in job.standing_next and (
            task.charge is Charge.CHARGED or task.receipts_over
        ):
            return Release.STANDING
        # The answer may lie on the disk of a host that is away.
        case TaskState.UNKNOWN if (
            task.target_id in job.standing_resend
            and task.spool_clear
            and (
                _count(job, task.target_id, lambda t: t.released_by == Release.STANDING)
                < rules.max_retries
            )
        ):
            return Release.STANDING
        case _:
            return None


def _count(job: JobView, target_id: int, test: Callable[[TaskView], bool]) -> int:
    """Tasks at this target, since the job's last new start, that pass the test."""
    here = (
        task
        for task in job.tasks
        if task.target_id == target_id and task.created_at >= job.attempts_since
    )
    return sum(1 for task in here if test(task))


# --- the next step ----------------------------------------------------------------------------------------------------


def _next_step(
    job: JobView, task: TaskView, released: Release, *, rules: Rules, rng: random.Random
) -> Step:
    text = task.failure_text
    if released is Release.STANDING:
        if task.state is TaskState.UNKNOWN:
            return Step(state=JobState.PENDING, reason="standing_resend", text=text)
        return _fall_back(job, task, reason="standing_next") or _give_up(
            CaseKind.REFUSED_BY_ALL, text
        )
    if task.state is TaskState.FAILED:
        word = "refused" if task.failure_class == FailureClass.REJECTED else "down"
        return _fallback_if(word, job, task, rules) or _give_up(CaseKind.REFUSED_BY_ALL, text)
    if task.charge is Charge.REFUNDED and released is Release.FREE:
        # The money came back, and the provider has refused nothing: whether to try once more is a person's choice.
        return _give_up(CaseKind.REFUSED_BY_ALL, text)
    if task.state is TaskState.UNSENT:
        if task.ours:
            tried = _count(job, task.target_id, _failed_here)
            return Step(
                state=JobState.PENDING, reason=task.unsent_reason or "unsent", text=text,
                wait_s=free_wait_s(attempt=tried, told_s=None, rng=rng) if tried > 1 else 0.0,
            )  # fmt: skip
        return _again(job, task, "down", rules=rules, rng=rng)
    return _after_refusal(job, task, rules=rules, rng=rng)


def _after_refusal(job: JobView, task: TaskView, *, rules: Rules, rng: random.Random) -> Step:
    text = task.failure_text
    match task.failure_class:
        case FailureClass.RATE_LIMITED:
            if task.wait_s is not None and task.wait_s > rules.patience_s:
                moved = _fallback_if("quota", job, task, rules)
                return moved or Step(
                    state=JobState.PENDING, reason="rate_limited", text=text,
                    wait_s=free_wait_s(attempt=1, told_s=task.wait_s, rng=rng),
                )  # fmt: skip
            return _again(job, task, "quota", rules=rules, rng=rng)
        case FailureClass.QUOTA_EXHAUSTED:
            wait = task.wait_s if task.wait_s is not None else UNTOLD_QUOTA_S
            return _fallback_if("quota", job, task, rules) or Step(
                state=JobState.PENDING,
                reason="quota_exhausted",
                text=text,
                wait_s=wait + rng.uniform(0, JITTER_S),
            )
        case FailureClass.UNAUTHORIZED:
            return _fallback_if("down", job, task, rules, other_account=True) or Step(
                state=JobState.PENDING, reason="unauthorized", text=text,
                wait_s=KEY_REJECTED_S + rng.uniform(0, JITTER_S),
            )  # fmt: skip
        case FailureClass.DOWN:
            return _fallback_if("down", job, task, rules) or _again(
                job, task, "down", rules=rules, rng=rng
            )
        case _:
            moved = _fallback_if("refused", job, task, rules)
            if moved is None and task.target_stops:
                # The target is wrong, not the job: it waits until staff have mended the target.
                return Step(state=JobState.PENDING, reason="target_stopped", text=text)
            return moved or _give_up(CaseKind.REFUSED_BY_ALL, text)


def _again(job: JobView, task: TaskView, word: str, *, rules: Rules, rng: random.Random) -> Step:
    """The same target after a while, as long as free attempts are left; then the next target, or the end."""
    attempt = _count(job, task.target_id, _is_free_refusal)
    if attempt >= rules.free_refusal_attempts:
        return _fallback_if(word, job, task, rules) or _give_up(
            CaseKind.ATTEMPTS_EXHAUSTED, task.failure_text
        )
    wait = free_wait_s(attempt=attempt, told_s=task.wait_s, rng=rng)
    return Step(
        state=JobState.PENDING, reason=task.failure_class or "unsent", text=task.failure_text, wait_s=wait
    )  # fmt: skip


def _is_free_refusal(task: TaskView) -> bool:
    """Refusals that use up an attempt. A quota, a rejected key and our own withdrawals do not."""
    if task.state is TaskState.UNSENT:
        return not task.ours
    return task.state is TaskState.REFUSED and task.failure_class in {
        FailureClass.RATE_LIMITED,
        FailureClass.DOWN,
    }


def _failed_here(task: TaskView) -> bool:
    return task.state is TaskState.UNSENT and task.ours and task.unsent_reason != LANE_DIED


def free_wait_s(*, attempt: int, told_s: float | None, rng: random.Random) -> float:
    """Seconds before the same target is asked again; never less than the provider told, with positive jitter only.

    Where nothing was told, or no wait at all: full jitter below 1, 2, 4 … 30 s, and never under a tenth of a second.
    """
    if told_s:
        return told_s + rng.uniform(0, JITTER_S)
    ceiling = min(BACKOFF_MOST_S, BACKOFF_FIRST_S * 2 ** min(attempt - 1, 20))
    return rng.uniform(0.1, max(ceiling, 0.2)) + rng.uniform(0, JITTER_S)


def _fallback_if(
    word: str, job: JobView, task: TaskView, rules: Rules, *, other_account: bool = False
) -> Step | None:
    if word not in rules.fallback_on:
        return None
    return _fall_back(job, task, reason="next_target", other_account=other_account)


def _fall_back(
    job: JobView, task: TaskView, *, reason: str, other_account: bool = False
) -> Step | None:
    """The next target of the route, if there is one (and, where asked, on another account)."""
    position = job.route.index(task.target_id) if task.target_id in job.route else len(job.route)
    for target_id in job.route[position + 1 :]:
        if other_account and job.accounts.get(target_id) == task.account_id:
            continue
        return Step(
            state=JobState.PENDING, reason=reason, text=task.failure_text, target_id=target_id
        )
    return None


def _give_up(case: CaseKind, text: str) -> Step:
    return Step(state=JobState.FAILED, reason=case, text=text, case=case)


# --- cases ------------------------------------------------------------------------------------------------------------

# Open exactly while the facts say so; evidence closes them as it opened them.
_DERIVED = frozenset(
    {
        CaseKind.UNKNOWN_SEND,
        CaseKind.PAID_WITHOUT_RESULT,
        CaseKind.FAILED_BUT_CHARGED,
        CaseKind.LOST_AT_PROVIDER,
        CaseKind.NEVER_ANSWERED,
        CaseKind.FETCH_FAILED,
        CaseKind.PAID_TWICE,
        CaseKind.POISON,
    }
)
_ENDED_BY_RESULT = frozenset(
    {
        CaseKind.BY_HAND,
        CaseKind.REFUSED_BY_ALL,
        CaseKind.ATTEMPTS_EXHAUSTED,
        CaseKind.RESTORE,
        CaseKind.LATE_RESULT,
    }
)
# A person has settled the money: nobody need look at it any more.
_SETTLED = frozenset({Charge.REFUNDED, Charge.WRITTEN_OFF})
_BY_DECISION = frozenset({Release.PERSON.value, Release.STANDING.value})


def _wanted_cases(
    job: JobView, *, released: dict[UUID, Release]
) -> dict[tuple[CaseKind, UUID | None], NewCase]:
    cases = [case for task in job.tasks if (case := _case_of(task, released)) is not None]
    cases += [
        _case(CaseKind.PAID_TWICE, task, why=task.failure_text or task.state)
        for task in _paid_beside(job, released)
    ]
    deaths = _deaths_in_a_row(task for task in job.tasks if task.created_at >= job.attempts_since)
    poisoned = next((task for task in job.tasks if task.deaths >= POISON_DEATHS), None)
    if poisoned is not None:
        cases.append(_case(CaseKind.POISON, poisoned, deaths=str(poisoned.deaths)))
    elif deaths >= POISON_DEATHS:
        cases.append(_case(CaseKind.POISON, job.tasks[-1], deaths=str(deaths)))
    return {(case.kind, case.task_id): case for case in cases}


def _stands_again(case: NewCase, job: JobView) -> bool:
    """Closing `poison` set deaths to 0: three new ones are news, and nobody works at the row until the case is closed."""
    return case.kind is CaseKind.POISON and any(
        task.id == case.task_id and task.deaths >= POISON_DEATHS for task in job.tasks
    )


def _case(kind: CaseKind, task: TaskView, **detail: str) -> NewCase:
    money = task.cost if task.cost is not None else task.estimated_cost
    return NewCase(kind=kind, task_id=task.id, money=money, currency=task.currency, detail=detail)


def _case_of(task: TaskView, released: dict[UUID, Release]) -> NewCase | None:
    """The one thing about this task that needs a person, if any. What a person or the owner decided stays decided."""
    if task.released_by in _BY_DECISION or released.get(task.id) is Release.STANDING:
        return None
    if task.charge in _SETTLED:
        return None
    why = task.failure_text
    match task.state:
        case TaskState.UNKNOWN if task.unclear:
            return _case(CaseKind.UNKNOWN_SEND, task, why=why)
        case TaskState.COMPLETED if not task.has_result:
            return _case(CaseKind.PAID_WITHOUT_RESULT, task, why=why)
        case TaskState.COMPLETED if task.fetch_given_up:
            return _case(CaseKind.FETCH_FAILED, task, why=task.fetch_trouble)
        case TaskState.REFUSED | TaskState.UNSENT if task.charge is Charge.CHARGED:
            return _case(CaseKind.FAILED_BUT_CHARGED, task, why=why)
        case TaskState.ACCEPTED if task.watch_over:
            return _case(CaseKind.NEVER_ANSWERED, task)
        case TaskState.ACCEPTED if task.missing_long:
            return _case(CaseKind.LOST_AT_PROVIDER, task)
        case TaskState.FAILED if task.charge is Charge.CHARGED or (
            task.charge is Charge.POSSIBLE and task.receipts_over
        ):
            return _case(CaseKind.FAILED_BUT_CHARGED, task, why=why)
        case _:
            return None


def _paid_beside(job: JobView, released: dict[UUID, Release]) -> list[TaskView]:
    """Tasks that cost, or may cost, money beside the one that serves the job."""

    def may_cost(task: TaskView) -> bool:
        by_decision = task.released_by in _BY_DECISION or released.get(task.id) is Release.STANDING
        if task.charge is Charge.CHARGED:
            return not (by_decision and task.state is TaskState.FAILED)
        return task.charge is Charge.POSSIBLE and not by_decision

    paying = [task for task in job.tasks if may_cost(task)]
    if len(paying) < 2:
        return []
    serving = next((task for task in paying if task.state is TaskState.STORED), None)
    # As it will be once this decision is written, or the next one would see another task beside.
    blocking = (task for task in paying if task.blocks_send and task.id not in released)
    serving = serving or next(blocking, paying[0])
    return [task for task in paying if task.id != serving.id]


def _deaths_in_a_row(tasks: Iterable[TaskView]) -> int:
    """How many of the latest intents were left behind by dying lanes, one after another."""
    deaths = 0
    for task in tasks:
        died = task.state is TaskState.UNSENT and task.unsent_reason == LANE_DIED
        deaths = deaths + 1 if died else 0
    return deaths
