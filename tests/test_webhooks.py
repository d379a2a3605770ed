"""Webhooks in: who is believed, what a call may change (nothing but when we look), and what it costs us at most."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.urls import resolve
from pytest_django import DjangoAssertNumQueries
from pytest_django import Settings as DjangoSettings

from jobs import hook_gate, hooks, webhook_address
from jobs.clock import clock
from jobs.lifecycle import hints
from jobs.lifecycle.record import record
from jobs.models import Case, Job, JobEvent, ProviderTask
from jobs.rules import Limits
from jobs.stages import facts
from jobs.states import JobState
from providers.contract import Accepted, Running
from providers.sandbox.hooks import seal
from tests import factories
from tests.holds.suite import PROJECT
from tests.test_webhook_seals import BODY, KeyServer

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LIMITS = Limits(
    concurrency=10, poll_interval_s=3, late_poll_interval_s=30, poll_deadline_s=900, reconcile_interval_s=30,
    post_deadline_s=30, exposure_prices=20, price_ceiling_factor=1.5,
)  # fmt: skip


# --- addresses and bodies ---------------------------------------------------------------------------------------------


@pytest.fixture
def on(settings: DjangoSettings) -> None:
    settings.WEBHOOKS = frozenset({"fal", "polza"})
    settings.PUBLIC_URL = "http://localhost:8000"


def path_of(provider: str, task_id: uuid.UUID) -> str:
    address = webhook_address.of(provider, task_id)
    assert address is not None
    return address.removeprefix("http://localhost:8000")


@pytest.mark.usefixtures("on")
def test_an_address_leads_to_the_view_and_its_nonce_is_of_one_task_and_provider(
    settings: DjangoSettings,
) -> None:
    one, two = uuid.uuid4(), uuid.uuid4()
    found = resolve(path_of("fal", one))
    assert found.func is hooks.receive
    nonce = found.kwargs.pop("nonce")
    assert found.kwargs == {"provider": "fal", "task_id": one}
    assert len(nonce) == 43
    assert webhook_address.is_ours("fal", one, nonce)
    for provider, task_id, other in (
        ("fal", two, nonce), ("polza", one, nonce), ("fal", one, nonce[:-1]), ("fal", one, ""), ("fal", one, "ä" * 43),
    ):  # fmt: skip
        assert not webhook_address.is_ours(provider, task_id, other)
    settings.SECRET_KEY += "x"
    assert not webhook_address.is_ours("fal", one, nonce)


@pytest.mark.usefixtures("on")
def test_where_webhooks_are_off_none_is_asked_for_and_none_heard(settings: DjangoSettings) -> None:
    task_id = uuid.uuid4()
    nonce = path_of("fal", task_id).split("/")[-2]
    assert webhook_address.is_ours("fal", task_id, nonce)
    settings.WEBHOOKS = frozenset()
    assert webhook_address.of("fal", task_id) is None
    assert not webhook_address.is_ours("fal", task_id, nonce)


class Wire:
    """One request to an ASGI application behind `gated`; `pieces` are its body."""

    def __init__(self, *pieces: bytes, told: int | None = None, path: str = "/hooks/x/") -> None:
        self.pieces, self.read = list(pieces), 0
        headers = [] if told is None else [(b"content-length", str(told).encode())]
        self.scope = {"type": "http", "path": path, "headers": headers}
        self.got: bytes | None = None
        self.status: int | None = None
        asyncio.run(self.call())

    async def call(self) -> None:
        await hook_gate.gated(self.application)(self.scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        if not self.pieces:
            return {"type": "http.disconnect"}
        piece = self.pieces.pop(0)
        self.read += len(piece)
        return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}

    async def send(self, message: dict[str, Any]) -> None:
        self.status = message.get("status", self.status)

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        self.got = b""
        more = True
        while more:
            message = await receive()
            self.got += message["body"]
            more = message["more_body"]


def test_a_body_of_ten_megabytes_is_not_taken_in() -> None:
    piece, most = b"x" * 65_536, hook_gate.MOST_BYTES
    told = Wire(*[piece] * 160, told=160 * 65_536)
    assert (told.status, told.read, told.got) == (413, 0, None)
    untold = Wire(*[piece] * 160)
    assert (untold.status, untold.got) == (413, None)
    assert untold.read <= most + len(piece)
    assert Wire(b"x", told=-1).status == Wire(b"x", told=10**20).status == 413
    exactly = Wire(*[piece] * 16, told=most)
    assert (exactly.status, exactly.got) == (None, piece * 16)
    assert Wire(b"x" * (most + 1)).status == 413
    assert Wire(*[piece] * 20, path="/admin/").got == piece * 20  # not ours


def test_calls_that_come_together_share_one_thread_and_so_one_connection() -> None:
    seen = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        seen.append(await sync_to_async(threading.get_ident)())

    gated = hook_gate.gated(application)

    async def call() -> None:
        body = {"type": "http.request", "body": b"", "more_body": False}
        await gated(
            {"type": "http", "path": "/hooks/x/", "headers": []}, AsyncMock(return_value=body), None
        )

    async def calls() -> None:
        await asyncio.gather(*(call() for _ in range(20)))

    asyncio.run(calls())
    assert (len(seen), len(set(seen))) == (20, 1)


def test_a_caller_who_leaves_reaches_nobody() -> None:
    wire = Wire()
    assert (wire.got, wire.status) == (None, None)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WEBHOOKS": "fal", "PUBLIC_URL": "https://desk.example"}, "['fal']"),
        ({"WEBHOOKS": "polza_b, fal", "AI_ACCOUNTS": "polza_b=polza", "DEMO": "1", "PUBLIC_URL": "http://localhost"}, "['fal', 'polza_b']"),
        ({"WEBHOOKS": "fal", "PUBLIC_URL": "http://desk.example"}, "WEBHOOKS: PUBLIC_URL is no https address."),
        ({"WEBHOOKS": "fal,openrouter", "PUBLIC_URL": "https://desk.example"}, "WEBHOOKS: no webhooks come from openrouter."),
    ],
)  # fmt: skip
def test_webhooks_are_switched_on_by_name_and_need_https(
    environment: dict[str, str], told: str
) -> None:
    code = (
        "import environ; environ.Env.read_env = lambda *_: None;"
        "from studio import settings; print(sorted(settings.WEBHOOKS))"
    )
    plain = {"PATH": os.environ["PATH"], "SECRET_KEY": "x" * 50, "DATABASE_URL": "postgres://nobody@127.0.0.1/none"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, env=plain | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told in done.stdout + done.stderr


# --- how often we ask by ourselves ------------------------------------------------------------------------------------


def sent(**values: Any) -> ProviderTask:
    return ProviderTask(job=Job(), armed_at=NOW, created_at=NOW, provider_id="abc", **values)


@pytest.mark.parametrize(("hooked", "wait_s"), [(True, 120), (False, 3)])
def test_where_a_webhook_will_tell_asking_is_a_net(hooked: bool, wait_s: int) -> None:
    told = facts.of_submit(
        uuid.uuid4(), Accepted("abc"), at=NOW, limits=LIMITS, kept={}, asked_at=NOW, hooked=hooked
    )
    again = facts.of_poll(
        sent(webhook=hooked), Running("processing"), at=NOW + MINUTE, limits=LIMITS, kept={}
    )
    assert told.next_poll_at == NOW + timedelta(seconds=wait_s)
    assert again.next_poll_at == NOW + MINUTE + timedelta(seconds=wait_s)


def test_what_was_just_hinted_at_and_late_is_asked_about_as_ever() -> None:
    def every(age_s: float, hinted_s: float | None) -> float:
        hinted = None if hinted_s is None else NOW + timedelta(seconds=age_s - hinted_s)
        task = sent(webhook=True, hinted_at=hinted)
        return facts.poll_interval_s(task, at=NOW + timedelta(seconds=age_s), limits=LIMITS)

    assert [every(100, 1), every(100, 59), every(100, 60), every(100, None)] == [3, 3, 120, 120]
    assert every(901, None) == 30


# --- what a call changes ----------------------------------------------------------------------------------------------

FAL_MODEL = "fal-ai/flux/schnell"


class Caller:
    """Calls the view as a provider would."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __call__(
        self,
        task: ProviderTask,
        *,
        provider: str = "fal",
        names: str | None = None,
        body: bytes | None = None,
        path: str | None = None,
        **signed: Any,
    ) -> int:
        if body is None:
            body = json.dumps({"request_id": names or task.provider_id, "status": "OK"}).encode()
        when = int(clock.now().timestamp()) + signed.pop("age_s", 0)
        headers = {} if provider == "polza" else seal(body, "abc", at=when, **signed)
        answer = self._client.post(
            path or path_of(provider, task.pk),
            body,
            content_type="application/json",
            headers=headers,
        )
        return answer.status_code


@pytest.fixture
def call(client: Client, on: None, monkeypatch: pytest.MonkeyPatch, settings: DjangoSettings) -> Caller:  # fmt: skip
    settings.PROVIDER_KEYS = settings.PROVIDER_KEYS | {"fal": "fal_test"}
    keys = KeyServer()
    monkeypatch.setattr(hooks, "_ring_at", lambda url: keys.ring)
    return Caller(client)


def everything() -> list[Any]:
    return [
        list(model.objects.order_by("pk").values()) for model in (Job, ProviderTask, JobEvent, Case)
    ]


@pytest.fixture
def now(db: None) -> datetime:
    return clock.now()


def at_fal(now: datetime, **values: Any) -> ProviderTask:
    to = factories.target(FAL_MODEL, provider="fal", currency="USD")
    of = factories.job(now, JobState.ACTIVE, target=to)
    return factories.accepted(of, now, **{"webhook": True, "next_poll_at": now + MINUTE} | values)


def lost_at(provider: str, now: datetime) -> ProviderTask:
    to = factories.target(f"{provider}/model", provider=provider)
    of = factories.job(now, JobState.ACTIVE, target=to)
    return factories.lost(of, now, webhook=True, next_look_at=now + MINUTE)


def known(task: ProviderTask) -> ProviderTask:
    return ProviderTask.objects.get(pk=task.pk)


def test_a_good_call_makes_us_look_and_decides_nothing(call: Caller, now: datetime) -> None:
    task = at_fal(now)
    assert call(task) == 200
    after = known(task)
    assert after.next_poll_at == after.hinted_at
    assert after.hinted_at is not None
    assert now <= after.hinted_at <= clock.now()
    unchanged = {
        "state": "accepted",
        "charge": "possible",
        "blocks_send": True,
        "completed_at": None,
    }
    assert {name: getattr(after, name) for name in unchanged} == unchanged
    assert Job.objects.get(pk=task.job_id).state == JobState.ACTIVE
    assert list(JobEvent.objects.filter(task=task, kind="hinted").values_list("data")) == [({},)]


def test_doubled_and_replayed_calls_are_good_and_change_nothing(
    call: Caller, now: datetime
) -> None:
    task = at_fal(now)
    call(task)
    before = everything()
    assert [call(task), call(task, age_s=-299), call(task, age_s=200)] == [200] * 3
    assert everything() == before


def test_calls_about_what_has_ended_change_nothing(call: Caller, now: datetime) -> None:
    ended = [
        at_fal(now, completed_at=now, stored_at=now, next_poll_at=None),
        at_fal(now, completed_at=now, next_poll_at=None),
        at_fal(now, failed_at=now, next_poll_at=None),
    ]
    before = everything()
    assert [call(task) for task in ended] == [200] * 3
    assert everything() == before


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"key": "another"}, 401),
        ({"age_s": -302}, 400),
        ({"age_s": 302}, 400),
        ({"body": b"no json"}, 400),
        ({"body": b'{"request_id": ["x"]}'}, 400),
        ({"body": b"x" * (10 * 1024 * 1024)}, 413),
    ],
)
def test_forged_old_shapeless_and_long_calls_change_nothing(
    call: Caller, now: datetime, wrong: dict[str, Any], status: int
) -> None:
    tasks = [at_fal(now), lost_at("fal", now)]
    before = everything()
    assert [call(task, **wrong) for task in tasks] == [status] * 2
    assert everything() == before


def test_calls_without_a_signature_are_forged(call: Caller, now: datetime, client: Client) -> None:
    task = at_fal(now)
    before = everything()
    assert client.post(path_of("fal", task.pk), BODY, content_type="text/plain").status_code == 401
    assert client.get(path_of("fal", task.pk)).status_code == 405
    assert everything() == before


def test_a_wrong_nonce_costs_no_query(
    call: Caller, now: datetime, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    task, other = at_fal(now), at_fal(now)
    nonce = path_of("fal", other.pk).split("/")[-2]
    paths = [
        f"/hooks/fal/{task.pk}/{nonce}/",
        f"/hooks/polza/{other.pk}/{nonce}/",
        f"/hooks/nobody/{other.pk}/{nonce}/",
        f"/hooks/fal/{task.pk}/{'x' * 2000}/",
    ]
    with django_assert_num_queries(0):
        told = {hooks_status(call, task, path) for path in paths}
    assert told == {404}


def hooks_status(call: Caller, task: ProviderTask, path: str) -> int:
    return call._client.post(path, BODY, content_type="application/json").status_code


def test_an_unknown_task_is_not_found(call: Caller, now: datetime) -> None:
    stranger = ProviderTask(pk=uuid.uuid4(), provider_id="abc")
    assert call(stranger) == 404
    assert everything() == [[], [], [], []]


def test_while_the_key_server_is_away_the_provider_is_to_call_again(
    call: Caller, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = KeyServer()
    away.status = 0
    monkeypatch.setattr(hooks, "_ring_at", lambda url: away.ring)
    task = at_fal(now)
    before = everything()
    assert call(task) == 503
    assert everything() == before


# --- evidence ---------------------------------------------------------------------------------------------------------


def test_a_signed_call_finds_a_lost_send(call: Caller, now: datetime) -> None:
    task = lost_at("fal", now)
    assert call(task, names="req-1") == 200
    after = known(task)
    assert (after.state, after.provider_id, after.blocks_send) == ("accepted", "req-1", True)
    assert after.next_look_at is None
    assert after.next_poll_at is not None
    assert after.next_poll_at <= clock.now()
    assert after.undecided_since is None
    found = JobEvent.objects.get(task=task, kind="found_by_webhook")
    assert found.data == {"provider_id": "req-1"}
    before = everything()
    assert call(task, names="req-1") == 200
    assert everything() == before


def test_an_unsigned_call_only_makes_us_search_sooner(call: Caller, now: datetime) -> None:
    task = lost_at("polza", now)
    assert call(task, provider="polza", names="gen_1") == 200
    after = known(task)
    assert (after.state, after.provider_id, after.next_poll_at) == ("unknown", None, None)
    assert after.next_look_at == after.hinted_at
    at_polza = factories.accepted(task.job, now, blocks_send=False, next_poll_at=now + MINUTE)
    assert call(at_polza, provider="polza", body=b"") == 200
    assert known(at_polza).next_poll_at == known(at_polza).hinted_at


def test_a_signed_call_that_names_another_id_is_a_conflict(call: Caller, now: datetime) -> None:
    task = at_fal(now)
    assert call(task, names="another") == 200
    assert known(task).provider_id == task.provider_id
    case = Case.objects.get(task=task)
    assert (case.kind, case.resolved_at) == ("conflict", None)


def test_a_call_that_is_quicker_than_the_sends_own_answer_is_not_forgotten(now: datetime) -> None:
    to = factories.target(FAL_MODEL, provider="fal")
    sending = factories.task(factories.job(now, JobState.ACTIVE, target=to), now, webhook=True)
    assert sending.armed_at is not None
    hints.hint(task_id=sending.pk, proven_id=None, now=now)
    assert (known(sending).next_poll_at, known(sending).next_look_at) == (None, None)
    answer = facts.of_submit(
        sending.pk, Accepted("abc"), at=now + timedelta(seconds=1), limits=LIMITS, kept={},
        asked_at=sending.armed_at, hooked=True,
    )  # fmt: skip
    record(facts=[answer])
    assert known(sending).next_poll_at == answer.at


@pytest.mark.parametrize(("hinted_s", "soon"), [(-1, False), (0, True), (1, True), (3, True)])
def test_a_poll_that_began_before_the_hint_does_not_put_the_next_off(
    now: datetime, hinted_s: int, soon: bool
) -> None:
    """Asked at 0, answered at 2: what counts is when it was asked."""
    task = at_fal(now)
    task.claimed_at = now
    if hinted_s < 0:
        ProviderTask.objects.filter(pk=task.pk).update(hinted_at=now - MINUTE * 2)
    else:
        hints.hint(task_id=task.pk, proven_id=None, now=now + timedelta(seconds=hinted_s))
    told = facts.of_poll(
        task, Running("processing"), at=now + timedelta(seconds=2), limits=LIMITS, kept={},
        asked_at=task.claimed_at,
    )  # fmt: skip
    record(facts=[told])
    due = known(task).next_poll_at
    assert due is not None
    assert (due <= now + timedelta(seconds=hinted_s)) is soon


def test_hints_follow_one_another_at_the_pace_of_polls(now: datetime) -> None:
    task = at_fal(now)
    for tenth in range(100):
        hints.hint(task_id=task.pk, proven_id=None, now=now + timedelta(seconds=tenth / 10))
    assert JobEvent.objects.filter(task=task, kind="hinted").count() == 4
