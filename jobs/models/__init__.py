"""Rows of what we promise. Machine-owned columns change only through jobs/lifecycle/."""

from jobs.models.alert import Alert, AlertChannel
from jobs.models.batch import Batch, BatchDraft, BatchEvent
from jobs.models.bulk import BulkChunk, BulkRun, BulkSkip
from jobs.models.callback import Callback, Endpoint
from jobs.models.case import Case, StandingDecision
from jobs.models.case_event import CaseEvent
from jobs.models.event import JobEvent
from jobs.models.idempotency import IdempotencyKey
from jobs.models.job import Job, JobPhoto, Tenant, TenantEvent, TenantOlder
from jobs.models.lane import Hold, Lane, SpoolHost
from jobs.models.preferences import Preferences
from jobs.models.prune import PruneRun
from jobs.models.result import Result
from jobs.models.saved_filter import SavedFilter
from jobs.models.statement import Orphan, Statement
from jobs.models.sums import SendSum
from jobs.models.task import PolzaTask, ProviderTask
from jobs.models.token import ApiToken
from jobs.models.visit import Visit

__all__ = [
    "Alert",
    "AlertChannel",
    "ApiToken",
    "Batch",
    "BatchDraft",
    "BatchEvent",
    "BulkChunk",
    "BulkRun",
    "BulkSkip",
    "Callback",
    "Case",
    "CaseEvent",
    "Endpoint",
    "Hold",
    "IdempotencyKey",
    "Job",
    "JobEvent",
    "JobPhoto",
    "Lane",
    "Orphan",
    "PolzaTask",
    "Preferences",
    "ProviderTask",
    "PruneRun",
    "Result",
    "SavedFilter",
    "SendSum",
    "SpoolHost",
    "StandingDecision",
    "Statement",
    "Tenant",
    "TenantEvent",
    "TenantOlder",
    "Visit",
]
