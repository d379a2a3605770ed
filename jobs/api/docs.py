"""The OpenAPI document as a page: made on the server, without scripts, from what programs get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe
from ninja import NinjaAPI

from jobs.api.problems import Code

_REF = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Line:
    """A parameter or a field: `kind` in a word or two."""

    name: str
    kind: str
    required: bool
    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    id: str
    title: str
    text: str
    scope: str
    lines: list[Line]
    forms: list[str]
    answers: list[tuple[str, str]]
    out: str


@dataclass(frozen=True, slots=True)
class Schema:
    name: str
    text: str
    lines: list[Line]


@require_safe
def page(request: HttpRequest, *, api: NinjaAPI) -> HttpResponse:
    document = api.get_openapi_schema()
    schemas = document["components"]["schemas"]
    context = {
        "title": _("API"),
        "document": document["info"],
        "address": reverse("api:openapi-json"),
        "operations": list(_operations(document)),
        "schemas": [
            Schema(name, one.get("description", ""), list(_fields(one)))
            for name, one in sorted(schemas.items())
            if "properties" in one
        ],
        "codes": sorted(Code, key=lambda code: (code.status, code.word)),
    }
    return TemplateResponse(request, "api/docs.html", context)


def _operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            nothing: dict[str, Any] = {}
            bodies = one.get("requestBody", nothing).get("content", nothing)
            body = next(iter(bodies.values()), nothing).get("schema", nothing)
            good = next(answer for status, answer in one["responses"].items() if int(status) < 400)
            yield Operation(
                method=method.upper(), path=path, id=one["operationId"], title=one["summary"],
                text=one.get("description", ""), scope=_scope(path, method) if one.get("security") else "",
                lines=[
                    *(
                        Line(p["name"], kind(p["schema"]), p["required"], p.get("description", ""), p["in"])
                        for p in one["parameters"]
                    ),
                    *_fields(body),
                ],
                forms=list(bodies),
                answers=[(str(status), answer["description"]) for status, answer in sorted(one["responses"].items())],
                out=_name(next(iter(good.get("content", nothing).values()), nothing).get("schema", nothing)),
            )  # fmt: skip


def _scope(path: str, method: str) -> str:
    if method == "get":
        return "read"
    return "cancel" if path.endswith("/cancel") else "submit"


def _fields(schema: Mapping[str, Any]) -> Iterator[Line]:
    required = set(schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        yield Line(name, kind(one), name in required, one.get("description", ""))


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix(_REF)


def kind(schema: Mapping[str, Any]) -> str:
    """In a word or two: "integer, 1 to 200"."""
    if "$ref" in schema:
        return _name(schema)
    if "anyOf" in schema:
        return " | ".join(kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(one) for one in schema["enum"])
    if schema.get("type") == "array":
        return f"[{kind(schema.get('items', {}))}]"
    if "properties" in schema:
        return f"{{{', '.join(schema['properties'])}}}"
    words = [str(schema.get("format") or schema.get("type", "any"))]
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        words.append(f"{low}…{high}")
    elif low is not None:
        words.append(f"≥ {low}")
    if "maxLength" in schema:
        words.append(f"≤ {schema['maxLength']}")
    return ", ".join(words)
