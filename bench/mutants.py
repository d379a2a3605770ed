"""Whether the proof would notice: the product is broken on purpose, one way at a time, and its catcher must fail.

`python -m bench.mutants [--json] [--quick] [--only NAME]`. A mutant of the simulation must be caught within 500 seeds; one that
lives inside a transaction or a socket names the tests that must fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

from bench import report
from bench.sim import server
from bench.sim.catalogue import MUTANTS
from bench.sim.mutation import Mutant

SEEDS = 500
_PYTEST = (
    "import sys; from bench.sim import mutation; from bench.sim.catalogue import MUTANTS;"
    "mutation.install(next(one for one in MUTANTS if one.name == sys.argv[1]));"
    "import pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:randomly', *sys.argv[2:]]))"
)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when every mutant was caught."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="three mutants only")
    parser.add_argument("--only", action="append", help="this mutant (may be given more than once)")
    options = parser.parse_args(arguments)
    chosen = [one for one in MUTANTS if not options.only or one.name in options.only]
    if options.quick:
        chosen = [
            one
            for one in MUTANTS
            if one.name in {"release_by_state", "no_fence", "send_what_was_not_armed"}
        ]
    server.start()
    table = {}
    for mutant in chosen:
        begun = time.monotonic()
        table[mutant.name] = found = (
            _by_simulation(mutant) if mutant.catcher == "simulation" else _by_tests(mutant)
        )
        found["took_s"] = round(time.monotonic() - begun, 1)
        said = f"after {found['seeds']} seeds" if "seeds" in found else mutant.catcher
        verdict = "caught" if found["caught"] else "SURVIVED"
        print(
            f"  {mutant.name:<38} {verdict:<9} {said:<20} {found['by']}",
            file=sys.stderr,
            flush=True,
        )
    survivors = [name for name, found in table.items() if not found["caught"]]
    body = {
        "name": "mutants", "ok": not survivors, "quick": options.quick,
        "figures": {"mutants": len(chosen), "caught": len(chosen) - len(survivors), "survivors": survivors, "table": table},
        "limits": {"survivors": 0, "seeds": SEEDS}, "machine": report.machine(),
    }  # fmt: skip
    if options.json:
        print(json.dumps(body))
    else:
        print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
        print("ok" if not survivors else f"NOT ok: {', '.join(survivors)}")
    return 1 if survivors else 0


def _by_simulation(mutant: Mutant) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.simulate", "--seeds", str(SEEDS), "--mutant", mutant.name, "--stop", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        figures = json.loads(done.stdout)["figures"]
    except (ValueError, KeyError):
        return {"caught": False, "by": f"the simulation did not run: {done.stderr[-300:]}"}
    return {
        "caught": bool(figures["failed_seeds"]),
        "seeds": figures["seeds"],
        "by": figures["first_violation"][:160],
    }


def _by_tests(mutant: Mutant) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"} | {
        "DEMO": "1"
    }
    done = subprocess.run(
        [sys.executable, "-c", _PYTEST, mutant.name, *mutant.catcher.split()],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return {
        "caught": done.returncode == 1 and bool(failed),
        "by": failed[0][:160] if failed else done.stdout[-200:],
    }


if __name__ == "__main__":
    sys.exit(main())
