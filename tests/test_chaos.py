"""The chaos run's own parts: what each fault of the proxy lets through, over real sockets; and a run in small."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import httpx
import psycopg
import pytest

from bench import processes
from bench.chaos import FULL
from bench.desk import KEY, PROJECT, until
from bench.havoc.crew import Crew
from bench.havoc.nemesis import KILLS, Nemesis, Plan
from bench.havoc.watch import Lane, Outage, broken
from bench.postgres import own_server, rows
from bench.proxy import Fault, Proxy
from tests.real import real_desk

BODY = b"0123456789" * 20
# httpx reads on after a write that met the reset, and then finds the end of the connection only.
BROKEN = (httpx.NetworkError, httpx.RemoteProtocolError)


class Upstream(ThreadingHTTPServer):
    """Answers every POST with BODY and remembers what it has read."""

    daemon_threads = True

    def __init__(self) -> None:
        self.read: list[bytes] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Upstream)
        self.server.read.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the proxy ends by a reset
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[Proxy]:
    with Proxy(upstream.server_address[1], rng=random.Random(1), delay_s=(0.3, 0.4)) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url, timeout=1.0, trust_env=False) as client:
        yield client


def test_without_a_fault_everything_passes_and_connections_are_kept(
    client: httpx.Client, upstream: Upstream, proxy: Proxy
) -> None:
    for number in range(3):
        assert client.post("/", content=str(number)).content == BODY
    assert upstream.read == [b"0", b"1", b"2"]
    assert not proxy.struck


@pytest.mark.parametrize("kept_alive", [False, True])
@pytest.mark.parametrize(
    ("fault", "broke", "arrives"),
    [
        (Fault.RESET_AT_ACCEPT, BROKEN, False),
        (Fault.RESET_UNSENT, BROKEN, False),
        (Fault.RESET_AFTER_REQUEST, BROKEN, True),
        (Fault.CUT_HEADERS, BROKEN, True),
        (Fault.CUT_BODY, BROKEN, True),
        (Fault.BLACK_HOLE, (httpx.ReadTimeout,), False),
        (Fault.SWALLOW, (httpx.ReadTimeout,), True),
    ],
)
def test_a_broken_exchange_breaks_where_it_should(
    client: httpx.Client,
    upstream: Upstream,
    proxy: Proxy,
    fault: Fault,
    broke: tuple[type[Exception], ...],
    *,
    arrives: bool,
    kept_alive: bool,
) -> None:
    if kept_alive:
        client.post("/", content="before")
        upstream.read.clear()
    proxy.everything = fault
    with pytest.raises(broke):
        client.post("/", content="paid")
    assert upstream.read == ([b"paid"] if arrives else [])
    assert sum(proxy.struck.values()) == 1


def test_a_cut_body_comes_with_whole_headers_and_a_part_of_the_body(
    client: httpx.Client, proxy: Proxy
) -> None:
    proxy.everything = Fault.CUT_BODY
    pieces: list[bytes] = []
    with client.stream("POST", "/", content="paid") as response, pytest.raises(BROKEN):
        pieces.extend(response.iter_raw())
    part = b"".join(pieces)
    assert response.status_code == 200
    assert part
    assert BODY.startswith(part)
    assert len(part) < len(BODY)


@pytest.mark.parametrize("fault", [Fault.DELAY, Fault.DRIP])
def test_a_slow_answer_is_whole_and_late(client: httpx.Client, proxy: Proxy, fault: Fault) -> None:
    proxy.everything = fault
    response = client.post("/", content="paid")
    assert response.content == BODY
    assert response.elapsed.total_seconds() >= 0.25


def test_a_refusing_proxy_can_be_told_from_a_broken_connection_and_comes_back(
    client: httpx.Client, upstream: Upstream, proxy: Proxy
) -> None:
    client.post("/", content="before")
    proxy.refuse()
    with pytest.raises(BROKEN):
        client.post("/", content="on the kept connection, or on none")
    with pytest.raises(httpx.ConnectError):
        client.post("/", content="nobody listens")
    proxy.listen()
    assert client.post("/", content="after").content == BODY
    assert upstream.read == [b"before", b"after"]


def test_the_shares_are_kept(client: httpx.Client, upstream: Upstream, proxy: Proxy) -> None:
    proxy.shares = {Fault.RESET_UNSENT: 0.3, Fault.CUT_HEADERS: 0.2}
    lost = 0
    for _ in range(200):
        try:
            client.post("/", content="x")
        except BROKEN:
            lost += 1
    assert lost == proxy.struck.total()
    assert 40 <= proxy.struck[Fault.RESET_UNSENT] <= 80
    assert 25 <= proxy.struck[Fault.CUT_HEADERS] <= 55
    assert len(upstream.read) == 200 - proxy.struck[Fault.RESET_UNSENT]


# --- the schedule -----------------------------------------------------------------------------------------------------


def _schedule(seed: int) -> list[tuple[float, str]]:
    around = Mock(read_only_means="EROFS")
    nemesis = Nemesis(
        Plan(**FULL), crew=around, watch=around, server=around, proxy=around, disk=around, rng=random.Random(seed)
    )  # fmt: skip
    return nemesis.waiting()


def test_one_seed_is_one_schedule_with_all_that_the_plan_asks_for() -> None:
    schedule = _schedule(1)
    assert schedule == _schedule(1)
    assert schedule != _schedule(2)
    assert all(0 <= moment <= FULL["seconds"] for moment, _ in schedule)
    names = Counter(name for _, name in schedule)
    assert sum(count for name, count in names.items() if name.startswith("kill ")) == FULL["kills"]
    assert {f"kill {kind}" for kind in KILLS} <= names.keys()
    assert names["postgres fast"] + names["postgres immediate"] == len(FULL["restarts"])
    assert names["disk full"] == names["disk read-only"] == FULL["disks"] / 2


# --- the judge --------------------------------------------------------------------------------------------------------


@pytest.mark.flow
@pytest.mark.django_db(transaction=True)
def test_the_judge_sees_what_is_broken(tmp_path: Path) -> None:
    with real_desk(tmp_path, sandbox={"prepared_bytes": 1000}) as desk:
        desk.start_cluster()
        desk.create(2, "[[fault:latency=0]]")
        until(lambda: desk.states() == {"succeeded": 2}, "two pictures")
        well = broken(desk, [])
        assert not any(well.values()), well

        task, job = desk.ask("SELECT id::text, job_id FROM jobs_providertask LIMIT 1")[0]
        stranger = str(uuid.uuid4())
        for correlation in (task, stranger):
            desk.sandbox.control("plant", key=KEY, user=correlation)
        key = desk.ask("SELECT key FROM jobs_result ORDER BY id")[0][0]
        (Path(desk.environment["MEDIA_ROOT"]) / key).write_bytes(b"other")
        desk.ask("INSERT INTO jobs_hold (kind, set_at, reason) VALUES ('restore', now(), 'why')")
        desk.ask("UPDATE jobs_job SET reference = 'order7-1'")

        found = broken(desk, [("order7", 3, True), ("order8", 1, False)])
        assert [said for said in found["money"] if f"job {job} was charged for 2 tasks" in said]
        assert [
            said for said in found["money"] if "no file and no case" in said and stranger in said
        ]
        assert found["files"] == [f"{key} has other bytes"]
        assert found["holds"] == ["restore: why"]
        assert found["jobs_lost"] == ["order7: 2 of 3 jobs, acknowledged"]
        assert found["unfinished"] == found["cases"] == []


def test_work_is_resumed_once_the_slot_is_taken_and_nothing_is_left_in_the_dead_runs_name() -> None:
    outage = Outage("lane", at=0.0, lanes=(Lane(slot=2, run="dead", pid=1),))
    assert not outage.is_over(taken={1}, held=set(), last_event=0)
    assert not outage.is_over(taken={1, 2}, held={"dead", "other"}, last_event=0)
    assert outage.is_over(taken={1}, held={"other"}, last_event=0), "the slot was taken before"


def test_work_is_resumed_after_a_restart_of_the_database_with_the_first_event() -> None:
    outage = Outage("postgres", at=0.0, database=True)
    assert not outage.is_over(taken={1}, held=set(), last_event=7)
    assert not outage.is_over(taken={1}, held=set(), last_event=7)
    assert outage.is_over(taken=set(), held=set(), last_event=8)


@pytest.mark.flow
def test_a_process_that_outlives_its_cluster_is_a_ghost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.havoc.crew.GHOST_S", 1.0)
    crew = Crew(Mock(), Mock(lanes=()), clusters=1)
    children = ["sleep 0.2 & exec sleep 60", "sleep 60 & exec sleep 60"]
    crew.clusters[0].start = lambda _settings: subprocess.Popen(
        ["/bin/sh", "-c", children.pop(0)], start_new_session=True
    )
    crew.web.back_at = float("inf")
    groups = []
    for _ in range(2):
        crew.tend()
        groups.append(crew.clusters[0].pid)
        time.sleep(0.1)
        assert crew.clusters[0].process is not None
        crew.clusters[0].process.kill()
        crew.clusters[0].process.wait()
        crew.tend()
        crew.clusters[0].back_at = 0.0
    crew.clusters[0].back_at = float("inf")

    def found() -> list[str]:
        crew.tend()
        return crew.ghosts

    until(found, "a ghost", 10.0)
    assert len(crew.ghosts) == 1
    assert f"group {groups[1]}" in crew.ghosts[0]
    os.killpg(groups[1], signal.SIGKILL)


# --- what is around a desk --------------------------------------------------------------------------------------------


def test_an_own_server_keeps_what_was_committed_when_it_is_stopped_at_once(tmp_path: Path) -> None:
    with own_server(tmp_path / "postgres") as server:
        url = server.create("desk")
        rows(url, "CREATE TABLE kept AS SELECT 1 AS one")
        assert rows(url, "SHOW fsync") == [("on",)]
        server.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            until(lambda: not rows(url, "SELECT 1"), "the end of the server", 10.0)
        server.start()
        until(lambda: _answers(url), "the server again", 30.0)
        assert rows(url, "SELECT one FROM kept") == [(1,)]
        assert server.cut_connections(1.0) >= 0
        pid = server.pid
    assert processes.group_of(pid) is None


_DISK = """
import os, sys
from pathlib import Path
from bench.havoc.disk import Disk, own_mounts

def writes() -> str:
    try:
        Path(sys.argv[1], "kept", str(len(said))).write_bytes(b"x")
        return "written"
    except OSError as error:
        return os.strerror(error.errno)

disk = Disk(Path(sys.argv[1]), mounts=sys.argv[2] == "mounts" and own_mounts())
Path(sys.argv[1], "kept").mkdir()
said = []
said.append(writes())
for spoil, mend in ((lambda: disk.fill([os.getpid()]), disk.make_room), (disk.lock, disk.unlock)):
    spoil()
    said.append(writes())
    mend()
    said.append(writes())
disk.close()
print(disk.full_means, disk.read_only_means, *said, sep="|")
"""
_MEANS = {
    "ENOSPC": "No space left on device",
    "EFBIG": "File too large",
    "EROFS": "Read-only file system",
    "EACCES": "Permission denied",
    "None": "written",  # it can't be done here, and is said so
}


@pytest.mark.flow
@pytest.mark.parametrize("how", ["mounts", "plain"])
def test_the_disk_fails_as_it_says_and_comes_back(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DISK, str(tmp_path), how],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    full, read_only, *said = done.stdout.strip().split("|")
    assert said == ["written", _MEANS[full], "written", _MEANS[read_only], "written"]
    assert how == "mounts" or full == "EFBIG"


@pytest.mark.flow
def test_what_a_bench_starts_dies_with_it() -> None:
    starter = """
import subprocess, sys, time
from bench.processes import dying_with_us
words = dying_with_us(sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)")
child = subprocess.Popen(words, stdout=subprocess.PIPE)
child.stdout.read(1)
print(child.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", starter], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout is not None
        child = int(bench.stdout.readline())
        assert processes.group_of(child) is not None
        bench.kill()
    until(lambda: processes.group_of(child) is None, "its end", 10.0)


def _answers(url: str) -> bool:
    try:
        return bool(rows(url, "SELECT 1"))
    except psycopg.OperationalError:
        return False
