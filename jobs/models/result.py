"""Result: one file of a task, or one uploaded by hand."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from jobs.models.job import Job
from jobs.models.task import ProviderTask


class Result(models.Model):
    """A stored file. `task` is empty when staff uploaded it. Keys are relative to MEDIA_ROOT."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="results")
    task = models.ForeignKey(
        ProviderTask, on_delete=models.PROTECT, null=True, blank=True, related_name="results"
    )
    position = models.PositiveSmallIntegerField(default=0)
    key = models.CharField(_("file"), max_length=300)
    thumb_key = models.CharField(max_length=300, blank=True)
    sha256 = models.CharField(_("hash"), max_length=64)
    media_type = models.CharField(_("type"), max_length=60)
    size_bytes = models.PositiveBigIntegerField(_("size"))
    width = models.PositiveIntegerField(null=True, blank=True)
    height = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(_("stored"))
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("result")
        verbose_name_plural = _("results")
        constraints = [
            models.UniqueConstraint(
                fields=["task", "position"],
                condition=Q(task__isnull=False),
                name="result_task_position",
            ),
        ]

    def __str__(self) -> str:
        return self.key
