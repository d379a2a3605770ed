"""What any provider's POST comes down to, and why a provider will not take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from .faults import Spec

# A header that no provider knows: the caller's id of a send, for judging those whose contract has no field for it.
MARK = "x-sandbox-correlation"


class Limit(StrEnum):
    """Why the provider itself will not take a submission."""

    NO_MODEL = "no_model"
    TOO_DEAR = "too_dear"
    NO_BALANCE = "no_balance"
    KEY_LIMIT = "key_limit"
    QUOTA = "quota"
    CONCURRENCY = "concurrency"


@dataclass(frozen=True, slots=True)
class Submission:
    """`key` is a fingerprint, `max_price` None means no ceiling. `webhook`: where the end is to be told, "" for nowhere."""

    provider: str
    key: str
    model: str
    correlation: str
    prompt: str
    kind: str = "image"
    params: Mapping[str, Any] = field(default_factory=dict)
    photos: int = 0
    specs: tuple[Spec, ...] = ()
    max_price: Decimal | None = None
    webhook: str = ""
