"""Searching and filtering jobs and sends: what is found, and that an index finds it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse

from jobs import querysets, stuck
from jobs.clock import clock
from jobs.models import Job, ProviderTask
from jobs.states import JobState
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def now() -> datetime:
    return clock.now()


def _plan(rows: QuerySet[Any], *, without: str = "seqscan") -> str:
    """How PostgreSQL would find the rows if it could not read the whole table: it does, where a table is as small as here."""
    with connection.cursor() as cursor:
        for way in without.split():
            cursor.execute(f"SET LOCAL enable_{way} = off")
    return str(rows.explain())


@pytest.mark.parametrize(
    "words", ["lighthouse", "HOUSE in", "B-77", "gen_wanted", "#NUMBER", "NUMBER", "باغ", "АКВАРЕЛЬ", "گل"]
)  # fmt: skip
def test_a_job_is_found_by_each_of_its_words(now: datetime, words: str) -> None:
    wanted = factories.job(now, reference="B-7731", prompt="A Lighthouse in fog, акварель, باغ گل")
    factories.accepted(wanted, now, provider_id="gen_wanted")
    factories.accepted(factories.job(now, reference="C-77"), now, provider_id="gen_other")
    found = Job.objects.search(f" {words.replace('NUMBER', str(wanted.pk))} ")
    assert [job.pk for job in found] == [wanted.pk]


def test_a_job_is_found_once_however_many_sends_it_has(now: datetime) -> None:
    job = factories.job(now, prompt="gen_1 in the prompt too")
    factories.accepted(job, now, provider_id="gen_1", blocks_send=False)
    factories.accepted(job, now, provider_id="gen_2")
    assert Job.objects.search("gen_1").count() == 1


def test_a_search_narrows_what_was_filtered_before(now: datetime) -> None:
    failed = factories.job(now, JobState.FAILED, prompt="A lighthouse")
    factories.job(now, prompt="A lighthouse")
    assert list(Job.objects.filter(state=JobState.FAILED).search("lighthouse")) == [failed]


@pytest.mark.parametrize("words", ["100%", "a_b", "x" * 3000, "#", "0" * 40, "'; --"])
def test_a_search_takes_its_words_as_they_are(now: datetime, words: str) -> None:
    factories.job(now, reference="1000", prompt="100 per cent, acb")
    assert not Job.objects.search(words).exists()


def test_words_too_short_for_the_index_are_looked_for_in_the_newest_jobs_only(
    now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(querysets, "SHORT_WORDS_AMONG", 2)
    old, *newest = (factories.job(now, prompt="باغ با گل") for _ in range(3))
    assert set(Job.objects.search("گل")) == set(newest)
    assert set(Job.objects.search("باغ")) == {old, *newest}


def test_a_search_reads_an_index_for_each_way_to_find(now: datetime) -> None:
    job = factories.job(now)
    factories.accepted(job, now, provider_id="gen_1")
    plan = _plan(Job.objects.search("gen_1"), without="seqscan indexscan")
    for index in ("job_reference", "job_prompt_words", "jobs_job_pkey"):
        assert index in plan
    assert "Seq Scan" not in plan


def test_lists_by_time_state_and_charge_read_an_index(now: datetime) -> None:
    order = ("-job_id", "-created_at")
    hour = now - timedelta(hours=1)
    cases: list[tuple[QuerySet[Any], str]] = [
        (Job.objects.filter(created_at__gte=hour), "job_created"),
        (ProviderTask.objects.filter(state="unknown").order_by(*order), "task_not_stored"),
        (ProviderTask.objects.filter(charge="refunded").order_by(*order), "task_charge_undone"),
    ]
    for rows, index in cases:
        plan = _plan(rows, without="seqscan sort bitmapscan")
        assert index in plan
        assert "Sort" not in plan


def test_the_query_of_what_is_stuck_reads_no_table_of_sends_from_end_to_end(now: datetime) -> None:
    factories.accepted(factories.job(now, JobState.ACTIVE), now)
    asked: list[tuple[str, Any]] = []

    def heard(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(heard):
        stuck.stuck(now=now)
    sql, params = asked[-1]
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {sql}", params)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Seq Scan on jobs_providertask" not in plan


def test_results_are_searched_like_their_jobs(now: datetime, settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    wanted = factories.done(now, reference="B-1", prompt="A lighthouse")
    factories.done(now, reference="C-1", prompt="A bicycle")
    client = Client()
    client.force_login(factories.staff(superuser=True))
    page = client.get(reverse("admin:jobs_result_changelist"), {"q": "lighthouse"})
    assert [row.job_id for row in page.context["cl"].result_list] == [wanted.pk]
