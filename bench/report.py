"""What every benchmark prints: one JSON object, or a table. Not a benchmark itself."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

Measure = Callable[[bool], tuple[dict[str, Any], dict[str, Any], bool]]


def machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def run(name: str, question: str, measure: Measure, arguments: list[str] | None = None) -> int:
    """Measure and print. `measure(quick)` returns (figures, limits, ok). Exit code 0 when ok, 1 when not."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="within a minute or so: fewer samples")
    options = parser.parse_args(arguments)
    figures, limits, ok = measure(options.quick)
    report = {
        "name": name, "ok": ok, "quick": options.quick, "figures": figures, "limits": limits, "machine": machine(),
    }  # fmt: skip
    if options.json:
        print(json.dumps(report))
    else:
        print(question)
        for key, value in (
            *figures.items(),
            *((f"limit: {key}", value) for key, value in limits.items()),
        ):
            print(f"  {key:<40} {value}")
        print("ok" if ok else "NOT ok")
    sys.stdout.flush()
    return 0 if ok else 1
