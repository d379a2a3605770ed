"""`.env.example` and the settings name the same things."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from providers import registry

ROOT = Path(__file__).resolve().parent.parent
READ = re.compile(r'(?:env\.\w+|_number|_whole|_flag)\(\s*"([A-Z][A-Z_]+)"')


def test_the_example_lists_every_setting_and_no_other() -> None:
    source = (ROOT / "studio" / "settings.py").read_text(encoding="utf-8")
    read = set(READ.findall(source))
    for adapter in registry.REGISTERED:
        own = (f"{adapter.name.upper()}_{option.upper()}" for option in adapter.options)
        read |= {adapter.key_setting, f"{adapter.name.upper()}_BASE_URL", *own}
    listed = set(
        re.findall(r"^([A-Z][A-Z_]+)=", (ROOT / ".env.example").read_text("utf-8"), re.MULTILINE)
    )
    assert listed == read


def test_each_setting_has_a_line_of_explanation() -> None:
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    settings = [number for number, line in enumerate(lines) if re.match(r"[A-Z_]+=", line)]
    assert [lines[n] for n in settings if not re.match(r"# [^-]", lines[n - 1])] == []


def test_the_example_as_it_is_starts_the_demo_and_keeps_every_default() -> None:
    """Read in a process of its own: with the example's values, and with none."""
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    given = dict(line.split("=", 1) for line in lines if re.match(r"[A-Z_]+=", line))
    # The database is not what this is about; any address will do, as nothing connects.
    plain = {"PYTHONHASHSEED": "0", "DEMO": "1", "DATABASE_URL": "postgres://nobody@127.0.0.1/none", "PATH": os.environ["PATH"]}  # fmt: skip
    assert _settings(given | plain) == _settings(plain)


def _settings(environment: dict[str, str]) -> str:
    code = (
        "import environ, json; environ.Env.read_env = lambda *_: None;"
        "from studio import settings as s;"
        "print(json.dumps({n: str(getattr(s, n)) for n in dir(s) if n.isupper() and n not in"
        " ('LOGGING', 'LANGUAGES', 'FALLBACK_ON')} | {'f': sorted(s.FALLBACK_ON)}, sort_keys=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
