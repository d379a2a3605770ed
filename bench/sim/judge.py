"""What must hold, judged by the provider's ledger and our rows alone."""

from __future__ import annotations

import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import Count, Q

from bench.sim import office
from bench.sim.desk import Desk
from bench.sim.nemesis import Nemesis
from bench.sim.receivers import Receiver
from bench.sim.turns import Actor
from jobs.lifecycle import batches
from jobs.lifecycle.record import Fact
from jobs.models import Batch, Case, Hold, Job, JobEvent, ProviderTask, Result
from jobs.states import ENDED, JobState
from jobs.stuck import LATE_S, stuck
from providers.models import ProviderState
from providers.sandbox.ledger import Task as Made
from providers.sandbox.reactions import Request
from providers.sandbox.submission import MARK

_BY_DECISION = ("person", "standing")
# A dead lane is noticed, and a frozen one comes back.
CALM_BEFORE_STUCK_S = 120.0
ID_WITHIN_S = 6.0
CLOCKS_S = 12.0  # the wall may be set by 4 s either way, and the provider's answer is some seconds under way
_ROWS = """
SELECT
  (SELECT count(*) FROM (SELECT 1 FROM jobs_providertask WHERE blocks_send GROUP BY job_id HAVING count(*) > 1) x),
  (SELECT string_agg(what, '; ' ORDER BY id) FROM sim_wrong),
  (SELECT count(*) FROM jobs_job j JOIN jobs_batch b ON b.id = j.batch_id
   WHERE j.state = 'pending' AND (j.not_before >= '2900-01-01') <> (b.paused_at IS NOT NULL))
"""


def _correlation(request: Request) -> str:
    return request.headers.get(MARK, "")


class Judge:
    """`wrong` holds the violations found so far, in words."""

    def __init__(self, desk: Desk, nemesis: Nemesis, receiver: Receiver) -> None:
        self.desk, self.nemesis, self.receiver = desk, nemesis, receiver
        self.wrong: list[str] = []
        self.calm_since = float("inf")
        self._kept: dict[uuid.UUID, list[Fact]] = defaultdict(list)
        self._arrived: Counter[str] = Counter()
        self._job_of: dict[str, int] = {}
        self._learned: dict[Actor, list[Fact]] = defaultdict(list)
        self._named: set[str] = set()
        self._posts_of: dict[int, list[tuple[float, str]]] = defaultdict(list)
        self._listed: dict[tuple[str, str, str], float] = {}  # stuck rows, and since when
        desk.network.on_sent = self._sent
        desk.network.on_post = self._post
        desk.on_learned = self._fact_learned
        desk.on_kept = self._facts_kept
        desk.on_ended = self._lane_ended
        desk.network.on_accepted = self._accepted

    def _blame(self, what: str) -> None:
        if what not in self.wrong:
            self.wrong.append(what)

    def _fact_learned(self, fact: Fact) -> None:
        actor = self.desk.turns.current
        assert actor is not None
        self._learned[actor].append(fact)
        if fact.provider_id is not None or fact.completed or fact.failed:
            self._named.add(str(fact.task_id))

    def _facts_kept(self, facts: list[Fact]) -> None:
        actor = self.desk.turns.current
        for fact in facts:
            self._kept[fact.task_id].append(fact)
        if actor in self._learned:
            kept = {id(fact) for fact in facts}
            self._learned[actor] = [fact for fact in self._learned[actor] if id(fact) not in kept]

    def _lane_ended(self, actor: Actor) -> None:
        """By itself, not killed: then nothing that it has learned may be lost."""
        for fact in self._learned.pop(actor, ()):
            self._blame(
                f"task {fact.task_id}: {actor.name} has ended and dropped what it knew ({fact.kind or 'a look'})"
            )

    def _accepted(self, request: Request, actor: Actor) -> None:
        """A lane reads the answer that names its task: it must be on its way to the disk at once."""
        correlation, since = _correlation(request), self.desk.turns.now

        def look() -> None:
            disturbed = (
                actor.dead
                or actor.over
                or actor.frozen_until > since
                or self.desk.database.down_until > since
            )
            if not disturbed and correlation not in self._named:
                self._blame(
                    f"task {correlation}: its id was read {ID_WITHIN_S:g} s ago and is not kept"
                )

        self.desk.turns.after(ID_WITHIN_S, look)

    # --- at every step ------------------------------------------------------------------------------------------------

    def _sent(self, request: Request) -> None:
        """A POST's last bytes leave. The fence is on the boot clock; `send_not_after` repeats it on a wall that may be set."""
        with self.desk.turns.aside():
            fence = (
                ProviderTask.objects.filter(pk=_correlation(request))
                .values_list("send_not_after", flat=True)
                .first()
            )
        late_s = -math.inf if fence is None else (self.desk.clock.moment() - fence).total_seconds()
        if late_s > CLOCKS_S:
            self._blame(f"task {_correlation(request)} leaves {late_s:.0f} s after its fence")

    def _post(self, request: Request) -> None:
        """A POST arrives at the provider."""
        correlation = _correlation(request)
        self._arrived[correlation] += 1
        if self._arrived[correlation] > 1:
            self._blame(f"task {correlation} is posted {self._arrived[correlation]} times")
        task = ProviderTask.objects.filter(pk=correlation).first()
        if task is None:
            if not self.nemesis.restored:
                self._blame(f"a POST of which there is no row: {correlation}")
            return
        self._job_of[correlation] = task.job_id
        if task.armed_at is None and not self.nemesis.restored:
            self._blame(f"task {correlation} is posted without being armed")
        if (task.absent_at is not None or task.unsent_at is not None) and not self.nemesis.restored:
            self._blame(f"task {correlation} is posted although it is called {task.state}")
        if not self.nemesis.restored:
            self._costs_beside(task)
            self._posts_of[task.account_id].append((self.desk.turns.now, correlation))
            self._within_windows(task.account_id)

    def _within_windows(self, account_id: int) -> None:
        """What a window allows is never exceeded at the provider; our clock may have been set by as much as CLOCKS_S."""
        if account_id != self.desk.account_row.pk:
            return  # the others have no windows
        posts = self._posts_of[account_id]
        for seconds, most in self.desk.plan["windows"]:
            if seconds is None:
                continue
            since = self.desk.turns.now - (seconds - CLOCKS_S)
            recent = [correlation for at, correlation in posts if at > since]
            if len(recent) > most:
                gone = ProviderTask.objects.filter(pk__in=recent, state="unsent").count()
                if len(recent) - gone > most:
                    self._blame(f"{len(recent) - gone} sends within {seconds} s, {most} allowed")

    def _costs_beside(self, task: ProviderTask) -> None:
        """No earlier send of the same job may stand charged at this moment, unless somebody decided so."""
        ledger = self.desk.world.ledger
        others = {str(pk): by for pk, by in ProviderTask.objects.filter(job_id=task.job_id).exclude(pk=task.pk)
                  .values_list("pk", "released_by")}  # fmt: skip
        for made in ledger.tasks.values():
            if (
                made.correlation in others
                and others[made.correlation] not in _BY_DECISION
                and ledger.standing(made.id)
            ):
                self._blame(
                    f"job {task.job_id} is sent again while task {made.correlation} stands charged"
                )

    def after_step(self) -> None:
        """Cheap, and only when something was committed."""
        if not self.desk.database.dirty:
            return
        self.desk.database.dirty = False
        with connections["default"].cursor() as cursor:
            cursor.execute(_ROWS)
            blocking, said, amiss = cursor.fetchone()
        if blocking:
            self._blame(f"{blocking} jobs have two tasks that block sends")
        if amiss:
            self._blame(f"{amiss} jobs wait, or don't, against what the pause of their batch says")
        # A restored dump may hold more than fits beside what was sent since.
        if said and not self.nemesis.restored:
            self._blame(said)

    def stuck_now(self) -> None:
        """P6, once nothing has been broken for a while: no row is listed for longer than the 90 s it may be late."""
        now = self.desk.turns.now
        if now - self.calm_since < CALM_BEFORE_STUCK_S:
            return
        listed = {(row.kind, row.id, row.code) for row in stuck(now=self.desk.clock.moment())}
        self._listed = {row: self._listed.get(row, now) for row in listed}
        for (kind, row_id, code), since in self._listed.items():
            if now - since > LATE_S:
                self._blame(f"stuck: {kind} {row_id} {code}")

    # --- at the end ---------------------------------------------------------------------------------------------------

    def settled(self, *, watching: bool = True) -> bool:
        """Whether everything that can move has come to its end; `watching`: also what belongs to jobs that have ended. What
        was paid for must have come home in any case."""
        held = Hold.objects.filter(lifted_at=None).exists()
        states = set(Job.objects.values_list("state", flat=True).distinct())
        open_states = (
            {JobState.ACTIVE.value} if held else {JobState.ACTIVE.value, JobState.PENDING.value}
        )
        if states & open_states:
            return False
        if office.busy() or self.receiver.waits():
            return False
        if not watching:
            return all(self._has_home(task) for _made, task in self._paid() if task is not None)
        watched = ProviderTask.objects.exclude(cases__resolved_at=None, cases__isnull=False)
        return not (
            watched.filter(undecided_since__isnull=False).exists()
            or watched.filter(next_fetch_at__isnull=False).exists()
            or watched.filter(next_receipt_at__isnull=False).exists()
            or watched.filter(state__in=["intent", "sending"]).exists()
            or watched.filter(state="accepted").exists()
            or watched.filter(state="unknown").exclude(released_by__in=_BY_DECISION).exists()
        )

    def outages(self) -> bool:
        """Whether a breaker is not closed yet."""
        return (
            ProviderState.objects.exclude(gate="closed")
            .filter(account=self.desk.account_row)
            .exists()
        )

    def probe_wanted(self) -> bool:
        """Whether one is half-open, and no job is there to be the probe."""
        waiting = Job.objects.filter(state__in=[JobState.PENDING, JobState.ACTIVE])
        half_open = ProviderState.objects.filter(gate="half_open", account=self.desk.account_row)
        return half_open.filter(probe_id__isnull=True).exists() and not waiting.exists()

    def lost_sends(self) -> bool:
        """Whether an unknown send waits for the listing to show a later one."""
        return ProviderTask.objects.filter(state="unknown", next_look_at__isnull=False).exists()

    def at_the_end(self) -> None:
        """P1-P4 against the ledger."""
        self._jobs_ended()
        self._every_charge_has_a_home()
        self._no_fact_lost()
        self._events_are_legal()
        self._verdicts_are_the_providers()
        self._batches_ended_once()
        for what in office.wrong(self.desk, restored=self.nemesis.restored):
            self._blame(what)
        for what in self.receiver.wrong(restored=self.nemesis.restored):
            self._blame(what)
        connections["default"].check_constraints()

    def _jobs_ended(self) -> None:
        held = Hold.objects.filter(lifted_at=None).exists()
        for job in Job.objects.exclude(state__in=[*ENDED, JobState.MANUAL]):
            if not (held and self.nemesis.restored and job.state == JobState.PENDING):
                tasks = [f"{task.state}/{task.charge}" for task in job.tasks.order_by("created_at")]
                self._blame(
                    f"job {job.pk} has not ended: {job.state} ({job.reason}), tasks {tasks}"
                )
        for job in Job.objects.filter(state=JobState.SUCCEEDED, delivered__isnull=False):
            result = job.delivered
            assert result is not None
            if not (Path(settings.MEDIA_ROOT) / result.key).is_file():
                self._blame(f"job {job.pk} has succeeded and its file is not there")

    def _batches_ended_once(self) -> None:
        """Each end is told once: numbered without a gap, and none is missing after the look for ends."""
        now = self.desk.clock.moment()
        batches.complete(now=now)
        if again := batches.complete(now=now):
            self._blame(f"batches {again} are complete twice over")
        rows = Batch.objects.annotate(
            under_way=Count("jobs", Q(jobs__state__in=["pending", "active"]))
        )
        for batch in rows:
            told = batch.events.filter(kind="completed").order_by("number")
            numbers = list(told.values_list("number", flat=True))
            if numbers != list(range(1, batch.completions + 1)):
                self._blame(f"batch {batch.pk} has the ends {numbers} of {batch.completions}")
            if (batch.completed_at is None) != bool(batch.under_way):
                self._blame(
                    f"batch {batch.pk}: {batch.under_way} under way, completed at {batch.completed_at}"
                )

    def _every_charge_has_a_home(self) -> None:
        paid: dict[int, list[ProviderTask]] = defaultdict(list)
        for made, task in self._paid():
            if task is None:
                if not (self.nemesis.restored and Hold.objects.filter(lifted_at=None).exists()):
                    self._blame(f"a charge without a row of ours: {made.correlation}")
                continue
            if task.released_by not in _BY_DECISION:
                paid[task.job_id].append(task)
            if not self._has_home(task):
                self._blame(
                    f"task {task.pk} of job {task.job_id} was paid ({', '.join(made.fate) or 'no fate'}) and is"
                    f" neither a file nor a case: {task.state}/{task.charge}, released by {task.released_by or 'nobody'}"
                )
        for job_id, tasks in paid.items():
            cases = Case.objects.filter(job_id=job_id, kind="paid_twice")
            if len(tasks) > 1 and not self.nemesis.restored and not cases.exists():
                self._blame(f"job {job_id} was paid {len(tasks)} times and no case says so")

    def _paid(self) -> Iterator[tuple[Made, ProviderTask | None]]:
        """What the provider charged and did not give back, and our row of it."""
        ledger = self.desk.world.ledger
        rows = {str(task.pk): task for task in ProviderTask.objects.select_related("job")}
        for made in ledger.tasks.values():
            if ledger.standing(made.id) and not made.planted:
                yield made, rows.get(made.correlation)

    def _has_home(self, task: ProviderTask) -> bool:
        if task.stored_at is not None and Result.objects.filter(task=task).exists():
            return True
        if Case.objects.filter(job_id=task.job_id, task=task, resolved_at=None).exists():
            return True
        if task.released_by in _BY_DECISION or task.job.decided_at is not None:
            return True  # a person, or the owner beforehand, has decided about this send
        if task.staff_charge:
            return True  # refunded or written off, by a person's word
        if Hold.objects.filter(lifted_at=None).exists() and self.nemesis.restored:
            return True
        return (
            Case.objects.filter(task=task, resolved_at__isnull=False)
            .exclude(resolution="evidence")
            .exists()
        )

    def _no_fact_lost(self) -> None:
        """What was once recorded, or spooled and replayed, is in its row, or in a case."""
        if self.nemesis.restored:
            return
        rows = ProviderTask.objects.in_bulk(list(self._kept))
        waiting = {path.name[:36] for path in self.desk.folder.glob("*/spool/*.json")}
        for task_id, facts in self._kept.items():
            task = rows.get(task_id)
            if task is None or str(task_id) in waiting:
                continue
            conflict = Case.objects.filter(task=task, kind="conflict").exists()
            for fact in facts:
                lost = [
                    name for name, there in (
                        ("provider_id", fact.provider_id is None or task.provider_id == fact.provider_id),
                        ("refusal", fact.refusal_class is None or task.refusal_class is not None),
                        ("completed", not fact.completed or task.completed_at is not None),
                        ("failed", not fact.failed or task.failed_at is not None),
                        ("stored", not fact.stored or task.stored_at is not None),
                        ("receipt", fact.cost_receipt is None or task.cost_receipt is not None),
                        ("cost", fact.cost_poll is None or task.cost_poll is not None),
                    ) if not there
                ]  # fmt: skip
                if lost and not conflict and not self.desk.disk_lost:
                    self._blame(f"task {task_id}: a recorded fact is lost: {', '.join(lost)}")

    def _verdicts_are_the_providers(self) -> None:
        """Nobody but the provider says that a task has failed or is complete."""
        ledger = self.desk.world.ledger
        made = {task.correlation: task for task in ledger.tasks.values()}
        for task in ProviderTask.objects.all():
            # What was adopted bears the id of whoever made it, or none.
            theirs = made.get(str(task.pk)) or ledger.tasks.get(task.provider_id or "")
            if task.failed_at is not None and (theirs is None or theirs.outcome == "completed"):
                self._blame(f"task {task.pk} is called failed, and the provider never said so")
            if task.completed_at is not None and theirs is None:
                self._blame(f"task {task.pk} is called complete, and the provider does not know it")

    def _events_are_legal(self) -> None:
        if self.nemesis.restored:
            return
        by_task: dict[Any, list[str]] = defaultdict(list)
        for task_id, kind in (
            JobEvent.objects.filter(task__isnull=False)
            .exclude(task__events__kind="adopted")  # sent by somebody else
            .order_by("pk")
            .values_list("task_id", "kind")
        ):
            by_task[task_id].append(kind)
        for task_id, kinds in by_task.items():
            count = Counter(kinds)
            said = ""
            if kinds[0] != "intent" or count["intent"] > 1:
                said = "does not begin with one intent"
            elif count["armed"] > 1:
                said = "is armed more than once"
            elif count["released"] > 1:
                said = "is released more than once"
            else:
                for needs in ("accepted", "refused", "completed", "stored", "found", "absent"):
                    if needs in kinds and "armed" not in kinds[: kinds.index(needs)]:
                        said = f"is {needs} without being armed before"
            if said:
                self._blame(f"the events of task {task_id}: it {said}: {kinds}")
