"""statement: a provider's history, read to its end over HTTP, and what it says about our sends.

Read piece by piece (a day of one account each); after each piece what was read is kept in the row, so that another process
can go on. Our own rows are read last: an id that arrived meanwhile is known by then.
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from django.conf import settings
from django.db.models import Q
from django_q.tasks import async_task

from jobs import statement as rules
from jobs.clock import clock
from jobs.lifecycle import statement as lifecycle
from jobs.models import ProviderTask
from jobs.models import Statement as StatementRow
from jobs.statement import Missing, Ours, Source, Statement, Theirs, Told, Unreadable
from jobs.states import TaskState
from providers import asking, registry
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Call,
    Charge,
    HistoryItem,
    HistoryPage,
    Named,
)
from providers.http import Transport
from providers.models import Account as AccountRow

WORK = "jobs.stages.statement.work"
# Of a worker, which it shares with the minute's ring and the sender of alerts.
SLICE_S = 10.0
KEEP_EVERY_S = 2.0
DEADLINE_S = 20.0
# A page that can't be read is asked for again after so long; then the account counts as not read to its end.
AGAIN_AFTER_S = (0.5, 1.0, 2.0, 4.0, 8.0)
MOST_PAGES = 10_000  # of one piece
MOST_RECEIPTS = 1000
AT_ONCE = 8
_NO_KEY = "no key"


@dataclass(frozen=True, slots=True)
class Unread:
    """Why a page or a receipt told nothing."""

    why: str


def start(statement_id: int) -> None:
    """Have a worker do it, once the caller's transaction is committed."""
    async_task(WORK, statement_id)


def work(statement_id: int) -> str:
    """django-q2's entry point: one slice, then a message for the next."""
    # A piece, then the receipts, each with a last call that takes its deadline: all of it below the queue's timeout.
    piece_s = max((settings.Q_CLUSTER["timeout"] - SLICE_S) / 2 - DEADLINE_S - 5.0, 5.0)
    if run(statement_id, for_s=SLICE_S, piece_s=piece_s):
        start(statement_id)
        return "going on"
    return "done"


def run(statement_id: int, *, for_s: float, piece_s: float = math.inf) -> bool:
    """Read for so long. True: there is more to read. False: it is at its end, or somebody else is at it.

    A piece that takes longer than `piece_s` counts as one that could not be read.
    """
    claim = uuid.uuid4()
    row = lifecycle.take(statement_id=statement_id, claim=claim, now=clock.now())
    if row is None:
        return False
    try:
        reading = _Reading(row, claim, until=time.monotonic() + for_s, piece_s=piece_s)
        if not reading.read():
            return StatementRow.objects.filter(
                pk=statement_id, state=StatementRow.State.READING
            ).exists()
        reading.finish()
    except registry.UnknownProviderError as error:
        lifecycle.fail(statement_id=statement_id, claim=claim, why=str(error), now=clock.now())
    finally:
        lifecycle.let_go(statement_id=statement_id, claim=claim)
    return False


class _Reading:
    """One slice. `kept`, as it stands in the row: {"items": {account: [[id, made, model, status, echo, cost], …]},
    "read_at": {account: when}, "unread": {account: why}, "accounts": [id, …]}; accounts by their row's id as text, as JSON has it."""

    def __init__(
        self, row: StatementRow, claim: uuid.UUID, *, until: float, piece_s: float
    ) -> None:
        self.row, self.claim, self.until, self.piece_s = row, claim, until, piece_s
        self.adapter = registry.adapter(row.provider)
        kept = row.kept or {}
        self.items: dict[str, dict[str, list[Any]]] = {
            account: {line[0]: line for line in lines}
            for account, lines in kept.get("items", {}).items()
        }
        self.read_at: dict[str, str] = kept.get("read_at", {})
        self.unread: dict[str, str] = kept.get("unread", {})
        # Chosen once: the pieces are counted off over them, whatever keys come and go meanwhile.
        chosen = kept.get("accounts")
        self.accounts = (
            list(AccountRow.objects.filter(pk__in=chosen).order_by("pk"))
            if chosen
            else lifecycle.accounts(
                provider=row.provider, account_id=row.account_id, since=row.since, until=row.until
            )
        )

    # --- the history ---

    def read(self) -> bool:
        """True: to the end. False: this slice's time is over, or the reading is another's."""
        windows = rules.windows(self.row.since, self.row.until)
        pieces = [(account, window) for account in self.accounts for window in windows]
        kept_at = time.monotonic()
        for number in range(self.row.cursor, len(pieces)):
            if time.monotonic() >= self.until:
                self._keep(number)
                return False
            self._piece(*pieces[number])
            # Not after each: what is kept is written as a whole.
            if time.monotonic() - kept_at >= KEEP_EVERY_S:
                if not self._keep(number + 1):
                    return False
                kept_at = time.monotonic()
        return self._keep(len(pieces))

    def _piece(self, account: AccountRow, window: tuple[datetime, datetime]) -> None:
        key = str(account.pk)
        self.read_at.setdefault(key, clock.now().isoformat())
        if key in self.unread:
            return
        reached = registry.reached(account.provider, account.fingerprint)
        if reached is None:
            self.unread[key] = _NO_KEY
            return
        got = async_to_sync(_listing)(
            self.adapter, reached, window, until=time.monotonic() + self.piece_s
        )
        if isinstance(got, Unread):
            self.unread[key] = got.why
            return
        lines = self.items.setdefault(key, {})
        for item in got:
            known = lines.get(item.provider_id)
            if known is None or item.status != known[3]:
                lines[item.provider_id] = _line(item)

    def _keep(self, cursor: int) -> bool:
        kept = {
            "accounts": [account.pk for account in self.accounts],
            "items": {account: list(lines.values()) for account, lines in self.items.items()},
            "read_at": self.read_at,
            "unread": self.unread,
        }
        seen = sum(len(lines) for lines in self.items.values())
        return lifecycle.keep(
            statement_id=self.row.pk, claim=self.claim, cursor=cursor, kept=kept, seen=seen, now=clock.now()
        )  # fmt: skip

    # --- what it says ---

    def finish(self) -> None:
        """Our rows, single receipts where they settle something, the findings, and their cases."""
        now = clock.now()
        if all(str(account.pk) in self.unread for account in self.accounts):
            why = "; ".join(sorted(set(self.unread.values()))) or "no account"
            lifecycle.fail(statement_id=self.row.pk, claim=self.claim, why=why, now=now)
            return
        theirs = [
            Theirs(item=_item(line), account_id=int(account))
            for account, lines in self.items.items()
            for line in lines.values()
        ]
        sources = [self._source(account) for account in self.accounts]
        settled = lifecycle.settled(adapter_name=self.adapter.name)
        receipts: dict[str, Told] = {}

        def reckon() -> Statement:
            ours = _ours(self.row, self.adapter, theirs)
            return rules.reckon(
                ours=ours, theirs=theirs, sources=sources, since=self.row.since, until=self.row.until,
                retention_s=self.adapter.retention_s, currency=self.adapter.currency, zone=ZoneInfo(settings.TIME_ZONE),
                post_s=settings.POST_DEADLINE_SEC, receipts=receipts, settled=settled,
            )  # fmt: skip

        statement = reckon()
        receipts |= self._receipts(statement)
        if receipts:
            statement = reckon()
        read_at = min(source.read_at for source in sources)
        lifecycle.store(
            statement_id=self.row.pk, claim=self.claim, told=_told(self, statement, sources), findings=statement.findings,
            read_at=read_at, now=clock.now(),
        )  # fmt: skip

    def _source(self, account: AccountRow) -> Source:
        key = str(account.pk)
        return Source(
            account_id=account.pk,
            readable=self.unread.get(key) != _NO_KEY,
            complete=key not in self.unread,
            read_at=datetime.fromisoformat(self.read_at[key]),
            lag_s=account.history_lag_s,
            echoes=account.echoes_id,
        )

    def _receipts(self, statement: Statement) -> dict[str, Told]:
        wanted = rules.to_ask(statement)
        account_of = {one.provider_id: one.account_id for one in statement.findings}
        accounts = {
            account.pk: registry.reached(account.provider, account.fingerprint)
            for account in self.accounts
        }
        asked = [(one, accounts.get(account_of[one])) for one in wanted[:MOST_RECEIPTS]]
        told = async_to_sync(_receipts)(self.adapter, asked, until=time.monotonic() + self.piece_s)
        return told | {one: Unreadable() for one in wanted[MOST_RECEIPTS:]}


def _told(reading: _Reading, statement: Statement, sources: Sequence[Source]) -> dict[str, Any]:
    by_id = {source.account_id: source for source in sources}
    return rules.plain(
        statement,
        accounts={account.pk: str(account) for account in reading.accounts},
        provider=reading.row.provider,
        zone=settings.TIME_ZONE,
        currency=settings.CURRENCY,
        rates=settings.CURRENCY_RATES,
    ) | {
        "accounts": [
            {
                "id": account.pk, "name": str(account), "label": account.label, "exclusive": account.exclusive,
                "echoes_id": account.echoes_id, "history_lag_s": account.history_lag_s,
                "read_at": by_id[account.pk].read_at.isoformat(), "unread": reading.unread.get(str(account.pk), ""),
                "listed": len(reading.items.get(str(account.pk), {})),
            }
            for account in reading.accounts
        ],
    }  # fmt: skip


# --- our rows ---------------------------------------------------------------------------------------------------------

_COLUMNS = (
    "pk", "job_id", "tenant__slug", "account_id", "target__model", "state", "charge", "armed_at", "accepted_at",
    "call_deadline_s", "provider_id", "cost_receipt", "cost_poll", "cost_answer", "cost_staff", "staff_charge",
    "estimated_cost", "currency",
)  # fmt: skip


def _ours(row: StatementRow, adapter: Adapter, theirs: Sequence[Theirs]) -> list[Ours]:
    """Sends of the period, those near its edges, and whatever the listed ids lead to, under any key of this provider."""
    skew = timedelta(seconds=rules.CLOCK_SKEW_S)
    tasks = ProviderTask.objects.filter(armed_at__isnull=False)
    period = Q(account__provider=row.provider, armed_at__gte=row.since - skew, armed_at__lt=row.until + skew)  # fmt: skip
    if row.account_id is not None:
        period &= Q(account_id=row.account_id)
    found = {ours.task_id: ours for ours in _rows(tasks.filter(period))}
    known = {ours.provider_id for ours in found.values()}
    ids = [one.item.provider_id for one in theirs if one.item.provider_id not in known]
    echoes = [uuid_ for one in theirs if (uuid_ := _uuid(one.item.correlation_id)) and uuid_ not in found]  # fmt: skip
    for start in range(0, max(len(ids), len(echoes)), 5000):
        some = Q(provider_id__in=ids[start : start + 5000], account__provider__in=registry.same(row.provider))  # fmt: skip
        some |= Q(pk__in=echoes[start : start + 5000])
        found |= {ours.task_id: ours for ours in _rows(tasks.filter(some))}
    return list(found.values())


def _rows(tasks: Any) -> list[Ours]:
    found = []
    for (
        pk, job_id, tenant, account_id, model, state, charge, armed_at, accepted_at, deadline_s, provider_id, receipt,
        poll, answer, staff, staff_charge, estimated, currency,
    ) in tasks.order_by().values_list(*_COLUMNS).iterator(chunk_size=5000):  # fmt: skip
        cost = next((one for one in (receipt, poll, answer) if one is not None), None)
        found.append(
            Ours(
                task_id=pk, job_id=job_id, tenant=tenant, account_id=account_id, model=model, state=TaskState(state),
                charge=Charge(charge), armed_at=armed_at, accepted_at=accepted_at, deadline_s=deadline_s or 0.0,
                provider_id=provider_id, cost=cost, cost_staff=staff, staff_charge=staff_charge or "",
                estimated=estimated, currency=currency,
            )
        )  # fmt: skip
    return found


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


# --- over HTTP --------------------------------------------------------------------------------------------------------


async def _listing(
    adapter: Adapter, account: Account, window: tuple[datetime, datetime], *, until: float
) -> list[HistoryItem] | Unread:
    """All pages of a piece, or why not. A page that can't be read proves nothing about the others' completeness."""
    items: dict[str, HistoryItem] = {}
    page = pages = 1
    async with Transport() as transport:
        while page <= pages:
            if page > MOST_PAGES:
                return Unread(f"more than {MOST_PAGES} pages in a day")
            call = adapter.history(account, since=window[0], until=window[1], page=page)
            if call is None:
                return Unread("this provider has no history")
            if time.monotonic() >= until:
                return Unread(f"a day has too many pages for a worker ({pages}): use the command")
            read = await _page(transport, adapter, account, call, until=until)
            if isinstance(read, Unread):
                return read
            if page > 1 and not read.items and page < read.pages:
                return Unread(f"page {page} of {read.pages} came empty")
            items |= {item.provider_id: item for item in read.items}
            page, pages = page + 1, read.pages
    return list(items.values())


async def _page(
    transport: Transport, adapter: Adapter, account: Account, call: Call, *, until: float
) -> HistoryPage | Unread:
    why = ""
    for wait_s in (*AGAIN_AFTER_S, None):
        answer = await asking.read(
            transport, adapter, account, call, deadline_s=DEADLINE_S, retries=2
        )
        if isinstance(answer, Answer):
            try:
                return adapter.read_history(answer)
            except ValueError as error:
                why = str(error)
            if answer.status in {401, 403}:
                break
        else:
            why = answer.reason
        if wait_s is None or time.monotonic() + wait_s >= until:
            break
        await asyncio.sleep(wait_s)
    return Unread(why)


async def _receipts(
    adapter: Adapter, asked: Sequence[tuple[str, Account | None]], *, until: float
) -> dict[str, Told]:
    room = asyncio.Semaphore(AT_ONCE)
    async with Transport() as transport:

        async def one(provider_id: str, account: Account | None) -> tuple[str, Told]:
            async with room:
                return provider_id, await _receipt(
                    transport, adapter, account, provider_id, until=until
                )

        return dict(await asyncio.gather(*(one(*pair) for pair in asked)))


async def _receipt(
    transport: Transport,
    adapter: Adapter,
    account: Account | None,
    provider_id: str,
    *,
    until: float,
) -> Told:
    call = adapter.receipt(account, Named(provider_id)) if account is not None else None
    if call is None or account is None or time.monotonic() >= until:
        return Unreadable()
    for wait_s in (*AGAIN_AFTER_S[:3], None):
        answer = await asking.read(
            transport, adapter, account, call, deadline_s=DEADLINE_S, retries=2
        )
        if isinstance(answer, Answer):
            # Only the provider's own words say that it does not know an id, not a page in between.
            if answer.status == 404 and answer.body.lstrip().startswith(b"{"):
                return Missing()
            try:
                return adapter.read_receipt(answer)
            except ValueError:
                if answer.status in {401, 403}:
                    break
        if wait_s is None or time.monotonic() + wait_s >= until:
            break
        await asyncio.sleep(wait_s)
    return Unreadable()


# --- what was read, as it is kept ---------------------------------------------------------------------------------------


def _line(item: HistoryItem) -> list[Any]:
    return [
        item.provider_id, item.created_at.isoformat() if item.created_at else None, item.model, item.status,
        item.correlation_id, str(item.cost) if item.cost is not None else None,
    ]  # fmt: skip


def _item(line: Sequence[Any]) -> HistoryItem:
    provider_id, made, model, status, echo, cost = line
    return HistoryItem(
        provider_id=provider_id, created_at=datetime.fromisoformat(made) if made else None, model=model, status=status,
        correlation_id=echo, cost=Decimal(cost) if cost is not None else None,
    )  # fmt: skip
