"""Starts a sandbox in a process of its own, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

import httpx

from .settings import Settings

_ROOT = Path(__file__).resolve().parents[2]


class Sandbox:
    """A running sandbox. `url` is its root; Polza's base URL is `api_url`. Reads are plain JSON, see docs/sandbox.md."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        self.url = url
        self.api_url = f"{url}/api/v1"
        self.process = process
        # Plain HTTP on this machine: loading the certificates would be most of the start.
        self._client = httpx.Client(
            base_url=f"{url}/_sandbox/",
            timeout=30,
            trust_env=False,
            verify=False,  # noqa: S501
        )

    def control(self, call: str, **body: Any) -> Any:
        """POSTs to the control API: `control("settings", echo=False)`. Raises ValueError with what it refuses."""
        return self._json(self._client.post(call, json=body))

    def read(self, call: str, **query: str) -> Any:
        """GETs from the control API."""
        return self._json(self._client.get(call, params=query))

    def ledger(self, **query: str) -> Any:
        """`summary`, `tasks`, `charges` and `posts`; `key`, `correlation` and `since` narrow them."""
        return self.read("ledger", **query)

    def summary(self) -> Any:
        return self.read("summary")

    def stats(self) -> Any:
        return self.read("stats")

    def faults(self, **shares: float) -> None:
        """Replaces the faults by share. Names with a value: `faults(**{"late=30": 0.1})`."""
        self.control("settings", faults=shares)

    def close(self) -> None:
        """Kills the process and waits for it. The ledger file survives, nothing else does."""
        self._client.close()
        _end(self.process)

    @staticmethod
    def _json(response: httpx.Response) -> Any:
        if response.status_code == 400:
            raise ValueError(response.json()["error"])
        response.raise_for_status()
        return response.json()


def start_sandbox(
    *,
    port: int = 0,
    ledger: Path | None = None,
    seed: int | None = 0,
    start_within_s: float = 30,
    **settings: Any,
) -> Sandbox:
    """Starts one and waits until it answers. `settings` are those of `Settings`. The caller must `close()` it.

    Raises ValueError for a wrong setting and RuntimeError, with what it printed, if it does not come up.
    """
    chosen = Settings().changed(settings).as_json()
    arguments = [
        sys.executable,
        "-m",
        "providers.sandbox",
        "--port",
        str(port),
        "--until-stdin-closes",
    ]
    arguments += ["--behaviour", json.dumps(chosen)]
    if ledger is not None:
        arguments += ["--ledger", str(ledger)]
    if seed is not None:
        arguments += ["--seed", str(seed)]
    with tempfile.TemporaryFile() as complaints:
        process = subprocess.Popen(  # noqa: S603  (our own module, no shell)
            arguments, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints
        )
        line = _first_line(process, start_within_s)
        if not line.startswith("sandbox ready on "):
            _end(process)
            complaints.seek(0)
            raise RuntimeError(
                f"the sandbox did not start: {line}{complaints.read().decode(errors='replace')}"
            )
    return Sandbox(line.split()[3], process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _first_line(process: subprocess.Popen[bytes], within_s: float) -> str:
    lines: SimpleQueue[bytes] = SimpleQueue()
    pipe: IO[bytes] | None = process.stdout
    threading.Thread(
        target=lambda: lines.put(pipe.readline() if pipe else b""), daemon=True
    ).start()
    try:
        return lines.get(timeout=within_s).decode(errors="replace")
    except Empty:
        return f"nothing within {within_s:g} s. "


@contextlib.contextmanager
def running_sandbox(
    *, port: int = 0, ledger: Path | None = None, seed: int | None = 0, **settings: Any
) -> Iterator[Sandbox]:
    """`with running_sandbox(latency_fixed_s=0.2, faults={"reset_after_accept": 0.1}) as sandbox:`"""
    sandbox = start_sandbox(port=port, ledger=ledger, seed=seed, **settings)
    try:
        yield sandbox
    finally:
        sandbox.close()
