"""Who moves next. Each actor lives in a thread of its own, and exactly one of them runs at a time.

An actor runs until a gate (just before or after something that the world can see) or until it has nothing to do, then
gives the turn back. So everything that may interleave does, in an order that the seed decides, on a virtual clock that
moves only here.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import selectors
import threading
from collections.abc import Callable, Iterator
from typing import Any

from bench.sim.chance import Chance


class Killed(BaseException):
    """The actor's process is gone."""


class Actor:
    """Somebody with a process: a lane, a person at the admin."""

    def __init__(self, turns: Turns, name: str, live: Callable[[], None]) -> None:
        self.turns, self.name = turns, name
        self.wake_at = turns.now
        self.frozen_until = 0.0
        self.dead = self.over = False
        self.inbox: list[Callable[[], None]] = []
        self.left: list[asyncio.Task[Any]] = []
        self.stop: Callable[[], None] = lambda: None
        self._live = live
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.dead:
                self._live()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  the driver raises it
            self.turns.failure = error
        self.over = True
        self.turns.pass_on()

    def take_turn(self) -> None:
        """Whoever has the turn calls this to give it to the actor."""
        if not self._thread.ident:
            self._thread.start()
        self._turn.release()

    def wait(self, until: float) -> None:
        """Called by the actor: give the turn back; it comes again at `until` or when something lies in the inbox."""
        self.wake_at = until
        if self.turns.pass_on() is not self:
            self._turn.acquire()
        if self.dead:
            raise Killed

    def due_at(self) -> float:
        at = self.turns.now if self.inbox else self.wake_at
        return max(at, self.frozen_until)


class Turns:
    """The clock, the actors, and what will happen by itself.

    Whoever ends a turn finds out who moves next and hands it on, so that a turn costs one change of threads, or none.
    `between` is called before each step, by whichever thread that is.
    """

    def __init__(self, chance: Chance) -> None:
        self.now = 1000.0
        self.chance = chance
        self.actors: list[Actor] = []
        self.everybody: list[Actor] = []
        self.current: Actor | None = None
        self.steps = 0
        self.story: list[str] = []
        self.failure: BaseException | None = None
        self.between: Callable[[], None] = lambda: None
        self.on_advance: Callable[[float], None] = lambda _seconds: None
        self.before_move: Callable[[], None] = lambda: None
        self._until: Callable[[], bool] = lambda: True
        self._driver = threading.Semaphore(0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def tell(self, what: str) -> None:
        who = self.current.name if self.current else "-"
        self.story.append(f"{self.now - 1000:9.2f} s  {who:<8} {what}")

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """`act` happens then, whoever lives."""
        heapq.heappush(self._events, (moment, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def start(self, name: str, live: Callable[[], None]) -> Actor:
        actor = Actor(self, name, live)
        self.actors.append(actor)
        self.everybody.append(actor)
        return actor

    def run(self, until: Callable[[], bool]) -> None:
        """Step by step until `until` says so. Raises what failed in an actor or in between."""
        self._until = until
        if self.pass_on() is not None:
            self._driver.acquire()
        if self.failure is not None:
            raise self.failure

    def pass_on(self) -> Actor | None:
        """The turn goes to the next actor, or (None) to the driver; the caller may be the next itself."""
        before, self.current = self.current, None
        try:
            following = None if self.failure else self._next()
        except BaseException as error:  # noqa: BLE001  the driver raises it
            self.failure, following = error, None
        if following is None:
            if before is not None:
                self._driver.release()
            return None
        self.current = following
        self.before_move()
        if following is not before:
            following.take_turn()
        return following

    def _next(self) -> Actor | None:
        while True:
            self.between()
            if self._until():
                return None
            self.steps += 1
            if self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
                continue
            self.actors = [actor for actor in self.actors if not actor.over]
            ready = [actor for actor in self.actors if actor.due_at() <= self.now]
            if ready:
                return self.chance.pick("turn", ready) if len(ready) > 1 else ready[0]
            next_event = self._events[0][0] if self._events else math.inf
            next_at = min([next_event, *(actor.due_at() for actor in self.actors)])
            self.advance(1.0 if math.isinf(next_at) else next_at - self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.on_advance(seconds)

    def gate(self) -> None:
        """Called by an actor where others may come in between. Raises Killed in the place of one that has died."""
        actor = self.current
        if actor is not None:
            actor.wait(self.now)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What the harness itself asks in an actor's turn: no gate, nobody moves meanwhile, and no time passes."""
        current, self.current = self.current, None
        try:
            yield
        finally:
            self.current = current

    def bury(self) -> None:
        """End all threads; nothing of them acts any more."""
        self._until = lambda: True
        for actor in self.everybody:
            actor.dead = True
        for actor in self.everybody:
            if not actor.over:
                self.current = actor
                actor.take_turn()
                self._driver.acquire()
        self.current = None


# --- an event loop on that clock --------------------------------------------------------------------------------------


class _Selector(selectors.SelectSelector):
    """Instead of sleeping, gives the turn back."""

    actor: Actor
    loop: Loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.actor.wait(math.inf if timeout is None else self.actor.turns.now + timeout)
            inbox, self.actor.inbox = self.actor.inbox, []
            for deliver in inbox:
                self.loop.call_soon(deliver)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """asyncio on the virtual clock; what goes to a thread elsewhere is done on the spot."""

    def __init__(self, actor: Actor) -> None:
        selector = _Selector()
        super().__init__(selector)
        selector.actor, selector.loop = actor, self
        self._turns = actor.turns
        self._clock_resolution = 1e-6
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        return self._turns.now

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  handed on
            future.set_exception(error)
        return future


def live_in_loop(actor: Actor, main: Callable[[], Any]) -> None:
    """Run a coroutine function in a loop of the actor's own. What a death leaves unfinished is kept in `actor.left`."""
    loop = Loop(actor)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  they died with their process
        actor.left = list(left)
        asyncio.set_event_loop(None)
        loop.close()
