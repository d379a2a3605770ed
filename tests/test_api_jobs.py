"""What programs read and do: jobs, pages, results by link, cancelling, estimates, states, budget, event streams."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import LazySettings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connections
from django.test import AsyncClient, Client

from jobs import links, live
from jobs.api import estimates, reading
from jobs.api.estimates import Usual
from jobs.api.threads import THREADS, in_few_threads
from jobs.clock import clock
from jobs.live import END
from jobs.models import Hold, Job, JobEvent
from jobs.states import JobState
from tests import api_calls, factories

database = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_kept(settings: LazySettings, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    estimates.forget()


def _png(size: int = 64) -> SimpleUploadedFile:
    file = io.BytesIO()
    factories.picture(size=size).save(file, "PNG")
    return SimpleUploadedFile("a.png", file.getvalue(), content_type="image/png")


# --- creating ---------------------------------------------------------------------------------------------------------


@database
def test_a_job_is_what_was_asked_for_and_its_timeline_names_the_program() -> None:
    other = factories.target("other")
    answer = api_calls.create(
        api_calls.caller(), " A  bicycle\r\n", target=factories.target().name, fallbacks=[other.name], reference="B-1",
        priority=7, params={"size": "1:1"}, callback_url="https://shop.example/hook",
    )  # fmt: skip
    assert answer.status_code == 202
    job = Job.objects.get(pk=answer.json()["id"])
    assert (job.prompt, job.reference, job.priority, job.params) == ("A  bicycle", "B-1", 7, {"size": "1:1"})  # fmt: skip
    assert job.route == [factories.target().pk, other.pk]
    assert job.callback_url == "https://shop.example/hook"
    assert job.created_by is None
    created = JobEvent.objects.get(job=job, kind="created")
    assert created.data["by"].startswith("site (desk_")


@database
def test_a_form_may_bring_photos_and_a_bad_one_is_told_of_by_its_place() -> None:
    client = api_calls.caller()
    good = {"prompt": "x", "priority": "5", "params": '{"a": 1}', "photos": [_png(), _png(80)]}
    answer = client.post("/api/v1/jobs", good)
    assert answer.status_code == 202, answer.content
    job = Job.objects.get()
    assert (job.priority, job.params, job.photos.count()) == (5, {"a": 1}, 2)
    for body, field in (
        ({"prompt": "x", "photos": [_png(), SimpleUploadedFile("b.png", b"nonsense")]}, "photos.1"),
        ({"prompt": "x", "picture": _png()}, "picture"),
        ({"prompt": "x", "photos": [_png() for _n in range(9)]}, "photos"),
        ({"prompt": "x", "params": "{"}, "params"),
        ({"prompt": "x", "priority": "much"}, "priority"),
    ):
        answer = client.post("/api/v1/jobs", body)
        assert answer.status_code == 422
        assert [one["field"] for one in answer.json()["errors"]] == [field]
    assert Job.objects.count() == 1


@database
def test_a_batch_is_made_as_a_whole_with_each_jobs_photos() -> None:
    client = api_calls.caller()
    jobs: list[dict[str, Any]] = [{"prompt": "a", "photos": ["a.png"]}, {"prompt": "b"}]
    asked = {"label": "Spring", "jobs": jobs, "callback_url": "https://shop.example/all"}
    answer = client.post("/api/v1/batches", {"batch": json.dumps(asked), "photos": _png()})
    told = answer.json()
    assert (answer.status_code, told["total"], told["counts"]["pending"]) == (202, 2, 2)
    first, second = Job.objects.order_by("pk")
    assert (first.photos.count(), second.photos.count()) == (1, 0)
    assert first.batch is not None
    assert (first.batch.label, first.batch.callback_url) == ("Spring", "https://shop.example/all")
    assert {one["id"] for one in client.get(told["jobs"]).json()["jobs"]} == {first.pk, second.pk}
    jobs[0]["photos"] = ["b.png"]
    answer = client.post("/api/v1/batches", {"batch": json.dumps(asked), "photos": _png()})
    assert {one["field"] for one in answer.json()["errors"]} == {"photos", "jobs.0.photos.0"}


@database
def test_a_batchs_target_is_for_jobs_that_name_none() -> None:
    one, other = factories.target("one"), factories.target("other")
    asked = {"target": one.name, "jobs": [{"prompt": "a"}, {"prompt": "b", "target": other.name}]}
    answer = api_calls.caller().post("/api/v1/batches", asked, content_type="application/json")
    assert answer.status_code == 202
    assert list(Job.objects.order_by("pk").values_list("target__model", flat=True)) == ["one", "other"]  # fmt: skip


# --- reading ----------------------------------------------------------------------------------------------------------


@database
def test_pages_follow_each_other_to_the_end() -> None:
    client, now = api_calls.caller(), clock.now()
    made = [factories.job(now, reference=f"r{n}").pk for n in range(7)]
    url, seen = "/api/v1/jobs?limit=3", []
    while url:
        page = client.get(url).json()
        assert len(page["jobs"]) <= 3
        seen += [one["id"] for one in page["jobs"]]
        url = page["older"]
    assert seen == made[::-1]
    assert [one["id"] for one in client.get("/api/v1/jobs?reference=r3").json()["jobs"]] == [
        made[3]
    ]
    assert client.get("/api/v1/jobs?state=failed").json()["jobs"] == []
    for bad in ("state=odd", "limit=0", "limit=201", "older_than=x", "reference=%00", "batch=0"):
        assert client.get(f"/api/v1/jobs?{bad}").status_code == 422, bad


@database
def test_a_list_costs_the_same_however_long_it_is(django_assert_max_num_queries: Any) -> None:
    client, now = api_calls.caller(), clock.now()
    for _n in range(12):
        factories.job(now)
        factories.done(now)
    client.get("/api/v1/jobs")
    with django_assert_max_num_queries(18):
        assert len(client.get("/api/v1/jobs").json()["jobs"]) == 24


@database
def test_a_job_tells_why_it_waits_and_what_it_has_cost() -> None:
    client, now = api_calls.caller(), clock.now()
    done, waiting = factories.done(now), factories.job(now)
    told = client.get(f"/api/v1/jobs/{done.pk}").json()
    assert (told["state"], told["cost"]) == ("succeeded", [{"currency": "RUB", "charged": "7.84", "possible": "0.00"}])  # fmt: skip
    assert told["result"] == f"/api/v1/jobs/{done.pk}/result"
    sent = factories.job(now, JobState.ACTIVE)
    factories.accepted(sent, now)
    told = client.get(f"/api/v1/jobs/{sent.pk}").json()
    assert (told["phase"], told["cost"][0]["possible"], told["result"]) == ("at_provider", "8.00", None)  # fmt: skip
    Hold.objects.create(kind="red_button", set_at=now, reason="prices")
    told = client.get(f"/api/v1/jobs/{waiting.pk}").json()
    assert "held" in told["waiting"]["why"]
    assert told["estimate"] is None


@database
def test_a_result_is_a_redirect_to_a_link_that_needs_no_token_and_ends() -> None:
    client, now = api_calls.caller(), clock.now()
    done = factories.done(now)
    answer = client.get(f"/api/v1/jobs/{done.pk}/result")
    assert (answer.status_code, answer.headers["Cache-Control"]) == (302, "no-store")
    link = answer.headers["Location"]
    file = Client().get(link)
    assert (file.status_code, file.headers["Content-Type"]) == (200, "image/png")
    assert b"".join(file.streaming_content)[:4] == b"\x89PNG"  # type: ignore[attr-defined]
    assert Client().get(link[:-1] + ("A" if link[-1] != "A" else "B")).status_code == 404
    assert done.delivered_id is not None
    old = links.result_link(done.delivered_id, now=now - timedelta(hours=1), lasts_s=reading.RESULT_LINK_S)  # fmt: skip
    assert Client().get(old).status_code == 410
    longer = link.rpartition("/")[2].split(".")
    longer[1] = str(int(longer[1]) + 3600)
    assert Client().get(f"/api/v1/files/{'.'.join(longer)}").status_code == 404


@database
def test_without_a_result_there_is_none_and_while_it_is_made_when_to_ask_again() -> None:
    client, now = api_calls.caller(), clock.now()
    for job, wait in ((factories.job(now), "10"), (factories.job(now, JobState.FAILED), None)):
        answer = client.get(f"/api/v1/jobs/{job.pk}/result")
        assert (answer.status_code, answer.json()["code"]) == (409, "no_result")
        assert answer.headers.get("Retry-After") == wait


@database
def test_cancelling_twice_is_once_and_what_is_over_stays_over() -> None:
    client, now = api_calls.caller(), clock.now()
    job, done = factories.job(now), factories.done(now)
    for _n in range(2):
        answer = client.post(f"/api/v1/jobs/{job.pk}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert JobEvent.objects.filter(job=job, kind="cancelled").count() == 1
    assert "site" in JobEvent.objects.get(job=job, kind="cancelled").data["reason"]
    answer = client.post(f"/api/v1/jobs/{done.pk}/cancel")
    assert (answer.status_code, answer.json()["code"], answer.json()["state"]) == (409, "ended", "succeeded")  # fmt: skip


@database
def test_cancelling_a_batch_leaves_what_is_under_way() -> None:
    client = api_calls.caller()
    asked = {"jobs": [{"prompt": "a"}, {"prompt": "b"}]}
    batch = client.post("/api/v1/batches", asked, content_type="application/json").json()
    sent = Job.objects.order_by("pk")[0]
    Job.objects.filter(pk=sent.pk).update(state=JobState.ACTIVE)
    for _n in range(2):
        told = client.post(f"/api/v1/batches/{batch['id']}/cancel").json()
        assert (told["counts"]["cancelled"], told["counts"]["active"], told["done"]) == (1, 1, False)  # fmt: skip


@database
def test_states_and_budget_are_the_desks_own() -> None:
    now = clock.now()
    tenant = factories.tenant("shop", daily_limit=Decimal(100))
    client = api_calls.caller(tenant)
    factories.done(now, tenant=tenant)
    told = client.get("/api/v1/budget").json()
    assert (told["tenant"], told["limits"]["day"]["charged"], told["limits"]["day"]["left"]) == ("shop", "7.84", "92.16")  # fmt: skip
    factories.target("closed", enabled=False)
    told = client.get("/api/v1/providers").json()
    assert told["held"] is False
    assert {one["target"]: one["state"] for one in told["targets"]} == {f"polza:{factories.MODEL}": "available"}  # fmt: skip


# --- estimates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low_s", "high_s", "told"),
    [
        (0.2, 0.9, "usually 1 second"),
        (12, 41.5, "usually 12–42 seconds"),
        (185, 350, "usually 3–6 minutes"),
        (20, 118, "usually 1–2 minutes"),
        (61, 119.9, "usually 1–2 minutes"),
        (120, 120, "usually 2 minutes"),
    ],
)
def test_what_is_usual_is_told_in_whole_units(low_s: float, high_s: float, told: str) -> None:
    assert estimates.words(Usual(low_s, high_s, high_s)) == told


@database
def test_an_estimate_comes_from_the_targets_own_history_and_the_jobs_ahead(settings: LazySettings) -> None:  # fmt: skip
    settings.WORKER_CONCURRENCY = 2
    client, now = api_calls.caller(), clock.now()
    assert api_calls.create(client).json()["estimate"] is None
    for _n in range(estimates.ENOUGH):
        factories.done(now)  # 43 s each
    estimates.forget()
    Job.objects.pending().update(state=JobState.CANCELLED, finished_at=now)
    alone = api_calls.create(client).json()
    assert alone["estimate"]["usually"] == "usually 43 seconds"
    starts = datetime.fromisoformat(alone["estimate"]["starts_at"])
    assert abs((starts - now).total_seconds()) < 5
    for _n in range(3):
        api_calls.create(client)
    last = api_calls.create(client).json()["estimate"]
    behind = datetime.fromisoformat(last["starts_at"]) - datetime.fromisoformat(alone["created_at"])
    assert 86 <= behind.total_seconds() < 91  # four ahead, two at a time
    ends = datetime.fromisoformat(last["ends_to"]) - datetime.fromisoformat(last["starts_at"])
    assert ends.total_seconds() == pytest.approx(43, abs=1)


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def _streams(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(live, "EVERY_S", 0.02)
    yield
    await sync_to_async(connections.close_all)()


@pytest.mark.usefixtures("_streams")
@pytest.mark.django_db(transaction=True)
async def test_a_jobs_stream_tells_each_change_until_it_ends() -> None:
    @sync_to_async
    def made() -> tuple[int, str]:
        return factories.job(clock.now()).pk, api_calls.token().text

    @sync_to_async
    def end(pk: int) -> None:
        Job.objects.filter(pk=pk).update(state=JobState.FAILED, finished_at=clock.now())

    pk, text = await made()
    headers = {"Authorization": f"Bearer {text}"}
    answer = await AsyncClient().get(f"/api/v1/jobs/{pk}/events", headers=headers)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/event-stream")
    states: list[str] = []
    async with asyncio.timeout(20):
        async for message in answer.streaming_content:  # type: ignore[attr-defined]
            if message.startswith(b"data: "):
                told = json.loads(message.removeprefix(b"data: "))
                states.append(told["state"])
                if states == ["pending"]:
                    await end(pk)
            if message == END:
                break
    assert states == ["pending", "failed"]


async def test_requests_of_the_api_share_a_few_threads_and_others_are_left_alone() -> None:
    seen: dict[str, set[str]] = {"/api/v1/jobs": set(), "/admin/": set()}

    async def application(scope: Any, _receive: Any, _send: Any) -> None:
        thread = await sync_to_async(threading.current_thread)()
        seen[scope["path"]].add(thread.name)
        await asyncio.sleep(0.01)

    call = in_few_threads(application)
    await asyncio.gather(*(call({"type": "http", "path": "/api/v1/jobs"}, None, None) for _n in range(60)))  # fmt: skip
    await call({"type": "http", "path": "/admin/"}, None, None)
    assert {name.split("_")[0] for name in seen["/api/v1/jobs"]} == {f"api{n}" for n in range(THREADS)}  # fmt: skip
    assert not any(name.startswith("api") for name in seen["/admin/"])
