"""A request made once, however often and however closely together it is asked."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, transaction
from django.test import Client

from jobs.api import creating
from jobs.api.problems import Code, Problem
from jobs.lifecycle.create import NewJob
from jobs.lifecycle.keyed import How, KeyReusedError, Order, Placed, place
from jobs.models import IdempotencyKey, Job
from jobs.states import JobState
from tests import api_calls, factories
from tests.two import COMMIT, Point, Race, Two, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def order(key: str = "k", *, prompt: str = "x", digest: str = "", **more: Any) -> Order:
    job = NewJob(prompt=prompt, route=[factories.target()], callback_url=more.pop("url", ""))
    values = {"jobs": [job], "digest": digest or prompt, "key": key, "alone": True, **more}
    return Order(tenant=values.pop("tenant", None) or factories.tenant(), program="site", **values)


def admit() -> None:
    """Whatever is asked for."""


def refuse() -> None:
    raise Problem(Code.QUEUE_FULL)


def placed(one: Order, now: datetime = NOW) -> Placed:
    return place(replace(one, token=uuid.uuid4()), admit=admit, now=now)


# --- one after another ------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_same_key_and_body_give_the_same_job_and_another_body_none() -> None:
    first, again = placed(order()), placed(order())
    assert (first.how, again.how) == (How.CREATED, How.REPEATED)
    assert first.job == again.job
    with pytest.raises(KeyReusedError):
        placed(order(prompt="y"))
    assert placed(order("other")).job != first.job
    assert placed(order(tenant=factories.tenant("other"))).job != first.job
    assert Job.objects.count() == 3


@pytest.mark.django_db
def test_a_refusal_leaves_the_key_as_it_was() -> None:
    with pytest.raises(Problem):
        place(order(), admit=refuse, now=NOW)
    assert not IdempotencyKey.objects.exists()
    assert placed(order()).how is How.CREATED
    # What is made already is told of, whatever the situation is by now.
    assert place(order(), admit=refuse, now=NOW).how is How.REPEATED


@pytest.mark.django_db
@pytest.mark.parametrize("state", list(JobState))
def test_a_key_is_kept_for_a_day_and_beyond_a_live_job(state: JobState) -> None:
    first = placed(order())
    assert first.job is not None
    ended = state in {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}
    Job.objects.filter(pk=first.job.pk).update(
        state=state, finished_at=NOW if ended else None, decided_at=NOW
    )
    assert placed(order(), NOW + timedelta(hours=23, minutes=59)).how is How.REPEATED
    later = placed(order(), NOW + timedelta(hours=24, seconds=1))
    assert later.how is (How.CREATED if ended else How.REPEATED)


@pytest.mark.django_db
def test_a_batchs_key_is_kept_while_any_of_its_jobs_is_live() -> None:
    two = [NewJob(prompt=prompt, route=[factories.target()]) for prompt in ("a", "b")]
    asked = order(jobs=two, alone=False)
    first = placed(asked)
    assert first.batch is not None
    one, other = first.batch.jobs.order_by("pk")
    ended = {"state": JobState.CANCELLED, "finished_at": NOW}
    Job.objects.filter(pk=one.pk).update(**ended)
    late = NOW + timedelta(days=30)
    assert placed(asked, late).batch == first.batch
    Job.objects.filter(pk=other.pk).update(**ended)
    # Looked at an hour later again.
    assert placed(asked, late + timedelta(hours=2)).batch != first.batch


@pytest.mark.django_db
def test_keys_that_are_over_are_forgotten_by_those_that_come_after() -> None:
    for n in range(6):
        placed(order(f"old {n}", prompt=f"old {n}"))
    live = Job.objects.get(prompt="old 5")
    Job.objects.exclude(pk=live.pk).update(state=JobState.CANCELLED, finished_at=NOW)
    later = NOW + timedelta(days=2)
    for n in range(3):
        placed(order(f"new {n}"), later)
    left = set(IdempotencyKey.objects.values_list("key", flat=True))
    assert left == {"old 5", "new 0", "new 1", "new 2"}
    assert IdempotencyKey.objects.get(key="old 5").kept_until > later


@pytest.mark.django_db
def test_joining_takes_a_live_job_that_asks_for_the_same() -> None:
    first = placed(order("")).job
    assert first is not None
    assert placed(order("")).how is How.CREATED  # nobody asked to join
    assert placed(order("", join=True)).job == first
    keyed_join = placed(order("k", join=True))
    assert (keyed_join.how, keyed_join.job) == (How.JOINED, first)
    assert placed(order("k", join=True)).how is How.REPEATED
    assert placed(order("", prompt="y", join=True)).how is How.CREATED
    assert placed(order("", join=True, tenant=factories.tenant("other"))).how is How.CREATED
    assert placed(order("", join=True, url="https://shop.example/")).how is How.CREATED
    Job.objects.update(state=JobState.CANCELLED, finished_at=NOW)
    assert placed(order("", join=True)).how is How.CREATED


# --- at once ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    factories.target()
    factories.tenant()
    with two_connections() as pair:
        yield pair


def _race(two: Two, first: Order, second: Order, *, dies: bool = False, at: Point = COMMIT) -> Race:
    def run(one: Order) -> Any:
        def work() -> Any:
            try:
                return place(one, admit=admit, now=NOW)
            except KeyReusedError:
                return "reused"

        return work

    return two.race(run(first), run(second), dies=dies, at=at)


def test_of_two_with_one_key_the_second_waits_and_gets_the_firsts_job(two: Two) -> None:
    race = _race(two, order(), order())
    assert race.waited
    assert (race.first.value.how, race.second.value.how) == (How.CREATED, How.REPEATED)
    assert race.first.value.job == race.second.value.job
    assert Job.objects.count() == 1


def test_of_two_with_one_key_and_different_bodies_the_second_is_told(two: Two) -> None:
    race = _race(two, order(), order(prompt="y"))
    assert race.second.value == "reused"
    assert Job.objects.get().prompt == "x"


def test_the_second_makes_the_job_where_the_first_dies_before_its_commit(two: Two) -> None:
    race = _race(two, order(), order(), dies=True)
    assert race.first.killed
    assert race.second.value.how is How.CREATED
    assert Job.objects.count() == IdempotencyKey.objects.count() == 1


def test_of_two_that_would_join_the_second_joins_the_first(two: Two) -> None:
    race = _race(two, order("", join=True), order("", join=True))
    assert race.waited
    assert (race.first.value.how, race.second.value.how) == (How.CREATED, How.JOINED)
    assert Job.objects.count() == 1


def test_different_keys_do_not_wait_for_each_other(two: Two) -> None:
    assert not _race(two, order("a"), order("b")).waited


# --- over HTTP --------------------------------------------------------------------------------------------------------


def _batch(client: Client, *, key: str, photo: bytes, name: str = "a.png") -> Any:
    asked = {"jobs": [{"prompt": "b", "photos": [name]}]}
    upload = SimpleUploadedFile(name, photo, content_type="image/png")
    return client.post("/api/v1/batches", {"batch": json.dumps(asked), "photos": upload}, headers={"Idempotency-Key": key})  # fmt: skip


@pytest.mark.django_db
def test_over_http_a_repeat_says_so_whichever_token_it_comes_with() -> None:
    first = api_calls.create(api_calls.caller(), key="k")
    again = api_calls.create(api_calls.caller(), key="k")
    assert first.json()["id"] == again.json()["id"]
    assert (first.status_code, again.status_code) == (202, 202)
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (
        first.headers["Location"]
        == again.headers["Location"]
        == f"/api/v1/jobs/{first.json()['id']}"
    )
    other = api_calls.create(api_calls.caller(), "something else", key="k")
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")
    form = api_calls.caller().post("/api/v1/jobs", {"prompt": "A red bicycle"}, headers={"Idempotency-Key": "k"})  # fmt: skip
    assert form.json()["id"] == first.json()["id"]
    assert api_calls.create(api_calls.caller(), key="no\tkey").status_code == 422


@pytest.mark.django_db
def test_the_bytes_of_photos_belong_to_the_body(settings: LazySettings, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    red, blue = (_png(hue) for hue in (0, 160))
    client = api_calls.caller()
    first = _batch(client, key="k", photo=red)
    assert first.status_code == 202, first.content
    assert _batch(client, key="k", photo=red).json()["id"] == first.json()["id"]
    assert _batch(client, key="k", photo=blue).status_code == 409
    assert Job.objects.get().photos.count() == 1


def _png(hue: int) -> bytes:
    file = io.BytesIO()
    factories.picture(hue, size=64).save(file, "PNG")
    return file.getvalue()


@pytest.mark.django_db
@pytest.mark.parametrize(("reached", "status"), [(True, 202), (False, 503)])
def test_where_the_connection_breaks_at_the_commit_the_rows_decide(
    reached: bool, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an error for a job that exists: `reached` tells whether the server got the COMMIT."""

    @contextmanager
    def breaks() -> Iterator[None]:
        with transaction.atomic():
            yield
            if not reached:
                raise OperationalError("the connection is lost")
        raise OperationalError("the connection is lost")

    client = api_calls.caller()
    monkeypatch.setattr(creating, "transaction", SimpleNamespace(atomic=breaks))
    monkeypatch.setattr(creating, "connection", SimpleNamespace(close=lambda: None))
    answer = api_calls.create(client)
    assert (answer.status_code, Job.objects.count()) == (status, int(reached))
    if reached:
        assert answer.json()["id"] == Job.objects.get().pk
