"""Which failures are alike, the key that a send carries, the groups that are read from it, and the command."""

from __future__ import annotations

import importlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from jobs import failure_groups, failures
from jobs.clock import clock
from jobs.failure_groups import Group, Order
from jobs.failures import MESSAGE_MAX, Chosen, chosen, class_of, key, pattern
from jobs.lifecycle.record import Fact, from_plain, record, to_plain
from jobs.models import Job, ProviderTask
from jobs.states import JobState
from tests import factories
from tests.test_commands import run

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)

# --- which are alike --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ("image too large (12,345,678 bytes)", "Image too large (17 bytes)", "image too large (N bytes)"),
        ("Request req_93ab77ff failed", "Request req_0c1d2e3f4a failed", "Request req_… failed"),
        ("request id: 9fk3-kdk.22, try later", "request id: zz-1, try later", "request id: …, try later"),
        ("task 550e8400-e29b-41d4-a716-446655440000 gone", "task 6ba7b810-9dad-11d1-80b4-00c04fd430c8 gone", "task … gone"),
        ('model "a/b" is not known', 'model "c" is not known', 'model "…" is not known'),
        ("prompt «кот» отклонён", "prompt «собака и 2 кота» отклонён", "prompt «…» отклонён"),
        ("see https://x.test/a?b=1.", "see http://y.test/.", "see URL."),
        ("until 2026-11-30T12:00:00Z", "until 2026-12-01 08:30", "until TIME"),
        ("until Mon, 30 Nov 2026 12:00:00 GMT", "until Mon, 7 Dec 2026 09:15:00 GMT", "until Mon, TIME"),
        ("try again in 1m26.5s", "try again in 26s", "try again in N"),
        ("at most 1024x1024", "at most 512x768", "at most NxN"),
        ("limit of 1 000 000 tokens", "limit of 5000 tokens", "limit of N tokens"),
        ("سهمیهٔ ۱۲۳۴ تمام شد", "سهمیهٔ ۹۹ تمام شد", "سهمیهٔ N تمام شد"),
        ("two\n  lines\t12", "two lines 7", "two lines N"),
        ("[Errno 111] refused ('127.0.0.1', 54321)", "[Errno 111] refused ('10.0.0.7', 80)", "[Errno N] refused ('…', N)"),
    ],
)  # fmt: skip
def test_what_differs_from_send_to_send_makes_no_group_of_its_own(
    one: str, other: str, message: str
) -> None:
    assert pattern(one) == message
    assert key("rejected", one) == key("rejected", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("HTTP 500: it failed", "HTTP 503: it failed"),
        ("status code 400", "status code 404"),
        ("image too large", "image too small"),
        ('{"error": {"message": "x"}}', '{"detail": {"message": "x"}}'),
        ("", "0"),
    ],
)
def test_other_failures_stay_apart(one: str, other: str) -> None:
    assert key("down", one) != key("down", other)


def test_the_class_parts_groups_and_stands_in_the_key() -> None:
    assert key("down", "x") != key("rejected", "x")
    for failure in failures.CLASSES:
        assert class_of(key(failure, "x")) == failure
        assert len(key(failure, "x")) <= failures.KEY_MAX


def test_words_keep_what_is_written_in_them() -> None:
    assert pattern("don't, can't: نمی‌شود") == "don't, can't: نمی‌شود"


_SCRAPS = st.sampled_from(
    ["'", '"', "“", "”", "«", "»", "`", " ", "id", ":", "=", "http", "status", "code", "404", "5000", "7", "a", "F0", "://",
     "www.", "-", "_", ".", ",", "x", "2026-11-30", "T", "12:03", "Z", "nov", "{", "}", "ms", "s", "\u200c", "…", "N", "é", "۱",
     "²", "/", "(", ")", "9f86d081", "\0", "\ud800", "\u202e", "\n", "ß", "İ"]
)  # fmt: skip
_HOSTILE = st.text(max_size=900) | st.lists(_SCRAPS, max_size=120).map("".join)


@given(_HOSTILE)
def test_any_text_becomes_one_short_line_that_stays_as_it_is(text: str) -> None:
    message = pattern(text)
    assert len(message) <= MESSAGE_MAX
    assert pattern(message) == message
    assert key("down", message) == key("down", text)
    assert not {c for c in message if not c.isprintable()} - {"\u200c", "\u200d"}


@given(_HOSTILE, st.text(max_size=60))
def test_any_key_is_short_and_names_its_group_in_an_address(text: str, failure: str) -> None:
    found = key(failure, text)
    assert len(found) <= failures.KEY_MAX
    assert found.isascii()
    for still in (False, True):
        group = Chosen(provider="polza", key=found, period="7d", open=still)
        assert chosen(str(group)) == group


@given(st.integers(0, 10**9), st.uuids(), st.sampled_from(["", " again", ": x"]))
def test_numbers_and_ids_never_part_what_is_alike(number: int, one: Any, tail: str) -> None:
    said = f"upload {number} of {one} failed{tail}"
    assert pattern(said) == f"upload N of … failed{tail}"


@pytest.mark.parametrize(
    "name",
    ["", "polza", "polza:rejected:24h", "polza:rejected-0123456789ab", "polza:rejected-0123456789ab:2y", "a b:down-0123456789ab:24h",
     "polza:rejected-0123456789AB:24h", "polza:rejected-0123456789ab:24h:closed", "polza:rejected-0123456789ab:24h\n"],
)  # fmt: skip
def test_what_names_no_group_is_none(name: str) -> None:
    assert chosen(name) is None


# --- recording --------------------------------------------------------------------------------------------------------


def refuse(of: ProviderTask, text: str, *, at: datetime = NOW, failure: str = "rejected") -> None:
    record(
        facts=[
            Fact(task_id=of.pk, at=at, kind="refused", decides=True, refusal_class=failure, failure_class=failure, failure_text=text)
        ]
    )  # fmt: skip


def fresh(of: ProviderTask) -> ProviderTask:
    of.refresh_from_db()
    return of


@pytest.fixture
def task(db: None) -> ProviderTask:
    return factories.task(factories.job(NOW, JobState.ACTIVE), NOW)


def test_the_key_is_that_of_the_words_that_stand_in_the_row(task: ProviderTask) -> None:
    for at, failure, text in ((0, "unknown", "reset by peer"), (1, "down", "it failed 7 times")):
        record(
            facts=[Fact(task_id=task.pk, at=NOW + at * HOUR, kind="lost", lost=True, failure_class=failure, failure_text=text)]
        )  # fmt: skip
        row = fresh(task)
        assert row.failure_key == key(row.failure_class, row.failure_text) == key(failure, text)
        assert row.failure_at == NOW + at * HOUR


def test_other_facts_leave_the_failure_alone_and_make_none(task: ProviderTask) -> None:
    polled = Fact(task_id=task.pk, at=NOW + HOUR, kind="", polled=True, last_status="processing")
    record(facts=[polled])
    assert (fresh(task).failure_key, task.failure_at) == (None, None)
    refuse(task, "too large")
    record(facts=[polled])
    assert (fresh(task).failure_key, task.failure_at) == (key("rejected", "too large"), NOW)


def test_words_without_a_class_are_of_what_became_of_the_send(task: ProviderTask) -> None:
    record(
        facts=[Fact(task_id=task.pk, at=NOW, kind="unsent", unsent=True, failure_text="epoch mark: no space")]
    )  # fmt: skip
    assert fresh(task).failure_key == key("unsent", "epoch mark: no space")


def test_a_file_that_does_not_come_is_a_failure_of_its_own_class(task: ProviderTask) -> None:
    record(
        facts=[
            Fact(task_id=task.pk, at=NOW, kind="fetch_trouble", completed=True, fetch_failed=True, fetch_trouble="HTTP 502")
        ]
    )  # fmt: skip
    assert fresh(task).failure_key == key(failures.FETCH, "HTTP 502")


def test_a_fact_of_the_spool_gets_its_key_when_it_is_written(task: ProviderTask) -> None:
    fact = Fact(
        task_id=task.pk, at=NOW, kind="refused", refusal_class="down", failure_class="down", failure_text="HTTP 503"
    )  # fmt: skip
    record(facts=[from_plain(json.loads(json.dumps(to_plain(fact))))])
    assert fresh(task).failure_key == key("down", "HTTP 503")


def test_a_key_costs_no_statement_more(task: ProviderTask) -> None:
    other = factories.accepted(factories.job(NOW, JobState.ACTIVE), NOW)
    with CaptureQueriesContext(connection) as plain:
        record(facts=[Fact(task_id=other.pk, at=NOW, kind="completed", completed=True)])
    with CaptureQueriesContext(connection) as failed:
        refuse(task, "too large")
    assert len(failed) == len(plain)


# --- what was there before --------------------------------------------------------------------------------------------


def test_the_migration_gives_old_failures_the_key_that_record_would_have(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = factories.job(NOW, JobState.FAILED)
    old: dict[str, Any] = {"blocks_send": False, "armed_at": NOW}
    lost = factories.lost(factories.job(NOW), NOW, armed_at=NOW)
    refused = [
        factories.task(
            job, NOW, **old, refusal_class="rejected", refused_at=NOW + HOUR, failure_class="rejected", failure_text=f"too large: {n}"
        )
        for n in range(5)
    ]  # fmt: skip
    unsent = factories.task(
        job, NOW, **old, unsent_at=NOW + 2 * HOUR, failure_text="epoch mark: no space"
    )
    fetched = factories.accepted(
        job, NOW, **old, completed_at=NOW + 3 * HOUR, fetch_trouble="HTTP 502"
    )
    well = factories.accepted(job, NOW, **old)
    newer = factories.task(job, NOW, **old)
    refuse(newer, "newer", at=NOW + 9 * HOUR)
    migration = importlib.import_module("jobs.migrations.0012_failure_fill")
    monkeypatch.setattr(migration, "SLICE", 2)
    with connection.schema_editor() as editor:
        migration.fill(apps, editor)
        migration.fill(apps, editor)  # broken off and begun again
    assert {fresh(one).failure_key for one in refused} == {key("rejected", "too large: 0")}
    assert {one.failure_at for one in refused} == {NOW + HOUR}
    assert (fresh(lost).failure_key, lost.failure_at) == (
        key("unknown", "connection reset by peer"), lost.lost_at,
    )  # fmt: skip
    assert (fresh(unsent).failure_key, unsent.failure_at) == (
        key("unsent", "epoch mark: no space"), NOW + 2 * HOUR,
    )  # fmt: skip
    assert (fresh(fetched).failure_key, fetched.failure_at) == (
        key(failures.FETCH, "HTTP 502"), NOW + 3 * HOUR,
    )  # fmt: skip
    assert (fresh(well).failure_key, well.failure_at) == (None, None)
    assert (fresh(newer).failure_key, newer.failure_at) == (
        key("rejected", "newer"), NOW + 9 * HOUR,
    )  # fmt: skip


# --- reading ----------------------------------------------------------------------------------------------------------


def failed(
    text: str,
    *,
    at: datetime = NOW,
    state: JobState = JobState.FAILED,
    tenant: str = "studio",
    failure: str = "rejected",
    provider: str = "polza",
    of: Job | None = None,
) -> Job:
    to = factories.target(provider=provider)
    job = of or factories.job(NOW, state, tenant=factories.tenant(tenant), target=to)
    refuse(factories.task(job, NOW, blocks_send=False), text, at=at, failure=failure)
    return job


def read(**values: Any) -> list[Group]:
    return list(
        failure_groups.read(**{"since": NOW - 24 * HOUR, "until": NOW + HOUR} | values).groups
    )


def test_like_failures_are_one_group_with_its_figures(db: None) -> None:
    for n, tenant in enumerate("abca"):
        failed(f"too large: {n}", tenant=tenant, at=NOW - n * HOUR)
    failed("too large: 9", state=JobState.MANUAL, tenant="a", at=NOW - HOUR / 2)
    done = failed("too large: 10", state=JobState.SUCCEEDED, at=NOW - HOUR / 3)
    failed("too large: 11", of=done, at=NOW - HOUR / 4)
    failed("gone", failure="down")
    failed("too large: 5", provider="fal")
    big, *others = read(parts=25)
    assert (big.provider, big.failure, big.message) == ("polza", "rejected", "too large: N")
    assert (big.tasks, big.jobs, big.tenants, big.failed, big.manual) == (7, 6, 4, 4, 1)
    assert (big.first_at, big.last_at, big.text) == (NOW - 3 * HOUR, NOW, "too large: 0")
    # Parts of an hour, the period begins 24 hours before.
    assert big.counts == [0] * 21 + [1, 1, 4, 1]
    assert {(one.provider, one.failure, one.message, one.tasks) for one in others} == {
        ("polza", "down", "gone", 1),
        ("fal", "rejected", "too large: N", 1),
    }


def test_a_period_a_provider_a_class_and_a_page_narrow_it(db: None) -> None:
    failed("old", at=NOW - 30 * HOUR)
    failed("later", at=NOW + 2 * HOUR)
    failed("down", failure="down")
    failed("here")
    failed("here")
    failed("far", provider="fal", at=NOW + HOUR / 2)
    assert [one.message for one in read()] == ["here", "far", "down"]
    assert [one.message for one in read(order=Order.NEWEST)] == ["far", "here", "down"]
    assert [one.message for one in read(provider="fal")] == ["far"]
    assert [one.message for one in read(failure="down")] == ["down"]
    assert [one.message for one in read(since=NOW - 31 * HOUR, limit=1, offset=1)] == ["far"]
    found = failure_groups.read(since=NOW - 24 * HOUR, until=NOW + HOUR, limit=1)
    assert (found.total, found.tasks, len(found.groups)) == (3, 4, 1)
    nothing = failure_groups.read(since=NOW + 9 * HOUR, until=NOW + 10 * HOUR, parts=3)
    assert (nothing.groups, nothing.total, nothing.tasks) == ([], 0, 0)


def test_a_send_counts_where_it_failed_last(db: None) -> None:
    job = failed("first")
    refuse(job.tasks.get(), "then", at=NOW + HOUR / 2)
    assert [one.message for one in read()] == ["then"]


def test_a_group_asks_as_much_for_many_sends_as_for_few(db: None) -> None:
    failed("x 1")
    with CaptureQueriesContext(connection) as few:
        read(parts=24)
    for n in range(20):
        failed(f"x {n}")
        failed(f"only {chr(97 + n)}")
    with CaptureQueriesContext(connection) as many:
        read(parts=24)
    assert len(many) == len(few) == 3


def test_groups_are_counted_from_the_index_alone(db: None) -> None:
    failed("x")
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        asked: dict[str, Any] = {"since": NOW - HOUR, "until": NOW, "provider": "", "failure": "", "limit": 9, "offset": 0}  # fmt: skip
        cursor.execute("EXPLAIN " + failure_groups._GROUPS.format(order="tasks"), asked)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Index Only Scan using task_failures" in plan


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_the_groups_to_people_and_programs(db: None) -> None:
    now = clock.now()
    failed("too large: 7", at=now - HOUR)
    failed("too large: 8", at=now - HOUR, tenant="other")
    failed("far", at=now - 2 * HOUR, provider="fal")
    failed("old", at=now - 48 * HOUR)
    code, text = run("failures")
    assert code == 0
    assert "polza · request rejected · too large: N\n  2 sends, 2 tenants, 2 still failed" in text
    assert "old" not in text
    code, text = run("failures", "--since", "3d", "--provider", "polza", "--json")
    told = json.loads(text)
    assert (code, told["total"], told["tasks"]) == (0, 2, 3)
    [big, old] = told["groups"]
    assert (big["class"], big["message"], big["tasks"], big["tenants"], big["failed"], big["manual"]) == (
        "rejected", "too large: N", 2, 2, 2, 0,
    )  # fmt: skip
    assert old["message"] == "old"
    assert "1 more group" in run("failures", "--since", "3d", "--limit", "1", "--class", "rejected", "--provider", "polza")[1]  # fmt: skip
    assert run("failures", "--since", "1m") == (0, "No failures in this period.\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--since 0h", "like 90m, 24h or 7d"),
        ("--since 5", "like 90m, 24h or 7d"),
        ("--since 9999999d", "like 90m, 24h or 7d"),
        ("--class odd", "invalid choice"),
        ("--provider nobody", "“nobody” is no provider"),
        ("--limit 0", "at least 1"),
    ],
)
def test_the_command_refuses_nonsense(db: None, words: str, said: str) -> None:
    code, text = run("failures", *words.split(" "))
    assert code != 0
    assert said in text
