"""Bodies of requests, JSON or multipart, made into jobs that are ready to be created. Every fault is told, with its place.

Shapes are checked by jobs/api/schemas.py, contents by jobs/intake.py and jobs/routes.py. Photos come last: nothing is
written to the disk for a request with other faults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from django.conf import settings
from django.core.exceptions import RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.http.request import UnreadablePostError
from django.utils.translation import gettext as _
from pydantic import BaseModel, ValidationError

from jobs import callbacks, intake, routes
from jobs.api.problems import Code, Fault, Problem
from jobs.api.schemas import MOST_PHOTOS, BatchIn, JobIn, Wanted
from jobs.intake import InputError, Taken
from jobs.lifecycle.create import NewJob
from jobs.models import Tenant
from providers.contract import Kind
from providers.models import Target

PHOTOS = "photos"
BATCH = "batch"  # the part of a multipart request that holds the JSON
MOST_UPLOADS = 50
MOST_BYTES = settings.DATA_UPLOAD_MAX_MEMORY_SIZE + MOST_UPLOADS * intake.MAX_PHOTO_BYTES

Model = TypeVar("Model", bound=BaseModel)
Upload = UploadedFile[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """`digest` is the same for the same request, whether it came as JSON or as a form."""

    jobs: Sequence[NewJob]
    digest: str
    callback_url: str = ""  # of the batch


def read_job(request: HttpRequest) -> tuple[JobIn, Sequence[Upload]]:
    if _is_json(request):
        return _from_json(JobIn, request.body), ()
    fields, uploads = _form(request)
    values: dict[str, Any] = {name: given[-1] for name, given in fields.items()}
    if "fallbacks" in fields:
        values["fallbacks"] = fields["fallbacks"]
    if "params" in values:
        values["params"] = _json_field("params", values["params"])
    try:
        return JobIn.model_validate(values, strict=False), uploads
    except ValidationError as error:
        raise _faulty(error) from None


def read_batch(request: HttpRequest) -> tuple[BatchIn, Sequence[Upload]]:
    if _is_json(request):
        return _from_json(BatchIn, request.body), ()
    fields, uploads = _form(request)
    if set(fields) != {BATCH}:
        text = _("Send the batch as JSON in one field “batch”, and files in “photos”.")
        raise Problem(Code.INVALID, faults=[Fault(BATCH, text)])
    return _from_json(BatchIn, fields[BATCH][-1].encode()), uploads


# --- shapes -----------------------------------------------------------------------------------------------------------


def _is_json(request: HttpRequest) -> bool:
    if int(request.META.get("CONTENT_LENGTH") or 0) > MOST_BYTES:
        raise _too_large()
    kind = request.content_type
    if kind not in {"application/json", "multipart/form-data"}:
        raise Problem(
            Code.MEDIA_TYPE, _("Send application/json, or multipart/form-data with photos.")
        )
    return kind == "application/json"


def _from_json(model: type[Model], data: bytes) -> Model:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise _faulty(error) from None


def _faulty(error: ValidationError) -> Problem:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        return Problem(Code.MALFORMED, found[0]["msg"])
    return Problem(
        Code.INVALID,
        faults=[Fault(".".join(str(part) for part in one["loc"]), one["msg"]) for one in found],
    )


def _json_field(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Problem(Code.INVALID, faults=[Fault(name, _("This must be JSON."))]) from None


def _form(request: HttpRequest) -> tuple[Mapping[str, Sequence[str]], Sequence[Upload]]:
    try:
        fields = {name: request.POST.getlist(name) for name in request.POST}
        strange = set(request.FILES) - {PHOTOS}
        uploads = request.FILES.getlist(PHOTOS)
    except (RequestDataTooBig, TooManyFieldsSent, TooManyFilesSent):
        raise _too_large() from None
    except (MultiPartParserError, UnreadablePostError, UnicodeError):
        raise Problem(Code.MALFORMED, _("The form can't be read.")) from None
    if strange:
        text = _("Files go into “photos”.")
        raise Problem(Code.INVALID, faults=[Fault(name, text) for name in sorted(strange)])
    if len(uploads) > MOST_UPLOADS:
        raise _too_large()
    return fields, uploads


def _too_large() -> Problem:
    words = {"n": MOST_UPLOADS, "mb": intake.MAX_PHOTO_BYTES // 1024 // 1024}
    return Problem(
        Code.TOO_LARGE, _("At most %(n)d photos of %(mb)d MB, and 32 MB of everything else.") % words
    )  # fmt: skip


# --- contents ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Faults:
    found: list[Fault] = field(default_factory=list)

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            self.add(place, error.field, error.message)

    def add(self, place: str, name: str, text: str) -> None:
        # A parameter's own place: "params.size".
        name = name.replace("param:", "params.", 1)
        self.found.append(Fault(".".join(part for part in (place, name) if part), text))

    def check(self) -> None:
        if self.found:
            raise Problem(Code.INVALID, faults=self.found)


class _Routes:
    """Each route is looked up once, however many jobs take it."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._known: dict[tuple[str, ...], list[Target] | InputError] = {}

    def of(self, target: str, fallbacks: Sequence[str]) -> list[Target]:
        if not target and fallbacks:
            raise InputError("fallbacks", _("Name a target first."))
        names = tuple(
            intake.check_target(name) for name in ([target, *fallbacks] if target else [])
        )
        if not all(names):
            raise InputError("fallbacks", _("A target has no name."))
        if names not in self._known:
            try:
                self._known[names] = routes.resolve(names, tenant=self._tenant)
            except InputError as error:
                self._known[names] = error
        found = self._known[names]
        if isinstance(found, InputError):
            raise found
        return found


def new_job(body: JobIn, uploads: Sequence[Upload], *, tenant: Tenant) -> Read:
    """Raises Problem with every fault."""
    faults = _Faults()
    job = _checked(body, place="", faults=faults, routes_=_Routes(tenant))
    if len(uploads) > MOST_PHOTOS:
        faults.add("", PHOTOS, _("At most %(most)d photos.") % {"most": MOST_PHOTOS})
    faults.check()
    taken = [_take(upload, f"{PHOTOS}.{at}", faults) for at, upload in enumerate(uploads)]
    faults.check()
    photos = [photo for photo in taken if photo is not None]
    assert job is not None
    return Read(jobs=[replace(job, photos=photos)], digest=_digest("job", body, photos))


def new_batch(body: BatchIn, uploads: Sequence[Upload], *, tenant: Tenant) -> Read:
    """Raises Problem with every fault. A file that no job names is a fault too: somebody has mistyped its name."""
    faults, routes_ = _Faults(), _Routes(tenant)
    with faults.at(""):
        intake.check_name(body.label, field="label")
    callback_url = check_callback(body.callback_url, "", faults)
    by_name = {str(upload.name): upload for upload in uploads}
    if len(by_name) != len(uploads):
        faults.add("", PHOTOS, _("Two files have the same name."))
    named = {name for one in body.jobs for name in one.photos}
    for name in sorted(by_name.keys() - named):
        faults.add("", PHOTOS, _("No job names the file “%(name)s”.") % {"name": name[:80]})
    jobs = []
    for at, one in enumerate(body.jobs):
        place = f"jobs.{at}"
        for number, name in enumerate(one.photos):
            if name not in by_name:
                faults.add(f"{place}.{PHOTOS}", str(number), _("There is no file of that name."))
        given = one if one.target else one.model_copy(update={"target": body.target, "fallbacks": body.fallbacks + one.fallbacks})  # fmt: skip
        jobs.append(_checked(given, place=place, faults=faults, routes_=routes_))
    faults.check()
    taken = {
        name: _take(by_name[name], f"{PHOTOS}.{at}", faults) for at, name in enumerate(by_name)
    }
    faults.check()
    photos = {name: photo for name, photo in taken.items() if photo is not None}
    ready = [
        replace(job, photos=[photos[name] for name in one.photos])
        for job, one in zip(jobs, body.jobs, strict=True)
        if job is not None
    ]
    return Read(
        jobs=ready, digest=_digest("batch", body, list(photos.values())), callback_url=callback_url
    )  # fmt: skip


def _checked(one: Wanted, *, place: str, faults: _Faults, routes_: _Routes) -> NewJob | None:
    """None: a fault was noted."""
    before = len(faults.found)
    prompt = reference = ""
    params: dict[str, Any] = {}
    route: list[Target] = []
    with faults.at(place):
        prompt = intake.check_prompt(one.prompt)
    with faults.at(place):
        reference = intake.check_reference(one.reference)
    with faults.at(place):
        params = intake.check_params(one.params)
    with faults.at(place):
        route = routes_.of(one.target, one.fallbacks)
    callback_url = check_callback(one.callback_url, place, faults)
    if len(faults.found) > before:
        return None
    return NewJob(
        prompt=prompt, route=route, kind=Kind(route[0].kind), params=params, reference=reference,
        priority=intake.check_priority(one.priority), callback_url=callback_url,
    )  # fmt: skip


def check_callback(url: str, place: str, faults: _Faults) -> str:
    if not url:
        return ""
    try:
        return callbacks.check_url(url, allowed=settings.CALLBACK_ALLOW)
    except callbacks.BadUrlError as error:
        faults.add(place, "callback_url", str(error))
        return ""


def _take(upload: Upload, place: str, faults: _Faults) -> Taken | None:
    try:
        assert upload.file is not None  # an upload of a form that was parsed
        return intake.take_photo(upload.file)
    except InputError as error:
        faults.found.append(Fault(place, error.message))
        return None


def _digest(what: str, body: BaseModel, photos: Sequence[Taken]) -> str:
    asked = [what, body.model_dump(mode="json"), [photo.sha256 for photo in photos]]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
