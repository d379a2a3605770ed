"""What became of each send of unknown outcome, judged by the providers' ledgers. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any

from bench.evidence_worlds import KILL, NAMED, Group, World, family, kind_of
from jobs.evidence import absence_from

CASE_WITHIN_S = 60.0


class Outcome(StrEnum):
    DELIVERED = "delivered"  # it was accepted, and its result is there
    SENT_AGAIN = "sent again"  # it never arrived, and the job was sent again
    CASE = "case"
    WRONG_LINK = "wrong link"
    WRONG_ABSENCE = "wrong absence"
    OPEN = "open"


_BY_ITSELF = frozenset({Outcome.DELIVERED, Outcome.SENT_AGAIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A row of ours: one armed send, with how its job stands. `died`: its worker did, during the POST."""

    id: str
    job: int
    account: str
    state: str
    job_state: str
    provider_id: str
    armed_at: datetime
    send_not_after: datetime
    deadline_s: float
    lag_s: float | None
    lost_at: datetime | None
    accepted_at: datetime | None
    absent_at: datetime | None
    died: bool
    delivered: bool
    case_at: datetime | None
    case_open: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the providers say, all together. `of`: the correlation id of each of their tasks."""

    of: dict[str, str] = field(default_factory=dict)
    accepted: Counter[str] = field(default_factory=Counter)  # by correlation id
    posted: Counter[str] = field(default_factory=Counter)
    fault: dict[str, str] = field(default_factory=dict)
    standing: Counter[str] = field(default_factory=Counter)  # charges by correlation id

    def add(self, told: Mapping[str, Any]) -> None:
        """One sandbox's ledger. What strangers made has no correlation id."""
        for task in told["tasks"]:
            self.of[task["id"]] = task["correlation"]
            self.accepted[task["correlation"]] += 1
        for post in told["posts"]:
            self.posted[post["correlation"]] += 1
            self.fault[post["correlation"]] = post["fault"]
        for charge in told["charges"]:
            if charge["refunded_at"] is None:
                self.standing[self.of[charge["task"]]] += 1
        for counted in (self.accepted, self.posted, self.fault, self.standing):
            counted.pop("", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One send of unknown outcome. `settled_s`: from its arming until its id or its absence was known, or its case opened;
    `case_s`: from when absence could first be concluded to its first case."""

    world: str
    kind: str
    accepted: bool
    outcome: Outcome
    settled_s: float | None = None
    case_s: float | None = None

    @property
    def by_itself(self) -> bool:
        return self.outcome in _BY_ITSELF


def judge(sent: Sent, ledger: Ledger, *, again: bool) -> Run:
    """`again`: a later send of the same job was armed."""
    accepted = ledger.accepted[sent.id] > 0
    outcome = _outcome(sent, ledger, accepted=accepted, again=again)
    known_at = sent.case_at if outcome is Outcome.CASE else sent.accepted_at or sent.absent_at
    due = absence_from(
        send_not_after=sent.send_not_after, deadline_s=sent.deadline_s, lag_s=sent.lag_s
    )
    return Run(
        world=family(sent.account),
        kind=_kind(sent, ledger),
        accepted=accepted,
        outcome=outcome,
        settled_s=None if known_at is None else (known_at - sent.armed_at).total_seconds(),
        case_s=None if sent.case_at is None else (sent.case_at - due).total_seconds(),
    )


def _outcome(sent: Sent, ledger: Ledger, *, accepted: bool, again: bool) -> Outcome:
    if sent.provider_id and ledger.of.get(sent.provider_id) != sent.id:
        return Outcome.WRONG_LINK
    if sent.absent_at is not None and accepted:
        return Outcome.WRONG_ABSENCE
    if sent.provider_id and sent.delivered and sent.job_state == "succeeded":
        return Outcome.DELIVERED
    if sent.absent_at is not None and again:
        return Outcome.SENT_AGAIN
    if sent.state == "unknown" and sent.case_open:
        return Outcome.CASE
    return Outcome.OPEN


def _kind(sent: Sent, ledger: Ledger) -> str:
    if sent.died:
        return KILL
    if not ledger.posted[sent.id]:
        return "reset before read"  # so early that the provider can't tell whose it was
    fault = ledger.fault[sent.id]
    return kind_of(fault) if fault else "the machine's own"


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """`wrong` names what breaks a promise, in words, by promise."""

    runs: list[Run]
    wrong: dict[str, list[str]]


def verdict(sent: Sequence[Sent], ledger: Ledger) -> Verdict:
    """Every send, those of known outcome too: a wrong link may be anyone's."""
    by_job: dict[int, list[Sent]] = defaultdict(list)
    for one in sorted(sent, key=lambda one: one.armed_at):
        by_job[one.job].append(one)
    runs, wrong = [], defaultdict[str, list[str]](list)
    for job, tasks in by_job.items():
        for number, one in enumerate(tasks):
            again = number + 1 < len(tasks)
            run = judge(one, ledger, again=again)
            where = f"{one.account}: {run.kind}, task {one.id} of job {job}"
            if run.outcome is Outcome.WRONG_LINK:
                wrong["wrong_links"].append(f"{where} is linked to {one.provider_id}")
            elif run.outcome is Outcome.WRONG_ABSENCE:
                wrong["wrong_absences"].append(f"{where} was called absent")
            if one.lost_at is None:
                continue
            runs.append(run)
            if run.outcome is Outcome.OPEN:
                wrong["not_settled"].append(f"{where} is {one.state}, its job {one.job_state}")
        wrong["sent_wrongly"] += _sends(job, tasks, ledger)
        wrong["double_charges"] += _charges(job, tasks, ledger)
        wrong["lost_charges"] += [
            f"task {one.id} of job {job} is charged, and neither a file nor a case"
            for one in tasks
            if ledger.standing[one.id] and one.state != "stored" and not one.case_open
        ]
    return Verdict(runs, dict(wrong))


def _sends(job: int, tasks: Sequence[Sent], ledger: Ledger) -> Iterable[str]:
    """A further send needs one that was proven not to have cost; a task is posted once."""
    for before, after in pairwise(tasks):
        if before.state not in {"unsent", "refused"}:
            yield f"job {job}: {after.id} was sent after {before.id}, which is {before.state}"
    for one in tasks:
        if ledger.posted[one.id] > 1:
            yield f"job {job}: {one.id} was posted {ledger.posted[one.id]} times"


def _charges(job: int, tasks: Sequence[Sent], ledger: Ledger) -> Iterable[str]:
    charges = sum(ledger.standing[one.id] for one in tasks)
    if charges > 1:
        yield f"job {job} was charged {charges} times"
    if tasks and tasks[0].job_state == "succeeded" and charges != 1:
        yield f"job {job} succeeded with {charges} charges"


def table(runs: Iterable[Run]) -> list[dict[str, Any]]:
    """A line for each world and kind of fault."""
    lines: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        lines[run.world, run.kind].append(run)
    return [
        {
            "world": world,
            "fault": kind,
            "runs": len(those),
            "accepted": sum(run.accepted for run in those),
            "by_itself": sum(run.by_itself for run in those),
            "cases": sum(run.outcome is Outcome.CASE for run in those),
            "wrong": sum(run.outcome in {Outcome.WRONG_LINK, Outcome.WRONG_ABSENCE} for run in those),
            "longest_to_settle_s": _longest(run.settled_s for run in those),
            "case_after_absence_s": _longest(run.case_s for run in those if run.outcome is Outcome.CASE),
        }
        for (world, kind), those in sorted(lines.items())
    ]  # fmt: skip


def _longest(times: Iterable[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return round(max(known), 1) if known else None


def figures(found: Verdict, accounts: Sequence[World]) -> dict[str, Any]:
    """The figures that the limits are held against."""
    world_of = {family(world.name): world for world in accounts}
    runs = found.runs
    blind = [run for run in runs if world_of[run.world].group is Group.NO_HISTORY]
    seen = {(world_of[run.world].group, run.kind) for run in runs}
    return {
        "runs": len(runs),
        "runs_accepted": sum(run.accepted for run in runs),
        "settled_by_themselves": sum(run.by_itself for run in runs),
        "cases": sum(run.outcome is Outcome.CASE for run in runs),
        **{name: len(found.wrong.get(name, ())) for name in PROMISES},
        # Where the history echoes our id, nobody should have to look.
        "cases_with_echo": sum(not run.by_itself for run in runs if world_of[run.world].settles),
        "linked_on_a_guess": sum(
            run.outcome is Outcome.DELIVERED for run in runs if not world_of[run.world].linked
        ),
        "linked_as_the_only_one": sum(
            run.outcome is Outcome.DELIVERED for run in runs if run.world == "alone"
        ),
        "absent_without_history": sum(run.outcome is Outcome.SENT_AGAIN for run in blind),
        "longest_to_settle_with_echo_s": _longest(
            run.settled_s for run in runs if world_of[run.world].settles
        ),
        "case_without_history_s": _longest(
            run.case_s for run in blind if run.outcome is Outcome.CASE
        ),
        "faults_not_met": sorted(
            f"{group}: {kind}" for group in Group for kind in NAMED if (group, kind) not in seen
        ),
    }


PROMISES = (
    "wrong_links", "wrong_absences", "double_charges", "sent_wrongly", "lost_charges", "not_settled",
)  # fmt: skip


def limits(*, runs: int, alone: int) -> dict[str, float]:
    """Bars by figure: `_max`, `_min`."""
    return {
        "runs_min": runs,
        **{f"{name}_max": 0 for name in PROMISES},
        "cases_with_echo_max": 0,
        "linked_on_a_guess_max": 0,
        "linked_as_the_only_one_min": alone // 4,
        "absent_without_history_max": 0,
        "case_without_history_s_max": CASE_WITHIN_S,
        "other_cases_max": 0,
        "faults_not_met_max": 0,
    }


def held(bars: Mapping[str, float], figures: Mapping[str, Any]) -> bool:
    """Whether every bar is. A figure that never came holds none; of a list its length counts."""
    for name, bar in bars.items():
        figure = figures[name.removesuffix("_max").removesuffix("_min")]
        if figure is None:
            return False
        value = len(figure) if isinstance(figure, list | dict) else figure
        if value > bar if name.endswith("_max") else value < bar:
            return False
    return True
