"""Reports: each figure equals plain SQL over the rows, whatever the zone; who may see what; the sheets."""

from __future__ import annotations

import csv
import io
import random
import re
import uuid
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.http import QueryDict
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from jobs import episodes, reports
from jobs.admin import report_plots as plots
from jobs.admin.report_figures import Asked, Figures, OwnForm, asked_for
from jobs.admin.report_plots import axis
from jobs.budgets import Span
from jobs.clock import clock
from jobs.models import Job, Preferences, ProviderTask, SendSum
from jobs.roles import Role
from jobs.states import JobState
from jobs.strips import Kind, Strip
from jobs.strips import read as read_strips
from providers.models import EPISODE_KINDS, Account, ProviderEvent, Target
from tests import factories

PAGE = "/admin/reports/"
SHEETS = ("throughput", "latency", "distribution", "spending", "states")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def world(now: datetime, *, sends: int = 600, days: float = 40, seed: int = 1) -> None:
    """Sends of three targets and two tenants with every outcome, the denser the nearer; two providers in trouble."""
    dice = random.Random(seed)
    targets = [
        factories.target(),
        factories.target("openai/gpt-5-image", price=Decimal("11.5")),
        factories.target("fal-ai/flux-pro/v1.1", provider="fal", price=Decimal("0.04"), currency="USD"),
    ]  # fmt: skip
    tenants = [factories.tenant(), factories.tenant("dealer", name="Автосалон «Восток»")]
    tasks = []
    for _n in range(sends):
        at = now - timedelta(days=days * dice.random() ** 3, seconds=1)
        target = dice.choice(targets[:1] + targets)
        job = Job(
            tenant=dice.choice(tenants), target=target, route=[target.pk], prompt="x", state=JobState.CANCELLED, not_before=at,
            attempts_since=at, created_at=at, finished_at=at,
        )  # fmt: skip
        tasks.append(_send(job, target, at, dice))
    Job.objects.bulk_create([one.job for one in tasks])
    ProviderTask.objects.bulk_create(tasks)
    polza = factories.account(now)
    fal = factories.account(now, provider="fal", fingerprint="beefbeefbeef")
    troubles: list[tuple[Account, str, float, str, dict[str, Any]]] = [
        (polza, "", 20, "opened", {"reason": "HTTP 503: no answer"}),
        (polza, "", 19.2, "closed", {}),
        (polza, "openai/gpt-5-image", 12, "quota_exhausted", {"reason": "daily limit", "until": (now - 4 * HOUR).isoformat()}),
        (polza, "", 3, "throttled", {"until": (now - 2.7 * HOUR).isoformat(), "reason": "HTTP 429"}),
        (fal, "", 500, "paused", {"why": "<b>checking</b> the bill"}),
        (fal, "", 8, "resumed", {}),
    ]  # fmt: skip
    for account, model, hours, kind, data in troubles:
        ProviderEvent.objects.create(
            account=account, model=model, at=now - timedelta(hours=hours), kind=kind, data=data
        )


def _send(job: Job, target: Target, at: datetime, dice: random.Random) -> ProviderTask:
    armed = at + timedelta(milliseconds=300)
    ended = armed + timedelta(seconds=dice.lognormvariate(3.4 + (target.pk % 3) / 3, 0.6))
    outcomes: list[dict[str, Any]] = [
        {"provider_id": uuid.uuid4().hex, "accepted_at": armed, "completed_at": ended, "stored_at": ended,
         "cost_poll": target.price * Decimal(str(round(dice.uniform(0.9, 1.1), 3)))},
        {"refusal_class": "rejected", "refused_at": ended},
        {"provider_id": uuid.uuid4().hex, "accepted_at": armed, "failed_at": ended},
        {"lost_at": ended},
        {"provider_id": uuid.uuid4().hex, "accepted_at": armed},
        {"unsent_at": ended, "unsent_reason": "fenced"},
    ]  # fmt: skip
    facts = dice.choices(outcomes, weights=[70, 9, 7, 4, 5, 5])[0]
    return ProviderTask(
        job=job, tenant=job.tenant, target=target, account=factories.account(clock.now(), provider=target.provider,
        fingerprint="f00dfeedcafe" if target.provider == "polza" else "beefbeefbeef"), estimated_cost=target.price,
        currency=target.currency, run_id=uuid.uuid4(), host="desk-1", created_at=at, blocks_send=False, released_by="free",
        armed_at=armed, send_not_after=armed + timedelta(seconds=10), call_deadline_s=30.0, **facts,
    )  # fmt: skip


def figures(query: str, now: datetime, *, zone: str = "UTC") -> Figures:
    with timezone.override(ZoneInfo(zone)):
        request = RequestFactory().get(f"{PAGE}?{query}")
        asked, _form = asked_for(request, now=now)
        return Figures(asked, now)


def sql(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


@pytest.fixture
def someone(client: Client, db: None) -> Client:
    client.force_login(factories.staff(Role.VIEWER))
    return client


# --- bars -------------------------------------------------------------------------------------------------------------

_ZONES = ["UTC", "Europe/Moscow", "Europe/Berlin", "Asia/Kathmandu", "Asia/Tehran", "Australia/Lord_Howe", "America/St_Johns", "America/Santiago", "Africa/Cairo"]  # fmt: skip


@given(
    st.datetimes(datetime(2023, 1, 1), datetime(2026, 12, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.integers(1, 400 * 24 * 60),
    st.sampled_from(_ZONES),
)
def test_bars_cover_the_span_without_gap_or_overlap(
    start: datetime, minutes: int, zone: str
) -> None:
    span = Span(start, start + timedelta(minutes=minutes))
    bars = reports.bars(span, ZoneInfo(zone))
    assert bars[0].start <= span.start < bars[0].end
    assert bars[-1].start < span.end <= bars[-1].end
    assert all(one.end == other.start for one, other in pairwise(bars))
    assert all(one.start < one.end for one in bars)
    assert len(bars) <= 95
    if reports.step(span.end - span.start) > timedelta(minutes=1):
        for bar in bars:
            assert bar.start.minute % 15 == 0
            assert (bar.start.second, bar.start.microsecond) == (0, 0)


def test_a_day_when_clocks_go_forward_has_23_hours_and_back_25() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    spring = reports.bars(Span(datetime(2026, 3, 20, tzinfo=berlin), datetime(2026, 4, 2, tzinfo=berlin)), berlin)  # fmt: skip
    assert sorted({bar.end - bar.start for bar in spring}) == [23 * HOUR, 24 * HOUR]
    autumn = reports.bars(Span(datetime(2026, 10, 20, tzinfo=berlin), datetime(2026, 11, 2, tzinfo=berlin)), berlin)  # fmt: skip
    assert sorted({bar.end - bar.start for bar in autumn}) == [24 * HOUR, 25 * HOUR]
    assert all(bar.start.astimezone(berlin).hour == 0 for bar in [*spring, *autumn])


def test_the_hour_that_a_clock_repeats_has_bars_of_its_own() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    night = Span(datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 6, tzinfo=UTC))
    bars = reports.bars(night, berlin)
    assert {bar.end - bar.start for bar in bars} == {timedelta(minutes=15)}
    assert [bar for bar in bars if bar.start.astimezone(berlin).hour == 2].__len__() == 8


# --- the figures ------------------------------------------------------------------------------------------------------

_RANGES = ["range=hour", "range=own&from=2026-04-08T13:00&to=2026-04-08T13:01", "range=day", "range=week", "range=month", "range=own&from=2026-03-01T10:10&to=2026-04-08T00:00"]  # fmt: skip
NOW = datetime(2026, 4, 8, 13, 37, 21, tzinfo=UTC)


@pytest.mark.django_db
@pytest.mark.parametrize("query", _RANGES)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu"])
def test_outcomes_equal_plain_sql_in_every_bar(query: str, zone: str) -> None:
    world(NOW, sends=300)
    found = figures(query, NOW, zone=zone)
    told = found.outcomes()
    for n, bar in enumerate(found.bars):
        row = sql(
            "SELECT count(*) FILTER (WHERE completed_at IS NOT NULL), count(*) FILTER (WHERE refused_at IS NOT NULL),"
            " count(*) FILTER (WHERE failed_at IS NOT NULL), count(*) FILTER (WHERE lost_at IS NOT NULL),"
            " count(*) FILTER (WHERE coalesce(completed_at, refused_at, failed_at, lost_at, unsent_at) IS NULL)"
            " FROM jobs_providertask WHERE created_at >= %s AND created_at < %s",
            bar.start, bar.end,
        )[0]  # fmt: skip
        assert tuple(told[name][n] for name in told) == row
    assert sum(map(sum, told.values())) > 0 or "hour" in query or "13:01" in query


@pytest.mark.django_db
@pytest.mark.parametrize("query", _RANGES)
def test_filters_leave_what_plain_sql_leaves(query: str) -> None:
    world(NOW, sends=300)
    for more, where in (
        ("tenant=dealer", "t.slug = 'dealer'"),
        ("provider=fal", "g.provider = 'fal'"),
        ("model=polza:openai/gpt-5-image", "g.model = 'openai/gpt-5-image'"),
        ("tenant=dealer&provider=polza", "t.slug = 'dealer' AND g.provider = 'polza'"),
        ("tenant=nobody&provider=none&model=x", "true"),
    ):
        found = figures(f"{query}&{more}", NOW)
        told = sum(map(sum, found.outcomes().values()))
        counted = sql(
            f"SELECT count(*) FROM jobs_providertask k JOIN jobs_tenant t ON t.id = k.tenant_id"
            f" JOIN providers_target g ON g.id = k.target_id WHERE {where} AND k.state NOT IN ('intent', 'unsent')"
            f" AND k.created_at >= %s AND k.created_at < %s",
            found.bars[0].start, found.bars[-1].end,
        )[0][0]  # fmt: skip
        assert told == counted, more


@pytest.mark.django_db
@pytest.mark.parametrize("query", _RANGES)
def test_spending_equals_plain_sql(query: str) -> None:
    world(NOW, sends=300)
    for by, column in (("", "initcap(g.provider)"), ("tenant", "t.name")):
        found = figures(f"{query}&by={by}", NOW)
        told = {
            (currency, name): (sum(one.charged for one in row), sum(one.possible for one in row))
            for currency, names in found.spending().items()
            for name, row in names.items()
        }
        counted = {
            (currency, name): (charged, possible)
            for currency, name, charged, possible in sql(
                f"SELECT k.currency, {column}, sum(CASE WHEN k.charge = 'charged' THEN k.cost ELSE 0 END),"
                f" sum(CASE WHEN k.charge = 'possible' THEN k.estimated_cost ELSE 0 END)"
                f" FROM jobs_providertask k JOIN jobs_tenant t ON t.id = k.tenant_id JOIN providers_target g ON g.id = k.target_id"
                f" WHERE k.created_at >= %s AND k.created_at < %s GROUP BY 1, 2",
                found.bars[0].start, found.bars[-1].end,
            )
            if charged or possible
        }  # fmt: skip
        assert told == counted


@pytest.mark.django_db
@pytest.mark.parametrize("tenant", ["", "dealer"])
@pytest.mark.parametrize("query", _RANGES)
def test_times_equal_the_percentiles_of_the_database(query: str, tenant: str) -> None:
    world(NOW, sends=300)
    found = figures(f"{query}&tenant={tenant}", NOW)
    seconds = "percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM completed_at - armed_at)::float8)"  # fmt: skip
    within = "completed_at IS NOT NULL AND created_at >= %s AND created_at < %s"
    if tenant:
        within += f" AND tenant_id = {factories.tenant(tenant).pk}"
    whole = dict(
        sql(
            f"SELECT target_id, {seconds} FROM jobs_providertask WHERE {within} GROUP BY 1",
            found.bars[0].start, found.bars[-1].end,
        )
    )  # fmt: skip
    assert {target.pk: pytest.approx(times.quantiles()) for target, times in found.times} == whole
    for n, bar in enumerate(found.bars):
        of_bar = dict(
            sql(
                f"SELECT target_id, {seconds} FROM jobs_providertask WHERE {within} GROUP BY 1",
                bar.start, bar.end,
            )
        )  # fmt: skip
        told = {target.pk: times.of_bar(n) for target, times in found.times if times.of_bar(n)}
        assert {pk: pytest.approx(times) for pk, times in told.items()} == of_bar


@pytest.mark.django_db
def test_of_many_sends_some_are_looked_at_for_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    world(NOW, sends=3000, days=1)
    exact = figures("range=day", NOW).times
    monkeypatch.setattr(reports, "LOOKED_AT", 100)
    monkeypatch.setattr(reports, "_FEWEST", 16)
    some = figures("range=day", NOW).times
    for (target, all_times), (same, times) in zip(exact, some, strict=True):
        assert target == same
        assert times.made == all_times.made == all_times.looked_at
        assert times.looked_at < times.made
        # They stand for all the others, so the weights come to what was made.
        assert sum(weight for _seconds, weight in times.weighed) == pytest.approx(times.made)
        assert times.quantiles()[0] == pytest.approx(all_times.quantiles()[0], rel=0.3)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.floats(0.1, 50)), min_size=1, max_size=40),
    st.floats(0, 1),
)
def test_quantiles_lie_among_the_values_and_grow(weighed: list[tuple[float, float]], at: float) -> None:  # fmt: skip
    low, middle, high = reports.quantiles(weighed, [0, at, 1])
    values = [value for value, _weight in weighed]
    assert min(values) == low <= middle + 1e-9 <= high + 2e-9
    assert high == pytest.approx(max(values))


@pytest.mark.django_db
def test_the_cost_of_a_page_does_not_grow_with_the_sends(someone: Client) -> None:
    now = clock.now()
    counts = []
    for sends in (20, 400):
        world(now, sends=sends)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert someone.get(f"{PAGE}?range=month&by=tenant").status_code == 200
        counts.append(len(queries))
        assert not [one for one in queries.captured_queries if re.match(r"(INSERT|UPDATE|DELETE)", one["sql"])]  # fmt: skip
    assert counts[0] == counts[1] <= 30


@pytest.mark.django_db
def test_bars_of_a_quarter_and_more_read_the_sums_alone() -> None:
    world(NOW, sends=50)
    with CaptureQueriesContext(connection) as queries:
        assert figures("range=day", NOW).lines
    assert not any("jobs_providertask" in one["sql"] for one in queries.captured_queries)
    assert SendSum.objects.exists()


# --- strips -----------------------------------------------------------------------------------------------------------


def _strips(span: Span, now: datetime) -> dict[tuple[str, str], Strip]:
    accounts = [factories.account(now).pk, factories.account(now, provider="fal", fingerprint="beefbeefbeef").pk]  # fmt: skip
    return {(one.provider, one.model): one for one in read_strips(span, accounts=accounts, now=now)}


@pytest.mark.django_db
def test_strips_tell_what_held_when_cut_to_the_span() -> None:
    world(NOW, sends=1)
    told = _strips(Span(NOW - DAY, NOW), NOW)
    outage, throttle = told["polza", ""].stretches
    assert (outage.kind, outage.start, outage.end) == (Kind.OUTAGE, NOW - 20 * HOUR, NOW - 19.2 * HOUR)  # fmt: skip
    assert outage.cause == "HTTP 503: no answer"
    assert (throttle.kind, throttle.start, throttle.end) == (Kind.THROTTLE, NOW - 3 * HOUR, NOW - 2.7 * HOUR)  # fmt: skip
    (quota,) = told["polza", "openai/gpt-5-image"].stretches
    assert (quota.kind, quota.length(NOW)) == (Kind.QUOTA, 8 * HOUR)
    (pause,) = told["fal", ""].stretches
    assert (pause.start, pause.end, pause.began) == (NOW - DAY, NOW - 8 * HOUR, NOW - 500 * HOUR)


@pytest.mark.django_db
def test_what_still_holds_has_no_end_and_what_was_over_before_is_not_told() -> None:
    account = factories.account(NOW)
    for hours, kind, data in (
        (5, "opened", {}), (4, "closed", {}), (2, "key_rejected", {}),
        (0.5, "throttled", {"until": (NOW - 0.4 * HOUR).isoformat()}),
        (0.45, "throttled", {"until": (NOW + HOUR).isoformat()}),
    ):  # fmt: skip
        ProviderEvent.objects.create(account=account, at=NOW - hours * HOUR, kind=kind, data=data)
    key, throttle = _strips(Span(NOW - 3 * HOUR, NOW), NOW)["polza", ""].stretches
    assert (key.kind, key.end, key.length(NOW)) == (Kind.KEY, None, 2 * HOUR)
    assert (throttle.start, throttle.end) == (NOW - 0.5 * HOUR, None)
    earlier = _strips(Span(NOW - 4.5 * HOUR, NOW - HOUR), NOW)["polza", ""].stretches
    assert [(one.kind, one.start, one.end) for one in earlier] == [
        (Kind.OUTAGE, NOW - 4.5 * HOUR, NOW - 4 * HOUR),
        (Kind.KEY, NOW - 2 * HOUR, NOW - HOUR),
    ]
    assert _strips(Span(NOW - 9 * HOUR, NOW - 8 * HOUR), NOW) == {}


@pytest.mark.django_db
def test_a_throttle_ends_when_somebody_unblocks() -> None:
    account = factories.account(NOW)
    ProviderEvent.objects.create(
        account=account, at=NOW - HOUR, kind="throttled", data={"until": NOW.isoformat()}
    )
    ProviderEvent.objects.create(account=account, at=NOW - 0.5 * HOUR, kind="unblocked")
    (throttle,) = _strips(Span(NOW - DAY, NOW), NOW)["polza", ""].stretches
    assert throttle.end == NOW - 0.5 * HOUR


def test_the_index_holds_each_kind_that_episodes_are_made_of() -> None:
    assert set(EPISODE_KINDS) == set(episodes.KINDS)


# --- axes -------------------------------------------------------------------------------------------------------------


@given(st.floats(0.000001, 1e8))
def test_an_axis_reaches_above_the_highest_with_few_lines(most: float) -> None:
    told = axis(most, plots.MONEY, str)
    assert told["max"] >= most * (1 - 1e-6)
    assert 2 <= len(told["ticks"]) <= 6


def test_round_times_are_named_on_the_axis_and_midnights_by_their_day() -> None:
    day = Span(datetime(2026, 4, 7, 13, tzinfo=UTC), datetime(2026, 4, 8, 13, tzinfo=UTC))
    with timezone.override(UTC):
        named = [words for _n, words in plots.ticks(reports.bars(day, UTC))]
    assert named == ["15:00", "18:00", "21:00", "April 8", "03:00", "06:00", "09:00", "12:00"]


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_nothing_sent_says_what_will_be_here(someone: Client) -> None:
    html = someone.get(PAGE).content.decode()
    assert "Nothing was sent in this period" in html
    assert 'class="plot"' not in html
    assert "Nothing matches" in someone.get(f"{PAGE}?tenant={factories.tenant().slug}").content.decode()  # fmt: skip


@pytest.mark.django_db
@pytest.mark.parametrize(
    "query",
    [
        "",
        "range=hour",
        "range=week&by=tenant",
        "range=month",
        "range=own&from=2020-01-01T00:00&to=2999-01-01T00:00",
    ],
)
def test_the_page_has_each_plot_with_a_table_behind_and_nothing_inline(
    someone: Client, query: str
) -> None:
    world(clock.now())
    html = someone.get(f"{PAGE}?{query}").content.decode()
    assert html.count('class="plot"') >= 3
    assert " style=" not in html
    assert not re.search(r"\son\w+=", html)
    assert html.count('class="plot"') <= html.count('<details class="fold">')
    for script in re.findall(r"<script[^>]*>", html):
        assert "src=" in script or 'type="application/json"' in script


@pytest.mark.django_db
def test_names_and_reasons_are_text_and_nothing_else(someone: Client) -> None:
    now = clock.now()
    world(now, sends=40, days=1)
    hostile = '</script><script>alert(1)</script><img src=x onerror="y">' + "w" * 20
    tenant = factories.tenant()
    tenant.name = hostile
    tenant.save()
    html = someone.get(f"{PAGE}?by=tenant&tenant={tenant.slug}").content.decode()
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "<b>checking</b>" not in html


@pytest.mark.django_db
def test_nonsense_in_the_address_is_the_usual_page(someone: Client) -> None:
    world(clock.now(), sends=10, days=0.5)
    for query in (
        "range=own", "range=own&from=x&to=y", "range=own&from=2026-04-02T00:00&to=2026-04-01T00:00", "range=decade",
        "tenant=%00&model=%00:%00&provider=%FF", "model=polza", "range=own&from=0001-01-01T00:00&to=9999-12-31T23:59",
        "range=own&from=2999-01-01T00:00&to=2999-01-02T00:00", "by=moon",
    ):  # fmt: skip
        assert someone.get(f"{PAGE}?{query}").status_code == 200, query
    html = someone.get(f"{PAGE}?range=own&from=2026-04-02T00:00&to=2026-04-01T00:00").content.decode()  # fmt: skip
    assert "The beginning must be before the end." in html


@pytest.mark.django_db
def test_a_span_of_ones_own_is_read_by_ones_own_clock(client: Client) -> None:
    user = factories.staff(Role.VIEWER)
    Preferences.objects.update_or_create(
        user=user, defaults={"zone": "Asia/Kathmandu", "changed_at": NOW}
    )
    client.force_login(user)
    world(clock.now(), sends=5)
    answer = client.get(f"{PAGE}?range=own&from=2026-03-01T10:00&to=2026-03-01T11:00")
    assert answer.context is not None
    assert answer.context["span"].start == datetime(2026, 3, 1, 4, 15, tzinfo=UTC)


def test_an_address_keeps_filters_when_another_is_chosen() -> None:
    asked = Asked("week", Span(NOW, NOW), None, "fal", None, "tenant", {})
    assert QueryDict(asked.query(provider="polza")[1:]).dict() == {"range": "week", "provider": "polza", "by": "tenant"}  # fmt: skip
    assert OwnForm({"from": "2026-01-01T00:00", "to": "2026-01-02T00:00"}).is_valid()


# --- who may see what -------------------------------------------------------------------------------------------------


def _with(*names: str) -> User:
    user = factories.staff()
    for name in names:
        app, codename = name.split(".")
        user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))  # fmt: skip
    return user


@pytest.mark.django_db
def test_reports_are_for_whoever_may_see_jobs(client: Client) -> None:
    world(clock.now(), sends=20, days=1)
    for address in (PAGE, *(f"{PAGE}sheet/{name}/" for name in SHEETS)):
        assert Client().get(address).status_code == 302
        client.force_login(_with("jobs.view_providertask", "providers.view_providerstate"))
        assert client.get(address).status_code == 403
        client.force_login(factories.staff(Role.VIEWER))
        assert client.get(address).status_code == 200
        assert client.post(address).status_code in {403, 405, 200}
    assert client.get(f"{PAGE}sheet/other/").status_code == 404


@pytest.mark.django_db
def test_money_and_states_are_for_whoever_may_see_them(client: Client) -> None:
    world(clock.now(), sends=60, days=1)
    client.force_login(_with("jobs.view_job"))
    html = client.get(PAGE).content.decode()
    assert "throughput-title" in html
    assert "spending" not in html.replace("by=", "")
    assert "Charged" not in html
    assert "states-title" not in html
    assert client.get(f"{PAGE}sheet/spending/").status_code == 403
    assert client.get(f"{PAGE}sheet/states/").status_code == 403
    assert client.get(f"{PAGE}sheet/latency/").status_code == 200
    client.force_login(factories.staff(Role.VIEWER))
    html = client.get(PAGE).content.decode()
    assert "spending-rub-title" in html
    assert "spending-usd-title" in html
    assert "states-title" in html


# --- the sheets -------------------------------------------------------------------------------------------------------


def _sheet(client: Client, name: str, query: str = "") -> list[dict[str, str]]:
    answer = client.get(f"{PAGE}sheet/{name}/?{query}")
    assert answer["Content-Type"].startswith("text/csv")
    assert f'filename="{name}.csv"' in answer["Content-Disposition"]
    return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))


@pytest.mark.django_db
def test_sheets_hold_the_figures_of_the_plots(someone: Client) -> None:
    now = clock.now()
    world(now, sends=200)
    rows = _sheet(someone, "throughput", "range=month")
    found = figures("range=month", now, zone=timezone.get_default_timezone_name())
    assert [row["from"] for row in rows] == [bar.start.isoformat() for bar in found.bars]
    assert sum(int(row["succeeded"]) for row in rows) == sum(found.outcomes()["succeeded"])
    spent = _sheet(someone, "spending", "range=month")
    charged = sum(Decimal(row["charged"]) for row in spent if row["currency"] == "RUB")
    assert charged == sum(one.charged for row in found.spending()["RUB"].values() for one in row)
    assert {row["target"] for row in _sheet(someone, "latency", "range=month")} == {one.name for one in Target.objects.all()}  # fmt: skip
    shares = _sheet(someone, "distribution", "range=month")
    assert sum(float(row["share"]) for row in shares) == pytest.approx(3, abs=1e-3)
    assert {row["what"] for row in _sheet(someone, "states")} == {"outage", "quota", "throttle", "pause"}  # fmt: skip


@pytest.mark.django_db
def test_no_cell_of_a_sheet_is_a_formula(someone: Client) -> None:
    now = clock.now()
    world(now, sends=60, days=1)
    tenant = factories.tenant()
    tenant.name = '=HYPERLINK("http://x")'
    tenant.save()
    ProviderEvent.objects.create(
        account=factories.account(now), at=now - HOUR, kind="opened", data={"reason": "+cmd|' /C calc'!A0"}
    )  # fmt: skip
    names = {row["tenant"] for row in _sheet(someone, "spending", "by=tenant")}
    assert '\'=HYPERLINK("http://x")' in names
    causes = {row["cause"] for row in _sheet(someone, "states")}
    assert "'+cmd|' /C calc'!A0" in causes


@pytest.mark.django_db
def test_of_many_tenants_the_dearest_are_shown_and_the_others_as_one(someone: Client) -> None:
    now = clock.now()
    for n in range(9):
        job = factories.job(now, tenant=factories.tenant(f"t{n}", name=f"Tenant {n}"))
        factories.accepted(job, now, completed_at=now, cost_poll=Decimal(10 * (n + 1)))
    html = someone.get(f"{PAGE}?by=tenant").content.decode()
    legend = re.findall(
        r'aria-hidden="true"></span><bdi>([^<]+)', html.partition('id="spending"')[2]
    )
    assert legend == [*(f"Tenant {n}" for n in (8, 7, 6, 5, 4)), "others"]
    rows = _sheet(someone, "spending", "by=tenant")
    assert [row["charged"] for row in rows] == [f"{10 * n}.0000000000" for n in range(9, 0, -1)]
