"""A file on its way to disk: counted, hashed and synced, without stopping the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Downloaded:
    """A file that is complete on disk. `media_type` is what the server claims, lower case, "" if nothing."""

    size: int
    sha256: str
    media_type: str


class TooLargeError(Exception):
    """What arrives exceeds its cap."""


async def to_disk(
    chunks: AsyncIterator[bytes], target: Path, *, max_bytes: int, media_type: str
) -> Downloaded:
    """Write `chunks` to `target` and sync it. TooLargeError beyond `max_bytes`; the partial file is the caller's to remove.

    Writing and hashing go to threads: a slow disk must not stop the loop from reading answers.
    """
    digest = hashlib.sha256()
    size = 0
    pending = bytearray()
    file = _File(target)
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > max_bytes:
                raise TooLargeError
            pending += chunk
            if len(pending) >= CHUNK_BYTES:
                await asyncio.to_thread(file.append, digest, bytes(pending))
                pending.clear()
        await asyncio.to_thread(file.append, digest, bytes(pending), sync=True)
    finally:
        file.close()
    return Downloaded(size=size, sha256=digest.hexdigest(), media_type=media_type)


def remove(target: Path) -> None:
    """Remove a partial file, if it is there and can be."""
    with contextlib.suppress(OSError):
        target.unlink(missing_ok=True)


class _File:
    """Opened by the first bytes, so that a small file costs one turn in a thread."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._file: IO[bytes] | None = None

    def append(self, digest: Any, data: bytes, *, sync: bool = False) -> None:
        if self._file is None:
            self._file = self._target.open("wb")
        self._file.write(data)
        digest.update(data)
        if sync:
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
