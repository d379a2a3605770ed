"""One verb for many jobs: looked at, frozen at the yes, worked off once whatever dies, stopped; and its pages."""

from __future__ import annotations

import csv
import io
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django_q.models import OrmQ

from jobs import tasks
from jobs.admin import bulk_runs, bulk_words, verbs
from jobs.clock import clock
from jobs.lifecycle import bulk, bulk_acts, staff
from jobs.lifecycle.bulk import Step
from jobs.lifecycle.bulk_acts import ACTS, Act, Call
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, BulkRun, BulkSkip, Case, Job, JobEvent, Result
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from tests import factories
from tests.two import Point, Two, rows_of, two_connections

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
MANY = bulk.AT_ONCE + 1  # so many go to a worker

DATA: dict[str, dict[str, Any]] = {
    "retry": {"reason": "the storm is over"},
    "cancel": {"reason": "ordered twice"},
    "manual": {"note": "we draw them"},
    "resolve": {"note": "told the customer", "outcome": "gave_up"},
    "retarget": {"reason": "cheaper"},
}


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


def _failed(many: int, **values: Any) -> list[Job]:
    """Failed ones that have cost nothing; no sends, so that many are made fast."""
    to = factories.target()
    return Job.objects.bulk_create(
        Job(
            tenant=factories.tenant(), prompt="a chair", target=to, route=[to.pk], state=JobState.FAILED, reason="refused_by_all",
            not_before=NOW, attempts_since=NOW, created_at=NOW, finished_at=NOW, reference=f"R-{n}", **values,
        )
        for n in range(many)
    )  # fmt: skip


def _all() -> QuerySet[Job]:
    return Job.objects.filter(pk__gt=0)


def _start(act: Act = bulk_acts.RETRY, jobs: QuerySet[Job] | None = None, **values: Any) -> BulkRun:
    defaults: dict[str, Any] = {
        "data": _data(act), "actor": None, "by_command": True, "now": NOW, "token": uuid.uuid4(),
    }  # fmt: skip
    return bulk.start(act=act, jobs=_all() if jobs is None else jobs, **defaults | values)


def _data(act: Act) -> dict[str, Any]:
    more = {"target": factories.target("other/model").pk} if act is bulk_acts.RETARGET else {}
    return DATA[act.name] | more


def _work(most: int = 1000) -> None:
    """As a worker does, until nothing is left to do."""
    for _n in range(most):
        if bulk.work(now=LATER) is Step.IDLE:
            return
    raise AssertionError("it never ends")


def _states(jobs: QuerySet[Job] | None = None) -> dict[str, int]:
    found = (_all() if jobs is None else jobs).values_list("state", flat=True)
    return {state: list(found).count(state) for state in set(found)}


def _retried() -> list[int]:
    """Events of a retry, by job."""
    return sorted(JobEvent.objects.filter(kind="retried").values_list("job_id", flat=True))


# --- the acts and the verbs of single jobs ----------------------------------------------------------------------------


def test_every_act_is_a_verb_of_the_desk_with_its_permission() -> None:
    of_desk = {verb.name: verb.permission for verb in verbs.JOB_VERBS}
    for act in ACTS.values():
        assert of_desk[act.name] == act.permission
        assert bulk_words.label(act.name) != act.name
    assert "resend" not in ACTS  # never in bulk


def _plain(now: datetime, state: JobState) -> Job:
    return factories.job(now, state)


def _lost(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state)
    factories.lost(job, now)
    return job


def _intent(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state)
    factories.task(job, now, armed=False)
    return job


def _refused(now: datetime, state: JobState) -> Job:
    second = factories.target("second/model")
    job = factories.job(now, state, target=second, route=[factories.target().pk, second.pk])
    factories.task(job, now, blocks_send=False, refusal_class="rejected", refused_at=now)
    factories.case(CaseKind.REFUSED_BY_ALL, now, of=job)
    return job


def _free_but_charged(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state)
    factories.task(
        job, now, blocks_send=False, refusal_class="rejected", refused_at=now, cost_receipt=Decimal(8)
    )  # fmt: skip
    return job


def _given_up(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state, decided_at=now)
    factories.lost(job, now, blocks_send=False, released_by="person")
    return job


def _sent_again(now: datetime, state: JobState) -> Job:
    """A person let it go to send again, and that came to nothing."""
    job = factories.job(now, state)
    factories.lost(job, now, blocks_send=False, released_by="person")
    return job


def _stored(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state)
    factories.accepted(job, now, completed_at=now, stored_at=now, cost_poll=Decimal(8), blocks_send=False, released_by="stored")  # fmt: skip
    return job


def _kept(now: datetime, state: JobState) -> Job:
    """Its result came after somebody had ended it."""
    job = _stored(now, state)
    Result.objects.create(
        job=job, task=job.tasks.get(), key=f"{job.pk}.png", sha256="0" * 64, media_type="image/png", size_bytes=1, created_at=now
    )  # fmt: skip
    return job


def _written_off(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state)
    factories.lost(job, now, staff_charge="written_off")
    return job


def _by_hand(now: datetime, state: JobState) -> Job:
    job = factories.job(now, state)
    factories.case(CaseKind.BY_HAND, now, of=job)
    return job


STORIES = [_plain, _lost, _intent, _refused, _free_but_charged, _given_up, _sent_again, _stored, _kept, _written_off, _by_hand]  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["retry", "cancel"])
def test_the_twin_for_many_does_what_the_verb_does(name: str) -> None:
    """The same rows after both, and left out by one exactly where the other refuses."""
    act, actor = ACTS[name], factories.staff(Role.OPERATOR)
    call = Call(run_id=7, actor=actor, now=LATER, data=DATA[name])
    for state, story in itertools.product(JobState, STORIES):
        alone, among = story(NOW, state), story(NOW, state)
        refused = ""
        try:
            act.one(alone.pk, call)
        except Refused as refusal:
            refused = str(refusal)
        skips = bulk_acts.do(act, [among.pk], call)
        assert bool(skips) == bool(refused), (state, story.__name__, refused, skips)
        told = rows_of(alone.pk).difference(rows_of(among.pk))
        # Two files are never the same one, nor two ids of a provider.
        told = [line for line in told if "provider_id" not in line and "results:" not in line]
        assert not told, (state, story.__name__)


@pytest.mark.django_db
@pytest.mark.parametrize("name", list(ACTS))
def test_the_look_promises_nothing_that_the_verb_refuses(name: str) -> None:
    """But for what only the verb knows and says itself; and what was left out was not touched."""
    act = ACTS[name]
    jobs = [story(NOW, state) for state, story in itertools.product(JobState, STORIES)]
    before = {job.pk: rows_of(job.pk) for job in jobs}
    seen = bulk.preview(act, Job.objects.filter(pk__in=before))
    run = _start(act)
    _work()
    run.refresh_from_db()
    told = Counter(run.skips.values_list("reason", flat=True))
    said = set(run.skips.filter(reason=bulk_acts.REFUSED).values_list("said", flat=True))
    assert all("already" in words or "result" in words for words in said), said
    del told[bulk_acts.REFUSED]
    assert (seen.total, dict(seen.skips)) == (len(jobs), told)
    for skip in run.skips.all():
        assert not before[skip.job_id].difference(rows_of(skip.job_id))
    assert (run.state, run.done + run.skipped) == ("done", run.total)
    assert run.done == seen.fits - run.skips.filter(reason=bulk_acts.REFUSED).count() > 0


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["retry", "retarget", "resolve"])
def test_a_send_that_may_have_cost_is_left_out_and_its_money_told(name: str) -> None:
    job = factories.job(NOW, JobState.MANUAL)
    factories.lost(job, NOW)
    run = _start(ACTS[name])
    [skip] = run.skips.all()
    assert (skip.reason, skip.money, skip.currency) == ("possible_charge", Decimal(8), "RUB")
    assert "₽8.00" in bulk_words.why(skip)
    assert _states() == {"manual": 1}


@pytest.mark.django_db
def test_a_target_of_another_kind_is_for_no_job_of_this_one() -> None:
    text = factories.target("some/text", kind="text")
    _failed(1)
    run = _start(bulk_acts.RETARGET, data={"target": text.pk, "reason": ""})
    assert run.skips.get().reason == "other_kind"
    with pytest.raises(Refused, match="closed"):
        _start(bulk_acts.RETARGET, data={"target": factories.target("x", enabled=False).pk, "reason": ""})  # fmt: skip


@pytest.mark.django_db
def test_a_row_that_breaks_the_statement_for_many_spoils_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = _failed(3)
    real = staff.retry

    def breaking(**values: Any) -> None:
        if values["job_id"] == jobs[1].pk:
            raise IntegrityError("odd")
        real(**values)

    def many(_ids: Any, _call: Any) -> None:
        raise IntegrityError("odd")

    monkeypatch.setattr(staff, "retry", breaking)
    monkeypatch.setattr(bulk, "ACTS", {"retry": replace(bulk_acts.RETRY, many=many)})
    run = _start()
    assert (run.done, run.skipped) == (2, 1)
    assert (run.skips.get().job_id, run.skips.get().reason) == (jobs[1].pk, bulk_acts.BROKEN)
    assert _states() == {"pending": 2, "failed": 1}


# --- frozen, and worked off -------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_all_jobs_there_are_is_refused_and_so_is_nothing() -> None:
    _failed(1)
    with pytest.raises(Refused, match="never all"):
        _start(jobs=Job.objects.all())
    for nothing in (Job.objects.filter(state="cancelled"), Job.objects.filter(pk__in=[])):
        with pytest.raises(Refused, match="No job matches"):
            _start(jobs=nothing)
    assert not BulkRun.objects.exists()


@pytest.mark.django_db
def test_few_are_done_within_the_yes_and_many_by_a_worker() -> None:
    _failed(bulk.AT_ONCE)
    assert _start().state == BulkRun.State.DONE
    _failed(MANY)
    run = _start(jobs=Job.objects.filter(state="failed"))
    assert (run.state, run.total, run.done) == (BulkRun.State.OPEN, MANY, 0)
    _work()
    run.refresh_from_db()
    assert (run.state, run.done, run.finished_at) == (BulkRun.State.DONE, MANY, LATER)


@pytest.mark.django_db
def test_the_selection_is_what_it_was_at_the_yes() -> None:
    first = _failed(MANY)
    run = _start(jobs=Job.objects.filter(state="failed"))
    _failed(5)
    # One that meanwhile is something else is looked at again, and left out.
    Job.objects.filter(pk=first[0].pk).update(state=JobState.PENDING, finished_at=None)
    _work()
    run.refresh_from_db()
    assert (run.done, run.skipped) == (MANY - 1, 1)
    assert run.skips.get().reason == "state.pending"
    assert _states() == {"pending": MANY, "failed": 5}


@pytest.mark.django_db
def test_no_more_than_was_agreed_to_and_the_oldest_first() -> None:
    jobs = _failed(5)
    run = _start(at_most=3)
    assert run.total == 3
    assert _retried() == [job.pk for job in jobs[:3]]


@pytest.mark.django_db
def test_freezing_is_a_handful_of_statements_however_many_jobs() -> None:
    counts = []
    for many in (MANY, 10 * bulk.CHUNK):
        _failed(many)
        with CaptureQueriesContext(connection) as said:
            run = _start(jobs=Job.objects.filter(state="failed"))
        counts.append(len(said))
    assert counts[0] == counts[1] < 10
    assert run.chunks.count() == -(-run.total // bulk.CHUNK)
    ids = [pk for chunk in run.chunks.order_by("number") for pk in chunk.ids]
    assert ids == sorted(set(ids))
    assert len(ids) == run.total


@pytest.mark.django_db
def test_the_same_yes_twice_is_one_run_and_nobody_elses() -> None:
    _failed(3)
    token = uuid.uuid4()
    assert _start(token=token).pk == _start(token=token).pk
    assert len(_retried()) == 3
    with pytest.raises(Refused, match="Somebody else"):
        _start(token=token, actor=factories.staff(Role.OPERATOR))


@pytest.mark.django_db
def test_runs_take_turns() -> None:
    _failed(3 * bulk.CHUNK)
    first = _start(jobs=Job.objects.filter(state="failed"))
    newer = _failed(MANY)
    second = _start(jobs=Job.objects.filter(pk__in=[job.pk for job in newer]))
    bulk.work(now=NOW + timedelta(seconds=1))
    bulk.work(now=NOW + timedelta(seconds=2))
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.done, second.done) == (bulk.CHUNK, MANY)


@pytest.mark.django_db
def test_whoever_lost_the_permission_gets_nothing_more_done() -> None:
    _failed(2 * bulk.CHUNK)
    actor = factories.staff(Role.OPERATOR)
    run = _start(actor=actor, by_command=False)
    bulk.work(now=NOW)
    actor.groups.clear()
    _work()
    run.refresh_from_db()
    assert (run.state, run.done, run.skipped) == (BulkRun.State.FORBIDDEN, bulk.CHUNK, 0)
    assert _states() == {"pending": bulk.CHUNK, "failed": bulk.CHUNK}


@pytest.mark.django_db
@pytest.mark.parametrize("gone", ["inactive", "deleted"])
def test_nor_does_whoever_is_gone(gone: str) -> None:
    _failed(MANY)
    actor = factories.staff(Role.OPERATOR)
    run = _start(actor=actor, by_command=False)
    if gone == "deleted":
        actor.delete()
    else:
        User.objects.filter(pk=actor.pk).update(is_active=False)
    _work()
    run.refresh_from_db()
    assert run.state == BulkRun.State.FORBIDDEN
    assert not _retried()


@pytest.mark.django_db
def test_a_stopped_run_does_nothing_more_and_stops_once() -> None:
    _failed(3 * bulk.CHUNK)
    run, actor = _start(), factories.staff(Role.OPERATOR)
    bulk.work(now=NOW)
    bulk.abort(run_id=run.pk, actor=actor, now=LATER)
    assert bulk.work(now=LATER) is Step.IDLE
    run.refresh_from_db()
    assert (run.state, run.done, run.aborted_by, run.aborted_at) == ("aborted", bulk.CHUNK, actor, LATER)  # fmt: skip
    assert len(_retried()) == bulk.CHUNK
    with pytest.raises(Refused, match="ended already"):
        bulk.abort(run_id=run.pk, actor=actor, now=LATER)


# --- the worker -------------------------------------------------------------------------------------------------------


def test_the_path_that_the_yes_calls_is_the_workers() -> None:
    module, _dot, name = bulk.WORK.rpartition(".")
    assert (module, name) == (tasks.__name__, tasks.work_bulk.__name__)


@pytest.mark.django_db(transaction=True)
def test_a_yes_calls_a_worker_and_a_worker_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    _failed(2 * bulk.CHUNK)
    _start()
    [called] = [message for message in OrmQ.objects.all() if message.func() == bulk.WORK]
    called.delete()
    monkeypatch.setattr(tasks, "_BULK_SLICE_S", 1e-9)
    real = bulk.work

    def one(**values: Any) -> Step:
        monkeypatch.setattr(time, "monotonic", lambda: 1e12)
        return real(**values)

    monkeypatch.setattr(bulk, "work", one)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert tasks.work_bulk() == "worked"
    monkeypatch.undo()
    assert len([message for message in OrmQ.objects.all() if message.func() == bulk.WORK]) == 1
    assert tasks.work_bulk() == "idle"
    assert len(_retried()) == 2 * bulk.CHUNK


@pytest.mark.django_db(transaction=True)
def test_a_lost_call_is_made_up_for_by_the_minute_and_by_a_new_worker() -> None:
    _failed(MANY)
    _start()
    for look in (tasks.ring_each_minute, tasks.wake_after_a_death):
        OrmQ.objects.all().delete()
        look()
        assert bulk.WORK in [message.func() for message in OrmQ.objects.all()]


@pytest.mark.django_db(transaction=True)
def test_a_run_that_fails_says_so_and_lets_others_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    _failed(MANY)
    bad = _start()
    good = _start(bulk_acts.CANCEL)
    real = bulk_acts.do

    def failing(act: Act, *arguments: Any) -> Any:
        if act is bulk_acts.RETRY:
            raise RuntimeError("no such column")
        return real(act, *arguments)

    monkeypatch.setattr(bulk_acts, "do", failing)
    assert tasks.work_bulk() == "failed"
    bad.refresh_from_db()
    assert (bad.trouble, bad.done, bad.state) == ("RuntimeError", 0, "open")
    tasks.work_bulk()
    good.refresh_from_db()
    assert good.state == BulkRun.State.DONE
    monkeypatch.undo()
    assert tasks.work_bulk() == "idle"
    bad.refresh_from_db()
    assert (bad.trouble, bad.done) == ("", MANY)


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(transactional_db: None) -> Iterator[Two]:
    with two_connections() as pair:
        yield pair


def _step() -> Step:
    return bulk.work(now=LATER)


def test_two_workers_at_once_do_no_job_twice(two: Two) -> None:
    jobs = _failed(MANY)
    run = _start()
    race = two.race(_step, _step)
    assert not race.waited
    assert (race.first.value, race.second.value) == (Step.WORKED, Step.BUSY)
    assert _retried() == [job.pk for job in jobs]
    run.refresh_from_db()
    assert (run.state, run.done) == ("done", MANY)


@pytest.mark.parametrize("at", ["UPDATE \"jobs_job\"", "INSERT INTO jobs_jobevent", "UPDATE \"jobs_bulkrun\"", "COMMIT"])  # fmt: skip
def test_a_worker_that_dies_anywhere_leaves_the_chunk_for_the_next(two: Two, at: str) -> None:
    jobs = _failed(MANY)
    run = _start()
    race = two.race(_step, lambda: None, at=Point(at), dies=True)
    assert race.first.killed
    assert not _retried()
    assert two.b.call(_step).value is Step.WORKED
    assert _retried() == [job.pk for job in jobs]
    run.refresh_from_db()
    assert (run.state, run.done, run.cursor) == ("done", MANY, 1)


def test_a_stop_waits_for_the_chunk_in_hand_and_then_nothing_more_is_done(two: Two) -> None:
    _failed(2 * bulk.CHUNK)
    run = _start()
    race = two.race(_step, lambda: bulk.abort(run_id=run.pk, actor=None, now=LATER))
    assert race.waited
    run.refresh_from_db()
    assert (run.state, run.done) == ("aborted", bulk.CHUNK)
    assert _step() is Step.IDLE


def test_a_stop_before_the_worker_leaves_it_nothing(two: Two) -> None:
    _failed(MANY)
    run = _start()
    race = two.race(lambda: bulk.abort(run_id=run.pk, actor=None, now=LATER), _step)
    assert race.second.value is Step.IDLE
    assert not _retried()


def test_the_same_yes_twice_at_once_is_one_run(two: Two) -> None:
    _failed(3)
    token = uuid.uuid4()
    race = two.race(lambda: _start(token=token).pk, lambda: _start(token=token).pk)
    assert race.waited
    assert race.first.value == race.second.value
    assert len(_retried()) == 3


def test_a_single_retry_beside_the_bulk_is_one_retry(two: Two) -> None:
    jobs = _failed(MANY)
    _start()
    one = jobs[0].pk
    race = two.race(
        lambda: staff.retry(job_id=one, actor=None, now=NOW), _step
    )  # fmt: skip
    assert race.waited
    assert _retried() == [job.pk for job in jobs]
    assert BulkSkip.objects.get().job_id == one


# --- pages ------------------------------------------------------------------------------------------------------------

LIST = "/admin/jobs/job/"


@pytest.fixture
def operator(db: None) -> User:
    return factories.staff(Role.OPERATOR)


@pytest.fixture
def client(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


def _press(client: Client, query: str, action: str, one: Job, **data: Any) -> Any:
    """All that the filter finds, as the list sends it."""
    return client.post(
        f"{LIST}{query}",
        {"action": action, "_selected_action": [one.pk], "select_across": "1", **data},
    )


def _yes(client: Client, asked: Any, query: str, one: Job, **data: Any) -> Any:
    """What the preview's form sends."""
    context = asked.context
    return _press(
        client, query, context["action"], one, confirmed="1", shown=str(context["shown"]), token=str(context["token"]), **data
    )  # fmt: skip


def _page(run: BulkRun, name: str = "change", *more: str) -> str:
    return reverse(f"admin:jobs_bulkrun_{name}", args=[run.pk, *more])


def test_a_whole_filter_is_asked_frozen_and_watched(client: Client, operator: User) -> None:
    jobs = _failed(MANY)
    lost = factories.job(NOW, JobState.FAILED, reference="VIN-1")
    factories.lost(lost, NOW)
    other = factories.job(NOW)
    asked = _press(client, "?state=failed", "retry_selected", jobs[0])
    text = asked.content.decode()
    assert f"{MANY} jobs" in text
    assert f"About ₽{MANY * 8}.00 in all" in text
    assert "may have cost" in text
    assert "VIN-1" in text
    assert not _retried()
    answer = _yes(client, asked, "?state=failed", jobs[0], reason="<b>sure</b>")
    run = BulkRun.objects.get()
    assert answer["Location"] == _page(run)
    assert (run.total, run.created_by, run.chosen) == (MANY + 1, operator, "state=failed")
    page = client.get(_page(run))
    assert "waits for a worker" in page.content.decode()
    assert "&lt;b&gt;sure" in page.content.decode()
    assert "<b>sure" not in page.content.decode()
    _work()
    done = client.get(_page(run)).content.decode()
    assert f"{MANY} jobs done." in done
    assert "VIN-1" in done
    other.refresh_from_db()
    assert other.state == JobState.PENDING
    assert JobEvent.objects.filter(kind="retried", actor=operator, data__bulk=run.pk).count() == MANY  # fmt: skip


@pytest.mark.parametrize("query", ["", "?phase=nonsense", "?created=always"])
def test_without_a_filter_that_narrows_nothing_is_done_to_all(client: Client, query: str) -> None:
    [job] = _failed(1)
    for data in ({}, {"confirmed": "1", "shown": "1", "reason": ""}):
        answer = _press(client, query, "retry_selected", job, **data)
        assert answer.status_code == 302
    assert "Narrow the list" in client.get(LIST).content.decode()
    assert not BulkRun.objects.exists()


def test_a_yes_without_the_number_that_was_shown_is_asked_again(client: Client) -> None:
    jobs = _failed(2)
    answer = _press(client, "?state=failed", "retry_selected", jobs[0], confirmed="1", reason="")
    assert answer.status_code == 200
    assert answer.context["shown"] == 2
    assert not BulkRun.objects.exists()


def test_jobs_that_came_after_the_preview_were_not_agreed_to(client: Client) -> None:
    jobs = _failed(3)
    asked = _press(client, "?state=failed", "retry_selected", jobs[0])
    _failed(30)
    _yes(client, asked, "?state=failed", jobs[0], reason="")
    assert _retried() == [job.pk for job in jobs]


@pytest.mark.parametrize("name", list(ACTS))
def test_every_action_asks_with_a_form_and_does_what_it_says(client: Client, name: str) -> None:
    state = JobState.FAILED if name in {"retry", "retarget"} else JobState.PENDING
    job = factories.job(NOW, state)
    other = factories.target("other/model", price=Decimal("11.5"))
    asked = _press(client, f"?state={state}", f"{name}_selected", job)
    assert asked.status_code == 200
    text = asked.content.decode()
    if name == "retarget":
        assert "other/model · 1 job, ≈\u00a0₽11.50" in text
    assert 'type="file"' not in text
    form = {"note": "x", "outcome": "gave_up", "reason": "", "target": str(other.pk)}
    _yes(client, asked, f"?state={state}", job, **form)
    job.refresh_from_db()
    became = {"retry": "pending", "retarget": "pending", "manual": "manual", "resolve": "failed", "cancel": "cancelled"}  # fmt: skip
    assert job.state == became[name]
    if name == "retarget":
        assert job.target == other


def test_a_form_that_is_wrong_is_asked_again(client: Client) -> None:
    [job] = [factories.job(NOW)]
    asked = _press(client, "?state=pending", "manual_selected", job)
    again = _yes(client, asked, "?state=pending", job, note=" ")
    assert again.status_code == 200
    assert again.context["form"].errors
    assert not BulkRun.objects.exists()


def test_the_preview_asks_as_much_for_many_jobs_as_for_few(client: Client) -> None:
    counts = []
    for many in (250, 1000):
        jobs = _failed(many)
        with CaptureQueriesContext(connection) as said:
            _press(client, "?state=failed", "retry_selected", jobs[0])
        counts.append(len(said))
    assert counts[0] == counts[1]


def test_a_run_is_stopped_on_its_page_by_those_who_may(client: Client) -> None:
    _failed(MANY)
    run = _start()
    viewer = Client()
    viewer.force_login(factories.staff(Role.VIEWER))
    assert "/do/abort/" not in viewer.get(_page(run)).content.decode()
    assert viewer.post(_page(run, "do", "abort")).status_code == 403
    assert "/do/abort/" in client.get(_page(run)).content.decode()
    assert client.post(_page(run, "do", "abort")).status_code == 302
    run.refresh_from_db()
    assert run.state == BulkRun.State.ABORTED
    page = client.get(_page(run)).content.decode()
    assert f"Not touched: {MANY} jobs" in page
    assert "/do/abort/" not in page


def test_what_was_left_out_is_counted_by_reason_narrowed_and_exported(client: Client) -> None:
    for n in range(3):
        factories.job(NOW, reference=f"=waits-{n}")
    lost = factories.job(NOW, JobState.MANUAL, reference="VIN-2")
    factories.lost(lost, NOW)
    run = _start()
    page = client.get(_page(run))
    assert [(one.constant, one.count) for one in page.context["groups"]] == [("state.pending", "3"), ("possible_charge", "1")]  # fmt: skip
    narrowed = client.get(_page(run) + "?why=possible_charge")
    assert [name for _skip, name, _why in narrowed.context["skips"]] == ["VIN-2"]
    assert len(client.get(_page(run) + "?why=' OR 1=1").context["skips"]) == 4
    export = b"".join(client.get(_page(run, "export")).streaming_content)  # type: ignore[attr-defined]
    rows = list(csv.reader(io.StringIO(export.decode("utf-8-sig"))))
    assert len(rows) == 5
    assert rows[1][:2] == [str(Job.objects.earliest("pk").pk), "'=waits-0"]
    assert rows[4][4:] == ["8", "RUB"]


def test_the_list_of_runs_is_one_query_a_page_and_for_those_who_see_jobs(client: Client) -> None:
    url = reverse("admin:jobs_bulkrun_changelist")
    counts = []
    for _n in range(2):
        for _m in range(3):
            _failed(1)
            _start(jobs=Job.objects.filter(state="failed"))
        with CaptureQueriesContext(connection) as said:
            assert client.get(url).status_code == 200
        counts.append(len(said))
    assert counts[0] == counts[1]
    nobody = Client()
    nobody.force_login(factories.staff())
    assert nobody.get(url).status_code == 403
    for name in ("change", "progress", "stream", "export"):
        assert nobody.get(_page(BulkRun.objects.latest("pk"), name)).status_code == 403
        assert client.get(_page(BulkRun(pk=987654), name)).status_code == 404


def test_an_open_page_learns_of_each_change_and_of_the_end(client: Client) -> None:
    _failed(2 * bulk.CHUNK)
    run = _start()
    subject = bulk_runs.subject(run.pk)
    told = []
    for _n in range(3):
        seen = subject.read()
        told.append((subject.tell(seen)["version"], subject.over(seen)))
        bulk.work(now=LATER)
    assert len({version for version, _over in told}) == 3
    assert [over for _version, over in told] == [False, False, True]
    assert client.get(_page(run, "progress")).json()["done"] == 2 * bulk.CHUNK


@pytest.mark.django_db
def test_jobs_of_a_paused_batch_wait_when_they_come_back() -> None:
    batch = Batch.objects.create(tenant=factories.tenant(), created_at=NOW, paused_at=NOW)
    _failed(3, batch=batch)
    _start()
    assert all(job.not_before.year > 2900 for job in batch.jobs.all())


@pytest.mark.django_db
def test_cases_are_closed_but_for_what_may_have_been_paid_twice() -> None:
    [job] = _failed(1)
    factories.case(CaseKind.REFUSED_BY_ALL, NOW, of=job)
    factories.case(CaseKind.PAID_TWICE, NOW, of=job)
    _start()
    assert list(Case.objects.filter(resolved_at__isnull=True).values_list("kind", flat=True)) == ["paid_twice"]  # fmt: skip


def test_the_clock_of_a_page_is_the_desks(client: Client) -> None:
    """A run begun a minute ago says so."""
    _failed(MANY)
    run = _start(now=clock.now() - timedelta(minutes=1, seconds=5))
    assert "1 min ago" in client.get(_page(run)).content.decode()
