"""Which alerts there are, by values: one episode, what belongs together, what is over, what a person must do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.alert_rules import (
    MATTERS,
    MOST_TRIES,
    NETWORK_HOLD_S,
    OF_EVENT,
    OPENINGS,
    RETRY_MOST_S,
    AlertKind,
    AlertState,
    Matter,
    Seen,
    after_try,
    compare,
    retry_at,
    sort_out,
)
from providers import health, word
from providers.health import Block, Cause, Health

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
POLZA, OTHER, THIRD = 1, 2, 3
PICTURE = "google/gemini"


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def seen(number: int, kind: AlertKind, seconds: float = 0, **values: Any) -> Seen:
    """A row just noted. The episode of an opening begins with it."""
    moment = at(seconds)
    defaults: dict[str, Any] = {
        "account_id": POLZA, "episode_at": None if kind in MATTERS else moment, "state": AlertState.NEW,
    }  # fmt: skip
    return Seen(id=number, kind=kind, at=moment, not_before=moment, **defaults | values)


def opened(number: int, seconds: float = 0, **values: Any) -> Seen:
    return seen(number, AlertKind.OUTAGE, seconds, **values)


def closed(number: int, seconds: float, of: Seen) -> Seen:
    return seen(
        number, AlertKind.RECOVERED, seconds, account_id=of.account_id, model=of.model, episode_at=of.episode_at,
        silenced=of.silenced,
    )  # fmt: skip


class Book:
    """All rows there ever were, sorted as they come, as the outbox does it."""

    def __init__(self, in_use: Collection[int] = (POLZA,)) -> None:
        self.rows: dict[int, Seen] = {}
        self.in_use = in_use

    def add(self, *rows: Seen) -> None:
        self.rows |= {row.id: row for row in rows}
        on = [r for r in self.rows.values() if r.kind in OPENINGS and r.over_at is None]
        leads = {r.lead_id for r in on} | {r.id for r in on}
        loaded = [
            r
            for r in self.rows.values()
            if r.state is AlertState.NEW or (r.kind in OPENINGS and {r.id, r.lead_id} & leads)
        ]
        for row in sort_out(loaded, in_use=self.in_use):
            self.rows[row.id] = row

    def send(self) -> None:
        """What is due goes out."""
        for row in self.rows.values():
            if row.state is AlertState.DUE:
                self.rows[row.id] = replace(row, state=AlertState.SENT, begun=True)

    def told(self) -> list[tuple[int, AlertKind]]:
        states = {AlertState.DUE, AlertState.SENT}
        return [(row.id, row.kind) for row in self.rows.values() if row.state in states]

    def state(self, number: int) -> AlertState:
        return self.rows[number].state


# --- one outage, one beginning, one end -------------------------------------------------------------------------------


@pytest.mark.condition("R89")
def test_an_outage_of_eight_hours_is_told_once_and_its_end_once() -> None:
    """Not once in five minutes: the 97 other events of those hours are no alerts."""
    one = health.opened(Health(), cause=Cause.FAILURES, now=NOW, reason="HTTP 503")
    events = [("opened", NOW)]
    while one.next_try_at is not None and one.next_try_at < at(8 * 3600):
        moment = one.next_try_at
        new = health.after_free_read(one, health.Read.BAD, now=moment)
        events += [(kind, moment) for kind, _data in word.changes(one, new, now=moment)]
        one = new
    assert len(events) > 30
    assert [kind for kind, _at in events if kind in OF_EVENT] == ["opened"]
    book = Book()
    book.add(opened(1))
    book.send()
    book.add(closed(2, 8 * 3600, opened(1)))
    assert book.told() == [(1, AlertKind.OUTAGE), (2, AlertKind.RECOVERED)]
    assert book.rows[1].over_at == at(8 * 3600)


def test_a_quota_a_rate_limit_a_pause_and_a_block_by_staff_are_no_alerts() -> None:
    healths = [
        health.block(Health(), kind=kind, wait_s=90_000, now=NOW, spread=0.5, reason="HTTP 402: no money")
        for kind in (Block.QUOTA, Block.THROTTLED)
    ]  # fmt: skip
    healths += [
        health.block_by_staff(Health(), until=at(9000), reason="", now=NOW),
        replace(Health(), paused=True),
    ]
    told = [kind for new in healths for kind, _data in word.changes(Health(), new, now=NOW)]
    assert len(told) == 4
    assert not OF_EVENT.keys() & set(told)


def test_a_second_outage_after_the_end_of_the_first_is_told_again() -> None:
    book = Book()
    book.add(opened(1))
    book.send()
    book.add(closed(2, 61, opened(1)))
    book.send()
    book.add(opened(3, 70))
    assert book.state(3) is AlertState.DUE


def test_an_end_whose_beginning_nobody_noted_is_not_told() -> None:
    book = Book()
    book.add(closed(1, 60, opened(9)))
    assert book.state(1) is AlertState.DROPPED


def test_a_rejected_key_is_told_besides_the_outage_it_was_found_in_and_both_end_together() -> None:
    book = Book()
    book.add(opened(1))
    book.send()
    book.add(seen(2, AlertKind.KEY, 60, episode_at=NOW))
    assert book.state(2) is AlertState.DUE
    book.send()
    book.add(closed(3, 600, opened(1)))
    assert [number for number, _kind in book.told()] == [1, 2, 3]
    assert book.rows[1].over_at == book.rows[2].over_at == at(600)


# --- what goes down together ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent_before", [False, True])
@pytest.mark.parametrize("first", ["", PICTURE])
def test_an_account_and_its_models_that_go_down_together_are_one_alert(
    first: str, sent_before: bool
) -> None:
    book = Book()
    models = [first, *(m for m in ("", PICTURE, "other/model") if m != first)]
    rows = [opened(n, n * 10, model=model) for n, model in enumerate(models, 1)]
    book.add(rows[0])
    if sent_before:
        book.send()
    book.add(*rows[1:])
    assert book.told() == [(1, AlertKind.OUTAGE)]
    assert {book.rows[n].lead_id for n in (2, 3)} == {1}


def test_the_end_is_told_when_all_that_went_down_together_are_up_and_once() -> None:
    book = Book()
    rows = [opened(1), opened(2, 5, model=PICTURE)]
    book.add(*rows)
    book.send()
    book.add(closed(3, 100, rows[0]))
    assert book.state(3) is AlertState.FOLDED
    book.add(closed(4, 130, rows[1]))
    assert book.state(4) is AlertState.DUE
    assert book.rows[4].lead_id == 1


def test_a_model_of_an_account_that_is_down_for_hours_is_no_news() -> None:
    book = Book()
    book.add(opened(1))
    book.send()
    book.add(opened(2, 7200, model=PICTURE))
    assert book.state(2) is AlertState.FOLDED


def test_an_account_that_goes_down_long_after_a_model_of_it_is_news() -> None:
    book = Book()
    book.add(opened(1, model=PICTURE))
    book.send()
    book.add(opened(2, 600))
    assert book.state(2) is AlertState.DUE


def test_two_providers_that_fail_by_themselves_are_two_alerts() -> None:
    book = Book(in_use=(POLZA, OTHER))
    book.add(opened(1), opened(2, 1, account_id=OTHER))
    assert [number for number, _kind in book.told()] == [1, 2]


@pytest.mark.parametrize("together", [True, False])
def test_where_no_provider_can_be_reached_it_is_our_own_network_and_one_alert(
    together: bool,
) -> None:
    book = Book(in_use=(POLZA, OTHER, THIRD))
    rows = [opened(n, n * 5, account_id=n, connect=True) for n in (1, 2, 3)]
    for group in [rows] if together else [[row] for row in rows]:
        book.add(*group)
    assert book.told() == [(1, AlertKind.NETWORK)]
    assert book.rows[1].not_before == rows[0].at
    for row in rows[:2]:
        book.add(closed(10 + row.id, 300, row))
    assert book.told() == [(1, AlertKind.NETWORK)]
    book.add(closed(13, 310, rows[2]))
    assert book.told() == [(1, AlertKind.NETWORK), (13, AlertKind.RECOVERED)]


def test_one_that_cant_be_reached_is_waited_with_only_where_there_are_others() -> None:
    for in_use, hold_s in (((POLZA,), 0.0), ((POLZA, OTHER), NETWORK_HOLD_S)):
        book = Book(in_use=in_use)
        book.add(opened(1, connect=True))
        assert book.rows[1].not_before == at(hold_s)


def test_while_one_provider_is_reached_the_others_outages_are_their_own() -> None:
    book = Book(in_use=(POLZA, OTHER, THIRD))
    book.add(*(opened(n, n, account_id=n, connect=True) for n in (1, 2)))
    assert book.told() == [(1, AlertKind.OUTAGE), (2, AlertKind.OUTAGE)]


def test_a_last_provider_that_joins_after_the_first_was_told_of_makes_no_second_alert() -> None:
    book = Book(in_use=(POLZA, OTHER))
    book.add(opened(1, connect=True))
    book.send()
    book.add(opened(2, 50, account_id=OTHER, connect=True))
    assert [number for number, _kind in book.told()] == [1]


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_silenced_outage_is_recorded_and_neither_it_nor_its_end_is_told() -> None:
    book = Book()
    book.add(opened(1, silenced=True))
    assert book.state(1) is AlertState.SILENCED
    book.add(replace(closed(2, 60, opened(1)), silenced=False))  # unsilenced meanwhile
    assert book.state(2) is AlertState.SILENCED
    assert book.rows[1].over_at == at(60)


def test_an_end_is_not_told_of_an_account_silenced_in_between() -> None:
    book = Book()
    book.add(opened(1))
    book.send()
    book.add(closed(2, 60, replace(opened(1), silenced=True)))
    assert book.state(2) is AlertState.SILENCED


def test_a_silenced_account_is_evidence_that_nothing_can_be_reached_but_part_of_no_alert() -> None:
    book = Book(in_use=(POLZA, OTHER))
    book.add(opened(1, connect=True, silenced=True), opened(2, 1, account_id=OTHER, connect=True))
    assert book.told() == [(2, AlertKind.NETWORK)]
    assert book.state(1) is AlertState.SILENCED


@given(st.data())
def test_whatever_happens_an_episode_is_told_at_most_once_and_ends_at_most_once(
    data: st.DataObject,
) -> None:
    """Outages of three accounts and their models in any order, told or not yet told: no message tells two beginnings of the
    same row, every opening is told by exactly one message, and no message has two ends."""
    book, clock_s = Book(in_use=(1, 2, 3)), 0.0
    on: dict[tuple[int, str], Seen] = {}
    for number in range(1, data.draw(st.integers(2, 15))):
        clock_s += data.draw(st.sampled_from([0.0, 1.0, 40.0, 400.0]))
        key = data.draw(st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from(["", "a"])))
        if key in on:
            book.add(closed(number, clock_s, on.pop(key)))
        else:
            connect = data.draw(st.booleans())
            on[key] = opened(number, clock_s, account_id=key[0], model=key[1], connect=connect)
            book.add(on[key])
        if data.draw(st.booleans()):
            book.send()
    rows = book.rows
    assert not [row for row in rows.values() if row.state is AlertState.NEW]
    for row in rows.values():
        if row.kind in OPENINGS and row.state is AlertState.FOLDED:
            assert row.lead_id is not None
            lead = rows[row.lead_id]
            assert lead.kind in OPENINGS
            assert lead.state in {AlertState.DUE, AlertState.SENT}
    ends = [row.lead_id for row in rows.values()
            if row.kind is AlertKind.RECOVERED and row.state is not AlertState.FOLDED]  # fmt: skip
    assert len(ends) == len(set(ends))
    open_keys = {(r.account_id, r.model) for r in rows.values() if r.kind in OPENINGS and r.over_at is None}  # fmt: skip
    assert open_keys == set(on)


# --- what a person must do --------------------------------------------------------------------------------------------


def noted(matters: Sequence[Matter], rows: Sequence[Seen] = (), seconds: float = 0) -> list[Seen]:
    """The open rows after a look, as the outbox keeps them."""
    compared = compare(rows, matters, now=at(seconds))
    changed = {row.id: row for row in compared.changed}
    kept = [changed.get(row.id, row) for row in rows]
    for matter in compared.began:
        data = {**matter.data, **({} if matter.rows is None else {"rows": sorted(matter.rows)})}
        kept.append(
            Seen(
                id=100 + len(kept), kind=matter.kind, state=AlertState.DUE, at=at(seconds), account_id=matter.account_id,
                not_before=at(seconds + matter.hold_s), data=data,
            )
        )  # fmt: skip
    return kept


def test_a_matter_is_said_once_each_until_it_is_over() -> None:
    empty = Matter(kind=AlertKind.BALANCE, account_id=POLZA)
    (row,) = noted([empty])
    row = replace(row, state=AlertState.SENT, begun=True)
    for minute in range(1, 20):
        assert noted([empty], [row], minute * 60) == [row]
    (over,) = noted([], [row], 1300)
    assert (over.state, over.over_at) == (AlertState.SENT, at(1300))
    assert len(noted([empty], [], 1400)) == 1


def test_a_matter_that_is_over_before_it_was_told_is_never_told() -> None:
    (row,) = noted([Matter(kind=AlertKind.STUCK, hold_s=90, rows=frozenset({"job 1"}))])
    (over,) = noted([], [row], 60)
    assert over.state is AlertState.DROPPED


def test_rows_that_are_stuck_in_turn_never_last_long_enough_to_be_told() -> None:
    rows = noted([Matter(kind=AlertKind.STUCK, hold_s=90, rows=frozenset({"job 1"}))])
    for minute in range(1, 10):
        seconds = minute * 60
        matter = Matter(kind=AlertKind.STUCK, hold_s=90, rows=frozenset({f"job {minute + 1}"}))
        rows = noted([matter], rows, seconds)
        assert [row.not_before for row in rows] == [at(seconds + 90)]
    stays = Matter(kind=AlertKind.STUCK, hold_s=90, rows=frozenset({"job 10", "job 11"}))
    (row,) = noted([stays], rows, 600)
    assert (row.not_before, row.data["rows"]) == (at(540 + 90), ["job 10"])


def test_an_untold_matter_is_told_with_its_newest_figures() -> None:
    rows = noted([Matter(kind=AlertKind.OVERDUE, data={"count": 1})])
    (row,) = noted([Matter(kind=AlertKind.OVERDUE, data={"count": 5})], rows, 60)
    assert row.data == {"count": 5}


def test_matters_of_two_accounts_are_two() -> None:
    both = [Matter(kind=AlertKind.BALANCE, account_id=n) for n in (POLZA, OTHER)]
    rows = noted(both)
    assert len(rows) == 2
    over = [row for row in noted(both[:1], rows, 60) if row.over_at is not None]
    assert [row.account_id for row in over] == [OTHER]


# --- tries ------------------------------------------------------------------------------------------------------------


def test_waits_double_to_an_hour() -> None:
    waits = [(retry_at(tries, now=NOW) - NOW).total_seconds() for tries in range(1, 12)]
    assert waits[:4] == [30, 60, 120, 240]
    assert waits[-1] == RETRY_MOST_S
    assert (retry_at(10_000, now=NOW) - NOW).total_seconds() == RETRY_MOST_S


@pytest.mark.parametrize(
    ("reached", "tries", "state"),
    [
        ({"a", "b"}, 0, AlertState.SENT),
        ({"a"}, 1, AlertState.DUE),
        (set(), MOST_TRIES - 1, AlertState.DUE),
        (set(), MOST_TRIES, AlertState.GIVEN_UP),
        ({"a"}, MOST_TRIES, AlertState.SENT),
        ({"a", "b", "one no longer set"}, 3, AlertState.SENT),
    ],
)
def test_an_alert_is_done_when_every_channel_has_it_or_tries_are_used_up(
    reached: set[str], tries: int, state: AlertState
) -> None:
    assert after_try(wanted={"a", "b"}, reached=reached, tries=tries) is state
