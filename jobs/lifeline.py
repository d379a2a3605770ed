"""How every process of a cluster learns that the cluster stops, or that main is dead.

Main holds the only write end of a pipe. It is closed by a stop, and by the kernel when main dies in whatever way; each
descendant then reads EOF. A second pipe tells main when the last descendant is gone. On Linux the kernel signals a
process whose parent died: SIGKILL, or SIGTERM for a worker with a lane in it, which still has calls to finish.

Bounds of a stop, in seconds after the pull, all derived from LANE_DRAIN_SEC so that with 5.5 the whole takes less than 15:
a lane drains for LANE_DRAIN_SEC, ends itself at `lane_limit_s()`, the sentinel kills what is left at `sentinel_limit_s()`,
main the sentinel at `main_limit_s()`. Where a provider's answer is the result itself, each bound is later by
LANE_ANSWERS_SEC: as long as such a call may take. A stop that finds none under way takes no longer for it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable

from django.conf import settings

_PR_SET_PDEATHSIG = 1


def lane_limit_s() -> float:
    return _drain_s() + 6


def sentinel_limit_s() -> float:
    return _drain_s() + 7.5


def main_limit_s() -> float:
    return _drain_s() + 9


def _drain_s() -> float:
    return float(settings.LANE_DRAIN_SEC + settings.LANE_ANSWERS_SEC)


class Lifeline:
    """One per process tree; does nothing until `cast`. Outside a cluster it is never pulled."""

    def __init__(self) -> None:
        self.fd: int | None = (
            None  # readable (EOF) once pulled; for select and for asyncio's add_reader
        )
        self._pull_fd: int | None = None
        self._last_fd: int | None = None
        self._held_fd: int | None = None
        self._main_pid = 0
        self._parent_pid = 0
        self._forking_pid = 0
        self._prctl: Callable[[int, int], int] | None = None

    def cast(self) -> None:
        """In main, once, before anything is forked."""
        if self.fd is not None:
            raise RuntimeError("The lifeline is cast once.")
        self.fd, self._pull_fd = os.pipe()
        self._last_fd, self._held_fd = os.pipe()
        self._main_pid = os.getpid()
        if sys.platform == "linux":
            self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)

    def pull(self) -> None:
        """In main: tell everyone to stop. Safe in a signal handler and any number of times."""
        fd, self._pull_fd = self._pull_fd, None
        if fd is not None:
            os.close(fd)

    def pulled(self) -> bool:
        return self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """True as soon as it is pulled, False after `timeout_s`."""
        if self.fd is None:
            if timeout_s > 0:
                time.sleep(timeout_s)
            return False
        return _ended(self.fd, timeout_s)

    def wait_for_all(self, timeout_s: float) -> bool:
        """In main: True once every descendant is gone, False after `timeout_s`."""
        if self._last_fd is None:
            return True
        held, self._held_fd = self._held_fd, None
        if held is not None:
            os.close(held)
        return _ended(self._last_fd, timeout_s)

    def orphaned(self) -> bool:
        """In a descendant: its parent is dead, so nobody reads its results or gives it work."""
        return self._parent_pid != 0 and os.getppid() != self._parent_pid

    def on_parent_death(self, signum: signal.Signals) -> None:
        """In a descendant: which signal the kernel sends when the parent dies."""
        if self._prctl is not None and self._parent_pid != 0:
            self._prctl(_PR_SET_PDEATHSIG, int(signum))

    def _before_fork(self) -> None:
        self._forking_pid = os.getpid()

    def _in_child(self) -> None:
        # Only main may hold the write end: a copy in any child would keep the pipe open after main's death.
        if self._pull_fd is not None:
            os.close(self._pull_fd)
            self._pull_fd = None
        self._parent_pid = self._forking_pid
        self.on_parent_death(signal.SIGKILL)
        if self.orphaned():  # the parent died before the request, so its signal never comes
            os._exit(70)


def _ended(fd: int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN | select.POLLHUP)
    return bool(poller.poll(max(0, round(timeout_s * 1000))))


lifeline = Lifeline()
