"""Every condition of tests/data/bug-conditions.jsonl has a test that names it, or stands in a short table with its reason.

The file tells of faults that real projects had, each with its source. A test names those it proves by the marker
`@pytest.mark.condition("R28")`. What is not held yet is listed here, and the list may only become shorter.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CONDITIONS: dict[str, dict[str, str]] = {
    row["id"]: row
    for line in (TESTS / "data" / "bug-conditions.jsonl").read_text("utf-8").splitlines()
    for row in [json.loads(line)]
}

# Areas whose conditions are held by tests, but for those in NOT_YET.
COVERED = frozenset(
    {
        "alert",
        "budget",
        "classify",
        "clock",
        "concurrency",
        "config",
        "cooldown-deadlock",
        "crash",
        "double-spend",
        "download",
        "fallback",
        "flapping",
        "half-open",
        "hedging",
        "herd",
        "lease",
        "ledger",
        "lost-result",
        "poll",
        "poll-404",
        "queue",
        "reconcile",
        "retry-after",
        "settle",
        "shared-state",
        "storm",
        "timeout",
        "user-error",
    }
)

# Areas of what does not exist yet.
LATER = {
    "own-api": "there is no HTTP API of our own yet",
    "webhook": "no callback is asked for yet",
    "webhook-order": "no callback is asked for yet",
}

NOT_YET: dict[str, str] = {}


def named_in(source: str, where: str) -> Iterator[tuple[str, str]]:
    """(id, place) of every marker in a module's text. Read, not run: a skipped test names its condition all the same.

    ValueError where an id is not written out, as then nobody can look it up.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.condition":
            place = f"{where}:{node.lineno}"
            if not node.args or node.keywords:
                raise ValueError(f"{place}: a condition is named by its id")
            for argument in node.args:
                match argument:
                    case ast.Constant(value=str(condition)):
                        yield condition, place
                    case _:
                        raise ValueError(f"{place}: an id must be written out as a string")


def named() -> dict[str, list[str]]:
    """The places that name each id, over all test modules."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for condition, place in named_in(path.read_text("utf-8"), str(path.relative_to(TESTS))):
            places[condition].append(place)
    return dict(places)


def test_every_condition_of_the_covered_areas_has_a_test_that_names_it() -> None:
    held = named()
    missing = [
        f"{row['id']} ({row['area']}): {row['condition']}"
        for row in CONDITIONS.values()
        if row["area"] in COVERED and row["id"] not in held and row["id"] not in NOT_YET
    ]
    assert not missing, "\n".join(missing)


def test_no_marker_names_a_condition_that_does_not_exist() -> None:
    unknown = {
        condition: places for condition, places in named().items() if condition not in CONDITIONS
    }
    assert unknown == {}


def test_every_area_is_covered_or_said_to_come_later() -> None:
    assert COVERED.isdisjoint(LATER)
    assert {row["area"] for row in CONDITIONS.values()} == COVERED | LATER.keys()


def test_the_table_of_what_is_not_held_has_no_line_too_many() -> None:
    """A condition that a test names is held: its line goes, and with an area's last one the area's."""
    held = named()
    assert sorted(NOT_YET.keys() & held.keys()) == []
    assert sorted(one for one in NOT_YET if CONDITIONS[one]["area"] not in COVERED) == []
    begun = {CONDITIONS[condition]["area"] for condition in held if condition in CONDITIONS}
    assert sorted(begun & LATER.keys()) == []
    assert len(NOT_YET) + sum(row["area"] in LATER for row in CONDITIONS.values()) <= 14


def test_every_condition_tells_what_is_expected_and_where_it_was_seen() -> None:
    for row in CONDITIONS.values():
        assert all(row[name] for name in ("id", "area", "condition", "expected", "source"))


@pytest.mark.parametrize(
    "text",
    [
        "@pytest.mark.condition()\ndef test_a(): ...",
        "@pytest.mark.condition(ID)\ndef test_a(): ...",
        "@pytest.mark.condition(*IDS)\ndef test_a(): ...",
    ],
)
def test_a_marker_that_nobody_can_look_up_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"x\.py:1"):
        list(named_in(text, "x.py"))


def test_markers_are_found_on_functions_and_on_single_cases() -> None:
    text = (
        "@pytest.mark.condition('R01', 'R02')\n"
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.condition('R03'))])\n"
        "def test_a(a): ..."
    )
    found = [condition for condition, _ in named_in(text, "x.py")]
    assert sorted(found) == ["R01", "R02", "R03"]
