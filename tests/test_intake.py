"""What people ask for, checked before anything is created."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from jobs.intake import (
    MAX_PROMPT_CHARS,
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


@pytest.fixture(autouse=True)
def english() -> Any:
    with translation.override("en"):
        yield


def problem(check: Any, value: object) -> InputError:
    with pytest.raises(InputError) as caught:
        check(value)
    return caught.value


def test_a_prompt_is_stripped_and_brought_to_one_form() -> None:
    assert check_prompt("  e\u0301cole\r\nзима\rtab\there \n") == "école\nзима\ntab\there"


def test_a_persian_prompt_keeps_its_joiners_and_marks() -> None:
    text = "کتاب‌های قدیمی \u2067rtl\u2069"
    assert check_prompt(text) == text


@pytest.mark.parametrize("empty", ["", "   ", "\n\t\r\n", None])
def test_an_empty_prompt_is_refused(empty: object) -> None:
    error = problem(check_prompt, empty)
    assert str(error) == "prompt: The prompt is empty. Write what the picture should show."


def test_a_prompt_of_exactly_the_limit_passes_and_one_more_does_not() -> None:
    assert len(check_prompt("я" * MAX_PROMPT_CHARS)) == MAX_PROMPT_CHARS
    assert "8001 characters, at most 8000" in problem(check_prompt, "я" * 8001).message


def test_a_prompt_of_100000_characters_names_both_numbers() -> None:
    assert "100000 characters, at most 8000" in problem(check_prompt, "x" * 100_000).message


def test_length_is_counted_after_composing() -> None:
    assert check_prompt("и\u0306" * MAX_PROMPT_CHARS) == "й" * MAX_PROMPT_CHARS


@pytest.mark.parametrize(
    ("bad", "code"),
    [("a\0b", "U+0000"), ("a\x1bb", "U+001B"), ("a\x85b", "U+0085"), ("a\ud800b", "U+D800")],
)
def test_control_characters_are_named_with_their_place(bad: str, code: str) -> None:
    error = problem(check_prompt, bad)
    assert error.field == "prompt"
    assert f"({code}) at character 2" in error.message


@pytest.mark.parametrize("value", [3, b"bytes", ["list"], True])
def test_what_is_no_text_is_refused(value: object) -> None:
    assert problem(check_prompt, value).message == "This must be a text."


@given(st.text(max_size=300))
def test_whatever_passes_is_clean_and_passes_again_unchanged(text: str) -> None:
    try:
        once = check_prompt(text)
    except InputError:
        return
    assert once
    assert "\0" not in once
    assert "\r" not in once
    once.encode()
    assert check_prompt(once) == once


def test_a_reference_is_one_line_and_may_be_missing() -> None:
    assert check_reference(None) == check_reference("") == ""
    assert check_reference(" № 17/б ") == "№ 17/б"
    assert "line break or tab at character 2" in problem(check_reference, "a\nb").message
    assert "201 characters, at most 200" in problem(check_reference, "x" * 201).message


def test_a_target_is_a_name_without_blanks_or_loose_colons() -> None:
    assert check_target("") == ""
    assert check_target(" polza:google/gemini-3.1-flash ") == "polza:google/gemini-3.1-flash"
    for bad in ("a b", ":model", "polza:"):
        assert "Write provider:model." in problem(check_target, bad).message


def test_a_kind_is_image_unless_said_otherwise() -> None:
    assert check_kind("") is check_kind(None) is Kind.IMAGE
    assert check_kind(" Text ") is Kind.TEXT
    assert problem(check_kind, "video").message == "“video” is unknown. Write image or text."


def test_a_name_reports_the_field_it_was_asked_for() -> None:
    with pytest.raises(InputError) as caught:
        check_name("a\0", field="tenant")
    assert caught.value.field == "tenant"


@pytest.mark.parametrize(
    ("value", "number"),
    [(None, 0), ("", 0), ("  ", 0), (7, 7), (" -5 ", -5), ("+3", 3), (100, 100)],
)
def test_priorities_are_whole_numbers_or_their_digits(value: object, number: int) -> None:
    assert check_priority(value) == number


@pytest.mark.parametrize("value", [101, -101, "high", "1.5", 1.5, True, "٣", "9" * 5000, [1]])
def test_other_priorities_are_refused(value: object) -> None:
    error = problem(check_priority, value)
    assert (error.field, error.message) == ("priority", "Give a whole number from -100 to 100.")


def test_parameters_are_copied_and_may_be_nested() -> None:
    given_params = {
        "size": "1024x1024",
        "seed": 42,
        "guidance": 3.5,
        "raw": True,
        "none": None,
        "l": [{"a.b": (1, 2)}],
    }
    checked = check_params(given_params)
    assert checked == {**given_params, "l": [{"a.b": [1, 2]}]}
    assert checked is not given_params
    assert check_params(None) == {}


@pytest.mark.parametrize(
    ("params", "field", "words"),
    [
        ([1], "params", "must be an object"),
        ("size", "params", "must be an object"),
        ({"": 1}, "params", "no name for a parameter"),
        ({"a b": 1}, "params", "“a b” is no name"),
        ({"__proto__": 1}, "params", "no name"),
        ({1: 1}, "params", "no name"),
        ({"x" * 65: 1}, "params", "no name"),
        ({"seed": math.nan}, "param:seed", "must be finite"),
        ({"seed": math.inf}, "param:seed", "must be finite"),
        ({"seed": 2**63}, "param:seed", "too large"),
        ({"style": "a\0b"}, "param:style", "U+0000"),
        ({"style": "x" * 8001}, "param:style", "8001 characters"),
        ({"a": [[[[1]]]]}, "param:a", "nested too deeply"),
        ({"a": {1, 2}}, "param:a", "must be a text, a number"),
        ({"a": {"b c": 1}}, "params", "“b c” is no name"),
        ({f"p{n}": "x" * 2000 for n in range(10)}, "params", "more than 16 kB together"),
    ],
)
def test_parameters_that_no_provider_or_database_takes_are_refused(
    params: Any, field: str, words: str
) -> None:
    error = problem(check_params, params)
    assert error.field == field
    assert words in error.message


def test_a_parameter_that_nests_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    assert "nested too deeply" in problem(check_params, endless).message


def test_a_long_or_unprintable_name_is_shown_short_and_printable() -> None:
    message = problem(check_params, {"\x1b" + "y" * 300: 1}).message
    assert "\x1b" not in message
    assert len(message) < 200


def test_an_error_says_where() -> None:
    assert str(InputError("prompt", "No.", 3)) == "line 3, prompt: No."
    assert str(InputError("", "No.", 3)) == "line 3: No."
    assert str(InputError("", "No.")) == "No."
    assert str(InputError("prompt", "No.").at(9)) == "line 9, prompt: No."
