"""The handover: what happened since a person's last visit, and that looking changes nothing."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs import handover
from jobs.alert_rules import AlertKind, AlertState
from jobs.clock import clock
from jobs.handover import Handover
from jobs.lifecycle import bulk, bulk_acts, decisions, providers, staff, tenants, visits
from jobs.lifecycle import statement as statements
from jobs.models import Alert, Batch, BulkRun, Case, Hold, Job, Orphan, Visit
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from providers.models import ProviderEvent
from tests import factories
from tests.test_commands import run

pytestmark = pytest.mark.django_db
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
URL = "admin:desk_handover"


@pytest.fixture(autouse=True)
def _media(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path


@pytest.fixture
def now() -> datetime:
    return clock.now()


@pytest.fixture
def anna() -> User:
    return factories.staff(Role.OPERATOR, name="anna")


@pytest.fixture
def boris() -> User:
    return factories.staff(Role.OPERATOR, name="boris")


def client_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def told(now: datetime, *, since: timedelta = HOUR) -> Handover:
    return handover.read(since=now - since, read_at=None, now=now)


def page_of(user: User, **query: str) -> str:
    answer = client_of(user).get(reverse(URL), query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def _charged(now: datetime) -> Any:
    return factories.accepted(
        factories.job(now, JobState.MANUAL), now, failed_at=now, cost_receipt=Decimal(8), receipt_final_at=now
    )  # fmt: skip


# --- what is told -----------------------------------------------------------------------------------------------------


def test_cases_opened_and_closed_by_whom_and_how(now: datetime, boris: User) -> None:
    old = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now), opened_at=now - 5 * HOUR)
    new = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now), opened_at=now - 5 * MINUTE)  # fmt: skip
    before = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now), opened_at=now - 9 * HOUR)  # fmt: skip
    staff.close_case(case_id=before.pk, actor=boris, now=now - 2 * HOUR, resolution="checked", note="x")  # fmt: skip
    staff.close_case(case_id=old.pk, actor=boris, now=now - MINUTE, resolution="checked", note="x")
    seen = told(now)
    assert [case.pk for case in seen.opened.rows] == [new.pk]
    assert seen.opened_money == {"RUB": Decimal(8)}
    assert [case.pk for case in seen.closed.rows] == [old.pk]
    assert [(one.by, one.resolution, one.count) for one in seen.settled] == [
        ("boris", "checked", 1)
    ]
    assert (seen.open_cases, seen.open_money) == (1, {"RUB": Decimal(8)})


def test_who_took_what_and_the_notes_of_what_is_open(now: datetime, anna: User, boris: User) -> None:  # fmt: skip
    job = factories.done(now, reference="VIN-1")
    case = factories.case(CaseKind.PAID_TWICE, now, of=job)
    ended = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now))
    staff.take_case(case_id=case.pk, actor=boris, now=now - 9 * MINUTE)
    staff.note_case(case_id=case.pk, actor=boris, now=now - 2 * HOUR, note="long before")
    staff.note_case(case_id=case.pk, actor=boris, now=now - 8 * MINUTE, note="asked their support")
    staff.note_case(case_id=case.pk, actor=anna, now=now - 7 * MINUTE, note="ticket 12")
    staff.note_case(case_id=ended.pk, actor=boris, now=now - 6 * MINUTE, note="settled")
    staff.close_case(case_id=ended.pk, actor=boris, now=now - 5 * MINUTE, resolution="checked", note="x")  # fmt: skip
    seen = told(now)
    assert [(deed.by, deed.name) for deed in seen.taken.rows] == [("boris", "VIN-1")]
    [noted] = seen.noted
    assert noted.case.pk == case.pk
    assert [(note.by, note.reason) for note in noted.notes] == [("boris", "asked their support"), ("anna", "ticket 12")]  # fmt: skip
    page = page_of(anna)
    assert "asked their support" in page
    assert "settled</p>" not in page


def test_notes_belong_to_their_case_alone(now: datetime, boris: User) -> None:
    """A job may have several cases, and an orphan's has no job."""
    job = factories.job(now, JobState.MANUAL)
    send = factories.lost(job, now)
    unknown = factories.case(CaseKind.UNKNOWN_SEND, now, of=job, by=send)
    twice = factories.case(CaseKind.PAID_TWICE, now, of=job)
    orphan = Orphan.objects.create(
        provider="polza", provider_id="gen_7", account=factories.account(now), currency="RUB", found_at=now
    )  # fmt: skip
    alone = factories.case(CaseKind.ORPHAN, now, orphan=orphan)
    for case, note in ((unknown, "one"), (twice, "two"), (alone, "three")):
        staff.note_case(case_id=case.pk, actor=boris, now=now, note=note)
    found = {one.case.pk: [note.reason for note in one.notes] for one in told(now).noted}
    assert found == {unknown.pk: ["one"], twice.pk: ["two"], alone.pk: ["three"]}


def test_decisions_about_money_with_their_sum(now: datetime, boris: User, anna: User) -> None:
    decisions.write_off(task_id=_charged(now).pk, actor=boris, now=now, note="too small to argue")
    decisions.mark_refunded(
        task_id=_charged(now).pk, actor=boris, now=now, reference="R-7", note=""
    )
    job = factories.job(now, JobState.MANUAL)
    factories.lost(job, now)
    staff.resend(job_id=job.pk, actor=boris, now=now, reason="the customer waits")
    orphan = Orphan.objects.create(
        provider="polza", provider_id="gen_9", account=factories.account(now), currency="RUB", found_at=now
    )  # fmt: skip
    statements.dispute(orphan_id=orphan.pk, reference="R-8", note="not ours", actor=boris, now=now)
    seen = told(now)
    assert sorted(deed.what for deed in seen.money.rows) == [
        "refunded",
        "sent_again",
        "written_off",
    ]
    assert [deed.what for deed in seen.orphans] == ["orphan_disputed"]
    page = page_of(anna)
    assert "₽24.00" in page
    for words in ("too small to argue", "R-7", "the customer waits", "not ours"):
        assert words in page


def test_troubles_at_providers_that_reach_into_the_time(now: datetime, anna: User) -> None:
    account = factories.account(now)
    for kind, ago, data in (
        ("opened", 9 * HOUR, {"reason": "over long ago"}),
        ("closed", 8 * HOUR, {}),
        ("opened", 2 * HOUR, {"reason": "goes on"}),
        ("quota_exhausted", 30 * MINUTE, {"until": (now + HOUR).isoformat(), "reason": "used up"}),
    ):
        ProviderEvent.objects.create(account=account, kind=kind, at=now - ago, data=data)
    assert sorted(one.cause for one in told(now).episodes) == ["goes on", "used up"]
    page = page_of(anna, since="8h")
    assert "goes on" in page
    assert "over long ago" not in page


def test_batches_bulk_actions_alerts_and_the_red_button(now: datetime, boris: User, anna: User) -> None:  # fmt: skip
    tenant = factories.tenant()
    Batch.objects.create(tenant=tenant, created_at=now - 9 * HOUR, completed_at=now - MINUTE, label="spring")  # fmt: skip
    Batch.objects.create(tenant=tenant, created_at=now - 9 * HOUR, completed_at=now - 3 * HOUR, label="autumn")  # fmt: skip
    running = Batch.objects.create(tenant=tenant, created_at=now - 9 * HOUR, label="summer")
    factories.done(now, batch=running)
    factories.job(now, batch=running)
    factories.job(now, JobState.FAILED, reference="again")
    bulk.start(
        act=bulk_acts.RETRY, jobs=Job.objects.filter(reference="again"), data={"reason": "again"}, actor=boris, now=now - MINUTE, token=uuid.uuid4()
    )  # fmt: skip
    BulkRun.objects.create(
        verb="retry", created_at=now - 9 * HOUR, finished_at=now - 8 * HOUR, state="done"
    )
    Alert.objects.create(kind=AlertKind.STUCK, state=AlertState.SENT, at=now - MINUTE, not_before=now, data={"count": 2})  # fmt: skip
    Alert.objects.create(kind=AlertKind.STUCK, state=AlertState.SENT, at=now - 9 * HOUR, not_before=now, over_at=now, data={"count": 1})  # fmt: skip
    staff.press_red_button(actor=boris, now=now - MINUTE, reason="prices doubled")
    Hold.objects.create(kind="red_button", set_at=now - 9 * HOUR, lifted_at=now - 8 * HOUR, reason="another day")  # fmt: skip
    seen = told(now)
    assert [lot.batch.label for lot in seen.ended.rows] == ["spring"]
    assert [(lot.batch.label, lot.counts[JobState.SUCCEEDED], lot.counts[JobState.PENDING]) for lot in seen.running.rows] == [("summer", 1, 1)]  # fmt: skip
    assert [run_.done for run_ in seen.bulk.rows] == [1]
    assert [alert.data["count"] for alert in seen.alerts.rows] == [2]
    assert [hold.reason for hold in seen.holds] == ["prices doubled"]
    page = page_of(anna, since="8h")
    for words in ("spring", "summer", "prices doubled", "2 rows are stuck"):
        assert words in page, words
    assert "another day" not in page


def test_settings_and_who_was_at_work(now: datetime, boris: User) -> None:
    tenants.change(tenant_id=factories.tenant().pk, daily_limit=Decimal(200), actor=boris, now=now)
    providers.pause(account_id=factories.account(now).pk, actor=boris, now=now, reason="x")
    tenants.change(tenant_id=factories.tenant().pk, weight=2, actor=boris, now=now - 2 * HOUR)
    seen = told(now)
    assert [deed.what for deed in seen.settings.rows] == ["tenant_changed", "paused"]
    assert seen.people == {"boris": 2}


# --- nothing, much ----------------------------------------------------------------------------------------------------


def test_nothing_happened_is_said(now: datetime, anna: User) -> None:
    assert told(now).quiet
    assert "Nothing happened since then" in page_of(anna)


def test_much_is_counted_and_cut(now: datetime, anna: User) -> None:
    for _n in range(handover.SHOWN + 3):
        factories.case(CaseKind.BY_HAND, now, of=factories.job(now, JobState.MANUAL))
    seen = told(now)
    assert (len(seen.opened.rows), seen.opened.count, seen.opened.more) == (handover.SHOWN, handover.SHOWN + 3, 3)  # fmt: skip
    assert "3 more on the desk" in page_of(anna)


def test_the_page_asks_no_query_per_row(now: datetime, anna: User, boris: User) -> None:
    def happens(n: int) -> None:
        for _n in range(n):
            case = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now))
            staff.take_case(case_id=case.pk, actor=boris, now=now)
            staff.note_case(case_id=case.pk, actor=boris, now=now, note="x")
            decisions.write_off(task_id=_charged(now).pk, actor=boris, now=now, note="x")
            Batch.objects.create(tenant=factories.tenant(), created_at=now)
            Batch.objects.create(tenant=factories.tenant(), created_at=now, completed_at=now)
            Alert.objects.create(kind=AlertKind.STUCK, state=AlertState.SENT, at=now, not_before=now, over_at=now)  # fmt: skip

    client = client_of(anna)

    def asked() -> int:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(reverse(URL)).status_code == 200
        return len(queries)

    happens(handover.SHOWN + 1)
    asked()
    few = asked()
    happens(handover.SHOWN)
    assert asked() == few < 140


def test_the_page_escapes_and_holds_no_inline_script_or_style(
    now: datetime, anna: User, boris: User
) -> None:
    factories.everything(now)
    decisions.write_off(
        task_id=_charged(now).pk, actor=boris, now=now, note="<script>alert(1)</script>"
    )
    page = page_of(anna)
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", page)


# --- the visit --------------------------------------------------------------------------------------------------------


def test_looking_changes_nothing_and_saying_so_does(now: datetime, anna: User, boris: User) -> None:
    factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now), opened_at=now - 5 * MINUTE)
    client = client_of(anna)
    url, read = reverse(URL), reverse("admin:desk_handover_read")
    first = client.get(url)
    assert client.get(url).context["told"].opened.count == 1
    assert not Visit.objects.exists()
    assert client.get(read).status_code == 405
    assert client.post(read, {"read_at": first.context["read_at"]}).status_code == 302
    visit = Visit.objects.get()
    assert visit.user == anna
    # Up to what was on the page, less the moments in which something may still have been on its way in.
    assert visit.read_at == first.context["now"] - handover.OVERLAP
    again = client.get(url).context["told"]
    assert (again.since, again.read_at, again.opened.count) == (visit.read_at, visit.read_at, 0)
    assert client_of(boris).get(url).context["told"].opened.count == 1  # each has their own


def test_what_came_while_the_page_was_read_is_told_next_time(now: datetime, anna: User) -> None:
    client = client_of(anna)
    seen = client.get(reverse(URL))
    factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now), opened_at=clock.now())
    client.post(reverse("admin:desk_handover_read"), {"read_at": seen.context["read_at"]})
    assert client.get(reverse(URL)).context["told"].opened.count == 1


def test_a_visit_goes_never_back_and_never_ahead(now: datetime, anna: User) -> None:
    assert visits.note_read(user_id=anna.pk, read_at=now + HOUR, now=now) == now
    assert visits.note_read(user_id=anna.pk, read_at=now - HOUR, now=now) == now
    assert visits.note_read(user_id=anna.pk, read_at=now + MINUTE, now=now + HOUR) == now + MINUTE


@pytest.mark.parametrize("text", ["", "x", "2026-13-01T00:00:00+00:00", "2026-01-01T00:00:00"])
def test_a_time_that_is_none_notes_nothing(text: str, anna: User) -> None:
    answer = client_of(anna).post(reverse("admin:desk_handover_read"), {"read_at": text}, follow=True)  # fmt: skip
    assert "Nothing was noted" in answer.content.decode()
    assert not Visit.objects.exists()


def test_who_was_away_for_months_is_told_of_the_last_one(now: datetime, anna: User) -> None:
    Visit.objects.create(user=anna, read_at=now - timedelta(days=300))
    assert handover.since_of(anna.pk, now=now) == (now - handover.LONGEST, now - timedelta(days=300))  # fmt: skip
    assert handover.since_of(None, now=now) == (now - handover.FIRST, None)


def test_a_viewer_can_neither_read_nor_say_so(now: datetime) -> None:
    viewer = client_of(factories.staff(Role.VIEWER))
    assert viewer.get(reverse(URL)).status_code == 403
    assert viewer.post(reverse("admin:desk_handover_read"), {"read_at": now.isoformat()}).status_code == 403  # fmt: skip
    assert not Visit.objects.exists()


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_tells_the_same_and_notes_it_when_asked(now: datetime, anna: User, boris: User) -> None:  # fmt: skip
    case = factories.case(CaseKind.PAID_TWICE, now, of=factories.done(now, reference="VIN-1"), opened_at=now - 5 * MINUTE)  # fmt: skip
    staff.take_case(case_id=case.pk, actor=boris, now=now)
    staff.note_case(case_id=case.pk, actor=boris, now=now, note="asked their support")
    decisions.write_off(task_id=_charged(now).pk, actor=boris, now=now, note="too small")
    Batch.objects.create(tenant=factories.tenant(), created_at=now, label="spring")
    code, text = run("handover", "--as", "anna")
    assert code == 0
    for words in ("1 case opened", "VIN-1", "asked their support", "too small", "spring", "1 case is open now"):  # fmt: skip
        assert words in text, (words, text)
    code, text = run("handover", "--as", "anna", "--json")
    seen = json.loads(text)
    assert (code, seen["opened"]["count"], seen["quiet"]) == (0, 1, False)
    assert [one["what"] for one in seen["money"]] == ["written_off"]
    assert [note["why"] for note in seen["open_with_notes"][0]["notes"]] == ["asked their support"]
    assert not Visit.objects.exists()
    assert run("handover", "--as", "anna", "--read")[0] == 0
    assert Visit.objects.get().user == anna
    assert json.loads(run("handover", "--as", "boris", "--since", "1m", "--json")[1])["opened"]["count"] == 0  # fmt: skip


def test_the_command_refuses_strangers_and_nonsense(anna: User) -> None:
    viewer = factories.staff(Role.VIEWER)
    assert run("handover", "--as", "nobody")[0] == 2
    assert run("handover", "--as", viewer.username)[0] == 3
    assert run("handover", "--as", "anna", "--since", "yesterday")[0] == 2
    assert "Nothing happened." in run("handover", "--as", "anna")[1]


def test_the_lists_of_cases_answer_from_indexes(now: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        opened = Case.objects.filter(opened_at__gte=now).order_by("-opened_at")
        closed = Case.objects.filter(resolved_at__gte=now).order_by("-resolved_at")
        ended = Batch.objects.filter(completed_at__gte=now).order_by("-completed_at")
        assert "case_opened" in opened.explain()
        assert "case_settled" in closed.explain()
        assert "batch_ended" in ended.explain()
