"""System checks: what only a deployment can break. Each message names the setting and the cure.

E001 to E019 the queue, E020 to E029 the database, E030 to E039 demo and debug, E040 to E049 providers and deadlines, E050
to E059 disks; W for what can be lived with.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004  Django's own names
from django.db import DatabaseError, connections
from django.http.request import split_domain_port, validate_host

from jobs.bell import direct_parameters
from providers import registry

# Between the end of the longest call and the queue's timeout: recording, freeing the slot, closing connections.
MARGIN_S = 5
# A frozen process must not hold the admission lock or a row for long; its statements fail, and the next lane goes on.
LANE_TIMEOUTS = {
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "15s",
}
# A notification within one server takes milliseconds.
_HEARD_WITHIN_S = 5.0
# File systems that are empty after a restart: of the machine, or (overlay) of the container.
_FORGETFUL = {"tmpfs", "ramfs", "overlay"}


@register()
def queue_settings(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    """The rules under which django-q2 neither loses, doubles, hoards nor kills lanes."""
    queue: Mapping[str, Any] = settings.Q_CLUSTER
    return [*_queue_sizes(queue), *_queue_times(queue), *_queue_fixed(queue)]


def _wrong(number: int, name: str, problem: str, cure: str) -> CheckMessage:
    value = settings.Q_CLUSTER.get(name)
    return Error(f"Q_CLUSTER[{name!r}] is {value!r}: {problem}", hint=cure, id=f"desk.E{number:03}")


def _queue_sizes(queue: Mapping[str, Any]) -> Iterator[CheckMessage]:
    workers, least = queue.get("workers") or 0, settings.WORKER_LANES + 1
    if workers < least:
        yield _wrong(
            1,
            "workers",
            "with every worker in a lane, no message is read.",
            f"Set WORKER_LANES + 1 = {least}.",
        )
    if queue.get("queue_limit") != workers:
        yield _wrong(
            2,
            "queue_limit",
            "more than workers hoards bells, fewer can hang a stop.",
            f"Set {workers}.",
        )


def _queue_times(queue: Mapping[str, Any]) -> Iterator[CheckMessage]:
    workers, timeout = queue.get("workers") or 1, queue.get("timeout") or 0
    slice_s = (
        settings.LANE_SLICE_SEC
        + max(settings.POST_DEADLINE_SEC, settings.LANE_ANSWERS_SEC, settings.LANE_DRAIN_SEC)
        + MARGIN_S
    )
    if timeout < slice_s:
        cure = f"Set at least slice + longest call + margin = {slice_s:g}."
        yield _wrong(4, "timeout", "a lane at work would be killed.", cure)
        return
    ahead = (queue.get("queue_limit") or 0) + (queue.get("bulk") or 1)
    longest_wait_s = (timeout + 3) * (-(-ahead // workers) + 1)
    if (queue.get("retry") or 0) <= longest_wait_s:
        yield _wrong(
            5,
            "retry",
            "a bell is delivered twice while it waits or runs.",
            f"Set more than {longest_wait_s:g}.",
        )


def _queue_fixed(queue: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for number, name, value, problem in (
        (3, "bulk", 1, "a cluster that takes several bells keeps them from the others."),
        (6, "max_attempts", 1, "a failed bell comes back; the table is the truth."),
        (7, "ack_failures", True, "a failed bell comes back; the table is the truth."),
        (8, "save_limit", -1, "every slice leaves a row behind."),
        (10, "catch_up", False, "after a stop all missed rings come in one burst."),
        (
            11,
            "broker_class",
            "jobs.broker.NotifyingBroker",
            "the queue is polled, and a stopping cluster pops bells.",
        ),
        (12, "orm", "default", "bells must be committed with the work, in one database."),
    ):
        if queue.get(name) != value:
            yield _wrong(number, name, problem, f"Set {value!r}.")
    if queue.get("guard_cycle") not in {0.25, 0.5, 1}:
        yield _wrong(
            9, "guard_cycle", "the workers' timers count in these steps.", "Set 0.5 (or 0.25 or 1)."
        )
    if queue.get("sync"):
        yield _wrong(13, "sync", "bells would run inside the web server.", "Remove it.")


@register()
def queue_command(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    names = [config.name for config in apps.get_app_configs()]
    if "django_q" in names and names.index("jobs") > names.index("django_q"):
        return [
            Error(
                "INSTALLED_APPS has django_q before jobs: the stock qcluster command runs, which can hang and leave ghosts.",
                hint="Put jobs.apps.JobsConfig first.",
                id="desk.E014",
            )
        ]
    return []


@register()
def connections_are_kept(
    app_configs: Sequence[AppConfig] | None, **_kwargs: Any
) -> list[CheckMessage]:
    if settings.DATABASES["default"].get("CONN_MAX_AGE", 0) == 0:
        return [
            Warning(
                "DATABASES['default']['CONN_MAX_AGE'] is 0: the queue connects anew for each look.",
                hint="Set 600.",
                id="desk.W015",
            )
        ]
    return []


@register(Tags.database)
def commits_reach_the_disk(
    app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """What a connection of ours really gets, whatever files, roles and poolers say. Only with `check --database default`,
    `migrate` and at the start of `qcluster`."""
    found: list[CheckMessage] = []
    if "default" not in (databases or ()):
        return found
    try:
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT current_setting('synchronous_commit'), current_setting('fsync')")
            synchronous_commit, fsync = cursor.fetchone()
    except DatabaseError as error:
        pooler = "startup parameter" in str(error)
        return [
            Error(
                f"DATABASE_URL: no answer from the server: {error}",
                hint="That is a pooler: name the server itself in DATABASE_DIRECT_URL."
                if pooler
                else "Start it, or correct the URL.",
                id="desk.E022",
            )
        ]
    if synchronous_commit not in {"on", "remote_apply"}:
        found.append(
            Error(
                f"synchronous_commit is {synchronous_commit!r} for our connections: a crash of the server would forget that"
                " something was sent and paid for.",
                hint=_alter({"synchronous_commit": "on"})
                if settings.DATABASE_DIRECT_URL
                else "Our connections ask for 'on' (DATABASES OPTIONS); remove what overrides it, such as a pooler's setting.",
                id="desk.E020",
            )
        )
    # The tests' own server goes without on purpose; a demo on such a server is told, everything else refused.
    if fsync != "on" and not (settings.DEMO and settings.TESTING):
        kind = Warning if settings.DEMO else Error
        found.append(
            kind(
                "fsync is off on the server: a power cut would lose or destroy what was committed.",
                hint="Set fsync = on in postgresql.conf and restart it.",
                id="desk.W021" if settings.DEMO else "desk.E021",
            )
        )
    return found


@register(Tags.database)
def bells_are_heard(
    app_configs: Sequence[AppConfig] | None, databases: Iterable[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """A pooler in transaction mode keeps no session that could listen, and takes none of our options."""
    if "default" not in (databases or ()):
        return []
    try:
        if not settings.DATABASE_DIRECT_URL:
            return _no_pooler()
        heard = _heard()
    except (DatabaseError, psycopg.Error) as error:
        return (
            []
            if not settings.DATABASE_DIRECT_URL
            else [_deaf(f"no answer from the server: {error}")]
        )
    return [] if heard else [_deaf("it does not hear what is notified through DATABASE_URL.")]


def _deaf(problem: str) -> CheckMessage:
    return Error(
        f"DATABASE_DIRECT_URL: {problem}",
        hint="Name the server behind the pooler itself, and the same database; or empty it where DATABASE_URL leads to no pooler.",
        id="desk.E024",
    )


def _no_pooler() -> list[CheckMessage]:
    """By the number of the server's process: a pooler tells another one than the process that answers."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        answers = cursor.fetchone()[0]
    told = connections["default"].connection.info.backend_pid
    if told == answers:
        return []
    return [
        Warning(
            "DATABASE_URL leads to a pooler: nobody hears that there is work, so it waits for up to a minute and a half.",
            hint="Name the server itself in DATABASE_DIRECT_URL.",
            id="desk.W023",
        )
    ]


def _heard() -> bool:
    channel = f"desk_check_{uuid.uuid4().hex}"
    with psycopg.connect(**direct_parameters(), autocommit=True) as listening:
        listening.execute(f'LISTEN "{channel}"')
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, '')", [channel])
        return any(True for _one in listening.notifies(timeout=_HEARD_WITHIN_S, stop_after=1))


def transactions_end() -> list[CheckMessage]:
    """Whether what LANE_TIMEOUTS names really holds for this process's connections. For `qcluster` alone."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT name, setting::bigint FROM pg_settings WHERE name = ANY(%s)",
            [list(LANE_TIMEOUTS)],
        )
        endless = {name: LANE_TIMEOUTS[name] for name, setting in cursor.fetchall() if setting == 0}
    if not endless:
        return []
    return [
        Error(
            f"{', '.join(endless)}: none for our connections. A frozen worker would hold up all others.",
            hint=_alter(endless)
            if settings.DATABASE_DIRECT_URL
            else "Remove what overrides our connections' options.",
            id="desk.E025",
        )
    ]


def _alter(wanted: Mapping[str, str]) -> str:
    """What gives a role what a pooler does not pass on. It holds for new connections of the pooler to the server."""
    database = connections["default"].settings_dict
    user, name = database.get("USER") or "…", database.get("NAME") or "…"
    said = " ".join(
        f'ALTER ROLE "{user}" IN DATABASE "{name}" SET {key} = \'{value}\';'
        for key, value in wanted.items()
    )
    return f"{said} Then have the pooler reconnect."


@register()
def demo_and_debug(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    strangers = sorted(
        set(settings.ALLOWED_HOSTS) - {"localhost", "127.0.0.1", "[::1]", "testserver"}
    )
    if settings.DEMO and strangers:
        found.append(
            Error(
                f"DEMO is 1, but ALLOWED_HOSTS lets {', '.join(strangers)} in: the demo's passwords are printed in the README.",
                hint="Remove DEMO (also from .env) and set SECRET_KEY and DATABASE_URL; or serve only localhost.",
                id="desk.E030",
            )
        )
    if settings.DEBUG and not settings.DEMO:
        found.append(
            Warning(
                "DEBUG is 1: errors show settings and data to whoever causes them, and memory grows with each query.",
                hint="Set DEBUG=0 wherever others can reach this.",
                id="desk.W031",
            )
        )
    return found


@register()
def fallback_differs(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    """A fallback equal to the primary would pay the same model a second time."""
    model = settings.AI_MODEL or registry.adapter(settings.AI_PROVIDER).default_model
    seen = [registry.split_target(model)]
    found: list[CheckMessage] = []
    for name in settings.AI_MODEL_FALLBACK:
        target = registry.split_target(name)
        if target in seen:
            what = "AI_MODEL itself" if target == seen[0] else "there twice"
            found.append(
                Error(
                    f"AI_MODEL_FALLBACK: {name!r} is {what}; it would be paid for the same job again.",
                    hint="Name another model, or leave AI_MODEL_FALLBACK empty: then nothing falls back.",
                    id="desk.E040",
                )
            )
        seen.append(target)
    return found


@register()
def job_timeout(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    timeout_s, least_s = settings.WORKER_JOB_TIMEOUT_SEC, settings.POLL_DEADLINE_SEC + 60
    if timeout_s >= least_s:
        return []
    return [
        Error(
            f"WORKER_JOB_TIMEOUT_SEC is {timeout_s:g}: jobs would show as late that are still polled.",
            hint=f"Set at least POLL_DEADLINE_SEC + 60 = {least_s:g}.",
            id="desk.E041",
        )
    ]


@register()
def webhooks_are_let_in(
    app_configs: Sequence[AppConfig] | None, **_kwargs: Any
) -> list[CheckMessage]:
    host = urlsplit(settings.PUBLIC_URL).netloc
    if not settings.WEBHOOKS or validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS):
        return []
    return [
        Error(
            f"ALLOWED_HOSTS does not have PUBLIC_URL's host {host}: every webhook would be refused.",
            hint="Add the host to ALLOWED_HOSTS, or empty WEBHOOKS.",
            id="desk.E042",
        )
    ]


@register()
def disks(app_configs: Sequence[AppConfig] | None, **_kwargs: Any) -> list[CheckMessage]:
    """Folders that hold what was paid for, and facts that the database could not take."""
    found: list[CheckMessage] = []
    for number, name in enumerate(("MEDIA_ROOT", "SPOOL_DIR", "EPOCH_DIR")):
        folder = _nearest(Path(getattr(settings, name)))
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            found.append(
                Error(
                    f"{name}: {folder} is not a folder this user may write to.",
                    hint=f"Set {name} to a folder on a persistent volume, or give this user the right to write there.",
                    id=f"desk.E{50 + number:03}",
                )
            )
        elif not settings.DEMO and (kind := file_system(folder, _mounts())) in _FORGETFUL:
            found.append(
                Warning(
                    f"{name}: {folder} is on {kind}, which is empty after a restart.",
                    hint=f"Set {name} to a folder on a persistent volume.",
                    id=f"desk.W{50 + number:03}",
                )
            )
    return found


def _nearest(path: Path) -> Path:
    """The folder itself, or the one it would be made in."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _mounts() -> str:
    """The kernel's list of mounts; "" where there is none (no Linux)."""
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def file_system(folder: Path, mounts: str) -> str:
    """The type of the file system that holds `folder`, by the longest mount point above it; "" if none is known."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        # The later of two mounts on one point hides the former.
        if folder.resolve().is_relative_to(point) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind
