"""Words, icons and addresses of what people did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.models import Group, User
from django.db.models import Model
from django.urls import reverse
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import display, tenancy
from jobs.admin import batch_page, bulk_words
from jobs.display import Look, Words
from jobs.models import Case, StandingDecision, Tenant
from jobs.states import JobState
from jobs.trail_sources import Change, Deed, On
from providers.contract import Charge
from providers.models import Account, QuotaWindow, Target

_LONG = 160

ON: Mapping[On, Words] = {
    On.JOB: gettext_lazy("job"),
    On.CASE: gettext_lazy("case"),
    On.BATCH: gettext_lazy("batch"),
    On.BULK: gettext_lazy("bulk action"),
    On.ACCOUNT: gettext_lazy("provider account"),
    On.TARGET: gettext_lazy("target"),
    On.TENANT: gettext_lazy("tenant"),
    On.HOLD: gettext_lazy("red button"),
    On.STANDING: gettext_lazy("standing decision"),
    On.STATEMENT: gettext_lazy("statement"),
    On.ORPHAN: gettext_lazy("orphan"),
    On.USER: gettext_lazy("user"),
    On.GROUP: gettext_lazy("group"),
    On.OTHER: gettext_lazy("anything else"),
}

_JOB_WHATS = (
    "retried", "retargeted", "edited", "sent_again", "absent_confirmed", "marked_manual", "resolved", "cancelled",
    "delivered_instead", "written_off", "refunded", "id_attached", "candidate_accepted", "poll_asked", "case_taken",
    "case_noted", "case_closed", "rated", "rating_removed", "callback_replayed",
)  # fmt: skip
# What staff do at an account; other kinds of its events are what came of that.
_PROVIDER_WHATS: Mapping[str, Look] = {
    "paused": Look(gettext_lazy("Paused"), "circle-pause", "grey"),
    "resumed": Look(gettext_lazy("Resumed"), "play", "blue"),
    "blocked": Look(gettext_lazy("Blocked until a time"), "lock", "grey"),
    "unblocked": Look(gettext_lazy("Unblocked"), "play", "blue"),
    "still_down": Look(gettext_lazy("The next try was asked for"), "refresh-cw", "grey"),
    "half_open": Look(gettext_lazy("A try was asked for"), "refresh-cw", "grey"),
    "limits_changed": Look(gettext_lazy("Limit changed"), "gauge", "amber"),
    "target_opened": Look(gettext_lazy("Stopped target opened again"), "play", "blue"),
    "alerts_silenced": Look(gettext_lazy("Alerts silenced"), "message-square", "amber"),
    "alerts_unsilenced": Look(gettext_lazy("Alerts no longer silenced"), "message-square", "grey"),
}
_OTHER_WHATS: Mapping[str, Look] = {
    "batch_created": Look(gettext_lazy("Batch made"), "plus", "grey"),
    "bulk_begun": Look(gettext_lazy("Bulk action begun"), "check-check", "blue"),
    "bulk_stopped": Look(gettext_lazy("Bulk action stopped"), "octagon-pause", "amber"),
    "tenant_created": Look(gettext_lazy("Tenant made"), "plus", "grey"),
    "tenant_changed": Look(gettext_lazy("Tenant changed"), "building-2", "amber"),
    "tenant_token_issued": Look(gettext_lazy("API token made"), "key-round", "amber"),
    "tenant_token_rotated": Look(gettext_lazy("API token replaced"), "refresh-cw", "amber"),
    "tenant_token_revoked": Look(gettext_lazy("API token revoked"), "ban", "grey"),
    "red_button_pressed": Look(gettext_lazy("Red button pressed"), "octagon-pause", "red"),
    "red_button_lifted": Look(gettext_lazy("Red button lifted"), "play", "green"),
    "standing_made": Look(gettext_lazy("Standing decision made"), "gavel", "amber"),
    "standing_ended": Look(gettext_lazy("Standing decision ended"), "gavel", "grey"),
    "statement_asked": Look(gettext_lazy("Statement asked for"), "banknote", "grey"),
    "pruned": Look(gettext_lazy("Old data removed"), "trash-2", "grey"),
    "orphan_adopted": Look(gettext_lazy("Orphan adopted"), "link", "blue"),
    "orphan_disputed": Look(gettext_lazy("Orphan disputed"), "gavel", "amber"),
    "added": Look(pgettext_lazy("a row", "Added"), "plus", "grey"),
    "changed": Look(pgettext_lazy("a row", "Changed"), "pencil", "amber"),
    "deleted": Look(pgettext_lazy("a row", "Deleted"), "trash-2", "red"),
}
_OF_BATCH: Mapping[str, Look] = {
    kind: look for kind, look in batch_page.EVENTS.items() if kind not in {"created", "completed"}
}


def whats() -> dict[str, str]:
    """Every verb by its constant, for filters."""
    looks = {
        **{kind: display.event_look(kind) for kind in _JOB_WHATS},
        **_PROVIDER_WHATS,
        **_OF_BATCH,
        **_OTHER_WHATS,
    }
    return {kind: str(look.word) for kind, look in looks.items()}


def look(deed: Deed) -> Look:
    """A verb nobody has named yet is shown by its own name."""
    match deed.source:
        case "batch":
            known = _OF_BATCH.get(deed.what)
        case "provider":
            known = _PROVIDER_WHATS.get(deed.what)
        case "bulk":
            known = Look(bulk_words.label(str(deed.data["verb"])), "check-check", "blue")
        case _:
            known = _OTHER_WHATS.get(deed.what)
    return known or display.event_look(deed.what)


def who(deed: Deed) -> str:
    return deed.by or _("command line")


def on(deed: Deed) -> str:
    """What it was done to, in words."""
    words = str(ON[deed.on])
    return f"{words} {deed.name}" if deed.name else words


_PAGES = {
    On.JOB: "admin:jobs_job_change",
    On.CASE: "admin:jobs_job_change",
    On.BATCH: "admin:jobs_batch_change",
    On.BULK: "admin:jobs_bulkrun_change",
    On.ACCOUNT: "admin:providers_account_change",
    On.TARGET: "admin:providers_target_change",
    On.TENANT: "admin:jobs_tenant_change",
    On.STANDING: "admin:jobs_standingdecision_change",
    On.STATEMENT: "admin:jobs_statement_change",
    On.ORPHAN: "admin:jobs_orphan_change",
    On.USER: "admin:auth_user_change",
    On.GROUP: "admin:auth_group_change",
}


def address(deed: Deed) -> str:
    """The object's page; "" where it has none."""
    if deed.on is On.CASE and deed.pk.startswith("case-"):
        return reverse("admin:jobs_case_change", args=[deed.pk.removeprefix("case-")])
    if deed.on is On.HOLD:
        return reverse("admin:jobs_hold_changelist")
    page = _PAGES.get(deed.on)
    return reverse(page, args=[deed.pk]) if page and deed.pk and deed.what != "deleted" else ""


# --- values -----------------------------------------------------------------------------------------------------------

_NAMES: Mapping[str, Words] = {
    "state": gettext_lazy("state"),
    "charge": gettext_lazy("charge"),
    "prompt": gettext_lazy("prompt"),
    "target": gettext_lazy("target"),
    "result": gettext_lazy("result"),
    "limit": gettext_lazy("limit"),
    "reference": gettext_lazy("reference"),
    "provider_reference": gettext_lazy("the provider's reference"),
    "provider_id": gettext_lazy("provider's id"),
    "case": gettext_lazy("case"),
    "cost": gettext_lazy("cost"),
    "money": gettext_lazy("money"),
    "balance": gettext_lazy("balance"),
    "possible_duplicate": gettext_lazy("possible duplicate"),
    "resolution": gettext_lazy("resolution"),
    "outcome": gettext_lazy("outcome"),
    "jobs": gettext_lazy("jobs"),
    "until": gettext_lazy("until"),
    "since": gettext_lazy("from"),
    "tenant": gettext_lazy("tenant"),
    "seconds": gettext_lazy("window, s"),
    "fields": gettext_lazy("fields"),
    "decision": gettext_lazy("decision"),
    "job": gettext_lazy("job"),
}
_MODELS: Mapping[On, tuple[type[Model], ...]] = {
    On.TENANT: (Tenant,),
    On.TARGET: (Target,),
    On.ACCOUNT: (QuotaWindow, Account),
    On.USER: (User,),
    On.GROUP: (Group,),
}
# Stored for programs; people read the same in another place of the line.
_UNSAID = frozenset({"send", "verb", "kind", "model", "done", "next_try_at", "cause", "lasted_s", "connect", "bulk", "task"})  # fmt: skip


def change_lines(deed: Deed, *, long: int | None = _LONG) -> list[tuple[str, str, str]]:
    """What, before, after. `long`: longer values are cut; None: none is."""
    return [
        (field_name(deed.on, one.name), value(one, one.before, long), value(one, one.after, long))
        for one in deed.changes
    ]


def detail(deed: Deed) -> str:
    """What else is worth reading, in one line."""
    parts = []
    for name, said in deed.data.items():
        if name in _UNSAID:
            continue
        words = _plain(name, said)
        parts.append(words if name in {"case", "outcome", "resolution", "decision"} else f"{field_name(deed.on, name)}: {words}")  # fmt: skip
    return " · ".join(parts)


def field_name(on_what: On, name: str) -> str:
    for model in _MODELS.get(on_what, ()):
        for field in model._meta.get_fields():  # noqa: SLF001  Django's documented meta API
            if field.name == name and hasattr(field, "verbose_name"):
                return str(field.verbose_name)
    return str(_NAMES.get(name, name.replace("_", " ")))


def value(change: Change, said: Any, long: int | None) -> str:
    if said is None or said in ("", []):
        return "—"
    if change.name == "state" and isinstance(said, str) and said in set(JobState):
        return str(display.JOB_STATES[JobState(said)].word)
    if change.name == "charge" and isinstance(said, str) and said in set(Charge):
        return str(display.CHARGES[Charge(said)].word)
    if change.name == "rating" and said in display.RATINGS:
        return str(display.RATINGS[said].word)
    if isinstance(said, bool):
        return _("yes") if said else _("no")
    if change.name == "split" and isinstance(said, list):
        said = tenancy.split_lines(said)
    if change.name == "default_route" and isinstance(said, list):
        found = Target.objects.in_bulk([pk for pk in said if isinstance(pk, int)])
        said = [found[pk].name if pk in found else f"#{pk}" for pk in said]
    text = ", ".join(str(one) for one in said) if isinstance(said, list) else str(said)
    return text if long is None else Truncator(text).chars(long)


def _plain(name: str, said: Any) -> str:
    if name == "case" and said in Case.Kind.values:
        return str(Case.Kind(said).label)
    if name == "decision" and said in StandingDecision.What.values:
        return str(StandingDecision.What(said).label)
    if name in {"resolution", "outcome"}:
        return str(display.RESOLUTIONS.get(said) or display.reason(str(said)))
    if isinstance(said, list):
        return ", ".join(map(str, said))
    return f"#{said}" if name in {"job", "target"} and isinstance(said, int) else str(said)


# --- for files and programs -------------------------------------------------------------------------------------------


def plain(deed: Deed) -> dict[str, Any]:
    """JSON-ready, by constants."""
    return {
        "at": deed.at.isoformat(), "who": deed.by or None, "what": deed.what,
        "on": {"kind": deed.on.value, "id": deed.pk, "name": deed.name}, "why": deed.reason,
        "changes": [{"name": one.name, "before": one.before, "after": one.after} for one in deed.changes],
        "data": dict(deed.data),
    }  # fmt: skip


def head() -> list[str]:
    return [
        _("at"), _("by"), _("what"), _("in words"), _("object"), _("number"), _("name"), _("why"), _("before"), _("after"),
        _("more"),
    ]  # fmt: skip


def row(deed: Deed) -> list[str]:
    """A line of the sheet."""
    lines = change_lines(deed, long=None)
    return [
        deed.at.isoformat(timespec="seconds"), who(deed), deed.what, str(look(deed).word), str(ON[deed.on]), deed.pk, deed.name,
        deed.reason, "; ".join(f"{name}: {before}" for name, before, _after in lines),
        "; ".join(f"{name}: {after}" for name, _before, after in lines), detail(deed),
    ]  # fmt: skip


def sentence(deed: Deed) -> str:
    """A line of a terminal."""
    changed = ", ".join(f"{name}: {before} → {after}" for name, before, after in change_lines(deed))
    more = " · ".join(part for part in (changed, deed.reason, detail(deed)) if part)
    line = f"{deed.at:%Y-%m-%d %H:%M:%S}  {who(deed)}  {capfirst(str(look(deed).word))}  {on(deed)}"
    return f"{line}  {more}" if more else line
