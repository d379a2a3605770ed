"""How Polza shows a task: its face, its verdict, the shapes of its result and of its price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import files
from .ledger import Task
from .reactions import PICTURE_MARK, Reaction, Request, json_reaction

# What a task's own error says, by its fate; anything else that fails is a BAD_GATEWAY.
_TASK_ERRORS = {
    "failed_moderation": ("FORBIDDEN", "Запрос отклонён модерацией"),
    "failed_timeout": ("REQUEST_TIMEOUT", "Превышено время ожидания провайдера"),
}


def face(task: Task, status: str) -> dict[str, Any]:
    """The keys every answer about a task has; the id comes first, as in Polza's examples."""
    return {
        "id": task.id,
        "object": "media.generation",
        "status": status,
        "created": int(task.created),
        "model": task.model,
    }


def told(task: Task, request: Request, now: float) -> Reaction:
    """The task as a poll tells it."""
    status = task.status_at(now)
    if "unknown_status" in task.fate and not task.ended_at(now):
        return json_reaction(face(task, "warming_up"))
    if "unknown_final" in task.fate and task.ended_at(now):
        return json_reaction(face(task, "archived"))
    body = face(task, status)
    if status in {"failed", "cancelled"}:
        code, message = next(
            (_TASK_ERRORS[name] for name in task.fate if name in _TASK_ERRORS),
            ("BAD_GATEWAY", "Ошибка генерации медиа контента"),
        )
        if status == "failed":
            body["error"] = {"code": code, "message": message}
        return json_reaction(body | {"completed_at": int(task.finish_at)})
    if status != "completed":
        return json_reaction(body)
    body["completed_at"] = int(task.completed_at)
    body |= _result(task, request)
    body |= _usage(task)
    reaction = json_reaction(body)
    if PICTURE_MARK in reaction.body:
        return replace(reaction, picture=files.picture(task))
    return reaction


def _result(task: Task, request: Request) -> dict[str, Any]:
    here, inline = files.url(task, request), PICTURE_MARK.decode()
    text = f"Вот результат по запросу: {task.prompt[:200]}"
    if task.kind == "text":
        return {"content": text}
    shapes: dict[str, dict[str, Any]] = {
        "content_only": {"content": text},
        "no_result": {},
        "with_content": {
            "data": {"url": here},
            "content": text,
            "warnings": ["Параметр `seed` не поддерживается моделью и будет проигнорирован"],
        },
        "data_list": {"data": [{"url": here}]},
        "data_two": {"data": [{"url": here}, {"url": files.url(task, request, 2)}]},
        "data_strings": {"data": [here]},
        "data_string": {"data": here},
        "data_images": {"data": {"images": [{"url": here}]}},
        "data_b64": {"data": [{"b64_json": inline}]},
        "data_b64_object": {"data": {"b64_json": inline}},
        "data_data_url": {"data": {"url": f"data:image/png;base64,{inline}"}},
    }
    shape = next((name for name in task.fate if name in shapes), "")
    return shapes.get(shape, {"data": {"url": here}})


def _usage(task: Task) -> dict[str, Any]:
    if "usage_missing" in task.fate:
        return {}
    usage: dict[str, Any] = {
        "input_units": 1,
        "output_units": 1,
        "input_tokens": 10,
        "output_tokens": 0,
    }
    cost = task.price / 2 if "cost_wrong" in task.fate else task.price
    if "cost_missing" in task.fate:
        return {"usage": usage}
    if "cost_alias" in task.fate:
        return {"usage": usage | {"cost": float(cost)}}
    told: Any = float(cost)
    if "cost_string" in task.fate:
        told = str(cost)
    if "cost_null" in task.fate:
        told = None
    return {"usage": usage | {"cost_rub": told, "cost": told}}
