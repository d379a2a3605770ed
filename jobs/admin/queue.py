"""django-q2's pages: for superusers and to read only. Its own ones resubmit, delete, and show raw pickles to all staff."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django_q.models import Failure, OrmQ, Schedule, Success, Task

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class ReadOnlyForSuperusers(ModelAdmin):
    actions = None
    show_full_result_count = False

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return bool(request.user.is_active and request.user.is_superuser)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class DoneAdmin(ReadOnlyForSuperusers):
    list_display = ("name", "func", "group", "started", "stopped")
    fields = ("name", "func", "group", "cluster", "started", "stopped", "attempt_count", "said")
    search_fields = ("name", "func")

    @admin.display(description=_("said"))
    def said(self, task: Task) -> str:
        return str(task.result)[:20_000]


class ScheduleAdmin(ReadOnlyForSuperusers):
    list_display = ("name", "func", "schedule_type", "minutes", "next_run")
    fields = ("name", "func", "schedule_type", "minutes", "cron", "repeats", "next_run", "cluster")


class QueueAdmin(ReadOnlyForSuperusers):
    list_display = ("id", "key", "name", "func", "lock")
    fields = ("key", "name", "func", "task_id", "lock")

    def get_queryset(self, request: HttpRequest) -> QuerySet[OrmQ]:
        return super().get_queryset(request).using(settings.Q_CLUSTER["orm"])


_PAGES: dict[type[Model], type[ReadOnlyForSuperusers]] = {
    Success: DoneAdmin,
    Failure: DoneAdmin,
    Schedule: ScheduleAdmin,
    OrmQ: QueueAdmin,
}

importlib.import_module("django_q.admin")  # registers its pages now, so that they can be replaced
for model, page in _PAGES.items():
    if admin.site.is_registered(model):
        admin.site.unregister(model)
    admin.site.register(model, page)
