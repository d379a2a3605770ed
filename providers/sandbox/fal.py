"""fal's queue (https://fal.ai/docs/documentation/model-apis/inference/queue): submit, status, result, cancel. What a request looks like: fal_task.py."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from typing import Any

from . import fal_task, hooks
from .common import LIMITS, Speaker, a_prompt, an_object, missing
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Task, fingerprint
from .polza_answers import retry_after
from .reactions import Reaction, Request, json_reaction
from .submission import MARK, Limit, Submission

_LOCKED = "User is locked. Reason: "
# name -> status, detail, error_type ("": none)
_ERRORS: dict[str, tuple[int, str, str]] = {
    "bad_request": (400, "The request was malformed", "bad_request"),
    "bad_model": (404, "Application 'unknown' not found", ""),
    "unauthorized": (401, "Authentication is required to access this application.", ""),
    "key_revoked": (401, "No user found for Key ID and Secret", ""),
    "no_balance": (403, f"{_LOCKED}Exhausted balance. Top up your balance at fal.ai/dashboard/billing.", ""),
    "key_limit": (403, f"{_LOCKED}TOP_UP.", ""),
    "key_limit_400": (400, f"{_LOCKED}Exhausted balance. Top up your balance at fal.ai/dashboard/billing.", ""),
    "tariff": (403, f"{_LOCKED}Admin lock. Please contact support.", ""),
    "not_found": (404, "Not Found", ""),
    "own_408": (408, "Request timed out", ""),
    "conflict": (409, "Conflict", ""),
    "too_large": (413, "Request entity too large", ""),
    "rate_limited": (429, "Too many requests", ""),
    "internal": (500, "An unexpected internal error occurred", "internal_error"),
    "own_502": (502, "The runner sent an incomplete response payload", "runner_incomplete_response"),
    "unavailable": (503, "The runner disconnected unexpectedly during processing", "runner_disconnected"),
    "no_providers": (503, "A general connection error occurred with the runner", "runner_connection_error"),
    "overloaded": (503, "No runner could be allocated to handle the request", "runner_scheduling_failure"),
    "own_504": (504, "Request timed out", "request_timeout"),
}  # fmt: skip
# What a model's own checks refuse, in their list.
_LISTED = {
    "moderation": ("The content was flagged by a content checker.", "content_policy_violation"),
    "unprocessable": ("Input should be a valid integer", "int_parsing"),
}
_AT_STATUS = {400: "bad_request", 401: "unauthorized", 403: "no_balance", 404: "not_found", 500: "internal"}  # fmt: skip
_ABOUT = re.compile(r"(?P<app>.+)/requests/(?P<id>[^/]+)(?P<what>/status|/response|/cancel|)")


class Fal(Speaker):
    """`/fal/...` of the sandbox. Any `Key fal_...` is an account of its own. What is beyond the limit of requests at once
    waits in the queue, as at fal, so that limit refuses nothing."""

    name = "fal"
    prefix = "/fal/"
    signs_webhooks = True
    limits = {limit: name for limit, name in LIMITS.items() if limit is not Limit.CONCURRENCY}

    def key_of(self, request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        return fingerprint(key) if scheme.lower() == "key" and key.startswith("fal_") else ""

    def new_id(self) -> str:
        return str(uuid.UUID(int=self.world.rng.getrandbits(128), version=4))

    def error(self, name: str, now: float, wait_s: float = 0.0) -> Reaction:
        as_json = (("content-type", "application/json"),)
        match name:
            case "ok_empty":
                return Reaction(headers=as_json)
            case "ok_garbage":
                return Reaction(headers=as_json, body=b'{"status": IN_QUEUE')
            case "ok_no_id":
                return json_reaction({"status": "IN_QUEUE", "queue_position": 0})
            case "ok_error":
                return replace(self.error("internal", now), status=200)
            case "moderation" | "unprocessable":
                listed = [fal_task.model_error(*_LISTED[name], "")]
                return json_reaction({"detail": listed}, 422, ("x-fal-retryable", "false"))
        style = name.removeprefix("rate_limited_") if name.startswith("rate_limited_") else ""
        status, detail, error_type = _ERRORS["rate_limited" if style else name]
        if style == "body":
            detail = f"Too many requests. Please try again in {wait_s:g} seconds"
        if not error_type:
            headers = retry_after(style, wait_s, now)
            return json_reaction({"detail": detail}, status, *headers)
        body = {"detail": detail, "error_type": error_type}
        return json_reaction(body, status, ("x-fal-error-type", error_type))

    def error_at(self, status: int, now: float, wait_s: float) -> Reaction:
        name = "rate_limited_seconds" if status == 429 else _AT_STATUS.get(status, "unavailable")
        return self.error(name, now, wait_s)

    def complain(self, message: str) -> Reaction:
        return json_reaction({"detail": message, "error_type": "bad_request"}, 400)

    # --- routing ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request, now: float) -> Reaction:
        if request.method == "GET" and request.path == f"{self.prefix}.well-known/jwks.json":
            self.world.ledger.requests["keys"] += 1
            return json_reaction(hooks.jwks())
        key = self.key_of(request)
        about = _ABOUT.fullmatch(request.path.removeprefix(self.prefix))
        if request.method == "POST" and about is None:
            return self.submit(request, key, now)
        denied = self.denied(request, key, now)
        if denied is not None:
            return denied
        if about is None:
            return self.error("not_found", now)
        try:
            specs = asked_for(header=request.headers.get(HEADER, ""))
        except ValueError as wrong:
            return self.complain(str(wrong))
        match request.method, about["what"]:
            case "GET", "/cancel":
                return self.error("not_found", now)
            case "GET", what:
                return self._read_about(request, key, about, specs, now, status=what == "/status")
            case "PUT", "/cancel":
                return self._cancel(key, about, now)
        return self.error("not_found", now)

    # --- submit -------------------------------------------------------------------------------------------------------

    def read(self, request: Request, key: str) -> Submission:
        body = an_object(request.body, "The body must be a JSON object")
        model = request.path.removeprefix(self.prefix).strip("/")
        prompt = a_prompt(body.get("prompt"), "`prompt` is missing")
        several = body.get("image_urls")
        one = body.get("image_url")
        return Submission(
            provider=self.name,
            key=key,
            model=model,
            # fal has no field for it: only the tests' own header tells.
            correlation=request.headers.get(MARK, ""),
            prompt=prompt,
            kind="text" if model.startswith("text/") else "image",
            params={
                name: value
                for name, value in body.items()
                if name not in {"prompt", "image_url", "image_urls"}
            },
            photos=len(several) if isinstance(several, list) else int(bool(one)),
            specs=self.specs_of(request, prompt=prompt, model=model),
            webhook=request.query.get("fal_webhook", ""),
        )

    def accepted(self, task: Task, request: Request, now: float) -> Reaction:
        body: dict[str, Any] = fal_task.face(task, request, "IN_QUEUE")
        status = self.world.settings.submit_status
        return json_reaction(
            body | {"queue_position": self._before(task)}, status, ("x-fal-request-id", task.id)
        )

    def answered(self, task: Task, request: Request, now: float, *, instant: bool) -> Reaction:
        if instant:
            return fal_task.told(task, request, now, before=0)
        return self.accepted(task, request, now)

    def webhook(self, task: Task, request: Request, now: float) -> dict[str, Any]:
        return fal_task.webhook(task, request, now)

    def _before(self, task: Task) -> int:
        return max(self.world.ledger.in_flight[f"key:{task.key}"] - 1, 0)

    # --- about a request ----------------------------------------------------------------------------------------------

    def _read_about(
        self, request: Request, key: str, about: re.Match[str], specs: tuple[Spec, ...], now: float, *, status: bool
    ) -> Reaction:  # fmt: skip
        """Its status, or its result. Faults of polls strike both."""
        if status:
            task = self.polled(about["id"], key, now)
        else:
            self.world.ledger.requests["results"] += 1
            task = self._task(about["id"], key)

        def good() -> Reaction:
            if task is None or missing(task, now) or about["app"] != fal_task.app_of(task.model):
                return json_reaction({"detail": "Request not found"}, 404)
            if status:
                return fal_task.told(task, request, now, before=self._before(task))
            return fal_task.result(task, request, now)

        specs = (*specs, *(task.specs if task is not None else ()))
        return self.troubled(self.world.pick(Stage.POLL, specs, about["id"]), good, now)

    def _cancel(self, key: str, about: re.Match[str], now: float) -> Reaction:
        """Takes a request out of the queue for nothing; one that runs is only asked to stop, and this sandbox's go on."""
        task = self._task(about["id"], key)
        if task is None:
            return json_reaction({"status": "NOT_FOUND"}, 404)
        if task.ended_at(now):
            return json_reaction({"status": "ALREADY_COMPLETED"}, 400)
        if task.status_at(now) != "pending":
            return json_reaction({"status": "CANCELLATION_REQUESTED"}, 202)
        self.world.cancel(task)
        return json_reaction({"status": "OK"})

    def _task(self, task_id: str, key: str) -> Task | None:
        task = self.world.ledger.tasks.get(task_id)
        return task if task is not None and task.key == key else None
