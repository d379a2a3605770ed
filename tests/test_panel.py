"""What is told of providers: one function behind page, dashboard and command; and the history of their troubles."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.html import escape

from jobs import episodes, panel, rooms
from jobs.clock import clock
from jobs.episodes import Event, What, fold
from jobs.lifecycle import limits, providers
from jobs.models import Hold
from jobs.panel import Closed, Outcomes
from jobs.roles import Role
from jobs.states import JobState
from providers import registry
from providers.models import Account, ProviderEvent, ProviderState, QuotaWindow, Target, in_words
from providers.sandbox.server import running_sandbox
from providers.word import Phrase, Word
from tests import factories

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = "pza_test"
OTHER = "openai/gpt-5-image"
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _key(settings: Any) -> None:
    settings.PROVIDER_KEYS = {"polza": KEY}


def account(now: datetime = NOW) -> Account:
    return factories.account(now, fingerprint=registry.fingerprint(KEY))


def read(now: datetime = NOW) -> panel.AccountView:
    shown = panel.read(now=now).accounts
    return next(one for one in shown if one.key_set)


def model(name: str = factories.MODEL, now: datetime = NOW) -> panel.ModelView:
    return next(one for one in read(now).models if one.model == name)


def run(*words: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    out = io.StringIO()
    try:
        call_command("providers", *words, stdout=out)
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    except CommandError as error:
        return error.returncode, str(error)
    return 0, out.getvalue()


def state(now: datetime, phrase: Phrase, **values: Any) -> ProviderState:
    """A row of the account in the state that reads like that."""
    later, sooner = now + 30 * MINUTE, now - MINUTE
    told: dict[Phrase, tuple[str, dict[str, Any]]] = {
        Phrase.AVAILABLE: ("available", {}),
        Phrase.RAMPING: ("available", {"ramp": 2, "closed_at": sooner}),
        Phrase.THROTTLED: ("throttled", {"block": "throttled", "blocked_until": later}),
        Phrase.QUOTA_EXHAUSTED: ("quota_exhausted", {"block": "quota_exhausted", "blocked_until": later}),
        Phrase.BLOCKED: ("blocked", {"block": "blocked", "blocked_until": later}),
        Phrase.PAUSED: ("paused", {}),
        Phrase.DOWN: ("down", {"gate": "open", "cause": "failures", "next_try_at": later}),
        Phrase.KEY_REJECTED: ("down", {"gate": "open", "cause": "key", "next_try_at": later}),
        Phrase.CHECKING: ("down", {"gate": "open", "cause": "failures", "next_try_at": sooner}),
        Phrase.NEXT_IS_PROBE: ("down", {"gate": "half_open", "cause": "failures"}),
        Phrase.PROBING: ("down", {"gate": "half_open", "cause": "failures", "probe_until": later,
                                  "probe_id": "00000000-0000-4000-8000-000000000001"}),
    }  # fmt: skip
    word, columns = told[phrase]
    return factories.provider_state(now, word, account=account(now), **columns | values)


# --- the words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phrase", list(Phrase))
def test_page_dashboard_command_and_engine_say_the_same_words(phrase: Phrase) -> None:
    now = clock.now()
    factories.target()
    state(now, phrase, reason="HTTP 503 <b>said</b>")
    sent = factories.accepted(factories.job(now), now, account=account(now))
    told = rooms.told(
        account_id=account(now).pk, model=sent.target.model, late=now - 15 * MINUTE, now=now
    )
    assert told.phrase is phrase
    words = in_words(told, now=now)
    shown = read(now)
    assert {shown.words(now), *(one.words(now) for one in shown.models)} == {words}
    assert shown.told.word is told.word
    client = Client()
    client.force_login(factories.staff(superuser=True))
    for name in ("admin:index", "admin:providers_providerstate_changelist"):
        page = client.get(reverse(name)).content.decode()
        assert f"<span>{words}</span>" in page, name
        assert "<b>said</b>" not in page
    code, text = run("list")
    assert code == 0
    assert f"{shown.name}: {words}" in text
    assert f"{sent.target.name}: {words}" in text
    [row] = [row for row in json.loads(run("--json")[1])["accounts"] if row["key_set"]]
    assert (row["words"], row["word"], row["state"]) == (words, told.word.value, phrase.value)
    assert row["models"][0]["words"] == words


def test_a_block_that_is_over_reads_available_without_any_job() -> None:
    factories.target()
    state(NOW, Phrase.QUOTA_EXHAUSTED, reason="weekly limit reached")
    before = ProviderState.objects.values().get()
    assert (read(NOW).told.word, model().told.word) == (Word.QUOTA_EXHAUSTED,) * 2
    later = NOW + timedelta(minutes=30)
    told = read(later).told
    assert (told.word, told.reason, told.since) == (Word.AVAILABLE, "", later)
    assert model(now=later).told.word is Word.AVAILABLE
    assert ProviderState.objects.values().get() == before


def test_a_models_trouble_is_its_own_and_the_accounts_is_everybodys() -> None:
    factories.target()
    factories.target(OTHER)
    state(NOW, Phrase.QUOTA_EXHAUSTED, model=OTHER)
    assert (read().told.word, model().told.word) == (Word.AVAILABLE,) * 2
    assert model(OTHER).told.word is Word.QUOTA_EXHAUSTED
    state(NOW, Phrase.DOWN)
    assert {one.told.word for one in read().models} == {Word.DOWN}
    assert model(OTHER).own.gate == "closed"


def test_a_full_window_reads_exhausted_and_tells_what_is_left_and_when_it_starts_anew() -> None:
    factories.target()
    for seconds, most in ((86_400, 2), (60, 9), (None, 4)):
        QuotaWindow.objects.create(account=account(), seconds=seconds, most=most)
    for ago in (1, 2):
        factories.accepted(
            factories.job(NOW), NOW, account=account(), armed_at=NOW - ago * 4 * MINUTE
        )
    shown = read()
    by_length = {one.seconds: one for one in shown.windows}
    assert (by_length[86_400].used, by_length[86_400].left) == (2, 0)
    assert by_length[86_400].resets_at == NOW - 8 * MINUTE + timedelta(seconds=86_400 + 1.2)
    assert (by_length[60].used, by_length[None].used) == (0, 2)
    assert shown.told.word is Word.QUOTA_EXHAUSTED
    assert (shown.in_flight, shown.limit) == (2, 4)


def test_a_stopped_target_and_one_switched_off_say_so_whatever_their_provider_is() -> None:
    factories.target("wrong", stopped_at=NOW - MINUTE, stopped_reason="no such model")
    factories.target("off", enabled=False)
    account()
    wrong, off = model("wrong"), model("off")
    assert (wrong.closed, wrong.closed_at, wrong.closed_reason) == (
        Closed.STOPPED, NOW - MINUTE, "no such model"
    )  # fmt: skip
    with translation.override("en"):
        assert (wrong.words(NOW), off.words(NOW)) == ("stopped", "switched off by staff")
    assert sum(panel.read(now=NOW).counts().values()) == 0
    assert "stopped, since" in run()[1]


def test_open_targets_are_counted_by_their_word_where_the_key_is_set() -> None:
    factories.target()
    factories.target(OTHER)
    state(NOW, Phrase.QUOTA_EXHAUSTED, model=OTHER)
    Account.objects.create(provider="polza", fingerprint="older", created_at=NOW)
    counts = panel.read(now=NOW).counts()
    assert counts == {Word.AVAILABLE: 1, Word.QUOTA_EXHAUSTED: 1, Word.DOWN: 0}


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_the_last_hours_outcomes_are_counted_where_they_were_sent() -> None:
    other = factories.target(OTHER)
    ago: dict[str, Any] = {"account": account(), "armed_at": NOW - 5 * MINUTE, "blocks_send": False}

    def job(**values: Any) -> Any:
        return factories.job(NOW, JobState.ACTIVE, **values)

    for at in (NOW - 5 * MINUTE, NOW - 70 * MINUTE):
        factories.accepted(job(), NOW, **ago | {"armed_at": at}, completed_at=at, stored_at=at)
    factories.accepted(job(), NOW, **ago, completed_at=NOW)
    factories.task(job(), NOW, **ago, refusal_class="rejected", refused_at=NOW)
    factories.accepted(job(target=other), NOW, **ago, failed_at=NOW)
    factories.lost(job(target=other), NOW, **ago)
    factories.task(job(), NOW, **ago, unsent_at=NOW)
    factories.accepted(job(), NOW, **ago)
    assert model().outcomes == Outcomes(succeeded=2, refused=1)
    assert model(OTHER).outcomes == Outcomes(failed=1, unknown=1)
    assert read().outcomes == Outcomes(succeeded=2, refused=1, failed=1, unknown=1)
    assert read().in_flight == 1


def test_the_balance_lasts_as_long_as_the_last_days_spending_says() -> None:
    Account.objects.filter(pk=account().pk).update(
        balance=Decimal(300), balance_currency="RUB", balance_at=NOW
    )
    assert read().money.lasts_s is None
    for cost, hours in ((Decimal("7.5"), 1), (None, 2), (Decimal(500), 25)):
        at = NOW - timedelta(hours=hours)
        factories.accepted(
            factories.job(NOW, JobState.ACTIVE), NOW, account=account(), armed_at=at, completed_at=at, stored_at=at,
            cost_poll=cost, blocks_send=False,
        )  # fmt: skip
    money = read().money
    spent = money.spent["RUB"]
    # The one whose price was not told counts with its estimate if it counts as charged at all.
    assert spent == Decimal("7.5") + factories.PRICE
    assert money.lasts_s == pytest.approx(float(300 / spent) * 86_400)


def test_an_empty_balance_lasts_no_time_and_another_currency_tells_nothing() -> None:
    day = {"RUB": Decimal(8)}
    assert panel.Money(balance=Decimal(-3), currency="RUB", spent=day).lasts_s == 0
    assert panel.Money(balance=Decimal(9), currency="USD", spent=day).lasts_s is None


def test_the_keys_last_accepted_use_and_the_brake_are_told() -> None:
    target = factories.target(price=Decimal(1))
    early = factories.accepted(
        factories.job(NOW), NOW, account=account(), armed_at=NOW - 9 * MINUTE
    )
    factories.task(
        factories.job(NOW), NOW, account=account(), armed_at=NOW - MINUTE, refusal_class="unauthorized", refused_at=NOW
    )  # fmt: skip
    assert read().accepted_at == early.accepted_at
    assert not model().braked
    factories.lost(factories.job(NOW), NOW, account=account(), estimated_cost=Decimal(20))
    assert (model(target.model).at_risk, model().braked) == (Decimal(20), True)


def test_a_hundred_rows_cost_as_many_questions_as_one() -> None:
    factories.target()
    state(NOW, Phrase.AVAILABLE)
    QuotaWindow.objects.create(account=account(), seconds=60, most=5)
    with CaptureQueriesContext(connection) as few:
        panel.read(now=NOW)
    for number in range(30):
        factories.target(f"m{number}")
        other = Account.objects.create(provider="polza", fingerprint=f"{number}", created_at=NOW)
        factories.provider_state(NOW, account=other, model=f"m{number}")
        QuotaWindow.objects.create(account=other, seconds=60, most=5)
        factories.accepted(factories.job(NOW), NOW, account=other)
    with CaptureQueriesContext(connection) as many:
        panel.read(now=NOW)
    assert len(many) == len(few) <= 11
    with CaptureQueriesContext(connection) as short:
        panel.read(now=NOW, counts=False)
    assert len(short) == len(many) - 5


# --- the history ------------------------------------------------------------------------------------------------------


def told(*said: tuple[str, float] | tuple[str, float, dict[str, Any]]) -> list[Event]:
    """(kind, minute, more) each."""
    events = []
    for number, (kind, minute, *more) in enumerate(said, start=1):
        values: dict[str, Any] = {"model": ""} | (more[0] if more else {})
        events.append(
            Event(id=number, account_id=1, provider="polza", fingerprint="f0", at=NOW + minute * MINUTE, kind=kind, **values)
        )  # fmt: skip
    return events


def spans(events: list[Event], *, now: float = 600) -> list[tuple[What, float, float | None]]:
    """(what, from, to) in minutes, oldest first."""

    def minute(at: datetime | None) -> float | None:
        return None if at is None else (at - NOW) / MINUTE

    folded = fold(events, now=NOW + now * MINUTE)[::-1]
    return [(one.what, minute(one.start) or 0, minute(one.end)) for one in folded]


def until(minute: float) -> dict[str, Any]:
    return {"until": NOW + minute * MINUTE}


def test_an_outage_lasts_from_opening_to_closing_however_often_it_was_tried() -> None:
    events = told(("opened", 0), ("key_rejected", 5), ("closed", 30), ("opened", 40))
    assert spans(events) == [(What.OUTAGE, 0, 30), (What.OUTAGE, 40, None)]


def test_a_block_that_grows_is_one_and_one_that_runs_out_ends_at_its_time() -> None:
    events = told(
        ("quota_exhausted", 0, until(10)), ("quota_exhausted", 5, until(60)),
        ("quota_exhausted", 90, until(120)), ("unblocked", 100), ("blocked", 110, until(130)),
    )  # fmt: skip
    assert spans(events) == [
        (What.QUOTA, 0, 60), (What.QUOTA, 90, 100), (What.BLOCK, 110, 130),
    ]  # fmt: skip
    assert spans(events[:1], now=9) == [(What.QUOTA, 0, None)]


def test_a_block_of_another_kind_takes_over() -> None:
    events = told(("quota_exhausted", 0, until(50)), ("blocked", 20, until(90)))
    assert spans(events) == [(What.QUOTA, 0, 20), (What.BLOCK, 20, 90)]


def test_what_holds_at_one_model_does_not_end_what_holds_at_another() -> None:
    events = told(("opened", 0), ("opened", 1, {"model": "a"}), ("closed", 2, {"model": "a"}), ("paused", 3), ("closed", 4))  # fmt: skip
    assert spans(events) == [(What.OUTAGE, 0, 4), (What.OUTAGE, 1, 2), (What.PAUSE, 3, None)]


def test_an_end_without_a_beginning_is_no_episode() -> None:
    assert spans(told(("closed", 0), ("resumed", 1), ("unblocked", 2), ("target_opened", 3))) == []


def test_the_verbs_of_staff_and_machine_make_the_history_that_is_read_back() -> None:
    target, anna = factories.target(), factories.staff(name="anna")
    place: dict[str, Any] = {"account_id": account().pk, "model": target.model, "actor": anna}
    providers.pause(**place, now=NOW, reason="too dear")
    providers.resume(**place, now=NOW + 5 * MINUTE)
    providers.block_until(**place, until=NOW + 60 * MINUTE, now=NOW + 6 * MINUTE, reason="holiday")
    providers.unblock(**place, now=NOW + 16 * MINUTE)
    block, pause = episodes.page(now=NOW + 20 * MINUTE)[0]
    assert (pause.what, pause.cause, pause.by, pause.ended_by) == (
        What.PAUSE, "too dear", "anna", "anna"
    )  # fmt: skip
    assert (block.what, block.cause, block.model) == (What.BLOCK, "holiday", target.model)
    assert block.length(NOW + 20 * MINUTE) == 10 * MINUTE


def test_older_and_newer_pages_hold_every_episode_once_and_whole() -> None:
    made = []
    for number in range(120):
        at = NOW + number * MINUTE
        made.append(_event("opened", at))
        if number < 119:
            _event("closed", at + timedelta(seconds=30))
    seen, older = [], None
    for _page in range(3):
        told_now, older = episodes.page(now=NOW + 500 * MINUTE, older=older)
        seen += told_now
    assert older is None
    assert [one.id for one in seen] == [event.pk for event in reversed(made)]
    assert [one.end is None for one in seen] == [True] + [False] * 119


def test_the_end_of_an_episode_is_known_on_a_page_that_begins_before_it() -> None:
    first = _event("opened", NOW)
    second = _event("paused", NOW + MINUTE)
    _event("closed", NOW + 2 * MINUTE)
    [told_now], _older = episodes.page(now=NOW + 9 * MINUTE, older=second.pk)
    assert (told_now.id, told_now.end) == (first.pk, NOW + 2 * MINUTE)


def _event(kind: str, at: datetime) -> ProviderEvent:
    return ProviderEvent.objects.create(account=account(), kind=kind, at=at)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_pauses_blocks_and_lets_go_again() -> None:
    now = clock.now()
    target = factories.target()
    account(now)
    factories.staff(Role.OPERATOR, name="anna")
    code, text = run("pause", "polza", "--reason", "too dear", "--as", "anna")
    assert (code, "pause: done; paused by staff" in text) == (0, True)
    event = ProviderEvent.objects.get()
    assert (event.kind, event.actor and event.actor.get_username()) == ("paused", "anna")
    assert run("pause", "polza")[0] == 3
    assert run("resume", "polza")[0] == 0
    code, text = run("block", "polza", "--model", target.name, "--until", "+2h", "--json")
    told_now = json.loads(text)
    assert (code, told_now["done"], told_now["place"]) == (0, True, target.name)
    assert told_now["words"].startswith("blocked by staff until")
    assert ProviderState.objects.get(model=target.model).block == "blocked"
    assert run("unblock", "polza", "--model", target.model)[0] == 0
    code, text = run("unblock", "polza", "--model", target.model, "--json")
    assert (code, json.loads(text)["refused"]) == (3, "It is not blocked.")


def test_the_command_probes_what_is_down_only() -> None:
    now = clock.now()
    row = state(now, Phrase.DOWN)
    assert run("probe", "polza")[0] == 0
    row.refresh_from_db()
    assert row.next_try_at is not None
    assert row.next_try_at < now + MINUTE
    assert run("probe", "polza")[0] == 3


def test_the_command_sets_limits_opens_and_silences() -> None:
    target = factories.target(stopped_at=NOW, stopped_reason="no such model")
    account()
    name = ["--model", target.model]
    assert run("limit", "polza", *name, "--most", "3")[0] == 0
    assert run("limit", "polza", *name, "--window", "day", "--most", "50")[0] == 0
    assert run("limit", "polza", "--window", "once", "--most", "4")[0] == 0
    windows = QuotaWindow.objects.order_by("most").values_list("model", "seconds", "most")
    assert list(windows) == [("", None, 4), (target.model, 86_400, 50)]
    assert run("limit", "polza", "--window", "once", "--most", "none")[0] == 0
    assert QuotaWindow.objects.count() == 1
    assert run("open", "polza", *name)[0] == 0
    assert run("open", "polza", *name)[0] == 3
    target.refresh_from_db()
    assert (target.max_in_flight, target.open) == (3, True)
    assert run("silence", "polza")[0] == 0
    assert read(clock.now()).alerts_silenced
    assert run("silence", "polza", "--off")[0] == 0
    assert not read(clock.now()).alerts_silenced


@pytest.mark.parametrize(
    "words",
    [
        ("pause", "nobody"),
        ("pause", "polza", "--model", "nothing"),
        ("pause", "polza", "--as", "nobody"),
        ("block", "polza", "--until", "tomorrow"),
        ("block", "polza", "--until", "2026-02-31T25:00"),
        ("limit", "polza", "--most", "3"),
        ("limit", "polza", "--most", "-1", "--window", "day"),
        ("limit", "polza", "--most", "3", "--window", "0"),
        ("limit", "polza", "--most", "3", "--window", "day", "--anchor", "+1h", "--zone", "Mars/x"),
        ("open", "polza"),
        ("pause", "p0"),
    ],
)
def test_bad_input_ends_with_two_and_changes_nothing(words: tuple[str, ...]) -> None:
    factories.target()
    account()
    assert run(*words)[0] == 2
    assert not ProviderEvent.objects.exists()
    assert not QuotaWindow.objects.exists()


def test_an_account_is_meant_by_the_end_of_its_key_and_the_key_in_use_by_its_provider() -> None:
    mine = account()
    old = Account.objects.create(provider="polza", fingerprint="aaaa11112222", created_at=NOW)
    assert run("pause", "polza")[0] == 0
    assert ProviderState.objects.get().account == mine
    assert run("pause", "…112222")[0] == 0
    assert ProviderState.objects.filter(account=old, state="paused").exists()


def test_an_ambiguous_provider_is_asked_back(settings: Any) -> None:
    settings.PROVIDER_KEYS = {}
    for fingerprint in ("aaaa11112222", "bbbb11112222"):
        Account.objects.create(provider="polza", fingerprint=fingerprint, created_at=NOW)
    code, text = run("pause", "polza")
    assert code == 2
    assert "aaaa11112222" in text
    assert run("pause", "2222")[0] == 2


def test_the_command_lists_windows_money_and_the_key() -> None:
    now = clock.now()
    factories.target()
    Account.objects.filter(pk=account(now).pk).update(
        balance=Decimal(300), balance_currency="RUB", balance_at=now
    )
    limits.limit_window(account_id=account(now).pk, seconds=86_400, most=9, actor=None, now=now)
    factories.accepted(factories.job(now), now, account=account(now))
    text = run()[1]
    for words in ("1 of 9 in 1 d", "balance: ₽300.00", "key last accepted", "1/5 in flight"):
        assert words in text


@pytest.mark.flow
def test_topping_up_is_decided_by_a_free_read(settings: Any) -> None:
    now = clock.now()
    factories.target()
    state(now, Phrase.QUOTA_EXHAUSTED)
    with running_sandbox(balance=3) as sandbox:
        settings.PROVIDER_BASE_URLS = {"polza": sandbox.api_url}
        code, text = run("topped-up", "polza", "--json")
        assert code == 3
        assert "too little" in json.loads(text)["refused"]
        assert read(clock.now()).told.word is Word.QUOTA_EXHAUSTED
    with running_sandbox(balance=500) as sandbox:
        settings.PROVIDER_BASE_URLS = {"polza": sandbox.api_url}
        assert run("topped-up", "polza")[0] == 0
        assert read(clock.now()).told.word is Word.AVAILABLE
        sandbox.control("outage/start", kind="503")
        code, text = run("topped-up", "polza")
        assert (code, "could not be read: not told (HTTP 503)" in text) == (3, True)


def test_a_name_that_a_stranger_chose_is_escaped_on_the_panel() -> None:
    evil = "<script>alert(1)</script>"
    now = clock.now()
    factories.target(evil, stopped_at=now, stopped_reason=evil)
    state(now, Phrase.DOWN, reason=evil)
    state(now, Phrase.QUOTA_EXHAUSTED, model=f"{evil}gone", reason=evil)
    Account.objects.update(label=evil)
    ProviderEvent.objects.create(
        account=account(now), model=evil, at=now, kind="opened", data={"reason": evil}
    )
    Hold.objects.create(kind=Hold.Kind.RED_BUTTON, set_at=now, reason=evil)
    client = Client()
    client.force_login(factories.staff(superuser=True))
    for name in ("admin:index", "admin:providers_providerstate_changelist"):
        page = client.get(reverse(name)).content.decode()
        assert evil not in page, name
        assert escape(evil) in page, name
    assert Target.objects.get().model == evil
