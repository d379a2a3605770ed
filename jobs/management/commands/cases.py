"""cases: the desk from the command line, for whoever is on call with a shell and no browser."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobs import display
from jobs.admin import case_words, orphans, verbs
from jobs.clock import clock
from jobs.lifecycle import staff
from jobs.lifecycle import statement as statements
from jobs.lifecycle.errors import Refused
from jobs.management.who import EXIT_REFUSED, actor, bad_input
from jobs.models import Case, Tenant
from jobs.states import CaseKind

_LIST_LIMIT = 50
_RESOLUTIONS = ("checked", "settled", "refund_asked", "gave_up")
Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Verb:
    """`options`: name -> (whether it must be given, help)."""

    permission: str
    help: str
    options: Mapping[str, tuple[bool, str]]
    run: Callable[[Case, AbstractBaseUser | None, datetime, Said], None]
    in_a_name: bool = False


def _orphan(case: Case) -> int:
    if case.orphan_id is None:
        raise Refused(_("Case %(id)s is about no orphan.") % {"id": case.pk})
    return case.orphan_id


def _adopt(case: Case, by: AbstractBaseUser | None, now: datetime, said: Said) -> None:
    tenant = Tenant.objects.filter(slug=said["tenant"]).first()
    if tenant is None:
        raise bad_input(_("There is no tenant “%(name)s”.") % {"name": said["tenant"]})
    statements.adopt(
        orphan_id=_orphan(case), tenant_id=tenant.pk, prompt=said["prompt"], reference=said["reference"],
        note=said["note"], actor=by, now=now,
    )  # fmt: skip


_VERBS: Mapping[str, _Verb] = {
    "take": _Verb(
        verbs.TAKE.permission,
        "make it yours",
        {},
        lambda case, by, now, _said: staff.take_case(case_id=case.pk, actor=by, now=now),
        in_a_name=True,
    ),
    "note": _Verb(
        verbs.NOTE.permission,
        "add a line to its note",
        {"note": (True, "the line")},
        lambda case, by, now, said: staff.note_case(
            case_id=case.pk, actor=by, now=now, note=said["note"]
        ),
    ),
    "close": _Verb(
        verbs.CLOSE.permission,
        "close one that holds nothing up",
        {"resolution": (True, ", ".join(_RESOLUTIONS)), "note": (True, "what you found")},
        lambda case, by, now, said: staff.close_case(
            case_id=case.pk, actor=by, now=now, resolution=said["resolution"], note=said["note"]
        ),
    ),
    "adopt": _Verb(
        orphans.ADOPT.permission,
        "make an orphan a job of ours",
        {
            "tenant": (True, "whose job it becomes"), "prompt": (False, "what it shows"),
            "reference": (False, "the customer's own"), "note": (False, "kept with it"),
        },
        _adopt,
    ),
    "dispute": _Verb(
        orphans.DISPUTE.permission,
        "tell the provider that an orphan's charge is not ours",
        {"reference": (True, "the provider's"), "note": (False, "kept with it")},
        lambda case, by, now, said: statements.dispute(
            orphan_id=_orphan(case), reference=said["reference"], note=said["note"], actor=by, now=now
        ),
    ),
}  # fmt: skip


class Command(BaseCommand):
    help = "The desk: list, show, take, note and close cases; adopt or dispute orphans. Exit codes: 0 done, 2 bad input, 3 refused (nothing was changed)."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parts = parser.add_subparsers(dest="what", required=True)
        listing = parts.add_parser("list", help="open cases, most money first, then the oldest")
        listing.add_argument("--kind", choices=[kind.value for kind in CaseKind])
        listing.add_argument("--owner", help="only those that this person has taken")
        listing.add_argument("--limit", type=int, default=_LIST_LIMIT, help="at most so many")
        listing.add_argument("--json", action="store_true", dest="as_json")
        show = parts.add_parser("show", help="one case: what happened, what can be done")
        show.add_argument("id", type=int)
        show.add_argument("--json", action="store_true", dest="as_json")
        for name, verb in _VERBS.items():
            part = parts.add_parser(name, help=verb.help)
            part.add_argument("id", type=int)
            for option, (required, words) in verb.options.items():
                choices = _RESOLUTIONS if option == "resolution" else None
                part.add_argument(
                    f"--{option}", required=required, default="", help=words, choices=choices
                )
            part.add_argument(
                "--as", dest="username", default="", required=verb.in_a_name, help="whose decision it is"
            )  # fmt: skip

    def handle(self, **options: Any) -> None:
        if options["what"] == "list":
            self._list(options)
            return
        case = _cases().filter(pk=options["id"]).first()
        if case is None:
            raise bad_input(_("There is no case %(id)s.") % {"id": options["id"]})
        if options["what"] == "show":
            self._show(case, as_json=options["as_json"])
            return
        verb = _VERBS[options["what"]]
        by = actor(options["username"], verb.permission)
        try:
            verb.run(case, by, clock.now(), options)
        except Refused as refused:
            raise CommandError(str(refused), returncode=EXIT_REFUSED) from refused
        self.stdout.write(_("Done."))

    def _list(self, options: dict[str, Any]) -> None:
        if options["limit"] < 1:
            raise bad_input(_("Give a limit of at least 1."))
        found = _cases().filter(resolved_at__isnull=True)
        if options["kind"]:
            found = found.filter(kind=options["kind"])
        if options["owner"]:
            found = found.filter(owner__username=options["owner"])
        now = clock.now()
        told = [
            _row(case, now)
            for case in found.order_by("-money_at_risk", "opened_at", "pk")[: options["limit"]]
        ]
        if options["as_json"]:
            self.stdout.write(json.dumps({"cases": told}, ensure_ascii=False))
            return
        for one in told:
            money = (
                f"{one['money_at_risk']} {one['currency']}" if one["money_at_risk"] != "0" else "-"
            )
            late = _("overdue") if one["overdue"] else ""
            job = f"#{one['job']}" if one["job"] else "-"
            self.stdout.write(
                f"{one['id']:<7} {one['title']:<34} {job:<9} {money:<14} {one['owner'] or '-':<12} {late}".rstrip()
            )
        if not told:
            self.stdout.write(_("The desk is empty."))

    def _show(self, case: Case, *, as_json: bool) -> None:
        now = clock.now()
        told = _row(case, now) | {
            "happened": case_words.hint(case),
            "next": case_words.advice(case, case.job) if case.resolved_at is None else "",
            "note": case.note,
            "detail": case.detail,
            "task": str(case.task_id) if case.task_id else None,
            "orphan": case.orphan_id,
        }
        if as_json:
            self.stdout.write(json.dumps(told, ensure_ascii=False, default=str))
            return
        for name, value in told.items():
            if value not in (None, "", {}, []):
                self.stdout.write(f"{name:<14} {value}")


def _cases() -> QuerySet[Case]:
    return Case.objects.select_related("job", "task", "owner", "resolved_by").prefetch_related(
        "job__tasks"
    )


def _row(case: Case, now: datetime) -> dict[str, Any]:
    return {
        "id": case.pk,
        "kind": case.kind,
        "title": case_words.title(case),
        "job": case.job_id,
        "money_at_risk": f"{case.money_at_risk.normalize():f}",
        "currency": case.currency,
        "owner": case.owner.get_username() if case.owner else "",
        "opened_at": case.opened_at.isoformat(),
        "due_at": case.due_at.isoformat(),
        "overdue": case.resolved_at is None and case.due_at < now,
        "closed": str(display.RESOLUTIONS.get(case.resolution, case.resolution)) if case.resolved_at else "",
    }  # fmt: skip
