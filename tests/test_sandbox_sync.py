"""The synchronous providers of the sandbox and their adapters speak of the same thing, and no send is misjudged."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest

from providers.adapters.gigachat import GigaChat
from providers.adapters.openrouter import OpenRouter
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Call,
    Charge,
    FailureClass,
    Kind,
    Named,
    NoAnswer,
    NotToldError,
    Refusal,
    Verdict,
)
from providers.contract import Request as Wanted
from providers.registry import fingerprint
from providers.sandbox.faults import CATALOGUE, Stage
from providers.sandbox.reactions import HALF, Reaction, Request, Transport, filled_body
from providers.sandbox.settings import Settings
from providers.sandbox.world import World

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ADAPTERS: list[Adapter] = [OpenRouter(), GigaChat()]
HONEST = [one.name for one in CATALOGUE.values() if one.stage is Stage.SUBMIT and not one.deceptive]
each = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
TASK = UUID(int=7)


@dataclass
class Desk:
    """Asks a world what the adapter asks a provider, in one process; time goes by while an answer is waited for."""

    adapter: Adapter
    world: World
    now: float

    @property
    def account(self) -> Account:
        key = self.adapter.sandbox_key
        base_url = f"http://sandbox{self.adapter.sandbox_path}"
        return Account(self.adapter.name, base_url, fingerprint(key), key=key)

    def ask(self, call: Call, *, token: str = "") -> Answer | NoAnswer:
        body = json.dumps(call.json) if call.json is not None else urlencode(call.form or {})
        reaction = self.world.handle(
            Request(
                method=call.method,
                path="/" + call.url.split("/", 3)[3],
                query=dict(call.params),
                headers={
                    "host": "sandbox",
                    **call.headers,
                    **self.adapter.authorisation(self.account, token),
                },
                body=body.encode(),
            )
        )
        while reaction.then is not None:
            self.now += reaction.delay_s
            reaction = reaction.then()
        return self._seen(reaction)

    def _seen(self, reaction: Reaction) -> Answer | NoAnswer:
        headers = dict(reaction.headers) | {"date": self.world.date()}
        body = filled_body(reaction, b"a picture") if reaction.picture else reaction.body
        if reaction.transport in {Transport.RESET, Transport.HANG, Transport.CUT_HEADERS}:
            return NoAnswer(sent=True, reason=reaction.transport)
        if reaction.transport is Transport.CUT:
            end = len(body) // 2 if reaction.cut_after == HALF else reaction.cut_after
            return NoAnswer(
                sent=True, reason="cut", status=reaction.status, headers=headers, body=body[:end]
            )
        return Answer(reaction.status, headers, body)

    def token(self) -> str:
        call = self.adapter.token(self.account)
        if call is None:
            return ""
        answer = self.ask(call)
        assert isinstance(answer, Answer)
        return self.adapter.read_token(answer, now=datetime.fromtimestamp(self.now, UTC)).value

    def read(self, call: Call | None, *, token: str = "") -> Answer:
        assert call is not None
        answer = self.ask(call, token=token or self.token())
        assert isinstance(answer, Answer)
        return answer

    def submit(
        self, prompt: str = "a cat", *, kind: Kind = Kind.IMAGE, model: str = "", token: str = ""
    ) -> Verdict | Refusal:
        wanted = Wanted(TASK, model or self.adapter.default_model, kind, prompt)
        call = self.adapter.submit(self.account, wanted)
        read = self.adapter.read_submit(self.ask(call, token=token or self.token()))
        assert isinstance(read, Verdict | Refusal)
        return read

    def done(self, prompt: str = "a cat", **more: Any) -> Verdict:
        read = self.submit(prompt, **more)
        assert isinstance(read, Verdict), read
        return read

    def refused(self, prompt: str = "a cat", **more: Any) -> Refusal:
        read = self.submit(prompt, **more)
        assert isinstance(read, Refusal), read
        return read


def desk(adapter: Adapter, **settings: Any) -> Desk:
    changed = Settings().changed({"latency_fixed_s": 10} | settings)
    made = Desk(adapter, None, NOW.timestamp())  # type: ignore[arg-type]  # they know each other
    made.world = World(clock=lambda: made.now, rng=random.Random(1), settings=changed)
    return made


@each
def test_the_answer_comes_when_the_task_has_ended_and_holds_the_result(adapter: Adapter) -> None:
    scene = desk(adapter)
    verdict = scene.done()
    (task,) = scene.world.ledger.tasks.values()
    assert (verdict.outcome, len(verdict.files), task.correlation) == ("completed", 1, str(TASK))
    assert (scene.now - NOW.timestamp(), task.settled) == (10.0, True)
    if adapter.name == "openrouter":
        assert verdict.files[0].data == b"a picture"
        assert (verdict.provider_id, verdict.cost) == (task.id, task.price)
    else:
        file_id = verdict.files[0].file_id
        assert file_id is not None
        assert scene.read(adapter.file(scene.account, file_id)).body == b"a picture"
        assert scene.read(adapter.file(scene.account, "another")).status == 404


@each
def test_words_come_as_words(adapter: Adapter) -> None:
    verdict = desk(adapter).done("Кто ты?", kind=Kind.TEXT)
    assert verdict.files == ()
    assert "Кто ты?" in verdict.text


@each
@pytest.mark.parametrize("name", HONEST)
def test_no_send_that_created_a_task_is_taken_for_free(adapter: Adapter, name: str) -> None:
    scene = desk(adapter)
    read = scene.submit(f"[[fault:{name}]]")
    tasks = scene.world.ledger.tasks
    if isinstance(read, Verdict):
        assert read.provider_id is None or read.provider_id in tasks
        assert tasks
    elif read.charge is Charge.NONE:
        assert not tasks
    assert CATALOGUE[name].accepts == bool(tasks)


@each
@pytest.mark.parametrize("name", ["failed_free", "failed_moderation", "failed_timeout", "no_result"])  # fmt: skip
def test_what_failed_is_a_verdict_without_a_result(adapter: Adapter, name: str) -> None:
    verdict = desk(adapter).done(f"[[fault:{name}]]")
    assert verdict.files == ()
    assert verdict.text == ""
    assert verdict.outcome == ("failed" if adapter.name == "openrouter" else "completed")


@each
@pytest.mark.parametrize(
    ("settings", "failures"),
    [
        ({"balance": 0}, ("quota_exhausted", "quota_exhausted")),
        ({"key_limit": 0}, ("quota_exhausted", "quota_exhausted")),
        ({"quotas": [[0, 60]]}, ("rate_limited", "rate_limited")),
        ({"concurrency_limit": 0}, ("rate_limited", "rate_limited")),
        ({"strict_models": True}, ("rejected", "rejected")),
    ],
)
def test_limits_are_refused_for_free(
    adapter: Adapter, settings: dict[str, Any], failures: tuple[str, str]
) -> None:
    scene = desk(adapter, **settings)
    got = scene.refused()
    assert got.failure == failures[adapter.name == "gigachat"]
    assert (got.charge, scene.world.ledger.tasks) == (Charge.NONE, {})
    if got.failure is FailureClass.RATE_LIMITED:
        assert got.wait_s is not None
    assert got.target_stops == ("strict_models" in settings)


def test_a_receipt_tells_what_a_broken_send_cost() -> None:
    scene = desk(ADAPTERS[0])
    for name, cost in (("failed_free", "0"), ("failed_charged", "0.04"), ("cut_after_id", "0.04")):
        verdict = scene.done(f"[[fault:{name}]]")
        assert (verdict.outcome, verdict.provider_id is None) == ("failed", False)
        call = ADAPTERS[0].receipt(scene.account, Named(verdict.provider_id or ""))
        assert ADAPTERS[0].read_receipt(scene.read(call)).cost == Decimal(cost)
    hidden = scene.done("[[fault:failed_unlisted]]")
    assert scene.read(ADAPTERS[0].receipt(scene.account, Named(hidden.provider_id or ""))).status == 404  # fmt: skip
    other = ADAPTERS[0].read_balance(scene.read(ADAPTERS[0].balance(scene.account)))
    assert other.currency == "USD"


def test_a_token_ends_by_time_by_hand_and_with_its_key() -> None:
    scene = desk(ADAPTERS[1], token_life_s=60)
    token = scene.token()
    assert isinstance(scene.submit(token=token), Verdict)
    scene.now += 60
    late = scene.refused(token=token)
    assert (late.failure, late.ours, late.charge) == (FailureClass.UNSENT, True, Charge.NONE)
    scene.world.configure({"revoked_keys": [token := scene.token()]})
    assert scene.refused(token=token).failure is FailureClass.UNSENT
    assert scene.refused(token="tok.nobody").failure is FailureClass.UNAUTHORIZED
    assert scene.world.ledger.requests["tokens"] == 2
    scene.world.configure({"revoked_keys": [scene.account.fingerprint]})
    call = ADAPTERS[1].token(scene.account)
    assert call is not None
    denied = scene.ask(call)
    assert denied.status == 401
    assert len(scene.world.ledger.tasks) == 1


def test_a_token_call_is_no_paid_post() -> None:
    scene = desk(ADAPTERS[1], faults={"reset_before_read": 1})
    assert scene.token()
    assert scene.world.ledger.posts == []
    scene.world.configure({"faults": {"token_429": 1}})
    call = ADAPTERS[1].token(scene.account)
    assert call is not None
    assert scene.ask(call).status == 429


def test_a_balance_paid_by_use_is_none() -> None:
    scene = desk(ADAPTERS[1])
    with pytest.raises(NotToldError, match="by use"):
        ADAPTERS[1].read_balance(scene.read(ADAPTERS[1].balance(scene.account)))
