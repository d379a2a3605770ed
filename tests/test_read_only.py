"""A viewer sees no button they may not use: walks every page of the desk that links lead to, with rows in every state."""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import resolve, reverse

from jobs.alert_rules import AlertKind, AlertState
from jobs.clock import clock
from jobs.lifecycle import tokens
from jobs.models import (
    Alert,
    Batch,
    BulkRun,
    BulkSkip,
    Callback,
    Case,
    Hold,
    Job,
    Lane,
    Orphan,
    ProviderTask,
    SpoolHost,
    StandingDecision,
    Statement,
)
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from providers.models import ProviderEvent, QuotaWindow, Target
from tests import factories

pytestmark = pytest.mark.django_db

MOST_PAGES = 800
# Of pages of one kind (same view, same parameters) so many are read; those with a state of their own are where it starts.
MOST_ALIKE = 8
# What everybody may do: leave, choose a language, and have things written their way. The theme is no form.
_FOR_ALL = (
    re.compile(r"/logout/$"),
    re.compile(r"/i18n/setlang/$"),
    re.compile(r"/my-settings/$"),
    # One's own filters, and files that one sees anyway.
    re.compile(r"/filters/(save|\d+/forget)/$"),
    re.compile(r"/gallery/zip/$"),
)
_NO_PAGE = re.compile(r"/(logout|password_change)/")


class Seen(HTMLParser):
    """What a page offers: links, and whatever would POST. A form without anything to press is none."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.posts: list[str] = []
        self._action: str | None = None  # of the form that we are in, if it would POST

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        kind = said.get("type", "submit" if tag == "button" else "").lower()
        if tag == "a" and "href" in said:
            self.links.append(said["href"])
        elif tag == "form":
            action = said.get("action", "")
            posts = said.get("method", "").lower() == "post"
            self._action = action if posts and not any(one.search(action) for one in _FOR_ALL) else None  # fmt: skip
        elif tag in {"button", "input"} and kind in {"submit", "image"}:
            if said.get("formmethod", "").lower() == "post":
                self.posts.append(f"{tag} {said.get('formaction', '')}")
            elif self._action is not None:
                self.posts.append(f"form {self._action}")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._action = None


@dataclass
class Walk:
    """Where a person came to. `refused`: links that lead to a page they may not open. `posts`: by page."""

    names: set[str] = field(default_factory=set)
    pages: int = 0
    refused: list[tuple[str, str, int]] = field(default_factory=list)
    posts: dict[str, list[str]] = field(default_factory=dict)


def walk(client: Client, start: list[str]) -> Walk:
    """Breadth first. Where it starts, and a few of each kind of page."""
    told, waiting = Walk(), deque((url, "") for url in start)
    known: set[str] = set()
    alike: Counter[Any] = Counter()
    while waiting:
        url, came_from = waiting.popleft()
        parts = urlsplit(url)
        address = f"{parts.path}?{parts.query}"
        if address in known or not parts.path.startswith("/admin/") or _NO_PAGE.search(parts.path):
            continue
        known.add(address)
        view = resolve(parts.path).view_name
        # Each filter by itself, and a few of several at once: all combinations would be thousands of the same page.
        asked = sorted({name for name, _value in parse_qsl(parts.query)} - {"_changelist_filters"})
        kind = (view, *asked) if len(asked) <= 1 else (view, "several")
        alike[kind] += 1
        if came_from and alike[kind] > MOST_ALIKE:
            continue
        answer = client.get(url)
        told.pages += 1
        assert told.pages < MOST_PAGES, "the walk does not come to its end"
        if answer.status_code >= 400:
            told.refused.append((url, came_from, answer.status_code))
        elif answer.status_code in {301, 302}:
            waiting.append((urljoin(url, answer["Location"]), url))
        else:
            told.names.add(view)
        if answer.status_code == 200 and not answer.streaming and answer["Content-Type"].startswith("text/html"):  # fmt: skip
            seen = Seen()
            seen.feed(answer.content.decode())
            if seen.posts:
                told.posts[url] = seen.posts
            waiting.extend((urljoin(url, link), url) for link in seen.links)
        if answer.streaming:  # a file: read to its end, which closes it
            deque(answer, maxlen=0)
    return told


@pytest.fixture
def _rows(settings: Any, tmp_path: Path) -> None:
    """Something of everything, in the states that offer buttons to those who may."""
    settings.MEDIA_ROOT = tmp_path
    now = clock.now()
    hour = timedelta(hours=1)
    jobs = factories.everything(now)
    owner = factories.staff(Role.OWNER, name="owner")
    job = factories.done(now)
    factories.result(job, now, deliver=False)
    factories.case(CaseKind.PAID_TWICE, now, of=job, owner=owner)
    closed = factories.case(CaseKind.CONFLICT, now, of=job)
    type(closed).objects.filter(pk=closed.pk).update(resolved_at=now, resolution="checked")
    orphan = Orphan.objects.create(
        provider="polza", provider_id="gen_7", account=factories.account(now), currency="RUB", cost=Decimal(8), found_at=now
    )  # fmt: skip
    factories.case(CaseKind.ORPHAN, now, orphan=orphan)
    tenant = factories.tenant()
    for values in ({}, {"paused_at": now}, {"completed_at": now}):
        batch = Batch.objects.create(tenant=tenant, created_at=now, created_by=owner, **values)
        for state in (JobState.PENDING, JobState.FAILED, JobState.MANUAL):
            factories.job(now, state, batch=batch)
    for how in ("open", "done"):
        run = BulkRun.objects.create(
            verb="retry", created_at=now, total=3, state=how, created_by=owner, finished_at=None if how == "open" else now
        )  # fmt: skip
        BulkSkip.objects.create(run=run, job_id=jobs["failed"].pk, reason="refused", said="no")
    for read in Statement.State.values:
        Statement.objects.create(
            provider="polza", account=factories.account(now), since=now - hour, until=now, asked_at=now - hour,
            state=read, told=_told(), read_at=now, ended_at=None if read == "reading" else now,
        )  # fmt: skip
    for ended in (
        {},
        {"delivered_at": now, "status": 204},
        {"given_up_at": now, "trouble": "HTTP 500"},
    ):
        Callback.objects.create(tenant=tenant, job=job, kind="job.succeeded", url="https://shop.example/", at=now, **ended)  # fmt: skip
    Alert.objects.create(kind=AlertKind.STUCK, state=AlertState.SENT, at=now, not_before=now)
    Hold.objects.create(kind="red_button", set_at=now, set_by=owner, reason="prices")
    Lane.objects.create(slot=1)
    tokens.issue(tenant=tenant, name="site", scopes=["read"], actor=owner, now=now)
    SpoolHost.objects.create(host="desk-1", clear_at=now)
    StandingDecision.objects.create(target=factories.target(), what="resend_unknown", reason="x", made_by=owner, made_at=now)  # fmt: skip
    QuotaWindow.objects.create(account=factories.account(now), seconds=60, most=5)
    stopped = factories.target("stopped")
    Target.objects.filter(pk=stopped.pk).update(stopped_at=now, stopped_reason="no such model")
    factories.provider_state(now, "down", model="stopped", gate="open", next_try_at=now + hour)
    ProviderEvent.objects.create(account=factories.account(now), kind="opened", at=now)


def _told() -> dict[str, Any]:
    return {
        "findings": [], "counts": [], "months": [], "days": [], "accounts": [], "rates": {}, "currency": "RUB",
        "cases": {"opened": 0, "waiting": 0},
    }  # fmt: skip


def _start() -> list[str]:
    """Everything that has a state of its own."""
    return [
        reverse("admin:index"),
        *(reverse("admin:jobs_job_change", args=[job.pk]) for job in Job.objects.all()),
        *(reverse("admin:jobs_case_change", args=[case.pk]) for case in Case.objects.all()),
        *(reverse("admin:jobs_polzatask_change", args=[task.pk]) for task in ProviderTask.objects.all()),
    ]  # fmt: skip


def _client(role: Role) -> Client:
    client = Client()
    client.force_login(factories.staff(role))
    return client


# Pages that a viewer must have been led to: else the walk proves little.
_EXPECTED = {
    *(
        f"admin:jobs_{model}_{page}"
        for model in ("job", "batch", "callback", "case", "alert", "bulkrun", "statement")
        for page in ("changelist", "change")
    ),
    "admin:index", "admin:desk_comparison", "admin:jobs_result_changelist", "admin:jobs_polzatask_changelist",
    "admin:jobs_polzatask_change",
    "admin:jobs_providertask_changelist", "admin:jobs_tenant_changelist", "admin:jobs_tenant_change", "admin:jobs_hold_changelist",
    "admin:jobs_lane_changelist", "admin:jobs_jobevent_changelist", "admin:jobs_spoolhost_changelist",
    "admin:jobs_standingdecision_changelist", "admin:jobs_apitoken_changelist", "admin:jobs_apitoken_change", "admin:providers_providerstate_changelist", "admin:providers_target_changelist",
    "admin:providers_target_change", "admin:providers_account_changelist", "admin:providers_account_change",
    "admin:providers_quotawindow_changelist", "admin:providers_providerevent_changelist",
}  # fmt: skip


@pytest.mark.usefixtures("_rows")
def test_a_viewer_is_offered_nothing_that_they_may_not_do() -> None:
    told = walk(_client(Role.VIEWER), _start())
    assert told.posts == {}
    assert told.refused == []
    assert told.names >= _EXPECTED, _EXPECTED - told.names


@pytest.mark.usefixtures("_rows")
def test_nobody_is_led_to_a_page_that_they_may_not_open() -> None:
    """The walk of whoever may more finds buttons, so the one above would have."""
    told = walk(_client(Role.OPERATOR), _start())
    assert told.refused == []
    assert "admin:desk_trail" in told.names
    assert "admin:desk_handover" in told.names
    assert any("/do/" in post for posts in told.posts.values() for post in posts)
    assert len(told.posts) > 20


@pytest.mark.usefixtures("_rows")
def test_every_list_that_a_viewer_may_see_has_no_form() -> None:
    """Also those that no link leads to."""
    client = _client(Role.VIEWER)
    opened = 0
    for model in admin.site._registry:
        opts = model._meta
        answer = client.get(reverse(f"admin:{opts.app_label}_{opts.model_name}_changelist"))
        if answer.status_code == 403:
            continue
        seen = Seen()
        seen.feed(answer.content.decode())
        assert seen.posts == [], opts.label
        opened += 1
    assert opened >= 20
