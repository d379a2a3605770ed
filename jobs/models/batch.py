"""Batch: jobs created together, what it was drafted from, and what happened to it as a whole."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from jobs.callbacks import URL_LENGTH

# A pause moves the pending jobs' `not_before` this far ahead, and resuming moves it back: what may be sent, and in which
# order, is then told by the column that the claim reads anyway. A trigger does the same to jobs that come back to the
# queue of a paused batch (migration 0007).
PAUSE = timedelta(days=365_243)  # about a thousand years
PAUSED_FROM = datetime(
    2900, 1, 1, tzinfo=UTC
)  # a pending job with a later `not_before` is held by a pause


class Batch(models.Model):
    """Jobs created together. `token` makes creation idempotent: the same token gives the same batch.

    How far it is, is counted from its jobs (jobs/progress.py). `completed_at` is set once when the machine has nothing left
    to do, and cleared when a person's retry gives it something; `completions` numbers these ends.
    """

    tenant = models.ForeignKey(
        "jobs.Tenant", on_delete=models.PROTECT, related_name="batches", verbose_name=_("tenant")
    )
    token = models.UUIDField(unique=True, default=uuid.uuid4)
    label = models.CharField(_("label"), max_length=200, blank=True)
    created_at = models.DateTimeField(_("created"))
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("created by"),
    )
    # Who hears that it is complete; "" for nobody.
    callback_url = models.CharField(max_length=URL_LENGTH, blank=True, default="", db_default="")
    paused_at = models.DateTimeField(_("paused"), null=True, blank=True)
    completed_at = models.DateTimeField(_("completed"), null=True, blank=True)
    completions = models.PositiveIntegerField(_("completions"), default=0)

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        permissions = [
            ("pause_batch", _("Can pause and resume a batch")),
            ("cancel_batch", _("Can cancel the rest of a batch")),
            ("retry_batch", _("Can retry the failed jobs of a batch")),
            ("retarget_batch", _("Can change the target of the rest of a batch")),
        ]
        indexes = [
            # The look for batches that have come to their end.
            models.Index(fields=["id"], name="batch_open", condition=Q(completed_at__isnull=True)),
            # The handover: what has ended lately.
            models.Index(F("completed_at").desc(), name="batch_ended", condition=Q(completed_at__isnull=False)),
            # The trail: what people made.
            models.Index(F("created_at").desc(), F("id").desc(), name="batch_by_people",
                         condition=Q(created_by__isnull=False)),
        ]  # fmt: skip

    def __str__(self) -> str:
        return self.label or f"#{self.pk}"


class BatchEvent(models.Model):
    """What happened to a batch as a whole, append-only. `number` is that of a completion, None for everything else."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    number = models.PositiveIntegerField(null=True, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    data = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = _("batch event")
        verbose_name_plural = _("batch events")
        constraints = [
            # Each end is told once, whoever saw it.
            models.UniqueConstraint(fields=["batch", "number"], name="batch_completed_once")
        ]
        indexes = [
            # The trail: all but the ends, which the machine sees.
            models.Index(F("at").desc(), F("id").desc(), name="batch_event_by_people", condition=~Q(kind="completed"))
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.batch_id} {self.kind}"


class BatchDraft(models.Model):
    """An import that was read and checked, and waits for a person to say yes. Forgotten after a day.

    `rows`: what jobs/batches/plan.py makes, as plain values. `refused`: [{line, field, message}].
    """

    token = models.UUIDField(unique=True, default=uuid.uuid4)
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="+")
    label = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    rows_read = models.PositiveIntegerField(default=0)
    rows = models.JSONField(default=list)
    refused = models.JSONField(default=list)
    notes = models.JSONField(default=list)

    class Meta:
        verbose_name = _("draft of a batch")
        verbose_name_plural = _("drafts of batches")
        default_permissions = ()
        indexes = [models.Index(fields=["created_at"], name="batch_draft_age")]

    def __str__(self) -> str:
        return self.label or str(self.token)
