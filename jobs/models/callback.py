"""Endpoint: where a tenant's programs hear of its jobs. Callback: one message to them, until it is delivered."""

from __future__ import annotations

import uuid

from django.contrib.postgres.functions import RandomUUID
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import F, Func, Q, Value
from django.utils.translation import gettext_lazy as _

from jobs.callbacks import URL_LENGTH

# The receiver of an address: scheme, host and port, whatever the path.
_HOST = r"^[a-z]+://[^/?#]+"
WAITS = Q(delivered_at__isnull=True, given_up_at__isnull=True)


class Endpoint(models.Model):
    """A tenant's own: the address of whatever names none itself, and which of its secrets is in force.

    The secret is derived from SECRET_KEY, the tenant and `generation` (jobs/callbacks.py), and never stored. For a day
    after `rotated_at` the one before signs too.
    """

    tenant = models.OneToOneField(
        "jobs.Tenant", on_delete=models.CASCADE, primary_key=True, related_name="endpoint", verbose_name=_("tenant")
    )  # fmt: skip
    url = models.CharField(
        _("address"),
        max_length=URL_LENGTH,
        blank=True,
        help_text=_("Hears of every job that names no address of its own. Empty: nobody does."),
    )
    generation = models.PositiveIntegerField(
        _("number of the secret"), default=1, validators=[MinValueValidator(1)]
    )
    rotated_at = models.DateTimeField(_("secret changed"), null=True, blank=True)

    class Meta:
        verbose_name = _("callback address")
        verbose_name_plural = _("callback addresses")
        default_permissions = ()  # shown and set on the tenant's page
        permissions = [
            ("rotate_endpoint", _("Can change the secret of callbacks")),
            ("reveal_endpoint", _("Can see the secret of callbacks")),
        ]

    def __str__(self) -> str:
        return str(self.tenant)


class Callback(models.Model):
    """One row of the outbox: a job or a batch came to an end, and its address is to hear of it.

    Rows are written by triggers on jobs and batches (migration 0019), so in the transaction of the change whatever made
    it. A job that is retried and ends again leaves another row. `not_before` is empty where it is due at once. It is over
    once delivered or given up; a person may have one that was given up tried anew.
    """

    class Kind(models.TextChoices):
        SUCCEEDED = "job.succeeded", _("job succeeded")
        FAILED = "job.failed", _("job failed")
        CANCELLED = "job.cancelled", _("job cancelled")
        MANUAL = "job.manual", _("job needs a person")
        BATCH = "batch.completed", _("batch completed")

    # The id that receivers know it by, the same at each try.
    message = models.UUIDField(
        _("message"), unique=True, default=uuid.uuid4, db_default=RandomUUID()
    )
    tenant = models.ForeignKey(
        "jobs.Tenant", on_delete=models.PROTECT, related_name="callbacks", verbose_name=_("tenant")
    )
    job = models.ForeignKey(
        "jobs.Job", on_delete=models.PROTECT, null=True, blank=True, related_name="callbacks", verbose_name=_("job")
    )  # fmt: skip
    batch = models.ForeignKey(
        "jobs.Batch", on_delete=models.PROTECT, null=True, blank=True, related_name="callbacks", verbose_name=_("batch")
    )  # fmt: skip
    kind = models.CharField(_("what"), max_length=20, choices=Kind.choices)
    url = models.CharField(_("address"), max_length=URL_LENGTH)
    host = models.GeneratedField(
        expression=Func(
            F("url"), Value(_HOST), function="substring", output_field=models.CharField(max_length=URL_LENGTH)
        ),
        output_field=models.CharField(max_length=URL_LENGTH),
        db_persist=True,
        verbose_name=_("receiver"),
    )  # fmt: skip
    # How the job stood then: it may stand otherwise by the time this gets through.
    reason = models.CharField(_("reason"), max_length=40, blank=True, db_default="")
    result = models.ForeignKey(
        "jobs.Result", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    # When it happened. A job that came to need a person does not tell: then, when a lane first took this up.
    at = models.DateTimeField(_("at"), null=True, blank=True)

    # --- delivering ---
    not_before = models.DateTimeField(_("next try"), null=True, blank=True)
    since = models.DateTimeField(null=True, blank=True)  # the day of tries begins here
    leased_until = models.DateTimeField(null=True, blank=True)
    tries = models.PositiveIntegerField(_("tries"), db_default=0, default=0)  # begun
    failures = models.PositiveIntegerField(db_default=0, default=0)  # known, of this day
    tried_at = models.DateTimeField(_("last try"), null=True, blank=True)
    status = models.PositiveSmallIntegerField(_("answer"), null=True, blank=True)
    trouble = models.CharField(_("trouble"), max_length=300, blank=True, db_default="")
    delivered_at = models.DateTimeField(_("delivered"), null=True, blank=True)
    given_up_at = models.DateTimeField(_("given up"), null=True, blank=True)
    case = models.ForeignKey(
        "jobs.Case", on_delete=models.SET_NULL, null=True, blank=True, related_name="callbacks", verbose_name=_("case")
    )  # fmt: skip

    class Meta:
        verbose_name = _("callback")
        verbose_name_plural = _("callbacks")
        default_permissions = ("view",)
        permissions = [("replay_callback", _("Can have a callback sent again"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(job__isnull=True) ^ Q(batch__isnull=True), name="callback_of_job_or_batch"
            ),
            models.CheckConstraint(
                condition=~Q(delivered_at__isnull=False, given_up_at__isnull=False), name="callback_ends_once"
            ),
            models.CheckConstraint(
                condition=Q(leased_until__isnull=True) | WAITS,
                name="callback_leased_while_it_waits",
            ),
        ]  # fmt: skip
        indexes = [
            # The claim: the receivers that something waits for, and what is due at each.
            models.Index(F("tenant"), F("host"), F("not_before").asc(nulls_first=True), F("id"), name="callback_claim",
                         condition=WAITS),
            # Whether a lane is needed.
            models.Index(fields=["not_before"], name="callback_due", condition=WAITS),
            # What each receiver is being sent now, and how its last try ended.
            models.Index(fields=["tenant", "host"], name="callback_leased", condition=Q(leased_until__isnull=False)),
            models.Index(F("tenant"), F("host"), F("tried_at").desc(), name="callback_tried",
                         condition=Q(tried_at__isnull=False)),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"#{self.pk} {self.kind}"
