"""Pictures are decoded in a child process that may die without harm; this is the parent's side (the child: decoder.py).

One JSON line goes down, one comes back; nothing is pickled. It is a plain subprocess because the caller is a daemonic
worker, which may have no children through multiprocessing. The child gets no secrets in its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from jobs.decoder import Flaw, Picture, Rejected
from jobs.formats import Format

MAX_PIXELS = 50_000_000
PICTURES_PER_CHILD = 1000  # then a fresh one: decoders leak
_BASE_MEMORY = 512 * 1024 * 1024
_BYTES_PER_PIXEL = (
    12  # the picture at four bytes a pixel, a converted copy, and a format's own canvas
)
_START_S = 30.0
_ROOT = Path(__file__).resolve().parent.parent


class ClosedError(RuntimeError):
    """The picture process was closed while this picture waited; nothing is known about the picture."""


class PictureProcess:
    """One child process that decodes pictures one after another; safe from any thread, from asyncio and after a fork.

    The child is started at the first picture and replaced when it dies. A picture may use `cpu_s` seconds of CPU (more: it
    is rejected for good) and `wall_s` seconds of time (more: perhaps the machine's fault, so `retry` is true). `memory_bytes`
    caps the child's address space. OSError from an inspection is our own trouble (no such file, disk full, no child to be
    had) and says nothing about the picture.

    All work happens in one daemon thread of the process: on Linux a child's death signal is bound to the *thread* that
    started it, so a thread that comes and goes must not start it.
    """

    def __init__(
        self,
        *,
        max_pixels: int = MAX_PIXELS,
        cpu_s: float = 10.0,
        wall_s: float = 30.0,
        memory_bytes: int | None = None,
    ) -> None:
        self.max_pixels = max_pixels
        self.cpu_s = cpu_s
        self.wall_s = wall_s
        self.memory_bytes = memory_bytes or _BASE_MEMORY + _BYTES_PER_PIXEL * max_pixels
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        _processes.add(self)

    async def inspect(self, path: Path, thumbnail_to: Path | None = None) -> Picture | Rejected:
        """Decode `path`; write a WEBP of at most 320 x 320 pixels without metadata to `thumbnail_to`, replacing what is
        there. A cancelled call may still leave that file."""
        return await asyncio.wrap_future(self._order(path, thumbnail_to))

    def inspect_sync(self, path: Path, thumbnail_to: Path | None = None) -> Picture | Rejected:
        """`inspect` for web threads and commands."""
        return self._order(path, thumbnail_to).result()

    @property
    def child_pid(self) -> int | None:
        """The child's process id; None while there is no child."""
        worker = self._worker
        return worker.child.pid if worker is not None and worker.child is not None else None

    def close(self) -> None:
        """End the child at once; pictures under way raise `ClosedError`. A later inspection starts anew."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _order(self, path: Path, thumbnail_to: Path | None) -> Future[Picture | Rejected]:
        request = {
            "path": os.fspath(path.absolute()),
            "thumbnail_to": os.fspath(thumbnail_to.absolute()) if thumbnail_to else None,
            "max_pixels": self.max_pixels,
            "cpu_s": self.cpu_s,
        }
        with self._lock:
            if self._worker is None:
                self._worker = _Worker(wall_s=self.wall_s, memory_bytes=self.memory_bytes)
            return self._worker.order(request)

    def _forget(self) -> None:
        """In a forked copy: thread and lock did not come along, and the child belongs to the original."""
        self._lock = threading.Lock()
        worker, self._worker = self._worker, None
        if worker is not None and worker.child is not None:
            worker.child.let_go()


_processes: weakref.WeakSet[PictureProcess] = weakref.WeakSet()


def _forget_all() -> None:
    for process in list(_processes):
        process._forget()  # noqa: SLF001  same class, called by the interpreter after a fork


os.register_at_fork(after_in_child=_forget_all)


class _Worker:
    """The thread that owns the child."""

    def __init__(self, *, wall_s: float, memory_bytes: int) -> None:
        self.child: _Child | None = None
        self._wall_s = wall_s
        self._memory_bytes = memory_bytes
        self._closing = threading.Event()
        self._orders: queue.SimpleQueue[
            tuple[Future[Picture | Rejected], dict[str, Any]] | None
        ] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._thread.start()

    def order(self, request: dict[str, Any]) -> Future[Picture | Rejected]:
        future: Future[Picture | Rejected] = Future()
        self._orders.put((future, request))
        return future

    def close(self) -> None:
        self._closing.set()
        self._orders.put(None)
        child = self.child
        if child is not None:
            child.kill()  # wakes the thread, which waits for its answer
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            future, request = order
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._look(request))
            except BaseException as error:  # noqa: BLE001  it is the caller's, and this thread must live
                future.set_exception(error)
        self._drop()

    def _look(self, request: Mapping[str, Any]) -> Picture | Rejected:
        for _attempt in (
            1,
            2,
        ):  # a child may be killed by anyone: once is no evidence against the picture
            if self._closing.is_set():
                raise ClosedError
            if self.child is None:
                self.child = _Child(self._memory_bytes)
            answer = self.child.ask(request, within_s=self._wall_s)
            if isinstance(answer, dict):
                result = _read_answer(answer)
                spent = isinstance(result, Rejected) and result.flaw is Flaw.TOO_MUCH_MEMORY
                if spent or self.child.asked >= PICTURES_PER_CHILD:
                    self._drop()
                return result
            self._drop()
            if answer == -signal.SIGXCPU:
                text = f"takes more than {request['cpu_s']:g} s of CPU to decode"
                return Rejected(Flaw.TOO_SLOW, text, retry=False)
            if answer is None and not self._closing.is_set():
                text = f"was not decoded within {self._wall_s:g} s"
                return Rejected(Flaw.TOO_SLOW, text, retry=True)
        if self._closing.is_set():
            raise ClosedError
        return Rejected(Flaw.DECODER_DIED, "the decoder died on it twice", retry=True)

    def _drop(self) -> None:
        child, self.child = self.child, None
        if child is not None:
            child.end()


class _Child:
    """One child process and its two pipes."""

    def __init__(self, memory_bytes: int) -> None:
        """OSError if it does not start."""
        search = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(  # noqa: S603  our own module, no shell
            [sys.executable, "-m", "jobs.decoder", str(os.getpid()), str(memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env={
                "PATH": os.environ.get("PATH", ""),
                "PYTHONPATH": os.pathsep.join(search),
                "LC_ALL": "C.UTF-8",
            },
        )
        self.pid = self._process.pid
        self.asked = 0
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._down: IO[bytes] = self._process.stdin
        self._up: IO[bytes] = self._process.stdout
        ready = self._read(within_s=_START_S)
        if not isinstance(ready, dict):
            self.end()
            raise ChildProcessError(
                f"the picture process does not start (exit code {self._process.returncode})"
            )

    def ask(self, request: Mapping[str, Any], *, within_s: float) -> dict[str, Any] | int | None:
        """The child's answer; its negative signal or exit code if it died; None if it did not answer in time."""
        self.asked += 1
        with contextlib.suppress(BrokenPipeError):  # dead already: reading tells
            self._down.write(json.dumps(request).encode() + b"\n")
        return self._read(within_s=within_s)

    def _read(self, *, within_s: float) -> dict[str, Any] | int | None:
        deadline = time.monotonic() + within_s
        poll = select.poll()
        poll.register(self._up.fileno(), select.POLLIN)
        line = bytearray()
        while not line.endswith(b"\n"):
            # Looks once more after the deadline: we may have been frozen ourselves, with the answer waiting.
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            part = os.read(self._up.fileno(), 65_536)
            if not part:
                return self._process.wait()
            line += part
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Kill, reap, close."""
        self._process.kill()
        self._process.wait()
        self._down.close()
        self._up.close()

    def let_go(self) -> None:
        """In a forked copy: close our ends, else the child would not see the end of its real parent."""
        self._down.close()
        self._up.close()
        self._process.returncode = 0  # not ours to wait for; keeps the destructor quiet


def _read_answer(answer: dict[str, Any]) -> Picture | Rejected:
    if "picture" in answer:
        seen = answer["picture"]
        return Picture(Format(seen["format"]), seen["width"], seen["height"])
    if "rejected" in answer:
        seen = answer["rejected"]
        return Rejected(Flaw(seen["flaw"]), seen["reason"], seen["retry"])
    raise OSError(answer["errno"], answer["text"])
