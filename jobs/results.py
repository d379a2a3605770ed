"""The bytes of results and photos: checking, naming, keeping, reading. No rows here, only files: below MEDIA_ROOT, or in the
bucket that MEDIA_STORAGE names (jobs/buckets.py).

A file is written under a temporary name in the same file system, checked, flushed to the disk, and linked to its final key,
which depends on the task and the index alone: the same key holds the same bytes, however often it is fetched, by however many
lanes at once, and whenever one of them is killed. OSError passes through everywhere: a full or read-only disk is our fault,
and the caller tries again.

With a bucket, a file is checked and flushed below MEDIA_ROOT all the same and then uploaded under the same key, as a whole; what
is under way (downloads, bytes that came inside an answer) never leaves this machine. Files that were kept below MEDIA_ROOT
before go on being read there.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from uuid import UUID, uuid4

from django.conf import settings

from jobs.buckets import Bucket, bucket
from jobs.decoder import Flaw, Picture
from jobs.formats import Format, describe, excerpt
from jobs.pictures import PictureProcess
from providers.contract import Kind

TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"
THUMBNAIL_SUFFIX = ".thumb.webp"
LEFTOVER_AGE_S = 24 * 3600.0
_INCOMING = ".incoming"
_INLINE = "inline"
_CACHE = ".cache"
_IN_BUCKET = ("results/", "photos/")
_CHUNK = 256 * 1024
_EXTENSIONS = (*(form.extension for form in Format), "txt")


@dataclass(frozen=True, slots=True)
class Stored:
    """A kept file. `thumb_key` is "" and width and height are None for texts. `beside` True: the task's key already held
    other bytes, which were left alone; this file stands next to them under a name with its hash."""

    key: str
    thumb_key: str
    sha256: str
    size_bytes: int
    media_type: str
    width: int | None
    height: int | None
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not kept, and nothing is left of it. `reason` is an English sentence for timelines. `retry` True: asking the provider
    for the file once more may help (a cut download, an error page); False: the same file would come again."""

    reason: str
    retry: bool


@functools.cache
def picture_process() -> PictureProcess:
    """This process's own, for results and photos alike."""
    return PictureProcess(max_pixels=int(settings.MAX_RESULT_MEGAPIXELS * 1_000_000))


def key_base(task_id: UUID, created_at: datetime) -> str:
    """The folder of a task's results, for instance `results/2026/11/<uuid>`. `created_at` is the task's, aware, in UTC:
    it must not change between two fetches."""
    return f"results/{created_at:%Y/%m}/{task_id}"


def path_of(key: str) -> Path:
    """Where the file of a key is. ValueError for a key that leads anywhere else than below MEDIA_ROOT."""
    parts = PurePosixPath(key).parts
    if not parts or key.startswith("/") or "\0" in key or "\\" in key or ".." in parts:
        raise ValueError(f"not a storage key: {key!r}")
    return Path(settings.MEDIA_ROOT, *parts)


def new_temporary() -> Path:
    """A fresh path to download to, in the file system of the results; the file does not exist yet, its folder does."""
    folder = Path(settings.MEDIA_ROOT, _INCOMING)
    _make_folder(folder)
    return folder / f"{uuid4()}.part"


def write_temporary(data: bytes) -> Path:
    """Inline bytes of an answer as a temporary file, to be kept like a download."""
    path = new_temporary()
    try:
        path.write_bytes(data)
    except OSError:
        _remove(path)
        raise
    return path


def keep_inline(task_id: UUID, position: int, data: bytes) -> str:
    """Bytes that came inside an answer, on the disk before the answer is recorded: the provider may not send them again.

    Returns a key for `path_of`. They wait there for the fetch, which checks and keeps them like any download.
    """
    key = f"{_INLINE}/{task_id}/{position}"
    path = path_of(key)
    _make_folder(path.parent)
    temporary = path.with_name(f".{uuid4()}")
    try:
        temporary.write_bytes(data)
        _flush(temporary)
        temporary.rename(path)
    except OSError:
        _remove(temporary)
        raise
    _flush_folder(path.parent)
    return key


def drop_inline(task_id: UUID) -> None:
    """Forget a task's inline bytes, once its files are kept."""
    shutil.rmtree(Path(settings.MEDIA_ROOT, _INLINE, str(task_id)), ignore_errors=True)


async def keep(
    temporary: Path,
    *,
    key_base: str,
    index: int,
    kind: Kind,
    pictures: PictureProcess,
    max_bytes: int,
) -> Stored | Rejected:
    """Check a downloaded file and move it to its key. `temporary` is gone afterwards, whatever came out."""
    thumbnail = temporary.with_suffix(".thumb")
    try:
        size = os.stat(temporary).st_size  # noqa: PTH116  no waiting: it was written just now
        if size > max_bytes:
            return Rejected(f"the file has {size} bytes, more than {max_bytes}", retry=False)
        if kind is Kind.TEXT:
            problem = await asyncio.to_thread(_check_text, temporary)
            if problem is not None:
                return problem
            return await asyncio.to_thread(_store, temporary, None, f"{key_base}/{index}", None)
        seen = await pictures.inspect(temporary, thumbnail)
        if not isinstance(seen, Picture):
            words = _first_words(temporary) if seen.flaw is Flaw.NOT_A_PICTURE else ""
            reason = f"the file {seen.reason}"
            return Rejected(f"{reason}: {words}" if words else reason, retry=seen.retry)
        return await asyncio.to_thread(_store, temporary, thumbnail, f"{key_base}/{index}", seen)
    finally:
        _remove(temporary)
        _remove(thumbnail)


def _first_words(path: Path) -> str:
    """What an error page or message in place of a picture says."""
    with path.open("rb") as file:
        return excerpt(file.read(4096))


def _check_text(path: Path) -> Rejected | None:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Rejected(f"the text is not UTF-8 but {describe(data).name}", retry=True)
    if not text.strip():
        return Rejected("the text is empty", retry=True)
    if "\0" in text:
        return Rejected(
            f"the text holds NUL bytes: {excerpt(data.replace(bytes(1), b' '))}", retry=False
        )
    return None


def _store(temporary: Path, thumbnail: Path | None, stem: str, seen: Picture | None) -> Stored:
    extension = seen.extension if seen else "txt"
    digest = flush_and_hash(temporary)
    size = temporary.stat().st_size
    key, beside = f"{stem}.{extension}", False
    others = {f"{stem}.{other}" for other in _EXTENSIONS if other != extension}
    if _there(stem, others) or not settle(temporary, key, digest):
        stem, beside = f"{stem}-{digest[:16]}", True
        key = f"{stem}.{extension}"
        if not settle(temporary, key, digest):
            raise OSError(errno.EIO, "the file under this hash has other bytes", key)
    thumb_key = ""
    if thumbnail is not None:
        thumb_key = stem + THUMBNAIL_SUFFIX
        put_thumbnail(thumbnail, thumb_key)
    return Stored(
        key=key,
        thumb_key=thumb_key,
        sha256=digest,
        size_bytes=size,
        media_type=seen.media_type if seen else TEXT_MEDIA_TYPE,
        width=seen.width if seen else None,
        height=seen.height if seen else None,
        beside=beside,
    )


# --- the moves --------------------------------------------------------------------------------------------------------


def _bucket_of(key: str) -> Bucket | None:
    return bucket() if key.startswith(_IN_BUCKET) else None


def _there(stem: str, keys: set[str]) -> bool:
    """Whether one of the keys, which all begin with `stem`, holds a file."""
    if any(path_of(key).exists() for key in keys):
        return True
    kept = _bucket_of(stem)
    return kept is not None and bool(keys & kept.names(f"{stem}."))


def settle(temporary: Path, key: str, digest: str) -> bool:
    """Give a flushed file its key, on the disk (or in the bucket) for good. False: the key holds other bytes, which stay. The
    temporary name remains; the caller removes it."""
    target = path_of(key)
    kept = _bucket_of(key)
    if kept is not None and not target.exists():
        return kept.put_new(temporary, key, digest)
    _make_folder(target.parent)
    try:
        os.link(temporary, target)  # atomic, and never over an existing file
    except FileExistsError:
        if hash_of(target) != digest:
            return False
    except OSError as error:
        # A file system without hard links. Two lanes may both get here, but with the bytes of one task.
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        if target.exists():
            if hash_of(target) != digest:
                return False
        else:
            temporary.rename(target)
    _flush_folder(target.parent)
    return True


def put_again(path: Path, key: str, digest: str) -> None:
    """In the place of what the key holds, which is damaged: its name tells what the bytes must be."""
    kept = _bucket_of(key)
    if kept is not None and not path_of(key).exists():
        kept.put(path, key, digest)
    else:
        path.replace(path_of(key))


def put_thumbnail(thumbnail: Path, key: str) -> None:
    """Thumbnails follow from the picture, so a second one replaces the first."""
    _flush(thumbnail)
    kept = _bucket_of(key)
    if kept is not None:
        kept.put(thumbnail, key, hash_of(thumbnail))
        return
    target = path_of(key)
    _make_folder(target.parent)
    thumbnail.replace(target)
    _flush_folder(target.parent)


def flush_and_hash(path: Path) -> str:
    """The sha256 in hex of a file whose bytes are now on the disk."""
    _flush(path)
    return hash_of(path)


def hash_of(path: Path) -> str:
    """The sha256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(key: str) -> None:
    """Nothing where it is gone already."""
    path_of(key).unlink(missing_ok=True)
    kept = _bucket_of(key)
    if kept is not None:
        kept.remove(key)


# --- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """A kept file to be read once, from its beginning. `chunks` may wait, and raise OSError."""

    size: int
    chunks: Iterator[bytes]


def opened(key: str) -> Opened:
    """FileNotFoundError for a key that holds nothing; ValueError for one that leads elsewhere, also by a symbolic link."""
    path, root = path_of(key), Path(settings.MEDIA_ROOT).resolve()
    kept = _bucket_of(key)
    if kept is not None and not path.exists():
        size = kept.size(key)
        if size is None:
            raise FileNotFoundError(key)
        return Opened(size, kept.chunks(key))
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError
        raise FileNotFoundError(key) from error
    if not real.is_relative_to(root):
        raise ValueError(f"not below the storage: {key!r}")
    if not real.is_file():
        raise FileNotFoundError(key)
    return Opened(real.stat().st_size, _local_chunks(real))


def _local_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_CHUNK):
            yield part


def where(key: str) -> str:
    """For people: the file's path, or the object's name."""
    kept = _bucket_of(key)
    if kept is not None and not path_of(key).exists():
        return f"s3://{kept.bucket}/{kept.name(key)}"
    return str(path_of(key))


def photo_path(key: str) -> Path:
    """Where an input photo can be read as a file, once `at_hand` was asked for it."""
    path = path_of(key)
    return (
        path if _bucket_of(key) is None or path.exists() else Path(settings.MEDIA_ROOT, _CACHE, key)
    )


def at_hand(path: Path) -> None:
    """Bring a photo of `photo_path` here, where it lies in the bucket. It waits for the network."""
    cache = Path(settings.MEDIA_ROOT, _CACHE)
    kept = bucket()
    if kept is None or not path.is_relative_to(cache) or path.exists():
        return
    temporary = new_temporary()
    try:
        with temporary.open("wb") as file:
            for part in kept.chunks(path.relative_to(cache).as_posix()):
                file.write(part)
        _make_folder(path.parent)
        temporary.rename(path)
    finally:
        _remove(temporary)


def sweep(*, now_s: float | None = None, age_s: float = LEFTOVER_AGE_S) -> int:
    """Remove temporary files that killed processes left behind; the number removed. `now_s` is in seconds since 1970."""
    before = (time.time() if now_s is None else now_s) - age_s
    folders = [Path(settings.MEDIA_ROOT, _INCOMING)]
    # Photos that were brought here for a send.
    folders += [
        folder for folder in Path(settings.MEDIA_ROOT, _CACHE).glob("*/*") if folder.is_dir()
    ]
    return sum(_swept(folder, before) for folder in folders)


def _swept(folder: Path, before: float) -> int:
    removed = 0
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                if (
                    entry.is_file(follow_symlinks=False)
                    and entry.stat(follow_symlinks=False).st_mtime < before
                ):
                    os.unlink(entry.path)  # noqa: PTH108  scandir gives strings
                    removed += 1
    return removed


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _flush(path: Path, flags: int = os.O_RDONLY) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush_folder(path: Path) -> None:
    _flush(path, os.O_RDONLY | os.O_DIRECTORY)


def _make_folder(path: Path) -> None:
    """With parents; each new name is flushed in its parent, else a crash could take a kept file's folder away."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    _flush_folder(path.parent)
