"""Wherever a lane is killed, and whatever the provider does to its POST: nothing is paid twice, nothing paid is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import transaction
from pytest_django import Settings

from jobs.models import Case, ProviderTask
from jobs.pictures import PictureProcess
from jobs.states import JobState
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


def survives_every_kill(make: Make, fault: str = "") -> int:
    """Kills a lane before and after everything it does; the number of kills."""
    points = counted(make, fault)
    wrong: list[str] = []
    for number in sorted(points.effective):
        for after in (False, True):
            wrong += killed_at(make, fault, number, after=after, name=points.names[number])
    assert wrong == []
    return 2 * len(points.effective)


def test_no_kill_pays_twice_or_loses_a_paid_picture(make: Make) -> None:
    assert survives_every_kill(make) > 40
