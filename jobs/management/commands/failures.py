"""failures: like failures of a period, gathered, as the page of the same name shows them."""

from __future__ import annotations

import argparse
import json
import re
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import display, failure_groups, failures, written
from jobs.clock import clock
from jobs.failure_groups import Found, Group, Order
from jobs.management.who import EXIT_BAD_INPUT
from providers.models import Target

_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_LONGEST = timedelta(days=3650)


class Command(BaseCommand):
    help = "Like failures of sends: how many, of how many tenants, when, and how many jobs still stand so. Exit codes: 0, 2 bad input."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--since", type=_span, default=timedelta(hours=24), help="how far back: 90m, 24h (default), 7d")  # fmt: skip
        parser.add_argument("--provider", default="", help="only this one's, such as polza")
        parser.add_argument("--class", dest="failure", default="", choices=failures.CLASSES, help="only of this class")  # fmt: skip
        parser.add_argument("--order", default=Order.BIGGEST.value, choices=[one.value for one in Order])  # fmt: skip
        parser.add_argument("--limit", type=int, default=50, help="at most so many groups")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    def handle(self, **options: Any) -> None:
        if options["limit"] < 1:
            raise CommandError(_("Give a limit of at least 1."), returncode=EXIT_BAD_INPUT)
        provider = options["provider"]
        if provider and not Target.objects.filter(provider=provider).exists():
            raise CommandError(
                _("“%(name)s” is no provider of a target.") % {"name": provider}, returncode=EXIT_BAD_INPUT
            )  # fmt: skip
        until = clock.now()
        since = until - options["since"]
        found = failure_groups.read(
            since=since, until=until, provider=provider, failure=options["failure"], order=Order(options["order"]),
            limit=options["limit"],
        )  # fmt: skip
        if options["as_json"]:
            self.stdout.write(json.dumps(_plain(found, since, until), ensure_ascii=False))
            return
        for group in found.groups:
            self._show(group)
        if not found.groups:
            self.stdout.write(_("No failures in this period."))
        elif (left := found.total - len(found.groups)) > 0:
            self.stdout.write(ngettext("%(n)s more group", "%(n)s more groups", left) % {"n": left})

    def _show(self, group: Group) -> None:
        name = f"{group.provider} · {display.reason(group.failure)} · {group.message or _('without words')}"
        counts = [
            ngettext("%(n)s send", "%(n)s sends", group.tasks) % {"n": group.tasks},
            ngettext("%(n)s tenant", "%(n)s tenants", group.tenants) % {"n": group.tenants},
            _("%(n)s still failed") % {"n": group.failed},
            _("%(n)s for a person") % {"n": group.manual},
            _("first %(at)s") % {"at": written.exact(group.first_at)},
            _("last %(at)s") % {"at": written.exact(group.last_at)},
        ]
        self.stdout.write(f"{name}\n  {', '.join(counts)}")


def _plain(found: Found, since: datetime, until: datetime) -> dict[str, Any]:
    return {
        "since": since.isoformat(),
        "until": until.isoformat(),
        "total": found.total,
        "tasks": found.tasks,
        "groups": [
            {
                "provider": group.provider,
                "class": group.failure,
                "message": group.message,
                "key": group.key,
                "tasks": group.tasks,
                "jobs": group.jobs,
                "tenants": group.tenants,
                "failed": group.failed,
                "manual": group.manual,
                "first_at": group.first_at.isoformat(),
                "last_at": group.last_at.isoformat(),
                "newest": group.text,
            }
            for group in found.groups
        ],
    }


def _span(told: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,7})([mhd])", told, re.ASCII)
    span = timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else timedelta()
    if not timedelta() < span <= _LONGEST:
        raise argparse.ArgumentTypeError(_("write how far back, like 90m, 24h or 7d"))
    return span
