"""The promise about money under every crash, every fault and every schedule that a seed can think of.

`python -m bench.simulate [--seeds N] [--seed S] [--json] [--quick]`. Each seed is a schedule of at least 300 steps: lanes of
the real engine interleaved at every commit and call, killed, frozen for minutes and brought back; a provider that misbehaves;
people who press buttons; then quiet, and a judgement by the provider's ledger. `--seed S` tells the story of one; a seed that
fails is shrunk to the fewest faults that still break something.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

from bench import report
from bench.sim import mutation, server
from bench.sim.catalogue import MUTANTS

QUICK_SEEDS = 40
SEEDS = 2000
STEPS = 300


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when no seed broke anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=None, help=f"how many schedules (default {SEEDS})"
    )
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of trouble in each")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} seeds")
    parser.add_argument("--mutant", help="break the product like this first (see bench.mutants)")
    parser.add_argument(
        "--stop", action="store_true", help="at the first seed that breaks something"
    )
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets is part of a schedule.
        os.environ["PYTHONHASHSEED"] = "0"
        own = ["-m", "bench.simulate", *(sys.argv[1:] if arguments is None else arguments)]
        os.execv(sys.executable, [sys.executable, *own])  # noqa: S606
    if options.seed is not None:
        server.start()
        return _tell_one(options.seed, options.steps, options.mutant)
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    if options.worker is not None:
        mine = range(options.first + options.worker, options.first + seeds, options.processes)
        return _work(mine, options.steps, options.mutant)
    return _run_all(options, seeds)


# --- many seeds -------------------------------------------------------------------------------------------------------


def _run_all(options: argparse.Namespace, seeds: int) -> int:
    from rich.console import Console
    from rich.progress import Progress

    server.start()
    begun = time.monotonic()
    done = steps = 0
    simulated_s = 0.0
    faults: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("seeds", total=seeds)
        outcomes = _outcomes(options, seeds)
        for outcome in outcomes:
            done += 1
            steps += outcome["steps"]
            simulated_s += outcome["simulated_s"]
            faults.update(name.partition("#")[0] for name in outcome["struck"])
            progress.advance(bar)
            if outcome["wrong"]:
                failed.append(outcome)
                progress.console.print(
                    f"seed {outcome['seed']}: {outcome['wrong'][0]}", highlight=False
                )
                if options.stop:
                    break
        outcomes.close()  # its processes end with it
    took = time.monotonic() - begun
    figures = {
        "seeds": done,
        "steps": steps,
        "steps_of_trouble_each": options.steps,
        "violations": sum(len(outcome["wrong"]) for outcome in failed),
        "failed_seeds": [outcome["seed"] for outcome in failed],
        "took_s": round(took, 1),
        "steps_per_s": round(steps / took),
        "simulated_hours": round(simulated_s / 3600, 1),
        "faults": dict(sorted(faults.items())),
    }
    ok = not failed and done == seeds
    figures["first_violation"] = failed[0]["wrong"][0] if failed else ""
    if options.json:
        body = {"name": "simulate", "ok": ok, "quick": options.quick, "figures": figures,
                "limits": {"violations": 0}, "machine": report.machine()}  # fmt: skip
        print(json.dumps(body))
    else:
        for name, value in figures.items():
            print(f"  {name:<24} {value}")
        for outcome in failed[:10]:
            print(f"seed {outcome['seed']}: {'; '.join(outcome['wrong'][:3])}")
        if failed:
            print(f"The story of one, shrunk: python -m bench.simulate --seed {failed[0]['seed']}")
        print("ok" if ok else "NOT ok")
    return 0 if ok else 1


def _outcomes(options: argparse.Namespace, seeds: int) -> Generator[dict[str, Any], None, None]:
    """From worker processes, each on a database of its own."""
    command = [sys.executable, "-m", "bench.simulate", "--seeds", str(seeds), "--first", str(options.first),
               "--steps", str(options.steps), "--processes", str(options.processes),
               *(["--mutant", options.mutant] if options.mutant else [])]  # fmt: skip
    workers = [
        subprocess.Popen([*command, "--worker", str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(options.processes)
    ]
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    for worker in workers:
        threading.Thread(target=_read, args=(worker, lines), daemon=True).start()
    ended = 0
    try:
        while ended < len(workers):
            line = lines.get()
            if line:
                yield json.loads(line)
            else:
                ended += 1
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def _read(worker: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        lines.put(line)
    lines.put("")


def _work(seeds: range, steps: int, mutant: str | None) -> int:
    _setup(mutant)
    from bench.sim import run

    gc.disable()  # an eighth of the time
    for seed in seeds:
        outcome = run.run(seed, steps=steps)
        gc.collect()
        told = {"seed": seed, "wrong": outcome.wrong, "steps": outcome.steps, "simulated_s": outcome.simulated_s,
                "struck": outcome.struck}  # fmt: skip
        print(json.dumps(told), flush=True)
    return 0


def _setup(mutant: str | None) -> None:
    if mutant is not None:
        mutation.install(next(one for one in MUTANTS if one.name == mutant))
    server.use()
    logging.disable(logging.CRITICAL)
    from bench.sim import run

    run.prepare()


# --- one seed ---------------------------------------------------------------------------------------------------------


def _tell_one(seed: int, steps: int, mutant: str | None) -> int:
    _setup(mutant)
    from bench.sim import run
    from bench.sim.shrink import shrink

    outcome = run.run(seed, steps=steps)
    if outcome.wrong:
        outcome = shrink(outcome, steps=steps)
    print("\n".join(outcome.story))
    print(f"seed {seed}: {outcome.steps} steps, {outcome.simulated_s:.0f} simulated seconds")
    print(f"faults: {', '.join(outcome.struck) or 'none'}")
    for what in outcome.wrong:
        print(f"WRONG: {what}")
    print("NOT ok" if outcome.wrong else "ok")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
