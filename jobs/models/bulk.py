"""BulkRun: one verb for many jobs, done in the background. Its selection is frozen; its counts are written with each slice."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs.models.job import Job


class BulkRun(models.Model):
    """Who wants which verb done to which jobs, and how far that is. `token`: the same yes twice is the same run.

    `cursor` is the number of the next chunk; it, the counts and the jobs' own changes are committed together, so that no
    chunk is done twice. The run's row lock is held by whoever works at it: an abort waits for the slice in hand, and
    after it nothing more is done.
    """

    class State(models.TextChoices):
        OPEN = "open", _("under way")
        DONE = "done", _("done")
        ABORTED = "aborted", pgettext_lazy("bulk run", "stopped")
        FORBIDDEN = "forbidden", _("stopped: no longer permitted")

    token = models.UUIDField(unique=True, default=uuid.uuid4)
    verb = models.CharField(_("verb"), max_length=20)
    # The form's fields: reason, note, outcome, target (its id).
    data = models.JSONField(default=dict, blank=True)
    # How the jobs were chosen, as the query of the list; for people only, it is never asked again.
    chosen = models.TextField(blank=True)
    # Which permission its maker needs, and is asked for again at each slice. "": made on the command line for nobody.
    permission = models.CharField(max_length=100, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("by"),
    )  # fmt: skip
    created_at = models.DateTimeField(_("begun"))
    total = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    skipped = models.PositiveIntegerField(default=0)
    cursor = models.PositiveIntegerField(default=0)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.OPEN)
    worked_at = models.DateTimeField(null=True, blank=True)
    # Why the last slice came to nothing; it is tried again.
    trouble = models.CharField(max_length=300, blank=True)
    aborted_at = models.DateTimeField(null=True, blank=True)
    aborted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    finished_at = models.DateTimeField(_("ended"), null=True, blank=True)

    class Meta:
        verbose_name = _("bulk action")
        verbose_name_plural = _("bulk actions")
        # Who may look at jobs may look at what was done to many; the verbs have permissions of their own.
        default_permissions = ()
        constraints = [
            models.CheckConstraint(
                condition=Q(state="open") ^ Q(finished_at__isnull=False), name="bulk_ended_or_open"
            ),
            models.CheckConstraint(
                condition=Q(state="aborted") ^ Q(aborted_at__isnull=True), name="bulk_aborted_has_time"
            ),
            models.CheckConstraint(
                condition=Q(total__gte=F("done") + F("skipped")), name="bulk_counts_within_total"
            ),
        ]  # fmt: skip
        indexes = [
            # The worker's look for what is to be done.
            models.Index(fields=["worked_at", "id"], name="bulk_open", condition=Q(state="open"))
        ]

    def __str__(self) -> str:
        return f"#{self.pk}"

    @property
    def ended(self) -> int:
        """Jobs that were done or left out so far."""
        return self.done + self.skipped


class BulkChunk(models.Model):
    """Some of a run's jobs, by their ids in order: the selection as it was at the moment of the yes."""

    run = models.ForeignKey(BulkRun, on_delete=models.CASCADE, related_name="chunks")
    number = models.PositiveIntegerField()
    ids = ArrayField(models.BigIntegerField())

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="bulk_chunk_number")]

    def __str__(self) -> str:
        return f"{self.run_id}.{self.number}"


class BulkSkip(models.Model):
    """A job that a run left as it was, and why: a constant, and the refusal's own sentence where there is one."""

    run = models.ForeignKey(BulkRun, on_delete=models.CASCADE, related_name="skips", db_index=False)
    # No key of the database's: a job that is not there any more is left out too, and said so.
    job = models.ForeignKey(
        Job, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="+"
    )
    reason = models.CharField(max_length=40)
    said = models.TextField(blank=True)
    # What its send has cost or may have cost, where that is why.
    money = models.DecimalField(max_digits=20, decimal_places=10, null=True, blank=True)
    currency = models.CharField(max_length=3, blank=True)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["run", "job"], name="bulk_skip_once")]
        # Reasons counted, and the jobs of one in their order.
        indexes = [models.Index(fields=["run", "reason", "job"], name="bulk_skip_reason")]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.reason}"
