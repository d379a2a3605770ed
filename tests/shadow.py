"""What the lifecycle promises, held against the rows after every step: a shadow of each fact, and what may change when.

`Shadow.told` hears every fact that `record` hears. `Watch.did` compares the rows before and after one verb; it answers with
sentences, an empty list where all is well. It knows design.md section 2, not how the verbs are written.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db import connection

from jobs.lifecycle.record import Fact
from jobs.models import StandingDecision
from jobs.states import (
    BLOCKING_CASES,
    CaseKind,
    Facts,
    JobState,
    Release,
    TaskState,
    known_cost,
    task_charge,
    task_state,
)
from jobs.stuck import stuck
from providers.contract import Charge

Row = dict[str, Any]

PENDING, ACTIVE, MANUAL = JobState.PENDING, JobState.ACTIVE, JobState.MANUAL
SUCCEEDED, FAILED, CANCELLED = JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED
FREE = {Charge.NONE, Charge.REFUNDED}
COSTS = {Charge.POSSIBLE, Charge.CHARGED, Charge.WRITTEN_OFF}
DECIDED = {Release.PERSON, Release.STANDING, Release.STORED}
FACTS = [item.name for item in fields(Facts)]

_OF_JOB = (
    "id",
    "state",
    "target_id",
    "route",
    "not_before",
    "decided_at",
    "delivered_id",
    "reason",
    "edited_at",
)
_OF_TASK = (
    "id", "job_id", "created_at", "target_id", "run_id", "state", "charge", "cost", "blocks_send", "released_by", "standing_id",
    "undecided_since", "next_poll_at", "next_fetch_at", "next_look_at", "next_receipt_at", "work_run_id", "files",
)  # fmt: skip

_OF_CASE = ("id", "kind", "job_id", "task_id", "detail", "resolved_at", "owner_id", "note")
_OF_EVENT = ("id", "kind", "job_id", "task_id")
_UUIDS = {"run_id", "work_run_id", "task_id"}

_FLAGS = {
    "unsent": "unsent_at",
    "lost": "lost_at",
    "absent": "absent_at",
    "completed": "completed_at",
    "failed": "failed_at",
    "stored": "stored_at",
    "receipt_final": "receipt_final_at",
}
_VALUES = ("provider_id", "refusal_class", "cost_answer", "cost_poll")

_OPEN = (PENDING, ACTIVE, MANUAL)
# Which verb may move a job from where to where. A verb that is not named moves none.
MOVES: dict[str, set[tuple[JobState, JobState]]] = {
    "claim": {(PENDING, ACTIVE)},
    "decide": {
        *((old, new) for old in (ACTIVE, MANUAL) for new in (PENDING, FAILED, SUCCEEDED)),
        (ACTIVE, MANUAL),
        (MANUAL, ACTIVE),
        (PENDING, MANUAL),
        (PENDING, SUCCEEDED),
        (FAILED, SUCCEEDED),
    },
    "retry": {(old, PENDING) for old in (FAILED, MANUAL, CANCELLED)},
    "resend": {(old, PENDING) for old in (ACTIVE, FAILED, MANUAL, CANCELLED)},
    "retry_on_target": {(old, PENDING) for old in (FAILED, MANUAL, CANCELLED)},
    "mark_manual": {(old, MANUAL) for old in (PENDING, ACTIVE, FAILED, CANCELLED)},
    "resolve": {(old, new) for old in (*_OPEN, FAILED) for new in (SUCCEEDED, FAILED)},
    "cancel": {(old, CANCELLED) for old in _OPEN},
}
MOVES["attach"] = MOVES["decide"]
MOVES["write_off"] = MOVES["decide"] | {(MANUAL, FAILED), (PENDING, FAILED)}
MOVES["mark_refunded"] = MOVES["decide"]
MOVES["confirm_absent"] = MOVES["resend"]
MOVES["retry_edited"] = MOVES["retry"]
MOVES["deliver_instead"] = {(old, SUCCEEDED) for old in (*_OPEN, FAILED, CANCELLED)}
# Who may release a send, in whose name a person does it, and who may withdraw one that was not armed.
_BY_A_PERSON = {"resend", "resolve", "write_off", "confirm_absent", "deliver_instead"}
_RELEASES = {"decide", "attach", "cancel", "mark_manual", "mark_refunded", *_BY_A_PERSON}
_WITHDRAWS = {"decide", "attach", "resolve", "cancel", "mark_manual", "write_off", "mark_refunded", "deliver_instead"}  # fmt: skip
_REOPENS = {"retried", "sent_again", "retargeted", "absent_confirmed", "edited"}
# A row that will never be due again by itself, however the clock stands.
FOR_EVER = {"no_poll", "no_fetch", "no_look", "no_receipt", "nothing_under_way", "not_released", "no_case", "no_key"}  # fmt: skip


class Shadow:
    """Every fact that was told, kept as `record` promises to keep it."""

    def __init__(self) -> None:
        self.rows: dict[UUID, Row] = defaultdict(dict)
        self.refused: list[tuple[UUID, str]] = []  # told, different from what stands, so in a case
        self.files: set[UUID] = set()  # tasks whose verdict named a file

    def told(self, fact: Fact) -> None:
        row = self.rows[fact.task_id]
        stolen = any(
            other != fact.task_id and fact.provider_id == known.get("provider_id")
            for other, known in self.rows.items()
        )
        if fact.provider_id is not None and "provider_id" not in row and stolen:
            self.refused.append((fact.task_id, fact.provider_id))
            return  # the whole fact is in the case
        for name in _VALUES:
            value = getattr(fact, name)
            if value is None:
                continue
            if row.setdefault(name, value) != value and name in {"provider_id", "refusal_class"}:
                self.refused.append((fact.task_id, value))
        for flag, name in _FLAGS.items():
            if getattr(fact, flag):
                row.setdefault(name, fact.at)
        if fact.cost_receipt is not None:
            row["cost_receipt"] = max(fact.cost_receipt, row.get("cost_receipt", fact.cost_receipt))
        if fact.files:
            self.files.add(fact.task_id)


_READ = f"""
SELECT
  (SELECT json_agg(j ORDER BY id)::text FROM (SELECT {", ".join(_OF_JOB)} FROM jobs_job) j),
  (SELECT json_agg(t ORDER BY id)::text FROM (SELECT {", ".join((*_OF_TASK, *FACTS))} FROM jobs_providertask) t),
  (SELECT json_agg(c ORDER BY id)::text FROM (SELECT {", ".join(_OF_CASE)} FROM jobs_case) c),
  (SELECT json_agg(e ORDER BY id)::text FROM (SELECT {", ".join(_OF_EVENT)} FROM jobs_jobevent WHERE id > %s) e)
"""


def _typed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name.endswith(("_at", "_before", "_since")):
        return datetime.fromisoformat(value)
    return UUID(value) if name in _UUIDS else value


@dataclass(slots=True)
class Rows:
    jobs: dict[int, Row]
    tasks: dict[UUID, Row]
    cases: list[Row]

    @classmethod
    def read(cls, *, seen: int = 0) -> tuple[Rows, list[Row]]:
        """All of them and the events after number `seen`, in one statement: this runs after every step."""
        with connection.cursor() as cursor:
            cursor.execute(_READ, [seen])
            told = cursor.fetchone()
        assert told is not None
        jobs, tasks, cases, events = (
            [
                {name: _typed(name, value) for name, value in row.items()}
                | ({"id": UUID(row["id"])} if isinstance(row["id"], str) else {})
                for row in json.loads(part, parse_float=Decimal)
            ]
            if part
            else []
            for part in told
        )
        rows = cls(
            jobs={row["id"]: row for row in jobs},
            tasks={row["id"]: row for row in tasks},
            cases=cases,
        )
        return rows, events

    def of(self, job_id: int) -> list[Row]:
        return [task for task in self.tasks.values() if task["job_id"] == job_id]

    def open_cases(self, job_id: int) -> list[Row]:
        return [
            case for case in self.cases if case["job_id"] == job_id and case["resolved_at"] is None
        ]


class Watch:
    """The rows as they were after the last verb, and what is wrong with how they changed."""

    def __init__(self, shadow: Shadow) -> None:
        self.shadow = shadow
        self.rows, self.events = Rows.read()

    def did(self, verb: str, *, now: datetime) -> list[str]:
        """After each verb; `verb` is its name in MOVES, or any other word."""
        before = self.rows
        after, new = Rows.read(seen=self.events[-1]["id"] if self.events else 0)
        self.rows = after
        self.events += new
        return [
            *self._changes_of_jobs(verb, before, after),
            *self._changes_of_tasks(verb, before, after, now),
            *self._sends(before, after, new),
            *self._facts(after),
            *self._rows(after),
            *self._timelines(),
            *self._for_ever(verb, now),
        ]

    def undecided(self) -> set[int]:
        return {
            task["job_id"]
            for task in self.rows.tasks.values()
            if task["undecided_since"] is not None
        }

    def _for_ever(self, verb: str, now: datetime) -> list[str]:
        if verb not in MOVES:
            return []
        return [f"for ever: {one}" for one in stuck(now=now) if one.code in FOR_EVER]

    # --- what changed -------------------------------------------------------------------------------------------------

    def _changes_of_jobs(self, verb: str, before: Rows, after: Rows) -> Iterator[str]:
        for pk, old in before.jobs.items():
            new = after.jobs[pk]
            move = (JobState(old["state"]), JobState(new["state"]))
            if move[0] != move[1] and move not in MOVES.get(verb, set()):
                yield f"{verb} moved job {pk} from {move[0]} to {move[1]}"
            if (
                move[0] != move[1]
                and verb in {"decide", "attach"}
                and old["decided_at"] is not None
            ):
                yield f"{verb} moved job {pk}, which a person had decided"
            if verb != "deliver_instead" and old["delivered_id"] not in {None, new["delivered_id"]}:
                yield f"job {pk} delivers something else than before"

    def _changes_of_tasks(
        self, verb: str, before: Rows, after: Rows, now: datetime
    ) -> Iterator[str]:
        for pk, new in after.tasks.items():
            old = before.tasks.get(pk)
            if old is None:
                continue
            if new["unsent_at"] != old["unsent_at"] and verb in _WITHDRAWS:
                if old["state"] != TaskState.INTENT or not old["blocks_send"]:
                    yield f"{verb} withdrew a task that is {old['state']}"
                self.shadow.rows[pk].setdefault("unsent_at", now)
            if new["blocks_send"] and not old["blocks_send"]:
                yield f"{verb} made a released task block again"
            if new["released_by"] != old["released_by"]:
                if verb not in _RELEASES:
                    yield f"{verb} released a task"
                yield from _illegal_release(verb, old, new)

    def _sends(self, before: Rows, after: Rows, new: list[Row]) -> Iterator[str]:
        """P1: an intent or an arm needs proof, or a decision, about every other send of the job."""
        for event in new:
            if event["kind"] not in {"intent", "armed"}:
                continue
            if after.jobs[event["job_id"]]["state"] != ACTIVE:
                yield f"{event['kind']} for a job that is {after.jobs[event['job_id']]['state']}"
            for other in before.of(event["job_id"]):
                if (
                    other["id"] != event["task_id"]
                    and other["charge"] in COSTS
                    and other["released_by"] not in DECIDED
                ):
                    yield f"{event['kind']} beside a task that is {other['state']} and {other['charge']}"

    # --- what stands --------------------------------------------------------------------------------------------------

    def _facts(self, after: Rows) -> Iterator[str]:
        for pk, row in after.tasks.items():
            known = self.shadow.rows[pk]
            for name in FACTS:
                if row[name] != known.get(name):
                    yield f"{name} of a task is {row[name]}, told was {known.get(name)}"
            facts = Facts(**{name: row[name] for name in FACTS})
            pure = (task_state(facts), task_charge(facts), known_cost(facts))
            if (row["state"], row["charge"], row["cost"]) != pure:
                yield f"{row['state']}, {row['charge']} is not what the facts say: {pure}"
            if pk in self.shadow.files and not row["files"]:
                yield "the files of a verdict are forgotten"
        details = {
            (case["task_id"], str(case["detail"])) for case in after.cases
            if case["kind"] == CaseKind.CONFLICT
        }  # fmt: skip
        for pk, value in self.shadow.refused:
            if not any(task == pk and value in told for task, told in details):
                yield f"{value} was told of a task and is nowhere"

    def _rows(self, after: Rows) -> Iterator[str]:
        blocking = Counter(t["job_id"] for t in after.tasks.values() if t["blocks_send"])
        for pk, job in after.jobs.items():
            if blocking[pk] > 1:
                yield f"{blocking[pk]} tasks block the sends of job {pk}"
            if job["state"] == ACTIVE and not blocking[pk]:
                yield f"job {pk} is active without a task"
            if job["state"] == PENDING and blocking[pk]:
                yield f"job {pk} is pending with a task that blocks"
        for task in after.tasks.values():
            if task["blocks_send"] is not (task["released_by"] == ""):
                yield "released_by does not go with blocks_send"
            if task["state"] == TaskState.ACCEPTED and task["next_poll_at"] is None:
                yield "an accepted task is not watched"
        opened = Counter(
            (case["kind"], case["job_id"], case["task_id"])
            for case in after.cases
            if case["resolved_at"] is None
        )
        yield from (f"two open cases: {key}" for key, count in opened.items() if count > 1)
        for case in after.cases:
            if "Traceback" in str(case["detail"]):
                yield f"deciding raised: {case['detail']}"

    def decided(self, job_ids: set[int]) -> list[str]:
        """What must hold of jobs that were just decided, with no fact left undecided."""
        wrong = []
        for pk in job_ids - self.undecided():
            job = self.rows.jobs[pk]
            blocked = [c for c in self.rows.open_cases(pk) if CaseKind(c["kind"]) in BLOCKING_CASES]
            if job["state"] in {PENDING, ACTIVE} and blocked:
                wrong.append(f"job {pk} is {job['state']} beside {blocked[0]['kind']}")
            if job["state"] == MANUAL and not blocked:
                wrong.append(f"job {pk} needs a person and no case says why")
            since = job["edited_at"]
            stored = [
                task
                for task in self.rows.of(pk)
                if task["state"] == TaskState.STORED
                and (since is None or task["created_at"] >= since)
            ]
            if stored and job["decided_at"] is None and job["state"] != SUCCEEDED:
                wrong.append(f"job {pk} has its result and is {job['state']}")
        return wrong

    def _timelines(self) -> Iterator[str]:
        of_task: dict[UUID, list[str]] = defaultdict(list)
        of_job: dict[int, list[str]] = defaultdict(list)
        for event in self.events:
            of_job[event["job_id"]].append(event["kind"])
            if event["task_id"] is not None:
                of_task[event["task_id"]].append(event["kind"])
        for job_id, kinds in of_job.items():
            yield from (f"job {job_id}: {wrong}" for wrong in _after_the_end(kinds))
        for kinds in of_task.values():
            if kinds.count("intent") != 1 or kinds[0] != "intent":
                yield f"a task's timeline does not begin with its one intent: {kinds}"
            if kinds.count("armed") > 1:
                yield f"armed twice: {kinds}"


def _after_the_end(kinds: list[str]) -> Iterator[str]:
    """What a job's timeline tells after its end, or after a person has taken it over, that can't be."""
    ended = taken = False
    for kind in kinds:
        if kind in {"cancelled", "resolved", "succeeded"}:
            if ended and kind != "resolved":
                yield f"{kind} after its end"
            ended, taken = True, True
        elif kind == "marked_manual":
            ended, taken = False, True
        elif kind in _REOPENS:
            ended = taken = False
        elif taken and kind in {"intent", "armed"}:
            yield f"{kind} although it is not to be sent"


def _illegal_release(verb: str, old: Row, new: Row) -> Iterator[str]:
    """Why this release is against P2, by the facts that were known when it was made."""
    state, charge, by = new["state"], Charge(new["charge"]), Release(new["released_by"])
    legal = {
        Release.UNSENT: state == TaskState.UNSENT and charge in FREE,
        Release.ABSENT: state == TaskState.UNSENT
        and charge in FREE
        and new["absent_at"] is not None,
        Release.FREE: charge is Charge.REFUNDED
        or (state in {TaskState.REFUSED, TaskState.FAILED} and charge in FREE),
        Release.STORED: state == TaskState.STORED,
        Release.PERSON: verb in _BY_A_PERSON
        and (
            state in {TaskState.ACCEPTED, TaskState.COMPLETED, TaskState.FAILED, TaskState.UNKNOWN}
            or (state in {TaskState.REFUSED, TaskState.UNSENT} and charge is Charge.CHARGED)
        ),
        Release.STANDING: state in {TaskState.UNKNOWN, TaskState.FAILED}
        and StandingDecision.objects.filter(
            pk=new["standing_id"], target_id=new["target_id"], ended_at=None
        ).exists(),
    }
    if not legal[by]:
        yield f"{verb} released a task as {by} that is {state}, {charge}"
    # A release stands; only a person's word may come on top of one that turned out not to be free.
    if old["released_by"] and not (verb in _BY_A_PERSON and by is Release.PERSON):
        yield f"{verb} changed a release from {old['released_by']} to {by}"
