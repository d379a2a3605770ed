"""What bench.evidence sends to whom: accounts with what is known of their history, faults, and the order of it all. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from providers.sandbox.faults import CATALOGUE, EDGE_STATUSES, Stage

MODEL = (
    "text/lighthouse-keeper"  # words: a picture to decode for each send would be most of the work
)
LIKE = 16  # sends of one burst: same prompt, same model, created in one statement
STRUCK = 2  # of them; a share far below the breaker's, so that traffic goes on


class Group(StrEnum):
    """What the history tells, and so what may be expected."""

    ECHO = "echo"
    NO_ECHO = "no echo"
    NO_HISTORY = "no history"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An account and what has been measured of its history. `provider`: a name of PROVIDERS. `linked`: whether a send may be
    linked; `settles`: whether all must settle by themselves."""

    name: str
    group: Group
    provider: str
    echoes: bool | None
    lag_s: float | None
    exclusive: bool = False
    linked: bool = True
    settles: bool = False


def providers(lag_s: float) -> dict[str, dict[str, Any]]:
    """Settings of the sandboxes by name. A listing that stumbles and is asked for again is the rule, not the exception."""
    unread = {"reset_before_read": 0.02}
    stumbles = {"history_reset": 0.3}
    return {
        "echoing": {"echo": True, "history_lag_s": lag_s, "faults": unread | stumbles},
        "plain": {"echo": False, "faults": unread | stumbles},
        "calm": {"echo": False, "faults": stumbles},
        "gone": {"echo": True, "faults": unread | {"history_404": 1.0}},
        "mute": {"echo": True, "faults": unread | {"history_hang": 1.0}},
    }


def worlds(*, alone: int, lag_s: float) -> list[World]:
    """`alone`: how many accounts have one lost send each. What is not measured is None, as for any new key."""
    no_echo: dict[str, Any] = {"group": Group.NO_ECHO, "echoes": False, "lag_s": 0.0}
    nothing: dict[str, Any] = {"group": Group.NO_HISTORY, "echoes": None, "lag_s": None}
    measured: dict[str, Any] = {"group": Group.NO_HISTORY, "echoes": True, "lag_s": lag_s}
    return [
        World(
            name="echo", group=Group.ECHO, provider="echoing", echoes=True, lag_s=lag_s, exclusive=True, settles=True
        ),
        World(name="exclusive", provider="plain", exclusive=True, **no_echo),
        World(name="shared", provider="plain", linked=False, **no_echo),
        *(
            World(name=f"alone_{number}", provider="calm", exclusive=True, **no_echo)
            for number in range(1, alone + 1)
        ),
        World(name="unmeasured", provider="plain", linked=False, **nothing),
        World(name="unmeasured_echo", provider="echoing", **nothing),
        World(name="gone", provider="gone", linked=False, **measured),
        World(name="mute", provider="mute", linked=False, **measured),
    ]  # fmt: skip


def family(account: str) -> str:
    """The name under which an account is told of: those with one lost send each are one world."""
    return "alone" if account.startswith("alone_") else account


def key(account: str) -> str:
    """The account's API key: any of this form is an account of its own at a sandbox."""
    return f"pza_{account}"


def environment(
    size: Size, accounts: Sequence[World], base_urls: Mapping[str, str]
) -> dict[str, Any]:
    """The desk's settings. Those that are not named are the product's own."""
    found: dict[str, Any] = {
        "AI_ACCOUNTS": ",".join(f"{world.name}=polza" for world in accounts),
        "WORKER_CONCURRENCY": "256",
        "WORKER_LANES": str(size.lanes),
        "POST_DEADLINE_SEC": f"{size.post_deadline_s:g}",
        "RECONCILE_INTERVAL_SEC": f"{size.reconcile_s:g}",
        "POLL_INTERVAL_SEC": f"{size.poll_s:g}",
        # Hundreds of unknown sends at one target are what is wanted here.
        "EXPOSURE_LIMIT_PRICES": "100000",
    }
    for world in accounts:
        found[f"{world.name.upper()}_API_KEY"] = key(world.name)
        found[f"{world.name.upper()}_BASE_URL"] = base_urls[world.provider]
    return found


# --- faults -----------------------------------------------------------------------------------------------------------

KILL = "kill -9"
NAMED = ("reset before read", "reset after accept", "timeout", "cut answer", "edge page", KILL)
# After these the client knows: the answer came, or came late.
_TOLD = frozenset(
    {"slow_answer", "status_200", "status_201", "instant_completed", "instant_failed", "accepted_with_error"}
)  # fmt: skip
# Sooner than absence can be concluded; what comes later than that is not covered (docs/reliability.md).
_SPELLED = {"accept_late": "accept_late=5"}


def kind_of(fault: str) -> str:
    """What a fault of the repertoire is called in the table."""
    if fault.startswith("reset_"):
        return fault.replace("_", " ")
    if fault.startswith(("hang_", "slow_")):
        return "timeout"
    if fault.startswith("cut_"):
        return "cut answer"
    if fault.startswith("edge_"):
        return "edge page"
    return "taken up late" if fault == "accept_late" else "an error of its own"


def repertoire() -> tuple[list[str], list[str]]:
    """Every fault of a POST after which its outcome may be unknown: of the connection; of the answer, pages of proxies first.

    Left out: refusals known to be free, and with them the answers that lie about that (`deceptive`).
    """
    unsure = [
        fault.name
        for fault in CATALOGUE.values()
        if fault.stage in {Stage.HEAD, Stage.SUBMIT}
        and fault.name not in _TOLD
        and not fault.deceptive
        and not ((after := CATALOGUE.get(f"{fault.name}_after")) and after.deceptive)
    ]
    pages = {f"edge_{status}{after}" for status in EDGE_STATUSES for after in ("", "_after")}
    first = next(name for name in unsure if name in pages)
    connection = unsure[: unsure.index(first)]
    answers = [name for name in unsure if name not in connection]
    return connection, answers


def deck(rng: random.Random) -> Iterator[str]:
    """Faults without end: all of the connection in each round, with a quarter of the others. A round begins with what every
    world must have seen."""
    connection, answers = repertoire()
    pages, others = answers[:2], answers[2:]
    while True:
        rng.shuffle(others)
        share = -(-len(others) // 4)
        for start in range(0, len(others), share):
            must, more = [*connection, *pages], others[start : start + share]
            rng.shuffle(must)
            yield from must
            yield from more


def marked(words: str, faults: Sequence[str]) -> str:
    """A prompt whose first sends are struck, each by one fault; those after them are not."""
    markers = (f"[[fault:{_SPELLED.get(fault, fault)}:1]]" for fault in faults)
    return " ".join((words, *markers))


# --- the plan ---------------------------------------------------------------------------------------------------------

ALONE = (
    "reset_before_accept", "reset_after_accept", "edge_502", "cut_before_id", "hang_before_accept", "hang_after_accept",
    "internal", "edge_524_after", "reset_before_read", "cut_headers", "own_504", "own_502_after",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One run. Seconds; `bursts` by world. `dated_back_s`: see evidence_run.py."""

    seconds: float
    bursts: dict[str, int]
    alone: int
    kills: int
    lanes: int
    runs: int
    post_deadline_s: float
    reconcile_s: float
    poll_s: float
    lag_s: float
    slow_s: float  # how long the answer takes that a kill comes before
    limit_s: float
    dated_back_s: float = 0.0

    @property
    def bursts_s(self) -> float:
        """So early that a timeout is one before the last kill."""
        return self.seconds - self.post_deadline_s


# The product's own times, but for how long a generation takes and what the lag is.
FULL = Size(
    seconds=510.0, alone=12, kills=10, lanes=2, runs=1000,
    bursts={
        "echo": 190, "exclusive": 85, "shared": 85, "unmeasured": 45, "unmeasured_echo": 45, "gone": 45, "mute": 15,
    },
    post_deadline_s=30.0, reconcile_s=30.0, poll_s=3.0, lag_s=5.0, slow_s=20.0, limit_s=840.0,
)  # fmt: skip
QUICK = Size(
    seconds=11.0, alone=4, kills=1, lanes=1, runs=45,
    bursts={
        "echo": 6, "exclusive": 4, "shared": 3, "unmeasured": 2, "unmeasured_echo": 2, "gone": 2, "mute": 1,
    },
    post_deadline_s=4.0, reconcile_s=2.0, poll_s=0.5, lag_s=1.0, slow_s=3.0, limit_s=120.0, dated_back_s=30.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Burst:
    """`count` like jobs at `at_s` for the account `world`."""

    at_s: float
    world: str
    prompt: str
    count: int
    reference: str


WARM_S = 2.0
KILLED = ("echo", "exclusive", "unmeasured", "gone")


def plan(size: Size, accounts: Sequence[World], seed: int) -> list[Burst]:
    """Everything that is sent but the canaries, by its time. Each world begins with sends that go well: a provider that
    fails from the first one on is taken for down."""
    rng = random.Random(seed)
    decks = {group: deck(rng) for group in Group}
    found = [Burst(0.0, world.name, f"a warm stove, {world.name}", LIKE // 2, "warm") for world in accounts]  # fmt: skip
    alone = iter(ALONE)
    for world in accounts:
        if family(world.name) == "alone":
            at_s = WARM_S + rng.random() * size.bursts_s / 6
            prompt = marked(f"a lone lighthouse, {world.name}", [next(alone)])
            found.append(Burst(at_s, world.name, prompt, LIKE // 3, "alone"))
            continue
        count = size.bursts[world.name]
        for number in range(count):
            at_s = WARM_S + (number + rng.random()) * (size.bursts_s - WARM_S) / count
            faults = [next(decks[world.group]) for _ in range(STRUCK)]
            words = f"a lighthouse, {world.name} {number}"
            found.append(Burst(at_s, world.name, marked(words, faults), LIKE, "burst"))
    for number in range(size.kills):
        # The last one at the end: it takes along whatever else is under way.
        at_s = WARM_S + (number + 1) * (size.seconds - WARM_S) / size.kills
        for name in KILLED:
            prompt = (
                f"a lighthouse in a storm, {name} {number}"
                f" [[fault:slow_answer={size.slow_s:g}:3]] [[fault:hang_before_accept:2]]"
            )
            found.append(Burst(at_s, name, prompt, LIKE // 2, f"kill {number}"))
    return sorted(found)
