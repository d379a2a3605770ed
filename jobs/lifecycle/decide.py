"""Deciding: what recorded facts mean for their job. Guarded; any number of lanes may try, one wins each job."""

from __future__ import annotations

import json
import logging
import random
import traceback
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.db import InterfaceError, OperationalError, connection, transaction

from jobs import evidence, policy
from jobs.lifecycle import events
from jobs.models import Case, Job, JobEvent, ProviderTask, Result, SpoolHost, StandingDecision
from jobs.policy import Decision, JobView, Rules, TaskView
from jobs.rules import FETCH_TRIES
from jobs.states import BLOCKING_CASES, ENDED, CaseKind, JobState, Release, TaskState
from providers.contract import Charge
from providers.models import Account, Target

logger = logging.getLogger(__name__)

CASE_DUE_S = 24 * 3600.0
BLOCKING_CASE_DUE_S = 4 * 3600.0
_FAR = datetime.max.replace(tzinfo=UTC)
# What a decision reads of a task and of its job; the other columns are many, and some long.
_OF_TASK = (
    "job", "account", "target", "state", "charge", "cost", "created_at", "estimated_cost", "currency", "blocks_send",
    "released_by", "undecided_since", "refusal_class", "failure_class", "failure_text", "wait_s", "ours", "target_stops",
    "unsent_reason", "absent_at", "files", "result_text", "receipts_end_at", "next_receipt_at", "fetch_failures",
    "fetch_trouble", "missing_since", "watch_until", "lost_at", "host", "deaths", "send_not_after", "call_deadline_s",
    "absent_seen_at",
)  # fmt: skip
_OF_JOB = (
    "state", "kind", "route", "target", "attempts_since", "decided_at", "decided_by", "edited_at",
)  # fmt: skip


def decide(*, job_ids: Iterable[int], rules: Rules, now: datetime, rng: random.Random) -> None:
    """Decide every job of `job_ids` that nobody else is deciding at this moment.

    A job that is locked by another decision or verb keeps its `undecided_since`; reconcile comes back to it.
    """
    ids = sorted(set(job_ids))
    try:
        _decide(ids, rules=rules, now=now, rng=rng)
    except (OperationalError, InterfaceError):
        raise  # the database is away: the rows stay undecided
    except Exception:
        if len(ids) == 1:
            logger.exception("decide.job %s", ids[0])
            _set_aside(ids[0], now=now, why=traceback.format_exc())
            return
        for job_id in ids:
            decide(job_ids=[job_id], rules=rules, now=now, rng=rng)


def _set_aside(job_id: int, *, now: datetime, why: str) -> None:
    """A job that can't be decided becomes a case, so that it holds up no other."""
    with transaction.atomic():
        Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()  # before its tasks
        tasks = ProviderTask.objects.filter(job_id=job_id, undecided_since__isnull=False)
        task_id = tasks.values_list("pk", flat=True).first()
        Case.objects.bulk_create(
            [
                Case(
                    kind=CaseKind.CONFLICT,
                    job_id=job_id,
                    task_id=task_id,
                    opened_at=now,
                    due_at=now,
                    detail={"why": why[-2000:]},
                )
            ],
            ignore_conflicts=True,
        )
        tasks.update(undecided_since=None)
        Job.objects.move(job_id, old=JobState.ACTIVE, new=JobState.MANUAL, reason=CaseKind.CONFLICT)


def _decide(ids: Sequence[int], *, rules: Rules, now: datetime, rng: random.Random) -> None:
    if not ids:
        return
    with transaction.atomic():
        jobs = list(
            Job.objects.filter(pk__in=ids)
            .only(*_OF_JOB)
            .order_by("pk")
            .select_for_update(skip_locked=True, no_key=True, of=("self",))
        )
        # A fact recorded between the reading and the writing would be neither seen nor decided later: hold the rows.
        locked = ProviderTask.objects.filter(job_id__in=[job.pk for job in jobs]).order_by("pk")
        list(locked.select_for_update(no_key=True).values_list("pk"))
        views = load(jobs, now=now)
        decisions = {job.pk: policy.decide(job=views[job.pk], rules=rules, rng=rng) for job in jobs}
        events.write(_write(jobs, views, decisions, now=now))


def _write(
    jobs: Sequence[Job],
    views: Mapping[int, JobView],
    decisions: Mapping[int, Decision],
    *,
    now: datetime,
) -> list[JobEvent]:
    """Write decisions of jobs whose rows the caller holds: a statement for all where most have something to say. Returns
    the unsaved events, those of a job in the order of what happened to it."""
    for decision in decisions.values():
        _withdraw(decision, now)
    released = _release_and_clear(views, decisions, now)
    moved = _move(jobs, decisions, now)
    written = []
    for job in jobs:
        decision = decisions[job.pk]
        written += [
            events.event(job_id=job.pk, task_id=task_id, kind="released", now=now, by=by.value)
            for task_id, by in decision.release
            if task_id in released
        ]
        written += _cases(job, decision, now)
        written += [
            events.event(job_id=job.pk, task_id=task_id, kind="late_result", now=now)
            for task_id in decision.late_results
        ]
        if decision.state is not None and job.pk in moved:
            written.append(
                events.event(
                    job_id=job.pk,
                    kind=decision.state.value,
                    now=now,
                    reason=decision.reason,
                    wait_s=round(decision.wait_s, 1),
                )
            )
    return written


# What was seen is decided: record waits for the rows that this decision holds. A release as free needs a charge of none.
_SETTLE = """
WITH due AS (
  SELECT t.id, v.by, v.seen AND t.undecided_since <= %(now)s AS seen,
    v.by <> '' AND t.blocks_send AND (v.by <> 'free' OR t.charge IN ('none', 'refunded')) AS goes
  FROM unnest(%(ids)s::uuid[], %(by)s::text[], %(seen)s::bool[]) AS v(id, by, seen)
  JOIN jobs_providertask t ON t.id = v.id
)
UPDATE jobs_providertask t SET
  undecided_since = CASE WHEN due.seen THEN NULL ELSE t.undecided_since END,
  blocks_send = t.blocks_send AND NOT due.goes,
  released_by = CASE WHEN due.goes THEN due.by ELSE t.released_by END,
  standing_id = CASE WHEN NOT due.goes THEN t.standing_id WHEN due.by = 'standing' THEN (
    SELECT s.id FROM jobs_standingdecision s WHERE s.target_id = t.target_id AND s.ended_at IS NULL ORDER BY s.id LIMIT 1
  ) END
FROM due
WHERE t.id = due.id AND (due.seen OR due.goes)
RETURNING t.id, due.goes
"""


def _release_and_clear(
    views: Mapping[int, JobView], decisions: Mapping[int, Decision], now: datetime
) -> set[UUID]:
    """The tasks that no longer stand in the way of a further send."""
    by = {task_id: release for one in decisions.values() for task_id, release in one.release}
    seen = {task.id for one in views.values() for task in one.tasks if task.undecided}
    ids = sorted(seen | by.keys())
    if not ids:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(
            _SETTLE,
            {
                "now": now, "ids": ids, "by": [by[one].value if one in by else "" for one in ids],
                "seen": [one in seen for one in ids],
            },
        )  # fmt: skip
        return {task_id for task_id, goes in cursor.fetchall() if goes}


def _withdraw(decision: Decision, now: datetime) -> None:
    if not decision.withdraw:
        return
    gone = ProviderTask.objects.filter(
        pk__in=decision.withdraw, armed_at__isnull=True, unsent_at__isnull=True
    )
    gone.update(
        unsent_at=now,
        unsent_reason="not_needed",
        ours=True,
        blocks_send=False,
        released_by=Release.UNSENT,
    )


_MOVE = """
UPDATE jobs_job j SET
  state = v.state, reason = v.reason, reason_text = v.reason_text, finished_at = v.finished_at,
  target_id = coalesce(v.target_id, j.target_id), not_before = coalesce(v.not_before, j.not_before),
  delivered_id = coalesce(v.delivered_id, j.delivered_id)
FROM jsonb_to_recordset(%(rows)s::jsonb) AS v(
  id bigint, old text, state text, reason text, reason_text text, finished_at timestamptz, target_id bigint,
  not_before timestamptz, delivered_id bigint
)
WHERE j.id = v.id AND j.state = v.old
RETURNING j.id
"""


def _move(jobs: Sequence[Job], decisions: Mapping[int, Decision], now: datetime) -> set[int]:
    """The jobs that came to another state, or to the same one with another reason."""
    rows = []
    for job in jobs:
        decision = decisions[job.pk]
        if decision.state is None:
            continue
        waits = decision.state is JobState.PENDING
        not_before = now + timedelta(seconds=decision.wait_s) if waits else None
        rows.append(
            {
                "id": job.pk, "old": job.state, "state": decision.state.value, "reason": decision.reason,
                "reason_text": decision.text, "target_id": decision.target_id, "delivered_id": decision.deliver,
                "not_before": not_before.isoformat() if not_before else None,
                "finished_at": now.isoformat() if decision.state in ENDED else None,
            }
        )  # fmt: skip
    if not rows:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(_MOVE, {"rows": json.dumps(rows)})
        return {pk for (pk,) in cursor.fetchall()}


def due_after(kind: CaseKind) -> timedelta:
    """How soon a person should look."""
    return timedelta(seconds=BLOCKING_CASE_DUE_S if kind in BLOCKING_CASES else CASE_DUE_S)


def _cases(job: Job, decision: Decision, now: datetime) -> list[JobEvent]:
    opened = [
        Case(
            kind=case.kind,
            job=job,
            task_id=case.task_id,
            money_at_risk=case.money,
            currency=case.currency,
            detail=case.detail,
            opened_at=now,
            due_at=now + due_after(case.kind),
            # Whoever decided hears of it: the case is theirs.
            owner_id=job.decided_by_id if case.kind is CaseKind.LATE_RESULT else None,
        )
        for case in decision.open
    ]
    if opened:
        Case.objects.bulk_create(opened, ignore_conflicts=True)
    written = [
        events.event(
            job_id=job.pk, task_id=case.task_id, kind="case_opened", now=now, case=case.kind
        )
        for case in decision.open
    ]
    for kind, task_id in decision.close:
        live = Case.objects.filter(kind=kind, job=job, task_id=task_id, resolved_at__isnull=True)
        if live.update(resolved_at=now, resolution="evidence"):
            written.append(
                events.event(
                    job_id=job.pk,
                    task_id=task_id,
                    kind="case_closed",
                    now=now,
                    case=kind,
                    by="evidence",
                )
            )
    return written


# --- loading ----------------------------------------------------------------------------------------------------------


def load(jobs: Sequence[Job], *, now: datetime) -> dict[int, JobView]:
    """Views of jobs whose rows the caller has locked. Eight queries at most, however many jobs."""
    ids = [job.pk for job in jobs]
    known = {account.pk: account for account in Account.objects.order_by("pk")}
    tasks: dict[int, list[ProviderTask]] = defaultdict(list)
    for task in (
        ProviderTask.objects.filter(job_id__in=ids).only(*_OF_TASK).order_by("created_at", "id")
    ):
        task.account = known.get(task.account_id) or task.account  # another may be new
        tasks[task.job_id].append(task)
    results: dict[int, dict[UUID, int]] = defaultdict(dict)
    for job_id, task_id, pk in (
        Result.objects.filter(job_id__in=ids, task__isnull=False)
        .order_by("-position")
        .values_list("job_id", "task_id", "pk")
    ):
        results[job_id][task_id] = pk
    opened: dict[int, set[tuple[CaseKind, UUID | None]]] = defaultdict(set)
    closed: dict[int, set[tuple[CaseKind, UUID | None]]] = defaultdict(set)
    for case in Case.objects.filter(job_id__in=ids):
        key = (CaseKind(case.kind), case.task_id)
        if case.resolved_at is None:
            opened[case.job_id or 0].add(key)
        elif case.resolved_by_id is not None:
            closed[case.job_id or 0].add(key)
    standing: dict[str, set[int]] = defaultdict(set)
    for what, target_id in StandingDecision.objects.filter(ended_at__isnull=True).values_list(
        "what", "target_id"
    ):
        standing[what].add(target_id)
    accounts = _accounts({target_id for job in jobs for target_id in job.route}, known.values())
    cleared = _cleared() if standing else {}
    return {
        job.pk: JobView(
            id=job.pk,
            state=JobState(job.state),
            route=tuple(job.route),
            target_id=job.target_id,
            attempts_since=job.attempts_since,
            decided_by_person=job.decided_at is not None,
            edited_at=job.edited_at,
            tasks=[view(task, kind=job.kind, now=now, cleared=cleared) for task in tasks[job.pk]],
            open_cases=frozenset(opened[job.pk]),
            closed_by_person=frozenset(closed[job.pk]),
            results=results[job.pk],
            accounts=accounts,
            standing_resend=frozenset(standing[StandingDecision.What.RESEND_UNKNOWN]),
            standing_next=frozenset(standing[StandingDecision.What.NEXT_AFTER_CHARGED]),
        )
        for job in jobs
    }


def _accounts(target_ids: set[int], known: Iterable[Account]) -> dict[int, int | None]:
    """The newest account of each target's provider: where its next send would go. `known`: all, oldest first."""
    by_provider = {account.provider: account.pk for account in known}
    return {
        pk: by_provider.get(provider)
        for pk, provider in Target.objects.filter(pk__in=target_ids).values_list("pk", "provider")
    }


def _cleared() -> dict[str, datetime]:
    """By host: until when everything on its disk was read. Far ahead for a disk that a person declared lost."""
    hosts = SpoolHost.objects.values_list("host", "clear_at", "declared_lost_at")
    return {host: _FAR if lost_at else clear_at for host, clear_at, lost_at in hosts}


def view(
    task: ProviderTask, *, kind: str, now: datetime, cleared: Mapping[str, datetime] | None = None
) -> TaskView:
    """A task's row as the policy sees it at `now`. `cleared`: see `_cleared`; None: no matter."""
    state = TaskState(task.state)
    clear_at = _FAR if cleared is None else cleared.get(task.host)
    return TaskView(
        id=task.pk,
        state=state,
        charge=Charge(task.charge),
        target_id=task.target_id,
        account_id=task.account_id,
        created_at=task.created_at,
        estimated_cost=task.estimated_cost,
        currency=task.currency,
        cost=task.cost,
        blocks_send=task.blocks_send,
        released_by=task.released_by,
        undecided=task.undecided_since is not None,
        # A refusal's class is written once; the failure's is whatever was told last.
        failure_class=(state is TaskState.REFUSED and task.refusal_class) or task.failure_class,
        failure_text=task.failure_text,
        wait_s=task.wait_s,
        ours=task.ours,
        target_stops=task.target_stops,
        unsent_reason=task.unsent_reason,
        absent=task.absent_at is not None,
        has_result=bool(task.files or (kind == Target.Kind.TEXT and task.result_text)),
        receipts_over=task.receipts_end_at is not None and task.next_receipt_at is None,
        fetch_given_up=task.fetch_failures >= FETCH_TRIES,
        fetch_trouble=task.fetch_trouble,
        missing_long=task.missing_since is not None
        and now - task.missing_since >= timedelta(seconds=policy.MISSING_FOR_S),
        watch_over=task.watch_until is not None and now >= task.watch_until,
        unclear=state is TaskState.UNKNOWN and _overdue(task, now=now),
        spool_clear=clear_at is not None and clear_at > (task.lost_at or now),
        deaths=task.deaths,
    )


def _overdue(task: ProviderTask, *, now: datetime) -> bool:
    if task.send_not_after is None:
        return True  # our row forgot the arm (a failover): nothing can be proven, a person looks
    return evidence.overdue(
        send_not_after=task.send_not_after,
        deadline_s=task.call_deadline_s or 0.0,
        lag_s=task.account.history_lag_s,
        absent_seen_at=task.absent_seen_at,
        now=now,
    )
