"""The claim over random desks: within every limit, nothing that must wait, nobody starved, nothing idle."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import rules
from jobs.lifecycle.claim import Intent, claim_sends
from jobs.models import Hold, Job, ProviderTask, Tenant
from jobs.rules import Limits
from providers.models import Account, Target
from tests import factories

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = "thekeythatisset"
DEADLINE_S = 900.0
# Each example has a desk of its own; there are fewer of them than of pure ones.
EXAMPLES = settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def limits(concurrency: int) -> Limits:
    return replace(
        rules.limits(), concurrency=concurrency, poll_deadline_s=DEADLINE_S, exposure_prices=3
    )


# --- a desk, as numbers -----------------------------------------------------------------------------------------------

SHUT = ["disabled", "stopped", "paused", "blocked", "no_key", "braked"]
OPEN = ["", "", "", "", "block_over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTarget:
    most: int | None
    word: str  # one of SHUT or OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    tenant: int
    target: int
    priority: int
    due_s: int  # seconds until it may be sent; negative: since then
    state: str
    earlier: str  # what an earlier send of the job came to, "" for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    tenants: tuple[int | None, ...]  # most in flight
    targets: tuple[PlannedTarget, ...]
    jobs: tuple[PlannedJob, ...]
    flying: tuple[tuple[int, int, str], ...]  # tenant, target, how
    concurrency: int
    room: int
    held: bool
    account_blocked: bool


MOST = st.none() | st.integers(0, 4)
FLYING = ["intent", "sending", "accepted", "late", "lost"]
EARLIER = ["", "", "", "free", "free_but_charged", "absent_but_accepted", "person_possible"]
RARELY = st.sampled_from([False] * 9 + [True])
FREE_OF_MONEY = {"", "free", "person_possible"}


def _first(tenant: int) -> PlannedJob:
    return PlannedJob(tenant=tenant, target=0, priority=0, due_s=-60, state="pending", earlier="")


@st.composite
def plans(draw: st.DrawFn, *, plain: bool = False) -> Plan:
    """`plain`: every target is open, every job pending and due, nothing flies."""
    tenants = draw(st.lists(st.none() if plain else MOST, min_size=2 if plain else 1, max_size=5))
    words = st.sampled_from(OPEN if plain else OPEN + SHUT)
    targets = draw(
        st.lists(st.builds(PlannedTarget, most=MOST if not plain else st.none(), word=words), min_size=1, max_size=3)
    )  # fmt: skip
    who = st.integers(0, len(tenants) - 1)
    where = st.integers(0, len(targets) - 1)
    job = st.builds(
        PlannedJob,
        tenant=who,
        target=where,
        priority=st.integers(-1, 2),
        due_s=st.just(-60) if plain else st.sampled_from([-3600, -60, -1, 0, 1, 600]),
        state=st.just("pending") if plain else st.sampled_from(["pending"] * 5 + ["active", "manual", "cancelled"]),
        earlier=st.just("") if plain else st.sampled_from(EARLIER),
    )  # fmt: skip
    firsts = [_first(number) for number in range(len(tenants))] if plain else []
    return Plan(
        tenants=tuple(tenants),
        targets=tuple(targets),
jobs=tuple(draw(st.lists(job, min_size=3, max_size=20)) + firsts),
        flying=() if plain else tuple(draw(st.lists(st.tuples(who, where, st.sampled_from(FLYING)), max_size=5))),
        concurrency=draw(st.integers(1, 3 if plain else 8)),
        room=draw(st.integers(0, 8)),
        held=not plain and draw(RARELY),
        account_blocked=not plain and draw(RARELY),
    )  # fmt: skip


# --- the same desk, as rows -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Desk:
    plan: Plan
    account: Account
    tenants: list[Tenant]
    targets: list[Target]
    now: datetime = NOW
    jobs: list[Job] = field(default_factory=list)

    def claim(self, *, room: int | None = None) -> list[Intent]:
        return claim_sends(
            run_id=uuid.UUID(int=1),
            host="here",
            room=self.plan.room if room is None else room,
            fingerprints=[KEY],
            limits=limits(self.plan.concurrency),
            now=self.now,
        )

    def in_flight(self) -> tuple[Counter[int], Counter[int]]:
        """By target and by tenant."""
        flying = ProviderTask.objects.in_flight(now=self.now, poll_deadline_s=DEADLINE_S)
        rows = list(flying.values_list("target_id", "tenant_id"))
        return Counter(target for target, _ in rows), Counter(tenant for _, tenant in rows)

    def claimable(self) -> list[Job]:
        """Jobs that may be sent as far as they and their targets are concerned, told from the plan, in their order."""
        if self.plan.held or self.plan.account_blocked:
            return []
        waiting = set(Job.objects.pending().values_list("pk", flat=True))
        found = [
            job
            for job, planned in zip(self.jobs, self.plan.jobs, strict=True)
            if job.pk in waiting
            and job.not_before <= self.now
            and planned.earlier in FREE_OF_MONEY
            and self.plan.targets[planned.target].word in OPEN
        ]
        return sorted(found, key=lambda job: (-job.priority, job.not_before, job.pk))


@contextmanager
def desk(plan: Plan) -> Iterator[Desk]:
    """Its rows, for one example."""
    with transaction.atomic():
        yield _rows(plan)
        transaction.set_rollback(True)


def _rows(plan: Plan) -> Desk:
    account = factories.account(NOW, fingerprint=KEY)
    tenants = [
        factories.tenant(f"tenant-{number}", max_in_flight=most)
        for number, most in enumerate(plan.tenants)
    ]
    targets = [_target(number, planned, account) for number, planned in enumerate(plan.targets)]
    made = Desk(plan, account, tenants, targets)
    if plan.held:
        Hold.objects.create(kind=Hold.Kind.RED_BUTTON, set_at=NOW)
    if plan.account_blocked:
        factories.provider_state(
            NOW, "throttled", account=account, blocked_until=NOW + timedelta(hours=1)
        )
    made.jobs = Job.objects.bulk_create(
        [
            Job(
                tenant=tenants[job.tenant], target=targets[job.target], route=[targets[job.target].pk], prompt="a cat",
                priority=job.priority, state=job.state, not_before=NOW + timedelta(seconds=job.due_s),
                attempts_since=NOW, created_at=NOW, finished_at=NOW if job.state == "cancelled" else None,
            )
            for job in plan.jobs
        ]
    )  # fmt: skip
    tasks = [
        _earlier(made, job, planned.earlier)
        for job, planned in zip(made.jobs, plan.jobs, strict=True)
        if planned.earlier
    ]
    tasks += [_flying(made, *one) for one in plan.flying]
    tasks += [
        _flying(made, 0, number, "lost", price=factories.PRICE)
        for number, planned in enumerate(plan.targets)
        for _ in range(3 if planned.word == "braked" else 0)
    ]
    ProviderTask.objects.bulk_create(tasks)
    return made


def _target(number: int, planned: PlannedTarget, account: Account) -> Target:
    word = planned.word
    made = factories.target(
        f"model-{number}",
        provider="another" if word == "no_key" else "polza",
        max_in_flight=planned.most,
        enabled=word != "disabled",
        stopped_at=NOW if word == "stopped" else None,
    )
    if word == "no_key":
        factories.account(NOW, provider="another", fingerprint="of an old key")
    until = {"blocked": NOW + timedelta(hours=1), "block_over": NOW - timedelta(seconds=1)}
    if word in {"paused", *until}:
        factories.provider_state(
            NOW, "paused" if word == "paused" else "throttled", account=account, model=made.model,
            blocked_until=until.get(word),
        )  # fmt: skip
    return made


def _task(made: Desk, job: Job, **values: Any) -> ProviderTask:
    defaults: dict[str, Any] = {
        "tenant_id": job.tenant_id, "target_id": job.target_id, "account": made.account, "estimated_cost": factories.PRICE,
        "currency": "RUB", "run_id": uuid.UUID(int=2), "host": "there", "created_at": NOW - timedelta(hours=1),
    }  # fmt: skip
    return ProviderTask(job=job, **defaults | values)


def _sent(seconds: float) -> dict[str, Any]:
    at = NOW - timedelta(seconds=seconds)
    return {"armed_at": at, "send_not_after": at + timedelta(seconds=10), "call_deadline_s": 30.0}


def _earlier(made: Desk, job: Job, word: str) -> ProviderTask:
    released: dict[str, Any] = {"blocks_send": False, "estimated_cost": 0, **_sent(3600)}
    match word:
        case "free":
            return _task(made, job, **released, released_by="free", refusal_class="down")
        case "free_but_charged":
            return _task(
                made,
                job,
                **released,
                released_by="free",
                completed_at=NOW,
                provider_id=uuid.uuid4().hex,
            )
        case "absent_but_accepted":
            return _task(
                made,
                job,
                **released,
                released_by="absent",
                absent_at=NOW,
                provider_id=uuid.uuid4().hex,
            )
        case _:
            return _task(made, job, **released, released_by="person", failed_at=NOW)


def _flying(
    made: Desk, tenant: int, target: int, how: str, *, price: Decimal = Decimal(0)
) -> ProviderTask:
    job = Job.objects.create(
        tenant=made.tenants[tenant], target=made.targets[target], route=[made.targets[target].pk], prompt="a dog",
        state="active", not_before=NOW, attempts_since=NOW, created_at=NOW,
    )  # fmt: skip
    match how:
        case "intent":
            return _task(made, job)
        case "sending":
            return _task(made, job, **_sent(5))
        case "accepted":
            return _task(made, job, **_sent(100), provider_id=uuid.uuid4().hex)
        case "late":
            return _task(
                made,
                job,
                **_sent(DEADLINE_S + 1),
                provider_id=uuid.uuid4().hex,
                estimated_cost=price,
            )
        case _:
            return _task(made, job, **_sent(100), lost_at=NOW, estimated_cost=price)


# --- one claim --------------------------------------------------------------------------------------------------------


def full(made: Desk) -> tuple[set[int], set[int]]:
    """Targets and tenants that take no more."""
    by_target, by_tenant = made.in_flight()
    return (
        {t.pk for t in made.targets if t.max_in_flight is not None and by_target[t.pk] >= t.max_in_flight},
        {t.pk for t in made.tenants if t.max_in_flight is not None and by_tenant[t.pk] >= t.max_in_flight},
    )  # fmt: skip


def left_over(made: Desk) -> list[Job]:
    """Jobs that could have been claimed and were not, their target and tenant having room."""
    targets, tenants = full(made)
    return [
        job
        for job in made.claimable()
        if job.target_id not in targets and job.tenant_id not in tenants
    ]


@EXAMPLES
@given(plan=plans())
def test_a_claim_keeps_every_limit_and_takes_nothing_that_must_wait(plan: Plan) -> None:
    with desk(plan) as made:
        may = {job.pk: job for job in made.claimable()}
        flown_to, flown_for = made.in_flight()
        taken = made.claim()
        jobs = [may[intent.job_id] for intent in taken]  # KeyError: it had to wait
        assert len({job.pk for job in jobs}) == len(taken) <= plan.room
        assert [intent.target.id for intent in taken] == [job.target_id for job in jobs]
        by_target, by_tenant = made.in_flight()
        assert not taken or sum(by_target.values()) <= plan.concurrency
        for target in made.targets:
            if by_target[target.pk] > flown_to[target.pk] and target.max_in_flight is not None:
                assert by_target[target.pk] <= target.max_in_flight
        for tenant in made.tenants:
            if by_tenant[tenant.pk] > flown_for[tenant.pk] and tenant.max_in_flight is not None:
                assert by_tenant[tenant.pk] <= tenant.max_in_flight
        rows = {
            row.job_id: row for row in ProviderTask.objects.filter(run_id=uuid.UUID(int=1), blocks_send=True)
        }  # fmt: skip
        assert rows.keys() == {job.pk for job in jobs}
        for job in Job.objects.filter(pk__in=may):
            assert job.state == ("active" if job.pk in rows else "pending")
            if job.pk in rows:
                row = rows[job.pk]
                assert (row.target_id, row.tenant_id) == (job.target_id, job.tenant_id)
                assert (row.account_id, row.state) == (made.account.pk, "intent")


@EXAMPLES
@given(plan=plans())
def test_no_room_is_left_while_a_job_could_take_it(plan: Plan) -> None:
    with desk(plan) as made:
        flying = sum(made.in_flight()[0].values())
        taken = made.claim()
        if len(taken) < min(plan.room, plan.concurrency - flying):
            assert left_over(made) == []
        assert made.claim(room=0) == []


@EXAMPLES
@given(plan=plans())
def test_a_tenants_jobs_go_by_priority_then_by_age(plan: Plan) -> None:
    """A later one goes first only where the earlier one's target is full."""
    with desk(plan) as made:
        order = [job.pk for job in made.claimable()]
        by_pk = {job.pk: job for job in made.claimable()}
        taken = {intent.job_id for intent in made.claim()}
        targets, _ = full(made)
        for pk in order:
            if pk in taken or by_pk[pk].target_id in targets:
                continue
            after = order[order.index(pk) + 1 :]
            overtaken = [
                o for o in after if o in taken and by_pk[o].tenant_id == by_pk[pk].tenant_id
            ]
            assert overtaken == []


@EXAMPLES
@given(plan=plans())
def test_one_claim_deals_evenly_to_all_who_can_take_more(plan: Plan) -> None:
    with desk(plan) as made:
        tenant_of = {job.pk: job.tenant_id for job in made.jobs}
        got = Counter(tenant_of[intent.job_id] for intent in made.claim())
        for tenant_id in {job.tenant_id for job in left_over(made)}:
            assert max(got.values(), default=0) <= got[tenant_id] + 1


# --- many claims ------------------------------------------------------------------------------------------------------

ROUNDS = 60


def end(intents: Sequence[Intent]) -> None:
    ids = [intent.task_id for intent in intents]
    ProviderTask.objects.filter(pk__in=ids).update(
        refusal_class="rejected", blocks_send=False, released_by="free"
    )
    Job.objects.filter(tasks__in=ids).update(state="failed", finished_at=NOW)


@settings(EXAMPLES, max_examples=settings().max_examples // 5)
@given(plan=plans(plain=True), one_by_one=st.booleans())
def test_nobody_starves_however_long_the_others_queues_are(plan: Plan, one_by_one: bool) -> None:
    """For each job that was sent there comes another like it, so nobody's queue ever ends. With fewer places than tenants
    everyone still gets a turn."""
    with desk(plan) as made:
        waiting = {job.tenant_id for job in made.jobs}
        got: Counter[int] = Counter()
        flying: list[Intent] = []
        for _ in range(ROUNDS):
            made.now += timedelta(milliseconds=370)
            taken = made.claim(room=8)
            flying += taken
            again = Job.objects.filter(pk__in=[intent.job_id for intent in taken])
            got.update(job.tenant_id for job in again)
            for job in again:
                job.pk, job.state = None, "pending"
                job.not_before = job.created_at
            Job.objects.bulk_create(again)
            ended, flying = (flying[:1], flying[1:]) if one_by_one else (flying, [])
            end(ended)
            if got.keys() == waiting:
                return
        assert got.keys() == waiting, dict(got)
