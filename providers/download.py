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
    file = await asyncio.to_thread(target.open, "wb")
    try:
        async for chunk in chunks:
            size += len(chunk)
            if size > max_bytes:
                raise TooLargeError
            pending += chunk
            if len(pending) >= CHUNK_BYTES:
                await asyncio.to_thread(_append, file, digest, bytes(pending))
                pending.clear()
        await asyncio.to_thread(_append, file, digest, bytes(pending), sync=True)
    finally:
        file.close()
    return Downloaded(size=size, sha256=digest.hexdigest(), media_type=media_type)


def remove(target: Path) -> None:
    """Remove a partial file, if it is there and can be."""
    with contextlib.suppress(OSError):
        target.unlink(missing_ok=True)


def _append(file: IO[bytes], digest: Any, data: bytes, *, sync: bool = False) -> None:
    file.write(data)
    digest.update(data)
    if sync:
        file.flush()
        os.fsync(file.fileno())
