"""The pure parts of bench.evidence: what it sends, and that its judge sees what it must see."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from bench.evidence_judge import (
    PROMISES,
    Ledger,
    Outcome,
    Sent,
    figures,
    held,
    limits,
    table,
    verdict,
)
from bench.evidence_worlds import (
    FULL,
    KILL,
    KILLED,
    LIKE,
    NAMED,
    QUICK,
    STRUCK,
    Group,
    Size,
    deck,
    environment,
    family,
    kind_of,
    plan,
    providers,
    repertoire,
    worlds,
)
from providers.sandbox.faults import CATALOGUE, asked_for
from providers.sandbox.settings import Settings

ARMED = datetime(2026, 3, 1, 12, tzinfo=UTC)


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_every_fault_of_the_line_is_in_the_repertoire_and_no_answer_that_lies() -> None:
    connection, answers = repertoire()
    faults = [*connection, *answers]
    assert {kind_of(fault) for fault in faults} >= set(NAMED) - {KILL}
    assert not any(CATALOGUE[fault].deceptive for fault in faults)
    # Free refusals are no unknown outcome.
    assert not {"moderation", "overloaded", "rate_limited", "bad_request", "edge_429"} & set(faults)


@pytest.mark.parametrize("name", ["edge_502", "internal", "own_504", "ok_garbage", "conflict"])
def test_each_answer_comes_with_and_without_a_task(name: str) -> None:
    _, answers = repertoire()
    assert {name, f"{name}_after"} <= set(answers)


def test_a_deck_deals_all_faults_and_begins_with_what_everyone_must_meet() -> None:
    connection, answers = repertoire()
    dealt = list(islice(deck(random.Random(3)), 200))
    assert set(dealt) == {*connection, *answers}
    first = {kind_of(fault) for fault in dealt[: len(connection) + 2]}
    assert first >= set(NAMED) - {KILL}


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
def test_a_plan_strikes_enough_sends_in_bursts_of_like_ones(size: Size) -> None:
    accounts = worlds(alone=size.alone, lag_s=size.lag_s)
    bursts = plan(size, accounts, seed=7)
    assert bursts == plan(size, accounts, seed=7)
    struck, met = Counter[str](), defaultdict[Group, set[str]](set)
    group = {world.name: world.group for world in accounts}
    for burst in bursts:
        specs = asked_for(prompt=burst.prompt)
        if burst.reference == "burst":
            assert (burst.count, len(specs)) == (LIKE, STRUCK)
            struck[burst.world] += STRUCK
        met[group[burst.world]] |= {kind_of(spec.name) for spec in specs}
    assert sum(struck.values()) >= 0.8 * size.runs
    assert all(kinds >= set(NAMED) - {KILL} for kinds in met.values())
    assert {group[name] for name in KILLED} == set(Group)
    assert all(0 <= burst.at_s <= size.seconds for burst in bursts)


def test_each_account_has_a_key_and_a_place_and_each_provider_its_settings() -> None:
    accounts = worlds(alone=3, lag_s=2.0)
    known = providers(2.0)
    for settings in known.values():
        Settings().changed(settings)
    found = environment(QUICK, accounts, dict.fromkeys(known, "http://127.0.0.1:1/api/v1"))
    names = [pair.partition("=")[0] for pair in found["AI_ACCOUNTS"].split(",")]
    assert names == [world.name for world in accounts]
    keys = {found[f"{name.upper()}_API_KEY"] for name in names}
    assert len(keys) == len(names)
    assert {family(name) for name in names} >= {"echo", "exclusive", "shared", "alone", "gone"}


# --- the judge --------------------------------------------------------------------------------------------------------


def sent(**values: Any) -> Sent:
    defaults: dict[str, Any] = {
        "id": "a", "job": 1, "account": "echo", "state": "stored", "job_state": "succeeded", "provider_id": "gen_a",
        "armed_at": ARMED, "send_not_after": ARMED + timedelta(seconds=10), "deadline_s": 30.0, "lag_s": 5.0,
        "lost_at": ARMED, "accepted_at": ARMED + timedelta(seconds=7), "absent_at": None, "died": False,
        "delivered": True, "case_at": None, "case_open": False,
    }  # fmt: skip
    return Sent(**defaults | values)


ABSENT: dict[str, Any] = {
    "state": "unsent", "provider_id": "", "accepted_at": None, "delivered": False,
    "absent_at": ARMED + timedelta(seconds=90),
}  # fmt: skip
CASE: dict[str, Any] = {
    "state": "unknown", "job_state": "manual", "provider_id": "", "accepted_at": None, "delivered": False,
    "case_at": ARMED + timedelta(seconds=100), "case_open": True, "account": "gone",
}  # fmt: skip


def ledger(*accepted: str, posted: tuple[str, ...] = (), fault: str = "cut_headers") -> Ledger:
    """`accepted` ids have a task "gen_" + id each, and a charge; `posted` ones only arrived."""
    found = Ledger()
    found.add(
        {
            "tasks": [{"id": f"gen_{one}", "correlation": one} for one in accepted],
            "posts": [{"correlation": one, "fault": fault} for one in (*accepted, *posted)],
            "charges": [{"task": f"gen_{one}", "refunded_at": None} for one in accepted],
        }
    )
    return found


def one(task: Sent, where: Ledger, *others: Sent) -> tuple[Outcome, dict[str, list[str]]]:
    found = verdict([task, *others], where)
    wrong = {name: said for name, said in found.wrong.items() if said}
    return found.runs[0].outcome, wrong


def later(**values: Any) -> Sent:
    """The send that came after `a`, for the same job."""
    at = ARMED + timedelta(seconds=95)
    return sent(id="b", provider_id="gen_b", armed_at=at, lost_at=None, **values)


def test_what_was_accepted_and_is_there_is_settled() -> None:
    assert one(sent(), ledger("a")) == (Outcome.DELIVERED, {})


def test_what_never_arrived_and_was_sent_again_is_settled() -> None:
    assert one(sent(**ABSENT), ledger("b", posted=("a",)), later()) == (Outcome.SENT_AGAIN, {})


def test_a_case_is_a_case() -> None:
    assert one(sent(**CASE), ledger("a")) == (Outcome.CASE, {})


def test_a_link_to_anothers_generation_is_wrong() -> None:
    outcome, wrong = one(sent(provider_id="gen_x"), ledger("x", posted=("a",)))
    assert outcome is Outcome.WRONG_LINK
    assert "wrong_links" in wrong


def test_a_link_to_a_generation_that_nobody_has_is_wrong() -> None:
    assert one(sent(provider_id="gen_y"), ledger("a"))[0] is Outcome.WRONG_LINK


def test_a_wrong_link_of_a_send_that_was_never_lost_counts_too() -> None:
    found = verdict([sent(provider_id="gen_x", lost_at=None)], ledger("a", "x"))
    assert (found.runs, len(found.wrong["wrong_links"])) == ([], 1)


def test_an_accepted_send_that_was_called_absent_is_wrong() -> None:
    outcome, wrong = one(sent(**ABSENT), ledger("a", "b"), later())
    assert outcome is Outcome.WRONG_ABSENCE
    assert wrong.keys() >= {"wrong_absences", "double_charges", "lost_charges"}


def test_an_absent_send_that_was_not_sent_again_is_not_settled() -> None:
    outcome, wrong = one(sent(**ABSENT | {"job_state": "failed"}), ledger(posted=("a",)))
    assert outcome is Outcome.OPEN
    assert wrong.keys() == {"not_settled"}


def test_an_unknown_send_without_a_case_is_not_settled() -> None:
    outcome, wrong = one(sent(**CASE | {"case_open": False}), ledger("a"))
    assert outcome is Outcome.OPEN
    assert wrong.keys() == {"not_settled", "lost_charges"}


def test_a_send_after_one_that_may_have_cost_is_wrong() -> None:
    _, wrong = one(sent(**CASE), ledger("a", "b"), later())
    assert "sent_wrongly" in wrong
    assert "double_charges" in wrong


def test_a_send_that_was_posted_twice_is_wrong() -> None:
    _, wrong = one(sent(), ledger("a", posted=("a",)))
    assert wrong.keys() == {"sent_wrongly"}


def test_a_success_without_a_charge_is_noticed() -> None:
    found = ledger("a")
    found.standing.clear()
    assert one(sent(), found)[1].keys() == {"double_charges"}


def test_strangers_of_the_same_key_are_nobodys() -> None:
    where = ledger("a")
    where.add(
        {
            "tasks": [{"id": "gen_s", "correlation": ""}],
            "posts": [],
            "charges": [{"task": "gen_s", "refunded_at": None}],
        }
    )
    assert one(sent(), where) == (Outcome.DELIVERED, {})
    assert one(sent(provider_id="gen_s"), where)[0] is Outcome.WRONG_LINK


@pytest.mark.parametrize(
    ("values", "where", "kind"),
    [
        ({}, ledger("a"), "cut answer"),
        ({}, ledger("a", fault="hang_after_accept"), "timeout"),
        (ABSENT, ledger(), "reset before read"),
        ({"died": True}, ledger("a", fault="slow_answer"), KILL),
        ({}, ledger("a", fault=""), "the machine's own"),
    ],
)
def test_a_run_is_told_by_the_fault_that_struck(
    values: dict[str, Any], where: Ledger, kind: str
) -> None:
    [run] = verdict([sent(**values)], where).runs
    assert run.kind == kind


# --- figures ----------------------------------------------------------------------------------------------------------

ACCOUNTS = worlds(alone=1, lag_s=5.0)


def told(*sends: Sent, where: Ledger) -> dict[str, Any]:
    return figures(verdict(sends, where), ACCOUNTS)


def test_the_case_is_timed_from_when_absence_could_be_concluded() -> None:
    # 10 s fence, 30 s deadline, 10 s margin, 5 s lag: 55 s. The case came at 100 s.
    assert told(sent(**CASE), where=ledger("a"))["case_without_history_s"] == 45.0
    unmeasured = sent(**CASE | {"lag_s": None, "account": "unmeasured"})
    assert told(unmeasured, where=ledger("a"))["case_without_history_s"] == 50.0


def test_a_case_where_the_history_echoes_is_counted() -> None:
    assert told(sent(**CASE | {"account": "echo"}), where=ledger("a"))["cases_with_echo"] == 1
    assert told(sent(), where=ledger("a"))["cases_with_echo"] == 0


@pytest.mark.parametrize(
    ("account", "figure"),
    [("shared", "linked_on_a_guess"), ("gone", "linked_on_a_guess"), ("alone_1", "linked_as_the_only_one")],
)  # fmt: skip
def test_a_link_is_counted_where_it_may_or_may_not_be(account: str, figure: str) -> None:
    assert told(sent(account=account), where=ledger("a"))[figure] == 1
    assert told(sent(), where=ledger("a"))[figure] == 0


def test_absence_without_a_history_is_counted() -> None:
    sends = sent(**ABSENT, account="unmeasured"), later(account="unmeasured")
    assert told(*sends, where=ledger("b"))["absent_without_history"] == 1


def test_faults_that_did_not_come_are_named() -> None:
    missing = told(sent(), where=ledger("a"))["faults_not_met"]
    assert "echo: cut answer" not in missing
    assert "no echo: cut answer" in missing
    assert f"no history: {KILL}" in missing


def test_the_bars_hold_for_good_figures_and_for_no_others() -> None:
    bars = limits(runs=2, alone=4)
    good: dict[str, Any] = {
        "runs": 2, **dict.fromkeys(PROMISES, 0), "cases_with_echo": 0, "linked_on_a_guess": 0,
        "linked_as_the_only_one": 1, "absent_without_history": 0, "case_without_history_s": 60.0, "other_cases": {},
        "faults_not_met": [],
    }  # fmt: skip
    assert held(bars, good)
    bad: dict[str, Any] = {
        "runs": 1, **dict.fromkeys(PROMISES, 1), "cases_with_echo": 1, "linked_on_a_guess": 1,
        "linked_as_the_only_one": 0, "absent_without_history": 1, "case_without_history_s": 60.1,
        "other_cases": {"conflict": 1}, "faults_not_met": ["echo: timeout"],
    }  # fmt: skip
    assert bad.keys() == good.keys()
    for name, value in bad.items():
        assert not held(bars, good | {name: value}), name
    assert not held(bars, good | {"case_without_history_s": None})


def test_the_table_has_a_line_for_each_world_and_fault() -> None:
    sends = [
        sent(),
        sent(**CASE, id="c", job=2),
        sent(**CASE | {"account": "alone_1"}, id="d", job=3),
    ]
    lines = table(verdict(sends, ledger("a", "c", "d")).runs)
    assert [(line["world"], line["fault"], line["runs"]) for line in lines] == [
        ("alone", "cut answer", 1), ("echo", "cut answer", 1), ("gone", "cut answer", 1),
    ]  # fmt: skip
    assert lines[1]["longest_to_settle_s"] == 7.0
    assert (lines[2]["cases"], lines[2]["case_after_absence_s"]) == (1, 45.0)
