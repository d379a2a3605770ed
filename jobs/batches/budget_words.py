"""What a batch means for its tenant's budget, in words: for the preview's page and for the command."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import phases, written
from jobs.batches.estimate import WAITING_CAP, Estimate, Until
from jobs.budgets import Limit, Period
from jobs.models import Tenant


def left(limit: Limit, currency: str) -> str:
    """`₽20.00`, or by how much it is over."""
    money = written.money(abs(limit.left), currency)
    return _("over by %(money)s") % {"money": money} if limit.left < 0 else money


def left_name(limit: Limit) -> str:
    return _("Left today") if limit.period is Period.DAY else _("Left this month")


def limit_words(limit: Limit, *, tenant: Tenant, now: datetime) -> str:
    """`of 100.00 ₽, anew tomorrow 00:00 Europe/Moscow`."""
    return _("of %(most)s, anew %(moment)s") % {
        "most": written.money(limit.most, tenant.currency),
        "moment": phases.moment_there(limit.until, zone=tenant.zone, now=now),
    }


def headline(estimate: Estimate) -> str:
    """Whether it fits, in one sentence; "" where the tenant has no limit."""
    if not estimate.budget.limits:
        return ""
    if not estimate.over_budget:
        return _("All of it fits in what is left of the budget.")
    if not estimate.fit.now:
        return _("This is more than what is left of the budget: no job of it fits now.")
    fits = ngettext(
        "This is more than what is left of the budget: about %(n)s job fits now.",
        "This is more than what is left of the budget: about %(n)s jobs fit now.",
        estimate.fit.now,
    )
    return fits % {"n": _number(estimate.fit.now)}


def details(estimate: Estimate, *, tenant: Tenant, now: datetime) -> list[str]:
    """What becomes of the rest, a sentence each; an empty list where all of it fits and nothing is before it."""
    lines = [_until(part, tenant=tenant, now=now) for part in estimate.fit.until]
    for never in estimate.fit.never:
        why = phases.budget_words(never.held, tenant=tenant, target=never.target, now=now)
        words = ngettext(
            "%(n)s job is not sent until somebody changes that: %(why)s.",
            "%(n)s jobs are not sent until somebody changes that: %(why)s.",
            never.jobs,
        )
        lines.append(words % {"n": _number(never.jobs), "why": why})
    if estimate.waiting:
        n = estimate.waiting
        many = f"{_number(WAITING_CAP)}+" if n > WAITING_CAP else _number(n)
        words = ngettext(
            "%(n)s job of %(tenant)s waits already and is not counted here: less may be left for this batch.",
            "%(n)s jobs of %(tenant)s wait already and are not counted here: less may be left for this batch.",
            n,
        )
        lines.append(words % {"n": many, "tenant": tenant.name})
    return lines


def _until(part: Until, *, tenant: Tenant, now: datetime) -> str:
    day = part.limit.period is Period.DAY
    if day:
        words = ngettext(
            "About %(n)s job waits until %(until)s, when the day's budget starts anew.",
            "About %(n)s jobs wait until %(until)s, when the day's budget starts anew.",
            part.jobs,
        )
    else:
        words = ngettext(
            "About %(n)s job waits until %(until)s, when the month's budget starts anew.",
            "About %(n)s jobs wait until %(until)s, when the month's budget starts anew.",
            part.jobs,
        )
    until = phases.moment_there(part.limit.until, zone=tenant.zone, now=now)
    told = words % {"n": _number(part.jobs), "until": until}
    if not part.again:
        return told
    more = _("They cost more than a whole day's budget, so it takes several days.") if day else _("They cost more than a whole month's budget, so it takes several months.")  # fmt: skip
    return f"{told} {more}"


def _number(count: int) -> str:
    return written.number(count)
