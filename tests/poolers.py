"""A pgbouncer in transaction mode before a server of the tests' own. Skips, with the reason, where there is none."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bench.postgres import OwnServer
from bench.processes import dying_with_us

_CONFIG = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
{more}
"""


def program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed (apt install pgbouncer)")
    return found


@contextlib.contextmanager
def pgbouncer(server: OwnServer, folder: Path, *, size: int = 6, more: str = "") -> Iterator[int]:
    """Its port. `more`: further lines of its settings."""
    run, port = program(), _free_port()
    folder.mkdir()
    with _relay(server.socket) as relay:
        words = _CONFIG.format(server=relay, port=port, folder=folder, size=size, more=more)
        (folder / "pgbouncer.ini").write_text(words)
        (folder / "users").write_text('"app" ""\n')
        as_whom = _open_to_nobody(folder) if os.getuid() == 0 else []
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                dying_with_us(run, "-q", *as_whom, str(folder / "pgbouncer.ini")),
                stdout=log,
                stderr=log,
            )
        try:
            _wait_for(port, process, folder / "log")
            yield port
        finally:
            process.kill()
            process.wait()


def _open_to_nobody(folder: Path) -> list[str]:
    """It refuses to run as root, and as nobody must reach its files."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    for name in ("pgbouncer.ini", "users"):
        (folder / name).chmod(0o644)
    return ["-u", pwd.getpwnam("nobody").pw_name]


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# --- the way from there to the server, which listens on a socket in a folder of root's --------------------------------


@contextlib.contextmanager
def _relay(upstream: Path) -> Iterator[int]:
    """Its port. All sockets are closed by the threads that have them."""
    threads: list[threading.Thread] = []
    over = threading.Event()

    def accept(listening: socket.socket) -> None:
        listening.settimeout(0.2)
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                client, _address = listening.accept()
                threads.append(threading.Thread(target=_carry, args=(client, upstream, over)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads.append(threading.Thread(target=accept, args=(listening,)))
        threads[-1].start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            over.set()
            for thread in threads:
                thread.join()


def _carry(client: socket.socket, upstream: Path, over: threading.Event) -> None:
    with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
        client.settimeout(None)
        server.connect(str(upstream))
        while not over.is_set():
            for ready in select.select([client, server], [], [], 0.2)[0]:
                part = ready.recv(64 * 1024)
                if not part:
                    return
                (server if ready is client else client).sendall(part)


def sessions(server: OwnServer, database: str) -> list[str]:
    """The last statement of each session of a database, as the server sees them."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        rows = connection.execute(
            "SELECT query FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'",
            [database],
        ).fetchall()
    return [query for (query,) in rows]
