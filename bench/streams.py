"""Does every change of a batch reach 500 open pages within 2 s, and what do they cost the web process and the database?

`python -m bench.streams [--json] [--quick]`. One web process on a database of its own; 500 clients of one process (raw
sockets) listen to one batch, whose jobs then end one at a time, each an own commit. A change has reached a client with the
first message that tells of it or of a later one; the time runs from the commit's return. Clients come as browsers do after
a restart: spread over the ten seconds that the server gives them. Afterwards all leave.

--quick: fewer changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import OwnServer, own_server, rows

CLIENTS = 500
NAME, PASSWORD = "somebody", "bench-only"
WITHIN_S = 2.0
BETWEEN_S = (0.5, 2.0)  # in no step with the server's rounds
SETTLE_S = 3.0


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    changes = 8 if quick else 25
    with (
        tempfile.TemporaryDirectory(prefix="streams-") as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(server.create("desk"), Path(folder)) as desk,
    ):
        figures = _measured(server, desk, changes)
    limits = {
        "delivered_min": CLIENTS * changes,
        "longest_s_max": WITHIN_S,
        "connections_with_all_max": 5,
        "connections_after_max": 5,
        "memory_more_mb_max": 100,
    }
    ok = (
        figures["delivered"] == limits["delivered_min"]
        and figures["longest_s"] <= limits["longest_s_max"]
        and figures["connections_with_all"] <= limits["connections_with_all_max"]
        and figures["connections_after"] <= limits["connections_after_max"]
        and figures["memory_more_mb"] <= limits["memory_more_mb_max"]
    )
    return figures, limits, ok


def _measured(server: OwnServer, desk: RealDesk, changes: int) -> dict[str, Any]:
    desk.python(
        "from django.contrib.auth import get_user_model\n"
        f"get_user_model().objects.create_superuser({NAME!r}, password={PASSWORD!r})\n"
    )
    desk.create(changes + 1)  # one stays, so that the batch does not end
    [[batch]] = desk.ask("SELECT id FROM jobs_batch")
    port = _free_port()
    web = desk.start_web(port)
    cookie = _signed_in(port, batch)
    time.sleep(SETTLE_S)
    before = _connections(server)
    memory, cpu_s = _memory_mb(web.pid), _cpu_s(web.pid)
    crowd = Crowd(port, f"/admin/jobs/batch/{batch}/stream/", cookie)
    with Sampler(server) as opening, crowd.listening():
        until(lambda: crowd.waiting == CLIENTS, "all clients hear", 60.0)
        time.sleep(SETTLE_S)
        opened_cpu_s = _cpu_s(web.pid)
        most_opening = opening.take()
        committed = _change(desk, changes)
        time.sleep(WITHIN_S + 1.0)
        with_all, with_all_memory = opening.take(), _memory_mb(web.pid)
        changing_cpu_s, threads = _cpu_s(web.pid), _threads(web.pid)
    time.sleep(SETTLE_S)
    delays = [
        heard[n] - committed[n] for heard in crowd.heard for n in range(changes) if n in heard
    ]
    return {
        "clients": CLIENTS,
        "changes": changes,
        "delivered": len(delays),
        "median_s": round(statistics.median(delays), 3),
        "p99_s": round(statistics.quantiles(delays, n=100)[98], 3),
        "longest_s": round(max(delays), 3),
        "messages_a_client": round(sum(crowd.messages) / CLIENTS, 1),
        "kb_a_message": round(crowd.longest_bytes / 1000, 2),
        "web_cpu_ms_to_open_one": round(1000 * (opened_cpu_s - cpu_s) / CLIENTS, 1),
        "web_cpu_ms_a_message": round(1000 * (changing_cpu_s - opened_cpu_s) / sum(crowd.messages), 2),
        "connections_before": before,
        "connections_while_they_come": most_opening,
        "connections_with_all": with_all,
        "connections_after": _connections(server),
        "memory_before_mb": memory,
        "memory_with_all_mb": with_all_memory,
        "memory_more_mb": round(with_all_memory - memory, 1),
        "memory_after_mb": _memory_mb(web.pid),
        "threads_with_all": threads,
    }  # fmt: skip


def _change(desk: RealDesk, changes: int) -> dict[int, float]:
    """End a job at a time; when each commit was back."""
    committed = {}
    with psycopg.connect(desk.url, autocommit=True, application_name="bench") as connection:
        for n in range(changes):
            time.sleep(random.uniform(*BETWEEN_S))
            connection.execute(
                "UPDATE jobs_job SET state = 'failed', reason = 'attempts_exhausted', finished_at = clock_timestamp()"
                " WHERE id = (SELECT min(id) FROM jobs_job WHERE state = 'pending')"
            )
            committed[n] = time.monotonic()
    return committed


# --- clients ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Crowd:
    """Clients of one event stream, in an event loop of their own. `heard`: by client, when each change was first known."""

    port: int
    path: str
    cookie: str
    heard: list[dict[int, float]] = field(default_factory=list)
    messages: list[int] = field(default_factory=lambda: [0] * CLIENTS)
    longest_bytes: int = 0
    waiting: int = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        self.heard = [{} for _client in range(CLIENTS)]
        with ThreadPoolExecutor(1) as thread:
            loop: Future[asyncio.AbstractEventLoop] = Future()
            stop = asyncio.Event()
            all_of_them = thread.submit(asyncio.run, self._all(loop, stop))
            try:
                yield
            finally:
                loop.result(10).call_soon_threadsafe(stop.set)
                all_of_them.result(60)

    async def _all(self, loop: Future[asyncio.AbstractEventLoop], stop: asyncio.Event) -> None:
        """Until `stop`; a client that loses its stream before that fails the bench."""
        loop.set_result(asyncio.get_running_loop())
        clients = [asyncio.create_task(self._one(number)) for number in range(CLIENTS)]
        stopped = asyncio.create_task(stop.wait())
        done, _rest = await asyncio.wait([*clients, stopped], return_when=asyncio.FIRST_COMPLETED)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        for early in done - {stopped}:
            stopped.cancel()
            early.result()
            raise AssertionError("a stream ended early")

    async def _one(self, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(
                f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {self.cookie}\r\n"
                "Accept: text/event-stream\r\n\r\n".encode()
            )
            status = await reader.readline()
            assert b" 200 " in status, status
            known = -1
            while line := await reader.readline():
                if line.startswith(b"data: {") and len(line) > len(b"data: {}\n"):
                    known = self._hear(number, line, known)
        finally:
            writer.close()

    def _hear(self, number: int, line: bytes, known: int) -> int:
        now = time.monotonic()
        ended = json.loads(line[len(b"data: ") :])["counts"]["failed"]
        if known < 0:
            self.waiting += 1
        else:
            self.messages[number] += 1
            self.longest_bytes = max(self.longest_bytes, len(line))
            for change in range(known, ended):
                self.heard[number][change] = now
        return int(ended)


def _signed_in(port: int, batch: int) -> str:
    """The cookie of a person who has looked at some pages."""
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)

    def reached() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return client.get("/admin/login/").status_code == 200
        return False

    until(reached, "the web server")
    token = client.cookies["csrftoken"]
    client.post("/admin/login/", data={"username": NAME, "password": PASSWORD, "csrfmiddlewaretoken": token})  # fmt: skip
    for path in ("/admin/", f"/admin/jobs/batch/{batch}/change/", f"/admin/jobs/batch/{batch}/progress/") * 3:  # fmt: skip
        assert client.get(path).status_code == 200, path
    return f"sessionid={client.cookies['sessionid']}"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# --- what it costs ----------------------------------------------------------------------------------------------------

_CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'desk'"


def _connections(server: OwnServer) -> int:
    return int(rows(server.url("postgres"), _CONNECTIONS)[0][0])


class Sampler(threading.Thread):
    """Counts the desk's connections twenty times a second; the bench's own one, while it changes jobs, is not the web's."""

    def __init__(self, server: OwnServer) -> None:
        super().__init__(name="sampler", daemon=True)
        self._url = server.url("postgres")
        self._most = 0
        self._end = threading.Event()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end.set()
        self.join()

    def take(self) -> int:
        """The most since the last time."""
        most, self._most = self._most, 0
        return most

    def run(self) -> None:
        query = f"{_CONNECTIONS} AND application_name <> 'bench'"
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._end.wait(0.05):
                found = connection.execute(query).fetchone()
                assert found is not None
                self._most = max(self._most, int(found[0]))


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(name)


def _memory_mb(pid: int) -> float:
    return round(_status(pid, "VmRSS") / 1024, 1)


def _threads(pid: int) -> int:
    return _status(pid, "Threads")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    return report.run("streams", "Does every change reach 500 open pages in time, and cheaply?", measure)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
