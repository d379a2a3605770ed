"""The last look before money against everything that could stop it: exactly one of the two wins, and what lost has
changed nothing. Each both ways round, and with the first killed before its COMMIT."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from django.conf import LazySettings

from jobs.lifecycle import decide as deciding
from jobs.lifecycle import providers, staff
from jobs.lifecycle.arm import arm
from jobs.lifecycle.decide import decide
from jobs.lifecycle.record import Fact, FileFact, record
from jobs.lifecycle.recover import withdraw_dead_intents
from jobs.models import Case, Hold, Job, ProviderTask
from jobs.rules import rules
from jobs.states import CaseKind, JobState
from providers.models import Target
from tests import factories
from tests.two import Point, Still, Two, Work, kinds_of, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
# The arm has locked its tasks and is about to look at everything else.
LOCKED = Point("SET armed_at")


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


@pytest.fixture
def intent(two: Two) -> ProviderTask:
    """A claimed job's intent, the run that claimed it alive or not."""
    return factories.task(factories.job(NOW, JobState.ACTIVE), NOW, armed=False)


def arms(*intents: ProviderTask, run_id: uuid.UUID | None = None) -> Work:
    """By the run that wrote the first intent, unless another is named. Gives the ids that may be sent."""
    calls = {intent.pk: (30.0, 3600.0) for intent in intents}
    return lambda: arm(run_id=run_id or intents[0].run_id, calls=calls, clock=Still(NOW))[0]


def came_to(intent: ProviderTask) -> tuple[str, str, bool]:
    """The send's state, the job's, and whether a further send is blocked."""
    task = ProviderTask.objects.select_related("job").get(pk=intent.pk)
    return task.state, task.job.state, task.blocks_send


# --- another arm ------------------------------------------------------------------------------------------------------


def test_an_intent_is_armed_once(two: Two, intent: ProviderTask) -> None:
    race = two.race(arms(intent), arms(intent))
    assert (race.waited, race.first.value, race.second.value) == (True, {intent.pk}, set())
    assert kinds_of(intent.job_id).count("armed") == 1


def test_the_second_arms_what_the_first_died_over(two: Two, intent: ProviderTask) -> None:
    race = two.race(arms(intent), arms(intent), dies=True)
    assert (race.first.killed, race.second.value) == (True, {intent.pk})
    assert kinds_of(intent.job_id).count("armed") == 1


@pytest.mark.parametrize("zombie_first", [True, False])
def test_a_zombie_with_an_old_run_id_arms_nothing_whoever_comes_first(
    two: Two, intent: ProviderTask, zombie_first: bool
) -> None:
    works = [arms(intent, run_id=uuid.uuid4()), arms(intent)]
    race = two.race(*(works if zombie_first else works[::-1]))
    values = [race.first.value, race.second.value]
    assert values == ([set(), {intent.pk}] if zombie_first else [{intent.pk}, set()])


def test_two_arms_of_the_same_intents_in_opposite_order_do_not_lock_each_other_out(
    two: Two,
) -> None:
    run = uuid.uuid4()
    one, other = (
        factories.task(factories.job(NOW, JobState.ACTIVE), NOW, armed=False, run_id=run)
        for _ in range(2)
    )
    race = two.race(arms(one, other), arms(other, one), at=LOCKED)
    assert (race.waited, race.first.value, race.second.value) == (True, {one.pk, other.pk}, set())


# --- a person ---------------------------------------------------------------------------------------------------------

PERSON: dict[str, tuple[Callable[[Job], object], str]] = {
    "cancel": (lambda job: staff.cancel(job_id=job.pk, actor=None, now=NOW), "cancelled"),
    "mark_manual": (
        lambda job: staff.mark_manual(job_id=job.pk, actor=None, now=NOW, note="mine"),
        "manual",
    ),
    "gave_up": (
        lambda job: staff.resolve(
            job_id=job.pk, actor=None, now=NOW, outcome="gave_up", note="late"
        ),
        "failed",
    ),
}


@pytest.fixture(params=PERSON)
def person(request: pytest.FixtureRequest, intent: ProviderTask) -> tuple[Work, str]:
    """A verb that ends the machine's sending, and the state it leaves the job in."""
    verb, state = PERSON[request.param]
    return lambda: verb(intent.job), state


def test_an_arm_that_meets_a_persons_word_waits_and_sends_nothing(
    two: Two, intent: ProviderTask, person: tuple[Work, str]
) -> None:
    race = two.race(person[0], arms(intent))
    assert (race.waited, race.second.value) == (True, set())
    assert came_to(intent) == ("unsent", person[1], False)
    assert "armed" not in kinds_of(intent.job_id)


def test_an_arm_goes_out_where_the_persons_word_died_before_its_commit(
    two: Two, intent: ProviderTask, person: tuple[Work, str]
) -> None:
    race = two.race(person[0], arms(intent), dies=True)
    assert (race.waited, race.second.value) == (True, {intent.pk})
    assert came_to(intent) == ("sending", "active", True)


@pytest.mark.parametrize("at", [LOCKED, Point()], ids=["locked", "before its COMMIT"])
def test_a_persons_word_that_meets_an_arm_waits_and_leaves_the_send_watched(
    two: Two, intent: ProviderTask, person: tuple[Work, str], at: Point
) -> None:
    race = two.race(arms(intent), person[0], at=at)
    assert (race.waited, race.first.value) == (True, {intent.pk})
    assert came_to(intent) == ("sending", person[1], True)
    assert not Case.objects.filter(job=intent.job).exclude(kind=CaseKind.BY_HAND).exists()


def test_a_persons_word_withdraws_the_intent_of_an_arm_that_died(
    two: Two, intent: ProviderTask, person: tuple[Work, str]
) -> None:
    two.race(arms(intent), person[0], dies=True)
    assert came_to(intent) == ("unsent", person[1], False)


# --- the recovery of a dead lane --------------------------------------------------------------------------------------


def recovers() -> set[int]:
    return withdraw_dead_intents(live=(), now=NOW)


def test_recovery_passes_by_an_intent_that_its_slow_lane_is_arming(
    two: Two, intent: ProviderTask
) -> None:
    race = two.race(arms(intent), recovers)
    assert (race.waited, race.first.value, race.second.value) == (False, {intent.pk}, set())
    assert came_to(intent) == ("sending", "active", True)


def test_recovery_withdraws_the_intent_once_the_arm_has_died(
    two: Two, intent: ProviderTask
) -> None:
    race = two.race(arms(intent), recovers, dies=True)
    assert (race.second.value, two.b.call(recovers).value) == (set(), {intent.job_id})
    assert came_to(intent)[0] == "unsent"


def test_a_slow_lane_that_meets_the_recovery_of_its_intent_waits_and_sends_nothing(
    two: Two, intent: ProviderTask
) -> None:
    race = two.race(recovers, arms(intent))
    assert (race.waited, race.second.value, came_to(intent)[0]) == (True, set(), "unsent")


def test_a_slow_lane_sends_where_the_recovery_died(two: Two, intent: ProviderTask) -> None:
    race = two.race(recovers, arms(intent), dies=True)
    assert (race.second.value, came_to(intent)[0]) == ({intent.pk}, "sending")


def test_two_recoveries_withdraw_an_intent_once(two: Two, intent: ProviderTask) -> None:
    race = two.race(recovers, recovers)
    assert (race.waited, race.second.value) == (False, set())
    assert kinds_of(intent.job_id).count("unsent") == 1


# --- holds, pauses, blocks and stops ----------------------------------------------------------------------------------
# What must hold: an arm whose statement began after the stop's commit sends nothing. One that began before may go out:
# the button stops new spending, it does not call back what is on its way.

STOPS: dict[str, Callable[[ProviderTask], object]] = {
    "red button": lambda _: staff.press_red_button(actor=None, now=NOW, reason=""),
    "restore": lambda _: Hold.objects.create(kind=Hold.Kind.RESTORE, set_at=NOW),
    "stopped": lambda at: Target.objects.filter(pk=at.target_id).update(stopped_at=NOW),
    "disabled": lambda at: Target.objects.filter(pk=at.target_id).update(enabled=False),
    "account paused": lambda at: providers.pause(
        account_id=at.account_id, actor=None, now=NOW, reason=""
    ),
    "model paused": lambda at: providers.pause(
        account_id=at.account_id, model=factories.MODEL, actor=None, now=NOW, reason=""
    ),
    "blocked": lambda at: providers.block_until(
        account_id=at.account_id, until=NOW + timedelta(minutes=1), actor=None, now=NOW
    ),
}


@pytest.fixture(params=STOPS)
def stop(request: pytest.FixtureRequest, intent: ProviderTask) -> Work:
    return lambda: STOPS[request.param](intent)


def test_an_arm_whose_statement_begins_after_the_stops_commit_sends_nothing(
    two: Two, intent: ProviderTask, stop: Work
) -> None:
    race = two.race(arms(intent), stop, at=LOCKED)
    assert (race.waited, race.first.value) == (False, set())
    assert came_to(intent) == ("intent", "active", True)


def test_an_arm_that_looked_before_the_stops_commit_may_go_out_and_holds_nobody_up(
    two: Two, intent: ProviderTask, stop: Work
) -> None:
    race = two.race(arms(intent), stop)
    assert (race.waited, race.first.value) == (False, {intent.pk})
    assert came_to(intent) == ("sending", "active", True)


@pytest.mark.parametrize("dies", [False, True])
def test_a_press_that_is_not_committed_stops_nobody_yet(
    two: Two, intent: ProviderTask, dies: bool
) -> None:
    race = two.race(lambda: STOPS["red button"](intent), arms(intent), dies=dies)
    assert (race.waited, race.second.value) == (False, {intent.pk})
    assert Hold.objects.exists() is not dies


def test_an_arm_sends_nothing_for_a_job_that_was_set_aside_a_moment_ago(
    two: Two, intent: ProviderTask
) -> None:
    def sets_aside() -> None:
        deciding._set_aside(intent.job_id, now=NOW, why="ValueError")

    race = two.race(arms(intent), sets_aside, at=LOCKED)
    assert (race.waited, race.first.value) == (False, set())
    assert came_to(intent) == ("intent", "manual", True)


# --- a result that makes the send needless ----------------------------------------------------------------------------


def result_undecided(intent: ProviderTask) -> ProviderTask:
    """An earlier send of the same job, given up by a person's word, has just been stored."""
    earlier = factories.accepted(
        intent.job, NOW, armed_at=NOW - timedelta(hours=1), blocks_send=False
    )
    ProviderTask.objects.filter(pk=earlier.pk).update(released_by="person")
    file = FileFact(
        position=0, key="a.png", thumb_key="a.webp", sha256="0" * 64, media_type="image/png", size_bytes=3
    )  # fmt: skip
    fact = Fact(
        task_id=earlier.pk, at=NOW, kind="stored", decides=True, completed=True, stored=True,
        cost_poll=Decimal(7), results=(file,),
    )  # fmt: skip
    record(facts=[fact])
    return earlier


def decides(job_id: int) -> Work:
    return lambda: decide(job_ids=[job_id], rules=rules(), now=NOW, rng=random.Random(1))


def test_an_arm_that_meets_the_decision_for_a_stored_result_waits_and_sends_nothing(
    two: Two, intent: ProviderTask
) -> None:
    result_undecided(intent)
    race = two.race(decides(intent.job_id), arms(intent))
    assert (race.waited, race.second.value) == (True, set())
    assert came_to(intent) == ("unsent", "succeeded", False)


def test_a_send_that_was_armed_before_the_decision_stays_watched_as_a_second_payment(
    two: Two, intent: ProviderTask
) -> None:
    result_undecided(intent)
    race = two.race(arms(intent), decides(intent.job_id))
    assert (race.waited, race.first.value) == (True, {intent.pk})
    assert came_to(intent) == ("sending", "succeeded", True)
    case = Case.objects.get(job=intent.job_id)
    assert (case.kind, case.task_id) == (CaseKind.PAID_TWICE, intent.pk)
