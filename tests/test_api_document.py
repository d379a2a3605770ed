"""The OpenAPI document tells the truth: what it promises is answered, and nothing else. And it can be read as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from jobs.api.document import ALWAYS
from jobs.api.problems import Code
from jobs.clock import clock
from jobs.models import Batch
from tests import api_calls, factories
from tests.api_fuzz import Fuzz

pytestmark = pytest.mark.django_db


def test_no_request_gets_a_server_error_or_an_undocumented_answer(settings: LazySettings, tmp_path: Path) -> None:  # fmt: skip
    """A few of each; `make holds ISSUE=08 LINE=1` tries two thousand."""
    settings.MEDIA_ROOT = tmp_path
    token = api_calls.token(per_minute=100_000)
    batch = Batch.objects.create(tenant=token.token.tenant, created_at=clock.now())
    fuzz = Fuzz(token.text, factories.done(clock.now(), batch=batch))
    fuzz.run(each=6)
    seen = fuzz.seen
    operations = {operation for operation, _status in seen}
    assert len(operations) == 13
    assert any(status == 202 for _operation, status in seen)


def test_every_problem_that_can_be_told_is_in_the_document_and_on_the_page() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    told = " ".join(
        answer["description"]
        for methods in document["paths"].values()
        for one in methods.values()
        for answer in one["responses"].values()
    )
    beside = {Code.METHOD, Code.FAULT}  # of no operation
    page = Client().get("/api/v1/docs").content.decode()
    for code in Code:
        assert (f"`{code.word}`" in told) is (code not in beside), code
        assert f'id="{code.word}"' in page
    for path, methods in document["paths"].items():
        for one in methods.values():
            if one.get("security"):
                assert {str(code.status) for code in ALWAYS} <= set(one["responses"]), path
            assert one["operationId"] in page


def test_the_page_needs_nothing_from_elsewhere_and_no_script_of_its_own() -> None:
    answer = Client().get("/api/v1/docs")
    page = answer.content.decode()
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert "//" not in page.replace("https://desk.example", "").partition("<body")[0]
    assert "style=" not in page
    assert "<script>" not in page
