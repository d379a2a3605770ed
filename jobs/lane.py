"""What a running lane has at hand; passed to the stages."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobs.clock import Clock
from jobs.pictures import PictureProcess
from jobs.polling import Plan
from jobs.rules import Limits
from providers.contract import Account
from providers.http import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneContext:
    """`mark` writes the epoch mark; `now` is the database's clock, kept by the boot clock between two readings."""

    run_id: uuid.UUID
    slot: int
    host: str
    clock: Clock
    limits: Limits
    accounts: Mapping[str, Account]  # by provider
    account_ids: Mapping[str, int]
    fingerprints: Sequence[str]
    transport: Transport
    pictures: PictureProcess
    mark: Callable[[uuid.UUID], None]
    now: Callable[[], Awaitable[datetime]]
    db: Callable[..., Awaitable[Any]]  # runs a function in the lane's one database thread
    plans: Mapping[int, Plan] = field(default_factory=dict)  # by target: when to ask
