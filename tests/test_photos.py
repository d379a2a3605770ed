"""Input photos: from a path or an upload to a content-addressed file, or a message that helps."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import translation
from PIL import Image
from pytest_django import Settings

from jobs import intake, results
from jobs.decoder import Flaw
from jobs.intake import InputError, take_photo
from tests import pictures

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module", autouse=True)
def process() -> Iterator[None]:
    results.picture_process.cache_clear()
    yield
    results.picture_process().close()
    results.picture_process.cache_clear()


@pytest.fixture(autouse=True)
def root(tmp_path: Path, settings: Settings) -> Iterator[Path]:
    settings.MEDIA_ROOT = tmp_path / "media"
    with translation.override("en"):
        yield tmp_path / "media"


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def refused(source: object, root: Path) -> str:
    with pytest.raises(InputError) as caught:
        take_photo(source)  # type: ignore[arg-type]
    assert caught.value.field == "photo"
    assert files(root) == set()
    return caught.value.message


def test_a_photo_is_kept_by_its_hash(root: Path, tmp_path: Path) -> None:
    data = pictures.sideways()
    path = tmp_path / "photo.png"  # the name lies
    path.write_bytes(data)
    taken = take_photo(path)
    digest = hashlib.sha256(data).hexdigest()
    assert taken.key == f"photos/{digest[:2]}/{digest}.jpg"
    assert (taken.sha256, taken.media_type, taken.size) == (digest, "image/jpeg", len(data))
    assert (taken.width, taken.height) == (40, 60)
    assert results.path_of(taken.key).read_bytes() == data
    assert files(root) == {taken.key, taken.thumb_key}
    assert path.exists()


def test_the_same_photo_from_anywhere_is_one_file(root: Path, tmp_path: Path) -> None:
    data = pictures.encode(pictures.noise())
    path = tmp_path / "one.png"
    path.write_bytes(data)
    upload = SimpleUploadedFile("../../etc/cron.d/two.svg", data, content_type="image/svg+xml")
    assert take_photo(str(path)) == take_photo(upload) == take_photo(io.BytesIO(data))
    assert len(files(root)) == 2


def test_a_damaged_copy_is_repaired(root: Path) -> None:
    data = pictures.encode(pictures.noise())
    taken = take_photo(io.BytesIO(data))
    results.path_of(taken.key).write_bytes(b"rotten")
    assert take_photo(io.BytesIO(data)) == taken
    assert results.path_of(taken.key).read_bytes() == data


def test_a_photo_of_sixty_megapixels_is_told_its_size_and_the_limit(root: Path) -> None:
    message = refused(io.BytesIO(pictures.bomb()), root)
    assert message == (
        "The photo is larger than 50 megapixels. Make it smaller. "
        "(has 10000 x 6000 pixels, more than 50 megapixels)"
    )


def test_a_photo_beyond_the_size_cap_is_refused_while_it_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(io.RawIOBase):
        def read(self, size: int = -1, /) -> bytes:
            return bytes(size)

    assert refused(Endless(), root) == "The photo has more than 20 MB. Save it smaller."


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "The file is empty."),
        (pictures.HTML, "This is no photo. Save it as PNG, JPEG, WEBP or GIF. (is an HTML page"),
        (pictures.SVG, "(is an SVG drawing"),
        (pictures.encode(Image.new("L", (90, 90)))[:-20], "The photo is cut off."),
        (
            pictures.encode(Image.new("L", (90, 90))) + pictures.archive(),
            "Something else hides in the photo.",
        ),
        (pictures.encode(pictures.noise()).replace(b"IDAT", b"IDAT\0"), "The photo is"),
    ],
    ids=["empty", "html", "svg", "cut", "polyglot", "corrupt"],
)
def test_what_is_no_good_photo_gets_a_message_that_helps(
    root: Path, data: bytes, words: str
) -> None:
    assert words in refused(io.BytesIO(data), root)


def test_a_file_that_is_no_picture_is_never_quoted(root: Path) -> None:
    assert "secret" not in refused(io.BytesIO(b"secret: 123"), root)


def test_a_corrupt_photo_is_called_damaged(root: Path) -> None:
    data = bytearray(pictures.encode(pictures.noise()))
    data[len(data) // 2] ^= 0xFF
    assert refused(io.BytesIO(bytes(data)), root).startswith("The photo is damaged.")


def test_paths_that_are_no_files_are_refused(root: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    plain = tmp_path / "plain"
    plain.write_bytes(b"x")
    assert refused(tmp_path / "none.png", root).startswith("There is no file “")
    for odd in (tmp_path, pipe, "/dev/zero", plain / "below", "x" * 5000, "a\0b"):
        assert refused(odd, root).endswith("is not a file.")


def test_a_path_that_may_not_be_read_is_told_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", deny)
    with pytest.raises(InputError, match="may not be read"):
        intake._open("x.png")


def test_trouble_of_our_own_is_no_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Too many open files"):
        intake._open("x.png")


def test_the_line_of_a_file_of_prompts_is_named() -> None:
    with pytest.raises(InputError) as caught:
        take_photo(io.BytesIO(b""), line=7)
    assert str(caught.value).startswith("line 7, photo: The file is empty.")


def test_every_flaw_has_a_message() -> None:
    assert set(intake._PHOTO_MESSAGES) == set(Flaw)
