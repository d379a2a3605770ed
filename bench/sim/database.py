"""A database of the simulation's own, the one connection all actors share, and what can go wrong with it.

One connection serves everybody because only one of them moves at a time, and turns change only between transactions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from django.db import OperationalError, connections

from bench.sim.turns import Killed, Turns

TABLES = """
SELECT string_agg(quote_ident(tablename), ', ') FROM pg_tables
WHERE schemaname = 'public' AND (tablename LIKE 'jobs\\_%%' OR tablename LIKE 'providers\\_%%'
  OR tablename LIKE 'django\\_q\\_%%' OR tablename LIKE 'sim\\_%%')
"""

# Ten seconds stand for a wall clock that is set between claim and arm. Whatever writes: a fact once known stays, a send is armed at most once and only when it may be, nothing blocks again.
_WATCH = """
CREATE TABLE IF NOT EXISTS sim_wrong (id serial PRIMARY KEY, what text);
CREATE OR REPLACE FUNCTION sim_watch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  said text;
BEGIN
  IF OLD.provider_id IS NOT NULL AND NEW.provider_id IS DISTINCT FROM OLD.provider_id THEN said := 'provider id overwritten';
  ELSIF OLD.refusal_class IS NOT NULL AND NEW.refusal_class IS DISTINCT FROM OLD.refusal_class THEN said := 'refusal overwritten';
  ELSIF OLD.completed_at IS NOT NULL AND NEW.completed_at IS DISTINCT FROM OLD.completed_at THEN said := 'completion overwritten';
  ELSIF OLD.failed_at IS NOT NULL AND NEW.failed_at IS DISTINCT FROM OLD.failed_at THEN said := 'failure overwritten';
  ELSIF OLD.stored_at IS NOT NULL AND NEW.stored_at IS DISTINCT FROM OLD.stored_at THEN said := 'storage overwritten';
  ELSIF OLD.absent_at IS NOT NULL AND NEW.absent_at IS DISTINCT FROM OLD.absent_at THEN said := 'absence overwritten';
  ELSIF OLD.unsent_at IS NOT NULL AND NEW.unsent_at IS DISTINCT FROM OLD.unsent_at THEN said := 'unsent overwritten';
  ELSIF OLD.cost_answer IS NOT NULL AND NEW.cost_answer IS DISTINCT FROM OLD.cost_answer THEN said := 'cost of the answer overwritten';
  ELSIF OLD.cost_poll IS NOT NULL AND NEW.cost_poll IS DISTINCT FROM OLD.cost_poll THEN said := 'cost of the poll overwritten';
  ELSIF OLD.armed_at IS NOT NULL AND NEW.armed_at IS DISTINCT FROM OLD.armed_at THEN said := 'armed twice';
  ELSIF NEW.blocks_send AND NOT OLD.blocks_send THEN said := 'blocks a send again after its release';
  ELSIF OLD.blocks_send AND NOT NEW.blocks_send AND NEW.armed_at IS NOT NULL AND NEW.unsent_at IS NULL
    AND NEW.released_by IN ('unsent', 'free', 'absent') AND NEW.state IN ('sending', 'accepted', 'completed', 'unknown')
    AND NEW.charge <> 'refunded'
    THEN said := 'released as ' || NEW.released_by || ' while ' || NEW.state;
  ELSIF NEW.released_by = 'free' AND NOT NEW.blocks_send AND OLD.blocks_send AND NEW.charge NOT IN ('none', 'refunded')
    THEN said := 'released as free with charge ' || NEW.charge;
  ELSIF OLD.armed_at IS NULL AND NEW.armed_at IS NOT NULL THEN
    IF NEW.unsent_at IS NOT NULL THEN said := 'armed after it was withdrawn';
    ELSIF EXISTS (SELECT FROM jobs_hold WHERE lifted_at IS NULL) THEN said := 'armed under a hold';
    ELSIF NOT EXISTS (SELECT FROM jobs_job j WHERE j.id = NEW.job_id AND j.state = 'active' AND j.not_before <= NEW.armed_at + interval '10 seconds')
      THEN said := 'armed for a job that is not active, or before its time';
    ELSIF EXISTS (SELECT FROM providers_target g WHERE g.id = NEW.target_id AND (NOT g.enabled OR g.stopped_at IS NOT NULL))
      THEN said := 'armed for a closed target';
    ELSIF EXISTS (
      SELECT FROM providers_providerstate s JOIN providers_target g ON g.id = NEW.target_id
      WHERE s.account_id = NEW.account_id AND s.model IN ('', g.model)
        AND (s.state = 'paused' OR s.blocked_until > NEW.armed_at OR s.gate = 'open'
          OR (s.gate = 'half_open' AND s.probe_id IS DISTINCT FROM NEW.id))) THEN said := 'armed within a block';
    END IF;
  END IF;
  IF said IS NOT NULL THEN INSERT INTO sim_wrong (what) VALUES ('task ' || NEW.id || ': ' || said); END IF;
  RETURN NEW;
END $$;
CREATE TABLE IF NOT EXISTS sim_limit (most int, most_at_target int);
CREATE OR REPLACE FUNCTION sim_claimed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  flying int;
  at_target int;
BEGIN
  -- A generation that was made elsewhere and is adopted comes with its id: nothing was claimed.
  IF NOT EXISTS (SELECT FROM fresh WHERE armed_at IS NULL) THEN RETURN NULL; END IF;
  WITH f AS (
    SELECT target_id FROM jobs_providertask
    WHERE state IN ('intent', 'sending', 'accepted')
      AND (armed_at IS NULL OR armed_at > (SELECT max(created_at) FROM fresh) - interval '900 seconds')
  ), per AS (SELECT target_id, count(*) AS n FROM f GROUP BY 1)
  SELECT coalesce(sum(n), 0), coalesce(max(n) FILTER (WHERE target_id IN (SELECT target_id FROM fresh)), 0)
  INTO flying, at_target FROM per;
  INSERT INTO sim_wrong (what) SELECT flying || ' in flight after a claim, ' || most || ' allowed' FROM sim_limit WHERE flying > most;
  INSERT INTO sim_wrong (what) SELECT at_target || ' in flight at one target, ' || most_at_target || ' allowed'
    FROM sim_limit WHERE at_target > most_at_target;
  INSERT INTO sim_wrong (what) SELECT 'task ' || f.id || ': claimed within a block (' || s.state || ')'
    FROM fresh f JOIN providers_target g ON g.id = f.target_id
    JOIN providers_providerstate s ON s.account_id = f.account_id AND s.model IN ('', g.model)
    WHERE s.state = 'paused' OR s.blocked_until > f.created_at OR s.gate = 'open';
  -- Reckoned from the raw facts, not by what the claim reckons with. 1.5 is PRICE_CEILING_FACTOR (run.py).
  INSERT INTO sim_wrong (what)
    SELECT 'tenant ' || n.id || ': ' || today.total || ' charged and possible after a claim, ' || n.daily_limit || ' allowed'
    FROM jobs_tenant n CROSS JOIN LATERAL (
      SELECT sum(CASE
        WHEN k.staff_charge = 'refunded' THEN 0
        WHEN coalesce(k.cost_receipt, k.cost_poll, k.cost_answer) > 0 THEN coalesce(k.cost_receipt, k.cost_poll, k.cost_answer)
        WHEN k.completed_at IS NOT NULL OR k.stored_at IS NOT NULL
          THEN coalesce(k.cost_receipt, k.cost_poll, k.cost_answer, k.estimated_cost * 1.5)
        WHEN k.failed_at IS NOT NULL AND k.receipt_final_at IS NOT NULL AND k.cost_receipt = 0 THEN 0
        WHEN k.provider_id IS NULL AND k.failed_at IS NULL
          AND (k.refusal_class IS NOT NULL OR k.unsent_at IS NOT NULL OR k.absent_at IS NOT NULL) THEN 0
        ELSE k.estimated_cost * 1.5 END) AS total
      FROM jobs_providertask k
      WHERE k.tenant_id = n.id
        AND k.created_at >= date_trunc('day', (SELECT max(created_at) FROM fresh) AT TIME ZONE n.zone) AT TIME ZONE n.zone
    ) today
    WHERE n.id IN (SELECT tenant_id FROM fresh) AND today.total > n.daily_limit;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION sim_health() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  said text;
BEGIN
  IF OLD.probe_id IS NOT NULL AND NEW.probe_id IS DISTINCT FROM OLD.probe_id AND NEW.probe_id IS NOT NULL
    THEN said := 'the probe is taken from one that is under way';
  ELSIF OLD.gate = 'open' AND NEW.gate = 'closed' AND OLD.cause <> 'key' THEN said := 'an outage ended without a probe';
  ELSIF OLD.gate = 'half_open' AND NEW.gate = 'closed' AND NOT EXISTS (
    SELECT FROM jobs_providertask k WHERE k.id = OLD.probe_id AND k.completed_at IS NOT NULL)
    THEN said := 'an outage ended though no job has succeeded';
  ELSIF NEW.blocked_until < OLD.blocked_until THEN said := 'a block was shortened';
  END IF;
  IF said IS NOT NULL THEN INSERT INTO sim_wrong (what) VALUES ('account ' || NEW.account_id || ' ' || NEW.model || ': ' || said); END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE FUNCTION sim_batch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.completed_at IS NOT NULL AND NEW.completed_at IS NOT NULL AND NEW.completions <> OLD.completions
    THEN INSERT INTO sim_wrong (what) VALUES ('batch ' || NEW.id || ': completed twice');
  ELSIF OLD.completed_at IS NULL AND NEW.completed_at IS NOT NULL AND EXISTS (
    SELECT FROM jobs_job j WHERE j.batch_id = NEW.id AND j.state IN ('pending', 'active'))
    THEN INSERT INTO sim_wrong (what) VALUES ('batch ' || NEW.id || ': completed while something of it is under way');
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE FUNCTION sim_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO sim_wrong (what) SELECT 'job ' || NEW.id || ': claimed of a paused batch'
    FROM jobs_batch b WHERE b.id = NEW.batch_id AND b.paused_at IS NOT NULL;
  RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS sim_batch ON jobs_batch;
CREATE TRIGGER sim_batch AFTER UPDATE ON jobs_batch FOR EACH ROW EXECUTE FUNCTION sim_batch();
DROP TRIGGER IF EXISTS sim_job ON jobs_job;
CREATE TRIGGER sim_job AFTER UPDATE ON jobs_job FOR EACH ROW
  WHEN (OLD.state = 'pending' AND NEW.state = 'active') EXECUTE FUNCTION sim_job();
DROP TRIGGER IF EXISTS sim_health ON providers_providerstate;
CREATE TRIGGER sim_health AFTER UPDATE ON providers_providerstate FOR EACH ROW EXECUTE FUNCTION sim_health();
DROP TRIGGER IF EXISTS sim_claimed ON jobs_providertask;
CREATE TRIGGER sim_claimed AFTER INSERT ON jobs_providertask
  REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION sim_claimed();
DROP TRIGGER IF EXISTS sim_watch ON jobs_providertask;
CREATE TRIGGER sim_watch AFTER UPDATE ON jobs_providertask FOR EACH ROW EXECUTE FUNCTION sim_watch();
"""


def limit(*, concurrency: int, at_target: int | None) -> None:
    """What a claim may have in flight when it is done."""
    with connections["default"].cursor() as cursor:
        cursor.execute("INSERT INTO sim_limit VALUES (%s, %s)", [concurrency, at_target])


def install() -> None:
    """Once a database: the watching trigger."""
    with connections["default"].cursor() as cursor:
        cursor.execute(_WATCH)


class Database:
    """The gates at the one connection. `on_gate` may kill or break; it is told the kind of point and the statement."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.on_gate: Callable[[str, str], None] = lambda _kind, _statement: None
        self.connection = connections["default"]
        self.down_until = 0.0
        self.dirty = True  # something was committed since the judge looked
        self._statement = ""
        self._wrote = False
        self._step = ""  # "claim" or "arm", where the transaction is one

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While it lasts, every commit and every statement outside a transaction is a gate."""
        connection = self.connection
        real_commit, real_autocommit = connection.commit, connection.set_autocommit
        connection.inc_thread_sharing()
        # Django gives each thread, and each task of a loop, a connection of its own; here all get this one.
        own = vars(connections)["_connections"]
        vars(connections)["_connections"] = SimpleNamespace(default=connection)

        def commit() -> None:
            try:
                self._point("before commit")
            except BaseException:
                self._step = ""
                connection.rollback()  # as the server does for a client that is gone
                raise
            real_commit()
            if self._wrote:
                self.dirty = True
            step, self._step = self._step, ""
            self._point(f"after {step}" if step else "after commit")

        def set_autocommit(autocommit: bool, *args: Any, **more: Any) -> None:
            real_autocommit(autocommit, *args, **more)
            if autocommit:
                wrote, self._wrote = self._wrote, False
                if wrote:
                    self.turns.gate()

        connection.commit, connection.set_autocommit = commit, set_autocommit  # type: ignore[method-assign]
        try:
            with connection.execute_wrapper(self._execute):
                yield
        finally:
            del connection.commit, connection.set_autocommit
            vars(connections)["_connections"] = own
            connection.dec_thread_sharing()

    def check_up(self) -> None:
        if self.turns.current is not None and self.turns.now < self.down_until:
            raise OperationalError("the database is away")

    def _point(self, kind: str) -> None:
        if self.turns.current is not None:
            self.on_gate(kind, self._statement)

    def _execute(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        actor = self.turns.current
        if actor is None:
            return execute(sql, params, many, context)
        if actor.dead:
            raise Killed
        self.check_up()
        inside = self.connection.in_atomic_block
        verb = sql.lstrip()[:6].upper()
        writes = verb in {"INSERT", "UPDATE", "DELETE"} or "UPDATE jobs_providertask" in sql
        self._statement = " ".join(sql.split()[:4])
        if sql.startswith('INSERT INTO "jobs_providertask"'):
            self._step = "claim"
        elif "SET armed_at" in sql:
            self._step = "arm"
        if writes or not inside:
            self.on_gate(
                "statement" if inside else "before write" if writes else "read", self._statement
            )
        done = execute(sql, params, many, context)
        if writes and inside:
            self._wrote = True
        elif writes:
            self.dirty = True
            self.on_gate("after write", self._statement)
            self.turns.gate()
        elif not inside and "FOR " not in sql:
            self.turns.gate()
        return done
