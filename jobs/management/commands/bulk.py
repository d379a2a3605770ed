"""bulk: one verb for all jobs that a filter finds, in the background; watched and stopped from the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
import uuid
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobs.admin import bulk_runs, bulk_words
from jobs.clock import clock
from jobs.lifecycle import bulk
from jobs.lifecycle.bulk_acts import ACTS, RETARGET, Act
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_BAD_INPUT, actor
from jobs.models import Batch, BulkRun, Job, Tenant
from jobs.states import JobState
from providers.models import Target

EXIT_REFUSED = 3
EXIT_STOPPED = 4
_LIST_LIMIT = 20


class Command(BaseCommand):
    help = (
        "Start, list, watch and stop bulk actions. Exit codes: 0 done, 2 bad input, 3 refused (nothing was changed), "
        "4 the watched one was stopped before its end."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="what", required=True)
        start = parts.add_parser("start", help="one verb for all jobs that pass the filters")
        verbs = start.add_subparsers(dest="verb", required=True)
        for name in ACTS:
            _verb_arguments(name, verbs.add_parser(name))
        listing = parts.add_parser("list", help="bulk actions, newest first")
        listing.add_argument("--limit", type=int, default=_LIST_LIMIT, help="at most so many")
        listing.add_argument("--json", action="store_true", dest="as_json")
        for name, help_text in (("show", "how far one is"), ("watch", "until it has ended"), ("abort", "do nothing more of it")):  # fmt: skip
            one = parts.add_parser(name, help=help_text)
            one.add_argument("id", type=int)
            one.add_argument("--json", action="store_true", dest="as_json")
            if name == "watch":
                one.add_argument("--every", type=float, default=2.0, help="seconds between two lines")  # fmt: skip
            if name == "abort":
                one.add_argument("--as", dest="username", default="", help="whose decision it is")

    def handle(self, **options: Any) -> None:
        match options["what"]:
            case "start":
                self._start(options)
            case "list":
                self._list(options)
            case "watch":
                self._watch(_run(options["id"]), options)
            case "abort":
                self._abort(_run(options["id"]), options)
            case _:
                self._tell(_run(options["id"]), options)

    def _start(self, options: dict[str, Any]) -> None:
        act = ACTS[options["verb"]]
        by = actor(options["username"], act.permission)
        _check_permission(by, act)
        jobs, data = _chosen(options), _data(act, options)
        if options["dry_run"]:
            self._preview(act, jobs, options)
            return
        try:
            run = bulk.start(
                act=act, jobs=jobs, data=data, actor=by, by_command=by is None, now=clock.now(), token=uuid.uuid4()
            )  # fmt: skip
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused
        if options["watch"]:
            self._watch(run, {**options, "every": 2.0})
        else:
            self._tell(run, options)

    def _preview(self, act: Act, jobs: QuerySet[Job], options: dict[str, Any]) -> None:
        if not bulk.has_condition(jobs):
            raise CommandError(_("Give a filter: never all jobs."), returncode=EXIT_BAD_INPUT)
        seen = bulk.preview(act, jobs)
        if options["as_json"]:
            costs = {currency: f"{money.normalize():f}" for currency, money in seen.costs.items()}
            told = {"verb": act.name, "dry_run": True, "total": seen.total, "fits": seen.fits, "skips": dict(seen.skips), "costs": costs}  # fmt: skip
            self.stdout.write(json.dumps(told))
            return
        self.stdout.write(_("Would be done for %(jobs)s.") % {"jobs": bulk_words.jobs_words(seen.fits)})  # fmt: skip
        for reason, n in seen.skips.items():
            self.stdout.write(
                _("Left as they are: %(jobs)s (%(reason)s).")
                % {"jobs": bulk_words.jobs_words(n), "reason": bulk_words.reason(reason)}
            )
        if money := bulk_words.money(act, seen):
            self.stdout.write(money)

    def _list(self, options: dict[str, Any]) -> None:
        if options["limit"] < 1:
            raise CommandError(_("Give a limit of at least 1."), returncode=EXIT_BAD_INPUT)
        runs = list(BulkRun.objects.order_by("-pk")[: options["limit"]])
        if options["as_json"]:
            self.stdout.write(json.dumps([bulk_runs.plain(run) for run in runs]))
            return
        for run in runs:
            self.stdout.write(_line(run))

    def _watch(self, run: BulkRun, options: dict[str, Any]) -> None:
        """A line where something changed. Without a worker it waits, as the run does."""
        told = ""
        while True:
            run.refresh_from_db()
            if not options["as_json"] and (line := _line(run)) != told:
                told = line
                self.stdout.write(line)
            if run.state != BulkRun.State.OPEN:
                break
            time.sleep(max(0.1, options["every"]))
        if options["as_json"]:
            self.stdout.write(json.dumps(bulk_runs.plain(run)))
        if run.state != BulkRun.State.DONE:
            sys.exit(EXIT_STOPPED)

    def _abort(self, run: BulkRun, options: dict[str, Any]) -> None:
        by = actor(options["username"], bulk_runs.ABORT.permission)
        if by is not None and not bulk.may(by, bulk_runs.ABORT.permission):
            raise CommandError(_("They may not do that."), returncode=EXIT_REFUSED)
        try:
            bulk.abort(run_id=run.pk, actor=by, now=clock.now())
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused
        run.refresh_from_db()
        self._tell(run, options)

    def _tell(self, run: BulkRun, options: dict[str, Any]) -> None:
        told = json.dumps(bulk_runs.plain(run)) if options["as_json"] else _line(run)
        self.stdout.write(told)


def _verb_arguments(name: str, part: argparse.ArgumentParser) -> None:
    part.add_argument("--state", action="append", default=[], choices=[state.value for state in JobState], help="may be repeated")  # fmt: skip
    part.add_argument("--tenant", default="", help="short name")
    part.add_argument("--batch", type=int, help="number of the batch")
    part.add_argument("--reference", default="", help="the customer's own, or how it begins")
    part.add_argument("--why", default="", help="why it stands as it does, such as refused_by_all")
    part.add_argument("--as", dest="username", default="", help="whose decision it is")
    part.add_argument("--dry-run", action="store_true", help="say what would happen, change nothing")  # fmt: skip
    part.add_argument("--watch", action="store_true", help="come back when it has ended")
    part.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    if name in {"manual", "resolve"}:
        part.add_argument("--note", required=True)
    else:
        part.add_argument("--reason", default="")
    if name == "resolve":
        part.add_argument("--outcome", choices=["done", "gave_up"], required=True)
    if name == "retarget":
        part.add_argument("--target", required=True, help="provider:model")


def _chosen(options: dict[str, Any]) -> QuerySet[Job]:
    """Jobs that pass all filters; without one it is refused later. CommandError where a tenant or batch does not exist."""
    jobs = Job.objects.all()
    if options["state"]:
        jobs = jobs.filter(state__in=options["state"])
    if slug := options["tenant"]:
        if not Tenant.objects.filter(slug=slug).exists():
            raise CommandError(_("“%(slug)s” is not a tenant.") % {"slug": slug}, returncode=EXIT_BAD_INPUT)  # fmt: skip
        jobs = jobs.filter(tenant__slug=slug)
    if (batch := options["batch"]) is not None:
        if not Batch.objects.filter(pk=batch).exists():
            raise CommandError(_("There is no batch %(id)s.") % {"id": batch}, returncode=EXIT_BAD_INPUT)  # fmt: skip
        jobs = jobs.filter(batch_id=batch)
    if options["reference"]:
        jobs = jobs.filter(reference__startswith=options["reference"])
    if options["why"]:
        jobs = jobs.filter(reason=options["why"])
    return jobs


def _data(act: Act, options: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = {
        name: options[name] for name in ("reason", "note", "outcome") if name in options
    }
    if act is RETARGET:
        provider, _colon, model = options["target"].partition(":")
        target = Target.objects.filter(provider=provider, model=model).first()
        if target is None:
            raise CommandError(_("There is no target “%(name)s”.") % {"name": options["target"]}, returncode=EXIT_BAD_INPUT)  # fmt: skip
        data["target"] = target.pk
    return data


def _check_permission(by: AbstractBaseUser | None, act: Act) -> None:
    """The worker would ask as well; here it is said at once."""
    if by is not None and not bulk.may(by, act.permission):
        raise CommandError(_("They may not do that."), returncode=EXIT_REFUSED)


def _run(pk: int) -> BulkRun:
    run = BulkRun.objects.filter(pk=pk).first()
    if run is None:
        raise CommandError(_("There is no bulk action %(id)s.") % {"id": pk}, returncode=EXIT_BAD_INPUT)  # fmt: skip
    return run


def _line(run: BulkRun) -> str:
    told = {
        "id": run.pk, "verb": run.verb, "ended": bulk_words.number(run.ended), "total": bulk_words.number(run.total),
        "skipped": bulk_words.number(run.skipped), "state": bulk_words.look(run).word,
    }  # fmt: skip
    line = _("#%(id)s  %(verb)s  %(ended)s of %(total)s, %(skipped)s left out  %(state)s") % told
    return f"{line}  {run.trouble}".rstrip()
