"""The admin: a view over the rows. Whatever changes one calls one verb of jobs/lifecycle/."""

from jobs.admin import (
    alerts,
    batches,
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
    users,
)

__all__ = [
    "alerts",
    "batches",
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
    "users",
]
