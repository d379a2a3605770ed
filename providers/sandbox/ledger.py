"""The truth: what was asked, what was accepted, and what was billed to whom. No I/O; `journal.py` keeps it in a file."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from .faults import Spec

Record = dict[str, Any]


def fingerprint(key: str) -> str:
    """What the ledger shows of a key; the key itself is never kept."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


@dataclass(slots=True)
class Task:
    """One accepted generation. Its whole course is fixed when it is accepted; `status_at` reads it off.

    `key` is a fingerprint. `fate` holds the faults decided at acceptance with their values. `finish_at` and `revives_at`
    are unix seconds, infinite for never. `settled`: its end was booked.
    """

    id: str
    provider: str
    key: str
    model: str
    correlation: str
    prompt: str
    created: float
    finish_at: float
    outcome: str
    price: Decimal
    kind: str = "image"
    params: Mapping[str, Any] = field(default_factory=dict)
    photos: int = 0
    webhook: str = ""  # where its end is to be told
    fate: dict[str, float] = field(default_factory=dict)
    specs: tuple[Spec, ...] = ()
    revives_at: float = math.inf
    planted: bool = False
    polls: int = 0
    last_poll_at: float | None = None
    max_poll_gap_s: float = 0.0
    downloads: int = 0
    issue: int = 1  # number of the result URL that is given out now
    settled: bool = False

    def status_at(self, moment: float) -> str:
        """pending, processing, completed, failed or cancelled."""
        if moment >= self.revives_at:
            return "completed"
        if moment >= self.finish_at:
            return self.outcome
        waited = moment - self.created
        return "pending" if waited < 0.2 * min(self.finish_at - self.created, 60) else "processing"

    def ended_at(self, moment: float) -> bool:
        return moment >= self.finish_at

    @property
    def completed_at(self) -> float:
        return (
            self.revives_at
            if self.outcome != "completed" and self.revives_at < math.inf
            else self.finish_at
        )


@dataclass(slots=True)
class Charge:
    """Money taken for a task; `refunded_at` None: it stays taken."""

    task: str
    key: str
    amount: Decimal
    at: float
    why: str
    refunded_at: float | None = None


@dataclass(slots=True)
class Post:
    """One POST that arrived. `status` is what was to be answered, None where the connection was broken instead."""

    at: float
    key: str
    provider: str
    correlation: str = ""
    model: str = ""
    accepted: bool = False
    task: str = ""
    fault: str = ""
    status: int | None = None


class Ledger:
    """Everything that happened. `sink` gets each event as a JSON-ready record, in order; `replay` takes them back."""

    def __init__(self, sink: Callable[[Record], None] | None = None) -> None:
        self.sink = sink
        self.tasks: dict[str, Task] = {}
        self.charges: list[Charge] = []
        self.posts: list[Post] = []
        self.top_ups: defaultdict[str, Decimal] = defaultdict(Decimal)
        self.requests: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()  # "", "key:…", "model:…"
        self.max_in_flight: Counter[str] = Counter()
        self._of_key: defaultdict[str, list[Task]] = defaultdict(list)
        self._charges_of: defaultdict[str, list[Charge]] = defaultdict(list)
        self._spent: defaultdict[str, Decimal] = defaultdict(Decimal)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _tell(self, event: str, record: Record) -> None:
        if self.sink is not None:
            self.sink({"event": event} | record)

    def add_task(self, task: Task) -> None:
        self._keep_task(task)
        self._tell("task", task_record(task, whole=True))

    def charge(self, task: Task, amount: Decimal, *, now: float, why: str) -> None:
        charge = Charge(task.id, task.key, amount, now, why)
        self._keep_charge(charge)
        self._tell("charge", charge_record(charge))

    def refund(self, task: Task, *, now: float) -> None:
        """Takes back every charge of the task that still stands."""
        for charge in self._charges_of[task.id]:
            if charge.refunded_at is None:
                charge.refunded_at = now
                self._spent[charge.key] -= charge.amount
        self._tell("refund", {"task": task.id, "at": now})

    def settle(self, task: Task, *, now: float) -> None:
        """The task is no longer in flight."""
        task.settled = True
        for name in _flight_names(task):
            self.in_flight[name] -= 1
        self._tell("settle", {"task": task.id, "at": now})

    def move(self, task: Task, *, finish_at: float, revives_at: float) -> None:
        """Somebody changed when the task ends, or comes back."""
        task.finish_at, task.revives_at = finish_at, revives_at
        times = {"finish_at": _finite(finish_at), "revives_at": _finite(revives_at)}
        self._tell("move", {"task": task.id} | times)

    def cancel(self, task: Task) -> None:
        """It will end cancelled and free."""
        task.outcome, task.fate, task.revives_at = "cancelled", {"cancelled": 0.0}, math.inf
        self._tell("cancel", {"task": task.id})

    def revive(self, task: Task, *, now: float) -> None:
        """A task that had ended free is charged after all."""
        if not self.standing(task.id):
            self.charge(task, task.price, now=now, why="revived")

    def add_post(self, post: Post) -> None:
        self.posts.append(post)
        self._tell("post", asdict(post))

    def top_up(self, key: str, amount: Decimal) -> None:
        self.top_ups[key] += amount
        self._tell("top_up", {"key": key, "amount": str(amount)})

    # --- reading ------------------------------------------------------------------------------------------------------

    def standing(self, task_id: str, *, at: float = math.inf) -> Decimal:
        """What the task cost as far as was booked at that moment."""
        charges = self._charges_of.get(task_id, ())
        return sum(
            (
                charge.amount
                for charge in charges
                if charge.at <= at and (charge.refunded_at is None or charge.refunded_at > at)
            ),
            Decimal(0),
        )

    def spent(self, key: str) -> Decimal:
        return self._spent[key]

    def listed(self, key: str, *, since: float, until: float) -> list[Task]:
        """The key's tasks created within the bounds (both included), oldest first."""
        tasks = self._of_key[key]
        first = bisect_left(tasks, since, key=_created)
        last = bisect_right(tasks, until, key=_created)
        return tasks[first:last]

    def summary(self) -> Record:
        arrived = Counter(post.correlation for post in self.posts if post.correlation)
        accepted = Counter(task.correlation for task in self.tasks.values() if task.correlation)
        standing = [charge for charge in self.charges if charge.refunded_at is None]
        per_task = Counter(charge.task for charge in standing)
        return {
            "tasks": len(self.tasks),
            "posts": len(self.posts),
            "posts_accepted": sum(post.accepted for post in self.posts),
            "charges": len(standing),
            "charges_refunded": len(self.charges) - len(standing),
            "charged_total": str(sum((charge.amount for charge in standing), Decimal(0))),
            "posted_twice": sorted(one for one, count in arrived.items() if count > 1),
            "accepted_twice": sorted(one for one, count in accepted.items() if count > 1),
            "charged_twice": sorted(task for task, count in per_task.items() if count > 1),
        }

    # --- taking back from a journal -----------------------------------------------------------------------------------

    def replay(self, record: Record) -> None:
        """Applies one record that `sink` got in an earlier life; tells nothing to the sink.

        Raises KeyError, TypeError or ValueError for what it never wrote.
        """
        sink, self.sink = self.sink, None
        try:
            self._apply(record)
        finally:
            self.sink = sink

    def _apply(self, record: Record) -> None:
        match record["event"]:
            case "task":
                self._keep_task(task_from_record(record))
            case "charge":
                amount = Decimal(record["amount"])
                self._keep_charge(
                    Charge(
                        record["task"],
                        record["key"],
                        amount,
                        record["at"],
                        record["why"],
                        record["refunded_at"],
                    )
                )
            case "refund":
                self.refund(self.tasks[record["task"]], now=record["at"])
            case "settle":
                self.settle(self.tasks[record["task"]], now=record["at"])
            case "cancel":
                self.cancel(self.tasks[record["task"]])
            case "move":
                times = {name: _moment(record[name]) for name in ("finish_at", "revives_at")}
                self.move(self.tasks[record["task"]], **times)
            case "post":
                self.posts.append(
                    Post(**{name: value for name, value in record.items() if name != "event"})
                )
            case "top_up":
                self.top_ups[record["key"]] += Decimal(record["amount"])
            case other:
                raise ValueError(f"a ledger never writes {other!r}")

    def _keep_task(self, task: Task) -> None:
        self.tasks[task.id] = task
        insort(self._of_key[task.key], task, key=_created)
        for name in _flight_names(task):
            self.in_flight[name] += 1
            self.max_in_flight[name] = max(self.max_in_flight[name], self.in_flight[name])

    def _keep_charge(self, charge: Charge) -> None:
        self.charges.append(charge)
        self._charges_of[charge.task].append(charge)
        if charge.refunded_at is None:
            self._spent[charge.key] += charge.amount


def _created(task: Task) -> float:
    return task.created


def _flight_names(task: Task) -> tuple[str, ...]:
    return () if task.planted else ("", f"key:{task.key}", f"model:{task.model}")


def _finite(moment: float) -> float | None:
    return None if math.isinf(moment) else moment


def _moment(told: float | None) -> float:
    return math.inf if told is None else told


def task_record(task: Task, *, whole: bool = False) -> Record:
    """A task for JSON. Times that never come are null. `whole` keeps what only a replay needs."""
    record = {
        "id": task.id,
        "provider": task.provider,
        "key": task.key,
        "model": task.model,
        "correlation": task.correlation,
        "prompt": task.prompt,
        "kind": task.kind,
        "photos": task.photos,
        "created": task.created,
        "finish_at": _finite(task.finish_at),
        "outcome": task.outcome,
        "price": str(task.price),
        "fate": task.fate,
        "revives_at": _finite(task.revives_at),
        "planted": task.planted,
    }
    if whole:
        return record | {
            "params": dict(task.params),
            "webhook": task.webhook,
            "specs": [asdict(spec) for spec in task.specs],
        }
    return record | {
        "polls": task.polls,
        "last_poll_at": task.last_poll_at,
        "max_poll_gap_s": task.max_poll_gap_s,
        "downloads": task.downloads,
    }


def task_from_record(record: Record) -> Task:
    values = {name: value for name, value in record.items() if name != "event"}
    for name in ("finish_at", "revives_at"):
        values[name] = _moment(values[name])
    values["price"] = Decimal(values["price"])
    values["specs"] = tuple(Spec(**spec) for spec in values["specs"])
    return Task(**values)


def charge_record(charge: Charge) -> Record:
    return asdict(charge) | {"amount": str(charge.amount)}
