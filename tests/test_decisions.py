"""What a person decides where the machine can't know: each verb's refusals change nothing, its money is told, and no decision
leads to a second charge by itself."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import budgets, spending
from jobs.clock import clock
from jobs.lifecycle import batches, decisions, staff
from jobs.lifecycle import decide as decide_module
from jobs.lifecycle.claim import claim_sends
from jobs.lifecycle.decide import decide
from jobs.lifecycle.record import Fact, FileFact, record
from jobs.models import Case, Job, ProviderTask, SpoolHost
from jobs.rules import limits, rules
from jobs.states import CaseKind, JobState
from jobs.stuck import stuck
from tests import factories
from tests.test_verbs import fresh, last, refuses

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def person() -> User:
    return User.objects.create(username="anna", is_staff=True)


def known(task: ProviderTask) -> ProviderTask:
    return ProviderTask.objects.get(pk=task.pk)


def decided(job: Job, now: datetime) -> Job:
    decide(job_ids=[job.pk], rules=rules(), now=now, rng=random.Random(1))
    return fresh(job)


def claimed(now: datetime) -> list[int]:
    """The jobs that a lane would send for now."""
    intents = claim_sends(
        run_id=uuid.uuid4(), host="desk-1", room=9, fingerprints=["f00dfeedcafe"], limits=limits(), now=now
    )  # fmt: skip
    return [intent.job_id for intent in intents]


def store(task: ProviderTask, now: datetime, *, cost: str = "7") -> None:
    """Its file arrives."""
    file = FileFact(
        position=0, key=f"{task.pk}.png", thumb_key="", sha256="0" * 64, media_type="image/png", size_bytes=3
    )  # fmt: skip
    record(
        facts=[
            Fact(
                task_id=task.pk, at=now, kind="stored", decides=True, completed=True, stored=True,
                cost_poll=Decimal(cost), results=(file,),
            )
        ]
    )  # fmt: skip


def charged(job: Job, now: datetime, **values: Any) -> ProviderTask:
    """Failed at the provider, which charged for it."""
    return factories.accepted(
        job, now, failed_at=now, failure_class="down", cost_receipt=Decimal("7.84"), receipt_final_at=now, **values
    )  # fmt: skip


# --- write off --------------------------------------------------------------------------------------------------------


def off(task: ProviderTask, person: User | None, now: datetime, **values: Any) -> None:
    decisions.write_off(task_id=task.pk, actor=person, now=now, **{"note": "too small", **values})


@pytest.mark.parametrize("make", [factories.lost, charged], ids=["unknown", "charged"])
def test_what_is_written_off_stays_spent_and_its_job_ends(
    now: datetime, person: User, make: Callable[..., ProviderTask]
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = make(job, now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=send)
    off(send, person, now, reference="ticket 7", cost=Decimal("7.5"))
    send = known(send)
    assert (send.charge, send.cost, send.staff_reference) == (
        "written_off",
        Decimal("7.5"),
        "ticket 7",
    )
    assert (send.staff_at, send.staff_user, send.released_by) == (now, person, "person")
    job = fresh(job)
    assert (job.state, job.reason, job.decided_by) == ("failed", "written_off", person)
    case.refresh_from_db()
    assert (case.resolution, case.resolved_by) == ("written_off", person)
    event = job.events.get(kind="written_off")
    assert (event.actor, event.data["before"], event.data["after"], event.data["reference"]) == (
        person, "charged" if make is charged else "possible", "written_off", "ticket 7",
    )  # fmt: skip
    month = budgets.span(budgets.Period.MONTH, zone="UTC", now=now)
    spent = spending.spent([(job.tenant_id, "RUB", month)], factor=1.5)
    assert spent[job.tenant_id, month].charged == Decimal("7.5")
    assert not stuck(now=now + timedelta(hours=1))


def test_a_write_off_is_no_word_on_sending_again(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    off(factories.lost(job, now), person, now)
    assert "written off" in refuses(job, staff.retry, job_id=job.pk, actor=person, now=now)
    assert batches.free([job.pk]) == []
    staff.resend(job_id=job.pk, actor=person, now=now, reason="the owner wants it")
    assert fresh(job).state == "pending"
    assert last(job).data["possible_duplicate"] == "8 RUB"
    assert claimed(now) == [job.pk]


def test_a_send_called_absent_that_cost_and_was_written_off_lets_nothing_be_sent(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = charged(job, now, blocks_send=False, released_by="absent")
    factories.case(CaseKind.FAILED_BUT_CHARGED, now, of=job, by=send)
    off(send, person, now)
    assert fresh(job).state == "failed"
    Job.objects.filter(pk=job.pk).update(state="pending", finished_at=None, decided_at=None)
    ProviderTask.objects.filter(pk=send.pk).update(released_by="absent")
    assert claimed(now) == []  # not even if the job were pending


def test_the_write_off_of_one_of_two_charges_leaves_the_job_as_it_is(
    now: datetime, person: User
) -> None:
    job = factories.done(now)
    beside = charged(job, now, blocks_send=False, released_by="person")
    case = factories.case(CaseKind.PAID_TWICE, now, of=job, by=beside)
    off(beside, person, now)
    case.refresh_from_db()
    assert (fresh(job).state, case.resolution) == ("succeeded", "written_off")
    decided(job, now)
    assert not Case.objects.filter(job=job, resolved_at=None).exists()


def test_a_job_that_another_send_holds_up_goes_on(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    old = charged(job, now, blocks_send=False, released_by="absent")
    factories.case(CaseKind.FAILED_BUT_CHARGED, now, of=job, by=old)
    factories.accepted(job, now, next_poll_at=now)
    off(old, person, now)
    assert fresh(job).state == "active"


@pytest.mark.parametrize(
    ("state", "make"),
    [
        (JobState.ACTIVE, factories.accepted),
        (JobState.ACTIVE, factories.lost),
        (JobState.ACTIVE, factories.task),
        (JobState.MANUAL, factories.task),
        (JobState.MANUAL, lambda job, now: factories.task(job, now, armed=False)),
        (JobState.FAILED, lambda job, now: factories.task(job, now, refusal_class="rejected")),
    ],
    ids=["at the provider", "looked for", "sending", "sending by hand", "intent", "free"],
)
def test_what_is_under_way_or_free_is_not_written_off(
    now: datetime, person: User, state: JobState, make: Callable[..., ProviderTask]
) -> None:
    job = factories.job(now, state)
    send = make(job, now)
    refuses(job, lambda: off(send, person, now))


def test_a_write_off_wants_a_note_and_a_sane_amount_and_is_done_once(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.lost(job, now)
    refuses(job, lambda: off(send, person, now, note=" "))
    for cost in ("0", "-1", "100000", "NaN", "Infinity"):
        refuses(job, lambda cost=cost: off(send, person, now, cost=Decimal(cost)))
    off(send, person, now)
    refuses(job, lambda: off(send, person, now))


def test_the_price_of_what_is_delivered_is_no_loss(now: datetime, person: User) -> None:
    job = factories.done(now)
    refuses(job, lambda: off(job.tasks.get(), person, now))


def test_a_press_that_crosses_with_news_of_the_send_is_refused(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now)
    store(send, now)
    for verb in (off, refund):
        assert "just come in" in refuses(job, lambda verb=verb: verb(send, person, now))
    assert decided(job, now).state == "succeeded"


# --- refunds ----------------------------------------------------------------------------------------------------------


def refund(task: ProviderTask, person: User | None, now: datetime, reference: str = "R-1") -> None:
    decisions.mark_refunded(task_id=task.pk, actor=person, now=now, reference=reference)


@pytest.mark.parametrize(
    "make",
    [
        charged,
        factories.lost,
        factories.accepted,
        lambda job, now: factories.accepted(job, now, completed_at=now, cost_poll=Decimal(8)),
    ],
    ids=["failed", "unknown", "never answered", "no file"],
)
def test_what_was_refunded_stands_in_the_way_of_nothing(
    now: datetime, person: User, make: Callable[..., ProviderTask]
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = make(job, now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=send)
    refund(send, person, now)
    send, job = known(send), fresh(job)
    case.refresh_from_db()
    assert (send.charge, send.blocks_send, send.released_by) == ("refunded", False, "free")
    assert (send.staff_user, send.staff_reference) == (person, "R-1")
    assert (case.resolution, case.resolved_by) == ("refunded", person)
    # Nothing is sent by itself where nobody asked for a fallback.
    assert (job.state, job.reason) == ("failed", "refused_by_all")
    assert claimed(now) == []
    staff.retry(job_id=job.pk, actor=person, now=now)
    assert claimed(now) == [job.pk]


def test_a_refunded_failure_goes_to_the_next_target_where_that_was_asked_for(
    now: datetime, person: User, settings: Any
) -> None:
    settings.FALLBACK_ON = ["down"]
    other = factories.target("other")
    job = factories.job(now, JobState.MANUAL, route=[factories.target().pk, other.pk])
    refund(charged(job, now), person, now)
    assert (fresh(job).state, fresh(job).target) == ("pending", other)


def test_what_was_written_off_may_be_refunded_after_all(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = charged(job, now)
    off(send, person, now)
    refund(send, person, now)
    assert (known(send).charge, fresh(job).state) == ("refunded", "failed")
    month = budgets.span(budgets.Period.MONTH, zone="UTC", now=now)
    spent = spending.spent([(job.tenant_id, "RUB", month)], factor=1.5)
    assert spent[job.tenant_id, month].total == 0
    staff.retry(job_id=job.pk, actor=person, now=now)


def test_a_job_that_a_person_holds_stays_theirs_after_a_refund(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = charged(job, now)
    factories.case(CaseKind.BY_HAND, now, of=job)
    refund(send, person, now)
    assert fresh(job).state == "manual"
    staff.retry(job_id=job.pk, actor=person, now=now)


@pytest.mark.parametrize("make", [factories.accepted, factories.lost, factories.task])
def test_nothing_was_paid_back_for_a_send_that_goes_on(
    now: datetime, person: User, make: Callable[..., ProviderTask]
) -> None:
    job = factories.job(now, JobState.ACTIVE)
    send = make(job, now)
    refuses(job, lambda: refund(send, person, now))


def test_a_refund_wants_a_reference_a_charge_and_comes_once(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = charged(job, now)
    refuses(job, lambda: refund(send, person, now, " "))
    refund(send, person, now)
    refuses(job, lambda: refund(send, person, now))
    free = factories.job(now, JobState.FAILED)
    refused = factories.task(free, now, refusal_class="rejected", blocks_send=False)
    refuses(free, lambda: refund(refused, person, now))


def test_a_result_that_comes_after_a_refund_is_still_delivered(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now, next_poll_at=now)
    refund(send, person, now)
    assert known(send).next_poll_at == now
    store(send, now)
    assert (decided(job, now).state, known(send).charge) == ("succeeded", "refunded")


# --- it never arrived -------------------------------------------------------------------------------------------------


def lost_long_ago(job: Job, now: datetime, **values: Any) -> ProviderTask:
    SpoolHost.objects.update_or_create(host="desk-1", defaults={"clear_at": now})
    return factories.lost(job, now, armed_at=now - timedelta(hours=2), next_look_at=now, **values)


def absent(task: ProviderTask, person: User | None, now: datetime, reason: str = "Olga") -> None:
    decisions.confirm_absent(task_id=task.pk, actor=person, now=now, reason=reason)


def test_a_persons_word_that_it_never_arrived_sends_again_and_proves_nothing(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = lost_long_ago(job, now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=send)
    absent(send, person, now, "Olga of their support, ticket 12")
    send, event = known(send), last(job)
    case.refresh_from_db()
    assert (send.released_by, send.released_user, send.blocks_send) == ("person", person, False)
    assert (send.state, send.charge, send.absent_at) == ("unknown", "possible", None)
    assert send.next_look_at == now  # still looked for
    assert (case.resolution, event.kind, event.actor) == ("absent", "absent_confirmed", person)
    assert event.data == {
        "reason": "Olga of their support, ticket 12",
        "possible_duplicate": "8 RUB",
        "before": "manual",
        "after": "pending",
    }
    assert claimed(now) == [job.pk]


def test_an_id_that_turns_up_after_all_is_watched_and_told_as_paid_twice(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = lost_long_ago(job, now)
    absent(send, person, now)
    assert claimed(now) == [job.pk]
    second = job.tasks.exclude(pk=send.pk).get()
    found: dict[str, Any] = {"at": now, "decides": True, "kind": "found", "next_poll_at": now}
    record(facts=[Fact(task_id=second.pk, provider_id="gen_2", **found)])
    store(second, now)
    assert decided(job, now).state == "succeeded"
    record(facts=[Fact(task_id=send.pk, provider_id="gen_1", **found)])
    decided(job, now)
    assert known(send).next_poll_at == now
    record(facts=[Fact(task_id=send.pk, at=now, kind="completed", decides=True, completed=True,
                       cost_poll=Decimal(8), files=[{"url": "https://x/1"}], next_fetch_at=now)])  # fmt: skip
    decided(job, now)
    case = Case.objects.get(job=job, resolved_at=None)
    assert (case.kind, case.task_id) == ("paid_twice", send.pk)


def test_nobody_says_so_before_absence_could_be_concluded(now: datetime, person: User) -> None:
    SpoolHost.objects.create(host="desk-1", clear_at=now + timedelta(hours=1))
    job = factories.job(now, JobState.MANUAL)
    # Fence 10 s and deadline 30 s after the arming, then the margin of 10 s.
    send = factories.lost(job, now, armed_at=now - timedelta(seconds=49))
    assert "may still arrive" in refuses(job, lambda: absent(send, person, now))
    absent(send, person, now + timedelta(seconds=1))


def test_the_lag_of_the_history_is_waited_for(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = lost_long_ago(job, now)
    factories.account(now)
    type(send.account).objects.update(history_lag_s=2 * 3600)
    refuses(job, lambda: absent(send, person, now))


@pytest.mark.parametrize(
    ("spool", "may"),
    [
        (None, False),
        ({"clear_at": timedelta(hours=-3)}, False),
        ({"clear_at": timedelta(0)}, True),
        ({"clear_at": timedelta(hours=-3), "declared_lost_at": timedelta(0)}, True),
    ],
    ids=["unheard of", "not since", "replayed since", "declared lost"],
)
def test_an_answer_may_lie_on_the_disk_of_its_host(
    now: datetime, person: User, spool: dict[str, timedelta] | None, may: bool
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = lost_long_ago(job, now)
    SpoolHost.objects.all().delete()
    if spool is not None:
        SpoolHost.objects.create(host="desk-1", **{name: now + by for name, by in spool.items()})
    if may:
        absent(send, person, now)
    else:
        assert "disk of desk-1" in refuses(job, lambda: absent(send, person, now))


@pytest.mark.parametrize(
    ("state", "make"),
    [
        (JobState.ACTIVE, factories.accepted),
        (JobState.ACTIVE, factories.task),
        (JobState.FAILED, charged),
        (JobState.SUCCEEDED, lost_long_ago),
        (JobState.PENDING, lost_long_ago),
    ],
    ids=["accepted", "sending", "failed", "job done", "job waiting"],
)
def test_only_a_lost_send_of_a_job_that_waits_can_have_got_lost(
    now: datetime, person: User, state: JobState, make: Callable[..., ProviderTask]
) -> None:
    job = factories.job(now, state)
    send = make(job, now)
    refuses(job, lambda: absent(send, person, now))


def test_it_is_said_with_a_name_once_and_for_each_send_by_itself(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    older = lost_long_ago(job, now, blocks_send=False, released_by="absent")
    send = lost_long_ago(job, now)
    refuses(job, lambda: absent(send, person, now, " "))
    assert "as well" in refuses(job, lambda: absent(send, person, now))
    refuses(job, lambda: absent(older, person, now))
    ProviderTask.objects.filter(pk=older.pk).update(released_by="person")
    absent(send, person, now)
    refuses(job, lambda: absent(send, person, now))


# --- another prompt ---------------------------------------------------------------------------------------------------


def edit(job: Job, person: User | None, now: datetime, prompt: str, **values: Any) -> None:
    decisions.retry_edited(job_id=job.pk, prompt=prompt, actor=person, now=now, **values)


def test_another_prompt_starts_anew_and_keeps_what_was_asked_at_first(
    now: datetime, person: User
) -> None:
    other = factories.target("other")
    job = factories.job(now, JobState.FAILED, prompt="a nude")
    factories.task(job, now, refusal_class="rejected", blocks_send=False)
    case = factories.case(CaseKind.REFUSED_BY_ALL, now, of=job)
    edit(job, person, now, " a statue ", target_id=other.pk, reason="they refuse nudes")
    job, event = fresh(job), last(job)
    case.refresh_from_db()
    assert (job.state, job.prompt, job.original_prompt, job.target) == (
        "pending",
        "a statue",
        "a nude",
        other,
    )
    assert (event.kind, event.actor, event.data["before"], event.data["after"]) == (
        "edited",
        person,
        "a nude",
        "a statue",
    )
    assert (case.resolution, job.edited_at, job.route[0]) == ("retried", now, other.pk)
    Job.objects.filter(pk=job.pk).update(state="failed", finished_at=now)
    edit(job, person, now, "a marble statue")
    assert (fresh(job).original_prompt, last(job).data["before"]) == ("a nude", "a statue")


def test_another_target_alone_leaves_the_prompt(now: datetime, person: User) -> None:
    other = factories.target("other")
    job = factories.job(now, JobState.MANUAL)
    edit(job, person, now, job.prompt, target_id=other.pk)
    assert (fresh(job).target, fresh(job).original_prompt, fresh(job).edited_at) == (
        other,
        "",
        None,
    )


@pytest.mark.parametrize("released_by", ["person", "absent", "free"])
@pytest.mark.parametrize("settled", [None, "written_off"])
def test_no_other_prompt_where_any_send_may_have_cost_whoever_released_it(
    now: datetime, person: User, released_by: str, settled: str | None
) -> None:
    job = factories.job(now, JobState.FAILED)
    factories.lost(job, now, blocks_send=False, released_by=released_by, staff_charge=settled)
    assert "8 RUB" in refuses(job, lambda: edit(job, person, now, "something else")) or settled


def test_an_empty_or_the_same_prompt_is_refused(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.FAILED)
    for prompt in ("", "  ", job.prompt, "x" * 100_000):
        refuses(job, lambda prompt=prompt: edit(job, person, now, prompt))


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.ACTIVE, JobState.SUCCEEDED])
def test_the_prompt_of_a_job_under_way_or_served_stays(
    now: datetime, person: User, state: JobState
) -> None:
    job = factories.job(now, state)
    refuses(job, lambda: edit(job, person, now, "something else"))


def test_a_closed_target_or_one_of_another_kind_is_refused(now: datetime, person: User) -> None:
    job = factories.job(now, JobState.FAILED)
    for values in ({"enabled": False}, {"stopped_at": now}, {"kind": "text"}):
        other = factories.target(f"other {values}", **values)
        refuses(job, lambda other=other: edit(job, person, now, "x", target_id=other.pk))


def test_a_result_of_the_earlier_prompt_is_never_delivered_by_itself(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.FAILED)
    ghost = factories.task(
        job, now, lost_at=now, absent_at=now, blocks_send=False, released_by="absent"
    )
    edit(job, person, now, "something else")
    store(ghost, now)
    job = decided(job, now)
    case = Case.objects.get(job=job, resolved_at=None)
    assert (job.state, job.delivered, case.kind) == ("manual", None, "late_result")
    assert decided(job, now).state == "manual"  # however often it is looked at
    assert claimed(now) == []
    refuses(job, staff.retry, job_id=job.pk, actor=person, now=now)
    staff.resend(job_id=job.pk, actor=person, now=now, reason="the new one is wanted")
    assert decided(job, now).state == "pending"
    assert claimed(now) == [job.pk]
    second = job.tasks.exclude(pk=ghost.pk).get()
    record(
        facts=[Fact(task_id=second.pk, at=now, kind="accepted", decides=True, provider_id="gen_2")]
    )
    store(second, now)
    job = decided(job, now)
    assert job.delivered is not None
    assert job.delivered.task_id == second.pk


# --- which result -----------------------------------------------------------------------------------------------------


def deliver(job: Job, result: Any, person: User | None, now: datetime) -> None:
    decisions.deliver_instead(job_id=job.pk, result_id=result.pk, actor=person, now=now, reason="")


@pytest.mark.parametrize("how", ["gave_up", "cancel", "done"])
def test_a_late_result_is_a_case_of_whoever_decided_and_one_press_delivers_it(
    now: datetime, person: User, how: str
) -> None:
    job = factories.job(now, JobState.MANUAL if how != "cancel" else JobState.ACTIVE)
    send = factories.accepted(job, now, next_poll_at=now)
    if how == "cancel":
        staff.cancel(job_id=job.pk, actor=person, now=now)
    else:
        outcome: Any = how
        staff.resolve(job_id=job.pk, actor=person, now=now, outcome=outcome, note="late")
    before = fresh(job)
    store(send, now)
    job = decided(job, now)
    case = Case.objects.get(job=job, kind="late_result")
    assert (job.state, job.delivered, case.owner, case.task) == (before.state, None, person, send)
    assert case.money_at_risk == Decimal(7)
    for verb in (staff.retry, staff.resend):
        if job.state != "succeeded":
            said = refuses(job, verb, job_id=job.pk, actor=person, now=now, reason="")
            assert "result" in said or "cost" in said
    result = send.results.get()
    boris = User.objects.create(username="boris")
    deliver(job, result, boris, now)
    case.refresh_from_db()
    job = fresh(job)
    assert (job.state, job.delivered, job.decided_by) == ("succeeded", result, boris)
    assert (case.resolution, case.resolved_by, last(job).kind) == (
        "delivered",
        boris,
        "delivered_instead",
    )
    refuses(job, lambda: deliver(job, result, boris, now))
    decided(job, now)
    assert not Case.objects.filter(job=job, resolved_at=None).exists()


def test_a_late_result_is_told_once_however_often_it_is_decided(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now)
    staff.resolve(job_id=job.pk, actor=person, now=now, outcome="gave_up", note="late")
    store(send, now)
    decided(job, now)
    case = Case.objects.get(kind="late_result")
    staff.close_case(
        case_id=case.pk, actor=person, now=now, resolution="checked", note="not wanted"
    )
    ProviderTask.objects.filter(pk=send.pk).update(undecided_since=now)
    decided(job, now)
    assert Case.objects.filter(kind="late_result").count() == 1


def test_one_may_choose_again_and_nothing_is_thrown_away(now: datetime, person: User) -> None:
    job = factories.done(now)
    first = job.delivered
    assert first is not None
    own = factories.result(job, now, deliver=False)
    deliver(job, own, person, now)
    assert fresh(job).delivered == own
    # Its own send was seen long ago: a late receipt is no late result.
    ProviderTask.objects.filter(job=job).update(undecided_since=now)
    decided(job, now)
    assert not Case.objects.filter(job=job).exists()
    deliver(job, first, person, now)
    assert (fresh(job).delivered, job.results.count()) == (first, 2)


def test_a_result_of_another_job_is_not_delivered(now: datetime, person: User) -> None:
    job, other = factories.done(now), factories.done(now)
    assert other.delivered is not None
    refuses(job, lambda: deliver(job, other.delivered, person, now))


def test_choosing_a_result_sends_nothing_more_and_keeps_watching(
    now: datetime, person: User
) -> None:
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now, next_poll_at=now)
    own = factories.result(job, now, deliver=False)
    deliver(job, own, person, now)
    send = known(send)
    assert (send.released_by, send.next_poll_at, fresh(job).state) == ("person", now, "succeeded")
    waiting = factories.job(now, JobState.ACTIVE)
    intent = factories.task(waiting, now, armed=False)
    deliver(waiting, factories.result(waiting, now, deliver=False), person, now)
    assert known(intent).state == "unsent"


def test_many_jobs_of_every_kind_are_read_in_a_few_queries(now: datetime) -> None:
    """No column is asked for afterwards, job by job."""
    rows = factories.everything(now)
    jobs = list(
        Job.objects.only(*decide_module._OF_JOB).filter(pk__in=[job.pk for job in rows.values()])
    )
    with CaptureQueriesContext(connection) as asked:
        views = decide_module.load(jobs, now=now)
    assert len(views) == len(jobs) > 5
    assert len(asked) <= 8
