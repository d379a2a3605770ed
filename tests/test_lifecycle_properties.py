"""The lifecycle verbs in any order, with any facts, any number of times: whatever happens, the promises hold after each.

The machine is in tests/lane_machine.py, desk_machine.py and decision_machine.py, the judge in tests/shadow.py.
HYPOTHESIS_PROFILE=long looks for fifty times as long.
"""

from __future__ import annotations

import random
import uuid
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from pytest_django import Settings as DjangoSettings

from jobs import lanes
from jobs.clock import clock
from jobs.lifecycle import arm, claim, create, decide, decisions, staff
from jobs.lifecycle.record import record
from jobs.models import Case, Hold, Job, ProviderTask
from jobs.rules import rules
from jobs.states import BLOCKING_CASES, ENDED, CaseKind, JobState
from jobs.stuck import stuck
from providers import registry
from tests import factories
from tests.decision_machine import DecisionMachine
from tests.lane_machine import LEASE_S, NOW
from tests.shadow import FACTS
from tests.told import LIMITS, OF_COLUMN, fact_of

pytestmark = pytest.mark.django_db

REST_ROUNDS = 40


class Lifecycle(DecisionMachine):
    """And at times all is left to itself, and must come to rest."""

    @rule(
        submit=st.sampled_from(["accepted", "lost", "done"]),
        poll=st.sampled_from(["completed", "failed"]),
        look=st.sampled_from(["unclear", "found", "absent"]),
        receipt=st.sampled_from(["receipt", "no_receipt"]),
        spent=st.sampled_from([Decimal(0), Decimal("7.84")]),
    )
    def all_comes_to_rest(
        self, submit: str, poll: str, look: str, receipt: str, spent: Decimal
    ) -> None:
        """Slices end, staff get out of the way, and a new lane does all that is due: every job ends, or a person is told why
        not (P6)."""
        for run in sorted(self.beating):
            lanes.free(run_id=run)
        self.beating.clear()
        Hold.objects.update(lifted_at=self.now)
        self.open_all()
        words = {
            "next_poll_at": poll,
            "next_fetch_at": "stored",
            "next_look_at": look,
            "next_receipt_at": receipt,
        }
        for number in range(REST_ROUNDS):
            self.time_passes((1, 31)[number] if number < 2 else self.until_due_s())
            if not self.beating:
                self.start_lane()
            if not self.beating:
                continue  # the dead ones still hold the slots
            if number == 5:  # from now on the provider does what it should
                submit, words["next_poll_at"], words["next_look_at"] = (
                    "accepted",
                    "completed",
                    "found",
                )
            self.one_round(min(self.beating), submit, words, spent)
            left = stuck(now=self.now)
            assert left == [], [(one, self.why(one.id)) for one in left]
            if self.at_rest():
                return
        raise AssertionError(f"no rest: {self.watch.rows}")

    def one_round(self, run: uuid.UUID, submit: str, words: dict[str, str], spent: Decimal) -> None:
        """A lane's pass: sweep, what is due, and what may be sent, each answered at once."""
        self.decide(self._sweep())
        for column, what in words.items():
            taken = claim.claim_due(
                column=column, run_id=run, room=50, lease_s=LEASE_S, now=self.now
            )
            if taken:
                self.did("claim_due")
                told = [self.fact(self.tasks.index(t.pk), what, spent=spent) for t in taken]
                self.decide(self.record(told))
        armed = self._arm(run, self._claim(run, 4))
        self.decide(self.record([self.fact(self.tasks.index(pk), submit) for pk in armed]))

    def until_due_s(self) -> float:
        """Until something is due, or a minute."""
        rows = self.watch.rows
        moments = [task[column] for task in rows.tasks.values() for column in OF_COLUMN]
        moments += [job["not_before"] for job in rows.jobs.values() if job["state"] == "pending"]
        later = [moment for moment in moments if moment is not None and moment > self.now]
        if not later:
            return 61.0
        seconds: float = (min(later) - self.now).total_seconds()
        return max(1.0, seconds)

    def why(self, pk: str) -> Any:
        rows = self.watch.rows
        return rows.jobs[int(pk)] if pk.isdigit() else rows.tasks[uuid.UUID(pk)]

    def at_rest(self) -> bool:
        return all(
            job["state"] in ENDED
            or any(CaseKind(c["kind"]) in BLOCKING_CASES for c in self.watch.rows.open_cases(pk))
            for pk, job in self.watch.rows.jobs.items()
        )


# --- the tests --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_desk(settings: DjangoSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.WORKER_CONCURRENCY = LIMITS.concurrency
    settings.WORKER_LANES = 2
    settings.EXPOSURE_LIMIT_PRICES = LIMITS.exposure_prices
    # A failing example must fail again: jitter is drawn from one seed.
    for module in (staff, decisions):
        monkeypatch.setattr(module, "random", SimpleNamespace(Random=lambda: random.Random(1)))


@pytest.fixture
def rows(one_desk: None) -> None:
    """What every example begins with; each one is rolled back to it."""
    Lifecycle.person = factories.staff(name="anna")
    Lifecycle.account = factories.account(NOW, fingerprint=registry.account("polza").fingerprint)
    Lifecycle.targets = [
        factories.target("first", max_in_flight=3),
        factories.target("second"),
        factories.target("third", price=Decimal(2)),
    ]
    create.default_tenant()
    lanes.ensure_slots(2)


@pytest.mark.usefixtures("rows")
def test_no_order_of_verbs_and_facts_breaks_a_promise() -> None:
    run_machine(
        Lifecycle,
        settings=settings(
            max_examples=settings().max_examples // 4,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- facts in any order -------------------------------------------------------------------------------------------------

# What can be told of one send without contradicting itself: an acceptance and what follows, or a refusal, or absence.
STORIES = [
    ["lost", "found", "running", "completed", "stored"],
    ["accepted", "lost", "trouble", "failed", "receipt"],
    ["lost", "rate_limited"],
    ["lost", "quota_exhausted"],
    ["lost", "unclear", "absent_once", "absent"],
    ["accepted", "completed", "not_fetched", "stored"],
]


@settings(max_examples=settings().max_examples // 3, suppress_health_check=list(HealthCheck))
@given(
    story=st.sampled_from(STORIES), data=st.data(), spent=st.sampled_from([Decimal(0), Decimal(11)])
)
def test_facts_in_any_order_and_any_number_of_times_mean_the_same(
    story: list[str], data: st.DataObject, spent: Decimal
) -> None:
    """Told once in their order, or shuffled with repetitions: the same facts, state, charge, releases and next step."""
    again = data.draw(
        st.permutations(story + data.draw(st.lists(st.sampled_from(story), max_size=3)))
    )
    in_order, shuffled = (_outcome(told, spent) for told in (story, again))
    assert shuffled == in_order


def _outcome(told: list[str], spent: Decimal) -> Any:
    with transaction.atomic():
        send = factories.task(factories.job(NOW, JobState.ACTIVE), NOW)
        for what in told:
            # Each fact has one moment, however often it is recorded.
            at = NOW + timedelta(seconds=len(what))
            record(facts=[fact_of(send.pk, what, gen="gen_1", at=at, wait_s=4.5, spent=spent)])
        now = NOW + timedelta(minutes=1)
        decide.decide(job_ids=[send.job_id], rules=rules(), now=now, rng=random.Random(1))
        [row] = ProviderTask.objects.values(*FACTS, "state", "charge", "cost", "released_by")
        [job] = Job.objects.values("state", "reason", "not_before")
        cases = sorted(Case.objects.values_list("kind", flat=True))
        transaction.set_rollback(True)
    return row, job, cases


# --- what the machine has found -----------------------------------------------------------------------------------------


def _freed(of: Job, **facts: Any) -> ProviderTask:
    """A send that was let go as absent, and then turned up at the provider."""
    made = factories.accepted(of, NOW, absent_at=NOW, blocks_send=False, **facts)
    ProviderTask.objects.filter(pk=made.pk).update(released_by="absent")
    return made


def test_an_intent_is_not_armed_once_an_earlier_send_has_turned_up() -> None:
    of = factories.job(NOW, JobState.ACTIVE)
    intent = factories.task(of, NOW, armed=False)
    late = _freed(of)
    calls = {intent.pk: (30.0, 3600.0)}
    assert arm.arm(run_id=intent.run_id, calls=calls, clock=clock)[0] == set()
    ProviderTask.objects.filter(pk=late.pk).update(released_by="person")
    assert arm.arm(run_id=intent.run_id, calls=calls, clock=clock)[0] == {intent.pk}


def test_a_pending_job_becomes_a_persons_turn_when_an_earlier_send_needs_one() -> None:
    of = factories.job(NOW)
    _freed(of, watch_until=NOW, next_poll_at=NOW)
    decide.decide(job_ids=[of.pk], rules=rules(), now=NOW, rng=random.Random(1))
    of.refresh_from_db()
    assert (of.state, of.reason) == ("manual", CaseKind.NEVER_ANSWERED)


def test_a_pending_job_that_waits_for_an_earlier_send_is_not_stuck() -> None:
    now = NOW + timedelta(hours=1)
    of = factories.job(NOW)
    factories.account(NOW, fingerprint=registry.account("polza").fingerprint)
    late = _freed(of, next_poll_at=now)
    assert stuck(now=now) == []
    ProviderTask.objects.filter(pk=late.pk).update(next_poll_at=None)
    assert [one.code for one in stuck(now=now)] == ["no_poll"]


def test_a_verdict_without_a_file_takes_away_none_that_was_told() -> None:
    send = factories.accepted(factories.job(NOW, JobState.ACTIVE), NOW)
    for what in ("completed", "completed_without_file"):
        record(facts=[fact_of(send.pk, what, gen="gen_1", at=NOW, wait_s=None, spent=None)])
    send.refresh_from_db()
    assert send.files == [{"url": "https://example.org/a.png"}]


def test_a_refusal_is_judged_by_its_own_class_whatever_is_told_after_it() -> None:
    send = factories.task(factories.job(NOW, JobState.ACTIVE), NOW)
    for what in ("rate_limited", "lost"):
        record(facts=[fact_of(send.pk, what, gen="gen_1", at=NOW, wait_s=4.5, spent=None)])
    decide.decide(job_ids=[send.job_id], rules=rules(), now=NOW, rng=random.Random(1))
    job = Job.objects.get()
    assert (job.state, job.reason) == ("pending", "rate_limited")
