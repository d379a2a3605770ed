"""Files for imports, good and bad, made as people and attackers make them."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence

import openpyxl
from django.core.files.uploadedfile import SimpleUploadedFile

from tests import factories


def png(hue: int = 200, size: int = 64) -> bytes:
    data = io.BytesIO()
    factories.picture(hue, size=size).save(data, "PNG")
    return data.getvalue()


def archive(files: Mapping[str, bytes]) -> bytes:
    """A ZIP archive with these entries, under whatever names."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return data.getvalue()


def bomb(mb: int = 12) -> bytes:
    """What looks like a photo's first bytes and goes on with zeros: it packs a thousandfold."""
    return b"\x89PNG\r\n\x1a\n" + bytes(mb * 2**20)


def big_archive(entries: int, each_mb: int) -> bytes:
    """An archive whose directory says that it unpacks to `entries` x `each_mb`."""
    return archive({f"{number}.png": bytes(each_mb * 2**20) for number in range(entries)})


def book(rows: Sequence[Sequence[object]]) -> bytes:
    made = openpyxl.Workbook()
    sheet = made.active
    for row in rows:
        sheet.append(list(row))
    data = io.BytesIO()
    made.save(data)
    return data.getvalue()


def upload(content: bytes | str, name: str = "rows.csv") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content.encode() if isinstance(content, str) else content)
