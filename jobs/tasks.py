"""django-q2's entry points, thin. Found by dotted path; each says in a word what it did."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import Error, close_old_connections, connections
from django.dispatch import receiver
from django_q.models import Failure
from django_q.signals import post_spawn
from django_q.tasks import async_task

from jobs import bell, engine, lanes, results
from jobs.alerts import send
from jobs.clock import clock
from jobs.lifecycle import alerts, batches, bulk, sums
from jobs.lifecycle import statement as statements
from jobs.lifeline import lane_limit_s, lifeline
from jobs.stages import prune, smoke, statement

logger = logging.getLogger(__name__)

_KEEP_FAILURES = timedelta(days=14)
# A slice that fails sooner has met something that the next may meet too: no circle without a pause.
PAUSE_AFTER_FAILURE_S = 5.0
_SWEEP_EVERY_S = 3600.0
_swept_at = -_SWEEP_EVERY_S  # of the monotonic clock
_LOOK_FOR_DEAD_S = 2 * lanes.HEARTBEAT_S
# Bulk work shares its worker with the minute's ring and the sender of alerts.
_BULK_SLICE_S = 10.0


def run_lane() -> str:
    """Take a slot and run the engine for a slice. `full` where all slots are held, `stopping` in a cluster that ends."""
    if lifeline.pulled():
        bell.ring()  # this message is used up; another cluster may take over
        return "stopping"
    held = lanes.take(
        host=socket.gethostname(), pid=os.getpid(), version=settings.RELEASE, now=clock.now()
    )
    if held is None:
        return "full"
    started = time.monotonic()
    ended_well = False
    try:
        with lanes.life_mark(held.run_id), _ended_by_force(), _outliving_the_sentinel():
            asyncio.run(_run_slice(held))
        ended_well = True
    finally:
        try:
            # Free, then look, then ring: see jobs/bell.py.
            close_old_connections()  # ours sat idle for the slice; the server may have been restarted meanwhile
            lanes.free(run_id=held.run_id)
            if not ended_well and time.monotonic() - started < PAUSE_AFTER_FAILURE_S:
                lifeline.wait(PAUSE_AFTER_FAILURE_S)
            ring_if_work_waits()
        except Error as error:
            logger.warning("lane.not_freed %s", error)
        if lifeline.orphaned():
            os._exit(0)
    return "ran"


def ring_if_work_waits() -> bool:
    """Ring where a lane is needed; whether it was."""
    waiting = lanes.work_waiting(clock.now())
    if waiting:
        bell.ring()
    return waiting


def ring_each_minute() -> str:
    """The net under lost bells, dead lanes and lost calls of the sender of alerts. Work first: what looks after people and
    the disk must not stop it."""
    lanes.free_killed()
    lanes.free_dead(clock.now())
    Failure.objects.filter(stopped__lt=clock.now() - _KEEP_FAILURES).delete()
    rang = ring_if_work_waits()
    batches.complete(now=clock.now())
    _call_for_bulk_work()
    for statement_id in statements.left_behind(now=clock.now()):
        statement.start(statement_id)
    _look_after_alerts()
    _call_for_smoke()
    _call_for_pruning()
    _put_sums_together()
    _sweep_each_hour()
    return "rang" if rang else "nothing to do"


def _look_after_alerts() -> None:
    try:
        send.look_and_note()
        send.sort_out()  # also where nobody is told: the page of alerts shows them
        if alerts.due_now(now=clock.now()):
            async_task(alerts.SEND)
    except Exception:
        logger.exception("alerts.no_look")


def send_alerts() -> str:
    """Tell people what is due. A channel that fails or hangs is written down, tried again later, and holds up nothing."""
    try:
        sent = send.send_due()
    except Exception:
        # The minute's ring calls again; what was claimed is free again when its lease ends.
        logger.exception("alerts.not_sent")
        return "failed"
    if sent and alerts.due_now(now=clock.now()):
        async_task(alerts.SEND)
    return f"sent {sent}" if sent else "nothing due"


def work_bulk() -> str:
    """Some seconds of bulk runs, then its successor is called. What fails is tried again by the minute's ring."""
    end = time.monotonic() + _BULK_SLICE_S
    try:
        while not lifeline.pulled() and time.monotonic() < end:
            step = bulk.work(now=clock.now())
            if step is not bulk.Step.WORKED:
                return str(step.value)
        _call_for_bulk_work()
    except bulk.ChunkError as error:
        logger.exception("bulk.not_worked")
        close_old_connections()
        with contextlib.suppress(Error):
            bulk.note_trouble(
                run_id=error.run_id, trouble=type(error.__cause__).__name__, now=clock.now()
            )
        return "failed"
    except Error:
        logger.exception("bulk.not_worked")
        return "failed"
    return "worked"


def work_smoke() -> str:
    """Some seconds of smoke runs; the minute's ring calls again as long as one is under way."""
    try:
        return f"at {smoke.work()}"
    except Exception:
        # What a run has seen is kept in its row; it must stop nothing else.
        logger.exception("smoke.not_worked")
        return "failed"


def _call_for_smoke() -> None:
    try:
        if smoke.due(clock.now()):
            async_task(smoke.WORK)
    except Exception:
        logger.exception("smoke.not_called")


def work_prune() -> str:
    """Some seconds of today's removals, then its successor is called; what fails is tried again by the minute's ring."""
    try:
        more = prune.work()
    except Exception:
        # What was removed is written down; it must stop nothing else.
        logger.exception("prune.not_worked")
        return "failed"
    if more:
        async_task(prune.WORK)
    return "going on" if more else "done"


def _call_for_pruning() -> None:
    try:
        if prune.due(clock.now()):
            async_task(prune.WORK)
    except Exception:
        logger.exception("prune.not_called")


def _call_for_bulk_work() -> None:
    if bulk.waits():
        async_task(bulk.WORK)


def _put_sums_together() -> None:
    """Left for another minute, what is read of them is the same, only slower."""
    try:
        sums.put_together()
    except Error:
        logger.exception("sums.not_put_together")


def _sweep_each_hour() -> None:
    """Each worker process for itself: what killed ones have left on the disk is gone the sooner."""
    global _swept_at  # noqa: PLW0603
    if time.monotonic() - _swept_at < _SWEEP_EVERY_S:
        return
    _swept_at = time.monotonic()
    try:
        results.sweep()
    except OSError as error:
        logger.warning("results.not_swept %s", error)


@receiver(post_spawn)
def wake_after_a_death(**_kwargs: object) -> None:
    """In each new worker: the one it replaces may have died with a lane in it. Frees its slot without waiting 30 s."""
    try:
        lanes.free_killed()
        ring_if_work_waits()
        _call_for_bulk_work()
    except (Error, OSError) as error:
        # A worker must come up without the database too; the minute's ring follows.
        logger.warning("worker.no_wake_up %s", error)


async def _run_slice(held: lanes.Held) -> None:
    stop = asyncio.Event()
    beside = [
        asyncio.create_task(_hand_over(held, stop)),
        asyncio.create_task(_replace_dead_lanes()),
    ]
    try:
        with _told_to_stop(asyncio.get_running_loop(), stop):
            await engine.run_slice(held, stop=stop)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        # In the thread that has them: django-q2 closes only those of the worker's main thread.
        await sync_to_async(connections.close_all)()


async def _hand_over(held: lanes.Held, stop: asyncio.Event) -> None:
    """As soon as this lane is to stop: bound its rest, and call another cluster's lane without waiting for the drain."""
    await stop.wait()
    _force_after(lane_limit_s())
    try:
        await sync_to_async(_drain_and_ring)(held)
    except Error as error:
        logger.warning("lane.no_hand_over %s", error)


async def _replace_dead_lanes() -> None:
    """A bell that found a dead lane's slot still held is used up; whoever lives must ring again."""
    while True:
        await asyncio.sleep(_LOOK_FOR_DEAD_S)
        try:
            await sync_to_async(_free_dead_and_ring)()
        except Error as error:
            logger.warning("lane.no_look_for_dead %s", error)


def _free_dead_and_ring() -> None:
    if lanes.free_dead(clock.now()):
        bell.ring()


def _drain_and_ring(held: lanes.Held) -> None:
    lanes.drain(run_id=held.run_id)
    bell.ring()


@contextlib.contextmanager
def _told_to_stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Iterator[None]:
    """`stop` is set by the end of the lifeline or by SIGTERM, while this lasts."""

    def on_lifeline(fd: int) -> None:
        loop.remove_reader(fd)  # it stays readable
        stop.set()

    def on_sigterm(_signum: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop.set)

    if lifeline.fd is not None:
        loop.add_reader(lifeline.fd, on_lifeline, lifeline.fd)
    # Not loop.add_signal_handler: its removal would leave the default, and an idle worker must ignore SIGTERM.
    here = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, on_sigterm) if here else None
    try:
        yield
    finally:
        if here:
            signal.signal(signal.SIGTERM, before)
        if lifeline.fd is not None:
            loop.remove_reader(lifeline.fd)


@contextlib.contextmanager
def _outliving_the_sentinel() -> Iterator[None]:
    """A lane whose parent dies drains; an idle worker dies with it."""
    lifeline.on_parent_death(signal.SIGTERM)
    try:
        yield
    finally:
        lifeline.on_parent_death(signal.SIGKILL)


@contextlib.contextmanager
def _ended_by_force() -> Iterator[None]:
    """A lane that hangs where no signal handler runs (C code) ends after the queue's timeout, traceback on stderr."""
    _force_after(float(settings.Q_CLUSTER["timeout"]) + 1)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _force_after(limit_s: float) -> None:
    faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__ or 2)
