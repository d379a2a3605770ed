"""Verbs over a batch: they move what they should, hold what comes back, and complete each end once, whoever races them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from jobs import progress
from jobs.batches.plan import plan
from jobs.batches.table import read_lines
from jobs.lifecycle import batches, drafts, staff
from jobs.lifecycle.claim import claim_sends
from jobs.lifecycle.create import NewJob, create_jobs
from jobs.lifecycle.decide import decide
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, BatchEvent, Case, Job, ProviderTask
from jobs.rules import limits, rules
from jobs.states import CaseKind, JobState
from tests import factories
from tests.two import COMMIT, Point, Two, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


@pytest.fixture(autouse=True)
def _nobody_to_ring_for(settings: Any) -> None:
    settings.WORKER_LANES = 0


def _batch(jobs: int = 3) -> Batch:
    target = factories.target()
    return create_jobs(
        jobs=[NewJob(prompt=f"picture {n}", route=[target], priority=n) for n in range(jobs)],
        tenant=factories.tenant(),
        actor=None,
        now=NOW,
    )


def _claimable() -> list[int]:
    """What the claim would take now, in its order; nothing is kept."""
    account = factories.account(NOW)
    with transaction.atomic():
        intents = claim_sends(
            run_id=uuid.uuid4(), host="h", room=50, fingerprints=[account.fingerprint], limits=limits(), now=LATER,
        )  # fmt: skip
        transaction.set_rollback(True)
    return [intent.job_id for intent in intents]


def _states(batch: Batch) -> dict[str, int]:
    counts: dict[str, int] = {}
    for state in batch.jobs.values_list("state", flat=True):
        counts[state] = counts.get(state, 0) + 1
    return counts


def _end(job: Job, state: JobState = JobState.FAILED) -> None:
    Job.objects.filter(pk=job.pk).update(
        state=state,
        reason="refused_by_all" if state is JobState.FAILED else "",
        finished_at=None if state is JobState.MANUAL else NOW,
        decided_at=NOW if state is JobState.SUCCEEDED else None,
    )


# --- pause ------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_pause_holds_every_claim_and_resuming_restores_times_and_order() -> None:
    batch = _batch()
    before = list(batch.jobs.order_by("pk").values_list("pk", "not_before"))
    order = _claimable()
    assert len(order) == 3
    batches.pause(batch_id=batch.pk, actor=None, now=NOW)
    assert _claimable() == []
    assert all(batches.is_held(job) for job in batch.jobs.all())
    batches.resume(batch_id=batch.pk, actor=None, now=LATER)
    assert list(batch.jobs.order_by("pk").values_list("pk", "not_before")) == before
    assert _claimable() == order


@pytest.mark.django_db
def test_the_claim_reads_no_batch() -> None:
    """The pause is told by the column that the claim reads anyway."""
    batches.pause(batch_id=_batch().pk, actor=None, now=NOW)
    with CaptureQueriesContext(connection) as said:
        assert _claimable() == []
    assert not [query["sql"] for query in said if "jobs_batch" in query["sql"]]


@pytest.mark.django_db
def test_other_batches_go_on() -> None:
    paused, other = _batch(), _batch()
    batches.pause(batch_id=paused.pk, actor=None, now=NOW)
    assert set(_claimable()) == set(other.jobs.values_list("pk", flat=True))


@pytest.mark.django_db
@pytest.mark.parametrize("come_back", ["refused", "retried"])
def test_what_comes_back_to_the_queue_of_a_paused_batch_waits_too(come_back: str) -> None:
    batch = _batch(1)
    job = batch.jobs.get()
    if come_back == "retried":
        _end(job)
    else:
        Job.objects.filter(pk=job.pk).update(state=JobState.ACTIVE)
        factories.task(
            job, NOW, refused_at=NOW, refusal_class="rate_limited", failure_class="rate_limited",
            wait_s=3.0, undecided_since=NOW,
        )  # fmt: skip
    batches.pause(batch_id=batch.pk, actor=None, now=NOW)
    if come_back == "retried":
        staff.retry(job_id=job.pk, actor=None, now=NOW)
    else:
        decide(job_ids=[job.pk], rules=rules(), now=NOW, rng=random.Random(1))
    job.refresh_from_db()
    assert job.state == JobState.PENDING
    assert batches.is_held(job)
    assert _claimable() == []
    batches.resume(batch_id=batch.pk, actor=None, now=NOW)
    assert _claimable() == [job.pk]


@pytest.mark.django_db
def test_pausing_twice_and_resuming_what_runs_are_refused() -> None:
    batch = _batch(1)
    with pytest.raises(Refused):
        batches.resume(batch_id=batch.pk, actor=None, now=NOW)
    batches.pause(batch_id=batch.pk, actor=None, now=NOW)
    with pytest.raises(Refused):
        batches.pause(batch_id=batch.pk, actor=None, now=NOW)
    assert [event.kind for event in batch.events.all()] == ["paused"]


# --- the rest ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_cancelling_the_rest_leaves_what_is_under_way() -> None:
    batch = _batch()
    first = batch.jobs.earliest("pk")
    Job.objects.filter(pk=first.pk).update(state=JobState.ACTIVE)
    factories.accepted(first, NOW)
    done = batches.cancel_rest(batch_id=batch.pk, actor=None, now=NOW, reason="ordered twice")
    assert done.moved == 2
    assert _states(batch) == {"active": 1, "cancelled": 2}
    batch.refresh_from_db()
    assert batch.completed_at is None
    with pytest.raises(Refused):
        batches.cancel_rest(batch_id=batch.pk, actor=None, now=NOW)


@pytest.mark.django_db
def test_only_the_failed_are_retried_and_none_that_may_have_cost() -> None:
    batch = _batch(4)
    jobs = list(batch.jobs.order_by("pk"))
    for job in jobs[:2]:
        _end(job)
    _end(jobs[2], JobState.SUCCEEDED)
    _end(jobs[3], JobState.MANUAL)
    factories.case(CaseKind.REFUSED_BY_ALL, NOW, of=jobs[0])
    factories.task(
        jobs[1], NOW, failed_at=NOW, cost_receipt=8, receipt_final_at=NOW, released_by="free", blocks_send=False,
    )  # fmt: skip
    done = batches.retry_failed(batch_id=batch.pk, actor=None, now=LATER)
    assert (done.moved, done.left) == (1, 1)
    assert [job.state for job in batch.jobs.order_by("pk")] == ["pending", "failed", "succeeded", "manual"]  # fmt: skip
    assert not Case.objects.filter(job=jobs[0], resolved_at__isnull=True).exists()


@pytest.mark.django_db
@pytest.mark.parametrize("shape", range(6))
def test_the_set_verb_and_the_single_verb_agree_on_what_is_free(shape: int) -> None:
    job = _batch(1).jobs.get()
    _end(job)
    shapes: list[dict[str, Any]] = [
        {"refused_at": NOW, "refusal_class": "rejected", "blocks_send": False},
        {"failed_at": NOW, "cost_receipt": 8, "receipt_final_at": NOW, "blocks_send": False},
        {"lost_at": NOW, "failure_class": "unknown"},
        {"lost_at": NOW, "blocks_send": False, "released_by": "person"},
        {"refused_at": NOW, "refusal_class": "rejected"},
        {"stored_at": NOW, "completed_at": NOW, "blocks_send": False, "released_by": "stored"},
    ]
    factories.task(job, NOW, **shapes[shape])
    if shape == 3:
        Job.objects.filter(pk=job.pk).update(decided_at=NOW)
    free = batches.free([job.pk]) == [job.pk]
    try:
        staff.retry(job_id=job.pk, actor=None, now=LATER)
    except Refused:
        assert not free
    else:
        assert free


@pytest.mark.django_db
def test_the_rest_goes_to_another_target_of_its_kind() -> None:
    batch = _batch(2)
    other = factories.target("other/model")
    text = factories.target("words/model", kind="text")
    active = batch.jobs.earliest("pk")
    Job.objects.filter(pk=active.pk).update(state=JobState.ACTIVE)
    batches.retarget_rest(batch_id=batch.pk, target_id=other.pk, actor=None, now=NOW)
    rest = batch.jobs.latest("pk")
    assert (rest.target_id, rest.route) == (other.pk, [other.pk, factories.target().pk])
    active.refresh_from_db()
    assert active.target_id == factories.target().pk
    with pytest.raises(Refused):
        batches.retarget_rest(batch_id=batch.pk, target_id=text.pk, actor=None, now=NOW)


@pytest.mark.django_db
def test_a_batch_moves_in_a_few_statements_however_many_jobs_it_has() -> None:
    batch = _batch(300)
    for verb in (batches.pause, batches.resume, batches.cancel_rest):
        with CaptureQueriesContext(connection) as said:
            verb(batch_id=batch.pk, actor=None, now=NOW)
        assert len(said) < 15


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_an_end_is_told_once_and_a_retry_makes_another_end() -> None:
    batch = _batch(2)
    assert batches.complete(now=NOW) == []
    for job in batch.jobs.all():
        _end(job)
    assert batches.complete(now=NOW) == [batch.pk]
    assert batches.complete(now=NOW) == []
    batches.retry_failed(batch_id=batch.pk, actor=None, now=LATER)
    batch.refresh_from_db()
    assert batch.completed_at is None
    assert batches.complete(now=LATER) == []
    for job in batch.jobs.all():
        _end(job, JobState.SUCCEEDED)
    assert batches.complete(now=LATER) == [batch.pk]
    numbers = BatchEvent.objects.filter(kind="completed").order_by("pk").values_list("number", flat=True)  # fmt: skip
    assert list(numbers) == [1, 2]


@pytest.mark.django_db
def test_an_empty_batch_never_ends() -> None:
    Batch.objects.create(tenant=factories.tenant(), created_at=NOW)
    assert batches.complete(now=NOW) == []


@pytest.mark.django_db
def test_cancelling_the_rest_may_be_the_end() -> None:
    batch = _batch(2)
    batches.cancel_rest(batch_id=batch.pk, actor=None, now=NOW)
    batch.refresh_from_db()
    assert (batch.completed_at, batch.completions) == (NOW, 1)


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(transactional_db: None) -> Iterator[Two]:
    with two_connections() as pair:
        yield pair


def test_two_looks_at_once_tell_one_end(two: Two) -> None:
    batch = _batch(2)
    for job in batch.jobs.all():
        _end(job)
    race = two.race(lambda: batches.complete(now=NOW), lambda: batches.complete(now=LATER))
    assert race.waited
    assert (race.first.value, race.second.value) == ([batch.pk], [])
    assert BatchEvent.objects.filter(kind="completed").count() == 1


def test_an_end_that_dies_before_its_commit_is_told_by_the_next_look(two: Two) -> None:
    batch = _batch(1)
    _end(batch.jobs.get())
    race = two.race(
        lambda: batches.complete(now=NOW), lambda: batches.complete(now=LATER), dies=True
    )
    assert race.first.killed
    assert race.second.value == [batch.pk]
    assert BatchEvent.objects.get(kind="completed").number == 1


def test_a_retry_in_front_of_the_look_keeps_the_batch_open(two: Two) -> None:
    batch = _batch(2)
    for job in batch.jobs.all():
        _end(job)
    one = batch.jobs.earliest("pk").pk
    race = two.race(
        lambda: staff.retry(job_id=one, actor=None, now=NOW), lambda: batches.complete(now=LATER)
    )
    assert race.waited
    assert race.second.value == []
    batch.refresh_from_db()
    assert batch.completed_at is None


def test_a_retry_behind_the_look_opens_the_batch_again(two: Two) -> None:
    batch = _batch(2)
    for job in batch.jobs.all():
        _end(job)
    one = batch.jobs.earliest("pk").pk
    race = two.race(
        lambda: batches.complete(now=NOW), lambda: staff.retry(job_id=one, actor=None, now=LATER)
    )
    assert race.waited
    batch.refresh_from_db()
    assert (batch.completed_at, batch.completions) == (None, 1)
    _end(batch.jobs.get(pk=one))
    assert batches.complete(now=LATER) == [batch.pk]


@pytest.mark.parametrize("first", ["pause", "back"])
def test_a_job_that_comes_back_while_somebody_pauses_is_held(two: Two, first: str) -> None:
    batch = _batch(2)
    job = batch.jobs.earliest("pk")
    Job.objects.filter(pk=job.pk).update(state=JobState.ACTIVE)
    factories.task(
        job, NOW, refused_at=NOW, refusal_class="rate_limited", failure_class="rate_limited", wait_s=3.0,
        undecided_since=NOW,
    )  # fmt: skip
    works = {
        "pause": lambda: batches.pause(batch_id=batch.pk, actor=None, now=NOW),
        "back": lambda: decide(job_ids=[job.pk], rules=rules(), now=NOW, rng=random.Random(1)),
    }
    second = "back" if first == "pause" else "pause"
    race = two.race(works[first], works[second])
    assert race.waited
    job.refresh_from_db()
    assert job.state == JobState.PENDING
    assert all(batches.is_held(one) for one in batch.jobs.all())


def test_two_people_retry_two_jobs_of_a_complete_batch_one_after_the_other(two: Two) -> None:
    batch = _batch(2)
    for job in batch.jobs.all():
        _end(job)
    batches.complete(now=NOW)
    a, b = batch.jobs.order_by("pk").values_list("pk", flat=True)
    race = two.race(
        lambda: staff.retry(job_id=a, actor=None, now=NOW),
        lambda: staff.retry(job_id=b, actor=None, now=NOW),
    )
    assert race.waited
    assert (race.first.refused, race.second.refused) == ("", "")
    assert _states(batch) == {"pending": 2}


def test_jobs_that_come_back_do_not_wait_for_each_other(two: Two) -> None:
    batch = _batch(2)
    for job in batch.jobs.all():
        Job.objects.filter(pk=job.pk).update(state=JobState.ACTIVE)
        factories.task(
            job, NOW, refused_at=NOW, refusal_class="rate_limited", failure_class="rate_limited", wait_s=3.0,
            undecided_since=NOW,
        )  # fmt: skip
    a, b = batch.jobs.order_by("pk").values_list("pk", flat=True)
    race = two.race(
        lambda: decide(job_ids=[a], rules=rules(), now=NOW, rng=random.Random(1)),
        lambda: decide(job_ids=[b], rules=rules(), now=NOW, rng=random.Random(1)),
    )
    assert not race.waited
    assert _states(batch) == {"pending": 2}


@pytest.mark.parametrize("verb", ["cancel_rest", "retry_failed"])
def test_a_verb_pressed_twice_at_once_moves_each_job_once(two: Two, verb: str) -> None:
    batch = _batch(3)
    if verb == "retry_failed":
        for job in batch.jobs.all():
            _end(job)
    work = getattr(batches, verb)
    race = two.race(
        lambda: work(batch_id=batch.pk, actor=None, now=NOW),
        lambda: work(batch_id=batch.pk, actor=None, now=LATER),
        at=COMMIT,
    )
    assert race.first.value.moved == 3
    assert race.second.refused
    kind = "cancelled" if verb == "cancel_rest" else "retried"
    for job in batch.jobs.all():
        assert job.events.filter(kind=kind).count() == 1


def test_a_claim_and_a_cancel_of_the_rest_share_the_jobs_out(two: Two) -> None:
    batch = _batch(3)
    account = factories.account(NOW)
    race = two.race(
        lambda: claim_sends(
            run_id=uuid.uuid4(), host="h", room=2, fingerprints=[account.fingerprint], limits=limits(), now=NOW,
        ),
        lambda: batches.cancel_rest(batch_id=batch.pk, actor=None, now=NOW),
        at=Point("COMMIT"),
    )  # fmt: skip
    assert len(race.first.value) == 2
    assert race.second.value.moved == 1
    assert _states(batch) == {"active": 2, "cancelled": 1}
    assert ProviderTask.objects.count() == 2


def test_two_yeses_to_one_draft_at_once_make_one_batch(two: Two) -> None:
    factories.target()
    made = plan(read_lines("a chair\na table"))
    draft = drafts.keep(made, tenant=factories.tenant(), label="", actor=None, now=NOW)

    def yes() -> int:
        return drafts.create(token=draft.token, without_twins=False, actor=None, now=NOW).pk

    race = two.race(yes, yes)
    assert race.waited
    assert race.first.value == race.second.value
    assert (Batch.objects.count(), Job.objects.count()) == (1, 2)


def test_a_yes_that_dies_before_its_commit_leaves_the_draft_for_the_next(two: Two) -> None:
    factories.target()
    made = plan(read_lines("a chair"))
    draft = drafts.keep(made, tenant=factories.tenant(), label="", actor=None, now=NOW)

    def yes() -> int:
        return drafts.create(token=draft.token, without_twins=False, actor=None, now=NOW).pk

    race = two.race(yes, yes, dies=True)
    assert race.first.killed
    assert race.second.value == Batch.objects.get().pk
    assert Job.objects.count() == 1


# --- progress ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_progress_is_one_query_and_counts_every_job(settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path
    batch = _batch(5)
    jobs = list(batch.jobs.order_by("pk"))
    _end(jobs[0])
    _end(jobs[1], JobState.MANUAL)
    factories.result(jobs[2], NOW)
    Job.objects.filter(pk=jobs[2].pk).update(state=JobState.SUCCEEDED, finished_at=NOW)
    with CaptureQueriesContext(connection) as said:
        seen = progress.read(batch.pk, now=LATER)
    assert len(said) == 1
    assert seen is not None
    assert (seen.total, seen.under_way, seen.given_up, seen.done) == (5, 2, 2, False)
    assert [job for _result, job in seen.shown] == [jobs[2].pk]
    assert seen.per_minute is not None
    assert progress.read(0, now=NOW) is None


@pytest.mark.parametrize(
    ("short", "long", "ended", "age_s", "expected"),
    [
        (0, 0, 0, 5.0, None),
        (30, 30, 30, 60.0, 30.0),
        (10, 10, 10, 20.0, 30.0),
        (2, 40, 40, 300.0, 8.0),
        (0, 20, 500, 3600.0, 2.0),
        (0, 0, 500, 3600.0, None),
    ],
)
def test_the_rate_is_fresh_where_it_can_be(
    short: int, long: int, ended: int, age_s: float, expected: float | None
) -> None:
    assert progress.per_minute(short=short, long=long, ended=ended, age_s=age_s) == expected


def test_no_end_is_told_for_a_pause_or_without_a_rate() -> None:
    assert progress.left_s(under_way=0, per_minute=None, paused=True) == 0
    assert progress.left_s(under_way=60, per_minute=30.0, paused=False) == 120
    assert progress.left_s(under_way=60, per_minute=30.0, paused=True) is None
    assert progress.left_s(under_way=60, per_minute=None, paused=False) is None
