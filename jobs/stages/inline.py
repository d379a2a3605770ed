"""Bytes that came inside an answer: on the disk before the answer is recorded, as the provider may not send them again."""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from jobs import results
from providers.contract import FileRef, Verdict

logger = logging.getLogger(__name__)


def keep(task_id: UUID, read: object) -> list[str]:
    """The keys of the bytes inside a verdict, by position; "" where there are none or the disk failed.

    A verdict must not be lost with its bytes, so a failing disk only leaves the key empty: the fetch asks again.
    """
    keys = []
    for position, file in enumerate(read.files if isinstance(read, Verdict) else ()):
        key = ""
        if file.data is not None:
            try:
                key = results.keep_inline(task_id, position, file.data)
            except OSError:
                logger.exception("inline.not_kept %s", task_id)
        keys.append(key)
    return keys


def any_in(read: object) -> bool:
    """Whether a verdict came with bytes: only then is the disk needed to keep them."""
    return isinstance(read, Verdict) and any(file.data is not None for file in read.files)


def missing(read: object, keys: list[str]) -> bool:
    """Whether some bytes of a verdict are on no disk."""
    files = read.files if isinstance(read, Verdict) else ()
    return any(file.data is not None and not key for file, key in zip(files, keys, strict=True))


def load(item: dict[str, Any]) -> FileRef:
    """An entry of a task's `files`: its address, or its kept bytes; neither if they are gone."""
    key = item.get("key")
    if not key:
        return FileRef(url=item.get("url"), file_id=item.get("file_id"))
    try:
        return FileRef(data=results.path_of(key).read_bytes())
    except OSError:
        return FileRef()
