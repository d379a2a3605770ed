"""Filters of our lists. Tabs for the main one, chips with menus for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import display, failure_groups, failures
from jobs.clock import clock
from jobs.models import Batch, ProviderTask
from jobs.states import JobState, TaskState


class JobStateTabs(admin.SimpleListFilter):
    title = gettext_lazy("state")
    parameter_name = "state"
    tabs = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.value, display.JOB_STATES[state].word) for state in JobState]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(state=self.value()) if self.value() else queryset


_AT_WORK: dict[str, tuple[Any, dict[str, Any]]] = {
    "sending": (gettext_lazy("sending"), {"state__in": [TaskState.INTENT, TaskState.SENDING]}),
    "at_provider": (gettext_lazy("at the provider"), {"state": TaskState.ACCEPTED}),
    "looking": (gettext_lazy("outcome unknown"), {"state": TaskState.UNKNOWN}),
    "checking_cost": (gettext_lazy("checking what it cost"), {"state": TaskState.FAILED}),
    "fetching": (gettext_lazy("fetching"), {"state": TaskState.COMPLETED}),
}


class PhaseFilter(admin.SimpleListFilter):
    """Where a job stands, by the task that blocks its next send. Such jobs are few, however many there are in all."""

    title = gettext_lazy("phase")
    parameter_name = "phase"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, words) for name, (words, _lookup) in _AT_WORK.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() not in _AT_WORK:
            return queryset
        lookup = _AT_WORK[self.value() or ""][1]
        blocking = ProviderTask.objects.filter(job=OuterRef("pk"), blocks_send=True, **lookup)
        return queryset.filter(Exists(blocking), state__in=[JobState.ACTIVE, JobState.MANUAL])


class CreatedFilter(admin.SimpleListFilter):
    title = gettext_lazy("created")
    parameter_name = "created"
    field = "created_at"
    _hours = {"1h": 1, "24h": 24, "7d": 7 * 24, "30d": 30 * 24}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("1h", _("in the last hour")),
            ("24h", _("in the last 24 hours")),
            ("7d", _("in the last 7 days")),
            ("30d", _("in the last 30 days")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        hours = self._hours.get(self.value() or "")
        if hours is None:
            return queryset
        return queryset.filter(**{f"{self.field}__gte": clock.now() - timedelta(hours=hours)})


class BatchFilter(admin.SimpleListFilter):
    """There may be thousands of batches, so it offers only the one in use; a batch's page links here."""

    title = gettext_lazy("batch")
    parameter_name = "batch"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        wanted = request.GET.get(self.parameter_name, "")
        batch = (
            Batch.objects.filter(pk=int(wanted)).first()
            if wanted.isdecimal() and len(wanted) < 18
            else None
        )
        return [(str(batch.pk), str(batch))] if batch else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        wanted = self.value()
        return queryset.filter(batch_id=int(wanted)) if wanted else queryset


class FailureFilter(admin.SimpleListFilter):
    """Jobs with a send in an error group, whose page links here: `polza:rejected-0123456789ab:24h`, and `:open` for those
    that still stand failed or wait for a person."""

    title = gettext_lazy("failure")
    parameter_name = "failure"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        wanted = request.GET.get(self.parameter_name, "")
        group = failures.chosen(wanted)
        if group is None:
            return [(wanted, _("no such group"))] if wanted else []
        # A chip is short: what tells most comes first.
        parts = [_("still open")] if group.open else []
        parts += [failure_groups.words(group, clock.now()), group.provider.title()]
        parts += [display.reason(failures.class_of(group.key))]
        return [(wanted, " · ".join(part for part in parts if part))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        group = failures.chosen(self.value() or "")
        if group is None:
            return queryset.none()
        sends = failure_groups.sends(group, clock.now())
        found = queryset.filter(pk__in=sends.values("job_id"))
        return found.filter(state__in=failure_groups.OPEN) if group.open else found


class CaseTabs(admin.SimpleListFilter):
    """The desk is the open cases; closed ones are a press away."""

    title = gettext_lazy("cases")
    parameter_name = "show"
    tabs = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("mine", _("mine")),
            ("free", _("nobody's")),
            ("overdue", _("overdue")),
            ("closed", _("closed")),
        ]

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        choices = super().choices(changelist)
        yield {**next(choices), "display": _("All open")}
        yield from choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "closed":
            return queryset.filter(resolved_at__isnull=False)
        opened = queryset.filter(resolved_at__isnull=True)
        if self.value() == "mine":
            return opened.filter(owner_id=request.user.pk)
        if self.value() == "free":
            return opened.filter(owner__isnull=True)
        if self.value() == "overdue":
            return opened.filter(due_at__lt=clock.now())
        return opened


class TaskStateTabs(admin.SimpleListFilter):
    title = gettext_lazy("status")
    parameter_name = "state"
    tabs = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(state.value, display.TASK_STATES[state].word) for state in TaskState]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(state=self.value()) if self.value() else queryset
