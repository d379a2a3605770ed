"""Whether jobs are taken now, and what the caller is told where they are not. Asked inside the transaction that would make
them; what is taken may still wait, and says why.

An outage of all targets, an exhausted quota and the caller's own limits are three answers (503, 429, 402), so that a program
can tell "try the other provider", "come back on Sunday" and "ask your owner" apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.utils.translation import gettext as _

from jobs import rooms, spending, written
from jobs.api.problems import Code, Problem
from jobs.budgets import Budget, Limit, ceiling
from jobs.lifecycle.create import NewJob
from jobs.models import Hold, Tenant
from providers import registry
from providers.models import Account, Target, in_words
from providers.word import Phrase, Told, Word

# Where nobody knows when it will be better.
DOWN_RETRY_S = 60.0
QUEUE_RETRY_S = 30.0
UNKNOWN_QUOTA_RETRY_S = 3600.0

# Served by the claim's index, and no further than the cap.
_WAITING = """
SELECT count(*) FROM (
  SELECT FROM jobs_job WHERE state = 'pending' AND tenant_id = %s LIMIT %s) few
"""


class Standing(Enum):
    OPEN = "open"  # a send goes out, at once or in its turn
    BLOCKED = "blocked"  # until a time, by a quota or a rate limit
    DOWN = "down"  # until it is seen to be well again
    SHUT = "shut"  # by staff, until they open it


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How a target stands. `until` None: no time can be told."""

    target: str
    standing: Standing
    until: datetime | None = None
    words: str = ""


# --- pure -------------------------------------------------------------------------------------------------------------


def standing(told: Told) -> Standing:
    """A target that waits for one job to try it is open: without jobs nobody would ever learn that it is well."""
    if told.phrase is Phrase.PAUSED:
        return Standing.SHUT
    if told.word is Word.DOWN:
        tries = told.phrase in {Phrase.NEXT_IS_PROBE, Phrase.PROBING}
        return Standing.OPEN if tries else Standing.DOWN
    blocked = told.phrase in {Phrase.QUOTA_EXHAUSTED, Phrase.BLOCKED, Phrase.THROTTLED}
    return Standing.BLOCKED if blocked or told.word is Word.QUOTA_EXHAUSTED else Standing.OPEN


_FALLBACK_WORD = {Standing.BLOCKED: "quota", Standing.DOWN: "down"}


def within_reach(places: Sequence[Place], fallback_on: Iterable[str]) -> Sequence[Place]:
    """The places that a job may come to: it passes one that is blocked or down only where FALLBACK_ON lets it."""
    words = set(fallback_on)
    for at, place in enumerate(places):
        if _FALLBACK_WORD.get(place.standing) not in words:
            return places[: at + 1]
    return places


def judge(places: Sequence[Place], *, max_wait_s: float | None, now: datetime) -> Problem | None:
    """None: jobs of a route with these places within reach are taken."""
    standings = {place.standing for place in places}
    if Standing.OPEN in standings:
        return None
    more: dict[str, Any] = {"targets": [_plain(place) for place in places]}
    if standings == {Standing.DOWN}:
        wait_s = _first_s(places, now=now)
        return Problem(
            Code.DOWN, _words(places), retry_after_s=DOWN_RETRY_S if wait_s is None else wait_s, **more
        )  # fmt: skip
    if max_wait_s is None:
        return None
    wait_s = _first_s(places, now=now)
    if wait_s is not None and wait_s <= max_wait_s:
        return None
    if Standing.BLOCKED not in standings:
        return Problem(
            Code.DOWN, _words(places), retry_after_s=DOWN_RETRY_S if wait_s is None else wait_s, **more
        )  # fmt: skip
    earliest = None if wait_s is None else (now + timedelta(seconds=wait_s)).isoformat()
    return Problem(
        Code.QUOTA, _words(places), retry_after_s=UNKNOWN_QUOTA_RETRY_S if wait_s is None else wait_s,
        earliest=earliest, **more,
    )  # fmt: skip


def _first_s(places: Sequence[Place], *, now: datetime) -> float | None:
    ends = [place.until for place in places if place.until is not None]
    return max(0.0, (min(ends) - now).total_seconds()) if ends else None


def _words(places: Sequence[Place]) -> str:
    return "; ".join(f"{place.target}: {place.words}" for place in places)


def _plain(place: Place) -> dict[str, str | None]:
    return {
        "target": place.target,
        "state": place.standing.value,
        "until": place.until.isoformat() if place.until else None,
    }


def over(budget: Budget, asked: Mapping[str, Decimal]) -> Limit | None:
    """The limit that is passed by what has been charged already and the ceilings of these jobs (by currency): the one that
    lasts longest. What is only possible so far may come to nothing, and jobs wait for that."""
    mine = asked.get(budget.currency, Decimal(0))
    passed = [limit for limit in budget.limits if limit.spent.charged + mine > limit.most]
    return max(passed, key=lambda limit: limit.until, default=None)


# --- asking the rows --------------------------------------------------------------------------------------------------


def check(
    jobs: Sequence[NewJob], *, tenant: Tenant, max_wait_s: float | None, now: datetime
) -> None:
    """Raises Problem."""
    _check_budget(jobs, tenant, now)
    _check_queue(len(jobs), tenant)
    held = Hold.objects.filter(lifted_at__isnull=True).first()
    seen: dict[int, Place] = {}
    for route in {tuple(target.pk for target in job.route): job.route for job in jobs}.values():
        places = []
        for target in route:
            if target.pk not in seen:
                seen[target.pk] = _held(target, held) if held else place(target, now)
            places.append(seen[target.pk])
        problem = judge(
            within_reach(places, settings.FALLBACK_ON), max_wait_s=max_wait_s, now=now
        )  # fmt: skip
        if problem is not None:
            raise problem


def place(target: Target, now: datetime) -> Place:
    """How a target stands for a send by the key that the settings hold."""
    try:
        reached = registry.account(target.provider)
    except (ImproperlyConfigured, registry.UnknownProviderError):
        words = _("no key is set for %(provider)s") % {"provider": target.provider.title()}
        return Place(target=target.name, standing=Standing.DOWN, words=words)
    account = Account.objects.filter(
        provider=target.provider, fingerprint=reached.fingerprint
    ).first()
    if account is None:  # nothing was ever sent there
        return Place(target=target.name, standing=Standing.OPEN)
    late = now - timedelta(seconds=settings.POLL_DEADLINE_SEC)
    told = rooms.told(account_id=account.pk, model=target.model, late=late, now=now)
    return Place(
        target=target.name, standing=standing(told), until=told.until, words=in_words(told, now=now)
    )  # fmt: skip


def _held(target: Target, held: Hold) -> Place:
    words = _("all sends are held: %(hold)s") % {"hold": held.get_kind_display()}
    return Place(target=target.name, standing=Standing.SHUT, words=words)


def waiting(tenant: Tenant, *, most: int) -> int:
    """Its pending jobs, counted no further than `most`."""
    with connection.cursor() as cursor:
        cursor.execute(_WAITING, [tenant.pk, most])
        row = cursor.fetchone()
    return int(row[0]) if row else 0


def _check_queue(more: int, tenant: Tenant) -> None:
    most = settings.API_MOST_WAITING
    if waiting(tenant, most=most) + more > most:
        text = _("At most %(most)d jobs of %(tenant)s may wait.")
        raise Problem(
            Code.QUEUE_FULL, text % {"most": most, "tenant": tenant.name}, retry_after_s=QUEUE_RETRY_S
        )  # fmt: skip


def _check_budget(jobs: Sequence[NewJob], tenant: Tenant, now: datetime) -> None:
    factor = settings.PRICE_CEILING_FACTOR
    budget = spending.budgets([tenant], factor=factor, now=now)[tenant.pk]
    if not budget.limits:
        return
    counted = Counter(job.route[0] for job in jobs)
    asked: dict[str, Decimal] = {}
    for target, many in counted.items():
        # A limit in other money, or a target without a price: such a send never fits.
        if target.currency != budget.currency or target.price <= 0:
            text = _("%(tenant)s has a spending limit in %(currency)s, and what %(target)s costs can't be counted in it.")  # fmt: skip
            words = {"tenant": tenant.name, "currency": budget.currency, "target": target.name}
            raise Problem(Code.BUDGET, text % words)
        asked[target.currency] = asked.get(target.currency, Decimal(0)) + many * ceiling(
            target.price, factor
        )
    limit = over(budget, asked)
    if limit is None:
        return
    text = _("%(charged)s of %(most)s are spent, and this may cost %(asked)s.")
    words = {
        "charged": written.money(limit.spent.charged, budget.currency),
        "most": written.money(limit.most, budget.currency),
        "asked": written.money(asked[budget.currency], budget.currency),
    }
    raise Problem(
        Code.BUDGET, text % words, period=limit.period.value, until=limit.until.isoformat()
    )
