"""Which providers there are, and the accounts the settings give us at them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib import import_module

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from providers.contract import Account, Adapter

# A line for each provider: module and class below providers/adapters/. Settings, demo, smoke and the contract suite follow.
_LINES = (
    "polza.Polza",
    "fal.Fal",
    "openrouter.OpenRouter",
    "gigachat.GigaChat",
)


def _load(line: str) -> Adapter:
    module, _dot, name = line.rpartition(".")
    loaded: Adapter = getattr(import_module(f"providers.adapters.{module}"), name)()
    return loaded


REGISTERED: tuple[Adapter, ...] = tuple(_load(line) for line in _LINES)
_OWN = {adapter.name: adapter for adapter in REGISTERED}


class _Adapters(Mapping[str, Adapter]):
    """By the name that targets and accounts bear. AI_ACCOUNTS gives a provider further names, each an account of its own:
    another key, and so other money, limits and health."""

    def __getitem__(self, name: str) -> Adapter:
        return _OWN[settings.AI_ACCOUNTS.get(name, name)]

    def __iter__(self) -> Iterator[str]:
        return iter((*_OWN, *settings.AI_ACCOUNTS))

    def __len__(self) -> int:
        return len(_OWN) + len(settings.AI_ACCOUNTS)


ADAPTERS: Mapping[str, Adapter] = _Adapters()


class UnknownProviderError(LookupError):
    """No adapter is registered under this name."""


def adapter(name: str) -> Adapter:
    """The adapter called `name`; UnknownProviderError names the ones there are."""
    try:
        return ADAPTERS[name]
    except KeyError:
        known = ", ".join(sorted(ADAPTERS))
        raise UnknownProviderError(f"unknown provider {name!r}; there are: {known}") from None


def same(name: str) -> list[str]:
    """All names under which the provider called `name` is reached, `name` among them."""
    own = adapter(name).name
    return [other for other in ADAPTERS if ADAPTERS[other].name == own]


def reached(name: str, key_fingerprint: str) -> Account | None:
    """The account with this key, under whichever name of the same provider the settings give it; None where none does."""
    for other in same(name):
        try:
            found = account(other)
        except ImproperlyConfigured:
            continue
        if found.fingerprint == key_fingerprint:
            return found
    return None


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
        options=settings.PROVIDER_OPTIONS.get(provider, {}),
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
