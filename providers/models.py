"""Rows about the outside world: accounts, targets, what state a provider is in, its limits, its timeline."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _


class Account(models.Model):
    """A provider reached with one key. The key itself is never stored; `fingerprint` is a short hash of it.

    `echoes_id`, `history_lag_s` and `exclusive` are facts about the provider's history; None means not measured, and
    then a lost send is never concluded absent.
    """

    provider = models.CharField(_("provider"), max_length=40)
    fingerprint = models.CharField(_("key fingerprint"), max_length=32)
    label = models.CharField(_("label"), max_length=80, blank=True)
    echoes_id = models.BooleanField(
        _("history echoes our id"),
        null=True,
        blank=True,
        help_text=_("Measured: its history shows the id we sent."),
    )
    history_lag_s = models.FloatField(
        _("history lag, s"),
        null=True,
        blank=True,
        help_text=_("Measured: how late a generation shows up in its history."),
    )
    exclusive = models.BooleanField(
        _("exclusive"),
        default=False,
        help_text=_("No other program uses this key. Only the owner can know."),
    )
    balance = models.DecimalField(
        _("balance"), max_digits=16, decimal_places=6, null=True, blank=True
    )
    balance_currency = models.CharField(max_length=3, blank=True)
    balance_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(_("first seen"))

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")
        constraints = [
            models.UniqueConstraint(fields=["provider", "fingerprint"], name="account_unique")
        ]

    def __str__(self) -> str:
        return f"{self.provider} …{self.fingerprint[-6:]}"


class Target(models.Model):
    """`provider:model`, what a job's route is made of. `stopped_reason` is set when the provider called it wrong."""

    class Kind(models.TextChoices):
        IMAGE = "image", _("picture")
        TEXT = "text", _("text")

    provider = models.CharField(_("provider"), max_length=40)
    model = models.CharField(_("model"), max_length=160)
    kind = models.CharField(_("makes"), max_length=8, choices=Kind.choices, default=Kind.IMAGE)
    price = models.DecimalField(
        _("price"),
        max_digits=12,
        decimal_places=4,
        help_text=_("What one generation usually costs; reckons money at risk."),
    )
    currency = models.CharField(_("currency"), max_length=3, default="RUB")
    max_in_flight = models.PositiveIntegerField(
        _("most in flight"),
        null=True,
        blank=True,
        help_text=_("Empty: only the overall limit holds."),
    )
    capabilities = models.JSONField(_("capabilities"), default=dict, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    stopped_at = models.DateTimeField(_("stopped"), null=True, blank=True)
    stopped_reason = models.CharField(_("why stopped"), max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("target")
        verbose_name_plural = _("targets")
        constraints = [
            models.UniqueConstraint(fields=["provider", "model"], name="target_unique"),
            models.CheckConstraint(condition=Q(price__gte=0), name="target_price_not_negative"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"

    @property
    def open(self) -> bool:
        return self.enabled and self.stopped_at is None


class ProviderState(models.Model):
    """What we know of an account (`model` empty) or of one of its models. One row is read by all processes."""

    class State(models.TextChoices):
        AVAILABLE = "available", _("available")
        THROTTLED = "throttled", _("throttled")
        QUOTA_EXHAUSTED = "quota_exhausted", _("quota exhausted")
        DOWN = "down", _("down")
        PAUSED = "paused", _("paused")

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="states")
    model = models.CharField(_("model"), max_length=160, blank=True)
    state = models.CharField(
        _("state"), max_length=20, choices=State.choices, default=State.AVAILABLE
    )
    since = models.DateTimeField(_("since"))
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    blocked_until = models.DateTimeField(_("blocked until"), null=True, blank=True)

    class Meta:
        verbose_name = _("provider state")
        verbose_name_plural = _("provider states")
        constraints = [
            models.UniqueConstraint(fields=["account", "model"], name="provider_state_unique")
        ]

    def __str__(self) -> str:
        return f"{self.account} {self.model}: {self.state}"


class QuotaWindow(models.Model):
    """A limit a provider has: so many sends within `seconds`, or (`seconds` empty) so many in flight at once."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="windows")
    model = models.CharField(
        _("model"), max_length=160, blank=True, help_text=_("Empty: the whole account.")
    )
    seconds = models.PositiveIntegerField(
        _("window, s"),
        null=True,
        blank=True,
        help_text=_("60, 3600, 86400, 604800; empty: at the same time."),
    )
    most = models.PositiveIntegerField(_("most"))

    class Meta:
        verbose_name = _("quota window")
        verbose_name_plural = _("quota windows")
        constraints = [
            models.UniqueConstraint(
                fields=["account", "model", "seconds"],
                name="quota_window_unique",
                nulls_distinct=False,
            ),
            models.CheckConstraint(condition=Q(most__gt=0), name="quota_window_most_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.account} {self.model} {self.most} / {self.seconds or 'at once'}"


class ProviderEvent(models.Model):
    """Append-only timeline of an account, written in the transaction of the change."""

    account = models.ForeignKey(Account, on_delete=models.CASCADE, related_name="events")
    model = models.CharField(max_length=160, blank=True)
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    data = models.JSONField(default=dict, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("provider event")
        verbose_name_plural = _("provider events")
        indexes = [
            # An account's page, newest first.
            models.Index(F("account"), F("id").desc(), name="provider_event_timeline"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.kind}"
