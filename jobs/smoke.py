"""smoke: what a look at a live provider proves about its contract, check by check. Pure.

A check that fails names what is wrong, a contract change among them: `async_ignored`, `new_status_word`, `id_missing`,
`cost_missing`, `picture_missing`, `balance_unreadable`, `history_unreadable`, `echo_lost`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.utils.translation import gettext_lazy as _

from jobs.states import JobState, TaskState
from providers.contract import FailureClass, Kind

ACCEPTED_WITHIN_S = 5.0
# An account without a history, a send that nothing came of: asked no longer than that.
LISTED_WITHIN_S = 120.0
MOVED_WITHIN_S = 30.0
_KOPECK = Decimal("0.01")

# What each finding says, with its values; by finding. English source of what page and command show.
WORDS: Mapping[str, Any] = {
    "key_good": _("the key opens the account"),
    "key_rejected": _("the key is rejected: %(why)s"),
    "key_untold": _("the key can't be checked for nothing"),
    "no_answer": _("no answer: %(why)s"),
    "balance_told": _("%(balance)s %(currency)s left"),
    "balance_none": _("the account has no balance in money"),
    "balance_unreadable": _("the contract changed: the balance can't be read (%(why)s)"),
    "history_told": _("%(count)s generations of the last hour are listed"),
    "history_none": _("the provider lists nothing: a lost send there is a person's"),
    "history_unreadable": _("the contract changed: the history can't be read (%(why)s)"),
    "target_open": _("%(target)s is open; a generation costs about %(price)s %(currency)s, at most %(most)s"),
    "target_closed": _("%(target)s is closed: %(why)s"),
    "price_unknown": _("what %(target)s costs is not known: nothing is sent; set its price"),
    "too_dear": _("%(target)s may cost %(most)s %(currency)s, above the limit of %(limit)s"),
    "sent": _("one POST, answered within %(seconds)s s"),
    "waiting": _("was not sent within %(seconds)s s and has been cancelled: %(why)s"),
    "unsent": _("did not leave this machine: %(why)s"),
    "refused": _("refused as %(failure)s, for nothing: %(why)s"),
    "lost": _("the outcome is unknown and may have cost something; the desk has it: %(why)s"),
    "silent": _("no answer within %(seconds)s s: is `async` ignored? The outcome is unknown; the desk has it"),
    "slow": _("accepted only after %(seconds)s s; a task should be named within %(most)s s"),
    "async_ignored": _("the contract changed: the result came with the first answer, `async` is ignored"),
    "id_told": _("the task is called %(id)s"),
    "id_missing": _("the contract changed: the answer names no task"),
    "id_none": _("the provider names no task"),
    "words_known": _("every status was a known word"),
    "words_none": _("there is nothing to poll"),
    "new_status_word": _("the contract changed: unknown status %(words)s"),
    "picture": _("%(type)s, %(width)s × %(height)s, decodes"),
    "text": _("a text came"),
    "picture_missing": _("the contract changed: completed without a result (%(why)s)"),
    "picture_broken": _("the result can't be had: %(why)s"),
    "failed": _("failed there (%(failure)s): %(why)s"),
    "unfinished": _("is not finished after %(seconds)s s; it is still watched"),
    "cost_told": _("%(cost)s %(currency)s"),
    "cost_untold": _("the provider tells no cost; its price is taken: %(price)s %(currency)s"),
    "cost_missing": _("the contract changed: no cost was told"),
    "cost_high": _("cost %(cost)s %(currency)s, above the ceiling of %(most)s"),
    "moved": _("the balance fell by %(moved)s, as told"),
    "moved_less": _("the balance fell by %(moved)s %(currency)s, and %(cost)s was told"),
    "moved_more": _("the balance fell by %(moved)s %(currency)s, and %(cost)s was told"),
    "moved_beside": _("not judged: the balance fell by %(moved)s, and others may have spent from it"),
    "moved_untold": _("not judged: no two balances and a cost"),
    "listed": _("after at most %(lag_s)s s; our id is shown"),
    "listed_without_id": _("after at most %(lag_s)s s; our id is not shown"),
    "echo_lost": _("the contract changed: the history no longer shows our id"),
    "unlisted": _("not within %(seconds)s s: absence proves nothing there until it is measured again"),
    "unlisted_unknown": _("not judged: the send has no name, or nothing is listed"),
}  # fmt: skip
NAMES: Mapping[str, Any] = {
    "key": _("key"),
    "balance": _("balance"),
    "history": _("history"),
    "target": _("target"),
    "send": _("send"),
    "id": _("id"),
    "status": _("status words"),
    "result": _("result"),
    "cost": _("cost"),
    "money": _("money"),
    "listing": _("listing"),
}


# What stops a run before it has spent anything, and is our own decision.
REFUSALS = frozenset({"too_dear", "price_unknown", "target_closed"})


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. `ok` None: told, but nothing to judge by."""

    name: str
    ok: bool | None
    finding: str
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> str:
        return words(self.finding, self.data)


def words(finding: str, data: Mapping[str, Any]) -> str:
    """In the reader's language; a finding of another release by its constant name."""
    template = WORDS.get(finding)
    if template is None:
        return finding
    return str(template) % {name: str(value) for name, value in data.items()}


def plain(checks: Sequence[Check]) -> list[dict[str, Any]]:
    """As the row keeps them; `from_plain` reads them back."""
    return [
        {"name": one.name, "ok": one.ok, "finding": one.finding, "data": dict(one.data)}
        for one in checks
    ]


def from_plain(rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    return [Check(row["name"], row["ok"], row["finding"], row["data"]) for row in rows]


def passed(checks: Sequence[Check]) -> bool | None:
    """None: nothing speaks against the provider, but we would not buy."""
    failed = {one.finding for one in checks if one.ok is False}
    return None if failed and failed <= REFUSALS else not failed


# --- what a real one may cost -----------------------------------------------------------------------------------------


def affordable(
    *, target: str, price: Decimal, currency: str, factor: Decimal, limit: Decimal, closed: str = ""
) -> Check:
    """Whether a generation may be bought: its target is open, its price known, and the ceiling (price times `factor`) within
    `limit`, all in `currency`."""
    most = price * factor
    told = {"target": target, "price": _amount(price), "currency": currency, "most": _amount(most)}
    if closed:
        return Check("target", ok=False, finding="target_closed", data=told | {"why": closed})
    if price <= 0:
        return Check("target", ok=False, finding="price_unknown", data=told)
    if most > limit:
        return Check("target", ok=False, finding="too_dear", data=told | {"limit": _amount(limit)})
    return Check("target", ok=True, finding="target_open", data=told)


# --- what a real one showed -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """What the provider's contract promises, as its adapter says."""

    asynchronous: bool
    named: bool  # its tasks have ids
    tells_cost: bool
    listed: bool  # it has a history
    kind: Kind = Kind.IMAGE
    price: Decimal = Decimal(0)
    most: Decimal = Decimal(0)
    currency: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """The paid call, as its row tells. `answered_s`: from the arming to the id, the verdict or the loss; `status`: the HTTP
    status of its answer, None where none came whole. `result`: media type, width and height of what is stored."""

    state: TaskState
    answered_s: float = 0.0
    status: int | None = None
    provider_id: str = ""
    polls: int = 0
    new_words: Sequence[str] = ()
    failure: str = ""
    why: str = ""
    result: tuple[str, int | None, int | None] | None = None
    text: bool = False
    cost: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything a real run saw. `send` None: nothing was sent, and `waited_s` says how long it was waited for.

    `before`, `after`: the balance; `alone`: nothing else of ours was sent with that key meanwhile, and `exclusive`: nobody
    else's can have been. `lag_s`: the history showed the send by then; `unlisted_s`: it did not by then. `knew_echo`: what
    was known of it before.
    """

    job: JobState
    send: Send | None
    waited_s: float = 0.0
    why: str = ""
    before: Decimal | None = None
    after: Decimal | None = None
    alone: bool = False
    exclusive: bool = False
    lag_s: float | None = None
    unlisted_s: float | None = None
    echo: bool | None = None
    knew_echo: bool | None = None


def judge(promised: Promised, seen: Seen) -> list[Check]:
    """The checks of a real generation, in the order in which things happened; it stops where nothing can follow."""
    if seen.send is None:
        told = {"seconds": f"{seen.waited_s:.0f}", "why": seen.why}
        return [Check("send", ok=False, finding="waiting", data=told)]
    send = seen.send
    checks = [_sent(promised, send)]
    if send.state in {TaskState.UNSENT, TaskState.REFUSED}:
        return checks
    checks.append(_named(promised, send))
    checks.append(_words(promised, send))
    if send.state is TaskState.UNKNOWN:
        return [check for check in checks if check.ok is False]
    checks.append(_result(promised, seen, send))
    if send.state is TaskState.STORED:
        checks += [_cost(promised, send), _money(promised, seen, send.cost)]
    checks.append(_listing(promised, seen, send))
    return checks


def _sent(promised: Promised, send: Send) -> Check:
    within = f"{send.answered_s:.2f}"
    match send.state:
        case TaskState.UNSENT:
            return Check("send", ok=False, finding="unsent", data={"why": send.why})
        case TaskState.REFUSED:
            told = {"failure": send.failure, "why": send.why}
            return Check("send", ok=False, finding="refused", data=told)
        case TaskState.UNKNOWN if send.status is None and promised.asynchronous and send.answered_s > ACCEPTED_WITHIN_S:  # fmt: skip
            return Check("send", ok=False, finding="silent", data={"seconds": within})
        case TaskState.UNKNOWN:
            return Check("send", ok=False, finding="lost", data={"why": send.why})
    if promised.asynchronous and send.polls == 0 and send.state is not TaskState.ACCEPTED:
        return Check("send", ok=False, finding="async_ignored")
    if promised.asynchronous and send.answered_s > ACCEPTED_WITHIN_S:
        told = {"seconds": within, "most": f"{ACCEPTED_WITHIN_S:g}"}
        return Check("send", ok=False, finding="slow", data=told)
    return Check("send", ok=True, finding="sent", data={"seconds": within})


def _named(promised: Promised, send: Send) -> Check:
    if send.provider_id:
        return Check("id", ok=True, finding="id_told", data={"id": send.provider_id})
    if not promised.named:
        return Check("id", ok=None, finding="id_none")
    # Where no answer came whole, an id can't be missed.
    whole = send.state is not TaskState.UNKNOWN or (
        send.status is not None and 200 <= send.status < 300
    )
    return Check("id", ok=False if whole else None, finding="id_missing" if whole else "id_none")


def _words(promised: Promised, send: Send) -> Check:
    if send.new_words:
        told = {"words": ", ".join(send.new_words)}
        return Check("status", ok=False, finding="new_status_word", data=told)
    if not promised.asynchronous:
        return Check("status", ok=None, finding="words_none")
    return Check("status", ok=True, finding="words_known")


def _result(promised: Promised, seen: Seen, send: Send) -> Check:
    if send.result is not None:
        media_type, width, height = send.result
        if width is None or height is None:
            told = {"why": media_type}
            broken = promised.kind is Kind.IMAGE
            return Check("result", ok=not broken, finding="picture_broken" if broken else "text", data=told)  # fmt: skip
        told = {"type": media_type, "width": str(width), "height": str(height)}
        return Check("result", ok=True, finding="picture", data=told)
    match send.state:
        case TaskState.FAILED:
            told = {"failure": send.failure or FailureClass.UNKNOWN.value, "why": send.why}
            return Check("result", ok=False, finding="failed", data=told)
        case TaskState.STORED if send.text and promised.kind is Kind.TEXT:
            return Check("result", ok=True, finding="text")
        case TaskState.COMPLETED | TaskState.STORED:
            if seen.job is JobState.ACTIVE:
                break_off = {"seconds": f"{seen.waited_s:.0f}"}
                return Check("result", ok=False, finding="unfinished", data=break_off)
            missing = not send.why
            told = {"why": send.why or "no file"}
            return Check("result", ok=False, finding="picture_missing" if missing else "picture_broken", data=told)  # fmt: skip
    return Check("result", ok=False, finding="unfinished", data={"seconds": f"{seen.waited_s:.0f}"})


def _cost(promised: Promised, send: Send) -> Check:
    if send.cost is None:
        if promised.tells_cost:
            return Check("cost", ok=False, finding="cost_missing")
        told = {"price": _amount(promised.price), "currency": promised.currency}
        return Check("cost", ok=None, finding="cost_untold", data=told)
    told = {"cost": _amount(send.cost), "currency": promised.currency}
    if send.cost > promised.most:
        told |= {"most": _amount(promised.most)}
        return Check("cost", ok=False, finding="cost_high", data=told)
    return Check("cost", ok=True, finding="cost_told", data=told)


def fell_as_told(
    before: Decimal | None, after: Decimal | None, cost: Decimal | None
) -> bool | None:
    """Whether the balance fell by the cost, to the kopeck; to a tenth of it where it is that small. None: can't be told."""
    if before is None or after is None or cost is None:
        return None
    return abs((before - after) - cost) <= min(_KOPECK, cost / 10)


def _money(promised: Promised, seen: Seen, cost: Decimal | None) -> Check:
    as_told = fell_as_told(seen.before, seen.after, cost)
    if as_told is None or seen.before is None or seen.after is None or cost is None:
        return Check("money", ok=None, finding="moved_untold")
    moved = seen.before - seen.after
    told = {"moved": _amount(moved), "cost": _amount(cost), "currency": promised.currency}
    if as_told:
        return Check("money", ok=True, finding="moved", data=told)
    if not seen.alone:
        return Check("money", ok=None, finding="moved_beside", data=told)
    if moved < cost:
        return Check("money", ok=False, finding="moved_less", data=told)
    if seen.exclusive:
        return Check("money", ok=False, finding="moved_more", data=told)
    return Check("money", ok=None, finding="moved_beside", data=told)


def _listing(promised: Promised, seen: Seen, send: Send) -> Check:
    if not promised.listed or not send.provider_id:
        return Check("listing", ok=None, finding="unlisted_unknown")
    if seen.lag_s is None:
        if seen.unlisted_s is None:
            return Check("listing", ok=None, finding="unlisted_unknown")
        told = {"seconds": f"{seen.unlisted_s:.0f}"}
        return Check("listing", ok=False, finding="unlisted", data=told)
    told = {"lag_s": f"{seen.lag_s:.1f}"}
    if seen.echo:
        return Check("listing", ok=True, finding="listed", data=told)
    if seen.knew_echo:
        return Check("listing", ok=False, finding="echo_lost", data=told)
    return Check("listing", ok=True, finding="listed_without_id", data=told)


def known_lag(*, known_s: float | None, seen: Seen) -> float | None:
    """The account's lag after this run, an upper bound: None where the send was never listed, so that absence is not concluded.

    What was known stays unless this run contradicts it: a look at longer intervals only bounds it more loosely.
    """
    if seen.lag_s is None:
        return None if seen.unlisted_s is not None else known_s
    if known_s is None:
        return seen.lag_s
    late = seen.unlisted_s is not None and seen.unlisted_s > known_s
    return max(known_s, seen.lag_s) if late else known_s


def _amount(amount: Decimal) -> str:
    return f"{amount.normalize():f}"
