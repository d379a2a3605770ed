"""Every string of code and templates has its words in each language: none missing, none guessed, none left over."""

from __future__ import annotations

import re
from typing import Any

import pytest
from babel.messages.catalog import Catalog, Message

from studio import catalogues

_MARKS = re.compile(r"%\(\w+\)[a-z]|%[sd]|\{\w*\}|</?\w+[^>]*>")
# The same in every language: names, and words that are taken over.
_NAMES = re.compile(r"id|[A-Z][\w.]*( [A-Z][\w.]*)*|[\W\d]*")


@pytest.fixture(scope="module")
def said() -> Catalog:
    return catalogues.said()


@pytest.fixture(scope="module", params=catalogues.LANGUAGES)
def language(request: Any) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def catalogue(language: str) -> Catalog:
    return catalogues.read(language)


def _keys(catalogue: Catalog) -> set[Any]:
    return {(message.id, message.context) for message in catalogue if message.id}


def _forms(text: Any) -> list[str]:
    return list(text) if isinstance(text, tuple | list) else [text]


def _messages(catalogue: Catalog) -> list[Message]:
    return [message for message in catalogue if message.id]


def test_the_code_says_thousands_of_strings(said: Catalog) -> None:
    assert len(said) > 2000
    assert any(isinstance(message.id, tuple) for message in said)
    assert any(message.context for message in said)


def test_nothing_is_missing_and_nothing_left_over(said: Catalog, catalogue: Catalog) -> None:
    assert _keys(said) - _keys(catalogue) == set(), "run make messages, then write the words"
    assert _keys(catalogue) - _keys(said) == set(), "run make messages"


def test_every_string_has_words_in_all_its_plural_forms(catalogue: Catalog) -> None:
    assert [message.id for message in catalogues.missing(catalogue)] == []
    for message in _messages(catalogue):
        if message.pluralizable:
            assert len(_forms(message.string)) == catalogue.num_plurals, message.id


def test_marks_and_tags_are_those_of_the_english(catalogue: Catalog) -> None:
    """What is filled in and what is markup must come through, in any order; a plural form may leave its number out."""
    for message in _messages(catalogue):
        ids = _forms(message.id)
        allowed = sorted(_MARKS.findall(ids[-1]))
        for form in _forms(message.string):
            found = sorted(_MARKS.findall(form))
            if message.pluralizable:
                assert set(found) <= set(allowed) | set(_MARKS.findall(ids[0])), message.id
            else:
                assert found == allowed, message.id
        for first, last in ((ids[0][:1], 0), (ids[0][-1:], -1)):
            if first == "\n":
                assert all(form[last] == "\n" for form in _forms(message.string)), message.id


def test_words_are_not_just_the_english(catalogue: Catalog) -> None:
    same = [
        message.id
        for message in _messages(catalogue)
        if message.string == message.id and not _NAMES.fullmatch(_MARKS.sub("", str(message.id)))
    ]
    assert same == []


def test_what_is_compiled_is_what_is_written(catalogue: Catalog, language: str) -> None:
    compiled = catalogues.path_of(language).with_suffix(".mo").read_bytes()
    assert compiled == catalogues.as_mo(catalogue), "run make messages"
