"""The child process that decodes pictures (`python -m jobs.decoder`), and what it can say about a file.

It imports neither Django nor the settings. Its parent is pictures.py.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.formats import Format, describe, stowaway, survey

if TYPE_CHECKING:
    from PIL import Image

THUMBNAIL_PIXELS = 320
_MAX_THUMBNAIL_BYTES = 16 * 1024 * 1024


class Flaw(StrEnum):
    """Why a file is not taken as a picture."""

    EMPTY = "empty"
    NOT_A_PICTURE = "not_a_picture"
    CUT = "cut"
    BROKEN = "broken"
    TOO_MANY_PIXELS = "too_many_pixels"
    STOWAWAY = "stowaway"
    TOO_SLOW = "too_slow"
    TOO_MUCH_MEMORY = "too_much_memory"
    DECODER_DIED = "decoder_died"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that was decoded from its first to its last byte. `width` and `height` are in pixels, as seen: an EXIF
    orientation is already applied."""

    format: Format
    width: int
    height: int

    @property
    def media_type(self) -> str:
        return self.format.media_type

    @property
    def extension(self) -> str:
        return self.format.extension


@dataclass(frozen=True, slots=True)
class Rejected:
    """Not taken. `reason` is an English sentence for timelines. `retry` True: the same file asked for anew, or looked at
    later, may turn out well."""

    flaw: Flaw
    reason: str
    retry: bool


def examine(path: Path, *, thumbnail_to: Path | None, max_pixels: int) -> Picture | Rejected:
    """What the child does with one file. OSError with an errno is the file system's; everything else that a decoder
    throws at hostile input becomes a rejection."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return Rejected(Flaw.EMPTY, "is an empty file", retry=True)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            form = _judge(data, max_pixels)
    if isinstance(form, Rejected):
        return form
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of broken EXIF, and of sizes that are allowed here
            return _decode(path, form, thumbnail_to, max_pixels)
    except MemoryError:
        return Rejected(Flaw.TOO_MUCH_MEMORY, "needs too much memory to decode", retry=False)
    except Exception as error:
        # Decoders throw anything at hostile input.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        if type(error).__name__ == "DecompressionBombError":  # Pillow's, which is imported late
            text = f"has more than {max_pixels / 1e6:g} megapixels"
            return Rejected(Flaw.TOO_MANY_PIXELS, text, retry=False)
        flaw = Flaw.CUT if "truncated" in str(error).lower() else Flaw.BROKEN
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return Rejected(flaw, f"is a {form} picture that can't be decoded ({what})", retry=True)


def _judge(data: mmap.mmap, max_pixels: int) -> Format | Rejected:
    """By the bytes alone, before any decoder sees them."""
    seen = survey(data)
    if seen is None:
        thing = describe(data)
        text = f"is {thing.name}, not a PNG, JPEG, WEBP or GIF picture"
        return Rejected(Flaw.NOT_A_PICTURE, text, retry=thing.passing)
    if seen.width * seen.height > max_pixels:
        text = f"has {seen.width} x {seen.height} pixels, more than {max_pixels / 1e6:g} megapixels"
        return Rejected(Flaw.TOO_MANY_PIXELS, text, retry=False)
    if seen.end is None:
        return Rejected(Flaw.CUT, f"is a {seen.format} picture that is cut off", retry=True)
    hidden = stowaway(data, seen.end)
    if hidden:
        text = f"is a {seen.format} picture with {hidden} in it"
        return Rejected(Flaw.STOWAWAY, text, retry=False)
    return seen.format


def _decode(path: Path, form: Format, thumbnail_to: Path | None, max_pixels: int) -> Picture:
    from PIL import Image

    # A second judge, for headers that we and Pillow read differently. It only warns up to twice this number.
    Image.MAX_IMAGE_PIXELS = (max_pixels + 1) // 2
    if form is Format.PNG:
        with Image.open(path, formats=[form]) as image:
            image.verify()  # check sums, which loading skips
    with Image.open(path, formats=[form]) as image:
        image.load()  # the whole first frame
        turned = _orientation(image)
        width, height = image.size if turned is None or turned < 5 else image.size[::-1]
        if thumbnail_to is not None:
            small = _thumbnail(image, turned)
            with thumbnail_to.open("wb") as out:
                small.save(out, "WEBP", quality=80, method=4)
    return Picture(form, width, height)


def _orientation(image: Image.Image) -> int | None:
    """EXIF's 1 to 8; None where there is none or it can't be read."""
    try:
        value = image.getexif().get(0x0112)
    except Exception:  # noqa: BLE001  a broken EXIF block does not spoil the picture
        return None
    return value if isinstance(value, int) and 1 <= value <= 8 else None


def _thumbnail(image: Image.Image, turned: int | None) -> Image.Image:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits a channel
        small = image.point(lambda value: value / 256).convert("L")
    elif image.mode in {"P", "PA", "LA", "RGBA"} or "transparency" in image.info:
        small = image.convert("RGBA")
    elif image.mode in {"RGB", "L"}:
        small = image.copy()
    else:
        small = image.convert("RGB")
    small.thumbnail(
        (THUMBNAIL_PIXELS, THUMBNAIL_PIXELS), Image.Resampling.LANCZOS, reducing_gap=2.0
    )
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(turned or 1)
    if turn is not None:
        small = small.transpose(turn)
    small.info = {}  # no EXIF, no profile, no comments
    return small


def _confine(parent: int, memory_bytes: int) -> None:
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            sign, signal.SIG_IGN
        )  # a group's stop is the parent's to hear: it may still be fetching
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_THUMBNAIL_BYTES, _MAX_THUMBNAIL_BYTES))
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if os.getppid() != parent:  # it died before we asked to be told
        os._exit(0)


def _allow_cpu(seconds: float) -> None:
    """From now on, this much CPU until the kernel sends SIGXCPU: holds even while the parent is frozen."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(time.process_time() + seconds)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


def answer_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """One request's answer, as it goes over the pipe."""
    target = request["thumbnail_to"]
    try:
        result = examine(
            Path(request["path"]),
            thumbnail_to=Path(target) if target else None,
            max_pixels=request["max_pixels"],
        )
    except OSError as error:
        return {"errno": error.errno, "text": error.strerror or str(error)}
    if isinstance(result, Picture):
        return {
            "picture": {"format": result.format, "width": result.width, "height": result.height}
        }
    return {"rejected": {"flaw": result.flaw, "reason": result.reason, "retry": result.retry}}


def main() -> None:
    parent, memory_bytes = (int(argument) for argument in sys.argv[1:])
    _confine(parent, memory_bytes)
    # What a C library prints must not get between our lines.
    up = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    import PIL.Image  # noqa: F401  a missing decoder shows at the start

    up.write(b'{"ready": true}\n')
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _allow_cpu(request["cpu_s"])
        up.write(json.dumps(answer_to(request)).encode() + b"\n")


if __name__ == "__main__":
    main()
