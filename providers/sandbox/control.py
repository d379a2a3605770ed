"""The control API under /_sandbox/: reads the ledger and changes how the sandbox behaves. docs/sandbox.md lists it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Any

from .faults import CATALOGUE
from .ledger import charge_record, fingerprint, task_record
from .polza import Polza
from .reactions import Reaction, Request, json_reaction
from .settings import Settings
from .submission import Submission
from .world import World

PREFIX = "/_sandbox/"
_FINGERPRINT = re.compile(r"[0-9a-f]{12}")


class Control:
    """Answers as JSON; 400 with `{"error": …}` for what it cannot do, and then nothing was changed."""

    def __init__(self, world: World, *, first_settings: Settings) -> None:
        self.world = world
        self._first_settings = first_settings
        self._calls: dict[tuple[str, str], Callable[[Request, dict[str, Any]], Any]] = {
            ("GET", ""): lambda request, body: {
                "calls": sorted(" ".join(call) for call in self._calls)
            },
            ("GET", "ledger"): lambda request, body: self.ledger(request),
            ("GET", "summary"): lambda request, body: world.ledger.summary(),
            ("GET", "stats"): lambda request, body: self.stats(),
            ("GET", "faults"): lambda request, body: [
                asdict(fault) for fault in CATALOGUE.values()
            ],
            ("GET", "settings"): lambda request, body: world.settings.as_json(),
            ("POST", "settings"): lambda request, body: self.configure(body),
            ("POST", "reset"): lambda request, body: self.reset(body),
            ("POST", "finish"): lambda request, body: self.finish(body),
            ("POST", "outage/start"): lambda request, body: self.start_outage(body),
            ("POST", "outage/stop"): lambda request, body: self.stop_outage(),
            ("POST", "quota/use-up"): lambda request, body: self.use_up(body),
            ("POST", "plant"): lambda request, body: self.plant(body),
            ("POST", "top-up"): lambda request, body: self.top_up(body),
        }

    def answer(self, request: Request) -> Reaction:
        call = self._calls.get((request.method, request.path.removeprefix(PREFIX).rstrip("/")))
        if call is None:
            return json_reaction({"error": "no such call; GET /_sandbox/ lists them"}, 404)
        self.world.tick()
        try:
            return json_reaction(call(request, _object(request.body)))
        except (ValueError, TypeError, KeyError, InvalidOperation) as wrong:
            return json_reaction({"error": str(wrong) or type(wrong).__name__}, 400)

    def ledger(self, request: Request) -> dict[str, Any]:
        """Everything, or what belongs to `key` (fingerprint), `correlation`, or came at or after `since` (unix)."""
        ledger, query = self.world.ledger, request.query
        key, correlation, since = (
            query.get("key"),
            query.get("correlation"),
            float(query.get("since", 0)),
        )
        tasks = {
            task.id: task
            for task in ledger.tasks.values()
            if (key is None or task.key == key)
            and (correlation is None or task.correlation == correlation)
            and task.created >= since
        }
        return {
            "summary": ledger.summary(),
            "tasks": [task_record(task) for task in tasks.values()],
            "charges": [charge_record(charge) for charge in ledger.charges if charge.task in tasks],
            "posts": [
                asdict(post)
                for post in ledger.posts
                if (key is None or post.key == key)
                and (correlation is None or post.correlation == correlation)
                and post.at >= since
            ],
        }

    def stats(self) -> dict[str, Any]:
        ledger = self.world.ledger
        return {
            "now": self.world.clock(),
            "in_flight": ledger.in_flight[""],
            "max_in_flight": ledger.max_in_flight[""],
            "in_flight_by": {
                name: count for name, count in sorted(ledger.in_flight.items()) if name
            },
            "max_in_flight_by": {
                name: count for name, count in sorted(ledger.max_in_flight.items()) if name
            },
            "requests": dict(sorted(ledger.requests.items())),
            "max_poll_gap_s": max(
                (task.max_poll_gap_s for task in ledger.tasks.values()), default=0.0
            ),
            "outage": None if self.world.outage is None else self.world.outage.kind,
            "outage_left_s": self._left(self.world.outage.until if self.world.outage else None),
            "quota_left_s": self._left(self.world.used_up_until),
        }

    def _left(self, until: float | None) -> float | None:
        """Seconds; 0: it is over, None: it ends by no clock."""
        if until is None:
            return 0.0
        left = until - self.world.clock()
        return None if left == math.inf else max(left, 0.0)

    def configure(self, body: dict[str, Any]) -> dict[str, Any]:
        self.world.configure(body)
        return self.world.settings.as_json()

    def reset(self, body: dict[str, Any]) -> dict[str, Any]:
        """Empties the ledger; `settings: true` goes back to the settings of the start, `seed` seeds anew."""
        self.world.reset(seed=None if body.get("seed") is None else int(body["seed"]))
        if body.get("settings"):
            self.world.settings = self._first_settings
            self.world.configure({})
        return self.world.ledger.summary()

    def finish(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ends the task `id`, those of a `correlation`, or `all` that run, now."""
        tasks = self.world.ledger.tasks
        if body.get("all"):
            chosen = [task for task in tasks.values() if not task.settled]
        elif "correlation" in body:
            chosen = [one for one in tasks.values() if one.correlation == body["correlation"]]
        else:
            chosen = [tasks[body["id"]]] if body.get("id") in tasks else []
        if not chosen and not body.get("all"):
            raise ValueError(f"no task {body.get('id', body.get('correlation'))!r}")
        for task in chosen:
            self.world.finish(task)
        return {"finished": [task.id for task in chosen]}

    def start_outage(self, body: dict[str, Any]) -> dict[str, Any]:
        seconds = body.get("seconds")
        if seconds is not None and not 0 <= float(seconds) < math.inf:
            raise ValueError("seconds must be 0 or more")
        self.world.start_outage(
            str(body.get("kind", "503")),
            seconds=None if seconds is None else float(seconds),
            scope=str(body.get("scope", "api")),
        )
        return {"outage": body.get("kind", "503")}

    def stop_outage(self) -> dict[str, Any]:
        self.world.stop_outage()
        return {"outage": None}

    def use_up(self, body: dict[str, Any]) -> dict[str, Any]:
        """The quota of every key for `seconds` (60); 0 gives it back."""
        seconds = float(body.get("seconds", 60))
        if not 0 <= seconds < math.inf:
            raise ValueError("seconds must be 0 or more")
        self.world.use_up(seconds)
        return {"quota_left_s": seconds}

    def plant(self, body: dict[str, Any]) -> dict[str, Any]:
        """A finished generation nobody of us posted. `key` is a whole key or a fingerprint."""
        outcome = str(body.get("outcome", "completed"))
        if outcome not in {"completed", "failed"}:
            raise ValueError("outcome must be completed or failed")
        polza = next(one for one in self.world.contracts if isinstance(one, Polza))
        task = self.world.plant(
            Submission(
                provider=polza.name,
                key=_fingerprint(body["key"]),
                model=str(body.get("model", "google/gemini-2.5-flash-image")),
                correlation=str(body.get("user", "")),
                prompt=str(body.get("prompt", "planted")),
            ),
            polza.new_id(),
            created=float(body.get("created", self.world.clock())),
            price=Decimal(str(body["price"])) if "price" in body else None,
            outcome=outcome,
        )
        return task_record(task)

    def top_up(self, body: dict[str, Any]) -> dict[str, Any]:
        amount = Decimal(str(body["amount"]))
        if not amount.is_finite():
            raise ValueError("amount must be a number")
        self.world.ledger.top_up(_fingerprint(body["key"]), amount)
        return {"top_up": str(amount)}


class NotUnderstoodError(ValueError):
    """A control call that makes no sense."""


def _object(body: bytes) -> dict[str, Any]:
    read = json.loads(body or b"{}")
    if not isinstance(read, dict):
        raise NotUnderstoodError("the body must be a JSON object")
    return read


def _fingerprint(key: Any) -> str:
    return str(key) if _FINGERPRINT.fullmatch(str(key)) else fingerprint(str(key))
