"""compare: how the targets compare, as the page "Comparison of targets" shows it."""

from __future__ import annotations

import argparse
import json
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from jobs import comparison, display, written
from jobs.clock import clock
from jobs.comparison import Line
from jobs.management.who import bad_input
from jobs.models import Tenant

_MOST_DAYS = 3650


class Command(BaseCommand):
    help = (
        "Each target's sends, ratings, cost of a good picture, times and refusals over the last days. Exit codes: 0, 2 bad"
        " input."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--days", type=int, default=30, help="how far back (30)")
        parser.add_argument("--tenant", default="", help="only this one's sends, by its short name")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    def handle(self, **options: Any) -> None:
        if not 1 <= options["days"] <= _MOST_DAYS:
            raise bad_input(_("Give days from 1 to %(most)s.") % {"most": _MOST_DAYS})
        tenant = Tenant.objects.filter(slug=options["tenant"]).first()
        if options["tenant"] and tenant is None:
            raise bad_input(_("There is no tenant “%(name)s”.") % {"name": options["tenant"]})
        until = clock.now()
        since = until - timedelta(days=options["days"])
        lines = comparison.read(since=since, until=until, tenant_id=tenant.pk if tenant else None)
        if options["as_json"]:
            told = {
                "since": since.isoformat(),
                "until": until.isoformat(),
                "tenant": options["tenant"] or None,
                "targets": [comparison.plain(line) for line in lines],
            }
            self.stdout.write(json.dumps(told, ensure_ascii=False))
            return
        for line in lines:
            self.stdout.write("\n".join(_words(line)))
        if not lines:
            self.stdout.write(_("Nothing was sent in this period."))


def _words(line: Line) -> list[str]:
    counts = _("%(sends)s sends, %(delivered)s delivered (%(share)s)") % {
        "sends": line.sends,
        "delivered": line.delivered,
        "share": written.percent(line.delivered, line.sends),
    }
    rating = _("rated %(rated)s: %(good)s good, %(usable)s usable, %(bad)s bad") % {
        "rated": line.rated, "good": line.good, "usable": line.usable, "bad": line.bad,
    }  # fmt: skip
    money = _("spent %(spent)s; a delivered one %(delivered)s, a good one %(good)s") % {
        "spent": written.both(line.spent, line.currency),
        "delivered": written.both(line.per_delivered, line.currency),
        "good": written.both(line.per_good, line.currency),
    }
    told = [line.target.name, f"  {counts}", f"  {rating}", f"  {money}"]
    if line.median_s is not None and line.p95_s is not None:
        times = {"median": written.duration(line.median_s), "p95": written.duration(line.p95_s)}
        told.append("  " + _("median %(median)s, p95 %(p95)s") % times)
    others = [f"{display.reason(name)} {n}" for name, n in line.refusals.items()]
    others += [_("failed there %(n)s") % {"n": line.failed}] if line.failed else []
    others += [_("outcome unknown %(n)s") % {"n": line.unknown}] if line.unknown else []
    return [*told, "  " + ", ".join(others)] if others else told
