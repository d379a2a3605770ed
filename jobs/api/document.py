"""The API as an object: its OpenAPI document with every answer it may give, and what becomes of errors."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db import InterfaceError, OperationalError, connection
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, URLResolver
from django.utils.translation import gettext as _
from ninja import NinjaAPI, Router
from ninja.errors import HttpError
from ninja.errors import ValidationError as NinjaInvalid
from ninja.openapi.schema import OpenAPISchema

from jobs.api import problems
from jobs.api.problems import Code, Fault, Problem
from jobs.api.schemas import ProblemOut

# One for all operations: an address is one view, whatever its methods.
router = Router()
BUSY_RETRY_S = 5.0
_REF = "#/components/schemas/{model}"
_log = logging.getLogger(__name__)

_HEADERS: Mapping[str, Any] = {
    "Retry-After": {
        "description": "Seconds until it makes sense to ask again.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "Cache-Control": {"description": "no-store", "schema": {"type": "string"}},
    "WWW-Authenticate": {"schema": {"type": "string"}},
}
# What every request with a token may get.
ALWAYS = (Code.UNAUTHORIZED, Code.SCOPE, Code.PACE, Code.INVALID, Code.BUSY)


def fails(
    *codes: Code, always: bool = True, ok: Mapping[int, Any] | None = None, **extra: Any
) -> dict[str, Any]:
    """For an operation's `openapi_extra`: the problems it may answer with. `ok`: more about its good answers, by status;
    `extra` is put beside the answers."""
    by_status: dict[int, list[Code]] = {}
    for code in (*(ALWAYS if always else ()), *codes):
        by_status.setdefault(code.status, []).append(code)
    return {
        "responses": {
            **{status: _response(status, those) for status, those in by_status.items()},
            **(ok or {}),
        },
        **extra,
    }


def _response(status: int, codes: Iterable[Code]) -> dict[str, Any]:
    names = {401: ("WWW-Authenticate", "Cache-Control"), 429: ("Retry-After", "Cache-Control"), 503: ("Retry-After", "Cache-Control")}  # fmt: skip
    return {
        "description": "; ".join(f"`{code.word}`: {code.title}" for code in codes),
        "content": {problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="ProblemOut")}}},
        "headers": {name: _HEADERS[name] for name in names.get(status, ("Cache-Control",))},
    }


class DeskAPI(NinjaAPI):
    def get_openapi_schema(self, **kwargs: Any) -> OpenAPISchema:
        document = super().get_openapi_schema(**kwargs)
        schema = ProblemOut.model_json_schema(ref_template=_REF)
        document["components"]["schemas"] |= {**schema.pop("$defs", {}), "ProblemOut": schema}
        return document

    def _get_urls(self) -> list[URLResolver | URLPattern]:
        urls = super()._get_urls()
        for one in urls:
            if isinstance(one, URLPattern):
                one.callback = _tidy(one.callback)
        return urls


def _tidy(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A method that an address does not have is a problem like any other."""

    @functools.wraps(view)
    def call(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        if response.status_code == 405:
            tidied = problems.answer(Problem(Code.METHOD))
            tidied.headers["Allow"] = response.headers.get("Allow", "")
            return tidied
        return response

    return call


# --- errors -----------------------------------------------------------------------------------------------------------


def _on_problem(_request: HttpRequest, problem: Any) -> HttpResponse:
    return problems.answer(problem)


def _on_invalid(_request: HttpRequest, error: Any) -> HttpResponse:
    """Of the address, the query or the headers: bodies are read by jobs/api/bodies.py."""
    faults = [Fault(str(one["loc"][-1]), str(one["msg"])) for one in error.errors]
    return problems.answer(Problem(Code.INVALID, faults=faults))


def _on_missing(_request: HttpRequest, _error: Any) -> HttpResponse:
    return problems.answer(Problem(Code.NOT_FOUND))


def _on_http_error(_request: HttpRequest, error: Any) -> HttpResponse:
    return problems.answer(Problem(Code.MALFORMED, str(error)))


def _on_database(_request: HttpRequest, error: Any) -> HttpResponse:
    _log.warning("api.database %s", error)
    connection.close()
    text = _("The database can't be reached.")
    return problems.answer(Problem(Code.BUSY, text, retry_after_s=BUSY_RETRY_S))


def _on_fault(request: HttpRequest, error: Any) -> HttpResponse:
    _log.error("api.fault %s %s", request.method, request.path, exc_info=error)
    return problems.answer(Problem(Code.FAULT, _("It is on record.")))


def made(api: DeskAPI) -> DeskAPI:
    api.add_exception_handler(Exception, _on_fault)
    api.add_exception_handler(Problem, _on_problem)
    api.add_exception_handler(NinjaInvalid, _on_invalid)
    api.add_exception_handler(Http404, _on_missing)
    api.add_exception_handler(HttpError, _on_http_error)
    api.add_exception_handler(OperationalError, _on_database)
    api.add_exception_handler(InterfaceError, _on_database)
    return api
