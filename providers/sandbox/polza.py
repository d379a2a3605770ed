"""Polza's media contract (https://polza.ai/docs/api-reference): submit, poll, balance and key. What a task looks like: polza_task.py; history: polza_history.py."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from . import edge, files, polza_answers, polza_history, polza_task
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Post, Task, fingerprint
from .reactions import Reaction, Request, Transport, json_reaction
from .submission import Limit, Submission

if TYPE_CHECKING:
    from .world import World

_LIMITS = {
    "no_model": "bad_model",
    "too_dear": "too_dear",
    "no_balance": "no_balance",
    "key_limit": "key_limit",
    "quota": "rate_limited",
    "concurrency": "rate_limited",
}


class NotUnderstoodError(ValueError):
    """The request is not in Polza's shape; the text is what it complains about."""


class Polza:
    """`/api/v1/...` of the sandbox. Any `Bearer pza_...` is an account of its own."""

    name = "polza"
    prefix = "/api/v1/"

    def __init__(self, world: World) -> None:
        self.world = world

    def key_of(self, request: Request) -> str:
        """The fingerprint of the key a request shows, "" if none or not of Polza's form."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return fingerprint(key) if scheme.lower() == "bearer" and key.startswith("pza_") else ""

    def trace(self) -> str:
        return str(uuid.UUID(int=self.world.rng.getrandbits(128), version=4))

    def new_id(self) -> str:
        return f"gen_{self.world.rng.randrange(10**17, 10**18)}"

    def error(self, name: str, now: float, wait_s: float = 0.0) -> Reaction:
        return polza_answers.own_error(name, trace=self.trace(), wait_s=wait_s, now=now)

    def complain(self, message: str) -> Reaction:
        return polza_answers.complaint(message, trace=self.trace())

    def trouble(
        self, name: str, value: float, good: Callable[[], Reaction], now: float
    ) -> Reaction:
        """One of READ_TROUBLES in Polza's words. `good` is asked for only where it travels."""
        if name.isdigit():
            return polza_answers.error_at(int(name), trace=self.trace(), wait_s=value, now=now)
        match name:
            case "502_html" | "524_html":
                return edge.page(int(name[:3]))
            case "garbage" | "empty":
                return self.error(f"ok_{name}", now)
            case "reset" | "hang":
                return files.misbehaving(name, value, Reaction())
        return files.misbehaving(name, value, good())

    # --- routing ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request, now: float) -> Reaction:
        key = self.key_of(request)
        path = request.path.removeprefix(self.prefix)
        if request.method == "POST" and path == "media":
            self.world.ledger.requests["posts"] += 1
            return self._submit(request, key, now)
        denied = self._denied(request, key, now)
        if denied is not None:
            return denied
        if request.method != "GET":
            return self.error("not_found", now)
        try:
            return self._read_call(request, key, path, now)
        except ValueError as wrong:  # a parameter, or a fault that does not exist
            return self.complain(str(wrong))

    def _read_call(self, request: Request, key: str, path: str, now: float) -> Reaction:
        specs = asked_for(header=request.headers.get(HEADER, ""))
        if path.startswith("media/"):
            return self._poll(request, key, path.removeprefix("media/"), specs, now)
        if path == "history/generations":
            return polza_history.listing(self, request, key, specs, now)
        if path.startswith("history/generations/"):
            task_id = path.removeprefix("history/generations/")
            return polza_history.receipt(self, key, task_id, specs, now)
        if path in {"balance", "key"}:
            return self._money(key, path, specs, now)
        return self.error("not_found", now)

    def _denied(self, request: Request, key: str, now: float) -> Reaction | None:
        if not key:
            return self.error("unauthorized", now)
        shown = request.headers["authorization"].partition(" ")[2]
        revoked = self.world.settings.revoked_keys
        return self.error("key_revoked", now) if key in revoked or shown in revoked else None

    def troubled(self, spec: Spec | None, good: Callable[[], Reaction], now: float) -> Reaction:
        """The right answer to a read, or what a fault of its stage makes of it."""
        if spec is None:
            return good()
        return self.trouble(spec.name.partition("_")[2], spec.value_or_default(), good, now)

    # --- submit -------------------------------------------------------------------------------------------------------

    def _submit(self, request: Request, key: str, now: float) -> Reaction:
        post = Post(now, key, self.name)
        reaction = self._denied(request, key, now)
        if reaction is None:
            try:
                submission, wait = self._read(request, key)
            except ValueError as wrong:
                reaction = self.complain(str(wrong))
            else:
                post.correlation, post.model = submission.correlation, submission.model
                reaction = self._take(request, submission, post, wait=wait, now=now)
        if reaction.transport not in {Transport.RESET, Transport.HANG, Transport.CUT_HEADERS}:
            post.status = reaction.status
        self.world.ledger.add_post(post)
        return reaction

    def _read(self, request: Request, key: str) -> tuple[Submission, bool]:
        """The submission and whether the client wants to wait. Raises ValueError (NotUnderstoodError, or an unknown fault) with what Polza would complain about."""
        try:
            body = json.loads(request.body)
        except ValueError:
            raise NotUnderstoodError("Тело запроса не является JSON") from None
        if not isinstance(body, dict):
            raise NotUnderstoodError("Тело запроса должно быть объектом")
        model, given = body.get("model"), body.get("input")
        if not isinstance(model, str) or not model:
            raise NotUnderstoodError("Не указан параметр `model`")
        if not isinstance(given, dict):
            raise NotUnderstoodError("Не указан параметр `input`")
        prompt = given.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise NotUnderstoodError("Не указан параметр `input.prompt`")
        user, wait = body.get("user", ""), body.get("async", False) is not True
        if not isinstance(user, str):
            raise NotUnderstoodError("Параметр `user` должен быть строкой")
        photos = given.get("images") or []
        if not isinstance(photos, list) or not all(
            isinstance(one, dict) and one.get("data") for one in photos
        ):
            raise NotUnderstoodError("Недопустимое значение параметра `input.images`")
        submission = Submission(
            provider=self.name,
            key=key,
            model=model,
            correlation=user,
            prompt=prompt,
            kind="text" if model.startswith("text/") else "image",
            params={
                name: value for name, value in given.items() if name not in {"prompt", "images"}
            },
            photos=len(photos),
            specs=asked_for(header=request.headers.get(HEADER, ""), prompt=prompt, model=model),
            max_price=_ceiling(body.get("provider")),
        )
        return submission, wait

    def _take(
        self, request: Request, submission: Submission, post: Post, *, wait: bool, now: float
    ) -> Reaction:
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
        if limit is not None:
            return self._over(*limit, now)
        instant = (
            spec.name.partition("_")[2]
            if spec is not None and spec.name.startswith("instant_")
            else ""
        )
        task = world.accept(submission, self.new_id(), now, instant=instant)
        post.accepted, post.task = True, task.id
        if spec is not None and not instant:
            return self._misbehaviour(spec, self._accepted(task), now)
        if wait and not task.ended_at(now):
            hold_s = min(world.settings.sync_hold_s, task.finish_at - now)
            return Reaction(
                delay_s=hold_s, then=lambda: polza_task.told(task, request, world.tick())
            )
        if wait or instant:
            return polza_task.told(task, request, now)
        return self._accepted(task)

    def _over(self, limit: Limit, wait_s: float, now: float) -> Reaction:
        name = _LIMITS[limit]
        if name == "rate_limited" and self.world.settings.retry_after != "none":
            name = f"rate_limited_{self.world.settings.retry_after}"
        return self.error(name, now, wait_s)

    def _accepted(self, task: Task) -> Reaction:
        return json_reaction(polza_task.face(task, "pending"), self.world.settings.submit_status)

    def _misbehaviour(self, spec: Spec, accepted: Reaction, now: float) -> Reaction:
        """What a client sees of a SUBMIT fault. `accepted` is the right answer where a task was created."""
        value = spec.value_or_default()
        name = spec.name.removesuffix("_after")
        if name.startswith("edge_"):
            return edge.page(int(name.removeprefix("edge_")), delay_s=value)
        if name.startswith("status_"):
            return replace(accepted, status=int(name.removeprefix("status_")))
        if name == "accepted_with_error":
            error = {"code": "INTERNAL_ERROR", "message": "Внутренняя ошибка сервера"}
            return json_reaction(json.loads(accepted.body) | {"error": error})
        if name in _BROKEN:
            return replace(_BROKEN[name](accepted, value), status=accepted.status)
        delay_s = 0.0 if name.startswith("rate_limited") else value
        return replace(self.error(name, now, value), delay_s=delay_s)

    # --- poll ---------------------------------------------------------------------------------------------------------

    def _poll(
        self, request: Request, key: str, task_id: str, specs: tuple[Spec, ...], now: float
    ) -> Reaction:
        ledger = self.world.ledger
        ledger.requests["polls"] += 1
        task = ledger.tasks.get(task_id)
        if task is not None and task.key == key:
            task.polls += 1
            if task.last_poll_at is not None:
                task.max_poll_gap_s = max(task.max_poll_gap_s, now - task.last_poll_at)
            task.last_poll_at = now
            specs = (*specs, *task.specs)

        def good() -> Reaction:
            if task is None or task.key != key or polza_task.missing(task, now):
                return self.error("not_found", now)
            return polza_task.told(task, request, now)

        return self.troubled(self.world.pick(Stage.POLL, specs, task_id), good, now)

    # --- money --------------------------------------------------------------------------------------------------------

    def _money(self, key: str, path: str, specs: tuple[Spec, ...], now: float) -> Reaction:
        world = self.world
        world.ledger.requests[path] += 1

        def good() -> Reaction:
            spent, left = world.ledger.spent(key), world.balance(key)
            if path == "balance":
                amount = left if left is not None else Decimal(1_000_000) - spent
                return json_reaction({"amount": f"{amount:.8f}", "spentAmount": f"{spent:.8f}"})
            limit = world.settings.key_limit
            return json_reaction(
                {
                    "name": f"sandbox {key}",
                    "limit": None if limit is None else str(limit),
                    "limitRemaining": None if limit is None else str(limit - spent),
                    "usage": str(spent),
                }
            )

        return self.troubled(world.pick(Stage.BALANCE, specs, key), good, now)


# How a connection breaks, from the right answer and the fault's value in seconds.
_BROKEN: dict[str, Callable[[Reaction, float], Reaction]] = {
    **dict.fromkeys(
        ("reset_before_read", "reset_before_accept", "reset_after_accept"),
        lambda good, value: Reaction(transport=Transport.RESET, delay_s=value),
    ),
    **dict.fromkeys(
        ("hang_before_accept", "hang_after_accept"),
        lambda good, value: Reaction(transport=Transport.HANG),
    ),
    "slow_answer": lambda good, value: replace(good, delay_s=value),
    "slow_drip": lambda good, value: replace(good, transport=Transport.DRIP, drip_s=value),
    "cut_after_id": lambda good, value: replace(
        good, transport=Transport.CUT, cut_after=good.body.index(b'",') + 2
    ),
    "cut_before_id": lambda good, value: replace(good, transport=Transport.CUT, cut_after=4),
    "cut_headers": lambda good, value: replace(good, transport=Transport.CUT_HEADERS),
}


def _ceiling(provider: Any) -> Decimal | None:
    """`provider.max_price`: its amount for an image, else for a request; None where neither is given."""
    prices = provider.get("max_price") if isinstance(provider, dict) else provider
    if prices is None:
        return None
    if not isinstance(prices, dict):
        raise NotUnderstoodError("Недопустимое значение параметра `provider`")
    amount = prices.get("image", prices.get("request"))
    try:
        return None if amount is None else Decimal(str(amount))
    except InvalidOperation:
        raise NotUnderstoodError("Недопустимое значение параметра `provider.max_price`") from None
