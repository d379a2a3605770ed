"""The course of a job as stretches of time, one after another: what people see as a picture of where the time went. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from jobs.states import JobState, Phase

MOST_WEIGHT = 24


class Sent(Protocol):
    """The facts of one send that the course is made of; ProviderTask has them."""

    @property
    def created_at(self) -> datetime: ...
    @property
    def armed_at(self) -> datetime | None: ...
    @property
    def accepted_at(self) -> datetime | None: ...
    @property
    def refused_at(self) -> datetime | None: ...
    @property
    def unsent_at(self) -> datetime | None: ...
    @property
    def lost_at(self) -> datetime | None: ...
    @property
    def absent_at(self) -> datetime | None: ...
    @property
    def completed_at(self) -> datetime | None: ...
    @property
    def failed_at(self) -> datetime | None: ...
    @property
    def receipt_final_at(self) -> datetime | None: ...
    @property
    def stored_at(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Stretch:
    """`send` counts from 1; 0: between sends. `open`: it goes on now."""

    phase: Phase
    begin: datetime
    end: datetime
    send: int = 0
    open: bool = False

    @property
    def length(self) -> timedelta:
        return self.end - self.begin


def course(
    sends: Iterable[Sent],
    *,
    state: JobState,
    created_at: datetime,
    finished_at: datetime | None,
    by_person: bool,
    deadline: timedelta,
    now: datetime,
) -> list[Stretch]:
    """From the job's creation to its end, or to `now`, without gap or overlap. Sends by their creation; where two overlap, the
    earlier one is shown. `by_person`: a person decided the job, so the time after its last send was theirs."""
    end = max(finished_at or now, created_at)
    found: list[Stretch] = []
    at = created_at
    ordered = sorted(sends, key=lambda one: one.created_at)
    for number, sent in enumerate(ordered, 1):
        for phase, told_begin, told_end in _of_send(sent, deadline=deadline, now=end):
            begin = min(max(told_begin, at), end)
            if begin > at:
                found.append(Stretch(Phase.WAITING, at, begin))
                at = begin
            until = min(told_end, end)
            if until > at:
                found.append(Stretch(phase, at, until, number))
                at = until
    if at < end:
        persons = state is JobState.MANUAL or (by_person and bool(ordered))
        found.append(Stretch(Phase.MANUAL if persons else Phase.WAITING, at, end))
    return _ended(list(_joined(found)), open_=finished_at is None)


def _of_send(
    sent: Sent, *, deadline: timedelta, now: datetime
) -> Iterator[tuple[Phase, datetime, datetime]]:
    """What became of it, in order; the last stretch ends now where nothing has ended it."""
    over = sent.refused_at or sent.unsent_at
    yield Phase.SENDING, sent.created_at, sent.accepted_at or sent.lost_at or over or sent.completed_at or sent.failed_at or now  # fmt: skip
    if sent.lost_at is not None:
        yield (
            Phase.LOOKING,
            sent.lost_at,
            sent.accepted_at or sent.absent_at or sent.completed_at or now,
        )
    if sent.accepted_at is not None:
        verdict = sent.completed_at or sent.failed_at or now
        late = (sent.armed_at or sent.created_at) + deadline
        yield Phase.AT_PROVIDER, sent.accepted_at, min(verdict, max(late, sent.accepted_at))
        if verdict > late:
            yield Phase.LATE, max(late, sent.accepted_at), verdict
    if sent.failed_at is not None and sent.completed_at is None:
        yield Phase.CHECKING_COST, sent.failed_at, sent.receipt_final_at or now
    if sent.completed_at is not None:
        yield Phase.FETCHING, sent.completed_at, sent.stored_at or now


def _joined(found: Sequence[Stretch]) -> Iterator[Stretch]:
    """Like neighbours as one."""
    before: Stretch | None = None
    for one in found:
        if before is not None and (before.phase, before.send) == (one.phase, one.send):
            before = Stretch(before.phase, before.begin, one.end, before.send)
            continue
        if before is not None:
            yield before
        before = one
    if before is not None:
        yield before


def _ended(found: list[Stretch], *, open_: bool) -> list[Stretch]:
    if found and open_:
        last = found[-1]
        found[-1] = Stretch(last.phase, last.begin, last.end, last.send, open=True)
    return found


def weight(one: Stretch, whole: timedelta) -> int:
    """How wide it is drawn, 1 to MOST_WEIGHT: by its share, but never too narrow for its words."""
    if whole <= timedelta(0):
        return 1
    return max(1, min(MOST_WEIGHT, round(MOST_WEIGHT * (one.length / whole))))
