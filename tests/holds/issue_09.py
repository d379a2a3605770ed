"""The "Must hold" lines of issue 9, one test each, with their figures printed."""

from __future__ import annotations

import pytest

from tests.holds.suite import measured, passes

pytestmark = [pytest.mark.flow]


# --- line 1: the walk, in all languages, light and dark, on a screen and a phone; its pictures are in var/screenshots ------


def test_line_1_the_walk() -> None:
    assert passes("tests/browser/test_walk.py", "--whole")


# --- line 2: the cost of pages ----------------------------------------------------------------------------------------


def test_line_2_a_million_jobs_cost_what_a_thousand_do() -> None:
    assert measured("bench.admin")["ok"]


# --- line 3: axe ------------------------------------------------------------------------------------------------------


def test_line_3_axe_finds_nothing_serious() -> None:
    assert passes("tests/browser/test_access.py")


# --- line 4: the dashboard's numbers ------------------------------------------------------------------------------------


def test_line_4_numbers_of_the_dashboard_are_those_of_plain_sql() -> None:
    assert passes("tests/test_dashboard.py", "tests/test_send_sums.py")
