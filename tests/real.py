"""The desk of real processes (bench/desk.py) on a database beside the tests' own, with steps that can be held up."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from django.db import connections

from bench.desk import RealDesk, desk_on

# While a row stands in `pause`, the named step of a send waits inside its transaction.
_PAUSES = """
CREATE TABLE pause (step text PRIMARY KEY);
CREATE FUNCTION pause_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (TG_ARGV[0] = 'arm' AND OLD.armed_at IS NULL AND NEW.armed_at IS NOT NULL)
     OR (TG_ARGV[0] = 'record' AND OLD.provider_id IS NULL AND NEW.provider_id IS NOT NULL) THEN
    IF EXISTS (SELECT 1 FROM pause WHERE step = TG_ARGV[0]) THEN PERFORM pg_sleep(8); END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER pause_arm BEFORE UPDATE ON jobs_providertask FOR EACH ROW EXECUTE FUNCTION pause_step('arm');
CREATE TRIGGER pause_record BEFORE UPDATE ON jobs_providertask FOR EACH ROW EXECUTE FUNCTION pause_step('record');
"""


@contextlib.contextmanager
def real_desk(
    folder: Path, *, echoes: bool = True, sandbox: dict[str, Any] | None = None, **settings: object
) -> Iterator[RealDesk]:
    """A migrated database on the tests' own server, a sandbox, and no cluster yet."""
    server = connections["default"].settings_dict
    host, name = str(server["HOST"] or "localhost"), f"real_{uuid.uuid4().hex[:8]}"
    maker = psycopg.connect(
        host=host, port=server["PORT"] or None, user=server["USER"], password=server["PASSWORD"] or None,
        dbname="postgres", autocommit=True,
    )  # fmt: skip
    user, password = quote(str(server["USER"])), quote(str(server["PASSWORD"] or ""))
    place = (
        f":{server['PORT'] or 5432}" if host.startswith("/") else f"{host}:{server['PORT'] or 5432}"
    )
    query = "?" + urlencode({"host": host}) if host.startswith("/") else ""
    url = f"postgres://{user}:{password}@{place}/{name}{query}"
    with maker:
        maker.execute(f'CREATE DATABASE "{name}"')
        try:
            with desk_on(url, folder, echoes=echoes, sandbox=sandbox, **settings) as desk:
                desk.ask(_PAUSES)
                yield desk
        finally:
            maker.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
