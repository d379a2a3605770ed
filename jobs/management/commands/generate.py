"""generate: ask for pictures (or texts) from the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import IO, Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from jobs import display, intake, phases, results, routes
from jobs.batches import archive, table
from jobs.batches.plan import Planned, TakePhoto, plan
from jobs.clock import clock
from jobs.intake import InputError
from jobs.lifecycle import create, drafts
from jobs.management import preview
from jobs.models import Batch, Job, ProviderTask, Tenant
from jobs.states import ENDED, JobState
from providers.contract import Kind

LOOK_EVERY_S = 0.5
EXIT_NOT_ALL = 3  # some jobs failed or need a person
EXIT_BAD_INPUT = 2


class Command(BaseCommand):
    help = "Create jobs. Exit codes: 0 all well, 2 bad input (nothing, or only the good lines, created), 3 not all succeeded."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("prompt", nargs="?", help="what to make")
        parser.add_argument(
            "--image",
            metavar="FILE",
            action="append",
            default=[],
            help="input photo; may be repeated",
        )
        parser.add_argument(
            "--reference",
            default="",
            help="the customer's own reference; with --count, -1, -2, … come behind it",
        )
        parser.add_argument("--tenant", default="", help="on whose behalf (short name)")
        parser.add_argument(
            "--target",
            default="",
            help="model or provider:model; commas make a route; none: the tenant's default route, or the configured one",
        )
        parser.add_argument("--priority", default="0")
        parser.add_argument("--kind", choices=["image", "text"], help="none: what the target makes")
        parser.add_argument("--count", type=int, default=1, help="how many of the same")
        parser.add_argument(
            "--from",
            dest="file",
            metavar="FILE",
            help="CSV or XLSX, one job a line; columns: prompt, reference, priority, target, photo, kind, param:…",
        )
        parser.add_argument("--label", default="", help="the batch's name; none: that of the file")
        parser.add_argument(
            "--template",
            default="",
            help="the prompt of each line, with its columns: 'A {colour} {product} on a white wall'",
        )
        parser.add_argument(
            "--photos",
            default="",
            metavar="FILE.zip",
            help="where the column photo is looked up; else beside the file",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="say what would be created, what it would cost and whether the budget allows it; create nothing",
        )
        parser.add_argument(
            "--wait", action="store_true", help="show progress and end when all jobs have ended"
        )
        parser.add_argument(
            "--json", action="store_true", dest="as_json", help="print one JSON object"
        )

    def handle(self, **options: Any) -> None:
        if bool(options["prompt"]) == bool(options["file"]):
            raise CommandError(
                _("Give a prompt, or --from FILE; not both."), returncode=EXIT_BAD_INPUT
            )
        errors: list[InputError] = []
        try:
            tenant = _tenant(options["tenant"])
            rows = (
                self._from_file(options, tenant, errors)
                if options["file"]
                else self._from_prompt(options, tenant)
            )
        except InputError as error:
            self._refuse([error], options)
        if not rows:
            self._refuse(errors or [InputError("", _("There is nothing to make."))], options)
        if options["dry_run"]:
            self._preview(rows, tenant, errors, options)
            return
        jobs = drafts.new_jobs(rows)
        label = options["label"] or (Path(options["file"]).name if options["file"] else "")
        batch = create.create_jobs(
            jobs=jobs, tenant=tenant, actor=None, now=clock.now(), label=label
        )
        if not options["as_json"]:
            for refused in errors:
                self.stderr.write(str(refused))
            words = ngettext(
                "%(n)s job created (batch %(b)s).", "%(n)s jobs created (batch %(b)s).", len(jobs)
            )
            self.stdout.write(words % {"n": len(jobs), "b": batch.pk})
        if options["wait"]:
            _wait(batch, len(jobs), quiet=options["as_json"])
        made = [
            _plain(job) for job in batch.jobs.select_related("delivered", "target").order_by("pk")
        ]
        self._tell(batch, made, errors, options)
        if options["wait"] and any(row["state"] != JobState.SUCCEEDED for row in made):
            sys.exit(EXIT_NOT_ALL)
        if errors:
            sys.exit(EXIT_BAD_INPUT)

    def _tell(
        self,
        batch: Batch,
        rows: list[dict[str, Any]],
        errors: list[InputError],
        options: dict[str, Any],
    ) -> None:
        if options["as_json"]:
            told = {"batch": batch.pk, "jobs": rows, "refused": _problems(errors)}
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        elif options["wait"]:
            for row in rows:
                word = display.JOB_STATES[JobState(row["state"])].word
                why = row["file"] or display.reason(row["reason"])
                self.stdout.write(f"#{row['id']}  {word!s:<15} {why}".rstrip())

    def _preview(
        self,
        rows: list[Planned],
        tenant: Tenant,
        errors: list[InputError],
        options: dict[str, Any],
    ) -> None:
        seen = preview.preview(rows, tenant=tenant, now=clock.now())
        if options["as_json"]:
            told = preview.plain(seen) | {"refused": _problems(errors)}
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        else:
            for refused in errors:
                self.stderr.write(str(refused))
            for line in preview.lines(seen):
                self.stdout.write(line)
        if errors:
            sys.exit(EXIT_BAD_INPUT)

    def _refuse(self, errors: list[InputError], options: dict[str, Any]) -> None:
        if options["as_json"]:
            told = {"batch": None, "jobs": [], "refused": _problems(errors)}
            self.stdout.write(json.dumps(told, ensure_ascii=False))
            sys.exit(EXIT_BAD_INPUT)
        raise CommandError("\n".join(str(error) for error in errors), returncode=EXIT_BAD_INPUT)

    def _from_prompt(self, options: dict[str, Any], tenant: Tenant) -> list[Planned]:
        if not 1 <= options["count"] <= 10_000:
            raise InputError("count", _("Give a count from 1 to 10,000."))
        names = [name for name in options["target"].split(",") if name.strip()]
        prompt = intake.check_prompt(options["prompt"])
        routing = routes.routing([intake.check_target(name) for name in names], tenant=tenant)
        reference = intake.check_reference(options["reference"])
        priority = intake.check_priority(options["priority"])
        photos = tuple(intake.take_photo(Path(name)) for name in options["image"])
        rows = []
        for at in range(1, options["count"] + 1):
            numbered = intake.numbered_reference(reference, at, options["count"])
            route = routing.of(numbered or f"{at} {prompt}")
            rows.append(
                Planned(
                    line=at, prompt=prompt, route=tuple(target.pk for target in route),
                    kind=Kind(options["kind"] or route[0].kind), reference=numbered, priority=priority, photos=photos,
                )
            )  # fmt: skip
        return rows

    def _from_file(
        self, options: dict[str, Any], tenant: Tenant, errors: list[InputError]
    ) -> list[Planned]:
        path = Path(options["file"])
        with contextlib.ExitStack() as stack:
            read = table.read_file(stack.enter_context(_opened(path, "from")))
            made = plan(
                read,
                template=options["template"],
                target=options["target"],
                tenant=tenant,
                kind=Kind(options["kind"]) if options["kind"] else None,
                photo=_photos(path.parent, options["photos"], stack),
            )
        errors += made.refused
        if not options["as_json"]:
            for note in made.notes:
                self.stderr.write(note)
        return made.rows


def _opened(path: Path, field: str) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(
            field, _("%(path)s can't be read: %(why)s.") % {"path": path, "why": error.strerror}
        ) from error


def _photos(folder: Path, packed: str, stack: contextlib.ExitStack) -> TakePhoto:
    """Out of the archive; without one, files beside the table. Those are on this machine and belong to who calls."""
    if not packed:
        return lambda name: intake.take_photo(folder / name)
    photos = archive.Photos(stack.enter_context(_opened(Path(packed), "photos")))
    return stack.enter_context(photos).take


def _tenant(slug: str) -> Tenant:
    if not slug:
        return create.default_tenant()
    tenant = Tenant.objects.filter(slug=slug).first()
    if tenant is None:
        known = (
            ", ".join(Tenant.objects.order_by("slug").values_list("slug", flat=True)[:20])
            or create.DEFAULT_TENANT
        )
        raise InputError(
            "tenant",
            _("“%(slug)s” is not a tenant. There are: %(known)s.") % {"slug": slug, "known": known},
        )
    return tenant


def _wait(batch: Batch, total: int, *, quiet: bool) -> None:
    console = Console(stderr=True, quiet=quiet)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(_("generating"), total=total)
        told = ""
        while True:
            told = _tell_wait(batch, console, told)
            ended = batch.jobs.filter(state__in=[*ENDED, JobState.MANUAL]).count()
            progress.update(bar, completed=ended)
            if ended >= total:
                return
            time.sleep(LOOK_EVERY_S)


def _tell_wait(batch: Batch, console: Console, told: str) -> str:
    """Say once what holds the first waiting job up, when it is more than its turn in the queue."""
    job = batch.jobs.filter(state=JobState.PENDING).select_related("tenant").first()
    now = clock.now()
    why = phases.why_waiting([job], now)[job.pk] if job is not None else None
    if why is None or why.turn:
        return told
    text = f"{why.text} ({why.until:%H:%M:%S} UTC)" if why.until else why.text
    if why.text != told:
        console.print(_("Waiting: %(why)s") % {"why": text})
    return why.text


def _plain(job: Job) -> dict[str, Any]:
    task = ProviderTask.objects.filter(job=job).order_by("-created_at").first()
    return {
        "id": job.pk,
        "state": job.state,
        "reference": job.reference,
        "target": job.target.name,
        "file": results.where(job.delivered.key) if job.delivered and job.delivered.key else "",
        "reason": job.reason_text or job.reason,
        "cost": str(task.cost) if task is not None and task.cost is not None else None,
        "currency": task.currency if task is not None else "",
    }


def _problems(errors: list[InputError]) -> list[dict[str, Any]]:
    return [{"line": e.line, "field": e.field, "message": str(e.message)} for e in errors]
