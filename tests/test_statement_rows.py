"""Statements as rows: read in slices over real HTTP, their cases, what people decide, the pages and the command."""

from __future__ import annotations

import csv
import io
import json
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse
from pytest_django import Settings
from pytest_django.fixtures import DjangoCaptureOnCommitCallbacks

from jobs import tasks
from jobs.clock import clock
from jobs.lifecycle import record, staff
from jobs.lifecycle import statement as lifecycle
from jobs.lifecycle.errors import Refused
from jobs.lifecycle.record import Fact
from jobs.models import Case, Job, Orphan, ProviderTask, Statement
from jobs.roles import Role
from jobs.stages import statement as stage
from jobs.statement import Kind, windows
from jobs.states import CaseKind, JobState, TaskState
from providers.models import Account
from providers.registry import fingerprint
from providers.sandbox.server import Sandbox, running_sandbox
from tests import factories

pytestmark = [pytest.mark.flow, pytest.mark.django_db]

KEY, OTHER = "pza_statement", "pza_other"
MODEL = factories.MODEL
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def _sandbox() -> Iterator[Sandbox]:
    with running_sandbox(latency_fixed_s=0) as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_sandbox: Sandbox, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    _sandbox.control("reset", settings=True)
    settings.PROVIDER_KEYS = {"polza": KEY, "polza_b": OTHER}
    settings.PROVIDER_BASE_URLS = dict.fromkeys(settings.PROVIDER_KEYS, _sandbox.api_url)
    settings.AI_ACCOUNTS = {"polza_b": "polza"}
    monkeypatch.setattr(stage, "AGAIN_AFTER_S", (0.0, 0.0, 0.0, 0.0, 0.0))
    return _sandbox


def account(key: str = KEY, provider: str = "polza", **values: Any) -> Account:
    made = factories.account(clock.now(), provider=provider, fingerprint=fingerprint(key))
    Account.objects.filter(pk=made.pk).update(**{"history_lag_s": 1, "echoes_id": True, "exclusive": True} | values)  # fmt: skip
    made.refresh_from_db()
    return made


def both(sandbox: Sandbox, count: int = 1, *, ours: str = "5", key: str = KEY, of: Account | None = None) -> list[ProviderTask]:  # fmt: skip
    """Sends of an hour ago that the history has at 5.00."""
    at, made = clock.now() - HOUR, []
    of = of or account()
    for _ in range(count):
        job = factories.job(at, JobState.ACTIVE)
        task = factories.task(
            job, at, account=of, armed_at=at, stored_at=at, completed_at=at, cost_poll=Decimal(ours), blocks_send=False,
        )  # fmt: skip
        told = sandbox.control("plant", key=key, model=MODEL, user=str(task.pk), created=at.timestamp())  # fmt: skip
        ProviderTask.objects.filter(pk=task.pk).update(provider_id=told["id"], accepted_at=at)
        made.append(task)
    return made


def orphan(sandbox: Sandbox, **values: Any) -> str:
    """An hour old and 5.00, unless told otherwise."""
    created = (clock.now() - HOUR).timestamp()
    return str(sandbox.control("plant", **{"key": KEY, "model": MODEL, "created": created} | values)["id"])  # fmt: skip


def ask(provider: str = "polza", **values: Any) -> Statement:
    now = clock.now()
    return lifecycle.ask(**{"provider": provider, "account_id": None, "since": now - 24 * HOUR, "until": now, "actor": None, "now": now} | values)  # fmt: skip


def read(row: Statement | None = None) -> Statement:
    row = row or ask()
    assert not stage.run(row.pk, for_s=60)
    row.refresh_from_db()
    return row


def lines(row: Statement) -> list[tuple[str, str]]:
    return [(one["kind"], one["provider_id"]) for one in row.told["findings"]]


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_flaky_history_of_several_pages_is_read_to_its_end(sandbox: Sandbox) -> None:
    both(sandbox, 120)
    lost = orphan(sandbox)
    sandbox.control("settings", faults={"history_500": 0.2, "history_cut": 0.1, "history_garbage": 0.1})  # fmt: skip
    row = read()
    assert (row.state, row.told["matched"], lines(row)) == ("ready", 120, [("orphan", lost)])
    assert (row.kept, row.claim, row.cursor) == ({}, None, row.pieces)


def test_a_history_that_cant_be_read_judges_nothing(sandbox: Sandbox) -> None:
    both(sandbox)
    sandbox.control("settings", faults={"history_500": 1.0})
    row = read()
    assert (row.state, row.told) == ("failed", {})
    assert "500" in row.trouble
    sandbox.control("settings", faults={})
    assert read().state == "ready"


def test_one_of_two_accounts_that_cant_be_read_is_named_and_the_other_judged(
    sandbox: Sandbox,
) -> None:
    both(sandbox, 2)
    old = account("pza_of_last_year")
    job = factories.job(clock.now(), JobState.ACTIVE)
    factories.accepted(job, clock.now(), account=old, armed_at=clock.now() - HOUR)
    row = read()
    assert (row.told["matched"], [kind for kind, _ in lines(row)]) == (2, [Kind.OTHER_KEY])
    assert [one["unread"] for one in row.told["accounts"]] == ["", "no key"]


def test_an_old_key_that_still_has_a_name_in_the_settings_is_read_with_it(
    sandbox: Sandbox,
) -> None:
    old = account(OTHER)
    both(sandbox, 3, key=OTHER, of=old)
    both(sandbox, 2)
    row = read()
    assert (row.told["matched"], lines(row)) == (5, [])


def test_the_lag_makes_too_young_not_unknown(sandbox: Sandbox) -> None:
    both(sandbox)
    account(history_lag_s=7200)
    [task] = both(sandbox)
    account(history_lag_s=7200)
    ProviderTask.objects.filter(pk=task.pk).update(provider_id="gen_not_listed")
    row = read()
    assert (Kind.TOO_YOUNG, "gen_not_listed") in lines(row)
    account(history_lag_s=1)
    assert (Kind.UNKNOWN_THERE, "gen_not_listed") in lines(read())


def test_without_an_echo_tasks_without_an_id_cant_be_told(sandbox: Sandbox) -> None:
    both(sandbox)
    account(echoes_id=None)
    sandbox.control("settings", echo=False)
    at = clock.now() - 3 * HOUR
    factories.lost(factories.job(at, JobState.ACTIVE), at, account=account(echoes_id=None), armed_at=at)  # fmt: skip
    assert [kind for kind, _ in lines(read())] == [Kind.CANT_TELL]


def test_a_slice_that_was_killed_costs_only_itself(sandbox: Sandbox) -> None:
    both(sandbox, 3)
    row = ask(since=clock.now() - 72 * HOUR)
    assert stage.run(row.pk, for_s=0.0) is True, "nothing was read in no time"
    claim = uuid.uuid4()
    taken = lifecycle.take(statement_id=row.pk, claim=claim, now=clock.now())
    assert taken is not None
    reading = stage._Reading(taken, claim, until=time.monotonic() + 60, piece_s=60)
    pieces = windows(row.since, row.until)
    reading._piece(reading.accounts[0], pieces[0])
    assert reading._keep(1)
    # That worker is killed here. Nobody goes on while it may live; then the next goes on from what was kept.
    assert stage.run(row.pk, for_s=60) is False
    row.refresh_from_db()
    assert (row.state, row.cursor) == ("reading", 1)
    Statement.objects.filter(pk=row.pk).update(beat_at=clock.now() - timedelta(seconds=lifecycle.LEASE_S + 1))  # fmt: skip
    row = read(row)
    assert (row.state, row.told["matched"]) == ("ready", 3)
    assert not reading._keep(2), "the killed one, had it only slept, writes nothing any more"
    assert lifecycle.store(statement_id=row.pk, claim=claim, told={}, findings=[], read_at=row.asked_at, now=row.asked_at) is None  # fmt: skip


def test_the_minutes_ring_goes_on_with_what_nobody_is_at(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(stage, "start", started.append)
    account()
    row = ask()
    tasks.ring_each_minute()
    assert started == [], "its message may still be on the way"
    silent = clock.now() - timedelta(seconds=lifecycle.LEASE_S + 1)
    Statement.objects.update(asked_at=silent)
    tasks.ring_each_minute()
    assert started == [row.pk], "the message was lost"
    assert lifecycle.take(statement_id=row.pk, claim=uuid.uuid4(), now=clock.now()) is not None
    tasks.ring_each_minute()
    assert started == [row.pk], "somebody is at it"
    Statement.objects.update(beat_at=silent)
    tasks.ring_each_minute()
    assert started == [row.pk, row.pk], "whoever was at it is dead"
    read(row)
    tasks.ring_each_minute()
    assert started == [row.pk, row.pk], "and it is read to its end"


def test_a_second_ask_for_what_is_being_read_joins_it(sandbox: Sandbox) -> None:
    account()
    until = clock.now()
    common: dict[str, Any] = {"since": until - HOUR, "until": until}
    assert ask(**common).pk == ask(**common).pk
    read(ask(**common))
    assert ask(**common).state == "reading"
    assert Statement.objects.count() == 2


@pytest.mark.parametrize("wrong", [{"provider": "nobody"}, {"since": "until"}, {"since": "long"}, {"account_id": 0}])  # fmt: skip
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    account()
    now = clock.now()
    if "since" in wrong:
        wrong = {"since": now if wrong["since"] == "until" else now - timedelta(days=500), "until": now}  # fmt: skip
    with pytest.raises(Refused):
        ask(**wrong)


# --- orphans ----------------------------------------------------------------------------------------------------------


def test_the_same_orphan_twice_is_one_case_also_once_it_is_closed(sandbox: Sandbox) -> None:
    both(sandbox)
    first, second = orphan(sandbox, price="9"), orphan(sandbox)
    read()
    read()
    cases = Case.objects.filter(kind=CaseKind.ORPHAN)
    assert {case.orphan and case.orphan.provider_id for case in cases} == {first, second}
    assert {case.money_at_risk for case in cases} == {Decimal(9), Decimal(5)}
    closed = cases.get(orphan__provider_id=first)
    staff.close_case(case_id=closed.pk, actor=factories.staff(Role.OPERATOR), now=clock.now(), resolution="settled", note="Theirs.")  # fmt: skip
    row = read()
    assert (cases.count(), row.open_count) == (2, 1)
    settled = {one["provider_id"]: one["settled"] for one in row.told["findings"]}
    assert settled == {first: "settled", second: ""}


def test_facts_without_a_row_keep_their_own_case_beside_those_of_orphans(sandbox: Sandbox) -> None:
    both(sandbox)
    orphan(sandbox)
    read()
    fact = Fact(task_id=uuid.uuid4(), at=clock.now(), kind="accepted", provider_id="gen_restored")
    record.record(facts=[fact])
    assert Case.objects.filter(kind=CaseKind.ORPHAN).count() == 2
    assert Case.objects.get(kind=CaseKind.ORPHAN, orphan=None).detail["facts"]


def test_a_price_beyond_all_measure_is_kept_as_the_most_there_is(sandbox: Sandbox) -> None:
    both(sandbox)
    name = orphan(sandbox, price="999999999999")
    assert (Kind.ORPHAN, name) in lines(read())
    assert adopt(Orphan.objects.get(provider_id=name)).tasks.get().provider_id == name


def test_a_disputed_orphan_is_closed_under_the_providers_reference(sandbox: Sandbox) -> None:
    both(sandbox)
    name = orphan(sandbox)
    read()
    row = Orphan.objects.get(provider_id=name)
    person = factories.staff(Role.OPERATOR)
    with pytest.raises(Refused, match="reference"):
        lifecycle.dispute(orphan_id=row.pk, reference=" ", actor=person, now=clock.now())
    lifecycle.dispute(orphan_id=row.pk, reference="T-17", note="Not our prompt.", actor=person, now=clock.now())  # fmt: skip
    row.refresh_from_db()
    assert (row.outcome, row.reference, row.decided_by) == ("disputed", "T-17", person)
    case = Case.objects.get(orphan=row)
    assert (case.resolution, case.resolved_by) == ("disputed", person)
    assert "T-17" in case.note
    with pytest.raises(Refused, match="already"):
        lifecycle.dispute(orphan_id=row.pk, reference="T-18", actor=person, now=clock.now())
    assert read().open_count == 0


def adopt(row: Orphan, **values: Any) -> Job:
    defaults: dict[str, Any] = {"prompt": "", "reference": "", "actor": None, "now": clock.now()}
    return lifecycle.adopt(orphan_id=row.pk, **{"tenant_id": factories.tenant("dealer").pk, **defaults} | values)  # fmt: skip


def test_an_adopted_orphan_is_a_watched_send_of_a_new_job(sandbox: Sandbox) -> None:
    both(sandbox)
    name = orphan(sandbox, model="vendor/new-model")
    read()
    row = Orphan.objects.get(provider_id=name)
    person = factories.staff(Role.OPERATOR)
    job = adopt(row, actor=person, reference="VIN-1")
    task = job.tasks.get()
    assert (job.state, job.tenant.slug, job.reference, job.created_by) == (JobState.ACTIVE, "dealer", "VIN-1", person)  # fmt: skip
    assert (task.state, task.provider_id, task.blocks_send) == (TaskState.ACCEPTED, name, True)
    assert task.next_poll_at is not None
    assert not task.target.enabled, "a model nobody set up opens to no other job"
    assert Case.objects.get(orphan=row).resolution == "adopted"
    with pytest.raises(Refused):
        adopt(row)
    assert (Kind.ORPHAN, name) not in lines(read())
    assert sandbox.summary()["posts"] == 0


def test_what_may_be_a_lost_send_is_not_adopted(sandbox: Sandbox) -> None:
    both(sandbox)
    account(echoes_id=None)
    sandbox.control("settings", echo=False)
    name = orphan(sandbox)
    read()
    row = Orphan.objects.get(provider_id=name)
    at = row.made_at
    assert at is not None
    lost = factories.lost(factories.job(at, JobState.ACTIVE), at, account=row.account, armed_at=at)
    with pytest.raises(Refused, match=f"job {lost.job_id}"):
        adopt(row)
    assert Job.objects.filter(tenant__slug="dealer").count() == 0
    row.refresh_from_db()
    assert row.outcome == ""


def test_an_id_that_a_send_has_got_meanwhile_is_not_adopted(sandbox: Sandbox) -> None:
    [task] = both(sandbox)
    name = orphan(sandbox)
    read()
    ProviderTask.objects.filter(pk=task.pk).update(provider_id=name)
    with pytest.raises(Refused, match="belongs to a job"):
        adopt(Orphan.objects.get(provider_id=name))


def test_a_key_shared_with_another_program_does_not_flood_the_desk(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "CASES_AT_ONCE", 3)
    both(sandbox)
    names = [orphan(sandbox, price=str(price)) for price in range(1, 6)]
    row = read()
    assert {one.provider_id for one in Orphan.objects.all()} == set(names[2:]), "the dearest"
    assert (row.open_count, row.told["cases"]) == (5, {"opened": 3, "waiting": 2})
    lifecycle.dispute(orphan_id=Orphan.objects.earliest("pk").pk, reference="T", actor=None, now=clock.now())  # fmt: skip
    assert read().told["cases"] == {"opened": 1, "waiting": 1}


# --- pages ------------------------------------------------------------------------------------------------------------


def client(role: Role = Role.OPERATOR) -> Client:
    made = Client()
    made.force_login(factories.staff(role))
    return made


def test_a_page_asks_a_worker_and_reads_nothing_itself(
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    started: list[int] = []
    monkeypatch.setattr(stage, "start", started.append)
    mine = account()
    operator = client()
    before = sandbox.stats()["requests"]
    day = f"{clock.now() - 48 * HOUR:%Y-%m-%d}"
    with django_capture_on_commit_callbacks(execute=True):
        page = operator.post(reverse("admin:jobs_statement_add"), {"account": mine.pk, "since": day}, follow=True)  # fmt: skip
    row = Statement.objects.get()
    assert started == [row.pk]
    assert sandbox.stats()["requests"] == before
    assert 'data-every="2"' in page.content.decode()
    url = reverse("admin:jobs_statement_change", args=[row.pk])
    assert b"Go on" not in operator.get(url).content
    Statement.objects.filter(pk=row.pk).update(asked_at=clock.now() - HOUR)
    assert b"Go on" in operator.get(url).content
    operator.post(reverse("admin:jobs_statement_go_on", args=[row.pk]))
    assert started == [row.pk, row.pk]
    read(row)
    page = operator.get(url, headers={"x-live": "1"})
    assert b"data-every" not in page.content
    assert b"<nav" not in page.content


def test_the_page_and_its_sheets_tell_what_was_found_and_hostile_text_does_nothing(
    sandbox: Sandbox,
) -> None:
    evil = '=HYPERLINK("x")<script>alert(1)</script>'
    both(sandbox, ours="4")
    orphan(sandbox, model=evil, user=evil)
    row = read()
    operator = client()
    page = operator.get(reverse("admin:jobs_statement_change", args=[row.pk])).content.decode()
    assert "<script>alert(1)" not in page
    assert "Charged, unknown to us" in page
    assert "Different price" in page
    assert reverse("admin:jobs_orphan_change", args=[Orphan.objects.get().pk]) in page
    for which in ("support", "days", "months"):
        answer = operator.get(reverse("admin:jobs_statement_sheet", args=[row.pk, which]))
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        cells = list(csv.reader(io.StringIO(answer.content.decode("utf-8-sig"))))
        assert len(cells) == {"support": 3, "days": 3, "months": 3}[which], cells
        assert not any(cell.startswith(("=", "+", "-", "@")) for row_ in cells for cell in row_)
    assert operator.get(reverse("admin:jobs_statement_sheet", args=[row.pk, "all"])).status_code == 404  # fmt: skip
    listed = operator.get(reverse("admin:jobs_statement_changelist")).content.decode()
    assert "polza" in listed
    for name in ("change", "do"):
        args = [Orphan.objects.get().pk, *(["adopt"] if name == "do" else [])]
        page = operator.get(reverse(f"admin:jobs_orphan_{name}", args=args)).content.decode()
        assert "<script>alert(1)" not in page


def test_orphans_are_decided_by_their_pages(sandbox: Sandbox) -> None:
    both(sandbox)
    for _ in range(2):
        orphan(sandbox)
    read()
    first, second = Orphan.objects.order_by("pk")
    operator = client()
    url = reverse("admin:jobs_orphan_do", args=[first.pk, "adopt"])
    tenant = factories.tenant("dealer")
    operator.post(url, {"tenant": tenant.pk, "prompt": "a sedan", "reference": "VIN-2", "note": ""})  # fmt: skip
    assert Job.objects.get(tenant=tenant).prompt == "a sedan"
    url = reverse("admin:jobs_orphan_do", args=[second.pk, "dispute"])
    operator.post(url, {"reference": "T-17", "note": ""})
    second.refresh_from_db()
    assert second.outcome == "disputed"


def test_a_viewer_looks_and_decides_nothing(sandbox: Sandbox) -> None:
    both(sandbox)
    orphan(sandbox)
    row = read()
    viewer, one = client(Role.VIEWER), Orphan.objects.get()
    page = viewer.get(reverse("admin:jobs_statement_change", args=[row.pk])).content.decode()
    assert reverse("admin:jobs_statement_add") not in page
    page = viewer.get(reverse("admin:jobs_orphan_change", args=[one.pk])).content.decode()
    assert "/do/" not in page
    for url in (
        reverse("admin:jobs_statement_add"), reverse("admin:jobs_statement_go_on", args=[row.pk]),
        reverse("admin:jobs_orphan_do", args=[one.pk, "adopt"]), reverse("admin:jobs_orphan_do", args=[one.pk, "dispute"]),
    ):  # fmt: skip
        assert viewer.post(url, {}).status_code == 403, url


# --- the command ------------------------------------------------------------------------------------------------------


def command(*options: str) -> tuple[int, str]:
    out, code = io.StringIO(), 0
    since = f"{clock.now() - 48 * HOUR:%Y-%m-%d}"
    try:
        call_command("statement", "--provider", "polza", "--since", since, *options, stdout=out, stderr=io.StringIO())  # fmt: skip
    except SystemExit as end:
        code = int(end.code or 0)
    except CommandError as error:
        code = error.returncode
    return code, out.getvalue()


def test_the_command_says_it_and_ends_with_a_code(sandbox: Sandbox, settings: Settings) -> None:
    settings.CURRENCY_RATES = {"RUB": Decimal(1), "USD": Decimal("92.5")}
    both(sandbox, 2)
    assert command()[0] == 0
    name = orphan(sandbox)
    code, text = command()
    assert code == 3
    assert f"charged, unknown to us  {name}" in text
    assert "Rates in RUB: RUB 1" in text
    code, text = command("--json")
    told = json.loads(text)
    assert (code, told["open"], told["matched"], told["rates"]) == (3, 1, 2, {"RUB": "1"})
    assert told["read_at"]
    assert name in command("--csv")[1]
    assert "5.00" in command("--csv", "months")[1]
    assert command("--account", fingerprint(KEY)[-6:])[0] == 3
    assert command("--account", "nobody")[0] == 2
    assert command("--until", "2001-01-01")[0] == 2
    sandbox.control("settings", faults={"history_500": 1.0})
    assert command()[0] == 1
