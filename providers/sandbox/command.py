"""The sandbox's command line, the same for `python -m providers.sandbox` and `manage.py sandbox`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import resource
import socket
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import uvicorn

from .app import SandboxApp
from .journal import Journal
from .ledger import Ledger
from .settings import Settings
from .world import World

_SIZE = re.compile(r"(\d+)\s*(k|m)?i?b?", re.IGNORECASE)
_SETTINGS = {
    "latency_median": "latency_median_s",
    "latency_sigma": "latency_sigma",
    "latency_fixed": "latency_fixed_s",
    "scale": "scale",
    "answer_delay": "answer_delay_s",
    "history_lag": "history_lag_s",
    "concurrency_limit": "concurrency_limit",
    "balance": "balance",
    "key_limit": "key_limit",
    "prepared": "prepared_bytes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=int, default=8700, help="port; 0 takes a free one (default %(default)s)")
    add(
        "--latency-median",
        type=float,
        metavar="S",
        help="median seconds of a generation (default 6)",
    )
    add(
        "--latency-sigma",
        type=float,
        metavar="X",
        help="spread of the log-normal latency (default 0.35)",
    )
    add("--latency-fixed", type=float, metavar="S", help="every generation takes exactly so long")
    add(
        "--scale",
        type=float,
        metavar="F",
        help="multiplies latencies and the default times of faults",
    )
    add("--answer-delay", type=float, metavar="S", help="seconds a POST waits for its answer")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="NAME=SHARE",
        help="a fault for a share of the requests",
    )
    add(
        "--prepared",
        type=size_bytes,
        metavar="SIZE",
        help="ready-made pictures of that size, such as 64kB",
    )
    add(
        "--no-echo",
        action="store_true",
        help="the history does not show the `user` that was submitted",
    )
    add("--history-lag", type=float, metavar="S", help="the history is so many seconds old")
    add("--ledger", type=Path, metavar="FILE", help="keep the ledger in a file, over restarts")
    add("--concurrency-limit", type=int, metavar="N", help="tasks in flight for each key")
    add(
        "--quota",
        action="append",
        default=[],
        metavar="N/S",
        help="N tasks in S seconds for each key",
    )
    add("--balance", type=Decimal, metavar="RUB", help="money of each key")
    add("--key-limit", type=Decimal, metavar="RUB", help="what each key may spend in all")
    add(
        "--price",
        action="append",
        default=[],
        metavar="MODEL=RUB",
        help="price of a model (default 5.00)",
    )
    add(
        "--seed",
        type=int,
        metavar="N",
        help="the same seed and requests give the same faults and latencies",
    )
    add(
        "--behaviour",
        type=json.loads,
        metavar="JSON",
        help="settings as a JSON object, as the control API takes them",
    )
    add("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)


def size_bytes(text: str) -> int:
    """`64kB`, `2 MB` or plain bytes. Raises argparse's error for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64kB")
    return int(found[1]) * {None: 1, "k": 1000, "m": 1000_000}[found[2] and found[2].lower()]


def settings_from(options: dict[str, Any]) -> Settings:
    """Settings out of parsed arguments. Raises ValueError naming what is wrong."""
    changes: dict[str, Any] = {}
    for option, name in _SETTINGS.items():
        if options.get(option) is not None:
            changes[name] = options[option]
    if options.get("no_echo"):
        changes["echo"] = False
    if options.get("quota"):
        changes["quotas"] = options["quota"]
    if options.get("fault"):
        # The share follows the last sign: `late=960=0.05` is the fault late=960 for one request in twenty.
        changes["faults"] = dict(_pair(one, "--fault") for one in options["fault"])
    if options.get("price"):
        changes["prices"] = dict(_pair(one, "--price") for one in options["price"])
    return Settings().changed((options.get("behaviour") or {}) | changes)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.rpartition("=")
    if not sign or not name:
        raise ValueError(f"{option} {text!r}: expected NAME=VALUE")
    return name, value


def run(options: dict[str, Any]) -> None:
    """Serves until it is told to stop. Raises ValueError for arguments that make no sense, OSError for a taken port."""
    settings = settings_from(options)
    rng = random.Random(options.get("seed"))  # noqa: S311  (chance on purpose, not secrecy)
    _allow_many_sockets()
    with contextlib.ExitStack() as stack:
        if options.get("ledger"):
            journal = stack.enter_context(Journal(options["ledger"]))
            world = World(
                clock=time.time,
                rng=rng,
                settings=settings,
                ledger=journal.ledger,
                fresh_ledger=journal.clear,
            )
        else:
            world = World(clock=time.time, rng=rng, settings=settings, ledger=Ledger())
        listener = _listen(options["host"], options["port"])
        stack.callback(listener.close)
        asyncio.run(
            _serve(world, listener, until_stdin_closes=bool(options.get("until_stdin_closes")))
        )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _allow_many_sockets() -> None:
    """Thousands of clients at once need as many descriptors as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            host, port = one.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"sandbox ready on http://{shown}:{port} (control: /_sandbox/)", flush=True)  # noqa: T201


async def _serve(world: World, listener: socket.socket, *, until_stdin_closes: bool) -> None:
    server = _Server(
        uvicorn.Config(
            SandboxApp(world),
            lifespan="off",
            interface="asgi3",
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,  # the world's clock tells the date
            access_log=False,
            log_level="warning",
            backlog=4096,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
        )
    )
    if until_stdin_closes:
        # The owner's end of the pipe closes however the owner dies, so no sandbox outlives its test.
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: _stop_at_end(server))
    await server.serve(sockets=[listener])


def _stop_at_end(server: uvicorn.Server) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        server.should_exit = True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m providers.sandbox", description=__doc__)
    add_arguments(parser)
    options = vars(parser.parse_args(arguments))
    try:
        run(options)
    except (ValueError, OSError) as wrong:
        print(f"sandbox: {wrong}", file=sys.stderr)  # noqa: T201
        return 2
    return 0
