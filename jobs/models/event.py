"""JobEvent: a job's append-only timeline."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from jobs.models.job import Job
from jobs.models.task import ProviderTask

# Steps that only people take; without an actor it was somebody with the shell.
OF_PEOPLE = (
    "retried", "retargeted", "edited", "sent_again", "marked_manual", "resolved", "cancelled", "poll_asked", "id_attached",
    "candidate_accepted", "absent_confirmed", "written_off", "refunded", "delivered_instead",
)  # fmt: skip
# What a person did to this job by itself. What was done to many at once has one entry of its own (the bulk action, the
# batch's event), and its events here name it.
BY_PEOPLE = (
    (Q(actor__isnull=False) | Q(kind__in=OF_PEOPLE))
    & ~Q(kind="created")
    & ~Q(data__has_key="bulk")
    & ~Q(data__has_key="batch")
)


class JobEvent(models.Model):
    """One step, written in the transaction of the change. `kind` is a constant, `data` its values."""

    job = models.ForeignKey(
        Job, on_delete=models.PROTECT, related_name="events", verbose_name=_("job")
    )
    task = models.ForeignKey(
        ProviderTask, on_delete=models.PROTECT, null=True, blank=True, related_name="events"
    )
    at = models.DateTimeField(_("at"))
    kind = models.CharField(_("what"), max_length=40)
    data = models.JSONField(default=dict, blank=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("by"),
    )  # fmt: skip

    class Meta:
        verbose_name = _("job event")
        verbose_name_plural = _("job events")
        indexes = [
            models.Index(fields=["job", "id"], name="job_event_timeline"),  # a job's page
            # The trail and the handover (jobs/trail.py): few among the machine's events.
            models.Index(F("at").desc(), F("id").desc(), name="job_event_by_people", condition=BY_PEOPLE),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.kind}"
