"""Many results as one zip, made while it is sent: never whole in memory, and no file of it on the disk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header
from django.utils.translation import gettext as _
from zipstream import ZipStream

from jobs import results
from jobs.batches import export
from jobs.clock import clock

if TYPE_CHECKING:
    from jobs.admin.gallery import Tile

_NAME_LENGTH = 80
_HEAD = (
    "file",
    "job",
    "reference",
    "prompt",
    "target",
    "tenant",
    "cost",
    "rating",
    "stored",
    "trouble",
)


def answer(request: HttpRequest, tiles: Sequence[Tile]) -> HttpResponseBase:
    """The download. What can't be read on the way is named in the list that ends the archive; the rest comes all the same."""
    parts = _parts(tiles)
    stream = _beside(parts) if isinstance(request, ASGIRequest) else parts
    response = StreamingHttpResponse(stream, content_type="application/zip")
    name = f"results-{clock.now():%Y%m%d-%H%M}.zip"
    response.headers["Content-Disposition"] = content_disposition_header(True, name) or "attachment"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    return response


def _parts(tiles: Sequence[Tile]) -> Iterator[bytes]:
    archive = ZipStream()  # type: ignore[no-untyped-call]  # pictures are compressed already
    troubles: dict[int, str] = {}
    names = {tile.result.pk: _name(tile) for tile in tiles}
    for tile in tiles:
        archive.add(_bytes(tile, troubles), names[tile.result.pk])

    def manifest() -> Iterator[bytes]:
        """Written last, when it is known what could be read."""
        rows = [_line(tile, names[tile.result.pk], troubles) for tile in tiles]
        yield (export.BOM + export.lines([_HEAD, *rows])).encode()

    archive.add(manifest(), "manifest.csv")
    yield from archive


def _bytes(tile: Tile, troubles: dict[int, str]) -> Iterator[bytes]:
    try:
        yield from results.opened(tile.result.key).chunks
    except (OSError, ValueError):
        troubles[tile.result.pk] = _("The file could not be read.")


def _line(tile: Tile, name: str, troubles: dict[int, str]) -> list[object]:
    return [
        name, tile.job.pk, tile.job.reference, tile.prompt, tile.job.target.name, tile.job.tenant.name, tile.cost,
        tile.result.rating, tile.result.created_at.isoformat(), troubles.get(tile.result.pk, ""),
    ]  # fmt: skip


def _name(tile: Tile) -> str:
    """The customer's reference as far as any file system takes it, and numbers that make it the only one."""
    words = re.sub(r"[^\w.-]+", "-", tile.job.reference).strip("-._")[:_NAME_LENGTH]
    suffix = PurePosixPath(tile.result.key).suffix
    return f"{words}{'-' if words else ''}{tile.job.pk}-{tile.result.pk}{suffix}"


async def _beside(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Reads in a thread, so that a slow disk stops no other page. Whoever goes away ends it."""
    try:
        while part := await asyncio.to_thread(next, parts, b""):
            yield part
    finally:
        close = getattr(parts, "close", None)
        if close is not None:
            await asyncio.to_thread(close)
