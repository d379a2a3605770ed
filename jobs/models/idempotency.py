"""IdempotencyKey: which jobs a program's request has made, so that the same request makes them once."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class IdempotencyKey(models.Model):
    """A key is the tenant's, whichever of its tokens it came with: a rotation between two tries changes nothing.

    Written in the transaction of the jobs. It stands until `kept_until`, and beyond that while a job of its is live.
    """

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    digest = models.CharField(max_length=64)  # sha256 of what was asked for
    # Empty only inside the transaction that makes it.
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, null=True, related_name="+")
    batch = models.ForeignKey("jobs.Batch", on_delete=models.CASCADE, null=True, related_name="+")
    created_at = models.DateTimeField()
    kept_until = models.DateTimeField()

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["tenant", "key"], name="idempotency_key_once")
        ]
        indexes = [
            # Forgetting what is over.
            models.Index(fields=["kept_until"], name="idempotency_over")
        ]

    def __str__(self) -> str:
        return f"#{self.pk}"
