"""PostgreSQL's generated state and charge equal the pure functions, over every combination of facts."""

from __future__ import annotations

import itertools
import random
import uuid
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from jobs.models import ProviderTask
from jobs.states import Facts, TaskState, known_cost, task_charge, task_state
from providers.contract import Charge
from tests import factories

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMES = (
    "armed_at",
    "provider_id",
    "refusal_class",
    "unsent_at",
    "absent_at",
    "lost_at",
    "completed_at",
    "failed_at",
    "stored_at",
    "receipt_final_at",
)
COSTS = ("cost_answer", "cost_poll", "cost_receipt", "cost_staff")
MONEY = (None, Decimal(0), Decimal("7.84"))


def value(name: str) -> Any:
    if name == "provider_id":
        return uuid.uuid4().hex
    return "rejected" if name == "refusal_class" else NOW


def combinations() -> list[dict[str, Any]]:
    """All of the facts without money; all of the money over every strongest fact; and a draw over everything."""
    every = [
        {name: value(name) for name, known in zip(TIMES, some, strict=True) if known}
        for some in itertools.product((False, True), repeat=len(TIMES))
    ]
    one_fact = [{}, *({name: value(name)} for name in TIMES[:-1])]
    final = [{**some, "receipt_final_at": NOW} for some in one_fact]
    money = [
        {**some, **dict(zip(COSTS, costs, strict=True))}
        for some in one_fact + final
        for costs in itertools.product(MONEY, repeat=len(COSTS))
    ]
    rng = random.Random(5)
    drawn = [
        {
            **rng.choice(every),
            **{name: rng.choice(MONEY) for name in COSTS},
            "staff_charge": rng.choice([None, "refunded", "written_off"]),
        }
        for _ in range(1000)
    ]
    rows = every + money + drawn
    for row in rows:
        if row.get("provider_id"):
            row["provider_id"] = uuid.uuid4().hex
    return rows


@pytest.mark.django_db
def test_the_databases_state_charge_and_cost_equal_the_pure_ones_over_every_combination() -> None:
    job = factories.job(NOW)
    account = factories.account(NOW)
    rows = [
        ProviderTask(
            job=job,
            tenant=job.tenant,
            target=job.target,
            account=account,
            estimated_cost=8,
            currency="RUB",
            run_id=uuid.uuid4(),
            host="here",
            created_at=NOW,
            blocks_send=False,
            released_by="free",
            send_not_after=facts.get("armed_at"),
            **facts,
        )
        for facts in combinations()
    ]
    ProviderTask.objects.bulk_create(rows, batch_size=500)
    names = [item.name for item in fields(Facts)]
    stored = list(ProviderTask.objects.filter(job=job).values("state", "charge", "cost", *names))
    assert len(stored) == len(rows) > 3000
    for row in stored:
        facts = Facts(**{name: row[name] for name in names})
        pure = (task_state(facts), task_charge(facts), known_cost(facts))
        assert (row["state"], row["charge"], row["cost"]) == pure, facts


def test_the_strongest_fact_names_the_state() -> None:
    order = [
        ("armed_at", TaskState.SENDING),
        ("lost_at", TaskState.UNKNOWN),
        ("unsent_at", TaskState.UNSENT),
        ("refusal_class", TaskState.REFUSED),
        ("provider_id", TaskState.ACCEPTED),
        ("failed_at", TaskState.FAILED),
        ("completed_at", TaskState.COMPLETED),
        ("stored_at", TaskState.STORED),
    ]
    facts: dict[str, Any] = {}
    assert task_state(Facts()) is TaskState.INTENT
    for name, state in order:
        facts[name] = value(name)
        assert task_state(Facts(**facts)) is state


def test_a_pending_receipt_of_zero_proves_nothing() -> None:
    assert task_charge(Facts(failed_at=NOW, cost_receipt=Decimal(0))) is Charge.POSSIBLE


def test_a_final_receipt_of_zero_proves_a_failure_free() -> None:
    facts = Facts(failed_at=NOW, cost_receipt=Decimal(0), receipt_final_at=NOW)
    assert task_charge(facts) is Charge.NONE


def test_a_completion_is_charged_before_its_cost_is_known() -> None:
    assert task_charge(Facts(completed_at=NOW)) is Charge.CHARGED


def test_a_lost_send_may_have_cost_something_until_it_is_proven_absent() -> None:
    assert task_charge(Facts(armed_at=NOW, lost_at=NOW)) is Charge.POSSIBLE
    assert task_charge(Facts(armed_at=NOW, lost_at=NOW, absent_at=NOW)) is Charge.NONE
