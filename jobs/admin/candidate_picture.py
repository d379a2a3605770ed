"""The picture of a candidate in a provider's history, brought here to be shown beside the request.

The provider is asked for the id (a free read), the file is fetched from the open internet only (providers/outside.py), decoded
in the picture process, and kept as a small WEBP of our own making among the temporary files, which are swept after a day.
Nothing of the provider's own bytes reaches a browser, and no row changes.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path

from django.conf import settings
from django.core.cache import cache
from django.http import HttpResponse, HttpResponseNotFound
from django.utils.translation import gettext as _

from jobs import results
from jobs.decoder import Picture
from jobs.models import ProviderTask
from providers import asking, registry
from providers.contract import Account, FileRef, Named, Verdict
from providers.http import Downloaded, Transport
from providers.outside import Outside

ASK_DEADLINE_S = 10.0
DOWNLOAD_DEADLINE_S = 20.0
# Who reloads the page asks the provider for what it did not give no more often than this.
NOT_AGAIN_S = 60


class NoPictureError(Exception):
    """There is none to show; says why, for people."""


def answer(task: ProviderTask, provider_id: str) -> HttpResponse:
    """The picture of a candidate of this send; 404 with a sentence where there is none. `task` with its account."""
    try:
        picture = thumbnail(task, provider_id)
    except NoPictureError as why:
        response: HttpResponse = HttpResponseNotFound(
            str(why), content_type="text/plain; charset=utf-8"
        )
        response.headers["Cache-Control"] = "no-store"
    else:
        response = HttpResponse(picture, content_type="image/webp")
        response.headers["Cache-Control"] = "private, max-age=86400"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


def thumbnail(task: ProviderTask, provider_id: str) -> bytes:
    """A WEBP of at most 320 x 320 pixels. Raises NoPictureError."""
    name = hashlib.sha256(f"{task.account_id} {provider_id}".encode()).hexdigest()
    key = f".incoming/candidate-{name}.webp"
    with suppress(FileNotFoundError):
        return results.path_of(key).read_bytes()
    if said := cache.get(f"no-candidate-{name}"):
        raise NoPictureError(said)
    try:
        _bring(task, provider_id, key)
        return results.path_of(key).read_bytes()
    except NoPictureError as why:
        cache.set(f"no-candidate-{name}", str(why), NOT_AGAIN_S)
        raise
    except OSError as error:
        raise NoPictureError(_("Our storage failed: %(why)s") % {"why": error}) from error


def _bring(task: ProviderTask, provider_id: str, key: str) -> None:
    account = registry.reached(task.account.provider, task.account.fingerprint)
    if account is None:
        raise NoPictureError(_("The key that this was sent with is not at hand here."))
    temporary = asyncio.run(_download(account, provider_id, task.target.model))
    small = temporary.with_suffix(".thumb")
    try:
        seen = results.picture_process().inspect_sync(temporary, small)
        if not isinstance(seen, Picture):
            raise NoPictureError(_("What the provider gave is no picture to show."))
        results.put_thumbnail(small, key)
    finally:
        for leftover in (temporary, small):
            leftover.unlink(missing_ok=True)


async def _download(account: Account, provider_id: str, model: str) -> Path:
    """The first file of the generation, unchecked, under a temporary name."""
    file = await _ask(account, provider_id, model)
    if file.data is not None:
        return results.write_temporary(file.data)
    path = results.new_temporary()
    async with Transport(reads=Outside(home=account.base_url)) as transport:
        got = await transport.download(
            file.url or "",
            path,
            max_bytes=settings.MAX_RESULT_BYTES,
            deadline_s=DOWNLOAD_DEADLINE_S,
        )
    if not isinstance(got, Downloaded):
        raise NoPictureError(_("Its file could not be fetched."))
    return path


async def _ask(account: Account, provider_id: str, model: str) -> FileRef:
    adapter = registry.adapter(account.provider)
    async with Transport() as transport:
        _answer, read = await asking.status(
            transport, adapter, account, Named(provider_id, model), deadline_s=ASK_DEADLINE_S
        )
    # An answer about another generation must not be shown under this one's id.
    if not isinstance(read, Verdict) or read.provider_id not in {None, provider_id}:
        raise NoPictureError(_("The provider shows no finished picture under this id."))
    file = next((one for one in read.files if one.data is not None or one.url), None)
    if file is None:
        raise NoPictureError(_("The provider names no file of it."))
    return file
