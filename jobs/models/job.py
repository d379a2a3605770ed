"""Tenant, Job: who wants what."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex, OpClass
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Upper
from django.db.models.lookups import Exact
from django.utils.translation import gettext_lazy as _

from jobs.callbacks import URL_LENGTH
from jobs.models.batch import PAUSED_FROM, Batch
from jobs.querysets import JobQuerySet
from jobs.states import JobState
from providers.models import Target, check_zone

# What is no part of a split, as a JSON path. A comparison with what is no number is neither true nor false.
_NO_PART = "$[*] ? (!(@.weight > 0 && @.target > 0) || (@.weight > 0 && @.target > 0) is unknown)"


class Tenant(models.Model):
    """On whose behalf jobs run. What counts against its spending limits: jobs/budgets.py."""

    slug = models.SlugField(_("short name"), unique=True)
    name = models.CharField(_("name"), max_length=120)
    max_in_flight = models.PositiveIntegerField(
        _("most in flight"),
        null=True,
        blank=True,
        help_text=_("Empty: only the overall limit holds."),
    )
    weight = models.PositiveSmallIntegerField(
        _("weight"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text=_("Its share where tenants compete for places: 2 gets twice as many as 1."),
    )
    daily_limit = models.DecimalField(
        _("most a day"),
        max_digits=14,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_("Money. Empty: no such limit. Nothing is sent that could pass it."),
    )
    monthly_limit = models.DecimalField(
        _("most a month"),
        max_digits=14,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(0)],
        help_text=_("Money. Empty: no such limit. Nothing is sent that could pass it."),
    )
    currency = models.CharField(
        _("currency"),
        max_length=3,
        default="RUB",
        validators=[RegexValidator(r"\A[A-Z]{3}\Z", _("Write three capital letters, like RUB."))],
        help_text=_(
            "Of the spending limits. With a limit, only targets in this currency are used."
        ),
    )
    zone = models.CharField(
        _("time zone"),
        max_length=40,
        default="Europe/Moscow",
        validators=[check_zone],
        help_text=_("Where its day and its month begin."),
    )
    # Ids of targets in order, like Job.route; empty: the configured route.
    default_route = ArrayField(
        models.BigIntegerField(), verbose_name=_("default route"), default=list, blank=True
    )
    # [{"target": id, "weight": n}, …]: which target comes first, drawn for each job by weight (jobs/split.py); empty: the
    # default route's first.
    split = models.JSONField(
        _("split"), default=list, blank=True, db_default=Value([], models.JSONField())
    )
    contact = models.CharField(
        _("contact"), max_length=200, blank=True, help_text=_("Who is asked about its money.")
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        constraints = [
            models.CheckConstraint(
                condition=Q(weight__gte=1, weight__lte=100), name="tenant_weight_in_bounds"
            ),
            models.CheckConstraint(
                condition=(Q(daily_limit__isnull=True) | Q(daily_limit__gte=0))
                & (Q(monthly_limit__isnull=True) | Q(monthly_limit__gte=0)),
                name="tenant_limits_not_negative",
            ),
            # Each part has a target and a weight above 0.
            models.CheckConstraint(
                condition=Exact(
                    Func(
                        F("split"),
                        Value(_NO_PART),
                        function="jsonb_path_exists",
                        output_field=models.BooleanField(),
                    ),
                    False,
                ),
                name="tenant_split_weights",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class TenantOlder(models.Model):
    """What the older sends of a tenant's month came to when they were last summed up, so that a claim need not do so each
    time. The sends are the truth: jobs/spending.py reads them again each minute, and this row may be deleted at any time.
    """

    tenant = models.OneToOneField(
        Tenant, on_delete=models.CASCADE, primary_key=True, related_name="older"
    )
    # Sends created from `start_at` until before `end_at`, of this currency, with ceilings by this factor.
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    currency = models.CharField(max_length=3)
    factor = models.DecimalField(max_digits=10, decimal_places=4)
    charged = models.DecimalField(max_digits=30, decimal_places=10)
    possible = models.DecimalField(max_digits=30, decimal_places=10)
    summed_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.start_at:%F}"


class TenantEvent(models.Model):
    """Append-only: who set what of a tenant, written in the transaction of the change."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="events")
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    # {"daily_limit": ["100.00", "200.00"], …}: before and after, null for none.
    data = models.JSONField(default=dict, blank=True)
    reason = models.TextField(_("why"), blank=True, default="", db_default="")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("tenant event")
        verbose_name_plural = _("tenant events")
        # A tenant's page, newest first.
        indexes = [models.Index(F("tenant"), F("id").desc(), name="tenant_event_timeline")]

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.kind}"


class Job(models.Model):
    """One wanted result. `target` is where it goes next; `route` holds the ids of all targets in order."""

    class State(models.TextChoices):
        PENDING = JobState.PENDING, _("pending")
        ACTIVE = JobState.ACTIVE, _("active")
        SUCCEEDED = JobState.SUCCEEDED, _("succeeded")
        FAILED = JobState.FAILED, _("failed")
        MANUAL = JobState.MANUAL, _("needs a person")
        CANCELLED = JobState.CANCELLED, _("cancelled")

    tenant = models.ForeignKey(
        Tenant, on_delete=models.PROTECT, related_name="jobs", verbose_name=_("tenant")
    )
    batch = models.ForeignKey(
        Batch, on_delete=models.PROTECT, null=True, blank=True, related_name="jobs"
    )
    kind = models.CharField(
        _("makes"), max_length=8, choices=Target.Kind.choices, default=Target.Kind.IMAGE
    )
    prompt = models.TextField(_("prompt"))
    # As it was asked for, once a person has edited it; "" where nobody has. Each edit stands in the timeline.
    original_prompt = models.TextField(_("original prompt"), blank=True, default="", db_default="")
    # Sends before this were made with an earlier prompt: their results are kept, never delivered by a machine.
    edited_at = models.DateTimeField(null=True, blank=True)
    params = models.JSONField(_("parameters"), default=dict, blank=True)
    reference = models.CharField(
        _("reference"), max_length=200, blank=True, help_text=_("The customer's own.")
    )
    priority = models.SmallIntegerField(_("priority"), default=0, help_text=_("Higher goes first."))
    # Who hears how it ends (jobs/models/callback.py); "" for nobody. Settled when the job is made.
    callback_url = models.CharField(max_length=URL_LENGTH, blank=True, default="", db_default="")
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
    # What is asked for, whoever asks: prompt, parameters, photos, route (lifecycle/create.py). "" where a person has
    # edited it since.
    fingerprint = models.CharField(max_length=64, blank=True, default="", db_default="")

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
            ("edit_job", _("Can retry a job with an edited prompt")),
            ("deliver_job", _("Can deliver another result of a job")),
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
            # The dashboard: how many of a tenant wait, and since when the oldest does. A paused batch's wait for a person.
            models.Index(fields=["tenant", "created_at"], name="job_waiting",
                         condition=Q(state="pending", not_before__lt=PAUSED_FROM)),
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
            # A tenant's own list, newest first.
            models.Index(F("tenant"), F("id").desc(), name="job_of_tenant"),
            # The gallery: a tenant's, and a target's, newest result first.
            models.Index(F("tenant"), F("delivered").desc(), name="job_gallery_tenant",
                         condition=Q(delivered__isnull=False)),
            models.Index(F("target"), F("delivered").desc(), name="job_gallery_target",
                         condition=Q(delivered__isnull=False)),
            # Whether the same is under way already: what a program's request may join.
            models.Index(fields=["tenant", "fingerprint"], name="job_same_live",
                         condition=Q(state__in=["pending", "active"]) & ~Q(fingerprint="")),
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
        # Whether a file is still needed (lifecycle/prune.py).
        indexes = [models.Index(fields=["key"], name="job_photo_file")]

    def __str__(self) -> str:
        return self.key
