"""Draws the results: real PNGs in which the prompt and the task can be read, and ready-made ones for measurements."""

from __future__ import annotations

import hashlib
import io
import random
import struct
import threading
import zlib
from collections import OrderedDict
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from .reactions import Picture
from .transliterate import latin

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# Fonts that know Latin, Cyrillic and Arabic letters, as the usual systems name them.
_FONTS = ("DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf", "Arial.ttf", "FreeSans.ttf")
_LINES = 9


@lru_cache(maxsize=8)
def _font(size: int) -> tuple[Font, bool]:
    """A font, and whether it knows more than Latin letters."""
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size), True
        except OSError:
            continue
    return ImageFont.load_default(size), False


def draw(picture: Picture) -> bytes:
    """The file. The same picture always gives the same bytes on one machine; it never fails over a prompt."""
    digest = hashlib.sha256(
        f"{picture.prompt}|{picture.task_id}|{picture.number}".encode()
    ).digest()
    image = Image.new("RGB", (picture.width, picture.height), _colour(digest, 0, light=True))
    pen = ImageDraw.Draw(image)
    for place in range(1, 7):
        x = digest[place] / 255 * picture.width
        y = digest[place + 7] / 255 * picture.height
        radius = (0.08 + digest[place + 14] / 255 * 0.22) * min(picture.width, picture.height)
        pen.ellipse(
            (x - radius, y - radius, x + radius, y + radius),
            fill=_colour(digest, place * 3, light=True),
        )
    _write(pen, picture)
    out = io.BytesIO()
    if picture.form == "JPEG":
        image.save(out, "JPEG", quality=85)
    else:
        image.save(out, "PNG", compress_level=1)
    whole = out.getvalue()
    return whole[: int(len(whole) * picture.keep)]


def _colour(digest: bytes, place: int, *, light: bool) -> tuple[int, int, int]:
    base, span = (128, 127) if light else (0, 96)
    red, green, blue = (base + digest[(place + step) % 32] % (span + 1) for step in range(3))
    return red, green, blue


def _write(pen: ImageDraw.ImageDraw, picture: Picture) -> None:
    margin = picture.width // 20
    big, knows_all = _font(max(16, picture.width // 22))
    small, _ = _font(max(11, picture.width // 46))
    prompt = _printable(picture.prompt, knows_all=knows_all)
    width = picture.width - 2 * margin
    y = float(margin)
    for line in _wrapped(pen, prompt, big, width):
        pen.text((margin, y), line, font=big, fill=(16, 16, 32))
        y += big.size * 1.3 if isinstance(big, ImageFont.FreeTypeFont) else 14
    foot = [
        f"{picture.task_id} · {picture.number}",
        _printable(picture.correlation, knows_all=knows_all)[:80],
    ]
    pen.rectangle(
        (0, picture.height - margin * 2, picture.width, picture.height), fill=(16, 16, 32)
    )
    for place, line in enumerate(foot):
        pen.text(
            (margin, picture.height - margin * (1.85 - 0.85 * place)),
            line,
            font=small,
            fill=(240, 240, 240),
        )


def _printable(text: str, *, knows_all: bool) -> str:
    text = " ".join("".join(one if one.isprintable() else " " for one in text[:600]).split())
    return text if knows_all else latin(text)


def _wrapped(pen: ImageDraw.ImageDraw, text: str, font: Font, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and pen.textlength(longer, font=font) > width:
            lines.append(line)
            line = word
        else:
            line = longer
        if len(lines) == _LINES:
            return [*lines, "…" if isinstance(font, ImageFont.FreeTypeFont) else "..."]
    return [*lines, line] if line else lines


class Painter:
    """Bytes for pictures: drawn when asked for and kept for a while, or ready-made. Safe to call from threads."""

    def __init__(self, *, kept: int = 64) -> None:
        self._kept = kept
        self._drawn: OrderedDict[Picture, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._prepared: tuple[int, list[bytes]] = (0, [])

    def at_hand(self, picture: Picture, prepared_bytes: int) -> bytes | None:
        """The bytes if they cost no work; None: call `paint` where it may take a while."""
        if prepared_bytes and picture.form == "PNG":
            return self._ready_made(picture, prepared_bytes)
        with self._lock:
            if picture in self._drawn:
                self._drawn.move_to_end(picture)
                return self._drawn[picture]
        return None

    def paint(self, picture: Picture) -> bytes:
        painted = draw(picture)
        with self._lock:
            self._drawn[picture] = painted
            while len(self._drawn) > self._kept:
                self._drawn.popitem(last=False)
        return painted

    def _ready_made(self, picture: Picture, size_bytes: int) -> bytes:
        if self._prepared[0] != size_bytes:
            self._prepared = (size_bytes, [noise(size_bytes, seed) for seed in range(4)])
        digest = zlib.crc32(picture.task_id.encode())
        whole = self._prepared[1][digest % 4]
        # A text chunk after the header makes each file different at the price of one short checksum.
        named = (
            whole[:33]
            + _chunk(b"tEXt", f"task\0{picture.task_id}-{picture.number}".encode())
            + whole[33:]
        )
        return named[: int(len(named) * picture.keep)]


def noise(size_bytes: int, seed: int) -> bytes:
    """A PNG of about that size whose pixels do not compress."""
    side = max(1, int((size_bytes / 3) ** 0.5))
    grain = random.Random(seed)  # noqa: S311  (pixels, not secrets)
    rows = b"".join(b"\0" + grain.randbytes(side * 3) for _ in range(side))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(rows, 0))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
