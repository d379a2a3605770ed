"""Files in S3-compatible storage, through django-storages. Keys are those of jobs/results.py; what fails is an OSError.

An object appears as a whole or not at all, so a killed upload leaves nothing. It carries the sha256 of its bytes, which says
whether a key that is taken holds the same.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

_CHUNK = 256 * 1024
_SHA256 = "sha256"
_TAKEN = {"PreconditionFailed", "ConditionalRequestConflict"}
_GONE = {"404", "NoSuchKey", "NotFound"}


class Bucket:
    """One bucket below a prefix."""

    def __init__(self, place: dict[str, str]) -> None:
        # Here: it takes a third of a second.
        from storages.backends.s3 import S3Storage  # type: ignore[import-untyped]

        self._storage = S3Storage(
            bucket_name=place["bucket"],
            location=place["prefix"],
            endpoint_url=place.get("endpoint") or None,
            region_name=place.get("region") or None,
            addressing_style=place.get("addressing") or None,
            default_acl=None,
            querystring_auth=False,
        )
        self.bucket, self.prefix = place["bucket"], place["prefix"]

    @property
    def _client(self) -> Any:
        """Of this thread: django-storages keeps one connection a thread."""
        return self._storage.connection.meta.client

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.name(key)}

    def name(self, key: str) -> str:
        """Of the object."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def put_new(self, path: Path, key: str, digest: str) -> bool:
        """False: the key holds other bytes, which stay."""
        found = self.digest(key)
        if found is None:
            try:
                self._put(path, key, digest, IfNoneMatch="*")
            except FileExistsError:
                found = self.digest(key)
                if found is None:
                    raise OSError(f"storage: another upload of {key} is under way") from None
            else:
                return True
        return found == digest

    def put(self, path: Path, key: str, digest: str) -> None:
        """In the place of whatever is there."""
        self._put(path, key, digest)

    def _put(self, path: Path, key: str, digest: str, **only: str) -> None:
        with path.open("rb") as file, _as_os_error():
            self._client.put_object(
                **self._named(key), Body=file, Metadata={_SHA256: digest}, **only
            )

    def digest(self, key: str) -> str | None:
        """The sha256 of what a key holds; None: it holds nothing."""
        head = self._head(key)
        if head is None:
            return None
        return str(head["Metadata"].get(_SHA256) or self._hash(key))

    def _hash(self, key: str) -> str:
        """Of an object that other means have put there."""
        found = hashlib.sha256()
        for part in self.chunks(key):
            found.update(part)
        return found.hexdigest()

    def size(self, key: str) -> int | None:
        head = self._head(key)
        return None if head is None else int(head["ContentLength"])

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            with _as_os_error():
                found: dict[str, Any] = self._client.head_object(**self._named(key))
        except FileNotFoundError:
            return None
        return found

    def names(self, stem: str) -> set[str]:
        """The keys that begin so, of the first thousand."""
        with _as_os_error():
            found = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self.name(stem))
        cut = len(self.name(""))
        return {str(one["Key"])[cut:] for one in found.get("Contents", ())}

    def chunks(self, key: str) -> Iterator[bytes]:
        """FileNotFoundError, at the first one, for a key that holds nothing."""
        with _as_os_error():
            body = self._client.get_object(**self._named(key))["Body"]
        with contextlib.closing(body), _as_os_error():
            yield from body.iter_chunks(_CHUNK)

    def remove(self, key: str) -> None:
        """Nothing where it holds nothing."""
        with _as_os_error():
            self._client.delete_object(**self._named(key))


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    from botocore.exceptions import (  # type: ignore[import-untyped]
        BotoCoreError,
        ClientError,
    )

    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _GONE:
            raise FileNotFoundError(str(error)) from error
        if code in _TAKEN:
            raise FileExistsError(str(error)) from error
        raise OSError(f"storage: {error}") from error
    except BotoCoreError as error:
        raise OSError(f"storage: {error}") from error


@functools.cache
def _made(place: tuple[tuple[str, str], ...]) -> Bucket:
    return Bucket(dict(place))


def bucket() -> Bucket | None:
    """Where MEDIA_STORAGE says; None: files are kept below MEDIA_ROOT."""
    place: dict[str, str] | None = settings.MEDIA_STORAGE
    return None if place is None else _made(tuple(sorted(place.items())))
