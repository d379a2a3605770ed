"""Is every send of unknown outcome settled to the truth, or put before a person in time?

`python -m bench.evidence [--json] [--quick] [--seed N]`. One PostgreSQL, one cluster of real lanes, sandboxes over real HTTP, and
an account for each thing that may be known of a history: it echoes our ids; it does not, and the key is ours alone, or not,
or there is but one lost send; nothing is measured yet; the listing answers 404; it does not answer. Each gets bursts of like
sends (same prompt, same model, the same second); the first two of a burst are struck by every fault of the sandbox after
which nobody can know, and workers are killed with their POSTs open. Traffic goes on until the last is settled. The
sandboxes' ledgers judge.

The times are the product's own (POST 30 s, look every 30 s), but for generations of 2 s and a history that lags 5 s.
--quick: fewer sends, a POST has 4 s, looks come every 2 s, and sends that end as cases are dated back by half a minute.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import django
from rich.console import Console
from rich.table import Table

from bench import report
from bench.desk import desk_on
from bench.evidence_judge import figures, held, limits, table, verdict
from bench.evidence_worlds import FULL, QUICK, environment, plan, providers, worlds
from bench.postgres import own_server
from providers.sandbox.server import running_sandbox

GENERATION_S = 2.0


def main() -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--seed", type=int, default=1, help="of the order of faults")
    options, rest = own.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # By way of every clean-up.
        signal.signal(number, lambda number, _frame: sys.exit(f"stopped by signal {number}"))
    return report.run(
        "evidence",
        "Is every send of unknown outcome settled to the truth, or put before a person in time?",
        lambda quick: measure(quick, options.seed),
        rest,
    )


def measure(quick: bool, seed: int) -> tuple[dict[str, Any], dict[str, Any], bool]:
    size = QUICK if quick else FULL
    accounts = worlds(alone=size.alone, lag_s=size.lag_s)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evidence-")))
        server = stack.enter_context(own_server(folder / "postgres"))
        sandboxes = {
            name: stack.enter_context(
                # Each with a seed of its own, or they would give the same ids.
                running_sandbox(seed=100 * seed + number, latency_fixed_s=GENERATION_S, **settings)
            )
            for number, (name, settings) in enumerate(providers(size.lag_s).items())
        }
        urls = {name: sandbox.api_url for name, sandbox in sandboxes.items()}
        settings = environment(size, accounts, urls)
        desk = stack.enter_context(desk_on(server.create("desk"), folder, echoes=False, **settings))
        # This process creates the jobs, by the same verb as pages and commands.
        os.environ.update(desk.environment, DJANGO_SETTINGS_MODULE="studio.settings")
        django.setup()
        from bench.evidence_run import Trial

        trial = Trial(desk, size, accounts, sandboxes, plan(size, accounts, seed))
        trial.run()
        found = verdict(trial.sent(), trial.ledger())
        told = {
            **figures(found, accounts),
            "other_cases": trial.other_cases(),
            "kills": trial.kills,
            "jobs": sum(desk.states().values()),
            "job_states": desk.states(),
            "canaries": trial.canaries,
            "breaker_openings": trial.breaker_openings(),
            "ended_in_time": trial.in_time,
            "took_s": round(trial.took_s, 1),
            "times": {
                "post_deadline_s": size.post_deadline_s,
                "look_every_s": size.reconcile_s,
                "history_lag_s": size.lag_s,
                "generation_s": GENERATION_S,
                "dated_back_s": size.dated_back_s,
            },
            "broken": {name: said[:20] for name, said in found.wrong.items() if said},
            "table": table(found.runs),
        }
    bars = limits(runs=size.runs, alone=size.alone)
    _show(told["table"])
    return told, bars, held(bars, told)


def _show(lines: Sequence[Mapping[str, Any]]) -> None:
    """For people; standard output is for the report."""
    shown = Table()
    for name in lines[0] if lines else ():
        shown.add_column(name.replace("_", " "), justify="left" if name in {"world", "fault"} else "right")  # fmt: skip
    for line in lines:
        shown.add_row(*("" if value is None else str(value) for value in line.values()))
    Console(stderr=True, width=150).print(shown)


if __name__ == "__main__":
    sys.exit(main())
