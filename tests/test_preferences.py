"""My settings: each person's zone, calendar, digits and language, and that none of it reaches anybody else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.db import connections
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone, translation

from jobs import live, manner, preferences, written, zones
from jobs.admin.amounts import AmountField
from jobs.clock import clock
from jobs.lifecycle.preferences import prefer
from jobs.live import Subject
from jobs.manner import Calendar, Digits, Manner
from jobs.models import Preferences, Tenant
from jobs.roles import Role
from jobs.states import JobState
from tests import api_calls, factories

pytestmark = pytest.mark.django_db

URL = "/admin/my-settings/"
TEHRAN = {"zone": "Asia/Tehran", "calendar": "jalali", "digits": "persian"}
AT = datetime(2026, 8, 17, 21, 30, 5, tzinfo=UTC)


def _person(role: Role | None = Role.VIEWER, **wanted: Any) -> tuple[User, Client]:
    user = factories.staff(role)
    if wanted:
        prefer(user_id=user.pk, now=clock.now(), **wanted)
    client = Client()
    client.force_login(user)
    return user, client


def _text(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200
    return answer.content.decode()


# --- the page ---------------------------------------------------------------------------------------------------------


def test_whoever_is_not_logged_in_has_no_settings() -> None:
    assert Client().get(URL).status_code == 302
    assert Client().post(URL, TEHRAN).status_code == 302
    assert not Preferences.objects.exists()


def test_the_menu_leads_there_and_looking_changes_nothing() -> None:
    _user, client = _person()
    assert f'href="{URL}"' in _text(client, "/admin/")
    page = _text(client, URL)
    assert "Time zone" in page
    assert not Preferences.objects.exists()
    assert client.put(URL).status_code == 405


def test_what_is_chosen_is_kept_and_shown_at_once() -> None:
    user, client = _person()
    answer = client.post(URL, TEHRAN, follow=True)
    row = Preferences.objects.get(pk=user.pk)
    assert (row.zone, row.calendar, row.digits) == ("Asia/Tehran", "jalali", "persian")
    page = answer.content.decode()
    assert "written your way" in page
    assert "۱۲٬۳۴۵٫۶" in page
    assert '<option value="Asia/Tehran" selected>' in page


def test_zones_are_grouped_with_the_time_there_and_the_studios_is_the_first() -> None:
    _user, client = _person()
    page = _text(client, URL)
    assert page.index("The studio") < page.index('<optgroup label="Africa">')
    there = clock.now().astimezone(ZoneInfo("Asia/Tehran"))
    hours = {f"{moment:%H:%M}" for moment in (there, there - timedelta(minutes=1))}
    assert any(f"Tehran · {hour} (UTC+03:30)" in page for hour in hours)


def test_every_zone_of_the_list_is_one_and_old_names_are_left_out() -> None:
    names = zones.names()
    assert len(names) > 300
    assert {"UTC", "Asia/Tehran", "Europe/Moscow", "America/Argentina/Buenos_Aires"} <= set(names)
    assert not {"US/Eastern", "EST5EDT", "posixrules"} & set(names)
    for name in names:
        ZoneInfo(name)


@pytest.mark.parametrize(
    "wrong", [{"zone": "Mars/Olympus"}, {"zone": "../../etc/passwd"}, {"calendar": "mayan"}, {"digits": ""}]
)  # fmt: skip
def test_what_is_not_offered_is_refused(wrong: dict[str, str]) -> None:
    _user, client = _person()
    answer = client.post(URL, {**TEHRAN, **wrong})
    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    assert not Preferences.objects.exists()


def test_each_sets_only_their_own() -> None:
    (one, _), (other, client) = _person(), _person(Role.OWNER)
    client.post(URL, {**TEHRAN, "user": one.pk, "user_id": one.pk})
    assert list(Preferences.objects.values_list("pk", flat=True)) == [other.pk]


def test_what_is_not_named_stays() -> None:
    user, _client = _person(zone="Asia/Tehran", digits=Digits.PERSIAN)
    row = prefer(user_id=user.pk, language="en", now=clock.now())
    row.refresh_from_db()
    assert (row.language, row.zone, row.digits) == ("en", "Asia/Tehran", "persian")


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_have_the_persons_zone_calendar_and_digits_with_utc_on_hover() -> None:
    job = factories.job(AT, JobState.PENDING, reference="order-1405")
    factories.event(job, "created", AT)
    url = reverse("admin:jobs_job_change", args=[job.pk])
    _one, studio = _person()
    _other, tehran = _person(
        zone="Asia/Tehran", calendar=Calendar.JALALI, digits=Digits.PERSIAN, language="en"
    )
    assert "Aug. 17, 2026, 21:30:05 UTC" in _text(studio, url)
    page = _text(tehran, url)
    assert "۲۷ Mordad ۱۴۰۵, ۰۱:۰۰:۰۵ (2026-08-17 21:30:05 UTC)" in page
    # Ids, references and machine-readable times keep their digits.
    assert f"#{job.pk}" in page
    assert "order-1405" in page
    assert 'datetime="2026-08-17T21:30:05+00:00"' in page
    assert "Aug. 17, 2026" in _text(studio, url)


def test_what_a_person_enters_is_taken_in_their_zone() -> None:
    _user, client = _person(Role.OWNER, zone="Asia/Tehran")
    tenant = factories.tenant()
    client.post(
        reverse("admin:jobs_apitoken_add"),
        {"id": "0f0e0d0c-0000-4000-8000-000000000001", "tenant": tenant.pk, "name": "site", "scopes": ["read"],
         "per_minute": "۶۰۰", "expires_at": "2030-01-01T03:30"},
    )  # fmt: skip
    token = tenant.api_tokens.get()
    assert token.expires_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert token.per_minute == 600


def test_nothing_is_left_behind_after_a_request() -> None:
    _user, client = _person(zone="Asia/Tehran", digits=Digits.PERSIAN, language="en")
    _text(client, "/admin/")
    assert manner.current() == Manner(translation.get_language())
    assert timezone.get_current_timezone_name() == "UTC"
    assert written.number(5) == "5"


def test_the_api_does_not_care_who_sits_at_the_browser() -> None:
    issued = api_calls.token()
    user, client = _person(zone="Asia/Tehran", calendar=Calendar.JALALI, digits=Digits.PERSIAN)
    job = factories.job(AT, tenant=Tenant.objects.get())
    shown = {"authorization": f"Bearer {issued.text}"}
    of_person = client.get(f"/api/v1/jobs/{job.pk}", headers=shown)
    assert of_person.status_code == 200
    assert of_person.json() == Client().get(f"/api/v1/jobs/{job.pk}", headers=shown).json()
    assert user.pk


def test_csv_has_plain_digits() -> None:
    _user, client = _person(Role.OWNER, zone="Asia/Tehran", digits=Digits.PERSIAN)
    factories.done(clock.now())
    answer: Any = client.get(reverse("admin:desk_comparison_sheet"))
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    assert not set("۰۱۲۳۴۵۶۷۸۹") & set(body.decode())


# --- language ---------------------------------------------------------------------------------------------------------


def test_the_language_of_the_menu_is_found_again_in_another_browser(settings: Any) -> None:
    settings.LANGUAGES = [("en", "English"), ("ru", "Russian")]
    user, client = _person()
    answer = client.post("/i18n/setlang/", {"language": "ru", "next": "/admin/"})
    assert answer.status_code == 302
    assert answer.cookies["django_language"].value == "ru"
    elsewhere = Client()
    elsewhere.force_login(user)
    page = elsewhere.get("/admin/")
    assert page.headers["Content-Language"] == "ru"
    assert '<html lang="ru"' in page.content.decode()


def test_a_language_that_is_not_offered_is_neither_taken_nor_shown(settings: Any) -> None:
    settings.LANGUAGES = [("en", "English")]
    user, client = _person()
    client.post("/i18n/setlang/", {"language": "tlh", "next": "/admin/"})
    assert not Preferences.objects.exists()
    prefer(user_id=user.pk, language="ru", now=clock.now())
    assert '<html lang="en"' in _text(client, "/admin/")


def test_the_language_is_changed_by_post_only_and_strangers_leave_nothing() -> None:
    assert Client().get("/i18n/setlang/").status_code == 405
    assert Client().post("/i18n/setlang/", {"language": "en", "next": "/"}).status_code == 302
    assert not Preferences.objects.exists()


# --- at the same time -------------------------------------------------------------------------------------------------


@pytest.fixture
async def tidy() -> AsyncIterator[None]:
    """What a test's loop has started ends with it."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("live"):
            await asyncio.to_thread(thread.join, 10)
    await sync_to_async(connections.close_all)()


@pytest.mark.usefixtures("tidy")
@pytest.mark.django_db(transaction=True)
async def test_people_at_the_same_time_do_not_read_each_others_manner() -> None:
    job = await sync_to_async(factories.job)(AT)
    await sync_to_async(factories.event)(job, "created", AT)
    url = reverse("admin:jobs_job_change", args=[job.pk])
    wanted = {
        "Asia/Tehran": ("27 Mordad 1405, 01:00:05", Calendar.JALALI),
        "Asia/Tokyo": ("Aug. 18, 2026, 06:30:05", Calendar.GREGORIAN),
    }
    clients = {}
    for zone, (_words, calendar) in wanted.items():
        user, _client = await sync_to_async(_person)(zone=zone, calendar=calendar, language="en")
        clients[zone] = AsyncClient()
        await clients[zone].aforce_login(user)

    async def look(zone: str) -> tuple[str, str]:
        return zone, (await clients[zone].get(url)).content.decode()

    for zone, page in await asyncio.gather(*(look(zone) for zone in [*wanted] * 6)):
        for other, (words, _calendar) in wanted.items():
            assert (words in page) is (other == zone)


@pytest.mark.usefixtures("tidy")
@pytest.mark.django_db(transaction=True)
async def test_streams_of_one_thing_are_told_to_each_in_their_own_manner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.02)
    subject = Subject(
        key="when", read=lambda: AT, tell=lambda at: {"at": written.clock_time(at), "n": written.number(12)}
    )  # fmt: skip
    manners = [
        Manner("en"),
        Manner("en", "Asia/Tehran"),
        Manner("en", "Asia/Tehran", digits=Digits.PERSIAN),
    ]

    async def first(wanted: Manner) -> Any:
        async with aclosing(live.hub().stream(subject, wanted)) as messages:
            async for message in messages:
                if message.startswith(b"data: {"):
                    return json.loads(message.removeprefix(b"data: "))
        return None

    for _round in range(3):
        told = await asyncio.gather(*(first(one) for one in manners * 2))
        assert told[:3] == [
            {"at": "21:30", "n": "12"},
            {"at": "01:00", "n": "12"},
            {"at": "۰۱:۰۰", "n": "۱۲"},
        ]
        assert told[3:] == told[:3]


@pytest.mark.usefixtures("tidy")
@pytest.mark.django_db(transaction=True)
async def test_a_stream_is_opened_in_the_manner_of_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Manner] = []

    def answer(_subject: Subject, wanted: Manner) -> Any:
        seen.append(wanted)

        async def nothing() -> Any:
            yield live.END

        return nothing()

    monkeypatch.setattr(live, "_messages", answer)
    user, _client = await sync_to_async(_person)(
        zone="Asia/Tehran", digits=Digits.PERSIAN, language="en"
    )
    client = AsyncClient()
    await client.aforce_login(user)
    await client.get(reverse("admin:desk_stream"))
    assert seen == [Manner("en", "Asia/Tehran", Calendar.GREGORIAN, Digits.PERSIAN)]
    assert await sync_to_async(preferences.of)(user.pk) == seen[0]


# --- what people enter ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1234.5", "۱۲۳۴٫۵", "١٢٣٤٫٥", "۱٬۲۳۴٫۵", "۱۲۳۴.۵"])
def test_amounts_may_be_entered_in_persian_and_arabic_digits(text: str) -> None:
    assert AmountField().clean(text) == Decimal("1234.5")


def test_a_tenants_limit_may_be_entered_in_persian_digits() -> None:
    _user, client = _person(Role.OWNER)
    tenant = factories.tenant("dealer")
    client.post(
        reverse("admin:jobs_tenant_change", args=[tenant.pk]),
        {"name": "Dealer", "slug": "dealer", "contact": "", "weight": "۲", "max_in_flight": "", "currency": "RUB",
         "daily_limit": "۱۲۰٫۵", "monthly_limit": "", "zone": "UTC", "route_names": "", "split_names": "", "why": ""},
    )  # fmt: skip
    tenant.refresh_from_db()
    assert (tenant.daily_limit, tenant.weight) == (Decimal("120.50"), 2)
