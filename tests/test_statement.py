"""What a statement says, line by line, and that it says nothing else. Pure."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import statement
from jobs.statement import Kind, Missing, Ours, Source, Statement, Theirs, Unreadable, reckon
from jobs.states import TaskState
from providers.contract import Charge, HistoryItem, Receipt

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SINCE, UNTIL = NOW - timedelta(days=2), NOW
DAY = 86_400.0


def ours(at: datetime = NOW - timedelta(hours=5), **values: Any) -> Ours:
    """A stored send of 5.00, five hours old."""
    number = uuid.uuid4()
    defaults: dict[str, Any] = {
        "task_id": number, "job_id": 1, "tenant": "studio", "account_id": 1, "model": "m", "state": TaskState.STORED,
        "charge": Charge.CHARGED, "armed_at": at, "accepted_at": at + timedelta(seconds=1), "deadline_s": 30.0,
        "provider_id": f"gen_{number.hex[:8]}", "cost": Decimal("5.00"), "cost_staff": None, "staff_charge": "",
        "estimated": Decimal(8), "currency": "RUB",
    }  # fmt: skip
    return Ours(**defaults | values)


def lost(at: datetime = NOW - timedelta(hours=5), **values: Any) -> Ours:
    return ours(at, **{"provider_id": None, "accepted_at": None, "state": TaskState.UNKNOWN, "charge": Charge.POSSIBLE, "cost": None} | values)  # fmt: skip


def theirs(of: Ours | None = None, **values: Any) -> Theirs:
    """The line of a send, or of nobody's."""
    account_id = values.pop("account_id", of.account_id if of else 1)
    defaults: dict[str, Any] = {
        "provider_id": (of.provider_id if of and of.provider_id else f"gen_{uuid.uuid4().hex[:8]}"),
        "created_at": of.armed_at if of else NOW - timedelta(hours=4), "model": of.model if of else "m",
        "status": "completed", "cost": Decimal("5.00"),
    }  # fmt: skip
    return Theirs(item=HistoryItem(**defaults | values), account_id=account_id)


def source(**values: Any) -> Source:
    defaults: dict[str, Any] = {
        "account_id": 1, "readable": True, "complete": True, "read_at": NOW, "lag_s": 60.0, "echoes": True,
    }  # fmt: skip
    return Source(**defaults | values)


def told(sends: list[Ours], lines: list[Theirs], *sources: Source, **values: Any) -> Statement:
    defaults: dict[str, Any] = {
        "since": SINCE, "until": UNTIL, "retention_s": 7 * DAY, "currency": "RUB", "zone": UTC,
    }  # fmt: skip
    return reckon(ours=sends, theirs=lines, sources=sources or (source(),), **defaults | values)


def kinds(statement_: Statement) -> list[Kind]:
    return [one.kind for one in statement_.findings]


# --- both know it -----------------------------------------------------------------------------------------------------


def test_what_both_know_at_one_price_is_matched() -> None:
    one = ours()
    said = told([one], [theirs(one)])
    assert (said.findings, said.matched) == ((), 1)


@pytest.mark.parametrize(
    ("we", "they", "differ"),
    [("5.00", "5.00", False), ("5.0049", "5", False), ("4.995", "5", False), ("5.005", "5.00", True), ("5", "10", True)],
)  # fmt: skip
def test_prices_are_compared_after_rounding_to_a_hundredth(
    we: str, they: str, differ: bool
) -> None:
    one = ours(cost=Decimal(we))
    said = told([one], [theirs(one, cost=Decimal(they))])
    assert kinds(said) == ([Kind.COST] if differ else [])


def test_a_pending_price_proves_nothing() -> None:
    one = ours()
    assert told([one], [theirs(one, status="pending", cost=Decimal(0))]).matched == 1


def test_a_failure_that_was_charged_is_told_once_whatever_we_thought_it_cost() -> None:
    for cost in (None, Decimal(5), Decimal(0), Decimal(2)):
        one = ours(state=TaskState.FAILED, charge=Charge.POSSIBLE, cost=cost)
        assert kinds(told([one], [theirs(one, status="failed")])) == [Kind.FAILED_CHARGED]


def test_a_failure_that_was_free_is_matched() -> None:
    one = ours(state=TaskState.FAILED, charge=Charge.NONE, cost=Decimal(0))
    assert told([one], [theirs(one, status="failed", cost=Decimal(0))]).matched == 1


def test_a_price_that_was_taken_back_is_a_difference_until_our_books_say_so_too() -> None:
    one = ours()
    assert kinds(told([one], [theirs(one, cost=Decimal(0))])) == [Kind.COST]
    refunded = replace(one, charge=Charge.REFUNDED, staff_charge="refunded")
    assert told([refunded], [theirs(one, cost=Decimal(0))]).matched == 1


def test_what_we_took_for_free_and_they_charged_is_a_difference_from_nothing() -> None:
    one = ours(state=TaskState.REFUSED, charge=Charge.NONE, cost=None, provider_id=None)
    [said] = told([one], [theirs(correlation_id=str(one.task_id))]).findings
    assert (said.kind, said.ours, said.theirs) == (Kind.COST, Decimal(0), Decimal(5))


def test_a_price_of_a_persons_word_counts_before_the_machines() -> None:
    one = ours(cost=Decimal(4), cost_staff=Decimal(5))
    assert told([one], [theirs(one)]).matched == 1


def test_an_untold_price_is_no_difference() -> None:
    one = ours(cost=None)
    assert kinds(told([one], [theirs(one)])) == [Kind.UNPRICED]
    assert kinds(told([one], [theirs(one, cost=None)])) == [Kind.UNPRICED]
    receipt = {one.provider_id or "": Receipt(True, "completed", Decimal("5.00"))}
    priced = replace(one, cost=Decimal(5))
    assert told([priced], [theirs(one, cost=None)], receipts=receipt).matched == 1


# --- unknown to us ----------------------------------------------------------------------------------------------------


def test_a_charge_unknown_to_us_is_an_orphan_and_a_free_one_is_none() -> None:
    assert kinds(told([], [theirs()])) == [Kind.ORPHAN]
    assert kinds(told([], [theirs(cost=Decimal(0), status="failed")])) == [Kind.FREE]
    assert kinds(told([], [theirs(cost=Decimal(0), status="pending")])) == [Kind.RUNNING]


def test_the_same_generation_in_two_listings_is_one_orphan() -> None:
    line = theirs()
    said = told([], [line, line, replace(line, account_id=2)], source(), source(account_id=2))
    assert kinds(said) == [Kind.ORPHAN]


def test_a_send_of_an_old_key_is_no_orphan_in_the_new_keys_history() -> None:
    one = ours(account_id=2)
    said = told([one], [theirs(one, account_id=1)], source(), source(account_id=2, readable=False))
    assert (kinds(said), said.matched) == ([], 1)


def test_a_second_generation_of_one_send_is_an_orphan_that_names_its_job() -> None:
    one = ours(job_id=7)
    said = told([one], [theirs(one), theirs(correlation_id=str(one.task_id))])
    assert [(line.kind, line.job_id) for line in said.findings] == [(Kind.ORPHAN, 7)]


def test_what_was_made_a_moment_ago_may_be_on_its_way_to_us() -> None:
    line = theirs(created_at=NOW - timedelta(seconds=20))
    assert kinds(told([], [line], until=NOW + timedelta(hours=1))) == [Kind.TOO_YOUNG]


def test_what_may_be_a_lost_send_is_not_called_an_orphan() -> None:
    one = lost(job_id=9)
    silent = source(echoes=None)
    line = theirs(created_at=one.armed_at + timedelta(seconds=40))
    said = told([one], [line], silent)
    assert sorted(kinds(said)) == sorted([Kind.MAYBE, Kind.CANT_TELL])
    assert next(one_.maybe for one_ in said.findings if one_.kind is Kind.MAYBE) == (9,)
    for other in (
        theirs(created_at=one.armed_at + timedelta(minutes=30)),
        theirs(created_at=one.armed_at, model="another"),
    ):
        assert Kind.ORPHAN in kinds(told([one], [other], silent))
    # Where the history names whose it is, a stranger's name is an answer.
    assert Kind.ORPHAN in kinds(told([one], [replace(line, item=replace(line.item, correlation_id="stranger"))]))  # fmt: skip


def test_a_decided_orphan_stays_on_the_statement_as_settled() -> None:
    line = theirs()
    said = told([], [line], settled={line.item.provider_id: "disputed"})
    assert [(one.kind, one.settled) for one in said.findings] == [(Kind.ORPHAN, "disputed")]
    assert said.open == []


# --- unknown to them --------------------------------------------------------------------------------------------------


def test_ours_and_unknown_to_them() -> None:
    one, shown = ours(), ours()
    assert kinds(told([one, shown], [theirs(shown)])) == [Kind.UNKNOWN_THERE]


@pytest.mark.parametrize(
    ("sources", "values", "expected"),
    [
        ({"complete": False}, {}, Kind.UNREAD),
        ({"readable": False}, {}, Kind.OTHER_KEY),
        ({}, {"at": NOW - timedelta(seconds=65)}, Kind.TOO_YOUNG),
        ({"lag_s": None}, {"at": NOW - timedelta(minutes=59)}, Kind.TOO_YOUNG),
        ({"read_at": NOW + timedelta(days=6)}, {}, Kind.NOT_KEPT),
    ],
    ids=["not read to the end", "an old key", "younger than the lag", "lag not measured", "beyond retention"],
)  # fmt: skip
def test_absence_is_told_only_where_the_listing_proves_it(
    sources: dict[str, Any], values: dict[str, Any], expected: Kind
) -> None:
    at = values.pop("at", NOW - timedelta(days=1, hours=23))
    one, shown = ours(at), ours(NOW - timedelta(hours=1))
    said = told([one, shown], [theirs(shown)], source(**sources))
    assert [line.kind for line in said.findings if line.task_id == one.task_id] == [expected]


def test_a_blind_history_proves_nothing() -> None:
    assert set(kinds(told([ours() for _ in range(20)], []))) == {Kind.CANT_TELL}


def test_a_receipt_by_its_id_shows_what_the_listing_does_not() -> None:
    one, shown = ours(), ours()
    key = one.provider_id or ""
    lines = [theirs(shown)]
    known = {key: Receipt(True, "completed", Decimal("5.00"))}
    assert told([one, shown], lines, receipts=known).matched == 2
    assert kinds(told([one, shown], lines, receipts={key: Missing()})) == [Kind.UNKNOWN_THERE]
    assert kinds(told([one, shown], lines, receipts={key: Unreadable()})) == [Kind.UNREAD]


def test_a_send_without_an_id_cant_be_told_unless_the_history_names_ours() -> None:
    one, shown = lost(), ours()
    assert kinds(told([one, shown], [theirs(shown)], source(echoes=None))) == [Kind.CANT_TELL]
    assert kinds(told([one, shown], [theirs(shown)])) == [Kind.UNKNOWN_THERE]
    found = theirs(correlation_id=str(one.task_id).upper())
    assert kinds(told([one, shown], [theirs(shown), found])) == [Kind.UNLINKED]


def test_sends_that_cost_nothing_need_not_be_there() -> None:
    free = lost(state=TaskState.REFUSED, charge=Charge.NONE)
    assert told([free], []).findings == ()


def test_what_a_person_settled_is_told_as_settled() -> None:
    shown = ours()
    one = ours(charge=Charge.WRITTEN_OFF, staff_charge="written_off")
    said = told([one, shown], [theirs(shown)])
    assert ([line.settled for line in said.findings], said.open) == (["written_off"], [])


# --- the period, the clock, the money ---------------------------------------------------------------------------------


def test_neighbouring_periods_share_no_line_and_miss_none() -> None:
    """Sends by our clock, orphans by theirs; a pair whose clocks lie on two sides belongs to the send's period."""
    edge = NOW - timedelta(hours=12)
    one = ours(edge - timedelta(seconds=1))
    pair = theirs(one, created_at=edge + timedelta(seconds=30), cost=Decimal(9))
    orphan = theirs(created_at=edge)
    before = told([one], [pair, orphan], until=edge)
    after = told([one], [pair, orphan], since=edge)
    assert (kinds(before), kinds(after)) == ([Kind.COST], [Kind.ORPHAN])


def test_the_other_clock_is_measured() -> None:
    sends = [ours() for _ in range(5)]
    lines = [theirs(one, created_at=one.armed_at + timedelta(seconds=90)) for one in sends]
    assert told(sends, lines).skew_s == 90.0


def test_totals_are_by_day_of_the_zone_tenant_account_and_currency() -> None:
    late = datetime(2026, 11, 29, 22, 30, tzinfo=UTC)  # the 30th in Moscow
    sends = [
        ours(late), ours(late, tenant="dealer"), ours(late, cost=None),
        ours(late, charge=Charge.REFUNDED, staff_charge="refunded"),
        ours(late, charge=Charge.WRITTEN_OFF, staff_charge="written_off", cost_staff=Decimal(3)),
        lost(late), ours(late, currency="USD", cost=Decimal("0.04")),
    ]  # fmt: skip
    said = told(sends, [theirs(sends[0]), theirs(created_at=late)], zone=ZoneInfo("Europe/Moscow"))
    day = said.days["2026-11-30", "studio", 1, "RUB"]
    assert (day.sends, day.charged, day.unpriced, day.refunded, day.written_off, day.possible, day.theirs) == (
        5, Decimal(5), Decimal(8), Decimal(5), Decimal(3), Decimal(8), Decimal(5),
    )  # fmt: skip
    assert said.days["2026-11-30", "dealer", 1, "RUB"].charged == 5
    assert said.days["2026-11-30", "studio", 1, "USD"].charged == Decimal("0.04")
    assert said.days["2026-11-30", "", 1, "RUB"].unknown == 5
    assert set(said.months) == {("2026-11", *key[1:]) for key in said.days}


def test_a_rate_is_told_and_without_one_sums_stay_apart() -> None:
    usd, rub = ours(currency="USD", cost=Decimal("0.10")), ours()
    said = told([usd, rub], [theirs(usd, cost=Decimal("0.10")), theirs(rub)])
    common: dict[str, Any] = {"accounts": {1: "polza"}, "provider": "polza", "zone": "UTC", "currency": "RUB"}  # fmt: skip
    plain = statement.plain(said, rates={"RUB": Decimal(1), "USD": Decimal("92.5")}, **common)
    assert plain["rates"] == {"RUB": "1", "USD": "92.5"}
    assert {row["currency"]: row["in_studio"] for row in plain["months"]} == {"RUB": "5.00", "USD": "9.25"}  # fmt: skip
    plain = statement.plain(said, rates={"RUB": Decimal(1)}, **common)
    assert plain["rates"] == {"RUB": "1", "USD": None}
    assert {row["currency"]: row["in_studio"] for row in plain["months"]} == {"RUB": "5.00", "USD": None}  # fmt: skip


def test_money_is_written_without_an_exponent() -> None:
    assert [statement.text(Decimal(one)) for one in ("1E+3", "5.0000000000", "0.0412", "0")] == ["1000.00", "5.00", "0.0412", "0.00"]  # fmt: skip


# --- planted, in any mixture ------------------------------------------------------------------------------------------

_Planting = Callable[[datetime], tuple[list[Ours], list[Theirs], Kind | None]]


def _both(cost: str = "5.00", **values: Any) -> _Planting:
    def plant(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
        one = ours(at)
        return [one], [theirs(one, cost=Decimal(cost), **values)], None

    return plant


def _different(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    one = ours(at)
    return [one], [theirs(one, cost=Decimal("5.01"))], Kind.COST


def _failed(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    one = ours(at, state=TaskState.FAILED, charge=Charge.POSSIBLE, cost=None)
    return [one], [theirs(one, status="failed")], Kind.FAILED_CHARGED


def _free(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    one = ours(at, state=TaskState.FAILED, charge=Charge.NONE, cost=Decimal(0))
    return [one], [theirs(one, status="failed", cost=Decimal(0))], None


def _orphan(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    return [], [theirs(created_at=at)], Kind.ORPHAN


def _unknown_there(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    return [ours(at)], [], Kind.UNKNOWN_THERE


def _refused(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    return [lost(at, state=TaskState.REFUSED, charge=Charge.NONE)], [], None


def _found_by_echo(at: datetime) -> tuple[list[Ours], list[Theirs], Kind | None]:
    one = lost(at)
    return [one], [theirs(created_at=at, correlation_id=str(one.task_id))], None


_PLANTINGS: list[_Planting] = [
    _both(), _both("5.004"), _different, _failed, _free, _orphan, _unknown_there, _refused, _found_by_echo,
]  # fmt: skip


def _later(one: Theirs, seconds: int) -> Theirs:
    assert one.item.created_at is not None
    at = one.item.created_at + timedelta(seconds=seconds)
    return replace(one, item=replace(one.item, created_at=at))


_AGES = st.integers(min_value=300, max_value=int(2 * DAY) - 1)


@given(
    planted=st.lists(st.tuples(st.sampled_from(_PLANTINGS), _AGES), max_size=30),
    skew_s=st.integers(-100, 100),
    seed=st.randoms(use_true_random=False),
)
def test_exactly_what_was_planted_is_found(
    planted: list[tuple[_Planting, int]], skew_s: int, seed: Any
) -> None:
    """In any mixture and order, pages doubled, their clock off by less than we allow for."""
    sends, lines, expected = [], [], Counter[Kind]()
    witness = ours(NOW - timedelta(hours=30))  # so that the history is known to be ours
    for plant, age_s in [(_both(), 3600), *planted]:
        some, listed, kind = plant(NOW - timedelta(seconds=age_s))
        sends += some
        # Orphans are dated by their clock alone.
        lines += listed if kind is Kind.ORPHAN else [_later(one, skew_s) for one in listed]
        if kind is not None:
            expected[kind] += 1
    lines += [*seed.sample(lines, k=len(lines) // 2), theirs(witness)]
    seed.shuffle(lines)
    seed.shuffle(sends)
    said = told([*sends, witness], lines)
    found = Counter(one.kind for one in said.open)
    assert found == expected
    assert sum(total.sends for total in said.days.values()) == sum(
        one.charge is not Charge.NONE for one in [*sends, witness]
    )


@given(
    charges=st.lists(
        st.tuples(
            st.sampled_from(list(Charge)),
            st.sampled_from(["studio", "dealer"]),
            st.sampled_from(["RUB", "USD"]),
            st.decimals(0, 1000, places=2) | st.none(),
            _AGES,
        ),
        max_size=20,
    )
)
def test_each_sends_money_stands_in_one_place_and_months_are_the_sums_of_their_days(
    charges: list[tuple[Charge, str, str, Decimal | None, int]],
) -> None:
    sends = [
        ours(NOW - timedelta(seconds=age_s), charge=charge, tenant=tenant, currency=currency, cost=cost)
        for charge, tenant, currency, cost, age_s in charges
    ]  # fmt: skip
    said = told(sends, [])
    for currency in ("RUB", "USD"):
        counted = [
            one for one in sends if one.currency == currency and one.charge is not Charge.NONE
        ]
        money = sum((one.cost if one.cost is not None else one.estimated for one in counted), Decimal(0))  # fmt: skip
        for totals in (said.days, said.months):
            of = [total for key, total in totals.items() if key[3] == currency]
            assert sum(total.sends for total in of) == len(counted)
            assert (
                sum(
                    (
                        total.charged + total.unpriced + total.possible + total.refunded + total.written_off
                        for total in of
                    ),
                    Decimal(0),
                )
                == money
            )  # fmt: skip


@given(days=st.integers(0, 40), seconds=st.integers(1, 86_400))
def test_the_pieces_cover_the_period_without_a_gap(days: int, seconds: int) -> None:
    until = SINCE + timedelta(days=days, seconds=seconds)
    pieces = statement.windows(SINCE, until)
    skew = timedelta(seconds=statement.CLOCK_SKEW_S)
    assert (pieces[0][0], pieces[-1][1]) == (SINCE - skew, until + skew)
    assert all(one[1] == other[0] for one, other in pairwise(pieces))
