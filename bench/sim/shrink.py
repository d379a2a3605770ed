"""From a failing schedule to the fewest faults that still break the promise."""

from __future__ import annotations

from bench.sim.run import Outcome, run


def shrink(failed: Outcome, *, steps: int) -> Outcome:
    """Leave out halves, quarters, … and at last single faults, as long as something is still wrong."""
    best, without = failed, set[str]()
    size = max(1, len(best.struck) // 2)
    while True:
        struck = list(best.struck)
        for start in range(0, len(struck), size):
            trial = without | set(struck[start : start + size])
            outcome = run(failed.seed, without=trial, steps=steps)
            if outcome.wrong and not outcome.wrong[0].startswith("the harness"):
                best, without = outcome, trial
                break
        else:
            if size == 1:
                return best
            size = max(1, size // 2)
