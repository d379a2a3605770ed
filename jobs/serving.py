"""Giving out stored files over HTTP. Who may have one was asked before; nothing under MEDIA_ROOT goes out in any other way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path

from django.core.handlers.asgi import ASGIRequest
from django.http import (
    Http404,
    HttpRequest,
    HttpResponseBase,
    HttpResponseNotModified,
    StreamingHttpResponse,
)
from django.utils.http import content_disposition_header, parse_etags, quote_etag

from jobs import results
from jobs.models import Result

# What a browser may show by itself; everything else is downloaded.
_SHOWN = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif"})
_CHUNK = 256 * 1024


def serve_result(request: HttpRequest, result: Result) -> HttpResponseBase:
    """The file itself. `?download` makes the browser save it."""
    name = f"{result.job_id}-{result.pk}{Path(result.key).suffix}"
    return serve(request, result.key, media_type=result.media_type, etag=result.sha256, name=name)


def serve(
    request: HttpRequest, key: str, *, media_type: str, etag: str, name: str
) -> HttpResponseBase:
    """Files never change under their key, so browsers may keep them, privately. 404 for a key that leads elsewhere, also
    by a symbolic link."""
    try:
        file = results.opened(key)
    except (ValueError, FileNotFoundError):
        raise Http404 from None
    tag = quote_etag(etag)
    response: HttpResponseBase
    if tag in parse_etags(request.headers.get("If-None-Match", "")):
        response = HttpResponseNotModified()
    else:
        inline = media_type in _SHOWN and "download" not in request.GET
        response = _body(request, file)
        response.headers["Content-Type"] = media_type
        response.headers["Content-Length"] = str(file.size)
        response.headers["Content-Disposition"] = (
            content_disposition_header(not inline, name) or "attachment"
        )
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


def _body(request: HttpRequest, file: results.Opened) -> HttpResponseBase:
    """Under ASGI an asynchronous stream: a synchronous one would be read into memory as a whole."""
    return StreamingHttpResponse(_chunks(file) if isinstance(request, ASGIRequest) else file.chunks)


async def _chunks(file: results.Opened) -> AsyncIterator[bytes]:
    try:
        while (part := await asyncio.to_thread(next, file.chunks, None)) is not None:
            yield part
    finally:
        if isinstance(file.chunks, Generator):
            await asyncio.to_thread(file.chunks.close)
