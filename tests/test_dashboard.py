"""The dashboard: each of its numbers against plain SQL over the rows, what it costs, who sees what of it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

from jobs import dashboard, figures, spending, sums, written
from jobs.admin import index
from jobs.budgets import Span, Spent
from jobs.clock import clock
from jobs.dashboard import Dashboard, Part, Step
from jobs.figures import HOUR
from jobs.lifecycle import sums as keeping
from jobs.models import (
    Batch,
    Callback,
    Job,
    Lane,
    ProviderTask,
    Tenant,
)
from jobs.models.batch import PAUSE
from jobs.roles import Role
from jobs.states import ENDED, CaseKind, JobState
from providers import registry
from providers.models import Account, QuotaWindow
from tests import factories

pytestmark = pytest.mark.django_db

KEYS = {"polza": "pza_test", "fal": "fal_test", "openrouter": "or_test"}
FACTOR = Decimal("1.5")
EVERYTHING = frozenset(Part)


@pytest.fixture(autouse=True)
def _surroundings(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.PROVIDER_KEYS = KEYS
    settings.POLL_DEADLINE_SEC = 900
    settings.PRICE_CEILING_FACTOR = float(FACTOR)
    settings.TIME_ZONE = "Asia/Tehran"  # half an hour off, so that no hour's sum is enough
    settings.CURRENCY_RATES = {"USD": Decimal(90)}
    settings.WORKER_LANES = 4


# --- a studio at random -----------------------------------------------------------------------------------------------


class Studio:
    """Tenants in several zones, targets of three providers and two currencies, sends in every state over seven weeks."""

    def __init__(self, seed: int, now: datetime, jobs: int) -> None:
        self.dice, self.now = random.Random(seed), now
        self.accounts = {
            name: factories.account(now, provider=name, fingerprint=registry.fingerprint(key))
            for name, key in KEYS.items()
        }
        self.tenants = [
            factories.tenant("moscow", daily_limit=Decimal(500), monthly_limit=Decimal(9000)),
            factories.tenant(
                "tehran", zone="Asia/Tehran", monthly_limit=Decimal(40), currency="USD"
            ),
            factories.tenant("new-york", zone="America/New_York"),
            factories.tenant("idle", daily_limit=Decimal(1)),
        ]
        self.targets = [
            factories.target(),
            factories.target("openai/gpt-5-image", price=Decimal("11.5")),
            factories.target("flux", provider="fal", currency="USD", price=Decimal("0.04")),
            factories.target(
                "gemini", provider="openrouter", currency="USD", price=Decimal("0.039")
            ),
        ]
        self.batches = [
            Batch.objects.create(
                tenant=self.tenants[0], label=f"Lot {n}", created_at=now - timedelta(minutes=9)
            )
            for n in range(3)
        ]
        for _n in range(jobs):
            self.job()
        self.others()

    def job(self) -> Job:
        dice, now = self.dice, self.now
        state = dice.choice(list(JobState))
        age = timedelta(days=49) * dice.random() ** 4
        if state is JobState.PENDING:
            age = min(age, timedelta(days=2))
        values: dict[str, Any] = {}
        if state in ENDED:
            values["finished_at"] = now - age * dice.random()
        if state is JobState.PENDING and dice.random() < 0.3:
            values["not_before"] = now + PAUSE
        job = factories.job(
            now, state, tenant=dice.choice(self.tenants[:3]), target=dice.choice(self.targets),
            created_at=now - age, batch=dice.choice([None, None, *self.batches]), **values,
        )  # fmt: skip
        for number in range(dice.choice([0, 1, 1, 2]) if state is not JobState.PENDING else 0):
            self.send(job, blocks=number == 0)
        return job

    def send(self, job: Job, *, blocks: bool) -> ProviderTask:
        dice = self.dice
        at = job.created_at + (self.now - job.created_at) * dice.random() * 0.5
        took = timedelta(seconds=dice.lognormvariate(5.2, 1.2))
        ended = min(at + took, self.now)
        cost = dice.choice([None, Decimal(0), job.target.price * Decimal("0.98")])
        facts: list[dict[str, Any]] = [
            {},
            {"provider_id": uuid.uuid4().hex, "accepted_at": at},
            {"refusal_class": "rejected", "refused_at": at},
            {"unsent_at": at, "unsent_reason": "fenced"},
            {"lost_at": at},
            {"provider_id": uuid.uuid4().hex, "accepted_at": at, "failed_at": ended, "polls": dice.randrange(300)},
            {"lost_at": at, "staff_charge": "written_off", "cost_staff": Decimal("1.25")},
            {"lost_at": at, "staff_charge": "refunded", "cost_staff": Decimal("1.25")},
        ]  # fmt: skip
        made = {"provider_id": uuid.uuid4().hex, "accepted_at": at, "completed_at": ended, "cost_poll": cost, "polls": dice.randrange(300)}  # fmt: skip
        facts += [made] * 4 + [made | {"stored_at": ended}] * 6
        chosen = dice.choice(facts)
        if "cost_poll" in chosen and dice.random() < 0.2:
            chosen = chosen | {"cost_receipt": Decimal("2.5")}
        release = (
            {"blocks_send": True} if blocks else {"blocks_send": False, "released_by": "person"}
        )
        return factories.task(
            job, self.now, armed=bool(chosen) or dice.random() < 0.7, armed_at=at,
            account=self.accounts[job.target.provider], **release, **chosen,
        )  # fmt: skip

    def others(self) -> None:
        dice, now = self.dice, self.now
        ends: dict[str, Any] = {"resolved_at": now, "resolution": "done"}
        for job in Job.objects.filter(state=JobState.MANUAL)[:40]:
            resolved = dice.choice([{}, {}, ends])
            factories.case(
                dice.choice([CaseKind.UNKNOWN_SEND, CaseKind.PAID_TWICE, CaseKind.DEAD_CALLBACK]), now, of=job,
                opened_at=now - timedelta(hours=9 * dice.random()), money_at_risk=Decimal(dice.randrange(900)) / 100,
                currency=dice.choice(["RUB", "USD"]),
                **resolved,
            )  # fmt: skip
        for slot, beat in enumerate((2, 29, 31, 900), 1):
            run = {"run_id": uuid.uuid4()} if slot != 4 else {}
            Lane.objects.create(
                slot=slot, heartbeat_at=now - timedelta(seconds=beat), host="here", **run
            )
        some = list(Job.objects.filter(state=JobState.FAILED)[:30])
        for number, job in enumerate(some):
            host = dice.choice(["https://a.example", "https://b.example", "https://c.example"])
            tried = now - timedelta(minutes=number + 1)
            came: dict[str, Any] = dice.choice(
                [{"delivered_at": tried}, {"given_up_at": tried, "trouble": "HTTP 500"}, {"trouble": "HTTP 500"}, {"tried_at": None}]
            )  # fmt: skip
            Callback.objects.create(
                tenant=job.tenant, job=job, kind="job.failed", url=f"{host}/hook", at=tried, **{"tried_at": tried} | came
            )  # fmt: skip
        QuotaWindow.objects.create(account=self.accounts["polza"], seconds=86_400, most=40)
        Account.objects.filter(provider="fal").update(
            balance=Decimal("12.5"), balance_currency="USD", balance_at=now
        )


@pytest.fixture(params=[11, 12])
def studio(request: pytest.FixtureRequest) -> Studio:
    return Studio(request.param, datetime(2026, 3, 17, 10, 20, 30, tzinfo=UTC), jobs=240)


def sql(query: str, **values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return list(cursor.fetchall())


def read(studio: Studio, parts: Sequence[Part] | frozenset[Part] = EVERYTHING) -> Dashboard:
    return dashboard.read(parts, now=studio.now)


def shown(studio: Studio) -> dict[str, Any]:
    """What the page is given."""
    request = RequestFactory().get("/admin/")
    request.user = factories.staff(superuser=True)
    return index.context(request, now=studio.now)


# --- line by line -----------------------------------------------------------------------------------------------------


def test_what_needs_a_person_is_what_the_open_cases_are(studio: Studio) -> None:
    [(count, oldest, overdue)] = sql(
        "SELECT count(*), min(opened_at), sum((due_at < %(now)s)::int) FROM jobs_case WHERE resolved_at IS NULL", now=studio.now
    )  # fmt: skip
    money = dict(
        sql(
            "SELECT currency, sum(money_at_risk) FROM jobs_case WHERE resolved_at IS NULL GROUP BY 1"
        )
    )
    desk = read(studio).desk
    assert desk is not None
    assert (desk.count, desk.oldest, desk.overdue) == (count, oldest, overdue)
    assert desk.money == {name: amount for name, amount in money.items() if amount}
    page = shown(studio)
    assert (page["case_count"], page["case_oldest"], page["case_overdue"]) == (
        count,
        oldest,
        overdue,
    )
    assert page["case_money"] == written.totals(money)
    riskiest = sql(
        "SELECT id FROM jobs_case WHERE resolved_at IS NULL ORDER BY money_at_risk DESC, opened_at, id LIMIT 5"
    )
    assert [(case.pk,) for case in page["cases"]] == riskiest


def test_jobs_by_state_are_counted_from_the_jobs(studio: Studio) -> None:
    counted = dict(sql("SELECT state, count(*) FROM jobs_job GROUP BY 1"))
    told = read(studio).states
    assert told == {state: counted.get(state.value, 0) for state in dashboard.STATES}
    assert [one["count"] for one in shown(studio)["states"]] == [str(n) for n in told.values()]


def test_provider_cards_hold_what_is_in_flight_the_balance_and_a_day_of_outcomes(
    studio: Studio,
) -> None:
    flying = dict(sql(
        "SELECT account_id, count(*) FROM jobs_providertask WHERE state IN ('intent', 'sending', 'accepted')"
        " AND (armed_at IS NULL OR armed_at > %(late)s) GROUP BY 1", late=studio.now - timedelta(seconds=900),
    ))  # fmt: skip
    told = read(studio).providers
    assert told is not None
    assert {one.account.provider for one in told} == set(KEYS)
    for one in told:
        assert one.account.in_flight == flying.get(one.account.id, 0)
        since = studio.now.replace(minute=0, second=0, microsecond=0) - HOUR * 23
        assert one.since == since
        rows = sql(
            "SELECT date_trunc('hour', created_at AT TIME ZONE 'UTC') AT TIME ZONE 'UTC',"
            " sum((state NOT IN ('intent', 'unsent'))::int), sum((state IN ('completed', 'stored'))::int),"
            " sum((state = 'refused')::int), sum((state = 'failed')::int), sum((state = 'unknown')::int)"
            " FROM jobs_providertask WHERE account_id = %(account)s AND created_at >= %(since)s GROUP BY 1",
            account=one.account.id, since=since,
        )  # fmt: skip
        counted = {at: tuple(rest) for at, *rest in rows}
        for place, hour in enumerate(one.hours):
            mine = (hour.sends, hour.succeeded, hour.refused, hour.failed, hour.unknown)
            assert mine == counted.get(since + HOUR * place, (0, 0, 0, 0, 0))
    cards = {one["account"].provider: one for one in shown(studio)["providers"]}
    assert cards["fal"]["balance"] == "$12.50"
    assert cards["polza"]["balance"] == ""
    [window] = cards["polza"]["windows"]
    [(used,)] = sql(
        "SELECT count(*) FROM jobs_providertask WHERE account_id = %(account)s AND (armed_at IS NULL AND state = 'intent'"
        " OR state NOT IN ('unsent', 'refused')"
        " AND coalesce(accepted_at, refused_at, completed_at, send_not_after) > %(since)s)",
        account=studio.accounts["polza"].pk, since=studio.now - timedelta(days=1),
    )  # fmt: skip
    assert (window.usage.used, window.usage.most) == (min(used, 40), 40)
    for card, one in ((cards[one.account.provider], one) for one in told):
        assert sum(part.count for part in card["outcomes"]) == one.day.ended
        assert len(card["hours"]) == sum(hour.sends > 0 for hour in one.hours)


def test_running_batches_tell_their_counts_and_their_end(studio: Studio) -> None:
    Batch.objects.filter(pk=studio.batches[0].pk).update(completed_at=studio.now)
    last = studio.batches[2]
    Job.objects.filter(batch=last, state=JobState.SUCCEEDED).update(
        finished_at=studio.now - timedelta(seconds=40)
    )
    told = read(studio).batches
    assert told is not None
    assert [one.batch.pk for one in told.rows] == [studio.batches[2].pk, studio.batches[1].pk]
    assert not told.more
    for one in told.rows:
        counted = dict(
            sql(
                "SELECT state, count(*) FROM jobs_job WHERE batch_id = %(pk)s GROUP BY 1",
                pk=one.batch.pk,
            )
        )
        assert {state.value: n for state, n in one.progress.counts.items() if n} == counted
        assert one.progress.total == sum(counted.values())
        [(minute, ten, ended)] = sql(
            "SELECT sum((finished_at > %(now)s - interval '60 seconds')::int), sum((finished_at > %(now)s - interval '600 seconds')::int),"
            " count(*) FROM jobs_job WHERE batch_id = %(pk)s AND state IN ('succeeded', 'failed')", pk=one.batch.pk, now=studio.now,
        )  # fmt: skip
        span_s = 60 if minute >= 8 else 540 if ten == ended else 600
        rate = 60 * (minute if minute >= 8 else ten) / span_s
        left = counted["pending"] + counted["active"]
        assert one.ends_at is not None
        assert one.ends_at == pytest.approx(
            studio.now + timedelta(minutes=left / rate), abs=timedelta(seconds=1)
        )
    page = shown(studio)["batches"]
    assert [one["ends_at"] for one in page] == [one.ends_at for one in told.rows]
    assert [one["total"] for one in page] == [str(one.progress.total) for one in told.rows]


def test_queues_tell_how_many_wait_and_since_when(studio: Studio) -> None:
    rows = sql(
        "SELECT t.id, t.name, sum((not_before < '2900-01-01')::int), min(j.created_at) FILTER (WHERE not_before < '2900-01-01'),"
        " sum((not_before >= '2900-01-01')::int) FROM jobs_job j JOIN jobs_tenant t ON t.id = j.tenant_id"
        " WHERE j.state = 'pending' GROUP BY t.id ORDER BY 4 NULLS LAST, 1"
    )  # fmt: skip
    told = read(studio).queues
    assert told is not None
    assert [
        (one.tenant_id, one.tenant, one.waiting, one.oldest, one.paused) for one in told
    ] == rows
    page = shown(studio)
    assert page["queue_depth"] == str(sum(row[2] for row in rows))
    assert page["queue_oldest"] == min(row[3] for row in rows if row[3])


def test_a_long_queue_is_counted_to_the_cap_and_its_paused_are_not_guessed(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "COUNT_CAP", 3)
    told = figures.queues()
    assert {one.waiting for one in told} <= set(range(5))
    assert max(one.waiting for one in told) == 4
    assert all(one.paused is None for one in told if one.waiting == 4)
    assert set(figures.job_states(list(JobState)).values()) == {4}


MONEY = """
SELECT {by}, k.currency,
  coalesce(sum(k.cost) FILTER (WHERE k.charge IN ('charged', 'written_off') AND k.cost IS NOT NULL), 0),
  coalesce(sum(k.estimated_cost) FILTER (WHERE k.state = 'intent' OR k.charge = 'possible'
    OR (k.charge IN ('charged', 'written_off') AND k.cost IS NULL)), 0) * %(factor)s
FROM jobs_providertask k JOIN providers_account a ON a.id = k.account_id
WHERE k.created_at >= date_trunc(%(period)s, %(now)s AT TIME ZONE %(zone)s) AT TIME ZONE %(zone)s {and_}
GROUP BY 1, 2
"""


def spent_by(
    by: str, *, period: str, zone: str, now: datetime, tenant: int = 0
) -> dict[Any, Spent]:
    and_ = "AND k.tenant_id = %(tenant)s" if tenant else ""
    rows = sql(
        MONEY.format(by=by, and_=and_),
        factor=FACTOR,
        period=period,
        zone=zone,
        now=now,
        tenant=tenant,
    )
    return {row[:2]: Spent(*row[2:]) for row in rows if any(row[2:])}


def test_spending_by_provider_is_what_the_sends_cost(studio: Studio, settings: Any) -> None:
    told = read(studio).money
    assert told is not None
    assert told.zone == "Asia/Tehran"
    for period, name in (("day", "today"), ("month", "month")):
        mine = {
            (one.provider, one.currency): getattr(one, name)
            for one in told.providers
            if getattr(one, name).total
        }
        assert mine == spent_by("a.provider", period=period, zone="Asia/Tehran", now=studio.now)
    keeping.put_together()
    assert read(studio).money == told
    cells = [
        cell for one in shown(studio)["money_providers"] for cell in (one["today"], one["month"])
    ]
    charged = [spent.charged for one in told.providers for spent in (one.today, one.month)]
    assert [len(cell["charged"]) for cell in cells] == [int(bool(amount)) for amount in charged]


def test_spending_by_tenant_is_counted_by_its_own_days_and_as_its_limits_count_it(
    studio: Studio,
) -> None:
    told = read(studio).money
    assert told is not None
    by_pk = {one.tenant.pk: one for one in told.tenants}
    for tenant in studio.tenants:
        one = by_pk.pop(tenant.pk)
        for period, name in (("day", "today"), ("month", "month")):
            rows = spent_by(
                "k.tenant_id", period=period, zone=tenant.zone, now=studio.now, tenant=tenant.pk
            )
            mine = {
                (tenant.pk, name): spent
                for name, spent in getattr(one, name).items()
                if spent.total
            }
            assert mine == rows
    assert by_pk == {}
    # What the claim looks at.
    tenants = list(Tenant.objects.all())
    held = spending.budgets(tenants, factor=float(FACTOR), now=studio.now)
    for one in told.tenants:
        assert one.budget == held[one.tenant.pk]
    page = shown(studio)["money_tenants"]
    assert {len(one["bars"]) for one in page if one["tenant"].slug == "moscow"} == {2}


def test_generation_times_and_polls_are_those_of_the_newest_sends(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "NEWEST_SENDS", 25)
    rows = sql(
        "SELECT provider, model, count(*) FILTER (WHERE made), percentile_cont(0.5) WITHIN GROUP (ORDER BY s) FILTER (WHERE made),"
        " percentile_cont(0.95) WITHIN GROUP (ORDER BY s) FILTER (WHERE made), count(*) FILTER (WHERE ended),"
        " coalesce(sum(polls) FILTER (WHERE ended), 0)"
        " FROM (SELECT g.provider, g.model, k.polls, k.completed_at > k.armed_at AS made,"
        "   k.provider_id IS NOT NULL AND (k.completed_at IS NOT NULL OR k.failed_at IS NOT NULL) AS ended,"
        "   extract(epoch FROM k.completed_at - k.armed_at) AS s,"
        "   row_number() OVER (PARTITION BY k.target_id ORDER BY k.created_at DESC) AS n"
        "   FROM jobs_providertask k JOIN providers_target g ON g.id = k.target_id WHERE k.created_at > %(since)s) newest"
        " WHERE n <= 25 GROUP BY 1, 2 ORDER BY 1, 2", since=studio.now - timedelta(days=7),
    )  # fmt: skip
    told = read(studio).generations
    assert told is not None
    assert len(told) == len(rows) == 4
    asked = polls = 0
    for one, (provider, model, made, median_s, p95_s, ended, polled) in zip(
        told, rows, strict=True
    ):
        assert (one.provider, one.model, one.made) == (provider, model, made)
        assert (one.median_s, one.p95_s) == pytest.approx((float(median_s), float(p95_s)))
        # Openrouter's answer is the result itself: nobody asks how far it is.
        assert (one.asked, one.polls) == ((0, 0) if provider == "openrouter" else (ended, polled))
        asked, polls = asked + one.asked, polls + one.polls
    page = shown(studio)
    assert page["polls_each"] == written.number(polls / asked, 1)
    assert [row["polls"] for row in page["generations"] if row["one"].provider == "openrouter"] == [
        "—"
    ]


def test_polling_timeouts_are_counted_by_the_hour_of_the_deadline(studio: Studio) -> None:
    since = studio.now.replace(minute=0, second=0, microsecond=0) - HOUR * 23
    rows = sql(
        "SELECT date_trunc('hour', (armed_at + interval '900 seconds') AT TIME ZONE 'UTC') AT TIME ZONE 'UTC', count(*)"
        " FROM jobs_providertask WHERE provider_id IS NOT NULL AND armed_at + interval '900 seconds' BETWEEN %(since)s AND %(now)s"
        " AND coalesce(completed_at, failed_at, 'infinity') > armed_at + interval '900 seconds' GROUP BY 1",
        since=since, now=studio.now,
    )  # fmt: skip
    told = read(studio).timeouts
    assert told is not None
    counted = dict(rows)
    assert told.since == since
    assert list(told.hours) == [counted.get(since + HOUR * place, 0) for place in range(24)]
    assert told.total > 0
    page = shown(studio)["timeouts"]
    assert (page["total"], page["last"]) == (sum(counted.values()), sum(told.hours[-2:]))
    assert page["hours"] == [(at, n) for at, n in sorted(counted.items())]


def test_lanes_and_receivers_are_told_as_their_rows_have_them(studio: Studio) -> None:
    told = read(studio)
    assert told.lanes is not None
    alive = [row.lane.slot for row in told.lanes.rows if row.alive]
    assert [(slot,) for slot in alive] == sql(
        "SELECT slot FROM jobs_lane WHERE run_id IS NOT NULL AND heartbeat_at > %(dead)s ORDER BY 1", dead=studio.now - timedelta(seconds=30)
    ) == [(1,), (2,)]  # fmt: skip
    assert [row.lane.slot for row in told.lanes.rows if row.dead] == [3]
    receivers = []
    waiting = sql(
        "SELECT t.name, c.host, c.tried_at, c.delivered_at, c.given_up_at FROM jobs_callback c JOIN jobs_tenant t ON t.id = c.tenant_id"
        " ORDER BY 1, 2, 3 DESC NULLS LAST"
    )  # fmt: skip
    for key, rows in groupby(waiting, key=lambda row: row[:2]):
        mine = list(rows)
        waits = sum(row[3] is None and row[4] is None for row in mine)
        if waits and mine[0][2] is not None and mine[0][3] is None:
            receivers.append((*key, waits, mine[0][2]))
    assert told.callbacks is not None
    found = {(one.tenant, one.host, one.waiting, one.tried_at) for one in told.callbacks.failing}
    assert found == set(receivers)
    assert receivers
    [(dead,)] = sql(
        "SELECT count(*) FROM jobs_case WHERE kind = 'dead_callback' AND resolved_at IS NULL"
    )
    assert told.callbacks.given_up == dead
    assert shown(studio)["failing_count"] == len(receivers)


def test_the_newest_results_are_the_newest(studio: Studio) -> None:
    for job in Job.objects.all()[:14]:
        factories.result(job, studio.now, deliver=False)
    assert [(one.pk,) for one in shown(studio)["newest"]] == sql(
        "SELECT id FROM jobs_result ORDER BY id DESC LIMIT 12"
    )


def test_the_page_shows_the_numbers_it_was_given(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.admin_site.clock", SimpleNamespace(now=lambda: studio.now))
    client = Client()
    client.force_login(factories.staff(Role.OWNER))
    answer = client.get(reverse("admin:index"))
    text = _words(strip_tags(answer.content.decode().replace("<", " <")))
    told = answer.context
    assert _words(f"{told['case_money']} at risk") in text
    for one in told["money_providers"]:
        for amount, _own in (*one["today"]["charged"], *one["month"]["charged"]):
            assert _words(amount) in text
    for one in told["batches"]:
        assert f"{one['ended']} of {one['total']}" in text
    for one in told["queues"]:
        assert f"{one['queue'].tenant} {one['waiting']}" in text
    assert f"GETs a job {told['polls_each']}" in text
    assert f"{told['timeouts']['total']} in 24 h" in text


def _words(text: str) -> str:
    return " ".join(text.split())


# --- what it says of trouble ------------------------------------------------------------------------------------------


def page(role: Role | None = Role.OWNER, *permissions: str) -> str:
    client = Client()
    user = factories.staff(role)
    for name in permissions:
        user.user_permissions.add(Permission.objects.get(codename=name))
    client.force_login(user)
    answer = client.get(reverse("admin:index"))
    assert answer.status_code == 200
    return answer.content.decode()


def late(now: datetime, *, hours_ago: float) -> None:
    armed_at = now - timedelta(hours=hours_ago) - timedelta(seconds=900)
    job = factories.job(now, JobState.ACTIVE, created_at=armed_at)
    factories.accepted(job, now, armed_at=armed_at, completed_at=armed_at + timedelta(seconds=1000))


def test_timeouts_that_go_on_bring_the_advice_and_one_alone_does_not() -> None:
    now = clock.now().replace(minute=30)
    late(now, hours_ago=1)
    told = figures.timeouts(deadline_s=900, now=now)
    assert (told.last, told.stays) == (1, False)
    late(now, hours_ago=0)
    told = figures.timeouts(deadline_s=900, now=now)
    assert (told.last, told.stays) == (2, True)
    # The hour that has just begun has none yet.
    assert figures.timeouts(deadline_s=900, now=now + timedelta(minutes=31)).stays
    assert not figures.timeouts(deadline_s=900, now=now + timedelta(minutes=91)).stays


def test_the_advice_is_the_adrs() -> None:
    now = clock.now()
    for hours in (0.01, 1, 1.5):
        late(now, hours_ago=hours)
    text = page()
    assert "raise POLL_DEADLINE_SEC" in text
    assert "Ask the provider" in text


@pytest.mark.parametrize("step", list(Step))
def test_an_empty_system_is_told_its_one_next_step(step: Step, settings: Any) -> None:
    if step is Step.KEY:
        settings.PROVIDER_KEYS = {}
    if step is Step.JOB:
        Lane.objects.create(slot=1)
    words = {
        Step.KEY: "First: a key of a provider",
        Step.WORKER: "Next: start the workers",
        Step.JOB: "Next: ask for a first picture",
    }
    text = page()
    assert [other for other, said in words.items() if said in text] == [step]
    assert ("manage.py qcluster" in text) is (step is Step.WORKER)
    assert dashboard.first_step() is step
    factories.job(clock.now())
    assert not any(said in page() for said in words.values())


def test_a_viewer_is_told_who_can_ask_for_the_first_picture() -> None:
    Lane.objects.create(slot=1)
    text = page(Role.VIEWER)
    assert "An operator or the owner can do that." in text
    assert reverse("admin:jobs_job_add") not in text


def test_what_strangers_wrote_is_shown_and_never_run() -> None:
    now = clock.now()
    hostile = "<script>alert(1)</script>" + "x" * 300
    tenant = factories.tenant("hostile", name=hostile[:120])
    batch = Batch.objects.create(tenant=tenant, label=hostile[:200], created_at=now)
    job = factories.job(now, tenant=tenant, batch=batch, reference=hostile[:200])
    Callback.objects.create(
        tenant=tenant, job=job, kind="job.failed", url="https://a.example/x", at=now, tried_at=now, trouble=hostile[:300]
    )  # fmt: skip
    factories.provider_state(
        now, "down", account=factories.account(now, fingerprint=registry.fingerprint("pza_test")), gate="open",
        next_try_at=now + HOUR, opened_at=now, reason=hostile[:300],
    )  # fmt: skip
    text = page()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


# --- who sees what ----------------------------------------------------------------------------------------------------

PLACES = {
    "view_case": "desk", "view_providerstate": "providers", "view_batch": "batches", "view_tenant": "money",
    "view_lane": "lanes", "view_callback": "callbacks",
}  # fmt: skip
OF_JOBS = {"states", "queue", "times", "timeouts", "newest"}


def places(text: str) -> set[str]:
    known = {*PLACES.values(), *OF_JOBS}
    return {name for name in known if f'data-live="{name}"' in text}


def test_each_permission_opens_its_part_and_no_other() -> None:
    factories.everything(clock.now())
    assert places(page(None)) == set()
    for permission, name in PLACES.items():
        assert places(page(None, permission)) == {name}
    assert places(page(None, "view_job")) == OF_JOBS


def test_what_nobody_may_see_is_not_read_either() -> None:
    with CaptureQueriesContext(connection) as asked:
        page(None)
    assert not any("jobs_sendsum" in one["sql"] or "jobs_callback" in one["sql"] for one in asked)


@pytest.mark.parametrize("role", list(Role))
def test_every_role_sees_every_part_and_only_the_owner_drains_lanes(role: Role) -> None:
    Lane.objects.create(slot=1, run_id=uuid.uuid4(), heartbeat_at=clock.now())
    factories.everything(clock.now())
    text = page(role)
    assert places(text) == {*PLACES.values(), *OF_JOBS}
    for verb in ("drain", "restart"):
        assert (reverse("admin:jobs_lane_do", args=[1, verb]) in text) is (role is Role.OWNER)


# --- what it costs ----------------------------------------------------------------------------------------------------


def _fill(count: int, now: datetime) -> None:
    """Rows written at once, spread over a month."""
    tenants = [
        factories.tenant(f"tenant-{n}", zone=zone)
        for n, zone in enumerate(["UTC", "Asia/Tehran", "Europe/Moscow"])
    ]
    targets = [factories.target(), factories.target("flux", provider="fal", currency="USD")]
    accounts = {
        name: factories.account(now, provider=name, fingerprint=registry.fingerprint(KEYS[name]))
        for name in KEYS
    }
    jobs = []
    for n in range(count):
        at, target = now - timedelta(minutes=20 * n), targets[n % 2]
        state = [JobState.PENDING, JobState.ACTIVE, JobState.FAILED, JobState.MANUAL][n % 4]
        jobs.append(Job(
            tenant=tenants[n % 3], target=target, route=[target.pk], prompt="a cat", state=state, created_at=at, not_before=at,
            attempts_since=at, finished_at=at if state is JobState.FAILED else None,
        ))  # fmt: skip
    Job.objects.bulk_create(jobs)
    ProviderTask.objects.bulk_create([
        ProviderTask(
            job=job, tenant=job.tenant, target=job.target, account=accounts[job.target.provider], estimated_cost=8,
            currency=job.target.currency, run_id=uuid.uuid4(), host="h", created_at=job.created_at, armed_at=job.created_at,
            send_not_after=job.created_at, provider_id=uuid.uuid4().hex, accepted_at=job.created_at,
            completed_at=job.created_at + timedelta(seconds=1000),
        )
        for job in jobs if job.state != JobState.PENDING
    ])  # fmt: skip
    for job in [job for job in jobs if job.state == JobState.MANUAL][:50]:
        factories.case(CaseKind.UNKNOWN_SEND, now, of=job)


def test_two_thousand_jobs_cost_as_many_questions_as_ten() -> None:
    now = clock.now()
    client = Client()
    client.force_login(factories.staff(Role.OWNER))
    _fill(10, now)
    Batch.objects.create(tenant=Tenant.objects.all()[0], created_at=now)
    client.get(reverse("admin:index"))
    with CaptureQueriesContext(connection) as few:
        client.get(reverse("admin:index"))
    _fill(2000, now)
    with CaptureQueriesContext(connection) as many:
        client.get(reverse("admin:index"))
    assert len(few) == len(many) <= 30
    assert figures.job_states([JobState.PENDING])[JobState.PENDING] == 503


@pytest.mark.parametrize(
    ("query", "table", "found"),
    [
        ("figures._QUEUES", "jobs_job", {"job_waiting", "job_claim"}),
        ("figures._TIMEOUTS", "jobs_providertask", {"task_took"}),
        ("figures._GENERATIONS", "jobs_providertask", {"task_newest_of_target"}),
    ],
)
def test_each_figure_has_an_index_to_be_read_from(query: str, table: str, found: set[str]) -> None:
    now = clock.now()
    text = getattr(figures, query.removeprefix("figures."))
    values: dict[str, Any] = {
        "most": 10, "since": now - HOUR, "first": now - HOUR, "now": now, "deadline": timedelta(seconds=900),
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_sort = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {text}", values)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert f"Seq Scan on {table}" not in plan
    for name in found:
        assert name in plan, plan


def test_sums_are_read_by_their_index() -> None:
    now = clock.now()
    factories.accepted(factories.job(now), now)
    with CaptureQueriesContext(connection) as asked:
        sums.read([Span(now - timedelta(days=20), now)], by=["account"])
    [one] = asked
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {one['sql']}")
        assert "send_sum_of" in "\n".join(row[0] for row in cursor.fetchall())


def test_nothing_is_written_by_looking() -> None:
    factories.everything(clock.now())
    with CaptureQueriesContext(connection) as asked:
        page(Role.OWNER)
    said = [one["sql"].lstrip("( ").split()[0].upper() for one in asked if "jobs_" in one["sql"]]
    assert {word for word in said if word not in {"SELECT", "WITH"}} <= set()
