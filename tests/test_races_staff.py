"""Two people at one job at the same moment, or a person and the machine: what comes of it is what would have come of one
after the other. The second is told what is the matter, and its effect is nothing."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth.models import User

from jobs.lifecycle import decisions, staff
from jobs.lifecycle.arm import arm
from jobs.lifecycle.decide import decide
from jobs.lifecycle.record import Fact, FileFact, record
from jobs.lifecycle.recover import undecided_jobs, withdraw_dead_intents
from jobs.models import Case, Job, ProviderTask, Result, SpoolHost
from jobs.rules import rules
from jobs.states import BLOCKING_CASES, CaseKind, JobState
from providers.models import Target
from tests import factories
from tests.two import COMMIT, Outcome, Point, Race, Rows, Still, Two, Work, rows_of, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(minutes=70)
REJECTED = {"refusal_class": "rejected", "failure_class": "rejected"}


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


# --- the jobs they meet at --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    job: Job
    task: ProviderTask
    other: Target
    case: Case | None = None

    @property
    def found_id(self) -> str:
        """What the provider's dashboard calls the lost send."""
        return f"found {self.task.pk}"


def _scene(
    state: JobState,
    make: Callable[[Job], ProviderTask],
    case: CaseKind | None = None,
    **values: Any,
) -> Scene:
    """The job's other target is open. A case that holds the job up is about its send."""
    other = factories.target("other")
    route = [factories.target().pk, other.pk]
    job = factories.job(NOW, state, route=route, created_at=LONG_AGO, reason=case or "", **values)
    task = make(job)
    by = task if case in BLOCKING_CASES else None
    return Scene(job, task, other, factories.case(case, NOW, of=job, by=by) if case else None)


def intent() -> Scene:
    """Claimed, and about to be armed."""
    return _scene(JobState.ACTIVE, lambda job: factories.task(job, NOW, armed=False))


def lost() -> Scene:
    """Sent, the outcome unknown, and a person asked to look."""
    later = NOW + timedelta(minutes=5)
    # Its host has replayed its spool: nobody's answer lies there any more.
    SpoolHost.objects.update_or_create(host="desk-1", defaults={"clear_at": NOW})
    return _scene(
        JobState.MANUAL,
        lambda job: factories.lost(job, NOW, armed_at=LONG_AGO, next_look_at=later),
        CaseKind.UNKNOWN_SEND,
    )


def refused() -> Scene:
    """Failed for good, at no cost."""
    facts: dict[str, Any] = {
        "armed_at": LONG_AGO,
        "refused_at": LONG_AGO,
        "blocks_send": False,
        **REJECTED,
    }
    return _scene(
        JobState.FAILED, lambda job: factories.task(job, NOW, **facts), CaseKind.REFUSED_BY_ALL
    )


def charged() -> Scene:
    """Failed at the provider, which kept the money; a person asked to look."""
    facts: dict[str, Any] = {
        "armed_at": LONG_AGO,
        "failed_at": LONG_AGO,
        "failure_class": "down",
        "cost_receipt": Decimal(7),
        "receipt_final_at": LONG_AGO,
    }

    def make(job: Job) -> ProviderTask:
        pk = uuid.uuid4()
        return factories.accepted(job, NOW, id=pk, provider_id=f"at {pk}", **facts)

    return _scene(JobState.MANUAL, make, CaseKind.FAILED_BUT_CHARGED)


def late() -> Scene:
    """Given up by a person; then its result came after all, and is kept."""
    facts: dict[str, Any] = {
        "armed_at": LONG_AGO,
        "completed_at": LONG_AGO,
        "stored_at": NOW,
        "cost_poll": Decimal(7),
        "blocks_send": False,
        "released_by": "person",
    }

    def make(job: Job) -> ProviderTask:
        pk = uuid.uuid4()
        send = factories.accepted(job, NOW, id=pk, provider_id=f"at {pk}", **facts)
        Result.objects.create(
            job=job, task=send, key="late.png", sha256="0" * 64, media_type="image/png", size_bytes=3, created_at=NOW
        )  # fmt: skip
        return send

    return _scene(JobState.FAILED, make, CaseKind.LATE_RESULT, decided_at=LONG_AGO)


def late_undecided() -> Scene:
    """The same, just recorded; nobody has been told."""
    scene = late()
    Case.objects.filter(job=scene.job).delete()
    ProviderTask.objects.filter(pk=scene.task.pk).update(undecided_since=NOW)
    return Scene(scene.job, scene.task, scene.other)


def charged_undecided() -> Scene:
    """Its receipt has just been recorded."""
    scene = charged()
    Case.objects.filter(job=scene.job).delete()
    Job.objects.filter(pk=scene.job.pk).update(state=JobState.ACTIVE, reason="")
    ProviderTask.objects.filter(pk=scene.task.pk).update(undecided_since=NOW)
    return Scene(scene.job, scene.task, scene.other)


def at_provider() -> Scene:
    """Accepted and watched."""

    def make(job: Job) -> ProviderTask:
        pk = uuid.uuid4()
        return factories.accepted(job, NOW, id=pk, provider_id=f"at {pk}", next_poll_at=NOW)

    return _scene(JobState.ACTIVE, make)


def found_undecided() -> Scene:
    """Its id has just been recorded; nobody has decided what that means."""
    scene = lost()
    ProviderTask.objects.filter(pk=scene.task.pk).update(
        provider_id=scene.found_id, accepted_at=NOW, next_poll_at=NOW, next_look_at=None, undecided_since=NOW
    )  # fmt: skip
    return scene


def refused_undecided() -> Scene:
    """A refusal for nothing has just been recorded; the route has one more target."""
    facts: dict[str, Any] = {"refused_at": NOW, "undecided_since": NOW, **REJECTED}
    return _scene(JobState.ACTIVE, lambda job: factories.task(job, NOW, **facts))


# --- what they do -----------------------------------------------------------------------------------------------------

Verb = Callable[[Scene, User], object]


def _decide(job_ids: set[int]) -> None:
    decide(job_ids=job_ids, rules=rules(), now=NOW, rng=random.Random(1))


def _learn(scene: Scene, **values: Any) -> None:
    record(facts=[Fact(task_id=scene.task.pk, at=NOW, decides=True, **values)])


def _stored(scene: Scene) -> None:
    file = FileFact(
        position=0, key="a.png", thumb_key="", sha256="0" * 64, media_type="image/png", size_bytes=3
    )
    _learn(scene, kind="stored", completed=True, stored=True, cost_poll=Decimal(7), results=(file,))


def _attach(scene: Scene, who: User) -> None:
    staff.attach_provider_id(
        task_id=scene.task.pk, provider_id=scene.found_id, actor=who, now=NOW, reason="", poll_at=NOW
    )  # fmt: skip


def _result(scene: Scene) -> int:
    return Result.objects.filter(job=scene.job).values_list("pk", flat=True).first() or 0


def _case_id(scene: Scene) -> int:
    assert scene.case is not None
    return scene.case.pk


STAFF: dict[str, Verb] = {
    "retry": lambda at, who: staff.retry(job_id=at.job.pk, actor=who, now=NOW),
    "resend": lambda at, who: staff.resend(job_id=at.job.pk, actor=who, now=NOW, reason=""),
    "retarget": lambda at, who: staff.retry_on_target(
        job_id=at.job.pk, target_id=at.other.pk, actor=who, now=NOW
    ),
    "mark_manual": lambda at, who: staff.mark_manual(
        job_id=at.job.pk, actor=who, now=NOW, note=who.username
    ),
    "done": lambda at, who: staff.resolve(
        job_id=at.job.pk, actor=who, now=NOW, outcome="done", note="drew it"
    ),
    "gave_up": lambda at, who: staff.resolve(
        job_id=at.job.pk, actor=who, now=NOW, outcome="gave_up", note="too late"
    ),
    "cancel": lambda at, who: staff.cancel(job_id=at.job.pk, actor=who, now=NOW),
    "poll_now": lambda at, who: staff.poll_now(task_id=at.task.pk, actor=who, now=NOW),
    "attach": _attach,
    "edit": lambda at, who: decisions.retry_edited(
        job_id=at.job.pk, prompt="something else", actor=who, now=NOW
    ),
    "absent": lambda at, who: decisions.confirm_absent(
        task_id=at.task.pk, actor=who, now=NOW, reason="Olga"
    ),
    "refund": lambda at, who: decisions.mark_refunded(
        task_id=at.task.pk, actor=who, now=NOW, reference="R-1"
    ),
    "write_off": lambda at, who: decisions.write_off(
        task_id=at.task.pk, actor=who, now=NOW, note="too small"
    ),
    "deliver": lambda at, who: decisions.deliver_instead(
        job_id=at.job.pk, result_id=_result(at), actor=who, now=NOW
    ),
}
CASES: dict[str, Verb] = {
    "take": lambda at, who: staff.take_case(case_id=_case_id(at), actor=who, now=NOW),
    "note": lambda at, who: staff.note_case(
        case_id=_case_id(at), actor=who, now=NOW, note="asked them"
    ),
    "close": lambda at, who: staff.close_case(
        case_id=_case_id(at), actor=who, now=NOW, resolution="seen", note="looked"
    ),
}
DECISIONS = frozenset({"edit", "absent", "refund", "write_off", "deliver"})
MACHINE: dict[str, Verb] = {
    "decide": lambda at, who: _decide({at.job.pk}),
    "arm": lambda at, who: arm(
        run_id=at.task.run_id, calls={at.task.pk: (30.0, 3600.0)}, clock=Still(NOW)
    ),
    "lane_died": lambda at, who: withdraw_dead_intents(live=(), now=NOW),
    "found": lambda at, who: _learn(at, kind="found", provider_id=at.found_id, next_poll_at=NOW),
    "stored": lambda at, who: _stored(at),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A scene, who meets there, and `about`: at least one of the two is of these."""

    make: Callable[[], Scene]
    verbs: dict[str, Verb]
    about: Set[str]


def _stage(
    make: Callable[[], Scene], people: dict[str, Verb], *machine: str, about: Set[str] = frozenset()
) -> Any:
    verbs = people | {name: MACHINE[name] for name in machine}
    return pytest.param(Stage(make, verbs, about or verbs.keys()), id=make.__name__)


STAGES = [
    _stage(intent, STAFF, "arm", "lane_died"),
    _stage(lost, STAFF | CASES, "found", "stored"),
    _stage(refused, STAFF | CASES, "found"),
    _stage(at_provider, STAFF, "stored", about={"poll_now", "stored"}),
    _stage(found_undecided, STAFF | CASES, "decide", about={"decide"}),
    _stage(refused_undecided, STAFF, "decide", about={"decide"}),
    _stage(charged, STAFF | CASES, "stored", about={*DECISIONS, "stored"}),
    _stage(charged_undecided, STAFF, "decide", about={"decide"}),
    _stage(late, STAFF | CASES, about=DECISIONS),
    _stage(late_undecided, STAFF, "decide", about={"decide"}),
]
# Who comes too late: after the first, these are refused. Whoever is not named here has an effect of their own.
TOO_LATE: dict[str, dict[str, str]] = {
    "intent": {
        "arm": "retarget retry",
        "cancel": "cancel done gave_up",
        "done": "cancel done gave_up mark_manual retarget retry",
        "gave_up": "cancel gave_up",
        "lane_died": "retarget retry",
        "mark_manual": "mark_manual",
    },
    "lost": {
        "absent": "absent close resend retry take",
        "attach": "absent attach close refund retarget retry take write_off",
        "cancel": "cancel done gave_up retarget retry",
        "done": "absent cancel close done gave_up mark_manual resend retarget retry take",
        "found": "absent attach close refund retarget retry write_off",
        "gave_up": "cancel close gave_up retarget retry take",
        "mark_manual": "close mark_manual retarget retry",
        "note": "close retarget retry",
        "refund": "absent cancel close refund resend take write_off",
        "resend": "absent close resend retry take",
        "stored": "absent close refund resend retarget retry write_off",
        "take": "close retarget retry take",
        "write_off": "cancel close gave_up retarget retry take write_off",
    },
    "refused": {
        "attach": "attach edit retarget retry",
        "close": "close take",
        "done": "close done edit gave_up mark_manual retarget retry take",
        "edit": "close edit retry take",
        "found": "attach edit retarget retry",
        "gave_up": "close gave_up take",
        "mark_manual": "mark_manual",
        "retarget": "close edit retarget retry take",
        "retry": "close edit retry take",
        "take": "take",
    },
}

# Done twice on purpose: each note and each asking counts, and facts may come any number of times.
TWICE = {"note", "poll_now", *MACHINE}


# --- one after the other, and at the same moment ----------------------------------------------------------------------

# Refused alone, these may be done after another verb.
_LATER = {"retry", "retarget", "close"}


@dataclass(frozen=True, slots=True)
class Meeting:
    """Anna and Boris, at a job like `make`'s, a new one each time."""

    two: Two
    make: Callable[[], Scene]
    anna: User
    boris: User

    def alone(self, verb: Verb, who: User) -> tuple[Outcome, Rows]:
        scene = self.make()
        return self.two.a.call(lambda: verb(scene, who)), _quiet(scene)

    def in_turn(
        self, first: Verb, second: Verb, *, boris_first: bool = False
    ) -> tuple[Outcome, Rows]:
        """What Boris was told, and the rows."""
        scene = self.make()
        if boris_first:
            told = self.two.b.call(lambda: second(scene, self.boris))
            self.two.a.call(lambda: first(scene, self.anna))
        else:
            self.two.a.call(lambda: first(scene, self.anna))
            told = self.two.b.call(lambda: second(scene, self.boris))
        return told, _quiet(scene)

    def at_once(
        self, first: Verb, second: Verb, *, at: Point, dies: bool = False
    ) -> tuple[Race, Rows]:
        scene = self.make()
        race = self.two.race(
            lambda: first(scene, self.anna), lambda: second(scene, self.boris), at=at, dies=dies
        )
        return race, _quiet(scene)


def _quiet(scene: Scene) -> Rows:
    """The rows once the sweep has come by: it decides what a lane had to leave."""
    _decide(undecided_jobs(now=NOW + timedelta(minutes=1)))
    return rows_of(scene.job.pk)


@pytest.fixture
def people(two: Two) -> tuple[User, User]:
    anna, boris = (User.objects.create(username=name, is_staff=True) for name in ("anna", "boris"))
    return anna, boris


@pytest.mark.share(3)
@pytest.mark.parametrize("stage", STAGES)
def test_of_two_at_once_comes_what_comes_of_one_after_the_other(
    two: Two, people: tuple[User, User], stage: Stage
) -> None:
    meeting = Meeting(two, stage.make, *people)
    alone = {name: meeting.alone(verb, meeting.anna) for name, verb in stage.verbs.items()}
    effective = {name for name, (outcome, _) in alone.items() if not outcome.refused}
    later = _LATER & stage.verbs.keys()
    too_late: dict[str, list[str]] = {}
    for name, other in itertools.product(sorted(effective), sorted(effective | later)):
        if not {name, other} & stage.about:
            continue
        first, second = stage.verbs[name], stage.verbs[other]
        told, expected = meeting.in_turn(first, second)
        if told.refused:
            too_late.setdefault(name, []).append(other)
            assert not alone[name][1].difference(expected), f"{other} was refused after {name}"
        race, rows = meeting.at_once(first, second, at=COMMIT)
        pair = f"{name} stopped before its COMMIT, then {other}"
        if race.waited:
            assert bool(race.second.refused) == bool(told.refused), pair
            assert not expected.difference(rows), pair
        elif expected.difference(rows):
            # It found the first at work and left, or looked at other rows.
            _, reverse = meeting.in_turn(first, second, boris_first=True)
            assert not reverse.difference(rows), pair
    if stage.make.__name__ in TOO_LATE:
        told_too_late = {name: " ".join(others) for name, others in too_late.items()}
        assert told_too_late == TOO_LATE[stage.make.__name__]


@pytest.mark.share(3)
@pytest.mark.parametrize("stage", STAGES)
def test_a_double_click_is_one_click_wherever_the_first_stands(
    two: Two, people: tuple[User, User], stage: Stage
) -> None:
    meeting = Meeting(two, stage.make, *people)
    for name in sorted(stage.about):
        verb = stage.verbs[name]
        outcome, _ = meeting.alone(verb, meeting.anna)
        if outcome.refused:
            continue
        told, expected = meeting.in_turn(verb, verb)
        _, reverse = meeting.in_turn(verb, verb, boris_first=True)
        assert bool(told.refused) == (name not in TWICE), f"{name} twice: {told.refused}"
        for number, step in enumerate(outcome.steps[: outcome.steps.index("COMMIT") + 1]):
            if "SAVEPOINT" in step:
                continue
            race, rows = meeting.at_once(verb, verb, at=Point(number=number))
            wanted = expected if race.waited else reverse
            assert not wanted.difference(rows), f"{name} stopped before {step[:200]}"
        race, rows = meeting.at_once(verb, verb, at=COMMIT, dies=True)
        assert (race.first.killed, race.second.refused) == (True, ""), name
        if race.waited:  # else it passed by a row that somebody had in hand
            _, boris_alone = meeting.alone(verb, meeting.boris)
            assert not boris_alone.difference(rows), f"{name} killed before its COMMIT"


@pytest.mark.parametrize("name", CASES)
def test_a_case_without_a_job_has_a_lock_of_its_own(
    two: Two, people: tuple[User, User], name: str
) -> None:
    case = factories.case(CaseKind.ORPHAN, NOW)

    def works(who: User) -> Work:
        ids: dict[str, Any] = {"case_id": case.pk, "actor": who, "now": NOW}
        return {
            "take": lambda: staff.take_case(**ids),
            "note": lambda: staff.note_case(**ids, note="asked"),
            "close": lambda: staff.close_case(**ids, resolution="seen", note="theirs"),
        }[name]

    race = two.race(*(works(who) for who in people))
    case.refresh_from_db()
    assert (race.waited, bool(race.second.refused)) == (True, name != "note")
    if name == "note":
        assert [who.username in case.note for who in people] == [True, True]
    else:
        assert people[0].pk in {case.owner_id, case.resolved_by_id}
        assert people[1].pk not in {case.owner_id, case.resolved_by_id}
