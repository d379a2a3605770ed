"""The outbox of alerts on real rows: noted with the change, sorted, leased, capped, recorded; the minute's look; the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ

from jobs import alert_rules, results, tasks
from jobs.admin import notices
from jobs.alert_rules import AlertKind, AlertState, Matter
from jobs.alerts import channels, look, send, words
from jobs.clock import clock
from jobs.lifecycle import alerts, providers
from jobs.lifecycle.alerts import Try
from jobs.lifecycle.errors import Refused
from jobs.models import Alert, AlertChannel, Case, ProviderTask
from jobs.roles import Role
from jobs.states import CaseKind, JobState
from providers import health, registry
from providers.contract import Charge, FailureClass, Refusal
from providers.health import Cause, Health, Read
from providers.models import Account, ProviderEvent, ProviderState
from tests import factories
from tests.two import Two, two_connections

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
URL = "json://127.0.0.1:9/hook-with-a-secret"
ONE = {"one": "json"}
BOTH = {"one": "json", "two": "mailto"}

pytestmark = pytest.mark.django_db


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def account(provider: str = "polza") -> Account:
    """The one that the settings' key belongs to."""
    return factories.account(NOW, provider=provider)


@pytest.fixture(autouse=True)
def _key(settings: Any) -> None:
    settings.PROVIDER_KEYS = {**settings.PROVIDER_KEYS, "polza": "pza_test"}


def used() -> Account:
    return factories.account(NOW, fingerprint=registry.fingerprint("pza_test"))


def change(new: Health, *, of: Account | None = None, model: str = "", now: datetime = NOW, **data: Any) -> None:  # fmt: skip
    with transaction.atomic():
        row = providers.locked_row((of or account()).pk, model, now=now)
        providers.write_row(row, new, now=now, data=data)


def go_down(seconds: float = 0, *, of: Account | None = None, model: str = "", reason: str = "HTTP 503: oops", **data: Any) -> None:  # fmt: skip
    new = health.opened(Health(), cause=Cause.FAILURES, now=at(seconds), reason=reason)
    change(new, of=of, model=model, now=at(seconds), **data)


def come_up(seconds: float, *, of: Account | None = None, model: str = "") -> None:
    row = ProviderState.objects.get(account=of or account(), model=model)
    change(health.closed(row.health(), now=at(seconds)), of=of, model=model, now=at(seconds))


def sort() -> None:
    alerts.sort_out(in_use={row.pk for row in Account.objects.all()})


def claim(seconds: float, *, most: int = 20, to: Any = ("one",)) -> list[int]:
    sort()
    return [row.pk for row in alerts.claim(channels=to, most_per_hour=most, now=at(seconds))]


def record(
    ids: list[int], seconds: float, *, error: str = "", to: dict[str, str] | None = None
) -> None:
    to = to or ONE
    tries = [Try(alert_id=pk, channel=key, error=error) for pk in ids for key in to]
    alerts.record(alert_ids=ids, tries=tries, channels=to, now=at(seconds))


def send_all(seconds: float) -> list[int]:
    """What a working channel hears in the end."""
    sent = []
    while ids := claim(seconds):
        record(ids, seconds)
        sent += ids
    return sent


def told() -> list[tuple[str, str]]:
    return list(Alert.objects.order_by("pk").values_list("kind", "state"))


def one(**filters: Any) -> Alert:
    return Alert.objects.get(**filters)


# --- noted with the change --------------------------------------------------------------------------------------------


def test_an_outage_and_its_end_are_noted_in_the_transaction_of_the_change() -> None:
    go_down(connect=True)
    come_up(75)
    down, up = Alert.objects.order_by("pk")
    assert (down.kind, down.at, down.episode_at, down.data) == (
        AlertKind.OUTAGE, NOW, NOW, {"reason": "HTTP 503: oops", "connect": True},
    )  # fmt: skip
    assert (up.kind, up.at, up.episode_at) == (AlertKind.RECOVERED, at(75), NOW)
    with transaction.atomic():
        go_down(100)
        transaction.set_rollback(True)
    assert Alert.objects.count() == 2


@pytest.mark.condition("R89")
def test_an_outage_of_eight_hours_is_one_row_closed_on_recovery() -> None:
    go_down()
    send_all(1)
    row = ProviderState.objects.get()
    for _look in range(40):
        moment = row.next_try_at
        assert moment is not None
        new = health.after_free_read(row.health(), Read.BAD, now=moment, reason="HTTP 503: still")
        change(new, now=moment)
        row.refresh_from_db()
    assert ProviderEvent.objects.filter(kind="still_down").count() == 40
    assert told() == [("outage", "sent")]
    come_up(30_000)
    assert len(send_all(30_000)) == 1
    assert one(kind="outage").over_at == at(30_000)
    assert told() == [("outage", "sent"), ("recovered", "sent")]


def test_three_hundred_quota_and_rate_refusals_note_nothing() -> None:
    target = factories.target()
    refusals = [
        Refusal(
            failure=[FailureClass.QUOTA_EXHAUSTED, FailureClass.RATE_LIMITED][n % 2], charge=Charge.NONE,
            reason=f"HTTP 429: {n}", wait_s=60.0 + n,
        )
        for n in range(300)
    ]  # fmt: skip
    own = used()
    providers.note_refusals(
        refusals=[(own.pk, target.pk, target.model, refusal) for refusal in refusals], now=NOW
    )
    assert ProviderEvent.objects.exists()
    alerts.note_matters(matters=look.matters(now=at(1)), now=at(1))
    assert told() == []


def test_a_rejected_key_is_one_alert_however_many_sends_it_fails() -> None:
    target = factories.target()
    refusal = Refusal(failure=FailureClass.UNAUTHORIZED, charge=Charge.NONE, reason="HTTP 401: no")
    for number in range(5):
        providers.note_refusals(
            refusals=[(account().pk, target.pk, target.model, refusal)], now=at(number)
        )
    assert told() == [("key_rejected", "new")]
    assert len(send_all(10)) == 1


def test_a_staff_probe_that_fails_again_is_the_same_outage() -> None:
    go_down()
    send_all(1)
    row = ProviderState.objects.get()
    change(health.try_now(row.health(), now=at(5)), now=at(5))
    row.refresh_from_db()
    change(health.after_free_read(row.health(), Read.NONE, now=at(6)), now=at(6))
    row.refresh_from_db()
    again = health.opened(row.health(), cause=Cause.FAILURES, now=at(9), reason="HTTP 503")
    change(again, now=at(9))
    assert told() == [("outage", "sent")]


def test_the_database_holds_one_alert_an_episode_and_one_open_matter() -> None:
    values: dict[str, Any] = {"account": account(), "at": NOW, "not_before": NOW}
    Alert.objects.create(kind="outage", episode_at=NOW, **values)
    for kind, episode_at in (("outage", NOW), ("balance", None)):
        Alert.objects.get_or_create(kind=kind, episode_at=episode_at, defaults=values, account=values["account"])  # fmt: skip
        with pytest.raises(IntegrityError), transaction.atomic():
            Alert.objects.create(kind=kind, episode_at=episode_at, **values)
    Alert.objects.filter(kind="balance").update(over_at=NOW)
    Alert.objects.create(kind="balance", **values)
    desk = {"kind": "overdue", "at": NOW, "not_before": NOW}
    Alert.objects.create(**desk)
    with pytest.raises(IntegrityError), transaction.atomic():
        Alert.objects.create(**desk)


# --- two processes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two(transactional_db: None) -> Iterator[Two]:
    with two_connections() as pair:
        yield pair


def test_of_two_processes_that_see_the_account_fail_one_notes_it(two: Two) -> None:
    factories.provider_state(NOW, sends_failed=4)

    def fail() -> None:
        with transaction.atomic():
            row = providers.locked_row(account().pk, "", now=NOW)
            bad = health.Outcome(dimension=health.Dimension.SEND, good=False, at=NOW)
            providers.write_row(
                row, health.after(row.health(), [bad], tallies={}, now=NOW), now=NOW
            )

    race = two.race(fail, fail)
    assert race.waited
    assert told() == [("outage", "new")]


def test_noting_a_model_waits_for_no_process_that_notes_its_account(two: Two) -> None:
    """Else the two would hold each other up, in the transactions that record answers."""
    account()
    race = two.race(go_down, lambda: go_down(model="m"))
    assert not race.waited
    assert told() == [("outage", "new")] * 2


def take(most: int = 20) -> list[int]:
    """Claim alone: one transaction."""
    return [row.pk for row in alerts.claim(channels=["one"], most_per_hour=most, now=at(1))]


def test_of_two_senders_one_takes_the_alert(two: Two) -> None:
    go_down()
    sort()
    race = two.race(take, take)
    assert race.waited
    assert (len(race.first.value), race.second.value) == (1, [])


def test_a_sender_that_is_killed_before_its_commit_has_taken_nothing(two: Two) -> None:
    go_down()
    sort()
    race = two.race(take, take, dies=True)
    assert race.first.killed
    assert len(race.second.value) == 1


# --- leases, tries, order ---------------------------------------------------------------------------------------------


def test_a_sender_that_died_in_the_middle_is_replaced_once_and_never_again() -> None:
    go_down()
    (pk,) = claim(1)
    assert claim(60) == []  # its lease is alive
    assert claim(1 + alerts.LEASE_S) == [pk]
    assert claim(1 + 3 * alerts.LEASE_S) == []
    row = one(pk=pk)
    assert (row.state, row.error) == ("given_up", "the sender died at it twice")


def test_what_got_through_is_recorded_also_after_the_lease() -> None:
    go_down()
    (pk,) = claim(1)
    claim(1 + alerts.LEASE_S)
    claim(1 + 3 * alerts.LEASE_S)
    record([pk], 900)  # the first sender was only frozen
    assert one(pk=pk).state == "sent"


def test_a_channel_that_failed_is_tried_again_later_and_only_that_one() -> None:
    go_down()
    (pk,) = claim(1, to=BOTH)
    tries = [Try(alert_id=pk, channel="one"), Try(alert_id=pk, channel="two", error="refused")]
    alerts.record(alert_ids=[pk], tries=tries, channels=BOTH, now=at(2))
    row = one(pk=pk)
    assert (row.state, row.sent_to, row.error, row.sent_at) == ("due", ["one"], "mailto: refused", at(2))  # fmt: skip
    assert claim(20, to=BOTH) == []
    assert claim(33, to=BOTH) == [pk]
    alerts.record(alert_ids=[pk], tries=[Try(alert_id=pk, channel="two")], channels=BOTH, now=at(34))  # fmt: skip
    row.refresh_from_db()
    assert (row.state, row.sent_to, row.error, row.sent_at) == ("sent", ["one", "two"], "", at(2))


def test_an_alert_that_no_channel_takes_is_given_up_in_the_end() -> None:
    go_down()
    seconds = 1.0
    for _try in range(alert_rules.MOST_TRIES):
        ids = claim(seconds)
        assert len(ids) == 1
        record(ids, seconds, error="refused")
        seconds += 3601
    assert claim(seconds) == []
    assert one().state == "given_up"


def test_the_end_waits_until_the_beginning_has_got_through() -> None:
    go_down()
    ids = claim(1)
    record(ids, 1, error="refused")
    come_up(10)
    assert claim(12) == []
    ids = claim(40)
    record(ids, 40)
    assert [one(pk=pk).kind for pk in ids] == ["outage"]
    assert [one(pk=pk).kind for pk in claim(41)] == ["recovered"]


def test_without_channels_rows_are_kept_and_none_is_sent_later() -> None:
    go_down()
    assert claim(1, to=()) == []
    assert told() == [("outage", "no_channel")]
    assert claim(2) == []


# --- the cap ----------------------------------------------------------------------------------------------------------


def outages(count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        go_down(of=factories.account(NOW, fingerprint=f"key{number}"))


def test_beyond_the_cap_alerts_are_collected_into_one_summary() -> None:
    outages(8)
    sent = claim(1, most=5)
    record(sent, 1)
    assert len(sent) == 5
    outages(2, first=8)
    assert claim(2, most=5) == []
    (summary,) = claim(2 + alert_rules.SUMMARY_HOLD_S, most=5)
    row = one(pk=summary)
    assert words.title(row) == "and 5 more alerts"
    assert words.lines(row) == ["Polza is down"] * 5
    record([summary], 70)
    assert told() == [("outage", "sent")] * 5 + [("outage", "folded")] * 3 + [("more", "sent")] + [
        ("outage", "folded")] * 2  # fmt: skip


def test_a_second_summary_within_the_hour_waits_for_its_end() -> None:
    outages(2)
    record(claim(1, most=1), 1)
    (first,) = claim(100, most=1)
    record([first], 100)
    outages(1, first=2)
    assert claim(200, most=1) == []
    assert claim(3600, most=1) == []
    (second,) = claim(3701, most=1)
    assert one(pk=second).kind == "more"


def test_an_hour_later_there_is_room_again_and_a_repeated_try_takes_none() -> None:
    outages(1)
    ids = claim(1, most=1)
    record(ids, 1, error="refused")
    record(claim(100, most=1), 100)
    outages(1, first=1)
    assert len(claim(3602, most=1)) == 1


def test_two_senders_together_keep_the_cap(two: Two) -> None:
    """The second has an outage more to tell, which is noted while the first fills the hour."""

    def one_more() -> list[int]:
        go_down(of=factories.account(NOW, fingerprint="late"))
        sort()
        return take(most=3)

    outages(3)
    sort()
    race = two.race(lambda: take(most=3), one_more)
    assert (len(race.first.value), race.second.value) == (3, [])
    assert told().count(("outage", "folded")) == 1


# --- silence ----------------------------------------------------------------------------------------------------------


def test_the_switch_is_written_down_and_stops_what_waits() -> None:
    person = factories.staff(Role.OWNER)
    go_down()
    sort()
    providers.silence_alerts(account_id=account().pk, silenced=True, actor=person, now=at(2))
    come_up(70)
    assert send_all(80) == []
    assert told() == [("outage", "silenced"), ("recovered", "silenced")]
    with pytest.raises(Refused):
        providers.silence_alerts(account_id=account().pk, silenced=True, actor=person, now=at(3))
    providers.silence_alerts(account_id=account().pk, silenced=False, actor=person, now=at(90))
    go_down(100)
    assert len(send_all(101)) == 1
    kinds = ProviderEvent.objects.filter(kind__startswith="alerts_").values_list("kind", "actor")
    assert list(kinds) == [("alerts_silenced", person.pk), ("alerts_unsilenced", person.pk)]


def test_another_accounts_alerts_go_on() -> None:
    other = factories.account(NOW, fingerprint="other")
    providers.silence_alerts(account_id=account().pk, silenced=True, actor=None, now=NOW)
    go_down(of=other)
    assert len(send_all(1)) == 1


# --- the minute's look ------------------------------------------------------------------------------------------------


def kinds(now: datetime = NOW) -> list[str]:
    return [matter.kind.value for matter in look.matters(now=now)]


def test_a_healthy_desk_has_nothing_for_a_person() -> None:
    used()
    factories.target()
    assert kinds() == []


@pytest.mark.parametrize(
    ("reason", "tells"),
    [
        ("HTTP 402: payment required", True),
        ("HTTP 403: insufficient balance", True),
        ("HTTP 400: Недостаточно средств на балансе", True),
        ("HTTP 429: daily limit of 500 requests reached", False),
        ("HTTP 429: weekly quota exceeded", False),
        ("HTTP 402: Исчерпан лимит расходов ключа на неделю", False),
        ("HTTP 429: لقد استنفدت حصتك اليومية", False),
        ("HTTP 400: INSUFFICIENT_BALANCE", True),
        ("", False),
    ],
)
def test_a_quota_block_is_for_a_person_only_where_money_is_missing(
    reason: str, tells: bool
) -> None:
    factories.provider_state(
        NOW, "quota_exhausted", account=used(), block="quota_exhausted", blocked_until=at(3600), reason=reason
    )  # fmt: skip
    assert kinds() == (["balance"] if tells else [])
    assert kinds(at(3601)) == []


def test_a_balance_below_the_cheapest_target_is_for_a_person_until_something_is_accepted() -> None:
    own = used()
    factories.target(price=Decimal(8))
    Account.objects.update(balance=Decimal("7.99"), balance_currency="RUB", balance_at=NOW)
    assert kinds(at(1)) == ["balance"]
    send = factories.accepted(factories.job(NOW, JobState.ACTIVE), at(600), next_poll_at=at(700))
    ProviderTask.objects.filter(pk=send.pk).update(account=own)
    assert kinds(at(601)) == []
    Account.objects.update(balance=Decimal(8), balance_at=at(700))
    assert kinds(at(701)) == []


def test_an_account_whose_key_is_no_longer_set_is_nobodys_matter() -> None:
    factories.account(NOW, fingerprint="an old key")
    Account.objects.update(balance=Decimal(0), balance_currency="RUB", balance_at=NOW)
    assert kinds(at(1)) == []


def test_cases_past_their_due_time_are_one_matter() -> None:
    for kind, seconds in (
        (CaseKind.ORPHAN, 60),
        (CaseKind.POISON, 61),
        (CaseKind.CONFLICT, 120),
        (CaseKind.RESTORE, 9000),
    ):
        factories.case(kind, NOW, due_at=at(seconds), opened_at=NOW)
    Case.objects.filter(due_at=at(120)).update(resolved_at=at(1), resolution="done")
    assert kinds(at(59)) == []
    (matter,) = look.matters(now=at(200))
    assert (matter.kind, matter.data["count"]) == (AlertKind.OVERDUE, 2)


def made(*, watch_until: datetime, **values: Any) -> ProviderTask:
    return factories.accepted(
        factories.job(NOW, JobState.ACTIVE), NOW,
        **{"completed_at": at(-3600), "next_fetch_at": at(10), "watch_until": watch_until} | values,
    )  # fmt: skip


def test_a_result_that_is_not_here_a_day_before_it_expires_is_for_a_person() -> None:
    made(watch_until=at(25 * 3600))
    made(watch_until=at(3600), completed_at=at(-60))  # just made: the fetch is under way
    made(watch_until=at(3600), stored_at=at(-30), next_fetch_at=None)
    assert "expiring" not in kinds()
    made(watch_until=at(3600))
    (matter,) = [m for m in look.matters(now=NOW) if m.kind is AlertKind.EXPIRING]
    assert matter.data == {"count": 1, "first_at": at(3600).isoformat()}
    assert "expiring" not in kinds(at(3601 + 24 * 3600))  # too late: the desk has it


def test_a_result_whose_case_is_open_still_expires_and_one_that_a_person_settled_does_not() -> None:
    task = made(watch_until=at(3600), next_fetch_at=None)
    case = factories.case(CaseKind.FETCH_FAILED, NOW, of=task.job, by=task, due_at=at(9000))
    assert "expiring" in kinds()
    Case.objects.filter(pk=case.pk).update(resolved_at=NOW, resolution="done")
    assert "expiring" not in kinds()


def test_stuck_rows_are_told_once_they_stay_so_for_ninety_seconds() -> None:
    made(watch_until=at(90 * 3600), next_fetch_at=at(-200))
    alerts.note_matters(matters=look.matters(now=NOW), now=NOW)
    assert claim(60) == []
    alerts.note_matters(matters=look.matters(now=at(60)), now=at(60))
    alerts.note_matters(matters=look.matters(now=at(120)), now=at(120))
    (pk,) = claim(120)
    record([pk], 120)
    alerts.note_matters(matters=look.matters(now=at(180)), now=at(180))
    assert told() == [("stuck", "sent")]
    ProviderTask.objects.update(next_fetch_at=at(240))
    alerts.note_matters(matters=look.matters(now=at(240)), now=at(240))
    assert one().over_at == at(240)


def test_a_matter_of_a_silenced_account_is_kept_and_not_sent() -> None:
    matter = Matter(kind=AlertKind.BALANCE, account_id=account().pk, silenced=True)
    alerts.note_matters(matters=[matter], now=NOW)
    assert told() == [("balance", "silenced")]


# --- the queue --------------------------------------------------------------------------------------------------------


def calls() -> int:
    return sum(message.func() == alerts.SEND for message in OrmQ.objects.all())


def test_the_name_of_the_senders_task_leads_to_it() -> None:
    module, _dot, name = alerts.SEND.rpartition(".")
    assert module == tasks.__name__
    assert getattr(tasks, name) is tasks.send_alerts


def test_the_sender_is_called_at_the_commit_and_only_where_somebody_is_told(
    settings: Any, django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        go_down()
    assert calls() == 0
    settings.ALERT_URLS = (URL,)
    with django_capture_on_commit_callbacks(execute=True):
        come_up(70)
        assert calls() == 0
    assert calls() == 1


def test_the_minutes_ring_looks_sorts_and_calls_the_sender(settings: Any) -> None:
    settings.ALERT_URLS = (URL,)
    now = clock.now()
    factories.case(CaseKind.ORPHAN, now, due_at=now - timedelta(seconds=1))
    assert tasks.ring_each_minute() == "nothing to do"
    assert told() == [("overdue", "due")]
    assert calls() == 1


def test_a_look_that_fails_is_written_down_and_rings_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_values: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(look, "matters", broken)
    factories.target()
    assert tasks.ring_each_minute() == "nothing to do"
    assert "alerts.no_look" in caplog.text


def test_the_ring_sweeps_each_hour_and_outlives_a_broken_disk(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    settings.MEDIA_ROOT = tmp_path
    swept = []

    def sweep() -> int:
        swept.append(1)
        raise OSError("disk")

    monkeypatch.setattr(results, "sweep", sweep)
    monkeypatch.setattr(tasks, "_swept_at", float("-inf"))
    tasks.ring_each_minute()
    tasks.ring_each_minute()
    assert len(swept) == 1


# --- words ------------------------------------------------------------------------------------------------------------


def message_of(**filters: Any) -> words.Message:
    return send.in_words([Alert.objects.get(**filters)])[0]


def test_a_message_says_what_why_and_where_to_look(settings: Any) -> None:
    settings.PUBLIC_URL = "https://desk.example/studio"
    go_down(reason="HTTP 503: <b>overloaded</b>\n\x07 and api_key=sk-abcdefghijklmnop1234 at that")
    go_down(5, model="m")
    sort()
    message = message_of(lead=None)
    assert message.title == "Polza is down"
    assert "<b>overloaded</b>" in message.body  # plain text: the channel escapes it
    assert "sk-abcdef" not in message.body
    assert "\x07" not in message.body
    assert "With it: Polza: m." in message.body
    assert message.body.endswith(
        "\nhttps://desk.example/studio" + reverse("admin:providers_providerstate_changelist")
    )
    come_up(70)
    come_up(65 + 60 * 60, model="m")
    sort()
    message = message_of(kind="recovered", state="due")
    assert message.title == "Polza is available again"
    assert message.body.splitlines()[0] == "It was down for 1 h 1 min."


def test_every_kind_has_words_a_page_and_a_look_of_its_own() -> None:
    data = {
        "balance": "0.10", "currency": "RUB", "count": 3, "oldest_at": NOW.isoformat(), "first_at": NOW.isoformat(),
    }  # fmt: skip
    titles = set()
    for kind in AlertKind:
        row = Alert.objects.create(kind=kind, account=account(), at=NOW, not_before=NOW, data=data)
        (message,) = send.in_words([row])
        assert message.body.count("\n") >= 1 or kind in {AlertKind.MORE, AlertKind.RECOVERED}
        assert "/admin" in message.body
        titles.add(message.title)
    assert len(titles) == len(AlertKind)


def test_data_of_another_version_or_by_hand_does_not_stop_the_others() -> None:
    row = Alert.objects.create(kind="overdue", at=NOW, not_before=NOW, data={"oldest_at": 7})
    (message,) = send.in_words([row])
    assert message.title == "0 cases on the desk are overdue"


# --- pages ------------------------------------------------------------------------------------------------------------


def page(client: Client, name: str = "alert", *args: int) -> str:
    view = "change" if args else "changelist"
    response = client.get(reverse(f"admin:jobs_{name}_{view}", args=args))
    assert response.status_code == 200
    return response.content.decode()


@pytest.fixture
def viewer(client: Client) -> Client:
    client.force_login(factories.staff(Role.VIEWER))
    return client


def test_viewers_see_alerts_and_nobody_changes_them(viewer: Client) -> None:
    go_down(reason="<script>alert(1)</script>", model="<i>model</i>")
    sort()
    record(claim(1), 1, error="<img src=x>")
    for text in (page(viewer), page(viewer, "alert", one().pk)):
        assert "Polza: &lt;i&gt;model&lt;/i&gt; is down" in text
        assert "json: &lt;img src=x&gt;" in text
        assert "<script>alert(1)" not in text
    assert "&lt;script&gt;" in page(viewer, "alert", one().pk)
    root = Client()
    root.force_login(factories.staff(superuser=True))
    for name in ("alert", "alertchannel"):
        assert root.get(reverse(f"admin:jobs_{name}_add")).status_code == 403
    before = one().state
    root.post(reverse("admin:jobs_alert_change", args=[one().pk]), {"state": "dropped"})
    assert one().state == before


def test_the_list_of_alerts_asks_no_query_per_row(
    viewer: Client, django_assert_max_num_queries: Any
) -> None:
    outages(30)
    with django_assert_max_num_queries(20):
        page(viewer)


def test_a_failing_channel_is_on_every_page_until_it_works_or_is_no_longer_set(
    viewer: Client, settings: Any
) -> None:
    settings.ALERT_URLS = (URL,)
    (channel,) = channels.channels()
    go_down()
    sort()
    ids = claim(1, to=(channel.key,))
    record(ids, 1, error="<b>refused</b>", to={channel.key: "json"})
    for url in (reverse("admin:index"), reverse("admin:jobs_job_changelist")):
        text = viewer.get(url).content.decode()
        assert "An alert channel fails" in text
        assert "&lt;b&gt;refused&lt;/b&gt;" in text
        assert "hook-with-a-secret" not in text
    record(claim(60, to=(channel.key,)), 90, error="refused", to={channel.key: "json"})
    assert AlertChannel.objects.get().failing_since == at(1)
    record(ids, 200, to={channel.key: "json"})
    assert "An alert channel fails" not in viewer.get(reverse("admin:index")).content.decode()
    AlertChannel.objects.update(failing_since=NOW)
    assert notices.failing_channels()
    settings.ALERT_URLS = ()
    assert notices.failing_channels() == []


def test_the_page_of_channels_names_none_of_their_addresses(viewer: Client, settings: Any) -> None:
    settings.ALERT_URLS = (URL,)
    (channel,) = channels.channels()
    alerts.note_channels(
        tries=[Try(alert_id=0, channel=channel.key)], channels={channel.key: channel.scheme}, now=NOW
    )  # fmt: skip
    text = page(viewer, "alertchannel")
    assert f"json …{channel.key[-6:]}" in text
    assert "secret" not in text
    assert "secret" not in repr(channel)
    assert site.is_registered(AlertChannel)


def test_only_the_owner_may_silence() -> None:
    for role, may in ((Role.VIEWER, False), (Role.OPERATOR, False), (Role.OWNER, True)):
        assert factories.staff(role).has_perm("providers.silence_account") is may


def test_rows_hold_no_address_and_are_json(settings: Any) -> None:
    """Whatever a channel says about itself."""
    settings.ALERT_URLS = (URL,)
    go_down()
    ids = claim(1)
    record(
        ids, 1, error="could not reach json://x:hook-with-a-secret@host token=hook-with-a-secret"
    )
    row = Alert.objects.values().get()
    assert "hook-with-a-secret" not in json.dumps(row, default=str).replace(
        "x:hook-with-a-secret@host", ""
    )
    assert row["state"] == AlertState.DUE
