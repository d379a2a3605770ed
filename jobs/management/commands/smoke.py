"""smoke: prove the contract against the live provider; with --real by one paid generation, the cheapest there is."""

from __future__ import annotations

import argparse
import json
import sys
from decimal import Decimal, InvalidOperation
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from jobs import lanes, smoke
from jobs.clock import clock
from jobs.stages.smoke import Watch, begin, most_of
from providers import registry
from providers.models import SmokeRun

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 3
_SIGNS = {True: "✓", False: "✗", None: "–"}


class Command(BaseCommand):
    help = (
        "Prove a provider's contract: free reads, and with --real one paid generation. Exit codes: 0 proven, 1 a check failed, "
        "2 bad input, 3 refused to spend (nothing was sent)."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--provider", default="", help="a provider or account; none: all that have a key"
        )
        parser.add_argument(
            "--real", action="store_true", help="also buy the provider's cheapest generation"
        )
        parser.add_argument(
            "--max-cost",
            default="",
            metavar="N",
            help="the most it may cost, in the provider's currency; none: SMOKE_MAX_COST, or the adapter's guess with the ceiling's factor",
        )
        parser.add_argument(
            "--json", action="store_true", dest="as_json", help="print one JSON object"
        )

    def handle(self, **options: Any) -> None:
        names = _providers(options["provider"])
        limit = _limit(options["max_cost"])
        if limit is not None and len(names) > 1:
            raise CommandError(
                _("--max-cost is in the provider's currency: say which, with --provider."),
                returncode=EXIT_BAD_INPUT,
            )
        if options["real"] and not lanes.alive(clock.now()).exists():
            raise CommandError(
                _("No worker is running, so nothing would be sent. Start manage.py qcluster, or make run."),
                returncode=EXIT_REFUSED,
            )  # fmt: skip
        quiet = options["as_json"]
        runs = [self._run(name, limit, real=options["real"], quiet=quiet) for name in names]
        if quiet:
            told = {"ok": all(run.ok for run in runs), "runs": [_plain(run) for run in runs]}
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        if any(run.ok is False for run in runs):
            sys.exit(EXIT_FAILED)
        if any(run.ok is None for run in runs):
            sys.exit(EXIT_REFUSED)

    def _run(self, provider: str, limit: Decimal | None, *, real: bool, quiet: bool) -> SmokeRun:
        run = begin(provider, real=real, most=most_of(provider) if limit is None else limit)
        assert run is not None
        if not quiet:
            kind = _("with a real generation") if real else _("free reads only")
            self.stdout.write(f"{run.account} ({kind})")
        told = ""

        def tell(line: str) -> None:
            nonlocal told
            if line != told and not quiet:
                self.stderr.write(f"  … {line}")
            told = line

        Watch(run, tell=tell).go_on()
        run.refresh_from_db()
        if not quiet:
            for check in smoke.from_plain(run.checks):
                name = smoke.NAMES.get(check.name, check.name)
                self.stdout.write(f"  {_SIGNS[check.ok]} {name}: {check.words}")
            told_so = {True: _("passed"), False: _("failed"), None: _("not run")}
            self.stdout.write(f"  {told_so[run.ok]}")
        return run


def _providers(name: str) -> list[str]:
    keyed = [one for one, key in settings.PROVIDER_KEYS.items() if key.strip()]
    if not name:
        if not keyed:
            raise CommandError(_("No provider has a key."), returncode=EXIT_BAD_INPUT)
        return keyed
    try:
        registry.adapter(name)
    except registry.UnknownProviderError as error:
        raise CommandError(str(error), returncode=EXIT_BAD_INPUT) from error
    if name not in keyed:
        raise CommandError(
            _("No key is set for %(name)s.") % {"name": name}, returncode=EXIT_BAD_INPUT
        )
    return [name]


def _limit(text: str) -> Decimal | None:
    if not text:
        return None
    try:
        limit = Decimal(text)
    except InvalidOperation:
        limit = Decimal(-1)
    if not 0 <= limit < 1_000_000:
        raise CommandError(
            _("“%(text)s” is no amount of money.") % {"text": text}, returncode=EXIT_BAD_INPUT
        )
    return limit


def _plain(run: SmokeRun) -> dict[str, Any]:
    return {
        "provider": run.account.provider,
        "account": run.account.fingerprint,
        "target": run.target.name if run.target else "",
        "real": run.real,
        "ok": run.ok,
        "job": run.job_id,
        "cost": None if run.cost is None else f"{run.cost.normalize():f}",
        "currency": run.currency,
        "checks": [
            {"name": check.name, "ok": check.ok, "finding": check.finding, "words": check.words, "data": dict(check.data)}
            for check in smoke.from_plain(run.checks)
        ],
    }  # fmt: skip
