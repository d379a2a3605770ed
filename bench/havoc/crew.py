"""Keeps clusters and web running, as a service manager does, and sees that nothing of theirs lives on."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench import processes
from bench.desk import RealDesk
from bench.havoc.watch import Lane, Watch

logger = logging.getLogger("chaos")

RESTART_S = 1.0
# A lane whose parents are dead drains and then ends itself, 11.5 s later at the most; the rest is the machine's.
GHOST_S = 20.0
SURVIVED_S = 25.0  # a part that still runs so long after a blow was not ended by it


@dataclass(slots=True)
class Blow:
    kind: str
    at: float
    lanes: tuple[Lane, ...]


@dataclass(slots=True)
class Member:
    """A part that is always started again. `settings` are what its next start differs in."""

    name: str
    start: Callable[[dict[str, object]], subprocess.Popen[bytes]]
    settings: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    back_at: float = 0.0
    blow: Blow | None = None  # the first that it was dealt since its start

    @property
    def pid(self) -> int:
        """Of the main process, which is also the group's number; 0 where it does not run."""
        return self.process.pid if self.process is not None else 0


class Crew:
    def __init__(self, desk: RealDesk, watch: Watch, *, clusters: int) -> None:
        self.desk, self.watch = desk, watch
        self.web_port = _free_port()
        self.clusters = [
            Member(f"cluster {number}", lambda settings: desk.start_cluster(**settings))
            for number in range(clusters)
        ]
        self.web = Member("web", lambda _settings: desk.start_web(self.web_port))
        self.ghosts: list[str] = []
        self.ends_by_themselves = 0
        self.longest_after_main_s = 0.0
        self.stops_s: list[float] = []
        self._leaving: dict[int, float] = {}  # group -> since when it should go
        self._frozen: dict[int, float] = {}  # pid -> until
        self._looked_at = 0.0

    @property
    def members(self) -> list[Member]:
        return [*self.clusters, self.web]

    def lanes_of(self, member: Member) -> tuple[Lane, ...]:
        """Lanes that ran in it when the watch last looked."""
        return tuple(
            lane for lane in self.watch.lanes if processes.group_of(lane.pid) == member.pid != 0
        )

    def blow(self, member: Member, kind: str) -> Blow:
        """A blow that is about to be dealt: now its lanes can still be told."""
        return Blow(kind, time.monotonic(), self.lanes_of(member))

    @staticmethod
    def hit(member: Member, blow: Blow) -> None:
        """Note what will have ended it; the first counts."""
        member.blow = member.blow or blow

    def freeze(self, pid: int, seconds: float) -> bool:
        done = processes.send(pid, signal.SIGSTOP)
        if done:
            self._frozen[pid] = time.monotonic() + seconds
        return done

    def is_frozen(self, pid: int) -> bool:
        return pid in self._frozen

    def tend(self) -> None:
        """Often: start what has ended, thaw what was frozen long enough, look for ghosts."""
        now = time.monotonic()
        for pid, until in list(self._frozen.items()):
            if now >= until:
                processes.send(pid, signal.SIGCONT)
                del self._frozen[pid]
        for member in self.members:
            if member.process is not None and member.process.poll() is not None:
                self._ended(member, now)
            if member.blow is not None and now - member.blow.at > SURVIVED_S:
                member.blow = None
            if member.process is None and now >= member.back_at:
                member.process = member.start(member.settings)
                logger.info("%s started", member.name)
        if now - self._looked_at >= 1.0:
            self._looked_at = now
            self._look_for_ghosts(now)

    def _ended(self, member: Member, now: float) -> None:
        assert member.process is not None
        blow = member.blow
        logger.info("%s ended by %s", member.name, blow.kind if blow else "itself")
        if blow is None:
            self.ends_by_themselves += 1
        elif blow.lanes:
            self.watch.down(blow.kind, at=blow.at, lanes=blow.lanes)
        if blow is not None and blow.kind == "stop":
            self.stops_s.append(now - blow.at)
        self._leaving[member.process.pid] = now
        member.process, member.blow, member.back_at = None, None, now + RESTART_S

    def _look_for_ghosts(self, now: float) -> None:
        for group, since in list(self._leaving.items()):
            left = processes.members(group)
            if not left:
                del self._leaving[group]
            elif any(pid in self._frozen for pid in left):
                self._leaving[group] = now  # once it is let go
            elif now - since > GHOST_S:
                self.ghosts += [f"process {pid} of group {group}" for pid in left]
                del self._leaving[group]
            else:
                self.longest_after_main_s = max(self.longest_after_main_s, now - since)

    def all_gone(self) -> bool:
        """Whether every group that should go has gone."""
        return not self._leaving

    def thaw_all(self) -> None:
        self._frozen = dict.fromkeys(self._frozen, 0.0)

    def stop(self) -> None:
        """SIGTERM to all, and nothing is started again."""
        for member in self.members:
            if member.process is not None:
                member.process.terminate()
        for member in self.members:
            if member.process is not None:
                self._leaving[member.process.pid] = time.monotonic()
                member.process.wait(30)
        end = time.monotonic() + GHOST_S + 2
        while self._leaving and time.monotonic() < end:
            self._look_for_ghosts(time.monotonic())
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
