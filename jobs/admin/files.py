"""Result files and input photos, to staff only. Programs get theirs by signed links (jobs/links.py)."""

from __future__ import annotations

from pathlib import Path

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import get_object_or_404

from jobs.models import JobPhoto, Result
from jobs.serving import serve, serve_result

_THUMBNAIL_TYPE = "image/webp"


def result_file(request: HttpRequest, pk: int) -> HttpResponseBase:
    """The file itself. `?download` makes the browser save it."""
    _check(request)
    return serve_result(request, get_object_or_404(Result, pk=pk))


def result_thumbnail(request: HttpRequest, pk: int) -> HttpResponseBase:
    _check(request)
    result = get_object_or_404(Result, pk=pk)
    if not result.thumb_key:
        raise Http404
    return serve(
        request,
        result.thumb_key,
        media_type=_THUMBNAIL_TYPE,
        etag=f"{result.sha256}-t",
        name=f"{result.pk}.webp",
    )


def photo_file(request: HttpRequest, pk: int) -> HttpResponseBase:
    _check(request)
    photo = get_object_or_404(JobPhoto, pk=pk)
    name = f"photo-{photo.pk}{Path(photo.key).suffix}"
    return serve(request, photo.key, media_type=photo.media_type, etag=photo.sha256, name=name)


def _check(request: HttpRequest) -> None:
    if not request.user.has_perm("jobs.view_job"):
        raise PermissionDenied
