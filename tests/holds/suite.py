"""How a line is shown by something that runs elsewhere too, in a process of its own: a benchmark, or tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent.parent


def measured(*command: str) -> dict[str, Any]:
    """The report of a benchmark, its figures and limits printed; its progress goes to the terminal."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "--json"], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False
    )  # fmt: skip
    report: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps({"figures": report["figures"], "limits": report["limits"]}, indent=1))
    assert report["ok"] == (done.returncode == 0)
    return report


def passes(*paths: str) -> bool:
    """Whether pytest is content with all of them; what it says goes to the terminal. By a worker, which has a database of its
    own: a test beside this one may hold the usual one open."""
    words = [sys.executable, "-m", "pytest", "-q", "-n", "1", *paths]
    done = subprocess.run(words, cwd=PROJECT, check=False)
    return done.returncode == 0
