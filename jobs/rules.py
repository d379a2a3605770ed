"""The settings as values, read at the edge and passed down."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from jobs.policy import Rules
from providers.contract import Adapter

# A send may start this long after it was armed; then the fence holds it back.
SEND_WINDOW_S = 10.0
# Beyond fence, deadline and lag, before absence is concluded (design.md, section 4, zombies).
ABSENCE_MARGIN_S = 10.0
# After so many failed downloads a person is told.
FETCH_TRIES = 8
# A failed verdict is asked what it cost this often.
RECEIPT_EVERY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the engine. Seconds, counts."""

    concurrency: int
    poll_interval_s: float
    late_poll_interval_s: float
    poll_deadline_s: float
    reconcile_interval_s: float
    post_deadline_s: float
    exposure_prices: int
    price_ceiling_factor: float
    patience_s: float = 120.0
    webhook_poll_s: float = 120.0
    fallback_on: frozenset[str] = frozenset()
    sync_deadline_s: float = 180.0

    def call_deadline_s(self, adapter: Adapter) -> float:
        """How long a paid call may take in all, from here to the last byte of its answer."""
        return self.post_deadline_s if adapter.asynchronous else self.sync_deadline_s


def rules() -> Rules:
    return Rules(
        max_retries=settings.WORKER_MAX_RETRIES,
        free_refusal_attempts=settings.FREE_REFUSAL_ATTEMPTS,
        fallback_on=settings.FALLBACK_ON,
        patience_s=settings.JOB_PATIENCE_SEC,
    )


def limits() -> Limits:
    return Limits(
        concurrency=settings.WORKER_CONCURRENCY,
        poll_interval_s=settings.POLL_INTERVAL_SEC,
        late_poll_interval_s=max(settings.RECONCILE_INTERVAL_SEC, settings.POLL_INTERVAL_SEC),
        poll_deadline_s=settings.POLL_DEADLINE_SEC,
        reconcile_interval_s=settings.RECONCILE_INTERVAL_SEC,
        post_deadline_s=settings.POST_DEADLINE_SEC,
        sync_deadline_s=settings.SYNC_DEADLINE_SEC,
        exposure_prices=settings.EXPOSURE_LIMIT_PRICES,
        price_ceiling_factor=settings.PRICE_CEILING_FACTOR,
        patience_s=settings.JOB_PATIENCE_SEC,
        webhook_poll_s=settings.WEBHOOK_POLL_SEC,
        fallback_on=settings.FALLBACK_ON,
    )
