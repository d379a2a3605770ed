"""The first page: what needs a person, how the providers are, how far the batches, what is spent, how the machine does.

The numbers come from jobs/dashboard.py, each part for whoever may see it; here they are only dressed: words, looks, bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from jobs import dashboard, display, tenancy, written
from jobs.admin import batch_page, lanes, panel, tenants
from jobs.admin.changelist import COUNT_CAP, capped_words
from jobs.admin.panel import Segment
from jobs.admin.verbs import allowed
from jobs.budgets import Spent
from jobs.dashboard import AtProvider, Dashboard, Money, OfTenant, Part, Provider, Running
from jobs.display import Look
from jobs.figures import HOUR, WAITING_CAP, Failing, Generations, Queue, Timeouts
from jobs.models import Case
from jobs.sums import Sums
from providers.word import Phrase

REFRESH_S = 15  # where the page hears of no changes
MOST_QUEUES = 8
MOST_TENANTS = 8
MOST_RECEIVERS = 5

_MAY: Mapping[Part, str] = {
    Part.DESK: "jobs.view_case",
    Part.JOBS: "jobs.view_job",
    Part.PROVIDERS: "providers.view_providerstate",
    Part.BATCHES: "jobs.view_batch",
    Part.MONEY: "jobs.view_tenant",
    Part.LANES: "jobs.view_lane",
    Part.CALLBACKS: "jobs.view_callback",
    Part.NEWEST: "jobs.view_job",
}


def context(request: HttpRequest, *, now: datetime) -> dict[str, Any]:
    user = request.user
    # The version comes first: what changes while the rest is read makes another one.
    shown: dict[str, Any] = {"now": now, "version": digest(), "refresh_s": REFRESH_S}
    board = dashboard.read([part for part, name in _MAY.items() if user.has_perm(name)], now=now)
    shown |= {"board": board, **_desk(board), **_jobs(board)}
    if board.providers is not None:
        shown["providers"] = [_card(one, now=now) for one in board.providers]
    if board.batches is not None:
        shown["batches"] = [_batch(one) for one in board.batches.rows]
    if board.money is not None:
        shown |= _money(board.money, now=now)
    if board.lanes is not None:
        shown["lanes"] = [
            {"view": one, "look": lanes.look(one), "verbs": allowed(lanes.VERBS, user, one.lane)}
            for one in board.lanes.rows
        ]
    if board.callbacks is not None:
        failing = board.callbacks.failing
        shown |= {
            "failing": [_receiver(one) for one in failing[:MOST_RECEIVERS]],
            "failing_count": len(failing),
        }
    return shown


def starts_at_the_desk(user: Any) -> bool:
    """Whether the desk, not this page, is what a person sees first: they work there, and something is open."""
    return (
        user.has_perm("jobs.work_case") and Case.objects.filter(resolved_at__isnull=True).exists()
    )


def digest() -> str:
    """Another one means that the page has something new to show."""
    return dashboard.digest()


# --- the desk, the jobs -----------------------------------------------------------------------------------------------


def _desk(board: Dashboard) -> dict[str, Any]:
    if board.desk is None:
        return {}
    return {
        "case_count": board.desk.count,
        "case_money": written.totals(board.desk.money),
        "case_oldest": board.desk.oldest,
        "case_overdue": board.desk.overdue,
        "cases": list(board.desk.first),
    }


def _jobs(board: Dashboard) -> dict[str, Any]:
    if board.states is None or board.queues is None or board.generations is None or board.timeouts is None:  # fmt: skip
        return {}
    url = reverse("admin:jobs_job_changelist")
    queues = board.queues
    asked = sum(one.asked for one in board.generations)
    polls = sum(one.polls for one in board.generations)
    return {
        "states": [
            {
                "look": display.JOB_STATES[state],
                "count": capped_words(count),
                "url": f"{url}?state={state.value}",
            }
            for state, count in board.states.items()
        ],
        "queues": [_queue(one, url) for one in queues[:MOST_QUEUES]],
        "queues_more": max(len(queues) - MOST_QUEUES, 0),
        "queue_depth": capped_words(min(sum(one.waiting for one in queues), COUNT_CAP + 1)),
        "queue_oldest": min((one.oldest for one in queues if one.oldest), default=None),
        "generations": [_generation(one) for one in board.generations],
        "polls_each": _each(polls, asked),
        "timeouts": _timeouts(board.timeouts),
        "newest": board.newest,
    }


def _queue(one: Queue, url: str) -> dict[str, Any]:
    return {
        "queue": one,
        "waiting": capped_words(one.waiting),
        "paused": written.number(one.paused) if one.paused else "",
        "url": f"{url}?tenant__id__exact={one.tenant_id}&state=pending",
    }


def _each(polls: int, asked: int) -> str:
    return written.number(polls / asked, 1) if asked else "—"


def _generation(one: Generations) -> dict[str, Any]:
    return {"one": one, "made": written.number(one.made), "polls": _each(one.polls, one.asked)}


# --- small pictures: SVG, because the content policy allows no inline style -------------------------------------------

_COLUMN, _GAP, _HEIGHT = 5, 1, 32
_OUTCOMES = (
    ("succeeded", "green"), ("refused", "grey"), ("failed", "red"), ("unknown", "violet"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rect:
    x: int
    y: str
    height: str
    tone: str


@dataclass(frozen=True, slots=True)
class Strip:
    """Columns side by side, oldest first, each of parts on top of one another. `width`, `height`: of the picture's units."""

    rects: Sequence[Rect]
    width: int
    height: int = _HEIGHT


def strip(columns: Sequence[Sequence[tuple[int, str]]]) -> Strip:
    """Of counts with their tones. The highest column fills the height; one among many stays visible."""
    most = max((sum(count for count, _tone in column) for column in columns), default=0)
    rects = []
    for place, column in enumerate(columns):
        y = float(_HEIGHT)
        for count, tone in column:
            if count:
                height = max(_HEIGHT * count / most, 1.5)
                y = max(y - height, 0.0)
                rects.append(Rect(place * (_COLUMN + _GAP), f"{y:.1f}", f"{height:.1f}", tone))
    return Strip(rects, max(len(columns) * (_COLUMN + _GAP) - _GAP, 1))


# --- providers --------------------------------------------------------------------------------------------------------


def _card(one: Provider, *, now: datetime) -> dict[str, Any]:
    account = one.account
    limit = max(account.limit, 1)
    full = account.in_flight >= account.limit
    day = one.day
    return {
        "account": account,
        "look": panel.look_of(account.told, used=account.used, now=now),
        "window_full": account.told.since is None and account.told.phrase is not Phrase.AVAILABLE,
        "flight": Segment("0", f"{100 * min(account.in_flight / limit, 1):.2f}", "amber" if full else "blue"),
        "windows": panel.plain_windows(account.windows),
        "models": [
            {"model": model, "look": panel.model_look(model, used=account.used, now=now), "windows": panel.plain_windows(model.windows)}
            for model in account.models
            if panel.differs(account, model)
        ],
        "balance": "" if account.money.balance is None else written.money(account.money.balance, account.money.currency),
        "strip": strip([_column(hour) for hour in one.hours]) if day.ended else None,
        "outcomes": panel.outcome_words(day),
        "hours": [(one.since + HOUR * place, hour) for place, hour in enumerate(one.hours) if hour.sends],
    }  # fmt: skip


def _column(hour: Sums) -> list[tuple[int, str]]:
    return [(getattr(hour, name), tone) for name, tone in _OUTCOMES]


# --- batches ----------------------------------------------------------------------------------------------------------


def _batch(one: Running) -> dict[str, Any]:
    far = one.progress
    return {
        "batch": one.batch,
        "look": batch_page.look(far),
        "segments": batch_page.segments(far.counts),
        "counts": [
            (display.JOB_STATES[state], written.number(far.counts[state]))
            for state in batch_page.COUNTED
            if far.counts[state]
        ],
        "ended": written.number(far.total - far.under_way),
        "total": written.number(far.total),
        "left": batch_page.words(far)["left"],
        "ends_at": one.ends_at,
    }


# --- money ------------------------------------------------------------------------------------------------------------


def _money(money: Money, *, now: datetime) -> dict[str, Any]:
    rows = sorted(money.tenants, key=_most_of_a_limit, reverse=True)
    return {
        "money_providers": [_at_provider(one) for one in money.providers],
        "money_tenants": [_of_tenant(one, now=now) for one in rows[:MOST_TENANTS]],
        "money_more": max(len(rows) - MOST_TENANTS, 0),
        "money_zone": money.zone,
    }


def _at_provider(one: AtProvider) -> dict[str, Any]:
    return {
        "provider": one.provider.title(),
        "today": _amounts({one.currency: one.today}),
        "month": _amounts({one.currency: one.month}),
    }


def _of_tenant(one: OfTenant, *, now: datetime) -> dict[str, Any]:
    view = tenancy.View(tenant=one.tenant, budget=one.budget, in_flight=0, waiting=0, now=now)
    return {
        "tenant": one.tenant,
        "today": _amounts(one.today),
        "month": _amounts(one.month),
        "bars": tenants.bars(view),
    }


def _amounts(spent: Mapping[str, Spent]) -> dict[str, Any]:
    """`charged`: each currency and what it is in the studio's; `possible`: in one line. Currencies are never mixed."""
    by_name = sorted(spent.items())
    return {
        "charged": [
            (written.money(of.charged, name), written.own(of.charged, name))
            for name, of in by_name
            if of.charged
        ],
        "possible": " + ".join(
            written.money(of.possible, name) for name, of in by_name if of.possible
        ),
    }


def _most_of_a_limit(one: OfTenant) -> tuple[Decimal, Decimal]:
    """Who is nearest to a limit comes first, then who spent most this month."""
    shares = [
        limit.spent.total / limit.most if limit.most else Decimal(1) for limit in one.budget.limits
    ]
    rates = {settings.CURRENCY: Decimal(1), **settings.CURRENCY_RATES}
    month = sum((of.total * rates.get(name, Decimal(1)) for name, of in one.month.items()), Decimal(0))  # fmt: skip
    return max(shares, default=Decimal(0)), month


# --- the machine ------------------------------------------------------------------------------------------------------


def _timeouts(timeouts: Timeouts) -> dict[str, Any]:
    shown = strip([[(count, "violet")] for count in timeouts.hours]) if timeouts.total else None
    return {
        "strip": shown,
        "last": timeouts.last,
        "total": timeouts.total,
        "stays": timeouts.stays,
        "deadline": written.duration(settings.POLL_DEADLINE_SEC),
        "hours": [
            (timeouts.since + HOUR * place, count)
            for place, count in enumerate(timeouts.hours)
            if count
        ],
    }


def _receiver(one: Failing) -> dict[str, Any]:
    waiting = (
        _("%(count)s+") % {"count": written.number(WAITING_CAP)}
        if one.waiting > WAITING_CAP
        else written.number(one.waiting)
    )
    return {"receiver": one, "waiting": waiting, "look": Look(one.trouble or _("no answer"), "triangle-alert", "amber")}  # fmt: skip
