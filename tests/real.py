"""A desk of real processes: clusters with the real engine, a sandbox, a database of its own. The ledger judges."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from django.db import connections

from providers.registry import fingerprint
from providers.sandbox.server import Sandbox, running_sandbox

PROJECT = Path(__file__).resolve().parent.parent
KEY = "pza_real_desk"

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


def until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """The condition's first true value; fails after `within_s`."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {within_s:g} s: {what}")


class RealDesk:
    """`settings` go to every process. `echoes`: whether the account is known to echo ids, with no lag."""

    def __init__(
        self, url: str, folder: Path, sandbox: Sandbox, *, echoes: bool, **settings: object
    ) -> None:
        self.url, self.folder, self.sandbox = url, folder, sandbox
        self.environment = {
            **os.environ,
            "DEMO": "1",
            "DATABASE_URL": url,
            "AI_API_KEY": KEY,
            "AI_BASE_URL": sandbox.api_url,
            "SPOOL_DIR": str(folder / "spool"),
            "MEDIA_ROOT": str(folder / "media"),
            "POLL_INTERVAL_SEC": "0.5",
            "RECONCILE_INTERVAL_SEC": "2",
            "POST_DEADLINE_SEC": "6",
            **{name: str(value) for name, value in settings.items()},
        }
        self.prompt = "a lighthouse"
        self.clusters: list[subprocess.Popen[bytes]] = []
        self.manage("migrate", "-v0")
        self.ask(_PAUSES)
        if echoes:
            self.ask(
                "INSERT INTO providers_account (provider, fingerprint, label, echoes_id, history_lag_s, exclusive,"
                " balance_currency, created_at) VALUES ('polza', %s, '', true, 0, false, '', now())",
                fingerprint(KEY),
            )

    def manage(self, *arguments: str) -> str:
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command, cwd=PROJECT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def create(self, count: int, prompt: str = "a lighthouse") -> None:
        self.manage("generate", prompt, "--count", str(count), "--json")

    def start_cluster(self) -> subprocess.Popen[bytes]:
        log = (self.folder / f"cluster-{len(self.clusters)}.log").open("wb")
        with log:
            cluster = subprocess.Popen(
                [sys.executable, "manage.py", "qcluster"],
                cwd=PROJECT, env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.clusters.append(cluster)
        return cluster

    def lane_pid(self) -> int:
        """The process of the first lane that runs."""
        return int(
            until(lambda: self.ask("SELECT pid FROM jobs_lane WHERE run_id IS NOT NULL"), "a lane")[
                0
            ][0]
        )

    def states(self) -> dict[str, int]:
        return dict(self.ask("SELECT state, count(*) FROM jobs_job GROUP BY 1"))

    def tasks(self) -> dict[str, int]:
        return dict(self.ask("SELECT state, count(*) FROM jobs_providertask GROUP BY 1"))

    def settle(self, within_s: float, *, canary_every_s: float | None = 10.0) -> None:
        """Until every job has ended or waits for a person; traffic goes on, as absence needs a canary."""
        end, next_canary = (
            time.monotonic() + within_s,
            time.monotonic() + (canary_every_s or within_s),
        )
        while time.monotonic() < end:
            states = self.states()
            if not states.get("pending") and not states.get("active"):
                return
            if time.monotonic() >= next_canary:
                self.create(1, "canary")
                next_canary = time.monotonic() + (canary_every_s or within_s)
            time.sleep(0.3)
        raise AssertionError(f"not settled within {within_s:g} s: {self.states()}, {self.tasks()}")

    def wrong(self) -> list[str]:
        """What breaks the promise about money, judged by the provider's ledger."""
        summary = self.sandbox.summary()
        said = [
            f"{name}: {summary[name]}"
            for name in ("posted_twice", "charged_twice")
            if summary[name]
        ]
        unaccounted = [
            charge["task"]
            for charge in self.sandbox.ledger()["charges"]
            if charge["refunded_at"] is None and not self._accounted(charge["task"])
        ]
        return said + [f"a charge that is no file and no case: {task}" for task in unaccounted]

    def _accounted(self, provider_id: str) -> bool:
        """By its id; or, where the id never reached us, by the case of the send it answers to."""
        sent = self.sandbox.ledger()["tasks"]
        correlation = next(task["correlation"] for task in sent if task["id"] == provider_id)
        return bool(
            self.ask(
                "SELECT 1 FROM jobs_providertask t WHERE (t.provider_id = %s OR t.id::text = %s)"
                " AND (t.stored_at IS NOT NULL OR EXISTS"
                " (SELECT 1 FROM jobs_case c WHERE c.task_id = t.id AND c.resolved_at IS NULL))",
                provider_id,
                correlation,
            )
        )

    def close(self) -> None:
        for cluster in self.clusters:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(cluster.pid, signal.SIGCONT)
                os.killpg(cluster.pid, signal.SIGKILL)
            cluster.wait()


@contextlib.contextmanager
def real_desk(
    folder: Path, *, echoes: bool = True, sandbox: dict[str, Any] | None = None, **settings: object
) -> Iterator[RealDesk]:
    """A migrated database beside the tests' own, a sandbox, and no cluster yet."""
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
    with maker:
        maker.execute(f'CREATE DATABASE "{name}"')
        try:
            with running_sandbox(**{"latency_fixed_s": 1.0, **(sandbox or {})}) as provider:
                desk = RealDesk(
                    f"postgres://{user}:{password}@{place}/{name}{query}", folder, provider,
                    echoes=echoes, **settings,
                )  # fmt: skip
                try:
                    yield desk
                finally:
                    desk.close()
        finally:
            maker.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def ledger_line(desk: RealDesk) -> str:
    """One line of figures, for people."""
    summary = desk.sandbox.summary()
    kept = ("posts", "posts_accepted", "charges", "charged_twice", "posted_twice")
    return json.dumps({name: summary[name] for name in kept} | {"jobs": desk.states()})
