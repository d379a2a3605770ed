"""A desk of real processes: clusters with the real engine, web, a sandbox, a database of its own. Not a benchmark itself.

What benches and tests of whole processes share. The sandbox's ledger judges.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from bench.processes import dying_with_us
from providers.registry import fingerprint
from providers.sandbox.server import Sandbox, running_sandbox

PROJECT = Path(__file__).resolve().parent.parent
KEY = "pza_real_desk"


def until(condition: Callable[[], Any], what: str, within_s: float = 60.0) -> Any:
    """The condition's first true value; fails after `within_s`."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {within_s:g} s: {what}")


def known_account(provider: str, key: str) -> str:
    """For RealDesk.python: an account as if it had been measured. Its history echoes our ids, without a lag."""
    return (
        "from django.utils.timezone import now; from providers.models import Account\n"
        f"Account.objects.create(provider={provider!r}, fingerprint={fingerprint(key)!r}, echoes_id=True,"
        " history_lag_s=0, created_at=now())\n"
    )


class RealDesk:
    """On the database at `url`, empty as yet. `settings` go to every process. `echoes`: whether the account is known to
    echo ids, with no lag."""

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
            "TOKEN_DIR": str(folder / "tokens"),
            "POLL_INTERVAL_SEC": "0.5",
            "RECONCILE_INTERVAL_SEC": "2",
            "POST_DEADLINE_SEC": "6",
            **{name: str(value) for name, value in settings.items()},
        }
        self.prompt = "a lighthouse"
        self.started: list[subprocess.Popen[bytes]] = []
        migrate = "from django.core.management import call_command; call_command('migrate', verbosity=0)\n"
        self.python(migrate + (known_account("polza", KEY) if echoes else ""))

    def python(self, code: str) -> str:
        """What the desk's own program prints, on its database."""
        return self.manage("shell", "-v0", "-c", code)

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

    def create(self, count: int, prompt: str = "a lighthouse", *options: str) -> None:
        self.manage("generate", prompt, "--count", str(count), "--json", *options)

    def start(self, name: str, *words: str, **settings: object) -> subprocess.Popen[bytes]:
        """A process of Python's in a group of its own, logging to `name`-N.log. `settings` are for it alone."""
        with (self.folder / f"{name}-{len(self.started)}.log").open("wb") as log:
            process = subprocess.Popen(
                dying_with_us(sys.executable, *words),
                cwd=PROJECT,
                env=self.environment | {key: str(value) for key, value in settings.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def start_cluster(self, **settings: object) -> subprocess.Popen[bytes]:
        return self.start("cluster", "manage.py", "qcluster", **settings)

    def start_web(self, port: int) -> subprocess.Popen[bytes]:
        words = f"-m uvicorn studio.asgi:application --host 127.0.0.1 --port {port} --lifespan off"
        return self.start("web", *words.split(), "--log-level", "warning")

    def lanes(self) -> dict[str, int]:
        """The processes that run a lane now, by their run."""
        found = self.ask(
            "SELECT run_id::text, pid FROM jobs_lane"
            " WHERE run_id IS NOT NULL AND heartbeat_at > now() - interval '15 seconds'"
        )
        return dict(found)

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

    def wrong(self, *others: Sandbox) -> list[str]:
        """What breaks the promise about money, judged by the providers' ledgers."""
        accounted, job_of = self._accounted()
        said, paid = [], defaultdict[int, list[str]](list)
        for ledger in (sandbox.ledger() for sandbox in (self.sandbox, *others)):
            said += [
                f"{name}: {ledger['summary'][name]}"
                for name in ("posted_twice", "charged_twice")
                if ledger["summary"][name]
            ]
            standing = [charge for charge in ledger["charges"] if charge["refunded_at"] is None]
            correlation = {task["id"]: task["correlation"] for task in ledger["tasks"]}
            for task in (charge["task"] for charge in standing):
                if not accounted & {task, correlation[task]}:
                    said.append(
                        f"a charge that is no file and no case: {task} ({correlation[task]})"
                    )
                if (job := job_of.get(correlation[task])) is not None:
                    paid[job].append(task)
        return said + [
            f"job {job} was charged for {len(tasks)} tasks: {tasks}"
            for job, tasks in paid.items()
            if len(tasks) > 1
        ]

    def _accounted(self) -> tuple[set[str], dict[str, int]]:
        """Provider ids and correlation ids of tasks with a stored file or an open case (a charge may answer to either: where
        the id never reached us, there is the case of the send); and the job of each correlation id."""
        rows = self.ask(
            "SELECT t.id::text, t.job_id, coalesce(t.provider_id, ''), t.stored_at IS NOT NULL OR EXISTS"
            " (SELECT 1 FROM jobs_case c WHERE c.task_id = t.id AND c.resolved_at IS NULL) FROM jobs_providertask t"
        )
        accounted = {name for row in rows if row[3] for name in (row[0], row[2]) if name}
        return accounted, {row[0]: row[1] for row in rows}

    def close(self) -> None:
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def desk_on(
    url: str,
    folder: Path,
    *,
    echoes: bool = True,
    sandbox: dict[str, Any] | None = None,
    **settings: object,
) -> Iterator[RealDesk]:
    """A desk on an empty database, with a sandbox, and no cluster yet."""
    with running_sandbox(**{"latency_fixed_s": 1.0, **(sandbox or {})}) as provider:
        desk = RealDesk(url, folder, provider, echoes=echoes, **settings)
        try:
            yield desk
        finally:
            desk.close()


def ledger_line(desk: RealDesk) -> str:
    """One line of figures, for people."""
    summary = desk.sandbox.summary()
    kept = ("posts", "posts_accepted", "charges", "charged_twice", "posted_twice")
    return json.dumps({name: summary[name] for name in kept} | {"jobs": desk.states()})
