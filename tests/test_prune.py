"""Retention: what is removed, what never is, and that a run may be killed anywhere."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import Group, User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from jobs import comparison, results, spending, tasks
from jobs.clock import clock
from jobs.lifecycle import decisions, prune
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.prune import Wish
from jobs.models import (
    BatchDraft,
    BulkChunk,
    BulkRun,
    BulkSkip,
    Callback,
    IdempotencyKey,
    Job,
    JobEvent,
    JobPhoto,
    ProviderTask,
    PruneRun,
    Result,
)
from jobs.retention import Kind
from jobs.roles import Role
from jobs.stages import prune as stage
from jobs.states import CaseKind, JobState
from jobs.stuck import stuck
from providers.models import ProviderEvent
from tests import factories

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
YEAR = 365 * DAY
LONG_ANSWER = {"submit": {"status": 200, "headers": {}, "body": "x" * 5000, "left": True}}


@pytest.fixture(autouse=True)
def files(settings: Settings, tmp_path: Path) -> Path:
    settings.MEDIA_ROOT = tmp_path
    return tmp_path


@pytest.fixture
def now() -> datetime:
    return clock.now()


def old_job(now: datetime, *, ago: timedelta = YEAR, **values: Any) -> Job:
    """One that went well, with long columns."""
    job = factories.done(now - ago, **values)
    ProviderTask.objects.filter(job=job).update(
        evidence=LONG_ANSWER,
        candidates=[{"id": "gen_1"}],
        files=[{"url": "https://provider.example/1.png"}],
        result_text="words",
    )
    return job


def run(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("prune", *words, "--json", stdout=out)
    told: dict[str, Any] = json.loads(out.getvalue())
    return told


def person(role: Role) -> User:
    user = User.objects.create_user(f"a {role}", is_staff=True)
    user.groups.add(Group.objects.get(name=role.value))
    return user


def kinds(job: Job) -> list[str]:
    return list(JobEvent.objects.filter(job=job).order_by("pk").values_list("kind", flat=True))


# --- what goes --------------------------------------------------------------------------------------------------------


def test_the_timeline_of_a_job_that_ended_long_ago_goes_and_a_young_one_stays(
    now: datetime,
) -> None:
    old, young = old_job(now), old_job(now, ago=10 * DAY)
    assert run()["removed"]["timelines"] == 7
    assert kinds(old) == []
    assert len(kinds(young)) == 7


def test_what_people_did_stays_in_the_timeline(now: datetime) -> None:
    job = old_job(now)
    by = person(Role.OPERATOR)
    factories.event(job, "retried", now - YEAR, actor=by, before="failed")
    factories.event(job, "written_off", now - YEAR, actor=by, bulk=7)
    factories.event(job, "cancelled", now - YEAR, actor=by, bulk=8)
    run()
    # The one of a bulk action that is about no money: the action itself tells of it.
    assert kinds(job) == ["retried", "written_off"]


def test_long_columns_of_an_old_send_go_and_its_facts_and_money_stay(now: datetime) -> None:
    job = old_job(now)
    before: dict[str, Any] = dict(ProviderTask.objects.filter(job=job).values().get())
    assert run()["removed"]["evidence"] == 1
    after: dict[str, Any] = dict(ProviderTask.objects.filter(job=job).values().get())
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"evidence", "candidates", "files", "result_text"}
    assert list(after["evidence"]) == ["pruned_at"]
    assert (after["cost"], after["charge"], after["state"]) == (
        Decimal("7.84"),
        "charged",
        "stored",
    )


def test_addresses_and_words_of_a_send_without_a_stored_file_stay(now: datetime) -> None:
    job = factories.job(now - YEAR, JobState.FAILED)
    factories.task(
        job, now - YEAR, blocks_send=False, refusal_class="rejected", refused_at=now - YEAR, evidence=LONG_ANSWER,
        files=[{"url": "https://provider.example/1.png"}], result_text="words",
    )  # fmt: skip
    run()
    send = ProviderTask.objects.get(job=job)
    assert list(send.evidence) == ["pruned_at"]
    assert (send.files, send.result_text) == ([{"url": "https://provider.example/1.png"}], "words")


def test_delivered_callbacks_go_and_others_wait_on(now: datetime) -> None:
    job = old_job(now)
    Callback.objects.all().delete()
    values = {
        "tenant": job.tenant,
        "job": job,
        "kind": "job.succeeded",
        "url": "https://shop.example/",
        "at": now - YEAR,
    }
    told = Callback.objects.create(**values, delivered_at=now - YEAR)
    dead = Callback.objects.create(**values, given_up_at=now - YEAR)
    waits = Callback.objects.create(**values)
    young = Callback.objects.create(**values | {"at": now - DAY}, delivered_at=now - DAY)
    assert run("--only", "callbacks")["removed"] == {"callbacks": 1}
    left = set(Callback.objects.values_list("pk", flat=True))
    assert left == {dead.pk, waits.pk, young.pk}
    assert told.pk not in left


def test_provider_events_go_but_for_the_newest_of_each_kind_and_what_people_did(
    now: datetime,
) -> None:
    account = factories.account(now)
    ProviderEvent.objects.all().delete()
    made = [
        ProviderEvent.objects.create(account=account, at=now - days * DAY, kind=kind)
        for days, kind in (
            (900, "opened"),
            (899, "closed"),
            (800, "opened"),
            (790, "paused"),
            (700, "throttled"),
            (5, "throttled"),
        )
    ]
    assert run("--only", "provider_events")["removed"] == {"provider_events": 1}
    assert list(ProviderEvent.objects.order_by("pk")) == made[1:]


def test_an_ended_bulk_action_keeps_its_counts_and_loses_its_lists(
    now: datetime, client: Client
) -> None:
    job = old_job(now)
    row = BulkRun.objects.create(
        verb="retry",
        created_at=now - YEAR,
        finished_at=now - YEAR,
        state="done",
        total=2,
        done=1,
        skipped=1,
    )
    BulkChunk.objects.create(run=row, number=0, ids=[job.pk])
    BulkSkip.objects.create(run=row, job=job, reason="money")
    under_way = BulkRun.objects.create(verb="retry", created_at=now - YEAR, total=1)
    BulkChunk.objects.create(run=under_way, number=0, ids=[job.pk])
    assert run("--only", "bulk")["removed"] == {"bulk": 2}
    assert BulkRun.objects.count() == 2
    assert list(BulkChunk.objects.values_list("run", flat=True)) == [under_way.pk]
    client.force_login(person(Role.OPERATOR))
    page = client.get(reverse("admin:jobs_bulkrun_change", args=[row.pk])).content.decode()
    assert "Which jobs were left out is kept for a while only" in page
    assert "nothing was left out" not in page


def test_drafts_keys_and_logins_go_when_they_are_over(now: datetime) -> None:
    tenant, live = factories.tenant(), factories.job(now)
    for hours in (1, 30):
        BatchDraft.objects.create(tenant=tenant, created_at=now - timedelta(hours=hours))
        IdempotencyKey.objects.create(
            tenant=tenant,
            key=str(hours),
            digest="0" * 64,
            created_at=now,
            kept_until=now + timedelta(hours=24 - hours),
        )
        Session.objects.create(
            session_key=str(hours), session_data="", expire_date=now + timedelta(hours=24 - hours)
        )
    IdempotencyKey.objects.create(
        tenant=tenant, key="live", digest="0" * 64, created_at=now, kept_until=now - DAY, job=live
    )
    removed = run()["removed"]
    assert (removed["drafts"], removed["keys"], removed["sessions"]) == (1, 1, 1)
    assert set(IdempotencyKey.objects.values_list("key", flat=True)) == {"1", "live"}


# --- what stays -------------------------------------------------------------------------------------------------------


def _possible(now: datetime) -> Job:
    job = factories.job(now, JobState.FAILED, finished_at=now)
    factories.lost(job, now, evidence=LONG_ANSWER)
    return job


def _watched(now: datetime) -> Job:
    job = factories.job(now, JobState.CANCELLED, finished_at=now)
    factories.accepted(job, now, evidence=LONG_ANSWER, next_poll_at=now)
    return job


def _open_case(now: datetime) -> Job:
    job = old_job(now, ago=timedelta(0))
    factories.case(CaseKind.LATE_RESULT, now, of=job, money_at_risk=Decimal(0))
    return job


def _case_about_money(now: datetime) -> Job:
    job = old_job(now, ago=timedelta(0))
    factories.case(CaseKind.PAID_TWICE, now, of=job, resolved_at=now, resolution="seen")
    return job


def _not_ended(now: datetime) -> Job:
    job = factories.job(now, JobState.MANUAL)
    factories.task(
        job, now, blocks_send=False, refusal_class="rejected", refused_at=now, evidence=LONG_ANSWER
    )
    return job


def _waiting(now: datetime) -> Job:
    return factories.job(now)


@pytest.mark.parametrize(
    "make", [_possible, _watched, _open_case, _case_about_money, _not_ended, _waiting]
)
def test_nothing_goes_of_a_job_that_is_not_settled(
    now: datetime, make: Callable[[datetime], Job]
) -> None:
    job = make(now - YEAR)
    events, sends = kinds(job), list(ProviderTask.objects.filter(job=job).values())
    assert run("--older-than", "1", "--files", "--delivered")["removed"]["timelines"] == 0
    assert kinds(job) == events
    assert list(ProviderTask.objects.filter(job=job).values()) == sends
    assert all(results.path_of(result.key).is_file() for result in Result.objects.filter(job=job))


def test_books_sums_and_budgets_say_the_same_before_and_after(now: datetime) -> None:
    jobs = [old_job(now, ago=days * DAY) for days in (2, 40, 200, 400)]
    tenant = jobs[0].tenant
    tenant.daily_limit = tenant.monthly_limit = Decimal(1000)
    tenant.save()
    factories.everything(now - 5 * DAY)

    def money() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT charge, currency, count(*), sum(cost) FROM jobs_providertask GROUP BY 1, 2 ORDER BY 1, 2"
            )
            books = cursor.fetchall()
            cursor.execute(
                "SELECT span_s, start_at, sum(sends), sum(charged), sum(possible) FROM jobs_sendsum GROUP BY 1, 2 ORDER BY 1, 2"
            )
            kept = cursor.fetchall()
        budgets = spending.budgets(type(tenant).objects.all(), factor=1.5, now=now)
        compared = [
            comparison.plain(one) for one in comparison.read(since=now - 2 * YEAR, until=now)
        ]
        return books, kept, budgets, compared

    before = money()
    found = len(stuck(now=now))
    run("--older-than", "1")
    assert money() == before
    assert len(stuck(now=now)) == found


@pytest.mark.parametrize("words", [(), ("--files",), ("--files", "--delivered")])
def test_pages_of_whatever_was_removed_still_open(
    now: datetime, client: Client, words: tuple[str, ...]
) -> None:
    made = factories.everything(now - YEAR)
    job = old_job(now)
    factories.result(job, now - YEAR, by=None, deliver=False)
    run("--older-than", "1", *words)
    client.force_login(person(Role.OWNER))
    for one in [job, *made.values()]:
        assert client.get(reverse("admin:jobs_job_change", args=[one.pk])).status_code == 200
        for send in ProviderTask.objects.filter(job=one):
            assert (
                client.get(reverse("admin:jobs_providertask_change", args=[send.pk])).status_code
                == 200
            )
        call_command("jobs", "show", str(one.pk), stdout=io.StringIO())
        call_command("jobs", "show", str(one.pk), "--json", stdout=io.StringIO())
    for name in ("jobs_job", "jobs_jobevent", "jobs_providertask", "jobs_result", "jobs_case"):
        assert client.get(reverse(f"admin:{name}_changelist")).status_code == 200
    assert client.get(reverse("admin:index")).status_code == 200


def test_the_job_page_says_that_its_timeline_was_removed(now: datetime, client: Client) -> None:
    old, young = old_job(now), old_job(now, ago=DAY)
    run()
    client.force_login(person(Role.VIEWER))
    said = "What the machine noted was removed"
    assert said in client.get(reverse("admin:jobs_job_change", args=[old.pk])).content.decode()
    assert (
        said not in client.get(reverse("admin:jobs_job_change", args=[young.pk])).content.decode()
    )
    send = ProviderTask.objects.get(job=old)
    page = client.get(reverse("admin:jobs_providertask_change", args=[send.pk])).content.decode()
    assert "What the provider answered was removed" in page


# --- files ------------------------------------------------------------------------------------------------------------


def on_disk(files: Path) -> int:
    return sum(1 for path in files.rglob("*") if path.is_file())


def test_files_go_only_on_request_and_delivered_ones_only_when_named(
    now: datetime, files: Path
) -> None:
    job = old_job(now)
    beside = factories.result(job, now - YEAR, deliver=False)
    assert "files" not in run("--older-than", "1")["removed"]
    assert on_disk(files) == 4
    assert run("--older-than", "1", "--files")["removed"]["files"] == 1
    beside.refresh_from_db()
    assert (beside.key, beside.thumb_key, beside.removed_at is not None) == ("", "", True)
    assert on_disk(files) == 2
    assert run("--older-than", "1", "--files", "--delivered")["removed"]["files"] == 1
    assert on_disk(files) == 0
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    assert job.delivered is not None
    assert job.delivered.sha256


def test_a_file_that_is_another_jobs_photo_stays(now: datetime, files: Path) -> None:
    job, other = old_job(now), factories.job(now)
    assert job.delivered is not None
    JobPhoto.objects.create(
        job=other,
        position=0,
        key=job.delivered.key,
        sha256="0" * 64,
        media_type="image/png",
        size_bytes=1,
        width=1,
        height=1,
    )
    assert run("--older-than", "1", "--files", "--delivered")["removed"]["files"] == 0
    assert results.path_of(job.delivered.key).is_file()


def test_a_file_that_an_import_waits_with_stays(now: datetime) -> None:
    job = old_job(now)
    assert job.delivered is not None
    BatchDraft.objects.create(
        tenant=job.tenant,
        created_at=now,
        rows=[{"photos": [[job.delivered.key, "", "0", "image/png", 1, 1, 1]]}],
    )
    assert run("--older-than", "1", "--files", "--delivered")["removed"]["files"] == 0
    assert results.path_of(job.delivered.key).is_file()


def test_a_removed_file_is_neither_served_nor_delivered(now: datetime, client: Client) -> None:
    job = old_job(now)
    beside = factories.result(job, now - YEAR, deliver=False)
    run("--older-than", "1", "--files")
    client.force_login(person(Role.OWNER))
    assert client.get(reverse("admin:desk_file", args=[beside.pk])).status_code == 404
    assert client.get(reverse("admin:desk_thumbnail", args=[beside.pk])).status_code == 404
    with pytest.raises(Refused, match="was removed"):
        decisions.deliver_instead(job_id=job.pk, result_id=beside.pk, actor=None, now=now)


# --- runs -------------------------------------------------------------------------------------------------------------


def test_a_second_run_finds_nothing(now: datetime) -> None:
    old_job(now)
    factories.event(factories.job(now - YEAR), "retried", now - YEAR)
    run("--files", "--delivered", "--older-than", "1")
    assert set(run("--files", "--delivered", "--older-than", "1")["removed"].values()) == {0}


def test_a_dry_run_counts_and_changes_nothing(now: datetime, files: Path) -> None:
    old_job(now)
    told = run("--dry-run", "--files", "--delivered", "--older-than", "1")
    assert told["dry_run"]
    assert PruneRun.objects.count() == 0
    assert on_disk(files) == 2
    again = run("--files", "--delivered", "--older-than", "1")
    assert told["removed"] == again["removed"]
    assert again["removed"]["timelines"] == 7


def test_a_limit_and_a_state_bound_what_goes(now: datetime) -> None:
    jobs = [old_job(now) for _number in range(4)]
    failed = factories.job(now - YEAR, JobState.FAILED)
    assert run("--state", "failed")["removed"] == {"timelines": 1, "evidence": 0}
    assert kinds(failed) == []
    run("--limit", "2", "--only", "evidence")
    assert (
        sum("pruned_at" in send.evidence for send in ProviderTask.objects.filter(job__in=jobs)) == 2
    )


def test_what_is_kept_for_ever_goes_only_when_it_is_asked_for(
    now: datetime, settings: Settings
) -> None:
    settings.RETENTION_TIMELINES_DAYS = 0
    job = old_job(now)
    assert "timelines" not in run()["removed"]
    assert len(kinds(job)) == 7
    run("--older-than", "300d")
    assert kinds(job) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--older-than", "0"),
        ("--older-than", "soon"),
        ("--limit", "0"),
        ("--delivered",),
        ("--files",),
    ],
)
def test_bad_input_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as raised:
        run(*words)
    assert raised.value.returncode == 2
    assert PruneRun.objects.count() == 0


def test_only_the_owner_may_have_it_run_and_the_run_says_who(now: datetime) -> None:
    old_job(now)
    with pytest.raises(CommandError) as raised:
        run("--as", person(Role.OPERATOR).username)
    assert raised.value.returncode == 3
    owner = person(Role.OWNER)
    run("--as", owner.username, "--older-than", "30")
    [row] = PruneRun.objects.all()
    assert (row.by, row.asked, row.removed["timelines"]) == (owner, {"older_than": "30"}, 7)
    assert row.ended_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_job_that_somebody_is_at_is_left_for_another_time(now: datetime) -> None:
    busy, free = old_job(now), old_job(now)
    server = connection.settings_dict
    with psycopg.connect(
        host=server["HOST"],
        port=server["PORT"],
        user=server["USER"],
        dbname=server["NAME"],
        password=server["PASSWORD"],
    ) as other:
        other.execute("SELECT FROM jobs_job WHERE id = %s FOR NO KEY UPDATE", [busy.pk])
        run()
        assert (len(kinds(busy)), kinds(free)) == (7, [])
    run()
    assert kinds(busy) == []


# --- killed -----------------------------------------------------------------------------------------------------------


class _Killed(BaseException):
    pass


@contextmanager
def _killed_at(number: int) -> Iterator[list[str]]:
    """The so-many-th statement never comes about, nor does what follows it."""
    done: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if len(done) >= number and not sql.startswith(("ROLLBACK", "RELEASE")):
            raise _Killed
        done.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield done


def _state() -> Any:
    runs = PruneRun.objects.all()
    return (
        list(JobEvent.objects.order_by("job__reference", "pk").values_list("job__reference", "kind")),
        [list(one) for one in ProviderTask.objects.order_by("job__reference").values_list("job__reference", "files", "cost", "charge")],
        list(Result.objects.order_by("job__reference", "pk").values_list("job__reference", "key")),
        Callback.objects.count(), BatchDraft.objects.count(), BulkSkip.objects.count(),
        {kind: sum(row.removed.get(kind, 0) for row in runs) for kind in ("timelines", "evidence", "callbacks", "drafts", "bulk")},
    )  # fmt: skip


def _world(now: datetime) -> None:
    for number in range(2):
        job = old_job(now, reference=f"R{number}")
        factories.result(job, now - YEAR, deliver=False)
        Callback.objects.create(
            tenant=job.tenant,
            job=job,
            kind="job.succeeded",
            url="https://shop.example/",
            at=now - YEAR,
            delivered_at=now - YEAR,
        )
        BatchDraft.objects.create(tenant=job.tenant, created_at=now - YEAR)
    row = BulkRun.objects.create(
        verb="retry",
        created_at=now - YEAR,
        finished_at=now - YEAR,
        state="done",
        total=1,
        skipped=1,
    )
    BulkSkip.objects.create(run=row, job=job, reason="money")


def test_wherever_a_run_is_killed_the_next_one_completes_it(
    now: datetime, monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    monkeypatch.setattr(prune, "SLICE", 1)
    words = ("--files", "--delivered", "--older-than", "30")
    with transaction.atomic():
        _world(now)
        with _killed_at(10_000) as statements:
            run(*words)
        whole = _state()
        transaction.set_rollback(True)
    assert on_disk(files) == 0
    assert len(statements) > 40
    for number in range(len(statements)):
        with transaction.atomic():
            _world(now)
            with pytest.raises(_Killed), _killed_at(number):
                # A savepoint each, as the outer transaction stands for the database.
                run(*words)
            for result in Result.objects.exclude(key=""):
                # What still has its file's name and was not given up has the file.
                assert result.removed_at is not None or results.path_of(result.key).is_file()
            run(*words)
            assert _state() == whole, f"killed at {number}: {statements[number][:80]}"
            transaction.set_rollback(True)
        assert on_disk(files) == 0


# --- daily ------------------------------------------------------------------------------------------------------------


def test_the_minutes_ring_calls_for_it_once_a_day_where_the_settings_say_so(
    now: datetime, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(tasks, "async_task", called.append)
    job = old_job(now)
    tasks.ring_each_minute()
    assert stage.WORK not in called
    settings.RETENTION_DAILY = True
    tasks.ring_each_minute()
    assert called.count(stage.WORK) == 1
    assert tasks.work_prune() == "done"
    assert kinds(job) == []
    tasks.ring_each_minute()
    assert called.count(stage.WORK) == 1
    assert tasks.work_prune() == "done"
    [row] = PruneRun.objects.all()
    assert row.removed["timelines"] == 7


def test_a_daily_run_goes_on_in_another_slice_and_the_next_day_from_where_it_came_to(
    now: datetime, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RETENTION_DAILY = True
    monkeypatch.setattr(prune, "SLICE", 1)
    jobs = [old_job(now) for _number in range(3)]
    young = old_job(now, ago=DAY)
    assert stage.work(for_s=0)
    assert PruneRun.objects.get().ended_at is None
    while stage.work(for_s=0):
        pass
    run_ = PruneRun.objects.get()
    assert run_.ended_at is not None
    assert run_.day is not None
    assert [kinds(job) for job in jobs] == [[], [], []]
    assert run_.position["timelines"]["mark"] == young.pk - 1
    tomorrow = prune.begin_day(day=run_.day + DAY, now=now + DAY)
    assert tomorrow.position["timelines"]["after"] == young.pk - 1
    much_later = prune.begin_day(day=run_.day + 40 * DAY, now=now + 40 * DAY)
    assert "after" not in much_later.position["timelines"]


def test_two_workers_do_not_both_do_todays_run(now: datetime) -> None:
    run_ = prune.begin_day(day=now.date(), now=now)
    assert prune.take(run_, now=now) is not None
    assert prune.take(run_, now=now) is None
    assert prune.take(run_, now=now + timedelta(seconds=prune.LEASE_S)) is not None


def test_nothing_is_found_where_there_is_nothing() -> None:
    wish = Wish(before=clock.now() - YEAR, now=clock.now(), dry=True)
    assert [prune.count(kind, wish) for kind in Kind] == [0] * len(Kind)
