"""What recorded facts and staff do to a provider's rows; who loses a race does nothing."""

from __future__ import annotations

import importlib
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import rooms
from jobs.lifecycle import outcomes, providers, staff
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.record import Fact, record
from jobs.models import ProviderTask
from jobs.states import JobState
from providers import health
from providers.contract import Charge, FailureClass, Refusal, Scope
from providers.health import Dimension, Read, Tally
from providers.models import Account, ProviderEvent, ProviderState, QuotaWindow, Target, in_words
from providers.word import Phrase, Word, word
from tests import factories
from tests.two import COMMIT, Point, Two, two_connections

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEADLINE_S = 900.0
MODEL = factories.MODEL
SENT = {"submit": {"status": None, "body": ""}}


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def sent(seconds: float = 0, *, model: str = MODEL, **values: Any) -> ProviderTask:
    """A send of an account, armed then."""
    job = factories.job(NOW, JobState.ACTIVE, target=factories.target(model))
    return factories.task(job, NOW, armed_at=at(seconds), **values)


def learn(*facts: Fact, now: datetime | None = None) -> None:
    record(facts=facts)
    outcomes.note_outcomes(
        facts=facts, poll_deadline_s=DEADLINE_S, now=now or max(fact.at for fact in facts)
    )


def good(task: ProviderTask, seconds: float = 1) -> Fact:
    return Fact(
        task_id=task.pk, at=at(seconds), kind="accepted", decides=True, provider_id=uuid.uuid4().hex
    )


def lost(task: ProviderTask, seconds: float = 1, **values: Any) -> Fact:
    told = {"failure_class": "unknown", "failure_text": "reset", "evidence": SENT} | values
    return Fact(task_id=task.pk, at=at(seconds), kind="lost", decides=True, lost=True, **told)


def refused(task: ProviderTask, failure: str, seconds: float = 1, **values: Any) -> Fact:
    return Fact(
        task_id=task.pk, at=at(seconds), kind="refused", decides=True, refusal_class=failure,
        failure_class=failure, failure_text=f"HTTP {failure}", **values,
    )  # fmt: skip


def unsent(task: ProviderTask, seconds: float = 1, *, ours: bool = False) -> Fact:
    return Fact(
        task_id=task.pk, at=at(seconds), kind="unsent", decides=True, unsent=True, ours=ours,
        unsent_reason="not_connected", failure_class="unsent",
    )  # fmt: skip


def verdict(task: ProviderTask, seconds: float = 1, *, failure: str = "", **values: Any) -> Fact:
    """From a poll: failed with that class, else completed with a file."""
    told: dict[str, Any] = {"completed": True, "files": [{"url": "https://x/1.png"}]}
    if failure:
        told = {"failed": True, "failure_class": failure, "last_status": "failed"}
    told |= {"polled": True, "kind": "verdict", "decides": True} | values
    return Fact(task_id=task.pk, at=at(seconds), **told)


def polled(
    task: ProviderTask, seconds: float = 1, *, status: int | None = 200, **data: Any
) -> Fact:
    return Fact(
        task_id=task.pk, at=at(seconds), kind="", polled=True, poll_failed=status != 200,
        missing=status == 404, data={"status": status, **data},
    )  # fmt: skip


def rows() -> dict[str, str]:
    """Gate by model."""
    return dict(ProviderState.objects.values_list("model", "gate"))


def row(model: str = "") -> ProviderState:
    return ProviderState.objects.get(model=model)


def events(**filters: Any) -> list[str]:
    found = ProviderEvent.objects.filter(**filters).order_by("pk")
    return list(found.values_list("kind", flat=True))


def down(model: str = "", *, account: Account | None = None, **values: Any) -> ProviderState:
    """An open breaker whose next try is due a minute after NOW."""
    told = {
        "gate": "open", "cause": "failures", "opened_at": NOW, "next_try_at": at(60), "open_s": 60.0, "reason": "HTTP 503",
    } | values  # fmt: skip
    return factories.provider_state(
        NOW, "down", model=model, account=account or factories.account(NOW), **told
    )


def half_open(model: str = "", **values: Any) -> ProviderState:
    return down(model, gate="half_open", next_try_at=None, **values)


@pytest.fixture
def two(transactional_db: None) -> Iterator[Two]:
    with two_connections() as pair:
        yield pair


@pytest.fixture
def person() -> User:
    return User.objects.create(username="anna", is_staff=True)


# --- the breaker ------------------------------------------------------------------------------------------------------


def test_a_success_of_a_healthy_provider_writes_nothing() -> None:
    task = sent()
    fact = good(task)
    record(facts=[fact])
    factories.provider_state(NOW, model="another")
    with CaptureQueriesContext(connection) as queries:
        outcomes.note_outcomes(facts=[fact], poll_deadline_s=DEADLINE_S, now=at(1))
    assert [query["sql"].split()[0] for query in queries] == ["SELECT"]
    assert set(rows()) == {"another"}


@pytest.mark.condition("R73")
def test_five_lost_sends_in_a_row_open_the_accounts_breaker_once() -> None:
    for number in range(5):
        assert rows() in ({}, {"": "closed"})
        learn(lost(sent(number), number))
    found = row()
    assert (found.gate, found.state, found.since, found.reason) == ("open", "down", at(4), "reset")
    assert found.next_try_at == at(64)
    assert events() == ["opened"]
    learn(*[lost(sent(6), 6) for _ in range(20)])
    assert (events(), row().next_try_at) == (["opened"], at(64))


@pytest.mark.parametrize(("others", "gate"), [(good, "closed"), (unsent, "open")])
def test_what_many_sends_tell_first_opens_nothing_before_the_others_are_known(
    others: Callable[..., Fact], gate: str
) -> None:
    """A refused connection is known in milliseconds, an accepted job in a second."""
    tasks = [sent(0) for _ in range(20)]
    for task in tasks[:6]:
        learn(unsent(task, 0.1))
    assert rows() == {"": "closed"}
    for task in tasks[6:]:
        learn(others(task, 1.5))
    assert row().gate == gate


def test_sends_that_hang_hold_the_breaker_back_for_seconds_only() -> None:
    for _hangs in range(20):
        sent(0)
    for number in range(6):
        learn(unsent(sent(6), 6 + number / 10))
    assert row().gate == "open"


def test_a_success_in_between_ends_the_row() -> None:
    learn(*[lost(sent(n), n) for n in range(4)])
    assert row().sends_failed == 4
    learn(good(sent(5), 5))
    assert row().sends_failed == 0
    learn(*[lost(sent(n), n) for n in range(6, 10)])
    assert (row().gate, events()) == ("closed", [])


def test_a_failure_of_one_model_opens_that_model_alone() -> None:
    facts = [refused(sent(n), "down", n, failure_scope="model") for n in range(5)]
    learn(*facts)
    assert rows() == {MODEL: "open"}


@pytest.mark.parametrize("scope", [None, "account", "model"])
def test_the_share_is_counted_from_the_tasks_of_the_last_minute(scope: str | None) -> None:
    for number in range(6):
        learn(good(sent(number), number))
    values = {"failure_scope": scope} if scope else {}
    for number in range(3):
        learn(lost(sent(10 + number), 10 + number, **values))
        learn(good(sent(10.5 + number), 10.5 + number))
    assert set(rows().values()) == {"closed"}
    learn(lost(sent(20), 20, **values))  # 4 of 13: 31 %
    assert rows() == {MODEL if scope == "model" else "": "open"}


@pytest.mark.condition("R69")
def test_few_failures_among_many_successes_open_nothing() -> None:
    """R69: an absolute count of failures opened it for everybody at 0.14 %. The good sends before count as well."""
    learn(*[good(sent(n / 10), n / 10) for n in range(40)])
    for number in range(12):
        learn(lost(sent(5 + number), 5 + number), good(sent(5.5 + number), 5.5 + number))
    assert row().gate == "closed"


def test_failures_older_than_a_minute_are_forgotten_by_the_share() -> None:
    for number in range(12):
        learn(lost(sent(number * 15), number * 15), good(sent(number * 15 + 1), number * 15 + 1))
    assert row().gate == "closed"


@pytest.mark.condition("R72")
def test_our_own_faults_dead_workers_and_refusals_are_not_counted() -> None:
    """R72: limits and cancellations of the callers benched a deployment that everybody shared."""
    for number in range(6):
        learn(
            unsent(sent(number), number, ours=True),
            lost(sent(number), number, ours=True),
            lost(sent(number), number, evidence=None),
            *[
                refused(sent(number), failure, number)
                for failure in ("rate_limited", "quota_exhausted", "unauthorized", "rejected")
            ],
            verdict(sent(number), number, failure="rejected"),
            verdict(sent(number), number, failure="down", last_status="cancelled"),
        )
    assert (rows(), events()) == ({}, [])


def test_connections_that_never_opened_count_and_are_told_apart() -> None:
    learn(*[unsent(sent(n), n) for n in range(5)])
    assert row().gate == "open"
    assert ProviderEvent.objects.get().data["connect"] is True


def test_failed_jobs_open_their_model_although_every_send_is_accepted() -> None:
    for number in range(5):
        task = sent(number)
        learn(good(task, number))
        learn(verdict(task, number + 0.5, failure="down"))
    assert rows() == {MODEL: "open"}


def test_a_paid_task_is_no_success_without_a_result_and_a_failure_once_none_can_come() -> None:
    """R12's other half: an empty 2xx must not count as a success. Its file may be a moment late."""
    learn(*[verdict(sent(n, provider_id=str(n)), n, failure="down") for n in range(4)])
    empty = sent(5, provider_id="empty")
    learn(verdict(empty, 6, files=[], next_fetch_at=at(11)))
    assert row(MODEL).verdicts_failed == 4
    learn(Fact(task_id=empty.pk, at=at(60), kind="no_file", fetch_failed=True, fetch_over=True))
    assert rows() == {MODEL: "open"}


def test_a_file_that_came_late_ends_the_row_of_failures() -> None:
    learn(*[verdict(sent(n, provider_id=str(n)), n, failure="down") for n in range(4)])
    late = sent(5, provider_id="late")
    learn(verdict(late, 6, files=[]))
    learn(Fact(task_id=late.pk, at=at(12), kind="stored", decides=True, stored=True))
    assert row(MODEL).verdicts_failed == 0


def test_polls_are_a_dimension_of_their_own() -> None:
    task = sent(provider_id="gen_1")
    learn(*[polled(task, n, status=502) for n in range(4)], good(sent(2), 2))
    assert (row().polls_failed, row().sends_failed) == (4, 0)
    learn(polled(task, 5))
    assert row().polls_failed == 0
    learn(*[polled(task, n, status=None) for n in range(6, 11)])
    assert rows() == {"": "open"}


@pytest.mark.parametrize("status", [401, 404, 429])
def test_a_poll_that_is_answered_by_one_that_is_up_is_not_counted(status: int) -> None:
    task = sent(provider_id="gen_1")
    learn(*[polled(task, n, status=status) for n in range(8)])
    learn(*[polled(task, n, status=None, ours=True) for n in range(8, 16)])
    assert rows() == {}


def test_a_found_send_and_a_receipt_are_no_submits() -> None:
    learn(*[lost(sent(n), n) for n in range(4)])
    looked = sent(5)
    learn(Fact(task_id=looked.pk, at=at(6), kind="found", looked=True, provider_id="gen_9"))
    assert row().sends_failed == 4


def test_the_shares_in_sql_are_those_of_the_facts() -> None:
    """The twin of counting by hand, over a random minute of everything that may be recorded."""
    rng = random.Random(7)
    sends: list[Any] = [
        good, lost, unsent,
        lambda t, s: lost(t, s, evidence=None),
        lambda t, s: lost(t, s, ours=True, failure_scope="model"),
        lambda t, s: lost(t, s, failure_scope="model"),
        lambda t, s: refused(t, "down", s, failure_scope=rng.choice(["model", "account"])),
        lambda t, s: refused(t, "rate_limited", s),
        lambda t, s: unsent(t, s, ours=True),
        lambda t, s: verdict(t, s, polled=False),  # of a synchronous provider
        lambda t, s: verdict(t, s, polled=False, failure="down"),
    ]  # fmt: skip
    polls: list[Any] = [
        verdict, polled,
        lambda t, s: verdict(t, s, failure=rng.choice(["down", "rejected", "unknown"])),
        lambda t, s: verdict(t, s, failure="down", last_status="canceled"),
        lambda t, s: verdict(t, s, files=[]),
        lambda t, s: polled(t, s, status=rng.choice([None, 503])),
    ]  # fmt: skip
    counted: Counter[tuple[str, Dimension, bool]] = Counter()
    for number in range(150):
        model = rng.choice([MODEL, "other"])
        seconds = number - 60.5
        if rng.random() < 0.6:
            fact = rng.choice(sends)(sent(seconds, model=model), seconds)
        else:
            task = sent(seconds, model=model, provider_id=f"gen_{number}")
            fact = rng.choice(polls)(task, seconds)
        record(facts=[fact])
        if seconds <= 29:
            continue
        found, model_only = outcomes._counted(fact)
        for dimension, fine in found:
            for name in outcomes._rows_of(dimension, good=fine, model=model, model_only=model_only):
                counted[name, dimension, fine] += 1
    account_id = factories.account(NOW).pk
    for name in ("", MODEL, "other"):
        told = outcomes.tallied(account_id=account_id, model=name, closed_at=None, now=at(89))
        want = {
            d: Tally(counted[name, d, True], counted[name, d, False], told[d].unanswered)
            for d in told
        }
        assert told == want
        assert sum(tally.bad for tally in told.values()) > 0


# --- the one probe ----------------------------------------------------------------------------------------------------


def take(task: ProviderTask, seconds: float = 60, *, model: str = MODEL) -> bool:
    return providers.take_probe(
        task_id=task.pk, account_id=task.account_id, model=model, now=at(seconds)
    )


def test_one_probe_for_all_models_of_an_account() -> None:
    half_open()
    first, second = sent(60), sent(60, model="other")
    assert take(first)
    assert not take(second, model="other")
    assert not take(first)
    assert (row().probe_id, events()) == (first.pk, ["probe_taken"])


def test_a_probe_must_pass_account_and_model_or_takes_neither() -> None:
    half_open()
    half_open(MODEL, probe_id=uuid.uuid4(), probe_until=at(100))
    task = sent(60)
    assert not take(task)
    assert row().probe_id is None
    ProviderState.objects.filter(model=MODEL).update(probe_id=None, probe_until=None)
    assert take(task)
    assert {found.probe_id for found in ProviderState.objects.all()} == {task.pk}


def test_where_nothing_is_half_open_no_lease_is_needed_and_a_shut_way_gives_none() -> None:
    task = sent(60)
    assert take(task)
    state = factories.provider_state(NOW, "paused")
    assert not take(task)
    state.delete()
    down(MODEL)
    assert not take(task)
    assert events() == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("same_model", [True, False])
def test_of_two_processes_one_gets_the_probe(two: Two, same_model: bool) -> None:
    half_open()
    first, second = sent(60), sent(60, model=MODEL if same_model else "other")
    race = two.race(lambda: take(first), lambda: take(second, model=second.target.model))
    assert (race.waited, race.first.value, race.second.value) == (True, True, False)
    assert (row().probe_id, events()) == (first.pk, ["probe_taken"])


@pytest.mark.django_db(transaction=True)
def test_the_probe_of_a_process_that_is_killed_at_its_commit_goes_to_the_other(two: Two) -> None:
    half_open()
    first, second = sent(60), sent(60)
    race = two.race(lambda: take(first), lambda: take(second), dies=True)
    assert (race.first.killed, race.second.value) == (True, True)
    assert row().probe_id == second.pk


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "held_at", [COMMIT, Point('UPDATE "providers_providerstate"')], ids=["commit", "update"]
)
def test_two_processes_with_a_failure_each_count_both(two: Two, held_at: Point) -> None:
    learn(*[lost(sent(n), n) for n in range(3)])
    facts = [lost(sent(5), 5), lost(sent(6), 6)]
    record(facts=facts)

    def note(fact: Fact) -> None:
        outcomes.note_outcomes(facts=[fact], poll_deadline_s=DEADLINE_S, now=fact.at)

    race = two.race(lambda: note(facts[0]), lambda: note(facts[1]), at=held_at)
    assert race.waited
    assert (row().gate, events()) == ("open", ["opened"])


@pytest.mark.django_db(transaction=True)
def test_two_first_failures_make_one_row(two: Two) -> None:
    facts = [lost(sent(5), 5), lost(sent(6), 6)]
    record(facts=facts)

    def note(fact: Fact) -> None:
        outcomes.note_outcomes(facts=[fact], poll_deadline_s=DEADLINE_S, now=fact.at)

    two.race(lambda: note(facts[0]), lambda: note(facts[1]))
    assert (rows(), row().sends_failed) == ({"": "closed"}, 2)


def probing(**values: Any) -> ProviderTask:
    task = sent(60, **values)
    half_open(probe_id=task.pk, probe_until=at(180))
    return task


def test_a_probe_ends_the_outage_with_its_job_and_not_with_its_acceptance() -> None:
    task = probing()
    learn(good(task, 61))
    found = row()
    assert (found.gate, found.probe_until) == ("half_open", at(60 + DEADLINE_S))
    learn(verdict(task, 100))
    found = row()
    assert (found.gate, found.state, found.closed_at, found.ramp) == ("closed", "available", at(100), 1)  # fmt: skip
    assert events() == ["closed"]
    assert ProviderEvent.objects.get().data["lasted_s"] == 100.0


@pytest.mark.parametrize(
    "make",
    [
        lost,
        unsent,
        lambda task, seconds: refused(task, "down", seconds),
        lambda task, seconds: verdict(task, seconds, failure="down"),
        lambda task, seconds: verdict(task, seconds, files=[]),  # and no further fetch is due
    ],
)
def test_a_probe_that_fails_opens_it_for_longer(make: Any) -> None:
    learn(make(probing(), 70))
    found = row()
    assert (found.gate, found.next_try_at, found.opened_at) == ("open", at(70 + 120), NOW)
    assert (found.probe_id, events(model="")) == (None, ["still_down"])


@pytest.mark.condition("R61")
@pytest.mark.parametrize(
    "make",
    [
        lambda task, seconds: refused(task, "rejected", seconds),
        lambda task, seconds: refused(task, "rate_limited", seconds),
        lambda task, seconds: unsent(task, seconds, ours=True),
        lambda task, seconds: lost(task, seconds, evidence=None),
        lambda task, seconds: verdict(task, seconds, failure="down", last_status="cancelled"),
    ],
)
def test_a_probe_that_says_nothing_gives_its_lease_back_and_the_next_job_probes(make: Any) -> None:
    """R61: a probe whose outcome the breaker ignored left it half-open for ever."""
    learn(make(probing(), 70))
    found = row()
    assert (found.gate, found.probe_id, events()) == ("half_open", None, ["probe_returned"])
    assert take(sent(71), 71)


def test_a_probe_withdrawn_by_a_cancel_is_given_back_by_the_sweep() -> None:
    task = probing(armed=False)
    staff.cancel(job_id=task.job_id, actor=None, now=at(61))
    assert providers.settle_probes(poll_deadline_s=DEADLINE_S, now=at(62)) == 1
    assert (row().gate, row().probe_id) == ("half_open", None)


@pytest.mark.condition("R63")
def test_a_probe_of_a_dead_process_has_failed_when_its_lease_is_over() -> None:
    """R63: a hung probe, or one of a process that died, held the only permit for ever."""
    probing()
    assert providers.settle_probes(poll_deadline_s=DEADLINE_S, now=at(179)) == 0
    assert row().probe_id is not None
    assert providers.settle_probes(poll_deadline_s=DEADLINE_S, now=at(180)) == 1
    assert (row().gate, row().next_try_at) == ("open", at(300))


def test_a_note_that_was_lost_with_its_process_is_made_up_for_from_the_facts() -> None:
    task = probing()
    record(facts=[good(task, 61), verdict(task, 100)])
    assert providers.settle_probes(poll_deadline_s=DEADLINE_S, now=at(101)) == 1
    assert row().gate == "closed"
    assert providers.settle_probes(poll_deadline_s=DEADLINE_S, now=at(102)) == 0


@pytest.mark.condition("R70")
def test_no_success_closes_it_but_the_probes() -> None:
    """R70: a circuit with 60 s of cooldown closed within 3 s, on the next success of anybody."""
    down()
    earlier = sent(-5)
    learn(good(earlier, 1))
    learn(verdict(earlier, 2))
    assert row().gate == "open"
    half_open(probe_id=uuid.uuid4(), probe_until=at(500))
    learn(good(sent(60), 61))
    assert row().gate == "half_open"


def test_the_ramp_grows_with_sends_of_after_the_outage() -> None:
    factories.provider_state(NOW, closed_at=NOW, ramp=1)
    learn(good(sent(-3), 1))
    assert row().ramp == 1
    learn(good(sent(1), 2))
    assert row().ramp == 2
    learn(*[good(sent(3), 4) for _ in range(30)])
    assert (row().ramp, row().state, events()) == (None, "available", [])


@pytest.mark.condition("R65")
def test_reading_and_starting_anew_change_nothing_of_an_open_breaker() -> None:
    """R65: each new process that built its breaker set the shared one to closed."""
    down()
    target = factories.target()
    account = factories.account(NOW)
    before = ProviderState.objects.values().get()
    providers.ensure_account(provider="polza", fingerprint=account.fingerprint, now=at(9))
    rooms.rooms(targets={target.pk: (account.pk, MODEL)}, late=NOW, patience_s=120, now=at(9))
    rooms.told(account_id=account.pk, model=MODEL, late=NOW, now=at(9))
    row().health()
    assert ProviderState.objects.values().get() == before
    assert events() == []


# --- free reads -------------------------------------------------------------------------------------------------------


def due(seconds: float = 60) -> list[int]:
    fingerprints = [factories.account(NOW).fingerprint]
    return [
        one.state_id for one in providers.take_reads(fingerprints=fingerprints, now=at(seconds))
    ]


def test_a_due_read_is_taken_by_one_lane_and_again_when_that_one_is_gone() -> None:
    state = down()
    assert due(59) == []
    assert due(60) == [state.pk]
    assert due(61) == []
    assert due(120) == [state.pk]


@pytest.mark.django_db(transaction=True)
def test_of_two_lanes_one_reads(two: Two) -> None:
    state = down()
    race = two.race(due, due)
    assert (race.first.value, race.second.value) == ([state.pk], [])


def test_paused_rows_and_keys_of_others_are_not_read() -> None:
    down(account=factories.account(NOW, fingerprint="another"))
    state = down(MODEL)
    ProviderState.objects.filter(pk=state.pk).update(state="paused")
    assert due() == []


def test_the_read_decides_and_the_second_one_finds_nothing_due() -> None:
    state = down()
    assert due() == [state.pk]
    assert providers.note_free_read(state_id=state.pk, read=Read.BAD, now=at(61))
    assert (row().next_try_at, row().look_until) == (at(61 + 120), None)
    assert not providers.note_free_read(state_id=state.pk, read=Read.GOOD, now=at(62))
    assert due(181) == [state.pk]
    assert providers.note_free_read(state_id=state.pk, read=Read.GOOD, now=at(182))
    assert (row().gate, row().state) == ("half_open", "down")
    assert events() == ["still_down", "half_open"]


def test_an_outage_that_ends_while_no_job_waits_is_told_step_by_step() -> None:
    state = down()

    def told(now: datetime) -> str:
        return in_words(word(row().health(), now=now), now=now)

    assert told(at(1)) == "down, next try 12:01"
    assert told(at(60)) == "down, being checked"
    providers.note_free_read(state_id=state.pk, read=Read.GOOD, now=at(60))
    assert told(at(9_999_999)) == "down, the next job is the probe"
    task = sent(100)
    assert take(task, 100)
    assert told(at(101)) == "down, a probe is on its way"
    learn(good(task, 101), verdict(task, 140))
    assert told(at(141)) == "available, starting gently"


def test_a_moment_of_another_day_is_told_with_its_date() -> None:
    quota = factories.provider_state(NOW, "quota_exhausted", blocked_until=at(86_400 * 2))
    told = word(quota.health(), now=NOW)
    assert in_words(told, now=NOW) == "quota exhausted until March 3, 12:00"


# --- refusals ---------------------------------------------------------------------------------------------------------


def refuse(
    failure: FailureClass, *, seconds: float = 0, target: Target | None = None, **values: Any
) -> None:
    account, target = factories.account(NOW), target or factories.target()
    refusal = Refusal(failure, Charge.NONE, f"said {failure}", **values)
    providers.note_refusals(
        refusals=[(account.pk, target.pk, target.model, refusal)], now=at(seconds)
    )


def test_a_block_lasts_as_long_as_was_told_with_its_kind() -> None:
    refuse(FailureClass.RATE_LIMITED, wait_s=30)
    found = row()
    assert (found.state, found.block, found.ramp) == ("throttled", "throttled", 1)
    assert at(30) <= found.blocked_until <= at(32)  # type: ignore[operator]
    assert events() == ["throttled"]


def test_twenty_refusals_of_one_moment_are_one_event() -> None:
    for number in range(20):
        refuse(FailureClass.RATE_LIMITED, wait_s=30, seconds=number / 10)
    assert events() == ["throttled"]


def test_a_short_wait_does_not_shorten_a_quota_block_nor_rename_it() -> None:
    refuse(FailureClass.QUOTA_EXHAUSTED)
    until = row().blocked_until
    refuse(FailureClass.RATE_LIMITED, wait_s=5)
    found = row()
    assert (found.state, found.block, found.blocked_until) == ("quota_exhausted", "quota_exhausted", until)  # fmt: skip
    assert found.reason == "said quota_exhausted"
    assert word(found.health(), now=at(9)).word is Word.QUOTA_EXHAUSTED
    assert until is not None
    assert word(found.health(), now=until).word is Word.AVAILABLE


def test_a_refusal_of_one_model_blocks_that_model() -> None:
    refuse(FailureClass.QUOTA_EXHAUSTED, wait_s=60, scope=Scope.MODEL)
    assert list(rows()) == [MODEL]


def test_a_refusal_while_paused_is_kept_and_the_pause_stays(person: User) -> None:
    account = factories.account(NOW)
    providers.pause(account_id=account.pk, actor=person, now=NOW, reason="their maintenance")
    refuse(FailureClass.QUOTA_EXHAUSTED)
    assert (row().state, row().block) == ("paused", "quota_exhausted")
    providers.resume(account_id=account.pk, actor=person, now=at(5))
    assert (row().state, row().reason) == ("quota_exhausted", "said quota_exhausted")


def test_a_rejected_key_is_down_until_a_read_succeeds() -> None:
    refuse(FailureClass.UNAUTHORIZED, scope=Scope.MODEL)
    found = row()
    assert (found.gate, found.cause, found.state) == ("open", "key", "down")
    refuse(FailureClass.UNAUTHORIZED, seconds=3)
    assert (events(), row().next_try_at) == (["key_rejected"], at(60))
    assert providers.note_free_read(state_id=found.pk, read=Read.GOOD, now=at(60))
    assert (row().state, events()) == ("available", ["key_rejected", "closed"])


def test_content_refusals_change_no_state_and_a_wrong_model_stops_its_target_once() -> None:
    refuse(FailureClass.REJECTED)
    assert (rows(), events()) == ({}, [])
    for _ in range(2):
        refuse(FailureClass.REJECTED, target_stops=True)
    assert Target.objects.get().stopped_reason == "said rejected"
    assert (rows(), events()) == ({}, ["target_stopped"])


@pytest.mark.django_db(transaction=True)
def test_of_two_blocks_at_once_the_longer_one_stands(two: Two) -> None:
    factories.target()
    factories.account(NOW)
    long = lambda: refuse(FailureClass.QUOTA_EXHAUSTED, wait_s=7200)  # noqa: E731
    short = lambda: refuse(FailureClass.RATE_LIMITED, wait_s=5)  # noqa: E731
    for first, second in ((long, short), (short, long)):
        ProviderState.objects.all().delete()
        race = two.race(first, second)
        assert race.waited
        found = row()
        assert (found.block, found.blocked_until >= at(7200)) == ("quota_exhausted", True)  # type: ignore[operator]


# --- staff ------------------------------------------------------------------------------------------------------------


def test_each_verb_of_staff_is_told_with_its_person_and_refused_the_second_time(
    person: User,
) -> None:
    common: dict[str, Any] = {"account_id": factories.account(NOW).pk, "actor": person, "now": NOW}
    verbs: list[tuple[Any, dict[str, Any], str]] = [
        (providers.pause, {"reason": "holiday"}, "paused"),
        (providers.resume, {}, "resumed"),
        (providers.block_until, {"until": at(3600), "reason": "asked to"}, "blocked"),
        (providers.unblock, {}, "unblocked"),
    ]
    for verb, values, kind in verbs:
        verb(**common, **values)
        assert (events()[-1], ProviderEvent.objects.last().actor_id) == (kind, person.pk)  # type: ignore[union-attr]
        before = ProviderState.objects.values().get()
        with pytest.raises(Refused):
            verb(**common, **values)
        assert ProviderState.objects.values().get() == before
    assert len(events()) == 4


@pytest.mark.parametrize("verb", [providers.resume, providers.unblock, providers.probe_now])
def test_verbs_without_anything_to_do_make_no_row(verb: Any) -> None:
    with pytest.raises(Refused):
        verb(account_id=factories.account(NOW).pk, actor=None, now=NOW)
    assert rows() == {}


def test_a_block_in_the_past_is_refused() -> None:
    with pytest.raises(Refused):
        providers.block_until(account_id=factories.account(NOW).pk, until=NOW, actor=None, now=NOW)


@pytest.mark.django_db(transaction=True)
def test_of_two_people_who_pause_one_is_told_that_it_is_paused(two: Two) -> None:
    account_id = factories.account(NOW).pk

    def pause() -> None:
        providers.pause(account_id=account_id, actor=None, now=NOW, reason="")

    race = two.race(pause, pause)
    assert (race.first.refused, race.second.refused) == ("", "It is paused already.")
    assert events() == ["paused"]


def test_staff_may_have_a_provider_tried_now() -> None:
    down(next_try_at=at(900))
    providers.probe_now(account_id=factories.account(NOW).pk, actor=None, now=at(5))
    assert due(5) == [row().pk]


def test_topped_up_is_decided_by_the_balance(person: User) -> None:
    account = factories.account(NOW)
    factories.target("cheap", price=Decimal(3))
    factories.target("dear", price=Decimal(30))
    refuse(FailureClass.QUOTA_EXHAUSTED)
    refuse(FailureClass.QUOTA_EXHAUSTED, scope=Scope.MODEL)
    refuse(FailureClass.RATE_LIMITED, scope=Scope.MODEL, wait_s=60, target=factories.target("dear"))

    def say(balance: Decimal | None) -> int:
        return providers.topped_up(
            account_id=account.pk, balance=balance, currency="RUB", actor=person, now=at(9)
        )

    for too_little in (None, Decimal(0), Decimal("2.99")):
        with pytest.raises(Refused):
            say(too_little)
    assert set(ProviderState.objects.values_list("state", flat=True)) == {"quota_exhausted", "throttled"}  # fmt: skip
    assert say(Decimal(3)) == 2
    states = dict(ProviderState.objects.values_list("model", "state"))
    assert states == {"": "available", MODEL: "available", "dear": "throttled"}
    account.refresh_from_db()
    assert (account.balance, account.balance_at) == (Decimal(3), at(9))
    assert say(Decimal(3)) == 0


# --- rooms ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> dict[int, tuple[int, str]]:
    """Two targets of one account."""
    account = factories.account(NOW)
    targets = [factories.target(), factories.target("other")]
    return {target.pk: (account.pk, target.model) for target in targets}


def look(
    pair: dict[int, tuple[int, str]], seconds: float = 0
) -> tuple[rooms.Rooms, list[int | None]]:
    """The rooms, and what is left of each target."""
    found = rooms.rooms(
        targets=pair, late=at(seconds - DEADLINE_S), patience_s=120, now=at(seconds)
    )
    return found, [found.left(target_id) for target_id in pair]


def left(pair: dict[int, tuple[int, str]], seconds: float = 0) -> list[int | None]:
    return look(pair, seconds)[1]


def window(**values: Any) -> QuotaWindow:
    return QuotaWindow.objects.create(account=factories.account(NOW), **values)


Pair = dict[int, tuple[int, str]]


def test_nothing_limits_a_healthy_provider(pair: Pair) -> None:
    factories.provider_state(NOW)
    assert left(pair) == [None, None]


def test_paused_blocked_and_down_leave_no_room(pair: Pair) -> None:
    state = factories.provider_state(NOW, "paused")
    assert left(pair) == [0, 0]
    state.delete()
    factories.provider_state(NOW, "throttled", model=MODEL, blocked_until=at(5))
    assert (left(pair, 4.9), left(pair, 5)) == ([0, None], [None, None])
    down("other")
    assert left(pair, 500) == [None, 0]


def test_half_open_leaves_room_for_one_over_all_targets_and_names_them(pair: Pair) -> None:
    half_open()
    found, numbers = look(pair, 60)
    assert (numbers, found.probes) == ([1, 1], set(pair))
    found.take(next(iter(pair)))
    assert [found.left(target_id) for target_id in pair] == [0, 0]
    ProviderState.objects.update(probe_id=uuid.uuid4(), probe_until=at(100))
    found, numbers = look(pair, 500)  # even when its lease is over: it must be settled first
    assert (numbers, found.probes) == ([0, 0], set())


def test_the_ramp_counts_sends_without_an_answer_since_it_began(pair: Pair) -> None:
    factories.provider_state(NOW, closed_at=NOW, ramp=4)
    sent(-10)  # from before
    sent(2)
    sent(3, model="other", armed=False, created_at=at(3))
    factories.accepted(factories.job(NOW, JobState.ACTIVE), NOW, armed_at=at(4))
    found, numbers = look(pair, 5)
    assert (numbers, found.probes) == ([2, 2], set())
    found.take(next(iter(pair)))
    assert [found.left(target_id) for target_id in pair] == [1, 1]


def test_a_window_in_flight_counts_what_is_under_way(pair: Pair) -> None:
    window(seconds=None, most=4)
    window(seconds=None, most=2, model="other")
    sent(1)
    sent(2, model="other", armed=False, created_at=at(2))
    factories.accepted(factories.job(NOW, JobState.ACTIVE), NOW, armed_at=at(-DEADLINE_S - 1))
    assert left(pair) == [2, 1]


def test_a_rolling_window_counts_what_may_have_arrived_within_it(pair: Pair) -> None:
    window(seconds=60, most=5)
    learn(good(sent(0), 4))  # arrived by second 4: counts until 64
    learn(refused(sent(1), "rate_limited", 1))
    learn(unsent(sent(2), 3))
    sent(3, armed=False, created_at=at(3))
    assert left(pair, 20) == [2, 2]
    assert left(pair, 61.5) == [3, 3]
    assert left(pair, 63.9) == [3, 3]
    assert left(pair, 64.1) == [4, 4]


def test_what_is_still_under_way_counts_until_its_fence(pair: Pair) -> None:
    window(seconds=60, most=1)
    sent(0)
    assert (left(pair, 69.9), left(pair, 70.1)) == ([0, 0], [1, 1])


def test_refusals_use_up_requests_and_no_generations(pair: Pair) -> None:
    window(seconds=86_400, most=5)
    learn(refused(sent(1), "rejected", 1), good(sent(1), 1))
    assert left(pair, 10) == [4, 4]


def test_a_model_has_windows_of_its_own(pair: Pair) -> None:
    window(seconds=60, most=1, model="other")
    learn(good(sent(1), 1), good(sent(1, model="other"), 1))
    assert left(pair, 10) == [None, 0]


def test_windows_are_exact_to_the_last_place(pair: Pair) -> None:
    window(seconds=3600, most=40)
    for number in range(40):
        assert left(pair, 100) == [40 - number] * 2
        learn(good(sent(number), number))
    assert left(pair, 100) == [0, 0]
    [used] = rooms.usage(account_ids=[factories.account(NOW).pk], late=NOW, now=at(100))
    assert (used.used, used.left, used.resets_at) == (40, 0, at(3600))
    told = rooms.told(account_id=factories.account(NOW).pk, model=MODEL, late=NOW, now=at(100))
    assert (told.word, told.until) == (Word.QUOTA_EXHAUSTED, at(3600))


def test_a_fixed_window_starts_anew_at_its_hour_by_the_wall_clock_of_its_zone(pair: Pair) -> None:
    """Midnight in Berlin over the night in which the clocks are put forward: a day of 23 hours."""
    anchor = datetime(2026, 1, 4, 23, tzinfo=UTC)  # 00:00 on 5 January
    window(seconds=86_400, most=3, resets="fixed", anchor_at=anchor, zone="Europe/Berlin")
    last, reset = datetime(2026, 3, 29, 21, 59, tzinfo=UTC), datetime(2026, 3, 29, 22, tzinfo=UTC)
    begun = datetime(2026, 3, 28, 23, tzinfo=UTC)
    account_id = factories.account(NOW).pk

    def used(now: datetime) -> tuple[int, datetime | None]:
        [one] = rooms.usage(account_ids=[account_id], late=NOW, now=now)
        return one.used, one.resets_at

    def send(moment: datetime) -> None:
        seconds = (moment - NOW).total_seconds()
        learn(good(sent(seconds), seconds), now=moment)

    send(begun - timedelta(seconds=20))
    assert used(begun - timedelta(seconds=5)) == (1, begun)
    assert used(begun) == (0, reset)
    send(begun + timedelta(seconds=1))
    assert used(last) == (1, reset)
    assert used(reset) == (0, reset + timedelta(days=1))


def test_two_limits_hold_together_and_each_send_takes_of_both(pair: Pair) -> None:
    window(seconds=60, most=3)
    window(seconds=60, most=2, model=MODEL)
    found, numbers = look(pair)
    assert numbers == [2, 3]
    first, second = pair
    found.take(first)
    assert (found.left(first), found.left(second)) == (1, 2)
    found.take(second)
    found.take(second)
    assert (found.left(first), found.left(second)) == (0, 0)


# --- arm --------------------------------------------------------------------------------------------------------------


def test_the_condition_of_arm_is_the_pure_one() -> None:
    """Over every state of the account's row times every state of the model's."""
    task, other = sent(0), uuid.uuid4()
    account = task.account
    ways: list[dict[str, Any] | None] = [
        None,
        {"state": "available"},
        {"state": "available", "ramp": 1},
        {"state": "paused"},
        {"state": "throttled", "blocked_until": at(1)},
        {"state": "throttled", "blocked_until": at(2)},
        {"state": "down", "gate": "open", "next_try_at": at(-5)},
        {"state": "down", "gate": "half_open"},
        {"state": "down", "gate": "half_open", "probe_id": other, "probe_until": at(9)},
        {"state": "down", "gate": "half_open", "probe_id": task.pk, "probe_until": at(9)},
        {"state": "down", "gate": "half_open", "probe_id": task.pk, "probe_until": at(1)},
    ]
    sql = f"""
        SELECT {rooms.MAY_ARM} FROM jobs_providertask t JOIN providers_target g ON g.id = t.target_id WHERE t.id = %(id)s
    """
    seen: Counter[bool] = Counter()
    for of_account in ways:
        for of_model in ways:
            ProviderState.objects.all().delete()
            for model, values in (("", of_account), (MODEL, of_model)):
                if values is not None:
                    ProviderState.objects.create(account=account, model=model, since=NOW, **values)
            states = rooms.states_of([account.pk]).values()
            want = all(health.may_arm(one, task_id=task.pk, now=at(1)) for one in states)
            with connection.cursor() as cursor:
                cursor.execute(sql, {"id": task.pk, "now": at(1)})
                assert cursor.fetchone() == (want,), (of_account, of_model)
            seen[want] += 1
    assert (seen[True], seen[False]) == (25, 96)


# --- what was there before --------------------------------------------------------------------------------------------


def test_the_migration_gives_old_rows_their_kind_and_an_end_to_old_outages() -> None:
    account = factories.account(NOW)
    for model, state in (
        ("a", "throttled"),
        ("b", "quota_exhausted"),
        ("c", "down"),
        ("d", "paused"),
    ):
        ProviderState.objects.create(account=account, model=model, state=state, since=NOW, blocked_until=at(9))  # fmt: skip
    fill = importlib.import_module("providers.migrations.0003_fill_breaker").fill
    with connection.schema_editor() as editor:
        fill(apps, editor)
    found = {one.model: one for one in ProviderState.objects.all()}
    assert (found["a"].block, found["b"].block, found["d"].block) == ("throttled", "quota_exhausted", "")  # fmt: skip
    told = word(found["c"].health(), now=NOW)
    assert (told.phrase, told.until) == (Phrase.KEY_REJECTED, at(9))


def test_a_new_key_takes_over_the_limits_of_the_one_before() -> None:
    window(seconds=60, most=9, model="other")
    new = providers.ensure_account(provider="polza", fingerprint="newkey", now=at(5))
    again = providers.ensure_account(provider="polza", fingerprint="newkey", now=at(6))
    assert new == again
    assert list(new.windows.values_list("seconds", "most", "model")) == [(60, 9, "other")]
