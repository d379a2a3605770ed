"""How the sandbox behaves: one frozen value, changed as a whole. Raises ValueError naming the setting that is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from .faults import Shares

RETRY_AFTER_STYLES = ("none", "seconds", "float", "date", "ms")
_DEFAULT_PRICES = {"fal": Decimal("0.003"), "openrouter": Decimal("0.04"), "gigachat": Decimal(2)}


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, money in each provider's currency. Limits that are None do not exist. `quotas` are (POSTs, seconds) for each key."""

    latency_median_s: float = 6.0
    latency_sigma: float = 0.35
    latency_fixed_s: float | None = None
    scale: float = 1.0  # multiplies latencies and the default times of faults (16 minutes, an hour)
    answer_delay_s: float = 0.0  # how long a POST waits for its answer; the task is created at once
    read_delay_s: float = 0.0
    sync_hold_s: float = 120.0  # how long an `async: false` POST is held
    faults: Mapping[str, float] = field(default_factory=dict)
    echo: bool = True  # the history shows the `user` that was submitted
    history_lag_s: float = 0.0  # the history shows the world as it was so long ago
    concurrency_limit: int | None = None  # tasks in flight for each key
    quotas: tuple[tuple[int, float], ...] = ()
    retry_after: str = "seconds"  # how a used-up quota tells when to come back
    balance: Decimal | None = None  # of each key, before top-ups
    key_limit: Decimal | None = None  # what each key may spend in all
    prices: Mapping[str, Decimal] = field(default_factory=dict)
    default_price: Decimal = Decimal("5.00")
    # Of a provider, in its own currency, instead of that.
    default_prices: Mapping[str, Decimal] = field(default_factory=lambda: dict(_DEFAULT_PRICES))
    strict_models: bool = False  # only models of `prices` exist
    submit_status: int = 200
    result_ttl_s: float = 7 * 86400.0
    prepared_bytes: int = 0  # above 0: files are ready-made pictures of about this size
    revoked_keys: tuple[str, ...] = ()  # fingerprints or whole keys
    token_life_s: float = 1800.0  # of providers that open by one

    def price(self, provider: str, model: str) -> Decimal:
        default = self.default_prices.get(provider, self.default_price)
        return self.prices.get(model, self.prices.get(model.partition("@")[0], default))

    def latency(self, rng: random.Random) -> float:
        """Seconds one generation takes. Draws nothing where the latency is fixed."""
        if self.latency_fixed_s is not None:
            return self.latency_fixed_s * self.scale
        if self.latency_median_s == 0:
            return 0.0
        return rng.lognormvariate(math.log(self.latency_median_s), self.latency_sigma) * self.scale

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with some settings replaced, from JSON values. Mappings are replaced as a whole."""
        known = {one.name for one in fields(self)}
        read: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in known:
                raise ValueError(f"no sandbox setting is named {name!r}")
            try:
                reader: Callable[[Any], Any] = _READERS.get(name, _number)
                read[name] = reader(value)
            except (TypeError, ValueError, InvalidOperation, AttributeError) as wrong:
                raise ValueError(
                    f"setting {name!r}: {str(wrong) or 'unusable'} (got {value!r})"
                ) from None
        return replace(self, **read)

    def as_json(self) -> dict[str, Any]:
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value


def _money(value: Any) -> Decimal:
    amount = Decimal(str(value))
    if not amount.is_finite() or amount < 0:
        raise ValueError("must be an amount of money, 0 or more")
    return amount


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError("must be 0 or more")
    return number


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value) or int(value) < 0:
        raise ValueError("must be a whole number, 0 or more")
    return int(value)


def _quota(value: Any) -> tuple[int, float]:
    count, seconds = value.split("/") if isinstance(value, str) else value
    if _number(seconds) == 0:
        raise ValueError("a quota's window must be longer than 0 seconds")
    return _count(count), _number(seconds)


def _shares(value: Any) -> dict[str, float]:
    shares = {str(key): _number(share) for key, share in value.items() if float(share) != 0}
    Shares(shares)
    return shares


def _one_of(*allowed: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"must be one of {', '.join(map(str, allowed))}")
        return value

    return read


def _flag(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise ValueError("must be true or false")


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


# How each setting is read from JSON; what is missing here is a number of 0 or more.
_READERS: dict[str, Callable[[Any], Any]] = {
    "latency_fixed_s": _or_none(_number),
    "faults": _shares,
    "echo": _flag,
    "concurrency_limit": _or_none(_count),
    "quotas": lambda value: tuple(_quota(one) for one in value),
    "retry_after": _one_of(*RETRY_AFTER_STYLES),
    "balance": _or_none(_money),
    "key_limit": _or_none(_money),
    "prices": lambda value: {str(model): _money(price) for model, price in value.items()},
    "default_price": _money,
    "default_prices": lambda value: {str(name): _money(price) for name, price in value.items()},
    "strict_models": _flag,
    "submit_status": _one_of(200, 201),
    "prepared_bytes": _count,
    "revoked_keys": lambda value: tuple(str(one) for one in value),
}
