"""Recording: what was learned about a task, written by its id alone.

Never guarded by lane, job state or decision, so that a zombie's answer counts as much as anyone's. Facts are write-once:
the first stays, a second and different one opens a case `conflict`. Any order, any number of times.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from typing import Any, get_type_hints
from uuid import UUID

from django.db import DataError, IntegrityError, connection, transaction

from jobs import failures
from jobs.lifecycle import events
from jobs.models import Case, ProviderTask, Result
from jobs.states import CaseKind


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    """A stored file (see results.Stored)."""

    position: int
    key: str
    thumb_key: str
    sha256: str
    media_type: str
    size_bytes: int
    width: int | None = None
    height: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What was learned about one task. Fields named like the row's columns; None: nothing learned.

    Facts (write-once) and to-do columns (`next_*`, counters) travel together, so that they land in one statement.
    `stored` True sets `stored_at` and the Result rows of `results`.
    """

    task_id: UUID
    at: datetime
    kind: str  # the event's constant name; "" writes no event
    asked_at: datetime | None = None  # when the call began that told it, where that matters
    decides: bool = False  # someone must decide what it means

    provider_id: str | None = None
    provider_links: dict[str, Any] | None = None
    refusal_class: str | None = None
    unsent: bool = False
    unsent_reason: str | None = None
    lost: bool = False
    absent: bool = False
    completed: bool = False
    failed: bool = False
    stored: bool = False
    receipt_final: bool = False
    cost_answer: Decimal | None = None
    cost_poll: Decimal | None = None
    cost_receipt: Decimal | None = None

    failure_class: str | None = None
    failure_code: str | None = None
    failure_text: str | None = None
    failure_scope: str | None = None
    wait_s: float | None = None
    ours: bool | None = None
    target_stops: bool | None = None
    evidence: dict[str, Any] | None = None
    files: list[dict[str, Any]] | None = None
    result_text: str | None = None

    polled: bool = False
    poll_failed: bool = False
    missing: bool = False
    last_status: str | None = None
    next_poll_at: datetime | None = None
    next_fetch_at: datetime | None = None
    fetch_failed: bool = False
    fetch_over: bool = False  # no further try, whatever next_fetch_at says
    fetch_trouble: str | None = None
    next_look_at: datetime | None = None
    looked: bool = False
    absent_seen: bool = False
    candidates: list[dict[str, Any]] | None = None
    next_receipt_at: datetime | None = None
    receipt_looked: bool = False
    receipts_end_at: datetime | None = None

    results: tuple[FileFact, ...] = field(default=())
    data: dict[str, Any] = field(default_factory=dict)  # for the event


_SQL_TYPES = {
    str: "text",
    bool: "boolean",
    float: "float8",
    Decimal: "numeric",
    datetime: "timestamptz",
    UUID: "uuid",
}
_NOT_COLUMNS = {"kind", "results", "data"}


def _columns() -> str:
    """The record's shape for jsonb_to_recordset, from Fact's own annotations."""
    parts = []
    for name, hint in get_type_hints(Fact).items():
        if name in _NOT_COLUMNS:
            continue
        plain = next(arg for arg in (*getattr(hint, "__args__", ()), hint) if arg is not type(None))
        parts.append(f"{name} {_SQL_TYPES.get(plain, 'jsonb')}")
    parts.append("failure_key text")
    return ", ".join(parts)


_IN_ROW = tuple(item.name for item in fields(Fact) if item.name not in _NOT_COLUMNS)

# Text columns are not null in the table, so "not learned yet" is the empty text there.
_RECORD = f"""
UPDATE jobs_providertask t SET
  provider_id = coalesce(t.provider_id, v.provider_id),
  -- They belong to the id that they came with.
  provider_links = CASE WHEN t.provider_id IS NULL OR t.provider_id = v.provider_id
                        THEN coalesce(nullif(t.provider_links, '{{}}'::jsonb), v.provider_links, '{{}}'::jsonb)
                        ELSE t.provider_links END,
  accepted_at = coalesce(t.accepted_at, CASE WHEN v.provider_id IS NOT NULL THEN v.at END),
  refusal_class = coalesce(t.refusal_class, v.refusal_class),
  refused_at = coalesce(t.refused_at, CASE WHEN v.refusal_class IS NOT NULL THEN v.at END),
  unsent_at = coalesce(t.unsent_at, CASE WHEN v.unsent THEN v.at END),
  unsent_reason = CASE WHEN t.unsent_reason = '' THEN coalesce(v.unsent_reason, '') ELSE t.unsent_reason END,
  lost_at = coalesce(t.lost_at, CASE WHEN v.lost THEN v.at END),
  absent_at = coalesce(t.absent_at, CASE WHEN v.absent THEN v.at END),
  completed_at = coalesce(t.completed_at, CASE WHEN v.completed THEN v.at END),
  failed_at = coalesce(t.failed_at, CASE WHEN v.failed THEN v.at END),
  stored_at = coalesce(t.stored_at, CASE WHEN v.stored THEN v.at END),
  receipt_final_at = coalesce(t.receipt_final_at, CASE WHEN v.receipt_final THEN v.at END),
  cost_answer = coalesce(t.cost_answer, v.cost_answer),
  cost_poll = coalesce(t.cost_poll, v.cost_poll),
  cost_receipt = CASE WHEN v.cost_receipt > coalesce(t.cost_receipt, -1) THEN v.cost_receipt ELSE t.cost_receipt END,
  failure_class = coalesce(v.failure_class, t.failure_class),
  failure_code = coalesce(v.failure_code, t.failure_code),
  failure_text = coalesce(v.failure_text, t.failure_text),
  failure_scope = coalesce(v.failure_scope, t.failure_scope),
  failure_key = coalesce(v.failure_key, t.failure_key),
  failure_at = CASE WHEN v.failure_key IS NULL THEN t.failure_at ELSE v.at END,
  wait_s = coalesce(v.wait_s, t.wait_s),
  ours = coalesce(v.ours, t.ours),
  target_stops = coalesce(v.target_stops, t.target_stops),
  evidence = CASE WHEN v.evidence IS NULL THEN t.evidence ELSE t.evidence || v.evidence END,
  -- Addresses may be renewed, but a verdict without a result takes none away.
  files = coalesce(nullif(v.files, '[]'::jsonb), t.files),
  result_text = coalesce(nullif(v.result_text, ''), t.result_text),
  undecided_since = CASE WHEN v.decides THEN coalesce(t.undecided_since, v.at) ELSE t.undecided_since END,
  polls = t.polls + v.polled::int,
  poll_failures = CASE WHEN v.poll_failed THEN t.poll_failures + 1 WHEN v.polled THEN 0 ELSE t.poll_failures END,
  missing_since = CASE WHEN v.missing THEN coalesce(t.missing_since, v.at)
                       WHEN v.polled AND NOT v.poll_failed THEN NULL ELSE t.missing_since END,
  last_poll_at = CASE WHEN v.polled THEN v.at ELSE t.last_poll_at END,
  last_status = coalesce(v.last_status, t.last_status),
  -- A verdict ends the polling, whichever of a poll and a verdict is written last.
  next_poll_at = CASE
    WHEN t.completed_at IS NOT NULL OR v.completed OR t.failed_at IS NOT NULL OR v.failed THEN NULL
    WHEN v.next_poll_at IS NULL THEN t.next_poll_at
    -- Whoever began to ask before the hint may have missed what it is about.
    WHEN t.hinted_at >= coalesce(v.asked_at, v.at) THEN least(coalesce(t.next_poll_at, v.at), v.next_poll_at)
    ELSE v.next_poll_at END,
  next_fetch_at = CASE WHEN t.stored_at IS NOT NULL OR v.stored OR v.fetch_over THEN NULL
                       ELSE coalesce(v.next_fetch_at, t.next_fetch_at) END,
  fetch_failures = t.fetch_failures + v.fetch_failed::int,
  fetch_trouble = coalesce(v.fetch_trouble, t.fetch_trouble),
  -- Whatever settles a lost send ends the looking.
  next_look_at = CASE
    WHEN coalesce(t.provider_id, v.provider_id, t.refusal_class, v.refusal_class) IS NOT NULL
      OR t.unsent_at IS NOT NULL OR v.unsent
      OR t.completed_at IS NOT NULL OR v.completed OR t.failed_at IS NOT NULL OR v.failed THEN NULL
    -- Absence ends it too, but for one more look later.
    WHEN (t.absent_at IS NOT NULL OR v.absent) AND (v.absent OR v.looked) THEN v.next_look_at
    ELSE coalesce(v.next_look_at, t.next_look_at) END,
  looks = t.looks + v.looked::int,
  absent_seen_at = CASE WHEN v.absent_seen THEN coalesce(t.absent_seen_at, v.at)
                        WHEN v.looked THEN NULL ELSE t.absent_seen_at END,
  candidates = coalesce(v.candidates, t.candidates),
  receipt_looks = t.receipt_looks + v.receipt_looked::int,
  receipts_end_at = coalesce(t.receipts_end_at, v.receipts_end_at),
  next_receipt_at = CASE WHEN v.receipt_looked THEN v.next_receipt_at
                         ELSE coalesce(v.next_receipt_at, t.next_receipt_at) END,
  work_run_id = NULL,
  deaths = 0
FROM jsonb_to_recordset(%(facts)s::jsonb) AS v({_columns()}), jobs_providertask old
WHERE t.id = v.task_id AND old.id = t.id
RETURNING t.id, t.job_id,
  CASE
    WHEN v.provider_id IS NOT NULL AND v.provider_id <> t.provider_id THEN 'provider_id'
    WHEN v.refusal_class IS NOT NULL AND v.refusal_class <> t.refusal_class THEN 'refusal_class'
    WHEN v.refusal_class IS NOT NULL AND t.provider_id IS NOT NULL THEN 'accepted_and_refused'
    WHEN v.unsent AND t.provider_id IS NOT NULL THEN 'accepted_and_unsent'
    WHEN v.completed AND old.failed_at IS NOT NULL THEN 'failed_then_completed'
    WHEN v.failed AND old.completed_at IS NOT NULL THEN 'completed_then_failed'
  END,
  (old.provider_id IS DISTINCT FROM t.provider_id OR old.state <> t.state OR old.cost IS DISTINCT FROM t.cost)
"""  # noqa: S608  the columns come from our own dataclass


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(type(value).__name__)


def to_plain(fact: Fact) -> dict[str, Any]:
    """A fact as JSON-ready values; `from_plain` reads it back (the spool's format)."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(fact), default=_json))
    return plain


def from_plain(plain: dict[str, Any]) -> Fact:
    """Raises KeyError, TypeError, ValueError on what `to_plain` did not write."""
    known = {item.name for item in fields(Fact)}
    values = {name: value for name, value in plain.items() if name in known}
    for name, hint in get_type_hints(Fact).items():
        if values.get(name) is None:
            continue
        plainly = next(
            arg for arg in (*getattr(hint, "__args__", ()), hint) if arg is not type(None)
        )
        if plainly is datetime:
            values[name] = datetime.fromisoformat(values[name])
        elif plainly in {Decimal, UUID}:
            values[name] = plainly(values[name])
    values["results"] = tuple(FileFact(**item) for item in plain.get("results", ()))
    return Fact(**values)


def record(*, facts: Sequence[Fact]) -> set[int]:
    """Write facts; returns the ids of the jobs that now need a decision.

    One statement for all. If the database finds a value impossible, they are redone one by one: the bad one becomes a
    case that carries the whole fact. Any other database error is raised: nothing was written, spool and try again.
    """
    if not facts:
        return set()
    try:
        with transaction.atomic():
            return _write(facts)
    except (DataError, IntegrityError):
        touched: set[int] = set()
        with transaction.atomic():
            # In the common lock order: the rows stay locked until all are written.
            for fact in sorted(facts, key=lambda fact: fact.task_id):
                try:
                    with transaction.atomic():
                        touched |= _write([fact])
                except (DataError, IntegrityError) as error:
                    touched |= _conflict_case(fact, str(error))
        return touched


def _write(facts: Sequence[Fact]) -> set[int]:
    touched: set[int] = set()
    # One fact a task a statement: PostgreSQL joins each row of the target once.
    rounds: list[dict[UUID, Fact]] = []
    for fact in facts:
        free = next((one for one in rounds if fact.task_id not in one), None)
        if free is None:
            rounds.append(free := {})
        free[fact.task_id] = fact
    for one in rounds:
        touched |= _write_round(one)
    return touched


def _write_round(facts: dict[UUID, Fact]) -> set[int]:
    ids = sorted(facts)
    rows = [_row(facts[i]) for i in ids]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id FROM jobs_providertask WHERE id = ANY(%s) ORDER BY id FOR NO KEY UPDATE",
            [ids],
        )
        cursor.execute(_RECORD, {"facts": json.dumps(rows, default=_json)})
        written = cursor.fetchall()
    for task_id in facts.keys() - {row[0] for row in written}:
        _orphan_case(facts[task_id], "no such task")
    new_events, new_results, touched = [], [], set()
    for task_id, job_id, conflict, changed in written:
        fact = facts[task_id]
        if fact.decides:
            touched.add(job_id)
        if fact.kind and (changed or not fact.decides):
            new_events.append(
                events.event(
                    job_id=job_id, task_id=task_id, kind=fact.kind, now=fact.at, **fact.data
                )
            )
        new_results += [
            Result(job_id=job_id, task_id=task_id, created_at=fact.at, **asdict(item))
            for item in fact.results
        ]
        if conflict:
            touched |= _open_conflict(fact, job_id, why=conflict)
    events.write(new_events)
    # The same file may be recorded twice (a zombie fetched it too): same key, same bytes.
    Result.objects.bulk_create(new_results, ignore_conflicts=True)
    return touched


def _row(fact: Fact) -> dict[str, Any]:
    # What is not there is null.
    row = {name: value for name in _IN_ROW if (value := getattr(fact, name)) is not None}
    row["failure_key"] = failures.told(
        failure_class=fact.failure_class,
        failure_text=fact.failure_text,
        fetch_trouble=fact.fetch_trouble,
        unsent=fact.unsent,
    )
    return row


def _conflict_case(fact: Fact, why: str) -> set[int]:
    task = ProviderTask.objects.filter(pk=fact.task_id).first()
    if task is None:
        _orphan_case(fact, why)
        return set()
    return _open_conflict(fact, task.job_id, why=why)


def _orphan_case(fact: Fact, why: str) -> None:
    """The task's row is gone (a restored dump): the fact must not be lost, so it becomes a case without a task.

    One open case holds them all: a case is unique by kind, job and task.
    """
    kept = {"fact": _storable(to_plain(fact)), "why": _storable(why[:500])}
    opened = Case.objects.select_for_update().filter(
        kind=CaseKind.ORPHAN, job=None, task=None, orphan=None, resolved_at__isnull=True
    )
    # A person may close the case between our finding it open and our locking it: then a new one is opened.
    while (case := opened.first()) is None:
        Case.objects.bulk_create(
            [Case(kind=CaseKind.ORPHAN, opened_at=fact.at, due_at=fact.at, detail={"facts": []})],
            ignore_conflicts=True,
        )
    facts = case.detail.setdefault("facts", [])
    if kept not in facts:
        facts.append(kept)
        case.save(update_fields=["detail"])


def _storable(value: Any) -> Any:
    """The same value without what jsonb can't hold (NUL, lone surrogates, NaN), so that the case itself can be written."""
    match value:
        case str():
            return (
                value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
            )
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {_storable(name): _storable(item) for name, item in value.items()}
        case list() | tuple():
            return [_storable(item) for item in value]
        case _:
            return value


def _open_conflict(fact: Fact, job_id: int, *, why: str) -> set[int]:
    # The facts disagree: nobody may conclude absence for this task any more.
    ProviderTask.objects.filter(pk=fact.task_id).update(undecided_since=fact.at, next_look_at=None)
    task = ProviderTask.objects.get(pk=fact.task_id)
    kept = {"why": _storable(why[:500]), "fact": _storable(to_plain(fact))}
    Case.objects.bulk_create(
        [
            Case(
                kind=CaseKind.CONFLICT,
                job_id=job_id,
                task_id=task.pk,
                money_at_risk=task.cost if task.cost is not None else task.estimated_cost,
                currency=task.currency,
                opened_at=fact.at,
                due_at=fact.at,
                detail=kept,
            )
        ],
        ignore_conflicts=True,
    )
    # A third fact is kept beside the second. Whoever closes the case waits for the task's row, which is ours.
    case = Case.objects.get(
        kind=CaseKind.CONFLICT, job_id=job_id, task_id=task.pk, resolved_at__isnull=True
    )
    told = [{name: case.detail.get(name) for name in kept}, *case.detail.get("also", [])]
    if kept not in told:
        case.detail["also"] = [*told[1:], kept]
        case.save(update_fields=["detail"])
    events.write(
        [
            events.event(
                job_id=job_id,
                task_id=task.pk,
                kind="conflict",
                now=fact.at,
                why=_storable(why[:500]),
            )
        ]
    )
    return {job_id}
