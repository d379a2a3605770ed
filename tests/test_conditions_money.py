"""Faults that paid twice or lost count of the money elsewhere: each kind, against the real stages or the real database."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, connections, transaction
from pytest_django import Settings

from jobs.clock import clock
from jobs.evidence import LostSend
from jobs.lifecycle import claim, create, decide, recover, staff
from jobs.lifecycle.arm import arm
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.record import Fact, record
from jobs.models import Case, Job, JobEvent, Lane, ProviderTask, Tenant
from jobs.pictures import PictureProcess
from jobs.rules import Limits, rules
from jobs.stages import reconcile
from jobs.states import CaseKind, JobState, TaskState
from providers.models import ProviderState, Target
from providers.sandbox.ledger import Post
from tests import factories, flow
from tests.flow import LIMITS, Desk

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

Make = Callable[..., Desk]
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(settings: Settings, tmp_path: Path, pictures: PictureProcess) -> Make:
    made: list[Desk] = []

    def desk(**world: Any) -> Desk:
        made.append(Desk(settings, tmp_path / str(len(made)), pictures, **world))
        return made[-1]

    return desk


@pytest.fixture
def now() -> datetime:
    return clock.now()


def posts(desk: Desk, job: Job) -> list[Post]:
    """What the provider saw of a job, canaries left out."""
    ours = {str(pk) for pk in ProviderTask.objects.filter(job=job).values_list("pk", flat=True)}
    return [post for post in desk.world.ledger.posts if post.correlation in ours]


def only_task(job: Job) -> ProviderTask:
    return ProviderTask.objects.get(job=job)


def run_for(desk: Desk, job: Job, seconds: float) -> None:
    """The lane works for about so long by the desk's clock; within the first second it makes one pass."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(flow, "GIVE_UP_AFTER_S", seconds)
        desk.live(job)
    Lane.objects.update(run_id=None)  # its slice is over
    job.refresh_from_db()


def two_targets(desk: Desk, first: str, *, prompt: str = "a cat") -> tuple[Job, Target]:
    """A job whose first target answers as the sandbox's fault says, with a sound one to fall back on."""
    troubled = Target.objects.create(provider="polza", model=f"fault/{first}", price=Decimal(5))
    batch = create.create_jobs(
        jobs=[create.NewJob(prompt=prompt, route=[troubled, desk.target])],
        tenant=create.default_tenant(), actor=None, now=desk.clock.now(),
    )  # fmt: skip
    return Job.objects.get(batch=batch), troubled


# --- what the wire proved ---------------------------------------------------------------------------------------------

ENDINGS: dict[str, tuple[Exception, TaskState, str]] = {
    "connection refused": (httpx.ConnectError("refused"), TaskState.UNSENT, "none"),
    "no connection in time": (httpx.ConnectTimeout("slow"), TaskState.UNSENT, "none"),
    "read timeout": (httpx.ReadTimeout("slow"), TaskState.UNKNOWN, "possible"),
    "write timeout": (httpx.WriteTimeout("slow"), TaskState.UNKNOWN, "possible"),
    "reset while reading": (httpx.ReadError("reset"), TaskState.UNKNOWN, "possible"),
    "reset while writing": (httpx.WriteError("reset"), TaskState.UNKNOWN, "possible"),
    "end of file": (httpx.RemoteProtocolError("eof"), TaskState.UNKNOWN, "possible"),
    "broken content": (httpx.DecodingError("gzip"), TaskState.UNKNOWN, "possible"),
    "a fault of ours": (KeyError("bug"), TaskState.UNKNOWN, "possible"),
    "a fault of the system": (OSError(5, "i/o error"), TaskState.UNKNOWN, "possible"),
}


@pytest.mark.condition("R29", "R74")
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_the_transport_proved_reaches_the_row_through_every_layer(
    make: Make, ending: str
) -> None:
    """Adapters that flatten errors repeat sends that may have cost; here each ending keeps its type down to the row."""
    error, state, charge = ENDINGS[ending]
    desk = make()
    job = desk.job()
    handle = desk.world.handle

    def once(request: Any) -> Any:
        if request.method == "POST":
            desk.world.handle = handle  # type: ignore[method-assign]
            raise error
        return handle(request)

    desk.world.handle = once  # type: ignore[method-assign]
    run_for(desk, job, 1)
    task = only_task(job)
    assert (task.state, task.charge, task.blocks_send) == (state, charge, charge == "possible")


# --- who sends again --------------------------------------------------------------------------------------------------

# What the provider answers to every POST -> how many it gets in four hours.
ALWAYS = {
    "rate_limited": 5,  # FREE_REFUSAL_ATTEMPTS
    "rate_limited_seconds=2": 5,
    "overloaded": 5,
    "no_balance": 1,  # R07: then the account is blocked for six hours
    "key_limit": 1,
    "moderation": 1,
    "bad_request": 1,
}


@pytest.mark.condition("R34", "R07")
@pytest.mark.parametrize("fault", ALWAYS)
def test_the_provider_sees_as_many_posts_as_are_configured(
    make: Make, settings: Settings, fault: str
) -> None:
    """R34: two owners of the retries multiplied 4 attempts to 12. R07: a 402 was retried like a 5xx."""
    settings.FREE_REFUSAL_ATTEMPTS = 5
    desk = make(faults={fault: 1.0})
    job = desk.job()
    desk.live(job)
    assert len(posts(desk, job)) == ProviderTask.objects.filter(job=job).count() == ALWAYS[fault]
    assert len({post.correlation for post in posts(desk, job)}) == ALWAYS[fault]
    assert desk.charged(job).standing == 0


@pytest.mark.condition("R22")
def test_each_wait_is_that_of_the_newest_refusal(make: Make) -> None:
    asked = [3, 30, 74]
    told = "".join(f"[[fault:rate_limited_seconds={wait}:{n + 1}]]" for n, wait in enumerate(asked))
    desk = make()
    job = desk.job(f"a cat {told}")
    desk.live(job)
    moments = [post.at for post in posts(desk, job)]
    assert len(moments) == len(asked) + 1
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert all(gap >= wait for gap, wait in zip(gaps, asked, strict=True)), gaps
    assert job.state == JobState.SUCCEEDED


# --- fallback ---------------------------------------------------------------------------------------------------------


@pytest.mark.condition("R09")
@pytest.mark.parametrize("words", [{"quota", "down"}, set()])
def test_a_refused_prompt_is_not_served_elsewhere_unless_that_was_asked_for(
    make: Make, settings: Settings, words: set[str]
) -> None:
    settings.FALLBACK_ON = frozenset(words)
    desk = make()
    job, _ = two_targets(desk, "moderation")
    desk.live(job)
    assert (job.state, job.reason) == (JobState.FAILED, CaseKind.REFUSED_BY_ALL)
    assert [post.model for post in posts(desk, job)] == ["fault/moderation"]


# A refusal that says the provider can't, for longer than the job's patience.
MOVES_ON = ["key_limit", "no_balance", "rate_limited_seconds=600", "overloaded", "moderation"]


# Refusals that say "not here": by quota, by a wait beyond the job's patience, by an outage, by a 403.
MOVES_ON = ["key_limit", "no_balance", "rate_limited_seconds=600", "overloaded", "moderation"]


@pytest.mark.condition("R10")
@pytest.mark.parametrize("fault", MOVES_ON)
def test_a_refusal_moves_the_job_to_its_fallback_at_once_and_says_so(
    make: Make, fault: str
) -> None:
    desk = make()
    job, troubled = two_targets(desk, fault)
    run_for(desk, job, 1)
    assert (job.state, job.target_id) == (JobState.PENDING, desk.target.pk)
    assert job.not_before <= desk.clock.now()
    told = JobEvent.objects.filter(job=job, kind="pending").values_list("data__reason", flat=True)
    assert list(told) == ["next_target"]
    ProviderState.objects.update(blocked_until=None)  # as if the fallback had an account of its own
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    assert [post.model for post in posts(desk, job)] == [troubled.model, desk.target.model]


@pytest.mark.condition("R82", "R50")
def test_a_slow_provider_gets_no_rival_and_the_money_stays_on_its_send(make: Make) -> None:
    """R82: two providers raced, and the loser was paid too. A late job has one send, whatever its route offers."""
    desk = make()
    job, troubled = two_targets(desk, "late=5000")
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    assert [post.model for post in posts(desk, job)] == [troubled.model]
    assert desk.charged(job).standing == 1


@pytest.mark.condition("R82")
def test_the_database_itself_refuses_a_second_send_beside_an_open_one(now: datetime) -> None:
    job = factories.job(now, JobState.ACTIVE)
    factories.accepted(job, now)
    with pytest.raises(IntegrityError), transaction.atomic():
        factories.task(job, now, target=factories.target("another"))


@pytest.mark.condition("R82", "R83")
def test_every_send_of_a_job_has_its_own_cost_on_its_own_target(now: datetime) -> None:
    """R83: the cost of winner and loser was booked on the last provider of the chain."""
    person = factories.staff()
    cheap, dear = factories.target(), factories.target("dear", price=Decimal(90))
    job = factories.job(now, JobState.ACTIVE, target=cheap, route=[cheap.pk, dear.pk])
    first = factories.accepted(job, now)
    record(
        facts=[
            Fact(
                task_id=first.pk, at=now, kind="failed", decides=True, failed=True,
                cost_receipt=Decimal("7.84"), receipt_final=True,
            )
        ]
    )  # fmt: skip
    decide.decide(job_ids=[job.pk], rules=rules(), now=now, rng=random.Random(1))
    staff.resend(job_id=job.pk, actor=person, now=now, reason="the customer waits")
    Job.objects.filter(pk=job.pk).update(target=dear, state="active")
    job.refresh_from_db()
    second = factories.accepted(job, now, target=dear)
    record(
        facts=[
            Fact(
                task_id=second.pk, at=now, kind="completed", decides=True, completed=True,
                cost_poll=Decimal("88.5"),
            )
        ]
    )  # fmt: skip
    booked = ProviderTask.objects.filter(job=job).order_by("created_at", "pk")
    assert {(task.target_id, task.cost, task.charge) for task in booked} == {
        (cheap.pk, Decimal("7.84"), "charged"),
        (dear.pk, Decimal("88.5"), "charged"),
    }


# --- a person asks again ----------------------------------------------------------------------------------------------


@pytest.mark.condition("R33", "R48", "R50")
def test_after_the_polling_deadline_nobody_is_led_into_paying_again(make: Make) -> None:
    """R33: "try again" made a second paid job. Late is no verdict: the id is shown, a retry is refused with its money."""
    desk = make()
    job = desk.job("a cat [[fault:late=7200]]")
    run_for(desk, job, LIMITS.poll_deadline_s + 300)
    task = only_task(job)
    assert (job.state, task.state, task.charge) == (JobState.ACTIVE, "accepted", "possible")
    assert task.blocks_send
    assert task.next_poll_at is not None
    with pytest.raises(Refused):
        staff.retry(job_id=job.pk, actor=None, now=desk.clock.now())
    Job.objects.filter(pk=job.pk).update(state="manual")  # and though a person has taken it over
    with pytest.raises(Refused, match="5 RUB"):
        staff.retry(job_id=job.pk, actor=None, now=desk.clock.now())
    Job.objects.filter(pk=job.pk).update(state="active")
    out = StringIO()
    call_command("jobs", "show", str(job.pk), stdout=out)
    assert f"{task.provider_id}" in out.getvalue()
    staff.poll_now(task_id=task.pk, actor=None, now=desk.clock.now())  # what there is to do instead
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    assert len(posts(desk, job)) == desk.charged(job).standing == 1


@pytest.mark.condition("R33")
def test_the_same_order_given_again_joins_what_is_under_way(now: datetime) -> None:
    token, target = uuid.uuid4(), factories.target()
    orders = [
        create.create_jobs(
            jobs=[create.NewJob(prompt="a cat", route=[target])],
            tenant=factories.tenant(), actor=None, now=now, token=token,
        )
        for _ in range(3)
    ]  # fmt: skip
    assert len({batch.pk for batch in orders}) == 1
    assert Job.objects.count() == 1


# --- the hold on the money ----------------------------------------------------------------------------------------------


def claimed(now: datetime, *, run_id: uuid.UUID | None = None, **changed: Any) -> int:
    """How many jobs one claim takes. The account and its key are those of the factories."""
    limits = Limits(**{name: getattr(LIMITS, name) for name in Limits.__slots__} | changed)
    intents = claim.claim_sends(
        run_id=run_id or uuid.uuid4(), host="desk-1", room=100,
        fingerprints=[factories.account(now).fingerprint], limits=limits, now=now,
    )  # fmt: skip
    return len(intents)


@pytest.mark.condition("R77")
def test_money_held_for_a_send_is_let_go_by_the_sends_own_end(now: datetime) -> None:
    """R77: a reservation whose call timed out blocked the key for ever. Here the send itself is the reservation."""
    lost = factories.lost(factories.job(now, JobState.ACTIVE), now)
    factories.job(now)
    assert claimed(now, exposure_prices=1) == 0
    record(facts=[Fact(task_id=lost.pk, at=now, kind="absent", decides=True, absent=True)])
    assert claimed(now, exposure_prices=1) == 1


@pytest.mark.condition("R77")
def test_a_place_taken_by_a_lane_that_died_is_free_again(now: datetime) -> None:
    dead = uuid.uuid4()
    factories.job(now)
    assert claimed(now, run_id=dead, concurrency=1) == 1
    other = factories.job(now)
    assert claimed(now, concurrency=1) == 0
    recover.withdraw_dead_intents(live=[], now=now)
    assert claimed(now, concurrency=1) == 1
    other.refresh_from_db()
    assert other.state == JobState.ACTIVE


@pytest.mark.condition("R77", "R50")
def test_a_late_send_frees_its_place_and_never_its_money(now: datetime) -> None:
    sent_at = now - timedelta(seconds=LIMITS.poll_deadline_s + 1)
    late = factories.accepted(factories.job(now, JobState.ACTIVE), now, armed_at=sent_at)
    factories.job(now)
    assert claimed(now, concurrency=1, exposure_prices=1) == 0, "its money counts against the brake"
    assert claimed(now, concurrency=1, exposure_prices=2) == 1, "its place does not"
    late.refresh_from_db()
    assert (late.charge, late.blocks_send, late.estimated_cost) == (
        "possible",
        True,
        factories.PRICE,
    )


# --- admission ----------------------------------------------------------------------------------------------------------


def at_once(count: int, work: Callable[[], int]) -> list[int]:
    """`work` in so many threads, each with a connection of its own, started together."""
    gate = threading.Barrier(count)
    got: list[int] = []

    def run() -> None:
        try:
            connection.ensure_connection()
            gate.wait(30)
            got.append(work())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return got


def _of_target(most: int) -> dict[str, int]:
    Target.objects.update(max_in_flight=most)
    return {}


def _of_tenant(most: int) -> dict[str, int]:
    Tenant.objects.update(max_in_flight=most)
    return {}


LIMITED: dict[str, Callable[[int], dict[str, int]]] = {
    "all places": lambda most: {"concurrency": most},
    "a target's": _of_target,
    "a tenant's": _of_tenant,
}


@pytest.mark.condition("R78", "R79")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("most", [1, 3])
def test_no_limit_is_exceeded_by_lanes_that_claim_at_the_same_moment(
    now: datetime, limit: str, most: int
) -> None:
    """R78: each process counted for itself. R79: two workers counted, skipped each other's row, and both ran theirs."""
    for _ in range(12):
        factories.job(now)
    changed: dict[str, Any] = {"concurrency": 100, "exposure_prices": 1000} | LIMITED[limit](most)
    factories.account(now)
    got = at_once(6, lambda: claimed(now, **changed))
    assert len(got) == 6
    assert sum(got) == most
    assert ProviderTask.objects.filter(state="intent").count() == most


@pytest.mark.condition("R81")
@pytest.mark.django_db(transaction=True)
def test_a_claim_leaves_no_lock_behind_in_its_session(now: datetime) -> None:
    """R81: behind a pooler that lends sessions by transaction, a session's lock is never given back."""
    factories.job(now)
    for limit in (1, 0):  # one that takes a job, one that gives up early
        claimed(now, concurrency=limit)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
            assert cursor.fetchone() == (0,)


@pytest.mark.condition("R81")
def test_no_program_of_ours_takes_a_lock_that_outlives_its_transaction() -> None:
    root = Path(__file__).resolve().parent.parent
    sources = [
        path for part in ("jobs", "providers", "studio") for path in (root / part).rglob("*.py")
    ]
    taking = [str(path) for path in sources if "pg_advisory_lock" in path.read_text("utf-8")]
    trying = [str(path) for path in sources if "pg_try_advisory_lock" in path.read_text("utf-8")]
    assert len(sources) > 50
    assert (taking, trying) == ([], [])


@pytest.mark.condition("R71")
@pytest.mark.parametrize("where", ["account", "model"])
def test_a_block_set_between_claim_and_arm_still_holds_the_send_back(
    now: datetime, where: str
) -> None:
    """R71: a target that had just been benched was tried three more times. The block's row is read before every send."""
    job = factories.job(now, JobState.ACTIVE)
    intent = factories.task(job, now, armed=False)
    until = clock.now() + timedelta(seconds=60)
    model = "" if where == "account" else job.target.model
    state = factories.provider_state(now, "throttled", model=model, blocked_until=until)
    calls = {intent.pk: (30.0, HOUR_S)}
    assert arm(run_id=intent.run_id, calls=calls, clock=clock)[0] == set()
    # The block's end is the one truth: the word beside it does not keep the target out.
    type(state).objects.update(blocked_until=now - timedelta(seconds=1))
    assert arm(run_id=intent.run_id, calls=calls, clock=clock)[0] == {intent.pk}


@pytest.mark.condition("R71")
def test_a_blocked_target_is_not_asked_once_and_asked_again_when_its_block_has_ended(
    make: Make,
) -> None:
    desk = make()
    job = desk.job()
    until = desk.clock.now() + timedelta(seconds=400)
    ProviderState.objects.create(
        account=desk.account_row, model="", state="quota_exhausted", since=desk.clock.now(),
        blocked_until=until,
    )  # fmt: skip
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    [post] = posts(desk, job)
    assert post.at >= until.timestamp()


# --- lanes and their leases ---------------------------------------------------------------------------------------------


@pytest.mark.condition("R37")
def test_a_slow_lanes_answer_counts_and_its_send_is_never_made_again(now: datetime) -> None:
    """R37: a slow but live worker was overtaken: the job ran twice, and was marked failed though it had succeeded."""
    job = factories.job(now, JobState.ACTIVE)
    task = factories.task(job, now, armed_at=now)
    silent = now + timedelta(seconds=39)  # its lane counts as dead already
    recover.withdraw_dead_intents(live=[], now=silent)
    assert recover.declare_lost(now=silent) == set(), "its answer may still come"
    over = now + timedelta(seconds=51)
    assert recover.declare_lost(now=over) == {job.pk}
    decide.decide(job_ids=[job.pk], rules=rules(), now=over, rng=random.Random(1))
    assert claimed(over) == 0
    record(facts=[Fact(task_id=task.pk, at=over, kind="accepted", decides=True, provider_id="gen_1",
                       next_poll_at=over)])  # fmt: skip
    decide.decide(job_ids=[job.pk], rules=rules(), now=over, rng=random.Random(1))
    task.refresh_from_db()
    job.refresh_from_db()
    assert (task.state, task.next_look_at, job.state) == ("accepted", None, JobState.ACTIVE)
    assert claimed(over) == 0
    assert not Case.objects.filter(job=job).exists()


@pytest.mark.condition("R40")
def test_a_generation_of_many_minutes_is_started_once_by_lanes_that_come_and_go(make: Make) -> None:
    """R40: a queue whose task waited for the provider started it again at 0, 120 and 240 s."""
    desk = make(latency_fixed_s=370)
    job = desk.job()
    for _ in range(5):
        run_for(desk, job, 60)
        desk.restart()
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    assert len(posts(desk, job)) == 1


@pytest.mark.condition("R41")
def test_three_lanes_that_sweep_at_once_do_everything_once(now: datetime) -> None:
    """R41: three reapers published the same 16 jobs ninety times a minute."""
    sends = [
        factories.task(
            factories.job(now, JobState.ACTIVE), now, armed_at=now - timedelta(minutes=5)
        )
        for _ in range(16)
    ]
    intents = [
        factories.task(factories.job(now, JobState.ACTIVE), now, armed=False) for _ in range(4)
    ]
    for _ in range(3):
        recover.count_deaths(live=[], now=now)
        recover.withdraw_dead_intents(live=[], now=now)
        recover.declare_lost(now=now)
    events = JobEvent.objects.filter(kind__in=["lost", "unsent"])
    assert events.count() == len(sends) + len(intents)
    looks = [
        claim.claim_due(column="next_look_at", run_id=uuid.uuid4(), room=100, lease_s=75, now=now)
        for _ in range(3)
    ]
    assert [len(rows) for rows in looks] == [len(sends), 0, 0]


@pytest.mark.condition("R41")
def test_a_row_that_is_looked_up_in_vain_is_looked_up_more_and_more_seldom(now: datetime) -> None:
    send = LostSend(
        task_id=uuid.uuid4(), model="painter", armed_at=now, send_not_after=now, deadline_s=20.0,
        absent_seen_at=None, spool_clear=True,
    )  # fmt: skip
    ages_s = [60.0, HOUR_S, 4 * HOUR_S, 24 * HOUR_S, 30 * 24 * HOUR_S]
    intervals = [
        reconcile._look_interval_s(send, now + timedelta(seconds=age), LIMITS.reconcile_interval_s)
        for age in ages_s
    ]
    assert intervals == [30, 36, 144, 864, 3600]


def test_a_failure_that_was_free_is_looked_at_once_more_and_its_late_charge_found(
    make: Make,
) -> None:
    """The provider takes the failure back: an hour later it has made, and charged, what was called free."""
    desk = make(faults={"failed_then_completed=1800": 1.0})
    job = desk.job()
    run_for(desk, job, 600)
    task = ProviderTask.objects.filter(job=job).earliest("created_at")
    assert (task.state, task.charge) == (TaskState.FAILED, "none")
    desk.clock.advance(HOUR_S)
    run_for(desk, job, 600)
    task.refresh_from_db()
    assert task.charge == "charged"
    assert desk.charged(job).homeless == []
