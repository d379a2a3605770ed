"""The sandbox as a process: arguments, its ledger file over a kill, its end with its owner, resets on the wire."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from providers.sandbox import command
from providers.sandbox.server import running_sandbox, start_sandbox
from tests.sandboxes import Customer

pytestmark = pytest.mark.flow
ROOT = Path(__file__).resolve().parent.parent


def settings(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.settings_from(vars(parser.parse_args(arguments))).as_json()


def test_every_argument_reaches_its_setting() -> None:
    read = settings(
        *(
            "--latency-median",
            "3",
            "--latency-sigma",
            "0.1",
            "--scale",
            "0.5",
            "--answer-delay",
            "2",
        ),
        *("--fault", "reset_after_accept=0.05", "--fault", "late=30=0.1", "--prepared", "64kB"),
        *("--no-echo", "--history-lag", "5", "--concurrency-limit", "9", "--quota", "10/60"),
        *("--balance", "100", "--key-limit", "50", "--price", "a/b=7.5"),
        *("--behaviour", '{"strict_models": true, "scale": 9}'),
    )
    assert read["faults"] == {"reset_after_accept": 0.05, "late=30": 0.1}
    assert (read["latency_median_s"], read["latency_sigma"], read["scale"]) == (3.0, 0.1, 0.5)
    assert (read["prepared_bytes"], read["echo"], read["history_lag_s"]) == (64_000, False, 5.0)
    assert (read["concurrency_limit"], read["quotas"]) == (9, [[10, 60.0]])
    assert (read["balance"], read["key_limit"], read["prices"]) == ("100", "50", {"a/b": "7.5"})
    assert (read["answer_delay_s"], read["strict_models"]) == (2.0, True)


@pytest.mark.parametrize(
    "arguments",
    [("--fault", "nonsense=0.1"), ("--fault", "late"), ("--quota", "5"), ("--price", "x")],
)
def test_wrong_arguments_end_with_a_message(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*arguments, "--port", "0"]) == 2
    assert "sandbox: " in capsys.readouterr().err


def test_a_taken_port_ends_with_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert command.main(["--port", str(holder.getsockname()[1])]) == 2
    assert "in use" in capsys.readouterr().err


def test_the_management_command_needs_no_database() -> None:
    environment = os.environ | {
        "DEMO": "",
        "SECRET_KEY": "for this test only " * 3,
        "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none",
    }
    with subprocess.Popen(
        [sys.executable, "manage.py", "sandbox", "--port", "0", "--no-echo"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        try:
            assert line.startswith("sandbox ready on http://127.0.0.1:")
            url = f"{line.split()[3]}/_sandbox/settings"
            assert httpx.get(url, trust_env=False, verify=False).json()["echo"] is False
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) in {0, -signal.SIGTERM}
        finally:
            process.kill()


def test_tasks_and_charges_survive_a_kill_with_a_ledger_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with running_sandbox(ledger=path, latency_fixed_s=0) as sandbox:
        task_id = Customer(sandbox).post(user="u-1").json["id"]
        Customer(sandbox).post("[[fault:reset_after_accept]]", user="u-2")
        before = sandbox.ledger()
    with running_sandbox(ledger=path) as sandbox:
        after = sandbox.ledger()
        assert after["charges"] == before["charges"]
        assert after["posts"] == before["posts"]
        assert len(after["tasks"]) == 2
        assert Customer(sandbox).poll(task_id)["status"] == "completed"
        sandbox.control("reset", settings=True)
        assert sandbox.ledger()["tasks"] == []
    assert path.read_bytes() == b""


def test_it_ends_with_its_owner_even_if_the_owner_is_killed() -> None:
    script = (
        "import time\nfrom providers.sandbox.server import start_sandbox\n"
        "sandbox = start_sandbox()\nprint(sandbox.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """False for a process that ended, although nobody may have waited for it yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text("no ledger\n")
    with pytest.raises(RuntimeError, match="line 1"):
        start_sandbox(ledger=path)
    with pytest.raises(ValueError, match="colour"):
        start_sandbox(colour=1)


@pytest.mark.parametrize("fault", ["reset_after_accept", "reset_before_read", "cut_after_id"])
def test_a_reset_is_a_real_rst_on_the_wire(fault: str) -> None:
    body = b'{"model": "m", "async": true, "input": {"prompt": "a"}}'
    head = (
        "POST /api/v1/media HTTP/1.1\r\nhost: x\r\nauthorization: Bearer pza_a\r\n"
        f"x-sandbox-fault: {fault}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with (
        running_sandbox() as sandbox,
        socket.create_connection(("127.0.0.1", int(sandbox.url.rpartition(":")[2]))) as wire,
    ):
        wire.settimeout(5)
        wire.sendall(head.encode() + body)
        with pytest.raises(ConnectionResetError):
            read_to_the_end(wire)


def read_to_the_end(wire: socket.socket) -> None:
    while wire.recv(4096):
        pass


def test_a_client_that_leaves_in_mid_body_created_nothing_and_is_logged() -> None:
    head = b"POST /api/v1/media HTTP/1.1\r\nhost: x\r\nauthorization: Bearer pza_a\r\n"
    with running_sandbox() as sandbox:
        port = int(sandbox.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(head + b"content-length: 100\r\n\r\nhalf")
        deadline = time.monotonic() + 5
        while not (posts := sandbox.ledger()["posts"]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert (posts[0]["fault"], posts[0]["accepted"]) == ("the client left", False)
        assert sandbox.summary()["tasks"] == 0


def test_hundreds_of_posts_at_once_are_each_booked_once() -> None:
    with running_sandbox(latency_fixed_s=30, faults={"reset_after_accept": 0.2}) as sandbox:
        customer = Customer(sandbox)
        with ThreadPoolExecutor(16) as pool:
            seen = list(pool.map(lambda n: customer.post(user=f"u-{n}"), range(300)))
        summary = sandbox.summary()
        assert summary["tasks"] == summary["charges"] == summary["posts"] == 300
        assert summary["posted_twice"] == []
        assert 20 < sum(one.broken for one in seen) < 110
        assert sandbox.stats()["max_in_flight"] == 300


def test_the_control_api_names_what_it_cannot_do() -> None:
    with running_sandbox() as sandbox:
        with pytest.raises(ValueError, match="colour"):
            sandbox.control("settings", colour=1)
        with pytest.raises(ValueError, match="no task"):
            sandbox.control("finish", id="gen_0")
        with pytest.raises(ValueError, match="no outage"):
            sandbox.control("outage/start", kind="flood")
        with pytest.raises(httpx.HTTPStatusError):
            sandbox.read("nothing")
        assert "GET ledger" in sandbox.read("")["calls"]
        names = {fault["name"] for fault in sandbox.read("faults")}
        assert {"reset_after_accept", "late", "poll_500"} <= names
