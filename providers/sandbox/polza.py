"""Polza's media contract (https://polza.ai/docs/api-reference): submit, poll, balance and key. What a task looks like: polza_task.py; history: polza_history.py."""

from __future__ import annotations

import json
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

from . import polza_answers, polza_history, polza_task
from .common import NotUnderstoodError, Speaker, a_prompt, an_object, missing
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Task, fingerprint
from .reactions import Reaction, Request, json_reaction
from .submission import Submission


class Polza(Speaker):
    """`/api/v1/...` of the sandbox. Any `Bearer pza_...` is an account of its own."""

    name = "polza"
    prefix = "/api/v1/"

    def key_of(self, request: Request) -> str:
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

    def error_at(self, status: int, now: float, wait_s: float) -> Reaction:
        return polza_answers.error_at(status, trace=self.trace(), wait_s=wait_s, now=now)

    def turned_away(self, now: float) -> Reaction:
        return self.error("turned_away", now)

    # --- routing ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request, now: float) -> Reaction:
        key = self.key_of(request)
        path = request.path.removeprefix(self.prefix)
        if request.method == "POST" and path == "media":
            return self.submit(request, key, now)
        denied = self.denied(request, key, now)
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

    # --- submit -------------------------------------------------------------------------------------------------------

    def read(self, request: Request, key: str) -> Submission:
        body = an_object(request.body, "Тело запроса должно быть объектом JSON")
        model, given = body.get("model"), body.get("input")
        if not isinstance(model, str) or not model:
            raise NotUnderstoodError("Не указан параметр `model`")
        if not isinstance(given, dict):
            raise NotUnderstoodError("Не указан параметр `input`")
        prompt = a_prompt(given.get("prompt"), "Не указан параметр `input.prompt`")
        user = body.get("user", "")
        if not isinstance(user, str):
            raise NotUnderstoodError("Параметр `user` должен быть строкой")
        photos = given.get("images") or []
        if not isinstance(photos, list) or not all(
            isinstance(one, dict) and one.get("data") for one in photos
        ):
            raise NotUnderstoodError("Недопустимое значение параметра `input.images`")
        return Submission(
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
            specs=self.specs_of(request, prompt=prompt, model=model),
            max_price=_ceiling(body.get("provider")),
            webhook=_callback(given.get("callBackUrl")),
        )

    def accepted(self, task: Task, request: Request, now: float) -> Reaction:
        return json_reaction(polza_task.face(task, "pending"), self.world.settings.submit_status)

    def webhook(self, task: Task, request: Request, now: float) -> dict[str, Any]:
        """Polza tells nothing of its shape: what every answer about a task has."""
        return polza_task.face(task, task.status_at(now))

    def answered(self, task: Task, request: Request, now: float, *, instant: bool) -> Reaction:
        wait = json.loads(request.body).get("async", False) is not True
        if not (wait or instant):
            return self.accepted(task, request, now)
        if task.ended_at(now):
            return polza_task.told(task, request, now)
        hold_s = min(self.world.settings.sync_hold_s, task.finish_at - now)
        return Reaction(
            delay_s=hold_s, then=lambda: polza_task.told(task, request, self.world.tick())
        )

    # --- poll ---------------------------------------------------------------------------------------------------------

    def _poll(
        self, request: Request, key: str, task_id: str, specs: tuple[Spec, ...], now: float
    ) -> Reaction:
        task = self.polled(task_id, key, now)

        def good() -> Reaction:
            if task is None or missing(task, now):
                return self.error("not_found", now)
            return polza_task.told(task, request, now)

        specs = (*specs, *(task.specs if task is not None else ()))
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


def _callback(value: Any) -> str:
    if not isinstance(value, str | None):
        raise NotUnderstoodError("Недопустимое значение параметра `input.callBackUrl`")
    return value or ""


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
