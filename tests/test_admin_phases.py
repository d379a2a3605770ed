"""What people are told of a job's phase: late or not, and why it waits."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from jobs import phases
from jobs.clock import clock
from jobs.models import Hold, Job
from jobs.states import JobState
from providers import registry
from providers.models import Account
from tests import factories

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def account(now: datetime) -> Account:
    """The account whose key the settings hold."""
    return factories.account(now, fingerprint=registry.account("polza").fingerprint)


def why(job: Job, now: datetime) -> phases.Waiting:
    return phases.why_waiting([job], now)[job.pk]


def _late(job: Job, now: datetime) -> bool:
    return phases.is_late(job, job.tasks.filter(blocks_send=True).first(), now)


# --- late -------------------------------------------------------------------------------------------------------------


def test_a_job_that_waits_in_the_queue_is_not_late_however_old(now: datetime) -> None:
    assert not _late(factories.job(now, created_at=now - 300 * MINUTE), now)


def test_an_old_job_sent_just_now_is_not_late(now: datetime) -> None:
    job = factories.job(now, JobState.ACTIVE, created_at=now - 300 * MINUTE)
    factories.accepted(job, now, armed_at=now - MINUTE)
    assert not _late(job, now)


def test_a_send_older_than_the_timeout_makes_its_job_late(now: datetime, settings: Any) -> None:
    settings.WORKER_JOB_TIMEOUT_SEC = 1080
    job = factories.job(now, JobState.ACTIVE, created_at=now - 20 * MINUTE)
    factories.lost(job, now, armed_at=now - timedelta(seconds=1080))
    assert not _late(job, now)
    assert _late(job, now + timedelta(seconds=1))


def test_a_job_in_a_persons_hands_is_not_late(now: datetime) -> None:
    job = factories.job(now, JobState.MANUAL, reason="unknown_send")
    factories.lost(job, now, armed_at=now - 60 * MINUTE)
    assert not _late(job, now)


# --- why it waits -----------------------------------------------------------------------------------------------------


def test_a_job_with_nothing_before_it_is_next_in_line(now: datetime, account: Account) -> None:
    told = why(factories.job(now), now)
    assert (told.text, told.turn) == ("next in line", True)


def test_a_job_waits_for_a_provider_without_a_key(now: datetime, settings: Any) -> None:
    settings.PROVIDER_KEYS = {"polza": ""}
    told = why(factories.job(now), now)
    assert (told.text, told.turn) == ("no key is set for Polza", False)


@pytest.mark.parametrize("state", ["lost", "late"])
def test_a_job_waits_while_too_much_money_may_have_gone_into_lost_and_late_sends(
    now: datetime, account: Account, settings: Any, state: str
) -> None:
    settings.EXPOSURE_LIMIT_PRICES = 2
    job = factories.job(now)
    make = {"lost": factories.lost, "late": factories.accepted}[state]
    armed = now - timedelta(seconds=settings.POLL_DEADLINE_SEC)
    make(factories.job(now, JobState.ACTIVE), now, armed_at=armed, estimated_cost=Decimal(8))
    assert why(job, now).text == "next in line"
    make(factories.job(now, JobState.ACTIVE), now, armed_at=armed, estimated_cost=Decimal(8))
    assert "too much money may have gone into lost and late sends" in why(job, now).text


def test_sends_at_the_provider_in_good_time_brake_nothing(
    now: datetime, account: Account, settings: Any
) -> None:
    settings.EXPOSURE_LIMIT_PRICES = 1
    factories.accepted(factories.job(now, JobState.ACTIVE), now)
    assert why(factories.job(now), now).text == "next in line"


def test_a_job_whose_earlier_send_cost_after_all_waits_for_a_person(
    now: datetime, account: Account
) -> None:
    job = factories.job(now)
    factories.accepted(job, now, blocks_send=False, released_by="absent")
    assert "a person must decide" in why(job, now).text


def test_only_the_account_of_the_key_that_is_set_holds_a_job_up(
    now: datetime, account: Account
) -> None:
    job = factories.job(now)
    until = now + 5 * MINUTE
    old = factories.account(now, fingerprint="an-old-key")
    factories.provider_state(now, "throttled", account=old, blocked_until=until)
    assert why(job, now).text == "next in line"
    factories.provider_state(now, "throttled", account=account, blocked_until=until)
    told = why(job, now)
    assert (told.text, told.until) == (f"waiting for {job.target.name}: throttled", until)


def test_the_first_reason_is_the_one_that_holds_everything(now: datetime, settings: Any) -> None:
    settings.PROVIDER_KEYS = {"polza": ""}
    Hold.objects.create(kind=Hold.Kind.RED_BUTTON, set_at=now)
    assert why(factories.job(now), now).text == "all sends are held: red button"


def test_the_reasons_of_many_jobs_take_as_many_queries_as_of_one(
    now: datetime, account: Account, django_assert_num_queries: Any
) -> None:
    jobs = list(
        Job.objects.select_related("tenant").filter(
            pk__in=[factories.job(now).pk for _n in range(5)]
        )
    )
    with django_assert_num_queries(7):
        assert len(phases.why_waiting(jobs, now)) == 5
