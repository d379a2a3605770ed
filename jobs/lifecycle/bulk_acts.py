"""What can be done to many jobs at once, and which of them it leaves out. Each act is a verb of lifecycle/staff.py, called
job by job, or its twin for many in one statement; tests hold the twins together.

An act never decides about money for many: a job whose send has cost or may have cost something is left out of whatever would
send again or end it, and is decided by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import DataError, Error, IntegrityError, ProgrammingError, transaction
from django.db.models import BigIntegerField, Exists, F, OuterRef, Q, QuerySet, When
from django.db.models import Case as Either
from django.db.models.functions import Coalesce

from jobs import bell
from jobs.lifecycle import events, staff
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, Case, Job, ProviderTask
from jobs.states import HAS_COST, CaseKind, JobState, Release
from providers.models import Target

Actor = AbstractBaseUser | None
Data = Mapping[str, Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What an act is called with. `run_id` stands in the events of the jobs."""

    run_id: int
    actor: Actor
    now: datetime
    data: Data


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """`states`: of the jobs it is for. `needs_free`: nothing may stand in the way of a further send. `spares`: leaves out
    sends that have or may have cost. `sends`: gives the machine work that costs money."""

    name: str
    permission: str
    states: frozenset[JobState]
    one: Callable[[int, Call], None]
    many: Callable[[Sequence[int], Call], None] | None = None
    needs_free: bool = False
    spares: bool = False
    sends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A job left as it was. `reason` is a constant, `said` a refusal's own sentence."""

    job_id: int
    reason: str
    said: str = ""
    money: Decimal | None = None
    currency: str = ""


# --- the look: what is left out, and why ------------------------------------------------------------------------------

POSSIBLE_CHARGE = "possible_charge"
ABOUT_TO_BE_SENT = "about_to_be_sent"
HAS_RESULT = "has_result"
OTHER_KIND = "other_kind"
GONE = "gone"
REFUSED = "refused"
BROKEN = "error"
_STATE = "state."


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the look tells of a job. `costly`: a send has or may have cost. `under_way`: one is about to be made.
    `has_result`: what a send brought was kept, and not delivered."""

    state: str
    kind: str
    costly: bool
    under_way: bool
    has_result: bool


def why_not(act: Act, seen: Seen, *, makes: str = "") -> str:
    """Why a job is left out; "": it is not. `makes`: the kind of the target that was chosen, if one was."""
    if seen.state not in act.states:
        return f"{_STATE}{seen.state}"
    if (act.needs_free or act.spares) and seen.costly:
        return POSSIBLE_CHARGE
    if act.needs_free and seen.under_way:
        return ABOUT_TO_BE_SENT
    if act.needs_free and seen.has_result:
        return HAS_RESULT
    if makes and seen.kind != makes:
        return OTHER_KIND
    return ""


def state_of(reason: str) -> JobState | None:
    """The state that is why a job was left out; None for another reason."""
    return JobState(reason.removeprefix(_STATE)) if reason.startswith(_STATE) else None


def _costly_sends() -> QuerySet[ProviderTask]:
    """Of a job: sends that have or may have cost, and that stand in the way of a further one (staff.in_the_way)."""
    return ProviderTask.objects.filter(job=OuterRef("pk"), charge__in=HAS_COST).filter(
        Q(blocks_send=True)
        | Q(released_by__in=[Release.UNSENT, Release.FREE, Release.ABSENT])
        # "Gave up" released the send; that was no word on sending again.
        | Q(released_by=Release.PERSON, job__decided_at__isnull=False)
    )


SEEN = tuple(Seen.__dataclass_fields__)


def looked_at(jobs: QuerySet[Job]) -> QuerySet[Job]:
    """With the columns of SEEN."""
    sends = ProviderTask.objects.filter(job=OuterRef("pk"))
    kept = sends.filter(
        # As staff.check_no_result: of the prompt as it is now.
        stored_at__isnull=False,
        created_at__gte=Coalesce(OuterRef("edited_at"), OuterRef("created_at")),
    )
    return jobs.annotate(
        costly=Exists(_costly_sends()),
        under_way=Exists(sends.filter(blocks_send=True).exclude(charge__in=HAS_COST)),
        has_result=Exists(kept),
    )


def makes(act: Act, data: Data) -> str:
    """The kind of the target that was chosen. Refused where that is closed by now."""
    if act is not RETARGET:
        return ""
    target = Target.objects.filter(pk=data["target"]).first()
    return target.kind if target is not None else ""


# --- doing it ---------------------------------------------------------------------------------------------------------


def do(act: Act, ids: Sequence[int], call: Call) -> list[Skip]:
    """Do it to the jobs, within the caller's transaction; those that were left out.

    All rows are locked before the first is touched, in the order that everyone keeps: jobs, tasks, batches.
    """
    rows = list(
        looked_at(Job.objects.filter(pk__in=_lock(ids, batches=act.sends)))
        .order_by("pk")
        .values("pk", *SEEN)
    )
    kind = makes(act, call.data)
    skips, fits = [], []
    for row in rows:
        pk = row.pop("pk")
        if reason := why_not(act, Seen(**row), makes=kind):
            skips.append(Skip(job_id=pk, reason=reason))
        else:
            fits.append(pk)
    missing = set(ids) - {*fits} - {skip.job_id for skip in skips}
    skips += [Skip(job_id=pk, reason=GONE) for pk in sorted(missing)]
    if not _all_at_once(act, fits, call):
        skips += [skip for pk in fits if (skip := _one(act, pk, call)) is not None]
    return list(_with_money(skips))


def _lock(ids: Sequence[int], *, batches: bool) -> list[int]:
    jobs = Job.objects.filter(pk__in=ids).order_by("pk")
    found = list(jobs.select_for_update(no_key=True, of=("self",)).values_list("pk", "batch_id"))
    tasks = ProviderTask.objects.filter(job_id__in=ids).order_by("pk")
    list(tasks.select_for_update(no_key=True).values_list("pk"))
    if batches:
        # Jobs that come back take their batch's lock one after another (migration 0007): here in order instead.
        rows = Batch.objects.filter(pk__in={batch for _pk, batch in found if batch}).order_by("pk")
        list(rows.select_for_update(no_key=True).values_list("pk"))
    return [pk for pk, _batch in found]


def _all_at_once(act: Act, ids: Sequence[int], call: Call) -> bool:
    """False: nothing was done, and it is to be done job by job; so one row that breaks spoils no others."""
    if act.many is None:
        return False
    try:
        with transaction.atomic():
            if ids:
                act.many(ids, call)
    except (DataError, IntegrityError) as error:
        logger.warning("bulk.one_by_one %s %s", act.name, error)
        return False
    return True


def _one(act: Act, pk: int, call: Call) -> Skip | None:
    """In a savepoint: what one job refuses, or breaks, is no matter of the others."""
    try:
        with transaction.atomic():
            act.one(pk, call)
    except Refused as refused:
        return Skip(job_id=pk, reason=REFUSED, said=str(refused))
    except (DataError, IntegrityError, ProgrammingError) as error:
        return _broken(act, pk, error)
    except Error:
        raise  # of the connection, or a deadlock: the whole slice is done again
    except Exception as error:  # noqa: BLE001  of this job; the others are done
        return _broken(act, pk, error)
    return None


def _broken(act: Act, pk: int, error: Exception) -> Skip:
    logger.error("bulk.job_failed %s", act.name, exc_info=error, extra={"job": pk})
    return Skip(job_id=pk, reason=BROKEN, said=type(error).__name__)


def _with_money(skips: Sequence[Skip]) -> Iterator[Skip]:
    """What the sends in the way have cost or may have cost, beside those that are left out for it."""
    asked = [skip.job_id for skip in skips if skip.reason == POSSIBLE_CHARGE]
    sends: dict[int, tuple[Decimal, str]] = {}
    if asked:
        tasks = ProviderTask.objects.filter(job_id__in=asked, charge__in=HAS_COST)
        for job, amount, currency in tasks.order_by("blocks_send", "-created_at").values_list(
            "job_id", Coalesce("cost", "estimated_cost"), "currency"
        ):
            sends[job] = amount, currency  # the one that blocks comes last, else the oldest
    for skip in skips:
        money, currency = sends.get(skip.job_id, (None, ""))
        yield Skip(job_id=skip.job_id, reason=skip.reason, said=skip.said, money=money, currency=currency)  # fmt: skip


# --- twins for many ---------------------------------------------------------------------------------------------------


def _pk(actor: Actor) -> int | None:
    return actor.pk if actor else None


def _retry_many(ids: Sequence[int], call: Call) -> None:
    """staff.retry for jobs that are looked at and locked."""
    reason = call.data["reason"]
    events.write_same(
        ids, kind="retried", now=call.now, actor=call.actor, before="state", reason=reason,
        after=JobState.PENDING.value, bulk=call.run_id,
    )  # fmt: skip
    Case.objects.filter(job_id__in=ids, resolved_at__isnull=True).exclude(
        kind=CaseKind.PAID_TWICE
    ).update(resolved_at=call.now, resolution="retried", resolved_by_id=_pk(call.actor))
    Job.objects.filter(pk__in=ids).update(
        state=JobState.PENDING,
        reason="retried",
        reason_text=reason,
        not_before=call.now,
        attempts_since=call.now,
        finished_at=None,
        decided_at=None,
        decided_by=None,
        target_id=Either(
            When(state=JobState.FAILED, then=F("route__0")),
            default=F("target_id"),
            output_field=BigIntegerField(),
        ),
    )
    bell.ring()


def _cancel_many(ids: Sequence[int], call: Call) -> None:
    """staff.cancel for jobs that are looked at and locked."""
    reason = call.data["reason"]
    events.write_same(
        ids, kind="cancelled", now=call.now, actor=call.actor, before="state", reason=reason,
        after=JobState.CANCELLED.value, bulk=call.run_id,
    )  # fmt: skip
    ProviderTask.objects.filter(
        job_id__in=ids, armed_at__isnull=True, unsent_at__isnull=True
    ).update(
        unsent_at=call.now, unsent_reason="withdrawn", ours=True, blocks_send=False, released_by=Release.UNSENT
    )  # fmt: skip
    Case.objects.filter(job_id__in=ids, kind=CaseKind.BY_HAND, resolved_at__isnull=True).update(
        resolved_at=call.now, resolution="cancelled", resolved_by_id=_pk(call.actor)
    )
    Job.objects.filter(pk__in=ids).update(
        state=JobState.CANCELLED, reason="cancelled", reason_text=reason, finished_at=call.now,
        decided_at=call.now, decided_by_id=_pk(call.actor),
    )  # fmt: skip


# --- the acts ---------------------------------------------------------------------------------------------------------

RETRY = Act(
    name="retry",
    permission="jobs.retry_job",
    states=frozenset({JobState.FAILED, JobState.MANUAL, JobState.CANCELLED}),
    one=lambda pk, call: staff.retry(
        job_id=pk, actor=call.actor, now=call.now, reason=call.data["reason"], bulk=call.run_id
    ),
    many=_retry_many,
    needs_free=True,
    sends=True,
)

RETARGET = Act(
    name="retarget",
    permission="jobs.retarget_job",
    states=frozenset(JobState) - {JobState.SUCCEEDED},
    one=lambda pk, call: staff.retry_on_target(
        job_id=pk, target_id=call.data["target"], actor=call.actor, now=call.now, reason=call.data["reason"],
        bulk=call.run_id,
    ),
    needs_free=True,
    sends=True,
)  # fmt: skip

MANUAL = Act(
    name="manual",
    permission="jobs.manual_job",
    states=frozenset({JobState.PENDING, JobState.ACTIVE, JobState.FAILED}),
    one=lambda pk, call: staff.mark_manual(
        job_id=pk, actor=call.actor, now=call.now, note=call.data["note"], bulk=call.run_id
    ),
)

RESOLVE = Act(
    name="resolve",
    permission="jobs.resolve_job",
    states=frozenset({JobState.MANUAL, JobState.ACTIVE, JobState.PENDING, JobState.FAILED}),
    one=lambda pk, call: staff.resolve(
        job_id=pk, actor=call.actor, now=call.now, outcome=call.data["outcome"], note=call.data["note"],
        bulk=call.run_id,
    ),
    spares=True,
)  # fmt: skip

CANCEL = Act(
    name="cancel",
    permission="jobs.cancel_job",
    states=frozenset({JobState.PENDING, JobState.ACTIVE, JobState.MANUAL}),
    one=lambda pk, call: staff.cancel(
        job_id=pk, actor=call.actor, now=call.now, reason=call.data["reason"], bulk=call.run_id
    ),
    many=_cancel_many,
)

ACTS: Mapping[str, Act] = {act.name: act for act in (RETRY, RESOLVE, RETARGET, MANUAL, CANCEL)}
