"""The sandbox and the adapter speak of the same provider: what one says, the other reads, and no send is misjudged."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from providers.adapters import polza
from providers.contract import (
    Accepted,
    Account,
    Answer,
    Call,
    Charge,
    Kind,
    Named,
    NoAnswer,
    Refusal,
    Running,
    Verdict,
)
from providers.contract import Request as Wanted
from providers.sandbox.faults import CATALOGUE, Stage
from providers.sandbox.reactions import Reaction, Request, Transport
from providers.sandbox.settings import Settings
from providers.sandbox.world import World

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
ACCOUNT = Account("polza", "http://sandbox/api/v1", "f", key="pza_a")
ADAPTER = polza.Polza()
HONEST = [one.name for one in CATALOGUE.values() if one.stage is Stage.SUBMIT and not one.deceptive]


class Desk:
    """Asks a world what the adapter asks a provider, in one process."""

    def __init__(self) -> None:
        self.now = NOW.timestamp()
        settings = Settings().changed({"latency_fixed_s": 10})
        self.world = World(clock=lambda: self.now, rng=random.Random(1), settings=settings)

    def ask(self, call: Call) -> Answer | NoAnswer:
        reaction = self.world.handle(
            Request(
                method=call.method,
                path="/" + call.url.split("/", 3)[3],
                query=dict(call.params),
                headers={"host": "sandbox", **ADAPTER.authorisation(ACCOUNT)},
                body=json.dumps(call.json).encode() if call.json is not None else b"",
            )
        )
        return self._seen(reaction)

    def _seen(self, reaction: Reaction) -> Answer | NoAnswer:
        headers = dict(reaction.headers) | {"date": self.world.date()}
        if reaction.transport in {Transport.RESET, Transport.HANG, Transport.CUT_HEADERS}:
            return NoAnswer(sent=True, reason=reaction.transport)
        if reaction.transport is Transport.CUT:
            body = reaction.body[: reaction.cut_after]
            return NoAnswer(
                sent=True, reason="cut", status=reaction.status, headers=headers, body=body
            )
        return Answer(reaction.status, headers, reaction.body)

    def submit(self, prompt: str) -> Accepted | Verdict | Refusal:
        wanted = Wanted(UUID(int=7), "google/gemini-2.5-flash-image", Kind.IMAGE, prompt)
        return ADAPTER.read_submit(self.ask(ADAPTER.submit(ACCOUNT, wanted)))

    def answer(self, call: Call | None) -> Answer:
        assert call is not None
        answer = self.ask(call)
        assert isinstance(answer, Answer)
        return answer


@pytest.mark.parametrize("name", HONEST)
def test_no_send_that_created_a_task_is_taken_for_free(name: str) -> None:
    desk = Desk()
    read = desk.submit(f"[[fault:{name}]]")
    if isinstance(read, Accepted):
        assert read.provider_id in desk.world.ledger.tasks
    elif isinstance(read, Refusal) and read.charge is Charge.NONE:
        assert not desk.world.ledger.tasks


def test_the_adapter_reads_a_task_to_its_end() -> None:
    desk = Desk()
    accepted = desk.submit("a cat")
    assert isinstance(accepted, Accepted)
    poll = ADAPTER.poll(ACCOUNT, Named(accepted.provider_id))
    assert isinstance(ADAPTER.read_poll(desk.ask(poll)), Running)
    desk.now += 10
    verdict = ADAPTER.read_poll(desk.ask(poll))
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.cost, verdict.currency) == ("completed", Decimal(5), "RUB")
    assert [file.url for file in verdict.files] == [
        f"http://sandbox/files/1/{accepted.provider_id}-1.png"
    ]


def test_the_adapter_finds_its_correlation_id_in_the_history() -> None:
    desk = Desk()
    desk.submit("[[fault:reset_after_accept]]")
    answer = desk.answer(
        ADAPTER.history(
            ACCOUNT, since=NOW - timedelta(minutes=2), until=NOW + timedelta(minutes=2), page=1
        )
    )
    (item,) = ADAPTER.read_history(answer).items
    assert item.correlation_id == str(UUID(int=7))
    assert item.provider_id in desk.world.ledger.tasks
    assert item.created_at == NOW


@pytest.mark.parametrize(
    ("fate", "final", "cost"),
    [("failed_free", True, 0), ("failed_charged", True, 5), ("failed_pending", False, None)],
)
def test_the_adapter_reads_receipts(fate: str, cost: int | None, *, final: bool) -> None:
    desk = Desk()
    accepted = desk.submit(f"[[fault:{fate}]]")
    assert isinstance(accepted, Accepted)
    desk.now += 10
    receipt = ADAPTER.read_receipt(
        desk.answer(ADAPTER.receipt(ACCOUNT, Named(accepted.provider_id)))
    )
    assert receipt.final is final
    if final:
        assert receipt.cost == cost


def test_the_adapter_reads_the_balance() -> None:
    desk = Desk()
    desk.world.configure({"balance": "12.5"})
    balance = ADAPTER.read_balance(desk.answer(ADAPTER.balance(ACCOUNT)))
    assert (balance.amount, balance.currency) == (Decimal("12.5"), "RUB")
