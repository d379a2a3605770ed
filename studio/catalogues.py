"""The words of the pages in other languages: `make messages` brings locale/ up to what the code says.

Needs no GNU gettext: Django turns templates into code, Babel reads code and writes catalogues. New strings come in empty,
those that nothing says any more go; tests/test_catalogues.py tells what is missing. Nothing is guessed ("fuzzy").
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_python
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("ru", "fa")
_CODE = ("jobs", "providers", "studio")
_SAID_BY = (
    *("_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy"),
    *("pgettext", "pgettext_lazy", "npgettext", "npgettext_lazy"),
)
# A catalogue changes only where its words do.
_MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)


def _sources() -> Iterator[tuple[str, str]]:
    """Each file's path and its code."""
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "migrations" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text()
    for path in sorted((ROOT / "templates").rglob("*.html")):
        name = str(path.relative_to(ROOT))
        code = templatize(path.read_text(), origin=name)
        yield (
            name,
            re.sub(r"^[ \t]+", "", code, flags=re.MULTILINE),
        )  # no Python: indents mean nothing


def said() -> Catalog:
    """Every translatable string of code and templates, in English."""
    catalogue = Catalog()
    for name, code in _sources():
        found: Iterator[Any] = extract_python(
            io.BytesIO(code.encode()), dict.fromkeys(_SAID_BY), [], {"encoding": "utf-8"}
        )
        for _line, function, given, _comments in found:
            # One literal comes as it is, of several arguments those that are no literals as None.
            parts = [given] if isinstance(given, str) else list(given or ())
            context = parts.pop(0) if "pgettext" in function else None
            if not parts or not parts[0]:
                continue
            text = tuple(parts[:2]) if function.startswith("n") else parts[0]
            catalogue.add(text, locations=[(name, 0)], context=context)
    return catalogue


def path_of(language: str) -> Path:
    return ROOT / f"locale/{language}/LC_MESSAGES/django.po"


def read(language: str) -> Catalog:
    """The language's catalogue as it lies in locale/, an empty one where there is none."""
    path = path_of(language)
    if not path.is_file():
        return Catalog(locale=language, charset="utf-8", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def missing(catalogue: Catalog) -> list[Message]:
    """What has no words yet, or not all of its plural forms."""
    return [message for message in catalogue if message.id and not _told(message)]


def _told(message: Message) -> bool:
    forms = message.string if isinstance(message.string, tuple | list) else (message.string,)
    return bool(forms) and all(forms) and not message.fuzzy


def as_po(catalogue: Catalog) -> bytes:
    file = io.BytesIO()
    write_po(file, catalogue, width=120, sort_output=True, ignore_obsolete=True, include_lineno=False)  # fmt: skip
    return file.getvalue()


def as_mo(catalogue: Catalog) -> bytes:
    file = io.BytesIO()
    write_mo(file, catalogue)
    return file.getvalue()


def main() -> int:
    template = said()
    for language in LANGUAGES:
        catalogue = read(language)
        catalogue.update(template, no_fuzzy_matching=True)
        catalogue.header_comment = "# Generation desk. Kept up to the code by `make messages`."
        catalogue.creation_date = catalogue.revision_date = _MADE_AT
        path = path_of(language)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_po(catalogue))
        lacking = missing(catalogue)
        if not lacking:  # a language with holes is not offered, or stays as it was
            path.with_suffix(".mo").write_bytes(as_mo(catalogue))
        print(f"{language}: {len(catalogue)} strings, {len(lacking)} without words")  # noqa: T201
        for message in lacking[:10]:
            print(f"    {message.id!r}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
