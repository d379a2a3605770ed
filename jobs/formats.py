"""What a file is, told from its bytes alone. Pure: nothing is decoded here, and no name or header is believed.

`survey` walks the skeleton of the four picture formats that we accept: size in pixels and where the picture ends, so that
bombs are refused before a decoder sees them, cuts are noticed, and what hides behind the picture is found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from mmap import mmap

Bytes = bytes | mmap


class Format(StrEnum):
    """The accepted picture formats, by Pillow's names."""

    PNG = "PNG"
    JPEG = "JPEG"
    WEBP = "WEBP"
    GIF = "GIF"

    @property
    def media_type(self) -> str:
        return f"image/{self.value.lower()}"

    @property
    def extension(self) -> str:
        return "jpg" if self is Format.JPEG else self.value.lower()


@dataclass(frozen=True, slots=True)
class Survey:
    """`width` and `height` in pixels as the header tells (0: it told none). `end` is the offset just after the picture;
    None: the file stops, or loses its structure, before the picture ends."""

    format: Format
    width: int
    height: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Thing:
    """What a file that is no accepted picture seems to be, as an English phrase with its article. `passing` True: the kind
    of thing that a server sends in place of a picture for a while (an error page), so asking again may help."""

    name: str
    passing: bool


def survey(data: Bytes) -> Survey | None:
    """None: the bytes begin like none of the accepted formats."""
    head = data[:12]
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        return _survey_png(data)
    if head[:3] == b"\xff\xd8\xff":
        return _survey_jpeg(data)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _survey_webp(data)
    if head[:6] in {b"GIF87a", b"GIF89a"}:
        return _survey_gif(data)
    return None


def _survey_png(data: Bytes) -> Survey:
    # https://www.w3.org/TR/png-3/#5Chunk-layout
    width = height = 0
    if data[12:16] == b"IHDR":
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    position, size = 8, len(data)
    while position + 12 <= size:
        chunk_end = position + 12 + int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] == b"IEND":
            return Survey(Format.PNG, width, height, chunk_end if chunk_end <= size else None)
        position = chunk_end
    return Survey(Format.PNG, width, height, None)


_ALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # JPEG markers without a length
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_AFTER_SCAN = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")


def _survey_jpeg(data: Bytes) -> Survey:
    # ITU-T T.81, annex B. A thumbnail inside EXIF is within its segment's length and so never taken for the picture.
    width = height = 0
    position, size = 2, len(data)
    while position + 2 <= size and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker == 0xD9:
            return Survey(Format.JPEG, width, height, position + 2)
        elif marker in _ALONE:
            position += 2
        else:
            if marker in _FRAME_HEADERS and not width:
                height = int.from_bytes(data[position + 5 : position + 7], "big")
                width = int.from_bytes(data[position + 7 : position + 9], "big")
            position += 2 + max(2, int.from_bytes(data[position + 2 : position + 4], "big"))
            if marker == 0xDA:
                following = _AFTER_SCAN.search(data, position)
                if following is None:
                    break
                position = following.start()
    return Survey(Format.JPEG, width, height, None)


def _survey_webp(data: Bytes) -> Survey:
    # https://developers.google.com/speed/webp/docs/riff_container
    head = data[:30]
    width = height = 0
    if head[12:16] == b"VP8X":
        width = int.from_bytes(head[24:27], "little") + 1
        height = int.from_bytes(head[27:30], "little") + 1
    elif head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif head[12:16] == b"VP8 ":
        width = int.from_bytes(head[26:28], "little") & 0x3FFF
        height = int.from_bytes(head[28:30], "little") & 0x3FFF
    end = 8 + int.from_bytes(head[4:8], "little")
    return Survey(Format.WEBP, width, height, end if end <= len(data) else None)


def _survey_gif(data: Bytes) -> Survey:
    # https://www.w3.org/Graphics/GIF/spec-gif89a.txt
    size = len(data)
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    if size < 13:
        return Survey(Format.GIF, width, height, None)
    position = 13 + _colour_table(data[10])
    first = True
    while position < size:
        block = data[position]
        if block == 0x3B:
            return Survey(Format.GIF, width, height, position + 1)
        if block == 0x2C and position + 10 <= size:
            if first:  # the first frame may reach beyond the screen, and decoders follow it
                left, top, across, down = (
                    int.from_bytes(data[position + at : position + at + 2], "little")
                    for at in (1, 3, 5, 7)
                )
                width, height, first = max(width, left + across), max(height, top + down), False
            position += 10 + _colour_table(data[position + 9]) + 1
        elif block == 0x21:
            position += 2
        else:
            break
        while position < size and data[position]:  # sub-blocks, each led by its length
            position += 1 + data[position]
        position += 1
    return Survey(Format.GIF, width, height, None)


def _colour_table(flags: int) -> int:
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


# --- what hides behind a picture --------------------------------------------------------------------------------------

_ACTIVE_TEXT = re.compile(
    rb"<(?:script|html|svg|body|iframe|!doctype|\?php)|%PDF-|__HALT_COMPILER", re.IGNORECASE
)
_LEADS = {
    b"MZ": "a program",
    b"\x7fELF": "a program",
    b"Rar!": "an archive",
    b"7z\xbc\xaf": "an archive",
    b"\x1f\x8b\x08": "an archive",
}
_ZIP_END_MAX = 22 + 65_535


def stowaway(data: Bytes, end: int) -> str:
    """What else the file is, apart from the picture that ends at `end`; "" if nothing was found.

    Harmless trailers stay allowed, because cameras write them: a second JPEG (gain maps), a short film (motion photos),
    makers' notes. Refused are those that some other program would open: archives, documents, markup, programs.
    """
    if data.find(b"%PDF-", 0, 1024) != -1:  # where PDF readers look for it
        return "a PDF document"
    found = _ACTIVE_TEXT.search(data, end)
    if found is not None:
        return "a PDF document" if found.group().startswith(b"%") else "a script or a web page"
    for lead, name in _LEADS.items():
        if data[end : end + len(lead)] == lead:
            return name
    closing = data.rfind(b"PK\x05\x06", max(0, len(data) - _ZIP_END_MAX))
    if closing != -1 and closing + 22 + int.from_bytes(
        data[closing + 20 : closing + 22], "little"
    ) == len(data):
        return "an archive"
    if data.find(b"PK\x03\x04", end) != -1 and data.find(b"PK\x05\x06", end) != -1:
        return "an archive"
    return ""


# --- what it is, if no picture ----------------------------------------------------------------------------------------

_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"%PDF-", "a PDF document"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"Rar!", "a RAR archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"BM", "a BMP picture"),
    (0, b"II*\x00", "a TIFF picture"),
    (0, b"MM\x00*", "a TIFF picture"),
    (0, b"8BPS", "a Photoshop file"),
    (0, b"\x00\x00\x01\x00", "an icon"),
    (0, b"\x00\x00\x00\x0cJXL ", "a JPEG XL picture"),
    (0, b"\xff\x0a", "a JPEG XL picture"),
    (0, b"\x00\x00\x00\x0cjP  ", "a JPEG 2000 picture"),
    (4, b"ftypavif", "an AVIF picture"),
    (4, b"ftypheic", "a HEIC picture"),
    (4, b"ftypheix", "a HEIC picture"),
    (4, b"ftypmif1", "a HEIC picture"),
    (4, b"ftyp", "a film"),
    (0, b"\x1aE\xdf\xa3", "a film"),
    (0, b"RIFF", "a sound or film file"),
    (0, b"ID3", "a sound file"),
    (0, b"OggS", "a sound file"),
    (0, b"\x7fELF", "a program"),
    (0, b"MZ", "a program"),
)


def describe(data: Bytes) -> Thing:
    """What bytes that are no accepted picture seem to be."""
    head = data[:4096]
    if not head:
        return Thing("an empty file", passing=True)
    for offset, lead, name in _SIGNATURES:
        if head[offset : offset + len(lead)] == lead:
            return Thing(name, passing=False)
    text = _as_text(head)
    if text is None:
        return Thing("data of no known kind", passing=True)
    return _describe_text(text.lower())


def _describe_text(text: str) -> Thing:
    if not text:
        return Thing("blank text", passing=True)
    if text[0] in "{[":
        return Thing("JSON", passing=True)
    if text[0] != "<":
        return Thing("plain text", passing=True)
    if re.search(r"<(!doctype\s+html|html|head|body)\b", text):
        return Thing("an HTML page", passing=True)
    if "<svg" in text:
        return Thing("an SVG drawing", passing=False)
    return Thing("XML", passing=True)


def excerpt(data: Bytes, *, limit: int = 120) -> str:
    """The beginning of a textual file in one printable line, "" if the bytes are no text."""
    text = _as_text(data[:4096])
    if not text:
        return ""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _as_text(head: bytes) -> str | None:
    if head[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        return head.decode("utf-16", errors="replace").strip()
    if any(byte < 0x20 and byte not in b"\t\n\r\f\x1b" for byte in head):
        return None
    try:
        return head.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        # The window may end within a character; anywhere else it is another encoding, or no text.
        return (
            head[: error.start].decode("utf-8-sig").strip()
            if error.start >= len(head) - 3
            else None
        )
