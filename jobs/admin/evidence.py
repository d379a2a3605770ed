"""How a send's calls went, for people: request and answer apart, in named groups of lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, written
from jobs.models import ProviderTask
from jobs.states import TaskState

_EVIDENCE_NAMES = {
    "submit": gettext_lazy("Its answer"),
    "verdict": gettext_lazy("The answer to the poll that ended it"),
    "poll": gettext_lazy("The answer to a poll that told nothing"),
    "status": gettext_lazy("HTTP status"),
    "headers": gettext_lazy("headers"),
    "body": gettext_lazy("body"),
    "broke": gettext_lazy("how it broke"),
    "left": gettext_lazy("bytes left us"),
    "why": gettext_lazy("why"),
    "fact": gettext_lazy("the other fact"),
    "traceback": gettext_lazy("traceback"),
    "pruned_at": gettext_lazy("What the provider answered was removed"),
}

_ORDER = ("why", "broke", "status", "headers", "body")


@dataclass(slots=True)
class Line:
    """One piece of evidence; `block` for what needs its own box."""

    label: str
    value: str
    block: bool


Group = tuple[str, list[Line]]


def of_task(task: ProviderTask) -> list[Group]:
    """What was sent, then what came back, each under its own name."""
    kept = dict(task.evidence)
    answer = kept.get("submit")
    left = None
    if isinstance(answer, dict):
        kept["submit"] = {name: value for name, value in answer.items() if name != "left"}
        left = answer.get("left")
    if (removed_at := kept.get("pruned_at")) is not None:
        kept["pruned_at"] = written.exact(datetime.fromisoformat(str(removed_at)))
    return [*_request(task, left), *groups(kept), *_reading(task)]


def _request(task: ProviderTask, left: bool | None) -> list[Group]:
    """What we know of the paid request itself; nothing where none was made."""
    if task.armed_at is None:
        return []
    lines = [
        Line(_("sent at"), written.exact(task.armed_at), block=False),
        Line(_("to"), task.target.name, block=False),
        Line(_("under our id"), str(task.pk), block=False),
    ]
    if left is not None:
        lines.append(Line(_evidence_name("left"), _("yes") if left else _("no"), block=False))
    return [(_("The paid request"), lines)]


def _reading(task: ProviderTask) -> list[Group]:
    """What we took the answer for, and why; nothing where all went well in the end."""
    if not task.failure_class or task.state == TaskState.STORED:
        return []
    lines = [
        Line(_("taken for"), display.reason(task.failure_class), block=False),
        Line(_evidence_name("why"), task.failure_text, block=len(task.failure_text) > 120),
    ]
    return [(_("How we read it"), [line for line in lines if line.value])]


def groups(evidence: Mapping[str, Any]) -> list[Group]:
    """Evidence in named groups. Its shape is the recorder's own, so whatever is there is shown; what is empty is not."""
    named: list[Group] = []
    loose: list[Line] = []
    for name, value in evidence.items():
        if isinstance(value, dict):
            lines = [_line(key, value[key]) for key in sorted(value, key=_place)]
            named.append((_evidence_name(name), lines))
        else:
            loose.append(_line(name, value))
    found = [*([("", loose)] if loose else []), *named]
    told = [(name, [line for line in lines if line.value]) for name, lines in found]
    return [(name, lines) for name, lines in told if lines]


def _place(name: str) -> int:
    """Short lines first: the database gives names in an order of its own."""
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _evidence_name(name: str) -> str:
    return str(_EVIDENCE_NAMES.get(name) or name.replace("_", " "))


def _line(name: str, value: Any) -> Line:
    if isinstance(value, dict):
        text = "\n".join(f"{key}: {one}" for key, one in value.items())
    elif isinstance(value, list):
        text = "\n".join(str(one) for one in value)
    elif isinstance(value, bool):
        text = _("yes") if value else _("no")
    else:
        text = "" if value is None else _indented(str(value))
    return Line(_evidence_name(name), text, "\n" in text or len(text) > 120)


def _indented(text: str) -> str:
    """JSON on several lines; anything else as it is."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
