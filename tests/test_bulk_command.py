"""`manage.py bulk`: started by a filter, looked at, watched, stopped; its exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.clock import clock
from jobs.lifecycle import bulk
from jobs.models import BulkRun, Job, JobEvent
from jobs.roles import Role
from jobs.states import JobState
from tests import factories
from tests.test_commands import run

pytestmark = pytest.mark.django_db


def _failed(many: int, **values: Any) -> list[Job]:
    now = clock.now()
    return [factories.job(now, JobState.FAILED, reason="refused_by_all", **values) for _n in range(many)]  # fmt: skip


def _started(*words: str) -> dict[str, Any]:
    code, text = run("bulk", "start", *words, "--json")
    assert code == 0, text
    told: dict[str, Any] = json.loads(text)
    return told


def test_a_filter_chooses_and_the_rest_is_left_alone() -> None:
    _failed(2, reference="VIN-1")
    [other] = _failed(1, reference="B-1")
    told = _started("retry", "--reference", "VIN", "--state", "failed", "--why", "refused_by_all", "--reason", "again")  # fmt: skip
    assert (told["state"], told["done"], told["total"]) == ("done", 2, 2)
    other.refresh_from_db()
    assert other.state == JobState.FAILED
    assert JobEvent.objects.filter(kind="retried", data__reason="again").count() == 2


def test_never_all_jobs_and_never_what_is_not_there() -> None:
    _failed(1)
    assert run("bulk", "start", "retry")[0] == 3
    assert run("bulk", "start", "retry", "--dry-run")[0] == 2
    assert run("bulk", "start", "retry", "--tenant", "nobody")[0] == 2
    assert run("bulk", "start", "retry", "--batch", "99")[0] == 2
    assert run("bulk", "start", "retarget", "--state", "failed", "--target", "polza:none")[0] == 2
    assert run("bulk", "start", "cancel", "--state", "pending")[0] == 3  # nothing matches
    assert run("bulk", "show", "99")[0] == 2
    assert not BulkRun.objects.exists()


def test_a_dry_run_counts_and_changes_nothing() -> None:
    _failed(2)
    lost = factories.job(clock.now(), JobState.FAILED)
    factories.lost(lost, clock.now())
    told = _started("retry", "--state", "failed", "--dry-run")
    assert (told["total"], told["fits"], told["skips"], told["costs"]) == (3, 2, {"possible_charge": 1}, {"RUB": "16"})  # fmt: skip
    assert "may have cost" in run("bulk", "start", "retry", "--state", "failed", "--dry-run")[1]
    assert not BulkRun.objects.exists()


@pytest.mark.parametrize(
    ("words", "became"),
    [
        (["retarget", "--target", "polza:other/model"], "pending"),
        (["manual", "--note", "by us"], "manual"),
        (["resolve", "--outcome", "gave_up", "--note", "told them"], "failed"),
        (["cancel"], "cancelled"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_each_verb_can_be_started(words: list[str], became: str) -> None:
    factories.target("other/model")
    job = factories.job(clock.now())
    assert _started(*words, "--state", "pending")["done"] == 1
    job.refresh_from_db()
    assert job.state == became


def test_whoever_may_not_is_refused_before_anything_is_kept() -> None:
    _failed(1)
    viewer, operator = factories.staff(Role.VIEWER), factories.staff(Role.OPERATOR)
    assert run("bulk", "start", "retry", "--state", "failed", "--as", viewer.username)[0] == 3
    assert not BulkRun.objects.exists()
    assert _started("retry", "--state", "failed", "--as", operator.username)["done"] == 1
    assert BulkRun.objects.get().created_by == operator


def test_a_run_is_listed_watched_and_stopped() -> None:
    _failed(bulk.AT_ONCE + 1)
    told = _started("retry", "--state", "failed")
    assert told["state"] == "open"
    number = str(told["id"])
    assert "waits for a worker" in run("bulk", "show", number)[1]
    viewer = factories.staff(Role.VIEWER)
    assert run("bulk", "abort", number, "--as", viewer.username)[0] == 3
    assert run("bulk", "abort", number)[0] == 0
    assert run("bulk", "abort", number)[0] == 3  # it has ended already
    assert run("bulk", "watch", number)[0] == 4
    assert [one["state"] for one in json.loads(run("bulk", "list", "--json")[1])] == ["aborted"]
    done = _started("retry", "--state", "failed")
    bulk.work(now=clock.now())
    code, text = run("bulk", "watch", str(done["id"]), "--json")
    assert (code, json.loads(text)["done"]) == (0, bulk.AT_ONCE + 1)
