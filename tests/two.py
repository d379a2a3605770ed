"""Two real connections, one of them stopped where the test wants it: a race with one outcome instead of a chance.

`Two.race` starts one call on the first connection and holds it at a point, by default just before its COMMIT. Then it
starts the other call on the second connection and waits until PostgreSQL says that it is blocked by the first one, or
until it has ended. Only then may the first go on: it commits, or its process is killed there. Nothing sleeps.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from jobs.clock import Clock
from jobs.lifecycle.errors import Refused
from jobs.models import Case, Job, JobEvent, ProviderTask, Result

PATIENCE_S = 20.0
_LOOK_EVERY_S = 0.001

Work = Callable[[], Any]


class Killed(BaseException):
    """The process was killed here: its connection is cut, and the server rolls back what was not committed."""


# --- where a call is stopped ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """Before the first step that holds `text`; with `number`, before that step. A step is a statement or a COMMIT."""

    text: str = "COMMIT"
    number: int | None = None

    def here(self, number: int, step: str) -> bool:
        return number == self.number if self.number is not None else self.text in step


COMMIT = Point()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a call. `killed` excludes the others; an error other than Refused fails the test at once."""

    value: Any = None
    refused: str = ""
    killed: bool = False
    steps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """`waited`: the second had to wait for the first; else it ended while the first stood still."""

    first: Outcome
    second: Outcome
    waited: bool


# --- one connection ---------------------------------------------------------------------------------------------------


class Session:
    """A connection in a thread of its own, and one call at a time on it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._call: Future[Outcome] | None = None
        self._stop: Point | None = None
        self._steps: list[str] = []
        self._held, self._go = threading.Event(), threading.Event()
        self._dies = self._dead = False
        self._wrapper: BaseDatabaseWrapper = self._thread.submit(self._open).result(PATIENCE_S)

    def _open(self) -> BaseDatabaseWrapper:
        wrapper = connections["default"]  # this thread's own
        wrapper.ensure_connection()
        wrapper.execute_wrappers.append(self._statement)
        wrapper._commit = self._commit  # type: ignore[attr-defined]
        return wrapper

    def close(self) -> None:
        self._thread.submit(connections.close_all).result(PATIENCE_S)
        self._thread.shutdown()

    @property
    def pid(self) -> int:
        """Of the server's process; -1 while there is no connection."""
        raw = self._wrapper.connection
        return -1 if raw is None or raw.closed else raw.info.backend_pid

    def begin(self, work: Work, *, stop: Point | None = None) -> None:
        self._stop, self._steps = stop, []
        self._dies = self._dead = False
        self._held.clear()
        self._go.clear()
        self._call = self._thread.submit(self._run, work)

    def _run(self, work: Work) -> Outcome:
        value, refused, killed = None, "", False
        self._wrapper.ensure_connection()
        try:
            value = work()
        except Refused as error:
            refused = str(error)
        except BaseException:
            # On its way out Django meets the cut connection, and says so in place of Killed.
            if not self._dead:
                raise
            killed = True
            self._wrapper.close()
        return Outcome(value=value, refused=refused, killed=killed, steps=tuple(self._steps))

    # The two places every statement and every COMMIT goes through. Both run in this session's thread.

    def _statement(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        self._step(" ".join(sql.split()))
        return execute(sql, params, many, context)

    def _commit(self) -> None:
        self._step("COMMIT")
        BaseDatabaseWrapper._commit(self._wrapper)  # type: ignore[attr-defined]

    def _step(self, step: str) -> None:
        number = len(self._steps)
        self._steps.append(step)
        if self._stop is None or not self._stop.here(number, step):
            return
        self._stop = None
        self._held.set()
        if not self._go.wait(PATIENCE_S):
            raise TimeoutError(f"nobody let it go on before {step}")
        if self._dies:
            self._dead = True
            self._wrapper.connection.close()
            raise Killed

    # What the test's thread does with it.

    @property
    def held(self) -> bool:
        return self._held.is_set()

    @property
    def ended(self) -> bool:
        assert self._call is not None
        return self._call.done()

    def until_held(self) -> bool:
        """False: it ended without having come to the point."""
        self._until(lambda: self.held or self.ended)
        return self.held

    def until_blocked_by(self, other: Session) -> bool:
        """False: it ended without having to wait for the other."""

        def blocked() -> bool:
            with connection.cursor() as cursor:
                cursor.execute("SELECT %s = ANY(pg_blocking_pids(%s))", [other.pid, self.pid])
                return bool(cursor.fetchone() == (True,))

        waits = False

        def seen() -> bool:
            nonlocal waits
            waits = not self.ended and blocked()
            return waits or self.ended

        self._until(seen)
        return waits

    def until_it_has_looked_for_deadlocks(self) -> None:
        """A waiter looks once, after `deadlock_timeout`; as much again is left for it to be scheduled."""
        sql = """
            SELECT clock_timestamp() - waitstart > 2 * current_setting('deadlock_timeout')::interval
            FROM pg_locks WHERE pid = %s AND NOT granted
        """

        def looked() -> bool:
            with connection.cursor() as cursor:
                cursor.execute(sql, [self.pid])
                return bool(cursor.fetchone() == (True,))

        self._until(looked)

    def until_step(self, text: str, *, times: int = 1) -> None:
        """It has taken, or is at, so many steps that hold `text`."""
        self._until(lambda: sum(text in step for step in list(self._steps)) >= times)

    def _until(self, seen: Callable[[], bool]) -> None:
        assert self._call is not None
        over = time.monotonic() + PATIENCE_S
        while not seen():
            if time.monotonic() > over:
                raise TimeoutError(f"neither blocked nor ended: {self._steps}")
            wait([self._call], timeout=_LOOK_EVERY_S)

    def go_on(self, *, dies: bool = False) -> None:
        self._dies = dies
        self._go.set()

    def end(self) -> Outcome:
        assert self._call is not None
        return self._call.result(PATIENCE_S)

    def call(self, work: Work) -> Outcome:
        """To its end, with nobody beside it."""
        self.begin(work)
        return self.end()


# --- the two ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Two:
    a: Session
    b: Session

    def race(self, first: Work, second: Work, *, at: Point = COMMIT, dies: bool = False) -> Race:
        """The first is held at `at` until the second has ended or waits for it; then it goes on, or `dies` there."""
        self.a.begin(first, stop=at)
        if not self.a.until_held():
            steps = "\n  ".join(self.a.end().steps)
            raise AssertionError(f"it never came to {at}; its steps:\n  {steps}")
        pid = self.a.pid
        self.b.begin(second)
        try:
            waited = self.b.until_blocked_by(self.a)
        finally:
            self.a.go_on(dies=dies)
        if dies:
            _until_gone(pid)
        return Race(first=self.a.end(), second=self.b.end(), waited=waited)


def _until_gone(pid: int) -> None:
    """The server notices a cut connection a moment later; until then its locks stand."""
    over = time.monotonic() + PATIENCE_S
    with connection.cursor() as cursor:
        while time.monotonic() < over:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
            if cursor.fetchone() == (0,):
                return
    raise TimeoutError(f"the server still has {pid}")


@contextmanager
def two_connections() -> Iterator[Two]:
    """For a fixture that has asked for `transactional_db`."""
    sessions = [Session(name) for name in ("first", "second")]
    try:
        yield Two(*sessions)
    finally:
        for session in sessions:
            session.go_on()  # a failed test may have left one standing, and the other waiting for it
        for session in sessions:
            session.close()


class Still(Clock):
    """Stands still, so that two runs of one story write the same times."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        return self._moment

    def boot(self) -> float:
        return 0.0


# --- what came of it --------------------------------------------------------------------------------------------------

_TABLES: dict[str, Any] = {
    "job": Job,
    "tasks": ProviderTask,
    "cases": Case,
    "results": Result,
    "events": JobEvent,
}
# Row numbers differ between two runs of the same story.
_NUMBERS = frozenset({"id", "job_id", "batch_id"})


@dataclass(frozen=True, slots=True)
class Rows:
    """Everything that is written about one job. Two of the same story are equal, whatever their row numbers."""

    tables: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    def kinds(self) -> list[str]:
        """Of the events, sorted."""
        return sorted(event["kind"] for event in self.tables["events"])

    def difference(self, other: Rows) -> list[str]:
        """For people: what differs, ours first. Empty: the same."""
        told = []
        for table, rows in self.tables.items():
            for mine, theirs in itertools.zip_longest(rows, other.tables[table]):
                if mine is None or theirs is None:
                    told.append(f"{table}: {mine} -> {theirs}")
                elif mine != theirs:
                    changed = {
                        column: (mine[column], theirs[column])
                        for column in mine
                        if mine[column] != theirs[column]
                    }
                    told.append(f"{table}: {changed}")
        return told


def rows_of(job_id: int) -> Rows:
    """The job's rows as they are now, each table in an order that tells nothing of who came first."""
    names = {
        task_id: f"task {number}"
        for number, task_id in enumerate(
            ProviderTask.objects.filter(job_id=job_id)
            .order_by("created_at", "id")
            .values_list("pk", flat=True)
        )
    }
    tables = {}
    for name, model in _TABLES.items():
        found = model.objects.filter(**{"pk" if name == "job" else "job_id": job_id}).values()
        plain = [
            {
                column: value is not None if column == "delivered_id" else _named(value, names)
                for column, value in row.items()
                if column not in _NUMBERS or (column == "id" and name == "tasks")
            }
            for row in found
        ]
        tables[name] = sorted(plain, key=str)
    return Rows(tables)


def _named(value: Any, names: Mapping[uuid.UUID, str]) -> Any:
    match value:
        case uuid.UUID():
            return names.get(value, "another uuid")
        case str():
            for task_id, name in names.items():
                value = value.replace(str(task_id), name)
            return value
        case dict():
            return {key: _named(item, names) for key, item in value.items()}
        case list():
            return [_named(item, names) for item in value]
        case _:
            return value


def kinds_of(job_id: int) -> list[str]:
    """The kinds of a job's events, oldest first."""
    return list(
        JobEvent.objects.filter(job_id=job_id).order_by("pk").values_list("kind", flat=True)
    )


def only(items: Collection[Any]) -> Any:
    """The one there is."""
    [item] = items
    return item
