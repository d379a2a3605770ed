"""A database for a simulating process, on a throw-away server in memory. Import nothing of Django before `use` was called."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg

_TEMPLATE = "sim_template"
_NO_KEYS = (
    "AI_API_KEY",
    "POLZA_API_KEY",
    "AI_BASE_URL",
    "POLZA_BASE_URL",
    "AI_MODEL",
    "AI_MODEL_FALLBACK",
)


def start() -> None:
    """The server with a migrated template; it runs as long as this process or one that it starts. Those join it."""
    try:
        _ask(f'CREATE DATABASE "{_TEMPLATE}"')
    except psycopg.errors.DuplicateDatabase:
        return
    code = "from bench.sim import server; server.settings('sim_template'); server.migrate()"
    subprocess.run([sys.executable, "-c", code], check=True)


def use() -> None:
    """A fresh database of this process's own, and Django set up on it."""
    name = f"sim_{uuid.uuid4().hex[:8]}"
    _ask(f'CREATE DATABASE "{name}" TEMPLATE "{_TEMPLATE}"')
    settings(name)
    import django

    django.setup()


def settings(database: str) -> None:
    """The environment from which studio/settings.py reads: this database, no key of anybody's."""
    place = _place()
    host = urlencode({"host": place["HOST"]})
    os.environ["DATABASE_URL"] = f"postgres://{place['USER']}@:{place['PORT']}/{database}?{host}"
    os.environ["DEMO"] = "1"
    os.environ["DJANGO_SETTINGS_MODULE"] = "studio.settings"
    # One actor moves at a time: nothing else runs in its loop meanwhile.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    for name in _NO_KEYS:
        os.environ[name] = ""


def migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _place() -> dict[str, Any]:
    from studio import embedded

    return embedded.ensure(Path("unused"), test=True)


def _ask(statement: str) -> None:
    place = _place()
    with psycopg.connect(
        host=place["HOST"], port=place["PORT"], user=place["USER"], dbname=place["NAME"], autocommit=True
    ) as connection:  # fmt: skip
        connection.execute(statement)
