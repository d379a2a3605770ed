"""Nothing stored shows a key, and nothing stored breaks the database or a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.redaction import HIDDEN, redact_headers, redact_text, sanitise


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRETSECRETSECRET",
        "{'authorization': 'Key SECRETSECRETSECRET'}",
        '{"api_key": "SECRETSECRETSECRET"}',
        "https://x/?token=SECRETSECRETSECRET&a=1",
        "https://x/f.png?X-Amz-Signature=SECRETSECRETSECRET",
        "key sk-SECRETSECRETSECRET was wrong",
        "pza_SECRETSECRETSECRET",
        "Basic SECRETSECRETSECRET",
        "eyJSECRETSECRET.SECRETSECRET.SECRET",
    ],
)
def test_what_looks_like_a_key_is_hidden(text: str) -> None:
    shown = redact_text(text)
    assert "SECRETSECRET" not in shown
    assert HIDDEN in shown


def test_a_known_key_is_hidden_wherever_it_stands() -> None:
    secrets = ["Bearer plainwords", "Key id:other-one"]
    shown = redact_text("plainwords, Bearer plainwords and id:other-one.", secrets=secrets)
    assert "plainwords" not in shown
    assert "other-one" not in shown


def test_ordinary_words_stay() -> None:
    text = (
        "Rate limit reached on tokens per min (TPM): Limit 10000, max_tokens: 4000. Неверный ключ"
    )
    assert redact_text(text, secrets=["", "abc"]) == text


def test_secret_headers_are_hidden_and_the_rest_stays() -> None:
    shown = redact_headers(
        {"Authorization": "x", "Set-Cookie": "a=b", "X-Api-Key": "k", "Retry-After": "5"}
    )
    assert shown == {
        "authorization": HIDDEN,
        "set-cookie": HIDDEN,
        "x-api-key": HIDDEN,
        "retry-after": "5",
    }


def test_text_is_made_fit_to_be_stored() -> None:
    assert (
        sanitise("a\x00b\ud800c\r\nd\te\x1b[31m\u202ef", limit=50)
        == "a\ufffdb\ufffdc\nd\te\ufffd[31m\ufffdf"
    )
    assert sanitise("x" * 11, limit=10) == "x" * 9 + "…"
    assert sanitise("x" * 10, limit=10) == "x" * 10


@given(text=st.text(alphabet=st.characters(), max_size=60), limit=st.integers(1, 40))
def test_any_text_can_be_stored(text: str, limit: int) -> None:
    kept = sanitise(redact_text(text), limit=limit)
    assert len(kept) <= limit
    assert "\x00" not in kept
    kept.encode()
