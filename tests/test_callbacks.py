"""Callbacks: signatures, addresses, the schedule and the dealing, all without a database."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime, timedelta

import pytest

from jobs import callbacks
from jobs.lifecycle.callbacks import (
    MOST_AT_FAILING,
    MOST_AT_ONE,
    MOST_FAILING,
    MOST_OF_TENANT,
    Receiver,
    deal,
)
from providers.outside import Allowed

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOBODY = Allowed()


# --- signatures -------------------------------------------------------------------------------------------------------


def test_the_signature_is_that_of_the_standards_own_vector() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    told = callbacks.headers(
        message="msg_p5jXN8AQM9LWM0D4loKWxJek", body=b'{"test": 2432232314}', keys=[key],
        now=datetime.fromtimestamp(1614265330, UTC),
    )  # fmt: skip
    assert told["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert told["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    assert told["webhook-timestamp"] == "1614265330"


def test_each_tenant_and_each_generation_has_a_secret_of_its_own() -> None:
    found = {
        callbacks.secret(tenant_id=tenant, generation=generation)
        for tenant in (1, 2, 11)
        for generation in (1, 2, 11)
    }
    assert len(found) == 9
    assert all(len(one) == 32 for one in found)
    text = callbacks.secret_text(callbacks.secret(tenant_id=1, generation=1))
    assert base64.b64decode(text.removeprefix("whsec_")) == callbacks.secret(tenant_id=1, generation=1)  # fmt: skip


@pytest.mark.parametrize(
    ("hours", "signs"), [(0, [2, 1]), (23.9, [2, 1]), (24, [2])], ids=["at once", "a day", "later"]
)
def test_for_a_day_after_a_change_the_secret_before_signs_too(
    hours: float, signs: list[int]
) -> None:
    found = callbacks.secrets(
        tenant_id=7, generation=2, rotated_at=NOW, now=NOW + timedelta(hours=hours)
    )
    assert list(found) == [callbacks.secret(tenant_id=7, generation=number) for number in signs]


# --- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://Shop.Example/Hook?a=B#part", "https://shop.example/Hook?a=B"),
        ("https://shop.example", "https://shop.example/"),
        ("  https://shop.example:8443/x ", "https://shop.example:8443/x"),
        ("HTTPS://пример.рф/", "https://xn--e1afmkfd.xn--p1ai/"),
        ("https://[2001:4860:4860::8888]/", "https://[2001:4860:4860::8888]/"),
    ],
)
def test_an_address_is_kept_in_one_form(given: str, kept: str) -> None:
    assert callbacks.check_url(given, allowed=NOBODY) == kept


@pytest.mark.parametrize(
    "url",
    [
        "", "shop.example", "ftp://shop.example/", "javascript:alert(1)", "https://", "https:///x", "https://shop.example:0/",
        "https://shop.example:99999/", "https://user@shop.example/", "https://user:pass@shop.example/", "http://shop.example/",
        "https://shop.example/a b", "https://shop.example\\@evil.example/", "https://shop.example/\nx", "https://127.0.0.1/",
        "https://[::1]/", "https://[::ffff:10.0.0.1]/", "https://169.254.169.254/latest/", "https://localhost/",
        "https://db.internal/", "https://[::1", "https://" + "a" * 64 + "é.example/", "https://shop.example/" + "a" * 500,
    ],
)  # fmt: skip
def test_what_is_no_address_of_the_open_internet_is_refused(url: str) -> None:
    with pytest.raises(callbacks.BadUrlError):
        callbacks.check_url(url, allowed=NOBODY)


@pytest.mark.parametrize("url", ["http://crm.internal/x", "http://10.1.2.3:9000/", "https://10.1.2.3/"])  # fmt: skip
def test_what_the_settings_allow_is_taken_plain_http_too(url: str) -> None:
    allowed = Allowed.of(["crm.internal", "10.1.0.0/16"])
    assert callbacks.check_url(url, allowed=allowed) == url
    with pytest.raises(callbacks.BadUrlError):
        callbacks.check_url("http://10.2.2.3/", allowed=allowed)


def test_a_setting_that_is_no_host_and_no_network_is_noticed() -> None:
    for wrong in ("10.0.0.1/8", "http://crm", "crm:80", "-crm", "a b"):
        with pytest.raises(ValueError, match=r"."):
            Allowed.of([wrong])


def test_the_query_of_an_address_is_not_shown() -> None:
    assert callbacks.shown("https://shop.example/hook?token=abc") == "https://shop.example/hook?…"


# --- the schedule -----------------------------------------------------------------------------------------------------


def walk(seed: int) -> list[float]:
    """Seconds since the first try of each further one, where all of them fail at once."""
    found: list[float] = []
    rng, now, failures = random.Random(seed), NOW, 0
    while True:
        failures += 1
        at = callbacks.next_try(failures=failures, since=NOW, now=now, told_s=None, rng=rng)
        if at is None:
            return found
        assert at > now
        now = at
        found.append((at - NOW).total_seconds())


@pytest.mark.parametrize("seed", range(20))
def test_tries_go_on_for_a_day_and_never_pause_for_more_than_an_hour(seed: int) -> None:
    tries = walk(seed)
    assert tries[-1] == callbacks.TRY_FOR_S
    assert 30 < len(tries) < 120
    pauses = [after - before for before, after in zip([0.0, *tries], tries, strict=False)]
    assert max(pauses) <= callbacks.MOST_STEP_S
    assert tries[0] <= callbacks.FIRST_STEP_S


def test_two_that_failed_together_are_not_tried_together() -> None:
    assert walk(1)[:5] != walk(2)[:5]


def test_a_receiver_that_asks_for_time_gets_it_up_to_an_hour() -> None:
    rng = random.Random(1)
    for told, least in ((600.0, 600.0), (1e9, 3600.0), (0.0, 1.0)):
        at = callbacks.next_try(failures=1, since=NOW, now=NOW, told_s=told, rng=rng)
        assert at is not None
        assert least <= (at - NOW).total_seconds() <= max(least, 10.0)


# --- who goes first ---------------------------------------------------------------------------------------------------


def test_one_receivers_flood_leaves_places_to_everybody_else() -> None:
    receivers = [Receiver(1, "https://a", 0, False), Receiver(2, "https://b", 0, False)]
    due = {(1, "https://a"): list(range(100, 108)), (2, "https://b"): [200]}
    assert deal(receivers, due, room=2) == [100, 200]


def test_a_tenant_with_many_hosts_takes_no_more_than_its_share() -> None:
    receivers = [Receiver(1, f"https://{n}", 0, False) for n in range(60)]
    due = {(1, f"https://{n}"): [n] for n in range(60)}
    assert len(deal(receivers, due, room=64)) == MOST_OF_TENANT


def test_dead_receivers_together_leave_most_places_free() -> None:
    receivers = [Receiver(n, "https://dead", 0, True) for n in range(100)]
    receivers.append(Receiver(200, "https://well", 0, False))
    due = {(n, "https://dead"): [n] for n in range(100)} | {(200, "https://well"): [7000]}
    taken = deal(receivers, due, room=64)
    assert 7000 in taken
    assert len(taken) == MOST_FAILING + 1


def test_a_receiver_has_room_for_several_and_for_one_while_it_fails() -> None:
    assert Receiver(1, "https://a", 3, False).room == MOST_AT_ONE - 3
    assert Receiver(1, "https://a", 1, True).room == MOST_AT_FAILING - 1
