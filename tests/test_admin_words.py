"""The words of jobs, sends and cases: what they say must be so."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from jobs import display
from jobs.admin import evidence, verbs
from jobs.clock import clock
from jobs.models import Case, Job, ProviderTask
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(factories.staff(superuser=True))
    return client


def _text(client: Client, name: str, pk: Any = None) -> str:
    """A page's words, without what stands around its content."""
    url = reverse(f"admin:jobs_{name}", args=[] if pk is None else [pk])
    page = client.get(url).content.decode()
    words = " ".join(strip_tags(page[page.index("<main") :].replace("<", " <")).split())
    return words.replace(" .", ".").replace(" ,", ",")


# --- sends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"next_fetch": 1}, "made, to be fetched"),
        (
            {"next_fetch": 1, "fetch_trouble": "HTTP 403", "fetch_failures": 8},
            "made, fetching fails",
        ),
        ({"fetch_trouble": "HTTP 403", "fetch_failures": 8}, "made, could not be fetched"),
        ({}, "made, no file given"),
    ],
)
def test_a_made_send_says_whether_its_file_can_be_had(
    now: datetime, root: Client, facts: dict[str, Any], words: str
) -> None:
    job = factories.job(now, JobState.MANUAL, reason="fetch_failed")
    due = now + MINUTE if facts.pop("next_fetch", None) else None
    task = factories.accepted(job, now, completed_at=now - MINUTE, next_fetch_at=due, **facts)
    assert display.task_look(task).word == words
    for text in (_text(root, "job_change", job.pk), _text(root, "polzatask_changelist")):
        assert words in text
        assert "made, to be fetched" not in text.replace("made, to be fetched outcome", "") or due


def test_a_stored_send_tells_no_old_failure(now: datetime, root: Client) -> None:
    job = factories.done(now)
    ProviderTask.objects.update(
        failure_class="down", failure_text="upstream error", fetch_trouble="HTTP 500"
    )
    task = ProviderTask.objects.get()
    for name, pk in (("job_change", job.pk), ("polzatask_change", task.pk), ("polzatask_changelist", None)):  # fmt: skip
        text = _text(root, name, pk)
        for old in ("failure at the provider", "upstream error", "HTTP 500"):
            assert old not in text.lower(), name


def test_request_and_answer_stand_apart(now: datetime) -> None:
    answer = {"status": 200, "headers": {"server": "x"}, "body": "THE ANSWER", "left": True}
    task = factories.accepted(factories.job(now), now, evidence={"submit": answer})
    groups = dict(evidence.of_task(task))
    request = {line.label: line.value for line in groups["The paid request"]}
    assert request["under our id"] == str(task.pk)
    assert request["to"] == task.target.name
    assert request["bytes left us"] == "yes"
    assert "THE ANSWER" not in request.values()
    assert {line.label: line.value for line in groups["Its answer"]}["body"] == "THE ANSWER"


def test_evidence_without_content_is_not_shown(now: datetime, root: Client) -> None:
    assert evidence.groups({"why": "", "submit": {"headers": {}, "body": "", "status": None}}) == []
    job = factories.job(now, JobState.MANUAL, reason="by_hand")
    case = factories.case(CaseKind.BY_HAND, now, of=job, detail={"why": ""})
    assert "Evidence" not in _text(root, "case_change", case.pk)


def test_that_nothing_holds_up_a_further_send_is_not_called_free(
    now: datetime, root: Client
) -> None:
    factories.done(now)
    text = _text(root, "polzatask_change", ProviderTask.objects.get().pk)
    assert "Further sends not held up: its result is stored" in text
    assert "free" not in text


def test_no_wait_is_told_as_a_time_not_to_come_before() -> None:
    assert display.event_detail("pending", {"wait_s": 5.0}) == "in 5 s at the earliest"


# --- cases ------------------------------------------------------------------------------------------------------------


def _charged(now: datetime, **facts: Any) -> Case:
    job = factories.job(now, JobState.MANUAL, reason="failed_but_charged")
    task = factories.accepted(job, now, failed_at=now - MINUTE, failure_class="down", **facts)
    return factories.case(CaseKind.FAILED_BUT_CHARGED, now, of=job, by=task)


def test_a_failed_send_says_whether_a_receipt_came(now: datetime, root: Client) -> None:
    told = _charged(now, cost_receipt=Decimal(8), receipt_final_at=now)
    untold = _charged(now, receipts_end_at=now)
    assert "its receipt shows a charge" in _text(root, "case_change", told.pk)
    assert "no receipt tells whether it charged" in _text(root, "case_change", untold.pk)
    desk = _text(root, "case_changelist")
    assert "its receipt shows a charge" in desk
    assert "no receipt tells whether it charged" in desk


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"refusal_class": "rejected", "failure_class": "rejected"}, "Refused"),
        (
            {"provider_id": "gen_1", "failure_class": "down", "cost_receipt": 0},
            "Failed at the provider",
        ),
    ],
)
def test_a_job_that_no_target_made_says_how(
    now: datetime, root: Client, facts: dict[str, Any], words: str
) -> None:
    job = factories.job(now, JobState.FAILED, reason="refused_by_all", reason_text="no luck")
    if "provider_id" in facts:
        facts |= {"failed_at": now, "receipt_final_at": now, "accepted_at": now}
    else:
        facts |= {"refused_at": now}
    factories.task(job, now, blocks_send=False, **facts)
    case = factories.case(CaseKind.REFUSED_BY_ALL, now, of=job, money_at_risk=0)
    page = _text(root, "job_change", job.pk)
    assert page.count("no luck") == 1  # told once: by the case, or by the job's end
    assert page.count("Nothing was charged.") == 1
    for text in (page, _text(root, "case_change", case.pk)):
        assert words in text
        assert "by all" not in text
    assert words.lower() in _text(root, "job_changelist")


def test_an_end_that_may_have_cost_is_not_called_free(now: datetime, root: Client) -> None:
    job = factories.job(now, JobState.FAILED, reason="refused_by_all")
    factories.accepted(job, now, failed_at=now, blocks_send=False, released_by="person")
    case = factories.case(CaseKind.REFUSED_BY_ALL, now, of=job, money_at_risk=0)
    for text in (_text(root, "job_change", job.pk), _text(root, "case_change", case.pk)):
        assert "Nothing was charged" not in text
        assert "Money was charged, or may have been" in text


def test_a_job_that_needs_a_person_is_not_offered_to_be_marked_for_one(now: datetime) -> None:
    user = factories.staff(superuser=True)
    for state, offered in ((JobState.MANUAL, False), (JobState.ACTIVE, True), (JobState.FAILED, True)):  # fmt: skip
        job = factories.job(now, state)
        assert (verbs.MANUAL in verbs.allowed(verbs.JOB_VERBS, user, job)) is offered


def test_a_case_by_hand_speaks_of_retrying_only_where_that_is_free(
    now: datetime, root: Client
) -> None:
    free = factories.job(now, JobState.MANUAL, reason="by_hand")
    costly = factories.job(now, JobState.MANUAL, reason="by_hand")
    factories.lost(costly, now)
    texts = [
        _text(root, "case_change", factories.case(CaseKind.BY_HAND, now, of=job).pk)
        for job in (free, costly)
    ]
    assert ["or retry it" in text for text in texts] == [True, False]
    assert "its send may have cost money" in texts[1]


# --- fresh pages ------------------------------------------------------------------------------------------------------


def test_pages_say_when_they_were_made_and_can_be_reloaded(now: datetime, root: Client) -> None:
    job = factories.everything(now)["unknown"]
    pages = [("job_changelist", None), ("case_changelist", None), ("polzatask_changelist", None),
             ("job_change", job.pk), ("case_change", job.cases.get().pk), ("polzatask_change", job.tasks.get().pk)]  # fmt: skip
    for name, pk in pages:
        assert re.search(
            r"as of \d\d:\d\d:\d\d (no answer, trying again )?Reload", _text(root, name, pk)
        ), name


def _live(client: Client, job: Job) -> str:
    return client.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()


def test_a_page_looks_again_by_itself_until_nothing_more_will_change(
    now: datetime, root: Client
) -> None:
    jobs = factories.everything(now)
    for name, every in (("waiting", 4), ("at_provider", 4), ("unknown", 15)):
        assert f'data-every="{every}"' in _live(root, jobs[name]), name
    for name in ("done0", "failed", "cancelled"):
        assert "data-every" not in _live(root, jobs[name]), name


def test_a_cancelled_job_is_looked_at_again_while_its_send_is_watched(
    now: datetime, root: Client
) -> None:
    job = factories.job(now, JobState.CANCELLED, decided_at=now)
    factories.accepted(job, now)
    assert 'data-every="15"' in _live(root, job)


def test_the_live_parts_come_alone_and_are_the_pages_own(now: datetime, root: Client) -> None:
    job = factories.everything(now)["charged"]
    url = reverse("admin:jobs_job_change", args=[job.pk])
    page = root.get(url).content.decode()
    alone = root.get(url, headers={"X-Live": "1"}).content.decode()
    names = re.compile(r'data-live="([a-z-]+)"')
    assert sorted(names.findall(page)) == sorted(names.findall(alone))
    assert len(set(names.findall(page))) == len(names.findall(page)) > 8
    assert "desk-nav" not in alone


def test_looking_again_uses_up_no_message(now: datetime, root: Client) -> None:
    job = factories.job(now, JobState.ACTIVE)
    task = factories.accepted(job, now)
    root.post(reverse("admin:jobs_providertask_do", args=[task.pk, "poll"]))
    url = reverse("admin:jobs_job_change", args=[job.pk])
    root.get(url, headers={"X-Live": "1"})
    assert "will be asked within seconds" in root.get(url).content.decode()
