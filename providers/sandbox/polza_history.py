"""Polza's history of generations: the listing of one key, and the receipt of one generation."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from .faults import Spec, Stage
from .ledger import Task
from .reactions import Reaction, Request, json_reaction

if TYPE_CHECKING:
    from .polza import Polza

STATUSES = ("completed", "failed", "pending")
REQUEST_TYPES = ("chat", "image", "video", "audio")


def listing(
    polza: Polza, request: Request, key: str, specs: tuple[Spec, ...], now: float
) -> Reaction:
    """One page of the key's generations, as they were `history_lag_s` ago. Raises ValueError for a bad parameter."""
    world = polza.world
    world.ledger.requests["history"] += 1
    page, limit = _whole(request, "page", 1, 10**9), _whole(request, "limit", 20, 100)
    since, until = _moment(request, "dateFrom", -math.inf), _moment(request, "dateTo", math.inf)
    status = _one_of(request, "status", STATUSES)
    request_type = _one_of(request, "requestType", REQUEST_TYPES)
    order = _one_of(request, "sortOrder", ("asc", "desc")) or "desc"
    _one_of(request, "sortBy", ("createdAt",))
    spec = world.pick(Stage.HISTORY, specs, key)
    moment = now - world.settings.history_lag_s

    def good() -> Reaction:
        found = [
            task
            for task in world.ledger.listed(key, since=since, until=min(until, moment))
            if "vanished" not in task.fate
            and (request_type is None or request_type == _request_type(task))
            and (status is None or status == _status(task, moment))
        ]
        if order == "desc":
            found.reverse()
        if spec is not None and spec.name == "history_blind":
            found = []
        meta = {
            "page": page,
            "limit": limit,
            "total": len(found),
            "totalPages": math.ceil(len(found) / limit),
        }
        items = found[(page - 1) * limit : page * limit]
        return json_reaction(
            {"items": [_item(polza, task, moment) for task in items], "meta": meta}
        )

    return polza.troubled(
        None if spec is not None and spec.name == "history_blind" else spec, good, now
    )


def receipt(polza: Polza, key: str, task_id: str, specs: tuple[Spec, ...], now: float) -> Reaction:
    """What one generation cost, as far as was known `history_lag_s` ago."""
    world = polza.world
    world.ledger.requests["receipts"] += 1
    task = world.ledger.tasks.get(task_id)
    if task is not None and (task.key != key or "vanished" in task.fate):
        task = None
    if task is not None:
        specs = (*specs, *task.specs)
    spec = world.pick(Stage.RECEIPT, specs, task_id)
    pending = spec is not None and spec.name == "receipt_pending"
    moment = now - world.settings.history_lag_s

    def good() -> Reaction:
        if task is None or "failed_unlisted" in task.fate or task.created > moment:
            return polza.error("not_found", now)
        return json_reaction(_item(polza, task, moment, pending=pending))

    return polza.troubled(None if pending else spec, good, now)


def _item(polza: Polza, task: Task, moment: float, *, pending: bool = False) -> dict[str, Any]:
    status = "pending" if pending else _status(task, moment)
    # A pending item shows 0 on purpose: a client that takes it for the price believes that the work was free.
    cost = Decimal(0) if status == "pending" else polza.world.ledger.standing(task.id, at=moment)
    item: dict[str, Any] = {
        "id": task.id,
        "createdAt": _iso(task.created),
        "model": task.model,
        "modelDisplayName": task.model.rpartition("/")[2],
        "provider": task.model.partition("/")[0],
        "requestType": _request_type(task),
        "status": status,
        "cost": f"{cost:.2f}",
        "clientCost": f"{cost:.16f}",
        "usage": {"prompt_tokens": 10, "completion_tokens": 0},
    }
    if status != "pending":
        item["generationTimeMs"] = round((task.completed_at - task.created) * 1000)
        item["finishReason"] = "stop" if status == "completed" else "error"
    if polza.world.settings.echo:
        item["user"] = task.correlation
    return item


def _status(task: Task, moment: float) -> str:
    """Polza's listing knows three words."""
    if "failed_pending" in task.fate or "lost" in task.fate:
        return "pending"
    status = task.status_at(moment)
    return {"completed": "completed", "failed": "failed", "cancelled": "failed"}.get(
        status, "pending"
    )


def _request_type(task: Task) -> str:
    return "chat" if task.kind == "text" else task.kind


def _iso(moment: float) -> str:
    told = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _whole(request: Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"Параметр `{name}` должен быть целым числом от 1 до {most}")
    return int(text)


def _moment(request: Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"Параметр `{name}` должен быть датой ISO 8601") from None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def _one_of(request: Request, name: str, known: tuple[str, ...]) -> str | None:
    text = request.query.get(name)
    if text is not None and text not in known:
        raise ValueError(f"Параметр `{name}` должен быть одним из: {', '.join(known)}")
    return text
