"""hold: the red button from the command line."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from jobs.admin import holds
from jobs.clock import clock
from jobs.lifecycle import staff
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_BAD_INPUT, EXIT_REFUSED, actor


class Command(BaseCommand):
    help = (
        "Press or lift the red button: while it is pressed nothing new is sent; polls and downloads go on. "
        "Exit codes: 0 done, 2 bad input, 3 there was nothing to lift."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", choices=["press", "lift"])
        parser.add_argument(
            "--reason", default="", help="why; needed for press, which shows it on every page"
        )
        parser.add_argument("--as", dest="username", default="", help="whose decision it is")

    def handle(self, **options: Any) -> None:
        if options["what"] == "press" and not options["reason"].strip():
            raise CommandError(_("Say why, with --reason."), returncode=EXIT_BAD_INPUT)
        verb = staff.press_red_button if options["what"] == "press" else staff.lift_red_button
        permission = (holds.PRESS if options["what"] == "press" else holds.LIFT).permission
        try:
            verb(
                actor=actor(options["username"], permission),
                now=clock.now(),
                reason=options["reason"],
            )
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused
        pressed = options["what"] == "press"
        self.stdout.write(
            _("The red button is pressed: nothing new is sent.") if pressed
            else _("The red button is lifted: sends go on.")
        )  # fmt: skip
