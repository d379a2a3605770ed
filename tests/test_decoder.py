"""What the decoder says about a file: formats.py and decoder.py, in this process, without the child around them."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from jobs.decoder import Flaw, Picture, Rejected, answer_to, examine
from jobs.formats import Format, describe, excerpt, stowaway, survey
from tests import pictures

FORMATS = ["PNG", "JPEG", "WEBP", "GIF"]


def look(folder: Path, data: bytes, *, max_pixels: int = 50_000_000) -> Picture | Rejected:
    path = folder / "file"
    path.write_bytes(data)
    return examine(path, thumbnail_to=folder / "thumb", max_pixels=max_pixels)


def flaw(folder: Path, data: bytes) -> Flaw:
    seen = look(folder, data)
    assert isinstance(seen, Rejected), seen
    return seen.flaw


@pytest.mark.parametrize("form", FORMATS)
def test_a_good_picture_is_named_by_its_content(tmp_path: Path, form: str) -> None:
    seen = look(tmp_path, pictures.encode(pictures.noise(), form))
    assert seen == Picture(Format(form), 64, 48)
    with Image.open(tmp_path / "thumb") as thumb:
        assert (thumb.format, thumb.size) == ("WEBP", (64, 48))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_png_mode_gets_a_thumbnail(tmp_path: Path, mode: str) -> None:
    image = (
        Image.new("I;16", (700, 500), 40_000)
        if mode == "I;16"
        else pictures.noise(700, 500, mode=mode)
    )
    assert isinstance(look(tmp_path, pictures.encode(image)), Picture)
    with Image.open(tmp_path / "thumb") as thumb:
        assert max(thumb.size) == 320
        if mode == "I;16":
            assert thumb.convert("L").getpixel((5, 5)) == pytest.approx(156, abs=3)


def test_a_cmyk_jpeg_gets_a_thumbnail(tmp_path: Path) -> None:
    assert isinstance(look(tmp_path, pictures.encode(pictures.noise(mode="CMYK"), "JPEG")), Picture)


def test_a_progressive_jpeg_with_many_scans_is_walked_to_its_end() -> None:
    data = pictures.encode(pictures.noise(), "JPEG", progressive=True)
    seen = survey(data)
    assert seen is not None
    assert (seen.width, seen.height, seen.end) == (64, 48, len(data))


def test_a_lossless_and_an_animated_webp_are_measured() -> None:
    frames = [pictures.noise(40, 30) for _ in range(3)]
    moving = pictures.encode(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    lossless = pictures.encode(frames[0], "WEBP", lossless=True)
    for data in (moving, lossless):
        seen = survey(data)
        assert seen is not None
        assert (seen.width, seen.height, seen.end) == (40, 30, len(data))


def test_only_the_first_frame_of_an_animation_counts(tmp_path: Path) -> None:
    assert look(tmp_path, pictures.animation()) == Picture(Format.GIF, 30, 20)
    with Image.open(tmp_path / "thumb") as thumb:
        red, green, blue = thumb.convert("RGB").getpixel((10, 10))  # type: ignore[misc]
        assert red > 200
        assert max(green, blue) < 60


def test_the_thumbnail_is_turned_as_exif_says_and_carries_no_metadata(tmp_path: Path) -> None:
    assert look(tmp_path, pictures.sideways()) == Picture(Format.JPEG, 40, 60)
    raw = (tmp_path / "thumb").read_bytes()
    assert b"secret" not in raw
    with Image.open(io.BytesIO(raw)) as thumb:
        assert thumb.size == (40, 60)
        assert not thumb.getexif()
        red, _green, blue = thumb.convert("RGB").getpixel((20, 5))  # type: ignore[misc]
        assert red > 180
        assert blue < 80


@pytest.mark.parametrize("turn", range(1, 9))
def test_every_exif_turn_agrees_with_pillows_own(tmp_path: Path, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = turn
    image = Image.linear_gradient("L").resize((90, 50)).convert("RGB")
    image.paste("red", (0, 0, 30, 20))
    data = pictures.encode(image, "JPEG", exif=exif, quality=95)
    seen = look(tmp_path, data)
    from PIL import ImageChops, ImageOps

    with Image.open(io.BytesIO(data)) as original, Image.open(tmp_path / "thumb") as thumb:
        wanted = ImageOps.exif_transpose(original)
        assert isinstance(seen, Picture)
        assert (seen.width, seen.height) == wanted.size == thumb.size
        difference = ImageChops.difference(wanted.convert("L"), thumb.convert("L"))
        assert sum(difference.histogram()[60:]) < 50


def test_a_broken_exif_block_does_not_spoil_the_picture(tmp_path: Path) -> None:
    data = pictures.encode(pictures.noise(), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff")
    assert isinstance(look(tmp_path, data), Picture)


@pytest.mark.parametrize("form", FORMATS)
def test_a_cut_picture_is_noticed_wherever_it_is_cut(tmp_path: Path, form: str) -> None:
    data = pictures.encode(pictures.noise(200, 150), form)
    for size in {13, 40, len(data) // 3, len(data) // 2, len(data) - 40, len(data) - 1}:
        seen = look(tmp_path, data[:size])
        assert isinstance(seen, Rejected), size
        assert seen.flaw in {Flaw.CUT, Flaw.BROKEN}
        assert seen.retry


def test_damage_inside_a_png_is_noticed_by_its_check_sum(tmp_path: Path) -> None:
    data = bytearray(pictures.encode(pictures.noise()))
    data[len(data) // 2] ^= 0xFF
    assert flaw(tmp_path, bytes(data)) is Flaw.BROKEN


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert flaw(tmp_path, b"") is Flaw.EMPTY


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_too_many_pixels_are_refused_from_the_header_alone(tmp_path: Path, form: str) -> None:
    data = pictures.encode(pictures.noise(100, 100), form)
    seen = look(
        tmp_path, data[: max(200, len(data) - 50)], max_pixels=9_999
    )  # what it holds is never reached
    assert isinstance(seen, Rejected)
    assert (seen.flaw, seen.retry) == (Flaw.TOO_MANY_PIXELS, False)
    assert "100 x 100" in seen.reason


def test_a_real_bomb_of_sixty_megapixels_is_small_on_disk_and_refused(tmp_path: Path) -> None:
    assert len(pictures.bomb()) < 100_000
    seen = look(tmp_path, pictures.bomb())
    assert isinstance(seen, Rejected)
    assert seen.reason == "has 10000 x 6000 pixels, more than 50 megapixels"


def test_a_gif_whose_first_frame_outgrows_its_screen_is_measured_by_the_frame() -> None:
    data = bytearray(pictures.encode(Image.new("L", (10, 10)), "GIF"))
    frame = data.index(b"\x2c\x00\x00\x00\x00\x0a\x00")
    data[frame + 5 : frame + 9] = struct.pack("<HH", 60_000, 60_000)
    seen = survey(bytes(data))
    assert seen is not None
    assert (seen.width, seen.height) == (60_000, 60_000)


def test_pillows_own_limit_stands_behind_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = survey(pictures.encode(pictures.noise(100, 100)))
    assert real is not None
    lying = type(real)(real.format, 0, 0, real.end)
    monkeypatch.setattr("jobs.decoder.survey", lambda data: lying)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    seen = look(tmp_path, pictures.encode(pictures.noise(100, 100)), max_pixels=9_998)
    assert isinstance(seen, Rejected)
    assert seen.flaw is Flaw.TOO_MANY_PIXELS


def test_a_compressed_text_bomb_in_a_png_is_refused(tmp_path: Path) -> None:
    good = pictures.encode(pictures.noise())
    chunk = pictures.png_chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(80_000_000), 9))
    assert flaw(tmp_path, good[:33] + chunk + good[33:]) is Flaw.BROKEN


@pytest.mark.parametrize(
    ("data", "name", "retry"),
    [
        (pictures.HTML, "an HTML page", True),
        (pictures.JSON, "JSON", True),
        (pictures.SVG, "an SVG drawing", False),
        (b"\xef\xbb\xbf  <svg xmlns='x'/>", "an SVG drawing", False),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML", True),
        (b"Not found", "plain text", True),
        ("сервис недоступен".encode(), "plain text", True),
        ("неет".encode("utf-16"), "plain text", True),
        (b" \n ", "blank text", True),
        (b"%PDF-1.7\n", "a PDF document", False),
        (pictures.archive(), "a ZIP archive", False),
        (b"\x00\x00\x00\x1cftypheic", "a HEIC picture", False),
        (b"\x00\x00\x00\x1cftypisom", "a film", False),
        (b"\x7fELF\x02\x01", "a program", False),
        (bytes(range(256)), "data of no known kind", True),
        (b"\x89PNG\r\n", "data of no known kind", True),
    ],
)
def test_what_is_no_picture_is_called_by_its_name(
    tmp_path: Path, data: bytes, name: str, retry: bool
) -> None:
    seen = look(tmp_path, data)
    assert isinstance(seen, Rejected)
    assert (seen.flaw, seen.retry) == (Flaw.NOT_A_PICTURE, retry)
    assert f"is {name}, not" in seen.reason


def test_the_other_picture_formats_of_pillow_are_not_tried(tmp_path: Path) -> None:
    for form, name in (("BMP", "a BMP"), ("TIFF", "a TIFF"), ("ICO", "an icon")):
        seen = look(tmp_path, pictures.encode(pictures.noise(), form))
        assert isinstance(seen, Rejected)
        assert name in seen.reason


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "second",
    [
        pictures.archive(),
        b"\n<script>alert(1)</script>",
        b"%PDF-1.4\n1 0 obj",
        b"<?php system($_GET['c']); __HALT_COMPILER();",
        b"MZ\x90\x00",
        b"\x7fELF\x02",
        pictures.archive() + b"trailing",
        pictures.SVG,
    ],
)
def test_a_second_file_behind_a_picture_is_refused(
    tmp_path: Path, form: str, second: bytes
) -> None:
    seen = look(tmp_path, pictures.encode(pictures.noise(), form) + second)
    assert isinstance(seen, Rejected)
    assert (seen.flaw, seen.retry) == (Flaw.STOWAWAY, False)


def test_a_pdf_in_the_comment_of_a_jpeg_is_refused(tmp_path: Path) -> None:
    assert (
        flaw(tmp_path, pictures.encode(pictures.noise(), "JPEG", comment=b"%PDF-1.4"))
        is Flaw.STOWAWAY
    )


def test_an_archive_that_ends_inside_a_comment_is_refused(tmp_path: Path) -> None:
    good = pictures.encode(pictures.noise(), "JPEG")
    packed = pictures.archive()
    rest = len(good) - 2
    packed = packed[:-2] + struct.pack("<H", rest)  # the picture itself is the archive's comment
    segment = b"\xff\xfe" + struct.pack(">H", len(packed) + 2) + packed
    data = good[:2] + segment + good[2:]
    assert flaw(tmp_path, data) is Flaw.STOWAWAY


def test_trailers_that_cameras_write_are_allowed(tmp_path: Path) -> None:
    first = pictures.encode(pictures.noise(), "JPEG")
    gain_map = first + pictures.encode(pictures.noise(), "JPEG")
    motion = first + b"\x00\x00\x00\x1cftypmp42" + random.Random(1).randbytes(5000)
    for data in (gain_map, motion):
        assert isinstance(look(tmp_path, data), Picture)


def test_nothing_hides_in_a_plain_picture() -> None:
    data = pictures.encode(pictures.noise())
    assert stowaway(data, len(data)) == ""


def test_random_damage_never_raises(tmp_path: Path) -> None:
    chance = random.Random(7)
    for form in FORMATS:
        good = pictures.encode(pictures.noise(), form)
        for _ in range(40):
            data = bytearray(good)
            for _ in range(chance.randint(1, 12)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            assert isinstance(
                look(tmp_path, bytes(data[: chance.randint(1, len(data))])), Picture | Rejected
            )


def test_a_missing_file_and_a_missing_folder_are_our_own_trouble(tmp_path: Path) -> None:
    request = {"path": str(tmp_path / "none"), "thumbnail_to": None, "max_pixels": 100}
    assert answer_to(request) == {"errno": 2, "text": "No such file or directory"}
    (tmp_path / "file").write_bytes(pictures.encode(pictures.noise()))
    request = {
        "path": str(tmp_path / "file"),
        "thumbnail_to": str(tmp_path / "none" / "thumb"),
        "max_pixels": 10_000,
    }
    assert answer_to(request)["errno"] == 2


def test_an_excerpt_is_one_printable_line() -> None:
    assert excerpt(b"a\n\tb \x1b[31m c") == "a b [31m c"
    assert excerpt("я".encode() * 500) == "я" * 119 + "…"
    assert excerpt(b"\x00\x01") == ""


def test_text_cut_inside_a_character_is_still_text() -> None:
    assert describe("ы".encode() * 2048 + b"x").name == "plain text"
    assert describe(b"x" + "ы".encode() * 4000).name == "plain text"
    assert describe("привет".encode("cp1251")).name == "data of no known kind"


def test_fill_bytes_and_lone_markers_do_not_confuse_the_walk_through_a_jpeg(tmp_path: Path) -> None:
    good = pictures.encode(pictures.noise(), "JPEG")
    seen = survey(good[:2] + b"\xff\xff\xff\x01" + good[2:])
    assert seen is not None
    assert (seen.width, seen.height, seen.end) == (64, 48, len(good) + 4)


def test_a_gif_without_even_a_screen_and_one_with_an_unknown_block_are_cut(tmp_path: Path) -> None:
    good = pictures.animation()
    assert flaw(tmp_path, good[:11]) is Flaw.CUT
    assert flaw(tmp_path, good[:-1] + b"\x99") is Flaw.CUT
