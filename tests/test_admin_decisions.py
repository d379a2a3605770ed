"""The decisions on their pages: a candidate is accepted and a late result delivered in one press, an edit shows what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs import attach
from jobs.clock import clock
from jobs.lifecycle import decisions
from jobs.lifecycle.errors import Refused
from jobs.models import JobEvent, ProviderTask
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from providers.adapters.polza import Polza
from providers.contract import Answer, PollTrouble, Running, Verdict
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _surroundings(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.PROVIDER_KEYS = {"polza": "pza_test"}


@pytest.fixture
def operator() -> User:
    return factories.staff(Role.OPERATOR)


@pytest.fixture
def client(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


def text(client: Client, kind: str, pk: object) -> str:
    return client.get(reverse(f"admin:jobs_{kind}_change", args=[pk])).content.decode()


def lost(**values: Any) -> ProviderTask:
    now = clock.now()
    candidates = [
        {"id": "gen_1", "model": "m", "status": "completed", "cost": "8", "created_at": ""}
    ]
    task = factories.lost(factories.job(now, JobState.MANUAL), now, candidates=candidates, **values)
    factories.case(CaseKind.UNKNOWN_SEND, now, of=task.job, by=task)
    return task


def says(monkeypatch: pytest.MonkeyPatch, status: int, body: bytes) -> None:
    """What the provider answers when it is asked for the id."""

    async def ask(*_args: Any) -> Verdict | Running | PollTrouble:
        return Polza().read_poll(Answer(status=status, headers={}, body=body))

    monkeypatch.setattr(attach, "_ask", ask)


def test_a_candidate_is_accepted_in_one_press_on_the_cases_page(
    client: Client, operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, 200, b'{"id": "gen_1", "status": "processing"}')
    task = lost()
    page = text(client, "case", task.cases.get().pk)
    url = reverse("admin:jobs_providertask_do", args=[task.pk, "accept"])
    assert f'action="{url}"' in page
    assert 'name="provider_id" value="gen_1"' in page
    client.post(url, {"provider_id": "gen_1"})
    task.refresh_from_db()
    assert (task.provider_id, task.state, task.job.state) == ("gen_1", "accepted", "active")
    event = JobEvent.objects.get(kind="candidate_accepted")
    assert (event.actor, event.data["provider_id"]) == (operator, "gen_1")


@pytest.mark.parametrize("why", ["unknown there", "another's", "another key's", "no candidate"])
def test_a_candidate_that_is_not_this_send_is_refused(
    client: Client, operator: User, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    now = clock.now()
    good = why != "unknown there"
    says(
        monkeypatch,
        200 if good else 404,
        b'{"id": "gen_1", "status": "processing"}' if good else b"{}",
    )
    task = lost()
    if why.startswith("another"):
        key = "0ther0ther00" if "key" in why else "f00dfeedcafe"
        factories.accepted(
            factories.job(now, JobState.ACTIVE), now, provider_id="gen_1", account=factories.account(now, fingerprint=key)
        )  # fmt: skip
    if why == "no candidate":
        ProviderTask.objects.filter(pk=task.pk).update(candidates=[])
    with pytest.raises(Refused):
        attach.accept(task_id=task.pk, provider_id="gen_1", actor=operator, reason="")
    task.refresh_from_db()
    assert (task.provider_id, task.state) == (None, "unknown")


def test_a_late_result_is_delivered_in_one_press(client: Client, operator: User) -> None:
    now = clock.now()
    job = factories.done(now)
    other = factories.result(job, now, deliver=False)
    for kind, pk in (
        ("job", job.pk),
        ("case", factories.case(CaseKind.LATE_RESULT, now, of=job, by=job.tasks.get()).pk),
    ):
        page = text(client, kind, pk)
        assert f'name="result" value="{other.pk}"' in page
        assert "Deliver this one instead" in page
    client.post(reverse("admin:jobs_job_do", args=[job.pk, "deliver"]), {"result": other.pk})
    job.refresh_from_db()
    assert (job.delivered, job.decided_by) == (other, operator)


def test_an_edit_shows_what_was_changed_and_runs_no_markup(client: Client, operator: User) -> None:
    now = clock.now()
    job = factories.job(now, JobState.FAILED, prompt="a red bicycle")
    url = reverse("admin:jobs_job_do", args=[job.pk, "edit"])
    assert "a red bicycle" in client.get(url).content.decode()
    client.post(url, {"prompt": "a <b>blue</b> bicycle", "reason": "they refuse red"})
    page = text(client, "job", job.pk)
    assert "<del>red</del>" in page
    assert "<ins>&lt;b&gt;blue&lt;/b&gt;</ins>" in page
    assert "they refuse red" in page


def test_who_settled_the_money_and_by_which_reference_is_shown(
    client: Client, operator: User
) -> None:
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    send = factories.accepted(job, now, failed_at=now, cost_receipt=8, receipt_final_at=now)
    decisions.mark_refunded(task_id=send.pk, actor=operator, now=now, reference="R-<1>")
    for kind, pk in (("job", job.pk), ("providertask", send.pk)):
        page = text(client, kind, pk)
        assert "R-&lt;1&gt;" in page
        assert operator.username in page
        assert "/do/refund/" not in page
