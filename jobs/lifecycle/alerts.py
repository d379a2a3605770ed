"""The outbox of alerts: noted with the change, sorted one sender at a time, leased, sent, recorded.

`note` only inserts rows that nobody else can be inserting, so that it neither waits nor deadlocks inside the transaction
of a change. All the rest holds one advisory lock, takes no row but alerts, and is short.

A sender that dies between sending and recording leaves a lease behind. Its alerts go out once more at most
(alert_rules.MOST_LOST_LEASES): told twice is better than never, and a sender that dies at each try must not ring all night.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection, transaction
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Coalesce
from django_q.tasks import async_task

from jobs import alert_rules
from jobs.alert_rules import MATTERS, OF_EVENT, OPENINGS, AlertKind, AlertState, Matter, Seen
from jobs.models import Alert, AlertChannel
from providers.redaction import redact_text, sanitise

SEND = "jobs.tasks.send_alerts"
LEASE_S = 120.0  # above the time that one sending may take
_AT_ONCE = 10
_MOST_LOOKED_AT = 1000
_NOTED = ("reason", "connect", "lasted_s", "cause")


def call_sender() -> None:
    """After the commit. A lost call is made up for by the minute's ring."""
    if settings.ALERT_URLS:
        transaction.on_commit(partial(async_task, SEND), robust=True)


# --- noting -----------------------------------------------------------------------------------------------------------


def note(
    *,
    account_id: int,
    model: str,
    told: Iterable[tuple[str, Mapping[str, Any]]],
    episode_at: datetime,
    now: datetime,
) -> None:
    """What of a provider's events (kind, data) is an alert. In the transaction of the change, under its row's lock;
    `episode_at` is when the outage began."""
    alerts = [
        Alert(
            kind=OF_EVENT[kind], account_id=account_id, model=model, at=now, not_before=now, episode_at=episode_at,
            data={name: data[name] for name in _NOTED if name in data},
        )
        for kind, data in told
        if kind in OF_EVENT
    ]  # fmt: skip
    if alerts:
        # A key may be found rejected twice in one episode; it is told once.
        Alert.objects.bulk_create(alerts, ignore_conflicts=True)
        call_sender()


def silence(*, account_id: int) -> None:
    """What waits to be sent of an account that was silenced just now."""
    with transaction.atomic():
        _alone()
        Alert.objects.filter(
            account_id=account_id, state=AlertState.DUE, leased_until__isnull=True, sent_at__isnull=True
        ).exclude(kind=AlertKind.NETWORK).update(state=AlertState.SILENCED)  # fmt: skip


def note_matters(*, matters: Iterable[Matter], now: datetime) -> None:
    """What a person must do as it stands now: what is new becomes due, what is no more is over."""
    with transaction.atomic():
        _alone()
        rows = [_seen(row) for row in Alert.objects.filter(kind__in=MATTERS, over_at__isnull=True)]
        compared = alert_rules.compare(rows, matters, now=now)
        Alert.objects.bulk_create(
            Alert(
                kind=matter.kind, account_id=matter.account_id, at=now, data=alert_rules.first_data(matter),
                state=AlertState.SILENCED if matter.silenced else AlertState.DUE,
                not_before=now + timedelta(seconds=matter.hold_s),
            )
            for matter in compared.began
        )  # fmt: skip
        for row in compared.changed:
            fields: dict[str, Any] = {
                "state": row.state, "over_at": row.over_at, "data": row.data, "not_before": row.not_before,
            }  # fmt: skip
            if row.begun:  # a sender may be at it
                fields = {"over_at": row.over_at}
            Alert.objects.filter(pk=row.id).update(**fields)


def sort_out(*, in_use: Collection[int]) -> None:
    """New rows become due, or part of another alert. `in_use`: the accounts that a key is set for."""
    with transaction.atomic():
        _alone()
        if not Alert.objects.filter(state=AlertState.NEW).exists():
            return
        on = Alert.objects.filter(kind__in=OPENINGS, over_at__isnull=True)
        leads = Alert.objects.filter(
            Q(pk__in=on.values("lead")) | Q(pk__in=on.values("pk")), kind__in=OPENINGS
        )
        rows = Alert.objects.filter(
            Q(state=AlertState.NEW)
            | Q(pk__in=leads.values("pk"))
            | Q(lead__in=leads.values("pk"), kind__in=OPENINGS)
        )
        seen = [_seen(row) for row in rows.select_related("account")]
        for row in alert_rules.sort_out(seen, in_use=in_use):
            Alert.objects.filter(pk=row.id).update(
                kind=row.kind, state=row.state, lead=row.lead_id, over_at=row.over_at, not_before=row.not_before
            )  # fmt: skip


def _seen(row: Alert) -> Seen:
    return Seen(
        id=row.pk, kind=AlertKind(row.kind), state=AlertState(row.state), at=row.at, not_before=row.not_before,
        account_id=row.account_id, model=row.model, episode_at=row.episode_at, connect=bool(row.data.get("connect")),
        silenced=row.account is not None and row.account.alerts_silenced, begun=row.begun_at is not None,
        lead_id=row.lead_id, over_at=row.over_at, data=row.data,
    )  # fmt: skip


def _alone() -> None:
    """One process at a time; in a statement of its own, so that what follows sees what the one before has written."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext('desk_alerts'))")


# --- sending ----------------------------------------------------------------------------------------------------------


def claim(*, channels: Collection[str], most_per_hour: int, now: datetime) -> list[Alert]:
    """Alerts to be sent now, leased to the caller. Beyond the cap they go into the one summary that collects.

    Without channels nothing will ever be sent: what is due is marked so.
    """
    with transaction.atomic():
        _alone()
        _end_lost_leases(now=now)
        due = _due(now)
        if not channels:
            due.update(state=AlertState.NO_CHANNEL)
            return []
        rows = list(
            due.order_by("pk").select_for_update(skip_locked=True, of=("self",))[:_MOST_LOOKED_AT]
        )
        new = [row for row in rows if row.begun_at is None and row.kind != AlertKind.MORE]
        room = most_per_hour - _begun_within_the_hour(now=now)
        beyond = {row.pk for row in new[max(0, room) :]}
        if beyond:
            _collect(beyond, now=now)
        mine = [row for row in rows if row.pk not in beyond][:_AT_ONCE]
        _lease(mine, now=now)
    return list(
        Alert.objects.filter(pk__in=[row.pk for row in mine])
        .select_related("account", "lead", "lead__account")
        .prefetch_related("members__account")
        .order_by("pk")
    )


def due_now(*, now: datetime) -> bool:
    """Whether a sender has something to do: sort, send, or end a lost lease."""
    left = Q(leased_until__lte=now) | Q(leased_until__isnull=True, not_before__lte=now)
    return Alert.objects.filter(Q(state=AlertState.NEW) | Q(left, state=AlertState.DUE)).exists()


def _due(now: datetime) -> QuerySet[Alert]:
    """An end is told after its beginning, however long that takes to get through."""
    return Alert.objects.filter(
        state=AlertState.DUE, not_before__lte=now, leased_until__isnull=True
    ).exclude(kind=AlertKind.RECOVERED, lead__state=AlertState.DUE, lead__sent_at__isnull=True)


def _end_lost_leases(*, now: datetime) -> None:
    lost = Alert.objects.filter(state=AlertState.DUE, leased_until__lte=now)
    lost.filter(lost_leases__gte=alert_rules.MOST_LOST_LEASES).update(
        state=AlertState.GIVEN_UP, leased_until=None, lost_leases=F("lost_leases") + 1,
        error="the sender died at it twice",
    )  # fmt: skip
    lost.update(leased_until=None, lost_leases=F("lost_leases") + 1)


def _begun_within_the_hour(*, now: datetime) -> int:
    since = now - timedelta(seconds=alert_rules.CAP_WINDOW_S)
    return Alert.objects.filter(begun_at__gt=since).exclude(kind=AlertKind.MORE).count()


def _collect(beyond: Collection[int], *, now: datetime) -> None:
    """Into the summary that has not gone out yet, else into a new one: at most one an hour, a minute after its first."""
    summaries = Alert.objects.filter(kind=AlertKind.MORE)
    summary = summaries.filter(over_at__isnull=True).first()
    if summary is None:
        last = summaries.order_by("-pk").first()
        at = now + timedelta(seconds=alert_rules.SUMMARY_HOLD_S)
        if last is not None and last.begun_at is not None:
            at = max(at, last.begun_at + timedelta(seconds=alert_rules.CAP_WINDOW_S))
        summary = Alert.objects.create(
            kind=AlertKind.MORE, state=AlertState.DUE, at=now, not_before=at
        )
    Alert.objects.filter(pk__in=beyond).update(state=AlertState.FOLDED, lead=summary)


def _lease(rows: Sequence[Alert], *, now: datetime) -> None:
    mine = Alert.objects.filter(pk__in=[row.pk for row in rows])
    # A summary that goes out collects no more.
    mine.filter(begun_at__isnull=True, kind=AlertKind.MORE).update(over_at=now)
    until = now + timedelta(seconds=LEASE_S)
    mine.update(begun_at=Coalesce("begun_at", Value(now)), leased_until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One alert through one channel. `error` "": it got through."""

    alert_id: int
    channel: str
    error: str = ""


def record(
    *, alert_ids: Collection[int], tries: Iterable[Try], channels: Mapping[str, str], now: datetime
) -> None:
    """What became of the leased alerts. `channels`: the scheme of each channel there is, by its key. Unguarded by the lease:
    what got through got through, also where the sender slept past its lease."""  # fmt: skip
    tries = list(tries)
    with transaction.atomic():
        _alone()
        rows = Alert.objects.select_for_update(no_key=True, of=("self",)).filter(pk__in=alert_ids)
        for row in rows.order_by("pk"):
            _record_one(row, [t for t in tries if t.alert_id == row.pk], channels, now=now)
        note_channels(tries=tries, channels=channels, now=now)


def _record_one(
    row: Alert, tries: Sequence[Try], channels: Mapping[str, str], *, now: datetime
) -> None:
    reached = {one.channel for one in tries if not one.error}
    row.sent_to = sorted({*row.sent_to, *reached})
    if reached and row.sent_at is None:
        row.sent_at = now
    row.error = _clean(
        "; ".join(f"{channels.get(one.channel, '')}: {one.error}" for one in tries if one.error)
    )
    if row.state == AlertState.DUE:
        left_out = not set(channels) <= set(row.sent_to)
        row.tries += left_out
        row.state = alert_rules.after_try(wanted=channels, reached=row.sent_to, tries=row.tries)
        row.not_before = alert_rules.retry_at(row.tries, now=now) if left_out else row.not_before
        row.leased_until = None
    elif reached and row.state == AlertState.GIVEN_UP:
        row.state = AlertState.SENT
    row.save(
        update_fields=[
            "sent_to",
            "sent_at",
            "error",
            "state",
            "tries",
            "not_before",
            "leased_until",
        ]
    )


def note_channels(*, tries: Iterable[Try], channels: Mapping[str, str], now: datetime) -> None:
    """How each channel fared, for the notice on the pages: failing from its first error to its next success."""
    errors: dict[str, str] = {}
    for one in tries:
        errors[one.channel] = errors.get(one.channel) or one.error
    for key, error in sorted(errors.items()):
        row, _made = AlertChannel.objects.get_or_create(
            key=key, defaults={"scheme": channels.get(key, "")[:32]}
        )
        if error:
            row.failing_since, row.error = row.failing_since or now, _clean(error)
        else:
            row.ok_at, row.failing_since, row.error = now, None, ""
        row.save()


def _clean(text: str) -> str:
    return sanitise(redact_text(text), limit=300)
