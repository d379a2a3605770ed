"""What goes wrong. Each seed gets a plan: a few kinds of trouble, rather often, and none of the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, OperationalError, connections, transaction

from bench.sim import receivers
from bench.sim.chance import Chance
from bench.sim.desk import Desk
from bench.sim.turns import Actor, Killed
from jobs.lifecycle import batches, providers, staff
from jobs.lifecycle.errors import Refused
from jobs.models import Batch, ProviderTask
from providers import registry
from providers.models import ProviderState, QuotaWindow, Target
from providers.sandbox.faults import CATALOGUE, Stage

# Rates: at each gate for what may happen there, at each step for what comes from outside.
RATES = {
    "kill": 0.006,
    "kill idle": 0.002,
    "freeze": 0.01,
    "interrupt": 0.08,
    "ambush": 0.5,
    "late": 0.1,
    "freeze idle": 0.002,
    "drain": 0.001,
    "database outage": 0.002,
    "deadlock": 0.01,
    "commit lost": 0.01,
    "record twice": 0.05,
    "decide lost": 0.05,
    "decide twice": 0.05,
    "wall clock": 0.003,
    "suspension": 0.0007,
    "provider outage": 0.003,
    "storage": 0.002,
    "red button": 0.002,
    "target closed": 0.002,
    "staff": 0.02,
    "duty": 0.004,
    "batch": 0.015,
    "bulk": 0.01,
    "statement": 0.012,
    "key rotation": 0.0007,
    "lost disk": 0.001,
    "restore": 0.0015,
}
SHARES = {
    "restore": 0.06,
    "key rotation": 0.15,
    "lost disk": 0.15,
    "ambush": 0.7,
    "batch": 0.4,
    "bulk": 0.35,
    "statement": 0.3,
}  # of the seeds; others 0.45
_NOT_SIMULATED = {"result_oversize", "result_bomb", "slow_drip"}
_LASTING = {"never", "unknown_final", "lost", "lost_later", "vanished", "failed_then_completed"}
_SHARES = (0.05, 0.1, 0.2, 0.35)


def plan(chance: Chance, person: Any) -> dict[str, Any]:
    """What this seed is like."""
    rates = {
        name: rate if chance.number(f"plan/{name}") < SHARES.get(name, 0.45) else 0.0
        for name, rate in RATES.items()
    }
    # Short schedules seldom see ten bad outcomes: in these a breaker opens at the second in a row, and for seconds.
    fragile = chance.number("plan/fragile") < 0.35
    if fragile:
        rates["provider outage"] = 0.01
    echo = chance.number("plan/echo") < 0.6
    lag_s = chance.pick("plan/lag", (0.0, 0.0, 5.0, 40.0))
    known = chance.number("plan/facts known") < 0.85
    return {
        "person": person,
        "rates": rates,
        "fragile": fragile,
        "jobs": 3 + int(chance.number("plan/jobs", 0, 4)),
        "lanes": chance.pick("plan/lanes", (1, 2, 2, 3)),
        "hosts": chance.pick("plan/hosts", (1, 1, 2)),
        "slice_s": chance.pick("plan/slice", (20.0, 60.0, 60.0, 600.0)),
        "trouble": chance.pick("plan/network", (0.0, 0.0, 0.1, 0.4)),
        "latency_s": chance.pick("plan/latency", (3.0, 8.0, 30.0)),
        "poll_s": chance.pick("plan/poll", (3.0, 3.0, 10.0)),
        "concurrency": chance.pick("plan/concurrency", (1, 2, 3, 6)),
        "tenant_limit": chance.pick("plan/tenant", (None, None, 2)),
        "target_limit": chance.pick("plan/target", (None, None, 2)),
        # A ceiling is 7.50, a cost 5: with 13 a second send must wait for the cost of the first, with 24 three may go at once.
        "budget": chance.pick("plan/budget", (None, None, None, None, 13, 24)),
        "windows": chance.pick("plan/windows", ((), (), ((60, 1),), ((60, 2),), ((300, 3), (60, 2)), ((None, 1),))),
        "lineup": _lineup(chance),
        "callback_url": receivers.ADDRESS if chance.number("plan/callbacks") < 0.3 else "",
        "webhooks": frozenset({"fal", "polza"} if chance.number("plan/webhooks") < 0.4 else ()),
        "fallback": chance.number("plan/fallback") < 0.4,
        "standing": [what for what in ("resend_unknown", "next_after_charged")
                     if chance.number(f"plan/{what}") < 0.12],
        "echoes": echo if known else None,
        "lag_s": lag_s if known else None,
        "exclusive": not echo and chance.number("plan/exclusive") < 0.5,
        "world": {"echo": echo, "history_lag_s": lag_s, "faults": _faults(chance)},
    }  # fmt: skip


def _lineup(chance: Chance) -> tuple[str, str]:
    """Who makes the pictures of the first target, and who those of the fallback."""
    others = [one.name for one in registry.REGISTERED if one.name != "polza"]
    if not others or chance.number("plan/lineup") < 0.55:
        return "polza", "polza"
    first, second = (chance.pick(f"plan/lineup {n}", ("polza", *others)) for n in (1, 2))
    return first, second


def _faults(chance: Chance) -> dict[str, float]:
    """A few of the sandbox's faults by share; never the deceptive ones, which no client can survive."""
    shares: dict[str, float] = {}
    by_stage: dict[Stage, list[str]] = {}
    for name, fault in sorted(CATALOGUE.items()):
        if not fault.deceptive and name not in _NOT_SIMULATED:
            by_stage.setdefault(fault.stage, []).append(name)
    for stage, names in by_stage.items():
        most = 2 if stage in {Stage.SUBMIT, Stage.FATE} else 1
        for number in range(most):
            if chance.number(f"plan/fault {stage} {number}") < 0.5:
                name = chance.pick(f"plan/fault name {stage} {number}", names)
                share = chance.pick(f"plan/fault share {stage} {number}", _SHARES)
                shares[name] = min(share, 0.1) if name in _LASTING else share
    return shares


class Nemesis:
    """Strikes at gates and between steps until it is told to be quiet."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.turns, self.chance, self.rates = desk.turns, desk.chance, desk.plan["rates"]
        self.quiet = False
        self.restored = False
        self.interrupt: Callable[[], None] = lambda: None
        self._dump: list[str] | None = None
        self._outside = {
            "kill idle": self._kill_idle,
            "freeze idle": self._freeze_idle,
            "drain": self._drain,
            "database outage": self._database_outage,
            "wall clock": self._wall_clock,
            "suspension": self._suspension,
            "provider outage": self._provider_outage,
            "storage": self._storage,
            "red button": self._red_button,
            "target closed": self._target_closed,
            "duty": self._on_duty,
            "key rotation": self._rotate_key,
            "lost disk": self._lose_disk,
            "restore": self._dump_or_restore,
        }

    def at_gate(self, kind: str, statement: str) -> None:
        """Called inside a lane's (or a person's) database work."""
        actor = self.turns.current
        if self.quiet or actor is None:
            return
        if actor in self.desk.workers:
            self._may_die(actor, kind, statement)
        # Staff's own requests fail by themselves often enough.
        if actor not in self.desk.lanes:
            return
        self._may_die(actor, kind, statement)
        if kind in {"after commit", "after claim", "after arm"}:
            if self.chance.strikes("commit lost", self.rates["commit lost"]):
                self.turns.tell("the answer to its COMMIT is lost")
                raise OperationalError("server closed the connection unexpectedly")
            self._maybe_freeze(actor, f"after a commit ({statement})")
            if self.chance.strikes("interrupt", self.rates["interrupt"]):
                # Between two of its transactions: a person is quicker.
                actor.frozen_until = max(actor.frozen_until, self.turns.now + 2.0)
                self.interrupt()
            if kind == "after claim" and self.chance.strikes("ambush", self.rates["ambush"]):
                self._ambush(actor)
            if kind == "after arm" and self.chance.strikes("late", self.rates["late"]):
                # Beyond the fence, at times so long that its send is called lost before it is made.
                self._stand_still(
                    actor, self.chance.number("late/for", 5, 300), "with a send in its hands"
                )
        elif kind == "statement" and self.chance.strikes("deadlock", self.rates["deadlock"]):
            self.turns.tell(f"deadlock in {statement}")
            raise OperationalError("deadlock detected")

    def _may_die(self, actor: Actor, kind: str, statement: str) -> None:
        if kind != "read" and self.chance.strikes("kill", self.rates["kill"]):
            self._kill(actor, f"{kind} of {statement}")
            raise Killed

    def _ambush(self, actor: Actor) -> None:
        """Between claim and arm, where all that arm looks at may change."""
        ways: dict[str, Callable[[], None]] = {
            "cancel": self._cancel_newest,
            "red button": self._red_button,
            "close": self._target_closed,
            "pause": self._pause,
        }
        way = self.chance.pick("ambush/way", (*ways, "freeze"))
        if way == "freeze":
            # Long enough to be called dead: another lane withdraws what it has claimed.
            self._stand_still(actor, self.chance.number("ambush/for", 40, 200), "after its claim")
            return
        actor.frozen_until = max(actor.frozen_until, self.turns.now + 2.0)
        self.turns.start("a person", self._unless_quiet(ways[way]))
        undo = {"red button": self._red_button, "close": self._target_closed, "pause": self._pause}
        if way in undo:
            self.turns.after(
                self.chance.number("ambush/undo", 5, 60), self._unless_quiet(undo[way])
            )

    def _unless_quiet(self, act: Callable[[], None]) -> Callable[[], None]:
        """What the database does not take at that moment has no effect."""

        def do() -> None:
            if not self.quiet:
                with contextlib.suppress(Refused, DatabaseError):
                    act()

        return do

    def _cancel_newest(self) -> None:
        task = ProviderTask.objects.filter(state="intent").order_by("-created_at", "-pk").first()
        if task is not None:
            staff.cancel(
                job_id=task.job_id, actor=self.desk.plan["person"], now=self.desk.clock.moment()
            )
            self.turns.tell(f"cancel of job {task.job_id}")

    def _pause(self) -> None:
        """Pauses the account, or resumes it."""
        common: dict[str, Any] = {
            "account_id": self.desk.account_row.pk,
            "actor": None,
            "now": self.desk.clock.moment(),
        }
        try:
            providers.resume(**common)
            self.turns.tell("the account is resumed")
        except Refused:
            providers.pause(**common, reason="simulated")
            self.turns.tell("the account is paused")

    def _on_duty(self) -> None:
        """Whoever is on duty blocks, unblocks, or wants to know now; on the account or one of its models."""
        now, account_id = self.desk.clock.moment(), self.desk.account_row.pk
        model = self.chance.pick("duty/where", ("", self.desk.targets[0].model))
        common: dict[str, Any] = {
            "account_id": account_id,
            "model": model,
            "actor": None,
            "now": now,
        }
        until = now + timedelta(seconds=self.chance.number("duty/until", 10, 300))
        verbs: dict[str, Callable[[], None]] = {
            "block": lambda: providers.block_until(**common, until=until),
            "unblock": lambda: providers.unblock(**common),
            "probe": lambda: providers.probe_now(**common),
        }
        verb = self.chance.pick("duty/verb", sorted(verbs))
        with contextlib.suppress(Refused):
            verbs[verb]()
            self.turns.tell(f"{verb} of {model or 'the account'}")

    def _maybe_freeze(self, actor: Actor, where: str) -> None:
        if self.chance.strikes("freeze", self.rates["freeze"]):
            self._stand_still(actor, self.chance.number("freeze/for", 20, 400), where)

    def _stand_still(self, actor: Actor, seconds: float, where: str) -> None:
        self.turns.tell(f"stands still for {seconds:.0f} s {where}")
        actor.frozen_until = self.turns.now + seconds

    def _kill(self, actor: Actor, where: str) -> None:
        self.turns.tell(f"is killed {where}")
        actor.dead = True
        self.desk.lanes.pop(actor, None)

    def between_steps(self) -> None:
        """What comes from outside."""
        if self.quiet:
            return
        for name, act in self._outside.items():
            if self.chance.strikes(name, self.rates[name]):
                act()

    def _somebody(self) -> Actor | None:
        lanes = list(self.desk.lanes)
        return self.chance.pick("victim", lanes) if lanes else None

    def _kill_idle(self) -> None:
        if (victim := self._somebody()) is not None:
            self.turns.tell(f"kill -9 of {victim.name}")
            self._end(victim)

    def _end(self, victim: Actor) -> None:
        victim.dead = True
        victim.wake_at = self.turns.now
        self.desk.lanes.pop(victim)

    def _freeze_idle(self) -> None:
        if (victim := self._somebody()) is not None:
            seconds = self.chance.number("freeze idle/for", 20, 400)
            self.turns.tell(f"{victim.name} stands still for {seconds:.0f} s")
            victim.frozen_until = self.turns.now + seconds

    def _drain(self) -> None:
        if (victim := self._somebody()) is not None:
            self.turns.tell(f"{victim.name} is told to stop")
            victim.inbox.append(victim.stop)

    def _database_outage(self) -> None:
        seconds = self.chance.number("database outage/for", 1, 40)
        self.turns.tell(f"the database is away for {seconds:.0f} s")
        self.desk.database.down_until = self.turns.now + seconds

    def _wall_clock(self) -> None:
        # As NTP does it. More than the margins of the absence rule is beyond the promise.
        self.desk.clock.wall_offset_s = self.chance.number("wall clock/to", -4, 4)
        self.turns.tell(f"the wall clock is set to {self.desk.clock.wall_offset_s:+.1f} s")

    def _suspension(self) -> None:
        seconds = self.chance.number("suspension/for", 600, 8000)
        self.turns.tell(f"all of us stand still for {seconds:.0f} s")
        for actor in self.turns.actors:
            actor.frozen_until = max(actor.frozen_until, self.turns.now + seconds)

    def _provider_outage(self) -> None:
        kind = self.chance.pick("provider outage/kind", ("502_html", "reset", "hang", "503", "cut"))
        scope = self.chance.pick("provider outage/scope", ("posts", "api", "all"))
        self.turns.tell(f"the provider's {scope} fail with {kind}")
        seconds = self.chance.number("provider outage/for", 5, 300)
        self.desk.world.start_outage(kind, seconds=seconds, scope=scope)

    def _storage(self) -> None:
        self.desk.storage_fails = not self.desk.storage_fails
        self.turns.tell(
            "the disk is full" if self.desk.storage_fails else "the disk has room again"
        )

    def _target_closed(self) -> None:
        target = self.chance.pick("target closed/which", self.desk.targets)
        row = Target.objects.filter(pk=target.pk)
        opened = row.filter(enabled=False).update(enabled=True)
        if not opened:
            row.update(enabled=False)
        self.turns.tell(f"target {target.model} is {'opened' if opened else 'closed'}")

    def _rotate_key(self) -> None:
        self.desk.rotate_key()
        self.turns.tell("a new key is set")

    def _lose_disk(self) -> None:
        """A host's disk is gone for good; somebody says so."""
        self.desk.lose_disk()

    def _red_button(self) -> None:
        now = self.desk.clock.moment()
        try:
            staff.lift_red_button(actor=None, now=now, reason="simulated")
            self.turns.tell("the red button is lifted")
        except Refused:
            staff.press_red_button(actor=None, now=now, reason="simulated")
            self.turns.tell("the red button is pressed")

    def _dump_or_restore(self) -> None:
        """A dump; the second time it is restored, and everything since is forgotten."""
        if self.restored:
            return
        with connections["default"].cursor() as cursor:
            if self._dump is None:
                self.turns.tell("a dump is taken")
                self._dump = []
                for table in _dumped_tables(cursor):
                    cursor.execute(
                        f"CREATE TABLE dump.{table} AS TABLE public.{table}"
                    )  # names from pg_tables
                    self._dump.append(table)
                return
            self.turns.tell("the dump is restored; all lanes are restarted")
            for actor in list(self.desk.lanes):
                self._end(actor)
            # Their triggers judge what lanes do, not what a restore does. Foreign keys are checked at its end.
            for table in self._dump:
                cursor.execute(f"ALTER TABLE public.{table} DISABLE TRIGGER USER")
            with transaction.atomic():
                for table in self._dump:
                    cursor.execute(f"DELETE FROM public.{table}")
                    columns = _plain_columns(cursor, table)
                    cursor.execute(
                        f"INSERT INTO public.{table} ({columns}) SELECT {columns} FROM dump.{table}"
                    )
            for table in self._dump:
                cursor.execute(f"ALTER TABLE public.{table} ENABLE TRIGGER USER")
            self.restored = True
            self.desk.reach_account()  # as whoever starts does first

    def be_quiet(self) -> None:
        """From now on everything works, and what people had closed they open again."""
        self.quiet = True
        desk = self.desk
        self.rates.update(dict.fromkeys(self.rates, 0.0))
        desk.network.trouble = 0.0
        desk.storage_fails = False
        desk.database.down_until = 0.0
        desk.clock.wall_offset_s = 0.0
        desk.world.stop_outage()
        desk.world.configure({"faults": {}})
        self.open_up()
        for actor in self.turns.actors:
            actor.frozen_until = min(actor.frozen_until, self.turns.now + 30)

    def open_up(self) -> None:
        """Whatever people have closed; also what one of them, who stood still, closed after the quiet had begun."""
        desk = self.desk
        Target.objects.update(enabled=True, stopped_at=None, stopped_reason="")
        with contextlib.suppress(Refused):
            staff.lift_red_button(actor=None, now=desk.clock.moment(), reason="simulated")
        for batch in Batch.objects.filter(paused_at__isnull=False):
            batches.resume(batch_id=batch.pk, actor=None, now=desk.clock.moment())
        QuotaWindow.objects.all().delete()
        desk.plan["windows"] = ()
        for paused in ProviderState.objects.filter(state="paused"):
            providers.resume(
                account_id=paused.account_id,
                model=paused.model,
                actor=None,
                now=desk.clock.moment(),
            )


def _dumped_tables(cursor: Any) -> list[str]:
    cursor.execute("DROP SCHEMA IF EXISTS dump CASCADE")
    cursor.execute("CREATE SCHEMA dump")
    cursor.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND (tablename LIKE 'jobs\\_%%' OR"
        " tablename LIKE 'providers\\_%%') ORDER BY 1"
    )
    return [name for (name,) in cursor.fetchall()]


def _plain_columns(cursor: Any, table: str) -> str:
    cursor.execute(
        "SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position) FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = %s AND is_generated = 'NEVER'",
        [table],
    )
    return str(cursor.fetchone()[0])
