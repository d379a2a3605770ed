"""Faults that lost a paid result, or took silence for a verdict, elsewhere: polling, fetching, and the end of a send."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from jobs.clock import clock
from jobs.engine import ROOM
from jobs.lifecycle import decide
from jobs.lifecycle.record import Fact, record
from jobs.models import Case, Job, JobEvent, Lane, ProviderTask, Result
from jobs.pictures import PictureProcess
from jobs.results import path_of
from jobs.rules import rules
from jobs.states import CaseKind, JobState
from providers.sandbox.faults import READ_TROUBLES
from providers.sandbox.ledger import Task
from tests import factories, flow
from tests.flow import Desk

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


def run_for(desk: Desk, job: Job, seconds: float) -> None:
    """The lane works for about so long by the desk's clock, then its slice is over."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(flow, "GIVE_UP_AFTER_S", seconds)
        desk.live(job)
    Lane.objects.update(run_id=None)
    job.refresh_from_db()


def sent(desk: Desk, job: Job) -> list[Task]:
    """The generations that the provider made for a job."""
    ours = {str(pk) for pk in ProviderTask.objects.filter(job=job).values_list("pk", flat=True)}
    return [task for task in desk.world.ledger.tasks.values() if task.correlation in ours]


def calls(desk: Desk) -> list[str]:
    """The provider's calls from now on, as "poll", "file" and so on."""
    handle, seen = desk.world.handle, list[str]()

    def watching(request: Any) -> Any:
        kinds = {"/files/": "file", "/history/": "history", "/media/": "poll", "/media": "post"}
        seen.append(next(kind for part, kind in kinds.items() if part in request.path))
        return handle(request)

    desk.world.handle = watching  # type: ignore[method-assign]
    return seen


def open_cases(job: Job) -> list[str]:
    return sorted(Case.objects.filter(job=job, resolved_at=None).values_list("kind", flat=True))


def marker(*faults: str) -> str:
    return "a cat " + "".join(f"[[fault:{fault}]]" for fault in faults)


# --- polling ----------------------------------------------------------------------------------------------------------

# All that a poll may meet, `slow` and `drip` left out: these only take their time.
POLL_TROUBLES = [name for name in READ_TROUBLES if name not in {"slow", "drip"}]


@pytest.mark.condition("R32", "R45", "R47", "R48", "R52")
def test_whatever_happens_to_polls_the_same_id_is_asked_about_until_it_answers(make: Make) -> None:
    """R32: a 401 made a second paid job. R45, R47, R52: an error page, an absence, a 5xx were taken for the end."""
    desk = make(latency_fixed_s=60)
    job = desk.job(marker(*(f"poll_{name}:2" for name in POLL_TROUBLES)))
    run_for(desk, job, 30)
    task = ProviderTask.objects.get(job=job)
    assert (job.state, task.state, task.charge) == (JobState.ACTIVE, "accepted", "possible")
    assert task.poll_failures == task.polls > 0
    desk.live(job)
    task.refresh_from_db()
    assert (job.state, open_cases(job)) == (JobState.SUCCEEDED, [])
    [made] = sent(desk, job)
    assert made.polls > 2 * len(POLL_TROUBLES)
    assert (task.provider_id, task.poll_failures) == (made.id, 0)


@pytest.mark.condition("R45")
def test_poll_failures_are_counted_in_a_row_and_told_once(now: datetime) -> None:
    task = factories.accepted(factories.job(now, JobState.ACTIVE), now)
    for failed, counted in [(True, 1), (True, 2), (False, 0), (True, 1)]:
        record(facts=[Fact(task_id=task.pk, at=now, kind="", polled=True, poll_failed=failed)])
        task.refresh_from_db()
        assert task.poll_failures == counted


@pytest.mark.condition("R32")
def test_after_a_change_of_keys_the_same_id_is_asked_about_with_the_new_one(make: Make) -> None:
    """Another account's 404 proves nothing about the send: neither a verdict nor a loss, whatever time passes."""
    desk = make(latency_fixed_s=30)
    job = desk.job()
    run_for(desk, job, 3)
    desk.account = replace(desk.account, key="pza_new", fingerprint="0123456789ab")
    desk.account_row = factories.account(desk.clock.now(), fingerprint="0123456789ab")
    run_for(desk, job, 3 * HOUR_S)
    assert (job.state, open_cases(job)) == (JobState.ACTIVE, [])
    assert len(desk.world.ledger.posts) == len({p.correlation for p in desk.world.ledger.posts})
    desk.account = replace(desk.account, key=flow.KEY)
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    assert len(sent(desk, job)) == 1


@pytest.mark.condition("R47")
@pytest.mark.parametrize("fault", ["lost", "lost_later", "vanished"])
def test_a_task_the_provider_denies_is_a_case_and_never_a_failure(make: Make, fault: str) -> None:
    """R47: a task missing for N polls was marked failed, and its healthy remote job cancelled."""
    desk = make(fault=fault)
    job = desk.job()
    desk.live(job)
    task = ProviderTask.objects.get(job=job)
    assert (job.state, open_cases(job)) == (JobState.MANUAL, [CaseKind.LOST_AT_PROVIDER])
    assert (task.failed_at, task.blocks_send, task.charge) == (None, True, "possible")
    assert task.next_poll_at is not None, "it is asked about all the same"
    assert len(sent(desk, job)) == 1


@pytest.mark.condition("R47", "R48")
def test_a_task_that_was_denied_for_hours_and_turns_up_is_fetched(make: Make) -> None:
    desk = make(fault="missing_first=7200")
    job = desk.job()
    run_for(desk, job, 5400)
    assert open_cases(job) == [CaseKind.LOST_AT_PROVIDER]
    desk.live(job)
    assert (job.state, open_cases(job)) == (JobState.SUCCEEDED, [])
    assert len(sent(desk, job)) == 1


def test_a_404_right_after_the_submit_is_not_even_a_case(make: Make) -> None:
    """A read replica that lags behind: the first polls of a new task find nothing."""
    desk = make(fault="missing_first=20", latency_fixed_s=5)
    job = desk.job()
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    assert not Case.objects.filter(job=job).exists()


@pytest.mark.condition("R43")
def test_a_create_that_comes_back_while_the_task_runs_is_no_result(make: Make) -> None:
    """R43: a blocking create returned at its own time limit, and its empty output was taken for the result."""
    desk = make(latency_fixed_s=40, submit_status=200)
    job = desk.job()
    run_for(desk, job, 20)
    task = ProviderTask.objects.get(job=job)
    assert (task.state, task.completed_at, job.state) == ("accepted", None, JobState.ACTIVE)
    desk.live(job)
    assert job.state == JobState.SUCCEEDED


def test_an_answer_about_another_task_is_no_verdict(make: Make) -> None:
    """A cache between us and the provider mixed up two answers: one customer got the other's picture."""
    desk = make(latency_fixed_s=20)
    first, second = desk.job("a cat"), desk.job("a dog")
    handle, mixed = desk.world.handle, list[str]()

    def mixing(request: Any) -> Any:
        if request.method == "GET" and "/media/" in request.path and len(mixed) < 6:
            mixed.append(request.path)
            other = next(i for i in desk.world.ledger.tasks if not request.path.endswith(i))
            request = replace(request, path=request.path.rsplit("/", 1)[0] + "/" + other)
        return handle(request)

    desk.world.handle = mixing  # type: ignore[method-assign]
    run_for(desk, first, 2)
    desk.clock.advance(30)  # both are done now, and each is told about the other
    desk.live(first)
    Lane.objects.update(run_id=None)
    desk.live(second)
    assert len(mixed) == 6
    for job in (first, second):
        job.refresh_from_db()
        assert job.state == JobState.SUCCEEDED
        [made] = sent(desk, job)
        assert made.downloads == 1
        assert Result.objects.filter(job=job, task__provider_id=made.id).count() == 1


# --- the end of a send ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cancelled_charged", "failed_charged", "failed_pending"])
def test_a_task_the_provider_gave_up_after_charging_waits_for_a_person(
    make: Make, fault: str
) -> None:
    desk = make(fault=fault)
    job = desk.job()
    desk.live(job)
    assert (job.state, open_cases(job)) == (JobState.MANUAL, [CaseKind.FAILED_BUT_CHARGED])
    assert desk.wrong_with(job) == []
    assert len(sent(desk, job)) == 1


def test_a_failure_that_completes_an_hour_later_and_is_charged_again_shows_on_the_desk(
    make: Make,
) -> None:
    desk = make(fault="failed_then_completed=3000")
    job = desk.job()
    desk.live(job)
    assert job.state == JobState.FAILED
    Lane.objects.update(run_id=None)
    desk.live(desk.job(marker("late=9000")))
    assert desk.charged(job).standing == 1
    assert CaseKind.FAILED_BUT_CHARGED in open_cases(job)
    assert desk.charged(job).homeless == []


def test_two_tasks_that_the_provider_gives_one_id_are_each_accounted_for(make: Make) -> None:
    """A provider that takes equal prompts for one request answers the second with the id of the first."""
    desk = make()
    first, second = desk.job("a cat"), desk.job("a cat")
    handle, ids = desk.world.handle, list[bytes]()

    def same_id(request: Any) -> Any:
        reaction = handle(request)
        if request.method == "POST":
            ids.append(reaction.body)
            reaction = replace(reaction, body=ids[0])
        return reaction

    desk.world.handle = same_id  # type: ignore[method-assign]
    run_for(desk, first, HOUR_S)
    states = {Job.objects.get(pk=job.pk).state for job in (first, second)}
    assert states == {JobState.SUCCEEDED, JobState.MANUAL}
    troubled = Job.objects.get(pk__in=[first.pk, second.pk], state=JobState.MANUAL)
    assert CaseKind.CONFLICT in open_cases(troubled)
    # Each once, whatever else was sent meanwhile to show that the history is fresh.
    assert [len(sent(desk, job)) for job in (first, second)] == [1, 1]


@pytest.mark.parametrize("shape", ["no_result", "content_only"])
def test_a_result_that_is_named_a_moment_after_the_completion_is_fetched(
    make: Make, shape: str
) -> None:
    """ "Completed" is written before the file's address, elsewhere in the provider: the next read has it."""
    desk = make(fault=shape)
    job = desk.job()
    run_for(desk, job, 12)
    assert open_cases(job) == [CaseKind.PAID_WITHOUT_RESULT]
    [made] = sent(desk, job)
    made.fate.pop(shape)
    desk.live(job)
    assert (job.state, open_cases(job)) == (JobState.SUCCEEDED, [])
    assert Result.objects.get(job=job).media_type == "image/png"
    assert len(sent(desk, job)) == 1


@pytest.mark.parametrize("shape", ["no_result", "content_only"])
def test_a_completion_without_a_picture_never_becomes_a_success(make: Make, shape: str) -> None:
    desk = make(fault=shape)
    job = desk.job()
    desk.live(job)
    assert (job.state, open_cases(job)) == (JobState.MANUAL, [CaseKind.PAID_WITHOUT_RESULT])
    assert not Result.objects.filter(job=job).exists()


# --- download ---------------------------------------------------------------------------------------------------------


@pytest.mark.condition("R55")
@pytest.mark.parametrize("fault", ["result_expired:1", "file_403:1", "file_404:1"])
def test_an_address_that_is_gone_is_asked_for_anew_before_the_next_try(
    make: Make, fault: str
) -> None:
    """R55: signed addresses collected early had expired by the time of the download, and nobody asked for fresh ones."""
    desk = make()
    job = desk.job(marker(fault))
    seen = calls(desk)
    desk.live(job)
    assert job.state == JobState.SUCCEEDED
    first = seen.index("file")
    assert seen[first:] == ["file", "poll", "file"]


@pytest.mark.condition("R55", "R54")
def test_a_result_is_fetched_although_no_lane_ran_while_its_first_address_lived(make: Make) -> None:
    desk = make(latency_fixed_s=4)
    job = desk.job()
    lane_goes_home_at(desk, job, "completed")
    [made] = sent(desk, job)
    made.issue += 1  # the address that was told is gone
    desk.clock.advance(24 * HOUR_S)
    desk.live(job)
    assert job.state == JobState.SUCCEEDED


def lane_goes_home_at(desk: Desk, job: Job, state: str) -> None:
    """One short slice after another until the job's send is in that state."""
    for _ in range(60):
        if ProviderTask.objects.filter(job=job, state=state).exists():
            return
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(ROOM, "fetch", 0)
            run_for(desk, job, 1)
    raise AssertionError(f"never {state}")


@pytest.mark.condition("R54")
def test_a_delivered_file_is_ours_and_outlives_the_providers(make: Make) -> None:
    """R54: an app kept the provider's address; the file was gone after half an hour."""
    desk = make(result_ttl_s=1800)
    job = desk.job()
    desk.live(job)
    desk.clock.advance(3 * HOUR_S)
    assert job.delivered is not None
    data = path_of(job.delivered.key).read_bytes()
    assert hashlib.sha256(data).hexdigest() == job.delivered.sha256
    assert len(data) == job.delivered.size_bytes


@pytest.mark.condition("R54")
@pytest.mark.parametrize(
    "fault", ["result_gone", "result_html", "result_text", "result_empty", "result_truncated"]
)
def test_what_is_no_whole_picture_is_never_shown_as_a_success(make: Make, fault: str) -> None:
    """A page that says "not yet" with 200, words under image/png, nothing at all, half a file."""
    desk = make()
    job = desk.job(marker(fault))
    desk.live(job)
    assert (job.state, open_cases(job)) == (JobState.MANUAL, [CaseKind.FETCH_FAILED])
    assert not Result.objects.filter(job=job).exists()
    assert not JobEvent.objects.filter(job=job, kind="succeeded").exists()
    assert len(sent(desk, job)) == 1


def test_a_page_in_place_of_a_picture_is_only_a_moments_trouble(make: Make) -> None:
    desk = make()
    job = desk.job(marker("result_html:2", "result_empty:1", "file_502_html:1", "file_cut:1"))
    desk.live(job)
    assert (job.state, open_cases(job)) == (JobState.SUCCEEDED, [])


def test_fetching_goes_on_however_often_it_has_failed(make: Make) -> None:
    """A backoff of 2 ** n is too large for a float at the 1024th try; ours is one every ten minutes for a week."""
    desk = make()
    job = desk.job(marker("result_gone"))
    run_for(desk, job, 60)
    task = ProviderTask.objects.get(job=job)
    due = desk.clock.now()
    ProviderTask.objects.filter(pk=task.pk).update(fetch_failures=5000, next_fetch_at=due)
    run_for(desk, job, 1)
    task.refresh_from_db()
    assert task.fetch_failures == 5001
    assert task.next_fetch_at is not None
    assert 0 < (task.next_fetch_at - due).total_seconds() <= 700


def test_the_same_result_told_twice_is_one_result_and_paid_once(now: datetime) -> None:
    task = factories.accepted(factories.job(now, JobState.ACTIVE), now)
    done = Fact(
        task_id=task.pk, at=now, kind="completed", decides=True, polled=True, completed=True,
        files=[{"url": "https://cdn.example/a.png"}], cost_poll=Decimal(5), next_fetch_at=now,
    )  # fmt: skip
    for _ in range(3):
        touched = record(facts=[done])
        decide.decide(job_ids=touched, rules=rules(), now=now, rng=random.Random(1))
    task.refresh_from_db()
    assert (task.state, task.cost, task.next_poll_at) == ("completed", Decimal(5), None)
    assert JobEvent.objects.filter(task=task, kind="completed").count() == 1
    assert not Case.objects.exists()
