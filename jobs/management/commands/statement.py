"""statement: our sends against a provider's own history and receipts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, date, datetime
from datetime import time as clock_time
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db.models import Q
from django.utils.translation import gettext as _

from jobs import statement_sheet, written
from jobs.clock import clock
from jobs.lifecycle import statement as lifecycle
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_BAD_INPUT, actor
from jobs.models import Statement
from jobs.stages import statement as stage
from jobs.statement import DISCREPANCIES, MONEY, Kind
from providers import registry
from providers.models import Account

EXIT_UNREAD = 1
EXIT_FOUND = 3
_SLICE_S = 20.0


class Command(BaseCommand):
    help = (
        "Compare our sends with a provider's history and receipts. Exit codes: 0 nothing to settle, 1 the history could not "
        "be read, or not to its end, 2 bad input, 3 there are discrepancies."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--provider", required=True, help="such as polza")
        parser.add_argument("--since", required=True, type=_moment, help="a day or an ISO time; days are those of TIME_ZONE")  # fmt: skip
        parser.add_argument("--until", type=_moment, help="until before then; now where left out")
        parser.add_argument("--account", default="", help="one key: its number, label, or the end of its fingerprint")  # fmt: skip
        parser.add_argument("--as", dest="username", default="", help="who asks for it")
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        output.add_argument(
            "--csv", nargs="?", const="support", choices=["support", "days", "months"], dest="sheet",
            help="print CSV: discrepancies for the provider's support (default), or sums of days or months for the bookkeeper",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        now = clock.now()
        try:
            row = lifecycle.ask(
                provider=options["provider"],
                account_id=_account(options["provider"], options["account"]),
                since=options["since"],
                until=options["until"] or now,
                actor=actor(options["username"], "jobs.read_statement"),
                now=now,
            )
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_BAD_INPUT) from refused
        row = self._read(row.pk)
        if row.state == Statement.State.FAILED:
            raise CommandError(
                _("The history could not be read: %(why)s") % {"why": row.trouble}, returncode=EXIT_UNREAD
            )  # fmt: skip
        told = plain(row)
        if options["as_json"]:
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        elif options["sheet"] == "support":
            self.stdout.write(statement_sheet.support(told), ending="")
        elif options["sheet"]:
            self.stdout.write(statement_sheet.books(told, by=options["sheet"]), ending="")
        else:
            self._show(told)
        if row.open_count:
            sys.exit(EXIT_FOUND)
        if any(account["unread"] for account in told["accounts"]):
            sys.exit(EXIT_UNREAD)

    def _read(self, pk: int) -> Statement:
        """To its end, here; where a worker is at it already, its end is waited for."""
        shown = ""
        while True:
            going_on = stage.run(pk, for_s=_SLICE_S)
            row = Statement.objects.defer("kept").get(pk=pk)
            if row.state != Statement.State.READING:
                return row
            line = _("%(done)s of %(all)s pieces read, %(seen)s generations") % {
                "done": row.cursor,
                "all": row.pieces,
                "seen": row.seen,
            }
            if line != shown:
                shown = line
                self.stderr.write(line)
            if not going_on:
                time.sleep(1.0)

    def _show(self, told: dict[str, Any]) -> None:
        for account in told["accounts"]:
            why = account["unread"] and _(" (not read to its end: %(why)s)") % {"why": account["unread"]}  # fmt: skip
            self.stdout.write(
                _("%(name)s: %(n)s generations listed, read at %(at)s%(why)s")
                % {"name": account["name"], "n": account["listed"], "at": account["read_at"][:19], "why": why or ""}
            )  # fmt: skip
        self.stdout.write(_("%(n)s matched") % {"n": told["matched"]})
        for count in told["counts"]:
            if count["count"]:
                word = statement_sheet.KINDS[Kind(count["kind"])].look.word
                money = written.totals({name: Decimal(amount) for name, amount in count["money"].items()})  # fmt: skip
                settled = _(", %(n)s settled") % {"n": count["settled"]} if count["settled"] else ""
                self.stdout.write(f"{count['count']} {word}{settled}  {money}".rstrip())
        for one in told["findings"]:
            if Kind(one["kind"]) in DISCREPANCIES and not one["settled"]:
                self.stdout.write(_line(one))
        for row in told["months"]:
            sums = [f"{word} {row[name]}" for name, word in zip(MONEY, statement_sheet.money_words(), strict=True) if Decimal(row[name])]  # fmt: skip
            self.stdout.write(
                f"{row['period']}  {row['tenant'] or _('unknown to us')}  {row['currency']}: {', '.join(sums)}"
            )
        rates = ", ".join(f"{name} {rate or _('no rate')}" for name, rate in told["rates"].items())
        self.stdout.write(
            _("Days by %(zone)s. Rates in %(currency)s: %(rates)s")
            % {"zone": told["zone"], "currency": told["currency"], "rates": rates or "—"}
        )


def plain(row: Statement) -> dict[str, Any]:
    """A stored statement for programs."""
    return {
        "id": row.pk,
        "provider": row.provider,
        "since": row.since.isoformat(),
        "until": row.until.isoformat(),
        "read_at": row.read_at.isoformat() if row.read_at else None,
        "open": row.open_count,
        **row.told,
    }


def _line(one: dict[str, Any]) -> str:
    word = statement_sheet.KINDS[Kind(one["kind"])].look.word
    job = f"#{one['job']}" if one["job"] else ""
    prices = f"{one['ours'] or '—'} / {one['theirs'] or '—'} {one['currency']}"
    parts = [word, one["provider_id"], one["task"] or "", job, (one["at"] or "")[:19], one["model"], prices]  # fmt: skip
    return "  " + "  ".join(str(part) for part in parts if part)


def _moment(told: str) -> datetime:
    zone = ZoneInfo(settings.TIME_ZONE)
    try:
        if len(told) == 10:
            return datetime.combine(date.fromisoformat(told), clock_time(), zone).astimezone(UTC)
        read = datetime.fromisoformat(told)
    except ValueError:
        raise argparse.ArgumentTypeError(_("write a day like 2026-11-01, or an ISO time")) from None
    return read if read.tzinfo else read.replace(tzinfo=zone)


def _account(provider: str, told: str) -> int | None:
    """The one account that `told` names; None for ""."""
    if not told:
        return None
    accounts = Account.objects.filter(provider=provider)
    wanted = Q(label=told) | Q(fingerprint__endswith=told)
    if told.isdecimal() and len(told) < 18:
        wanted |= Q(pk=int(told))
    found = list(accounts.filter(wanted).values_list("pk", flat=True)[:2])
    if len(found) == 1:
        return int(found[0])
    known = ", ".join(f"{one.pk} …{one.fingerprint[-6:]} {one.label}".strip() for one in accounts)
    names = known or ", ".join(sorted(registry.ADAPTERS))
    raise CommandError(
        _("“%(told)s” names no account, or more than one. Known: %(names)s")
        % {"told": told, "names": names},
        returncode=EXIT_BAD_INPUT,
    )
