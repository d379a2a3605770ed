"""Real pictures for tests, made by Pillow, and files that only pretend."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any

from PIL import Image


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def noise(width: int = 64, height: int = 48, *, mode: str = "RGB") -> Image.Image:
    """No two calls give the same picture."""
    return Image.effect_noise((width, height), 80).convert(mode)


def bomb() -> bytes:
    """Sixty megapixels in a few kilobytes."""
    return encode(Image.new("1", (10_000, 6_000)))


def slow(width: int = 14_000, height: int = 10_000) -> bytes:
    """140 megapixels of the filter that takes longest to undo, in about 2 MB: seconds of CPU."""
    packer = zlib.compressobj(1)
    row = b"\x04" + bytes(3 * width)
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", packed), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(name, body) for name, body in chunks)


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def sideways() -> bytes:
    """Stored 60 x 40 with a red left edge, to be seen turned by 90 degrees clockwise: 40 x 60 with a red top edge."""
    image = Image.new("RGB", (60, 40), "blue")
    image.paste("red", (0, 0, 20, 40))
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a secret description"
    return encode(image, "JPEG", exif=exif, quality=95)


def animation() -> bytes:
    frames = [Image.new("RGB", (30, 20), colour) for colour in ("red", "green", "blue")]
    return encode(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=50)


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("evil.txt", "hello")
    return out.getvalue()


SVG = (
    b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
)
HTML = b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"
JSON = b'{"error": {"message": "the link has expired"}}'
