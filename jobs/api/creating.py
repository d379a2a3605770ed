"""Creating jobs for a program: `POST /jobs` and `POST /batches`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from django.db import InterfaceError, OperationalError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from ninja import Header

from jobs import progress
from jobs.api import admission, bodies, told
from jobs.api.auth import SUBMIT, caller
from jobs.api.document import BUSY_RETRY_S, fails, router
from jobs.api.problems import Code, Problem
from jobs.api.schemas import BatchIn, BatchOut, JobIn, JobOut
from jobs.clock import clock
from jobs.lifecycle import keyed
from jobs.lifecycle.keyed import How, KeyReusedError, Order, Placed

MOST_KEY_CHARS = 255
_REFUSALS = (
    Code.MALFORMED, Code.BUDGET, Code.KEY_REUSED, Code.TOO_LARGE, Code.MEDIA_TYPE, Code.QUEUE_FULL, Code.QUOTA, Code.DOWN,
)  # fmt: skip
_log = logging.getLogger(__name__)

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=MOST_KEY_CHARS, pattern=r"^[!-~]+$",
        description="Names this request. Sent again with the same body within 24 h (and while the job is live), it gives the"
        " same job; with another body, 409.",
    ),
]  # fmt: skip


def _body(model: type[JobIn] | type[BatchIn], form: Mapping[str, object]) -> dict[str, object]:
    """Both ways to send it, for the document. ninja knows one a path."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    if definitions:  # inline: it is used here only
        schema = _inlined(schema, definitions)
    photos = {"type": "array", "maxItems": bodies.MOST_UPLOADS, "items": {"type": "string", "format": "binary"}}  # fmt: skip
    return {
        "required": True,
        "content": {
            "application/json": {"schema": schema},
            "multipart/form-data": {
                "schema": {"type": "object", "properties": {**form, "photos": photos}, "additionalProperties": False}
            },
        },
    }  # fmt: skip


def _inlined(value: object, definitions: dict[str, object]) -> dict[str, object]:
    found = _replaced(value, definitions)
    assert isinstance(found, dict)
    return found


def _replaced(value: object, definitions: dict[str, object]) -> object:
    if isinstance(value, dict):
        if "$ref" in value:
            return _replaced(definitions[str(value["$ref"]).rpartition("/")[2]], definitions)
        return {name: _replaced(one, definitions) for name, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, definitions) for one in value]
    return value


_MADE = {
    "Location": {"description": "Where it is from now on.", "schema": {"type": "string"}},
    "Idempotency-Replayed": {"description": "`true`: the key was known.", "schema": {"type": "string"}},
    "Job-Joined": {"description": "`true`: the same was under way already.", "schema": {"type": "string"}},
}  # fmt: skip


def _extra(model: type[JobIn] | type[BatchIn], form: dict[str, object]) -> dict[str, object]:
    accepted = {"description": "Accepted: the rows are committed.", "headers": _MADE}
    return fails(*_REFUSALS, ok={202: accepted}, requestBody=_body(model, form))


_JOB_FORM: dict[str, Any] = {
    name: {**one, "type": one.get("type", "string")} if name != "params" else {"type": "string", "description": "JSON"}
    for name, one in JobIn.model_json_schema()["properties"].items()
    if name != "max_wait_s"
} | {"max_wait_s": {"type": "integer", "minimum": 0}}  # fmt: skip


@router.post(
    "/jobs", auth=SUBMIT, response={202: JobOut}, url_name="jobs", operation_id="create_job",
    summary="Create a job", openapi_extra=_extra(JobIn, _JOB_FORM),
)  # fmt: skip
def create_job(request: HttpRequest, idempotency_key: Key = None) -> HttpResponse:
    """As JSON, or as a form with photos. 202 once it is committed: from then on it is not lost, and not made twice."""
    asking = caller(request)
    body, uploads = bodies.read_job(request)
    read = bodies.new_job(body, uploads, tenant=asking.tenant)
    order = Order(
        jobs=read.jobs, tenant=asking.tenant, program=asking.program, digest=read.digest, key=idempotency_key or "",
        alone=True, join=body.join,
    )  # fmt: skip
    return _accept(order, body.max_wait_s)


@router.post(
    "/batches", auth=SUBMIT, response={202: BatchOut}, url_name="batches", operation_id="create_batch",
    summary="Create a batch",
    openapi_extra=_extra(BatchIn, {"batch": {"type": "string", "description": "The JSON of the batch."}}),
)  # fmt: skip
def create_batch(request: HttpRequest, idempotency_key: Key = None) -> HttpResponse:
    """Up to a thousand jobs, all or none. With photos: a form with the JSON in `batch`, files in `photos`, named by jobs."""
    asking = caller(request)
    body, uploads = bodies.read_batch(request)
    read = bodies.new_batch(body, uploads, tenant=asking.tenant)
    order = Order(
        jobs=read.jobs, tenant=asking.tenant, program=asking.program, digest=read.digest, key=idempotency_key or "",
        label=body.label.strip(), callback_url=read.callback_url,
    )  # fmt: skip
    return _accept(order, body.max_wait_s)


def _accept(order: Order, max_wait_s: int | None) -> HttpResponse:
    """The answer is made before the commit, so that nothing which comes after it can go wrong."""
    now = clock.now()

    def admit() -> None:
        admission.check(order.jobs, tenant=order.tenant, max_wait_s=max_wait_s, now=now)

    try:
        with transaction.atomic():
            return _answer(keyed.place(order, admit=admit, now=now), order, now)
    except KeyReusedError:
        text = _("The key came with another request before. Take a new one for a new request.")
        raise Problem(Code.KEY_REUSED, text) from None
    except (OperationalError, InterfaceError) as error:
        _log.warning("api.create %s", error)
    return _after_all(order)


def _after_all(order: Order) -> HttpResponse:
    """The connection broke, perhaps while the COMMIT was on its way: what is in the database decides."""
    connection.close()
    try:
        placed = keyed.made_after_all(order)
        if placed is not None:
            return _answer(placed, order, clock.now())
    except (OperationalError, InterfaceError) as error:
        _log.warning("api.create_after_all %s", error)
        text = _("It is not known whether it was made. Come again with the same Idempotency-Key.")
        raise Problem(Code.BUSY, text, retry_after_s=BUSY_RETRY_S) from None
    raise Problem(Code.BUSY, _("Nothing was made."), retry_after_s=BUSY_RETRY_S)


def _answer(placed: Placed, order: Order, now: datetime) -> HttpResponse:
    model: JobOut | BatchOut
    if placed.job is not None:
        model = told.job(told.jobs_of(order.tenant).get(pk=placed.job.pk), now=now)
        where = reverse("api:job", args=[placed.job.pk])
    else:
        assert placed.batch is not None
        seen = progress.read(placed.batch.pk, now=now)
        assert seen is not None
        model = told.batch(placed.batch, seen)
        where = reverse("api:batch", args=[placed.batch.pk])
    response = HttpResponse(model.model_dump_json(), status=202, content_type="application/json")
    response.headers["Location"] = where
    response.headers["Cache-Control"] = "no-store"
    if placed.how is How.REPEATED:
        response.headers["Idempotency-Replayed"] = "true"
    if placed.how is How.JOINED:
        response.headers["Job-Joined"] = "true"
    return response
