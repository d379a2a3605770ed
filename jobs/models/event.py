"""JobEvent: a job's append-only timeline."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.models.job import Job
from jobs.models.task import ProviderTask


class JobEvent(models.Model):
    """One step, written in the transaction of the change. `kind` is a constant, `data` its values."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="events")
    task = models.ForeignKey(
        ProviderTask, on_delete=models.PROTECT, null=True, blank=True, related_name="events"
    )
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    data = models.JSONField(default=dict, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("job event")
        verbose_name_plural = _("job events")
        indexes = [models.Index(fields=["job", "id"], name="job_event_timeline")]  # a job's page

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.kind}"
