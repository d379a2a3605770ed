"""`manage.py sandbox`: a provider on this machine. Needs no database; docs/sandbox.md is the manual."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext_lazy as _

from providers.sandbox import command


class Command(BaseCommand):
    help = str(
        _(
            "Run a provider on this machine that speaks Polza's contract, bills, and misbehaves on demand."
        )
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        command.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            command.run(options)
        except (ValueError, OSError) as wrong:
            raise CommandError(str(wrong)) from wrong
