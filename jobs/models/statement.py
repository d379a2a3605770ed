"""Statement: what a provider's history was found to say about our sends. Orphan: a generation there that no send of ours
belongs to, and what a person has decided about it."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from providers.models import Account


class Statement(models.Model):
    """One reading of a provider's history, from the ask to the findings (jobs/statement.py says what they mean).

    `kept` holds what was read so far, so that the next slice, of whichever worker, goes on from `cursor`; it is emptied at
    the end. `claim` is the token of the slice at work and `beat_at` its last sign of life.
    """

    class State(models.TextChoices):
        READING = "reading", _("reading")
        READY = "ready", _("ready")
        FAILED = "failed", _("could not be read")

    provider = models.CharField(_("provider"), max_length=40)
    account = models.ForeignKey(
        Account, on_delete=models.PROTECT, null=True, blank=True, related_name="+", verbose_name=_("account"),
        help_text=_("Empty: all keys of the provider."),
    )  # fmt: skip
    since = models.DateTimeField(_("from"))
    until = models.DateTimeField(_("until before"))
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.READING)
    asked_at = models.DateTimeField(_("asked"))
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("asked by"),
    )  # fmt: skip
    read_at = models.DateTimeField(_("read"), null=True, blank=True)  # before the first page
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    claim = models.UUIDField(null=True, blank=True)
    beat_at = models.DateTimeField(null=True, blank=True)
    cursor = models.PositiveIntegerField(default=0)  # pieces of history read
    pieces = models.PositiveIntegerField(default=0)  # of so many
    seen = models.PositiveIntegerField(default=0)  # generations read so far
    kept = models.JSONField(default=dict, blank=True)
    trouble = models.CharField(_("trouble"), max_length=300, blank=True)
    told = models.JSONField(default=dict, blank=True)  # findings, totals, rates, accounts
    open_count = models.PositiveIntegerField(_("to settle"), default=0)

    class Meta:
        verbose_name = _("statement")
        verbose_name_plural = _("statements")
        permissions = [("read_statement", _("Can have a provider's history read"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(since__lt=F("until")), name="statement_since_before_until"
            ),
            # A second press of the button joins the reading that is under way.
            models.UniqueConstraint(
                fields=["provider", "account", "since", "until"],
                condition=Q(state="reading"),
                name="statement_one_reading",
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.since:%F}"


class Orphan(models.Model):
    """One generation, once for ever: `provider` is the adapter's own name, as two keys may list the same generation."""

    class Outcome(models.TextChoices):
        ADOPTED = "adopted", _("adopted")
        DISPUTED = "disputed", _("disputed")

    provider = models.CharField(_("provider"), max_length=40)
    provider_id = models.CharField(_("provider's id"), max_length=200)
    account = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="orphans", verbose_name=_("account")
    )
    model = models.CharField(_("model"), max_length=200, blank=True)
    status = models.CharField(_("status there"), max_length=40, blank=True)
    cost = models.DecimalField(_("cost"), max_digits=20, decimal_places=10, null=True, blank=True)
    currency = models.CharField(max_length=3)
    made_at = models.DateTimeField(_("made"), null=True, blank=True)
    correlation_id = models.CharField(_("carries the id"), max_length=200, blank=True)
    found_at = models.DateTimeField(_("found"))
    outcome = models.CharField(_("outcome"), max_length=8, choices=Outcome.choices, blank=True)
    reference = models.CharField(_("the provider's reference"), max_length=200, blank=True)
    note = models.TextField(_("note"), blank=True)
    decided_at = models.DateTimeField(_("decided"), null=True, blank=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("decided by"),
    )  # fmt: skip
    task = models.OneToOneField(
        "jobs.ProviderTask", on_delete=models.PROTECT, null=True, blank=True, related_name="orphan"
    )

    class Meta:
        verbose_name = _("orphan")
        verbose_name_plural = _("orphans")
        permissions = [
            ("adopt_orphan", _("Can adopt a generation that no job belongs to")),
            ("dispute_orphan", _("Can dispute a generation that no job belongs to")),
        ]
        constraints = [
            models.UniqueConstraint(fields=["provider", "provider_id"], name="orphan_once"),
            models.CheckConstraint(
                condition=Q(outcome="", decided_at__isnull=True)
                | (~Q(outcome="") & Q(decided_at__isnull=False)),
                name="orphan_decided_with_outcome",
            ),
            models.CheckConstraint(
                condition=~Q(outcome="adopted") | Q(task__isnull=False),
                name="orphan_adopted_has_task",
            ),
        ]

    def __str__(self) -> str:
        return self.provider_id
