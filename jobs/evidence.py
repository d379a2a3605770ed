"""Evidence about a send whose outcome we do not know: what the provider's own listing proves. Pure.

design.md section 5, "Evidence about an unknown send".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from jobs.rules import ABSENCE_MARGIN_S, SEND_WINDOW_S
from providers.contract import HistoryItem

CLOCK_SKEW_S = 120.0
APART = timedelta(hours=1)  # at most, from one send to the next that one listing serves as well
CASE_GRACE_S = 45.0  # a case within a minute after absence could first be concluded


class Finding(StrEnum):
    FOUND = "found"
    ABSENT_ONCE = "absent_once"
    ABSENT = "absent"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSend:
    """A task in `unknown` (or called absent an hour ago), with what bounds its window. `spool_clear`: its host's spool was replayed since."""

    task_id: UUID
    model: str
    armed_at: datetime
    send_not_after: datetime
    deadline_s: float
    absent_seen_at: datetime | None
    spool_clear: bool
    concluded: bool = False  # absence was concluded before; this is the one look after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All pages of the history of the key the send used, no status filter. `read_at` is before the first page was asked.

    `linked` maps provider ids of ours to when we armed them; `unsettled` the sends that are still sending or unknown. Both were
    read after the last page: whatever a page shows was armed before, so it is in one of them, or nobody's. `echoes`: None
    where not measured; `lag_s` likewise.
    """

    items: Sequence[HistoryItem]
    read_at: datetime
    linked: Mapping[str, datetime]
    unsettled: Mapping[UUID, datetime]
    echoes: bool | None
    lag_s: float | None
    exclusive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    finding: Finding
    provider_id: str = ""
    candidates: tuple[HistoryItem, ...] = ()


def absence_from(*, send_not_after: datetime, deadline_s: float, lag_s: float | None) -> datetime:
    """From when on a listing can prove absence. An unmeasured lag counts as 0 here: it only times the case."""
    return send_not_after + timedelta(seconds=deadline_s + ABSENCE_MARGIN_S + (lag_s or 0.0))


def window(send: LostSend, *, lag_s: float | None) -> tuple[datetime, datetime]:
    """Where the send's generation would be listed, clock skew allowed for."""
    skew = timedelta(seconds=CLOCK_SKEW_S)
    end = absence_from(send_not_after=send.send_not_after, deadline_s=send.deadline_s, lag_s=lag_s)
    return send.armed_at - skew, end + skew


def together(sends: Sequence[LostSend]) -> list[list[LostSend]]:
    """Groups of which each has a listing of its own, back to its first send: what an old one needs, which may be more pages
    than are read, holds up none that came hours later."""
    groups: list[list[LostSend]] = []
    for send in sorted(sends, key=lambda one: one.armed_at):
        if not groups or send.armed_at - groups[-1][-1].armed_at > APART:
            groups.append([])
        groups[-1].append(send)
    return groups


def judge(send: LostSend, listing: Listing) -> Judgement:
    """What this listing proves about this send."""
    ours = str(send.task_id)
    matching = [item for item in listing.items if item.correlation_id == ours]
    if matching:
        return Judgement(finding=Finding.FOUND, provider_id=matching[0].provider_id)

    since, until = window(send, lag_s=listing.lag_s)
    unlinked = [
        item
        for item in listing.items
        if item.provider_id not in listing.linked
        and (item.created_at is None or since <= item.created_at <= until)
    ]
    # Where the history echoes ids, an item with another id of ours or a stranger's is not this send.
    candidates = tuple(item for item in unlinked if not (listing.echoes and item.correlation_id))
    same_model = [item for item in candidates if item.model == send.model]
    ready = listing.read_at >= absence_from(
        send_not_after=send.send_not_after, deadline_s=send.deadline_s, lag_s=listing.lag_s
    )
    only_one = len(same_model) == 1 and listing.exclusive and _alone(send, listing)
    if not listing.echoes and only_one and ready:
        return Judgement(finding=Finding.FOUND, provider_id=same_model[0].provider_id)
    nothing = listing.echoes is True or not unlinked
    if (
        listing.lag_s is None
        or not ready
        or not nothing
        or not send.spool_clear
        or not _fresh(send, listing)
    ):
        return Judgement(finding=Finding.UNCLEAR, candidates=candidates)
    if send.absent_seen_at is None:
        return Judgement(finding=Finding.ABSENT_ONCE, candidates=candidates)
    if listing.read_at - send.absent_seen_at >= timedelta(seconds=listing.lag_s):
        return Judgement(finding=Finding.ABSENT)
    return Judgement(finding=Finding.ABSENT_ONCE, candidates=candidates)


def _alone(send: LostSend, listing: Listing) -> bool:
    """No other send of ours whose window overlaps may have made what the listing shows."""
    since, until = window(send, lag_s=listing.lag_s)
    return not any(
        abs(armed_at - send.armed_at) < until - since
        for task_id, armed_at in listing.unsettled.items()
        if task_id != send.task_id
    )


def _fresh(send: LostSend, listing: Listing) -> bool:
    """The canary: the listing already shows a task of ours that was sent later than this one could have been.

    It must be listed under its own time: where the provider tells times of another zone or by a wrong clock, windows and
    date filters miss what they should show.
    """
    listed = {item.provider_id: item.created_at for item in listing.items}
    apart = timedelta(seconds=CLOCK_SKEW_S + SEND_WINDOW_S + send.deadline_s)
    return any(
        armed_at > send.send_not_after
        and provider_id in listed
        and ((at := listed[provider_id]) is None or abs(at - armed_at) <= apart)
        for provider_id, armed_at in listing.linked.items()
    )


def overdue(
    *,
    send_not_after: datetime,
    deadline_s: float,
    lag_s: float | None,
    absent_seen_at: datetime | None,
    now: datetime,
) -> bool:
    """Whether the machine has had its time: a person should see the send on the desk by now."""
    return now >= overdue_from(
        send_not_after=send_not_after, deadline_s=deadline_s, lag_s=lag_s, absent_seen_at=absent_seen_at
    )  # fmt: skip


def overdue_from(
    *,
    send_not_after: datetime,
    deadline_s: float,
    lag_s: float | None,
    absent_seen_at: datetime | None,
) -> datetime:
    """When the machine will have had its time."""
    due = absence_from(send_not_after=send_not_after, deadline_s=deadline_s, lag_s=lag_s)
    if absent_seen_at is not None:
        due = max(due, absent_seen_at + timedelta(seconds=lag_s or 0.0))
    return due + timedelta(seconds=CASE_GRACE_S)
