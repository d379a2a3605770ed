"""A state machine that plays lanes (some dead, some back from the dead), a provider that says anything, and time.

Rules are verbs of the lifecycle. Jobs, tasks and runs are named by small numbers, so that a failing example reads as a
story. tests/shadow.py is the judge after every step.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from django.contrib.auth.models import User
from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from jobs import lanes
from jobs.clock import Clock
from jobs.lifecycle import arm, claim, create, decide, recover
from jobs.lifecycle.record import Fact, record
from jobs.models import Hold, Job, ProviderTask
from jobs.rules import SEND_WINDOW_S, rules
from jobs.states import JobState
from providers.contract import Kind
from providers.models import Account, ProviderState, Target
from tests.shadow import COSTS, DECIDED, Row, Shadow, Watch
from tests.told import FETCHES, LIMITS, LOOKS, OF_COLUMN, POLLS, RECEIPTS, SUBMITS, fact_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=9999)
LEASE_S = 45.0
RETENTION_S = 7 * 86_400.0
NAMING = [
    "accepted",
    "found",
    "done",
    "failed_at_once",
    "accepted",
    "found",
]  # what brings an id comes more often
FEW = st.integers(0, 5)
ANY = st.integers(0, 11)
WAITS = st.sampled_from([None, 0.0, 4.5, 119.0, 500.0])
SPENT = st.sampled_from([None, Decimal(0), Decimal("7.84"), Decimal(11)])


class ClockOf(Clock):
    """Both clocks are the machine's."""

    def __init__(self, machine: LaneMachine) -> None:
        self._machine = machine

    def now(self) -> datetime:
        return self._machine.now

    def boot(self) -> float:
        return (self._machine.now - NOW).total_seconds()


class LaneMachine(RuleBasedStateMachine):
    """Lanes at work. Each example is rolled back."""

    # The same in every example, made once by the test.
    person: User
    account: Account
    targets: list[Target]

    def __init__(self) -> None:
        super().__init__()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.now = NOW
        self.clock = ClockOf(self)
        self.jobs: list[int] = []
        self.tasks: list[uuid.UUID] = []
        self.runs: list[uuid.UUID] = []
        self.beating: set[uuid.UUID] = set()
        self.learned: list[Fact] = []
        self.shadow = Shadow()
        self.watch = Watch(self.shadow)

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    # --- what every rule uses -----------------------------------------------------------------------------------------

    def did(self, verb: str) -> None:
        wrong = self.watch.did(verb, now=self.now)
        assert not wrong, wrong
        self.now += timedelta(milliseconds=20)  # nothing happens at the same moment twice

    def states(self) -> set[str]:
        return {job["state"] for job in self.watch.rows.jobs.values()}

    def due(self) -> list[str]:
        """The columns in which some row is due."""
        tasks = self.watch.rows.tasks.values()
        return [
            column
            for column in OF_COLUMN
            if any((task[column] or LATER) <= self.now for task in tasks)
        ]

    def armed(self) -> list[int]:
        rows = self.watch.rows.tasks
        return [n for n, pk in enumerate(self.tasks) if rows[pk]["armed_at"] is not None]

    def likely(self, number: int, first: Sequence[int], others: Sequence[int]) -> int:
        """One for which something may well happen, where there is one; else, and at times anyway, any."""
        among = first if first and number else others
        return among[number % len(among)]

    def job(self, number: int) -> int:
        return self.jobs[number % len(self.jobs)]

    def task(self, number: int) -> Row:
        return self.watch.rows.tasks[self.tasks[number % len(self.tasks)]]

    def decide(self, job_ids: set[int]) -> None:
        if not job_ids:
            return
        decide.decide(job_ids=job_ids, rules=rules(), now=self.now, rng=random.Random(1))
        self.did("decide")
        wrong = self.watch.decided(job_ids)
        assert not wrong, wrong

    def record(self, told: Sequence[Fact]) -> set[int]:
        if not told:
            return set()
        touched = record(facts=told)
        for fact in told:
            self.shadow.told(fact)
        owners = {self.watch.rows.tasks[f.task_id]["job_id"] for f in told if f.decides}
        assert owners <= touched, "a fact that needs a decision touched no job"
        self.did("record")
        return touched

    # --- work comes in ------------------------------------------------------------------------------------------------

    @initialize(route=st.permutations([0, 1, 2]), length=st.integers(1, 3))
    def first_job(self, route: list[int], length: int) -> None:
        self.create(route=route, length=length, count=1, text=False)
        self.start_lane()
        self.start_lane()

    @precondition(lambda self: len(self.jobs) < 5)
    @rule(
        route=st.permutations([0, 1, 2]),
        length=st.integers(1, 3),
        count=st.integers(1, 2),
        text=st.booleans(),
    )
    def create(self, route: list[int], length: int, count: int, text: bool) -> None:
        chosen = [self.targets[i] for i in route[:length]]
        kind = Kind.TEXT if text else Kind.IMAGE
        batch = create.create_jobs(
            jobs=[create.NewJob(prompt="a cat", route=chosen, kind=kind)] * count,
            tenant=create.default_tenant(),
            actor=None,
            now=self.now,
        )
        self.jobs += Job.objects.filter(batch=batch).order_by("pk").values_list("pk", flat=True)
        self.did("create")

    # --- lanes --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.beating) < 2)
    @rule()
    def start_lane(self) -> None:
        held = lanes.take(host="here", pid=1, version="", now=self.now)
        if held is not None:
            self.runs.append(held.run_id)
            self.beating.add(held.run_id)
        self.did("lane")

    @precondition(lambda self: self.beating)
    @rule(number=FEW)
    def kill_lane(self, number: int) -> None:
        """It beats no more; as a zombie it may still do anything."""
        self.beating.discard(self.run(number))

    def run(self, number: int) -> uuid.UUID:
        return self.runs[number % len(self.runs)]

    @rule(seconds=st.sampled_from([1, 6, 31, 61, 95, 400, 1000, 4000, 8 * 86_400]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for run in sorted(self.beating):
            if not lanes.heartbeat(run_id=run, now=self.now):
                self.beating.discard(run)
        self.did("time")

    @precondition(lambda self: "pending" in self.states())
    @rule(number=FEW, room=st.integers(1, 5))
    def claim(self, number: int, room: int) -> None:
        self._claim(self.run(number), room)

    @precondition(lambda self: "pending" in self.states())
    @rule(
        number=FEW,
        answers=st.lists(st.sampled_from(SUBMITS), max_size=3),
        wait_s=WAITS,
        spent=SPENT,
    )
    def send(
        self, number: int, answers: list[str], wait_s: float | None, spent: Decimal | None
    ) -> None:
        """The usual way, up to some point: claimed, armed, and the first of them answered."""
        run = self.run(number)
        armed = self._arm(run, self._claim(run, 3))
        told = [
            self.fact(self.tasks.index(pk), what, wait_s=wait_s, spent=spent)
            for pk, what in zip(armed, answers, strict=False)
        ]
        self.learned += told
        self.decide(self.record(told))

    def _claim(self, run: uuid.UUID, room: int) -> list[uuid.UUID]:
        before = self.watch.rows
        intents = claim.claim_sends(
            run_id=run,
            host="here",
            room=room,
            fingerprints=[self.account.fingerprint],
            limits=LIMITS,
            now=self.now,
        )
        assert len(intents) <= room
        closed = self.closed() if intents else set()
        for intent in intents:
            job = before.jobs[intent.job_id]
            assert job["state"] == JobState.PENDING
            assert job["not_before"] <= self.now
            assert intent.target.id in job["route"]
            assert intent.target.id not in closed
        if intents:
            assert not self.held()
            flying = ProviderTask.objects.in_flight(now=self.now, poll_deadline_s=900)
            assert flying.count() <= LIMITS.concurrency
        self.tasks += [intent.task_id for intent in intents]
        self.did("claim")
        return [intent.task_id for intent in intents]

    @precondition(lambda self: self.tasks)
    @rule(number=FEW, picked=st.lists(FEW, min_size=1, max_size=3), own=st.booleans())
    def arm(self, number: int, picked: list[int], own: bool) -> None:
        """By the run that holds the first of them or by any: intents, mostly, and what is long gone."""
        rows = self.watch.rows.tasks
        waiting = [n for n, pk in enumerate(self.tasks) if rows[pk]["armed_at"] is None]
        tasks = [self.task(self.likely(i, waiting, range(len(self.tasks)))) for i in picked]
        run = tasks[0]["run_id"] if own else self.run(number)
        self._arm(run, list(dict.fromkeys(task["id"] for task in tasks)))

    def _arm(self, run: uuid.UUID, ids: list[uuid.UUID]) -> list[uuid.UUID]:
        if not ids:
            return []
        rows, closed, held = self.watch.rows, self.closed(), self.held()
        may = {
            pk
            for pk in ids
            if (task := rows.tasks[pk])["run_id"] == run
            and task["blocks_send"]
            and task["armed_at"] is None
            and task["unsent_at"] is None
            and rows.jobs[task["job_id"]]["state"] == JobState.ACTIVE
            and task["target_id"] not in closed
            and not held
            and not any(
                other["charge"] in COSTS and other["released_by"] not in DECIDED
                for other in rows.of(task["job_id"])
                if other["id"] != pk
            )
        }
        armed, fence, _ = arm.arm(
            run_id=run, calls=dict.fromkeys(ids, (30.0, RETENTION_S)), clock=self.clock
        )
        assert armed == may
        assert fence == self.clock.boot() + SEND_WINDOW_S
        for pk in armed:
            self.shadow.rows[pk]["armed_at"] = self.now
        self.did("arm")
        return [pk for pk in ids if pk in armed]

    def closed(self) -> set[int]:
        """Targets that nothing may be sent to."""
        blocked = {
            model
            for model, state, until in ProviderState.objects.values_list(
                "model", "state", "blocked_until"
            )
            if state == "paused" or (until or self.now) > self.now
        }
        return self.shut() | {t.pk for t in self.targets if blocked & {"", t.model}}

    def shut(self) -> set[int]:
        """Targets that are wrong or switched off."""
        return set(Target.objects.exclude(stopped_at=None).values_list("pk", flat=True))

    def held(self) -> bool:
        return Hold.objects.filter(lifted_at__isnull=True).exists()

    # --- what is learned ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.armed())
    @rule(
        number=ANY,
        what=st.sampled_from([*NAMING, *SUBMITS, *POLLS, *FETCHES, *LOOKS, *RECEIPTS]),
        name=st.sampled_from(["own", "own", "other", "stolen"]),
        wait_s=WAITS,
        spent=SPENT,
        at_once=st.booleans(),
        then_decide=st.booleans(),
    )
    def learn(
        self,
        number: int,
        what: str,
        name: str,
        wait_s: float | None,
        spent: Decimal | None,
        at_once: bool,
        then_decide: bool,
    ) -> None:
        """Anything about any task that was armed, whatever was learned or decided before."""
        armed = self.armed()
        fact = self.fact(armed[number % len(armed)], what, name=name, wait_s=wait_s, spent=spent)
        self.learned.append(fact)
        if at_once:
            touched = self.record([fact])
            if then_decide:
                self.decide(touched)

    @precondition(lambda self: self.learned)
    @rule(picked=st.lists(ANY, min_size=1, max_size=4), then_decide=st.booleans())
    def record_anew(self, picked: list[int], then_decide: bool) -> None:
        """Facts from a spool or a zombie: late, again, several at once."""
        touched = self.record([self.learned[i % len(self.learned)] for i in picked])
        if then_decide:
            self.decide(touched)

    def fact(
        self,
        number: int,
        what: str,
        *,
        name: str = "own",
        wait_s: float | None = None,
        spent: Decimal | None = None,
    ) -> Fact:
        number %= len(self.tasks)
        task_id = self.tasks[number]
        names = {"own": number, "other": number + 100, "stolen": (number + 1) % len(self.tasks)}
        return fact_of(task_id, what, gen=f"gen_{names[name]}", at=self.now, wait_s=wait_s, spent=spent)  # fmt: skip

    # --- rows that are due --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.due())
    @rule(
        column=FEW,
        number=FEW,
        room=st.integers(1, 4),
        answers=st.lists(st.integers(0, 6), max_size=4),
        spent=SPENT,
        stops=st.booleans(),
    )
    def work_off(
        self,
        column: int,
        number: int,
        room: int,
        answers: list[int],
        spent: Decimal | None,
        stops: bool,
    ) -> None:
        """A lane takes due rows and learns of some of them; the others it dies with, is slow at, or gives back."""
        due = self.due()
        name = due[column % len(due)]
        taken = claim.claim_due(
            column=name, run_id=self.run(number), room=room, lease_s=LEASE_S, now=self.now
        )
        assert len(taken) <= room
        self.did("claim_due")
        told = []
        for task, answer in zip(taken, answers, strict=False):
            words = OF_COLUMN[name]
            if answer < len(words):
                index = self.tasks.index(task.pk)
                told.append(self.fact(index, words[answer], spent=spent))
        self.learned += told
        self.decide(self.record(told))
        if stops:
            recover.hand_back(run_id=self.run(number), now=self.now)
            self.did("hand_back")

    @rule(dies=st.booleans())
    def sweep(self, dies: bool) -> None:
        """What every lane does each five seconds; it may die before it decides."""
        touched = self._sweep()
        if not dies:
            self.decide(touched)

    def _sweep(self) -> set[int]:
        live = lanes.live_runs(self.now)
        recover.count_deaths(live=live, now=self.now)
        touched = recover.withdraw_dead_intents(live=live, now=self.now)
        touched |= recover.declare_lost(now=self.now)
        for pk, lost_at, unsent_at in ProviderTask.objects.values_list(
            "pk", "lost_at", "unsent_at"
        ):
            known = self.shadow.rows[pk]
            if self.now in {lost_at, unsent_at}:
                known.setdefault("lost_at" if lost_at == self.now else "unsent_at", self.now)
        self.did("record")
        return touched | recover.undecided_jobs(now=self.now)

    @precondition(lambda self: self.jobs)
    @rule(picked=st.lists(FEW, min_size=1, max_size=3))
    def decide_some(self, picked: list[int]) -> None:
        self.decide({self.job(i) for i in picked})
