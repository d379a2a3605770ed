"""Which providers there are, and what the settings make of them."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured
from pytest_django import Settings

from providers import registry


@pytest.fixture(autouse=True)
def _settings(settings: Settings) -> None:
    settings.AI_PROVIDER = "polza"
    settings.PROVIDER_KEYS = {"polza": "pza_secret"}
    settings.PROVIDER_BASE_URLS = {"polza": ""}


def test_an_account_has_the_providers_own_address_unless_told(settings: Settings) -> None:
    account = registry.account("polza")
    assert account.base_url == "https://polza.ai/api/v1"
    assert account.key == "pza_secret"
    assert account.fingerprint == registry.fingerprint("pza_secret")
    assert "pza_secret" not in repr(account)
    settings.PROVIDER_BASE_URLS = {"polza": "http://127.0.0.1:1/api/v1/"}
    assert registry.account("polza").base_url == "http://127.0.0.1:1/api/v1"


def test_a_missing_key_is_said_and_not_sent(settings: Settings) -> None:
    for keys in ({}, {"polza": ""}, {"polza": "  "}):
        settings.PROVIDER_KEYS = keys
        with pytest.raises(ImproperlyConfigured, match="'polza'"):
            registry.account("polza")


def test_an_unknown_provider_names_the_known_ones() -> None:
    with pytest.raises(registry.UnknownProviderError, match="polza"):
        registry.adapter("nobody")


def test_a_fingerprint_is_short_stable_and_no_key() -> None:
    one, other = registry.fingerprint("pza_one"), registry.fingerprint("pza_two")
    assert one == registry.fingerprint("pza_one")
    assert one != other
    assert len(one) == 12
    assert registry.fingerprint("") == ""


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("polza:google/veo3", ("polza", "google/veo3")),
        ("google/veo3", ("polza", "google/veo3")),
        ("openai/gpt:free", ("polza", "openai/gpt:free")),
        ("polza:openai/gpt:free", ("polza", "openai/gpt:free")),
        (" google/veo3 ", ("polza", "google/veo3")),
        (":x", ("polza", ":x")),
    ],
)
def test_a_target_counts_its_head_only_if_that_is_a_provider(
    target: str, parts: tuple[str, str]
) -> None:
    assert registry.split_target(target) == parts


def test_every_adapter_is_registered_under_its_own_name() -> None:
    for name, adapter in registry.ADAPTERS.items():
        assert adapter.name == name
        assert registry.adapter(name) is adapter
