"""What staff do in the admin: a confirmation that names effects and money, one verb of lifecycle, and an honest answer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import AbstractBaseUser, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from jobs import attach
from jobs.clock import clock
from jobs.lifecycle.errors import Refused
from jobs.models import Case, Job, JobEvent, ProviderTask, StandingDecision
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def owner() -> User:
    return factories.staff(Role.OWNER)


@pytest.fixture
def client(owner: User) -> Client:
    client = Client()
    client.force_login(owner)
    return client


def _do(thing: Any, verb: str) -> str:
    return reverse(f"admin:jobs_{thing._meta.model_name}_do", args=[thing.pk, verb])


def _said(response: Any) -> str:
    return " ".join(str(message) for message in response.context["messages"])


def _refused_job() -> Job:
    now = clock.now()
    job = factories.job(now, JobState.FAILED, reason="refused_by_all")
    factories.task(job, now, blocks_send=False, refusal_class="rejected", refused_at=now)
    return job


def test_asking_changes_nothing(client: Client) -> None:
    job = _refused_job()
    page = client.get(_do(job, "retry"))
    assert page.status_code == 200
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert "≈\u00a0₽8.00" in page.content.decode()


def test_a_retry_names_who_and_why(client: Client, owner: User) -> None:
    job = _refused_job()
    case = factories.case(CaseKind.REFUSED_BY_ALL, clock.now(), of=job)
    answer = client.post(_do(job, "retry"), {"reason": "the prompt is fine"}, follow=True)
    job.refresh_from_db()
    case.refresh_from_db()
    assert job.state == JobState.PENDING
    assert case.resolution == "retried"
    event = JobEvent.objects.get(job=job, kind="retried")
    assert event.actor == owner
    assert event.data["reason"] == "the prompt is fine"
    assert "back in the queue" in _said(answer)


def test_a_retry_is_refused_while_a_charge_is_possible_whatever_button_was_pressed(
    client: Client,
) -> None:
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    factories.lost(job, now)
    assert (
        "/do/retry/"
        not in client.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()
    )
    answer = client.post(_do(job, "retry"), {"reason": ""})
    job.refresh_from_db()
    assert job.state == JobState.MANUAL
    assert answer.status_code == 200
    assert "may have cost" in _said(answer)


def test_sending_again_names_the_money_and_wants_a_reason_and_a_yes(
    client: Client, owner: User
) -> None:
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    task = factories.lost(job, now)
    page = client.get(_do(job, "resend")).content.decode()
    assert "pay twice" in page
    assert page.count("₽8.00") >= 2
    for missing in ({"reason": "customer waits"}, {"sure": "on"}):
        client.post(_do(job, "resend"), missing)
        job.refresh_from_db()
        assert job.state == JobState.MANUAL
    client.post(_do(job, "resend"), {"reason": "customer waits", "sure": "on"})
    job.refresh_from_db()
    task.refresh_from_db()
    assert job.state == JobState.PENDING
    assert (task.blocks_send, task.released_by, task.released_user) == (False, "person", owner)
    assert "8" in JobEvent.objects.get(job=job, kind="sent_again").data["possible_duplicate"]


def test_another_target_is_chosen_among_the_open_ones(client: Client) -> None:
    job = _refused_job()
    other = factories.target("openai/gpt-5-image")
    closed = factories.target("closed/model", enabled=False)
    page = client.get(_do(job, "retarget")).content.decode()
    assert "openai/gpt-5-image" in page
    assert "closed/model" not in page
    client.post(_do(job, "retarget"), {"target": closed.pk, "reason": ""})
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    client.post(_do(job, "retarget"), {"target": other.pk, "reason": ""})
    job.refresh_from_db()
    assert (job.state, job.target, job.route[0]) == (JobState.PENDING, other, other.pk)


def test_marking_by_hand_wants_a_note_and_makes_a_case(client: Client, owner: User) -> None:
    job = factories.job(clock.now())
    client.post(_do(job, "manual"), {"note": " "})
    job.refresh_from_db()
    assert job.state == JobState.PENDING
    client.post(_do(job, "manual"), {"note": "we draw it ourselves"})
    job.refresh_from_db()
    assert job.state == JobState.MANUAL
    case = Case.objects.get(job=job)
    assert (case.kind, case.owner, case.note) == (CaseKind.BY_HAND, owner, "we draw it ourselves")


def _png() -> SimpleUploadedFile:
    data = io.BytesIO()
    factories.picture(size=96).save(data, "PNG")
    return SimpleUploadedFile("../../own.png", data.getvalue(), "image/png")


def test_a_job_is_resolved_with_a_file_made_by_hand(client: Client, owner: User) -> None:
    job = factories.job(clock.now(), JobState.MANUAL)
    client.post(_do(job, "resolve"), {"outcome": "done", "note": "drawn by hand", "file": _png()})
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED
    assert job.delivered is not None
    assert job.delivered.uploaded_by == owner
    assert job.delivered.task is None
    assert ".." not in job.delivered.key
    served = client.get(reverse("admin:desk_file", args=[job.delivered.pk]))
    assert b"".join(served.streaming_content).startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_what_is_no_picture_resolves_nothing(client: Client) -> None:
    job = factories.job(clock.now(), JobState.MANUAL)
    page = client.post(
        _do(job, "resolve"),
        {"outcome": "done", "note": "x", "file": SimpleUploadedFile("a.png", b"<html>no</html>")},
    )
    job.refresh_from_db()
    assert job.state == JobState.MANUAL
    assert "can't be a result" in _said(page)


def test_a_cancel_says_that_a_send_under_way_is_still_watched(client: Client) -> None:
    now = clock.now()
    job = factories.job(now, JobState.ACTIVE)
    task = factories.accepted(job, now)
    assert "still watched" in client.get(_do(job, "cancel")).content.decode()
    client.post(_do(job, "cancel"), {"reason": "ordered twice"})
    job.refresh_from_db()
    task.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert task.state == "accepted"


def test_poll_now_is_one_press(client: Client) -> None:
    now = clock.now()
    task = factories.accepted(factories.job(now, JobState.ACTIVE), now)
    page = client.get(reverse("admin:jobs_polzatask_change", args=[task.pk])).content.decode()
    assert f'action="{_do(task, "poll")}"' in page
    answer = client.post(
        _do(task, "poll"), {"next": reverse("admin:jobs_polzatask_change", args=[task.pk])}
    )
    assert answer.status_code == 302
    task.refresh_from_db()
    assert task.next_poll_at is not None
    assert task.hinted_at is not None


def test_an_id_is_attached_by_the_check_at_the_provider(
    client: Client, owner: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    task = factories.lost(factories.job(now, JobState.MANUAL), now)
    asked: list[tuple[UUID, str, AbstractBaseUser | None, str]] = []

    def check(task_id: UUID, provider_id: str, actor: AbstractBaseUser | None, reason: str) -> None:
        asked.append((task_id, provider_id, actor, reason))
        if provider_id == "gen_stranger":
            raise Refused("The provider does not know this id.")

    monkeypatch.setattr(attach, "attach", check)
    client.post(_do(task, "attach"), {"provider_id": "gen_1", "reason": "seen in the dashboard"})
    assert asked == [(task.pk, "gen_1", owner, "seen in the dashboard")]
    page = client.post(_do(task, "attach"), {"provider_id": "gen_stranger", "reason": "a guess"})
    assert "does not know this id" in _said(page)


def test_a_case_is_taken_noted_and_closed(client: Client, owner: User) -> None:
    case = factories.case(CaseKind.PAID_TWICE, clock.now(), of=factories.done(clock.now()))
    client.post(_do(case, "take"), {})
    client.post(_do(case, "note"), {"note": "asked for a refund"})
    client.post(_do(case, "close"), {"resolution": "refund_asked", "note": "ticket 12"})
    case.refresh_from_db()
    assert (case.owner, case.resolution, case.resolved_by) == (owner, "refund_asked", owner)
    assert "asked for a refund" in case.note


def test_a_case_somebody_else_has_is_not_taken_away(client: Client) -> None:
    case = factories.case(CaseKind.PAID_TWICE, clock.now(), owner=factories.staff(Role.OPERATOR))
    answer = client.post(_do(case, "take"), {})
    assert "somebody else has it" in _said(answer)


def test_a_case_that_holds_a_job_up_offers_no_close(client: Client) -> None:
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=factories.lost(job, now))
    page = client.get(reverse("admin:jobs_case_change", args=[case.pk])).content.decode()
    assert _do(case, "close") not in page
    client.post(_do(case, "close"), {"resolution": "checked", "note": "gone"})
    case.refresh_from_db()
    assert case.resolved_at is None


def test_the_way_back_leads_to_no_other_site(client: Client) -> None:
    job = _refused_job()
    answer = client.post(_do(job, "retry"), {"reason": "", "next": "https://example.com/"})
    assert answer["Location"] == reverse("admin:jobs_job_change", args=[job.pk])


def test_a_verb_needs_its_token(owner: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(owner)
    job = _refused_job()
    assert strict.post(_do(job, "retry"), {"reason": ""}).status_code == 403


# --- many at once -----------------------------------------------------------------------------------------------------


def _select(client: Client, action: str, jobs: list[Job], **data: str) -> Any:
    return client.post(
        reverse("admin:jobs_job_changelist"),
        {"action": action, "_selected_action": [job.pk for job in jobs], **data},
        follow=True,
    )


def test_a_bulk_retry_names_counts_money_and_what_it_leaves_out(client: Client) -> None:
    now = clock.now()
    fits = [_refused_job(), _refused_job()]
    unknown = factories.job(now, JobState.MANUAL, reference="VIN-1")
    factories.lost(unknown, now)
    page = _select(client, "retry_selected", [*fits, unknown]).content.decode()
    assert "2 jobs" in page
    assert "₽16.00" in page
    assert "VIN-1" in page
    assert "may have cost" in page
    assert Job.objects.filter(state=JobState.PENDING).count() == 0  # asked, not done
    done = _select(client, "retry_selected", [*fits, unknown], confirmed="1", reason="")
    assert Job.objects.filter(state=JobState.PENDING).count() == 2
    unknown.refresh_from_db()
    assert unknown.state == JobState.MANUAL
    assert "2 jobs done." in done.content.decode()
    assert "VIN-1" in done.content.decode()


def test_a_bulk_cancel_tells_the_money_of_sends_under_way(client: Client) -> None:
    now = clock.now()
    jobs = [factories.job(now), factories.job(now, JobState.ACTIVE)]
    factories.accepted(jobs[1], now)
    assert "₽8.00" in _select(client, "cancel_selected", jobs).content.decode()
    _select(client, "cancel_selected", jobs, confirmed="1", reason="storm")
    assert Job.objects.filter(state=JobState.CANCELLED).count() == 2


def test_there_is_no_bulk_resend(client: Client) -> None:
    factories.job(clock.now())
    page = client.get(reverse("admin:jobs_job_changelist")).content.decode()
    assert "retry_selected" in page
    assert "resend" not in page


def test_an_operator_without_a_permission_is_offered_no_bulk_action() -> None:
    viewer = Client()
    viewer.force_login(factories.staff(Role.VIEWER))
    job = _refused_job()
    assert "retry_selected" not in viewer.get(reverse("admin:jobs_job_changelist")).content.decode()
    _select(viewer, "retry_selected", [job], confirmed="1", reason="")
    job.refresh_from_db()
    assert job.state == JobState.FAILED


# --- settings of the owner --------------------------------------------------------------------------------------------


def test_a_standing_decision_carries_its_maker_and_is_ended_not_edited(
    client: Client, owner: User
) -> None:
    target = factories.target()
    client.post(
        reverse("admin:jobs_standingdecision_add"),
        {"target": target.pk, "what": "resend_unknown", "reason": "cheap enough"},
    )
    made = StandingDecision.objects.get()
    assert (made.made_by, made.ended_at) == (owner, None)
    client.post(
        reverse("admin:jobs_standingdecision_changelist"),
        {"action": "end", "_selected_action": [made.pk]},
    )
    made.refresh_from_db()
    assert made.ended_at is not None


def test_a_target_that_was_stopped_is_opened_again_by_the_owner(client: Client) -> None:
    target = factories.target(stopped_at=clock.now(), stopped_reason="no such model")
    client.post(
        reverse("admin:providers_target_changelist"),
        {"action": "open_again", "_selected_action": [target.pk]},
    )
    target.refresh_from_db()
    assert target.open


def test_sends_stay_as_they_are_whatever_is_posted(client: Client) -> None:
    now = clock.now()
    task = factories.accepted(factories.job(now, JobState.ACTIVE), now)
    client.post(
        reverse("admin:jobs_providertask_change", args=[task.pk]),
        {"provider_id": "other", "cost_staff": "1"},
    )
    assert ProviderTask.objects.get(pk=task.pk).provider_id == task.provider_id
