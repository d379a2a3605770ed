"""Facts are written once, in any order, any number of times; what can't be written becomes a case."""

from __future__ import annotations

import errno
import itertools
import json
import random
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import OperationalError, connection

from jobs import epoch, spool
from jobs.lifecycle import decide
from jobs.lifecycle.record import Fact, FileFact, from_plain, record, to_plain
from jobs.models import Case, Hold, Job, JobEvent, ProviderTask, Result, SpoolHost
from jobs.rules import rules
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)


@pytest.fixture(autouse=True)
def folders(settings: LazySettings, tmp_path: Path) -> None:
    settings.SPOOL_DIR = tmp_path / "spool"
    settings.EPOCH_DIR = tmp_path / "epoch"


@pytest.fixture
def job() -> Job:
    return factories.job(NOW, JobState.ACTIVE)


@pytest.fixture
def task(job: Job) -> ProviderTask:
    return factories.task(job, NOW)


def fact(of: ProviderTask, **values: Any) -> Fact:
    defaults: dict[str, Any] = {"at": NOW, "kind": "learned", "decides": True}
    return Fact(task_id=of.pk, **defaults | values)


def learn(of: ProviderTask, **values: Any) -> set[int]:
    touched = record(facts=[fact(of, **values)])
    of.refresh_from_db()
    return touched


def cases(kind: CaseKind = CaseKind.CONFLICT) -> list[Case]:
    return list(Case.objects.filter(kind=kind))


# --- written once -----------------------------------------------------------------------------------------------------


def test_a_fact_lands_on_its_row_and_its_job_needs_a_decision(task: ProviderTask) -> None:
    assert learn(task, provider_id="gen_1") == {task.job_id}
    assert (task.provider_id, task.accepted_at, task.state) == ("gen_1", NOW, "accepted")
    assert task.undecided_since == NOW


def test_the_first_fact_stays_and_a_different_second_opens_a_conflict(task: ProviderTask) -> None:
    learn(task, provider_id="gen_1")
    learn(task, provider_id="gen_2", at=LATER)
    assert (task.provider_id, task.accepted_at) == ("gen_1", NOW)
    [case] = cases()
    assert (case.task_id, case.money_at_risk) == (task.pk, task.estimated_cost)
    assert case.detail["fact"]["provider_id"] == "gen_2"


def test_the_same_fact_twice_changes_nothing_and_is_told_once(task: ProviderTask) -> None:
    for at in (NOW, LATER):
        learn(task, provider_id="gen_1", at=at)
    assert (task.accepted_at, cases()) == (NOW, [])
    assert JobEvent.objects.filter(task=task, kind="learned").count() == 1


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_facts_in_any_order_and_twice_give_the_same_row(
    task: ProviderTask, order: tuple[int, ...]
) -> None:
    facts = [
        fact(task, provider_id="gen_1", next_poll_at=LATER),
        fact(task, lost=True, next_look_at=LATER),
        fact(task, polled=True, next_poll_at=LATER, kind="", decides=False),
        fact(task, completed=True, cost_poll=Decimal("7.84"), next_fetch_at=LATER),
    ]
    for number in order + order:
        record(facts=[facts[number]])
    task.refresh_from_db()
    assert (task.state, task.charge, task.cost) == ("completed", "charged", Decimal("7.84"))
    assert (task.next_poll_at, task.next_look_at, task.next_fetch_at) == (None, None, LATER)
    assert cases() == []


def test_many_facts_of_one_task_may_come_in_one_batch(task: ProviderTask) -> None:
    facts = [
        fact(task, provider_id="gen_1"),
        fact(task, completed=True),
        fact(task, stored=True),
        fact(task, provider_id="gen_1"),
    ]
    assert record(facts=facts) == {task.job_id}
    task.refresh_from_db()
    assert task.state == "stored"


def test_the_highest_receipt_counts(task: ProviderTask) -> None:
    for cost in ("0", "7.84", "0"):
        learn(task, cost_receipt=Decimal(cost))
    assert task.cost_receipt == Decimal("7.84")


def test_an_answer_counts_though_the_send_was_called_lost_and_the_job_cancelled(
    job: Job, task: ProviderTask
) -> None:
    Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=NOW, decided_at=NOW)
    learn(task, lost=True)
    learn(task, provider_id="gen_1")
    assert (task.state, task.charge) == ("accepted", "possible")


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ({"failed": True}, {"completed": True}, "failed_then_completed"),
        ({"completed": True}, {"failed": True}, "completed_then_failed"),
        ({"provider_id": "gen_1"}, {"refusal_class": "down"}, "accepted_and_refused"),
        ({"provider_id": "gen_1"}, {"unsent": True}, "accepted_and_unsent"),
        ({"refusal_class": "down"}, {"refusal_class": "rejected"}, "refusal_class"),
    ],
)
def test_facts_that_contradict_each_other_are_a_conflict(
    task: ProviderTask, first: dict[str, Any], second: dict[str, Any], why: str
) -> None:
    learn(task, **first)
    assert cases() == []
    learn(task, **second)
    assert [case.detail["why"] for case in cases()] == [why]


def test_a_conflict_seen_again_is_still_one_open_case(task: ProviderTask) -> None:
    learn(task, provider_id="gen_1")
    for _ in range(3):
        learn(task, provider_id="gen_2")
    assert len(cases()) == 1


def test_a_stored_file_recorded_twice_is_one_result(task: ProviderTask) -> None:
    file = FileFact(
        position=0, key="results/a.png", thumb_key="results/a.webp", sha256="0" * 64,
        media_type="image/png", size_bytes=3, width=1, height=1,
    )  # fmt: skip
    for _ in range(2):
        learn(task, stored=True, results=(file,))
    assert Result.objects.filter(task=task).count() == 1


# --- values the database finds impossible -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        {"provider_id": "x" * 201},
        {"failure_code": "y" * 81, "provider_id": "gen_1"},
        {"failure_text": "nul \0 inside", "provider_id": "gen_1"},
        {"failure_text": "half a pair \ud800", "provider_id": "gen_1"},
        {"evidence": {"submit": {"body": "\0"}}, "provider_id": "gen_1"},
        {"evidence": {"took_s": float("nan")}, "provider_id": "gen_1"},
        {"cost_poll": Decimal("1e30")},
    ],
)
def test_a_bad_value_becomes_a_case_and_its_neighbours_are_written(
    job: Job, task: ProviderTask, bad: dict[str, Any]
) -> None:
    other = factories.task(factories.job(NOW, JobState.ACTIVE), NOW)
    touched = record(facts=[fact(other, provider_id="gen_9"), fact(task, **bad)])
    task.refresh_from_db()
    other.refresh_from_db()
    assert touched == {job.pk, other.job_id}
    assert (other.provider_id, task.provider_id) == ("gen_9", None)
    [case] = cases()
    assert case.task_id == task.pk
    assert case.detail["fact"]["provider_id"] == (bad.get("provider_id"))


def test_an_id_that_belongs_to_another_task_becomes_a_case(task: ProviderTask) -> None:
    other = factories.task(factories.job(NOW, JobState.ACTIVE), NOW)
    learn(other, provider_id="gen_1")
    learn(task, provider_id="gen_1")
    assert (task.provider_id, [case.task_id for case in cases()]) == (None, [task.pk])


@pytest.mark.parametrize("text", ["fine", "nul \0"])
def test_facts_of_tasks_the_database_has_forgotten_are_kept_in_one_case(
    task: ProviderTask, text: str
) -> None:
    lost = [
        Fact(task_id=uuid.uuid4(), at=NOW, kind="accepted", provider_id=name, failure_text=text)
        for name in ("gen_7", "gen_8")
    ]
    for _ in range(2):
        assert record(facts=[*lost, fact(task, provider_id="gen_1")]) == {task.job_id}
    [case] = cases(CaseKind.ORPHAN)
    assert [kept["fact"]["provider_id"] for kept in case.detail["facts"]] in (
        ["gen_7", "gen_8"],
        ["gen_8", "gen_7"],
    )


# --- the spool --------------------------------------------------------------------------------------------------------


def full(task_id: uuid.UUID) -> Fact:
    return Fact(
        task_id=task_id, at=NOW, kind="completed", decides=True, provider_id="gen_é", completed=True,
        cost_poll=Decimal("7.8400000001"), wait_s=1.5, ours=False, evidence={"submit": {"status": 200}},
        files=[{"url": "https://example.org/a.png"}], next_fetch_at=LATER,
        results=(FileFact(position=0, key="k", thumb_key="t", sha256="s", media_type="m", size_bytes=1),),
        data={"reason": "done"},
    )  # fmt: skip


def test_a_fact_survives_the_spools_format_unchanged() -> None:
    one = full(uuid.uuid4())
    assert from_plain(json.loads(json.dumps(to_plain(one)))) == one


def test_what_a_newer_release_wrote_is_read_as_far_as_it_is_known() -> None:
    one = full(uuid.uuid4())
    assert from_plain({**to_plain(one), "invented_later": 1}) == one


def test_a_spooled_fact_is_replayed_once_and_the_host_is_clear(task: ProviderTask) -> None:
    spool.put([fact(task, provider_id="gen_1")])
    assert spool.replay(host="here", now=LATER) == {task.job_id}
    assert spool.replay(host="here", now=LATER) == set()
    task.refresh_from_db()
    assert task.provider_id == "gen_1"
    assert SpoolHost.objects.get(host="here").clear_at == LATER


def test_a_spooled_fact_stays_on_the_disk_until_it_is_recorded(
    task: ProviderTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.put([fact(task, provider_id="gen_1")])

    def die(*, facts: list[Fact]) -> set[int]:
        raise OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patched:
        patched.setattr(spool, "record", die)
        with pytest.raises(OperationalError):
            spool.replay(host="here", now=LATER)
    assert not SpoolHost.objects.filter(host="here", clear_at=LATER).exists()
    assert spool.replay(host="here", now=LATER) == {task.job_id}
    task.refresh_from_db()
    assert task.provider_id == "gen_1"


def test_a_spooled_fact_is_recorded_although_its_file_cannot_be_removed(
    task: ProviderTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.put([fact(task, provider_id="gen_1")])

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        for _ in range(2):
            assert spool.replay(host="here", now=LATER) == {task.job_id}
    assert SpoolHost.objects.get(host="here").clear_at == LATER
    assert spool.replay(host="here", now=LATER) == {task.job_id}
    assert spool.replay(host="here", now=LATER) == set()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"task_id": 5}', '"text"', "\\"])
def test_an_unreadable_file_is_set_aside_and_the_host_is_not_clear(
    settings: LazySettings, task: ProviderTask, text: str
) -> None:
    spool.put([fact(task, provider_id="gen_1")])
    (settings.SPOOL_DIR / "a.json").write_text(text)
    assert spool.replay(host="here", now=LATER) == {task.job_id}
    assert [path.name for path in settings.SPOOL_DIR.glob("*.*") if path.suffix] == ["a.bad"]
    assert not SpoolHost.objects.filter(host="here").exists()


# --- deciding beside recording ----------------------------------------------------------------------------------------


def test_a_decision_holds_the_tasks_rows_so_that_no_fact_slips_in_unseen(
    job: Job, task: ProviderTask
) -> None:
    learn(task, refusal_class="down", failure_class="down")
    statements: list[str] = []

    def listen(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(listen):
        decide.decide(job_ids=[job.pk], rules=rules(), now=LATER, rng=random.Random(1))
    tasks = [sql for sql in statements if 'FROM "jobs_providertask"' in sql]
    assert "FOR NO KEY UPDATE" in tasks[0]
    task.refresh_from_db()
    assert (task.blocks_send, task.undecided_since) == (False, None)


# --- marks outside the database ---------------------------------------------------------------------------------------


def test_a_marked_send_that_the_database_knows_holds_nothing(task: ProviderTask) -> None:
    epoch.mark(slot=1, task_id=task.pk)
    assert epoch.check(now=NOW)
    assert not Hold.objects.exists()


def test_a_marked_send_that_the_database_has_forgotten_holds_all_sends() -> None:
    epoch.mark(slot=1, task_id=uuid.uuid4())
    for _ in range(2):
        assert not epoch.check(now=NOW)
    assert [hold.kind for hold in Hold.objects.all()] == [Hold.Kind.RESTORE]


def test_without_marks_nothing_is_held() -> None:
    assert epoch.check(now=NOW)
