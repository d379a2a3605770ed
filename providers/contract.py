"""The nouns of a provider: what we ask, and what an answer turns into.

No Django here and no I/O. An adapter (providers/adapters/) translates between these nouns and one provider's HTTP; it
builds `Call`s and reads `Answer`s, nothing else. `providers/http.py` carries calls out. Money is `Decimal` with a
currency, waits are seconds, times are aware and in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID


class Kind(StrEnum):
    """What a job wants."""

    IMAGE = "image"
    TEXT = "text"


class FailureClass(StrEnum):
    """Who must act, and what can come next (design, section 5)."""

    UNSENT = "unsent"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    UNAUTHORIZED = "unauthorized"
    REJECTED = "rejected"
    DOWN = "down"
    UNKNOWN = "unknown"


class Charge(StrEnum):
    """Whether a task may have cost money."""

    NONE = "none"
    POSSIBLE = "possible"
    CHARGED = "charged"
    REFUNDED = "refunded"
    WRITTEN_OFF = "written_off"


class Scope(StrEnum):
    """What a wait or a block applies to: the whole account, or one of its models."""

    ACCOUNT = "account"
    MODEL = "model"


# --- what we ask ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Photo:
    """An input picture of an image-to-image job. `path` is a local file already checked at intake."""

    path: Path
    media_type: str


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. `correlation_id` is the ProviderTask's id; it travels in whatever field the provider echoes."""

    correlation_id: UUID
    model: str
    kind: Kind
    prompt: str
    params: Mapping[str, Any] = field(default_factory=dict)
    photos: Sequence[Photo] = ()
    max_price: Decimal | None = None  # ceiling in the provider's currency; None: no ceiling is sent
    webhook_url: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call. `headers` never holds the key: the transport adds the account's authorisation."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None


@dataclass(frozen=True, slots=True)
class Account:
    """One provider reached with one key. `repr` hides the key. `fingerprint` is a short hash of it (see registry)."""

    provider: str
    base_url: str
    fingerprint: str
    key: str = field(repr=False)


# --- what came back ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete HTTP answer. `headers` has lower-case names; `body` is capped by the transport."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The call ended without a complete answer.

    `sent` False: no byte of the request left this machine (proved by the transport); True: some may have.
    `ours` True: our own pool, fence, stalled process or a deadline too short to judge by was the cause, so it says nothing
    about the provider.
    `status`, `headers`, `body` hold what arrived before the cut; an id in them still counts.
    """

    sent: bool
    reason: str
    ours: bool = False
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


# --- what it means ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileRef:
    """One file of a result: a URL to fetch, or inline bytes already decoded from the answer."""

    url: str | None = None
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider took the request and named it."""

    provider_id: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The provider's last word on a task. `outcome` is completed, failed or cancelled.

    `provider_id` is set where the answer names it. `cost` None means the answer did not tell.
    """

    outcome: str
    provider_id: str | None = None
    files: tuple[FileRef, ...] = ()
    text: str = ""
    cost: Decimal | None = None
    currency: str = ""
    reason: str = ""
    error_code: str = ""
    failure: FailureClass | None = None
    status: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """Not finished. `known` False: a status word the adapter has never heard of (noticed once, treated as running)."""

    status: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class PollTrouble:
    """A poll that told nothing about the task: transport error, 401, 404, 429, 5xx. Never a verdict."""

    reason: str
    status: int | None = None
    missing: bool = False  # a 404 of the provider itself
    wait_s: float | None = None
    failure: FailureClass = FailureClass.UNKNOWN


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that refuses. `charge` NONE only where it is on the list of answers known to precede acceptance.

    With `charge` POSSIBLE the task's outcome is unknown whatever `failure` says. `wait_s` is what the answer literally
    told (a floor), None if nothing. `target_stops` is true for a wrong model or route: every later job would fail alike.
    """

    failure: FailureClass
    charge: Charge
    reason: str
    wait_s: float | None = None
    scope: Scope = Scope.ACCOUNT
    status: int | None = None
    code: str = ""
    target_stops: bool = False
    ours: bool = False


@dataclass(frozen=True, slots=True)
class HistoryItem:
    """One generation in a provider's own listing. `correlation_id` is what the listing echoed, "" if nothing."""

    provider_id: str
    created_at: datetime | None
    model: str
    status: str
    correlation_id: str = ""
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """One page of the listing; `pages` is the total told by the provider (1 if it told none)."""

    items: tuple[HistoryItem, ...]
    page: int
    pages: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task cost. `final` False: the provider has not settled it yet, `cost` proves nothing."""

    final: bool
    status: str = ""
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Balance:
    """Money left on the account."""

    amount: Decimal
    currency: str


class Adapter(Protocol):
    """One provider. Pure: builds calls, reads answers. Raises `ValueError` from a `read_*` only for an answer that is not
    in the provider's shape; the caller treats that as "told nothing". Methods that return None: the provider has no such
    call."""

    name: str
    currency: str
    asynchronous: bool
    default_base_url: str
    default_model: str
    retention_s: float  # how long results and task states are kept
    missing_grace_s: float  # a 404 for this long becomes a case

    def authorisation(self, account: Account) -> Mapping[str, str]: ...

    def submit(self, account: Account, request: Request) -> Call: ...

    def read_submit(self, answer: Answer | NoAnswer) -> Accepted | Verdict | Refusal: ...

    def poll(self, account: Account, provider_id: str) -> Call: ...

    def read_poll(self, answer: Answer | NoAnswer) -> Verdict | Running | PollTrouble: ...

    def history(
        self, account: Account, *, since: datetime, until: datetime, page: int
    ) -> Call | None: ...

    def read_history(self, answer: Answer) -> HistoryPage: ...

    def receipt(self, account: Account, provider_id: str) -> Call | None: ...

    def read_receipt(self, answer: Answer) -> Receipt: ...

    def balance(self, account: Account) -> Call | None: ...

    def read_balance(self, answer: Answer) -> Balance: ...
