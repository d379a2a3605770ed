"""A batch's pages: the list, its page, its progress, its verbs by role, and the export."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from jobs.admin import batch_page, batch_verbs
from jobs.batches import export
from jobs.clock import clock
from jobs.models import Batch, Job
from jobs.roles import Role
from jobs.states import JobState
from tests import factories

_S = JobState


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


def _client(role: Role = Role.OPERATOR) -> Client:
    client = Client()
    client.force_login(factories.staff(role))
    return client


def _batch(**counts: int) -> Batch:
    """With so many jobs in each state; what failed was refused."""
    now = clock.now()
    batch = Batch.objects.create(tenant=factories.tenant(), label="Spring <b>", created_at=now)
    for state, many in counts.items():
        for n in range(many):
            reason = {"failed": "refused_by_all", "manual": "unknown_send"}.get(state, "")
            factories.job(
                now, JobState(state), batch=batch, reference=f"{state}-{n}", reason=reason,
                reason_text="HTTP 400: <i>no</i>" if state == "failed" else "",
            )  # fmt: skip
    return batch


def _url(batch: Batch, name: str = "change", *more: str) -> str:
    return reverse(f"admin:jobs_batch_{name}", args=[batch.pk, *more])


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_page_counts_names_and_links_what_was_given_up() -> None:
    batch = _batch(succeeded=5, failed=2, manual=1, pending=3)
    page = _client().get(_url(batch))
    text = page.content.decode()
    assert "Spring &lt;b&gt;" in text
    assert "HTTP 400: &lt;i&gt;no&lt;/i&gt;" in text
    assert [(one.count, one.constant) for one in page.context["reasons"]] == [(2, "failed.refused_by_all"), (1, "manual.unknown_send")]  # fmt: skip
    assert page.context["texts"]["ended"] == "8"
    assert f"batch={batch.pk}&amp;state=failed" in text
    assert page.context["primary"] is batch_verbs.RETRY_FAILED


@pytest.mark.django_db
def test_the_given_up_can_be_narrowed_to_one_reason() -> None:
    batch = _batch(failed=2, manual=1)
    page = _client().get(_url(batch) + "?why=manual.unknown_send")
    assert [job.reference for job, _cell in page.context["given_up"]] == ["manual-0"]
    strange = _client().get(_url(batch) + "?why=' OR 1=1")
    assert len(strange.context["given_up"]) == 3


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ({}, "empty"),
        ({"pending": 1}, "under way"),
        ({"succeeded": 2}, "done"),
        ({"succeeded": 1, "failed": 1}, "done, some given up"),
    ],
)
def test_a_batch_tells_its_state_in_a_word(counts: dict[str, int], word: str) -> None:
    assert str(_client().get(_url(_batch(**counts))).context["look"].word) == word


@pytest.mark.django_db
def test_the_page_asks_as_much_for_many_jobs_as_for_few() -> None:
    small, large = _batch(failed=2, pending=1), _batch(failed=30, pending=30)
    client = _client()
    counts = []
    for batch in (small, large):
        client.get(_url(batch))
        with CaptureQueriesContext(connection) as said:
            client.get(_url(batch))
        counts.append(len(said))
    assert counts[0] == counts[1] < 45


@pytest.mark.django_db
def test_the_list_shows_a_bar_a_batch_with_one_query_for_all() -> None:
    client = _client()
    counts = []
    for _more in range(2):
        for _n in range(4):
            _batch(succeeded=2, failed=1)
        with CaptureQueriesContext(connection) as said:
            page = client.get(reverse("admin:jobs_batch_changelist"))
        counts.append(len(said))
    assert counts[0] == counts[1]
    assert "1 given up" in page.content.decode()


@pytest.mark.django_db
def test_a_batch_that_is_not_there_is_not_found() -> None:
    client = _client()
    gone = Batch(pk=987654)
    for name in ("change", "progress", "export"):
        assert client.get(_url(gone, name)).status_code == 404
    assert client.get(reverse("admin:jobs_batch_change", args=["x' OR 1"])).status_code == 404


# --- the bar ----------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(list(JobState)), st.integers(0, 10**6)))
def test_a_bar_never_overflows_and_shows_whatever_there_is(counts: dict[JobState, int]) -> None:
    all_counts = dict.fromkeys(JobState, 0) | counts
    parts = batch_page.segments(all_counts)
    at = 0
    for part in parts:
        assert part.x == at
        at += part.width
        assert (part.width > 0) == (all_counts[JobState(part.state)] > 0) or at == 1000
    assert at <= 1000


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_progress_is_a_small_answer_with_numbers_words_and_pictures() -> None:
    batch = _batch(succeeded=1, failed=1, pending=2)
    factories.done(clock.now(), batch=batch)
    told = _client(Role.VIEWER).get(_url(batch, "progress")).json()
    assert told["total"] == 5
    assert told["counts"]["pending"] == 2
    assert told["texts"]["percent"] == "60 %"
    assert len(told["shown"]) == 1
    assert told["every_s"] > 0
    Job.objects.filter(batch=batch, state="pending").update(
        state="cancelled", finished_at=clock.now()
    )
    ended = _client(Role.VIEWER).get(_url(batch, "progress")).json()
    assert (ended["done"], ended["every_s"]) == (True, 0)
    assert ended["version"] != told["version"]


@pytest.mark.django_db
def test_progress_is_for_staff_only() -> None:
    url = _url(_batch(pending=1), "progress")
    assert Client().get(url).status_code == 302
    nobody = Client()
    nobody.force_login(factories.staff())
    assert nobody.get(url).status_code == 403


# --- verbs ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("verb", batch_verbs.BATCH_VERBS, ids=lambda verb: verb.name)
def test_each_verb_asks_first_and_is_open_to_its_roles_only(role: Role, verb: Any) -> None:
    batch = _batch(pending=2, failed=2)
    client, url = _client(role), _url(batch, "do", verb.name)
    before = list(Job.objects.order_by("pk").values("state", "not_before"))
    allowed = role is not Role.VIEWER
    assert client.get(url).status_code == (200 if allowed else 403)
    other = factories.target("other/model")
    if verb is batch_verbs.RESUME:
        _client().post(_url(batch, "do", "pause"), {"reason": ""})
        before = list(Job.objects.order_by("pk").values("state", "not_before"))
    assert list(Job.objects.order_by("pk").values("state", "not_before")) == before
    answer = client.post(url, {"reason": "so", "target": other.pk})
    assert answer.status_code == (302 if allowed else 403)
    after = list(Job.objects.order_by("pk").values("state", "not_before", "target"))
    moved = after != [{**row, "target": factories.target().pk} for row in before]
    assert moved is allowed
    if allowed:
        kinds = {"pause": "paused", "resume": "resumed", "cancel-rest": "rest_cancelled", "retry-failed": "failed_retried", "retarget-rest": "rest_retargeted"}  # fmt: skip
        event = batch.events.exclude(kind="completed").latest("pk")
        assert (event.kind, event.data["reason"]) == (kinds[verb.name], "so")
        assert event.actor is not None


@pytest.mark.django_db
def test_a_viewer_sees_no_verb() -> None:
    page = _client(Role.VIEWER).get(_url(_batch(pending=1, failed=1))).content.decode()
    assert "/do/" not in page
    assert "again_selected" not in page


@pytest.mark.django_db
def test_a_refused_verb_says_why_and_changes_nothing() -> None:
    batch = _batch(succeeded=1)
    page = _client().post(_url(batch, "do", "cancel-rest"), {"reason": ""}, follow=True)
    assert "Nothing of this batch waits any more." in page.content.decode()


# --- the export -------------------------------------------------------------------------------------------------------


def _read(answer: Any) -> list[list[str]]:
    text = b"".join(answer.streaming_content).decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text)))


@pytest.mark.django_db
def test_the_export_holds_what_was_given_up_with_its_reason_in_words() -> None:
    batch = _batch(succeeded=1, failed=1, manual=1)
    rows = _read(_client(Role.VIEWER).get(_url(batch, "export") + "?only=given-up"))
    assert [row[1] for row in rows[1:]] == ["failed-0", "manual-0"]
    assert "HTTP 400: <i>no</i>" in rows[1]
    assert len(_read(_client(Role.VIEWER).get(_url(batch, "export")))) == 4


@pytest.mark.django_db
def test_the_export_comes_in_parts_whatever_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.admin.batches._EXPORT_AT_ONCE", 2)
    batch = _batch(failed=5)
    answer = _client(Role.VIEWER).get(_url(batch, "export"))
    parts = list(answer.streaming_content)  # type: ignore[attr-defined]
    assert len(parts) == 4
    assert len(list(csv.reader(io.StringIO(b"".join(parts).decode("utf-8-sig"))))) == 6


@pytest.mark.django_db(transaction=True)
async def test_under_asgi_the_export_is_a_stream_too() -> None:
    batch = await sync_to_async(_batch)(failed=3)
    client = AsyncClient()
    await client.aforce_login(await sync_to_async(factories.staff)(Role.VIEWER))
    answer: Any = await client.get(_url(batch, "export"))
    assert answer.is_async
    text = b"".join([part async for part in answer.streaming_content]).decode("utf-8-sig")
    assert len(list(csv.reader(io.StringIO(text)))) == 4
    await sync_to_async(connections.close_all)()


@pytest.mark.parametrize("cell", ["=1+1", "+7 999", "-5", "@sum", "\t=1", "\r=1", "  =1", "\u00a0=1", "%0a=1", "|calc", "\n=1"], ids=ascii)  # fmt: skip
def test_no_cell_is_a_formula(cell: str) -> None:
    assert export.safe(cell).startswith("'")


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_every_cell_comes_back_as_it_was_but_for_the_apostrophe(cells: list[str]) -> None:
    [row] = list(csv.reader(io.StringIO(export.lines([cells]), newline="")))
    for was, came in zip(cells, row, strict=True):
        assert came.removeprefix("'") == was.replace("\0", "").removeprefix("'") or came == was


def test_numbers_stay_numbers() -> None:
    assert [export.safe(cell) for cell in (-5, 2.5, None)] == ["-5", "2.5", ""]
