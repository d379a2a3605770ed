"""Tenant, Batch, Job: who wants what."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Upper
from django.utils.translation import gettext_lazy as _

from jobs.querysets import JobQuerySet
from jobs.states import JobState
from providers.models import Target


class Tenant(models.Model):
    """On whose behalf jobs run."""

    slug = models.SlugField(_("short name"), unique=True)
    name = models.CharField(_("name"), max_length=120)
    max_in_flight = models.PositiveIntegerField(
        _("most in flight"),
        null=True,
        blank=True,
        help_text=_("Empty: only the overall limit holds."),
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")

    def __str__(self) -> str:
        return self.name


class Batch(models.Model):
    """Jobs created together. `token` makes creation idempotent: the same token gives the same batch."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="batches")
    token = models.UUIDField(unique=True, default=uuid.uuid4)
    label = models.CharField(_("label"), max_length=200, blank=True)
    created_at = models.DateTimeField(_("created"))
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("batch")
        verbose_name_plural = _("batches")

    def __str__(self) -> str:
        return self.label or f"#{self.pk}"


class Job(models.Model):
    """One wanted result. `target` is where it goes next; `route` holds the ids of all targets in order."""

    class State(models.TextChoices):
        PENDING = JobState.PENDING, _("pending")
        ACTIVE = JobState.ACTIVE, _("active")
        SUCCEEDED = JobState.SUCCEEDED, _("succeeded")
        FAILED = JobState.FAILED, _("failed")
        MANUAL = JobState.MANUAL, _("needs a person")
        CANCELLED = JobState.CANCELLED, _("cancelled")

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="jobs")
    batch = models.ForeignKey(
        Batch, on_delete=models.PROTECT, null=True, blank=True, related_name="jobs"
    )
    kind = models.CharField(
        _("makes"), max_length=8, choices=Target.Kind.choices, default=Target.Kind.IMAGE
    )
    prompt = models.TextField(_("prompt"))
    params = models.JSONField(_("parameters"), default=dict, blank=True)
    reference = models.CharField(
        _("reference"), max_length=200, blank=True, help_text=_("The customer's own.")
    )
    priority = models.SmallIntegerField(_("priority"), default=0, help_text=_("Higher goes first."))
    route = ArrayField(models.BigIntegerField(), verbose_name=_("route"))
    target = models.ForeignKey(
        Target, on_delete=models.PROTECT, related_name="jobs", verbose_name=_("target")
    )
    state = models.CharField(
        _("state"), max_length=10, choices=State.choices, default=State.PENDING
    )
    reason = models.CharField(_("reason"), max_length=40, blank=True)
    reason_text = models.TextField(_("in words"), blank=True)
    not_before = models.DateTimeField(_("not before"))
    # Refusals and sends before this do not count: a person has given the job a new start.
    attempts_since = models.DateTimeField()
    delivered = models.ForeignKey(
        "jobs.Result",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("delivered"),
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # Set by a person's decision (or a cancel), cleared by a person's retry; machines never deliver over it.
    decided_at = models.DateTimeField(null=True, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(_("created"))
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("retry_job", _("Can retry a job")),
            ("resend_job", _("Can send again although a charge is possible")),
            ("retarget_job", _("Can retry a job on another target")),
            ("manual_job", _("Can mark a job for manual handling")),
            ("resolve_job", _("Can resolve a job")),
            ("cancel_job", _("Can cancel a job")),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=[s.value for s in JobState]), name="job_state_known"
            ),
            models.CheckConstraint(
                condition=~Q(state="succeeded")
                | Q(delivered__isnull=False)
                | Q(decided_at__isnull=False),
                name="job_succeeded_has_result_or_decision",
            ),
            models.CheckConstraint(
                condition=Q(state__in=["succeeded", "failed", "cancelled"])
                ^ Q(finished_at__isnull=True),
                name="job_finished_iff_ended",
            ),
            models.CheckConstraint(condition=~Q(prompt=""), name="job_prompt_not_empty"),
        ]
        indexes = [
            # The claim: pending jobs of one tenant and target in their order.
            models.Index(
                F("tenant"), F("target"), F("priority").desc(), F("not_before"), F("id"),
                name="job_claim", condition=Q(state="pending"),
            ),
            # Work in progress and the desk: few rows however many jobs there are.
            models.Index(fields=["state", "id"], name="job_open", condition=Q(state__in=["active", "manual"])),
            # The admin list by state, newest first.
            models.Index(F("state"), F("id").desc(), name="job_by_state"),
            # Search by the customer's reference.
            models.Index(fields=["reference"], name="job_reference", opclasses=["varchar_pattern_ops"],
                         condition=~Q(reference="")),
            # Search by words of the prompt (JobQuerySet.search): what `icontains` asks, UPPER(prompt) LIKE '%…%'.
            GinIndex(OpClass(Upper("prompt"), name="gin_trgm_ops"), name="job_prompt_words"),
            # The admin list by time of creation: its count, and pages of a short time.
            models.Index(F("created_at").desc(), name="job_created"),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"#{self.pk}"


class JobPhoto(models.Model):
    """An input picture; the bytes are stored once by content."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="photos")
    position = models.PositiveSmallIntegerField()
    key = models.CharField(max_length=200)
    sha256 = models.CharField(max_length=64)
    media_type = models.CharField(max_length=40)
    size_bytes = models.PositiveBigIntegerField()
    width = models.PositiveIntegerField()
    height = models.PositiveIntegerField()

    class Meta:
        verbose_name = _("input photo")
        verbose_name_plural = _("input photos")
        ordering = ["position"]
        constraints = [
            models.UniqueConstraint(fields=["job", "position"], name="job_photo_position")
        ]

    def __str__(self) -> str:
        return self.key
