"""A line that is shown by tests which also run elsewhere: they run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent


def passes(*paths: str) -> bool:
    """Whether pytest is content with all of them; what it says goes to the terminal."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *paths], cwd=PROJECT, check=False)
    return done.returncode == 0
