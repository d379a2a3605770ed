"""The outbox: a row for each end, in its transaction; claimed once, tried for a day, then a case, and replayable."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, transaction

from jobs import callbacks, links
from jobs.lifecycle import batches, bulk_acts, create, decisions, endpoints, staff
from jobs.lifecycle import callbacks as outbox
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, Callback, Case, Job, JobEvent
from jobs.stages import deliver
from jobs.states import CaseKind, JobState
from jobs.stuck import stuck
from providers import outward
from providers.outward import Replied, Unreached
from tests import factories
from tests.callback_story import Teller
from tests.two import Two, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
URL = "https://shop.example/hook?key=abc"
HOUR = timedelta(hours=1)
OK, BROKEN = Replied(status=204), Replied(status=500, text="oops")


def told(**values: Any) -> Callback:
    """A callback of a job that was cancelled at NOW."""
    job = factories.job(NOW, callback_url=values.pop("url", URL), **values)
    staff.cancel(job_id=job.pk, actor=None, now=NOW)
    return Callback.objects.get(job=job)


def take(now: datetime = NOW, *, room: int = 64) -> list[Callback]:
    return outbox.claim(room=room, now=now)


def note(row: Callback, what: Replied | Unreached, now: datetime) -> None:
    outbox.record(callback=row, told=what, now=now, rng=random.Random(1))


def give_up(*rows: Callback) -> None:
    """As after a day in vain."""
    Callback.objects.filter(pk__in=[row.pk for row in rows]).update(
        since=NOW - 25 * HOUR, at=NOW - 25 * HOUR, not_before=NOW
    )
    while claimed := take():
        for row in claimed:
            note(row, BROKEN, NOW)


# --- rows -------------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[JobState, Callable[[Job], object], str]] = {
    "cancel": (JobState.PENDING, lambda job: staff.cancel(job_id=job.pk, actor=None, now=NOW), "job.cancelled"),
    "resolve": (
        JobState.FAILED,
        lambda job: staff.resolve(job_id=job.pk, actor=None, now=NOW, outcome="done", note="x"), "job.succeeded",
    ),
    "by hand": (JobState.PENDING, lambda job: staff.mark_manual(job_id=job.pk, actor=None, now=NOW, note="x"), "job.manual"),
    "in bulk": (
        JobState.PENDING,
        lambda job: bulk_acts.do(
            bulk_acts.CANCEL, [job.pk], bulk_acts.Call(actor=None, now=NOW, data={"reason": ""}, run_id=1)
        ),
        "job.cancelled",
    ),
    "the machine": (
        JobState.ACTIVE,
        lambda job: Job.objects.move(
            job.pk, old=JobState.ACTIVE, new=JobState.FAILED, finished_at=NOW, reason="rejected"
        ),
        "job.failed",
    ),
}  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize("how", list(ENDS))
def test_each_way_to_an_end_leaves_one_row_and_takes_it_back_with_itself(how: str) -> None:
    state, end, kind = ENDS[how]
    job = factories.job(NOW, state, callback_url=URL)
    with transaction.atomic():
        end(job)
        assert Callback.objects.filter(job=job).exists()
        transaction.set_rollback(True)  # the process dies before its commit
    job.refresh_from_db()
    assert (job.state, Callback.objects.count()) == (state, 0)
    end(job)
    row = Callback.objects.get(job=job)
    assert (row.kind, row.url, row.host) == (kind, URL, "https://shop.example")
    assert row.at == (None if kind == "job.manual" else NOW)


@pytest.mark.django_db
def test_nobody_is_told_of_a_job_without_an_address_or_before_its_end() -> None:
    staff.cancel(job_id=factories.job(NOW).pk, actor=None, now=NOW)
    job = factories.job(NOW, callback_url=URL)
    Job.objects.move(job.pk, old=JobState.PENDING, new=JobState.ACTIVE)
    assert not Callback.objects.exists()


@pytest.mark.django_db
def test_a_job_that_ends_again_is_told_of_again_under_another_id() -> None:
    first = told()
    assert first.job_id is not None
    staff.retry(job_id=first.job_id, actor=None, now=NOW)
    staff.cancel(job_id=first.job_id, actor=None, now=NOW)
    second = Callback.objects.get(job=first.job_id, pk__gt=first.pk)
    assert second.message != first.message


@pytest.mark.django_db
def test_addresses_come_from_the_job_else_from_the_tenant_and_a_batch_has_its_own() -> None:
    tenant, target = factories.tenant(), factories.target()
    endpoints.set_url(tenant_id=tenant.pk, url="https://own.example/all", actor=None, now=NOW)

    def make(url: str, batch_url: str = "") -> tuple[Batch, list[str]]:
        batch = create.create_jobs(
            jobs=[
                create.NewJob(prompt="a", route=[target], callback_url=url),
                create.NewJob(prompt="b", route=[target]),
            ],
            tenant=tenant, actor=None, now=NOW, callback_url=batch_url,
        )  # fmt: skip
        return batch, list(batch.jobs.order_by("pk").values_list("callback_url", flat=True))

    assert make(URL)[1] == [URL, "https://own.example/all"]
    batch, urls = make(URL, "https://batch.example/")
    assert urls == [URL, ""]
    for job in batch.jobs.all():
        staff.cancel(job_id=job.pk, actor=None, now=NOW)
    batches.complete(now=NOW)
    kinds = Callback.objects.order_by("pk").values_list("kind", "url")
    assert list(kinds) == [("job.cancelled", URL), ("batch.completed", "https://batch.example/")]


# --- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_message_says_how_it_ended_and_what_it_cost_and_nothing_that_staff_wrote() -> None:
    job = factories.job(NOW, JobState.MANUAL, callback_url=URL, reference="B-17")
    factories.accepted(job, NOW, completed_at=NOW, cost_poll="7.50")
    staff.resolve(
        job_id=job.pk, actor=None, now=NOW, outcome="gave_up", note="the customer is rude"
    )
    [due] = deliver.messages(take(), now=NOW)
    assert json.loads(due.body) == {
        "type": "job.failed",
        "timestamp": "2026-03-01T12:00:00+00:00",
        "data": {
            "job": job.pk, "batch": None, "reference": "B-17", "state": "failed", "reason": "gave_up",
            "cost": {"RUB": "7.5"}, "result": None,
        },
    }  # fmt: skip
    assert len(due.body) < 1000


@pytest.mark.django_db
def test_a_message_tells_how_the_job_stood_then_whatever_has_happened_since() -> None:
    row = told()
    assert row.job_id is not None
    staff.retry(job_id=row.job_id, actor=None, now=NOW)
    [due] = deliver.messages(take(), now=NOW)
    assert json.loads(due.body)["data"]["state"] == "cancelled"


@pytest.mark.django_db
def test_a_result_that_is_chosen_is_told_of_with_a_link_that_ends(
    settings: LazySettings, tmp_path: Path
) -> None:
    settings.MEDIA_ROOT = tmp_path
    job = factories.done(NOW, callback_url=URL)
    other = factories.result(job, NOW, deliver=False)
    decisions.deliver_instead(job_id=job.pk, result_id=other.pk, actor=None, now=NOW)
    rows = [row for row in take() if row.result_id == other.pk]
    for site, link in (("", None), ("https://desk.example", other.pk)):
        settings.PUBLIC_URL = site
        [due] = deliver.messages(rows, now=NOW)
        told = json.loads(due.body)
        result = told["data"]["result"]
        assert (told["type"], result["sha256"]) == ("job.succeeded", other.sha256)
        if link is None:
            assert result["url"] is None
            continue
        assert result["url"].startswith("https://desk.example/")
        signed = result["url"].rstrip("/").rpartition("/")[2]
        assert links.result_of(signed, now=NOW + 23 * HOUR) == other.pk
        with pytest.raises(links.LinkExpiredError):
            links.result_of(signed, now=NOW + 25 * HOUR)


@pytest.mark.django_db
def test_a_batch_tells_how_many_ended_how(settings: LazySettings) -> None:
    batch = Batch.objects.create(tenant=factories.tenant(), created_at=NOW, label="May", callback_url=URL)  # fmt: skip
    for state in (JobState.FAILED, JobState.FAILED, JobState.CANCELLED):
        factories.job(NOW, state, batch=batch)
    batches.complete(now=NOW)
    [due] = deliver.messages(take(), now=NOW)
    assert json.loads(due.body)["data"] == {
        "batch": batch.pk, "label": "May", "completion": 1, "jobs": {"cancelled": 1, "failed": 2}
    }  # fmt: skip


@pytest.mark.django_db
def test_no_secret_is_anywhere_in_the_database() -> None:
    row = told()
    endpoints.rotate(tenant_id=row.tenant_id, actor=None, now=NOW)
    text = endpoints.reveal(tenant_id=row.tenant_id, actor=None, now=NOW)
    key = base64.b64decode(text.removeprefix("whsec_"))
    [due] = deliver.messages(take(), now=NOW)
    assert due.keys == (key, callbacks.secret(tenant_id=row.tenant_id, generation=1))
    held = ""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(jobs|django)_'"
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f"SELECT coalesce(string_agg(t::text, chr(10)), '') FROM \"{table}\" t")
            held += cursor.fetchall()[0][0]
    assert "callback_secret" in held
    assert text.removeprefix("whsec_") not in held
    assert key.hex() not in held


# --- claiming ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_what_is_claimed_is_nobody_elses_until_the_lease_ends() -> None:
    row = told()
    assert [one.pk for one in take()] == [row.pk]
    assert take() == []
    later = NOW + timedelta(seconds=outbox.LEASE_S + 1)
    [again] = take(later)
    assert (again.pk, again.message, again.tries) == (row.pk, row.message, 2)


@pytest.mark.django_db
def test_a_flood_for_a_dead_receiver_holds_nobody_up() -> None:
    dead = [told(url="https://dead.example/") for _ in range(30)]
    note(take(room=1)[0], Unreached(reason="no route"), NOW)
    well = told(tenant=factories.tenant("other"), url="https://well.example/")
    taken = {row.pk for row in take()}
    assert well.pk in taken
    assert len(taken & {row.pk for row in dead}) == outbox.MOST_AT_FAILING
    # And once it takes one, it is sent several at a time again.
    [tried] = Callback.objects.filter(host="https://dead.example", leased_until__isnull=False)
    note(tried, OK, NOW + timedelta(seconds=1))
    assert len(take()) == outbox.MOST_AT_ONE


@pytest.fixture
def two(transactional_db: None, settings: LazySettings) -> Iterator[Two]:
    settings.WORKER_LANES = 0  # nobody to ring for
    with two_connections() as pair:
        yield pair


def test_two_lanes_at_the_same_moment_take_different_rows(two: Two) -> None:
    for _ in range(6):
        told()
    race = two.race(lambda: take(room=4), lambda: take(room=4))
    first, second = ({row.pk for row in one.value} for one in (race.first, race.second))
    assert (len(first), len(second), first & second) == (4, 2, set())


def test_a_lane_killed_before_its_commit_leaves_the_row_to_the_next(two: Two) -> None:
    row = told()
    race = two.race(take, take, dies=True)
    assert (race.first.killed, [one.pk for one in race.second.value]) == (True, [row.pk])


# --- what comes of it -------------------------------------------------------------------------------------------------


class Program(Teller):
    """Another program, told by the real stage; `says` answers for each moment."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, says: Callable[[datetime], Replied | Unreached]
    ) -> None:
        super().__init__(NOW)
        self.says = says
        self.asked: list[tuple[datetime, dict[str, str], bytes]] = []
        monkeypatch.setattr(outward, "post", self._post)
        monkeypatch.setattr(deliver, "_rng", random.Random(3))

    async def _post(self, _url: str, *, body: bytes, headers: Any, **_more: Any) -> Replied | Unreached:  # fmt: skip
        self.asked.append((self.now, dict(headers), body))
        return self.says(self.now)


@pytest.mark.django_db
def test_a_receiver_that_answers_500_for_an_hour_is_told_once_it_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(monkeypatch, lambda now: BROKEN if now < NOW + HOUR else OK)
    row = told()
    program.run(NOW + 3 * HOUR)
    row.refresh_from_db()
    assert row.delivered_at is not None
    assert NOW + HOUR <= row.delivered_at <= NOW + 2 * HOUR
    assert 5 < len(program.asked) < 40
    assert len([1 for at, *_ in program.asked if at >= NOW + HOUR]) == 1
    assert {headers["webhook-id"] for _at, headers, _body in program.asked} == {
        callbacks.message_id(row.message)
    }
    for at, headers, body in program.asked:
        key = callbacks.secret(tenant_id=row.tenant_id, generation=1)
        signed = f"{headers['webhook-id']}.{int(at.timestamp())}.".encode() + body
        digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{digest}"


@pytest.mark.django_db
def test_a_day_in_vain_is_one_case_for_the_receiver_and_a_replay_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Program(monkeypatch, lambda _now: BROKEN)
    rows = [told(), told()]
    program.run(NOW + 27 * HOUR)
    [case] = Case.objects.filter(kind=CaseKind.DEAD_CALLBACK)
    assert set(case.callbacks.all()) == set(rows)
    assert (case.job_id, case.resolved_at) == (rows[0].job_id, None)
    assert not Callback.objects.filter(given_up_at__isnull=True).exists()
    before = len(program.asked)
    program.says = lambda _now: OK
    program.run(NOW + 28 * HOUR)
    assert len(program.asked) == before  # given up is given up

    assert outbox.replay_case(case_id=case.pk, actor=None, now=program.now) == 2
    with pytest.raises(Refused):
        outbox.replay_case(case_id=case.pk, actor=None, now=program.now)
    case.refresh_from_db()
    assert case.resolved_at is None
    program.run(NOW + 29 * HOUR)
    case.refresh_from_db()
    assert case.resolution == "evidence"
    kinds = JobEvent.objects.filter(job=case.job_id).order_by("pk").values_list("kind", flat=True)
    assert list(kinds)[-3:] == ["case_opened", "callback_replayed", "case_closed"]


@pytest.mark.django_db
def test_newer_news_of_the_same_job_closes_the_case_of_older_news() -> None:
    row = told()
    give_up(row)
    case = Case.objects.get(kind=CaseKind.DEAD_CALLBACK)
    assert row.job_id is not None
    staff.retry(job_id=row.job_id, actor=None, now=NOW)
    Case.objects.filter(pk=case.pk).update(
        resolved_at=None, resolution=""
    )  # a retry closes all of a job
    staff.cancel(job_id=row.job_id, actor=None, now=NOW)
    [newer] = take()
    note(newer, OK, NOW)
    case.refresh_from_db()
    assert case.resolution == "evidence"


@pytest.mark.django_db
def test_a_dead_receivers_second_case_is_opened_once_the_first_is_closed() -> None:
    give_up(told())
    first = Case.objects.get()
    staff.close_case(case_id=first.pk, actor=None, now=NOW, resolution="checked", note="told them")
    give_up(told())
    assert Case.objects.filter(resolved_at__isnull=True).count() == 1
    assert Case.objects.count() == 2


@pytest.mark.django_db
def test_a_receiver_that_says_gone_is_given_up_at_once() -> None:
    row = told()
    note(take()[0], Replied(status=410), NOW)
    row.refresh_from_db()
    assert (row.given_up_at, row.trouble) == (NOW, "HTTP 410")


@pytest.mark.django_db
def test_a_failure_that_is_told_late_undoes_no_later_try() -> None:
    row = told()
    [slow] = take()
    later = NOW + timedelta(seconds=outbox.LEASE_S + 1)
    [quick] = take(later)
    note(quick, OK, later)
    note(slow, BROKEN, later)
    row.refresh_from_db()
    assert (row.delivered_at, row.status) == (later, 204)


@pytest.mark.django_db
def test_a_success_that_is_told_late_counts_although_it_was_given_up() -> None:
    row = told()
    [slow] = take()
    Callback.objects.filter(pk=row.pk).update(leased_until=None, since=NOW - 25 * HOUR)
    note(take()[0], BROKEN, NOW)
    note(slow, OK, NOW + HOUR)
    row.refresh_from_db()
    assert (row.given_up_at, row.delivered_at) == (None, NOW + HOUR)
    assert Case.objects.get().resolution == "evidence"


@pytest.mark.django_db
def test_what_a_receiver_says_is_kept_short_and_without_keys() -> None:
    row = told()
    said = Replied(status=500, text="no: Bearer sk-abcdefghijklmnopqrstuvwxyz123456 " + "x" * 400)
    note(take()[0], said, NOW)
    row.refresh_from_db()
    assert len(row.trouble) <= 300
    assert "abcdefghijklmnop" not in row.trouble


@pytest.mark.django_db
def test_a_callback_that_nobody_sends_is_stuck_and_one_behind_others_is_not() -> None:
    row, behind = told(), told()
    later = NOW + timedelta(minutes=5)
    assert {(one.id, one.code) for one in stuck(now=later) if one.kind == "callback"} == {
        (str(row.pk), "not_told"), (str(behind.pk), "not_told")
    }  # fmt: skip
    [taken] = take(later, room=1)
    note(taken, BROKEN, later)
    assert [one for one in stuck(now=later) if one.kind == "callback"] == []


@pytest.mark.django_db
@pytest.mark.parametrize("url", ["http://shop.example/", "https://10.0.0.1/", "nonsense"])
def test_an_address_that_may_not_be_called_is_refused_when_it_is_set(url: str) -> None:
    with pytest.raises(Refused):
        endpoints.set_url(tenant_id=factories.tenant().pk, url=url, actor=None, now=NOW)
