"""Case: something a person must look at. StandingDecision: what the owner has decided beforehand."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from jobs.models.job import Job
from jobs.models.task import ProviderTask
from jobs.states import CaseKind
from providers.models import Target


class Case(models.Model):
    """One open case a kind, job and task. The desk is the open cases."""

    class Kind(models.TextChoices):
        UNKNOWN_SEND = CaseKind.UNKNOWN_SEND, _("sent, outcome unknown")
        PAID_WITHOUT_RESULT = CaseKind.PAID_WITHOUT_RESULT, _("paid without a result")
        FAILED_BUT_CHARGED = CaseKind.FAILED_BUT_CHARGED, _("failed but charged")
        LOST_AT_PROVIDER = CaseKind.LOST_AT_PROVIDER, _("lost at the provider")
        NEVER_ANSWERED = CaseKind.NEVER_ANSWERED, _("never answered")
        FETCH_FAILED = CaseKind.FETCH_FAILED, _("could not be fetched")
        CONFLICT = CaseKind.CONFLICT, _("two different facts")
        POISON = CaseKind.POISON, _("workers die at it")
        RESTORE = CaseKind.RESTORE, _("set aside after a restore")
        BY_HAND = CaseKind.BY_HAND, _("handled by hand")
        REFUSED_BY_ALL = CaseKind.REFUSED_BY_ALL, _("no target made it")
        ATTEMPTS_EXHAUSTED = CaseKind.ATTEMPTS_EXHAUSTED, _("attempts exhausted")
        LATE_RESULT = CaseKind.LATE_RESULT, _("a result came after the decision")
        PAID_TWICE = CaseKind.PAID_TWICE, _("paid twice?")
        DEAD_CALLBACK = CaseKind.DEAD_CALLBACK, _("callback never delivered")
        ORPHAN = CaseKind.ORPHAN, _("at the provider without a job")

    kind = models.CharField(_("kind"), max_length=24, choices=Kind.choices)
    job = models.ForeignKey(
        Job, on_delete=models.PROTECT, null=True, blank=True, related_name="cases"
    )
    task = models.ForeignKey(
        ProviderTask, on_delete=models.PROTECT, null=True, blank=True, related_name="cases"
    )
    # Set for generations of a provider's history that no job belongs to: each is a case of its own.
    orphan = models.OneToOneField(
        "jobs.Orphan", on_delete=models.PROTECT, null=True, blank=True, related_name="case"
    )
    money_at_risk = models.DecimalField(
        _("money at risk"), max_digits=14, decimal_places=4, default=0
    )
    currency = models.CharField(max_length=3, blank=True)
    detail = models.JSONField(default=dict, blank=True)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="cases",
        verbose_name=_("owner"),
    )  # fmt: skip
    note = models.TextField(_("note"), blank=True)
    opened_at = models.DateTimeField(_("opened"))
    due_at = models.DateTimeField(_("due"))
    resolution = models.CharField(_("resolution"), max_length=40, blank=True)
    resolved_at = models.DateTimeField(_("resolved"), null=True, blank=True)
    resolved_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    class Meta:
        verbose_name = _("case")
        verbose_name_plural = _("cases")
        permissions = [("work_case", _("Can take and note a case"))]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "job", "task", "orphan"],
                condition=Q(resolved_at__isnull=True),
                name="case_one_open",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=Q(resolved_at__isnull=True, resolution="")
                | (Q(resolved_at__isnull=False) & ~Q(resolution="")),
                name="case_resolved_with_resolution",
            ),
        ]
        indexes = [
            # The desk: open cases by money and age.
            models.Index(F("money_at_risk").desc(), F("opened_at"), name="case_desk",
                         condition=Q(resolved_at__isnull=True)),
            # The handover: what came and what was settled lately.
            models.Index(F("opened_at").desc(), name="case_opened"),
            models.Index(F("resolved_at").desc(), name="case_settled", condition=Q(resolved_at__isnull=False)),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.job or ''}"


class StandingDecision(models.Model):
    """What may be sent again, or fall back, at one target although a charge is possible. Only the owner makes one."""

    class What(models.TextChoices):
        RESEND_UNKNOWN = "resend_unknown", _("send again when the outcome is unknown")
        NEXT_AFTER_CHARGED = (
            "next_after_charged",
            _("go to the next target after a failure that was or may be charged"),
        )

    target = models.ForeignKey(
        Target,
        on_delete=models.PROTECT,
        related_name="standing_decisions",
        verbose_name=_("target"),
    )
    what = models.CharField(_("what"), max_length=20, choices=What.choices)
    reason = models.TextField(_("reason"))
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    made_at = models.DateTimeField(_("made"))
    ended_at = models.DateTimeField(_("ended"), null=True, blank=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+",
        verbose_name=_("ended by"),
    )  # fmt: skip

    class Meta:
        verbose_name = _("standing decision")
        verbose_name_plural = _("standing decisions")
        constraints = [
            models.UniqueConstraint(
                fields=["target", "what"],
                condition=Q(ended_at__isnull=True),
                name="standing_one_live",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.target}: {self.get_what_display()}"
