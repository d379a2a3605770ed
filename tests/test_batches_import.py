"""From a file to a batch: what is wrong is named on the preview, what is right goes on, and each yes counts once."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from jobs.batches import archive, template
from jobs.batches.plan import Columns, Plan, Planned, plan
from jobs.batches.table import read_file, read_lines
from jobs.clock import clock
from jobs.intake import InputError
from jobs.lifecycle import drafts
from jobs.models import Batch, BatchDraft, Job, Tenant
from jobs.roles import Role
from jobs.states import JobState
from tests import factories, import_files
from tests.import_files import upload

ADD = "/admin/jobs/batch/add/"


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    client.get(ADD)  # the default tenant and the configured target exist from now on
    return client


def _planned(text: str | bytes, **values: Any) -> Plan:
    factories.target()
    return plan(read_file(io.BytesIO(text.encode() if isinstance(text, str) else text)), **values)


def _errors(made: Plan) -> list[str]:
    return [str(error) for error in made.refused]


def _preview(client: Client, **data: Any) -> Any:
    """The preview's page, or the form's where the whole was refused."""
    values = {"tenant": Tenant.objects.get(slug="studio").pk}
    return client.post(ADD, values | data, follow=True)


def _yes(client: Client, page: Any, **data: str) -> Any:
    return client.post(page.wsgi_request.path, data)


# --- templates --------------------------------------------------------------------------------------------------------


def test_a_template_takes_its_columns_cells() -> None:
    parsed = template.parse("A {Colour} { product } on {{white}}{note?}", columns=["colour", "product", "note"])  # fmt: skip
    assert parsed.fill({"colour": " red ", "product": "chair", "note": ""}) == "A red chair on {white}"  # fmt: skip
    assert parsed.columns == ["colour", "product", "note"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A {size} chair", "“{size}” names no column. There are: colour, product."),
        ("A {colour chair", "The brace at character 3 has no partner."),
        ("A colour} chair", "The brace at character 9 has no partner."),
        ("A {} chair", "“{}” names no column."),
        ("{colour.__class__}", "“{colour.__class__}” names no column."),
        ("{colour!r:>99}", "names no column."),
        ("x" * 8001, "at most 8000"),
    ],
)
def test_what_is_no_column_is_named(text: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        template.parse(text, columns=["colour", "product"])
    assert caught.value.field == "template"


def test_an_empty_cell_that_the_template_needs_is_named() -> None:
    parsed = template.parse("A {colour} chair", columns=["colour"])
    with pytest.raises(InputError, match="This cell is empty"):
        parsed.fill({"colour": "  "})


@given(st.text(), st.text())
def test_cells_are_texts_whatever_is_in_them(cell: str, rest: str) -> None:
    """A cell is never read as a template."""
    parsed = template.parse("{a?}|{b?}", columns=["a", "b"])
    assert parsed.fill({"a": cell, "b": rest}) == f"{cell.strip()}|{rest.strip()}"


# --- tables and plans -------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_columns_of_any_name_serve_a_template() -> None:
    made = _planned(
        "SKU;Product;Colour;Rank\nA-1;chair;red;5\nA-2;table;;1\n",
        template="A {colour} {product}",
        columns=Columns(reference="sku", priority="rank"),
    )
    assert [(row.prompt, row.reference, row.priority) for row in made.rows] == [("A red chair", "A-1", 5)]  # fmt: skip
    assert _errors(made) == ["line 3, colour: This cell is empty, and the template needs it. {colour?} may be empty."]  # fmt: skip
    assert made.notes == []


@pytest.mark.django_db
def test_unused_columns_are_told_and_missing_ones_refused() -> None:
    made = _planned("prompt,size\na chair,9\n")
    assert (len(made.rows), made.notes) == (1, ["Column not used: size."])
    with pytest.raises(InputError, match="There is no column “prompt”"):
        _planned("product,size\nchair,9\n")
    with pytest.raises(InputError, match="There is no column “sku”") as caught:
        _planned("prompt\na chair\n", columns=Columns(reference="SKU"))
    assert caught.value.field == "reference_column"


@pytest.mark.django_db
def test_rows_that_ask_for_the_very_same_are_twins_whatever_they_are_called() -> None:
    made = _planned("prompt,reference\na chair,1\na table,2\n a chair ,3\na chair,1\n")
    assert [row.twin for row in made.rows] == [False, False, True, True]


@pytest.mark.django_db
def test_a_workbook_gives_the_same_rows_and_names_formulas() -> None:
    rows: list[list[object]] = [["prompt", "priority", None], ["a chair", 5.0, None], [None], ["=A2", 1], ["a table", "high"], ["стол", None]]  # fmt: skip
    made = _planned(import_files.book(rows))
    assert [(row.line, row.prompt, row.priority) for row in made.rows] == [(2, "a chair", 5), (6, "стол", 0)]  # fmt: skip
    assert _errors(made) == [
        "line 4, A4: This cell holds a formula, which is not computed here. Paste its value instead.",
        "line 5, priority: Give a whole number from -100 to 100.",
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The file is empty"),
        ("prompt\nлиса\n".encode("utf-16"), "UTF-16"),
        (b"\xd0\xcf\x11\xe0rest of an old workbook", "workbook of an old Excel"),
        (b"PK\x03\x04 no archive", "The archive can't be read"),
        (import_files.archive({"a.txt": b"no workbook"}), "The workbook can't be read"),
        (import_files.archive({"xl/workbook.xml": bytes(100 * 2**20)}), "zip bomb"),
        (b"prompt,Prompt\na,b\n", "This column appears twice"),
        (b"prompt,,size\na,b,c\n", "A column has no name"),
        (b"prompt," + b"x" * 500 + b"\na,b\n", "This is no name for a column"),
        (b"prompt\n" + b"a\n" * 10_001, "more than 10000 rows"),
    ],
)
def test_what_spoils_a_file_is_named_and_gives_no_rows(content: bytes, said: str) -> None:
    made = _planned(content)
    assert made.rows == []
    assert said in _errors(made)[-1]


@pytest.mark.django_db
def test_two_files_put_together_lose_only_their_second_header() -> None:
    made = _planned("prompt,reference\na,1\nprompt,reference\nb,2\n")
    assert [row.prompt for row in made.rows] == ["a", "b"]
    assert _errors(made) == ["line 3: This line is the header once more. Two files put together?"]


@pytest.mark.django_db
def test_pasted_lines_are_prompts_and_pasted_tables_have_a_header() -> None:
    factories.target()
    assert [row.prompt for row in plan(read_lines("a, b\r\n\n=c\nd")).rows] == ["a, b", "d"]
    made = plan(read_lines("prompt\tpriority\na, b\t3\n"))
    assert [(row.prompt, row.priority) for row in made.rows] == [("a, b", 3)]


@pytest.mark.django_db
def test_a_plan_survives_being_kept() -> None:
    made = _planned("prompt,reference,priority,param:seed,kind\na chair,R,3,42,image\n")
    draft = drafts.keep(made, tenant=factories.tenant(), label="", actor=None, now=clock.now())
    draft.refresh_from_db()
    assert [Planned.of(row) for row in draft.rows] == made.rows


# --- photos -----------------------------------------------------------------------------------------------------------


def _photos(files: dict[str, bytes]) -> archive.Photos:
    return archive.Photos(io.BytesIO(import_files.archive(files)))


@pytest.mark.parametrize("name", ["red.png", "RED.PNG", "Café.png", "set\\blue.png", "set/blue.png", "blue.png"])  # fmt: skip
def test_photos_are_found_as_people_write_them(name: str) -> None:
    with _photos({"red.png": import_files.png(), "Cafe\u0301.png": import_files.png(9), "set/blue.png": import_files.png(99)}) as photos:  # fmt: skip
        assert photos.take(name).media_type == "image/png"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../red.png", "leads out of the archive"),
        ("set/../../red.png", "leads out of the archive"),
        ("/etc/passwd", "leads out of the archive"),
        ("C:\\red.png", "leads out of the archive"),
        ("..\\red.png", "leads out of the archive"),
        ("none.png", "no photo “none.png”"),
        ("twice.png", "in several folders"),
        ("bomb.png", "Is it a zip bomb?"),
        ("huge.png", "more than 20 MB"),
        ("words.png", "no photo"),
        ("empty.png", "empty"),
    ],
)
def test_a_photo_that_can_not_be_taken_is_named(name: str, said: str) -> None:
    files = {
        "red.png": import_files.png(), "../red.png": import_files.png(), "a/twice.png": b"1", "b/twice.png": b"2",
        "bomb.png": import_files.bomb(), "huge.png": import_files.bomb(21), "words.png": b"no picture", "empty.png": b"",
    }  # fmt: skip
    with _photos(files) as photos:
        with pytest.raises(InputError, match=re.escape(said)):
            photos.take(name)
        assert photos.unsafe == ["../red.png"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_photo_that_was_damaged_in_the_archive_is_named_however_it_was_packed(
    method: int,
) -> None:
    data = io.BytesIO()
    noise = random.Random(1).randbytes(4000)
    with zipfile.ZipFile(data, "w", method) as packed:
        packed.writestr("a.png", noise)
        start = packed.getinfo("a.png").header_offset + 40
    hurt = bytearray(data.getvalue())
    hurt[start + 100 : start + 1500] = bytes(1400)
    damaged = pytest.raises(InputError, match="damaged in the archive")
    with archive.Photos(io.BytesIO(bytes(hurt))) as photos, damaged:
        photos.take("a.png")


def test_nothing_of_an_archive_lands_on_the_disk_by_its_own_name(tmp_path: Path) -> None:
    with _photos({"../../out.png": import_files.png(), "in.png": import_files.png()}) as photos:
        photos.take("in.png")
    kept = sorted(path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.png"))
    assert kept == ["photos"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({f"{n}.png": b"" for n in range(2001)}, "more than 2000 files"),
        ({f"{n}.png": bytes(2**20) for n in range(9)}, "zip bomb"),
    ],
)
def test_an_archive_out_of_bounds_is_not_opened(
    files: dict[str, bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 8 * 2**20)
    with pytest.raises(InputError, match=said):
        _photos(files)


def test_an_archive_whose_directory_lies_gives_no_more_than_it_says() -> None:
    data = bytearray(import_files.archive({"a.png": import_files.bomb(30)}))
    directory = data.rindex(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (1000).to_bytes(4, "little")  # its unpacked size
    with archive.Photos(io.BytesIO(bytes(data))) as photos, pytest.raises(InputError):
        photos.take("a.png")


# --- the pages --------------------------------------------------------------------------------------------------------


def test_a_file_becomes_a_preview_and_the_preview_a_batch(client: Client) -> None:
    file = upload(
        "product,colour,reference,priority\nchair,red,A-1,7\ntable,,A-2,1\nchair,red,A-3,1\n"
    )
    page = _preview(client, file=file, template="A {colour} {product}", label="Spring")
    context = page.context
    assert (context["draft"].rows_read, context["rows_count"], context["refused_count"], context["twins"]) == (3, 2, 1, 1)  # fmt: skip
    assert not Job.objects.exists()
    answer = _yes(client, page, without_twins="on")
    batch = Batch.objects.get()
    assert answer["Location"] == reverse("admin:jobs_batch_change", args=[batch.pk])
    job = batch.jobs.get()
    assert (job.prompt, job.reference, job.priority, batch.label) == ("A red chair", "A-1", 7, "Spring")  # fmt: skip


def test_duplicates_stay_where_they_are_wanted(client: Client) -> None:
    _yes(client, _preview(client, pasted="a chair\na chair"))
    assert Job.objects.count() == 2


def test_the_same_yes_twice_makes_one_batch(client: Client) -> None:
    page = _preview(client, pasted="a chair")
    first, second = _yes(client, page), _yes(client, page)
    assert first["Location"] == second["Location"]
    assert (Batch.objects.count(), Job.objects.count(), BatchDraft.objects.count()) == (1, 1, 0)
    assert client.get(page.wsgi_request.path)["Location"] == first["Location"]


def test_a_draft_that_is_gone_is_said_so(client: Client) -> None:
    page = client.post(reverse("admin:jobs_batch_draft", args=[uuid.uuid4()]), follow=True)
    assert "drafts are kept for a day" in page.content.decode()


def test_photos_of_the_archive_are_the_jobs_photos(client: Client) -> None:
    photos = upload(import_files.archive({"set/red.png": import_files.png()}), "photos.zip")
    page = _preview(client, file=upload("prompt,photo\na,red.png\nb,blue.png\n"), photos=photos)
    assert [error.message for error in page.context["refused"]] == ["The archive has no photo “blue.png”."]  # fmt: skip
    _yes(client, page)
    assert Job.objects.get().photos.get().media_type == "image/png"


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ({}, "__all__", "Give a file, or paste lines."),
        ({"file": upload("prompt\na\n"), "pasted": "b"}, "__all__", "not both"),
        ({"pasted": "a", "template": "{size}"}, "template", "names no column"),
        ({"pasted": "a", "priority_column": "rank"}, "priority_column", "There is no column"),
        ({"pasted": "a", "target": "987654"}, "target", ""),
        ({"pasted": "a", "tenant": "987654"}, "tenant", ""),
        ({"file": upload("product\na\n")}, "__all__", "There is no column “prompt”"),
    ],
)
def test_nonsense_is_named_at_its_field(
    client: Client, data: dict[str, Any], field: str, words: str
) -> None:
    page = _preview(client, **data)
    errors = page.context["form"].errors
    assert list(errors) == [field]
    assert words in str(errors[field])
    assert not BatchDraft.objects.exists()


def test_the_preview_tells_cost_time_budget_and_known_references(client: Client) -> None:
    now = clock.now()
    Tenant.objects.filter(slug="studio").update(daily_limit=20)
    target = factories.target()
    done = factories.done(now, reference="A-1")
    assert done.target == target
    page = _preview(client, pasted="reference\tprompt\nA-1\ta\nA-2\tb\nA-3\tc", target=target.pk)
    told = page.context["estimate"]
    assert told.cost == {"RUB": 24}
    assert told.seconds is not None
    assert told.seconds > 40
    assert told.over_budget
    assert page.context["known_references"] == 1
    assert "more than what is left of the budget" in page.content.decode()


@pytest.mark.django_db
def test_nobody_without_the_right_comes_in() -> None:
    viewer = Client()
    viewer.force_login(factories.staff(Role.VIEWER))
    for url in (ADD, reverse("admin:jobs_batch_draft", args=[uuid.uuid4()])):
        assert viewer.get(url).status_code == 403
        assert viewer.post(url, {"pasted": "a"}).status_code == 403


def test_hostile_cells_are_escaped_on_the_preview(client: Client) -> None:
    page = _preview(client, file=upload('prompt,reference\n"<script>alert(1)</script>",<b>\n<i>,' + "x" * 300 + "\n"))  # fmt: skip
    text = page.content.decode()
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text


# --- generate for all -------------------------------------------------------------------------------------------------


def _press(client: Client, jobs: list[Job], **data: Any) -> Any:
    values = {"action": "again_selected", "_selected_action": [job.pk for job in jobs], "index": "0", "select_across": "0"}  # fmt: skip
    return client.post(reverse("admin:jobs_job_changelist"), values | data, follow=True)


def test_jobs_that_exist_are_made_again_with_an_edited_prompt(client: Client) -> None:
    now = clock.now()
    jobs = [factories.done(now, reference=f"R-{n}", prompt=f"chair {n}") for n in range(2)]
    page = _press(client, jobs)
    assert page.templates[0].name == "desk/batch_again.html"
    page = _press(client, jobs, confirmed="1", template="{prompt}, at night ({reference})", photos="result")  # fmt: skip
    assert page.context["rows_count"] == 2
    _yes(client, page)
    made = list(Batch.objects.get().jobs.order_by("pk"))
    assert [job.prompt for job in made] == ["chair 0, at night (R-0)", "chair 1, at night (R-1)"]
    delivered = jobs[0].delivered
    assert delivered is not None
    assert made[0].photos.get().key == delivered.key


def test_a_template_for_jobs_that_names_nothing_is_refused(client: Client) -> None:
    page = _press(client, [factories.done(clock.now())], confirmed="1", template="{colour}", photos="same")  # fmt: skip
    assert "names no column" in str(page.context["form"].errors["template"])


def test_jobs_of_two_tenants_make_no_batch(client: Client) -> None:
    now = clock.now()
    jobs = [factories.job(now, JobState.FAILED), factories.job(now, JobState.FAILED, tenant=factories.tenant("other"))]  # fmt: skip
    page = _press(client, jobs, confirmed="1", template="{prompt}", photos="same")
    assert "several tenants" in str(page.context["form"].errors)


@pytest.mark.django_db
def test_a_viewer_is_not_offered_it() -> None:
    viewer = Client()
    viewer.force_login(factories.staff(Role.VIEWER))
    _press(viewer, [factories.done(clock.now())], confirmed="1", template="{prompt}", photos="same")
    assert not BatchDraft.objects.exists()


# --- from the command line --------------------------------------------------------------------------------------------


def _generate(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.suppress(SystemExit):
        call_command("generate", *words, "--json", stdout=out, stderr=io.StringIO())
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


@pytest.mark.django_db
def test_the_command_takes_workbooks_templates_and_archives(tmp_path: Path) -> None:
    factories.target()
    book, photos = tmp_path / "rows.xlsx", tmp_path / "photos.zip"
    book.write_bytes(import_files.book([["product", "photo"], ["chair", "red.png"], ["table", "../red.png"]]))  # fmt: skip
    photos.write_bytes(import_files.archive({"red.png": import_files.png()}))
    told = _generate("--from", str(book), "--template", "A {product}", "--photos", str(photos))
    assert [error["line"] for error in told["refused"]] == [3]
    job = Job.objects.get()
    assert (job.prompt, job.photos.count()) == ("A chair", 1)
    assert "names no column" in _generate("--from", str(book), "--template", "{x}")["refused"][0]["message"]  # fmt: skip


@pytest.mark.django_db
def test_the_command_lists_shows_and_decides_batches(tmp_path: Path) -> None:
    factories.target()
    file = tmp_path / "rows.csv"
    file.write_text("prompt\na\nb\n")
    number = _generate("--from", str(file))["batch"]

    def batches(*words: str) -> str:
        out = io.StringIO()
        call_command("batches", *words, stdout=out)
        return out.getvalue()

    assert "waiting 2" in batches("list")
    assert "2" in batches("pause", str(number), "--reason", "later")
    assert json.loads(batches("show", str(number), "--json"))["paused"]
    batches("resume", str(number))
    batches("cancel", str(number))
    assert json.loads(batches("list", "--json"))[0]["done"]
    with pytest.raises(CommandError, match="Nothing of this batch has failed"):
        batches("retry-failed", str(number))
    with pytest.raises(CommandError, match="There is no batch"):
        batches("show", "987654")
