"""What people may do: each verb's refusal changes nothing, its effect is told, and money is named."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection, connections, transaction

from jobs.clock import clock
from jobs.lifecycle import staff
from jobs.lifecycle.arm import arm
from jobs.lifecycle.errors import Refused
from jobs.models import Case, Hold, Job, JobEvent, ProviderTask
from jobs.results import Stored
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def person() -> User:
    return colleague("anna")


def colleague(name: str) -> User:
    """Without a password: hashing one takes longer than the test."""
    return User.objects.create(username=name, is_staff=True)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def last(job: Job) -> JobEvent:
    event = JobEvent.objects.filter(job=job).order_by("pk").last()
    assert event is not None
    return event


def refuses(job: Job, verb: Callable[..., None], **values: Any) -> str:
    """The sentence for people, after making sure that nothing was changed."""

    def rows() -> list[Any]:
        return [
            Job.objects.filter(pk=job.pk).values().get(),
            list(job.tasks.order_by("pk").values()),
            list(job.cases.order_by("pk").values()),
            job.events.count(),
        ]

    before = rows()
    with pytest.raises(Refused) as refused:
        verb(**values)
    assert rows() == before
    return str(refused.value)


# --- retry ------------------------------------------------------------------------------------------------------------


def test_a_failed_job_is_retried_from_the_start_of_its_route(now: datetime, person: User) -> None:
    first, second = factories.target(), factories.target("other")
    job = factories.job(now, JobState.FAILED, target=second, route=[first.pk, second.pk])
    case = factories.case(CaseKind.REFUSED_BY_ALL, now, of=job)
    factories.task(job, now, refusal_class="rejected", blocks_send=False)
    staff.retry(job_id=job.pk, actor=person, now=now, reason="asked again")
    job = fresh(job)
    assert (job.state, job.target_id, job.finished_at) == ("pending", first.pk, None)
    assert (job.attempts_since, job.not_before, job.decided_at) == (now, now, None)
    case.refresh_from_db()
    assert (case.resolution, case.resolved_by_id) == ("retried", person.pk)
    assert (last(job).kind, last(job).actor_id) == ("retried", person.pk)


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.ACTIVE, JobState.SUCCEEDED])
def test_a_job_under_way_or_served_is_not_retried(
    now: datetime, person: User, state: JobState
) -> None:
    job = factories.job(now, state)
    refuses(job, staff.retry, job_id=job.pk, actor=person, now=now)


@pytest.mark.parametrize("state", [JobState.MANUAL, JobState.FAILED, JobState.CANCELLED])
@pytest.mark.parametrize(
    "make",
    [
        factories.lost,
        factories.accepted,
        lambda job, now: factories.accepted(job, now, failed_at=now),
        lambda job, now: factories.accepted(job, now, completed_at=now),
        factories.task,
    ],
    ids=["unknown", "accepted", "failed", "completed", "sending"],
)
def test_retry_is_refused_while_a_charge_is_possible_and_names_the_money(
    now: datetime, person: User, make: Callable[..., ProviderTask], state: JobState
) -> None:
    job = factories.job(now, state)
    make(job, now)
    said = refuses(job, staff.retry, job_id=job.pk, actor=person, now=now)
    assert "8 RUB" in said


@pytest.mark.parametrize("released_by", ["unsent", "free", "absent"])
def test_retry_is_refused_when_a_released_send_turned_up_at_the_provider_after_all(
    now: datetime, person: User, released_by: str
) -> None:
    job = factories.job(now, JobState.FAILED)
    send = factories.accepted(job, now, blocks_send=False)
    ProviderTask.objects.filter(pk=send.pk).update(released_by=released_by)
    refuses(job, staff.retry, job_id=job.pk, actor=person, now=now)
    other = factories.target("other")
    refuses(job, staff.retry_on_target, job_id=job.pk, target_id=other.pk, actor=person, now=now)
    staff.resend(job_id=job.pk, actor=person, now=now, reason="both are wanted")
    send.refresh_from_db()
    assert (send.released_by, last(job).data["possible_duplicate"]) == ("person", "8 RUB")


def test_a_send_that_a_person_has_released_does_not_refuse_a_retry(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.FAILED)
    send = factories.lost(job, now, blocks_send=False)
    ProviderTask.objects.filter(pk=send.pk).update(released_by="person")
    staff.retry(job_id=job.pk, actor=person, now=now)
    assert fresh(job).state == "pending"


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED, JobState.MANUAL])
@pytest.mark.parametrize("released_by", ["stored", "person"])
def test_what_came_after_a_decision_is_not_paid_for_once_more(
    now: datetime, person: User, state: JobState, released_by: str
) -> None:
    """Found by the simulation: cancelled, then the picture came and was kept, then somebody pressed Retry."""
    job = factories.job(now, state, decided_at=now)
    kept = {"completed_at": now, "stored_at": now, "blocks_send": False}
    factories.accepted(job, now, **kept, released_by=released_by)
    said = refuses(job, staff.retry, job_id=job.pk, actor=person, now=now)
    other = factories.target("other")
    refuses(job, staff.retry_on_target, job_id=job.pk, target_id=other.pk, actor=person, now=now)
    if released_by == "stored":
        assert "is here already" in said


def test_a_job_that_is_not_there_is_refused(now: datetime, person: User) -> None:
    with pytest.raises(Refused, match="no job"):
        staff.retry(job_id=1, actor=person, now=now)


# --- resend -----------------------------------------------------------------------------------------------------------


def test_sending_again_releases_the_send_and_books_its_money_as_a_possible_duplicate(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.lost(job, now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=send)
    staff.resend(job_id=job.pk, actor=person, now=now, reason="the customer waits")
    send.refresh_from_db()
    case.refresh_from_db()
    assert (send.blocks_send, send.released_by, send.released_user_id) == (
        False,
        "person",
        person.pk,
    )
    assert (send.state, send.charge) == ("unknown", "possible")
    assert (fresh(job).state, case.resolution) == ("pending", "sent_again")
    assert (last(job).kind, last(job).data["possible_duplicate"]) == ("sent_again", "8 RUB")


def test_sending_again_names_the_known_cost_rather_than_the_estimate(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    factories.accepted(job, now, failed_at=now, cost_receipt=Decimal("7.8400"))
    staff.resend(job_id=job.pk, actor=person, now=now, reason="")
    assert last(job).data["possible_duplicate"] == "7.84 RUB"


def test_a_send_that_is_under_way_is_not_repeated(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.ACTIVE)
    factories.task(job, now)
    refuses(job, staff.resend, job_id=job.pk, actor=person, now=now, reason="")


def test_where_nothing_stands_in_the_way_sending_again_points_to_retry(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.FAILED)
    said = refuses(job, staff.resend, job_id=job.pk, actor=person, now=now, reason="")
    assert "retry" in said


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.PENDING])
def test_a_served_or_waiting_job_is_not_sent_again(
    now: datetime, person: User, state: JobState
) -> None:
    job = factories.job(now, state)
    refuses(job, staff.resend, job_id=job.pk, actor=person, now=now, reason="")


# --- another target ---------------------------------------------------------------------------------------------------


def test_a_job_goes_to_the_target_of_a_persons_choice_first(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.FAILED)
    other = factories.target("other")
    staff.retry_on_target(job_id=job.pk, target_id=other.pk, actor=person, now=now)
    moved = fresh(job)
    assert (moved.state, moved.target_id) == ("pending", other.pk)
    assert moved.route == [other.pk, job.target_id]


@pytest.mark.parametrize("closed", ["enabled", "stopped_at", "gone"])
def test_a_closed_target_is_refused(now: datetime, person: User, closed: str) -> None:
    job = factories.job(now, JobState.FAILED)
    values: dict[str, Any] = {"enabled": {"enabled": False}, "stopped_at": {"stopped_at": now}}
    other = factories.target("other", **values.get(closed, {}))
    chosen = other.pk + 1000 if closed == "gone" else other.pk
    refuses(job, staff.retry_on_target, job_id=job.pk, target_id=chosen, actor=person, now=now)


def test_another_target_is_refused_while_a_charge_is_possible(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    factories.lost(job, now)
    other = factories.target("other")
    refuses(job, staff.retry_on_target, job_id=job.pk, target_id=other.pk, actor=person, now=now)


# --- by hand, resolve, cancel -----------------------------------------------------------------------------------------


def test_marking_manual_withdraws_the_intent_and_opens_a_case_of_ones_own(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.ACTIVE)
    intent = factories.task(job, now, armed=False)
    staff.mark_manual(job_id=job.pk, actor=person, now=now, note="I call them")
    intent.refresh_from_db()
    assert (fresh(job).state, intent.state, intent.blocks_send) == ("manual", "unsent", False)
    case = Case.objects.get(job=job)
    assert (case.kind, case.owner_id, case.note) == (CaseKind.BY_HAND, person.pk, "I call them")


def test_a_served_job_is_not_marked_manual(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.SUCCEEDED)
    refuses(job, staff.mark_manual, job_id=job.pk, actor=person, now=now, note="")


def test_resolving_as_done_delivers_the_persons_own_file(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    factories.lost(job, now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job)
    file = Stored(
        key="results/own.png", thumb_key="results/own.webp", sha256="0" * 64,
        media_type="image/png", size_bytes=3, width=1, height=1,
    )  # fmt: skip
    staff.resolve(job_id=job.pk, actor=person, now=now, outcome="done", note="drew it", stored=file)
    ended = fresh(job)
    case.refresh_from_db()
    assert (ended.state, ended.decided_by_id, case.resolution) == ("succeeded", person.pk, "done")
    assert ended.delivered is not None
    assert ended.delivered.uploaded_by_id == person.pk


def test_giving_up_fails_the_job_and_leaves_the_send_on_the_books(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now)
    staff.resolve(job_id=job.pk, actor=person, now=now, outcome="gave_up", note="too late")
    send.refresh_from_db()
    assert (fresh(job).state, send.charge, send.released_by) == ("failed", "possible", "person")


def test_resolving_needs_a_note(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    refuses(job, staff.resolve, job_id=job.pk, actor=person, now=now, outcome="done", note="  ")


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.CANCELLED])
def test_a_decided_job_is_not_resolved(now: datetime, person: User, state: JobState) -> None:
    job = factories.job(now, state)
    refuses(job, staff.resolve, job_id=job.pk, actor=person, now=now, outcome="done", note="x")


def test_cancelling_leaves_a_send_under_way_watched_and_blocking(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.ACTIVE)
    send = factories.accepted(job, now, next_poll_at=now)
    staff.cancel(job_id=job.pk, actor=person, now=now, reason="ordered twice")
    send.refresh_from_db()
    ended = fresh(job)
    assert (ended.state, ended.reason_text, ended.decided_at) == ("cancelled", "ordered twice", now)
    assert (send.blocks_send, send.next_poll_at, send.charge) == (True, now, "possible")


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
def test_an_ended_job_is_not_cancelled(now: datetime, person: User, state: JobState) -> None:
    job = factories.job(now, state)
    refuses(job, staff.cancel, job_id=job.pk, actor=person, now=now)


# --- cancel against arm -----------------------------------------------------------------------------------------------


def armed(intent: ProviderTask) -> bool:
    ids, _, _ = arm(run_id=intent.run_id, calls={intent.pk: (30.0, 3600.0)}, clock=clock)
    return intent.pk in ids


def test_a_cancel_before_the_arm_keeps_the_request_at_home(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.ACTIVE)
    intent = factories.task(job, now, armed=False)
    staff.cancel(job_id=job.pk, actor=person, now=now)
    assert not armed(intent)
    intent.refresh_from_db()
    assert (intent.state, intent.charge, intent.blocks_send) == ("unsent", "none", False)


def test_a_cancel_after_the_arm_leaves_the_send_to_be_watched(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.ACTIVE)
    intent = factories.task(job, now, armed=False)
    assert armed(intent)
    staff.cancel(job_id=job.pk, actor=person, now=now)
    intent.refresh_from_db()
    assert (intent.state, intent.blocks_send, fresh(job).state) == ("sending", True, "cancelled")


def beside(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """`work` on a connection of its own; returned once it waits for a lock that somebody else holds."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    with connection.cursor() as cursor:
        for _ in range(2000):
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            row = cursor.fetchone()
            if row and row[0]:
                return thread, results
            thread.join(0.005)
    raise AssertionError("the other connection never had to wait")


@pytest.mark.django_db(transaction=True)
def test_an_arm_that_meets_a_cancel_half_done_waits_and_sends_nothing(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.ACTIVE)
    intent = factories.task(job, now, armed=False)
    with transaction.atomic():
        staff.cancel(job_id=job.pk, actor=person, now=now)
        thread, results = beside(lambda: armed(intent))
    thread.join(10)
    intent.refresh_from_db()
    assert (results, intent.state, fresh(job).state) == ([False], "unsent", "cancelled")


@pytest.mark.django_db(transaction=True)
def test_a_cancel_that_meets_an_arm_half_done_waits_and_keeps_the_send_watched(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.ACTIVE)
    intent = factories.task(job, now, armed=False)
    with transaction.atomic():
        assert armed(intent)
        thread, _ = beside(lambda: staff.cancel(job_id=job.pk, actor=person, now=now))
    thread.join(10)
    intent.refresh_from_db()
    assert (intent.state, intent.unsent_at, intent.blocks_send) == ("sending", None, True)
    assert fresh(job).state == "cancelled"


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_polling_now_makes_the_task_due(now: datetime, person: User) -> None:
    send = factories.accepted(
        factories.job(now, JobState.ACTIVE), now, next_poll_at=now + timedelta(hours=1)
    )
    staff.poll_now(task_id=send.pk, actor=person, now=now)
    send.refresh_from_db()
    assert (send.next_poll_at, send.hinted_at) == (now, now)


def test_there_is_nothing_to_poll_without_an_id(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.ACTIVE)
    send = factories.lost(job, now)
    refuses(job, staff.poll_now, task_id=send.pk, actor=person, now=now)


def attach(task_id: uuid.UUID, person: User, now: datetime, name: str = "gen_77") -> None:
    staff.attach_provider_id(
        task_id=task_id, provider_id=name, actor=person, now=now, reason="seen there", poll_at=now
    )


def test_an_attached_id_lets_the_job_go_on_and_closes_its_case(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.lost(job, now, next_look_at=now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=send)
    attach(send.pk, person, now)
    send.refresh_from_db()
    case.refresh_from_db()
    assert (send.state, send.next_poll_at, send.next_look_at) == ("accepted", now, None)
    assert (fresh(job).state, case.resolution) == ("active", "evidence")


def test_an_id_of_another_task_is_not_attached(now: datetime, person: User) -> None:
    other = factories.accepted(factories.job(now, JobState.ACTIVE), now)
    job = factories.job(now, JobState.MANUAL)
    send = factories.lost(job, now)
    assert other.provider_id is not None
    name = other.provider_id
    said = refuses(job, lambda: attach(send.pk, person, now, name))
    assert "another" in said


def test_no_id_is_attached_to_a_task_that_has_one_or_was_never_sent(
    now: datetime, person: User
) -> None:
    for make in (factories.accepted, lambda job, now: factories.task(job, now, armed=False)):
        job = factories.job(now, JobState.ACTIVE)
        send = make(job, now)
        refuses(job, lambda send=send: attach(send.pk, person, now))


# --- cases and the red button -----------------------------------------------------------------------------------------


def test_a_case_is_taken_by_one_person(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job)
    for _ in range(2):
        staff.take_case(case_id=case.pk, actor=person, now=now)
    other = colleague("boris")
    refuses(job, staff.take_case, case_id=case.pk, actor=other, now=now)


def test_notes_are_added_and_never_replaced(now: datetime, person: User) -> None:
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=factories.job(now, JobState.MANUAL))
    for note in ("first", "second"):
        staff.note_case(case_id=case.pk, actor=person, now=now, note=note)
    case.refresh_from_db()
    assert [line.split(": ")[-1] for line in case.note.splitlines()] == ["first", "second"]


def close(case: Case, person: User, now: datetime, note: str = "looked at it") -> None:
    staff.close_case(case_id=case.pk, actor=person, now=now, resolution="seen", note=note)


def test_a_case_that_holds_its_job_up_is_closed_by_deciding_the_job(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job)
    refuses(job, lambda: close(case, person, now))


def test_a_case_is_not_closed_without_a_word_nor_twice(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.FAILED)
    case = factories.case(CaseKind.REFUSED_BY_ALL, now, of=job)
    refuses(job, lambda: close(case, person, now, note=" "))
    close(case, person, now)
    refuses(job, lambda: close(case, person, now))


def test_closing_a_poison_case_lets_the_lanes_try_again(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now, deaths=3)
    close(factories.case(CaseKind.POISON, now, of=job, by=send), person, now)
    send.refresh_from_db()
    assert (send.deaths, send.undecided_since) == (0, now)


def test_the_red_button_stops_every_arm_until_it_is_lifted(now: datetime, person: User) -> None:
    intent = factories.task(factories.job(now, JobState.ACTIVE), now, armed=False)
    for _ in range(2):
        staff.press_red_button(actor=person, now=now, reason="prices look wrong")
    assert Hold.objects.filter(lifted_at=None).count() == 1
    assert not armed(intent)
    staff.lift_red_button(actor=person, now=now, reason="they are right")
    assert armed(intent)


def test_a_red_button_that_is_not_pressed_is_not_lifted(now: datetime, person: User) -> None:
    with pytest.raises(Refused):
        staff.lift_red_button(actor=person, now=now, reason="")
