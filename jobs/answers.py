"""The answers of calls whose answer is the result: on the disk while they come in, before anybody looks at them.

`answers/<task>.part` below SPOOL_DIR while it grows, `.answer` once it is complete and synced: the first line tells status and
headers, the rest is the body as it came. Whoever dies in between leaves the file, and the next lane of the host reads it
(jobs/stages/answers.py). It goes once its facts are recorded. So hundreds of long calls hold little memory, and a paid
picture outlives its process from the last byte on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import UUID

from django.conf import settings

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
PART, WHOLE, BAD, NOBODYS = ".part", ".answer", ".bad", ".orphan"
_SECRET = frozenset({"set-cookie", "set-cookie2"})


def _folder() -> Path:
    return Path(settings.SPOOL_DIR) / "answers"


class AnswerFile:
    """A sink (providers/sending.py) for the answer to one send. What the disk does not take stays in memory.

    Locked, as a write that was cancelled goes on in its thread.
    """

    def __init__(self, task_id: UUID, *, run_id: UUID) -> None:
        self.path = _folder() / f"{task_id}{PART}"
        self._run_id = run_id
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._body_at = self._body_bytes = 0  # where in the file, and how much of it is there
        self._pending = bytearray()  # not written yet; all of the body where the disk has failed

    async def open(self, status: int, headers: Mapping[str, str]) -> None:
        kept = {name: value for name, value in headers.items() if name not in _SECRET}
        told = {"status": status, "headers": kept, "run": str(self._run_id)}
        await asyncio.to_thread(self._begin, json.dumps(told).encode() + b"\n")

    async def write(self, chunk: bytes) -> None:
        self._pending += chunk
        # The first bytes at once: an id stands there, and the rest may take minutes.
        if self._file is not None and (not self._body_bytes or len(self._pending) >= CHUNK_BYTES):
            await asyncio.to_thread(self._flush)

    async def complete(self) -> None:
        await asyncio.to_thread(self._settle)

    def body(self) -> bytes:
        """All that has come. OSError where neither the disk nor the memory has it any more."""
        with self._lock:
            return self._written() + bytes(self._pending)

    def close(self) -> None:
        """What is on the disk stays there."""
        with self._lock, contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()
            self._file = None

    def _begin(self, head: bytes) -> None:
        with self._lock:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w+b", buffering=0)
                self._file.write(head)
                self._body_at = len(head)
            except OSError as error:
                self._give_up(error)

    def _flush(self) -> None:
        with self._lock:
            try:
                self._write_out()
            except OSError as error:
                self._give_up(error)

    def _settle(self) -> None:
        with self._lock:
            if self._file is None:
                return
            try:
                self._write_out()
                os.fsync(self._file.fileno())
                self.path.rename(self.path.with_suffix(WHOLE))
                _sync_folder(self.path.parent)
            except OSError as error:
                self._give_up(error)

    def _write_out(self) -> None:
        while self._file is not None and self._pending:
            taken = self._file.write(self._pending)  # a disk that fills up takes a part
            del self._pending[:taken]
            self._body_bytes += taken

    def _written(self) -> bytes:
        """By the open file, which can be read also where its name is gone."""
        if self._file is None:
            return b""
        return os.pread(self._file.fileno(), self._body_bytes, self._body_at)

    def _give_up(self, error: OSError) -> None:
        """The disk has failed: the body goes on in memory."""
        logger.warning("answers.disk_failed %s", error)
        with contextlib.suppress(OSError):
            self._pending[:0] = self._written()
            self._body_bytes = 0
            if self._file is not None:
                self._file.close()
            self._file = None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- what is left there -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Left:
    """A file of this host. `whole`: the answer came in to its last byte."""

    task_id: UUID
    path: Path
    whole: bool

    def read(self) -> Kept:
        """ValueError where the first line is not what `open` writes, OSError from the disk."""
        head, _, body = self.path.read_bytes().partition(b"\n")
        told = json.loads(head)
        if not isinstance(told, dict) or not isinstance(told.get("status"), int):
            raise ValueError("its first line tells no status")  # noqa: TRY004  the caller's word
        headers = {str(name): str(value) for name, value in dict(told["headers"]).items()}
        return Kept(told["status"], headers, body, UUID(told["run"]))


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file holds; `run_id`: of the lane that wrote it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    run_id: UUID

    @property
    def by_length(self) -> bool:
        """Whether all is there that the headers announce: killed after the last byte, before the file had its last name."""
        return self.headers.get("content-length") == str(len(self.body))


def left() -> Iterator[Left]:
    """All files of this host, those of calls under way among them."""
    folder = _folder()
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.suffix not in {PART, WHOLE}:
            continue
        try:
            yield Left(UUID(path.stem), path, whole=path.suffix == WHOLE)
        except ValueError:
            set_aside(path, BAD)


def is_left(task_id: UUID) -> bool:
    return any((_folder() / f"{task_id}{suffix}").exists() for suffix in (PART, WHOLE))


def set_aside(path: Path, suffix: str) -> None:
    """It stays for people, under another name: BAD where nobody can read it, NOBODYS where its send is not known."""
    logger.error("answers.set_aside %s%s", path.stem, suffix)
    with contextlib.suppress(OSError):
        path.rename(path.with_suffix(suffix))


def any_bad() -> bool:
    return any(_folder().glob(f"*{BAD}"))


def drop(task_ids: Iterable[UUID]) -> None:
    """Their facts are recorded. One that can't be removed is read again, which changes nothing."""
    for task_id in task_ids:
        for suffix in (PART, WHOLE):
            with contextlib.suppress(OSError):
                (_folder() / f"{task_id}{suffix}").unlink(missing_ok=True)
