"""GigaChat's contract (https://developers.sber.ru/docs/ru/gigachat/api): a token by the key, then chat whose answer is the result, files by name."""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from . import files
from .common import NotUnderstoodError, Speaker, a_prompt, an_object, told_at_the_end
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Task, fingerprint
from .polza_answers import retry_after
from .reactions import Reaction, Request, json_reaction
from .submission import MARK, Submission

_TOKEN = re.compile(r"tok\.([0-9a-f]{12})\.(\d{13})\.(\d+)")
_SCOPES = frozenset({"GIGACHAT_API_PERS", "GIGACHAT_API_B2B", "GIGACHAT_API_CORP"})
# name -> status, message
_ERRORS: dict[str, tuple[int, str]] = {
    "bad_request": (400, "Invalid params: temperature"),
    "bad_model": (404, "No such model"),
    "too_dear": (400, "Invalid params"),
    "unauthorized": (401, "Unauthorized"),
    "key_revoked": (401, "Token has expired"),
    "no_balance": (402, "Payment Required"),
    "key_limit": (402, "Payment Required"),
    "key_limit_400": (400, "Quota exceeded for this month"),
    "tariff": (403, "Permission denied"),
    "moderation": (400, "Запрос отклонён модерацией"),
    "not_found": (404, "No such model"),
    "own_408": (408, "Request Timeout"),
    "conflict": (409, "Conflict"),
    "too_large": (413, "Payload too large"),
    "unprocessable": (422, "Invalid params: functions"),
    "rate_limited": (429, "Too many requests"),
    "internal": (500, "Internal Server Error"),
    "own_502": (502, "Bad Gateway"),
    "unavailable": (503, "Service Unavailable"),
    "no_providers": (503, "Service Unavailable"),
    "overloaded": (503, "The model is overloaded. Please try again later."),
    "own_504": (504, "Gateway Timeout"),
}
_AT_STATUS = {400: "bad_request", 401: "unauthorized", 403: "tariff", 404: "not_found", 500: "internal"}  # fmt: skip
_DRAWS = re.compile(r"рису|изобра|картин|draw|paint", re.IGNORECASE)


class GigaChat(Speaker):
    """`/gigachat/api/...` of the sandbox. The base64 of any `name:secret` is an account of its own. A token tells by itself
    whose it is and until when, so that it outlives a restart."""

    name = "gigachat"
    prefix = "/gigachat/"
    free_posts = frozenset({"/gigachat/api/v2/oauth"})

    def key_of(self, request: Request) -> str:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            token = _TOKEN.fullmatch(shown)
            return token[1] if token else ""
        return fingerprint(shown) if scheme.lower() == "basic" and _is_key(shown) else ""

    def new_id(self) -> str:
        return str(uuid.UUID(int=self.world.rng.getrandbits(128), version=4))

    def error(self, name: str, now: float, wait_s: float = 0.0) -> Reaction:
        match name:
            case "ok_empty":
                return Reaction(headers=(("content-type", "application/json"),))
            case "ok_garbage":
                return Reaction(
                    headers=(("content-type", "application/json"),), body=b'{"choices": [{'
                )
            case "ok_no_id":
                return json_reaction({"object": "chat.completion"})
            case "ok_error":
                return json_reaction(_envelope(500, "Internal Server Error"))
        style = name.removeprefix("rate_limited").removeprefix("_")
        status, message = _ERRORS["rate_limited" if name.startswith("rate_limited") else name]
        if style == "body":
            message = f"Too many requests, retry in {wait_s:g} seconds"
        headers = retry_after(style, wait_s, now)
        return json_reaction(_envelope(status, message), status, *headers)

    def error_at(self, status: int, now: float, wait_s: float) -> Reaction:
        name = "rate_limited_seconds" if status == 429 else _AT_STATUS.get(status, "unavailable")
        return self.error(name, now, wait_s)

    def complain(self, message: str) -> Reaction:
        return json_reaction(_envelope(422, message), 422)

    # --- routing ------------------------------------------------------------------------------------------------------

    def answer(self, request: Request, now: float) -> Reaction:
        path = request.path.removeprefix(self.prefix)
        if request.method == "POST" and path == "api/v2/oauth":
            return self._token(request, now)
        path, key = path.removeprefix("api/v1/"), self._opened(request, now)
        if request.method == "POST" and path == "chat/completions":
            return self.submit(request, key, now)
        denied = self.denied(request, key, now)
        if denied is not None:
            return denied
        try:
            specs = asked_for(header=request.headers.get(HEADER, ""))
        except ValueError as wrong:
            return self.complain(str(wrong))
        if request.method == "GET" and path == "balance":
            return self._money(key, specs, now)
        if request.method == "GET" and path.startswith("files/") and path.endswith("/content"):
            name = path.removeprefix("files/").removesuffix("/content")
            return self._file(key, name, specs, now)
        return self.error("not_found", now)

    # --- token --------------------------------------------------------------------------------------------------------

    def _token(self, request: Request, now: float) -> Reaction:
        world = self.world
        world.ledger.requests["tokens"] += 1
        number = world.ledger.requests["tokens"]
        key = self.key_of(request)
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")

        def good() -> Reaction:
            if scheme.lower() != "basic" or not key:
                return _no_token(400, 4, "Can't decode 'Authorization' header")
            if key in world.settings.revoked_keys or shown in world.settings.revoked_keys:
                return _no_token(401, 6, "credentials doesn't match db data")
            scopes = parse_qs(request.body.decode("latin-1")).get("scope", [])
            if not scopes:
                return _no_token(400, 5, "scope is empty")
            if scopes[0] not in _SCOPES:
                return _no_token(400, 1, "scope data format invalid")
            if "rquid" not in request.headers:
                return _no_token(400, 3, "RqUID header is missing")
            until = round((now + world.settings.token_life_s) * 1000)
            return json_reaction(
                {"access_token": f"tok.{key}.{until:013d}.{number}", "expires_at": until}
            )

        return self.troubled(world.pick(Stage.TOKEN, (), key), good, now)

    def _opened(self, request: Request, now: float) -> str:
        """The key's fingerprint, where a token is shown; whether it still lives is `denied`'s to say."""
        basic = request.headers.get("authorization", "").lower().startswith("basic ")
        return "" if basic else self.key_of(request)

    def denied(self, request: Request, key: str, now: float) -> Reaction | None:
        refused = super().denied(request, key, now)
        token = _TOKEN.fullmatch(request.headers.get("authorization", "").partition(" ")[2])
        if refused is None and token is not None and now * 1000 >= int(token[2]):
            return self.error("key_revoked", now)
        return refused

    # --- submit -------------------------------------------------------------------------------------------------------

    def read(self, request: Request, key: str) -> Submission:
        body = an_object(request.body, "Invalid params: body")
        model, messages = body.get("model"), body.get("messages")
        if not isinstance(model, str) or not model:
            raise NotUnderstoodError("Invalid params: model")
        if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
            raise NotUnderstoodError("Invalid params: messages")
        prompt = a_prompt(messages[-1].get("content"), "Invalid params: content")
        # Their function draws where it is let, and where the words ask for a picture.
        draws = body.get("function_call") == "auto" and _DRAWS.search(prompt) is not None
        return Submission(
            provider=self.name,
            key=key,
            model=model,
            correlation=request.headers.get("x-request-id") or request.headers.get(MARK, ""),
            prompt=prompt,
            kind="image" if draws and not model.startswith("text/") else "text",
            specs=self.specs_of(request, prompt=prompt, model=model),
        )

    def accepted(self, task: Task, request: Request, now: float) -> Reaction:
        return told_at_the_end(task, now, lambda _: self._told(task), self.world.tick)

    def _told(self, task: Task) -> Reaction:
        content, reason = f"Вот результат по запросу: {task.prompt[:200]}", "stop"
        if task.outcome != "completed":
            moderated = "failed_moderation" in task.fate
            content = "Не люблю менять тему разговора, но вот сейчас тот самый случай."
            reason = "blacklist" if moderated else "error"
            if not moderated:
                content = ""
        elif "no_result" in task.fate:
            content = ""
        elif task.kind == "image" and "content_only" not in task.fate:
            content = f'<img src="{task.id}" fuse="true"/> {content}'
        choice = {
            "message": {"content": content, "role": "assistant"},
            "index": 0,
            "finish_reason": reason,
        }
        usage = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}
        body: dict[str, Any] = {
            "choices": [choice],
            "created": int(task.created),
            "model": task.model,
            "object": "chat.completion",
        }
        return json_reaction(body if "usage_missing" in task.fate else body | {"usage": usage})

    # --- files and money ----------------------------------------------------------------------------------------------

    def _file(self, key: str, name: str, specs: tuple[Spec, ...], now: float) -> Reaction:
        world = self.world
        world.ledger.requests["files"] += 1
        task = world.ledger.tasks.get(name)
        if task is None or task.key != key or task.kind != "image" or not task.ended_at(now):
            return json_reaction(_envelope(404, "No such file"), 404)
        task.downloads += 1
        spec = world.pick(Stage.FILE, (*specs, *task.specs), task.id)
        if spec is not None and spec.name in {"result_gone", "result_expired"}:
            return json_reaction(_envelope(404, "No such file"), 404)
        if spec is not None and spec.name.startswith("result_"):
            return files.spoiled(task, 1, spec)
        drawn = replace(files.picture(task), form="JPEG")
        good = Reaction(headers=(("content-type", "image/jpg"),), picture=drawn)
        return self.troubled(spec, lambda: good, now)

    def _money(self, key: str, specs: tuple[Spec, ...], now: float) -> Reaction:
        """Tokens, whatever the ledger counts."""
        world = self.world
        world.ledger.requests["balance"] += 1
        left = world.balance(key)
        good = json_reaction({"balance": [{"usage": "GigaChat", "value": int(left or 0) * 1000}]})
        if left is None:
            good = json_reaction(_envelope(403, "Permission denied"), 403)
        return self.troubled(world.pick(Stage.BALANCE, specs, key), lambda: good, now)


def _envelope(status: int, message: str) -> dict[str, Any]:
    return {"status": status, "message": message}


def _no_token(status: int, code: int, message: str) -> Reaction:
    return json_reaction({"code": code, "message": message}, status)


def _is_key(shown: str) -> bool:
    try:
        return b":" in base64.b64decode(shown, validate=True)
    except (binascii.Error, ValueError):
        return False
