"""A table of rows from what somebody uploads or pastes: CSV, an Excel workbook, or plain lines.

Only cells and their lines here; what they mean is for plan.py. Whatever the file is, it costs bounded time and memory.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import IO, Any

from django.utils.translation import gettext as _

from jobs.batches import archive
from jobs.intake import InputError
from jobs.prompt_files import MAX_ROWS, Record, check_encoding, open_csv

MAX_FILE_BYTES = 24 * 1024 * 1024
MAX_COLUMNS = 100
MAX_COLUMN_CHARS = 80
MAX_PROBLEMS = 1000
# What a workbook may unpack to. Its XML packs well, so a ratio alone says little.
MAX_BOOK_BYTES = 96 * 1024 * 1024
MAX_BOOK_PARTS = 2000


@dataclass(slots=True)
class Table:
    """`columns` in lower case (a parameter's own name as written) and each once. `problems` are lines that could not be read,
    and, alone, what spoils the file as a whole. `read` counts the lines that hold something."""

    columns: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    problems: list[InputError] = field(default_factory=list)
    read: int = 0


def read_file(file: IO[bytes]) -> Table:
    """A CSV file or an Excel workbook, told apart by its bytes."""
    try:
        return _read(file)
    except InputError as error:
        return Table(problems=[error])


def _read(file: IO[bytes]) -> Table:
    if file.seek(0, io.SEEK_END) > MAX_FILE_BYTES:
        limit = {"limit": MAX_FILE_BYTES // 2**20}
        raise InputError("", _("The file has more than %(limit)d MB. Split it.") % limit)
    file.seek(0)
    head = file.read(4)
    file.seek(0)
    if head == b"PK\x03\x04":
        return _collect(*_open_book(file))
    if head == b"\xd0\xcf\x11\xe0":
        text = _("This is a workbook of an old Excel, or one with a password. Save it as XLSX.")
        raise InputError("", text)
    return _collect(*open_csv(file))


def read_lines(text: str) -> Table:
    """Pasted text: one prompt a line; rows copied from a spreadsheet (with tabs) come with their header."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = next((line for line in lines if line.strip()), "")
    if "\t" in first:
        return read_file(io.BytesIO(text.encode("utf-8", errors="replace")))
    records = (Record(at, [line]) for at, line in enumerate(lines, 1) if line.strip())
    return _collect(0, ["prompt"], records)


def _collect(number: int, names: Sequence[str], items: Iterable[Record | InputError]) -> Table:
    table = Table(columns=_columns(number, names))
    for item in items:
        table.read += 1
        if isinstance(item, InputError):
            table.problems.append(item)
        elif [cell.strip().lower() for cell in item.cells] == [name.strip().lower() for name in names]:  # fmt: skip
            text = _("This line is the header once more. Two files put together?")
            table.problems.append(InputError("", text, item.line))
        else:
            table.records.append(item)
        if len(table.records) > MAX_ROWS:
            text = _("The file has more than %(limit)d rows. Split it.") % {"limit": MAX_ROWS}
            return Table(columns=table.columns, problems=[InputError("", text)], read=table.read)
        if len(table.problems) >= MAX_PROBLEMS:
            text = _("More than %(limit)d errors. The rest was not read.") % {"limit": MAX_PROBLEMS - 1}  # fmt: skip
            table.problems[-1] = InputError("", text, table.problems[-1].line)
            break
    return table


def _columns(number: int, names: Sequence[str]) -> list[str]:
    """InputError, placed on the header's line, names a column that is at fault."""
    columns: list[str] = []
    try:
        for name in names:
            columns.append(_column(name, columns))
    except InputError as error:
        raise (error.at(number) if number else error) from None
    return columns


def _column(name: str, before: Sequence[str]) -> str:
    if len(before) == MAX_COLUMNS:
        raise InputError("", _("More than %(limit)d columns.") % {"limit": MAX_COLUMNS})
    check_encoding(name, "")
    column = name.strip()
    if not column.lower().startswith("param:"):
        column = column.lower()
    if not column:
        raise InputError("", _("A column has no name."))
    if len(column) > MAX_COLUMN_CHARS or not column.isprintable():
        shown = "".join(c if c.isprintable() else "?" for c in column[:40])
        raise InputError(shown, _("This is no name for a column. Is the first line missing?"))
    if column in before:
        raise InputError(column, _("This column appears twice. Remove one of them."))
    return column


# --- workbooks --------------------------------------------------------------------------------------------------------


def _open_book(file: IO[bytes]) -> tuple[int, list[str], Iterator[Record | InputError]]:
    """The first sheet. Formulas are not computed here, so their cells are named and refused."""
    archive.check_bounds(file, parts=MAX_BOOK_PARTS, total_bytes=MAX_BOOK_BYTES)
    import openpyxl  # half a second to import; most processes never need it

    try:
        book = openpyxl.load_workbook(file, read_only=True, data_only=False, keep_links=False)
        sheet = book.worksheets[0]
        sheet.reset_dimensions()  # what the file says of its own size is a claim
        rows = _book_rows(sheet)
        number, head = next(rows, (1, []))
    except InputError:
        raise
    except Exception as error:  # openpyxl raises whatever its parsers do on a broken file
        raise InputError("", _("The workbook can't be read. Save it as XLSX or CSV UTF-8.")) from error  # fmt: skip
    names = [_text(cell) for cell in head]
    while names and not names[-1].strip():
        names.pop()
    if not names:
        raise InputError(
            "", _("The file is empty, or its first line is. The first line must name the columns."), 1
        )  # fmt: skip
    return number, names, _book_records(rows, len(names))


def _book_rows(sheet: Any) -> Iterator[tuple[int, list[Any]]]:
    # A row may claim any number: max_row ends what would be an endless run of empty ones.
    rows = sheet.iter_rows(min_row=1, max_row=2 * MAX_ROWS, max_col=MAX_COLUMNS + 1)
    for number, cells in enumerate(rows, 1):
        row = list(cells)
        if any(cell.value not in {None, ""} for cell in row if not isinstance(cell.value, list)):
            yield number, row


def _book_records(
    rows: Iterator[tuple[int, list[Any]]], columns: int
) -> Iterator[Record | InputError]:
    while True:
        try:
            number, row = next(rows)
        except StopIteration:
            return
        except Exception:  # noqa: BLE001  the sheet's XML broke in the middle
            yield InputError("", _("The workbook is damaged from here on. Save it once more."))
            return
        formula = next((at for at, cell in enumerate(row) if cell.data_type == "f"), None)
        if formula is not None:
            yield formula_error(f"{_letter(formula)}{number}").at(number)
            continue
        cells = [_text(cell) for cell in row]
        while len(cells) > columns and not cells[-1].strip():
            cells.pop()
        yield Record(number, cells + [""] * (columns - len(cells)))


def formula_error(field: str) -> InputError:
    """A cell that holds a formula in place of a value."""
    return InputError(
        field, _("This cell holds a formula, which is not computed here. Paste its value instead.")
    )


def _letter(at: int) -> str:
    """Excel's name of the column at that position, counted from 0."""
    name = ""
    at += 1
    while at:
        at, rest = divmod(at - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


def _text(cell: Any) -> str:
    value = cell.value
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if value.is_integer():
            return str(int(value))
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return str(value)
