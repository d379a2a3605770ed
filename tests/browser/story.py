"""A desk in the middle of its day, for the tests that walk over all pages, and the people who look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.urls import NoReverseMatch, reverse
from playwright.sync_api import Browser, BrowserContext

from jobs.clock import clock
from jobs.models import Batch, Job, Lane, Result, Tenant
from jobs.roles import Role
from jobs.states import JobState
from providers import registry
from providers.models import Account, ProviderState, QuotaWindow, Target
from tests import factories

KEY = "pza_test"
SCHEMES = ("light", "dark")


@dataclass(frozen=True, slots=True)
class Story:
    """`pages`: their addresses by a short name; `people`: by role; `given`: what people and providers have written."""

    account: Account
    pages: Mapping[str, str]
    people: Mapping[Role, User]
    given: frozenset[str]

    def calm(self) -> None:
        ProviderState.objects.update(state="available", blocked_until=None, reason="", gate="closed", next_try_at=None)  # fmt: skip

    def quota_exhausted(self) -> None:
        self.calm()
        now = clock.now()
        factories.provider_state(
            now, "quota_exhausted", account=self.account, block="quota_exhausted",
            blocked_until=now + timedelta(hours=52), reason="HTTP 402: weekly limit reached",
        )  # fmt: skip

    def outage(self) -> None:
        self.calm()
        now = clock.now()
        factories.provider_state(
            now, "down", account=self.account, gate="open", cause="failures", opened_at=now - timedelta(minutes=9),
            next_try_at=now + timedelta(seconds=50), sends_failed=7, reason="HTTP 503: upstream connect error",
        )  # fmt: skip


def told(settings: Any) -> Story:
    """Everything that can be seen: each phase, each kind of trouble, a batch half done, rated results, two lanes."""
    settings.PROVIDER_KEYS = {"polza": KEY}
    now = clock.now()
    jobs = factories.everything(now, done_jobs=9)
    people = {
        role: factories.staff(role, name=role.value.lower(), password="a long password")
        for role in Role
    }
    Result.objects.filter(job=jobs["done0"]).update(rating="good", rated_at=now, rated_by=people[Role.OPERATOR])  # fmt: skip
    batch = _batch(now)
    account = factories.account(now)
    account.fingerprint = registry.fingerprint(KEY)
    account.balance, account.balance_currency, account.balance_at = Decimal("1804.20"), "RUB", now
    account.save()
    QuotaWindow.objects.create(account=account, seconds=86_400, most=60)
    for slot in (1, 2):
        Lane.objects.update_or_create(
            slot=slot,
            defaults={
                "run_id": f"00000000-0000-4000-8000-00000000000{slot}", "host": "desk-1", "pid": 4000 + slot, "version": "7bddc09",
                "started_at": now - timedelta(minutes=slot), "heartbeat_at": now,
            },
        )  # fmt: skip
    unknown = jobs["unknown"]
    pages = {
        "dashboard": "/admin/",
        "desk": "/admin/jobs/case/",
        "case": f"/admin/jobs/case/{unknown.cases.get().pk}/change/",
        "jobs": "/admin/jobs/job/",
        "job": f"/admin/jobs/job/{jobs['done0'].pk}/change/",
        "job with a lost send": f"/admin/jobs/job/{unknown.pk}/change/",
        "new jobs": "/admin/jobs/job/add/",
        "batches": "/admin/jobs/batch/",
        "batch": f"/admin/jobs/batch/{batch.pk}/change/",
        "providers": "/admin/providers/providerstate/",
        "comparison": "/admin/comparison/",
        "failures": "/admin/failures/",
        "tenant": f"/admin/jobs/tenant/{batch.tenant_id}/change/",
        "my settings": "/admin/my-settings/",
        **dict(_wanted("gallery", "reports", "search")),
    }
    return Story(account, pages, people, _given())


def _given() -> frozenset[str]:
    said = {"Europe/Moscow", "desk-1"}
    for rows in (
        Job.objects.values_list("prompt", "reference", "reason_text"), Tenant.objects.values_list("name", "slug"),
        User.objects.values_list("username"), Target.objects.values_list("model"), Batch.objects.values_list("label"),
    ):  # fmt: skip
        said |= {text for row in rows for text in row}
    return frozenset(said)


def _wanted(*names: str) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, reverse(f"admin:desk_{name}") + ("?q=B-20" if name == "search" else "")
        except NoReverseMatch:
            continue


def _batch(now: datetime) -> Batch:
    batch = Batch.objects.create(
        tenant=factories.tenant(), label="Весна / spring collection", created_at=now - timedelta(minutes=4)
    )  # fmt: skip
    for n in range(6):
        factories.done(now, hue=28 * n, batch=batch, reference=f"SKU-{100 + n}", created_at=now - timedelta(seconds=100 + n))  # fmt: skip
    for n in range(4):
        factories.accepted(factories.job(now, JobState.ACTIVE, batch=batch, reference=f"SKU-{200 + n}"), now)  # fmt: skip
    for n in range(5):
        factories.job(now, batch=batch, reference=f"SKU-{300 + n}")
    factories.job(
        now, JobState.FAILED, batch=batch, reference="SKU-400", reason="refused_by_all",
        reason_text="HTTP 400: prompt was rejected by the safety system", prompt="A chair " + "z" * 300,
    )  # fmt: skip
    return batch


def arrive(
    browser: Browser, server: str, person: User | None, *, language: str = "en", **context: Any
) -> BrowserContext:
    """A browser where this person is logged in already, and reads this language. Where the content policy is broken, it says
    so on the console."""
    made = browser.new_context(**context)
    cookies = [{"name": "django_language", "value": language, "url": server}]
    if person is not None:
        client = Client()
        client.force_login(person)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        cookies.append({"name": settings.SESSION_COOKIE_NAME, "value": session, "url": server})
    made.add_cookies(cookies)  # type: ignore[arg-type]
    return made
