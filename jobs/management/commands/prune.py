"""prune: remove what nobody needs any more, in slices; docs/retention.md says what that is and what stays."""

from __future__ import annotations

import argparse
import json
import time
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.translation import gettext as _

from jobs import retention
from jobs.clock import clock
from jobs.lifecycle import prune
from jobs.lifecycle.prune import Slice, Wish
from jobs.management.who import actor, bad_input
from jobs.models import PruneRun
from jobs.retention import DATED, OF_JOBS, Kind
from jobs.stages.prune import go_through
from jobs.states import ENDED

_TELL_EVERY_S = 2.0


class Command(BaseCommand):
    help = (
        "Remove timelines, evidence and whatever else nobody needs any more of what ended long ago. Sends with their ids "
        "and costs, statements, cases and what people did always stay. It may be killed at any time and run again. Exit "
        "codes: 0 done, 2 bad input (nothing was removed), 3 not allowed."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--older-than",
            metavar="DAYS",
            help="in the place of the settings RETENTION_…_DAYS, like 30 or 30d",
        )
        parser.add_argument(
            "--state",
            action="append",
            choices=sorted(state.value for state in ENDED),
            help="only of jobs that ended so; may be repeated",
        )
        parser.add_argument(
            "--only",
            action="append",
            choices=[kind.value for kind in Kind],
            help="only this kind; may be repeated",
        )
        parser.add_argument(
            "--files",
            action="store_true",
            help="files and thumbnails of results that were not delivered too",
        )
        parser.add_argument(
            "--delivered", action="store_true", help="with --files: of delivered results as well"
        )
        parser.add_argument("--limit", type=int, help="of each kind about so many")
        parser.add_argument("--dry-run", action="store_true", help="count, and remove nothing")
        parser.add_argument("--as", dest="username", default="", help="whose decision it is")
        parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")  # fmt: skip

    def handle(self, **options: Any) -> None:
        by = actor(options["username"], prune.PERMISSION)
        limit = options["limit"]
        if limit is not None and limit < 1:
            raise bad_input(_("Give a limit of at least 1."))
        now = clock.now()
        wishes = _wishes(options, now)
        if options["dry_run"]:
            found = {
                kind.value: prune.count(kind, wish, most=limit) for kind, wish in wishes.items()
            }
            self._end(found, wishes, options, run=None)
            return
        kept = ("older_than", "state", "only", "files", "delivered", "limit")
        run = prune.begin(
            asked={name: options[name] for name in kept if options[name]}, actor=by, now=now
        )
        told = _Teller(self, run, quiet=options["as_json"])
        go_through(run, wishes, limit=limit, tell=told)
        self._end(run.removed, wishes, options, run=run)

    def _end(
        self,
        found: dict[str, int],
        wishes: dict[Kind, Wish],
        options: dict[str, Any],
        *,
        run: PruneRun | None,
    ) -> None:
        if options["as_json"]:
            before = {
                kind.value: wish.before.isoformat()
                for kind, wish in wishes.items()
                if kind not in DATED
            }
            told = {
                "removed": found,
                "before": before,
                "dry_run": run is None,
                "run": run.pk if run else None,
            }
            self.stdout.write(json.dumps(told))
            return
        for kind, count in found.items():
            self.stdout.write(f"{kind:<16} {count}")
        self.stdout.write(_("Nothing was removed: a dry run.") if run is None else _("Done."))


class _Teller:
    """A line each two seconds, on stderr."""

    def __init__(self, command: Command, run: PruneRun, *, quiet: bool) -> None:
        self.command, self.run, self.quiet = command, run, quiet
        self.told_at = time.monotonic()

    def __call__(self, kind: Kind, told: Slice) -> None:
        if self.quiet or time.monotonic() - self.told_at < _TELL_EVERY_S:
            return
        self.told_at = time.monotonic()
        self.command.stderr.write(f"{kind.value}: {self.run.removed[kind.value]} (… {told.after})")


def _wishes(options: dict[str, Any], now: datetime) -> dict[Kind, Wish]:
    """By kind, in their order. A kind that is kept for ever is asked for by name, or with `--older-than`."""
    older_than = _days(options["older_than"])
    kinds = [Kind(name) for name in options["only"] or retention.USUAL]
    if options["files"] and Kind.FILES not in kinds:
        kinds.append(Kind.FILES)
    if options["delivered"] and Kind.FILES not in kinds:
        raise bad_input(_("--delivered goes with --files."))
    if options["state"]:
        kinds = [kind for kind in kinds if kind in OF_JOBS]
    states = options["state"] or sorted(state.value for state in ENDED)
    found = {}
    for kind in sorted(set(kinds), key=list(Kind).index):
        before = retention.before(kind, now=now, older_than=older_than)
        if before is not None:
            found[kind] = Wish(
                before=before,
                now=now,
                states=states,
                delivered=options["delivered"],
                dry=options["dry_run"],
            )
        elif kind is Kind.FILES:
            raise bad_input(
                _("Say with --older-than how old files must be, or set RETENTION_FILES_DAYS.")
            )
    return found


def _days(text: str | None) -> int | None:
    if text is None:
        return None
    number = text.removesuffix("d")
    if (
        not number.isascii()
        or not number.isdecimal()
        or len(number) > 5
        or int(number) < retention.LEAST_DAYS
    ):
        raise bad_input(_("“%(text)s” is no number of days from 1 on.") % {"text": text})
    return int(number)
