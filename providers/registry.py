"""Which providers there are, and the accounts the settings give us at them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from providers.adapters.polza import Polza
from providers.contract import Account, Adapter

_REGISTERED: tuple[Adapter, ...] = (Polza(),)

ADAPTERS: Mapping[str, Adapter] = {adapter.name: adapter for adapter in _REGISTERED}


class UnknownProviderError(LookupError):
    """No adapter is registered under this name."""


def adapter(name: str) -> Adapter:
    """The adapter called `name`; UnknownProviderError names the ones there are."""
    try:
        return ADAPTERS[name]
    except KeyError:
        known = ", ".join(sorted(ADAPTERS))
        raise UnknownProviderError(f"unknown provider {name!r}; there are: {known}") from None


def fingerprint(key: str) -> str:
    """A short name for a key: the same for the same key, and no help in guessing it. "" for an empty key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:12] if key else ""


def account(provider: str) -> Account:
    """The account the settings give for `provider` (PROVIDER_KEYS, PROVIDER_BASE_URLS; an empty URL: the provider's own).

    ImproperlyConfigured where the key is missing: without one every call would be refused.
    """
    speaks = adapter(provider)
    key = str(settings.PROVIDER_KEYS.get(provider) or "").strip()
    if not key:
        raise ImproperlyConfigured(
            f"There is no API key for the provider {provider!r}: set its key in the environment or in .env."
        )
    base_url = str(settings.PROVIDER_BASE_URLS.get(provider) or "").strip()
    return Account(
        provider=provider,
        base_url=(base_url or speaks.default_base_url).rstrip("/"),
        fingerprint=fingerprint(key),
        key=key,
    )


def split_target(target: str, default: str | None = None) -> tuple[str, str]:
    """`provider:model` as (provider, model).

    The part before the first colon counts only if it is a registered provider: model names hold colons too. Otherwise the
    provider is `default`, or the settings' AI_PROVIDER.
    """
    head, colon, tail = target.strip().partition(":")
    if colon and head in ADAPTERS:
        return head, tail
    return (default or str(settings.AI_PROVIDER)), target.strip()
