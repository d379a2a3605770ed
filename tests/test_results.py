"""Files below MEDIA_ROOT: same key, same bytes, whatever happens on the way."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from PIL import Image
from pytest_django import Settings

from jobs import results
from jobs.pictures import PictureProcess
from jobs.results import Rejected, Stored
from providers.contract import Kind
from tests import pictures

pytestmark = pytest.mark.flow

TASK = UUID("0192f0c1-2345-7abc-8def-0123456789ab")
BASE = results.key_base(TASK, datetime(2026, 11, 30, 23, 59, tzinfo=UTC))


@pytest.fixture(scope="module")
def process() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, settings: Settings) -> Path:
    settings.MEDIA_ROOT = tmp_path / "media"
    return tmp_path / "media"


async def keep(
    process: PictureProcess,
    data: bytes,
    *,
    index: int = 0,
    kind: Kind = Kind.IMAGE,
    max_bytes: int = 10_000_000,
) -> Stored | Rejected:
    return await results.keep(
        results.write_temporary(data),
        key_base=BASE,
        index=index,
        kind=kind,
        pictures=process,
        max_bytes=max_bytes,
    )


async def stored(
    process: PictureProcess, data: bytes, *, index: int = 0, kind: Kind = Kind.IMAGE
) -> Stored:
    kept = await keep(process, data, index=index, kind=kind)
    assert isinstance(kept, Stored), kept
    return kept


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


async def test_a_picture_is_kept_under_its_tasks_key_with_a_thumbnail(
    process: PictureProcess, root: Path
) -> None:
    data = pictures.encode(pictures.noise(640, 480))
    kept = await stored(process, data, index=3)
    assert kept == Stored(
        key=f"results/2026/11/{TASK}/3.png",
        thumb_key=f"results/2026/11/{TASK}/3.thumb.webp",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        media_type="image/png",
        width=640,
        height=480,
        beside=False,
    )
    assert results.path_of(kept.key).read_bytes() == data
    with Image.open(results.path_of(kept.thumb_key)) as thumb:
        assert thumb.size == (320, 240)
    assert files(root) == {kept.key, kept.thumb_key}


@pytest.mark.parametrize(("form", "extension"), [("JPEG", "jpg"), ("WEBP", "webp"), ("GIF", "gif")])
async def test_the_extension_follows_the_content(
    process: PictureProcess, form: str, extension: str
) -> None:
    kept = await stored(process, pictures.encode(pictures.noise(), form))
    assert kept.key.endswith(f"/0.{extension}")
    assert kept.media_type == f"image/{form.lower()}"


async def test_the_same_bytes_fetched_again_are_the_same_file(
    process: PictureProcess, root: Path
) -> None:
    data = pictures.encode(pictures.noise())
    first = await stored(process, data)
    inode = results.path_of(first.key).stat().st_ino
    assert await stored(process, data) == first
    assert results.path_of(first.key).stat().st_ino == inode
    assert files(root) == {first.key, first.thumb_key}


async def test_ten_lanes_fetching_the_same_file_at_once_all_succeed(
    process: PictureProcess, root: Path
) -> None:
    data = pictures.encode(pictures.noise())
    kept = await asyncio.gather(*(stored(process, data) for _ in range(10)))
    assert len(set(kept)) == 1
    assert files(root) == {kept[0].key, kept[0].thumb_key}


@pytest.mark.parametrize("second_form", ["PNG", "WEBP"])
async def test_other_bytes_never_replace_a_kept_file_but_stand_beside_it(
    process: PictureProcess, root: Path, second_form: str
) -> None:
    data, other = pictures.encode(pictures.noise()), pictures.encode(pictures.noise(), second_form)
    first = await stored(process, data)
    second = await stored(process, other)
    assert second.beside
    assert second.key == f"{BASE}/0-{second.sha256[:16]}.{second_form.lower()}"
    assert results.path_of(first.key).read_bytes() == data
    assert results.path_of(second.key).read_bytes() == other
    assert await stored(process, other) == second
    assert await stored(process, data) == first
    assert files(root) == {first.key, first.thumb_key, second.key, second.thumb_key}


async def test_other_bytes_at_the_same_moment_lose_nothing(process: PictureProcess) -> None:
    wanted = [pictures.encode(pictures.noise()) for _ in range(6)]
    kept = await asyncio.gather(*(stored(process, data) for data in wanted))
    assert sorted(one.beside for one in kept) == [False] + [True] * 5
    assert [results.path_of(one.key).read_bytes() for one in kept] == wanted


async def test_a_text_is_kept_as_utf8(process: PictureProcess) -> None:
    data = "Обложка: کتاب\nзима".encode()
    kept = await stored(process, data, kind=Kind.TEXT)
    assert (kept.key, kept.thumb_key) == (f"{BASE}/0.txt", "")
    assert (kept.media_type, kept.width, kept.height) == ("text/plain; charset=utf-8", None, None)
    assert results.path_of(kept.key).read_bytes() == data


@pytest.mark.parametrize(
    ("data", "reason", "retry"),
    [
        (b"", "the text is empty", True),
        (b" \n", "the text is empty", True),
        (b"a\0b", "the text holds NUL bytes: a b", False),
        ("привет".encode("cp1251"), "the text is not UTF-8 but data of no known kind", True),
        (
            pictures.encode(Image.new("L", (9, 9))),
            "the text is not UTF-8 but data of no known kind",
            True,
        ),
    ],
)
async def test_what_is_no_text_is_refused(
    process: PictureProcess, root: Path, data: bytes, reason: str, retry: bool
) -> None:
    assert await keep(process, data, kind=Kind.TEXT) == Rejected(reason, retry)
    assert files(root) == set()


@pytest.mark.parametrize(
    ("data", "reason", "retry"),
    [
        (
            pictures.HTML,
            "the file is an HTML page, not a PNG, JPEG, WEBP or GIF picture: "
            + pictures.HTML.decode(),
            True,
        ),
        (
            pictures.JSON,
            "the file is JSON, not a PNG, JPEG, WEBP or GIF picture: " + pictures.JSON.decode(),
            True,
        ),
        (
            pictures.SVG,
            "the file is an SVG drawing, not a PNG, JPEG, WEBP or GIF picture: "
            + pictures.SVG.decode(),
            False,
        ),
        (b"", "the file is an empty file", True),
        (pictures.bomb(), "the file has 10000 x 6000 pixels, more than 50 megapixels", False),
        (
            pictures.encode(Image.new("L", (90, 90)))[:-8],
            "the file is a PNG picture that is cut off",
            True,
        ),
        (
            pictures.encode(Image.new("L", (90, 90))) + pictures.archive(),
            "the file is a PNG picture with an archive in it",
            False,
        ),
    ],
    ids=["html", "json", "svg", "empty", "bomb", "cut", "polyglot"],
)
async def test_what_is_no_picture_is_refused_by_its_name_and_nothing_is_left(
    process: PictureProcess, root: Path, data: bytes, reason: str, retry: bool
) -> None:
    kept = await keep(process, data)
    assert isinstance(kept, Rejected)
    assert kept.reason[:110] == reason[:110]
    assert kept.retry is retry
    assert files(root) == set()


async def test_a_file_beyond_the_cap_is_refused_unread(process: PictureProcess, root: Path) -> None:
    kept = await keep(process, bytes(2000), max_bytes=1999)
    assert kept == Rejected("the file has 2000 bytes, more than 1999", retry=False)
    assert files(root) == set()


async def test_a_refused_file_does_not_touch_the_one_kept_before(
    process: PictureProcess, root: Path
) -> None:
    first = await stored(process, pictures.encode(pictures.noise()))
    await keep(process, pictures.HTML)
    assert files(root) == {first.key, first.thumb_key}


# --- our own trouble --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["link", "fsync"])
async def test_a_disk_that_is_full_or_read_only_raises_and_the_next_try_succeeds(
    process: PictureProcess, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    data = pictures.encode(pictures.noise())

    def fail(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    temporary = results.write_temporary(data)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            await results.keep(
                temporary,
                key_base=BASE,
                index=0,
                kind=Kind.IMAGE,
                pictures=process,
                max_bytes=10**7,
            )
    kept = await stored(process, data)
    assert files(root) == {kept.key, kept.thumb_key}


def test_an_inline_result_that_does_not_fit_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        results.write_temporary(b"abc")
    assert files(root) == set()


async def test_a_file_system_without_hard_links_keeps_the_same_promises(
    process: PictureProcess, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    data, other = (pictures.encode(pictures.noise()) for _ in range(2))
    first = await stored(process, data)
    assert await stored(process, data) == first
    second = await stored(process, other)
    assert second.beside
    assert results.path_of(first.key).read_bytes() == data
    assert files(root) == {first.key, first.thumb_key, second.key, second.thumb_key}


async def test_a_damaged_file_under_its_own_hash_is_our_trouble(process: PictureProcess) -> None:
    await stored(process, pictures.encode(pictures.noise()))
    other = pictures.encode(pictures.noise())
    beside = await stored(process, other)
    results.path_of(beside.key).write_bytes(b"rotten")
    with pytest.raises(OSError, match="other bytes"):
        await keep(process, other)


_FETCHER = """
import asyncio, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = ""
from pathlib import Path
from django.conf import settings
settings.configure(MEDIA_ROOT=sys.argv[1], MEDIA_STORAGE=None)
from jobs import results
from jobs.pictures import PictureProcess
from providers.contract import Kind
data = Path(sys.argv[2]).read_bytes()
process = PictureProcess()
async def main():
    while True:
        kept = await results.keep(results.write_temporary(data), key_base="results/2026/11/x", index=0,
                                  kind=Kind.IMAGE, pictures=process, max_bytes=10**8)
        print(kept.key, flush=True)
asyncio.run(main())
"""


def _fetch_until_killed(root: Path, source: Path) -> None:
    fetcher = subprocess.Popen(
        [sys.executable, "-c", _FETCHER, str(root), str(source)],
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
    )
    assert fetcher.stdout is not None
    with fetcher, fetcher.stdout:
        for _ in range(20):
            assert fetcher.stdout.readline()
        fetcher.send_signal(signal.SIGKILL)


async def test_kill_9_at_any_moment_leaves_whole_files_or_none(
    process: PictureProcess, root: Path, tmp_path: Path
) -> None:
    data = pictures.encode(pictures.noise(300, 300))
    source = tmp_path / "source"
    source.write_bytes(data)
    _fetch_until_killed(root, source)
    kept = root / "results/2026/11/x"
    assert (kept / "0.png").read_bytes() == data
    again = await results.keep(
        results.write_temporary(data),
        key_base="results/2026/11/x",
        index=0,
        kind=Kind.IMAGE,
        pictures=process,
        max_bytes=10**8,
    )
    assert isinstance(again, Stored)
    assert not again.beside
    results.sweep(age_s=-60)
    assert files(root) == {again.key, again.thumb_key}


async def test_a_cancelled_fetch_can_simply_be_repeated(
    process: PictureProcess, root: Path
) -> None:
    data = pictures.encode(pictures.noise(900, 900))
    for turns in range(0, 30, 3):
        fetching = asyncio.create_task(stored(process, data))
        for _ in range(turns):
            await asyncio.sleep(0.002)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
    kept = await stored(process, data)
    assert not kept.beside
    assert results.path_of(kept.key).read_bytes() == data


# --- keys and leftovers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "results/../../x", "a\0b", "a\\..\\b"])
def test_a_key_never_leads_out_of_the_storage(key: str) -> None:
    with pytest.raises(ValueError, match="not a storage key"):
        results.path_of(key)


def test_old_leftovers_are_swept_and_downloads_under_way_are_not(root: Path) -> None:
    assert results.sweep() == 0
    old, young = results.write_temporary(b"old"), results.write_temporary(b"young")
    os.utime(old, (1_000_000, 1_000_000))
    assert results.sweep() == 1
    assert young.exists()
    assert not old.exists()


def test_folders_made_by_many_at_once_are_no_trouble(root: Path) -> None:
    threads = [threading.Thread(target=results.new_temporary) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (root / ".incoming").is_dir()


def test_the_shared_picture_process_has_the_configured_limit(settings: Settings) -> None:
    results.picture_process.cache_clear()
    settings.MAX_RESULT_MEGAPIXELS = 12.5
    try:
        assert results.picture_process().max_pixels == 12_500_000
        assert results.picture_process() is results.picture_process()
    finally:
        results.picture_process.cache_clear()
