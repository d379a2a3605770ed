"""A verb of staff as the pages draw and run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.utils.functional import Promise

from jobs import written
from jobs.admin import forms as desk_forms
from jobs.models import Job, ProviderTask
from jobs.states import HAS_COST, Release, TaskState

Words = str | Promise


@dataclass(frozen=True, slots=True)
class Effect:
    icon: str
    text: Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """`offered` says whether a button makes sense now; the verb itself refuses with a sentence where it does not.
    `money` is a sentence about what it may cost, "" where it costs nothing."""

    name: str
    permission: str
    label: Words
    title: Words
    icon: str
    done: Words
    effects: Callable[[Any], Sequence[Effect]]
    run: Callable[[Any, AbstractBaseUser, datetime, dict[str, Any]], None]
    form: type[desk_forms.VerbForm] = desk_forms.ReasonForm
    offered: Callable[[Any], bool] = field(default=lambda _thing: True)
    money: Callable[[Any], str] = field(default=lambda _thing: "")
    dangerous: bool = False
    multipart: bool = False


def provider_of(task: ProviderTask) -> str:
    """As people write it."""
    return task.account.provider.title()


def money_of(task: ProviderTask) -> str:
    if task.cost is not None:
        return written.both(task.cost, task.currency)
    return written.both(task.estimated_cost, task.currency, estimate=True)


# --- what the rows say; the twins of lifecycle/staff.py over what a page has loaded -------------------------------------

_LET_GO = frozenset({Release.UNSENT, Release.FREE, Release.ABSENT})


def in_the_way(job: Job) -> ProviderTask | None:
    """What keeps the job from a plain retry."""
    let_go = _LET_GO if job.decided_at is None else _LET_GO | {Release.PERSON}
    tasks = job.tasks.all()
    return next((task for task in tasks if task.blocks_send), None) or next(
        (task for task in tasks if task.charge in HAS_COST and task.released_by in let_go), None
    )


def has_result(job: Job) -> bool:
    """Whether a result that fits the prompt is here already, and not delivered."""
    since = job.edited_at or job.created_at
    return any(
        task.state == TaskState.STORED and task.created_at >= since for task in job.tasks.all()
    )
