"""smoke: each contract change is named, nothing dear or unknown is bought, and a run goes on wherever it was left."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone
from django.utils.module_loading import import_string
from pytest_django import Settings

from jobs import lanes, panel, tasks
from jobs import smoke as rules
from jobs.engine import Engine
from jobs.lifecycle import smoke as lifecycle
from jobs.models import Job, ProviderTask
from jobs.pictures import PictureProcess
from jobs.roles import Role
from jobs.smoke import Promised, Seen, Send
from jobs.stages import smoke as stage
from jobs.states import JobState, TaskState
from providers import asking, registry
from providers.contract import Account, Adapter, Answer, Call, Kind, NoAnswer
from providers.http import Transport
from providers.models import Account as AccountRow
from providers.models import ProviderEvent, SmokeRun
from tests import factories
from tests.flow import _TLS, KEY, Desk, Points, Wire, one_pass

NOW = timezone.now()

# --- judging ----------------------------------------------------------------------------------------------------------

PROMISED = Promised(
    asynchronous=True, named=True, tells_cost=True, listed=True, price=Decimal(5), most=Decimal("7.5"), currency="RUB"
)  # fmt: skip
SYNCHRONOUS = replace(PROMISED, asynchronous=False, listed=False)
SENT = Send(
    state=TaskState.STORED, answered_s=0.4, status=200, provider_id="gen_1", polls=3,
    result=("image/png", 512, 512), cost=Decimal(5),
)  # fmt: skip
SEEN = Seen(
    job=JobState.SUCCEEDED, send=SENT, waited_s=9, before=Decimal(100), after=Decimal(95), alone=True, exclusive=True,
    lag_s=1.2, echo=True, knew_echo=True,
)  # fmt: skip


def wrong(seen: Seen = SEEN, promised: Promised = PROMISED) -> list[str]:
    return [check.finding for check in rules.judge(promised, seen) if check.ok is False]


def test_what_a_contract_promises_passes_and_every_check_has_words() -> None:
    checks = rules.judge(PROMISED, SEEN)
    assert [check.ok for check in checks] == [True] * 7
    assert rules.from_plain(rules.plain(checks)) == checks
    for check in checks:
        assert check.name in rules.NAMES
        assert check.words != check.finding
    for finding, words in rules.WORDS.items():
        needed = set(re.findall(r"%\((\w+)\)s", str(words)))
        assert rules.words(finding, dict.fromkeys(needed, "x")), finding


def test_a_synchronous_provider_is_held_to_its_own_contract() -> None:
    verdict = replace(SENT, polls=0, answered_s=42.0)
    assert wrong(replace(SEEN, send=verdict), SYNCHRONOUS) == []
    nameless = replace(SEEN, send=replace(verdict, provider_id=""))
    assert wrong(nameless, SYNCHRONOUS) == ["id_missing"]
    assert wrong(nameless, replace(SYNCHRONOUS, named=False)) == []
    untold = replace(SEEN, send=replace(verdict, cost=None))
    assert wrong(untold, SYNCHRONOUS) == ["cost_missing"]
    assert wrong(untold, replace(SYNCHRONOUS, tells_cost=False)) == []
    words = replace(verdict, result=None, text=True)
    assert wrong(replace(SEEN, send=words), replace(SYNCHRONOUS, kind=Kind.TEXT)) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"polls": 0}, "async_ignored"),
        ({"answered_s": 5.1}, "slow"),
        ({"new_words": ("brewing",)}, "new_status_word"),
        ({"state": TaskState.UNKNOWN, "provider_id": "", "result": None}, "id_missing"),
        ({"state": TaskState.UNKNOWN, "provider_id": "", "status": 502}, "lost"),
        ({"state": TaskState.UNKNOWN, "provider_id": "", "status": None, "answered_s": 30}, "silent"),
        ({"state": TaskState.REFUSED, "failure": "quota_exhausted"}, "refused"),
        ({"state": TaskState.UNSENT}, "unsent"),
        ({"state": TaskState.FAILED, "result": None}, "failed"),
        ({"state": TaskState.COMPLETED, "result": None}, "picture_missing"),
        ({"state": TaskState.COMPLETED, "result": None, "why": "HTTP 404"}, "picture_broken"),
        ({"result": ("text/plain", None, None)}, "picture_broken"),
        ({"state": TaskState.ACCEPTED, "result": None}, "unfinished"),
        ({"cost": None}, "cost_missing"),
        ({"cost": Decimal(8)}, "cost_high"),
    ],
)  # fmt: skip
def test_each_change_of_a_send_is_named(change: dict[str, Any], finding: str) -> None:
    assert finding in wrong(replace(SEEN, send=replace(SENT, **change)))


@pytest.mark.parametrize(
    ("change", "findings"),
    [
        ({"send": None, "waited_s": 120}, ["waiting"]),
        ({"after": Decimal(100)}, ["moved_less"]),
        ({"after": Decimal(90)}, ["moved_more"]),
        ({"after": Decimal(90), "exclusive": False}, []),
        ({"after": Decimal(90), "alone": False}, []),
        ({"after": None}, []),
        ({"echo": False}, ["echo_lost"]),
        ({"echo": False, "knew_echo": None}, []),
        ({"lag_s": None, "unlisted_s": 120.0}, ["unlisted"]),
        ({"lag_s": None}, []),
    ],
)
def test_money_and_listing_are_judged_only_as_far_as_they_can_be(
    change: dict[str, Any], findings: list[str]
) -> None:
    assert wrong(replace(SEEN, **change)) == findings


@pytest.mark.parametrize(
    ("known_s", "lag_s", "unlisted_s", "lag"),
    [
        (None, 1.2, None, 1.2),
        (5.0, 1.2, None, 5.0),
        (5.0, 61.0, 3.0, 5.0),  # a late look bounds it loosely, and contradicts nothing
        (5.0, 61.0, 30.0, 61.0),
        (5.0, None, 120.0, None),
        (5.0, None, None, 5.0),
    ],
)
def test_the_lag_is_an_upper_bound_that_only_evidence_raises(
    known_s: float | None, lag_s: float | None, unlisted_s: float | None, lag: float | None
) -> None:
    seen = replace(SEEN, lag_s=lag_s, unlisted_s=unlisted_s)
    assert rules.known_lag(known_s=known_s, seen=seen) == lag


def test_a_fraction_of_a_cent_is_compared_as_such() -> None:
    cost = Decimal("0.003")
    assert rules.fell_as_told(Decimal("1.000"), Decimal("0.997"), cost) is True
    assert rules.fell_as_told(Decimal("1.000"), Decimal("1.000"), cost) is False
    assert rules.fell_as_told(Decimal(10), Decimal("4.996"), Decimal(5)) is True
    assert rules.fell_as_told(None, Decimal(1), cost) is None


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({}, "target_open"),
        ({"price": Decimal(0)}, "price_unknown"),
        ({"limit": Decimal("11.99")}, "too_dear"),
        ({"closed": "no such model"}, "target_closed"),
    ],
)
def test_only_an_open_target_with_a_known_price_within_the_limit_is_bought(
    change: dict[str, Any], finding: str
) -> None:
    asked: dict[str, Any] = {
        "target": "polza:m", "price": Decimal(8), "currency": "RUB", "factor": Decimal("1.5"), "limit": Decimal(12),
    }  # fmt: skip
    check = rules.affordable(**asked | change)
    assert (check.finding, check.ok) == (finding, finding == "target_open")


# --- whole runs against the sandbox's world ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


class Scene:
    """A desk whose lane works while the run waits."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        held = lanes.take(host="desk-1", pid=1, version="", now=desk.clock.now())
        assert held is not None
        self.held = held
        self.outside = stage.Outside(ask=self.ask, sleep=self.sleep, now=desk.clock.now)

    def ask(self, adapter: Adapter, account: Account, call: Call) -> Answer | NoAnswer:
        async def go() -> Answer | NoAnswer:
            wire = Wire(self.desk, Points())
            async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
                return await asking.read(transport, adapter, account, call, deadline_s=5)

        return async_to_sync(go)()

    def sleep(self, seconds: float) -> None:
        async def go() -> None:
            points = Points()
            wire = Wire(self.desk, points)
            async with Transport(paid=wire, reads=wire, verify=_TLS) as transport:
                engine = Engine(self.desk._lane(self.held, points, transport), asyncio.Event())
                await one_pass(engine, points)

        async_to_sync(go)()
        self.desk.clock.advance(seconds)

    def begin(self, *, most: str = "100", real: bool = True) -> SmokeRun:
        run = lifecycle.begin(
            account=self.desk.account_row, target=self.desk.target, real=real, most=Decimal(most),
            now=self.desk.clock.now(),
        )  # fmt: skip
        assert run is not None
        return run

    def run(self, **begin: Any) -> SmokeRun:
        run = self.begin(**begin)
        assert stage.Watch(run, outside=self.outside).go_on()
        run.refresh_from_db()
        return run


@pytest.fixture
def scene(settings: Settings, tmp_path: Path, pictures: PictureProcess) -> Scene:
    settings.PROVIDER_KEYS = {"polza": KEY}
    settings.PROVIDER_BASE_URLS = {"polza": "http://polza.test/api/v1"}
    return Scene(Desk(settings, tmp_path, pictures, balance="100", history_lag_s=3))


def job_of(run: SmokeRun) -> Job:
    assert run.job_id is not None
    return Job.objects.get(pk=run.job_id)


def failed(run: SmokeRun) -> list[str]:
    return [check.finding for check in rules.from_plain(run.checks) if check.ok is False]


@pytest.mark.flow
@pytest.mark.django_db
def test_a_real_run_pays_once_and_measures_the_history(scene: Scene) -> None:
    account = scene.desk.account_row
    account.echoes_id, account.history_lag_s, account.exclusive = None, None, True
    account.save()
    run = scene.run()
    assert (run.ok, failed(run), run.cost) == (True, [], Decimal(5))
    found = {check.name: check.finding for check in rules.from_plain(run.checks)}
    assert found == {
        "key": "key_good", "balance": "balance_told", "history": "history_told", "target": "target_open", "send": "sent",
        "id": "id_told", "status": "words_known", "result": "picture", "cost": "cost_told", "money": "moved",
        "listing": "listed",
    }  # fmt: skip
    assert len(scene.desk.world.ledger.posts) == 1
    job = job_of(run)
    assert (job.tenant.slug, job.state) == ("smoke", JobState.SUCCEEDED)
    measured = AccountRow.objects.get(pk=account.pk)
    assert measured.echoes_id is True
    assert measured.history_lag_s is not None
    assert 3 <= measured.history_lag_s <= 5
    event = ProviderEvent.objects.get(kind="history_measured")
    assert event.data["echoes_id"] == [None, True]
    shown = panel.read(now=scene.desk.clock.now()).accounts[0].smoke
    assert shown is not None
    assert (shown.ok, shown.real, shown.failed) == (True, True, ())


@pytest.mark.flow
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("instant_completed", "async_ignored"),
        ("ok_no_id_after", "id_missing"),
        ("unknown_status", "new_status_word"),
        ("content_only", "picture_missing"),
        ("cost_missing", "cost_missing"),
        ("overloaded", "refused"),  # a job by itself would be sent again
    ],
)
def test_a_changed_contract_is_named_by_a_real_run_that_still_sends_once(
    scene: Scene, fault: str, finding: str
) -> None:
    scene.desk.fault = fault
    run = scene.run()
    assert run.ok is False
    assert finding in failed(run)
    assert len(scene.desk.world.ledger.posts) == 1
    if finding == "refused":
        assert job_of(run).state == JobState.CANCELLED


@pytest.mark.flow
@pytest.mark.django_db
def test_nothing_is_sent_where_the_free_reads_fail_or_the_price_is_too_high(scene: Scene) -> None:
    dear = scene.run(most="7.49")
    assert (failed(dear), dear.ok) == (["too_dear"], None)
    assert scene.run(most="7.49", real=False).ok
    scene.desk.world.configure({"faults": {"balance_garbage": 1}})
    assert failed(scene.run()) == ["balance_unreadable"]
    scene.desk.world.configure({"faults": {"history_garbage": 1}})
    assert failed(scene.run(real=False)) == ["history_unreadable"]
    scene.desk.world.configure({"faults": {}, "revoked_keys": [scene.desk.account.fingerprint]})
    assert failed(scene.run())[0] == "key_rejected"
    scene.desk.world.configure({"revoked_keys": []})
    assert scene.run(real=False).ok
    assert scene.desk.world.ledger.posts == []
    assert not Job.objects.exists()


@pytest.mark.flow
@pytest.mark.django_db
def test_a_run_that_was_killed_is_gone_on_with_and_sends_no_second_time(scene: Scene) -> None:
    run = scene.begin()
    watch = stage.Watch(run, outside=scene.outside)
    assert watch.go_on(for_s=0) is False
    run.refresh_from_db()
    assert run.job_id is not None
    # It died before it had noted its job, says this row; the job's token knows better.
    SmokeRun.objects.filter(pk=run.pk).update(job_id=None, lease_until=scene.desk.clock.now() + timedelta(seconds=60))  # fmt: skip
    assert lifecycle.take(run_id=run.pk, now=scene.desk.clock.now()) is None
    scene.desk.clock.advance(61)
    again = lifecycle.take(run_id=run.pk, now=scene.desk.clock.now())
    assert again is not None
    stage.Watch(again, outside=scene.outside).go_on()
    again.refresh_from_db()
    assert again.ok is True
    assert again.job_id == run.job_id
    assert ProviderTask.objects.count() == len(scene.desk.world.ledger.posts) == 1


@pytest.mark.flow
@pytest.mark.django_db
def test_a_job_that_no_lane_takes_is_taken_back(scene: Scene) -> None:
    outside = replace(scene.outside, sleep=scene.desk.clock.advance)
    run = scene.begin()
    stage.Watch(run, outside=outside).go_on()
    run.refresh_from_db()
    assert failed(run) == ["waiting"]
    assert job_of(run).state == JobState.CANCELLED
    assert scene.desk.world.ledger.posts == []


@pytest.mark.django_db
def test_an_account_has_one_daily_run_a_day_over_all_processes(settings: Settings) -> None:
    settings.PROVIDER_KEYS = {"polza": "pza_daily"}
    settings.SMOKE_DAILY = ()
    now = timezone.now()
    assert not stage.due(now)
    settings.SMOKE_DAILY = ("polza", "fal")  # fal has no key
    assert stage.due(now)
    most = stage.most_of("polza")
    assert most == registry.adapter("polza").default_price * Decimal("1.5")
    run = stage.begin("polza", real=True, most=most, daily=True)
    assert run is not None
    assert stage.begin("polza", real=True, most=most, daily=True) is None
    assert not stage.due(now)  # somebody is at it
    lifecycle.let_go(run_id=run.pk)
    assert stage.due(now)
    lifecycle.finish(run, checks=[], now=now)
    assert not stage.due(now)
    assert stage.due(now + timedelta(days=1))


@pytest.mark.flow
@pytest.mark.django_db
def test_the_minute_s_ring_begins_the_daily_run_and_goes_on_with_it(
    scene: Scene, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SMOKE_DAILY = ("polza",)
    monkeypatch.setattr(stage, "Outside", lambda: scene.outside)
    assert import_string(stage.WORK) is tasks.work_smoke
    assert tasks.work_smoke() == "at 1"
    (run,) = SmokeRun.objects.all()
    assert (run.day is None, run.ok) == (False, True)
    assert tasks.work_smoke() == "at 0"
    assert len(scene.desk.world.ledger.posts) == 1


@pytest.mark.django_db
def test_the_panel_shows_what_a_run_found(settings: Settings) -> None:
    settings.PROVIDER_KEYS = {"polza": "pza_shown"}
    account = factories.account(NOW, fingerprint=registry.fingerprint("pza_shown"))
    reader = Client()
    reader.force_login(factories.staff(Role.VIEWER))
    found = [rules.Check("status", ok=False, finding="new_status_word", data={"words": "<brewing>"})]  # fmt: skip
    for ok, checks, words in ((True, [], "passed"), (None, [], "not run"), (False, found, "&lt;brewing&gt;")):  # fmt: skip
        SmokeRun.objects.create(account=account, at=NOW, ended_at=NOW, real=True, ok=ok, checks=rules.plain(checks))  # fmt: skip
        page = reader.get("/admin/providers/providerstate/").content.decode()
        assert "Smoke" in page
        assert words in page
        SmokeRun.objects.all().delete()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--provider", "nobody"], 2, "unknown provider"),
        (["--provider", "fal"], 2, "No key"),
        (["--max-cost", "much"], 2, "no amount"),
        (["--max-cost", "1"], 2, "say which"),
        (["--real", "--provider", "polza"], 3, "No worker"),
    ],
)
def test_the_command_refuses_before_it_has_asked_anybody(
    settings: Settings, arguments: list[str], code: int, words: str
) -> None:
    settings.PROVIDER_KEYS = {"polza": "pza_a", "openrouter": "sk-or-a", "fal": ""}
    with pytest.raises(CommandError, match=words) as refused:
        call_command("smoke", *arguments)
    assert refused.value.returncode == code
    assert not SmokeRun.objects.exists()
