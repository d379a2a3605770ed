"""The desk machine, with what people decide about money, absence, prompts and results (jobs/lifecycle/decisions.py)."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from jobs.lifecycle import decisions
from jobs.models import Result, SpoolHost
from jobs.states import TaskState
from providers.contract import Charge
from tests.desk_machine import DeskMachine
from tests.lane_machine import ANY, FEW
from tests.shadow import COSTS, Row

_STOPPED = {"failed", "manual", "cancelled"}


class DecisionMachine(DeskMachine):
    """Lanes, staff, and staff's decisions."""

    def _settles_something(self, task: Row, *, unless: str = "") -> bool:
        """Whether a person may say how the money of this send stands."""
        job = self.watch.rows.jobs[task["job_id"]]
        goes_on = job["state"] == "active" and task["blocks_send"] and task["state"] != unless
        return (
            task["state"] not in {TaskState.INTENT, TaskState.SENDING}
            and not goes_on
            and task["undecided_since"] is None
        )

    def _delivers(self, task: Row) -> bool:
        delivered = self.watch.rows.jobs[task["job_id"]]["delivered_id"]
        return delivered is not None and Result.objects.get(pk=delivered).task_id == task["id"]

    def _costly(self, number: int) -> Row:
        rows = self.watch.rows.tasks
        costly = [n for n, pk in enumerate(self.tasks) if rows[pk]["charge"] in COSTS]
        return self.task(self.likely(number, costly, range(len(self.tasks))))

    @precondition(lambda self: self.armed())
    @rule(number=ANY, cost=st.sampled_from([None, Decimal("7.84")]))
    def write_off(self, number: int, cost: Decimal | None) -> None:
        task = self._costly(number)
        may = (
            self._settles_something(task)
            and task["charge"] in {Charge.POSSIBLE, Charge.CHARGED}
            and not self._delivers(task)
        )
        self._settle(task, "written_off", cost=cost, may=may)
        act = lambda: decisions.write_off(  # noqa: E731
            task_id=task["id"], actor=self.person, now=self.now, note="lost", cost=cost
        )
        self._asked("write_off", act, may=may)

    @precondition(lambda self: self.armed())
    @rule(number=ANY)
    def mark_refunded(self, number: int) -> None:
        task = self._costly(number)
        may = self._settles_something(task, unless=TaskState.FAILED) and task["charge"] in COSTS
        self._settle(task, "refunded", cost=None, may=may)
        act = lambda: decisions.mark_refunded(  # noqa: E731
            task_id=task["id"], actor=self.person, now=self.now, reference="R-1"
        )
        self._asked("mark_refunded", act, may=may)

    def _settle(self, task: Row, word: str, *, cost: Decimal | None, may: bool) -> None:
        if may:
            known = self.shadow.rows[task["id"]]
            known["staff_charge"] = word
            if cost is not None:
                known["cost_staff"] = cost

    @precondition(lambda self: self.armed())
    @rule(number=ANY, looked=st.booleans())
    def confirm_absent(self, number: int, looked: bool) -> None:
        """`looked`: a lane of its host has read the spool since."""
        if looked:
            SpoolHost.objects.update_or_create(host="here", defaults={"clear_at": self.now})
        rows = self.watch.rows.tasks
        lost = [n for n, pk in enumerate(self.tasks) if rows[pk]["state"] == TaskState.UNKNOWN]
        task = self.task(self.likely(number, lost, self.armed()))
        job = self.watch.rows.jobs[task["job_id"]]
        others = [one for one in self._in_the_way(task["job_id"]) if one["id"] != task["id"]]
        out_of_question = (
            task["state"] != TaskState.UNKNOWN
            or job["state"] in {"pending", "succeeded"}
            or bool(others)
            or self._has_result(task["job_id"])
        )
        act = lambda: decisions.confirm_absent(  # noqa: E731
            task_id=task["id"], actor=self.person, now=self.now, reason="their support"
        )
        self._asked("confirm_absent", act, may=False if out_of_question else None)

    @precondition(lambda self: self.states() & _STOPPED)
    @rule(number=FEW, prompt=st.sampled_from(["a cat", "a dog", "a bird"]), to=FEW)
    def retry_edited(self, number: int, prompt: str, to: int) -> None:
        jobs = self.watch.rows.jobs
        stopped = [pk for pk in self.jobs if jobs[pk]["state"] in _STOPPED]
        job_id = self.one_of(number, stopped, self.jobs)
        costly = any(task["charge"] in COSTS for task in self.watch.rows.of(job_id))
        out_of_question = (
            costly or jobs[job_id]["state"] not in _STOPPED or bool(self._in_the_way(job_id))
        )
        target_id = self.targets[to].pk if to < len(self.targets) else None
        act = lambda: decisions.retry_edited(  # noqa: E731
            job_id=job_id, prompt=prompt, target_id=target_id, actor=self.person, now=self.now
        )
        self._asked("retry_edited", act, may=False if out_of_question else None)

    @precondition(lambda self: Result.objects.exists())
    @rule(number=FEW, of_its_job=st.booleans())
    def deliver_instead(self, number: int, of_its_job: bool) -> None:
        results = list(Result.objects.order_by("pk"))
        result = results[number % len(results)]
        job_id = result.job_id if of_its_job else self.job(number)
        delivered = self.watch.rows.jobs[job_id]["delivered_id"]
        may = result.job_id == job_id and delivered != result.pk
        act = lambda: decisions.deliver_instead(  # noqa: E731
            job_id=job_id, result_id=result.pk, actor=self.person, now=self.now
        )
        self._asked("deliver_instead", act, may=may)
