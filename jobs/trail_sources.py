"""Where what people did is kept: each place's rows as deeds. Read together by jobs/trail.py.

A verb writes its event, or its row's own columns, in the transaction of the change. What was done to many at once is one
deed (a bulk action, a batch's event); its jobs have it in their own timelines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.db.models import Q, QuerySet

from jobs.models import (
    Batch,
    BatchEvent,
    BulkRun,
    CaseEvent,
    Hold,
    JobEvent,
    Orphan,
    PruneRun,
    StandingDecision,
    Statement,
    TenantEvent,
)
from jobs.models.event import BY_PEOPLE
from providers.models import BY_PEOPLE as BY_PEOPLE_AT_PROVIDERS
from providers.models import ProviderEvent


class On(StrEnum):
    """What a deed was done to."""

    JOB = "job"
    CASE = "case"
    BATCH = "batch"
    BULK = "bulk"
    ACCOUNT = "account"
    TARGET = "target"
    TENANT = "tenant"
    HOLD = "hold"
    STANDING = "standing"
    STATEMENT = "statement"
    ORPHAN = "orphan"
    USER = "user"
    GROUP = "group"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Change:
    """One value, before and after; `name` is a field's name or a constant of this module's sources."""

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """`by`: the person's name, "" for whoever had the shell (a command without `--as`). `what`: a constant. `pk`, `name`:
    of the object. `data`: what else was stored, JSON-ready."""

    at: datetime
    source: str
    id: int
    by: str
    what: str
    on: On
    pk: str
    name: str
    reason: str = ""
    changes: tuple[Change, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One place where deeds are kept. `kinds`: of objects that its deeds are about. `at`, `who`: names of its columns;
    `what`: of the one that tells the verb, or with `always` the verb itself. `texts`: where its reasons stand.
    `of`: the rows about one object; None: no deed of this place is about it."""

    name: str
    kinds: frozenset[On]
    rows: Callable[[], QuerySet[Any]]
    at: str
    who: str
    what: str = ""
    always: str = ""
    texts: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    of: Callable[[On, str], Q | None]
    told: Callable[[Mapping[str, Any]], dict[str, Any]]


# --- events -----------------------------------------------------------------------------------------------------------

_REASONS = ("reason", "note", "why", "reference")
_BY_REASON = tuple(f"data__{name}" for name in _REASONS)
_CASE_EVENTS = ("case_taken", "case_noted", "case_closed")
# What `before` and `after` of a job's event are values of; of those not named here, its state.
_CHANGED = {
    "edited": "prompt", "retargeted": "target", "delivered_instead": "result", "written_off": "charge", "refunded": "charge",
    "rated": "rating", "rating_removed": "rating",
}  # fmt: skip


def _why(data: Mapping[str, Any]) -> str:
    return " · ".join(str(data[name]) for name in ("reason", "why", "note") if data.get(name))


def _rest(data: Mapping[str, Any], *taken: str) -> dict[str, Any]:
    return {
        name: value
        for name, value in data.items()
        if name not in {"reason", "why", "note", *taken} and value not in (None, "", {}, [])
    }


def _job_event(row: Mapping[str, Any]) -> dict[str, Any]:
    data, what = row["data"], row["kind"]
    changes = []
    after = data.get("after", data.get("target") if what == "retargeted" else None)
    after = data.get("result") if what == "delivered_instead" else after
    if "before" in data or after is not None:
        changes.append(Change(_CHANGED.get(what, "state"), data.get("before"), after))
    if data.get("target_before"):
        changes.append(Change("target", data["target_before"], data.get("target")))
    taken = ["before", "after", "target_before"]
    taken += [change.name for change in changes]
    return {
        "what": what, "on": On.CASE if what in _CASE_EVENTS else On.JOB, "pk": str(row["job_id"]),
        "name": row["job__reference"] or f"#{row['job_id']}", "reason": _why(data), "changes": tuple(changes),
        "data": _rest(data, *taken) | ({"send": str(row["task_id"])} if row["task_id"] else {}),
    }  # fmt: skip


def _case_event(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": row["kind"], "on": On.CASE, "pk": f"case-{row['case_id']}", "name": row["case__orphan__provider_id"] or f"#{row['case_id']}",
        "reason": _why(row["data"]), "data": _rest(row["data"]) | {"case": row["case__kind"]},
    }  # fmt: skip


def _batch_event(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": row["kind"], "on": On.BATCH, "pk": str(row["batch_id"]), "name": row["batch__label"] or f"#{row['batch_id']}",
        "reason": _why(row["data"]), "data": _rest(row["data"]),
    }  # fmt: skip


def _batch_made(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "on": On.BATCH, "pk": str(row["pk"]), "name": row["label"] or f"#{row['pk']}", "data": {"tenant": row["tenant__name"]}
    }  # fmt: skip


def _provider_event(row: Mapping[str, Any]) -> dict[str, Any]:
    data, what = row["data"], row["kind"]
    changes = []
    if what == "limits_changed":
        changes = [Change("limit", data.get("before"), data.get("after"))]
        changes += [Change(name, *pair) for name, pair in data.get("set", {}).items()]
    # `reason` is what the provider had said before.
    reason = data.get("why", "")
    return {
        "what": what, "on": On.ACCOUNT, "pk": str(row["account_id"]), "reason": str(reason or ""), "changes": tuple(changes),
        "name": " ".join(part for part in (row["account__provider"], row["model"] or f"…{row['account__fingerprint'][-6:]}")),
        "data": _rest(data, "before", "after", "set"),
    }  # fmt: skip


def _tenant_event(row: Mapping[str, Any]) -> dict[str, Any]:
    data = row["data"]
    changed = row["kind"] == "changed"
    return {
        "what": f"tenant_{row['kind']}", "on": On.TENANT, "pk": str(row["tenant_id"]), "name": row["tenant__name"],
        "reason": row["reason"], "changes": tuple(
            Change(name, *value) if changed else Change(name, None, value) for name, value in data.items()
        ),
    }  # fmt: skip


# --- rows whose own columns tell it -----------------------------------------------------------------------------------


def _hold(row: Mapping[str, Any], reason: str) -> dict[str, Any]:
    return {
        "on": On.HOLD, "pk": str(row["pk"]), "name": "", "reason": row[reason], "data": {"kind": row["kind"]}
    }  # fmt: skip


def _bulk(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "on": On.BULK, "pk": str(row["pk"]), "name": f"#{row['pk']}", "reason": _why(row["data"]),
        "data": _rest(row["data"]) | {"verb": row["verb"], "jobs": row["total"], "done": row["done"]},
    }  # fmt: skip


def _standing(row: Mapping[str, Any], *, with_reason: bool) -> dict[str, Any]:
    return {
        "on": On.STANDING, "pk": str(row["pk"]), "name": f"{row['target__provider']}:{row['target__model']}",
        "reason": row["reason"] if with_reason else "", "data": {"decision": row["what"]},
    }  # fmt: skip


def _statement(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "on": On.STATEMENT, "pk": str(row["pk"]), "name": row["provider"],
        "data": {"since": row["since"].isoformat(), "until": row["until"].isoformat()},
    }  # fmt: skip


def _orphan(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "what": f"orphan_{row['outcome']}", "on": On.ORPHAN, "pk": str(row["pk"]), "name": row["provider_id"],
        "reason": row["note"], "data": _rest({
            "provider_reference": row["reference"], "cost": None if row["cost"] is None else f"{row['cost'].normalize():f} {row['currency']}",
            "job": row["task__job_id"],
        }),
    }  # fmt: skip


# --- what Django's own pages write ------------------------------------------------------------------------------------

_FLAGS = {ADDITION: "added", CHANGE: "changed", DELETION: "deleted"}
_MODELS = {
    ("providers", "target"): On.TARGET,
    ("providers", "account"): On.ACCOUNT,
    ("auth", "user"): On.USER,
    ("auth", "group"): On.GROUP,
}
# These have events of their own.
_TOLD_ELSEWHERE = Q(content_type__app_label="jobs", content_type__model__in=["tenant", "standingdecision"])  # fmt: skip


def _log_entry(row: Mapping[str, Any]) -> dict[str, Any]:
    model = (row["content_type__app_label"], row["content_type__model"])
    changes, fields, reason = [], [], ""
    for part in _parts(row["change_message"]):
        changes += [Change(name, *pair) for name, pair in part.get("values", {}).items()]
        fields += part.get("changed", {}).get("fields", [])
        reason = part.get("why", reason)
    return {
        "what": _FLAGS.get(row["action_flag"], "changed"), "on": _MODELS.get(model, On.OTHER), "pk": row["object_id"] or "",
        "name": row["object_repr"], "reason": reason, "changes": tuple(changes),
        "data": _rest({"fields": [] if changes else fields, "model": ".".join(map(str, model)) if model not in _MODELS else ""}),
    }  # fmt: skip


def _parts(message: str) -> list[dict[str, Any]]:
    """Django's own form of it; what other programs have written is no list."""
    try:
        told = json.loads(message)
    except ValueError:
        return []
    return [part for part in told if isinstance(part, dict)] if isinstance(told, list) else []


def _pruned(row: Mapping[str, Any]) -> dict[str, Any]:
    removed = {kind: count for kind, count in row["removed"].items() if count}
    return {"on": On.OTHER, "pk": str(row["pk"]), "name": "", "data": {**row["asked"], **removed}}


# --- which rows are about what ----------------------------------------------------------------------------------------


def _number(pk: str) -> int:
    """A row's number; -1, which none has, for whatever is none."""
    return int(pk) if pk.isdecimal() and len(pk) < 18 else -1


def _by(kind: On, column: str) -> Callable[[On, str], Q | None]:
    return lambda on, pk: Q(**{column: _number(pk)}) if on is kind else None


def _of_job(on: On, pk: str) -> Q | None:
    """A case's deeds are its job's, so both are asked for together."""
    return Q(job_id=_number(pk)) if on in {On.JOB, On.CASE} else None


def _of_logged(on: On, pk: str) -> Q | None:
    model = next((model for model, kind in _MODELS.items() if kind is on), None)
    if model is None:
        return None
    return Q(content_type__app_label=model[0], content_type__model=model[1], object_id=pk)


def of_kind(source: Source, on: On) -> Q:
    if source.name == "job":
        cases = Q(kind__in=_CASE_EVENTS)
        return cases if on is On.CASE else ~cases
    known = Q()
    for (app, model), kind in _MODELS.items():
        if on in {kind, On.OTHER}:
            known |= Q(content_type__app_label=app, content_type__model=model)
    return ~known if on is On.OTHER else known


def of_verb(source: Source, what: str) -> dict[str, Any]:
    if source.name == "log":
        flag = next((flag for flag, name in _FLAGS.items() if name == what), -1)
        return {source.what: flag}
    prefix = {"tenant": "tenant_", "orphan": "orphan_"}.get(source.name, "")
    return {source.what: what.removeprefix(prefix) if what.startswith(prefix) else " "}


SOURCES = (
    Source(
        name="job", kinds=frozenset({On.JOB, On.CASE}), rows=lambda: JobEvent.objects.filter(BY_PEOPLE).exclude(kind="adopted"),
        at="at", who="actor", what="kind", texts=_BY_REASON, values=("kind", "data", "job_id", "task_id", "job__reference"),
        of=_of_job, told=_job_event,
    ),
    Source(
        name="case", kinds=frozenset({On.CASE}), rows=CaseEvent.objects.all, at="at", who="actor", what="kind", texts=_BY_REASON,
        values=("kind", "data", "case_id", "case__kind", "case__orphan__provider_id"),
        of=lambda on, pk: Q(case_id=_number(pk.removeprefix("case-"))) if on is On.CASE and pk.startswith("case-") else None,
        told=_case_event,
    ),
    Source(
        name="batch", kinds=frozenset({On.BATCH}), rows=lambda: BatchEvent.objects.filter(~Q(kind="completed")), at="at",
        who="actor", what="kind", texts=_BY_REASON, values=("kind", "data", "batch_id", "batch__label"),
        of=_by(On.BATCH, "batch_id"), told=_batch_event,
    ),
    Source(
        name="batch_made", kinds=frozenset({On.BATCH}), rows=lambda: Batch.objects.filter(created_by__isnull=False),
        at="created_at", who="created_by", always="batch_created", values=("label", "tenant__name"),
        of=_by(On.BATCH, "pk"), told=_batch_made,
    ),
    Source(
        name="bulk", kinds=frozenset({On.BULK}), rows=BulkRun.objects.all, at="created_at", who="created_by", always="bulk_begun",
        texts=("data__reason", "data__note"), values=("data", "verb", "total", "done"), of=_by(On.BULK, "pk"), told=_bulk,
    ),
    Source(
        name="bulk_stopped", kinds=frozenset({On.BULK}), rows=lambda: BulkRun.objects.filter(aborted_at__isnull=False),
        at="aborted_at", who="aborted_by", always="bulk_stopped", values=("data", "verb", "total", "done"),
        of=_by(On.BULK, "pk"), told=lambda row: _bulk(row) | {"reason": ""},
    ),
    Source(
        name="provider", kinds=frozenset({On.ACCOUNT}), rows=lambda: ProviderEvent.objects.filter(BY_PEOPLE_AT_PROVIDERS),
        at="at", who="actor", what="kind", texts=("data__why",),
        values=("kind", "data", "model", "account_id", "account__provider", "account__fingerprint"),
        of=_by(On.ACCOUNT, "account_id"), told=_provider_event,
    ),
    Source(
        name="tenant", kinds=frozenset({On.TENANT}), rows=TenantEvent.objects.all, at="at", who="actor", what="kind",
        texts=("reason",), values=("kind", "data", "reason", "tenant_id", "tenant__name"), of=_by(On.TENANT, "tenant_id"), told=_tenant_event,
    ),
    Source(
        name="hold", kinds=frozenset({On.HOLD}), rows=lambda: Hold.objects.filter(kind=Hold.Kind.RED_BUTTON), at="set_at",
        who="set_by", always="red_button_pressed", texts=("reason",), values=("kind", "reason"), of=_by(On.HOLD, "pk"),
        told=lambda row: _hold(row, "reason"),
    ),
    Source(
        name="hold_lifted", kinds=frozenset({On.HOLD}), at="lifted_at", who="lifted_by", always="red_button_lifted",
        rows=lambda: Hold.objects.filter(kind=Hold.Kind.RED_BUTTON, lifted_at__isnull=False), texts=("lift_reason",),
        values=("kind", "lift_reason"), of=_by(On.HOLD, "pk"), told=lambda row: _hold(row, "lift_reason"),
    ),
    Source(
        name="standing", kinds=frozenset({On.STANDING}), rows=StandingDecision.objects.all, at="made_at", who="made_by",
        always="standing_made", texts=("reason",), values=("what", "reason", "target__provider", "target__model"),
        of=_by(On.STANDING, "pk"), told=lambda row: _standing(row, with_reason=True),
    ),
    Source(
        name="standing_ended", kinds=frozenset({On.STANDING}), rows=lambda: StandingDecision.objects.filter(ended_at__isnull=False),
        at="ended_at", who="ended_by", always="standing_ended", values=("what", "reason", "target__provider", "target__model"),
        of=_by(On.STANDING, "pk"), told=lambda row: _standing(row, with_reason=False),
    ),
    Source(
        name="statement", kinds=frozenset({On.STATEMENT}), rows=Statement.objects.all, at="asked_at", who="asked_by",
        always="statement_asked", values=("provider", "since", "until"), of=_by(On.STATEMENT, "pk"), told=_statement,
    ),
    Source(
        name="orphan", kinds=frozenset({On.ORPHAN}), rows=lambda: Orphan.objects.exclude(outcome=""), at="decided_at",
        who="decided_by", what="outcome", texts=("note", "reference"),
        values=("outcome", "provider_id", "note", "reference", "cost", "currency", "task__job_id"),
        of=_by(On.ORPHAN, "pk"), told=_orphan,
    ),
    Source(
        # Not those of each day, which nobody asked for.
        name="prune", kinds=frozenset({On.OTHER}), rows=lambda: PruneRun.objects.filter(day=None), at="started_at", who="by",
        always="pruned", values=("asked", "removed"), of=lambda on, pk: Q(pk=_number(pk)) if on is On.OTHER else None, told=_pruned,
    ),
    Source(
        name="log", kinds=frozenset({On.TARGET, On.ACCOUNT, On.USER, On.GROUP, On.OTHER}),
        # Pressing “save” without having changed anything is no deed.
        rows=lambda: LogEntry.objects.exclude(_TOLD_ELSEWHERE).exclude(action_flag=CHANGE, change_message="[]"),
        at="action_time", who="user", what="action_flag",
        values=("action_flag", "object_id", "object_repr", "change_message", "content_type__app_label", "content_type__model"),
        of=_of_logged, told=_log_entry,
    ),
)  # fmt: skip
