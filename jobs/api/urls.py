"""Addresses below /api/."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import path, re_path

from jobs.api import creating, docs, problems, reading  # noqa: F401  their operations
from jobs.api.document import DeskAPI, made, router
from jobs.api.problems import Code, Problem

api = made(
    DeskAPI(
        title="Generation desk",
        version="1",
        description="Pictures and texts from paid providers, made once and paid once.",
        urls_namespace="api",
        docs_url=None,
    )
)
api.add_router("", router)


def _nothing_here(_request: HttpRequest) -> HttpResponse:
    return problems.answer(Problem(Code.NOT_FOUND))


_nothing_here.csrf_exempt = True  # type: ignore[attr-defined]  # nothing is changed

urlpatterns = [
    path("v1/docs", docs.page, {"api": api}, name="api_docs"),
    path("v1/", api.urls),
    re_path("", _nothing_here),
]
