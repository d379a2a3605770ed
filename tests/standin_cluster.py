"""`python -m tests.standin_cluster`: the real qcluster with an engine that claims nothing. It beats, listens and tells a log.

STANDIN_LOG: file of JSON lines. STANDIN_DRAIN_S: how long a lane takes to end once it is told to. STANDIN_HANG_SLOT: the lane in
this slot hangs where no signal reaches it. DEAD_AFTER_S and BEAT_S shorten the lanes' own figures.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "studio.settings")
django.setup()

from asgiref.sync import sync_to_async  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management import execute_from_command_line  # noqa: E402

from jobs import bell, lanes  # noqa: E402
from jobs.clock import clock  # noqa: E402

if TYPE_CHECKING:
    from jobs.lanes import Held

lanes.DEAD_AFTER_S = float(os.environ.get("DEAD_AFTER_S", lanes.DEAD_AFTER_S))
lanes.HEARTBEAT_S = float(os.environ.get("BEAT_S", lanes.HEARTBEAT_S))


def tell(event: str, held: Held) -> None:
    line = {
        "event": event,
        "pid": os.getpid(),
        "slot": held.slot,
        "run": str(held.run_id),
        "at": time.monotonic(),
    }
    with Path(os.environ["STANDIN_LOG"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


async def run_slice(held: Held, *, stop: asyncio.Event) -> None:
    tell("start", held)
    if os.environ.get("STANDIN_HANG_SLOT") == str(held.slot):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        ctypes.PyDLL(None).sleep(
            3600
        )  # with the interpreter's lock: nothing in Python runs any more
    stopping = asyncio.create_task(stop.wait())
    try:
        async with bell.Listener() as listener:
            until = time.monotonic() + settings.LANE_SLICE_SEC
            while time.monotonic() < until and not stop.is_set():
                if not await sync_to_async(
                    lambda: lanes.heartbeat(run_id=held.run_id, now=clock.now())
                )():
                    tell("fenced", held)
                    return
                rest_s = min(lanes.HEARTBEAT_S, max(0.0, until - time.monotonic()))
                heard = asyncio.create_task(listener.wait(rest_s))
                await asyncio.wait({heard, stopping}, return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
            if stop.is_set():
                tell("stop", held)
                await asyncio.sleep(float(os.environ.get("STANDIN_DRAIN_S", "0")))
    finally:
        stopping.cancel()
    tell("end", held)


if __name__ == "__main__":
    engine = types.ModuleType("jobs.engine")
    engine.run_slice = run_slice  # type: ignore[attr-defined]
    sys.modules["jobs.engine"] = engine
    execute_from_command_line(["manage.py", "qcluster"])
