"""Runs the plan of bench.evidence on real processes, and reads what became of it. Needs a configured Django."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import processes
from bench.desk import RealDesk, until
from bench.evidence_judge import Ledger, Sent
from bench.evidence_worlds import MODEL, Burst, Group, Size, World, family, key
from jobs.clock import clock
from jobs.lifecycle import create
from providers.contract import Kind
from providers.models import Account, Target
from providers.registry import fingerprint
from providers.sandbox.server import Sandbox

CANARY_EVERY_S = 6.0
# Where a lone candidate may be linked, sends go out all the time, so that some are under way at every look.
CANARY_BESIDE_S = 1.0
STRANGER_EVERY_S = 4.0
LOOK_EVERY_S = 1.0
TICK_S = 0.2
# A kill waits until so many POSTs stand open in one worker, or some for so long.
VICTIMS, LONG_OPEN_S = 6, 1.5
KILL_WITHIN_S = 60.0
CALM_S = 3.0  # before a kill, accounts that must have one lost send alone are left in peace
STARTED_S = 0.5  # a POST that was armed so long ago is on its way


def _kills(burst: Burst) -> bool:
    return burst.reference.startswith("kill")


@dataclass(slots=True)
class Trial:
    desk: RealDesk
    size: Size
    accounts: Sequence[World]
    sandboxes: Mapping[str, Sandbox]
    plan: list[Burst]
    kills: int = 0
    canaries: int = 0
    in_time: bool = False
    took_s: float = 0.0
    _targets: dict[str, Target] = field(default_factory=dict)
    _kill_at: dict[str, float] = field(default_factory=dict)  # reference -> when at the latest
    _canary_at: dict[str, float] = field(default_factory=dict)
    _stranger_at: float = 0.0
    _begin: float = 0.0

    def run(self) -> None:
        """Until the last send of unknown outcome is settled or a case, or the time is up."""
        self._rows()
        self.desk.start_cluster()
        until(self.desk.lanes, "a lane")
        with _progress() as show:
            self._begin = time.monotonic()
            self._traffic(show)
            self._rest(show)
            self.took_s = self._now()

    def _rows(self) -> None:
        """The accounts as if `smoke` had measured them, and a target at each."""
        for world in self.accounts:
            Account.objects.create(
                provider=world.name, fingerprint=fingerprint(key(world.name)), created_at=clock.now(),
                echoes_id=world.echoes, history_lag_s=world.lag_s, exclusive=world.exclusive,
            )  # fmt: skip
            self._targets[world.name] = Target.objects.create(
                provider=world.name, model=MODEL, kind=Target.Kind.TEXT, price=Decimal(8)
            )

    def _now(self) -> float:
        return time.monotonic() - self._begin

    # --- sending ------------------------------------------------------------------------------------------------------

    def _traffic(self, show: _Show) -> None:
        left = list(self.plan)
        seen_at = 0.0
        while left or self._kill_at:
            now = self._now()
            due = [burst for burst in left if burst.at_s <= now]
            left = left[len(due) :]
            self._send(due)
            self._kill_at |= {
                burst.reference: now + KILL_WITHIN_S for burst in due if _kills(burst)
            }
            self._kill()
            self._stranger()
            if now - seen_at >= LOOK_EVERY_S:
                seen_at = now
                unsettled = self._look(show, "sending")
                soon = any(burst.at_s <= now + CALM_S for burst in left if _kills(burst))
                if not self._kill_at and not soon:
                    # The others have traffic of their own. A canary that is killed would be a second lost send.
                    self._canary({name for name in unsettled if family(name) == "alone"})
            time.sleep(TICK_S)
        for sandbox in self.sandboxes.values():
            # What is sent from now on only shows that the listings are fresh.
            faults: dict[str, float] = sandbox.read("settings")["faults"]
            sandbox.faults(**{name: share for name, share in faults.items() if name.startswith("history")})  # fmt: skip

    def _send(self, bursts: Sequence[Burst]) -> None:
        jobs = [
            create.NewJob(
                prompt=burst.prompt,
                route=[self._targets[burst.world]],
                kind=Kind.TEXT,
                reference=burst.reference,
            )
            for burst in bursts
            for _ in range(burst.count)
        ]
        if jobs:
            create.create_jobs(
                jobs=jobs, tenant=create.default_tenant(), actor=None, now=clock.now()
            )

    def _canary(self, accounts: set[str]) -> None:
        now = self._now()
        due = [name for name in sorted(accounts) if now >= self._canary_at.get(name, 0.0)]
        for name in due:
            every_s = CANARY_BESIDE_S if family(name) == "alone" else CANARY_EVERY_S
            self._canary_at[name] = now + every_s
        self._send([Burst(now, name, f"a canary, {name}", 1, "canary") for name in due])
        self.canaries += len(due)

    def _stranger(self) -> None:
        """Another program works with the key that is not exclusive."""
        if self._now() < self._stranger_at:
            return
        self._stranger_at = self._now() + STRANGER_EVERY_S
        for world in self.accounts:
            if world.group is Group.NO_ECHO and not world.exclusive:
                self.sandboxes[world.provider].control("plant", key=key(world.name), model=MODEL)

    def _kill(self) -> None:
        """kill -9 of the worker that has most of the marked POSTs open, once their requests have arrived."""
        for reference, at_the_latest in list(self._kill_at.items()):
            found = self.desk.ask(_OPEN_POSTS, STARTED_S, reference)
            if found and (found[0][1] >= VICTIMS or found[0][2] >= LONG_OPEN_S):
                pid = self.desk.lanes().get(found[0][0])
                self.kills += pid is not None and processes.send(pid, signal.SIGKILL)
                del self._kill_at[reference]
            elif self._now() >= at_the_latest:
                del self._kill_at[reference]

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _rest(self, show: _Show) -> None:
        """Traffic goes on at every account that still has a send of unknown outcome."""
        back_at = self._now() + self.size.post_deadline_s + 2.0
        while self._now() < self.size.limit_s and not self.in_time:
            if self.size.dated_back_s and self._now() >= back_at:
                self._date_back()
                back_at = float("inf")
            unsettled = self._look(show, "settling")
            self._canary(unsettled)
            self.in_time = not unsettled and not self._open_jobs()
            time.sleep(LOOK_EVERY_S)

    def _open_jobs(self) -> int:
        states = self.desk.states()
        return states.get("pending", 0) + states.get("active", 0)

    def _look(self, show: _Show, what: str) -> set[str]:
        """The accounts with sends whose outcome nobody knows, and that are no case yet."""
        found = dict(self.desk.ask(_UNSETTLED))
        [[lost, settled]] = self.desk.ask(_LOST)
        show(what, settled, lost)
        return set(found)

    def _date_back(self) -> None:
        """In a quick run, sends that end as cases are made older than they are: half a minute of waiting is left out, and
        every moment of the row with it. None of their worlds settles by its canaries."""
        names = [world.name for world in self.accounts if not world.settles and family(world.name) != "alone"]  # fmt: skip
        self.desk.ask(_DATE_BACK, self.size.dated_back_s, self.size.dated_back_s, self.size.dated_back_s, names)  # fmt: skip

    # --- what became of it --------------------------------------------------------------------------------------------

    def sent(self) -> list[Sent]:
        return [Sent(**dict(zip(_SENT_COLUMNS, row, strict=True))) for row in self.desk.ask(_SENT)]

    def ledger(self) -> Ledger:
        found = Ledger()
        for sandbox in self.sandboxes.values():
            found.add(sandbox.ledger())
        return found

    def other_cases(self) -> dict[str, int]:
        """Cases of other kinds: none of these should come of a lost answer."""
        return dict(self.desk.ask(_OTHER_CASES))

    def breaker_openings(self) -> int:
        return int(self.desk.ask(_OPENINGS)[0][0])


_OPEN_POSTS = """
SELECT t.run_id::text, count(*), extract(epoch FROM max(clock_timestamp() - t.armed_at))::float8
FROM jobs_providertask t JOIN jobs_job j ON j.id = t.job_id
WHERE t.state = 'sending' AND t.armed_at < clock_timestamp() - make_interval(secs => %s) AND j.reference = %s
GROUP BY 1 ORDER BY 2 DESC LIMIT 1
"""
_OTHER_CASES = "SELECT kind, count(*) FROM jobs_case WHERE kind <> 'unknown_send' GROUP BY 1"
_OPENINGS = "SELECT count(*) FROM providers_providerevent WHERE kind = 'opened'"
# Of unknown outcome, and no case. A send that was armed a moment ago is only under way.
_UNSETTLED = """
SELECT a.provider, count(*) FROM jobs_providertask t JOIN providers_account a ON a.id = t.account_id
WHERE (t.state = 'sending' AND t.armed_at < clock_timestamp() - interval '2 seconds')
  OR (t.state = 'unknown' AND NOT EXISTS (
    SELECT 1 FROM jobs_case c WHERE c.task_id = t.id AND c.kind = 'unknown_send' AND c.resolved_at IS NULL))
GROUP BY 1
"""
_LOST = """
SELECT count(*), count(*) FILTER (WHERE t.state <> 'unknown' OR EXISTS (
  SELECT 1 FROM jobs_case c WHERE c.task_id = t.id AND c.kind = 'unknown_send' AND c.resolved_at IS NULL))
FROM jobs_providertask t WHERE t.lost_at IS NOT NULL
"""
_DATE_BACK = """
UPDATE jobs_providertask t
SET armed_at = t.armed_at - make_interval(secs => %s), send_not_after = t.send_not_after - make_interval(secs => %s),
  lost_at = t.lost_at - make_interval(secs => %s)
FROM providers_account a
WHERE a.id = t.account_id AND a.provider = ANY(%s) AND t.state IN ('unknown', 'sending')
"""
_SENT_COLUMNS = (
    "id", "job", "account", "state", "job_state", "provider_id", "armed_at", "send_not_after", "deadline_s", "lag_s",
    "lost_at", "accepted_at", "absent_at", "died", "delivered", "case_at", "case_open",
)  # fmt: skip
_SENT = """
SELECT t.id::text, t.job_id, a.provider, t.state, j.state, coalesce(t.provider_id, ''), t.armed_at, t.send_not_after,
  t.call_deadline_s, a.history_lag_s, t.lost_at, t.accepted_at, t.absent_at,
  t.lost_at IS NOT NULL AND t.evidence -> 'submit' IS NULL,
  EXISTS (SELECT 1 FROM jobs_result r WHERE r.task_id = t.id AND r.id = j.delivered_id), c.opened_at, coalesce(c.open, false)
FROM jobs_providertask t
JOIN jobs_job j ON j.id = t.job_id
JOIN providers_account a ON a.id = t.account_id
LEFT JOIN LATERAL (
  SELECT min(k.opened_at) AS opened_at, bool_or(k.resolved_at IS NULL) AS open
  FROM jobs_case k WHERE k.task_id = t.id AND k.kind = 'unknown_send'
) c ON true
WHERE t.armed_at IS NOT NULL
"""


class _Show:
    """Called with what is under way and how many of how many are settled."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bar = progress.add_task("starting", total=None)

    def __call__(self, what: str, settled: int, lost: int) -> None:
        self._progress.update(self._bar, description=what, completed=settled, total=max(lost, 1))


@contextlib.contextmanager
def _progress() -> Iterator[_Show]:
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sends of unknown outcome settled, or a case"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Show(progress)
