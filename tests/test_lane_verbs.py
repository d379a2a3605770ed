"""What an owner may ask of a lane: to end and begin anew, to stay out of work, to come back. Nothing is sent by one that ends."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ

from jobs import bell, lanes
from jobs.clock import clock
from jobs.engine import Engine
from jobs.lifecycle import lanes as verbs
from jobs.lifecycle.errors import Refused
from jobs.models import Job, Lane
from jobs.pictures import PictureProcess
from jobs.roles import Role
from jobs.states import JobState
from jobs.trail import Wanted
from jobs.trail import page as trail_page
from providers.http import Transport
from tests import factories
from tests.switchboard import _TLS, FIRST, Switchboard, _Roads

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _two_lanes(settings: Any, tmp_path: Path) -> None:
    settings.WORKER_LANES = 2
    settings.SPOOL_DIR = tmp_path
    lanes.ensure_slots(2)


def take() -> lanes.Held | None:
    return lanes.take(host="here", pid=1, version="v", now=clock.now())


def lane(slot: int) -> Lane:
    return Lane.objects.get(slot=slot)


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_a_run_that_is_asked_to_end_hears_it_and_its_slot_is_free_for_the_next() -> None:
    held = take()
    assert held is not None
    assert not lanes.asked_to_end(run_id=held.run_id)
    verbs.restart(slot=held.slot, now=clock.now())
    assert lanes.asked_to_end(run_id=held.run_id)
    with pytest.raises(Refused, match="ending already"):
        verbs.restart(slot=held.slot, now=clock.now())
    lanes.free(run_id=held.run_id)
    again = take()
    assert again is not None
    assert again.slot == held.slot
    assert not lanes.asked_to_end(run_id=again.run_id), "the next run is not asked"


def test_a_drained_slot_is_taken_by_nobody_until_it_is_put_back() -> None:
    held = take()
    assert held is not None
    verbs.drain(slot=held.slot, now=clock.now())
    assert lanes.asked_to_end(run_id=held.run_id)
    lanes.free(run_id=held.run_id)
    other = take()
    assert other is not None
    assert other.slot != held.slot
    assert take() is None
    verbs.reopen(slot=held.slot, now=clock.now())
    back = take()
    assert back is not None
    assert back.slot == held.slot


def test_the_last_lane_at_work_stays_there() -> None:
    Lane.objects.create(slot=3)  # beyond the setting: no run takes it
    verbs.drain(slot=1, now=clock.now())
    with pytest.raises(Refused, match="last lane at work"):
        verbs.drain(slot=2, now=clock.now())
    with pytest.raises(Refused, match="fewer of them"):
        verbs.drain(slot=3, now=clock.now())
    with pytest.raises(Refused, match="out of work already"):
        verbs.drain(slot=1, now=clock.now())
    with pytest.raises(Refused, match="not running"):
        verbs.restart(slot=2, now=clock.now())
    with pytest.raises(Refused, match="at work"):
        verbs.reopen(slot=2, now=clock.now())


def test_no_bell_is_hung_for_a_slot_that_is_out_of_work() -> None:
    verbs.drain(slot=2, now=clock.now())
    OrmQ.objects.all().delete()
    assert bell.start_missing_lanes() == 1
    verbs.reopen(slot=2, now=clock.now())
    assert OrmQ.objects.count() == 2


# --- the engine -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.mark.parametrize("asked", [False, True])
def test_a_lane_that_is_asked_to_end_sends_nothing_and_ends_at_once(
    settings: Any, tmp_path: Path, pictures: PictureProcess, asked: bool
) -> None:
    board = Switchboard(settings, tmp_path, pictures)
    board.order(3, route=[board.targets[FIRST]])
    held = lanes.take(host="desk-1", pid=1, version="", now=board.clock.now())
    assert held is not None
    if asked:
        verbs.restart(slot=held.slot, now=board.clock.now())

    async def run() -> None:
        roads = _Roads(board.worlds)
        async with Transport(paid=roads, reads=roads, verify=_TLS) as transport:
            engine = Engine(board._lane(held, transport), asyncio.Event())
            ticking = asyncio.create_task(tick())
            await engine.run(board.clock.boot() + 20.0)
            ticking.cancel()
            assert engine.stop.is_set() is asked

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.1)
            board.clock.advance(1.0)

    begin = board.clock.boot()
    async_to_sync(run)()
    took_s = board.clock.boot() - begin
    assert len(board.posts(FIRST)) == (0 if asked else 3)
    waiting = Job.objects.filter(state=JobState.PENDING).count()
    assert waiting == (3 if asked else 0)
    if asked:
        assert took_s < 15, "it did not wait for the end of its slice"


# --- the page ---------------------------------------------------------------------------------------------------------


def _client(role: Role) -> Client:
    client = Client()
    client.force_login(factories.staff(role, name=f"{role.value}-lane"))
    return client


def test_an_owner_drains_from_the_dashboard_and_the_trail_keeps_why() -> None:
    client = _client(Role.OWNER)
    address = reverse("admin:jobs_lane_do", args=[2, "drain"])
    asked = client.get(f"{address}?next=/admin/")
    assert "Take this lane out of work?" in asked.content.decode()
    assert lane(2).closed_at is None, "looking changes nothing"
    answer = client.post(address, {"next": "/admin/", "reason": "a new disk"})
    assert (answer.status_code, answer["Location"]) == (302, "/admin/")
    assert lane(2).closed_at is not None
    text = client.get(reverse("admin:index")).content.decode()
    assert "out of work" in text
    assert reverse("admin:jobs_lane_do", args=[2, "reopen"]) in text
    [deed] = trail_page(Wanted(), most=10)[0]
    assert (deed.by, deed.reason) == ("Owner-lane", "a new disk")
    assert "drain" in deed.name
    assert "a new disk" in client.get(reverse("admin:desk_trail")).content.decode()


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_others_see_lanes_and_may_not_touch_them(role: Role) -> None:
    Lane.objects.filter(slot=1).update(run_id=uuid.uuid4(), heartbeat_at=clock.now())
    client = _client(role)
    page = client.get(reverse("admin:jobs_lane_change", args=[1]))
    assert "alive" in page.content.decode()
    for verb in ("drain", "restart", "reopen"):
        address = reverse("admin:jobs_lane_do", args=[1, verb])
        assert client.post(address, {"reason": ""}).status_code == 403
        assert address not in page.content.decode()
    assert not lane(1).draining
    assert lane(1).closed_at is None


def test_a_desk_whose_lanes_are_all_out_of_work_says_so(settings: Any) -> None:
    verbs.drain(slot=1, now=clock.now())
    settings.WORKER_LANES = 1  # set lower since
    assert (
        "Every lane is out of work"
        in _client(Role.VIEWER).get(reverse("admin:index")).content.decode()
    )


def test_a_lane_of_other_code_is_told_apart(settings: Any) -> None:
    settings.RELEASE = "v2"
    Lane.objects.filter(slot=1).update(run_id=uuid.uuid4(), heartbeat_at=clock.now(), version="v1")
    client = _client(Role.VIEWER)
    assert "not the code of these pages" in client.get(reverse("admin:index")).content.decode()
    assert "other code" in client.get(reverse("admin:jobs_lane_change", args=[1])).content.decode()
    assert client.get("/admin/jobs/lane/99/change/").status_code == 404
