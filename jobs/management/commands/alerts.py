"""alerts: what was told, and whether the channels work."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import translation
from django.utils.translation import gettext as _

from jobs.alert_rules import AlertKind
from jobs.alerts import channels as ways
from jobs.alerts import words
from jobs.clock import clock
from jobs.lifecycle import alerts
from jobs.management.who import EXIT_BAD_INPUT
from jobs.models import Alert, AlertChannel

EXIT_FAILED = 1


class Command(BaseCommand):
    help = (
        "List the newest alerts and the channels of ALERT_URLS, or send a test message through each channel. "
        "Exit codes: 0 done, 1 a channel failed, 2 bad input or no channel to test."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", nargs="?", default="list", choices=["list", "test"])
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        parser.add_argument("--most", type=int, default=20, help="how many alerts to list")

    def handle(self, **options: Any) -> None:
        if options["what"] == "test":
            self._test(as_json=options["as_json"])
        elif options["most"] < 0:
            raise CommandError(_("--most must not be negative."), returncode=EXIT_BAD_INPUT)
        else:
            self._list(most=options["most"], as_json=options["as_json"])

    def _list(self, *, most: int, as_json: bool) -> None:
        rows = Alert.objects.select_related("account", "lead", "lead__account").prefetch_related(
            "members__account", "lead__members__account"
        )
        told = {
            "alerts": [_alert(row) for row in rows.order_by("-pk")[:most]],
            "channels": _channels(),
        }
        if as_json:
            self.stdout.write(json.dumps(told, ensure_ascii=False))
            return
        for channel in told["channels"]:
            state = _("failing: %(why)s") % {"why": channel["error"]} if channel["failing_since"] else (
                _("worked at %(at)s") % {"at": channel["ok_at"]} if channel["ok_at"] else _("not used yet")
            )  # fmt: skip
            self.stdout.write(f"{channel['name']}: {state}")
        if not told["channels"]:
            self.stdout.write(_("No channel is set: ALERT_URLS is empty, so nobody is told."))
        for alert in told["alerts"]:
            trouble = f"  ({alert['error']})" if alert["error"] else ""
            self.stdout.write(
                f"{alert['at'][:19]}  {alert['state_words']}: {alert['title']}{trouble}"
            )
        if not told["alerts"]:
            self.stdout.write(_("No alerts yet."))

    def _test(self, *, as_json: bool) -> None:
        to = ways.channels()
        if not to:
            raise CommandError(
                _("There is no channel to test: ALERT_URLS is empty."), returncode=EXIT_BAD_INPUT
            )
        with translation.override(settings.LANGUAGE_CODE):
            message = words.Message(
                alert_id=0,
                title=_("A test of the generation desk's alerts"),
                body=f"{_('Outages will be told here.')}\n{words.link(AlertKind.OUTAGE)}",
                tone="info",
            )
        tries = ways.deliver([message], to=to)
        alerts.note_channels(tries=tries, channels={c.key: c.scheme for c in to}, now=clock.now())
        names = {channel.key: str(channel) for channel in to}
        told = [
            {"name": names[one.channel], "ok": not one.error, "error": one.error} for one in tries
        ]
        if as_json:
            self.stdout.write(json.dumps({"channels": told}, ensure_ascii=False))
        else:
            for line in told:
                self.stdout.write(f"{line['name']}: {line['error'] or _('sent')}")
        if any(one.error for one in tries):
            sys.exit(EXIT_FAILED)


def _alert(row: Alert) -> dict[str, Any]:
    return {
        "id": row.pk, "kind": row.kind, "state": row.state, "state_words": str(row.get_state_display()),
        "title": words.title(row), "account": str(row.account) if row.account else None, "model": row.model,
        "at": row.at.isoformat(), "over_at": row.over_at.isoformat() if row.over_at else None,
        "sent_at": row.sent_at.isoformat() if row.sent_at else None, "told_with": row.lead_id, "error": row.error,
    }  # fmt: skip


def _channels() -> list[dict[str, Any]]:
    known = {row.key: row for row in AlertChannel.objects.all()}
    found = []
    for channel in ways.channels():
        row = known.get(channel.key)
        found.append(
            {
                "name": str(channel),
                "ok_at": row.ok_at.isoformat() if row and row.ok_at else None,
                "failing_since": row.failing_since.isoformat() if row and row.failing_since else None,
                "error": row.error if row else "",
            }
        )  # fmt: skip
    return found
