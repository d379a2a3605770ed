"""stuck: rows that nothing will come back to. There should be none."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from jobs.clock import clock
from jobs.stuck import stuck

EXIT_FOUND = 3


class Command(BaseCommand):
    help = (
        "List jobs and tasks that nothing will come back to. Exit codes: 0 none, 3 there are some."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")

    def handle(self, **options: Any) -> None:
        found = stuck(now=clock.now())
        if options["as_json"]:
            rows = [{"kind": s.kind, "id": s.id, "code": s.code, "why": s.why} for s in found]
            self.stdout.write(json.dumps({"stuck": rows}, ensure_ascii=False))
        else:
            for one in found:
                self.stdout.write(f"{one.kind} {one.id}  {one.why}")
            if not found:
                self.stdout.write(_("Nothing is stuck."))
        if found:
            sys.exit(EXIT_FOUND)
