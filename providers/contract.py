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


class Webhooks(StrEnum):
    """Whether a provider calls us when a task has ended. What an unsigned call says proves nothing."""

    NONE = "none"
    UNSIGNED = "unsigned"
    SIGNED = "signed"


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
    form: Mapping[str, str] | None = None  # instead of `json`: application/x-www-form-urlencoded


@dataclass(frozen=True, slots=True)
class Named:
    """A task as its provider knows it. `links` are the addresses that came with the acceptance ("status", "result",
    "cancel"); an adapter follows only those on the account's own server."""

    provider_id: str
    model: str = ""
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Account:
    """One provider reached with one key. `repr` hides the key. `fingerprint` is a short hash of it (see registry).

    `options`: what the settings say beside it, under the names of `Adapter.options`; only what is set is there.
    """

    provider: str
    base_url: str
    fingerprint: str
    key: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict, hash=False)


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
    """One file of a result: a URL to fetch, inline bytes already decoded from the answer, or the name under which the
    provider gives it to whoever has the key (`Adapter.file`)."""

    url: str | None = None
    data: bytes | None = field(default=None, repr=False)
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The provider took the request and named it."""

    provider_id: str
    status: str = ""
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The provider's last word on a task. `outcome` is completed, failed or cancelled.

    `provider_id` is set where the answer names it. `cost` None means the answer did not tell. `free`: it failed in a way
    that costs nothing by the provider's own documents, so nobody asks for a receipt.
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
    free: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """Not finished. `known` False: a status word the adapter has never heard of (noticed once, treated as running)."""

    status: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class Further:
    """It has ended, and `Adapter.result` tells how."""

    status: str


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


class NotToldError(ValueError):
    """The account answers well, and has no such thing to tell: the key is good, the provider up."""


@dataclass(frozen=True, slots=True)
class Token:
    """What opens the account for a while, got with its key."""

    value: str = field(repr=False)
    expires_at: datetime


class Adapter(Protocol):
    """One provider. Pure: builds calls, reads answers. Raises `ValueError` from a `read_*` only for an answer that is not
    in the provider's shape; the caller treats that as "told nothing". Methods that return None: the provider has no such
    call, which is what those with a body here say for it.

    `asynchronous` False: the answer to the paid call is the result, and `poll` is never asked.
    """

    name: str
    currency: str
    asynchronous: bool
    default_base_url: str
    default_model: str
    default_price: Decimal  # a guess, in `currency`, for a target that is not in the table yet
    key_setting: str  # the environment's name for the key
    options: tuple[
        str, ...
    ] = ()  # what else it reads from the environment: "scope" of gigachat is GIGACHAT_SCOPE
    sandbox_path: str  # below the sandbox's address
    sandbox_key: str  # what the demo shows it
    retention_s: float  # how long results and task states are kept
    missing_grace_s: float  # a 404 for this long becomes a case
    webhooks: Webhooks = Webhooks.NONE
    tells_cost: bool = True  # in its answers or receipts

    def authorisation(self, account: Account, token: str = "") -> Mapping[str, str]: ...

    def submit(self, account: Account, request: Request) -> Call: ...

    def read_submit(self, answer: Answer | NoAnswer) -> Accepted | Verdict | Refusal: ...

    def poll(self, account: Account, named: Named) -> Call | None:
        return None

    def read_poll(self, answer: Answer | NoAnswer) -> Verdict | Running | PollTrouble | Further:
        raise ValueError(f"{self.name} is not polled")

    def result(self, account: Account, named: Named) -> Call | None:
        """Asked where `read_poll` said `Further`."""
        return None

    def read_result(self, answer: Answer | NoAnswer) -> Verdict | PollTrouble:
        raise ValueError(f"{self.name} has no separate result")

    def file(self, account: Account, file_id: str) -> Call | None:
        """Where the file of a `FileRef.file_id` is, for whoever has the key."""
        return None

    def cancel(self, account: Account, named: Named) -> Call | None:
        return None

    def webhook_keys(self, account: Account) -> Call | None:
        """Where the public keys of its signed webhooks are (see webhooks.py)."""
        return None

    def read_webhook(self, body: bytes) -> str | None:
        """The id by which a webhook names its task; None where it names none."""
        return None

    def history(
        self, account: Account, *, since: datetime, until: datetime, page: int
    ) -> Call | None:
        return None

    def read_history(self, answer: Answer) -> HistoryPage:
        raise ValueError(f"{self.name} has no history")

    def receipt(self, account: Account, named: Named) -> Call | None:
        return None

    def read_receipt(self, answer: Answer) -> Receipt:
        raise ValueError(f"{self.name} has no receipts")

    def balance(self, account: Account) -> Call | None:
        return None

    def read_balance(self, answer: Answer) -> Balance:
        """NotToldError: a good answer from an account without a balance in money."""
        raise ValueError(f"{self.name} tells no balance")

    def token(self, account: Account) -> Call | None:
        """The call that gets a token with the key; None: the key itself opens everything."""
        return None

    def read_token(self, answer: Answer, *, now: datetime) -> Token:
        raise ValueError(f"{self.name} gives no tokens")
