"""The handover in words: its cases, batches and sums as they are shown, and the whole of it for terminals and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import display, written
from jobs.admin import batch_page, bulk_runs, bulk_words, case_words, trail_words
from jobs.admin.panel import Line as EpisodeLine
from jobs.admin.panel import episode_line
from jobs.alerts import words as alert_words
from jobs.display import Look
from jobs.handover import Handover, Lot, Settled
from jobs.models import Case
from jobs.states import JobState
from jobs.trail_sources import Deed


@dataclass(frozen=True, slots=True)
class LotLine:
    """A batch as it is shown."""

    lot: Lot
    segments: Sequence[batch_page.Segment]
    ended: str
    total: str
    given_up: str
    paused: Look | None


@dataclass(frozen=True, slots=True)
class CaseLine:
    """A case as it is shown. `name`: of its job, or of the generation without one."""

    case: Case
    title: str
    name: str
    how: str


def decided_money(deeds: Sequence[Deed]) -> str:
    """What was decided about, summed by currency; amounts that can't be read are left out."""
    sums: dict[str, Decimal] = {}
    for deed in deeds:
        amount, _space, currency = str(deed.data.get("money") or deed.data.get("possible_duplicate") or "").partition(" ")  # fmt: skip
        try:
            sums[currency] = sums.get(currency, Decimal(0)) + Decimal(amount)
        except InvalidOperation:
            continue
    return written.totals(sums)


def case_line(case: Case) -> CaseLine:
    name = ""
    if case.job is not None:
        name = case.job.reference or f"#{case.job_id}"
    elif case.orphan is not None:
        name = case.orphan.provider_id
    how = str(display.RESOLUTIONS.get(case.resolution, display.reason(case.resolution)))
    return CaseLine(case, case_words.title(case), name, how)


def resolution(one: Settled) -> str:
    return str(display.RESOLUTIONS.get(one.resolution, display.reason(one.resolution)))


def episode_lines(told: Handover, now: datetime) -> list[EpisodeLine]:
    return [episode_line(one, now=now) for one in told.episodes]


def lot_line(lot: Lot) -> LotLine:
    total = sum(lot.counts.values())
    ended = sum(
        n for state, n in lot.counts.items() if state not in {JobState.PENDING, JobState.ACTIVE}
    )
    given_up = sum(lot.counts[state] for state in batch_page.GIVEN_UP)
    return LotLine(
        lot, batch_page.segments(lot.counts), batch_page.number(ended), batch_page.number(total),
        batch_page.number(given_up) if given_up else "",
        batch_page.PAUSED if lot.batch.paused_at and ended < total else None,
    )  # fmt: skip


# --- for programs and terminals ---------------------------------------------------------------------------------------


def plain(told: Handover) -> dict[str, Any]:
    """JSON-ready."""

    def case(one: Case) -> dict[str, Any]:
        return {
            "id": one.pk, "kind": one.kind, "job": one.job_id, "money_at_risk": f"{one.money_at_risk.normalize():f}",
            "currency": one.currency, "owner": one.owner.get_username() if one.owner else None, "resolution": one.resolution,
            "closed_by": one.resolved_by.get_username() if one.resolved_by else None,
        }  # fmt: skip

    def lot(one: Lot) -> dict[str, Any]:
        counts = {state.value: n for state, n in one.counts.items() if n}
        return {"id": one.batch.pk, "label": one.batch.label, "counts": counts}

    def money(sums: Mapping[str, Decimal]) -> dict[str, str]:
        return {currency: f"{amount.normalize():f}" for currency, amount in sums.items()}

    return {
        "since": told.since.isoformat(), "until": told.until.isoformat(),
        "read_at": told.read_at.isoformat() if told.read_at else None, "quiet": told.quiet,
        "people": [{"who": name or None, "deeds": n} for name, n in told.people.items()],
        "opened": {"count": told.opened.count, "money": money(told.opened_money), "cases": [case(one) for one in told.opened.rows]},
        "closed": {"count": told.closed.count, "cases": [case(one) for one in told.closed.rows],
                   "how": [{"by": one.by, "resolution": one.resolution, "count": one.count} for one in told.settled]},
        "taken": [trail_words.plain(deed) for deed in told.taken.rows],
        "open_with_notes": [{**case(one.case), "notes": [trail_words.plain(deed) for deed in one.notes]} for one in told.noted],
        "money": [trail_words.plain(deed) for deed in [*told.money.rows, *told.orphans]],
        "settings": [trail_words.plain(deed) for deed in told.settings.rows],
        "episodes": [
            {"what": one.what.value, "provider": one.provider, "model": one.model, "start": one.start.isoformat(),
             "end": one.end.isoformat() if one.end else None, "cause": one.cause, "by": one.by}
            for one in told.episodes
        ],
        "batches": {"ended": [lot(one) for one in told.ended.rows], "running": [lot(one) for one in told.running.rows]},
        "bulk": [bulk_runs.plain(run) for run in told.bulk.rows],
        "alerts": [{"id": one.pk, "kind": one.kind, "state": one.state, "at": one.at.isoformat(), "title": alert_words.title(one)}
                   for one in told.alerts.rows],
        "red_button": [
            {"set_at": one.set_at.isoformat(), "by": one.set_by.get_username() if one.set_by else None, "reason": one.reason,
             "lifted_at": one.lifted_at.isoformat() if one.lifted_at else None, "kind": one.kind}
            for one in told.holds
        ],
        "open_cases": told.open_cases, "open_money": money(told.open_money),
    }  # fmt: skip


def lines(told: Handover, *, now: datetime) -> list[str]:
    """For a terminal: a line for each thing that happened, grouped; short where nothing did."""
    out = [_("Since %(at)s:") % {"at": written.exact(told.since)}]
    if told.quiet:
        out.append(_("Nothing happened."))
    for hold in told.holds:
        words = _("pressed") if hold.lifted_at is None else _("pressed and lifted")
        out.append(f"{_('Red button')}: {words}  {hold.reason}".rstrip())
    out += _group(
        ngettext("%(n)s case opened", "%(n)s cases opened", told.opened.count), told.opened.count,
        [f"{one.title}  {one.name}  {written.money(one.case.money_at_risk, one.case.currency)}" for one in map(case_line, told.opened.rows)],
    )  # fmt: skip
    out += _group(
        ngettext("%(n)s case closed", "%(n)s cases closed", told.closed.count), told.closed.count,
        [f"{one.by or _('the machine')}: {resolution(one)} ({one.count})" for one in told.settled],
    )  # fmt: skip
    deeds = [*told.taken.rows, *told.money.rows, *told.orphans, *told.settings.rows]
    out += [trail_words.sentence(deed) for deed in deeds]
    for one in told.noted:
        shown = case_line(one.case)
        out.append(f"{shown.title}  {shown.name}:")
        out += [f"    {note.by or '—'}: {note.reason}" for note in one.notes]
    for line in episode_lines(told, now):
        out.append(
            f"{line.look.word}  {line.episode.provider} {line.episode.model}  {line.episode.cause}".rstrip()
        )
    for words, lots in (
        (_("Batch ended"), told.ended.rows),
        (_("Batch under way"), told.running.rows),
    ):
        out += [f"{words}: {lot.batch}" for lot in lots]
    for run in told.bulk.rows:
        out.append(
            f"{bulk_words.label(run.verb)} #{run.pk}: {bulk_words.look(run).word}, {bulk_words.done_words(run)}"
        )
    out += [f"{_('Alert')}: {alert_words.title(alert)}" for alert in told.alerts.rows]
    out.append(
        ngettext("%(n)s case is open now", "%(n)s cases are open now", told.open_cases) % {"n": told.open_cases}
    )  # fmt: skip
    return out


def _group(title: str, count: int, rows: Sequence[str]) -> list[str]:
    return [title % {"n": count}, *(f"    {row}" for row in rows)] if count else []
