"""The "Must hold" lines of issue 5 that name no command of their own, with their figures printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from jobs.models import Batch, Job
from jobs.roles import Role
from tests import factories, import_files
from tests.holds.suite import measured, passes
from tests.import_files import upload

ADD = "/admin/jobs/batch/add/"

# Line by line: the row, and what the preview says of it. None: it is good.
_ROWS: list[tuple[bytes, str | None]] = [
    (b"R-1;chair;red;red.png;5", None),
    ("R-2;стул;красный;;".encode("cp1251"), "not UTF-8 but looks like Windows-1251"),
    (b"R-3;table;\xff\xfe;;", "not UTF-8"),
    (b"R-4;" + b"x" * 2**20 + b";red;;", "The line has more than 1024 kB"),
    (b"R-5;" + b"x" * (2**20 - 50) + b";red;;", "A cell has more than"),
    (b"R-6;=HYPERLINK(A1);red;;", "This cell holds a formula"),
    (b"R-7;chair;red;none.png;", "The archive has no photo"),
    (b"R-8;chair;red;bomb.png;", "Is it a zip bomb?"),
    (b"R-9;chair;red;../red.png;", "leads out of the archive"),
    (b"R-10;chair;red;/etc/passwd;", "leads out of the archive"),
    (b"reference;product;colour;photo;priority", "the header once more"),
    (b"R-12;chair;;;", "This cell is empty, and the template needs it"),
    (b"R-13;chair;red;;highest", "Give a whole number"),
    (b"R-14;chair", "2 cells, but the header has 5 columns"),
    (b'R-15;"chair;red;;', "The double quotes don't match"),
    (b"R-16;ch\0air;red;;", "An invisible control character"),
    ("R-17;стол;синий;;-3".encode(), None),
    ("R-18;باغ ایرانی;سبز;;".encode(), None),
]


@pytest.fixture
def client(db: None, settings: Any, tmp_path: Path) -> Client:
    settings.MEDIA_ROOT = tmp_path
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    client.get(ADD)
    return client


def _send(client: Client, content: bytes, **more: Any) -> Any:
    data = {"tenant": factories.tenant().pk, "file": upload(content)}
    return client.post(ADD, data | more, follow=True)


def test_line_2_a_small_tenant_beside_a_storm() -> None:
    assert measured("bench.fairness")["ok"]


def test_line_3_a_spending_limit() -> None:
    assert measured("bench.budget")["ok"]


def test_line_4_a_bad_file_is_named_row_by_row_and_its_good_rows_go_on(client: Client) -> None:
    header = b"\xef\xbb\xbfreference;product;colour;photo;priority"
    photos = import_files.archive(
        {"red.png": import_files.png(), "bomb.png": import_files.bomb(), "../red.png": b"out"}
    )
    page = _send(
        client,
        b"\r\n".join([header, *(row for row, _said in _ROWS)]),
        photos=upload(photos, "photos.zip"),
        template="A {colour} {product}",
    )
    told = {one.line: one.message for one in page.context["refused"]}
    for line, (row, said) in enumerate(_ROWS, 2):
        print(f"line {line:>2}: {told.get(line, 'good')}")
        assert (line in told) == (said is not None), row[:60]
        assert said is None or said in told[line], told[line]
    assert not Job.objects.exists()
    assert "its name leads out of it: ../red.png" in page.content.decode()
    client.post(page.wsgi_request.path)
    made = Batch.objects.get().jobs.order_by("pk").values_list("prompt", "reference", "priority")
    assert list(made) == [("A red chair", "R-1", 5), ("A синий стол", "R-17", -3), ("A سبز باغ ایرانی", "R-18", 0)]  # fmt: skip
    assert Job.objects.earliest("pk").photos.count() == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"prompt,reference,Prompt\na,b,c\n", "This column appears twice"),
        ("prompt\nлиса\n".encode("utf-16"), "UTF-16"),
        (import_files.archive({"xl/workbook.xml": bytes(100 * 2**20)}), "zip bomb"),
        (import_files.book([["prompt"], ["=1+1"], ["a chair"]]), "formula"),
    ],
    ids=["duplicate header", "UTF-16", "workbook bomb", "workbook formula"],
)
def test_line_4_what_spoils_a_whole_file_is_named_on_its_preview(
    client: Client, content: bytes, said: str
) -> None:
    page = _send(client, content)
    [told] = page.context["refused"]
    print(told)
    assert said in str(told)


def test_line_5_five_hundred_open_streams() -> None:
    assert measured("bench.streams")["ok"]


def test_line_6_in_a_real_browser() -> None:
    assert passes("tests/browser/test_batch.py")
