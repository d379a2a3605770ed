"""The outbox of callbacks: claiming what is due, what came of a try, and a person's word to try again.

Rows come from triggers (migration 0019). A lane claims some, sends them without a transaction, and records each. Whatever
dies in between, the lease ends and the message goes out again: at least once, under the same id.

Whoever touches the case of callbacks holds one advisory lock, taken before any row: so two lanes that give up on the same
receiver open one case, and a row's lock is never waited for with another's held.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django.utils.translation import gettext as _

from jobs import bell, callbacks
from jobs.lifecycle import decide, events
from jobs.lifecycle.errors import Refused
from jobs.models import Callback, Case, Job
from jobs.models.callback import WAITS
from jobs.states import CaseKind
from providers.outward import Replied, Unreached
from providers.redaction import redact_text, sanitise

Actor = AbstractBaseUser | None

LOCK = 0x63616C6C  # "call"
# A try takes DEADLINE_S and a moment (jobs/stages/deliver.py); then somebody else may have it.
LEASE_S = 30.0
# What is under way at once, over all lanes: to one receiver, to one whose last try failed, for one tenant, and to all
# receivers together whose last try failed. So nobody's dead receiver takes the places of others.
MOST_AT_ONE, MOST_AT_FAILING, MOST_OF_TENANT, MOST_FAILING = 8, 1, 16, 24
GONE = 410

# The receivers that something waits for, by steps along the index, however much waits for each.
_RECEIVERS = """
WITH RECURSIVE r AS (
  (SELECT tenant_id, host FROM jobs_callback WHERE delivered_at IS NULL AND given_up_at IS NULL
   ORDER BY tenant_id, host LIMIT 1)
  UNION ALL
  SELECT n.tenant_id, n.host FROM r CROSS JOIN LATERAL (
    SELECT tenant_id, host FROM jobs_callback
    WHERE delivered_at IS NULL AND given_up_at IS NULL AND (tenant_id, host) > (r.tenant_id, r.host)
    ORDER BY tenant_id, host LIMIT 1) n
)
SELECT r.tenant_id, r.host,
  (SELECT count(*) FROM jobs_callback c
   WHERE c.tenant_id = r.tenant_id AND c.host = r.host AND c.leased_until > %(now)s),
  coalesce((
    SELECT c.delivered_at IS NULL FROM jobs_callback c
    WHERE c.tenant_id = r.tenant_id AND c.host = r.host AND c.tried_at IS NOT NULL
    ORDER BY c.tried_at DESC LIMIT 1), false)
FROM r
"""
_DUE = """
SELECT d.id, open.tenant_id, open.host
FROM unnest(%(tenants)s::bigint[], %(hosts)s::text[], %(rooms)s::int[]) AS open(tenant_id, host, room)
CROSS JOIN LATERAL (
  SELECT id, not_before FROM jobs_callback
  WHERE delivered_at IS NULL AND given_up_at IS NULL AND tenant_id = open.tenant_id AND host = open.host
    AND (not_before IS NULL OR not_before <= %(now)s) AND (leased_until IS NULL OR leased_until <= %(now)s)
  ORDER BY not_before NULLS FIRST, id LIMIT open.room
  FOR NO KEY UPDATE SKIP LOCKED
) d
"""


@dataclass(frozen=True, slots=True)
class Receiver:
    """One tenant's one host. `failing`: its last try failed."""

    tenant_id: int
    host: str
    in_flight: int
    failing: bool

    @property
    def room(self) -> int:
        return (MOST_AT_FAILING if self.failing else MOST_AT_ONE) - self.in_flight


def claim(*, room: int, now: datetime) -> list[Callback]:
    """At most `room` that are due, fairly over tenants and receivers; they are the caller's for LEASE_S."""
    if room <= 0 or not _something_is_due(now):
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        _alone()
        cursor.execute(_RECEIVERS, {"now": now})
        receivers = [Receiver(*row) for row in cursor.fetchall()]
        open_ = [one for one in receivers if one.room > 0]
        cursor.execute(
            _DUE,
            {
                "tenants": [one.tenant_id for one in open_],
                "hosts": [one.host for one in open_],
                "rooms": [one.room for one in open_],
                "now": now,
            },
        )
        due: dict[tuple[int, str], list[int]] = {}
        for pk, tenant_id, host in cursor.fetchall():
            due.setdefault((tenant_id, host), []).append(pk)
        ids = deal(receivers, due, room=room)
        mine = Callback.objects.filter(pk__in=ids)
        mine.update(
            leased_until=now + timedelta(seconds=LEASE_S),
            tries=F("tries") + 1,
            at=Coalesce("at", Value(now)),
            since=Coalesce("since", Value(now)),
        )
        return list(mine.order_by("pk"))


def deal(
    receivers: Sequence[Receiver], due: dict[tuple[int, str], list[int]], *, room: int
) -> list[int]:
    """Which of the due go now: one of each receiver in turn, within what its tenant and the failing ones may take."""
    of_tenant: Counter[int] = Counter()
    failing = 0
    for one in receivers:
        of_tenant[one.tenant_id] += one.in_flight
        failing += one.in_flight if one.failing else 0
    taken: list[int] = []
    # Who has the fewest under way comes first.
    order = sorted(receivers, key=lambda one: (of_tenant[one.tenant_id], one.in_flight, one.host))
    for turn in range(MOST_AT_ONE):
        for one in order:
            rows = due.get((one.tenant_id, one.host), [])
            if turn >= len(rows) or of_tenant[one.tenant_id] >= MOST_OF_TENANT:
                continue
            if one.failing and failing >= MOST_FAILING:
                continue
            if len(taken) >= room:
                return taken
            taken.append(rows[turn])
            of_tenant[one.tenant_id] += 1
            failing += one.failing
    return taken


def _something_is_due(now: datetime) -> bool:
    """One probe of an index, so that a desk without callbacks takes no lock for them."""
    waits = Callback.objects.filter(WAITS)
    return waits.filter(Q(not_before__isnull=True) | Q(not_before__lte=now)).exists()


# --- what came of it --------------------------------------------------------------------------------------------------


def record(
    *, callback: Callback, told: Replied | Unreached, now: datetime, rng: random.Random
) -> None:
    """Note what a try brought. `callback`: as it was claimed.

    A success is a fact, whoever holds the row by now. A failure counts only while nobody else has begun another try.
    """
    status = told.status if isinstance(told, Replied) else None
    if status is not None and 200 <= status < 300:
        _delivered(callback, status=status, now=now)
        return
    told_s = told.retry_after_s if isinstance(told, Replied) else None
    assert callback.since is not None  # set by the claim
    at = callbacks.next_try(
        failures=callback.failures + 1, since=callback.since, now=now, told_s=told_s, rng=rng
    )
    trouble = _words(told)
    changes: dict[str, Any] = {
        "leased_until": None, "failures": F("failures") + 1, "tried_at": now, "status": status, "trouble": trouble,
    }  # fmt: skip
    mine = Callback.objects.filter(WAITS, pk=callback.pk, tries=callback.tries)
    if at is not None and status != GONE:
        mine.update(not_before=at, **changes)
        return
    with transaction.atomic():
        _alone()
        if mine.update(given_up_at=now, not_before=None, **changes):
            Callback.objects.filter(pk=callback.pk).update(case=_case_for(callback, trouble, now))


def _words(told: Replied | Unreached) -> str:
    """For staff. What a receiver says is its own affair, so only the beginning is kept, and no key of ours in it."""
    said = told.reason if isinstance(told, Unreached) else f"HTTP {told.status} {told.text}"
    return sanitise(redact_text(" ".join(said.split())), limit=300)


def _delivered(callback: Callback, *, status: int, now: datetime) -> None:
    with transaction.atomic():
        same = _same_subject(callback)
        with_case = same.filter(case__resolved_at__isnull=True, case__isnull=False)
        closes = with_case.exists()
        if closes:
            _alone()
        Callback.objects.filter(pk=callback.pk, delivered_at__isnull=True).update(
            delivered_at=now, given_up_at=None, leased_until=None, not_before=None, tried_at=now, status=status,
            trouble="",
        )  # fmt: skip
        if closes:
            for case in Case.objects.filter(callbacks__in=with_case).distinct():
                _close_if_told(case.pk, now=now)


def _same_subject(callback: Callback) -> QuerySet[Callback]:
    """All about the same job, or the same batch."""
    if callback.job_id is not None:
        return Callback.objects.filter(job_id=callback.job_id)
    assert callback.batch_id is not None
    return Callback.objects.filter(batch_id=callback.batch_id)


def _close_if_told(case_id: int, *, now: datetime) -> None:
    """Close it where all that it is about got through, or something newer about the same job or batch did."""
    newer = Callback.objects.filter(
        Q(job=OuterRef("job")) | Q(batch=OuterRef("batch")),
        pk__gt=OuterRef("pk"),
        delivered_at__isnull=False,
    )
    untold = Callback.objects.filter(case_id=case_id, delivered_at__isnull=True)
    if untold.exclude(Exists(newer)).exists():
        return
    closed = Case.objects.filter(pk=case_id, resolved_at__isnull=True)
    job_id = closed.values_list("job_id", flat=True).first()
    if closed.update(resolved_at=now, resolution="evidence") and job_id is not None:
        events.write(
            [
                events.event(
                    job_id=job_id, kind="case_closed", now=now, case=CaseKind.DEAD_CALLBACK, by="evidence"
                )
            ]
        )  # fmt: skip


def _case_for(callback: Callback, trouble: str, now: datetime) -> Case:
    """The open case of the same receiver, so that one dead receiver is one case however many messages wait for it; else
    a new one, on the job (the first of a batch)."""
    job_id = subject_job(callback)
    # Locked: one that is being closed by a person at this moment is closed, and another is opened.
    dead = Case.objects.filter(kind=CaseKind.DEAD_CALLBACK, resolved_at__isnull=True)
    dead = dead.select_for_update(no_key=True, of=("self",))
    of_receiver = dead.filter(callbacks__tenant=callback.tenant_id, callbacks__host=callback.host)
    found = of_receiver.first() or dead.filter(job_id=job_id).first()
    if found is not None:
        return found
    made = Case.objects.create(
        kind=CaseKind.DEAD_CALLBACK, job_id=job_id, opened_at=now,
        due_at=now + decide.due_after(CaseKind.DEAD_CALLBACK),
        detail={"receiver": callback.host, "trouble": trouble},
    )  # fmt: skip
    opened = events.event(job_id=job_id, kind="case_opened", now=now, case=CaseKind.DEAD_CALLBACK)
    events.write([opened])
    return made


def subject_job(callback: Callback) -> int:
    """The job it is about; of a batch its first."""
    if callback.job_id is not None:
        return callback.job_id
    assert callback.batch_id is not None
    first = Job.objects.filter(batch_id=callback.batch_id).order_by("pk")
    return first.values_list("pk", flat=True)[0]


# --- a person's word --------------------------------------------------------------------------------------------------


def replay(*, callback_id: int, actor: Actor, now: datetime, reason: str = "") -> None:
    """Try one that was given up anew, for another day; one that waits, at once."""
    with transaction.atomic():
        _alone()
        row = Callback.objects.filter(pk=callback_id).first()
        if row is None:
            raise Refused(_("There is no callback %(id)s.") % {"id": callback_id})
        if not _again(Callback.objects.filter(pk=row.pk), now=now):
            raise Refused(_("This callback was delivered already, or is being sent."))
        _tell(subject_job(row), 1, actor=actor, now=now, reason=reason)


def replay_case(*, case_id: int, actor: Actor, now: datetime, reason: str = "") -> int:
    """Try all of a case anew that were given up; how many. The case stays open until they get through."""
    with transaction.atomic():
        _alone()
        case = Case.objects.filter(pk=case_id, kind=CaseKind.DEAD_CALLBACK).first()
        if case is None or case.job_id is None:
            raise Refused(_("This case is about no callback."))
        count = _again(Callback.objects.filter(case=case, given_up_at__isnull=False), now=now)
        if not count:
            raise Refused(_("All of it is being tried again already."))
        _tell(case.job_id, count, actor=actor, now=now, reason=reason)
    return count


def _again(rows: QuerySet[Callback], *, now: datetime) -> int:
    free = rows.filter(Q(leased_until__isnull=True) | Q(leased_until__lte=now), delivered_at=None)
    count = free.update(given_up_at=None, leased_until=None, not_before=now, since=now, failures=0)
    bell.ring()
    return count


def _tell(job_id: int, count: int, *, actor: Actor, now: datetime, reason: str) -> None:
    events.write(
        [
            events.event(
                job_id=job_id, kind="callback_replayed", now=now, actor=actor, messages=count, reason=reason.strip()
            )
        ]
    )  # fmt: skip


def _alone() -> None:
    """Until the transaction ends nobody else is here. In a statement of its own: what follows sees what they wrote."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
