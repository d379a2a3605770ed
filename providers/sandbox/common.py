"""What all providers of the sandbox do alike: take a POST through keys, limits and faults, and misbehave on the way back."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import edge, files
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Post, Task
from .reactions import Reaction, Request, Transport, json_reaction
from .submission import Limit, Submission

if TYPE_CHECKING:
    from .world import World

_ID_AT_THE_FRONT = re.compile(rb'\{"[a-z_]+": "[^"]+",')
# What each limit is called among the errors of a provider (faults.OWN_ERRORS), unless it says otherwise.
LIMITS: Mapping[Limit, str] = {
    Limit.NO_MODEL: "bad_model",
    Limit.TOO_DEAR: "too_dear",
    Limit.NO_BALANCE: "no_balance",
    Limit.KEY_LIMIT: "key_limit",
    Limit.QUOTA: "rate_limited",
    Limit.CONCURRENCY: "rate_limited",
}


class NotUnderstoodError(ValueError):
    """The request is not in the provider's shape; the text is what it complains about."""


class Speaker(ABC):
    """One provider's HTTP over the common core; what is left open here is its own."""

    name: str
    prefix: str
    limits: Mapping[Limit, str] = LIMITS
    free_posts: frozenset[str] = frozenset()  # paths of POSTs that ask for no generation
    signs_webhooks = False

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    def key_of(self, request: Request) -> str:
        """The fingerprint of the key a request shows, "" if none or not of the provider's form."""

    @abstractmethod
    def error(self, name: str, now: float, wait_s: float = 0.0) -> Reaction:
        """One of faults.OWN_ERRORS (or `too_dear`) in the provider's words."""

    @abstractmethod
    def error_at(self, status: int, now: float, wait_s: float) -> Reaction:
        """The provider's words for a bare status, as its reads give it."""

    @abstractmethod
    def complain(self, message: str) -> Reaction: ...

    @abstractmethod
    def new_id(self) -> str: ...

    @abstractmethod
    def read(self, request: Request, key: str) -> Submission:
        """Raises ValueError (NotUnderstoodError, or an unknown fault) with what the provider would complain about."""

    @abstractmethod
    def accepted(self, task: Task, request: Request, now: float) -> Reaction:
        """The right answer to the POST that made the task, also where it misbehaves on its way back."""

    def answered(self, task: Task, request: Request, now: float, *, instant: bool) -> Reaction:
        """The right answer where nothing goes wrong. `instant`: the task has ended already."""
        return self.accepted(task, request, now)

    def webhook(self, task: Task, request: Request, now: float) -> dict[str, Any]:
        """What is POSTed where a submission asked for it. ValueError: this provider calls nobody."""
        raise ValueError(f"{self.name} calls nobody")

    # --- reads --------------------------------------------------------------------------------------------------------

    def denied(self, request: Request, key: str, now: float) -> Reaction | None:
        if not key:
            return self.error("unauthorized", now)
        shown = request.headers["authorization"].partition(" ")[2]
        revoked = self.world.settings.revoked_keys
        return self.error("key_revoked", now) if key in revoked or shown in revoked else None

    def trouble(
        self, name: str, value: float, good: Callable[[], Reaction], now: float
    ) -> Reaction:
        """One of READ_TROUBLES in the provider's words. `good` is asked for only where it travels."""
        if name.isdigit():
            return self.error_at(int(name), now, value)
        match name:
            case "502_html" | "524_html":
                return edge.page(int(name[:3]))
            case "garbage" | "empty":
                return self.error(f"ok_{name}", now)
            case "reset" | "hang":
                return files.misbehaving(name, value, Reaction())
        return files.misbehaving(name, value, good())

    def turned_away(self, now: float) -> Reaction:
        """The provider has no room for anybody, and has begun nothing."""
        return self.error("overloaded", now)

    def troubled(self, spec: Spec | None, good: Callable[[], Reaction], now: float) -> Reaction:
        """The right answer to a read, or what a fault of its stage makes of it."""
        if spec is None:
            return good()
        return self.trouble(spec.name.partition("_")[2], spec.value_or_default(), good, now)

    def polled(self, task_id: str, key: str, now: float) -> Task | None:
        """Books that the key asks for a task; None where it has none of that name."""
        ledger = self.world.ledger
        ledger.requests["polls"] += 1
        task = ledger.tasks.get(task_id)
        if task is None or task.key != key:
            return None
        task.polls += 1
        if task.last_poll_at is not None:
            task.max_poll_gap_s = max(task.max_poll_gap_s, now - task.last_poll_at)
        task.last_poll_at = now
        return task

    # --- the paid POST ------------------------------------------------------------------------------------------------

    def submit(self, request: Request, key: str, now: float) -> Reaction:
        self.world.ledger.requests["posts"] += 1
        post = Post(now, key, self.name)
        reaction = self.denied(request, key, now)
        if reaction is None:
            try:
                submission = self.read(request, key)
            except ValueError as wrong:
                reaction = self.complain(str(wrong))
            else:
                post.correlation, post.model = submission.correlation, submission.model
                reaction = self._take(request, submission, post, now)
        if reaction.transport not in {Transport.RESET, Transport.HANG, Transport.CUT_HEADERS}:
            post.status = reaction.status
        self.world.ledger.add_post(post)
        return reaction

    def specs_of(self, request: Request, *, prompt: str, model: str) -> tuple[Spec, ...]:
        return asked_for(header=request.headers.get(HEADER, ""), prompt=prompt, model=model)

    def _take(self, request: Request, submission: Submission, post: Post, now: float) -> Reaction:
        """Refuses or accepts, and misbehaves. Completes the log entry."""
        world = self.world
        # The header's were asked before the body was read.
        late_told = tuple(spec for spec in submission.specs if spec.source != "header")
        unread = world.strikes.pick(Stage.HEAD, late_told, submission.prompt)
        spec = unread or world.pick(Stage.SUBMIT, submission.specs, submission.prompt)
        post.fault = spec.name if spec is not None else ""
        if spec is not None and not spec.fault.accepts:
            if spec.name == "accept_late":
                world.accept_later(
                    submission, self.new_id(), now + spec.value_or_default(world.settings.scale)
                )
                return Reaction(transport=Transport.RESET)
            return self._misbehaviour(spec, Reaction(), now)
        limit = world.limit_for(submission, now)
        if limit is not None and limit[0] in self.limits:
            return self._over(*limit, now)
        instant = (
            spec.name.partition("_")[2]
            if spec is not None and spec.name.startswith("instant_")
            else ""
        )
        task = world.accept(submission, self.new_id(), now, instant=instant)
        post.accepted, post.task = True, task.id
        if spec is not None and not instant:
            return self._misbehaviour(spec, self.accepted(task, request, now), now)
        return self.answered(task, request, now, instant=bool(instant))

    def _over(self, limit: Limit, wait_s: float, now: float) -> Reaction:
        name = self.limits[limit]
        if name == "rate_limited" and self.world.settings.retry_after != "none":
            name = f"rate_limited_{self.world.settings.retry_after}"
        reaction = self.error(name, now, wait_s)
        if limit is Limit.KEY_LIMIT and wait_s:
            told = ("retry-after", str(math.ceil(wait_s)))
            reaction = replace(reaction, headers=(*reaction.headers, told))
        return reaction

    def _misbehaviour(self, spec: Spec, accepted: Reaction, now: float) -> Reaction:
        """What a client sees of a SUBMIT fault. `accepted` is the right answer where a task was created."""
        value = spec.value_or_default()
        name = spec.name.removesuffix("_after")
        if name.startswith("edge_"):
            return edge.page(int(name.removeprefix("edge_")), delay_s=value)
        if name.startswith("status_"):
            status = int(name.removeprefix("status_"))
            return at_last(accepted, lambda good: replace(good, status=status))
        if name == "accepted_with_error":
            return at_last(accepted, self.with_error)
        if name in _CUT_OFF:
            return replace(_CUT_OFF[name](value), status=accepted.status)
        if name in _SPOILT:
            return at_last(accepted, lambda good: _SPOILT[name](good, value))
        delay_s = 0.0 if name.startswith("rate_limited") else value
        return replace(self.error(name, now, value), delay_s=delay_s)

    def with_error(self, good: Reaction) -> Reaction:
        """The right answer with an error beside it."""
        error = json.loads(self.error("internal", 0.0).body)
        return replace(good, body=json_reaction(json.loads(good.body) | error).body)


def missing(task: Task, now: float) -> bool:
    """The provider answers 404 although the task exists."""
    if "lost" in task.fate or "vanished" in task.fate:
        return True
    if "missing_first" in task.fate and now < task.created + task.fate["missing_first"]:
        return True
    return "lost_later" in task.fate and now >= task.created + (task.finish_at - task.created) / 2


def told_at_the_end(
    task: Task, now: float, told: Callable[[float], Reaction], tick: Callable[[], float]
) -> Reaction:
    """A synchronous provider's answer: when the task has ended."""
    if task.ended_at(now):
        return told(now)
    if math.isinf(task.finish_at):
        return Reaction(transport=Transport.HANG)
    return Reaction(delay_s=task.finish_at - now, then=lambda: told(tick()))


def at_last(reaction: Reaction, spoil: Callable[[Reaction], Reaction]) -> Reaction:
    """Spoils what is sent in the end, however long it is waited for."""
    then = reaction.then
    if then is None:
        return spoil(reaction)
    return replace(reaction, then=lambda: at_last(then(), spoil))


def a_prompt(value: Any, where: str) -> str:
    """A text with something in it; NotUnderstoodError names where it is missing."""
    if not isinstance(value, str) or not value.strip():
        raise NotUnderstoodError(where)
    return value


def an_object(body: bytes, complaint: str) -> dict[str, Any]:
    """The JSON object of a request; NotUnderstoodError with the complaint for anything else."""
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    if not isinstance(read, dict):
        raise NotUnderstoodError(complaint)
    return read


# How a connection ends without an answer, by the fault's value in seconds.
_CUT_OFF: Mapping[str, Callable[[float], Reaction]] = {
    **dict.fromkeys(
        ("reset_before_read", "reset_before_accept", "reset_after_accept"),
        lambda value: Reaction(transport=Transport.RESET, delay_s=value),
    ),
    **dict.fromkeys(
        ("hang_before_accept", "hang_after_accept"),
        lambda value: Reaction(transport=Transport.HANG),
    ),
}
# What becomes of the right answer.
_SPOILT: Mapping[str, Callable[[Reaction, float], Reaction]] = {
    "slow_answer": lambda good, value: replace(good, delay_s=good.delay_s + value),
    "slow_drip": lambda good, value: replace(good, transport=Transport.DRIP, drip_s=value),
    "cut_after_id": lambda good, value: replace(
        good, transport=Transport.CUT, cut_after=_after_id(good.body)
    ),
    "cut_before_id": lambda good, value: replace(good, transport=Transport.CUT, cut_after=4),
    "cut_headers": lambda good, value: replace(good, transport=Transport.CUT_HEADERS),
}


def _after_id(body: bytes) -> int:
    """Just behind the id that stands first; where a provider names none, half of the body."""
    found = _ID_AT_THE_FRONT.match(body)
    return found.end() if found else len(body) // 2
