"""Alert: what somebody must be told, once. AlertChannel: how a way of telling them fares."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from jobs.alert_rules import AlertKind, AlertState
from providers.models import Account


class Alert(models.Model):
    """One row of the outbox. An outage and its end are written in the transaction of the change, what a person must do by
    the minute's look; then they are sorted (jobs/alert_rules.py), and those due are sent.

    `episode_at` is when the outage began; it is empty for matters. `lead` is the alert that tells this one too; for a
    recovery that is due, the one whose end it is.
    """

    class Kind(models.TextChoices):
        OUTAGE = AlertKind.OUTAGE, _("down")
        NETWORK = AlertKind.NETWORK, _("our own network")
        KEY = AlertKind.KEY, _("key rejected")
        RECOVERED = AlertKind.RECOVERED, _("available again")
        BALANCE = AlertKind.BALANCE, _("balance used up")
        OVERDUE = AlertKind.OVERDUE, _("desk overdue")
        EXPIRING = AlertKind.EXPIRING, _("results about to expire")
        STUCK = AlertKind.STUCK, _("something is stuck")
        MORE = AlertKind.MORE, _("and more")

    class State(models.TextChoices):
        NEW = AlertState.NEW, _("just noted")
        DUE = AlertState.DUE, _("to be sent")
        SENT = AlertState.SENT, _("sent")
        FOLDED = AlertState.FOLDED, _("told with another")
        SILENCED = AlertState.SILENCED, _("silenced")
        DROPPED = AlertState.DROPPED, _("over before it was due")
        NO_CHANNEL = AlertState.NO_CHANNEL, _("no channel is set")
        GIVEN_UP = AlertState.GIVEN_UP, _("given up")

    kind = models.CharField(_("what"), max_length=16, choices=Kind.choices)
    state = models.CharField(_("state"), max_length=12, choices=State.choices, default=State.NEW)
    account = models.ForeignKey(
        Account, on_delete=models.CASCADE, null=True, blank=True, related_name="alerts",
        verbose_name=_("account"),
    )  # fmt: skip
    model = models.CharField(_("model"), max_length=160, blank=True)
    at = models.DateTimeField(_("at"))
    episode_at = models.DateTimeField(null=True, blank=True)
    over_at = models.DateTimeField(_("over"), null=True, blank=True)
    data = models.JSONField(default=dict, blank=True)
    lead = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="members",
        verbose_name=_("told with"),
    )  # fmt: skip

    # --- sending ---
    not_before = models.DateTimeField()
    begun_at = models.DateTimeField(null=True, blank=True)  # when a sender first took it
    leased_until = models.DateTimeField(null=True, blank=True)
    lost_leases = models.PositiveSmallIntegerField(default=0)  # senders that died at it
    tries = models.PositiveSmallIntegerField(default=0)  # that left a channel out
    sent_at = models.DateTimeField(_("sent"), null=True, blank=True)
    sent_to = ArrayField(models.CharField(max_length=16), default=list, blank=True)
    error = models.CharField(_("trouble"), max_length=300, blank=True)

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        constraints = [
            # Whatever number of processes see the same change: one alert of a kind for an episode.
            models.UniqueConstraint(
                fields=["kind", "account", "model", "episode_at"],
                condition=Q(episode_at__isnull=False),
                name="alert_one_an_episode",
            ),
            # A matter is told once until it is over; the summary that still collects is one.
            models.UniqueConstraint(
                fields=["kind", "account"],
                condition=Q(episode_at__isnull=True, over_at__isnull=True),
                nulls_distinct=False,
                name="alert_one_open_matter",
            ),
            models.CheckConstraint(
                condition=~Q(state=AlertState.FOLDED) | Q(lead__isnull=False),
                name="alert_folded_into_one",
            ),
            models.CheckConstraint(
                condition=Q(leased_until__isnull=True) | Q(state=AlertState.DUE, begun_at__isnull=False),
                name="alert_leased_while_due",
            ),
        ]  # fmt: skip
        indexes = [
            # What is to be sorted and sent.
            models.Index(F("not_before"), name="alert_due", condition=Q(state__in=["new", "due"])),
            # What is on.
            models.Index(F("kind"), name="alert_on", condition=Q(over_at__isnull=True)),
            # The cap: how many went out within the hour.
            models.Index(F("begun_at"), name="alert_begun", condition=Q(begun_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.get_kind_display()}"


class AlertChannel(models.Model):
    """One address of ALERT_URLS, known by a short hash. The address itself, which holds secrets, is never stored."""

    key = models.CharField(_("channel"), max_length=16, primary_key=True)
    scheme = models.CharField(_("kind"), max_length=32)
    ok_at = models.DateTimeField(_("last success"), null=True, blank=True)
    failing_since = models.DateTimeField(_("failing since"), null=True, blank=True)
    error = models.CharField(_("trouble"), max_length=300, blank=True)

    class Meta:
        verbose_name = _("alert channel")
        verbose_name_plural = _("alert channels")

    def __str__(self) -> str:
        return f"{self.scheme} …{self.key[-6:]}"
