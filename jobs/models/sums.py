"""SendSum: what the sends of a quarter of an hour, or of a day, come to."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Q

QUARTER = timedelta(minutes=15)  # every time zone's midnight is at one
DAY = timedelta(days=1)


class SendSum(models.Model):
    """A part of the sum of the sends whose intent was written within `span_s` seconds from `start_at` (UTC), by account,
    target, tenant and currency. The sum is that of all rows with the same key, whatever their number.

    A trigger (migration 0021) adds a row with the difference in the transaction of each change of a send, so that nobody
    waits for anybody; `loose` ones are put together each minute (jobs/lifecycle/sums.py), which changes no sum. The sends
    are the truth: `SELECT jobs_sum_sends_anew()` writes everything here from them.

    `sends`: what was sent, or may have been; the next four tell how it ended so far. `charged`: known costs; `possible`:
    estimates of what may still be charged. The conditions are those of jobs/budgets.counted.
    """

    span_s = models.PositiveIntegerField()
    start_at = models.DateTimeField()
    account_id = models.BigIntegerField()
    target_id = models.BigIntegerField()
    tenant_id = models.BigIntegerField()
    currency = models.CharField(max_length=3)
    loose = models.BooleanField(default=True, db_default=True)
    sends = models.IntegerField()
    succeeded = models.IntegerField()
    refused = models.IntegerField()
    failed = models.IntegerField()
    unknown = models.IntegerField()
    charged = models.DecimalField(max_digits=30, decimal_places=10)
    possible = models.DecimalField(max_digits=30, decimal_places=10)

    class Meta:
        default_permissions = ()
        indexes = [
            # Sums over a span of time, of all or of one tenant.
            models.Index(fields=["span_s", "start_at", "tenant_id"], name="send_sum_of"),
            # What is to be put together.
            models.Index(fields=["start_at"], name="send_sum_loose", condition=Q(loose=True)),
        ]

    def __str__(self) -> str:
        return f"{self.start_at:%F %R} {self.span_s} s"
