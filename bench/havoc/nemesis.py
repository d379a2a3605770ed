"""What is done to a desk, and when: one seed, one schedule."""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import psycopg

from bench import processes
from bench.havoc.crew import Crew, Member
from bench.havoc.disk import Disk
from bench.havoc.watch import Lane, Watch
from bench.postgres import OwnServer, Stop
from bench.proxy import Fault, Proxy

logger = logging.getLogger("chaos")

RETRY_S = 0.5
CLUSTER_MIN = 5  # processes besides main, of a cluster that is up
PATIENCE_S = 180.0  # beyond twice the planned time, on a machine that is too slow for it
GAP_S = 2.0  # between two kills, also where some were put off
# Of a hundred kills so many hit …
KILLS = {"lane": 58, "main": 12, "other": 8, "cluster": 6, "web": 12, "decoder": 4}
# Nobody resolves a name that ends so (RFC 2606).
NOWHERE = "http://provider.invalid/api/v1"

Act = Callable[[], bool]  # False: not possible right now, to be tried again soon


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How often what happens within `seconds`. Times are in seconds."""

    seconds: float
    kills: int  # of single processes or clusters, never of both clusters at once
    blackouts: int  # kills of all of it at once
    long_freezes: int
    freeze_s: tuple[float, float]
    short_freezes: int
    stops: int
    restarts: tuple[tuple[Stop, float], ...]
    cuts: int
    networks: int
    disks: int
    windows_s: tuple[float, float]
    names: int

    def with_kills(self, kills: int) -> Plan:
        """The same density of kills, so the rest is spread over more or less time."""
        return replace(self, kills=kills, seconds=self.seconds * kills / self.kills)


class Nemesis:
    def __init__(
        self,
        plan: Plan,
        *,
        crew: Crew,
        watch: Watch,
        server: OwnServer,
        proxy: Proxy,
        disk: Disk,
        rng: random.Random,
    ) -> None:
        self.plan, self.crew, self.watch, self.server = plan, crew, watch, server
        self.proxy, self.disk, self.rng = proxy, disk, rng
        self.done: Counter[str] = Counter()
        self.kills = 0
        self._last_kill = float("-inf")
        self._number = itertools.count()
        self._due: list[tuple[float, int, str, Act]] = []
        self._begin = time.monotonic()
        self._schedule()

    def over(self) -> bool:
        """Everything is done, or will not be."""
        return not self._due or time.monotonic() - self._begin > 2 * self.plan.seconds + PATIENCE_S

    def waiting(self) -> list[tuple[float, str]]:
        """What is still to come: (seconds from the begin, name), in order."""
        return [(moment, name) for moment, _, name, _ in sorted(self._due, key=lambda due: due[:2])]

    def act(self) -> None:
        """Do what is due by now."""
        now = time.monotonic() - self._begin
        while self._due and self._due[0][0] <= now:
            _, _, name, act = heapq.heappop(self._due)
            if not act():
                self._at(now + RETRY_S, name, act)
            elif name:
                self.done[name] += 1
                logger.info(name)

    # --- the schedule -------------------------------------------------------------------------------------------------

    def _at(self, moment: float, name: str, act: Act) -> None:
        heapq.heappush(self._due, (moment, next(self._number), name, act))

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        def once() -> bool:
            act()
            return True

        self._at(time.monotonic() - self._begin + seconds, "", once)

    def _spread(self, count: int, room_s: float = 0.0) -> list[float]:
        """So many moments, evenly but for chance, each with `room_s` before the end."""
        width = (self.plan.seconds - room_s) / max(count, 1)
        return [(at + self.rng.random() * 0.8) * width for at in range(count)]

    def _schedule(self) -> None:
        self._schedule_kills()
        self._schedule_rests()
        self._schedule_surroundings()

    def _schedule_kills(self) -> None:
        kinds = list(KILLS)
        hits = [kinds[at % len(kinds)] for at in range(min(self.plan.kills, len(kinds)))]
        hits += self.rng.choices(kinds, list(KILLS.values()), k=self.plan.kills - len(hits))
        self.rng.shuffle(hits)
        for moment, hit in zip(self._spread(self.plan.kills), hits, strict=True):
            self._at(moment, f"kill {hit}", getattr(self, f"_kill_{hit}"))

        for moment in self._spread(self.plan.blackouts, 20.0):
            self._at(moment, "blackout", self._black_out)

    def _schedule_rests(self) -> None:
        """Freezes and stops."""
        plan, rng = self.plan, self.rng
        for moment in self._spread(plan.long_freezes):
            self._at(moment, "freeze long", lambda: self._freeze_lane(rng.uniform(*plan.freeze_s)))
        for moment in self._spread(plan.short_freezes):
            self._at(moment, "freeze short", lambda: self._freeze_any(rng.uniform(1.0, 8.0)))
        for moment in self._spread(plan.stops):
            self._at(moment, "stop cluster", self._stop)

    def _schedule_surroundings(self) -> None:
        plan, most_s = self.plan, self.plan.windows_s[1] + 3
        for moment, (how, away_s) in zip(
            self._spread(len(plan.restarts), 25.0), plan.restarts, strict=True
        ):
            self._at(
                moment + 5.0,
                f"postgres {how}",
                lambda how=how, away_s=away_s: self._restart(how, away_s),  # type: ignore[misc]
            )
        for moment in self._spread(plan.cuts):
            self._at(moment, "connections cut", self._cut)
        network = [None, Fault.BLACK_HOLE, Fault.SWALLOW, Fault.RESET_AFTER_REQUEST, Fault.DELAY]
        for number, moment in enumerate(self._spread(plan.networks, most_s)):
            fault = network[number % len(network)]
            self._at(
                moment,
                f"network {fault or 'refused'}",
                lambda fault=fault: self._network(fault),  # type: ignore[misc]
            )
        for number, moment in enumerate(self._spread(plan.disks, most_s)):
            if number % 2 and self.disk.read_only_means is None:
                continue
            name, act = [("disk full", self._fill), ("disk read-only", self._lock)][number % 2]
            self._at(moment, name, act)
        for moment in self._spread(plan.names, 30.0):
            self._at(moment, "name not resolved", self._misname)

    # --- kills --------------------------------------------------------------------------------------------------------

    def _kill(self, pid: int) -> bool:
        """A kill that comes too soon after another, or too late for this process, is put off."""
        if time.monotonic() - self._last_kill < GAP_S or not processes.send(pid, signal.SIGKILL):
            return False
        self._last_kill = time.monotonic()
        self.kills += 1
        return True

    def _kill_lane(self) -> bool:
        lane = self._some_lane()
        if lane is None or not self._kill(lane.pid):
            return False
        self.watch.down("lane", at=time.monotonic(), lanes=(lane,))
        return True

    def _kill_main(self) -> bool:
        cluster = self._some_cluster()
        if cluster is None:
            return False
        return self._hit(cluster, "main", cluster.pid)

    def _hit(self, member: Member, kind: str, pid: int) -> bool:
        before = self.crew.blow(member, kind)
        done = self._kill(pid)
        if done:
            self.crew.hit(member, before)
        return done

    def _kill_other(self) -> bool:
        """Sentinel, pusher, monitor or an idle worker: the cluster ends by itself, or the worker is replaced."""
        cluster = self._some_cluster()
        if cluster is None:
            return False
        busy = {lane.pid for lane in self.crew.lanes_of(cluster)}
        others = [pid for pid in _pythons(cluster.pid) if pid not in busy]
        if not others:
            return False
        return self._hit(cluster, "other", self.rng.choice(others))

    def _kill_cluster(self) -> bool:
        """The whole group at once, as a container that is out of memory."""
        cluster = self._some_cluster()
        if cluster is None:
            return False
        group, done = cluster.pid, self._hit(cluster, "cluster", cluster.pid)
        if done:
            os.killpg(group, signal.SIGKILL)
        return done

    def _black_out(self) -> bool:
        """Everything of the desk at once, as a machine that restarts."""
        blows = [(member, self.crew.blow(member, "blackout")) for member in self.crew.members]
        if not all(member.pid for member, _ in blows):
            return False
        for member, blow in blows:
            self.crew.hit(member, blow)
            os.killpg(member.pid, signal.SIGKILL)
        self._last_kill = time.monotonic()
        self.kills += len(blows)
        return True

    def _kill_web(self) -> bool:
        web = self.crew.web
        if web.process is None:
            return False
        return self._hit(web, "web", web.pid)

    def _kill_decoder(self) -> bool:
        """The process that looks at pictures, of any cluster."""
        decoders = [
            pid
            for cluster in self.crew.clusters
            if cluster.pid
            for pid in set(processes.members(cluster.pid)) - set(_pythons(cluster.pid))
            if pid != cluster.pid
        ]
        return bool(decoders) and self._kill(self.rng.choice(decoders))

    # --- freezes and stops --------------------------------------------------------------------------------------------

    def _freeze_lane(self, seconds: float) -> bool:
        lane = self._some_lane()
        if lane is None or not self.crew.freeze(lane.pid, seconds):
            return False
        self.watch.down("freeze", at=time.monotonic(), lanes=(lane,))
        return True

    def _freeze_any(self, seconds: float) -> bool:
        cluster = self._some_cluster()
        if cluster is None:
            return False
        return self.crew.freeze(self.rng.choice([cluster.pid, *_pythons(cluster.pid)]), seconds)

    def _stop(self) -> bool:
        cluster = self._some_cluster()
        if cluster is None or self.crew.is_frozen(cluster.pid):
            return False
        self.crew.hit(cluster, self.crew.blow(cluster, "stop"))
        return processes.send(cluster.pid, signal.SIGTERM)

    def _misname(self) -> bool:
        """A cluster that is started anew where the provider's name can't be resolved, and again where it can."""
        cluster = self._some_cluster()
        if cluster is None or self.crew.is_frozen(cluster.pid) or cluster.settings:
            return False
        cluster.settings = {"AI_BASE_URL": NOWHERE}

        def mend() -> None:
            cluster.settings = {}
            if cluster.pid:
                self.crew.hit(cluster, self.crew.blow(cluster, "stop"))
                processes.send(cluster.pid, signal.SIGTERM)

        self.crew.hit(cluster, self.crew.blow(cluster, "stop"))
        processes.send(cluster.pid, signal.SIGTERM)
        self._later(25.0, mend)
        return True

    # --- what is around the desk --------------------------------------------------------------------------------------

    def _restart(self, how: Stop, away_s: float) -> bool:
        def back() -> None:
            self.server.start()
            self.watch.database_started()

        self.watch.database_stopped("postgres")
        self.server.stop(how)
        self._later(away_s, back)
        return True

    def _cut(self) -> bool:
        try:
            self.server.cut_connections(self.rng.choice([0.3, 1.0]))
        except psycopg.Error:
            return False
        return True

    def _network(self, fault: Fault | None) -> bool:
        if fault is None:
            self.proxy.refuse()
        else:
            self.proxy.everything = fault
        self._later(self.rng.uniform(*self.plan.windows_s), self._mend_network)
        return True

    def _mend_network(self) -> None:
        self.proxy.everything = None
        self.proxy.listen()

    def _fill(self) -> bool:
        self.disk.fill(
            pid for cluster in self.crew.clusters if cluster.pid for pid in _pythons(cluster.pid)
        )
        self._later(self.rng.uniform(*self.plan.windows_s), self.disk.make_room)
        return True

    def _lock(self) -> bool:
        self.disk.lock()
        self._later(self.rng.uniform(*self.plan.windows_s), self.disk.unlock)
        return True

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _some_lane(self) -> Lane | None:
        groups = {cluster.pid for cluster in self.crew.clusters if cluster.pid}
        found = [
            lane
            for lane in self.watch.lanes
            if not self.crew.is_frozen(lane.pid) and processes.group_of(lane.pid) in groups
        ]
        return self.rng.choice(found) if found else None

    def _some_cluster(self) -> Member | None:
        """Any, while all of them are up: single blows leave the desk a part that works."""
        well = [
            cluster
            for cluster in self.crew.clusters
            if cluster.pid and cluster.blow is None and len(_pythons(cluster.pid)) > CLUSTER_MIN
        ]
        return self.rng.choice(well) if len(well) == len(self.crew.clusters) else None


def _pythons(group: int) -> list[int]:
    """Sentinel, workers, pusher and monitor of a cluster: forks of its main process, unlike the decoders."""
    return [
        pid for pid in processes.members(group) if pid != group and processes.is_fork(pid, group)
    ]
