"""What is kept for how long: the kinds of what may be removed, and which of it is old. Pure but for the settings."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from django.conf import settings


class Kind(StrEnum):
    """What is removed, in the order of a run. The first three belong to jobs that are settled (lifecycle/prune.py)."""

    TIMELINES = "timelines"  # a job's steps that the machine noted; what people did stays
    EVIDENCE = "evidence"  # how a send's calls went, and what else of it is long
    FILES = "files"  # results that were not delivered (others on request): files and thumbnails
    PROVIDER_EVENTS = "provider_events"
    CALLBACKS = "callbacks"  # delivered ones
    BULK = "bulk"  # which jobs an ended bulk action was for, and which it left out
    DRAFTS = "drafts"  # imports that nobody said yes to
    KEYS = "keys"  # idempotency keys that are over
    SESSIONS = "sessions"  # logins that are over


OF_JOBS = (Kind.TIMELINES, Kind.EVIDENCE, Kind.FILES)
# Files are removed only where somebody asks for it.
USUAL = tuple(kind for kind in Kind if kind is not Kind.FILES)
# Their rows say themselves when they are over.
DATED = (Kind.DRAFTS, Kind.KEYS, Kind.SESSIONS)
# The breaker, the windows of a quota and every look into a history read the days before.
LEAST_DAYS = 1


def days(kind: Kind) -> int | None:
    """How long it is kept; None: for ever."""
    if kind in DATED:
        return 0
    kept = {
        Kind.TIMELINES: settings.RETENTION_TIMELINES_DAYS,
        Kind.EVIDENCE: settings.RETENTION_EVIDENCE_DAYS,
        Kind.FILES: settings.RETENTION_FILES_DAYS,
        Kind.PROVIDER_EVENTS: settings.RETENTION_PROVIDER_EVENTS_DAYS,
        Kind.CALLBACKS: settings.RETENTION_CALLBACKS_DAYS,
        Kind.BULK: settings.RETENTION_BULK_DAYS,
    }[kind]
    return kept or None


def before(kind: Kind, *, now: datetime, older_than: int | None = None) -> datetime | None:
    """What ended before this moment is old; None: nothing is. `older_than`: days, in the place of the setting."""
    kept = older_than if older_than is not None and kind not in DATED else days(kind)
    return None if kept is None else now - timedelta(days=kept)
