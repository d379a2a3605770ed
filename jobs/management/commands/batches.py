"""batches: look at batches and decide about them from the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from jobs import display, progress, written
from jobs.admin import batch_verbs
from jobs.clock import clock
from jobs.lifecycle import batches
from jobs.lifecycle.batches import Done
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_BAD_INPUT, EXIT_REFUSED, actor
from jobs.models import Batch
from jobs.progress import Progress
from jobs.states import JobState

_LIST_LIMIT = 20
_VERBS: dict[str, tuple[Callable[..., Done], str]] = {
    "pause": (batches.pause, "send nothing more of it for now"),
    "resume": (batches.resume, "let it go on"),
    "cancel": (batches.cancel_rest, "cancel what waits; what is under way goes on"),
    "retry-failed": (batches.retry_failed, "start the failed ones anew that have cost nothing"),
}
_PERMISSIONS = {
    "pause": batch_verbs.PAUSE.permission,
    "resume": batch_verbs.RESUME.permission,
    "cancel": batch_verbs.CANCEL_REST.permission,
    "retry-failed": batch_verbs.RETRY_FAILED.permission,
}


class Command(BaseCommand):
    help = "List, show and decide batches. Exit codes: 0 done, 2 bad input, 3 refused (nothing was changed)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="what", required=True)
        listing = parts.add_parser("list", help="batches, newest first")
        listing.add_argument("--limit", type=int, default=_LIST_LIMIT, help="at most so many")
        listing.add_argument("--json", action="store_true", dest="as_json")
        one = parts.add_parser("show", help="how far one is")
        one.add_argument("id", type=int)
        one.add_argument("--json", action="store_true", dest="as_json")
        for name, (_verb, help_text) in _VERBS.items():
            part = parts.add_parser(name, help=help_text)
            part.add_argument("id", type=int)
            part.add_argument("--reason", default="", help="kept in its history")
            part.add_argument("--as", dest="username", default="", help="whose decision it is")

    def handle(self, **options: Any) -> None:
        if options["what"] == "list":
            if options["limit"] < 1:
                raise CommandError(_("Give a limit of at least 1."), returncode=EXIT_BAD_INPUT)
            shown = Batch.objects.select_related("tenant").order_by("-pk")[: options["limit"]]
            self._tell(list(shown), options)
            return
        batch = Batch.objects.select_related("tenant").filter(pk=options["id"]).first()
        if batch is None:
            raise CommandError(
                _("There is no batch %(id)s.") % {"id": options["id"]}, returncode=EXIT_BAD_INPUT
            )
        if options["what"] == "show":
            self._tell([batch], options)
            return
        verb, _help = _VERBS[options["what"]]
        by = actor(options["username"], _PERMISSIONS[options["what"]])
        try:
            done = verb(batch_id=batch.pk, actor=by, now=clock.now(), reason=options["reason"])
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused
        words = _("Done for %(n)d jobs.") if not done.left else _("Done for %(n)d jobs; %(left)d left as they were.")  # fmt: skip
        self.stdout.write(words % {"n": done.moved, "left": done.left})

    def _tell(self, shown: list[Batch], options: dict[str, Any]) -> None:
        now = clock.now()
        told = []
        for batch in shown:
            seen = progress.read(batch.pk, now=now)
            if seen is None:  # deleted meanwhile
                continue
            told.append({"id": batch.pk, "label": batch.label, "tenant": batch.tenant.slug, **progress.plain(seen)})  # fmt: skip
            if not options["as_json"]:
                self.stdout.write(_line(batch, seen))
        if options["as_json"]:
            answer = told[0] if options["what"] == "show" and told else told
            self.stdout.write(json.dumps(answer, ensure_ascii=False))


def _line(batch: Batch, seen: Progress) -> str:
    counts = ", ".join(
        f"{display.JOB_STATES[state].word} {seen.counts[state]}" for state in JobState if seen.counts[state]
    )  # fmt: skip
    left = _("about %(time)s left") % {"time": written.duration(seen.left_s)} if seen.left_s else ""
    state = _("done") if seen.done else _("paused") if seen.paused else left
    return f"#{batch.pk}  {batch.label or '—'}  [{batch.tenant.slug}]  {counts or _('no jobs')}  {state}".rstrip()
