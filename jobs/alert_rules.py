"""Which alerts there are, decided from values: what is one episode, what belongs together, what is over. Pure.

An outage is told once when it begins and once when it is over. What a person must do (a matter) is told once until it
is over. Quotas and rate limits are no alerts: nobody need wake up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

# What goes down within this of each other, for the same cause, is one outage.
SAME_MOMENT_S = 60.0
# Where one account can't be reached and there are others, theirs are waited for so long: it may be our own network.
NETWORK_HOLD_S = 30.0
RETRY_FIRST_S, RETRY_MOST_S = 30.0, 3600.0
MOST_TRIES = 14  # about seven hours
# A sender that died may have sent: its alert goes out once more at most, then never again.
MOST_LOST_LEASES = 1
CAP_WINDOW_S = 3600.0
SUMMARY_HOLD_S = 60.0


class AlertKind(StrEnum):
    OUTAGE = "outage"
    NETWORK = "network"
    KEY = "key_rejected"
    RECOVERED = "recovered"
    BALANCE = "balance"
    OVERDUE = "overdue"
    EXPIRING = "expiring"
    STUCK = "stuck"
    MORE = "more"


class AlertState(StrEnum):
    """`new`: just noted, not sorted yet. `folded`: another alert, its lead, tells it too. `dropped`: over before it was due."""

    NEW = "new"
    DUE = "due"
    SENT = "sent"
    FOLDED = "folded"
    SILENCED = "silenced"
    DROPPED = "dropped"
    NO_CHANNEL = "no_channel"
    GIVEN_UP = "given_up"


# The only provider events that are alerts. A longer outage (`still_down`), blocks and quotas are not among them.
OF_EVENT: Mapping[str, AlertKind] = {
    "opened": AlertKind.OUTAGE,
    "key_rejected": AlertKind.KEY,
    "closed": AlertKind.RECOVERED,
}
OPENINGS = frozenset({AlertKind.OUTAGE, AlertKind.NETWORK, AlertKind.KEY})
_DOWN = frozenset({AlertKind.OUTAGE, AlertKind.NETWORK})
MATTERS = frozenset({AlertKind.BALANCE, AlertKind.OVERDUE, AlertKind.EXPIRING, AlertKind.STUCK})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One alert as a value. `silenced` is its account's switch now, `begun` whether a sender ever took it, `over_at` the
    end of its own episode, `lead_id` the alert it belongs to."""

    id: int
    kind: AlertKind
    state: AlertState
    at: datetime
    not_before: datetime
    account_id: int | None = None
    model: str = ""
    episode_at: datetime | None = None
    connect: bool = False
    silenced: bool = False
    begun: bool = False
    lead_id: int | None = None
    over_at: datetime | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


# --- outages ----------------------------------------------------------------------------------------------------------


def sort_out(rows: Iterable[Seen], *, in_use: Collection[int]) -> list[Seen]:
    """The rows that change when the new ones among `rows` are sorted. `rows` also holds every group of openings of which
    a part is not over. `in_use`: the accounts that a key is set for."""
    before = {row.id: row for row in rows}
    table = dict(before)
    for row in sorted(before.values(), key=lambda one: (one.at, one.id)):
        if row.state is not AlertState.NEW:
            continue
        if row.kind is AlertKind.RECOVERED:
            _recovered(table, row)
        else:
            _opened(table, row, frozenset(in_use))
    return [row for row in table.values() if row != before[row.id]]


def _opened(table: dict[int, Seen], row: Seen, in_use: frozenset[int]) -> None:
    if row.silenced:
        table[row.id] = replace(row, state=AlertState.SILENCED)
        return
    may_be_ours = row.connect and not row.model and len(in_use) > 1
    hold = timedelta(seconds=NETWORK_HOLD_S if may_be_ours else 0.0)
    lead = None
    if row.kind is AlertKind.OUTAGE:
        lead = _of_same_account(table, row)
    if lead is not None:
        table[row.id] = replace(row, state=AlertState.FOLDED, lead_id=lead.id)
    elif may_be_ours and _all_unreachable(table, row, in_use):
        _network(table, row)
    else:
        table[row.id] = replace(row, state=AlertState.DUE, not_before=row.at + hold)


def _root(table: Mapping[int, Seen], row: Seen) -> Seen:
    """The opening that tells `row`; itself where it tells itself, or is told by a summary."""
    lead = table.get(row.lead_id) if row.lead_id is not None else None
    return row if lead is None or lead.kind not in OPENINGS else lead


def _on(table: Mapping[int, Seen]) -> list[Seen]:
    """Outages that are not over and that somebody is told of, oldest first."""
    out = {AlertState.NEW, AlertState.SILENCED}
    return sorted(
        (r for r in table.values() if r.kind in _DOWN and r.over_at is None and r.state not in out),
        key=lambda one: (one.at, one.id),
    )


def _near(one: Seen, other: Seen) -> bool:
    return abs((one.at - other.at).total_seconds()) <= SAME_MOMENT_S


def _of_same_account(table: Mapping[int, Seen], row: Seen) -> Seen | None:
    """A model of an account that is down is no news; nor is what goes down with it in the same moment."""
    for other in _on(table):
        if other.account_id == row.account_id and (
            (row.model and not other.model) or _near(row, other)
        ):
            return _root(table, other)
    return None


def _all_unreachable(table: Mapping[int, Seen], row: Seen, in_use: frozenset[int]) -> bool:
    """Whether every account in use failed to connect at this moment. What is silenced counts as evidence all the same."""
    down = {
        other.account_id
        for other in table.values()
        if other.kind in _DOWN and other.over_at is None and other.connect and not other.model
        and _near(row, other)
    }  # fmt: skip
    return in_use <= down | {row.account_id}


def _network(table: dict[int, Seen], row: Seen) -> None:
    """One alert for all of them: the first that was noted tells it, as our own network if it has not gone out yet."""
    others = [r for r in _on(table) if r.connect and not r.model and _near(row, r)]
    roots = {root.id: root for root in (_root(table, other) for other in others)}
    if not roots:
        table[row.id] = replace(row, kind=AlertKind.NETWORK, state=AlertState.DUE)
        return
    lead = min(roots.values(), key=lambda one: (not one.begun, one.at, one.id))
    if not lead.begun:
        table[lead.id] = replace(lead, kind=AlertKind.NETWORK, not_before=lead.at)
    for root in roots.values():
        if root.id == lead.id or root.begun:
            continue
        for member in list(table.values()):
            if root.id in {member.id, member.lead_id}:
                table[member.id] = replace(member, state=AlertState.FOLDED, lead_id=lead.id)
    table[row.id] = replace(row, state=AlertState.FOLDED, lead_id=lead.id)


def _recovered(table: dict[int, Seen], row: Seen) -> None:
    """Ends the episode's openings. It is told once all that one alert told of are over, and by the last of them."""
    ended = [
        other
        for other in table.values()
        if other.kind in OPENINGS and other.over_at is None
        and (other.account_id, other.model, other.episode_at) == (row.account_id, row.model, row.episode_at)
    ]  # fmt: skip
    if not ended:  # it began before there were alerts
        table[row.id] = replace(row, state=AlertState.DROPPED, over_at=row.at)
        return
    for opening in ended:
        table[opening.id] = replace(opening, over_at=row.at)
    lead = _root(table, table[min(ended, key=lambda one: one.id).id])
    state = AlertState.DUE if _all_over(table, lead) else AlertState.FOLDED
    if row.silenced or lead.state is AlertState.SILENCED:
        state = AlertState.SILENCED
    table[row.id] = replace(row, state=state, lead_id=lead.id, over_at=row.at)


def _all_over(table: Mapping[int, Seen], lead: Seen) -> bool:
    return all(
        row.over_at is not None
        for row in table.values()
        if row.kind in OPENINGS and lead.id in {row.id, row.lead_id}
    )


# --- what a person must do --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """Something only a person can settle, as it stands now. It is told once it has lasted `hold_s`. `rows`, where given,
    are those it is about: it lasts only as long as one of them stays."""

    kind: AlertKind
    account_id: int | None = None
    silenced: bool = False
    hold_s: float = 0.0
    rows: frozenset[str] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """`began` are to be written; `changed` and `over` are rows of before as they are now."""

    began: list[Matter]
    changed: list[Seen]


def compare(rows: Sequence[Seen], matters: Iterable[Matter], *, now: datetime) -> Compared:
    """`rows`: the matters that are open by our own record. Said once each until it is over."""
    open_rows = {(row.kind, row.account_id): row for row in rows}
    began: list[Matter] = []
    changed: list[Seen] = []
    for matter in matters:
        row = open_rows.pop((matter.kind, matter.account_id), None)
        if row is None:
            began.append(matter)
        elif not row.begun:
            changed += [new] if (new := _renewed(row, matter, now=now)) != row else []
    for row in open_rows.values():
        unsaid = row.state is AlertState.DUE and not row.begun
        state = AlertState.DROPPED if unsaid else row.state
        changed.append(replace(row, state=state, over_at=now))
    return Compared(began=began, changed=changed)


def first_data(matter: Matter) -> dict[str, Any]:
    """The data column of a matter that has just begun."""
    return {**matter.data, **({} if matter.rows is None else {"rows": sorted(matter.rows)})}


def _renewed(row: Seen, matter: Matter, *, now: datetime) -> Seen:
    """Not told yet: with the newest figures, and begun anew where none of the rows it began with is left."""
    if matter.rows is None:
        return replace(row, data=dict(matter.data))
    lasting = matter.rows & set(row.data.get("rows", ()))
    if not lasting:
        until = now + timedelta(seconds=matter.hold_s)
        return replace(row, data=first_data(matter), not_before=until)
    return replace(row, data={**matter.data, "rows": sorted(lasting)})


# --- sending ----------------------------------------------------------------------------------------------------------


def retry_at(tries: int, *, now: datetime) -> datetime:
    """When to try again after so many failed tries: 30 s, doubling to an hour."""
    wait_s = min(RETRY_FIRST_S * 2 ** min(max(tries - 1, 0), 20), RETRY_MOST_S)
    return now + timedelta(seconds=wait_s)


def after_try(*, wanted: Collection[str], reached: Collection[str], tries: int) -> AlertState:
    """The state after a try that has reached `reached` of the `wanted` channels in all, the `tries`th that left one out."""
    if set(wanted) <= set(reached):
        return AlertState.SENT
    if tries < MOST_TRIES:
        return AlertState.DUE
    return AlertState.SENT if reached else AlertState.GIVEN_UP
