"""How many more sends each target takes now: breaker, probe, ramp, and what is left of the quota windows.

Read inside the admission lock, where nobody else claims, it is exact: intents of all lanes count from the moment they
are written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import connection

from providers import health
from providers.health import Block, Gate, Health
from providers.models import ProviderState
from providers.word import Told, Usage, word

# For arm, where `t` is the task and `g` its target: the SQL twin of health.may_arm over both of its rows.
MAY_ARM = """
NOT EXISTS (
  SELECT 1 FROM providers_providerstate s
  WHERE s.account_id = t.account_id AND s.model IN ('', g.model)
    AND (s.state = 'paused' OR s.blocked_until > %(now)s OR s.gate = 'open'
      OR (s.gate = 'half_open' AND (s.probe_id IS DISTINCT FROM t.id OR s.probe_until <= %(now)s))))
"""

# A send may have reached the provider as late as its answer came, or until its fence fell: it counts from the latest.
# Refusals count where requests are limited (windows up to an hour), not where generations are.
_USAGE = """
SELECT w.account_id, w.model, w.seconds, w.most, used.sends + waiting.intents, CASE
    WHEN w.seconds IS NULL THEN NULL
    WHEN w.resets = 'fixed' THEN span.next
    WHEN used.sends + waiting.intents >= w.most THEN used.oldest + make_interval(secs => w.seconds)
  END
FROM providers_quotawindow w
JOIN providers_account a ON a.id = w.account_id
CROSS JOIN LATERAL (
  SELECT date_bin(make_interval(secs => w.seconds), %(now)s AT TIME ZONE w.zone, w.anchor_at AT TIME ZONE w.zone) AS bin
) wall
CROSS JOIN LATERAL (
  SELECT CASE WHEN w.resets = 'fixed' THEN wall.bin AT TIME ZONE w.zone
              ELSE %(now)s - make_interval(secs => w.seconds) END AS start,
         (wall.bin + make_interval(secs => w.seconds)) AT TIME ZONE w.zone AS next
) span
CROSS JOIN LATERAL (
  SELECT count(*) AS sends, min(newest.at) AS oldest FROM (
    SELECT coalesce(k.accepted_at, k.refused_at, k.completed_at, k.send_not_after) AS at
    FROM jobs_providertask k
    WHERE w.seconds IS NOT NULL AND k.account_id = w.account_id
      AND k.armed_at > span.start - interval '5 minutes' AND k.state <> 'unsent'
      AND coalesce(k.accepted_at, k.refused_at, k.completed_at, k.send_not_after) > span.start
      AND (w.seconds <= 3600 OR k.state <> 'refused')
      AND (w.model = '' OR k.target_id IN (
        SELECT id FROM providers_target g WHERE g.provider = a.provider AND g.model = w.model))
    ORDER BY k.armed_at DESC
    LIMIT w.most
  ) newest
) used
CROSS JOIN LATERAL (
  SELECT count(*) AS intents FROM jobs_providertask k
  WHERE k.account_id = w.account_id AND k.state IN ('intent', 'sending', 'accepted')
    AND (k.armed_at IS NULL OR (w.seconds IS NULL AND k.armed_at > %(late)s))
    AND (w.model = '' OR k.target_id IN (
      SELECT id FROM providers_target g WHERE g.provider = a.provider AND g.model = w.model))
) waiting
WHERE w.account_id = ANY(%(accounts)s)
ORDER BY w.account_id, w.model, w.seconds
"""

_UNANSWERED = """
SELECT k.account_id, g.model, k.created_at
FROM jobs_providertask k JOIN providers_target g ON g.id = k.target_id
WHERE k.state IN ('intent', 'sending') AND k.account_id = ANY(%(accounts)s)
"""


@dataclass(slots=True)
class Rooms:
    """What is left of every limit, shared limits once. `take` for each send that is claimed."""

    left_of: dict[Hashable, int] = field(default_factory=dict)
    limits_of: dict[int, list[Hashable]] = field(default_factory=lambda: defaultdict(list))
    probes: set[int] = field(default_factory=set)  # targets whose next send is the probe
    shut: dict[int, set[str]] = field(
        default_factory=lambda: defaultdict(set)
    )  # target -> why no send is left

    def left(self, target_id: int) -> int | None:
        """None: nothing here limits this target."""
        limits = self.limits_of.get(target_id, [])
        return min((self.left_of[limit] for limit in limits), default=None)

    def take(self, target_id: int) -> None:
        for limit in self.limits_of.get(target_id, []):
            self.left_of[limit] -= 1

    def add(self, limit: Hashable, left: int, targets: Iterable[int], *, why: str) -> None:
        self.left_of[limit] = left
        for target_id in targets:
            self.limits_of[target_id].append(limit)
            if left <= 0:
                self.shut[target_id].add(why)

    def goes_elsewhere(self, target_id: int, fallback_on: Collection[str]) -> bool:
        """Whether jobs of a shut target may go to the next of their route. What staff have shut, waits for staff."""
        why = self.shut.get(target_id, set())
        return bool(why) and why <= set(fallback_on)


def rooms(
    *, targets: Mapping[int, tuple[int, str]], late: datetime, patience_s: float, now: datetime
) -> Rooms:
    """`targets`: target id -> (account id, model). `late`: what was armed before it is in flight no more. A wait up to
    `patience_s` is no reason to go elsewhere.

    Two short statements; a third one while a ramp is on. A target of `probes` has room for one send, and the claim must
    then take the lease: `lifecycle.providers.take_probe` in the same transaction.
    """
    found = Rooms()
    accounts = sorted({account_id for account_id, _ in targets.values()})
    states = states_of(accounts)
    unanswered = _unanswered(accounts) if any(one.ramp for one in states.values()) else []
    for (account_id, model), one in states.items():
        left = health.may_send(one, unanswered=_since(one, unanswered, account_id, model), now=now)
        mine = _targets(targets, account_id, model)
        if left is not None:
            found.add(("state", account_id, model), left, mine, why=_why(one, patience_s, now=now))
        if one.gate is Gate.HALF_OPEN and left:
            found.probes |= mine
    for one_window in usage(account_ids=accounts, late=late, now=now):
        limit = ("window", one_window.account_id, one_window.model, one_window.seconds)
        mine = _targets(targets, one_window.account_id, one_window.model)
        soon = (
            one_window.resets_at is not None
            and (one_window.resets_at - now).total_seconds() <= patience_s
        )
        # A window without an end is a limit of what is in flight: it frees itself.
        waits = soon or one_window.seconds is None
        found.add(limit, one_window.left, mine, why="" if waits else "quota")
    return found


def _why(one: Health, patience_s: float, *, now: datetime) -> str:
    """The word of FALLBACK_ON that this is, "" for what must be waited for."""
    if one.paused or (one.blocked(now) and one.block is Block.STAFF):
        return ""
    if one.gate is not Gate.CLOSED:
        return "down"
    if one.blocked_until is not None and one.blocked(now):
        short = (one.blocked_until - now).total_seconds() <= patience_s
        return "" if short and one.block is Block.THROTTLED else "quota"
    return ""


def _targets(targets: Mapping[int, tuple[int, str]], account_id: int, model: str) -> set[int]:
    return {
        target_id
        for target_id, (account, name) in targets.items()
        if account == account_id and model in {"", name}
    }


def states_of(account_ids: Collection[int]) -> dict[tuple[int, str], Health]:
    """Every row of these accounts as a value, by (account id, model)."""
    rows = ProviderState.objects.filter(account_id__in=account_ids)
    return {(row.account_id, row.model): row.health() for row in rows}


def _unanswered(accounts: list[int]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(_UNANSWERED, {"accounts": accounts})
        return list(cursor.fetchall())


def _since(one: Health, unanswered: list[Any], account_id: int, model: str) -> int:
    """Unanswered sends that fill its ramp."""
    return sum(
        account == account_id
        and model in {"", name}
        and (one.ramp_from is None or created_at >= one.ramp_from)
        for account, name, created_at in unanswered
    )


def usage(*, account_ids: Collection[int], late: datetime, now: datetime) -> list[Usage]:
    """How full every quota window of these accounts is. The cost is bounded by the windows' own limits."""
    values: dict[str, Any] = {"accounts": list(account_ids), "late": late, "now": now}
    with connection.cursor() as cursor:
        cursor.execute(_USAGE, values)
        return [
            Usage(
                account_id=account_id, model=model, seconds=seconds, most=most, used=used, resets_at=resets_at
            )
            for account_id, model, seconds, most, used, resets_at in cursor.fetchall()
        ]  # fmt: skip


def told(*, account_id: int, model: str = "", late: datetime, now: datetime) -> Told:
    """The word about an account, or about one of its models (with what holds for the whole account)."""
    names = {"", model}
    states = states_of([account_id])
    full = usage(account_ids=[account_id], late=late, now=now)
    return word(
        *(one for (_, name), one in states.items() if name in names),
        now=now,
        usage=[one for one in full if one.model in names],
    )
