"""Who may do what: the three groups, and each verb by each role, on the button, the page and the POST."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse

from jobs.admin import holds, verbs
from jobs.clock import clock
from jobs.models import Hold
from jobs.roles import PERMISSIONS, Role
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db

OPERATORS = {
    "retry",
    "retarget",
    "manual",
    "resolve",
    "cancel",
    "poll",
    "attach",
    "take",
    "note",
    "close",
    "press",
    "edit",
    "deliver",
    "rate",
    "accept",
    "absent",
    "refund",
    "write-off",
    "replay",
}
OWNERS = OPERATORS | {"resend", "lift"}
MAY = {Role.VIEWER: set(), Role.OPERATOR: OPERATORS, Role.OWNER: OWNERS}


def _client(role: Role) -> Client:
    client = Client()
    client.force_login(factories.staff(role))
    return client


def test_after_migrate_the_three_groups_hold_what_is_written() -> None:
    for role, names in PERMISSIONS.items():
        group = Group.objects.get(name=role.value)
        held = {
            f"{p.content_type.app_label}.{p.codename}"
            for p in group.permissions.select_related("content_type")
        }
        assert held == names


def test_a_viewer_may_only_view() -> None:
    assert all(name.split(".")[1].startswith("view_") for name in PERMISSIONS[Role.VIEWER])


@pytest.mark.parametrize("role", list(Role))
def test_each_verb_is_open_to_its_roles_only(role: Role) -> None:
    """The page and the POST, whatever buttons were shown. A POST that gets through answers 200 or 302, never 403."""
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    task = factories.lost(job, now)
    case = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=task)
    client = _client(role)
    addresses = [
        *(
            (verb, reverse("admin:jobs_job_do", args=[job.pk, verb.name]))
            for verb in verbs.JOB_VERBS
        ),
        *(
            (verb, reverse("admin:jobs_polzatask_do", args=[task.pk, verb.name]))
            for verb in verbs.TASK_VERBS
        ),
        *(
            (verb, reverse("admin:jobs_case_do", args=[case.pk, verb.name]))
            for verb in verbs.CASE_VERBS
        ),
        (holds.PRESS, reverse("admin:desk_red_button")),
        (holds.LIFT, reverse("admin:desk_lift")),
    ]
    for verb, url in addresses:
        allowed = verb.name in MAY[role]
        assert (client.get(url).status_code == 200) is allowed, (role, verb.name, "GET")
        assert (client.post(url, {}).status_code in {200, 302}) is allowed, (
            role,
            verb.name,
            "POST",
        )


def test_a_viewer_sees_no_button_they_may_not_use() -> None:
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=factories.lost(job, now))
    page = (
        _client(Role.VIEWER).get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()
    )
    assert "/do/" not in page
    assert reverse("admin:desk_red_button") not in page
    assert reverse("admin:jobs_job_add") not in page


def test_an_operator_is_not_offered_a_send_that_may_be_paid_twice() -> None:
    now = clock.now()
    job = factories.job(now, JobState.MANUAL)
    factories.lost(job, now)
    url = reverse("admin:jobs_job_change", args=[job.pk])
    assert "/do/resend/" not in _client(Role.OPERATOR).get(url).content.decode()
    assert "/do/resend/" in _client(Role.OWNER).get(url).content.decode()


def test_the_red_button_shows_on_every_page_until_the_owner_lifts_it() -> None:
    operator, owner = _client(Role.OPERATOR), _client(Role.OWNER)
    assert (
        operator.post(reverse("admin:desk_red_button"), {"reason": "prices doubled"}).status_code
        == 302
    )
    page = operator.get(reverse("admin:jobs_job_changelist")).content.decode()
    assert "prices doubled" in page
    assert reverse("admin:desk_lift") not in page
    assert reverse("admin:desk_lift") in owner.get(reverse("admin:index")).content.decode()
    assert owner.post(reverse("admin:desk_lift"), {"reason": "agreed"}).status_code == 302
    assert "prices doubled" not in operator.get(reverse("admin:index")).content.decode()
    hold = Hold.objects.get()
    assert hold.lifted_by is not None
    assert hold.set_by is not None


def test_machine_owned_rows_have_no_form_for_anyone() -> None:
    now = clock.now()
    job = factories.done(now, created_at=now - timedelta(minutes=9))
    client = Client()
    client.force_login(factories.staff(superuser=True))
    for model in (
        "job",
        "providertask",
        "polzatask",
        "case",
        "jobevent",
        "lane",
        "hold",
        "result",
        "batch",
        "spoolhost",
    ):
        assert client.get(reverse(f"admin:jobs_{model}_changelist")).status_code == 200
        if model not in {
            "job",
            "batch",
        }:  # their add pages are the form for new jobs, and the import
            assert client.get(reverse(f"admin:jobs_{model}_add")).status_code == 403
    assert client.get(reverse("admin:jobs_job_delete", args=[job.pk])).status_code == 403
    before = job.prompt
    client.post(
        reverse("admin:jobs_job_change", args=[job.pk]), {"prompt": "changed", "state": "failed"}
    )
    job.refresh_from_db()
    assert (job.prompt, job.state) == (before, JobState.SUCCEEDED)


def test_an_owner_can_make_nobody_a_superuser() -> None:
    client = _client(Role.OWNER)
    other = factories.staff(Role.VIEWER)
    page = client.get(reverse("admin:auth_user_change", args=[other.pk]))
    assert page.status_code == 200
    assert b"is_superuser" not in page.content
    data = {
        "username": other.username,
        "is_active": "on",
        "is_staff": "on",
        "is_superuser": "on",
        "groups": [],
    }
    client.post(reverse("admin:auth_user_change", args=[other.pk]), data)
    other.refresh_from_db()
    assert not other.is_superuser
    root = factories.staff(superuser=True)
    client.post(
        reverse("admin:auth_user_change", args=[root.pk]), {"username": "stolen", "is_active": "on"}
    )
    root.refresh_from_db()
    assert root.username != "stolen"
