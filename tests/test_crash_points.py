"""Wherever a lane is killed, and whatever the provider does to its POST: nothing is paid twice, nothing paid is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import transaction
from pytest_django import Settings

from jobs.models import Case
from jobs.pictures import PictureProcess
from jobs.states import CaseKind, JobState
from tests.flow import Desk, Points

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

Make = Callable[..., Desk]


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(settings: Settings, tmp_path: Path, pictures: PictureProcess) -> Make:
    """Makes desks, each with folders of its own."""
    made: list[Desk] = []

    def desk(**world: object) -> Desk:
        made.append(Desk(settings, tmp_path / str(len(made)), pictures, **world))  # type: ignore[arg-type]
        return made[-1]

    return desk


def counted(make: Make, fault: str) -> Points:
    """An undisturbed run: what there is to be killed at."""
    with transaction.atomic():
        desk = make(fault=fault)
        job = desk.job()
        points = desk.live(job)
        assert desk.wrong_with(job) == []
        transaction.set_rollback(True)
    return points


def killed_at(make: Make, fault: str, number: int, *, after: bool, name: str) -> list[str]:
    """What is wrong after a kill at that point and a restart; empty: nothing."""
    with transaction.atomic():
        desk = make(fault=fault)
        job = desk.job()
        first = desk.live(job, Points(crash_at=number, after=after))
        where = f"{fault or 'no fault'}, killed {'after' if after else 'before'} {number} {name}"
        wrong = [] if first.dead and first.names[number] == name else ["it was not killed there"]
        desk.restart()
        desk.live(job)
        wrong += desk.wrong_with(job)
        transaction.set_rollback(True)
    return [f"{where}: {what}" for what in wrong]


FAULTS = {
    # what the provider does to the first POST -> charges the job ends with in the ledger
    "reset_before_read": 1,
    "reset_before_accept": 1,
    "reset_after_accept": 1,
    "cut_after_id": 1,
    "cut_before_id": 1,
    "edge_502": 1,
    "edge_502_after": 1,
}


@pytest.mark.condition("R49", "R54", "R56")
def test_no_kill_pays_twice_or_loses_a_paid_picture(make: Make) -> None:
    points = counted(make, "")
    names = [points.names[number] for number in sorted(points.effective)]
    assert [name for name in names if name[:4] in {"GET ", "POST"}][:1] == ["POST /api/v1"]
    wrong: list[str] = []
    for number in sorted(points.effective):
        for after in (False, True):
            wrong += killed_at(make, "", number, after=after, name=points.names[number])
    assert wrong == []
    assert len(names) >= 15


@pytest.mark.condition("R28")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_the_post_ends_with_one_charge_and_a_picture(make: Make, fault: str) -> None:
    desk = make(fault=fault)
    job = desk.job()
    desk.live(job)
    assert desk.wrong_with(job) == []
    assert job.state == JobState.SUCCEEDED
    assert desk.charged(job).standing == FAULTS[fault]
    assert not Case.objects.filter(job=job, resolved_at__isnull=True).exists()


@pytest.mark.parametrize("fault", ["reset_after_accept", "cut_before_id"])
def test_a_kill_upon_a_fault_pays_once_and_keeps_the_picture(make: Make, fault: str) -> None:
    """Killed at whatever follows the faulty POST, until the send's fate is known."""
    points = counted(make, fault)
    post = points.names.index("POST /api/v1")
    wrong: list[str] = []
    for number in sorted(one for one in points.effective if one >= post)[:4]:
        wrong += killed_at(make, fault, number, after=True, name=points.names[number])
    assert wrong == []


# What becomes of a send that was accepted -> what the job may end as.
FATES = {
    "failed_free": {JobState.FAILED},
    "failed_charged": {JobState.MANUAL},
    "cancelled": {JobState.FAILED, JobState.MANUAL},
    "no_result": {JobState.MANUAL},
    "content_only": {JobState.MANUAL},  # words where a picture was paid for
    "data_b64": {JobState.SUCCEEDED},
    "result_expired=1:1": {JobState.SUCCEEDED},
    "result_truncated=1:1": {JobState.SUCCEEDED},
}


@pytest.mark.share(2)
@pytest.mark.parametrize("fault", FATES)
def test_a_kill_at_the_end_of_a_send_leaves_every_charge_as_a_file_or_a_case(
    make: Make, fault: str
) -> None:
    """Killed after each step from the first poll on, whatever the provider's last word."""
    points = counted(make, fault)
    first = next(number for number, name in enumerate(points.names) if name.startswith("GET "))
    wrong: list[str] = []
    for number in sorted(one for one in points.effective if one >= first)[:4]:
        wrong += killed_at(make, fault, number, after=True, name=points.names[number])
    assert wrong == []
    desk = make(fault=fault)
    job = desk.job()
    desk.live(job)
    assert job.state in FATES[fault]


def test_a_request_taken_up_after_absence_was_concluded_is_found_and_told(make: Make) -> None:
    """The provider makes the first send's picture minutes after its connection broke; by then the second is on its way."""
    desk = make(fault="accept_late=400")
    job = desk.job()
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    desk.clock.advance(4000)
    desk.live(desk.job("goes on"))
    assert desk.charged(job).standing == 2
    assert desk.charged(job).homeless == []
    (case,) = Case.objects.filter(job=job, resolved_at__isnull=True)
    assert case.kind == CaseKind.PAID_TWICE
    assert [task.state for task in job.tasks.order_by("created_at")] == ["stored", "stored"]
