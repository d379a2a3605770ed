"""The provider's storage: result files by URL, as any client may fetch them."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

from . import edge
from .faults import HEADER, Spec, Stage, asked_for
from .ledger import Task
from .reactions import HALF, Picture, Reaction, Request, Transport

if TYPE_CHECKING:
    from .world import World

PREFIX = "/files/"
_RATIOS = {
    "1:1": (640, 640),
    "16:9": (768, 432),
    "9:16": (432, 768),
    "4:3": (704, 528),
    "3:4": (528, 704),
}


def url(task: Task, request: Request, number: int = 1) -> str:
    """Where the task's file is now. An expired URL is followed by one with a higher issue number."""
    return f"{request.base_url}{PREFIX}{task.issue}/{task.id}-{number}.png"


def picture(task: Task, number: int = 1) -> Picture:
    ratio = task.params.get("aspect_ratio")
    width, height = _RATIOS.get(ratio if isinstance(ratio, str) else "", (640, 640))
    return Picture(task.id, task.prompt, task.correlation, number, width, height)


def answer(world: World, request: Request, now: float) -> Reaction:
    world.ledger.requests["files"] += 1
    issue_text, _, name = request.path.removeprefix(PREFIX).partition("/")
    task_id, _, number_text = name.removesuffix(".png").rpartition("-")
    task = world.ledger.tasks.get(task_id)
    if (
        request.method not in {"GET", "HEAD"}
        or task is None
        or not (issue_text.isdecimal() and number_text.isdecimal())
    ):
        return _gone()
    task.downloads += 1
    issue, number = int(issue_text), int(number_text)
    gone = now > task.completed_at + world.settings.result_ttl_s or "result_gone" in task.fate
    if gone or issue < task.issue:
        return _gone() if gone else _expired()
    try:
        specs = asked_for(header=request.headers.get(HEADER, ""))
    except ValueError as wrong:
        return _storage_error(400, "InvalidRequest", str(wrong))
    spec = world.pick(Stage.FILE, (*specs, *task.specs), task.id)
    return _good(task, number) if spec is None else _faulty(task, issue, number, spec)


def _faulty(task: Task, issue: int, number: int, spec: Spec) -> Reaction:
    """What a FILE fault makes of a download; an expired URL and a lost file are remembered on the task."""
    if spec.name == "result_expired":
        task.issue = issue + 1
        return _expired()
    if spec.name == "result_gone":
        task.fate["result_gone"] = 0.0
        return _gone()
    if spec.name.startswith("result_"):
        return spoiled(task, number, spec)
    return trouble(spec.name.removeprefix("file_"), spec.value_or_default(), _good(task, number))


def spoiled(task: Task, number: int, spec: Spec) -> Reaction:
    """A 200 with something else than a whole picture."""
    png, whole = (("content-type", "image/png"),), picture(task, number)
    page = (
        "<!DOCTYPE html><html><body><h1>Файл готовится</h1><p>Попробуйте позже.</p></body></html>"
    )
    padding = int(spec.value_or_default() * 1024 * 1024)
    return {
        "result_html": Reaction(
            headers=(("content-type", "text/html; charset=utf-8"),), body=page.encode()
        ),
        "result_text": Reaction(headers=png, body=b"this is not a picture\n"),
        "result_empty": Reaction(headers=png),
        "result_truncated": Reaction(headers=png, picture=replace(whole, keep=0.5)),
        "result_bomb": Reaction(headers=png, body=bomb()),
        "result_jpeg": Reaction(headers=png, picture=replace(whole, form="JPEG")),
        "result_oversize": Reaction(headers=png, picture=whole, padding_bytes=padding),
    }[spec.name]


def _good(task: Task, number: int) -> Reaction:
    return Reaction(
        headers=(("content-type", "image/png"), ("cache-control", "private, max-age=604800")),
        picture=picture(task, number),
    )


def trouble(name: str, value: float, good: Reaction) -> Reaction:
    """A READ_TROUBLES name at the storage, which speaks S3's XML."""
    match name:
        case "502_html" | "524_html":
            return edge.page(int(name[:3]))
        case "429":
            return _storage_error(
                429, "SlowDown", "Please reduce your request rate.", ("retry-after", f"{value:g}")
            )
        case "garbage":
            return Reaction(headers=(("content-type", "image/png"),), body=b"\x00\xff garbage \xfe")
        case "empty":
            return Reaction(headers=(("content-type", "image/png"),))
    if name.isdigit():
        return _storage_error(
            int(name), "InternalError", "We encountered an internal error. Please try again."
        )
    return misbehaving(name, value, good)


def misbehaving(name: str, value: float, good: Reaction) -> Reaction:
    """The transport troubles of READ_TROUBLES, which are the same everywhere."""
    match name:
        case "reset":
            return Reaction(transport=Transport.RESET, delay_s=value)
        case "hang":
            return Reaction(transport=Transport.HANG)
        case "slow":
            return replace(good, delay_s=good.delay_s + value)
        case "cut":
            return replace(good, transport=Transport.CUT, cut_after=HALF)
        case "drip":
            piece = 4096 if good.picture is not None else max(1, len(good.body) // 20)
            return replace(good, transport=Transport.DRIP, drip_bytes=piece, drip_s=value)
    raise ValueError(f"no transport trouble is named {name!r}")


def _gone() -> Reaction:
    return _storage_error(404, "NoSuchKey", "The specified key does not exist.")


def _expired() -> Reaction:
    return _storage_error(403, "AccessDenied", "Request has expired")


def _storage_error(status: int, code: str, message: str, *headers: tuple[str, str]) -> Reaction:
    xml = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Reaction(
        status=status, headers=(("content-type", "application/xml"), *headers), body=xml.encode()
    )


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few hundred bytes that claims side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = zlib.compress(bytes(side // 8 + 1) * 16, 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )
