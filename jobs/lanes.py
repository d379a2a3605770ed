"""Slots of lanes: who runs, who is dead, and whether there is work for another.

A run holds a slot as long as its heartbeat is younger than DEAD_AFTER_S by the database's clock. `run_id` is the fencing
token: a run that finds its id gone from the table must send nothing more. Everything here is one short statement or
transaction, and takes `now`.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet

from jobs.models import Lane

logger = logging.getLogger(__name__)

HEARTBEAT_S = 5.0
DEAD_AFTER_S = 30.0
# The minute's ring comes 60 to 90 s after the one before, so it must look that far ahead.
LOOK_AHEAD_S = 90.0


@dataclass(frozen=True, slots=True)
class Held:
    """A slot this process holds, and the run that holds it."""

    slot: int
    run_id: UUID


def _beating(now: datetime) -> Q:
    return Q(run_id__isnull=False, heartbeat_at__gt=now - timedelta(seconds=DEAD_AFTER_S))


def alive(now: datetime) -> QuerySet[Lane]:
    """The lanes whose run is alive; a run that is in none of them is dead."""
    return Lane.objects.filter(_beating(now))


def live_runs(now: datetime) -> set[UUID]:
    """The ids of all runs that are alive."""
    runs = alive(now).values_list("run_id", flat=True)
    return {run_id for run_id in runs if run_id is not None}


def ensure_slots(count: int) -> None:
    """Slots 1 to `count` exist. Slots above are left as they are: a run may still hold one."""
    Lane.objects.bulk_create(
        [Lane(slot=slot) for slot in range(1, count + 1)], ignore_conflicts=True
    )


def take(*, host: str, pid: int, version: str, now: datetime) -> Held | None:
    """A free slot, or one whose run is dead; None where all are held.

    Only slots up to WORKER_LANES count, over the whole database, and none that staff keep out of work. SKIP LOCKED: a slot
    that another process is just taking is not ours to wait for.
    """
    with transaction.atomic():
        lane = (
            Lane.objects.select_for_update(skip_locked=True)
            .filter(slot__lte=settings.WORKER_LANES, closed_at__isnull=True)
            .exclude(_beating(now))
            .order_by("slot")
            .first()
        )
        if lane is None:
            return None
        held = Held(slot=lane.slot, run_id=uuid.uuid4())
        Lane.objects.filter(slot=lane.slot).update(
            run_id=held.run_id,
            host=host[:120],
            pid=pid,
            version=version[:40],
            started_at=now,
            heartbeat_at=now,
            draining=False,
        )
    return held


def heartbeat(*, run_id: UUID, now: datetime) -> bool:
    """False: fenced, another run holds the slot (or it was freed), so this one must end and send nothing."""
    return Lane.objects.filter(run_id=run_id).update(heartbeat_at=now) == 1


def asked_to_end(*, run_id: UUID) -> bool:
    """Whether this run shall send nothing more and end: staff asked for it (lifecycle/lanes.py), or it said so itself."""
    return Lane.objects.filter(run_id=run_id, draining=True).exists()


def closed() -> int:
    """How many slots staff keep out of work."""
    return Lane.objects.filter(closed_at__isnull=False, slot__lte=settings.WORKER_LANES).count()


def drain(*, run_id: UUID) -> None:
    """From now on this run claims nothing new; whoever has work rings for another lane."""
    Lane.objects.filter(run_id=run_id).update(draining=True)


def free(*, run_id: UUID) -> bool:
    """Give the slot back. False: this run did not hold it any more."""
    return Lane.objects.filter(run_id=run_id).update(run_id=None, draining=False) == 1


def free_dead(now: datetime) -> int:
    """Free every slot whose run is dead by its heartbeat; how many. Live lanes call it with their heartbeats: the bell
    that a dead lane's slot answered with `full` is gone."""
    dead = Lane.objects.filter(run_id__isnull=False, slot__lte=settings.WORKER_LANES).exclude(
        _beating(now)
    )
    return dead.update(run_id=None, draining=False)


# --- death on this machine, known at once -----------------------------------------------------------------------------


_held_here: set[UUID] = set()


def _marks() -> Path:
    return Path(settings.SPOOL_DIR) / "lanes"


@contextlib.contextmanager
def life_mark(run_id: UUID) -> Iterator[None]:
    """Holds a locked file named after the run. The kernel drops the lock when this process dies, and only then.

    A pid would not do: pids come again after a restart of a container, and mean another process in the one next door.
    A POSIX lock, because it does not pass to forked children. Where the disk can't be written or can't lock, there is no
    mark, and a death is noticed by the missing heartbeat only: answers must be read and recorded all the same.
    """
    path = _marks() / str(run_id)
    unlocked = path.with_name(f".{run_id}")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(unlocked.open("wb"))
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Under its name only once it is locked: an unlocked mark means death.
            unlocked.rename(path)
        except OSError as error:
            logger.warning("lane.no_life_mark %s", error)
        _held_here.add(run_id)
        try:
            yield
        finally:
            for name in (path, unlocked):
                _remove(name)
            _held_here.discard(run_id)


def _remove(mark: Path) -> None:
    # One that stays is without its lock soon, and then taken for a death of a run that has freed its slot: harmless.
    with contextlib.suppress(OSError):
        mark.unlink(missing_ok=True)


def free_killed() -> int:
    """Free the slots of runs whose process on this machine is dead; how many. Tells nothing of other machines."""
    folder = _marks()
    if not folder.is_dir():
        return 0
    freed = 0
    for path in folder.iterdir():
        try:
            run_id = UUID(path.name)
            # Our own lock would not stop us, and closing a second handle of the file would drop it.
            if run_id in _held_here:
                continue
            file = path.open("r+b")
        except (ValueError, OSError):
            continue  # gone meanwhile; or the disk can't be written, then heartbeats tell
        with file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            freed += free(run_id=run_id)
            _remove(path)
    return freed


def lives_here(run_id: UUID, *, live: Collection[UUID]) -> bool:
    """Whether the process of a run of this machine lives: by its mark, also where it was fenced or stood still, so that it
    is in `live` (the runs that beat) no more; by its beats where it left no mark."""
    if run_id in _held_here:
        return True
    try:
        file = (_marks() / str(run_id)).open("r+b")
    except OSError:
        return run_id in live
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


# --- is there anything to do ------------------------------------------------------------------------------------------

# One round trip; each part reads one of the partial indexes of its table and stops at the first row.
_WORK_WAITS = """
    SELECT EXISTS (SELECT FROM jobs_job WHERE state = 'pending' AND not_before <= %(until)s)
        OR EXISTS (SELECT FROM jobs_providertask WHERE next_poll_at <= %(until)s)
        OR EXISTS (SELECT FROM jobs_providertask WHERE next_fetch_at <= %(until)s)
        OR EXISTS (SELECT FROM jobs_providertask WHERE next_look_at <= %(until)s)
        OR EXISTS (SELECT FROM jobs_providertask WHERE next_receipt_at <= %(until)s)
        OR EXISTS (SELECT FROM jobs_providertask WHERE undecided_since IS NOT NULL)
        OR EXISTS (SELECT FROM jobs_providertask WHERE state IN ('intent', 'sending'))
        OR EXISTS (SELECT FROM jobs_providertask WHERE work_run_id IS NOT NULL)
        OR EXISTS (SELECT FROM jobs_callback WHERE delivered_at IS NULL AND given_up_at IS NULL
                   AND (not_before IS NULL OR not_before <= %(until)s))
"""


def work_waiting(now: datetime) -> bool:
    """Whether a lane is needed before the next minute's ring: a pending job, a task with something due by then, a callback."""
    with connection.cursor() as cursor:
        cursor.execute(_WORK_WAITS, {"until": now + timedelta(seconds=LOOK_AHEAD_S)})
        row = cursor.fetchone()
    return bool(row and row[0])
