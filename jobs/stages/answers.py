"""answers: what a paid call's answer says; and those that dead lanes of this host had received, read as their lanes would have."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobs import answers, lanes
from jobs.answers import Kept, Left
from jobs.lane import LaneContext
from jobs.lifecycle import providers
from jobs.lifecycle.record import Fact, record
from jobs.models import ProviderTask
from jobs.rules import ABSENCE_MARGIN_S
from jobs.stages import facts, inline
from providers import registry
from providers.contract import (
    Accepted,
    Adapter,
    Answer,
    Charge,
    FailureClass,
    Kind,
    NoAnswer,
    Refusal,
    Verdict,
)
from providers.registry import UnknownProviderError

logger = logging.getLogger(__name__)

CUT = "The worker died while the answer came in."
# Each may be megabytes, and the lane must beat in between.
MOST_AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says; `kept`: for people; `keys`: where the bytes inside it were put. `safe`: nothing but those is needed of
    it any more."""

    read: Accepted | Verdict | Refusal
    kept: dict[str, Any]
    keys: list[str] = field(default_factory=list)
    safe: bool = True


def understood(
    adapter: Adapter, task_id: UUID, answer: Answer | NoAnswer, *, secrets: Collection[str]
) -> Reading:
    """Never raises: an answer that can't be read may stand for a charge."""
    read: Accepted | Verdict | Refusal
    safe = True
    try:
        read = adapter.read_submit(answer)
    except Exception as error:
        logger.exception("answers.not_understood %s", task_id)
        why = f"the answer could not be read: {error}"
        read, safe = Refusal(FailureClass.UNKNOWN, Charge.POSSIBLE, why), False
    keys = inline.keep(task_id, read)
    kept = facts.evidence(answer, secrets=tuple(secrets))
    return Reading(read, kept, keys, safe=safe and not inline.missing(read, keys))


# --- what is left of dead lanes ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Replayed:
    """`all_read`: no file is left but those of calls under way. `more`: come again at once, and call nothing lost before."""

    facts: list[Fact] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    all_read: bool = True
    more: bool = False


def replay(lane: LaneContext, *, live: Collection[UUID], now: datetime) -> Replayed:
    """In the database thread, before any send is called lost. Any number of lanes may read the same file."""
    done = Replayed(all_read=not answers.any_bad())
    found = list(answers.left())
    tasks = ProviderTask.objects.select_related("job", "account", "target").in_bulk(
        [one.task_id for one in found]
    )
    for one in found:
        task = tasks.get(one.task_id)
        if task is not None and not _due(one, task, live=live, now=now):
            # Of a lane that stood still for longer than its call could last.
            done.all_read &= task.lost_at is None
            continue
        if len(done.facts) >= MOST_AT_ONCE:
            done.more, done.all_read = True, False
            break
        try:
            kept = one.read()
        except FileNotFoundError:
            continue  # another lane of this host was quicker
        except OSError as error:
            logger.warning("answers.not_read %s %s", one.path.name, error)
            done.all_read = False  # perhaps readable the next time
            continue
        except (ValueError, KeyError, TypeError):
            answers.set_aside(one.path, answers.BAD)
            done.all_read = False
            continue
        if task is not None:
            _replay_one(lane, done, one, kept, task, now=now)
        elif not lanes.lives_here(kept.run_id, live=live):
            _replay_orphan(done, one, kept, now=now)
    return done


def _due(one: Left, task: ProviderTask, *, live: Collection[UUID], now: datetime) -> bool:
    """The lane that received it is no more; or it is complete, and its lane has had all the time there is to record it."""
    if not lanes.lives_here(task.run_id, live=live):
        return True
    wait = timedelta(seconds=(task.call_deadline_s or 0.0) + ABSENCE_MARGIN_S)
    return one.whole and task.send_not_after is not None and task.send_not_after + wait <= now


def _replay_one(
    lane: LaneContext,
    done: Replayed,
    one: Left,
    kept: Kept,
    task: ProviderTask,
    *,
    now: datetime,
) -> None:
    try:
        adapter = registry.adapter(task.account.provider)
    except UnknownProviderError as error:
        logger.warning("answers.not_read %s %s", one.path.name, error)
        done.all_read = False
        return
    answer: Answer | NoAnswer = Answer(kept.status, kept.headers, kept.body)
    if not (one.whole or kept.by_length):
        answer = NoAnswer(
            True, CUT, ours=True, status=kept.status, headers=kept.headers, body=kept.body
        )
    account = lane.accounts.get(task.account.provider)
    secrets = adapter.authorisation(account).values() if account is not None else ()
    reading = understood(adapter, task.pk, answer, secrets=tuple(secrets))
    fact = facts.of_submit(
        task.pk, reading.read, at=now, limits=lane.limits, kept=reading.kept, kind=Kind(task.job.kind),
        inline=reading.keys, hooked=task.webhook,
    )  # fmt: skip
    if isinstance(reading.read, Refusal) and reading.read.charge is Charge.NONE:
        refusal = (task.account_id, task.target_id, task.target.model, reading.read)
        providers.note_refusals(refusals=[refusal], now=now)
    done.touched |= record(facts=[fact])
    done.facts.append(fact)
    if reading.safe:
        answers.drop([one.task_id])
    elif inline.missing(reading.read, reading.keys):
        done.all_read = False  # the disk of the results has failed: the next time
    else:
        answers.set_aside(one.path, answers.BAD)
        done.all_read = False


def _replay_orphan(done: Replayed, one: Left, kept: Kept, *, now: datetime) -> None:
    """A restored database has forgotten the send: the case tells of the answer (see record), the file keeps all of it."""
    answer = NoAnswer(True, CUT, status=kept.status, headers=kept.headers, body=kept.body)
    fact = Fact(
        task_id=one.task_id, at=now, kind="answered", decides=True,
        evidence={"submit": facts.evidence(answer, secrets=()), "file": f"{one.task_id}{answers.NOBODYS}"},
    )  # fmt: skip
    done.touched |= record(facts=[fact])
    done.facts.append(fact)
    answers.set_aside(one.path, answers.NOBODYS)
