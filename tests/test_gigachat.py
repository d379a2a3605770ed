"""The GigaChat adapter against every recorded shape of its answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pytest_django import Settings

from providers import http
from providers.adapters.gigachat import GigaChat
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Charge,
    FailureClass,
    FileRef,
    Kind,
    NoAnswer,
    NotToldError,
    Photo,
    Refusal,
    Request,
    Scope,
    Token,
    Verdict,
)

GIGACHAT: Adapter = GigaChat()
ACCOUNT = Account("gigachat", "https://giga.example/api/v1", "f00d", "bmFtZTpzZWNyZXQ=")
TASK = UUID("0194f000-0000-7000-8000-000000000001")
ROOT = Path(__file__).resolve().parent.parent
NOW = datetime(2026, 12, 1, tzinfo=UTC)
FILE = "b28fbd9e-8c3a-4a7e-9f10-1d4f0cbb2a77"
DRAWN = f'Вот: <img src="{FILE}" fuse="true"/> рыжий кот'


def answer(body: Any, status: int = 200) -> Answer:
    raw = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    return Answer(status, {}, raw)


def chat(content: str, finish: str = "stop") -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"total_tokens": 30}, "object": "chat.completion"}


def request(prompt: str = "рыжий кот", **more: Any) -> Request:
    return Request(**{"correlation_id": TASK, "model": "GigaChat", "kind": Kind.IMAGE, "prompt": prompt, **more})  # fmt: skip


def prompt_of(asked: Request) -> str:
    return str(GIGACHAT.submit(ACCOUNT, asked).json["messages"][0]["content"])


# --- token ------------------------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_by_a_form_and_the_key_opens_nothing_else() -> None:
    call = GIGACHAT.token(replace(ACCOUNT, options={"scope": "GIGACHAT_API_CORP"}))
    assert call is not None
    assert (call.method, call.form) == ("POST", {"scope": "GIGACHAT_API_CORP"})
    assert UUID(call.headers["rquid"]).version == 4
    assert GIGACHAT.authorisation(ACCOUNT) == {"authorization": "Basic bmFtZTpzZWNyZXQ="}
    assert GIGACHAT.authorisation(ACCOUNT, "t0k") == {"authorization": "Bearer t0k"}


@pytest.mark.parametrize(
    ("base_url", "options", "url"),
    [
        (GigaChat.default_base_url, {}, "https://ngw.devices.sberbank.ru:9443/api/v2/oauth"),
        ("http://127.0.0.1:1/gigachat/api/v1", {}, "http://127.0.0.1:1/gigachat/api/v2/oauth"),
        ("https://proxy.example/v1", {"oauth_url": "https://o.example/"}, "https://o.example/"),
    ],
)
def test_the_token_has_an_address_of_its_own(
    base_url: str, options: dict[str, str], url: str
) -> None:
    call = GIGACHAT.token(replace(ACCOUNT, base_url=base_url, options=options))
    assert call is not None
    assert call.url == url


def test_a_token_lives_until_the_moment_it_tells_a_day_at_most() -> None:
    ends = NOW + timedelta(minutes=30)
    for body in (
        {"access_token": "t", "expires_at": int(ends.timestamp() * 1000)},
        {"tok": "t", "exp": int(ends.timestamp())},
    ):
        assert GIGACHAT.read_token(answer(body), now=NOW) == Token("t", ends)
    for_ever = answer({"access_token": "t", "expires_at": 9_999_999_999_999})
    assert GIGACHAT.read_token(for_ever, now=NOW).expires_at == NOW + timedelta(days=1)


@pytest.mark.parametrize(
    "body",
    [
        {"access_token": "t"},
        {"access_token": 5, "expires_at": 1},
        {"access_token": "t", "expires_at": 1000},
        {"access_token": "t", "expires_at": 10**30},
        {"access_token": "t", "expires_at": True},
        [],
        b"<html>",
    ],
)
def test_what_holds_no_living_token_is_none(body: Any) -> None:
    with pytest.raises(ValueError, match=r"token|object"):
        GIGACHAT.read_token(answer(body), now=NOW)


# --- settings ---------------------------------------------------------------------------------------------------------

# An authority that nobody knows: made for this test, its key thrown away.
AUTHORITY = """-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUEHZAA9ndxNjMgtyTgPNJSjxW6fYwCgYIKoZIzj0EAwIw
IjEgMB4GA1UEAwwXQW4gYXV0aG9yaXR5IG9mIGl0cyBvd24wIBcNMjYxMjAxMDU0
OTEzWhgPMjEyNjExMDcwNTQ5MTNaMCIxIDAeBgNVBAMMF0FuIGF1dGhvcml0eSBv
ZiBpdHMgb3duMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEvmgV5+Dqi3erl0Kl
kM/HBZRhzpyRIUW8h23AbxjzOvfBU7kpSl1i+4uy2r/6ONTg2GJvLgOCdJdqgvuY
iEOhmqNTMFEwHQYDVR0OBBYEFDOzrh5NHZysX9CBRt2LHBhKP8pHMB8GA1UdIwQY
MBaAFDOzrh5NHZysX9CBRt2LHBhKP8pHMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZI
zj0EAwIDSAAwRQIhAMz8Tyucq/UcHHBicxckJQnQU2L/NbUNnJa3p8nl/67vAiAd
SJPwKjYRVRcxRjMDPJ+qZY+ceXOjgbZkNu6xrQEXGg==
-----END CERTIFICATE-----
"""
_TOLD = (
    "import environ; environ.Env.read_env = lambda *_: None;"
    "from studio import settings as s; print(s.PROVIDER_OPTIONS['gigachat'], s.PROVIDER_OPTIONS['giga_b'],"
    " [str(path) for path in s.PROVIDER_CA_BUNDLES])"
)


def started(**environment: str) -> subprocess.CompletedProcess[str]:
    plain = {
        "DEMO": "1",
        "DATABASE_URL": "postgres://nobody@127.0.0.1/none",
        "PATH": os.environ["PATH"],
    }
    return subprocess.run(
        [sys.executable, "-c", _TOLD], cwd=ROOT, env=plain | environment, capture_output=True, text=True, check=False
    )  # fmt: skip


def test_an_authority_that_settings_add_is_trusted_by_every_connection(
    tmp_path: Path, settings: Settings
) -> None:
    def known() -> bool:
        return any("An authority of its own" in str(one) for one in http._trusted().get_ca_certs())

    assert not known()
    bundle = tmp_path / "authority.pem"
    bundle.write_text(AUTHORITY)
    settings.PROVIDER_CA_BUNDLES = (bundle,)
    assert known()


def test_each_account_has_options_under_its_own_name_and_a_bad_bundle_stops_the_start(
    tmp_path: Path,
) -> None:
    bundle = tmp_path / "authority.pem"
    bundle.write_text(AUTHORITY)
    two = {"AI_ACCOUNTS": "giga_b=gigachat", "GIGA_B_SCOPE": "GIGACHAT_API_CORP"}
    done = started(GIGACHAT_CA_BUNDLE=str(bundle), **two)
    assert done.stdout.strip() == (
        f"{{'ca_bundle': '{bundle}'}} {{'scope': 'GIGACHAT_API_CORP'}} ['{bundle}']"
    )
    bundle.write_text("no certificate")
    assert "GIGACHAT_CA_BUNDLE" in started(GIGACHAT_CA_BUNDLE=str(bundle)).stderr


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_a_picture_is_drawn_by_their_function_and_our_id_goes_as_a_header() -> None:
    call = GIGACHAT.submit(ACCOUNT, request(params={"temperature": 0.5, "model": "x"}))
    assert call.url == "https://giga.example/api/v1/chat/completions"
    assert call.headers == {"x-request-id": str(TASK)}
    assert call.json == {
        "model": "GigaChat",
        "temperature": 0.5,
        "function_call": "auto",
        "messages": [{"role": "user", "content": "Нарисуй: рыжий кот"}],
    }
    text = GIGACHAT.submit(ACCOUNT, request(kind=Kind.TEXT)).json
    assert "function_call" not in text
    assert text["messages"][0]["content"] == "рыжий кот"


@pytest.mark.parametrize(
    "prompt", ["Нарисуй кота", "изобрази кота", "Сгенерируй мне картинку", "Draw a cat"]
)
def test_an_order_to_draw_is_not_given_twice(prompt: str) -> None:
    assert prompt_of(request(prompt)) == prompt


def test_a_ratio_is_told_in_words_and_photos_are_not_taken() -> None:
    asked = prompt_of(request(params={"aspect_ratio": "16:9"}))
    assert asked == "Нарисуй: рыжий кот\nСоотношение сторон 16:9"
    with pytest.raises(ValueError, match="photos"):
        GIGACHAT.submit(ACCOUNT, request(photos=[Photo(Path("x.png"), "image/png")]))


# --- results ----------------------------------------------------------------------------------------------------------


def test_a_picture_is_named_in_the_text_and_read_by_that_name() -> None:
    verdict = GIGACHAT.read_submit(answer(chat(DRAWN)))
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.files) == ("completed", (FileRef(file_id=FILE),))
    assert "<img" not in verdict.text
    assert (verdict.cost, verdict.provider_id) == (None, None)
    call = GIGACHAT.file(ACCOUNT, FILE)
    assert call is not None
    assert (call.method, call.url) == ("GET", f"https://giga.example/api/v1/files/{FILE}/content")
    odd = GIGACHAT.file(ACCOUNT, "../balance?")
    assert odd is not None
    assert odd.url.endswith("/files/..%2Fbalance%3F/content")


def test_words_alone_are_a_text_and_no_picture() -> None:
    verdict = GIGACHAT.read_submit(answer(chat("Кот сидит.")))
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.files, verdict.text) == ("completed", (), "Кот сидит.")


@pytest.mark.parametrize("finish", ["blacklist", "error"])
def test_what_their_filter_says_is_no_result(finish: str) -> None:
    verdict = GIGACHAT.read_submit(answer(chat("Не люблю менять тему.", finish)))
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.files, verdict.text) == ("completed", (), "")
    assert verdict.status == finish


def test_of_a_cut_answer_the_pictures_name_is_enough() -> None:
    body = json.dumps(chat(DRAWN)).encode()

    def cut(part: bytes) -> Verdict | Refusal:
        got = GIGACHAT.read_submit(NoAnswer(sent=True, reason="reset", status=200, body=part))
        assert isinstance(got, Verdict | Refusal)
        return got

    whole, named = cut(body), cut(body[: body.index(b"fuse")])
    assert isinstance(whole, Verdict)
    assert isinstance(named, Verdict)
    assert whole.files == named.files == (FileRef(file_id=FILE),)
    lost = cut(body[: body.index(b"fuse") - 4])
    assert isinstance(lost, Refusal)
    assert (lost.failure, lost.charge) == (FailureClass.UNKNOWN, Charge.POSSIBLE)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message", "failure", "charge"),
    [
        (402, "Payment Required", "quota_exhausted", "none"),
        (429, "Too many requests", "rate_limited", "none"),
        (413, "Payload too large", "rejected", "none"),
        (422, "Invalid params: messages", "rejected", "none"),
        (403, "Permission denied", "rejected", "none"),
        (404, "No such model", "rejected", "none"),
        (401, "Unauthorized", "unauthorized", "none"),
        (408, "Request Timeout", "unknown", "possible"),
        (500, "Internal Server Error", "down", "possible"),
    ],
)
def test_a_refusal_has_its_class_and_its_charge(
    status: int, message: str, failure: str, charge: str
) -> None:
    got = GIGACHAT.read_submit(answer({"status": status, "message": message}, status))
    assert isinstance(got, Refusal)
    assert (got.failure, got.charge) == (failure, charge)
    assert got.scope is (Scope.MODEL if status == 402 else Scope.ACCOUNT)
    assert got.target_stops == (status == 404)
    assert not got.ours


def test_a_limit_told_under_200_is_a_limit_and_any_other_error_there_is_lost() -> None:
    limited = GIGACHAT.read_submit(answer({"status": 429, "message": "Too many requests"}))
    assert isinstance(limited, Refusal)
    assert (limited.failure, limited.charge) == (FailureClass.RATE_LIMITED, Charge.NONE)
    lost_bodies: list[Any] = [{"status": 400, "message": "Invalid params"}, {}, [], b"", b"{"]
    for body in lost_bodies:
        lost = GIGACHAT.read_submit(answer(body))
        assert isinstance(lost, Refusal)
        assert lost.charge is Charge.POSSIBLE


def test_an_expired_token_is_nobodys_fault_and_nothing_was_sent() -> None:
    got = GIGACHAT.read_submit(answer({"status": 401, "message": "Token has expired"}, 401))
    assert isinstance(got, Refusal)
    assert (got.failure, got.charge, got.ours) == (FailureClass.UNSENT, Charge.NONE, True)


@pytest.mark.parametrize(
    "told", [answer({"balance": []}), answer({"status": 403, "message": "Permission denied"}, 403)]
)
def test_a_balance_in_tokens_or_none_is_a_good_answer_without_money(told: Answer) -> None:
    with pytest.raises(NotToldError):
        GIGACHAT.read_balance(told)
    with pytest.raises(ValueError, match="500") as caught:
        GIGACHAT.read_balance(answer({}, 500))
    assert not isinstance(caught.value, NotToldError)
