"""Removing what nobody needs any more, a slice at a time: a short transaction that locks little and waits for nobody.

What money needs is never removed: sends with their ids, costs and charges, statements, cases, and what people did. Of a
job nothing is removed before it is settled: ended for long enough, no open case, none about money, no send that may still
cost or that somebody still looks after. Each slice is whole or did not happen, so a run may be killed anywhere, and two
may run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.db.models import Exists, OuterRef, Q

from jobs import results
from jobs.lifecycle import drafts, keyed
from jobs.models import (
    BatchDraft,
    BulkChunk,
    BulkRun,
    BulkSkip,
    Callback,
    JobEvent,
    PruneRun,
    Result,
)
from jobs.models.event import BY_PEOPLE, OF_PEOPLE
from jobs.retention import OF_JOBS, Kind
from jobs.states import ENDED
from providers.models import BY_PEOPLE as BY_PEOPLE_AT_PROVIDERS
from providers.models import ProviderEvent

PERMISSION = "jobs.run_prune"
SLICE = 500
LEASE_S = 90.0
# A walk from the first row on finds what was not settled when a daily run came by.
ANEW = timedelta(days=30)
# Done to many at once these stand in no trail of their own, and they decide about money.
_ABOUT_MONEY = (
    "sent_again", "written_off", "refunded", "absent_confirmed", "resolved", "id_attached", "candidate_accepted",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to go. `before`: what ended earlier is old. `states`: only jobs that ended so. `delivered`: files of delivered
    results too. `dry`: count, and change nothing."""

    before: datetime
    now: datetime
    states: Sequence[str] = tuple(state.value for state in ENDED)
    delivered: bool = False
    dry: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """`removed`: how many rows (or files). `after`: where the next slice goes on. `over`: there is no next one. `mark`: up to
    here all that ends for good is old, so that another day's walk may begin here; None: it begins at the first."""

    removed: int
    after: int
    over: bool
    mark: int | None = None


# --- of settled jobs --------------------------------------------------------------------------------------------------

_SETTLED = """
  j.state = ANY(%(states)s) AND j.finished_at < %(before)s
  AND NOT EXISTS (
    SELECT FROM jobs_case c WHERE c.job_id = j.id AND (c.resolved_at IS NULL OR c.money_at_risk > 0))
  AND NOT EXISTS (
    SELECT FROM jobs_providertask k WHERE k.job_id = j.id AND (
      k.charge = 'possible' OR k.state IN ('intent', 'sending', 'accepted', 'completed', 'unknown')
      OR k.undecided_since IS NOT NULL
      OR least(k.next_poll_at, k.next_fetch_at, k.next_look_at, k.next_receipt_at) IS NOT NULL
      OR EXISTS (SELECT FROM jobs_orphan o WHERE o.task_id = k.id)))
"""
# Jobs are numbered as they were made, and none ends before it is made: from the first young one on, none is old.
_NEXT = """
WITH part AS (
  SELECT id, created_at, state, finished_at FROM jobs_job WHERE id > %(after)s ORDER BY id LIMIT %(most)s
)
SELECT count(*), coalesce(max(id), 0), coalesce(bool_or(created_at >= %(before)s), false),
  coalesce(min(id) FILTER (WHERE created_at >= %(before)s - interval '1 day') - 1, max(id)),
  coalesce(array_agg(id ORDER BY id) FILTER (WHERE state = ANY(%(states)s) AND finished_at < %(before)s), '{}')
FROM part
"""
# Locked before it is looked whether they are settled: what a person does to one of them meanwhile waits, or is seen. The
# first look only spares the lock where there is nothing to remove.
_LOCK = """
SELECT j.id FROM jobs_job j WHERE j.id = ANY(%(ids)s) AND EXISTS ({there})
ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
"""
_SURE = f"SELECT j.id FROM jobs_job j WHERE j.id = ANY(%(ids)s) AND {_SETTLED}"  # noqa: S608
_TIMELINE = "SELECT FROM jobs_jobevent e WHERE e.job_id = j.id AND e.actor_id IS NULL AND NOT (e.kind = ANY(%(kept)s))"
_LONG = """(
  (k.evidence <> '{}'::jsonb AND NOT k.evidence ? 'pruned_at') OR k.candidates <> '[]'::jsonb
  OR (k.stored_at IS NOT NULL AND (k.files <> '[]'::jsonb OR k.result_text <> '')))"""
_EVIDENCE = f"SELECT FROM jobs_providertask k WHERE k.job_id = j.id AND {_LONG}"
# The addresses of a file that was never stored, and words that were never kept, are what a person would ask for.
_SHORTEN = f"""
UPDATE jobs_providertask k SET candidates = '[]',
  evidence = CASE WHEN k.evidence = '{{}}'::jsonb THEN k.evidence ELSE jsonb_build_object('pruned_at', %(now)s::text) END,
  files = CASE WHEN k.stored_at IS NULL THEN k.files ELSE '[]' END,
  result_text = CASE WHEN k.stored_at IS NULL THEN k.result_text ELSE '' END
WHERE k.job_id = ANY(%(ids)s) AND {_LONG}
"""  # noqa: S608  all of it our own text


def _timelines(wish: Wish, after: int, most: int) -> Slice:
    return _of_jobs(wish, after, most, there=_TIMELINE, remove=_remove_timelines)


def _remove_timelines(ids: Sequence[int], wish: Wish) -> int:
    steps = JobEvent.objects.filter(job_id__in=ids).exclude(BY_PEOPLE | Q(kind__in=_ABOUT_MONEY))
    return steps.count() if wish.dry else steps.delete()[0]


def _evidence(wish: Wish, after: int, most: int) -> Slice:
    return _of_jobs(wish, after, most, there=_EVIDENCE, remove=_remove_evidence)


def _remove_evidence(ids: Sequence[int], wish: Wish) -> int:
    asked: dict[str, Any] = {"ids": list(ids), "now": wish.now.isoformat()}
    with connection.cursor() as cursor:
        if wish.dry:
            cursor.execute(
                f"SELECT count(*) FROM jobs_providertask k WHERE k.job_id = ANY(%(ids)s) AND {_LONG}",  # noqa: S608
                asked,
            )
            return int(cursor.fetchone()[0])
        cursor.execute(_SHORTEN, asked)
        return int(cursor.rowcount)


def _of_jobs(
    wish: Wish, after: int, most: int, *, there: str, remove: Callable[[Sequence[int], Wish], int]
) -> Slice:
    asked: dict[str, Any] = {
        "after": after, "most": most, "before": wish.before, "states": list(wish.states),
        "kept": [*OF_PEOPLE, *_ABOUT_MONEY],
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_NEXT, asked)
        seen, last, young, mark, asked["ids"] = cursor.fetchone()
        if asked["ids"]:
            cursor.execute(_LOCK.format(there=there), asked)
            asked["ids"] = [pk for (pk,) in cursor.fetchall()]
        if asked["ids"]:
            cursor.execute(_SURE, asked)
            asked["ids"] = [pk for (pk,) in cursor.fetchall()]
    removed = remove(asked["ids"], wish) if asked["ids"] else 0
    return Slice(removed, last or after, over=young or seen < most, mark=mark or after)


# A result's file may be another job's photo (“generate for all” from the finished picture), or that of an import that
# waits for its yes.
_FILES = f"""
WITH part AS (
  SELECT id, created_at, job_id, removed_at, key FROM jobs_result WHERE id > %(after)s ORDER BY id LIMIT %(most)s
)
SELECT count(*), coalesce(max(s.id), 0), coalesce(bool_or(s.created_at >= %(before)s), false),
  coalesce(array_agg(s.id) FILTER (WHERE s.key <> '' AND (s.removed_at IS NOT NULL OR (
    {_SETTLED} AND (%(delivered)s OR j.delivered_id IS DISTINCT FROM s.id)
  ))), '{{}}')
FROM part s JOIN jobs_job j ON j.id = s.job_id
"""  # noqa: S608
_IN_DRAFTS = """
SELECT DISTINCT photo ->> 0 FROM jobs_batchdraft d, jsonb_array_elements(d.rows) r,
  jsonb_array_elements(CASE jsonb_typeof(r -> 'photos') WHEN 'array' THEN r -> 'photos' ELSE '[]' END) photo
WHERE photo ->> 0 = ANY(%s)
UNION SELECT key FROM jobs_jobphoto WHERE key = ANY(%s)
"""


def _files(wish: Wish, after: int, most: int) -> Slice:
    """First it is written that they go, then they go, then that they are gone: whoever is killed in between has left what
    the next run finds."""
    asked: dict[str, Any] = {
        "after": after, "most": most, "before": wish.before, "states": list(wish.states), "delivered": wish.delivered,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_FILES, asked)
        seen, last, young, ids = cursor.fetchone()
    here = Slice(0, last or after, over=young or seen < most)
    if not ids or wish.dry:
        return Slice(len(ids), here.after, here.over)
    with transaction.atomic():
        locked = Result.objects.select_for_update(skip_locked=True, no_key=True, of=("self",))
        rows = [row for row in locked.filter(pk__in=ids).order_by("pk") if row.key]
        kept = _used([row.key for row in rows if row.removed_at is None])
        rows = [row for row in rows if row.key not in kept]
        Result.objects.filter(pk__in=[row.pk for row in rows], removed_at=None).update(
            removed_at=wish.now
        )
    for row in rows:
        for key in filter(None, (row.key, row.thumb_key)):
            results.remove(key)
    Result.objects.filter(pk__in=[row.pk for row in rows]).update(key="", thumb_key="")
    return Slice(len(rows), here.after, here.over)


def _used(keys: list[str]) -> set[str]:
    if not keys:
        return set()
    with connection.cursor() as cursor:
        cursor.execute(_IN_DRAFTS, [keys, keys])
        return {key for (key,) in cursor.fetchall()}


# --- by themselves ----------------------------------------------------------------------------------------------------


def _provider_events(wish: Wish, after: int, most: int) -> Slice:
    """The newest old one of each kind stays: it may tell what still holds (jobs/episodes.py)."""
    some = list(
        ProviderEvent.objects.filter(pk__gt=after).order_by("pk").values_list("pk", "at")[:most]
    )
    old = [pk for pk, at in some if at < wish.before]
    here = Slice(0, some[-1][0] if some else after, over=len(old) < len(some) or len(some) < most)
    if not old:
        return here
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ON (account_id, model, kind) id FROM providers_providerevent WHERE at < %s"
            " ORDER BY account_id, model, kind, id DESC",
            [wish.before],
        )
        newest = {pk for (pk,) in cursor.fetchall()}
    gone = ProviderEvent.objects.filter(pk__in=set(old) - newest).exclude(BY_PEOPLE_AT_PROVIDERS)
    return Slice(gone.count() if wish.dry else gone.delete()[0], here.after, here.over)


def _callbacks(wish: Wish, after: int, most: int) -> Slice:
    """Delivered ones. Numbered as they came: from the first young one on, none is old."""
    some = list(
        Callback.objects.filter(pk__gt=after)
        .order_by("pk")
        .values_list("pk", "at", "delivered_at", "case__resolved_at", "case_id")[:most]
    )
    young = any(at is not None and at >= wish.before for _pk, at, *_rest in some)
    ids = [
        pk for pk, _at, delivered_at, settled_at, case_id in some
        if delivered_at is not None and delivered_at < wish.before and not (case_id and settled_at is None)
    ]  # fmt: skip
    here = Slice(0, some[-1][0] if some else after, over=young or len(some) < most)
    if not ids:
        return here
    if wish.dry:
        return Slice(len(ids), here.after, here.over)
    free = Callback.objects.select_for_update(skip_locked=True).filter(
        pk__in=ids, delivered_at__lt=wish.before
    )
    gone = Callback.objects.filter(pk__in=list(free.values_list("pk", flat=True))).delete()[0]
    return Slice(gone, here.after, here.over)


def _bulk(wish: Wish, after: int, most: int) -> Slice:
    """The run itself stays, with its counts: it is what somebody did. One run a slice, and of its rows at most so many."""
    ended = BulkRun.objects.filter(pk__gt=after, finished_at__lt=wish.before).order_by("pk")
    left = Exists(BulkSkip.objects.filter(run=OuterRef("pk"))) | Exists(
        BulkChunk.objects.filter(run=OuterRef("pk"))
    )
    run = ended.filter(left).values_list("pk", flat=True).first()
    if run is None:
        return Slice(0, after, over=True)
    skips, chunks = BulkSkip.objects.filter(run=run), BulkChunk.objects.filter(run=run)
    if wish.dry:
        return Slice(skips.count() + chunks.count(), run, over=False)
    some = list(skips.order_by("pk").values_list("pk", flat=True)[:most])
    if some:
        return Slice(BulkSkip.objects.filter(pk__in=some).delete()[0], after, over=False)
    some = list(chunks.order_by("pk").values_list("pk", flat=True)[:50])  # each has hundreds of ids
    return Slice(BulkChunk.objects.filter(pk__in=some).delete()[0], after, over=False)


def _drafts(wish: Wish, after: int, _most: int) -> Slice:
    old = BatchDraft.objects.filter(created_at__lt=wish.now - drafts.KEEP).order_by("created_at")
    if wish.dry:
        return Slice(old.count(), after, over=True)
    some = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:20])
    return Slice(BatchDraft.objects.filter(pk__in=some).delete()[0], after, over=len(some) < 20)


def _keys(wish: Wish, after: int, most: int) -> Slice:
    if wish.dry:
        return Slice(keyed.over(wish.now), after, over=True)
    looked, gone = keyed.forget(wish.now, most=most)
    return Slice(gone, after, over=looked < most)


def _sessions(wish: Wish, after: int, most: int) -> Slice:
    old = Session.objects.filter(expire_date__lt=wish.now).order_by("expire_date")
    if wish.dry:
        return Slice(old.count(), after, over=True)
    some = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:most])
    return Slice(Session.objects.filter(pk__in=some).delete()[0], after, over=len(some) < most)


_STEPS: Mapping[Kind, Callable[[Wish, int, int], Slice]] = {
    Kind.TIMELINES: _timelines,
    Kind.EVIDENCE: _evidence,
    Kind.FILES: _files,
    Kind.PROVIDER_EVENTS: _provider_events,
    Kind.CALLBACKS: _callbacks,
    Kind.BULK: _bulk,
    Kind.DRAFTS: _drafts,
    Kind.KEYS: _keys,
    Kind.SESSIONS: _sessions,
}


# --- a run ------------------------------------------------------------------------------------------------------------


def count(kind: Kind, wish: Wish, *, most: int | None = None) -> int:
    """What a run would remove now; nothing is changed."""
    found, after = 0, 0
    while True:
        told = _STEPS[kind](wish, after, SLICE)
        found, after = found + told.removed, told.after
        if told.over or (most is not None and found >= most):
            return found


def begin(*, asked: Mapping[str, Any], actor: AbstractBaseUser | None, now: datetime) -> PruneRun:
    return PruneRun.objects.create(
        started_at=now, asked=dict(asked), by_id=actor.pk if actor else None
    )


def begin_day(*, day: date, now: datetime) -> PruneRun:
    """Today's run, by whichever process; it walks on from where the last day's came to."""
    last = PruneRun.objects.filter(day__lt=day).order_by("-day").first()
    position = {}
    for kind in OF_JOBS:
        place = last.position.get(kind.value, {}) if last else {}
        since = place.get("since", "")
        if "mark" in place and since > (day - ANEW).isoformat():
            position[kind.value] = {"after": place["mark"], "mark": place["mark"], "since": since}
        else:
            position[kind.value] = {"since": day.isoformat()}
    run, _made = PruneRun.objects.get_or_create(
        day=day, defaults={"started_at": now, "position": position}
    )
    return run


def take(run: PruneRun, *, now: datetime) -> PruneRun | None:
    """A daily run, for the caller alone until the lease ends. None: it has ended, or somebody is at it."""
    free = Q(lease_until__isnull=True) | Q(lease_until__lte=now)
    until = now + timedelta(seconds=LEASE_S)
    mine = PruneRun.objects.filter(free, pk=run.pk, ended_at__isnull=True).update(lease_until=until)
    return PruneRun.objects.get(pk=run.pk) if mine else None


def let_go(run: PruneRun) -> None:
    PruneRun.objects.filter(pk=run.pk, ended_at__isnull=True).update(lease_until=None)


def step(run: PruneRun, kind: Kind, wish: Wish, *, most: int = SLICE) -> Slice:
    """The next slice of a kind, and the run's account of it, in one transaction. Of files the account comes after: a killed
    run may have removed a slice more than it says."""
    if kind is Kind.FILES:
        return _note(run, kind, _files(wish, _place(run, kind), most))
    with transaction.atomic():
        return _note(run, kind, _STEPS[kind](wish, _place(run, kind), most))


def _place(run: PruneRun, kind: Kind) -> int:
    return int(run.position.get(kind.value, {}).get("after", 0))


def _note(run: PruneRun, kind: Kind, told: Slice) -> Slice:
    place, began = run.position.get(kind.value, {}), _place(run, kind)
    # It stays where the first young one stood.
    mark = (
        {"mark": told.mark} if told.mark is not None and place.get("mark", began) == began else {}
    )
    run.position[kind.value] = {**place, **mark, "after": told.after, "over": told.over}
    run.removed[kind.value] = run.removed.get(kind.value, 0) + told.removed
    run.save(update_fields=["position", "removed"])
    return told


def end(run: PruneRun, *, now: datetime) -> None:
    run.ended_at, run.lease_until = now, None
    run.save(update_fields=["ended_at", "lease_until"])
