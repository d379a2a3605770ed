"""Callbacks on pages and by command: what staff see, and who may see the secret."""

from __future__ import annotations

import io
import json
from datetime import datetime
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse

from jobs import callbacks
from jobs.clock import clock
from jobs.lifecycle import endpoints
from jobs.models import Callback, Endpoint, TenantEvent
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from tests import factories

pytestmark = pytest.mark.django_db
URL = "https://shop.example/hook?key=abc"


@pytest.fixture
def now() -> datetime:
    return clock.now()


def client(role: Role) -> Client:
    made = Client()
    made.force_login(factories.staff(role))
    return made


def callback(now: datetime, **values: Any) -> Callback:
    job = factories.job(now, JobState.FAILED, reference="B-17")
    return Callback.objects.create(
        tenant=job.tenant, job=job, kind="job.failed", url=URL, at=now, not_before=now, **values
    )


def page(who: Client, url: str) -> str:
    answer = who.get(url)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_list_and_the_page_tell_what_became_of_it_and_hide_the_query(now: datetime) -> None:
    dead = callback(now, given_up_at=now, tries=40, status=500, trouble="HTTP 500 <b>oops</b>")
    waiting = callback(now)
    viewer = client(Role.VIEWER)
    for shown in (
        page(viewer, reverse("admin:jobs_callback_changelist")),
        page(viewer, reverse("admin:jobs_callback_change", args=[dead.pk])),
    ):
        assert "given up" in shown
        assert "https://shop.example/hook" in shown
        assert "key=abc" not in shown
        assert "HTTP 500 &lt;b&gt;oops" in shown
        assert "/do/replay/" not in shown
    listed = page(viewer, reverse("admin:jobs_callback_changelist") + "?state=given_up&q=B-17")
    of = [reverse("admin:jobs_callback_change", args=[row.pk]) in listed for row in (dead, waiting)]
    assert of == [True, False]


def test_an_operator_sends_the_callbacks_of_a_case_again(now: datetime) -> None:
    dead = callback(now, given_up_at=now, tries=40)
    assert dead.job is not None
    case = factories.case(CaseKind.DEAD_CALLBACK, now, of=dead.job)
    Callback.objects.filter(pk=dead.pk).update(case=case)
    who = client(Role.OPERATOR)
    assert "Send the callbacks again" in page(who, reverse("admin:jobs_case_changelist"))
    url = reverse("admin:jobs_case_do", args=[case.pk, "replay"])
    assert url in page(who, reverse("admin:jobs_case_change", args=[case.pk]))
    assert who.post(url).status_code == 302
    dead.refresh_from_db()
    assert (dead.given_up_at, dead.failures) == (None, 0)
    assert "Callbacks sent again" in page(who, reverse("admin:jobs_job_change", args=[dead.job_id]))


def test_only_the_owner_sees_the_secret_and_that_they_did_is_on_record(now: datetime) -> None:
    tenant = factories.tenant()
    url = reverse("admin:jobs_tenant_secret", args=[tenant.pk])
    secret = callbacks.secret_text(callbacks.secret(tenant_id=tenant.pk, generation=1))
    owner = client(Role.OWNER)
    tenants_page = page(owner, reverse("admin:jobs_tenant_change", args=[tenant.pk]))
    assert (url in tenants_page, secret in tenants_page) == (True, False)
    for role in (Role.VIEWER, Role.OPERATOR):
        who = client(role)
        assert url not in page(who, reverse("admin:jobs_tenant_change", args=[tenant.pk]))
        assert who.post(url).status_code == 403
    assert owner.get(url).status_code == 405
    assert not TenantEvent.objects.exists()
    answer = owner.post(url)
    assert secret in answer.content.decode()
    assert "no-store" in answer.headers["Cache-Control"]
    event = TenantEvent.objects.get()
    assert event.actor is not None
    assert event.data == {"callback_secret": ["1", "shown"]}
    assert "callback_secret" in page(owner, reverse("admin:jobs_tenant_change", args=[tenant.pk]))


def test_an_owner_sets_the_address_and_a_wrong_one_is_refused_with_words(now: datetime) -> None:
    tenant = factories.tenant()
    owner = client(Role.OWNER)
    url = reverse("admin:jobs_tenant_do", args=[tenant.pk, "callback-url"])
    answer = owner.post(url, {"url": "http://shop.example/"})
    assert "Only https:// is called" in answer.content.decode()
    assert owner.post(url, {"url": URL, "reason": "moved"}).status_code == 302
    assert Endpoint.objects.get().url == URL
    shown = page(owner, reverse("admin:jobs_tenant_change", args=[tenant.pk]))
    assert "https://shop.example/hook?…" in shown
    assert "key=abc" not in shown


def run(*words: str) -> str:
    out = io.StringIO()
    call_command("callbacks", *words, stdout=out)
    return out.getvalue()


def test_the_command_lists_sets_rotates_and_tells_the_secret(now: datetime) -> None:
    assert "No callbacks." in run("list")
    row = callback(now, given_up_at=now)
    tenant = row.tenant
    [told] = json.loads(run("list", "--state", "given_up", "--tenant", "studio", "--json"))["callbacks"]  # fmt: skip
    assert (told["id"], told["url"], told["state"]) == (row.pk, "https://shop.example/hook?…", "given_up")  # fmt: skip
    run("url", "studio", URL)
    assert endpoints.default_url(tenant) == URL
    run("rotate", "studio")
    second = callbacks.secret_text(callbacks.secret(tenant_id=tenant.pk, generation=2))
    assert run("secret", "studio").strip() == second
    for words, code in (
        (("secret", "nobody"), 2),
        (("replay", "0"), 3),
        (("url", "studio", "x"), 3),
    ):
        with pytest.raises(CommandError) as raised:
            run(*words)
        assert raised.value.returncode == code
