"""handover: what happened since somebody's last visit; the admin's page, on the command line."""

from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand

from jobs import handover
from jobs.admin import handover_words
from jobs.clock import clock
from jobs.lifecycle import visits
from jobs.management.when import moment
from jobs.management.who import actor

PERMISSION = "jobs.view_trail"


class Command(BaseCommand):
    help = (
        "Tell what happened since somebody's last visit: cases, decisions about money, troubles at providers, batches, "
        "settings. Exit codes: 0 done, 2 bad input, 3 not allowed."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--as", dest="username", required=True, help="who comes on duty")
        parser.add_argument(
            "--since", default="", help="24h, 7d, a day or an ISO time, in place of the last visit"
        )
        parser.add_argument(
            "--read",
            action="store_true",
            help="note that they have read it: the next one begins here",
        )
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    def handle(self, **options: Any) -> None:
        by = actor(options["username"], PERMISSION)
        pk = by.pk if by is not None else None
        now = clock.now()
        since, read_at = handover.since_of(pk, now=now)
        if options["since"]:
            since = moment(options["since"], now=now)
        told = handover.read(since=since, read_at=read_at, now=now)
        if options["as_json"]:
            self.stdout.write(json.dumps(handover_words.plain(told), ensure_ascii=False))
        else:
            for line in handover_words.lines(told, now=now):
                self.stdout.write(line)
        if options["read"] and pk is not None:
            visits.note_read(user_id=pk, read_at=now - handover.OVERLAP, now=now)
