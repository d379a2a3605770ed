"""Files of prompts: what is wrong is named by its line, and the other lines come through."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from django.utils import translation
from hypothesis import given
from hypothesis import strategies as st

from jobs import prompt_files
from jobs.prompt_files import Row, read_csv, read_param
from providers.contract import Kind


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    with translation.override("en"):
        yield


def read(text: str | bytes) -> tuple[list[Row], list[str]]:
    rows, errors = read_csv(io.BytesIO(text.encode() if isinstance(text, str) else text))
    return rows, [str(error) for error in errors]


def prompts(text: str | bytes) -> list[tuple[int, str]]:
    rows, errors = read(text)
    assert errors == []
    return [(row.line, row.prompt) for row in rows]


def test_a_row_has_everything_its_line_says() -> None:
    rows, errors = read(
        "Prompt,reference,TARGET,priority,photo,tenant,kind,param:aspect_ratio,param:Seed\n"
        "a fox, R-1 ,polza:m,5,fox.jpg,books,text,16:9,42\n"
    )
    assert errors == []
    assert rows == [
        Row(
            line=2,
            prompt="a fox",
            reference="R-1",
            target="polza:m",
            priority=5,
            photo="fox.jpg",
            tenant="books",
            kind=Kind.TEXT,
            params={"aspect_ratio": "16:9", "Seed": 42},
        )
    ]


def test_missing_columns_and_empty_cells_mean_defaults() -> None:
    rows, errors = read("prompt,priority,param:seed\na fox,,\n")
    assert (rows, errors) == ([Row(line=2, prompt="a fox")], [])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_the_separator_is_found_from_the_header(delimiter: str) -> None:
    text = f"reference{delimiter}prompt\nR{delimiter}лиса, сова; кот\n".replace(
        "лиса, сова; кот", '"лиса, сова; кот"'
    )
    assert prompts(text) == [(2, "лиса, сова; кот")]


def test_the_separator_may_be_told_in_excels_way() -> None:
    assert prompts("sep=;\nprompt;reference\na, b;R\n") == [(3, "a, b")]


def test_windows_line_ends_byte_order_marks_and_blank_lines_are_no_trouble() -> None:
    assert prompts("\ufeffprompt,reference\r\n\r\na,1\r\n,\r\n  ,\r\nb,2") == [(3, "a"), (6, "b")]


def test_a_quoted_text_may_span_lines_and_the_count_stays_right() -> None:
    assert prompts('prompt,reference\n"one\ntwo ""x""\nthree",1\nnext,2\n') == [
        (2, 'one\ntwo "x"\nthree'),
        (5, "next"),
    ]


def test_a_lone_quote_inside_an_unquoted_text_is_just_a_character() -> None:
    assert prompts('prompt,reference\na 5" disc,1\nb,2\n') == [(2, 'a 5" disc'), (3, "b")]


def test_every_error_of_a_line_is_told_and_the_other_lines_come_through() -> None:
    rows, errors = read(
        "prompt,priority,kind\n,high,video\nfox,1,image\n" + "x" * 9000 + ",,\nowl\n"
    )
    assert [(row.line, row.prompt) for row in rows] == [(3, "fox")]
    assert errors == [
        "line 2, prompt: The prompt is empty. Write what the picture should show.",
        "line 2, priority: Give a whole number from -100 to 100.",
        "line 2, kind: “video” is unknown. Write image or text.",
        "line 4, prompt: 9000 characters, at most 8000 are allowed. Shorten the text.",
        "line 5: 1 cells, but the header has 3 columns. Put texts with separators in double quotes.",
    ]


def test_nul_bytes_are_named_by_line_and_field() -> None:
    rows, errors = read("prompt,reference\na\0b,1\nfox,2\n")
    assert [row.prompt for row in rows] == ["fox"]
    assert errors == [
        "line 2, prompt: An invisible control character (U+0000) at character 2. Remove it."
    ]


def test_a_prompt_of_100000_characters_and_a_cell_beyond_all_limits_do_not_stop_the_file() -> None:
    rows, errors = read(f"prompt,reference\n{'x' * 100_000},1\n{'y' * 200_000},2\nfox,3\n")
    assert [row.prompt for row in rows] == ["fox"]
    assert errors[0].startswith("line 2, prompt: 100000 characters, at most 8000")
    assert errors[1] == "line 3: A cell has more than 131072 characters."


def test_an_endless_line_is_skipped_without_holding_it_in_memory() -> None:
    rows, errors = read("prompt,reference\n" + "x" * 3_000_000 + "\nfox,3\n" + "y" * 1_100_000)
    assert [(row.line, row.prompt) for row in rows] == [(3, "fox")]
    assert errors == [
        "line 2: The line has more than 1024 kB. Shorten it.",
        "line 4: The line has more than 1024 kB. Shorten it.",
    ]


# --- quotes -----------------------------------------------------------------------------------------------------------

QUOTES = "The double quotes don't match. Put a whole text into quotes, and write a quote inside it twice."


def test_a_forgotten_quote_costs_its_own_line_only() -> None:
    rows, errors = read('prompt,reference\n"fox,1\nowl,2\n"cat, black",3\ndog,4\n')
    assert [(row.line, row.prompt) for row in rows] == [(3, "owl"), (4, "cat, black"), (5, "dog")]
    assert errors == [f"line 2: {QUOTES}"]


def test_a_quote_never_closed_costs_its_own_line_only() -> None:
    rows, errors = read(
        'prompt,reference\nowl,1\n"fox,2\n' + "".join(f"p{n},{n}\n" for n in range(2000))
    )
    assert len(rows) == 2001
    assert errors == [f"line 3: {QUOTES}"]


def test_text_behind_a_closed_quote_is_an_error() -> None:
    rows, errors = read('prompt,reference\n"fox" red,1\nowl,2\n')
    assert [row.prompt for row in rows] == ["owl"]
    assert errors == [f"line 2: {QUOTES}"]


@pytest.mark.parametrize(
    "lines",
    [
        ['"a fox', 'in "deep" snow', 'at night"'],
        ['"a fox', 'in the "deep', 'snow"', 'at night"'],
        ['"a fox', "in snow", 'at "night'],
        ['"a fox', "in snow", 'at "night" and day"'],
    ],
)
def test_pieces_of_a_torn_text_never_become_prompts_of_a_one_column_file(lines: list[str]) -> None:
    rows, errors = read("\n".join(["prompt", "owl", *lines, "cat", ""]))
    assert {row.prompt for row in rows} <= {"owl", "cat"}
    assert rows[0].prompt == "owl"
    assert errors[0].startswith(f"line 3: {QUOTES} Lines 4 to")


def test_a_forgotten_quote_costs_its_own_line_only_in_a_one_column_file_too() -> None:
    for broken in ('"fox\n', '"fox, red\nowl\n"cat, black"\n'):
        rows, errors = read(f"prompt\none\n{broken}two\n")
        assert [row.prompt for row in rows if row.prompt in {"one", "two"}] == ["one", "two"]
        assert errors == [f"line 3: {QUOTES}"]


# --- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ("promt,reference", "line 1, promt: This column is unknown. Known are: prompt, reference,"),
        ("prompt,price", "line 1, price: This column is unknown."),
        ("prompt,Prompt", "line 1, prompt: This column appears twice. Remove one of them."),
        ("prompt,param:seed,param:seed", "line 1, param:seed: This column appears twice."),
        ("prompt,", "line 1: A column has no name."),
        (
            "reference,target",
            "line 1, prompt: This column is missing. The first line must name the columns.",
        ),
        ("prompt,param:", "line 1, param:: “” is no name for a parameter."),
        ("prompt,param:a b", "line 1, param:a b: “a b” is no name for a parameter."),
        ('"prompt,reference', "line 1: The double quotes don't match."),
        ("", "line 1: The file is empty"),
        ("PK\x03\x04workbook", "line 1: The file is an Excel workbook or an archive."),
        ("sep=;\nprompt;wrong", "line 2, wrong: This column is unknown."),
    ],
)
def test_a_wrong_header_names_the_column_and_gives_no_rows(header: str, error: str) -> None:
    rows, errors = read(f"{header}\nfox,1\n")
    assert rows == []
    assert len(errors) == 1
    assert errors[0].startswith(error)


def test_an_empty_file_says_so() -> None:
    assert read(b"") == (
        [],
        ["line 1: The file is empty, or its first line is. The first line must name the columns."],
    )


# --- encodings --------------------------------------------------------------------------------------------------------


def test_a_file_in_windows_1251_is_recognised_line_by_line() -> None:
    rows, errors = read("prompt,reference\nлиса зимой,1\nfox,2\n".encode("cp1251"))
    assert [row.prompt for row in rows] == ["fox"]
    assert errors == [
        "line 2, prompt: This is not UTF-8 but looks like Windows-1251. Save the file as “CSV UTF-8”."
    ]


def test_other_bytes_that_are_no_utf8_are_told_with_the_column() -> None:
    rows, errors = read(b"prompt,reference,param:style\nfox,caf\xe9,1\nfox,2,caf\xe9\nowl,3,\n")
    assert [row.prompt for row in rows] == ["owl"]
    assert errors == [
        "line 2, reference: This is not UTF-8. Save the file as “CSV UTF-8”.",
        "line 3, param:style: This is not UTF-8. Save the file as “CSV UTF-8”.",
    ]


def test_a_header_that_is_no_utf8_stops_the_file() -> None:
    rows, errors = read("prompt,ссылка\nлиса,1\n".encode("cp1251"))
    assert rows == []
    assert errors == [
        "line 1: This is not UTF-8 but looks like Windows-1251. Save the file as “CSV UTF-8”."
    ]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_recognised(encoding: str) -> None:
    text = ("\ufeff" if encoding == "utf-16-be" else "") + "prompt,reference\nлиса,1\n"
    assert read(text.encode(encoding)) == (
        [],
        ["line 1: The file is in UTF-16. Save it as “CSV UTF-8”."],
    )


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_file_with_too_many_rows_gives_none() -> None:
    data = io.BytesIO(b"prompt\n" + b"fox\n" * 6)
    rows, errors = read_csv(data, max_rows=5)
    assert rows == []
    assert [error.message for error in errors] == ["The file has more than 5 rows. Split it."]
    data.seek(0)
    assert len(read_csv(data, max_rows=6)[0]) == 6


def test_after_too_many_errors_the_rest_is_not_read() -> None:
    data = io.BytesIO(b"prompt,reference\n" + b"one\n" * 50)
    _rows, errors = read_csv(data, max_errors=10)
    assert len(errors) == 10
    assert str(errors[-1]) == "line 11: More than 9 errors. The rest was not read."


def test_ten_thousand_rows_are_read_lazily() -> None:
    taken = iter(prompt_files.iter_csv(io.BytesIO(b"prompt\n" + b"fox\n" * 10_000)))
    assert next(taken) == Row(line=2, prompt="fox")


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("42", 42),
        (" -1.5 ", -1.5),
        ("true", True),
        ("null", None),
        ('"42"', "42"),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', {"a": 1}),
        ("16:9", "16:9"),
        ("007", "007"),
        ("1024x1024", "1024x1024"),
        ("[draft", "[draft"),
        ("True", "True"),
        ("NaN", "NaN"),
        ("[" * 100_000, "[" * 100_000),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_parameters_cell_is_json_where_it_looks_so_and_text_elsewhere(
    cell: str, value: object
) -> None:
    assert read_param(cell) == value


@given(st.binary(max_size=400))
def test_no_bytes_make_the_reader_raise(data: bytes) -> None:
    for start in (b"", b"prompt,reference\n", b"prompt\n"):
        rows, errors = read_csv(io.BytesIO(start + data))
        assert all(row.prompt for row in rows)
        assert all(error.message for error in errors)


@given(st.lists(st.text(alphabet='ab",;\n я', min_size=1, max_size=30), max_size=20))
def test_what_a_csv_writer_wrote_is_read_back(texts: list[str]) -> None:
    import csv

    wanted = [text for text in texts if text.strip()]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["prompt", "reference"])
    writer.writerows([[text, "r"] for text in wanted])
    rows, errors = read_csv(io.BytesIO(out.getvalue().encode()))
    assert errors == []
    assert [row.prompt for row in rows] == [text.strip() for text in wanted]
