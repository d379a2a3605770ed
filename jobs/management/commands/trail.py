"""trail: what people did, newest first; the admin's page, on the command line."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from jobs import trail
from jobs.admin import trail_words
from jobs.batches import export
from jobs.clock import clock
from jobs.management.when import moment
from jobs.management.who import actor, bad_input
from jobs.trail import Wanted
from jobs.trail_sources import On

PERMISSION = "jobs.view_trail"


class Command(BaseCommand):
    help = (
        "List what people did: who, what, to which object, why, before and after, newest first. A bulk action is one entry. "
        "Exit codes: 0 done, 2 bad input, 3 not allowed."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--since", default="", help="24h, 7d, a day or an ISO time")
        parser.add_argument("--until", default="", help="before then")
        parser.add_argument("--who", default="", help="only what this user did")
        parser.add_argument("--verb", default="", help="only this one, such as written_off")
        parser.add_argument(
            "--on", default="", help="only to this: job, batch, tenant, …, or one of them: job:4711"
        )
        parser.add_argument("--words", default="", help="only where the reason has them")
        parser.add_argument("--most", type=int, default=trail.PAGE, help="at most so many; 0: all")
        parser.add_argument("--as", dest="username", default="", help="who asks")
        output = parser.add_mutually_exclusive_group()
        output.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
        output.add_argument("--csv", action="store_true", dest="as_csv", help="print a sheet")

    def handle(self, **options: Any) -> None:
        actor(options["username"], PERMISSION)
        if options["most"] < 0:
            raise bad_input(_("--most must not be negative."))
        wanted = _wanted(options)
        told = []
        if options["as_csv"]:
            self.stdout.write(export.lines([trail_words.head()]), ending="")
        for deed in self._deeds(wanted, options["most"]):
            if options["as_json"]:
                told.append(trail_words.plain(deed))
            elif options["as_csv"]:
                self.stdout.write(export.lines([trail_words.row(deed)]), ending="")
            else:
                self.stdout.write(trail_words.sentence(deed))
        if options["as_json"]:
            self.stdout.write(json.dumps(told, ensure_ascii=False))

    def _deeds(self, wanted: Wanted, most: int) -> Any:
        if most:
            yield from trail.page(wanted, most=most)[0]
            return
        for deeds in trail.everything(wanted):
            yield from deeds


def _wanted(options: dict[str, Any]) -> Wanted:
    now = clock.now()
    kind, _colon, pk = options["on"].partition(":")
    if kind and kind not in set(On):
        raise bad_input(_("“%(text)s” is nothing that the trail knows.") % {"text": kind})
    if options["verb"] and options["verb"] not in trail_words.whats():
        raise bad_input(_("“%(text)s” is no verb of the trail.") % {"text": options["verb"]})
    return Wanted(
        who=_user(options["who"]),
        what=options["verb"],
        on=On(kind) if kind else None,
        pk=pk,
        since=moment(options["since"], now=now) if options["since"] else None,
        until=moment(options["until"], now=now) if options["until"] else None,
        words=options["words"].replace("\0", "")[:100],
    )


def _user(name: str) -> int | None:
    if not name:
        return None
    pk = get_user_model().objects.filter(username=name).values_list("pk", flat=True).first()
    if pk is None:
        raise bad_input(_("There is no user “%(name)s”.") % {"name": name})
    return pk
