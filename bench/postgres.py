"""A PostgreSQL of the bench's own, as in production (fsync on), that can be stopped and comes back. Not a benchmark itself."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import psycopg

from studio import embedded

Stop = Literal["fast", "immediate"]
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class OwnServer:
    """The server on `folder`. Its keeper starts it again whenever it ends, unless the keeper itself is held still."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._place = embedded.ensure(self.folder)
        self.keeper_pid = _parent(self.pid)

    @property
    def pid(self) -> int:
        """The server's process; 0 while there is none."""
        return embedded.postmaster(self.folder)[0]

    def url(self, database: str, *, user: str = "") -> str:
        """As the application, or as `user`: "postgres" may do everything."""
        place = self._place
        query = urlencode({"host": place["HOST"]})
        return f"postgres://{user or place['USER']}@:{place['PORT']}/{database}?{query}"

    @property
    def socket(self) -> Path:
        return Path(self._place["HOST"], f".s.PGSQL.{self._place['PORT']}")

    def create(self, database: str) -> str:
        """A new database; its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def stop(self, how: Stop) -> None:
        """Ends the server at once and returns; it stays away until `start`."""
        os.kill(self.keeper_pid, signal.SIGSTOP)
        pid = self.pid
        if embedded.serves(pid, self.folder):
            os.kill(pid, _SIGNALS[how])

    def start(self) -> None:
        """Let the keeper go on: it starts a server that has ended. Returns at once."""
        os.kill(self.keeper_pid, signal.SIGCONT)

    def cut_connections(self, share: float) -> int:
        """Ends that share of the clients' sessions, by chance; how many."""
        query = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < %s"
        )
        return int(rows(self.url("postgres"), query, share)[0][0])

    def close(self) -> None:
        """A keeper that is killed takes its server along."""
        pid = self.pid
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.keeper_pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while embedded.serves(pid, self.folder) and time.monotonic() < end:
            time.sleep(0.05)


def _parent(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


@contextlib.contextmanager
def own_server(folder: Path) -> Iterator[OwnServer]:
    server = OwnServer(folder)
    try:
        yield server
    finally:
        server.close()


def rows(url: str, query: str, *values: Any, patience_s: int = 3) -> list[tuple[Any, ...]]:
    """What one query gives, over a connection of its own. psycopg.Error where the server is away or slow."""
    with psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=patience_s,
        options=f"-c statement_timeout={patience_s}s",
    ) as connection:
        cursor = connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []
