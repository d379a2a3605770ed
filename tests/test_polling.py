"""When a generation is asked about: jobs/polling.py, and what the stages make of it."""

from __future__ import annotations

import math
import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import latencies, polling
from jobs.clock import clock
from jobs.models import ProviderTask
from jobs.rules import Limits
from jobs.stages import facts
from providers.contract import Accepted, Running
from tests import factories

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
LIMITS = Limits(
    concurrency=10, poll_interval_s=3, late_poll_interval_s=30, poll_deadline_s=900, reconcile_interval_s=30,
    post_deadline_s=30, exposure_prices=20, price_ceiling_factor=1.5,
)  # fmt: skip

long_ones = st.lists(st.floats(1, 3600), min_size=30, max_size=120)


def log_normal(median_s: float, count: int = 300, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.lognormvariate(math.log(median_s), 0.4) for _ in range(count)]


def planned(latencies_s: list[float], floor_s: float = 3) -> polling.Plan:
    made = polling.plan(latencies_s, floor_s=floor_s)
    assert made is not None
    return made


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_too_few_known_generations_make_no_plan() -> None:
    assert polling.plan(log_normal(240, 29), floor_s=3) is None
    assert polling.plan(log_normal(240, 30), floor_s=3) is not None


@pytest.mark.parametrize("median_s", [0.5, 3, 10, 60])
def test_short_generations_are_asked_about_as_ever(median_s: float) -> None:
    """Few polls are saved there, and each second of delay is felt."""
    assert polling.plan(log_normal(median_s), floor_s=3) is None


@given(long_ones, st.floats(0, 10_000), st.floats(0.05, 60))
def test_an_interval_is_within_floor_and_cap(known: list[float], age: float, floor: float) -> None:
    made = polling.plan(known, floor_s=floor)
    if made is not None:
        assert floor <= made.next_s(age) <= max(polling.CAP_S, floor)


@given(long_ones)
def test_a_plan_is_the_same_whatever_the_order_it_is_told_in(known: list[float]) -> None:
    assert polling.plan(known, floor_s=3) == polling.plan(known[::-1], floor_s=3)


def test_it_asks_seldom_at_first_often_in_the_middle_and_seldom_of_stragglers() -> None:
    made = planned(log_normal(240))
    assert made.next_s(0) == 30
    assert made.next_s(250) < 12
    assert made.next_s(3000) == 30


def test_equal_latencies_make_a_plan_that_waits_for_them() -> None:
    made = planned([600.0] * 50)
    assert made.next_s(0) == 30
    assert made.next_s(598) < made.next_s(300) == 30


def test_what_it_promises_is_what_comes_out() -> None:
    """Of generations it has not seen: the requests and the delay that the panel shows."""
    made = planned(log_normal(240))
    rng = random.Random(7)
    polls, delay_s, many = 0, 0.0, 4000
    for latency_s in log_normal(240, many, seed=8):
        age_s = 0.0
        while age_s < latency_s:
            age_s += polling.jittered(made.next_s(age_s), part=rng.random())
            polls += 1
        delay_s += age_s - latency_s
    assert polls / many == pytest.approx(made.polls, rel=0.15)
    assert delay_s / many == pytest.approx(made.delay_s, rel=0.15)


def test_the_jitter_spreads_to_both_sides() -> None:
    assert [polling.jittered(10, part=part) for part in (0, 0.5, 1)] == pytest.approx([9, 10, 11])


# --- the stages -------------------------------------------------------------------------------------------------------


def _task(**facts_of_it: Any) -> ProviderTask:
    task = ProviderTask(id=uuid.UUID(int=5), **facts_of_it)
    task.armed_at = task.armed_at or NOW
    return task


def _due_s(task: ProviderTask, at: datetime, plan: polling.Plan | None) -> float:
    fact = facts.of_poll(task, Running("processing"), at=at, limits=LIMITS, kept={}, plan=plan)
    assert fact.next_poll_at is not None
    return (fact.next_poll_at - at).total_seconds()


def test_the_first_poll_and_those_after_it_follow_the_plan() -> None:
    made = planned(log_normal(240))
    first = facts.of_submit(
        uuid.UUID(int=5), Accepted("gen_1"), at=NOW, limits=LIMITS, kept={}, plan=made
    )
    assert first.next_poll_at is not None
    assert 27 <= (first.next_poll_at - NOW).total_seconds() <= 33
    at = NOW + timedelta(seconds=250)
    task = _task(accepted_at=NOW, next_poll_at=at, polls=9)
    assert _due_s(task, at, made) == pytest.approx(made.next_s(250), rel=0.11)


def test_without_a_plan_every_few_seconds_and_when_late_as_ever() -> None:
    made = planned(log_normal(240))
    at = NOW + timedelta(seconds=250)
    assert _due_s(_task(accepted_at=NOW, next_poll_at=at), at, None) == 3
    late = NOW + timedelta(seconds=901)
    assert _due_s(_task(accepted_at=NOW, next_poll_at=late), late, made) == 30


def test_tasks_that_began_together_are_not_asked_about_together() -> None:
    made = planned(log_normal(240))
    at = NOW + timedelta(seconds=100)
    dues = set()
    for number in range(20):
        task = _task(accepted_at=NOW, next_poll_at=at)
        task.pk = uuid.UUID(int=number)
        dues.add(_due_s(task, at, made))
    assert len(dues) == 20


# --- what it is made of -----------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_target_with_enough_generations_has_a_plan_of_its_own(settings: Any) -> None:
    now = clock.now()
    for latency_s in log_normal(240, 40):
        task = factories.done(now).tasks.get()
        ProviderTask.objects.filter(pk=task.pk).update(
            accepted_at=now - timedelta(seconds=latency_s), completed_at=now
        )
    plans = latencies.plans()
    assert set(plans) == {task.target_id}
    assert plans[task.target_id].samples == 40
    assert plans[task.target_id].floor_s == settings.POLL_INTERVAL_SEC
    settings.POLL_PLAN = False
    assert latencies.plans() == {}


@pytest.mark.django_db
def test_what_has_not_ended_tells_nothing() -> None:
    now = clock.now()
    factories.accepted(factories.job(now), now)
    assert latencies.newest() == {}
