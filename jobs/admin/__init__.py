"""The admin: a view over the rows. Whatever changes one calls one verb of jobs/lifecycle/."""

from jobs.admin import cases, holds, jobs, queue, rest, tasks, users

__all__ = ["cases", "holds", "jobs", "queue", "rest", "tasks", "users"]
