"""Decisions about one job or one send on the command line: the verbs of `manage.py jobs` that take one id."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.utils.translation import gettext as _

from jobs import attach
from jobs.admin import verbs
from jobs.admin.verb import Verb
from jobs.lifecycle import decisions, staff
from jobs.management.who import bad_input
from jobs.models import Job
from providers.models import Target

Actor = AbstractBaseUser | None
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Command:
    """`options`: name of an option -> (whether it must be given, help). An id is a job's number, or with `of_send` a send's."""

    permission: str
    help: str
    options: Mapping[str, tuple[bool, str]]
    run: Callable[[Any, Actor, datetime, Options], None]
    of_send: bool = False


def _of_job(
    verb: Verb,
    words: str,
    options: Mapping[str, tuple[bool, str]],
    run: Callable[[int, Actor, datetime, Options], None],
) -> Command:
    return Command(verb.permission, words, options, run)


def _of_send(
    verb: Verb,
    words: str,
    options: Mapping[str, tuple[bool, str]],
    run: Callable[[UUID, Actor, datetime, Options], None],
) -> Command:
    return Command(verb.permission, words, options, run, of_send=True)


_REASON = {"reason": (False, "kept in the timeline")}

COMMANDS: Mapping[str, Command] = {
    "retarget": _of_job(
        verbs.RETARGET,
        "retry on another target",
        {"target": (True, "provider:model"), **_REASON},
        lambda pk, by, now, said: staff.retry_on_target(
            job_id=pk, target_id=_target(said["target"]), actor=by, now=now, reason=said["reason"]
        ),
    ),
    "edit": _of_job(
        verbs.EDIT,
        "retry with another prompt, and on another target where one is named",
        {
            "prompt": (False, "the new prompt; without it the old one"),
            "target": (False, "provider:model"),
            **_REASON,
        },
        lambda pk, by, now, said: decisions.retry_edited(
            job_id=pk, prompt=said["prompt"] or _prompt(pk), actor=by, now=now, reason=said["reason"],
            target_id=_target(said["target"]) if said["target"] else None,
        ),
    ),
    "deliver": _of_job(
        verbs.DELIVER,
        "deliver another of its results",
        {"result": (True, "number of the result, as `jobs show` tells it"), **_REASON},
        lambda pk, by, now, said: decisions.deliver_instead(
            job_id=pk, result_id=_number(said["result"]), actor=by, now=now, reason=said["reason"]
        ),
    ),
    "poll": _of_send(
        verbs.POLL,
        "ask the provider about it now",
        {},
        lambda pk, by, now, _said: staff.poll_now(task_id=pk, actor=by, now=now),
    ),
    "attach": _of_send(
        verbs.ATTACH,
        "tell a lost send its id at the provider, which is asked for it first",
        {"provider-id": (True, "as the provider's dashboard shows it"), "reason": (True, "how you know")},
        lambda pk, by, _now, said: attach.attach(pk, said["provider_id"], by, said["reason"]),
    ),
    "accept": _of_send(
        verbs.ACCEPT,
        "one of the candidates of the provider's history is this send",
        {"provider-id": (True, "of the candidate, as `jobs show` tells it"), **_REASON},
        lambda pk, by, _now, said: attach.accept(pk, said["provider_id"], by, said["reason"]),
    ),
    "absent": _of_send(
        verbs.ABSENT,
        "the provider's support confirmed that it never arrived: send again",
        {"reason": (True, "who confirmed it, and how")},
        lambda pk, by, now, said: decisions.confirm_absent(
            task_id=pk, actor=by, now=now, reason=said["reason"]
        ),
    ),
    "refund": _of_send(
        verbs.REFUND,
        "the provider paid it back",
        {"reference": (True, "the provider's"), "note": (False, "kept in the timeline")},
        lambda pk, by, now, said: decisions.mark_refunded(
            task_id=pk, actor=by, now=now, reference=said["reference"], note=said["note"]
        ),
    ),
    "write-off": _of_send(
        verbs.WRITE_OFF,
        "its charge is taken as lost",
        {
            "note": (True, "why"),
            "reference": (False, "the provider's"),
            "cost": (False, "what it came to, if that is known"),
        },
        lambda pk, by, now, said: decisions.write_off(
            task_id=pk, actor=by, now=now, note=said["note"], reference=said["reference"], cost=_cost(said["cost"])
        ),
    ),
}  # fmt: skip


def add_parsers(parts: Any) -> None:
    for name, command in COMMANDS.items():
        part: argparse.ArgumentParser = parts.add_parser(name, help=command.help)
        if command.of_send:
            part.add_argument("id", type=UUID, help="the send's id, as `jobs show` tells it")
        else:
            part.add_argument("id", type=int, help="the job's number")
        for option, (required, words) in command.options.items():
            part.add_argument(f"--{option}", required=required, default="", help=words)
        part.add_argument("--as", dest="username", default="", help="whose decision it is")
        part.add_argument("--json", action="store_true", dest="as_json", help="print JSON")


def run(options: Options, by: Actor, now: datetime) -> None:
    """Raises Refused, and CommandError over bad input; either has changed nothing."""
    COMMANDS[options["what"]].run(options["id"], by, now, options)


def _target(name: str) -> int:
    provider, _colon, model = name.partition(":")
    found = (
        Target.objects.filter(provider=provider, model=model).values_list("pk", flat=True).first()
    )
    if found is None:
        raise bad_input(_("There is no target “%(name)s”.") % {"name": name})
    return found


def _prompt(job_id: int) -> str:
    return Job.objects.filter(pk=job_id).values_list("prompt", flat=True).first() or ""


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise bad_input(_("“%(text)s” is no number.") % {"text": text})
    return int(text)


def _cost(text: str) -> Decimal | None:
    if not text:
        return None
    try:
        cost = Decimal(text)
    except InvalidOperation:
        raise bad_input(_("“%(text)s” is no amount.") % {"text": text}) from None
    if not cost.is_finite():
        raise bad_input(_("“%(text)s” is no amount.") % {"text": text})
    return cost
