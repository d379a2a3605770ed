"""What a table would make: rows that can become jobs, lines that can't and why, and what stands in it twice.

Nothing is created here. Photos are checked and kept by their content, as any photo that somebody shows us.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import prompt_files, routes
from jobs.batches import template as templates
from jobs.batches.table import Table, formula_error
from jobs.batches.template import Template
from jobs.intake import InputError, Taken
from jobs.models import Tenant
from jobs.prompt_files import PARAM_PREFIX, Record, Row
from jobs.routes import Routing
from providers.contract import Kind

MAX_PROMPT_CHARS_IN_ALL = 16_000_000
TakePhoto = Callable[[str], Taken]
_OURS = frozenset({"prompt", "target", "kind"})
_NAMED = ("reference", "priority", "photo")  # columns that may be called otherwise


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column holds what. A name that is not the usual one must be among the columns."""

    reference: str = "reference"
    priority: str = "priority"
    photo: str = "photo"

    def checked(self, columns: Sequence[str]) -> Columns:
        """InputError (the field of that name) for a column that somebody named and that is not there."""
        usual = Columns()
        values = {}
        for name in _NAMED:
            column = getattr(self, name).strip().lower() or getattr(usual, name)
            if column != getattr(usual, name) and column not in columns:
                raise InputError(
                    f"{name}_column",
                    _("There is no column “%(name)s”. There are: %(known)s.")
                    % {"name": column[:60], "known": ", ".join(columns)},
                )
            values[name] = column
        return Columns(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A job that could be made of one line. `twin`: an earlier line asks for the very same."""

    line: int
    prompt: str
    route: tuple[int, ...]
    kind: Kind
    reference: str = ""
    priority: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    photos: tuple[Taken, ...] = ()
    twin: bool = False

    def plain(self) -> dict[str, Any]:
        """For a draft's row."""
        return {
            "line": self.line, "prompt": self.prompt, "route": list(self.route), "kind": self.kind.value,
            "reference": self.reference, "priority": self.priority, "params": dict(self.params), "twin": self.twin,
            "photos": [
                [p.key, p.thumb_key, p.sha256, p.media_type, p.size, p.width, p.height] for p in self.photos
            ],
        }  # fmt: skip

    @staticmethod
    def of(row: Mapping[str, Any]) -> Planned:
        """From a draft's row."""
        photos = tuple(Taken(*values) for values in row["photos"])
        return Planned(
            line=row["line"], prompt=row["prompt"], route=tuple(row["route"]), kind=Kind(row["kind"]),
            reference=row["reference"], priority=row["priority"], params=row["params"], photos=photos, twin=row["twin"],
        )  # fmt: skip


@dataclass(slots=True)
class Plan:
    read: int = 0
    rows: list[Planned] = field(default_factory=list)
    refused: list[InputError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def twins(self) -> int:
        return sum(row.twin for row in self.rows)


def plan(
    table: Table,
    *,
    template: str = "",
    columns: Columns | None = None,
    target: str = "",
    tenant: Tenant | None = None,
    kind: Kind | None = None,
    photo: TakePhoto | None = None,
) -> Plan:
    """`target` is the route of rows that name none, by names with commas, "" for the split and the default route of the
    `tenant` (without one: the configured route); a row's reference draws, without one its line and prompt; `kind` what they make, None for what the target makes. `photo` gives the photo of a name,
    None where none were sent along.

    InputError for what spoils the whole: a template or a column that is not there, a route that all rows would take and
    that can't be used. Everything else is in `refused`.
    """
    made = Plan(read=table.read, refused=list(table.problems))
    if not table.columns:
        return made
    reader = _Reader(table, template=template, columns=columns or Columns(), target=target, tenant=tenant, kind=kind, photo=photo)  # fmt: skip
    seen: set[str] = set()
    chars = 0
    for record in table.records:
        row, errors = reader.row(record, seen)
        if row is None:
            made.refused += errors
            continue
        chars += len(row.prompt)
        if chars > MAX_PROMPT_CHARS_IN_ALL:
            text = _("The prompts take more than %(limit)d million characters together. Split the file.")  # fmt: skip
            raise InputError("", text % {"limit": MAX_PROMPT_CHARS_IN_ALL // 1_000_000})
        made.rows.append(row)
    made.refused.sort(key=lambda error: error.line or 0)
    made.notes = reader.notes()
    return made


def is_twin(
    seen: set[str],
    *,
    prompt: str,
    route: Sequence[int],
    kind: Kind,
    photos: Sequence[Taken],
    params: Mapping[str, Any],
) -> bool:
    """Whether the very same was asked for before; `seen` remembers it. A reference and a priority make no other picture."""
    asked = [prompt, list(route), kind, [photo.sha256 for photo in photos], dict(params)]
    same = json.dumps(asked, sort_keys=True)
    if same in seen:
        return True
    seen.add(same)
    return False


class _Reader:
    """Makes rows of records; what all rows share is looked up once."""

    def __init__(
        self,
        table: Table,
        *,
        template: str,
        columns: Columns,
        target: str,
        tenant: Tenant | None,
        kind: Kind | None,
        photo: TakePhoto | None,
    ) -> None:
        self.names = table.columns
        self.columns = columns.checked(table.columns)
        self.target, self.tenant, self.kind, self.photo = target, tenant, kind, photo
        self.template: Template | None = None
        if template.strip():
            self.template = templates.parse(template, columns=table.columns)
        elif "prompt" not in table.columns:
            raise InputError(
                "prompt",
                _("There is no column “prompt”. Add it, or write a template from: %(known)s.")
                % {"known": ", ".join(f"{{{name}}}" for name in table.columns)},
            )
        for name in table.columns:
            if name.startswith(PARAM_PREFIX):
                prompt_files.check_header(["prompt", name])
        self._routes: dict[str, Routing | InputError] = {}
        if "target" not in table.columns:
            self._routing("")  # said once, not by each of ten thousand rows

    def notes(self) -> list[str]:
        """What a person should know although nothing is wrong with it."""
        used = {*self.columns_used(), *(self.template.columns if self.template else ())}
        idle = [name for name in self.names if name not in used]
        if not idle:
            return []
        words = ngettext("Column not used: %(names)s.", "Columns not used: %(names)s.", len(idle))
        return [words % {"names": ", ".join(idle)}]

    def columns_used(self) -> set[str]:
        ours = set(_OURS) - ({"prompt"} if self.template else set())
        ours |= {self.columns.reference, self.columns.priority, self.columns.photo}
        return ours | {name for name in self.names if name.startswith(PARAM_PREFIX)}

    def row(self, record: Record, seen: set[str]) -> tuple[Planned | None, list[InputError]]:
        """The row, or everything that is wrong with its line."""
        errors: list[InputError] = []
        try:
            cells = self._cells(record)
        except InputError as error:
            return None, [error.at(record.line)]
        checked = None
        for item in prompt_files.check_cells(cells, line=record.line):
            if isinstance(item, InputError):
                errors.append(self._at_its_column(item))
            else:
                checked = item
        if checked is None:
            return None, errors
        try:
            return self._planned(
                checked, has_kind=bool(cells.get("kind", "").strip()), seen=seen
            ), []
        except InputError as error:
            return None, [error.at(record.line)]

    def _cells(self, record: Record) -> dict[str, str]:
        """The cells by the usual names of their columns, with the prompt of the template."""
        if len(record.cells) != len(self.names):
            raise prompt_files.wrong_count(len(record.cells), len(self.names))
        by_name = dict(zip(self.names, record.cells, strict=True))
        for name, cell in by_name.items():
            if cell.startswith("="):
                raise formula_error(name)
        cells = {
            name: cell
            for name, cell in by_name.items()
            if name in _OURS or name.startswith(PARAM_PREFIX)
        }
        for name in _NAMED:
            if (column := getattr(self.columns, name)) in by_name:
                cells[name] = by_name[column]
        if self.template:
            for name in self.template.columns:
                prompt_files.check_encoding(by_name[name], name)
            cells["prompt"] = self.template.fill(by_name)
        return cells

    def _at_its_column(self, error: InputError) -> InputError:
        """An error about a column that is called otherwise in this table."""
        if error.field not in _NAMED:
            return error
        return InputError(getattr(self.columns, error.field), error.message, error.line)

    def _planned(self, row: Row, *, has_kind: bool, seen: set[str]) -> Planned:
        routing = self._routing(row.target)
        route = routing.of(row.reference or f"{row.line} {row.prompt}")
        kind = row.kind if has_kind else self.kind or Kind(route[0].kind)
        photos = self._photos(row.photo)
        # Two rows that ask for the same are twins, whatever is drawn for each.
        asked = [target.pk for way in routing.ways() for target in way]
        twin = is_twin(
            seen, prompt=row.prompt, route=asked, kind=kind, photos=photos, params=row.params
        )
        route_ids = tuple(target.pk for target in route)
        return Planned(
            line=row.line, prompt=row.prompt, route=route_ids, kind=kind, reference=row.reference, priority=row.priority,
            params=row.params, photos=photos, twin=twin,
        )  # fmt: skip

    def _photos(self, name: str) -> tuple[Taken, ...]:
        if not name:
            return ()
        if self.photo is None:
            raise InputError(
                self.columns.photo,
                _("A photo is named, but no archive with photos was sent along."),
            )
        try:
            return (self.photo(name),)
        except InputError as error:
            raise InputError(self.columns.photo, error.message) from None

    def _routing(self, name: str) -> Routing:
        """Names of one spelling are looked up once."""
        asked = name or self.target
        if asked not in self._routes:
            try:
                self._routes[asked] = routes.routing(
                    [part.strip() for part in asked.split(",") if part.strip()], tenant=self.tenant
                )
            except InputError as error:
                self._routes[asked] = error
        found = self._routes[asked]
        if isinstance(found, InputError):
            raise found
        return found
