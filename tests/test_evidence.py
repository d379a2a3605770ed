"""What a provider's listing proves about a send whose outcome we do not know."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs.evidence import (
    CASE_GRACE_S,
    Finding,
    Listing,
    LostSend,
    absence_from,
    judge,
    overdue,
    together,
    window,
)
from providers.contract import HistoryItem

ARMED = datetime(2026, 3, 1, 12, tzinfo=UTC)
FENCE = ARMED + timedelta(seconds=10)
LAG_S = 20.0
READY = absence_from(send_not_after=FENCE, deadline_s=30.0, lag_s=LAG_S)
MODEL = "painter"


def send(**values: Any) -> LostSend:
    defaults: dict[str, Any] = {
        "task_id": uuid.UUID(int=1),
        "model": MODEL,
        "armed_at": ARMED,
        "send_not_after": FENCE,
        "deadline_s": 30.0,
        "absent_seen_at": None,
        "spool_clear": True,
    }
    return LostSend(**defaults | values)


def item(
    name: str, *, after_s: float | None = 5, model: str = MODEL, echo: str = ""
) -> HistoryItem:
    at = None if after_s is None else ARMED + timedelta(seconds=after_s)
    return HistoryItem(
        provider_id=name, created_at=at, model=model, status="completed", correlation_id=echo
    )


CANARY = item("canary", after_s=15)


def listing(*items: HistoryItem, canary: bool = True, **values: Any) -> Listing:
    defaults: dict[str, Any] = {
        "items": (*items, CANARY) if canary else items,
        "read_at": READY,
        "linked": {"canary": FENCE + timedelta(seconds=1)},
        "unsettled": {send().task_id: ARMED},
        "echoes": True,
        "lag_s": LAG_S,
        "exclusive": True,
    }
    return Listing(**defaults | values)


def found(what: LostSend, where: Listing) -> Finding:
    return judge(what, where).finding


# --- found ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("echoes", [True, False, None])
def test_our_own_id_in_the_listing_is_found_at_any_time(echoes: bool | None) -> None:
    mine = item("gen_1", echo=str(send().task_id), after_s=99999)
    beside = {uuid.UUID(int=2): ARMED}
    judged = judge(
        send(), listing(mine, echoes=echoes, read_at=ARMED, exclusive=False, unsettled=beside)
    )
    assert (judged.finding, judged.provider_id) == (Finding.FOUND, "gen_1")


def test_without_echo_the_one_unlinked_generation_of_the_model_in_the_window_is_ours() -> None:
    judged = judge(send(), listing(item("gen_1"), echoes=False))
    assert (judged.finding, judged.provider_id) == (Finding.FOUND, "gen_1")


def test_two_such_generations_prove_nothing() -> None:
    where = listing(item("gen_1"), item("gen_2"), echoes=False)
    judged = judge(send(), where)
    assert judged.finding is Finding.UNCLEAR
    assert [one.provider_id for one in judged.candidates] == ["gen_1", "gen_2"]


def test_on_an_account_that_others_use_too_it_proves_nothing() -> None:
    where = listing(item("gen_1"), echoes=False, exclusive=False)
    assert found(send(), where) is Finding.UNCLEAR


@pytest.mark.parametrize(
    ("after_s", "proves"), [(0, False), (200, False), (-200, False), (400, True)]
)
def test_beside_another_open_send_of_ours_it_proves_nothing(after_s: float, proves: bool) -> None:
    """Unless their windows don't meet: 10 + 30 + 10 + 20 s, and 120 s for the clocks at either end."""
    beside = {send().task_id: ARMED, uuid.UUID(int=2): ARMED + timedelta(seconds=after_s)}
    where = listing(item("gen_1"), echoes=False, unsettled=beside)
    assert found(send(), where) is (Finding.FOUND if proves else Finding.UNCLEAR)


def test_before_the_window_is_over_a_lone_generation_proves_nothing() -> None:
    early = READY - timedelta(seconds=1)
    where = listing(item("gen_1"), echoes=False, read_at=early)
    assert found(send(), where) is Finding.UNCLEAR


def test_a_generation_that_is_linked_to_another_task_is_not_ours() -> None:
    where = listing(item("gen_1"), echoes=False)
    where = replace(where, linked={**where.linked, "gen_1": ARMED})
    assert found(send(), where) is Finding.ABSENT_ONCE


def test_a_generation_of_another_model_is_no_find_and_no_absence() -> None:
    where = listing(item("gen_1", model="writer"), echoes=False)
    assert found(send(), where) is Finding.UNCLEAR


def test_where_the_listing_echoes_a_lone_generation_without_our_id_is_not_ours() -> None:
    assert found(send(), listing(item("gen_1"), echoes=True)) is Finding.ABSENT_ONCE


def test_the_window_reaches_two_minutes_beyond_both_ends() -> None:
    since, until = window(send(), lag_s=LAG_S)
    assert (ARMED - since, until - READY) == (timedelta(minutes=2), timedelta(minutes=2))


def test_a_generation_outside_the_window_is_not_a_candidate() -> None:
    where = listing(item("before", after_s=-121), item("after", after_s=400), echoes=False)
    assert found(send(), where) is Finding.ABSENT_ONCE


def test_a_generation_without_a_time_may_be_ours() -> None:
    where = listing(item("gen_1", after_s=None, model="writer"), echoes=False)
    assert found(send(), where) is Finding.UNCLEAR


# --- absent -----------------------------------------------------------------------------------------------------------


def test_absence_must_be_seen_twice_the_lag_apart() -> None:
    assert found(send(), listing()) is Finding.ABSENT_ONCE
    for after_s, finding in [(LAG_S - 1, Finding.ABSENT_ONCE), (LAG_S, Finding.ABSENT)]:
        again = listing(read_at=READY + timedelta(seconds=after_s))
        assert found(send(absent_seen_at=READY), again) is finding


SEEN = send(absent_seen_at=READY)
LATER = READY + timedelta(hours=1)


def test_absence_is_never_concluded_while_the_lag_is_not_measured() -> None:
    assert found(SEEN, listing(read_at=LATER, lag_s=None)) is Finding.UNCLEAR


def test_absence_is_not_concluded_before_the_call_must_be_over_and_listed() -> None:
    early = READY - timedelta(seconds=1)
    assert found(send(), listing(read_at=early)) is Finding.UNCLEAR


def test_absence_needs_a_canary() -> None:
    assert found(SEEN, listing(read_at=LATER, canary=False)) is Finding.UNCLEAR


def test_a_canary_armed_before_the_fence_is_none() -> None:
    where = listing(read_at=LATER, linked={"canary": FENCE})
    assert found(SEEN, where) is Finding.UNCLEAR


def test_a_canary_of_ours_that_the_listing_does_not_show_is_none() -> None:
    where = listing(read_at=LATER, canary=False, linked={"canary": FENCE + timedelta(seconds=9)})
    assert found(SEEN, where) is Finding.UNCLEAR


@pytest.mark.parametrize("hours", [3, -3])
@pytest.mark.parametrize("echoes", [True, False])
def test_a_canary_that_the_listing_dates_elsewhere_is_none(hours: int, echoes: bool) -> None:
    """Times told in another zone without saying so: then our lost send may be listed outside its window too."""
    moved = replace(CANARY, created_at=ARMED + timedelta(hours=hours, seconds=15))
    lost = item("ours", after_s=5 + hours * 3600)
    looked = listing(lost, moved, canary=False, echoes=echoes, exclusive=False)
    assert found(send(), looked) is Finding.UNCLEAR


def test_a_canary_without_a_time_is_one() -> None:
    undated = replace(CANARY, created_at=None)
    looked = listing(undated, canary=False)
    assert found(send(), looked) is Finding.ABSENT_ONCE


def test_absence_is_not_concluded_before_the_hosts_spool_was_replayed() -> None:
    unreplayed = send(absent_seen_at=READY, spool_clear=False)
    assert found(unreplayed, listing(read_at=LATER)) is Finding.UNCLEAR


@pytest.mark.parametrize("echoes", [False, None])
def test_where_echo_is_not_a_known_fact_any_unlinked_generation_forbids_absence(
    echoes: bool | None,
) -> None:
    where = listing(item("gen_1", model="writer"), read_at=LATER, echoes=echoes)
    assert found(SEEN, where) is Finding.UNCLEAR


def test_without_echo_an_empty_window_proves_absence() -> None:
    assert found(SEEN, listing(read_at=LATER, echoes=False)) is Finding.ABSENT


# --- overdue ----------------------------------------------------------------------------------------------------------


def late(now: datetime, **values: Any) -> bool:
    defaults: dict[str, Any] = {"lag_s": LAG_S, "absent_seen_at": None}
    return overdue(send_not_after=FENCE, deadline_s=30.0, now=now, **defaults | values)


def test_a_person_sees_it_once_absence_could_have_been_concluded() -> None:
    due = READY + timedelta(seconds=CASE_GRACE_S)
    assert not late(due - timedelta(seconds=1))
    assert late(due)


def test_a_first_absence_gives_the_second_look_its_time() -> None:
    seen = READY + timedelta(seconds=30)
    due = seen + timedelta(seconds=LAG_S + CASE_GRACE_S)
    assert not late(due - timedelta(seconds=1), absent_seen_at=seen)
    assert late(due, absent_seen_at=seen)


def test_an_unmeasured_lag_brings_the_person_sooner() -> None:
    assert late(READY + timedelta(seconds=CASE_GRACE_S - LAG_S), lag_s=None)


# --- one listing for several ------------------------------------------------------------------------------------------


def test_sends_hours_apart_have_listings_of_their_own() -> None:
    """What an old one needs may be more pages than are read; that must hold up none that came later."""
    minutes = (0, 45, 90, 90 + 61, 600)
    sends = [
        send(task_id=uuid.UUID(int=number), armed_at=ARMED + timedelta(minutes=minute))
        for number, minute in enumerate(minutes)
    ]
    groups = together(list(reversed(sends)))
    assert groups == [sends[:3], sends[3:4], sends[4:]]
    assert together([]) == []
