"""Prompts with named columns: `A {colour} {product} on a white wall`. Pure.

`{name}` stands for the cell of that column; `{name?}` may be empty; `{{` and `}}` are braces. Nothing else is looked at: a
template is a text of somebody's, never a program.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.utils.translation import gettext as _

from jobs.intake import InputError

MAX_TEMPLATE_CHARS = 8000
_PIECES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Hole:
    """Where a column's cell goes. `column` is in lower case."""

    column: str
    may_be_empty: bool


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[str | Hole, ...]

    @property
    def columns(self) -> list[str]:
        """Those it names, each once, in their order."""
        return list(dict.fromkeys(part.column for part in self.parts if isinstance(part, Hole)))

    def fill(self, cells: Mapping[str, str]) -> str:
        """The prompt of one row. InputError names the column whose cell is empty."""
        filled = []
        for part in self.parts:
            if isinstance(part, str):
                filled.append(part)
                continue
            cell = cells[part.column].strip()
            if not cell and not part.may_be_empty:
                raise InputError(
                    part.column,
                    _("This cell is empty, and the template needs it. {%(name)s?} may be empty.")
                    % {"name": part.column},
                )
            filled.append(cell)
        return "".join(filled)


def parse(text: str, *, columns: Collection[str]) -> Template:
    """InputError (field `template`) names what stands in it and is no column, or where a brace has no partner."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise InputError(
            "template",
            _("%(length)d characters, at most %(limit)d are allowed. Shorten the text.")
            % {"length": len(text), "limit": MAX_TEMPLATE_CHARS},
        )
    parts: list[str | Hole] = []
    end = 0
    for piece in _PIECES.finditer(text):
        parts.append(text[end : piece.start()])
        end = piece.end()
        if piece[0] in {"{{", "}}"}:
            parts.append(piece[0][0])
        elif piece[1] is None:
            raise InputError(
                "template",
                _("The brace at character %(at)d has no partner. Write {{ or }} for a brace.")
                % {"at": piece.start() + 1},
            )
        else:
            parts.append(_hole(piece[1], columns))
    parts.append(text[end:])
    return Template(tuple(part for part in parts if part != ""))


def _hole(raw: str, columns: Collection[str]) -> Hole:
    written = raw.strip()
    may_be_empty = written.endswith("?")
    column = written.removesuffix("?").strip().lower()
    if column not in columns:
        known = ", ".join(columns) or "—"
        raise InputError(
            "template",
            _("“{%(name)s}” names no column. There are: %(known)s.")
            % {"name": written[:60], "known": known},
        )
    return Hole(column, may_be_empty)
