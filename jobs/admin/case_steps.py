"""What a person can do about a case, step by step: the likely one first, and what each risks in money. Nothing is read from the
database here: a page has loaded the job with its sends and results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import written
from jobs.admin import verbs
from jobs.admin.verb import Verb, in_the_way, money_of
from jobs.models import Case, Job, ProviderTask
from jobs.states import CaseKind
from providers.contract import Charge


@dataclass(frozen=True, slots=True)
class Risk:
    """`tone` green: nothing more can be paid by this; amber: money is spent or stays open; red: it may be paid twice."""

    tone: str
    words: str


@dataclass(frozen=True, slots=True)
class Step:
    """`key` is the letter that does it on the case's page, "" for none. `at_once`: a press does it, without asking."""

    verb: Verb
    url: str
    risk: Risk
    key: str
    primary: bool
    at_once: bool


# In the order in which they are likely. What is not offered, or not permitted, is passed over.
_WANTED: Mapping[CaseKind, tuple[Verb, ...]] = {
    CaseKind.UNKNOWN_SEND: (verbs.ACCEPT, verbs.ATTACH),
    CaseKind.RESTORE: (verbs.ACCEPT, verbs.ATTACH),
    CaseKind.FAILED_BUT_CHARGED: (verbs.REFUND,),
    CaseKind.LOST_AT_PROVIDER: (verbs.POLL,),
    CaseKind.NEVER_ANSWERED: (verbs.POLL,),
    CaseKind.CONFLICT: (verbs.CLOSE,),
    CaseKind.POISON: (verbs.CLOSE,),
    CaseKind.REFUSED_BY_ALL: (verbs.EDIT, verbs.RETRY),
    CaseKind.ATTEMPTS_EXHAUSTED: (verbs.RETRY,),
    CaseKind.LATE_RESULT: (verbs.DELIVER,),
    CaseKind.PAID_TWICE: (verbs.REFUND, verbs.CLOSE),
    CaseKind.DEAD_CALLBACK: (verbs.REPLAY, verbs.CLOSE),
}
_LAST = (verbs.RESOLVE, verbs.CLOSE)
_KEYS = {"take": "t", "note": "n", "close": "c"}
_ORPHAN = gettext_lazy("Adopt or dispute it")


def likely(case: Case, may: Callable[[Verb], bool] = lambda _verb: True) -> Verb | None:
    """The suggested next step of an open case; None where there is none, or where it is about an orphan."""
    if case.orphan_id is not None:
        return None
    wanted = (*_WANTED.get(CaseKind(case.kind), ()), *_LAST)
    return next(
        (
            verb
            for verb in wanted
            if (about := _about(case, verb)) is not None and may(verb) and verb.offered(about)
        ),
        None,
    )


def in_a_row(case: Case) -> tuple[str | Promise, Risk] | None:
    """The suggested step and its risk, as the desk's list shows them."""
    if case.orphan_id is not None:
        return _ORPHAN, Risk("green", _("Nothing is sent."))
    verb = likely(case)
    if verb is None:
        return None
    return verb.label, risk(verb, _about(case, verb))


def groups(case: Case, user: Any, *, back: str) -> list[tuple[str, list[Step]]]:
    """All that this person may do now, by what it is done to; the likely step first within its group."""
    if case.resolved_at is not None:
        return []
    first = likely(case, lambda verb: user.has_perm(verb.permission))
    told = [
        (_("The send"), verbs.TASK_VERBS, case.task),
        (_("The job"), verbs.JOB_VERBS, case.job),
        (_("The case"), verbs.CASE_VERBS, case),
    ]
    made = [
        (name, [_step(verb, thing, first, back) for verb in verbs.allowed(of, user, thing)])
        for name, of, thing in told
        if thing is not None
    ]
    made = [(name, sorted(steps, key=lambda step: not step.primary)) for name, steps in made]
    return sorted(
        ((name, steps) for name, steps in made if steps),
        key=lambda group: not group[1][0].primary,
    )


def _step(verb: Verb, thing: Any, first: Verb | None, back: str) -> Step:
    name = thing._meta.model_name  # noqa: SLF001  Django's documented meta API
    return Step(
        verb=verb,
        url=reverse(f"admin:jobs_{name}_do", args=[thing.pk, verb.name]),
        risk=risk(verb, thing),
        key=_KEYS.get(verb.name, ""),
        primary=verb is first,
        at_once=not verb.form.base_fields,
    )


def _about(case: Case, verb: Verb) -> Job | ProviderTask | Case | None:
    if verb in verbs.TASK_VERBS:
        return case.task
    return case.job if verb in verbs.JOB_VERBS else case


# --- money ------------------------------------------------------------------------------------------------------------


def risk(verb: Verb, thing: Any) -> Risk:
    """What this step costs, and what it leaves open."""
    if isinstance(thing, ProviderTask):
        return _of_send(verb, thing)
    if isinstance(thing, Job):
        return _of_job(verb, thing)
    return Risk("green", _("Costs nothing."))


def _of_send(verb: Verb, task: ProviderTask) -> Risk:
    money = {"money": money_of(task)}
    match verb.name:
        case "accept" | "attach":
            words = _("Nothing is sent. %(money)s are spent if it is the one.")
            return Risk("green", words % money)
        case "absent":
            price = written.about(task.job.target.price, task.job.target.currency)
            words = _("One more send, %(price)s. The %(money)s of this one stay possible.")
            return Risk("red", words % {"price": price, **money})
        case "refund":
            return Risk("green", _("%(money)s count as paid back.") % money)
        case "write-off":
            return Risk("amber", _("%(money)s are taken as lost.") % money)
        case _:
            return Risk("green", _("Costs nothing."))


def _of_job(verb: Verb, job: Job) -> Risk:
    price = {"price": written.about(job.target.price, job.target.currency)}
    if verb.name in {"retry", "edit", "retarget"}:
        return Risk("amber", _("One more send, %(price)s.") % price)
    earlier = in_the_way(job)
    if verb.name == "resend" and earlier is not None:
        words = _("One more send, %(price)s, beside the %(money)s of the earlier one.")
        return Risk("red", words % {**price, "money": money_of(earlier)})
    left = _possible(job)
    if not left:
        return Risk("green", _("Nothing is sent."))
    return Risk("amber", _("Nothing is sent. %(money)s stay possible.") % {"money": left})


def _possible(job: Job) -> str:
    """What the job's sends may still cost, in words; "" for nothing."""
    sums: dict[str, Decimal] = defaultdict(Decimal)
    for task in job.tasks.all():
        if task.charge == Charge.POSSIBLE:
            sums[task.currency] += task.cost if task.cost is not None else task.estimated_cost
    return written.totals(sums)
