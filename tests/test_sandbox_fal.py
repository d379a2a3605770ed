"""The sandbox's fal and the adapter speak of the same queue, and no send or end is misjudged."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from providers.adapters.fal import Fal
from providers.contract import (
    Accepted,
    Account,
    Answer,
    Call,
    Charge,
    FailureClass,
    Further,
    Kind,
    Named,
    NoAnswer,
    PollTrouble,
    Refusal,
    Running,
    Verdict,
)
from providers.contract import Request as Wanted
from providers.sandbox import fal_task
from providers.sandbox.faults import CATALOGUE, Stage
from providers.sandbox.ledger import Ledger, Task
from providers.sandbox.reactions import HALF, Reaction, Request, Transport, filled_body
from providers.sandbox.settings import Settings
from providers.sandbox.submission import MARK
from providers.sandbox.world import World

START = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
FAL = Fal()
ACCOUNT = Account("fal", "http://sandbox/fal", "f", key=FAL.sandbox_key)
SEND = UUID(int=7)
HOST = Request("GET", "/", headers={"host": "sandbox"})
HONEST = [one.name for one in CATALOGUE.values() if one.stage is Stage.SUBMIT and not one.deceptive]
FAILED = [name for name in CATALOGUE if name.startswith(("failed_", "cancelled"))]


@dataclass
class Scene:
    """The adapter asks a world, in one process."""

    world: World
    now: float = START
    key: str = ACCOUNT.key

    def ask(self, call: Call | None) -> Answer | NoAnswer:
        assert call is not None
        request = Request(
            method=call.method,
            path="/" + call.url.split("/", 3)[3],
            query=dict(call.params),
            headers={"host": "sandbox", MARK: str(SEND), **call.headers, "authorization": f"Key {self.key}"},
            body=json.dumps(call.json).encode() if call.json is not None else b"",
        )  # fmt: skip
        return self._seen(self.world.handle(request))

    def _seen(self, reaction: Reaction) -> Answer | NoAnswer:
        headers = dict(reaction.headers)
        body = filled_body(reaction, b"a picture") if reaction.picture else reaction.body
        if reaction.transport in {Transport.RESET, Transport.HANG, Transport.CUT_HEADERS}:
            return NoAnswer(True, reaction.transport)
        if reaction.transport is Transport.CUT:
            end = len(body) // 2 if reaction.cut_after == HALF else reaction.cut_after
            return NoAnswer(True, "cut", status=reaction.status, headers=headers, body=body[:end])
        return Answer(reaction.status, headers, body)

    def submit(self, prompt: str = "a cat", *, model: str = FAL.default_model, hook: str | None = None) -> Any:  # fmt: skip
        wanted = Wanted(SEND, model, Kind.IMAGE, prompt, webhook_url=hook)
        return FAL.read_submit(self.ask(FAL.submit(ACCOUNT, wanted)))

    def made(self, prompt: str = "a cat", **more: Any) -> tuple[Named, Task]:
        read = self.submit(prompt, **more)
        assert isinstance(read, Accepted), read
        task = self.world.ledger.tasks[read.provider_id]
        return Named(read.provider_id, task.model, read.links), task

    def status(self, named: Named) -> Any:
        """The last word on a request, by as many reads as it takes."""
        read = FAL.read_poll(self.ask(FAL.poll(ACCOUNT, named)))
        if isinstance(read, Further):
            return FAL.read_result(self.ask(FAL.result(ACCOUNT, named)))
        return read


def scene(**settings: Any) -> Scene:
    made = Scene(None)  # type: ignore[arg-type]  # they know each other
    changed = Settings().changed({"latency_fixed_s": 10} | settings)
    made.world = World(clock=lambda: made.now, rng=random.Random(1), settings=changed)
    return made


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize(
    "model", ["fal-ai/flux/schnell", "fal-ai/flux@latency=10", "workflows/me/mine/run"]
)
def test_a_request_goes_through_the_queue_to_its_picture(model: str, *, links: bool) -> None:
    desk = scene()
    named, task = desk.made(model=model)
    if not links:
        named = Named(named.provider_id, model)
    assert (task.correlation, task.price) == (str(SEND), Decimal("0.003"))
    assert desk.status(named) == Running("in_queue")
    desk.now += 5
    assert desk.status(named) == Running("in_progress")
    desk.now += 5
    verdict = desk.status(named)
    assert isinstance(verdict, Verdict)
    assert [file.url for file in verdict.files] == [f"http://sandbox/files/1/{task.id}-1.png"]
    assert (verdict.outcome, verdict.cost, task.polls) == ("completed", None, 3)
    assert desk.world.ledger.requests["results"] == 1


def test_a_queue_tells_how_many_are_before() -> None:
    desk = scene(concurrency_limit=1)
    for before in range(3):
        named, _task = desk.made()
        answer = desk.ask(FAL.poll(ACCOUNT, named))
        assert isinstance(answer, Answer)
        assert (answer.status, json.loads(answer.body)["queue_position"]) == (202, before)


@pytest.mark.parametrize("name", HONEST)
def test_no_send_that_created_a_task_is_taken_for_free(name: str) -> None:
    desk = scene()
    read = desk.submit(f"[[fault:{name}]]")
    tasks = desk.world.ledger.tasks
    if isinstance(read, Accepted):
        assert read.provider_id in tasks
    elif isinstance(read, Refusal) and read.charge is Charge.NONE:
        assert not tasks
    assert CATALOGUE[name].accepts == bool(tasks)


@pytest.mark.parametrize("name", FAILED)
def test_no_end_that_was_charged_is_taken_for_free(name: str) -> None:
    desk = scene()
    named, task = desk.made(f"[[fault:{name}]]")
    desk.now += 10
    verdict = desk.status(named)
    assert isinstance(verdict, Verdict)
    assert verdict.outcome == ("cancelled" if name.startswith("cancelled") else "failed")
    if verdict.free:
        desk.now += 86_400
        desk.world.tick()
        assert desk.world.ledger.standing(task.id) == 0


def test_ends_by_fals_own_machines_are_free() -> None:
    desk = scene()
    for name in ("failed_free", "failed_timeout", "cancelled"):
        named, _task = desk.made(f"[[fault:{name}]]")
        desk.now += 10
        assert desk.status(named).free, name


@pytest.mark.parametrize(
    ("settings", "failure"),
    [
        ({"balance": "0.002"}, FailureClass.QUOTA_EXHAUSTED),
        ({"key_limit": 0}, FailureClass.QUOTA_EXHAUSTED),
        ({"quotas": [[0, 60]]}, FailureClass.RATE_LIMITED),
        ({"strict_models": True}, FailureClass.REJECTED),
        ({"revoked_keys": [ACCOUNT.key]}, FailureClass.UNAUTHORIZED),
    ],
)
def test_limits_are_refused_for_free(settings: dict[str, Any], failure: FailureClass) -> None:
    desk = scene(**settings)
    read = desk.submit()
    assert isinstance(read, Refusal)
    assert (read.failure, read.charge, desk.world.ledger.tasks) == (failure, Charge.NONE, {})
    assert read.target_stops == ("strict_models" in settings)
    assert (read.wait_s is not None) == (failure is FailureClass.RATE_LIMITED)


def test_a_locked_account_still_tells_what_became_of_its_requests() -> None:
    desk = scene(balance="0.003")
    named, _task = desk.made()
    locked = desk.submit()
    assert (locked.failure, locked.status) == (FailureClass.QUOTA_EXHAUSTED, 403)
    desk.now += 10
    assert desk.status(named).outcome == "completed"


def test_another_key_does_not_see_a_request() -> None:
    desk = scene()
    named, _task = desk.made()
    desk.key = "fal_another"
    read = desk.status(named)
    assert isinstance(read, PollTrouble)
    assert read.missing
    desk.key = "pza_of_another_provider"
    assert desk.status(named).failure is FailureClass.UNAUTHORIZED


@pytest.mark.parametrize(
    ("name", "found"),
    [("no_result", ""), ("content_only", "words"), ("data_two", "urls"), ("data_strings", "url"), ("data_string", "url"),
     ("data_images", "url"), ("data_b64", "data"), ("data_b64_object", "data"), ("data_data_url", "data")],
)  # fmt: skip
def test_every_shape_of_a_result_is_read(name: str, found: str) -> None:
    desk = scene()
    named, _task = desk.made(f"[[fault:{name}]]")
    desk.now += 10
    verdict = desk.status(named)
    assert verdict.outcome == "completed"
    assert bool(verdict.text) == (found == "words")
    kinds = ["data" if file.data == b"a picture" else "url" for file in verdict.files]
    assert kinds == {"urls": ["url", "url"], "url": ["url"], "data": ["data"]}.get(found, [])


@pytest.mark.parametrize("name", [one.name for one in CATALOGUE.values() if one.stage is Stage.POLL])  # fmt: skip
def test_a_troubled_read_never_ends_a_request(name: str) -> None:
    desk = scene()
    named, _task = desk.made(f"[[fault:{name}:1]]")
    desk.now += 10
    assert isinstance(desk.status(named), PollTrouble | Verdict)
    assert desk.status(named).outcome == "completed"


def test_only_a_request_that_waits_is_taken_out_of_the_queue() -> None:
    desk = scene()
    waits, runs = desk.made(), desk.made("[[fault:latency=100]]")
    answer = desk.ask(FAL.cancel(ACCOUNT, waits[0]))
    assert json.loads(answer.body) == {"status": "OK"}
    verdict = desk.status(waits[0])
    assert (verdict.outcome, verdict.free) == ("cancelled", True)
    assert desk.world.ledger.standing(waits[1].id) == 0
    desk.now += 50
    answer = desk.ask(FAL.cancel(ACCOUNT, runs[0]))
    assert (answer.status, json.loads(answer.body)) == (202, {"status": "CANCELLATION_REQUESTED"})
    desk.now += 50
    assert desk.ask(FAL.cancel(ACCOUNT, runs[0])).status == 400
    assert desk.status(runs[0]).outcome == "completed"


def test_a_cancel_and_a_webhook_outlive_a_restart() -> None:
    kept: list[dict[str, Any]] = []
    desk = scene()
    desk.world.ledger.sink = lambda record: kept.append(json.loads(json.dumps(record)))
    named, task = desk.made(hook="https://desk.example/hook")
    desk.ask(FAL.cancel(ACCOUNT, named))
    again = Ledger()
    for record in kept:
        again.replay(record)
    same = again.tasks[task.id]
    assert (same.outcome, same.webhook) == ("cancelled", "https://desk.example/hook")
    assert again.standing(task.id) == 0


@pytest.mark.parametrize(
    ("name", "status", "error"),
    [("with_content", "OK", None), ("data_b64", "OK", None), ("failed_free", "ERROR", "runner"), ("failed_charged", "ERROR", "422")],
)  # fmt: skip
def test_a_webhook_tells_the_end(name: str, status: str, error: str | None) -> None:
    desk = scene()
    _named, task = desk.made(f"[[fault:{name}]]", hook="https://desk.example/hook")
    desk.now += 10
    told = fal_task.webhook(task, HOST, desk.now)
    assert (told["request_id"], told["status"]) == (task.id, status)
    assert (error or "") in told.get("error", "")
    if name == "with_content":
        assert told["payload"]["images"][0]["url"].startswith("http://sandbox/files/")
    elif name == "data_b64":
        assert (told["payload"], bool(told["payload_error"])) == (None, True)
    json.dumps(told)
