"""A statement: our sends against what the provider's own history and receipts tell. Pure.

Presence is evidence whenever it is seen; absence only where the listing was read to its end with the key of the send, after
the provider's lag, within its retention, and shows other sends of ours. What can't be judged is named so, never guessed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, tzinfo
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from statistics import median
from typing import Any
from uuid import UUID

from jobs.states import TaskState
from providers.contract import Charge, HistoryItem, Receipt

CENT = Decimal("0.01")
CLOCK_SKEW_S = 120.0
MARGIN_S = 10.0
# Beyond the deadline of a POST that is under way when the listing is read: its fence, and writing its id down.
UNDER_WAY_S = 30.0
# Where nobody has measured how late the provider lists, absence is told only of what is older than this.
UNMEASURED_LAG_S = 3600.0
# A word that we don't know means "still running", as in polling.
_FINAL = frozenset({"completed", "failed", "cancelled"})


class Kind(StrEnum):
    """What a statement says of one line. The first four are discrepancies, the others say what was not judged."""

    ORPHAN = "orphan"  # charged there, unknown to us
    UNKNOWN_THERE = "unknown_there"  # ours, and the provider does not know it
    COST = "cost"  # known to both, at different prices
    FAILED_CHARGED = "failed_charged"  # failed, and charged all the same

    UNLINKED = "unlinked"  # theirs carries our id, ours has not learned theirs yet
    MAYBE = "maybe"  # unknown to us, but may be a lost send of ours
    CANT_TELL = "cant_tell"  # ours without an id, and no evidence
    TOO_YOUNG = "too_young"  # the listing may not show it yet
    NOT_KEPT = "not_kept"  # older than the provider keeps
    OTHER_KEY = "other_key"  # sent with a key whose history can't be read any more
    UNREAD = "unread"  # the listing or the receipt could not be read
    RUNNING = "running"  # unknown to us and not finished there
    FREE = "free"  # unknown to us, and cost nothing
    UNPRICED = "unpriced"  # known to both, and one of them does not tell the price


# Kept in a row; beyond it something is wrong as a whole, and a shorter period tells more.
MOST_FINDINGS = 5000
DISCREPANCIES = (Kind.ORPHAN, Kind.UNKNOWN_THERE, Kind.COST, Kind.FAILED_CHARGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A send of ours that was armed. `cost`: the machine's own knowledge (receipt, poll, answer); `cost_staff`: a person's."""

    task_id: UUID
    job_id: int
    tenant: str
    account_id: int
    model: str
    state: TaskState
    charge: Charge
    armed_at: datetime
    accepted_at: datetime | None
    deadline_s: float
    provider_id: str | None
    cost: Decimal | None
    cost_staff: Decimal | None
    staff_charge: str
    estimated: Decimal
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """A generation in the history of one of our accounts."""

    item: HistoryItem
    account_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was read of one account. `read_at`: before its first page. `readable` False: its key is not set any more.
    `complete` False: not read to the end. `echoes`, `lag_s`: as measured, None where not."""

    account_id: int
    readable: bool
    complete: bool
    read_at: datetime
    lag_s: float | None
    echoes: bool | None


@dataclass(frozen=True, slots=True)
class Missing:
    """The provider says that it does not know this id."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Asked for by its id, without an answer that tells anything."""


Told = Receipt | Missing | Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. `at`: when it was sent, or made there. `settled`: how a person has settled it, "" for not yet."""

    kind: Kind
    at: datetime | None
    account_id: int
    model: str
    currency: str
    provider_id: str = ""
    task_id: UUID | None = None
    job_id: int | None = None
    tenant: str = ""
    ours: Decimal | None = None
    theirs: Decimal | None = None
    status: str = ""
    correlation_id: str = ""
    settled: str = ""
    maybe: tuple[int, ...] = ()  # jobs whose lost send it may be


@dataclass(slots=True, kw_only=True)
class Total:
    """Money of one currency. By our books, each send in one of the first five; `theirs` by the provider's, of the same
    sends; `unknown` of what no send of ours belongs to."""

    sends: int = 0
    charged: Decimal = Decimal(0)
    unpriced: Decimal = Decimal(0)  # charged, at a price nobody told: the estimate
    possible: Decimal = Decimal(0)  # may have been charged: the cost, else the estimate
    refunded: Decimal = Decimal(0)
    written_off: Decimal = Decimal(0)
    theirs: Decimal = Decimal(0)
    unknown: Decimal = Decimal(0)

    def add(self, other: Total) -> None:
        for name in Total.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


MONEY = ("charged", "unpriced", "possible", "refunded", "written_off", "theirs", "unknown")
# (day or month, tenant, account id, currency); the tenant of what is unknown to us is "".
Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """`matched`: sends that both know, and agree about. `skew_s`: how far their clock seems ahead of ours."""

    findings: tuple[Finding, ...]
    matched: int
    days: Mapping[Key, Total]
    skew_s: float | None

    @property
    def months(self) -> dict[Key, Total]:
        found: dict[Key, Total] = defaultdict(Total)
        for (day, tenant, account_id, currency), total in self.days.items():
            found[day[:7], tenant, account_id, currency].add(total)
        return dict(found)

    @property
    def open(self) -> list[Finding]:
        """Discrepancies that nobody has settled."""
        return [one for one in self.findings if one.kind in DISCREPANCIES and not one.settled]

    def counts(self) -> Counter[Kind]:
        return Counter(one.kind for one in self.findings)


@dataclass(slots=True, kw_only=True)
class _Work:
    since: datetime
    until: datetime
    sources: Mapping[int, Source]
    receipts: Mapping[str, Told]
    settled: Mapping[str, str]
    retention_s: float
    post_s: float
    zone: tzinfo
    findings: list[Finding] = field(default_factory=list)
    days: dict[Key, Total] = field(default_factory=lambda: defaultdict(Total))
    matched: int = 0
    offsets: list[float] = field(default_factory=list)
    shown: set[int] = field(default_factory=set)  # accounts whose history shows sends of ours

    def inside(self, at: datetime) -> bool:
        return self.since <= at < self.until


def reckon(
    *,
    ours: Iterable[Ours],
    theirs: Iterable[Theirs],
    sources: Iterable[Source],
    since: datetime,
    until: datetime,
    retention_s: float,
    currency: str,
    zone: tzinfo,
    post_s: float = 30.0,
    receipts: Mapping[str, Told] | None = None,
    settled: Mapping[str, str] | None = None,
) -> Statement:
    """Each send of ours armed, and each generation of theirs made, from `since` until before `until`.

    `ours` holds them all, and whatever else the ids in `theirs` lead to; it must have been read after `theirs`, else an id
    that arrived between would be unknown. `receipts`: answers about single ids (`to_ask` says which are worth asking for).
    `post_s`: how long a POST may take. `settled`: what people have decided about generations that were unknown to us, by provider id.
    """
    work = _Work(
        since=since, until=until, sources={one.account_id: one for one in sources}, receipts=receipts or {},
        settled=settled or {}, retention_s=retention_s, post_s=post_s, zone=zone,
    )  # fmt: skip
    sends = sorted(ours, key=lambda one: (one.armed_at, str(one.task_id)))
    pairs, alone = _pair(sends, theirs)
    work.shown = {one.account_id for one in pairs.values()}
    for one in sends:
        if work.inside(one.armed_at):
            _send(work, one, pairs.get(one.task_id))
    lost = [
        one
        for one in sends
        if one.provider_id is None
        and one.task_id not in pairs
        and one.state in {TaskState.SENDING, TaskState.UNKNOWN}
    ]
    by_task = {one.task_id: one for one in sends}
    for them in alone:
        _unknown(work, them, lost=lost, by_task=by_task, currency=currency)
    return Statement(
        findings=tuple(sorted(work.findings, key=_order)),
        matched=work.matched,
        days=dict(work.days),
        skew_s=round(median(work.offsets), 1) if work.offsets else None,
    )


def to_ask(statement: Statement) -> list[str]:
    """Ids whose receipt would settle a line: those the listing does not show, and those without a price."""
    wanted = {Kind.UNKNOWN_THERE, Kind.UNPRICED, Kind.ORPHAN}
    return list(
        dict.fromkeys(
            one.provider_id
            for one in statement.findings
            if one.kind in wanted
            and one.provider_id
            and (one.kind is Kind.UNKNOWN_THERE or one.theirs is None)
        )
    )


def _order(one: Finding) -> tuple[int, bool, float, str, str]:
    kinds = list(Kind)
    stamp = one.at.timestamp() if one.at is not None else 0.0
    return kinds.index(one.kind), bool(one.settled), -stamp, one.provider_id, str(one.task_id)


# --- pairing ----------------------------------------------------------------------------------------------------------


def _pair(
    sends: Sequence[Ours], theirs: Iterable[Theirs]
) -> tuple[dict[UUID, Theirs], list[Theirs]]:
    """Each send's generation, and the generations without a send. Ids are the proof; an echo where ours has no id yet."""
    by_id: dict[str, list[Ours]] = defaultdict(list)
    for one in sends:
        if one.provider_id is not None:
            by_id[one.provider_id].append(one)
    without_id = {one.task_id: one for one in sends if one.provider_id is None}
    # The same generation in two listings (pages that moved, two keys of one user) is one.
    distinct: dict[str, Theirs] = {}
    for them in theirs:
        known = distinct.get(them.item.provider_id)
        if known is None or (_finality(them) > _finality(known)):
            distinct[them.item.provider_id] = them
    pairs: dict[UUID, Theirs] = {}
    alone: list[Theirs] = []
    for them in sorted(distinct.values(), key=lambda one: one.item.provider_id):
        candidates = by_id.get(them.item.provider_id, [])
        own = [one for one in candidates if one.account_id == them.account_id] or candidates
        if own:
            pairs |= {one.task_id: them for one in own}
            continue
        echoed = _uuid(them.item.correlation_id)
        if echoed is not None and echoed in without_id and echoed not in pairs:
            pairs[echoed] = them
        else:
            alone.append(them)
    return pairs, alone


def _finality(them: Theirs) -> bool:
    return _final(them.item)


def _final(item: HistoryItem) -> bool:
    return item.status in _FINAL


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


# --- a send of ours ---------------------------------------------------------------------------------------------------


def _send(work: _Work, one: Ours, them: Theirs | None) -> None:
    told = work.receipts.get(one.provider_id or "")
    total = _book(one)
    if them is None and isinstance(told, Receipt):
        # Not in the listing, but known by its id: listed late, or under another time than we asked for.
        item = HistoryItem(one.provider_id or "", None, one.model, told.status, cost=told.cost)
        them = Theirs(item=item, account_id=one.account_id)
    elif them is not None and them.item.cost is None and isinstance(told, Receipt):
        item = replace(them.item, cost=told.cost, status=told.status or them.item.status)
        them = replace(them, item=item)
    if them is None:
        finding = _not_shown(work, one)
    else:
        if them.item.created_at is not None:
            work.offsets.append((them.item.created_at - one.armed_at).total_seconds())
        if them.item.cost is not None and _finality(them):
            total.theirs = _rounded(them.item.cost)
        finding = _both(one, them)
    if finding is not None:
        work.findings.append(finding)
    if finding is None and them is not None:
        work.matched += 1
    if total.sends or total.theirs:
        work.days[_day(work, one.armed_at), one.tenant, one.account_id, one.currency].add(total)


def _book(one: Ours) -> Total:
    """Where the send's money stands by our books; nothing for one that cost nothing."""
    cost = one.cost_staff if one.cost_staff is not None else one.cost
    amount = cost if cost is not None else one.estimated
    match one.charge:
        case Charge.NONE:
            return Total()
        case Charge.POSSIBLE:
            return Total(sends=1, possible=amount)
        case Charge.REFUNDED:
            return Total(sends=1, refunded=amount)
        case Charge.WRITTEN_OFF:
            return Total(sends=1, written_off=amount)
        case Charge.CHARGED:
            return Total(sends=1, unpriced=amount) if cost is None else Total(sends=1, charged=cost)


def _of(one: Ours, kind: Kind, them: Theirs | None = None) -> Finding:
    cost = one.cost_staff if one.cost_staff is not None else one.cost
    return Finding(
        kind=kind,
        at=one.armed_at,
        account_id=one.account_id,
        model=one.model,
        currency=one.currency,
        provider_id=them.item.provider_id if them else one.provider_id or "",
        task_id=one.task_id,
        job_id=one.job_id,
        tenant=one.tenant,
        ours=Decimal(0) if one.charge is Charge.NONE and cost is None else cost,
        theirs=them.item.cost if them else None,
        status=them.item.status if them else "",
        correlation_id=them.item.correlation_id if them else "",
        settled=one.staff_charge,
    )


def _both(one: Ours, them: Theirs) -> Finding | None:
    """What two books say that both know the send. None: they agree, or it is not finished there."""
    cost = them.item.cost
    finished = _finality(them)
    if one.provider_id is None and one.charge is not Charge.NONE:
        return _of(one, Kind.UNLINKED, them)
    if not finished:
        return None
    if cost is None:
        return _of(one, Kind.UNPRICED, them)
    made = one.state in {TaskState.COMPLETED, TaskState.STORED}
    failed = one.state is TaskState.FAILED or (
        not made and them.item.status != "completed" and one.charge is not Charge.NONE
    )
    if failed and _rounded(cost) > 0:
        return _of(one, Kind.FAILED_CHARGED, them)
    if one.staff_charge in {Charge.REFUNDED, Charge.WRITTEN_OFF} and _rounded(cost) == 0:
        return None  # they took it back, and so do our books
    finding = _of(one, Kind.COST, them)
    if finding.ours is None:
        return None if failed else _of(one, Kind.UNPRICED, them)
    return finding if _rounded(finding.ours) != _rounded(cost) else None


def _not_shown(work: _Work, one: Ours) -> Finding | None:
    """What it means that the history does not show this send. None: nothing, as it cost nothing."""
    if one.charge is Charge.NONE:
        return None
    source = work.sources.get(one.account_id)
    if source is None or not source.readable:
        return _of(one, Kind.OTHER_KEY)
    if (source.read_at - one.armed_at).total_seconds() >= work.retention_s - CLOCK_SKEW_S:
        return _of(one, Kind.NOT_KEPT)
    if _young(one, source):
        return _of(one, Kind.TOO_YOUNG)
    if not source.complete or isinstance(work.receipts.get(one.provider_id or ""), Unreadable):
        return _of(one, Kind.UNREAD)
    # A history that shows nothing of ours at all is not ours, or blind: it proves no absence.
    proves = one.account_id in work.shown
    if one.provider_id is None:
        proves = proves and source.echoes is True and source.lag_s is not None
    return _of(one, Kind.UNKNOWN_THERE if proves else Kind.CANT_TELL)


def _young(one: Ours, source: Source) -> bool:
    """Both times are ours, so no clock of theirs comes in."""
    lag_s = UNMEASURED_LAG_S if source.lag_s is None else source.lag_s
    latest = one.accepted_at or one.armed_at + timedelta(seconds=one.deadline_s + MARGIN_S)
    # An id attached long after says nothing about when it was taken up.
    latest = min(latest, one.armed_at + timedelta(seconds=one.deadline_s + MARGIN_S))
    return source.read_at < latest + timedelta(seconds=lag_s + MARGIN_S)


# --- a generation without a send --------------------------------------------------------------------------------------


def _unknown(
    work: _Work,
    them: Theirs,
    *,
    lost: Sequence[Ours],
    by_task: Mapping[UUID, Ours],
    currency: str,
) -> None:
    item = them.item
    if item.created_at is not None and not work.inside(item.created_at):
        return
    told = work.receipts.get(item.provider_id)
    if item.cost is None and isinstance(told, Receipt):
        item = replace(item, cost=told.cost, status=told.status or item.status)
    source = work.sources[them.account_id]
    # A second generation of a send that has another id: paid twice for one request.
    echoed = _uuid(item.correlation_id)
    twin = by_task.get(echoed) if echoed is not None else None
    maybe = _maybe(item, them.account_id, lost, source)
    under_way = source.read_at - timedelta(seconds=work.post_s + UNDER_WAY_S + CLOCK_SKEW_S)
    settled = work.settled.get(item.provider_id, "")
    if not _final(item):
        kind = Kind.RUNNING
    elif item.cost is not None and _rounded(item.cost) == 0:
        kind = Kind.FREE
    elif settled or twin is not None:
        kind = Kind.ORPHAN
    elif item.created_at is not None and item.created_at > under_way:
        kind = Kind.TOO_YOUNG
    else:
        kind = Kind.MAYBE if maybe else Kind.ORPHAN
    work.findings.append(
        Finding(
            kind=kind, at=item.created_at, account_id=them.account_id, model=item.model, currency=currency,
            provider_id=item.provider_id, theirs=item.cost, status=item.status, correlation_id=item.correlation_id,
            job_id=twin.job_id if twin else None, task_id=twin.task_id if twin else None,
            tenant=twin.tenant if twin else "", settled=settled, maybe=maybe,
        )
    )  # fmt: skip
    if item.cost and _final(item):
        day = _day(work, item.created_at or source.read_at)
        work.days[day, "", them.account_id, currency].add(Total(unknown=_rounded(item.cost)))


def _maybe(
    item: HistoryItem, account_id: int, lost: Sequence[Ours], source: Source
) -> tuple[int, ...]:
    """Jobs whose lost send this may be: same account and model, made when that send may have arrived."""
    if source.echoes and item.correlation_id:
        return ()  # it says whose it is
    return tuple(
        one.job_id
        for one in lost
        if one.account_id == account_id
        and item.model in {one.model, ""}
        and may_be(item.created_at, armed_at=one.armed_at, deadline_s=one.deadline_s)
    )


def may_be(created_at: datetime | None, *, armed_at: datetime, deadline_s: float) -> bool:
    """Whether a generation made then may be of a send armed then, their clock not being ours."""
    if created_at is None:
        return True
    skew = timedelta(seconds=CLOCK_SKEW_S)
    return armed_at - skew <= created_at <= armed_at + timedelta(seconds=deadline_s + MARGIN_S) + skew  # fmt: skip


# --- money ------------------------------------------------------------------------------------------------------------


def _rounded(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, rounding=ROUND_HALF_UP)


def _day(work: _Work, at: datetime) -> str:
    return f"{at.astimezone(work.zone):%Y-%m-%d}"


def in_studio(amount: Decimal, rate: Decimal | None) -> Decimal | None:
    """The amount in the studio's currency; None where the owner has set no rate."""
    return None if rate is None else _rounded(amount * rate)


def windows(
    since: datetime, until: datetime, *, step: timedelta = timedelta(days=1)
) -> list[tuple[datetime, datetime]]:
    """What is asked of the history, piece by piece, with room for their clock at both ends."""
    skew = timedelta(seconds=CLOCK_SKEW_S)
    start, end = since - skew, until + skew
    found = []
    while start < end:
        found.append((start, min(start + step, end)))
        start += step
    return found


# --- as plain values --------------------------------------------------------------------------------------------------


def plain(
    statement: Statement,
    *,
    accounts: Mapping[int, str],
    provider: str,
    zone: str,
    currency: str,
    rates: Mapping[str, Decimal],
) -> dict[str, Any]:
    """For JSON: rows, pages and programs. Money as text; `rates` says what each currency used is worth in the studio's."""
    used = sorted({key[3] for key in statement.days} | {one.currency for one in statement.findings})
    return {
        "zone": zone,
        "currency": currency,
        "rates": {name: str(rates[name]) if name in rates else None for name in used},
        "matched": statement.matched,
        "skew_s": statement.skew_s,
        "counts": [_count(statement, kind) for kind in Kind],
        "findings": [_plain_finding(one, accounts) for one in statement.findings[:MOST_FINDINGS]],
        "left_off": max(len(statement.findings) - MOST_FINDINGS, 0),
        "days": _plain_totals(statement.days, accounts, provider, rates),
        "months": _plain_totals(statement.months, accounts, provider, rates),
    }


def _count(statement: Statement, kind: Kind) -> dict[str, Any]:
    found = [one for one in statement.findings if one.kind is kind]
    money: dict[str, Decimal] = defaultdict(Decimal)
    for one in found:
        if not one.settled:
            money[one.currency] += at_stake(one)
    return {
        "kind": kind,
        "discrepancy": kind in DISCREPANCIES,
        "count": len(found),
        "settled": sum(bool(one.settled) for one in found),
        "money": {name: text(amount) for name, amount in sorted(money.items()) if amount},
    }


def at_stake(one: Finding) -> Decimal:
    """The money a line is about: the difference where both tell a price, else the one that is told."""
    if one.kind is Kind.COST:
        return abs((one.ours or Decimal(0)) - (one.theirs or Decimal(0)))
    told = one.theirs if one.theirs is not None else one.ours
    return told if told is not None else Decimal(0)


def _plain_finding(one: Finding, accounts: Mapping[int, str]) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "at": one.at.isoformat() if one.at else None,
        "account": accounts.get(one.account_id, str(one.account_id)),
        "model": one.model,
        "provider_id": one.provider_id,
        "task": str(one.task_id) if one.task_id else None,
        "job": one.job_id,
        "tenant": one.tenant,
        "ours": None if one.ours is None else text(one.ours),
        "theirs": None if one.theirs is None else text(one.theirs),
        "currency": one.currency,
        "status": one.status,
        "carries": one.correlation_id,
        "settled": one.settled,
        "maybe": list(one.maybe),
    }


def _plain_totals(
    totals: Mapping[Key, Total],
    accounts: Mapping[int, str],
    provider: str,
    rates: Mapping[str, Decimal],
) -> list[dict[str, Any]]:
    rows = []
    for (period, tenant, account_id, currency), total in sorted(totals.items()):
        rate = rates.get(currency)
        row = {
            "period": period,
            "tenant": tenant,
            "provider": provider,
            "account": accounts.get(account_id, str(account_id)),
            "currency": currency,
            "rate": None if rate is None else text(rate),
            "sends": total.sends,
        }
        for name in MONEY:
            amount = getattr(total, name)
            row[name] = text(amount)
        paid = in_studio(total.charged + total.unpriced + total.written_off, rate)
        row["in_studio"] = None if paid is None else text(paid)
        rows.append(row)
    return rows


def text(amount: Decimal) -> str:
    """ "7.84": no exponent, no zeros nobody needs, at least two places."""
    plain_ = f"{amount.normalize():f}"
    whole, _point, rest = plain_.partition(".")
    return f"{whole}.{rest.ljust(2, '0')}"
