"""How fal shows a request: its addresses, its place in the queue, its end, the shapes of its result, its webhook."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import files
from .ledger import Task
from .reactions import PICTURE_MARK, Reaction, Request, json_reaction

# How an end by fal's own machines is told, by fate: HTTP status, sentence, error_type ("": a failure without a type).
_REQUEST_ERRORS: dict[str, tuple[int, str, str]] = {
    "failed_free": (500, "The runner encountered an internal server error", "runner_server_error"),
    "failed_timeout": (504, "Request timed out", "request_timeout"),
    # Of these nothing may be concluded: the first stays charged, the second comes back.
    "failed_pending": (500, "The application failed", ""),
    "failed_then_completed": (500, "The application failed", ""),
    "cancelled": (499, "The request was cancelled", "client_cancelled"),
    "cancelled_charged": (499, "The request was cancelled", "client_cancelled"),
}
# How a model's own refusal is told, by fate: sentence, type.
_MODEL_ERRORS: dict[str, tuple[str, str]] = {
    "failed_moderation": ("The content was flagged by a content checker.", "content_policy_violation"),
    "failed_charged": ("The generated image was flagged by a content checker.", "content_policy_violation"),
    "failed_unlisted": ("No media was generated. Try another prompt.", "no_media_generated"),
}  # fmt: skip
_WORDS = {"pending": "IN_QUEUE", "processing": "IN_PROGRESS"}


def app_of(model: str) -> str:
    """What addresses a request of the model: owner and app, without the endpoint's sub-path."""
    parts = model.split("/")
    return "/".join(parts[: 3 if parts[0] in {"workflows", "comfy"} else 2])


def face(task: Task, request: Request, status: str) -> dict[str, Any]:
    """The keys every answer about a request has; the id comes first."""
    here = f"{request.base_url}/fal/{app_of(task.model)}/requests/{task.id}"
    return {
        "request_id": task.id,
        "gateway_request_id": task.id,
        "status": status,
        "response_url": here,
        "status_url": f"{here}/status",
        "cancel_url": f"{here}/cancel",
        "logs": None,
    }


def told(task: Task, request: Request, now: float, *, before: int) -> Reaction:
    """The status of a request; `before`: how many others of its key are under way."""
    ended, status = task.ended_at(now), task.status_at(now)
    if not ended:
        word = "WARMING_UP" if "unknown_status" in task.fate else _WORDS[status]
        place = {"queue_position": before} if word == "IN_QUEUE" else {}
        return json_reaction(face(task, request, word) | place, 202)
    if "unknown_final" in task.fate:
        return json_reaction(face(task, request, "ARCHIVED"))
    body = face(task, request, "COMPLETED") | {"metrics": {"inference_time": 1.5}}
    if status != "completed":
        body |= _request_error(task)
    if status == "cancelled" and "cancelled" in task.fate:
        body |= {"queue_position": 0, "metrics": {}}  # it never left the queue
    return json_reaction(body)


def result(task: Task, request: Request, now: float) -> Reaction:
    """What the request made, or the error under the HTTP status that it ended with."""
    if not task.ended_at(now):
        return json_reaction({"detail": "Request is still in progress"}, 400)
    if task.status_at(now) == "completed":
        reaction = json_reaction(_made(task, request))
        if PICTURE_MARK in reaction.body:
            return replace(reaction, picture=files.picture(task))
        return reaction
    model_error = _model_error(task)
    if model_error is not None:
        return json_reaction(model_error, 422, ("x-fal-retryable", "false"))
    status, words, error_type = _end(task)
    if not error_type:
        return json_reaction({"detail": words}, status)
    header = ("x-fal-error-type", error_type)
    return json_reaction({"detail": words, "error_type": error_type}, status, header)


def webhook(task: Task, request: Request, now: float) -> dict[str, Any]:
    """What fal POSTs to a request's webhook once it has ended; `request` tells under which host its files are."""
    body: dict[str, Any] = {"request_id": task.id, "gateway_request_id": task.id}
    if task.status_at(now) == "completed":
        made = _made(task, request)
        if PICTURE_MARK.decode() in str(made):  # too large for a hook
            why = "Response payload is not serializable"
            return body | {"status": "OK", "payload": None, "payload_error": why}
        return body | {"status": "OK", "payload": made}
    model_error = _model_error(task)
    error = _end(task)[1] if model_error is None else "Invalid status code: 422"
    return body | {"status": "ERROR", "error": error, "payload": model_error}


def _end(task: Task) -> tuple[int, str, str]:
    found = (_REQUEST_ERRORS[name] for name in task.fate if name in _REQUEST_ERRORS)
    return next(found, _REQUEST_ERRORS["failed_pending"])


def _request_error(task: Task) -> dict[str, Any]:
    """What the status tells of an end without a result; a model's own refusal stands under the result alone."""
    if _model_error(task) is not None:
        return {}
    _status, words, error_type = _end(task)
    return {"error": words} | ({"error_type": error_type} if error_type else {})


def _model_error(task: Task) -> dict[str, Any] | None:
    for name, (words, kind) in _MODEL_ERRORS.items():
        if name in task.fate:
            return {"detail": [model_error(words, kind, task.prompt)]}
    return None


def model_error(words: str, kind: str, prompt: str) -> dict[str, Any]:
    """One error of a model, as its list has it."""
    return {
        "loc": ["body", "prompt"],
        "msg": words,
        "type": kind,
        "url": f"https://docs.fal.ai/errors#{kind}",
        "input": prompt,
    }


def _made(task: Task, request: Request) -> dict[str, Any]:
    """A result in one of the shapes that fal's models have."""
    text = f"Here is the result: {task.prompt[:200]}"
    if task.kind == "text" or "content_only" in task.fate:
        return {"output": text}
    one, two = (_file(task, files.url(task, request, number), number) for number in (1, 2))
    inline = one | {"url": f"data:image/png;base64,{PICTURE_MARK.decode()}"}
    shapes: dict[str, dict[str, Any]] = {
        "no_result": {},
        "with_content": {"images": [one], "description": text},
        "data_two": {"images": [one, two]},
        "data_strings": {"images": [one["url"]]},
        "data_string": {"image": one["url"]},
        "data_images": {"data": {"images": [one]}},
        "data_b64": {"images": [inline]},
        "data_b64_object": {"image": inline},
        "data_data_url": {"image": inline["url"]},
    }
    shape = next((name for name in task.fate if name in shapes), "")
    made = shapes.get(shape, {"images": [one]})
    return made | {"seed": 42, "has_nsfw_concepts": [False], "prompt": task.prompt}


def _file(task: Task, url: str, number: int) -> dict[str, Any]:
    shown = files.picture(task, number)
    return {
        "url": url,
        "width": shown.width,
        "height": shown.height,
        "content_type": "image/png",
    }
