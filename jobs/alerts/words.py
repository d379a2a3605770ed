"""What an alert says: a title that fits a lock screen, and a few lines below it. In the language that is active."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import written
from jobs.alert_rules import OPENINGS, AlertKind
from jobs.models import Alert
from providers.models import Account
from providers.redaction import redact_text, sanitise

_TITLE_LENGTH, _LINE_LENGTH = 120, 300
_LISTED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is sent. `tone` is one of apprise's: info, success, warning, failure."""

    alert_id: int
    title: str
    body: str
    tone: str


_TONES = {
    AlertKind.OUTAGE: "failure",
    AlertKind.NETWORK: "failure",
    AlertKind.KEY: "failure",
    AlertKind.RECOVERED: "success",
}

_PAGES = {
    AlertKind.OVERDUE: "admin:jobs_case_changelist",
    AlertKind.EXPIRING: "admin:jobs_providertask_changelist",
    AlertKind.STUCK: "admin:index",
    AlertKind.MORE: "admin:jobs_alert_changelist",
}


def message(alert: Alert) -> Message:
    """`alert` with its account, its lead and its members."""
    body = "\n".join([*lines(alert), link(AlertKind(alert.kind))])
    return Message(
        alert_id=alert.pk, title=title(alert), body=body,
        tone=_TONES.get(AlertKind(alert.kind), "warning"),
    )  # fmt: skip


def link(kind: AlertKind) -> str:
    """The page to look at; without PUBLIC_URL its path alone."""
    return settings.PUBLIC_URL + reverse(
        _PAGES.get(kind, "admin:providers_providerstate_changelist")
    )


def title(alert: Alert) -> str:
    count = int(alert.data.get("count") or 0)
    match AlertKind(alert.kind):
        case AlertKind.OUTAGE:
            text = _("%(what)s is down") % {"what": _what(alert)}
        case AlertKind.NETWORK:
            text = _("No provider can be reached")
        case AlertKind.KEY:
            text = _("%(what)s rejects the key") % {"what": _what(alert)}
        case AlertKind.RECOVERED:
            text = _recovered(alert)
        case AlertKind.BALANCE:
            text = _("%(what)s: the balance is used up") % {"what": _what(alert)}
        case AlertKind.OVERDUE:
            text = ngettext(
                "%(count)d case on the desk is overdue", "%(count)d cases on the desk are overdue", count
            ) % {"count": count}  # fmt: skip
        case AlertKind.EXPIRING:
            text = ngettext(
                "%(count)d paid result is about to expire at the provider",
                "%(count)d paid results are about to expire at the provider",
                count,
            ) % {"count": count}
        case AlertKind.STUCK:
            text = ngettext(
                "%(count)d row is stuck", "%(count)d rows are stuck", count
            ) % {"count": count}  # fmt: skip
        case AlertKind.MORE:
            count = len(_members(alert))
            text = ngettext(
                "and %(count)d more alert", "and %(count)d more alerts", count
            ) % {"count": count}  # fmt: skip
    return _line(text, _TITLE_LENGTH)


def lines(alert: Alert) -> list[str]:
    """What is known, and what the reader can do."""
    data = alert.data
    reason = [_line(str(data["reason"]))] if data.get("reason") else []
    match AlertKind(alert.kind):
        case AlertKind.OUTAGE:
            maybe_ours = _("It can't be reached at all. That may be our own network.")
            return [
                *reason, *([maybe_ours] if data.get("connect") else []), *_others(alert),
                _("Jobs wait, or go to the next target of their route. It is tried again by itself."),
            ]  # fmt: skip
        case AlertKind.NETWORK:
            return [
                *reason, *_others(alert, own=True),
                _("All of them at the same moment: most likely it is our own network."),
            ]  # fmt: skip
        case AlertKind.KEY:
            return [*reason, _("A person must act: set a valid key and restart the workers.")]
        case AlertKind.RECOVERED:
            return _lasted(alert)
        case AlertKind.BALANCE:
            balance = _("Balance: %(balance)s %(currency)s.") % {
                "balance": data.get("balance"),
                "currency": data.get("currency", ""),
            }
            return [
                *reason, *([balance] if data.get("balance") is not None else []),
                _("A person must act: top it up, then say so on the page of the providers."),
            ]  # fmt: skip
        case AlertKind.OVERDUE:
            return [
                _("The oldest is open since %(at)s.") % {"at": _moment(data.get("oldest_at"))},
                _("A person must decide; money is at risk meanwhile."),
            ]
        case AlertKind.EXPIRING:
            return [
                _("The first is lost at %(at)s, unless it is fetched.") % {"at": _moment(data.get("first_at"))},
                _("A person must act: look why they can't be fetched."),
            ]  # fmt: skip
        case AlertKind.STUCK:
            return [
                _("Nothing will come back to them. A person must act: manage.py stuck lists them.")
            ]
        case AlertKind.MORE:
            members = _members(alert)
            told = [title(member) for member in members[:_LISTED]]
            return [*told, *(["…"] if len(members) > _LISTED else [])]


def _members(alert: Alert) -> list[Alert]:
    return sorted(alert.members.all(), key=lambda one: one.pk)


def _what(alert: Alert) -> str:
    """The account, or one of its models: whichever of an outage's parts is the widest."""
    parts = [alert, *(m for m in _members(alert) if m.kind in OPENINGS)]
    same = [part for part in parts if part.account_id == alert.account_id]
    whole = next((part for part in same if not part.model), alert)
    name = account_name(alert.account)
    return f"{name}: {whole.model}" if whole.model else name


def account_name(account: Account | None) -> str:
    """As people call it; with its label where it has one."""
    if account is None:
        return "—"
    name = account.provider.replace("_", " ").title()
    return f"{name} ({account.label})" if account.label else name


def _others(alert: Alert, *, own: bool = False) -> list[str]:
    """What else the same alert is about."""
    parts: Iterable[Alert] = (m for m in _members(alert) if m.kind in OPENINGS)
    names = [account_name(alert.account)] if own else []
    for part in parts:
        name = account_name(part.account)
        names.append(f"{name}: {part.model}" if part.model else name)
    listed = list(dict.fromkeys(names))[:_LISTED]
    if not listed:
        return []
    joined = ", ".join(listed)
    return [_line(joined if own else _("With it: %(what)s.") % {"what": joined})]


def _recovered(alert: Alert) -> str:
    lead = alert.lead
    if lead is not None and lead.kind == AlertKind.NETWORK:
        return _("The providers can be reached again")
    return _("%(what)s is available again") % {"what": _what(lead or alert)}


def _lasted(alert: Alert) -> list[str]:
    began_at = alert.lead.at if alert.lead is not None else alert.episode_at
    if began_at is None:
        return []
    lasted_s = max(0.0, (alert.at - began_at).total_seconds())
    return [_("It was down for %(duration)s.") % {"duration": written.duration(lasted_s)}]


def _moment(raw: object) -> str:
    try:
        return written.exact(datetime.fromisoformat(str(raw)))
    except ValueError:
        return "—"


def _line(text: str, limit: int = _LINE_LENGTH) -> str:
    """One line, without anything that looks like a key: reasons are a provider's words."""
    return sanitise(redact_text(" ".join(text.split())), limit=limit)
