"""Comparison of targets: what each brings, costs and takes, on the page, as a sheet and by the command."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import comparison
from jobs.clock import clock
from jobs.comparison import Line
from jobs.models import ProviderTask, Result
from jobs.roles import Role
from jobs.states import JobState
from providers.models import Target
from tests import factories

PAGE = "/admin/comparison/"


def _line(**values: Any) -> Line:
    usual: dict[str, Any] = {
        "target": Target(provider="polza", model="m"), "currency": "RUB", "sends": 10, "delivered": 8, "good": 0,
        "usable": 0, "bad": 0, "spent": Decimal(80), "possible": Decimal(0), "median_s": None, "p95_s": None,
        "failed": 0, "unknown": 0, "refusals": {},
    }  # fmt: skip
    return Line(**usual | values)


def test_a_good_one_costs_what_was_spent_by_the_number_of_good_ones() -> None:
    assert _line(good=4, usable=2, bad=2).per_good == 20  # all are rated: 80 / 4
    assert _line(good=2, bad=2).per_good == 20  # half are rated, half of those are good
    assert _line(bad=3).per_good is None
    assert _line().per_delivered == 10
    assert _line(delivered=0).per_delivered is None


@pytest.fixture
def now(db: None, settings: Any, tmp_path: Path) -> datetime:
    """Two targets: `one` delivered three (two rated), failed once for money and was refused twice; `two` costs dollars."""
    settings.MEDIA_ROOT = tmp_path
    settings.CURRENCY, settings.CURRENCY_RATES = "RUB", {"RUB": Decimal(1), "USD": Decimal(90)}
    at = clock.now()
    one = factories.target("one")
    two = factories.target("two", currency="USD", price=Decimal("0.1"))
    dealer = factories.tenant("dealer")
    done = [factories.done(at, target=one) for _n in range(3)]
    for job, rating in zip(done, ("good", "bad"), strict=False):
        Result.objects.filter(job=job).update(rating=rating, rated_at=at)
    job = factories.job(at, JobState.MANUAL, target=one, tenant=dealer)
    factories.accepted(job, at, failed_at=at, cost_receipt=Decimal(8), receipt_final_at=at, blocks_send=False)  # fmt: skip
    for refusal in ("rejected", "rate_limited"):
        factories.task(job, at, blocks_send=False, refusal_class=refusal, refused_at=at)
    factories.task(job, at, blocks_send=False, unsent_at=at)  # never reached it
    factories.task(job, at, armed=False)  # nor did this
    factories.lost(factories.job(at, JobState.MANUAL, target=two), at)
    old = factories.done(at, target=two)
    ProviderTask.objects.filter(job=old).update(created_at=at - timedelta(days=40))
    return at


def test_one_statement_tells_what_came_of_each_target_s_sends(now: datetime) -> None:
    with CaptureQueriesContext(connection) as asked:
        one, two = comparison.read(since=now - timedelta(days=30), until=now)
    assert len(asked) == 2  # it, and the targets
    assert (one.target.model, one.sends, one.delivered, one.good, one.usable, one.bad) == ("one", 6, 3, 1, 0, 1)  # fmt: skip
    assert (one.spent, one.possible) == (3 * Decimal("7.84") + 8, Decimal(0))
    assert one.median_s == pytest.approx(43)
    assert one.p95_s == pytest.approx(43)
    assert (one.failed, one.unknown, one.refusals) == (1, 0, {"rejected": 1, "rate_limited": 1})
    assert (two.sends, two.delivered, two.possible, two.unknown) == (1, 0, Decimal("0.1"), 1)


def test_a_tenant_and_a_period_narrow_it(now: datetime) -> None:
    dealer = factories.tenant("dealer")
    since = now - timedelta(days=60)
    [only] = comparison.read(since=since, until=now, tenant_id=dealer.pk)
    assert (only.target.model, only.sends, only.delivered) == ("one", 3, 0)
    two = comparison.read(since=since, until=now)[1]
    assert (two.sends, two.delivered) == (2, 1)
    assert comparison.read(since=since, until=now - timedelta(days=50)) == []


def test_the_page_the_sheet_and_the_command_tell_the_same(now: datetime) -> None:
    client = Client()
    client.force_login(factories.staff(Role.VIEWER))
    page = client.get(PAGE).content.decode().replace("\u00a0", " ")
    assert "₽10.51" in page  # 31.52 by 3
    assert "₽21.01" in page  # half of those that are rated are good
    assert "≈ $0.1000 possible" in page
    sheet = client.get(f"{PAGE}sheet/?days=90").content.decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(sheet)))
    out = io.StringIO()
    call_command("compare", "--days", "90", "--json", stdout=out)
    told = json.loads(out.getvalue())["targets"]
    assert [{name: "" if value is None else str(value) for name, value in row.items()} for row in told] == rows  # fmt: skip
    assert (rows[0]["per_good"], rows[0]["refused_rejected"]) == ("21.0133", "1")
    assert (rows[1]["currency"], rows[1]["studio_currency"]) == ("USD", "RUB")
    # What the older send cost: $7.84 at 90 ₽.
    assert (rows[1]["spent"], rows[1]["spent_studio"]) == ("7.84", "705.6")
    out = io.StringIO()
    call_command("compare", stdout=out)
    assert "rated 2: 1 good, 0 usable, 1 bad" in out.getvalue()
    with pytest.raises(CommandError, match="no tenant"):
        call_command("compare", "--tenant", "nobody")


def test_without_sends_the_page_says_what_it_is_for(db: None) -> None:
    factories.tenant("dealer")
    client = Client()
    client.force_login(factories.staff(Role.OPERATOR))
    assert "Nothing was sent in this period" in client.get(PAGE).content.decode()
    assert "Nothing matches" in client.get(f"{PAGE}?tenant=dealer&days=7").content.decode()
    client.force_login(factories.staff())
    assert client.get(PAGE).status_code == 403
    assert client.get(f"{PAGE}sheet/").status_code == 403
