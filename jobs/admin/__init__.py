"""The admin: a view over the rows. Whatever changes one calls one verb of jobs/lifecycle/."""

from jobs.admin import (
    alerts,
    batches,
    callbacks,
    cases,
    holds,
    jobs,
    limits,
    orphans,
    panel,
    queue,
    rest,
    statement,
    tasks,
    tenants,
    tokens,
    users,
)

__all__ = [
    "alerts",
    "batches",
    "callbacks",
    "cases",
    "holds",
    "jobs",
    "limits",
    "orphans",
    "panel",
    "queue",
    "rest",
    "statement",
    "tasks",
    "tenants",
    "tokens",
    "users",
]
