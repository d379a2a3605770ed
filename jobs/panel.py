"""What is known of every provider account and its models now: the one function behind page, dashboard and command.

`read` asks a fixed number of short questions whatever the number of accounts and models; the words are made by
`providers.word.word`, as everywhere. Nothing here is stored, so a block that has ended reads "available" at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Case, Count, F, OuterRef, Q, Subquery, Sum, When
from django.utils.translation import gettext as _

from jobs import latencies, rooms, written
from jobs.models import ProviderTask
from jobs.polling import Plan
from jobs.smoke import Check, from_plain
from jobs.states import TaskState
from providers import registry
from providers.contract import Account as Reached
from providers.contract import Charge
from providers.health import Gate, Health
from providers.models import Account, SmokeRun, Target, in_words, one_word
from providers.word import Told, Usage, Word, word

OUTCOMES_OF = timedelta(hours=1)
SPENT_IN = timedelta(hours=24)


class Closed(StrEnum):
    """Why a target takes no jobs, whatever its provider's state."""

    NO = ""
    STOPPED = "stopped"  # the provider called it wrong
    OFF = "off"  # switched off by staff


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How sends armed within the last hour have ended so far."""

    succeeded: int = 0
    refused: int = 0
    failed: int = 0
    unknown: int = 0

    @property
    def total(self) -> int:
        return self.succeeded + self.refused + self.failed + self.unknown

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes(
            self.succeeded + other.succeeded,
            self.refused + other.refused,
            self.failed + other.failed,
            self.unknown + other.unknown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What is left on an account, and what it spent in the last 24 h in the balance's own currency.

    `lasts_s`: how long the balance lasts at that rate; None: nothing was spent, or the balance is not known.
    """

    balance: Decimal | None = None
    currency: str = ""
    balance_at: datetime | None = None
    spent: Mapping[str, Decimal] = field(default_factory=dict)  # by currency

    @property
    def lasts_s(self) -> float | None:
        spent = self.spent.get(self.currency, Decimal(0))
        if self.balance is None or spent <= 0:
            return None
        return float(max(self.balance, Decimal(0)) / spent) * SPENT_IN.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model at one account. `told` is what holds for a send there, the account's trouble included; `own` only what
    the model's own row says. `target_id` None: a row of a model that is no target any more. `limit` None: none of its own.
    """

    target_id: int | None
    name: str
    model: str
    told: Told
    own: Health
    closed: Closed = Closed.NO
    closed_at: datetime | None = None
    closed_reason: str = ""
    in_flight: int = 0
    limit: int | None = None
    own_limit: int | None = None
    outcomes: Outcomes = Outcomes()
    windows: tuple[Usage, ...] = ()
    at_risk: Decimal = Decimal(0)
    braked: bool = False
    currency: str = ""
    plan: Plan | None = None  # when it is asked about; None: every POLL_INTERVAL_SEC

    def words(self, now: datetime) -> str:
        match self.closed:
            case Closed.STOPPED:
                return _("stopped")
            case Closed.OFF:
                return _("switched off by staff")
        return in_words(self.told, now=now, moment=written.moment)


@dataclass(frozen=True, slots=True)
class SmokeView:
    """The last proof of the account's contract that came to its end, a real one before others. `ok` None: we would not buy.
    `failed`: what each check found that failed."""

    ok: bool | None
    ended_at: datetime
    real: bool
    failed: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountView:
    """`key_set`: the settings hold its key. `used`: something was sent with it. `limit`: the most in flight there."""

    id: int
    provider: str
    fingerprint: str
    label: str
    key_set: bool
    used: bool
    told: Told
    own: Health
    in_flight: int
    limit: int
    outcomes: Outcomes
    windows: tuple[Usage, ...]
    money: Money
    accepted_at: datetime | None
    alerts_silenced: bool
    models: tuple[ModelView, ...]
    smoke: SmokeView | None = None

    @property
    def name(self) -> str:
        return f"{self.provider} …{self.fingerprint[-6:]}"

    @property
    def next_try_at(self) -> datetime | None:
        return self.own.next_try_at if self.own.gate is Gate.OPEN else None

    def words(self, now: datetime) -> str:
        return in_words(self.told, now=now, moment=written.moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    now: datetime
    in_flight: int
    limit: int
    accounts: tuple[AccountView, ...]

    def counts(self) -> dict[Word, int]:
        """Open targets whose key is set, by the word that holds for a send there."""
        counted = dict.fromkeys(Word, 0)
        for account in self.accounts:
            for model in account.models:
                if account.key_set and model.target_id is not None and model.closed is Closed.NO:
                    counted[model.told.word] += 1
        return counted


# --- reading ----------------------------------------------------------------------------------------------------------


def read(*, now: datetime, counts: bool = True) -> Panel:
    """`counts` False leaves out outcomes, spending, money at risk and smoke runs (five questions less)."""
    late = now - timedelta(seconds=settings.POLL_DEADLINE_SEC)
    accounts = list(_accounts())
    ids = [account.pk for account in accounts]
    known = _Known(
        now=now,
        states=rooms.states_of(ids),
        targets=_by_provider(),
        windows=rooms.usage(account_ids=ids, late=late, now=now) if ids else [],
        flying=_flying(now),
        outcomes=_outcomes(ids, now) if counts else {},
        spent=_spent(ids, now) if counts else {},
        at_risk=_at_risk(late) if counts else {},
        smokes=_smokes(ids) if counts else {},
        plans=latencies.plans() if counts else {},
    )
    shown = sorted((_account(one, known) for one in accounts), key=lambda one: not one.key_set)
    return Panel(
        now=now,
        in_flight=sum(known.flying.values()),
        limit=settings.WORKER_CONCURRENCY,
        accounts=tuple(shown),
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """The answers, by (account id, model) or (account id, target id)."""

    now: datetime
    states: Mapping[tuple[int, str], Health]
    targets: Mapping[str, list[Target]]
    windows: list[Usage]
    flying: Mapping[tuple[int, int], int]
    outcomes: Mapping[tuple[int, int], Outcomes]
    spent: Mapping[int, Mapping[str, Decimal]]
    at_risk: Mapping[int, Decimal]
    smokes: Mapping[int, SmokeView]
    plans: Mapping[int, Plan]  # by target


def _accounts() -> Any:
    """In the order of their providers; each with its last accepted use and whether it was ever used."""
    sends = ProviderTask.objects.filter(account=OuterRef("pk"), armed_at__isnull=False)
    accepted = sends.filter(provider_id__isnull=False).order_by("-armed_at")
    return Account.objects.annotate(
        last_armed_at=Subquery(sends.order_by("-armed_at").values("armed_at")[:1]),
        last_accepted_at=Subquery(accepted.values("accepted_at")[:1]),
    ).order_by("provider", "-pk")


def _by_provider() -> dict[str, list[Target]]:
    found = defaultdict(list)
    for target in Target.objects.defer("capabilities").order_by("provider", "model"):
        found[target.provider].append(target)
    return found


def _flying(now: datetime) -> dict[tuple[int, int], int]:
    flying = ProviderTask.objects.in_flight(now=now, poll_deadline_s=settings.POLL_DEADLINE_SEC)
    rows = flying.order_by().values_list("account_id", "target_id").annotate(n=Count("pk"))
    return {(account_id, target_id): n for account_id, target_id, n in rows}


_ENDS: Mapping[str, str] = {
    TaskState.STORED: "succeeded",
    TaskState.COMPLETED: "succeeded",
    TaskState.REFUSED: "refused",
    TaskState.FAILED: "failed",
    TaskState.UNKNOWN: "unknown",
}


def _outcomes(ids: list[int], now: datetime) -> dict[tuple[int, int], Outcomes]:
    rows = (
        ProviderTask.objects.filter(account__in=ids, armed_at__gt=now - OUTCOMES_OF)
        .filter(state__in=_ENDS)
        .order_by()
        .values_list("account_id", "target_id", "state")
        .annotate(n=Count("pk"))
    )
    counted: dict[tuple[int, int], Outcomes] = defaultdict(Outcomes)
    for account_id, target_id, state, n in rows:
        counted[account_id, target_id] += Outcomes(**{_ENDS[state]: n})
    return counted


def _spent(ids: list[int], now: datetime) -> dict[int, dict[str, Decimal]]:
    """Charged for sends of the last 24 h; where the price was not told, the estimate."""
    rows = (
        ProviderTask.objects.filter(account__in=ids, armed_at__gt=now - SPENT_IN)
        .filter(charge=Charge.CHARGED)
        .order_by()
        .values_list("account_id", "currency")
        .annotate(
            money=Sum(Case(When(cost__isnull=True, then=F("estimated_cost")), default=F("cost")))
        )
    )
    spent: dict[int, dict[str, Decimal]] = defaultdict(dict)
    for account_id, currency, money in rows:
        if money:
            spent[account_id][currency] = money
    return spent


def _at_risk(late: datetime) -> dict[int, Decimal]:
    """By target: what the exposure brake of the claim looks at."""
    rows = (
        ProviderTask.objects.filter(charge=Charge.POSSIBLE)
        .filter(Q(state=TaskState.UNKNOWN) | Q(state=TaskState.ACCEPTED, armed_at__lte=late))
        .order_by()
        .values_list("target_id")
        .annotate(money=Sum("estimated_cost"))
    )
    return dict(rows)


def _smokes(ids: list[int]) -> dict[int, SmokeView]:
    ended = SmokeRun.objects.filter(account__in=ids, ended_at__isnull=False)
    rows = ended.order_by("account", "-real", "-at").distinct("account")
    return {
        run.account_id: SmokeView(
            run.ok, run.ended_at or run.at, run.real,
            tuple(check for check in from_plain(run.checks) if check.ok is False),
        )
        for run in rows
    }  # fmt: skip


# --- putting together -------------------------------------------------------------------------------------------------


def _account(account: Any, known: _Known) -> AccountView:
    own = known.states.get((account.pk, ""), Health())
    windows = _windows(known.windows, account.pk, "")
    targets = known.targets.get(account.provider, [])
    models = [_model(account, target, own, known) for target in targets]
    names = {target.model for target in targets}
    models += [
        _leftover(account, model, own, known)
        for account_id, model in sorted(known.states)
        if account_id == account.pk and model and model not in names
    ]
    return AccountView(
        id=account.pk,
        provider=account.provider,
        fingerprint=account.fingerprint,
        label=account.label,
        key_set=reached(account.provider, account.fingerprint) is not None,
        used=account.last_armed_at is not None,
        told=word(own, now=known.now, usage=windows),
        own=own,
        in_flight=sum(n for (one, _target), n in known.flying.items() if one == account.pk),
        limit=_least(windows, settings.WORKER_CONCURRENCY) or 0,
        outcomes=sum((model.outcomes for model in models), Outcomes()),
        windows=windows,
        money=Money(
            balance=account.balance,
            currency=account.balance_currency,
            balance_at=account.balance_at,
            spent=known.spent.get(account.pk, {}),
        ),
        accepted_at=account.last_accepted_at,
        alerts_silenced=account.alerts_silenced,
        models=tuple(models),
        smoke=known.smokes.get(account.pk),
    )


def _model(account: Any, target: Target, whole: Health, known: _Known) -> ModelView:
    own = known.states.get((account.pk, target.model), Health())
    windows = _windows(known.windows, account.pk, target.model)
    closed = Closed.STOPPED if target.stopped_at else Closed.NO if target.enabled else Closed.OFF
    at_risk = known.at_risk.get(target.pk, Decimal(0))
    most = max(target.price, Decimal("0.0001")) * settings.EXPOSURE_LIMIT_PRICES
    return ModelView(
        target_id=target.pk,
        name=target.name,
        model=target.model,
        told=_told(account.pk, whole, own, windows, known),
        own=own,
        closed=closed,
        closed_at=target.stopped_at,
        closed_reason=target.stopped_reason,
        in_flight=known.flying.get((account.pk, target.pk), 0),
        limit=_least(windows, target.max_in_flight),
        own_limit=target.max_in_flight,
        outcomes=known.outcomes.get((account.pk, target.pk), Outcomes()),
        windows=windows,
        at_risk=at_risk,
        braked=at_risk >= most,
        currency=target.currency,
        plan=known.plans.get(target.pk),
    )


def _leftover(account: Any, model: str, whole: Health, known: _Known) -> ModelView:
    own = known.states[account.pk, model]
    windows = _windows(known.windows, account.pk, model)
    return ModelView(
        target_id=None,
        name=f"{account.provider}:{model}",
        model=model,
        told=_told(account.pk, whole, own, windows, known),
        own=own,
        windows=windows,
    )


def _told(
    account_id: int, whole: Health, own: Health, windows: tuple[Usage, ...], known: _Known
) -> Told:
    full = (*_windows(known.windows, account_id, ""), *windows)
    return word(whole, own, now=known.now, usage=full)


def _windows(windows: Iterable[Usage], account_id: int, model: str) -> tuple[Usage, ...]:
    return tuple(one for one in windows if (one.account_id, one.model) == (account_id, model))


def _least(windows: Iterable[Usage], other: int | None) -> int | None:
    """The least of the limits on what is in flight at once."""
    limits = [one.most for one in windows if one.seconds is None]
    return min([*limits, *([] if other is None else [other])], default=None)


def reached(provider: str, fingerprint: str) -> Reached | None:
    """The account with its key; None where the settings name another key, or none."""
    try:
        found = registry.account(provider)
    except (ImproperlyConfigured, registry.UnknownProviderError):
        return None
    return found if found.fingerprint == fingerprint else None


# --- as plain values --------------------------------------------------------------------------------------------------


def plain(panel: Panel) -> dict[str, Any]:
    """For programs. `word` is one of the three, `state` the finer phrase, `words` what people read on the page."""
    return {
        "in_flight": panel.in_flight,
        "limit": panel.limit,
        "accounts": [_plain_account(account, panel.now) for account in panel.accounts],
    }


def _plain_account(account: AccountView, now: datetime) -> dict[str, Any]:
    money = account.money
    return {
        "id": account.id,
        "provider": account.provider,
        "name": account.name,
        "key_set": account.key_set,
        **_plain_told(account.told, account.words(now)),
        "next_try_at": _iso(account.next_try_at),
        "in_flight": account.in_flight,
        "limit": account.limit,
        "last_hour": _plain_outcomes(account.outcomes),
        "windows": [_plain_window(one) for one in account.windows],
        "balance": None if money.balance is None else _amount(money.balance),
        "currency": money.currency,
        "balance_at": _iso(money.balance_at),
        "spent_24h": {currency: _amount(sum_) for currency, sum_ in sorted(money.spent.items())},
        "lasts_s": money.lasts_s,
        "accepted_at": _iso(account.accepted_at),
        "alerts_silenced": account.alerts_silenced,
        "smoke": _plain_smoke(account.smoke),
        "models": [_plain_model(model, now) for model in account.models],
    }


def _plain_smoke(smoke: SmokeView | None) -> dict[str, Any] | None:
    if smoke is None:
        return None
    return {
        "ok": smoke.ok,
        "ended_at": _iso(smoke.ended_at),
        "real": smoke.real,
        "failed": [{"finding": check.finding, "words": check.words} for check in smoke.failed],
    }


def _plain_model(model: ModelView, now: datetime) -> dict[str, Any]:
    told = _plain_told(model.told, model.words(now))
    if model.closed is not Closed.NO:
        told |= {
            "state": model.closed.value,
            "since": _iso(model.closed_at),
            "until": None,
            "reason": model.closed_reason,
        }
    return {
        "name": model.name,
        **told,
        "in_flight": model.in_flight,
        "limit": model.limit,
        "last_hour": _plain_outcomes(model.outcomes),
        "windows": [_plain_window(one) for one in model.windows],
        "at_risk": _amount(model.at_risk),
        "braked": model.braked,
    }


def _plain_told(told: Told, words: str) -> dict[str, Any]:
    return {
        "word": told.word.value,
        "state": told.phrase.value,
        "one_word": one_word(told),
        "words": words,
        "since": _iso(told.since),
        "until": _iso(told.until),
        "reason": told.reason,
    }


def _plain_outcomes(outcomes: Outcomes) -> dict[str, int]:
    return {name: getattr(outcomes, name) for name in ("succeeded", "refused", "failed", "unknown")}


def _plain_window(usage: Usage) -> dict[str, Any]:
    return {
        "seconds": usage.seconds,
        "used": usage.used,
        "most": usage.most,
        "left": usage.left,
        "resets_at": _iso(usage.resets_at),
    }


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None


def _amount(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
