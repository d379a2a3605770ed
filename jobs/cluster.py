"""django-q2's cluster with what the stock one lacks: a stop that lanes hear and that ends in time, no ghosts, no wedge.

Main forks the sentinel, the sentinel forks workers, pusher and monitor. Three rules, each for a failure that was seen:

- Everyone learns of the stop from the lifeline. multiprocessing's events and message queues have locks that a killed
  process takes along, and then whoever waits for them waits for ever.
- The sentinel and its children ignore SIGTERM and SIGINT: a signal to the whole group (systemd, a terminal) must reach
  only main, which stops in order, and lanes, which drain. The sentinel ends its children by SIGKILL.
- A child that was killed while it may hold a queue's lock can't be replaced alone: the whole cluster ends, and whoever
  started it starts it again (Restart=always).
"""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

import django_q.cluster
from django.conf import settings
from django.db import connections
from django_q.cluster import Cluster, Sentinel
from django_q.conf import Conf
from django_q.scheduler import scheduler
from django_q.status import Stat

from jobs.lifeline import lifeline, main_limit_s, sentinel_limit_s

logger = logging.getLogger(__name__)

CRASHED = 70  # exit status: an internal error, start me again
_IDLE, _RECYCLED = -1, -2
_SCHEDULER_EVERY_S = 30
# A guard that makes no round for this long hangs on a lock, or the machine is lost anyway.
_GUARD_LIMIT_S = 120


def crash(reason: str, *arguments: object) -> None:
    """End this process at once. For a sentinel that ends the cluster: its children die by the kernel's signal."""
    logger.critical("cluster.crash " + reason, *arguments)  # noqa: G003  a prefix of our own
    os._exit(CRASHED)


class LaneCluster(Cluster):
    """Runs in main. A signal only pulls the lifeline; `wait` sees the end."""

    sentinel: Any

    def __init__(self) -> None:
        # Inherited locks need fork, which newer Pythons do not choose by themselves.
        multiprocessing.set_start_method("fork", force=True)
        lifeline.cast()  # before the handlers that pull it
        super().__init__()

    def start(self) -> int:
        connections.close_all()
        django_q.cluster.Sentinel = LaneSentinel  # type: ignore[misc]
        try:
            pid: int = super().start()
        except RuntimeError:  # the sentinel ended before it stood
            if not lifeline.pulled():
                raise
            return os.getpid()
        return pid

    def sig_handler(self, signum: int, frame: FrameType | None) -> None:
        lifeline.pull()

    def stop(self) -> bool:
        lifeline.pull()
        return self.wait() == 0

    def wait(self) -> int:
        """Block until the cluster has ended and the last of its processes is gone. The exit status: 0 after a stop."""
        stopping_since = None
        while self.sentinel.is_alive():
            self.sentinel.join(0.5)
            if stopping_since is None and lifeline.pulled():
                stopping_since = time.monotonic()
            if stopping_since is not None and time.monotonic() > stopping_since + main_limit_s():
                logger.critical("cluster.sentinel_hangs")
                self.sentinel.kill()
        asked = lifeline.pulled()
        lifeline.pull()
        # Lanes outlive a dead sentinel as long as they drain. Before they are gone nothing may kill their group.
        if not lifeline.wait_for_all(
            main_limit_s() - (time.monotonic() - (stopping_since or time.monotonic()))
        ):
            logger.critical("cluster.processes_left")
            return CRASHED
        return 0 if asked and self.sentinel.exitcode == 0 else CRASHED


class LaneSentinel(Sentinel):
    """Runs between main and the workers."""

    monitor: Any
    pusher: Any

    def start(self) -> None:
        # Children inherit both. A worker takes SIGTERM for itself while it runs a lane.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            super().start()  # type: ignore[no-untyped-call]
        except BaseException:
            # Python's own way out would send SIGTERM to children that ignore it, and wait for them.
            logger.exception("cluster.sentinel_failed")
        crash("the sentinel's loop ended")

    def spawn_process(self, target: Any, *args: Any) -> Any:
        # A fork copies the limit's locks but not the thread that would release them.
        faulthandler.cancel_dump_traceback_later()
        return super().spawn_process(target, *args)

    def guard(self) -> None:
        """Look after the processes until the lifeline is pulled."""
        self.start_event.set()
        cycle_s = float(settings.Q_CLUSTER["guard_cycle"])
        since_scheduler_s = 0.0
        while not lifeline.wait(cycle_s):
            _limit(_GUARD_LIMIT_S)
            for process in list(self.pool):
                self._look_at(process, cycle_s)
            for process in (self.monitor, self.pusher):
                if not process.is_alive():
                    self.reincarnate(process)
            since_scheduler_s += cycle_s
            if since_scheduler_s >= _SCHEDULER_EVERY_S and Conf.SCHEDULER:
                since_scheduler_s = 0.0
                scheduler(broker=self.broker)
            Stat(self).save()
        self.stop()

    def _look_at(self, process: Any, cycle_s: float) -> None:
        lock = process.timer.get_lock()
        if not lock.acquire(timeout=2):
            crash("worker %s died or froze with its timer's lock", process.pid)
        try:
            left_s = _timer(process)
            if left_s > 0:
                # Stock compares with 0 exactly; here any cycle counts down to it.
                process.timer.get_obj().value = left_s = max(0.0, left_s - cycle_s)
        finally:
            lock.release()
        if not process.is_alive() or left_s == 0:
            self.reincarnate(process)

    def reincarnate(self, process: Any) -> None:
        """Replace a process that ended, or a worker past its time. Crash where a lock may have gone with it."""
        if lifeline.pulled():
            return
        worker = process in self.pool
        busy = worker and _timer(process) >= 0
        killed = not process.is_alive() and (process.exitcode or 0) < 0
        if killed and not busy:
            crash(
                "process %s was killed by signal %s and may have held a queue's lock",
                process.pid,
                -process.exitcode,
            )
        if worker and process.is_alive():
            # Past its time. One that noticed so itself is just writing its result, and holds that queue's lock.
            process.join(1)
            process.kill()  # a lane would take the stock SIGTERM as a wish to drain
            process.join()
        super().reincarnate(process)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Wait for the busy workers, within bounds; then end everything, this process included."""
        until = time.monotonic() + sentinel_limit_s()
        _limit(sentinel_limit_s() + 1)
        self.event_out.set()
        while time.monotonic() < until and any(p.is_alive() and _timer(p) > 0 for p in self.pool):
            time.sleep(0.05)
        # The monitor gets a moment to take the last results off the queue.
        time.sleep(0.2)
        for process in (*self.pool, self.pusher, self.monitor):
            process.kill()
        for process in (*self.pool, self.pusher, self.monitor):
            process.join(1)
        os._exit(0)


def _timer(process: Any) -> float:
    """A worker's countdown in seconds, -1 idle, -2 recycled, 0 past its time. Read without its lock: a dead process may
    hold it."""
    return float(process.timer.get_obj().value)


def _limit(limit_s: float) -> None:
    """Unless called again in time, this process prints where it hangs and ends."""
    faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or 2)
