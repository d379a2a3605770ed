"""Where a job's time went: jobs/course.py, and the strip on a job's page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from jobs import course
from jobs.clock import clock
from jobs.course import Stretch
from jobs.roles import Role
from jobs.states import JobState, Phase
from tests import factories

BEGIN = datetime(2026, 5, 4, 12, tzinfo=UTC)
DEADLINE = timedelta(seconds=900)


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Sent:
    created_at: datetime = BEGIN
    armed_at: datetime | None = None
    accepted_at: datetime | None = None
    refused_at: datetime | None = None
    unsent_at: datetime | None = None
    lost_at: datetime | None = None
    absent_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    receipt_final_at: datetime | None = None
    stored_at: datetime | None = None


def sent(**seconds: float) -> Sent:
    return Sent(**{f"{name}_at": after(value) for name, value in seconds.items()})


def drawn(*sends: Sent, state: JobState = JobState.SUCCEEDED, finished: float | None = None, now: float = 10_000, by_person: bool = False) -> list[Stretch]:  # fmt: skip
    return course.course(
        sends, state=state, created_at=BEGIN, finished_at=None if finished is None else after(finished),
        by_person=by_person, deadline=DEADLINE, now=after(now),
    )  # fmt: skip


def told(found: list[Stretch]) -> list[tuple[str, float, int]]:
    return [(one.phase.value, one.length.total_seconds(), one.send) for one in found]


def test_a_job_that_went_well() -> None:
    one = sent(created=5, armed=5, accepted=7, completed=67, stored=70)
    assert told(drawn(one, finished=70)) == [
        ("waiting", 5, 0), ("sending", 2, 1), ("at_provider", 60, 1), ("fetching", 3, 1)
    ]  # fmt: skip


def test_a_refusal_then_a_wait_then_another_send() -> None:
    first = sent(created=1, armed=1, refused=2)
    second = sent(created=12, armed=12, accepted=13, completed=20, stored=21)
    assert told(drawn(first, second, finished=21)) == [
        ("waiting", 1, 0), ("sending", 1, 1), ("waiting", 10, 0), ("sending", 1, 2), ("at_provider", 7, 2),
        ("fetching", 1, 2),
    ]  # fmt: skip


def test_a_lost_answer_is_looked_for_until_a_person_decides() -> None:
    lost = sent(created=0, armed=0, lost=30)
    found = drawn(lost, state=JobState.MANUAL, now=100)
    assert told(found) == [("sending", 30, 1), ("looking", 70, 1)]
    assert found[-1].open
    assert told(drawn(sent(created=0, armed=0, lost=30, absent=60), state=JobState.FAILED, finished=90, by_person=True)) == [
        ("sending", 30, 1), ("looking", 30, 1), ("manual", 30, 0)
    ]  # fmt: skip


def test_what_takes_longer_than_the_deadline_is_late() -> None:
    one = sent(created=0, armed=0, accepted=2)
    assert told(drawn(one, state=JobState.ACTIVE, now=1000)) == [
        ("sending", 2, 1), ("at_provider", 898, 1), ("late", 100, 1)
    ]  # fmt: skip


def test_a_failure_is_asked_what_it_cost() -> None:
    one = sent(created=0, armed=0, accepted=1, failed=20, receipt_final=80)
    assert told(drawn(one, state=JobState.FAILED, finished=80))[-1] == ("checking_cost", 60, 1)


def test_a_job_without_a_send_waits() -> None:
    assert told(drawn(state=JobState.PENDING, now=50)) == [("waiting", 50, 0)]
    assert drawn(state=JobState.PENDING, now=0) == []


moments = st.none() | st.floats(0, 5000).map(after)
sends = st.builds(
    Sent, created_at=st.floats(0, 5000).map(after),
    **{name: moments for name in Sent.__dataclass_fields__ if name != "created_at"},
)  # fmt: skip


@given(
    st.lists(sends, max_size=4), st.sampled_from(list(JobState)), st.none() | st.floats(0, 6000), st.booleans()
)  # fmt: skip
def test_the_stretches_follow_one_another_and_make_up_the_whole(
    many: list[Sent], state: JobState, finished: float | None, by_person: bool
) -> None:
    """Whatever the facts are, also such as no provider gives: no gap, no overlap, nothing negative."""
    found = drawn(*many, state=state, finished=finished, now=6000, by_person=by_person)
    end = after(6000 if finished is None else finished)
    at = BEGIN
    for one in found:
        assert one.begin == at
        assert one.end > one.begin
        at = one.end
    assert at == end or (not found and end == BEGIN)
    assert [one.open for one in found[:-1]] == [False] * len(found[:-1])
    whole = end - BEGIN
    assert all(1 <= course.weight(one, whole) <= course.MOST_WEIGHT for one in found)


@pytest.mark.django_db
def test_a_jobs_page_shows_where_the_time_went(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    job = factories.done(clock.now())
    by = Client()
    by.force_login(factories.staff(Role.VIEWER))
    page = by.get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    assert 'class="course"' in page
    for phase in (Phase.SENDING, Phase.AT_PROVIDER, Phase.FETCHING):
        assert str(phase.value).replace("_", " ").replace("at provider", "at the provider") in page
