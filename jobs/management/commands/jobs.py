"""jobs: look at jobs and decide about them from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobs import attach, display, phases, results, written
from jobs.admin import verbs
from jobs.clock import clock
from jobs.lifecycle import staff
from jobs.lifecycle.errors import Refused
from jobs.management import one_thing
from jobs.management.who import EXIT_BAD_INPUT, EXIT_REFUSED, actor
from jobs.models import Batch, Case, Job, JobEvent, ProviderTask, Result, Tenant
from jobs.states import JobState, Phase
from providers.contract import Charge

LIST_LIMIT = 50
# Verbs over numbers or a filter: permission and help.
_MANY = {
    "retry": (
        verbs.RETRY.permission,
        "start anew where the earlier sends are proven to have cost nothing",
    ),
    "manual": (verbs.MANUAL.permission, "a person takes it over; nothing more is sent for it"),
    "resolve": (verbs.RESOLVE.permission, "end it by a person's word"),
    "cancel": (
        verbs.CANCEL.permission,
        "send nothing more; what is under way is still watched",
    ),
}


class Command(BaseCommand):
    help = (
        "List, show and decide jobs. Exit codes: 0 done, 2 bad input (nothing was changed), "
        "3 some jobs refused (each says why; the others are done)."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="what", required=True)
        listing = parts.add_parser("list", help="jobs, newest first")
        _choose(listing)
        listing.add_argument("--limit", type=int, default=LIST_LIMIT, help="at most so many")
        one = parts.add_parser("show", help="one job with its sends, cases and timeline")
        one.add_argument("id", type=int)
        one.add_argument("--json", action="store_true", dest="as_json")
        for name, (_permission, help_text) in _MANY.items():
            verb = parts.add_parser(name, help=help_text)
            verb.add_argument("id", type=int, nargs="*", help="job numbers; or use the filters")
            _choose(verb)
            verb.add_argument(
                "--dry-run", action="store_true", help="say what would happen, change nothing"
            )
            verb.add_argument("--as", dest="username", default="", help="whose decision it is")
            if name in {"retry", "cancel"}:
                verb.add_argument("--reason", default="")
            else:
                verb.add_argument("--note", required=True)
            if name == "resolve":
                verb.add_argument("--outcome", choices=["done", "gave_up"], required=True)
        one_thing.add_parsers(parts)

    def handle(self, **options: Any) -> None:
        match options["what"]:
            case "list":
                self._list(options)
            case "show":
                self._show(options)
            case what if what in one_thing.COMMANDS:
                self._decide_one(options)
            case _:
                self._decide(options)

    # --- looking ------------------------------------------------------------------------------------------------------

    def _list(self, options: dict[str, Any]) -> None:
        if options["limit"] < 1:
            raise CommandError(_("Give a limit of at least 1."), returncode=EXIT_BAD_INPUT)
        now = clock.now()
        jobs = list(
            _chosen(options).select_related("tenant", "target").order_by("-pk")[: options["limit"]]
        )
        blocking = {
            task.job_id: task for task in ProviderTask.objects.blocking().filter(job__in=jobs)
        }
        waiting = phases.why_waiting(jobs, now)
        rows = [_row(job, blocking.get(job.pk), waiting.get(job.pk), now) for job in jobs]
        if options["as_json"]:
            self.stdout.write(json.dumps({"jobs": rows}, ensure_ascii=False))
            return
        for row in rows:
            self.stdout.write(
                f"#{row['id']}  {_phase_words(row):<21} {row['tenant']:<12} {row['reference'] or '-':<20} "
                f"{row['waits'] or display.reason(row['reason'])}".rstrip()
            )
        if not rows:
            self.stdout.write(_("No jobs."))

    def _show(self, options: dict[str, Any]) -> None:
        job = (
            Job.objects.select_related("tenant", "target", "delivered")
            .filter(pk=options["id"])
            .first()
        )
        if job is None:
            raise CommandError(
                _("There is no job %(id)s.") % {"id": options["id"]}, returncode=EXIT_BAD_INPUT
            )
        now = clock.now()
        tasks = list(job.tasks.select_related("target").order_by("created_at"))
        blocking = next((task for task in tasks if task.blocks_send), None)
        told: dict[str, Any] = _row(
            job, blocking, phases.why_waiting([job], now).get(job.pk), now
        ) | {
            "prompt": job.prompt,
            "file": results.where(job.delivered.key) if job.delivered and job.delivered.key else "",
            "sends": [_send(task) for task in tasks],
            "results": [_result(result, job) for result in job.results.order_by("pk")],
            "original_prompt": job.original_prompt,
            "cases": [_case(case) for case in job.cases.order_by("pk")],
            "events": [_event(event) for event in job.events.order_by("pk")],
        }
        if options["as_json"]:
            self.stdout.write(json.dumps(told, ensure_ascii=False))
            return
        shown = told | {"phase": _phase_words(told), "reason": display.reason(told["reason"])}
        for name in ("id", "phase", "waits", "reason", "tenant", "reference", "target", "prompt", "file"):  # fmt: skip
            if shown[name]:
                self.stdout.write(f"{name:<10} {shown[name]}")
        for task in tasks:
            cost = task.cost if task.cost is not None else task.estimated_cost
            money = (written.money if task.cost is not None else written.about)(cost, task.currency)
            self.stdout.write(
                f"send       {task.pk}  {display.task_look(task).word}  "
                f"{display.CHARGES[Charge(task.charge)].word}  {money}  {task.provider_id or ''}".rstrip()
            )
            for one in attach.candidates(task):
                self.stdout.write(
                    f"           {_('candidate')} {one['id']}  {one.get('model', '')}  {one.get('status', '')}".rstrip()
                )
        for row in told["results"] if len(told["results"]) > 1 else ():
            whether = _("delivered") if row["delivered"] else _("kept beside")
            self.stdout.write(f"result     {row['id']}  {whether}  {row['file']}")
        for case in job.cases.order_by("pk"):
            how = display.RESOLUTIONS.get(case.resolution, case.resolution) or _("open")
            self.stdout.write(f"case       {case.get_kind_display()}  {how}  {case.note}".rstrip())
        for event in job.events.order_by("pk"):
            look = display.event_look(event.kind, of_task=event.task_id is not None)
            detail = display.event_detail(event.kind, event.data)
            self.stdout.write(f"{event.at:%Y-%m-%d %H:%M:%S}  {look.word}  {detail}".rstrip())

    # --- deciding -----------------------------------------------------------------------------------------------------

    def _decide(self, options: dict[str, Any]) -> None:
        by = actor(options["username"], _MANY[options["what"]][0])
        ids = _ids(options)
        if not ids:
            raise CommandError(_("No job matches."), returncode=EXIT_BAD_INPUT)
        rows = []
        for job_id in ids:
            refused = _do(_verb(options, by), job_id, dry_run=options["dry_run"])
            rows.append({"id": job_id, "done": refused is None, "refused": refused or ""})
        if options["as_json"]:
            told = {"what": options["what"], "dry_run": options["dry_run"], "jobs": rows}
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        else:
            well = _("would be done") if options["dry_run"] else _("done")
            for row in rows:
                self.stdout.write(f"#{row['id']}  {options['what']}: {row['refused'] or well}")
        if not all(row["done"] for row in rows):
            sys.exit(EXIT_REFUSED)

    def _decide_one(self, options: dict[str, Any]) -> None:
        """Decisions about one job or one send, which nobody makes by the dozen."""
        by = actor(options["username"], one_thing.COMMANDS[options["what"]].permission)
        refused = ""
        try:
            one_thing.run(options, by, clock.now())
        except Refused as said:
            refused = str(said)
        if options["as_json"]:
            told = {
                "what": options["what"],
                "id": str(options["id"]),
                "done": not refused,
                "refused": refused,
            }
            self.stdout.write(json.dumps(told, ensure_ascii=False))
        else:
            self.stdout.write(f"{options['id']}  {options['what']}: {refused or _('done')}")
        if refused:
            sys.exit(EXIT_REFUSED)


def _verb(options: dict[str, Any], by: AbstractBaseUser | None) -> Callable[[int, datetime], None]:
    def run(job_id: int, now: datetime) -> None:
        match options["what"]:
            case "retry":
                staff.retry(job_id=job_id, actor=by, now=now, reason=options["reason"])
            case "manual":
                staff.mark_manual(job_id=job_id, actor=by, now=now, note=options["note"])
            case "resolve":
                staff.resolve(
                    job_id=job_id, actor=by, now=now, outcome=options["outcome"], note=options["note"]
                )  # fmt: skip
            case _:
                staff.cancel(job_id=job_id, actor=by, now=now, reason=options["reason"])

    return run


def _do(run: Callable[[int, datetime], None], job_id: int, *, dry_run: bool) -> str | None:
    """None: done. Otherwise the sentence of the refusal. A dry run does it all and takes it back."""
    try:
        with transaction.atomic():
            run(job_id, clock.now())
            if dry_run:
                transaction.set_rollback(True)
    except Refused as refused:
        return str(refused)
    return None


# --- choosing ---------------------------------------------------------------------------------------------------------


def _choose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in JobState],
        help="may be repeated",
    )
    parser.add_argument("--tenant", default="", help="short name")
    parser.add_argument("--reference", default="", help="the customer's own, or how it begins")
    parser.add_argument("--batch", type=int, help="number of the batch")
    parser.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def _chosen(options: dict[str, Any]) -> QuerySet[Job]:
    """Jobs that pass all filters. CommandError where a tenant or batch does not exist."""
    jobs = Job.objects.all()
    if options["state"]:
        jobs = jobs.filter(state__in=options["state"])
    if options["tenant"]:
        if not Tenant.objects.filter(slug=options["tenant"]).exists():
            raise CommandError(
                _("“%(slug)s” is not a tenant.") % {"slug": options["tenant"]},
                returncode=EXIT_BAD_INPUT,
            )
        jobs = jobs.filter(tenant__slug=options["tenant"])
    if options["reference"]:
        jobs = jobs.filter(reference__startswith=options["reference"])
    if options["batch"] is not None:
        if not Batch.objects.filter(pk=options["batch"]).exists():
            raise CommandError(
                _("There is no batch %(id)s.") % {"id": options["batch"]},
                returncode=EXIT_BAD_INPUT,
            )
        jobs = jobs.filter(batch_id=options["batch"])
    return jobs


def _ids(options: dict[str, Any]) -> list[int]:
    """Numbers, narrowed by the filters; never all jobs by mistake."""
    filters = options["state"] or options["tenant"] or options["reference"]
    if not options["id"] and not filters and options["batch"] is None:
        raise CommandError(
            _("Say which jobs: their numbers, or --state, --tenant, --reference, --batch."),
            returncode=EXIT_BAD_INPUT,
        )
    jobs = _chosen(options)
    if not options["id"]:
        return list(jobs.order_by("pk").values_list("pk", flat=True))
    wanted = sorted(set(options["id"]))
    found = set(jobs.filter(pk__in=wanted).values_list("pk", flat=True))
    missing = [pk for pk in wanted if pk not in found]
    if missing:
        raise CommandError(
            _("No such jobs: %(ids)s.") % {"ids": ", ".join(map(str, missing))},
            returncode=EXIT_BAD_INPUT,
        )
    return wanted


def _phase_words(row: dict[str, Any]) -> str:
    return str(display.PHASES[Phase(row["phase"])].word)


# --- as plain values --------------------------------------------------------------------------------------------------


def _row(
    job: Job, blocking: ProviderTask | None, waiting: phases.Waiting | None, now: datetime
) -> dict[str, Any]:
    return {
        "id": job.pk,
        "state": job.state,
        "phase": phases.phase(job, blocking, now).value,
        "late": phases.is_late(job, blocking, now),
        "waits": waiting.text if waiting else "",
        "waits_until": waiting.until.isoformat() if waiting and waiting.until else None,
        "reason": job.reason_text or job.reason,
        "tenant": job.tenant.slug,
        "batch": job.batch_id,
        "reference": job.reference,
        "target": job.target.name,
        "created_at": job.created_at.isoformat(),
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
    }


def _send(task: ProviderTask) -> dict[str, Any]:
    return {
        "id": str(task.pk),
        "target": task.target.name,
        "state": task.state,
        "charge": task.charge,
        "cost": f"{task.cost.normalize():f}" if task.cost is not None else None,
        "estimated_cost": f"{task.estimated_cost.normalize():f}",
        "currency": task.currency,
        "provider_id": task.provider_id,
        "blocks_send": task.blocks_send,
        "failure": task.failure_text,
        "candidates": attach.candidates(task),
        "settled_reference": task.staff_reference,
    }


def _result(result: Result, job: Job) -> dict[str, Any]:
    return {
        "id": result.pk,
        "send": str(result.task_id) if result.task_id else None,
        "delivered": result.pk == job.delivered_id,
        "file": results.where(result.key) if result.key else "",
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "id": case.pk,
        "kind": case.kind,
        "money_at_risk": f"{case.money_at_risk.normalize():f}",
        "currency": case.currency,
        "note": case.note,
        "resolution": case.resolution,
    }


def _event(event: JobEvent) -> dict[str, Any]:
    return {"at": event.at.isoformat(), "kind": event.kind, "data": event.data}
