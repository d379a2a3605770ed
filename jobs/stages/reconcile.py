"""reconcile: unknown sends, rows of dead lanes, undecided facts, failed verdicts without a receipt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q

from jobs import answers, evidence, lanes
from jobs.evidence import Finding, Listing, LostSend
from jobs.lane import LaneContext
from jobs.lifecycle import claim, recover
from jobs.lifecycle.record import Fact
from jobs.models import ProviderTask, SpoolHost
from jobs.rules import RECEIPT_EVERY_S
from jobs.states import TaskState
from providers import asking, registry
from providers.contract import Answer, HistoryItem
from providers.models import Account

DEADLINE_S = 30.0
LEASE_S = 75.0
MAX_PAGES = 200
RECEIPTS_FOR_S = 3600.0
# What was concluded to have cost nothing is looked at once more: a provider may take a request up, or charge, late.
RECHECK_AFTER_S = 3600.0


def sweep(lane: LaneContext) -> set[int]:
    """In the database thread; returns jobs that need a decision."""
    now = lane.clock.now()
    live = lanes.live_runs(now) | {lane.run_id}
    recover.count_deaths(live=live, now=now)
    return (
        recover.withdraw_dead_intents(live=live, now=now)
        | recover.declare_lost(now=now)
        | recover.undecided_jobs(now=now)
        | recover.overdue_jobs(now=now)
    )


# --- unknown sends ----------------------------------------------------------------------------------------------------


def claim_looks(lane: LaneContext, room: int) -> list[tuple[str, list[LostSend]]]:
    """Lost sends that are due, with what bounds each one's window: those of a provider that one listing may serve."""
    now = lane.clock.now()
    rows = claim.claim_due(
        column="next_look_at", run_id=lane.run_id, room=room, lease_s=LEASE_S, now=now
    )
    by_provider: dict[str, list[LostSend]] = defaultdict(list)
    for task in rows:
        # The history of another key proves nothing about this send: no listing, and the case opens in time.
        provider = task.account.provider
        mine = task.account_id == lane.account_ids.get(provider)
        by_provider[provider if mine else ""].append(_lost_send(lane, task, now))
    return [
        (name, group) for name, sends in by_provider.items() for group in evidence.together(sends)
    ]


def _lost_send(lane: LaneContext, task: ProviderTask, now: datetime) -> LostSend:
    assert task.armed_at is not None and task.send_not_after is not None  # noqa: PT018  armed, by constraint
    clear = SpoolHost.objects.filter(host=task.host).filter(
        Q(clear_at__gt=task.lost_at or now) | Q(declared_lost_at__isnull=False)
    )
    return LostSend(
        task_id=task.pk,
        model=task.target.model,
        armed_at=task.armed_at,
        send_not_after=task.send_not_after,
        deadline_s=task.call_deadline_s or 0.0,
        absent_seen_at=task.absent_seen_at,
        spool_clear=not answers.is_left(task.pk) if task.host == lane.host else clear.exists(),
        concluded=task.absent_at is not None,
    )


async def look(lane: LaneContext, provider: str, sends: Sequence[LostSend]) -> list[Fact]:
    """One listing for all lost sends of an account, and what it proves about each."""
    at = await lane.now()
    listing = await _listing(lane, provider, sends, at=at)
    facts = []
    for send in sends:
        due = at + timedelta(seconds=_look_interval_s(send, at, lane.limits.reconcile_interval_s))
        base: dict[str, Any] = {"task_id": send.task_id, "at": at, "looked": True}
        if listing is None:
            facts.append(
                Fact(
                    **base,
                    kind="",
                    decides=True,
                    next_look_at=due,
                    absent_seen=send.absent_seen_at is not None,
                )
            )
            continue
        told = evidence.judge(send, listing)
        if told.finding is Finding.FOUND:
            facts.append(
                Fact(
                    **base, kind="found", decides=True, provider_id=told.provider_id, next_poll_at=at,
                    data={"provider_id": told.provider_id},
                )
            )  # fmt: skip
        elif send.concluded:
            facts.append(Fact(**base, kind=""))  # still absent: nobody looks again
        elif told.finding is Finding.ABSENT:
            again = at + timedelta(seconds=RECHECK_AFTER_S)
            facts.append(Fact(**base, kind="absent", decides=True, absent=True, next_look_at=again))
        else:
            facts.append(
                Fact(
                    **base, kind="", decides=True, next_look_at=due,
                    absent_seen=told.finding is Finding.ABSENT_ONCE, candidates=[_plain(c) for c in told.candidates[:20]],
                )
            )  # fmt: skip
    return facts


def _look_interval_s(send: LostSend, at: datetime, interval_s: float) -> float:
    age_s = (at - send.armed_at).total_seconds()
    return min(max(interval_s, age_s / 100), 3600.0)


def _plain(item: HistoryItem) -> dict[str, str]:
    return {
        "id": item.provider_id,
        "created_at": item.created_at.isoformat() if item.created_at else "",
        "model": item.model,
        "status": item.status,
        "cost": str(item.cost) if item.cost is not None else "",
    }


async def _listing(
    lane: LaneContext, provider: str, sends: Sequence[LostSend], *, at: datetime
) -> Listing | None:
    """All pages, or None: no such call, or not read to the end. A page that can't be read proves nothing."""
    account = lane.accounts.get(provider)
    if account is None:
        return None
    adapter = registry.adapter(provider)
    facts_of_account = await lane.db(Account.objects.get, pk=lane.account_ids[provider])
    windows = [evidence.window(send, lag_s=facts_of_account.history_lag_s) for send in sends]
    since, until = min(w[0] for w in windows), max(at, *(w[1] for w in windows))
    items: dict[str, HistoryItem] = {}
    page = pages = 1
    while page <= pages:
        call = adapter.history(account, since=since, until=until, page=page)
        if call is None or page > MAX_PAGES:
            return None
        answer = await asking.read(
            lane.transport, adapter, account, call, deadline_s=DEADLINE_S, retries=2
        )
        if not isinstance(answer, Answer):
            return None
        try:
            read = adapter.read_history(answer)
        except ValueError:
            return None
        items |= {item.provider_id: item for item in read.items}
        page, pages = page + 1, read.pages
    linked, unsettled = await lane.db(_ours, facts_of_account.pk, since - _LONG_BEFORE)
    return Listing(
        items=tuple(items.values()),
        read_at=at,
        linked=linked,
        unsettled=unsettled,
        echoes=facts_of_account.echoes_id,
        lag_s=facts_of_account.history_lag_s,
        exclusive=facts_of_account.exclusive,
    )


# What the listing shows was made after this, by our clock and theirs; older rows have nothing to do with it.
_LONG_BEFORE = timedelta(days=1)


def _ours(account_id: int, since: datetime) -> tuple[dict[str, datetime], dict[UUID, datetime]]:
    """When the sends were armed whose id is known, and those of which it may still come. In one statement: none is between."""
    armed = ProviderTask.objects.filter(account_id=account_id, armed_at__gte=since)
    wanted = armed.filter(
        Q(provider_id__isnull=False) | Q(state__in=[TaskState.SENDING, TaskState.UNKNOWN])
    )
    linked: dict[str, datetime] = {}
    unsettled: dict[UUID, datetime] = {}
    for pk, provider_id, armed_at in wanted.values_list("pk", "provider_id", "armed_at"):
        assert armed_at is not None
        if provider_id is not None:
            linked[provider_id] = armed_at
        else:
            unsettled[pk] = armed_at
    return linked, unsettled


# --- receipts ---------------------------------------------------------------------------------------------------------


def claim_receipts(lane: LaneContext, room: int) -> list[ProviderTask]:
    return claim.claim_due(
        column="next_receipt_at",
        run_id=lane.run_id,
        room=room,
        lease_s=LEASE_S,
        now=lane.clock.now(),
    )


async def receipt(lane: LaneContext, task: ProviderTask) -> Fact:
    """What a failed verdict cost. Every 30 s for an hour; once more an hour after it was found free."""
    provider = task.account.provider
    adapter, account = registry.adapter(provider), lane.accounts.get(provider)
    at = await lane.now()
    base: dict[str, Any] = {"task_id": task.pk, "at": at, "receipt_looked": True}
    last_chance = (task.failed_at or at) + timedelta(seconds=RECEIPTS_FOR_S)
    again = at + timedelta(seconds=RECEIPT_EVERY_S)
    call = None
    if account is not None and task.provider_id is not None:
        call = adapter.receipt(account, task.named)
    if call is None or account is None:
        return Fact(**base, kind="no_receipt", decides=True, receipts_end_at=at)
    answer = await asking.read(
        lane.transport, adapter, account, call, deadline_s=DEADLINE_S, retries=1
    )
    read = None
    if isinstance(answer, Answer):
        try:
            read = adapter.read_receipt(answer)
        except ValueError:
            read = None
    if read is not None and read.final and read.cost is not None:
        recheck = task.receipt_final_at is None and read.cost == 0
        return Fact(
            **base, kind="receipt", decides=True, receipt_final=True, cost_receipt=read.cost, receipts_end_at=at,
            next_receipt_at=at + timedelta(seconds=RECHECK_AFTER_S) if recheck else None, data={"cost": str(read.cost)},
        )  # fmt: skip
    if at >= last_chance:
        return Fact(**base, kind="no_receipt", decides=True, receipts_end_at=at)
    return Fact(**base, kind="", next_receipt_at=again)
