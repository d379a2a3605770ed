"""The panel of providers: who may press what, what each press does, what is asked first, and what the markup holds."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.admin import panel as pages
from jobs.admin import provider_verbs as verbs
from jobs.clock import clock
from jobs.panel import Money, Outcomes
from jobs.roles import Role
from providers import registry
from providers.models import Account, ProviderEvent, ProviderState, QuotaWindow, Target
from providers.sandbox.server import running_sandbox
from tests import factories

pytestmark = pytest.mark.django_db

KEY = "pza_test"
PAGE = "/admin/providers/providerstate/"
OPERATORS = {"probe", "topped-up", "unblock", "resume", "pause", "block"}
OWNERS = OPERATORS | {
    "open", "limit", "add-window", "change-window", "drop-window", "silence", "unsilence",
}  # fmt: skip
MAY: dict[Role, set[str]] = {Role.VIEWER: set(), Role.OPERATOR: OPERATORS, Role.OWNER: OWNERS}


@pytest.fixture(autouse=True)
def _key(settings: Any) -> None:
    settings.PROVIDER_KEYS = {"polza": KEY}


@pytest.fixture
def account() -> Account:
    return factories.account(clock.now(), fingerprint=registry.fingerprint(KEY))


def client(role: Role = Role.OWNER, **values: Any) -> Client:
    made = Client(**values)
    made.force_login(factories.staff(role))
    return made


def url(account: Account, verb: str, **query: str) -> str:
    address = reverse("admin:providers_providerstate_do", args=[account.pk, verb])
    return f"{address}?{urlencode(query)}" if query else address


def page(by: Client, address: str = PAGE) -> str:
    response = by.get(address)
    assert response.status_code == 200, address
    return response.content.decode()


def down(account: Account, **values: Any) -> ProviderState:
    now = clock.now()
    return factories.provider_state(
        now, "down", account=account, gate="open", cause="failures", opened_at=now, next_try_at=now + timedelta(hours=1),
        **values,
    )  # fmt: skip


def quota(account: Account, **values: Any) -> ProviderState:
    now = clock.now()
    return factories.provider_state(
        now, "quota_exhausted", account=account, block="quota_exhausted", blocked_until=now + timedelta(hours=9), **values
    )  # fmt: skip


# --- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_each_verb_is_open_to_its_roles_only(role: Role, account: Account) -> None:
    """The page and the POST, whatever buttons were shown."""
    window = QuotaWindow.objects.create(account=account, seconds=60, most=5)
    by = client(role)
    known = {verb.name for verb in (*verbs.OF_PLACE, *verbs.OF_WINDOW)}
    assert known == OWNERS
    for name in [*sorted(known - {"topped-up", "drop-window"}), "drop-window"]:
        address = url(account, name, window=str(window.seconds))
        allowed = name in MAY[role]
        assert (by.get(address).status_code == 200) is allowed, (role, name, "GET")
        assert (by.post(address, {}).status_code in {200, 302}) is allowed, (role, name, "POST")
    assert (by.get(url(account, "topped-up")).status_code == 200) is ("topped-up" in MAY[role])
    if role is not Role.OWNER:
        assert QuotaWindow.objects.filter(pk=window.pk).exists()
    if role is Role.VIEWER:
        assert by.post(url(account, "topped-up")).status_code == 403
        assert not ProviderState.objects.exists()
        assert not ProviderEvent.objects.exists()


def test_people_are_shown_the_buttons_they_may_use(account: Account) -> None:
    factories.target(stopped_at=clock.now(), stopped_reason="no such model")
    QuotaWindow.objects.create(account=account, seconds=60, most=5)
    quota(account)
    shown = {role: set(re.findall(r"/do/\d+/([a-z-]+)/", page(client(role)))) for role in Role}
    assert shown[Role.VIEWER] == set()
    assert shown[Role.OPERATOR] == {"topped-up", "unblock", "pause", "block"}
    assert shown[Role.OWNER] == shown[Role.OPERATOR] | {
        "open", "limit", "add-window", "change-window", "drop-window", "silence",
    }  # fmt: skip


def test_who_may_not_view_providers_sees_no_panel(account: Account) -> None:
    nobody = Client()
    nobody.force_login(factories.staff())
    assert nobody.get(PAGE).status_code == 403
    assert nobody.get(url(account, "pause")).status_code == 403
    assert Client().get(PAGE).status_code == 302


def test_a_post_without_its_token_changes_nothing(account: Account) -> None:
    by = client(enforce_csrf_checks=True)
    for name in ("pause", "silence"):
        assert by.post(url(account, name), {}).status_code == 403
    assert not ProviderEvent.objects.exists()
    assert 'name="csrfmiddlewaretoken"' in page(by, url(account, "pause"))
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page(by, PAGE))
    assert token is not None
    assert by.post(url(account, "silence"), {"csrfmiddlewaretoken": token[1]}).status_code == 302
    assert Account.objects.get().alerts_silenced


def test_asking_by_get_changes_nothing(account: Account) -> None:
    QuotaWindow.objects.create(account=account, seconds=60, most=5)
    factories.target()
    quota(account)
    by = client()
    for name in OWNERS:
        by.get(url(account, name, window="60"))
        by.get(url(account, name, window="60", reason="x", until="2099-01-01T00:00"))
    assert not ProviderEvent.objects.exists()
    assert QuotaWindow.objects.count() == 1


# --- what each press does ---------------------------------------------------------------------------------------------


def test_an_operator_pauses_a_provider_and_lets_it_go_on(account: Account) -> None:
    by = client(Role.OPERATOR)
    assert by.post(url(account, "pause"), {"reason": "too dear"}).status_code == 302
    row = ProviderState.objects.get()
    assert (row.state, row.reason) == ("paused", "too dear")
    told = page(by)
    assert "paused by staff" in told
    assert "too dear" in told
    refused = by.post(url(account, "pause"), {"reason": ""})
    assert refused.status_code == 200
    assert "It is paused already." in refused.content.decode()
    assert "Waiting jobs are sent" in page(by, url(account, "resume"))
    assert by.post(url(account, "resume")).status_code == 302
    row.refresh_from_db()
    assert row.state == "available"


def test_one_model_is_blocked_until_a_time_by_the_clock_of_the_desk(account: Account) -> None:
    model = factories.target("google/a model & more").model
    by = client(Role.OPERATOR)
    address = url(account, "block", model=model)
    assert "google/a model &amp; more" in page(by, address)
    past = by.post(address, {"until": "2020-01-01T10:00", "reason": ""})
    assert "That moment is past." in past.content.decode()
    assert by.post(address, {"until": "soon"}).status_code == 200
    tomorrow = timezone.localtime() + timedelta(days=1)
    by.post(address, {"until": f"{tomorrow:%Y-%m-%dT%H:%M}", "reason": "holiday"})
    row = ProviderState.objects.get()
    assert (row.model, row.block, row.reason) == (model, "blocked", "holiday")
    assert row.blocked_until == tomorrow.replace(second=0, microsecond=0)
    assert by.post(url(account, "unblock", model=model)).status_code == 302
    row.refresh_from_db()
    assert row.blocked_until is None


def test_a_probe_is_asked_for_with_one_press(account: Account) -> None:
    row = down(account)
    by = client(Role.OPERATOR)
    assert f'<form method="post" action="{url(account, "probe")}"' in page(by)
    assert by.post(url(account, "probe")).status_code == 302
    row.refresh_from_db()
    assert row.next_try_at is not None
    assert row.next_try_at <= clock.now()
    assert "down, being checked" in page(by)
    assert "Nothing is to be tried" in by.post(url(account, "probe")).content.decode()


def test_an_owner_opens_a_stopped_target_and_sets_its_limit(account: Account) -> None:
    target = factories.target(stopped_at=clock.now(), stopped_reason="no such model")
    by = client()
    assert by.post(url(account, "open", model=target.model)).status_code == 302
    assert by.post(url(account, "limit", model=target.model), {"most": "4"}).status_code == 302
    target.refresh_from_db()
    assert (target.open, target.max_in_flight) == (True, 4)
    same = by.post(url(account, "limit", model=target.model), {"most": "4"})
    assert "That is its limit already." in same.content.decode()
    kinds = ProviderEvent.objects.order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["target_opened", "limits_changed"]


def test_quota_windows_are_added_changed_and_dropped(account: Account) -> None:
    by = client()
    more = {"resets": "rolling", "zone": "UTC"}
    add = url(account, "add-window")
    by.post(add, {"most": "50", "length": "86400", **more})
    by.post(add, {"most": "7", "length": "once", **more})
    by.post(add, {"most": "9", "length": "other", "seconds": "10800", **more})
    assert set(QuotaWindow.objects.values_list("seconds", "most")) == {
        (86_400, 50), (None, 7), (10_800, 9),
    }  # fmt: skip
    assert (
        "Say how long." in by.post(add, {"most": "9", "length": "other", **more}).content.decode()
    )
    fixed = by.post(add, {"most": "9", "length": "60", "resets": "fixed", "zone": "UTC"})
    assert "needs its length and its anchor" in fixed.content.decode()
    mars = by.post(add, {"most": "9", "length": "60", "resets": "rolling", "zone": "Mars/<b>x"})
    assert "“Mars/&lt;b&gt;x” is no time zone." in mars.content.decode()
    told = page(by)
    for words in ("0 of 50", "50 left", "0 of 7", "7 more fit", "in 3 h"):
        assert words in told
    by.post(url(account, "change-window", window="once"), {"most": "8", **more})
    assert QuotaWindow.objects.get(seconds__isnull=True).most == 8
    assert "at once" in page(by, url(account, "drop-window", window="once"))
    by.post(url(account, "drop-window", window="once"))
    assert not QuotaWindow.objects.filter(seconds__isnull=True).exists()
    assert ProviderEvent.objects.filter(kind="limits_changed").count() == 5


def test_alerts_are_silenced_and_sent_again_by_one_press(account: Account) -> None:
    by = client()
    assert by.post(url(account, "silence")).status_code == 302
    assert "alerts silenced" in page(by)
    assert by.post(url(account, "unsilence")).status_code == 302
    assert not Account.objects.get().alerts_silenced


@pytest.mark.flow
def test_topped_up_is_decided_by_the_balance(account: Account, settings: Any) -> None:
    factories.target()
    row = quota(account)
    by = client(Role.OPERATOR)
    assert "which costs nothing" in page(by, url(account, "topped-up"))
    with running_sandbox(balance=3) as sandbox:
        settings.PROVIDER_BASE_URLS = {"polza": sandbox.api_url}
        assert "too little" in by.post(url(account, "topped-up")).content.decode()
        assert ProviderState.objects.filter(pk=row.pk, blocked_until__isnull=False).exists()
    with running_sandbox(balance=300) as sandbox:
        settings.PROVIDER_BASE_URLS = {"polza": sandbox.api_url}
        assert by.post(url(account, "topped-up")).status_code == 302
    assert ProviderState.objects.get(pk=row.pk).blocked_until is None
    assert Account.objects.get().balance == Decimal(300)
    settings.PROVIDER_BASE_URLS = {"polza": "http://127.0.0.1:9/api/v1"}
    assert "could not be read" in by.post(url(account, "topped-up")).content.decode()


@pytest.mark.parametrize(
    ("verb", "query"),
    [
        ("pause", {"model": "nothing"}),
        ("change-window", {}),
        ("change-window", {"window": "60"}),
        ("drop-window", {"window": "99999999999999999999"}),
        ("drop-window", {"window": "x"}),
        ("nonsense", {}),
    ],
)
def test_what_is_not_there_answers_404(account: Account, verb: str, query: dict[str, str]) -> None:
    by = client()
    assert by.get(url(account, verb, **query)).status_code == 404
    assert by.post(url(account, verb, **query)).status_code == 404
    assert by.post("/admin/providers/providerstate/do/999999/pause/").status_code == 404


# --- the stock pages beside it ----------------------------------------------------------------------------------------


def test_a_targets_own_page_saves_its_limit_with_its_event(account: Account) -> None:
    target = factories.target()
    by = client()
    values = {"price": "9.5", "max_in_flight": "2", "enabled": "on", "capabilities": "{}"}
    address = reverse("admin:providers_target_change", args=[target.pk])
    assert by.post(address, values).status_code == 302
    target.refresh_from_db()
    assert (target.price, target.max_in_flight) == (Decimal("9.5"), 2)
    assert ProviderEvent.objects.get().data == {"before": None, "after": 2}
    refused = by.post(address, values | {"max_in_flight": "0", "price": "1"}, follow=True)
    assert "Pause it instead" in refused.content.decode()
    target.refresh_from_db()
    assert target.max_in_flight == 2


def test_stopped_targets_are_opened_with_their_event(account: Account) -> None:
    stopped = factories.target(stopped_at=clock.now(), stopped_reason="no such model")
    factories.target("fine")
    client().post(
        reverse("admin:providers_target_changelist"),
        {"action": "open_again", "_selected_action": [one.pk for one in Target.objects.all()]},
    )
    stopped.refresh_from_db()
    assert stopped.open
    assert [event.kind for event in ProviderEvent.objects.all()] == ["target_opened"]


def test_windows_are_listed_and_not_edited_past_their_verb(account: Account) -> None:
    window = QuotaWindow.objects.create(account=account, seconds=604_800, most=5)
    by = client()
    assert "a week" in page(by, reverse("admin:providers_quotawindow_changelist"))
    by.post(reverse("admin:providers_quotawindow_change", args=[window.pk]), {"most": "9"})
    window.refresh_from_db()
    assert window.most == 5
    assert by.get(reverse("admin:providers_quotawindow_add")).status_code == 403


# --- the page ---------------------------------------------------------------------------------------------------------


def test_states_are_told_by_icon_and_words_and_not_by_colour_alone(account: Account) -> None:
    factories.target()
    quota(account, reason="weekly limit reached")
    told = page(client())
    assert re.search(
        r"tone-amber\"><svg[^>]*><use href=\"[^\"]*#hourglass\"></use></svg><span>quota exhausted until",
        told,
    )
    assert "weekly limit reached" in told


def test_an_account_that_nothing_was_sent_with_is_unknown_yet(account: Account) -> None:
    assert "unknown yet" in page(client())
    now = clock.now()
    factories.accepted(factories.job(now), now, account=account)
    Account.objects.exclude(pk=account.pk).filter(tasks__isnull=True).delete()
    assert "unknown yet" not in page(client())


def test_the_panel_without_any_account_says_what_it_is() -> None:
    told = page(client())
    assert "No account has been used yet" in told
    assert "No outage, no used-up quota, no block so far." in told


def test_the_page_holds_no_inline_script_or_style_and_costs_the_same_for_many(
    account: Account,
) -> None:
    now = clock.now()
    by = client()

    def more(number: int) -> None:
        target = factories.target(f"m{number}")
        QuotaWindow.objects.create(account=account, model=target.model, seconds=60, most=5)
        factories.accepted(factories.job(now, target=target), now, account=account, failed_at=now)
        quota(account, model=target.model)
        ProviderEvent.objects.create(account=account, model=target.model, at=now, kind="opened")

    more(0)
    with CaptureQueriesContext(connection) as few:
        told = page(by)
    for number in range(1, 20):
        more(number)
    with CaptureQueriesContext(connection) as many:
        page(by)
    assert len(many) == len(few) <= 22
    for text in (told, page(by, url(account, "add-window")), page(by, url(account, "block"))):
        assert not re.search(r"<script(?![^>]*\bsrc=)", text)
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", text)


def test_the_live_parts_come_without_the_frame_and_the_history(account: Account) -> None:
    ProviderEvent.objects.create(account=account, at=clock.now(), kind="opened")
    by = client()
    whole = page(by)
    live = by.get(PAGE, headers={"X-Live": "1"}).content.decode()
    part = f'data-live="account-{account.pk}"'
    assert part in whole
    assert part in live
    assert 'id="episodes"' in whole
    assert 'id="episodes"' not in live
    assert "<html" not in live


def test_older_episodes_are_a_press_away(account: Account) -> None:
    now = clock.now()
    for number in range(60):
        at = now - timedelta(minutes=100 - number)
        ProviderEvent.objects.create(
            account=account, at=at, kind="opened", data={"reason": f"outage-{number};"}
        )
        ProviderEvent.objects.create(account=account, at=at, kind="closed")
    by = client()
    first = page(by)
    assert "outage-10;" in first
    assert "outage-9;" not in first
    found = re.search(r'rel="next" href="(\?older=\d+)#episodes"', first)
    assert found is not None
    second = page(by, PAGE + found[1])
    assert "outage-9;" in second
    assert "outage-10;" not in second
    for junk in ("x", "-1", "9" * 40):
        assert by.get(f"{PAGE}?older={junk}").status_code == 200


# --- bars and rounding ------------------------------------------------------------------------------------------------


def test_the_bar_is_as_long_as_its_numbers_say() -> None:
    bar = pages.outcome_bar(Outcomes(succeeded=6, failed=1, unknown=1))
    assert [(one.x, one.width, one.tone, one.count) for one in bar] == [
        ("0.00", "75.00", "green", 6), ("75.00", "12.50", "red", 1), ("87.50", "12.50", "violet", 1),
    ]  # fmt: skip
    assert pages.outcome_bar(Outcomes()) == []


@pytest.mark.parametrize(
    ("balance", "words"),
    [(None, ""), (0, "about 0 s"), (10, "about 1 d"), (25, "about 2 days"), (9_999_999, "more than a year")],
)  # fmt: skip
def test_how_long_money_lasts_is_said_as_roughly_as_it_is_known(
    balance: int | None, words: str
) -> None:
    money = Money(
        balance=None if balance is None else Decimal(balance),
        currency="RUB",
        spent={"RUB": Decimal(10)},
    )
    assert pages.lasts(money) == words


# --- polling plans ----------------------------------------------------------------------------------------------------


def test_a_model_with_enough_generations_says_how_it_is_asked_about(account: Account) -> None:
    now = clock.now()
    for seconds in range(200, 240):
        task = factories.done(now).tasks.get()
        task.__class__.objects.filter(pk=task.pk).update(
            accepted_at=now - timedelta(seconds=seconds), completed_at=now
        )
    assert re.search(r"about \d+ polls a generation, noticed after \d", page(client()))


def test_a_model_without_them_says_nothing_of_it(account: Account) -> None:
    factories.done(clock.now())
    assert "polls a generation" not in page(client())
