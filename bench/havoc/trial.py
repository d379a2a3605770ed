"""One chaos run: disturb, let it come to rest, judge. Needs a configured Django; chaos.py is the benchmark."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import processes
from bench.desk import RealDesk
from bench.havoc.crew import Crew
from bench.havoc.customer import Customer
from bench.havoc.disk import Disk
from bench.havoc.nemesis import Nemesis, Plan
from bench.havoc.watch import Watch, broken, resumed_times, taken_times
from bench.postgres import OwnServer
from bench.proxy import Fault, Proxy

LIMIT_S = 90.0
SETTLE_S = 420.0
LANES_START_S = 60.0
MARK = "CHAOS_RUN"  # in the environment of every process of the desk
_OPEN = ("pending", "active")


class Trial:
    """`faults` are the proxy's while there is chaos; the sandbox has its own from its start."""

    def __init__(
        self,
        desk: RealDesk,
        *,
        server: OwnServer,
        proxy: Proxy,
        disk: Disk,
        plan: Plan,
        jobs: int,
        lanes: int,
        faults: Mapping[Fault, float],
        seed: int,
    ) -> None:
        self.desk, self.server, self.proxy, self.disk = desk, server, proxy, disk
        self.plan, self.jobs, self.lanes, self.faults, self.seed = plan, jobs, lanes, faults, seed
        self.watch = Watch(desk)
        self.crew = Crew(desk, self.watch, clusters=2)
        self.customer = Customer(
            desk,
            port=self.crew.web_port,
            total=jobs,
            within_s=plan.seconds * 0.97,
            rng=random.Random(seed),
        )
        self.done: Counter[str] = Counter()
        self.kills = 0
        self.chaos_s = self.took_s = 0.0
        self.settled = False

    def run(self) -> dict[str, list[str]]:
        """What was broken, by promise; empty lists where all is well."""
        begin = time.monotonic()
        with _progress(self.jobs) as self._show:
            self._begin()
            self._chaos()
            self.chaos_s = time.monotonic() - begin
            self._quiet()
            self.customer.end()
            self._last_orders()
            orders = [(one.reference, one.count, one.acknowledged) for one in self.customer.orders]
            found = broken(self.desk, orders)
            self.watch.end()
            self.crew.stop()
        mark = f"{MARK}={self.desk.environment[MARK]}"
        found["ghosts"] = self.crew.ghosts + [
            f"process {pid} after the end"
            for pid in processes.with_mark(mark)
            if pid != os.getpid()
        ]
        found["not_resumed"] = [
            f"{outage.kind}, slots {[lane.slot for lane in outage.lanes]}"
            for outage in self.watch.open_outages()
        ]
        found["not_settled"] = [] if self.settled else [f"within {SETTLE_S:g} s"]
        self.took_s = time.monotonic() - begin
        return found

    # --- the phases ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.watch.start()
        self.customer.start()
        end = time.monotonic() + LANES_START_S
        while len(self.watch.lanes) < self.lanes and time.monotonic() < end:
            self._tend("starting")

    def _chaos(self) -> None:
        nemesis = Nemesis(
            self.plan, crew=self.crew, watch=self.watch, server=self.server, proxy=self.proxy, disk=self.disk,
            rng=random.Random(self.seed),
        )  # fmt: skip
        self.proxy.shares = self.faults
        while not nemesis.over() or self.customer.created < self.jobs:
            nemesis.act()
            self.kills = nemesis.kills
            self._tend(f"{nemesis.kills} of {self.plan.kills} kills")
        self.done = nemesis.done

    def _quiet(self) -> None:
        """No disturbance any more: until every job has ended, all work is resumed and nothing is stuck."""
        self.proxy.shares = {}
        self.desk.sandbox.faults()
        self.crew.thaw_all()
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end and not self.settled:
            self._tend("quiet")
            states = self.watch.states
            self.settled = (
                sum(states.values()) >= self.jobs
                and sum(states.get(state, 0) for state in _OPEN) <= 1  # the newest order
                and not self.watch.open_outages()
                and not self.watch.stuck_now
                and self.crew.all_gone()
            )

    def _last_orders(self) -> None:
        """Those of the quiet time end too."""
        end = time.monotonic() + LIMIT_S
        while any(self.desk.states().get(state) for state in _OPEN) and time.monotonic() < end:
            self._tend("quiet")

    def _tend(self, what: str) -> None:
        self.crew.tend()
        ended = sum(count for state, count in self.watch.states.items() if state not in _OPEN)
        self._show(what, ended, max(self.jobs, sum(self.watch.states.values())))
        time.sleep(0.1)

    # --- figures ------------------------------------------------------------------------------------------------------

    def figures(self, found: Mapping[str, list[str]]) -> dict[str, Any]:
        times = resumed_times(self.watch.outages)
        everything = sorted(one for kind in times.values() for one in kind)
        slots, stuck = taken_times(self.watch.outages), self.watch.stuck_longest_s()
        summary, ask = self.desk.sandbox.summary(), self.desk.ask
        return {
            "jobs": sum(self.desk.states().values()),
            "kills": self.kills,
            "postgres_restarts": sum(
                times for name, times in self.done.items() if name.startswith("postgres")
            ),
            "broken": {kind: said[:20] for kind, said in found.items() if said},
            "resumed_median_s": statistics.median(everything) if everything else None,
            "resumed_longest_s": max(everything, default=0.0),
            "resumed_by_kind": {
                kind: {"times": len(one), "median_s": statistics.median(one), "longest_s": one[-1]}
                for kind, one in times.items()
            },
            "slot_taken_median_s": statistics.median(slots) if slots else None,
            "slot_taken_longest_s": max(slots, default=None),
            "stuck_longest_s": max((longest for _, longest in stuck.values()), default=0.0),
            "stuck_seen": {
                code: {"rows": count, "longest_s": longest}
                for code, (count, longest) in stuck.items()
            },
            "stuck_looks": self.watch.looks,
            "job_states": self.desk.states(),
            "open_cases": dict(
                ask("SELECT kind, count(*) FROM jobs_case WHERE resolved_at IS NULL GROUP BY 1")
            ),
            "posts": summary["posts"],
            "charges": summary["charges"],
            "sends_of_unknown_outcome": ask(
                "SELECT count(*) FROM jobs_providertask WHERE lost_at IS NOT NULL"
            )[0][0],
            "done": dict(sorted(self.done.items())),
            "proxy_struck": {str(fault): n for fault, n in sorted(self.proxy.struck.items())},
            "disk": f"full: {self.disk.full_means}, read-only: {self.disk.read_only_means or 'not done'}",
            "clusters_ended_by_themselves": self.crew.ends_by_themselves,
            "longest_stop_s": round(max(self.crew.stops_s, default=0.0), 1),
            "longest_after_main_s": round(self.crew.longest_after_main_s, 1),
            "order_longest_s": round(max(self.customer.waits_s, default=0.0), 1),
            "orders_tried_again": self.customer.tried_again,
            "chaos_s": round(self.chaos_s),
            "took_s": round(self.took_s),
        }


class _Show:
    """Called with what is under way and how many jobs of how many have ended."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._bar = progress.add_task("starting", total=total)

    def __call__(self, what: str, ended: int, total: int) -> None:
        self._progress.update(self._bar, description=what, completed=ended, total=total)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[_Show]:
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs ended"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Show(progress, total)
