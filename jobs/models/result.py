"""Result: one file of a task, or one uploaded by hand."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from jobs.models.job import Job
from jobs.models.task import ProviderTask


class Result(models.Model):
    """A stored file. `task` is empty when staff uploaded it. Keys are relative to MEDIA_ROOT."""

    class Rating(models.TextChoices):
        GOOD = "good", _("good")
        USABLE = "usable", _("usable")
        BAD = "bad", _("bad")

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
    # Its files are no longer kept (lifecycle/prune.py); the row is, with its hash. Once they are gone, `key` is "".
    removed_at = models.DateTimeField(_("file removed"), null=True, blank=True)
    # What staff think of it, who and when; "" and null: nobody has said. Earlier ratings stand in the job's timeline.
    rating = models.CharField(
        _("rating"), max_length=6, choices=Rating.choices, blank=True, default="", db_default=""
    )
    rated_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    rated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("result")
        verbose_name_plural = _("results")
        permissions = [("rate_result", _("Can rate a result"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(rating="", rated_at__isnull=True)
                | Q(rating__in=["good", "usable", "bad"], rated_at__isnull=False),
                name="result_rating_with_time",
            ),
            models.UniqueConstraint(
                fields=["task", "position"],
                condition=Q(task__isnull=False),
                name="result_task_position",
            ),
        ]

        indexes = [
            # The gallery by rating, newest first.
            models.Index(F("rating"), F("id").desc(), name="result_rated", condition=~Q(rating="")),
        ]

    def __str__(self) -> str:
        return self.key
