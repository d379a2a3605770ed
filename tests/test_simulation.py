"""The simulation itself: a bounded share of it, that a seed is one schedule, and that it tells what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.sim.catalogue import MUTANTS
from bench.sim.chance import Chance
from bench.sim.mutation import Mutant, OutgrownError, mutated, source_of

PROJECT = Path(__file__).resolve().parent.parent
SHARE = 16


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "bench.simulate", *arguments],
        cwd=PROJECT, env=environment | {"DEMO": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)["figures"]
    return found


@pytest.mark.flow
def test_a_share_of_the_schedules_breaks_nothing() -> None:
    done = simulate("--seeds", str(SHARE), "--json")
    told = figures(done)
    assert told["failed_seeds"] == [], told["first_violation"]
    assert told["seeds"] == SHARE
    assert told["steps"] >= 300 * SHARE
    assert done.returncode == 0


_AGAIN = """
from bench.sim import server
server.start()
from bench import simulate
simulate._setup(None)
from bench.sim import run
run.run(3, steps=60)
print(chr(10).join(run.run(2).story))
"""


@pytest.mark.flow
def test_a_seed_is_one_schedule_whatever_ran_before_it() -> None:
    first = simulate("--seed", "2")
    assert first.stdout.splitlines()[-1] == "ok", first.stdout[-2000:]
    again = subprocess.run(
        [sys.executable, "-c", _AGAIN], cwd=PROJECT, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {"PYTHONHASHSEED": "0"},
    )  # fmt: skip
    assert again.returncode == 0, again.stderr[-2000:]
    assert first.stdout.startswith(again.stdout)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_code(mutant: Mutant) -> None:
    for module in {where for where, _, _ in mutant.edits}:
        compile(mutated(mutant, module, source_of(module)), module, "exec")


def test_a_mutant_that_the_code_has_outgrown_says_so() -> None:
    mutant = Mutant("gone", "", (("jobs.epoch", "no such text", ""),))
    with pytest.raises(OutgrownError, match=r"occurs 0 times in jobs\.epoch"):
        mutated(mutant, "jobs.epoch", source_of("jobs.epoch"))


def test_a_fault_that_is_taken_back_moves_no_other_draw() -> None:
    first = Chance(7)
    struck = [first.strikes("kill", 0.3) for _ in range(50)]
    first_pick = first.pick("turn", range(1000))
    second = Chance(7, without=first.struck[:1])
    again = [second.strikes("kill", 0.3) for _ in range(50)]
    assert sum(struck) - sum(again) == 1
    assert second.pick("turn", range(1000)) == first_pick
    assert second.struck == first.struck[1:]
