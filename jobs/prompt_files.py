"""Files of prompts: one line, one job. Reads CSV as a stream; other kinds of files give the same rows.

What is wrong with a line is told with its number, and the other lines still come through. What is wrong with the header
spoils the whole file, because then no cell's meaning is known.
"""

from __future__ import annotations

import csv
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from django.utils.translation import gettext as _

from jobs.intake import (
    InputError,
    check_kind,
    check_name,
    check_params,
    check_priority,
    check_prompt,
    check_reference,
    check_target,
)
from providers.contract import Kind

COLUMNS = ("prompt", "reference", "target", "priority", "photo", "tenant", "kind")
PARAM_PREFIX = "param:"
MAX_ROWS = 10_000
MAX_ERRORS = 1000
MAX_LINE_BYTES = 1024 * 1024
MAX_RECORD_LINES = (
    500  # of a quoted cell with line breaks; beyond, its quote was surely never closed
)
_DELIMITERS = ",;\t"
_JSON_VALUE = re.compile(
    r'true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|[\[{"].*', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Row:
    """One wanted job, its texts checked. "" means "the default" for target and tenant, and "none" for reference and photo.

    `photo` is a name as written: whoever reads the file decides what it may point to.
    """

    line: int
    prompt: str
    reference: str = ""
    target: str = ""
    priority: int = 0
    photo: str = ""
    tenant: str = ""
    kind: Kind = Kind.IMAGE
    params: dict[str, Any] = field(default_factory=dict)


def read_csv(
    file: IO[bytes], *, max_rows: int = MAX_ROWS, max_errors: int = MAX_ERRORS
) -> tuple[list[Row], list[InputError]]:
    """Rows and errors, each in the file's order. A file with too many rows gives no rows: half of it would surprise."""
    rows: list[Row] = []
    errors: list[InputError] = []
    for item in iter_csv(file):
        if isinstance(item, Row):
            rows.append(item)
            if len(rows) > max_rows:
                text = _("The file has more than %(limit)d rows. Split it.") % {"limit": max_rows}
                return [], [*errors, InputError("", text)]
        else:
            errors.append(item)
            if len(errors) >= max_errors:
                text = _("More than %(limit)d errors. The rest was not read.") % {
                    "limit": max_errors - 1
                }
                errors[-1] = InputError("", text, item.line)
                break
    return rows, errors


def iter_csv(file: IO[bytes]) -> Iterator[Row | InputError]:
    """The lines of a CSV file in UTF-8, separated by comma, semicolon or tab, with a header line."""
    try:
        number, names, records = open_csv(file)
        header = _place(number, names)
    except InputError as error:
        yield error
        return
    for item in records:
        if isinstance(item, InputError):
            yield item
        else:
            yield from make_row(header, item.cells, line=item.line)


@dataclass(frozen=True, slots=True)
class Record:
    """The cells of one record, which begins on `line`. Cells that are not UTF-8 hold lone surrogates (check_encoding)."""

    line: int
    cells: list[str]


def open_csv(file: IO[bytes]) -> tuple[int, list[str], Iterator[Record | InputError]]:
    """The line of the header, the columns as they are written there, and the records; blank ones are left out.

    InputError, placed on its line, if the file can't be read at all.
    """
    lines = _Lines(file)
    number, delimiter, names = _read_header(lines)
    return number, names, _records(lines, delimiter, alone=len(names) == 1)


def _records(lines: _Lines, delimiter: str, *, alone: bool) -> Iterator[Record | InputError]:
    while lines.more():
        number = lines.number
        try:
            cells = _read_record(lines, delimiter, alone=alone)
        except InputError as error:
            yield error
            continue
        if any(cell.strip() for cell in cells):
            yield Record(number, cells)


def _place(number: int, names: Sequence[str]) -> list[str]:
    try:
        return check_header(names)
    except InputError as error:
        raise error.at(number) from None


def make_row(
    header: Sequence[str], cells: Sequence[str], *, line: int
) -> Iterator[Row | InputError]:
    """One Row, or every error of the line. `header` has been through `check_header`."""
    if len(cells) != len(header):
        yield wrong_count(len(cells), len(header)).at(line)
        return
    yield from check_cells(dict(zip(header, cells, strict=True)), line=line)


def check_cells(by_name: Mapping[str, str], *, line: int) -> Iterator[Row | InputError]:
    """One Row of the cells of COLUMNS and parameters, or every error among them. Other columns are not looked at."""
    values: dict[str, Any] = {name: by_name.get(name, "") for name in COLUMNS}
    values["params"] = {
        name.removeprefix(PARAM_PREFIX): read_param(cell)
        for name, cell in by_name.items()
        if name.startswith(PARAM_PREFIX) and cell.strip()
    }
    errors: list[InputError] = []
    for name, check in _CHECKS.items():
        try:
            for column, cell in by_name.items():
                if column == name or (name == "params" and column.startswith(PARAM_PREFIX)):
                    check_encoding(cell, column)
            values[name] = check(values[name])
        except InputError as error:
            errors.append(error.at(line))
    if errors:
        yield from errors
    else:
        yield Row(line=line, **values)


def wrong_count(cells: int, columns: int) -> InputError:
    """A record with more or fewer cells than there are columns."""
    text = _(
        "%(cells)d cells, but the header has %(columns)d columns. Put texts with separators in double quotes."
    )
    return InputError("", text % {"cells": cells, "columns": columns})


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "prompt": check_prompt,
    "reference": check_reference,
    "target": check_target,
    "priority": check_priority,
    "photo": lambda cell: check_name(cell, field="photo"),
    "tenant": lambda cell: check_name(cell, field="tenant"),
    "kind": check_kind,
    "params": check_params,
}


def read_param(cell: str) -> Any:
    """A cell's value: what looks like a JSON number, true, false, null, list, object or quoted text is that; all else is
    text as written (`16:9`, `007`, `1024x1024`)."""
    text = cell.strip()
    if _JSON_VALUE.fullmatch(text):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def check_header(names: Sequence[str]) -> list[str]:
    """The columns' names in lower case (a parameter's own name as written). InputError names the column at fault."""
    header: list[str] = []
    for name in names:
        check_encoding(name, "")
        column = name.strip()
        lowered = column.lower()
        if lowered.startswith(PARAM_PREFIX):
            column = PARAM_PREFIX + column[len(PARAM_PREFIX) :].strip()
            try:
                check_params({column.removeprefix(PARAM_PREFIX): ""})
            except InputError as error:
                raise InputError(column[:80], error.message) from None
        else:
            column = lowered
            if column not in COLUMNS:
                known = {"known": ", ".join([*COLUMNS, PARAM_PREFIX + "…"])}
                if not column:
                    raise InputError("", _("A column has no name. Known are: %(known)s.") % known)
                raise InputError(
                    column[:80], _("This column is unknown. Known are: %(known)s.") % known
                )
        if column in header:
            raise InputError(column, _("This column appears twice. Remove one of them."))
        header.append(column)
    if "prompt" not in header:
        raise InputError(
            "prompt", _("This column is missing. The first line must name the columns.")
        )
    return header


# --- lines and records ------------------------------------------------------------------------------------------------


class _Lines:
    """The physical lines of a file, which can be put back. Bytes that are not UTF-8 become lone surrogates, so that only
    the cells that hold them are lost."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._waiting: deque[str] = deque()
        self.number = 1  # of the line that comes next

    def more(self) -> bool:
        if not self._waiting:
            raw = self._file.readline(MAX_LINE_BYTES + 1)
            # A line too long stays so by a character, for `take` to refuse; the rest of it is thrown away here.
            rest = raw
            while len(rest) > MAX_LINE_BYTES and not rest.endswith(b"\n"):
                rest = self._file.readline(MAX_LINE_BYTES + 1)
            if raw:
                self._waiting.append(raw.decode("utf-8", errors="surrogateescape"))
        return bool(self._waiting)

    def take(self) -> str | None:
        """None at the end. InputError for a line too long, which is then behind us."""
        if not self.more():
            return None
        line = self._waiting.popleft()
        self.number += 1
        if len(line.encode("utf-8", errors="surrogateescape")) > MAX_LINE_BYTES:
            text = _("The line has more than %(limit)d kB. Shorten it.") % {
                "limit": MAX_LINE_BYTES // 1024
            }
            raise InputError("", text, self.number - 1)
        return line

    def put_back(self, lines: Sequence[str]) -> None:
        self._waiting.extendleft(reversed(lines))
        self.number -= len(lines)


def _read_header(lines: _Lines) -> tuple[int, str, list[str]]:
    """Its line, the delimiter and the columns as written. InputError, placed on its line, if the file can't be read at all."""
    line = (lines.take() or "").removeprefix("\ufeff")
    told = re.fullmatch(r"sep=([,;\t])\s*", line)  # Excel's own first line
    if told:
        line = lines.take() or ""
    if line.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        raise InputError("", _("The file is in UTF-16. Save it as “CSV UTF-8”."), 1)
    if line.startswith("PK\x03\x04"):
        raise InputError(
            "", _("The file is an Excel workbook or an archive. Save it as “CSV UTF-8”."), 1
        )
    number = lines.number - 1
    if not line.strip():
        raise InputError(
            "",
            _("The file is empty, or its first line is. The first line must name the columns."),
            1,
        )
    best: tuple[tuple[int, int], str, list[str]] | None = None
    for delimiter in told[1] if told else _DELIMITERS:
        with suppress(csv.Error):
            names = next(csv.reader([line], delimiter=delimiter, strict=True))
            # A file for a template may hold no column that we know; then the separator that gives most is meant.
            score = sum(_is_known(name) for name in names), len(names)
            if best is None or score > best[0]:
                best = score, delimiter, names
    if best is None:
        raise InputError("", _mismatched_quotes(), number)
    return number, best[1], best[2]


def _is_known(name: str) -> bool:
    lowered = name.strip().lower()
    return lowered in COLUMNS or lowered.startswith(PARAM_PREFIX)


def _read_record(lines: _Lines, delimiter: str, *, alone: bool) -> list[str]:
    """The cells of the next record, which may span lines. InputError, placed on its first line, if its quotes don't match.

    Then reading goes on with the line after the first: one forgotten quote must not swallow the rest of the file. Should
    the swallowed lines be pieces of a torn text after all, their number of cells gives them away; not so in a file of one
    column (`alone`), where a torn text is left out whole, because every piece would become a paid picture.
    """
    first = lines.number
    used: list[str] = []

    def feed() -> Iterator[str]:
        while len(used) < MAX_RECORD_LINES and (line := lines.take()) is not None:
            used.append(line)
            yield line

    try:
        cells = next(csv.reader(feed(), delimiter=delimiter, strict=True))
        if not alone or used[0].lstrip().startswith('"') or used[0].count('"') % 2 == 0:
            return cells
        text = (
            _mismatched_quotes()
        )  # the end of a torn text: legal CSV, but not a text anyone wrote alone
    except csv.Error as error:
        if "field limit" in str(error):
            text = _("A cell has more than %(limit)d characters.") % {
                "limit": csv.field_size_limit()
            }
        else:
            text = _mismatched_quotes()
    if alone and _is_torn(used):
        open_quotes = sum(line.count('"') for line in used) % 2
        while open_quotes and (line := lines.take()) is not None:
            open_quotes = (open_quotes + line.count('"')) % 2
        span = {"first": first + 1, "last": lines.number - 1}
        text += " " + _("Lines %(first)d to %(last)d were left out with it.") % span
    else:
        lines.put_back(used[1:])
    raise InputError("", text, first)


def _is_torn(used: Sequence[str]) -> bool:
    """Whether lines whose quotes don't match look like one text, rather than like a forgotten quote and other texts: there
    is a further quote in them, and it does not belong to a line that is well quoted by itself."""
    last = used[-1].strip()
    well_quoted = len(last) > 1 and last[0] == last[-1] == '"' and last.count('"') % 2 == 0
    return any('"' in line for line in used[1:]) and not well_quoted


def _mismatched_quotes() -> str:
    return _(
        "The double quotes don't match. Put a whole text into quotes, and write a quote inside it twice."
    )


def check_encoding(cell: str, name: str) -> None:
    """InputError (field `name`) for a cell whose bytes were not UTF-8."""
    try:
        cell.encode()
    except UnicodeEncodeError:
        raw = cell.encode("utf-8", errors="surrogateescape")
        looks_russian = (
            sum(byte >= 0xC0 for byte in raw) > len(raw) / 3
        )  # Windows-1251 has its letters there
        text = _("This is not UTF-8. Save the file as “CSV UTF-8”.")
        if looks_russian:
            text = _("This is not UTF-8 but looks like Windows-1251. Save the file as “CSV UTF-8”.")
        raise InputError(name, text) from None
