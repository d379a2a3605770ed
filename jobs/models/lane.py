"""Lane, SpoolHost, Hold: who works, whose facts may still lie on a disk, and what stops all sends."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _


class Lane(models.Model):
    """A numbered slot. `run_id` names the run that holds it (empty: free) and is the fencing token.

    `draining`: this run sends nothing more and ends; by its own word, or because staff asked (jobs/lifecycle/lanes.py).
    While `closed_at` is set, no run takes the slot.
    """

    slot = models.PositiveSmallIntegerField(_("slot"), primary_key=True)
    run_id = models.UUIDField(null=True, blank=True, unique=True)
    host = models.CharField(_("host"), max_length=120, blank=True)
    pid = models.PositiveIntegerField(_("process"), null=True, blank=True)
    version = models.CharField(_("code version"), max_length=40, blank=True)
    started_at = models.DateTimeField(_("started"), null=True, blank=True)
    heartbeat_at = models.DateTimeField(_("heartbeat"), null=True, blank=True)
    draining = models.BooleanField(_("draining"), default=False)
    closed_at = models.DateTimeField(_("taken out of work"), null=True, blank=True)

    class Meta:
        verbose_name = _("lane")
        verbose_name_plural = _("lanes")
        permissions = [("drain_lane", _("Can drain and restart a lane"))]
        constraints = [
            models.CheckConstraint(
                condition=Q(run_id__isnull=True) | Q(heartbeat_at__isnull=False),
                name="lane_run_has_heartbeat",
            ),
        ]

    def __str__(self) -> str:
        return f"lane {self.slot}"


class SpoolHost(models.Model):
    """A host that ran lanes. Facts from before `clear_at` are all in the database; a person may declare a disk lost."""

    host = models.CharField(_("host"), max_length=120, primary_key=True)
    clear_at = models.DateTimeField(_("spool replayed"))
    declared_lost_at = models.DateTimeField(_("disk declared lost"), null=True, blank=True)

    class Meta:
        verbose_name = _("spool host")
        verbose_name_plural = _("spool hosts")

    def __str__(self) -> str:
        return self.host


class Hold(models.Model):
    """While one is not lifted, nothing new is sent; polls and fetches go on."""

    class Kind(models.TextChoices):
        RED_BUTTON = "red_button", _("red button")
        RESTORE = "restore", _("restore hold")

    kind = models.CharField(_("kind"), max_length=12, choices=Kind.choices)
    reason = models.TextField(_("reason"), blank=True)
    set_at = models.DateTimeField(_("since"))
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    lifted_at = models.DateTimeField(_("lifted"), null=True, blank=True)
    lifted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    lift_reason = models.TextField(_("why lifted"), blank=True, default="", db_default="")

    class Meta:
        verbose_name = _("hold")
        verbose_name_plural = _("holds")
        permissions = [
            ("press_hold", _("Can press the red button")),
            ("lift_hold", _("Can lift the red button")),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["kind"], condition=Q(lifted_at__isnull=True), name="hold_one_standing"
            ),
        ]

    def __str__(self) -> str:
        return self.kind
