"""What programs read: jobs, batches, results, event streams, providers' states, the budget. And cancelling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import get_script_prefix, reverse, set_script_prefix
from django.utils.translation import gettext as _
from ninja import Query
from pydantic import BaseModel, Field

from jobs import intake, links, live, progress
from jobs.api import told
from jobs.api.auth import CANCEL, READ, Caller, caller
from jobs.api.document import BUSY_RETRY_S, fails, router
from jobs.api.problems import Code, Problem, invalid
from jobs.api.schemas import BatchOut, BudgetOut, JobOut, JobsOut, ProvidersOut
from jobs.clock import clock
from jobs.intake import InputError
from jobs.lifecycle import batches, staff
from jobs.lifecycle.errors import Refused
from jobs.live import Subject
from jobs.models import Batch, Job, Result
from jobs.progress import Progress
from jobs.serving import serve_result
from jobs.states import ENDED, JobState

MOST_A_PAGE = 200
# How long a link to a result works; the job leads to a new one at any time.
RESULT_LINK_S = 600.0
COME_BACK_MS = 3_000
_BIGGEST = 2**63 - 1

_STREAM = {
    "description": "Server-sent events: `data` is the state as it is, then each change; `ping` and `end` are events.",
    "content": {"text/event-stream": {}},
}
_REDIRECT = {
    "description": "Where the file is.",
    "headers": {"Location": {"schema": {"type": "string"}}},
}
_FILE = {
    "description": "The file.",
    "content": {kind: {"schema": {"type": "string"}} for kind in ("image/*", "text/plain")},
}
State = Literal["pending", "active", "succeeded", "failed", "manual", "cancelled"]


def _out(model: BaseModel, status: int = 200) -> HttpResponse:
    response = HttpResponse(model.model_dump_json(), status=status, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def _job(asking: Caller, job_id: int) -> Job:
    row = told.jobs_of(asking.tenant).filter(pk=job_id).first()
    if row is None:
        raise Problem(Code.NOT_FOUND)
    return row


def _batch(asking: Caller, batch_id: int) -> tuple[Batch, Progress]:
    row = Batch.objects.filter(tenant=asking.tenant, pk=batch_id).first()
    seen = progress.read(row.pk, now=clock.now()) if row else None
    if row is None or seen is None:
        raise Problem(Code.NOT_FOUND)
    return row, seen


# --- jobs -------------------------------------------------------------------------------------------------------------


@router.get(
    "/jobs", auth=READ, response=JobsOut, url_name="jobs", operation_id="list_jobs", summary="List jobs",
    openapi_extra=fails(),
)  # fmt: skip
def list_jobs(
    request: HttpRequest,
    state: Annotated[State | None, Query()] = None,
    reference: Annotated[str, Query(max_length=intake.MAX_REFERENCE_CHARS, description="Exactly this.")] = "",
    batch: Annotated[int | None, Query(ge=1, le=_BIGGEST)] = None,
    older_than: Annotated[int | None, Query(ge=1, le=_BIGGEST, description="A job's id: the page after it.")] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_A_PAGE)] = 50,
) -> HttpResponse:  # fmt: skip
    """Newest first. `older` leads to the next page; a page is as quick however far down it is."""
    rows = told.jobs_of(caller(request).tenant)
    asked: dict[str, Any] = {"limit": limit}
    if state is not None:
        rows, asked["state"] = rows.filter(state=state), state
    if reference:
        try:
            rows, asked["reference"] = rows.filter(reference=intake.check_reference(reference)), reference  # fmt: skip
        except InputError as error:
            raise invalid("reference", error.message) from None
    if batch is not None:
        rows, asked["batch"] = rows.filter(batch_id=batch), batch
    if older_than is not None:
        rows = rows.filter(pk__lt=older_than)
    page = list(rows.order_by("-pk")[: limit + 1])
    older = None
    if len(page) > limit:
        page = page[:limit]
        older = f"{reverse('api:jobs')}?{urlencode(asked | {'older_than': page[-1].pk})}"
    return _out(JobsOut(jobs=told.jobs(page, now=clock.now()), older=older))


@router.get(
    "/jobs/{int:job_id}", auth=READ, response=JobOut, url_name="job", operation_id="get_job", summary="Get a job",
    openapi_extra=fails(Code.NOT_FOUND),
)  # fmt: skip
def get_job(request: HttpRequest, job_id: int) -> HttpResponse:
    """How it stands, why it waits, what it has cost, when it may end."""
    return _out(told.job(_job(caller(request), job_id), now=clock.now()))


@router.post(
    "/jobs/{int:job_id}/cancel", auth=CANCEL, response=JobOut, url_name="job_cancel", operation_id="cancel_job",
    summary="Cancel a job", openapi_extra=fails(Code.NOT_FOUND, Code.ENDED),
)  # fmt: skip
def cancel_job(request: HttpRequest, job_id: int) -> HttpResponse:
    """Nothing more is sent. What is under way is still watched, and what it costs stays on the books."""
    asking = caller(request)
    row = _job(asking, job_id)
    try:
        staff.cancel(job_id=row.pk, actor=None, now=clock.now(), reason=_by(asking))
    except Refused as refused:
        row = _job(asking, job_id)
        if row.state != JobState.CANCELLED:
            raise Problem(Code.ENDED, str(refused), state=row.state) from None
    return _out(told.job(_job(asking, job_id), now=clock.now()))


def _by(asking: Caller) -> str:
    return _("Cancelled by %(program)s") % {"program": asking.program}


@router.get(
    "/jobs/{int:job_id}/result", auth=READ, response={302: None}, url_name="job_result", operation_id="get_result",
    summary="Get the result",
    openapi_extra=fails(Code.NOT_FOUND, Code.NO_RESULT, ok={302: _REDIRECT}),
)  # fmt: skip
def get_result(request: HttpRequest, job_id: int) -> HttpResponse:
    """Redirects to the file, at an address that works for ten minutes, without a token."""
    row = _job(caller(request), job_id)
    if row.delivered_id is None:
        wait_s = None if row.state in ENDED else 10.0
        raise Problem(Code.NO_RESULT, retry_after_s=wait_s, state=row.state)
    response = HttpResponse(status=302)
    response.headers["Location"] = links.result_link(
        row.delivered_id, now=clock.now(), lasts_s=RESULT_LINK_S
    )
    response.headers["Cache-Control"] = "no-store"
    return response


@router.get(
    "/files/{signed}", auth=None, response={200: None}, url_name="file", operation_id="get_file",
    summary="A result's file",
    openapi_extra=fails(Code.NOT_FOUND, Code.EXPIRED, Code.INVALID, Code.BUSY, always=False, ok={200: _FILE}),
)  # fmt: skip
def get_file(request: HttpRequest, signed: Annotated[str, Field(max_length=200)]) -> HttpResponseBase:  # fmt: skip
    """Where `result` redirects to. Whoever has the address may read the file, until it is over."""
    try:
        result_id = links.result_of(signed, now=clock.now())
    except links.LinkExpiredError:
        raise Problem(Code.EXPIRED) from None
    row = Result.objects.filter(pk=result_id).first() if result_id is not None else None
    if row is None:
        raise Problem(Code.NOT_FOUND)
    return serve_result(request, row)


# --- batches ----------------------------------------------------------------------------------------------------------


@router.get(
    "/batches/{int:batch_id}", auth=READ, response=BatchOut, url_name="batch", operation_id="get_batch",
    summary="Get a batch", openapi_extra=fails(Code.NOT_FOUND),
)  # fmt: skip
def get_batch(request: HttpRequest, batch_id: int) -> HttpResponse:
    """How far it is."""
    return _out(told.batch(*_batch(caller(request), batch_id)))


@router.post(
    "/batches/{int:batch_id}/cancel", auth=CANCEL, response=BatchOut, url_name="batch_cancel",
    operation_id="cancel_batch", summary="Cancel the rest of a batch", openapi_extra=fails(Code.NOT_FOUND),
)  # fmt: skip
def cancel_batch(request: HttpRequest, batch_id: int) -> HttpResponse:
    """What has not been sent is cancelled; what is under way goes on to its end. Asked again, it changes nothing more."""
    asking = caller(request)
    row, _seen = _batch(asking, batch_id)
    with suppress(Refused):  # nothing was left to cancel
        batches.cancel_rest(batch_id=row.pk, actor=None, now=clock.now(), reason=_by(asking))
    return _out(told.batch(*_batch(asking, batch_id)))


# --- events -----------------------------------------------------------------------------------------------------------


@router.get(
    "/jobs/{int:job_id}/events", auth=READ, response={200: None}, url_name="job_events", operation_id="job_events",
    summary="Follow a job",
    openapi_extra=fails(Code.NOT_FOUND, ok={200: _STREAM}),
)  # fmt: skip
def job_events(request: HttpRequest, job_id: int) -> HttpResponseBase:
    """The job as it is, and each change of it, until it ends. Comes to its own end after some minutes: then ask again."""
    asking = caller(request)
    row = _job(asking, job_id)
    rows = told.jobs_of(asking.tenant)

    def tell(seen: Job) -> dict[str, Any]:
        return told.jobs([seen], now=clock.now())[0].model_dump(mode="json")

    return _stream(
        request,
        key=("api job", row.pk),
        read=lambda: rows.all().filter(pk=row.pk).first(),
        tell=tell,
        over=lambda seen: seen.state in ENDED,
    )


@router.get(
    "/batches/{int:batch_id}/events", auth=READ, response={200: None}, url_name="batch_events",
    operation_id="batch_events", summary="Follow a batch",
    openapi_extra=fails(Code.NOT_FOUND, ok={200: _STREAM}),
)  # fmt: skip
def batch_events(request: HttpRequest, batch_id: int) -> HttpResponseBase:
    """The batch as it is, and each change of it, until nothing is under way any more."""
    row, _seen = _batch(caller(request), batch_id)

    def tell(seen: Progress) -> dict[str, Any]:
        # When it may end moves with every second.
        return told.batch(row, seen).model_dump(mode="json", exclude={"ends_at"})

    return _stream(
        request,
        key=("api batch", row.pk),
        read=lambda: progress.read(row.pk, now=clock.now()),
        tell=tell,
        over=lambda seen: seen.done,
    )


def _stream(
    request: HttpRequest,
    *,
    key: tuple[str, int],
    read: Callable[[], Any],
    tell: Callable[[Any], dict[str, Any]],
    over: Callable[[Any], bool],
) -> HttpResponseBase:
    if not isinstance(request, ASGIRequest):
        return _as_it_is(read(), tell, over)
    if live.full():
        raise Problem(Code.BUSY, _("Too many streams are open."), retry_after_s=BUSY_RETRY_S)
    # Below which folder of the site we are is known to requests only.
    prefix = get_script_prefix()

    def tell_here(seen: Any) -> dict[str, Any]:
        set_script_prefix(prefix)
        return tell(seen)

    return live.answer(request, Subject(key=key, read=read, tell=tell_here, over=over))


def _as_it_is(
    seen: Any, tell: Callable[[Any], dict[str, Any]], over: Callable[[Any], bool]
) -> HttpResponse:
    """Where the server is not asynchronous, a stream of one message: whoever follows it comes back for the next."""
    messages = [f"retry: {COME_BACK_MS}\n\n".encode(), live.message(tell(seen))]
    if over(seen):
        messages.append(live.END)
    response = HttpResponse(b"".join(messages), content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    return response


# --- the rest ---------------------------------------------------------------------------------------------------------


@router.get(
    "/providers", auth=READ, response=ProvidersOut, url_name="providers", operation_id="providers",
    summary="Providers' states", openapi_extra=fails(),
)  # fmt: skip
def get_providers(request: HttpRequest) -> HttpResponse:
    """Of every target: available, quota exhausted until when, or down. The same words as on the desk."""
    return _out(told.providers(now=clock.now()))


@router.get(
    "/budget", auth=READ, response=BudgetOut, url_name="budget", operation_id="budget", summary="The tenant's budget",
    openapi_extra=fails(),
)  # fmt: skip
def get_budget(request: HttpRequest) -> HttpResponse:
    """What is spent, what may still be charged, what is left."""
    return _out(told.budget(caller(request).tenant, now=clock.now()))
