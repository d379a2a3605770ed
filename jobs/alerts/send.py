"""Sending what is due: sort, claim, send without a transaction, record.

What if the process dies: before the claim's commit nothing has happened; after it, and before `record`, the lease ends
and the alerts go out once more at most, whether or not they had got through (at least once, at most twice). A message that
a channel took without saying so in time counts as not sent, and is tried again: it may come twice there too.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.conf import settings
from django.utils import translation

from jobs.alerts import channels as ways
from jobs.alerts import look, words
from jobs.clock import clock
from jobs.lifecycle import alerts
from jobs.models import Alert


def look_and_note() -> None:
    """What a person must do, as it stands now."""
    now = clock.now()
    alerts.note_matters(matters=look.matters(now=now), now=now)


def sort_out() -> None:
    alerts.sort_out(in_use={account.pk for account in look.accounts_in_use().values()})


def send_due() -> int:
    """Send what is due now; how many alerts were taken. Back within channels.LIMIT_S and a few statements."""
    sort_out()
    to = ways.channels()
    claimed = alerts.claim(
        channels=[channel.key for channel in to],
        most_per_hour=settings.ALERT_MOST_PER_HOUR,
        now=clock.now(),
    )
    if not claimed:
        return 0
    messages = in_words(claimed)
    done = {alert.pk: alert.sent_to for alert in claimed}
    tries = ways.deliver(messages, to=to, done=done)
    alerts.record(
        alert_ids=list(done), tries=tries, channels={c.key: c.scheme for c in to}, now=clock.now()
    )
    return len(claimed)


def in_words(claimed: Iterable[Alert]) -> list[words.Message]:
    """In the language of the installation: nobody's own is known here."""
    with translation.override(settings.LANGUAGE_CODE):
        return [words.message(alert) for alert in claimed]
