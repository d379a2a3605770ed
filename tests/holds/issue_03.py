"""The "Must hold" lines of issue 3, by their commands, with their figures printed. Lines 1 to 3 take from half an hour to an hour each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.holds.suite import passes

PROJECT = Path(__file__).resolve().parent.parent.parent


def measured(*command: str) -> dict[str, Any]:
    """The report of a benchmark, printed; its progress goes to the terminal."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "--json"], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(report["figures"], indent=1))
    assert report["ok"] == (done.returncode == 0)
    return report


def test_line_1_two_thousand_schedules() -> None:
    figures = measured("bench.simulate", "--seeds", "2000")["figures"]
    assert figures["seeds"] == 2000
    assert figures["steps"] >= 2000 * 300
    assert figures["violations"] == 0


def test_line_2_every_mutant_is_caught() -> None:
    figures = measured("bench.mutants")["figures"]
    assert figures["mutants"] >= 25
    assert figures["survivors"] == []


def test_line_3_chaos() -> None:
    assert measured("bench.chaos")["ok"]


def test_line_4_conditions_have_tests_that_name_them() -> None:
    assert passes("tests/test_conditions.py")


def test_line_5_the_promise_is_explained() -> None:
    said = (PROJECT / "docs" / "reliability.md").read_text(encoding="utf-8")
    for command in ("bench.simulate", "bench.mutants", "bench.chaos"):
        assert f"python -m {command}" in said
    assert "## What is not covered" in said
