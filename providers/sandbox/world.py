"""The deterministic core: a request and a moment in, a reaction out. No clock, sockets, files or global random.

The same settings, seed, clock readings and requests always give the same reactions and the same ledger. Nothing happens by
timer: what became due since the last request is booked at the start of the next (or by `tick`).
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from email.utils import formatdate
from typing import Any, Protocol

from . import files
from .fal import Fal
from .faults import HEADER, READ_TROUBLES, TASK_STAGES, Shares, Spec, Stage, Strikes, asked_for
from .gigachat import GigaChat
from .hooks import Hooks
from .ledger import Ledger, Post, Task
from .openrouter import OpenRouter
from .polza import Polza
from .reactions import Reaction, Request, Transport, json_reaction
from .settings import Settings
from .submission import Limit, Submission

OUTAGE_SCOPES = ("posts", "api", "all")
TURNED_AWAY = "turned_away"
FREE_FATES = (
    "failed_free",
    "failed_moderation",
    "failed_timeout",
    "failed_then_completed",
    "cancelled",
)
FAILED_FATES = (*FREE_FATES[:4], "failed_charged", "failed_pending", "failed_unlisted")


@dataclass(frozen=True, slots=True)
class Outage:
    """Every request of its scope fails in one way until `until`. `kind` is a name of READ_TROUBLES, or TURNED_AWAY: the
    provider says that it is overloaded and has begun nothing.

    Kinds that spoil only the way back (cut, slow, drip) let a POST through: tasks are created and billed.
    """

    kind: str
    until: float
    scope: str

    @property
    def only_spoils(self) -> bool:
        return self.kind in {"cut", "slow", "drip"}

    def hits(self, request: Request) -> bool:
        if request.path.startswith(files.PREFIX):
            return self.scope == "all"
        return self.scope != "posts" or request.method == "POST"


class Contract(Protocol):
    """One provider's HTTP, over the common core."""

    name: str
    prefix: str
    free_posts: frozenset[str]
    signs_webhooks: bool

    def answer(self, request: Request, now: float) -> Reaction: ...

    def trouble(
        self, name: str, value: float, good: Callable[[], Reaction], now: float
    ) -> Reaction: ...

    def turned_away(self, now: float) -> Reaction: ...

    def key_of(self, request: Request) -> str: ...

    def webhook(self, task: Task, request: Request, now: float) -> dict[str, Any]: ...


class World:
    """`clock` returns unix seconds and is read once for each call. `fresh_ledger` makes the ledger after a reset."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        settings: Settings | None = None,
        ledger: Ledger | None = None,
        fresh_ledger: Callable[[], Ledger] = Ledger,
    ) -> None:
        self.clock = clock
        self.rng = rng
        self._fresh_ledger = fresh_ledger
        self.contracts: tuple[Contract, ...] = (
            Polza(self),
            Fal(self),
            OpenRouter(self),
            GigaChat(self),
        )
        self.settings = settings or Settings()
        self.shares = Shares(self.settings.faults)
        self.strikes = Strikes()
        self.hooks = Hooks(self)
        self.outage: Outage | None = None
        self.used_up_until = -math.inf  # of every key's quota, by the control API
        self.ledger = ledger or Ledger()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = 0
        for task in self.ledger.tasks.values():
            self._schedule(task)

    # --- requests -----------------------------------------------------------------------------------------------------

    def handle(self, request: Request) -> Reaction:
        """The reaction to a request that is here as a whole."""
        return self.head(request) or self.rest(request)

    def date(self) -> str:
        """What the `date` header of an answer that leaves now says."""
        return formatdate(self.clock(), usegmt=True)

    def head(self, request: Request) -> Reaction | None:
        """What happens before the body is read; None: go on, read it and call `rest`."""
        now = self.tick()
        contract, outage = self._contract(request.path), self.outage
        if outage is not None and outage.hits(request) and not outage.only_spoils:
            value = READ_TROUBLES.get(outage.kind, ("", None))[1] or 0.0
            if contract is None:
                plain = "503" if outage.kind == TURNED_AWAY else outage.kind
                return files.trouble(plain, value, Reaction())
            if _is_paid(contract, request):
                self._log_unread(contract, request, fault=f"outage {outage.kind}", now=now)
            if outage.kind == TURNED_AWAY:
                return contract.turned_away(now)
            return contract.trouble(outage.kind, value, Reaction, now)
        if contract is None or not _is_paid(contract, request):
            return None
        try:
            specs = asked_for(header=request.headers.get(HEADER, ""))
        except ValueError:
            return None  # the contract will say so in its own words
        spec = self.pick(Stage.HEAD, specs, request.path)
        if spec is None:
            return None
        self._log_unread(contract, request, fault=spec.name, now=now)
        return Reaction(transport=Transport.RESET, delay_s=spec.value_or_default())

    def rest(self, request: Request) -> Reaction:
        """What happens once the body is read."""
        now = self.tick()
        contract, outage, settings = self._contract(request.path), self.outage, self.settings
        if contract is not None:
            reaction = contract.answer(request, now)
            slow_s = settings.answer_delay_s if request.method == "POST" else settings.read_delay_s
            reaction = replace(reaction, delay_s=reaction.delay_s + slow_s)
        elif request.path.startswith(files.PREFIX):
            reaction = files.answer(self, request, now)
        else:
            return json_reaction({"detail": f"the sandbox has nothing at {request.path}"}, 404)
        if outage is not None and outage.only_spoils and outage.hits(request):
            return files.misbehaving(outage.kind, READ_TROUBLES[outage.kind][1] or 0.0, reaction)
        return reaction

    def never_read(self, request: Request, *, why: str) -> None:
        """Books a request whose body did not arrive, or was too long to be taken."""
        contract, now = self._contract(request.path), self.tick()
        if contract is not None and _is_paid(contract, request):
            self._log_unread(contract, request, fault=why, now=now)

    def _contract(self, path: str) -> Contract | None:
        return next((one for one in self.contracts if path.startswith(one.prefix)), None)

    def contract_of(self, task: Task) -> Contract:
        return next(one for one in self.contracts if one.name == task.provider)

    def _log_unread(self, contract: Contract, request: Request, *, fault: str, now: float) -> None:
        self.ledger.requests["posts"] += 1
        self.ledger.add_post(Post(now, contract.key_of(request), contract.name, fault=fault))

    # --- choosing faults ----------------------------------------------------------------------------------------------

    def pick(self, stage: Stage, specs: tuple[Spec, ...], subject: str) -> Spec | None:
        """The fault of this stage that strikes now, None for none: one asked for, else by share."""
        return self.strikes.pick(stage, specs, subject) or self.shares.draw(stage, self.rng)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def limit_for(self, submission: Submission, now: float) -> tuple[Limit, float] | None:
        """The limit a submission breaks and the seconds until it would not (0: time alone does not help)."""
        settings, key = self.settings, submission.key
        price = settings.price(submission.provider, submission.model)
        if submission.model.startswith("unknown/"):
            return Limit.NO_MODEL, 0.0
        if settings.strict_models and submission.model.partition("@")[0] not in settings.prices:
            return Limit.NO_MODEL, 0.0
        if submission.max_price is not None and price > submission.max_price:
            return Limit.TOO_DEAR, 0.0
        balance = self.balance(key)
        if balance is not None and balance < price:
            return Limit.NO_BALANCE, 0.0
        if settings.key_limit is not None and self.ledger.spent(key) + price > settings.key_limit:
            return Limit.KEY_LIMIT, 0.0
        if now < self.used_up_until:
            return Limit.KEY_LIMIT, self.used_up_until - now
        for count, window_s in settings.quotas:
            recent = self.ledger.listed(key, since=now - window_s, until=now)
            if len(recent) >= count:
                oldest = recent[-count].created if count else now
                return Limit.QUOTA, max(oldest + window_s - now, 0.001)
        limit = settings.concurrency_limit
        if limit is not None and self.ledger.in_flight[f"key:{key}"] >= limit:
            return Limit.CONCURRENCY, 1.0
        return None

    def balance(self, key: str) -> Decimal | None:
        """Money left for the key; None: without end."""
        if self.settings.balance is None:
            return None
        return (
            self.settings.balance
            + self.ledger.top_ups.get(key, Decimal(0))
            - self.ledger.spent(key)
        )

    def accept(self, submission: Submission, new_id: str, now: float, *, instant: str = "") -> Task:
        """Creates and bills a task. `instant` (completed or failed): it ends in the same moment, failed is free."""
        task = self._new_task(submission, new_id, now)
        if instant:
            task.finish_at, task.outcome, task.fate = (
                now,
                instant,
                {"failed_free": 0.0} if instant == "failed" else {},
            )
        self.ledger.add_task(task)
        self.ledger.charge(task, task.price, now=now, why="accepted")
        self._schedule(task)
        self.tick(now)
        return task

    def accept_later(self, submission: Submission, new_id: str, moment: float) -> None:
        """The task comes to be only then. Not kept over a restart."""

        def create(now: float) -> None:
            self.accept(submission, new_id, now)

        self._at(moment, create)

    def plant(
        self,
        submission: Submission,
        new_id: str,
        *,
        created: float,
        price: Decimal | None,
        outcome: str,
    ) -> Task:
        """A finished task nobody posted: another program with the same key, or an orphan. It never was in flight."""
        task = self._new_task(submission, new_id, created)
        task.finish_at, task.outcome, task.planted = created, outcome, True
        task.fate = {"failed_charged": 0.0} if outcome == "failed" else {}
        task.price = task.price if price is None else price
        self.ledger.add_task(task)
        self.ledger.charge(task, task.price, now=created, why="planted")
        self.ledger.settle(task, now=created)
        return task

    def finish(self, task: Task) -> None:
        """Ends a running task now. On one that failed and would come back: brings it back now."""
        now = self.tick()
        finish_at, revives_at = task.finish_at, task.revives_at
        if not task.settled:
            finish_at = now
            if revives_at < math.inf:
                revives_at = now + task.fate["failed_then_completed"]
        elif now < revives_at < math.inf:
            revives_at = now
        else:
            return
        self.ledger.move(task, finish_at=finish_at, revives_at=revives_at)
        self._schedule(task)
        self.tick(now)

    def cancel(self, task: Task) -> None:
        """Ends a running task now, for nothing."""
        self.ledger.cancel(task)
        self.finish(task)

    def _new_task(self, submission: Submission, new_id: str, now: float) -> Task:
        scale = self.settings.scale
        chosen = (self.pick(stage, submission.specs, submission.prompt) for stage in TASK_STAGES)
        fate = {spec.name: spec.value_or_default(scale) for spec in chosen if spec is not None}
        latency_s = fate["latency"] if "latency" in fate else self.settings.latency(self.rng)
        if "late" in fate:
            latency_s = max(latency_s, fate["late"])
        if "never" in fate:
            latency_s = math.inf
        outcome = "completed"
        if any(name in fate for name in FAILED_FATES):
            outcome = "failed"
        elif "cancelled" in fate or "cancelled_charged" in fate:
            outcome = "cancelled"
        price = self.settings.price(submission.provider, submission.model)
        task = Task(
            id=new_id,
            provider=submission.provider,
            key=submission.key,
            model=submission.model,
            correlation=submission.correlation,
            prompt=submission.prompt,
            created=now,
            finish_at=now + latency_s,
            outcome=outcome,
            price=price * 2 if "overcharged" in fate else price,
            kind=submission.kind,
            params=submission.params,
            photos=submission.photos,
            webhook=submission.webhook,
            fate=fate,
            specs=tuple(spec for spec in submission.specs if spec.fault.stage not in TASK_STAGES),
        )
        if "failed_then_completed" in fate:
            task.revives_at = task.finish_at + fate["failed_then_completed"]
        return task

    # --- what falls due -----------------------------------------------------------------------------------------------

    def tick(self, now: float | None = None) -> float:
        """Books what has become due; the moment that was read."""
        moment = self.clock() if now is None else now
        while self._due and self._due[0][0] <= moment:
            due, _, act = heapq.heappop(self._due)
            act(due)
        return moment

    def next_due(self) -> float | None:
        """When something will next happen by itself; None: nothing will."""
        return self._due[0][0] if self._due else None

    def _at(self, moment: float, act: Callable[[float], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (moment, self._sequence, act))

    def _schedule(self, task: Task) -> None:
        if not task.settled and task.finish_at < math.inf:
            self._at(task.finish_at, lambda now: self._settle(task, now))
        if task.webhook and not task.settled:
            self.hooks.expect(task)
        if task.revives_at < math.inf:
            self._at(task.revives_at, lambda now: self._revive(task, now))

    def _settle(self, task: Task, now: float) -> None:
        if task.settled or now < task.finish_at:  # it was moved
            return
        self.ledger.settle(task, now=now)
        if any(name in task.fate for name in FREE_FATES):
            self.ledger.refund(task, now=now)
        if task.webhook:
            self.hooks.ended(task, now)

    def _revive(self, task: Task, now: float) -> None:
        if task.settled and now >= task.revives_at:  # else it was moved
            self.ledger.revive(task, now=now)

    # --- control ------------------------------------------------------------------------------------------------------

    def configure(self, changes: Mapping[str, Any]) -> None:
        """Changes some settings. Raises ValueError and changes nothing if one of them is wrong."""
        self.settings = self.settings.changed(changes)
        self.shares = Shares(self.settings.faults)

    def start_outage(self, kind: str, *, seconds: float | None = None, scope: str = "api") -> None:
        """`seconds` None: until it is stopped. Raises ValueError for a kind or scope that does not exist."""
        if kind not in {*READ_TROUBLES, TURNED_AWAY}:
            known = ", ".join([*READ_TROUBLES, TURNED_AWAY])
            raise ValueError(f"no outage of kind {kind!r}; one of {known}")
        if scope not in OUTAGE_SCOPES:
            raise ValueError(f"no scope {scope!r}; one of {', '.join(OUTAGE_SCOPES)}")
        now = self.tick()
        outage = Outage(kind, math.inf if seconds is None else now + seconds, scope)
        self.outage = outage
        if seconds is not None:
            self._at(outage.until, lambda _: self._end(outage))

    def _end(self, outage: Outage) -> None:
        if self.outage is outage:
            self.outage = None

    def stop_outage(self) -> None:
        self.outage = None

    def use_up(self, seconds: float) -> None:
        """Every key's quota is used up for so long; 0: it is there again."""
        self.used_up_until = self.tick() + seconds

    def reset(self, *, seed: int | None = None) -> None:
        """An empty ledger, no outage, no counted strikes; the settings stay."""
        self.ledger = self._fresh_ledger()
        self.strikes = Strikes()
        self.outage = None
        self.used_up_until = -math.inf
        self.hooks.clear()
        self._due.clear()
        if seed is not None:
            self.rng.seed(seed)


def _is_paid(contract: Contract, request: Request) -> bool:
    """Whether the request asks for a generation."""
    return request.method == "POST" and request.path not in contract.free_posts
