"""Jobs of a batch as CSV for spreadsheets, row by row. Pure.

A cell that a spreadsheet would take for a formula gets an apostrophe before it: prompts and references are other people's
texts, and opening a file must run nothing. Such cells come back with it; that is what safety costs here.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence

# See OWASP, CSV injection. Spreadsheets skip spaces and line breaks before they look.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")
BOM = "\ufeff"  # else Excel takes UTF-8 for something else


class _Line:
    """What csv.writer writes to: keeps the line it was given."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text = text
        return len(text)


def safe(cell: object) -> str:
    """The cell as text that no spreadsheet computes. Numbers stay numbers."""
    if cell is None:
        return ""
    if isinstance(cell, int | float):
        return str(cell)
    text = str(cell).replace("\0", "")
    head = text.lstrip(" \u00a0")
    return f"'{text}" if head.startswith(_FORMULA) or text.startswith(_FORMULA) else text


def lines(rows: Iterable[Sequence[object]]) -> str:
    """Some rows, each ending in CRLF as RFC 4180 has it."""
    line = _Line()
    writer = csv.writer(line)
    told = []
    for row in rows:
        writer.writerow([safe(cell) for cell in row])
        told.append(line.text)
    return "".join(told)
