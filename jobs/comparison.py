"""How targets compare over a period: what came of their sends, what staff think of it, what it cost and how long it took.

A send counts for the period in which its intent was written, once it was armed; one that never reached the provider does
not. Money is kept apart by currency, so a target whose currency was changed has a line for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db import connection

from providers.contract import FailureClass
from providers.models import Target

CLASSES = tuple(one.value for one in FailureClass if one is not FailureClass.UNSENT)

# Each target's sends of the period by the index task_newest_of_target; what is delivered, by primary keys.
_QUERY = """
SELECT g.id, k.currency, count(*), count(r.id),
  count(*) FILTER (WHERE r.rating = 'good'), count(*) FILTER (WHERE r.rating = 'usable'),
  count(*) FILTER (WHERE r.rating = 'bad'),
  coalesce(sum(coalesce(k.cost, k.estimated_cost)) FILTER (WHERE k.charge IN ('charged', 'written_off')), 0),
  coalesce(sum(coalesce(k.cost, k.estimated_cost)) FILTER (WHERE k.charge = 'possible'), 0),
  percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY extract(epoch FROM k.stored_at - k.armed_at)),
  count(*) FILTER (WHERE k.state = 'failed'), count(*) FILTER (WHERE k.state = 'unknown'),
  ARRAY[{refusals}]
FROM providers_target g
JOIN jobs_providertask k ON k.target_id = g.id AND k.created_at >= %(since)s AND k.created_at < %(until)s
  AND k.armed_at IS NOT NULL AND k.state <> 'unsent' AND (%(tenant)s::bigint IS NULL OR k.tenant_id = %(tenant)s)
JOIN jobs_job j ON j.id = k.job_id
LEFT JOIN jobs_result r ON r.id = j.delivered_id AND r.task_id = k.id
GROUP BY g.id, k.currency
ORDER BY g.provider, g.model, g.id, k.currency
"""
_REFUSALS = ", ".join(f"count(*) FILTER (WHERE k.refusal_class = '{name}')" for name in CLASSES)
_COMPARED = _QUERY.replace("{refusals}", _REFUSALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A target's sends in one currency. `spent`: charged or written off, failed sends included; `possible`: not settled yet.
    `median_s`, `p95_s`: from the arming to the stored file; None where nothing was stored. `refusals`: by class, only those
    that there were."""

    target: Target
    currency: str
    sends: int
    delivered: int
    good: int
    usable: int
    bad: int
    spent: Decimal
    possible: Decimal
    median_s: float | None
    p95_s: float | None
    failed: int
    unknown: int
    refusals: Mapping[str, int]

    @property
    def rated(self) -> int:
        return self.good + self.usable + self.bad

    @property
    def per_delivered(self) -> Decimal | None:
        return self.spent / self.delivered if self.delivered else None

    @property
    def per_good(self) -> Decimal | None:
        """The money spent by the number of good ones. Where only some are rated, the rest is taken to be as good as those:
        else a target would seem the dearer the fewer of its results people have looked at."""
        if self.per_delivered is None or not self.good:
            return None
        return self.per_delivered * self.rated / self.good


def read(*, since: datetime, until: datetime, tenant_id: int | None = None) -> list[Line]:
    """A line for each target that was sent to, by name. `tenant_id`: only that one's sends."""
    with connection.cursor() as cursor:
        cursor.execute(_COMPARED, {"since": since, "until": until, "tenant": tenant_id})
        rows = cursor.fetchall()
    targets = Target.objects.in_bulk([row[0] for row in rows])
    return [_line(targets[row[0]], row[1:]) for row in rows]


def _line(target: Target, told: Sequence[Any]) -> Line:
    times = told[8] or [None, None]
    return Line(
        target=target, currency=told[0], sends=told[1], delivered=told[2], good=told[3], usable=told[4], bad=told[5],
        spent=told[6], possible=told[7], median_s=times[0], p95_s=times[1], failed=told[9], unknown=told[10],
        refusals={name: n for name, n in zip(CLASSES, told[11], strict=True) if n},
    )  # fmt: skip


# --- for programs and sheets ------------------------------------------------------------------------------------------

HEAD = (
    "target", "currency", "sends", "delivered", "good", "usable", "bad", "spent", "possible", "per_delivered", "per_good",
    "studio_currency", "spent_studio", "per_delivered_studio", "per_good_studio", "median_s", "p95_s", "failed", "unknown",
    *(f"refused_{name}" for name in CLASSES),
)  # fmt: skip


def plain(line: Line) -> dict[str, Any]:
    """By the names of HEAD: money as text, None for what can't be told; amounts of the studio's currency by the owner's rate."""
    rate = settings.CURRENCY_RATES.get(line.currency)
    money = {
        "spent": line.spent,
        "per_delivered": line.per_delivered,
        "per_good": line.per_good,
    }
    studio = {
        f"{name}_studio": _text(None if amount is None or rate is None else amount * rate)
        for name, amount in money.items()
    }
    told = {
        "target": line.target.name, "currency": line.currency, "sends": line.sends, "delivered": line.delivered,
        "good": line.good, "usable": line.usable, "bad": line.bad, "possible": _text(line.possible),
        "studio_currency": settings.CURRENCY, "median_s": _seconds(line.median_s), "p95_s": _seconds(line.p95_s),
        "failed": line.failed, "unknown": line.unknown,
        **{name: _text(amount) for name, amount in money.items()}, **studio,
        **{f"refused_{name}": line.refusals.get(name, 0) for name in CLASSES},
    }  # fmt: skip
    return {name: told[name] for name in HEAD}


def _text(amount: Decimal | None) -> str | None:
    """To the hundredth of a kopeck, without trailing zeros."""
    if amount is None:
        return None
    return f"{amount.quantize(Decimal('0.0001')).normalize():f}"


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(float(seconds), 1)
