"""CaseEvent: what people did to a case that belongs to no job, and so stands in no job's timeline."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.models.case import Case


class CaseEvent(models.Model):
    """Append-only, written in the transaction of the change; of a case with a job the event is a JobEvent."""

    case = models.ForeignKey(Case, on_delete=models.PROTECT, related_name="events")
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    data = models.JSONField(default=dict, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("case event")
        verbose_name_plural = _("case events")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.case_id} {self.kind}"
