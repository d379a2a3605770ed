"""Facts that could not be recorded, kept on disk until the database is back. One fsynced file a fact.

Replayed before anything is called unknown; a host's `SpoolHost` row says up to when its facts are all in the database.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from django.conf import settings

from jobs.lifecycle.record import Fact, from_plain, record, to_plain
from jobs.models import SpoolHost

logger = logging.getLogger(__name__)


def _folder() -> Path:
    folder: Path = settings.SPOOL_DIR
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put(facts: Sequence[Fact]) -> None:
    """Keep facts; returns once they are on the disk. OSError passes through: then the memory is all there is."""
    folder = _folder()
    for fact in facts:
        name = f"{fact.task_id}-{uuid.uuid4().hex}"
        temporary = folder / f".{name}"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(to_plain(fact), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(folder / f"{name}.json")
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replay(*, host: str, now: datetime, clear: bool = True) -> set[int]:
    """Record what lies in the spool and say so; returns the jobs that need a decision.

    A file that can't be read is set aside (`.bad`) and the host is not called clear: somebody must look. `clear` False: the
    same holds for what else the host keeps of sends.
    """
    touched: set[int] = set()
    for path in sorted(_folder().glob("*.json")):
        try:
            fact = from_plain(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            continue  # another lane of this host replays too, and was quicker
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
            logger.exception("spool.unreadable %s", path.name)
            with contextlib.suppress(FileNotFoundError):
                path.rename(path.with_suffix(".bad"))
            continue
        except OSError:
            logger.exception("spool.unreadable %s", path.name)
            clear = False  # perhaps readable the next time
            continue
        touched |= record(facts=[fact])
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            # Recorded again the next time, which changes nothing.
            logger.warning("spool.not_removed %s", error)
    if any(_folder().glob("*.bad")):
        clear = False
    if clear:
        SpoolHost.objects.update_or_create(host=host, defaults={"clear_at": now})
    return touched
