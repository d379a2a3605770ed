"""Looks at a desk under disturbance: when work is resumed, what is stuck, and in the end what was broken."""

from __future__ import annotations

import hashlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from django.db import Error, connection

from bench.desk import PROJECT, RealDesk
from bench.postgres import rows
from jobs.clock import clock
from jobs.stuck import stuck

logger = logging.getLogger("chaos")

SAMPLE_S = 0.5
STUCK_EVERY_S = 3.0

_LANES = "SELECT slot, run_id::text, pid FROM jobs_lane WHERE run_id IS NOT NULL"
# What is still in a run's name: rows it works at, and sends whose end nobody has established yet.
_HELD = """
SELECT work_run_id::text FROM jobs_providertask WHERE work_run_id IS NOT NULL
UNION SELECT run_id::text FROM jobs_providertask WHERE state IN ('intent', 'sending')
"""
_LAST_EVENT = "SELECT coalesce(max(id), 0) FROM jobs_jobevent"


@dataclass(frozen=True, slots=True)
class Lane:
    slot: int
    run: str
    pid: int


@dataclass(slots=True)
class Outage:
    """Something was killed, frozen or stopped at `at` (monotonic seconds).

    Resumed: of a lane, once another run holds its slot and nothing is left in the dead run's name (each row taken up by a
    living lane, each send of unknown outcome declared so); of the database, once an event is written after it.
    """

    kind: str
    at: float
    lanes: tuple[Lane, ...] = ()
    database: bool = False
    slots_taken: set[int] = field(default_factory=set)
    taken_at: float | None = None  # when the last of its slots was
    event_before: int | None = None
    resumed_at: float | None = None

    def is_over(self, *, taken: set[int], held: set[str], last_event: int) -> bool:
        """Whether work is resumed, told each sample: slots that living runs hold, runs in whose name something is left."""
        if self.database:
            if self.event_before is None:
                self.event_before = last_event
            return last_event > self.event_before
        self.slots_taken |= taken
        if not {lane.slot for lane in self.lanes} <= self.slots_taken:
            return False
        self.taken_at = self.taken_at or time.monotonic()
        return not held & {lane.run for lane in self.lanes}


class Watch(threading.Thread):
    """Samples the database until `end`. Its figures may be read at any time, `lanes` is what it last saw."""

    def __init__(self, desk: RealDesk) -> None:
        super().__init__(name="watch", daemon=True)
        self.desk = desk
        self.lanes: tuple[Lane, ...] = ()
        self.outages: list[Outage] = []
        self.states: dict[str, int] = {}
        self.stuck_now: list[str] = []
        self.stuck_seen: dict[
            str, float
        ] = {}  # every row that was ever shown, with its longest time
        self.looks = 0
        self._dead: set[str] = set()
        self._shown_since: dict[str, float] = {}
        self._database_stopped = False
        self._lock = threading.Lock()
        self._end = threading.Event()

    def end(self) -> None:
        self._end.set()
        self.join()

    def down(self, kind: str, *, at: float, lanes: tuple[Lane, ...]) -> None:
        with self._lock:
            self._dead |= {lane.run for lane in lanes}
            self.outages.append(Outage(kind, at, lanes))

    def database_stopped(self, kind: str) -> None:
        with self._lock:
            self._database_stopped = True
            self.outages.append(Outage(kind, time.monotonic(), database=True))

    def database_started(self) -> None:
        self._database_stopped = False

    def stuck_longest_s(self) -> dict[str, tuple[int, float]]:
        """Of each reason why a row was shown: how many rows, and the longest time that one was, in seconds."""
        longest: dict[str, tuple[int, float]] = {}
        for row, shown_s in self.stuck_seen.items():
            rows_before, longest_s = longest.get(code := row.split()[-1], (0, 0.0))
            longest[code] = rows_before + 1, max(longest_s, round(shown_s, 1))
        return longest

    def open_outages(self) -> list[Outage]:
        return [outage for outage in self.outages if outage.resumed_at is None]

    def run(self) -> None:
        next_stuck = 0.0
        while not self._end.wait(SAMPLE_S):
            if self._database_stopped:
                continue
            try:
                self._sample()
                if time.monotonic() >= next_stuck:
                    next_stuck = time.monotonic() + STUCK_EVERY_S
                    self._look_for_stuck()
            except (psycopg.Error, Error):
                connection.close()  # this thread's, for the query of P6
        connection.close()

    def _sample(self) -> None:
        now = time.monotonic()
        url = self.desk.url
        lanes = tuple(Lane(*row) for row in rows(url, _LANES))
        held = {row[0] for row in rows(url, _HELD)}
        last_event = int(rows(url, _LAST_EVENT)[0][0])
        self.states = dict(rows(url, "SELECT state, count(*) FROM jobs_job GROUP BY 1"))
        with self._lock:
            self.lanes = lanes
            taken = {lane.slot for lane in lanes if lane.run not in self._dead}
            for outage in self.open_outages():
                if outage.at < now and outage.is_over(
                    taken=taken, held=held, last_event=last_event
                ):
                    outage.resumed_at = time.monotonic()
                    logger.info(
                        "resumed after %.1f s: %s, slots %s (taken after %.1f s)",
                        outage.resumed_at - outage.at,
                        outage.kind,
                        [lane.slot for lane in outage.lanes],
                        (outage.taken_at or outage.resumed_at) - outage.at,
                    )

    def _look_for_stuck(self) -> None:
        found = [f"{one.kind} {one.id} {one.code}" for one in stuck(now=clock.now())]
        now = time.monotonic()
        self._shown_since = {row: self._shown_since.get(row, now) for row in found}
        for row, since in self._shown_since.items():
            self.stuck_seen[row] = max(self.stuck_seen.get(row, 0.0), now - since)
        if found != self.stuck_now:
            logger.info("stuck: %s", dict(Counter(row.split()[-1] for row in found)))
        self.stuck_now = found
        self.looks += 1


def resumed_times(outages: list[Outage]) -> dict[str, list[float]]:
    """Seconds from each blow to resumed work, by kind, sorted."""
    times: dict[str, list[float]] = {}
    for outage in outages:
        if outage.resumed_at is not None:
            times.setdefault(outage.kind, []).append(round(outage.resumed_at - outage.at, 1))
    return {kind: sorted(found) for kind, found in sorted(times.items())}


def taken_times(outages: list[Outage]) -> list[float]:
    """Seconds from each blow to lanes to another run in the last of their slots, sorted."""
    return sorted(round(one.taken_at - one.at, 1) for one in outages if one.taken_at is not None)


# --- the verdict ------------------------------------------------------------------------------------------------------


def broken(desk: RealDesk, orders: list[tuple[str, int, bool]]) -> dict[str, list[str]]:
    """What breaks a promise at the end, by promise; empty lists where all is well.

    `orders`: (reference, jobs, acknowledged). What was acknowledged exists once; what was not exists once or not at all.
    """
    return {
        "money": desk.wrong(),
        "jobs_lost": _lost_jobs(desk, orders),
        "files": _bad_files(desk),
        "stuck": _stuck_by_command(desk),
        "unfinished": [
            f"job {pk} is {state}"
            for pk, state in desk.ask(
                "SELECT id, state FROM jobs_job WHERE state IN ('pending', 'active') ORDER BY 1"
            )
        ],
        "holds": [
            f"{kind}: {reason}"
            for kind, reason in desk.ask(
                "SELECT kind, reason FROM jobs_hold WHERE lifted_at IS NULL"
            )
        ],
        # None of these is the provider's doing; a blow alone must not bring them about.
        "cases": [
            f"{kind} of job {job}, task {task}: {json.dumps(detail)[:500]}"
            for kind, job, task, detail in desk.ask(
                "SELECT kind, job_id, task_id::text, detail FROM jobs_case"
                " WHERE kind IN ('conflict', 'orphan', 'restore', 'paid_twice')"
            )
        ],
    }


def _lost_jobs(desk: RealDesk, orders: list[tuple[str, int, bool]]) -> list[str]:
    there = Counter(
        dict(
            desk.ask(
                "SELECT split_part(reference, '-', 1), count(*) FROM jobs_job WHERE reference <> '' GROUP BY 1"
            )
        )
    )
    return [
        f"{reference}: {there[reference]} of {count} jobs, {'acknowledged' if told else 'not acknowledged'}"
        for reference, count, told in orders
        if there[reference] != count and (told or there[reference])
    ]


def _bad_files(desk: RealDesk) -> list[str]:
    media = Path(desk.environment["MEDIA_ROOT"])
    bad = []
    for key, digest in desk.ask("SELECT key, sha256 FROM jobs_result ORDER BY id"):
        path = media / key
        if not path.is_file():
            bad.append(f"{key} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            bad.append(f"{key} has other bytes")
    return bad


def _stuck_by_command(desk: RealDesk) -> list[str]:
    done = subprocess.run(
        [sys.executable, "manage.py", "stuck", "--json"],
        cwd=PROJECT, env=desk.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not done.stdout:
        return [f"manage.py stuck failed: {done.stderr[-500:]}"]
    told: dict[str, Any] = json.loads(done.stdout)
    return [f"{one['kind']} {one['id']} {one['why']}" for one in told["stuck"]]
