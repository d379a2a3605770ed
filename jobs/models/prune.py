"""PruneRun: what was removed because nobody needs it any more."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _


class PruneRun(models.Model):
    """One run of jobs/lifecycle/prune.py. `removed` is written in the transaction of each removal, so it is exact wherever
    a run was killed.

    `position`: {kind: {"after": where the next slice goes on, "over": bool, "since": the day of the last walk from the
    start}}. `day`: a daily run, of which there is one a day; whoever holds `lease_until` is at it.
    """

    started_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("by"),
    )  # fmt: skip
    day = models.DateField(null=True, blank=True, unique=True)
    asked = models.JSONField(default=dict, blank=True)  # what the command was given
    removed = models.JSONField(_("removed"), default=dict, blank=True)  # {kind: count}
    position = models.JSONField(default=dict, blank=True)
    lease_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("removal of what is old")
        verbose_name_plural = _("removals of what is old")
        default_permissions = ()
        permissions = [("run_prune", _("Can remove what is no longer needed"))]

    def __str__(self) -> str:
        return f"#{self.pk} {self.started_at:%F %T}"
