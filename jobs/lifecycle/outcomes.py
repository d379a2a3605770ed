"""Counting what recorded facts say about their providers.

Outcomes are counted where they are facts already, in the tasks: a failure reads the shares of its account's last minute
over the index of its sends, a success reads one small table and writes only where a failure, a ramp or a probe is on. So
the count is the same for all processes, survives all of them, and costs a healthy desk no write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction

from jobs.lifecycle.providers import CANCELLED, Key, locked_row, settled, write_row
from jobs.lifecycle.record import Fact
from jobs.models import ProviderTask
from providers import health
from providers.contract import FailureClass, Scope
from providers.health import Dimension, Gate, Outcome, Tally
from providers.models import ProviderState

_TALLY_BACK_S = 1200.0  # jobs that were sent longer ago count no more in the share of verdicts


@dataclass(frozen=True, slots=True)
class _Sent:
    """Whose the task of a fact is."""

    account_id: int
    model: str
    armed_at: datetime | None


def note_outcomes(*, facts: Sequence[Fact], poll_deadline_s: float, now: datetime) -> None:
    """Count what recorded facts say about their providers: the breaker opens, the probe ends, the ramp moves on.

    After `record`, best in its transaction. A note that is lost costs a count, no more: the probe's end is read from its
    task's facts, here or by `settle_probes`.
    """
    noted = [(fact, *_counted(fact)) for fact in facts]
    live = {(row.account_id, row.model): row for row in _not_plain()}
    bad = any(good is False for _, counted, _ in noted for _, good in counted)
    if not live and not bad:
        return
    sent = _sent({fact.task_id for fact in facts})
    outcomes: dict[Key, list[Outcome]] = defaultdict(list)
    unsent: set[Key] = set()
    for fact, counted, model_only in noted:
        task = sent.get(fact.task_id)
        if task is None:
            continue
        for dimension, good in counted:
            outcome = Outcome(
                dimension=dimension, good=good, at=fact.at, reason=_reason(fact),
                sent_at=None if dimension is Dimension.POLL else task.armed_at,
            )  # fmt: skip
            for model in _rows_of(dimension, good=good, model=task.model, model_only=model_only):
                outcomes[task.account_id, model].append(outcome)
                if fact.unsent:
                    unsent.add((task.account_id, model))
    ended = {fact.task_id for fact in facts}
    probing = {key for key, row in live.items() if row.probe_id in ended}
    with transaction.atomic():
        for key in sorted(outcomes.keys() | probing):
            fails = any(not one.good for one in outcomes[key])
            if fails or key in live:
                _note(key, outcomes[key], poll_deadline_s, now=now, connect=key in unsent)


def _note(
    key: Key, outcomes: list[Outcome], poll_deadline_s: float, *, now: datetime, connect: bool
) -> None:
    row = locked_row(*key, now=now)
    new = settled(row.health(), poll_deadline_s, now=now)
    tallies: Mapping[Dimension, Tally] = {}
    if new.gate is Gate.CLOSED and any(not one.good for one in outcomes):
        tallies = tallied(account_id=key[0], model=key[1], closed_at=new.closed_at, now=now)
    new = health.after(new, outcomes, tallies=tallies, now=now)
    write_row(row, new, now=now, data={"connect": True} if connect else None)


def _not_plain() -> Iterable[ProviderState]:
    """Rows that a good outcome may change. There are few rows at all, and hardly ever one of these."""
    return ProviderState.objects.exclude(
        gate=Gate.CLOSED, sends_failed=0, verdicts_failed=0, polls_failed=0, ramp__isnull=True
    )


def _sent(task_ids: Collection[UUID]) -> dict[UUID, _Sent]:
    rows = ProviderTask.objects.filter(pk__in=task_ids).values_list(
        "pk", "account_id", "target__model", "armed_at"
    )
    return {pk: _Sent(account_id, model, armed_at) for pk, account_id, model, armed_at in rows}


def _counted(fact: Fact) -> tuple[list[tuple[Dimension, bool]], bool]:
    """The counted outcomes of one fact, and whether a failure is told of the model alone."""
    found: list[tuple[Dimension, bool | None]] = []
    failure = FailureClass(fact.failure_class) if fact.failure_class else None
    ours = bool(fact.ours)
    submit = not (fact.polled or fact.looked or fact.receipt_looked)
    if fact.polled and not (fact.completed or fact.failed):
        found.append((Dimension.POLL, _poll(fact) if fact.poll_failed else True))
    elif fact.polled:
        found.append((Dimension.POLL, True))
    elif fact.lost:
        # Without anything kept of the call it was the worker that died, not the provider.
        died = fact.evidence is None
        found.append(
            (Dimension.SEND, health.counted(failure or FailureClass.UNKNOWN, ours=ours or died))
        )
    elif fact.unsent or fact.refusal_class is not None:
        refused = FailureClass(fact.refusal_class or FailureClass.UNSENT)
        found.append((Dimension.SEND, health.counted(refused, ours=ours)))
    elif submit and (fact.provider_id is not None or fact.completed or fact.failed):
        found.append((Dimension.SEND, True))
    if (fact.completed and (fact.files or fact.result_text)) or fact.stored:
        found.append((Dimension.VERDICT, True))
    elif fact.fetch_over:
        found.append((Dimension.VERDICT, False))  # said to be made, and no file ever came
    elif fact.failed and fact.last_status not in CANCELLED:
        found.append((Dimension.VERDICT, health.counted(failure or FailureClass.UNKNOWN)))
    counted = [(dimension, good) for dimension, good in found if good is not None]
    return counted, fact.failure_scope == Scope.MODEL


def _poll(fact: Fact) -> bool | None:
    """A poll that told nothing: counted where nothing or a 5xx came. A 401, 404 or 429 is an answer of one that is up."""
    status = fact.data.get("status")
    up = fact.missing or (isinstance(status, int) and status < 500)
    return None if up or fact.data.get("ours") else False


def _reason(fact: Fact) -> str:
    return str(fact.failure_text or fact.data.get("reason") or "")[:300]


def _rows_of(dimension: Dimension, *, good: bool, model: str, model_only: bool) -> tuple[str, ...]:
    """Which rows an outcome counts for. A failure counts for one, so that one outage is one episode."""
    match dimension:
        case Dimension.POLL:
            return ("",)
        case Dimension.VERDICT:
            return (model,)
        case _ if good:
            return ("", model)
        case _:
            return (model,) if model_only else ("",)


# The twin of _counted and _rows_of over what is written already.
_TALLIES = """
SELECT
  count(*) FILTER (WHERE k.accepted_at > %(since)s OR (k.provider_id IS NULL AND coalesce(k.completed_at, k.failed_at) > %(since)s)),
  count(*) FILTER (WHERE NOT k.ours AND (k.failure_scope = 'model') = (%(model)s <> '') AND (
    (k.lost_at > %(since)s AND k.evidence <> '{}'::jsonb)
    OR (k.refused_at > %(since)s AND k.refusal_class = 'down')
    OR (k.unsent_at > %(since)s AND k.failure_class = 'unsent'))),
  count(*) FILTER (WHERE k.state = 'sending' AND k.armed_at > %(young)s),
  count(*) FILTER (WHERE k.completed_at > %(since)s AND (k.files <> '[]'::jsonb OR k.result_text <> '')),
  count(*) FILTER (WHERE k.failed_at > %(since)s AND k.failure_class IN ('down', 'unknown')
    AND k.last_status <> ALL(%(cancelled)s)),
  count(*) FILTER (WHERE k.last_poll_at > %(since)s AND k.poll_failures = 0),
  count(*) FILTER (WHERE k.last_poll_at > %(since)s AND k.poll_failures > 0 AND k.missing_since IS NULL)
FROM jobs_providertask k JOIN providers_target g ON g.id = k.target_id
WHERE k.account_id = %(account)s AND k.armed_at > %(back)s AND %(model)s IN ('', g.model)
"""


def tallied(
    *, account_id: int, model: str, closed_at: datetime | None, now: datetime
) -> dict[Dimension, Tally]:
    """Goods and bads of the last minute (since the breaker closed, if that is less). Polls by task: how its last one went."""
    since = now - timedelta(seconds=health.WINDOW_S)
    values: dict[str, Any] = {
        "account": account_id,
        "model": model,
        "since": since,
        "young": now - timedelta(seconds=health.YOUNG_S),
        "back": max(since - timedelta(seconds=_TALLY_BACK_S), closed_at or since.min.replace(tzinfo=since.tzinfo)),
        "cancelled": list(CANCELLED),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_TALLIES, values)
        row = cursor.fetchone()
    assert row is not None
    tallies = {Dimension.SEND: Tally(*row[:3])}
    if model:
        tallies[Dimension.VERDICT] = Tally(*row[3:5])
    else:
        tallies[Dimension.POLL] = Tally(*row[5:7])
    return tallies
