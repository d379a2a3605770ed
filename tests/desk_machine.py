"""The lane machine, with staff at the worst moment beside it: every verb, and a model of whom it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from jobs.lifecycle import providers, staff
from jobs.lifecycle.errors import Refused
from jobs.models import StandingDecision
from jobs.results import Stored
from jobs.states import ENDED, TaskState
from providers.contract import Charge, FailureClass, Refusal
from providers.models import ProviderState, Target
from tests import factories
from tests.lane_machine import ANY, FEW, LaneMachine
from tests.shadow import COSTS, DECIDED, Row

UPLOADED = Stored(
    key="up.png", thumb_key="", sha256="0" * 64, media_type="image/png", size_bytes=3, width=1, height=1
)  # fmt: skip


_RELEASABLE = {TaskState.ACCEPTED, TaskState.COMPLETED, TaskState.FAILED, TaskState.UNKNOWN}


class DeskMachine(LaneMachine):
    """Lanes and staff."""

    def one_of(self, number: int, first: list[int], others: list[int]) -> int:
        """One for which the verb may well be allowed, where there is one; else any, and at times any at all."""
        among = first if first and number else others
        return among[number % len(among)]

    def _asked(self, verb: str, act: Callable[[], None], *, may: bool | None = None) -> None:
        """`may`: whether it must be allowed or refused; None where that is not told here. A refusal changes nothing."""
        before, told = self.watch.rows, len(self.watch.events)
        try:
            act()
        except Refused:
            self.did("refused")
            assert self.watch.rows == before
            assert len(self.watch.events) == told
            assert may is not True, f"{verb} was refused"
        else:
            self.did(verb)
            assert may is not False, f"{verb} was not refused"

    def _in_the_way(self, job_id: int) -> list[Row]:
        """Sends that block, or may have cost money without anybody having decided to send again."""
        decided = self.watch.rows.jobs[job_id]["decided_at"] is not None
        return [
            task
            for task in self.watch.rows.of(job_id)
            if task["blocks_send"]
            or (
                task["charge"] in COSTS
                and (
                    task["released_by"] not in DECIDED
                    or (decided and task["released_by"] == "person")
                )
            )
        ]

    def _has_result(self, job_id: int) -> bool:
        """A file of the job is here already: it is delivered, not paid for once more."""
        return any(task["state"] == TaskState.STORED for task in self.watch.rows.of(job_id))

    @precondition(lambda self: self.states() & {"failed", "manual", "cancelled"})
    @rule(number=FEW)
    def retry(self, number: int) -> None:
        jobs = self.watch.rows.jobs
        stopped = [pk for pk in self.jobs if jobs[pk]["state"] in {"failed", "manual", "cancelled"}]
        job_id = self.one_of(number, stopped, self.jobs)
        state = jobs[job_id]["state"]
        may = (
            state in {"failed", "manual", "cancelled"}
            and not self._in_the_way(job_id)
            and not self._has_result(job_id)
        )
        self._asked(
            "retry", lambda: staff.retry(job_id=job_id, actor=self.person, now=self.now), may=may
        )

    @precondition(lambda self: self.states() - {"pending", "succeeded"})
    @rule(number=FEW, to=FEW)
    def retry_on_target(self, number: int, to: int) -> None:
        jobs = self.watch.rows.jobs
        stopped = [pk for pk in self.jobs if jobs[pk]["state"] in {"failed", "manual", "cancelled"}]
        job_id, chosen = self.one_of(number, stopped, self.jobs), self.targets[to % 3]
        may = None if self.watch.rows.jobs[job_id]["state"] == "pending" else (
            self.watch.rows.jobs[job_id]["state"] != "succeeded"
            and not self._in_the_way(job_id)
            and not self._has_result(job_id)
            and chosen.pk not in self.shut()
        )  # fmt: skip
        act = lambda: staff.retry_on_target(  # noqa: E731
            job_id=job_id, target_id=chosen.pk, actor=self.person, now=self.now
        )
        self._asked("retry_on_target", act, may=may)

    @precondition(lambda self: self.armed())
    @rule(number=FEW)
    def resend(self, number: int) -> None:
        rows = self.watch.rows
        open_ends = [task["job_id"] for task in rows.tasks.values() if task["state"] in _RELEASABLE]
        job_id = self.one_of(number, open_ends, self.jobs)
        in_the_way = self._in_the_way(job_id)
        under_way = any(t["state"] in {TaskState.INTENT, TaskState.SENDING} for t in in_the_way)
        may = False if under_way or not in_the_way else None
        act = lambda: staff.resend(  # noqa: E731
            job_id=job_id, actor=self.person, now=self.now, reason="it is urgent"
        )
        self._asked("resend", act, may=may)

    @rule(number=FEW)
    def cancel(self, number: int) -> None:
        job_id = self.job(number)
        may = self.watch.rows.jobs[job_id]["state"] not in ENDED
        self._asked(
            "cancel", lambda: staff.cancel(job_id=job_id, actor=self.person, now=self.now), may=may
        )

    @rule(number=FEW)
    def mark_manual(self, number: int) -> None:
        job_id = self.job(number)
        cases = {case["kind"] for case in self.watch.rows.open_cases(job_id)}
        may = self.watch.rows.jobs[job_id]["state"] != "succeeded" and "by_hand" not in cases
        act = lambda: staff.mark_manual(  # noqa: E731
            job_id=job_id, actor=self.person, now=self.now, note="mine"
        )
        self._asked("mark_manual", act, may=may)

    @rule(number=FEW, done=st.booleans(), file=st.booleans())
    def resolve(self, number: int, done: bool, file: bool) -> None:
        job_id = self.job(number)
        job = self.watch.rows.jobs[job_id]
        again = not done and job["state"] == "failed" and job["decided_at"] is not None
        may = job["state"] not in {"succeeded", "cancelled"} and not again
        act = lambda: staff.resolve(  # noqa: E731
            job_id=job_id, actor=self.person, now=self.now, outcome="done" if done else "gave_up",
            note="by hand", stored=UPLOADED if done and file else None,
        )  # fmt: skip
        self._asked("resolve", act, may=may)

    @precondition(lambda self: any(t["provider_id"] for t in self.watch.rows.tasks.values()))
    @rule(number=ANY)
    def poll_now(self, number: int) -> None:
        task_id = self.task(number)["id"]
        self._asked(
            "poll_now", lambda: staff.poll_now(task_id=task_id, actor=self.person, now=self.now)
        )

    @precondition(lambda self: self.armed())
    @rule(number=ANY, name=st.sampled_from(["own", "other", "stolen"]))
    def attach(self, number: int, name: str) -> None:
        rows = self.watch.rows.tasks
        nameless = [n for n in self.armed() if rows[self.tasks[n]]["provider_id"] is None]
        number = self.one_of(number, nameless, self.armed())
        task = self.task(number)
        fact = self.fact(number, "accepted", name=name)
        taken = any(
            known.get("provider_id") == fact.provider_id for known in self.shadow.rows.values()
        )
        may = task["provider_id"] is None and task["armed_at"] is not None and not taken
        if may:
            self.shadow.rows[task["id"]]["provider_id"] = fact.provider_id
        act = lambda: staff.attach_provider_id(  # noqa: E731
            task_id=task["id"], provider_id=fact.provider_id or "", actor=self.person, now=self.now,
            reason="seen in the dashboard", poll_at=self.now,
        )  # fmt: skip
        self._asked("attach", act, may=may)

    @precondition(lambda self: any(not case["resolved_at"] for case in self.watch.rows.cases))
    @rule(number=FEW, kind=st.sampled_from(["take", "note", "close", "close"]))
    def work_at_case(self, number: int, kind: str) -> None:
        cases = [case for case in self.watch.rows.cases if case["resolved_at"] is None]
        case = cases[number % len(cases)]
        common: dict[str, Any] = {"case_id": case["id"], "actor": self.person, "now": self.now}
        match kind:
            case "take":
                self._asked("case", lambda: staff.take_case(**common))
            case "note":
                self._asked("case", lambda: staff.note_case(**common, note="asked them"))
            case _:
                act = lambda: staff.close_case(  # noqa: E731
                    **common, resolution="seen", note="looked at it"
                )
                self._asked("close_case", act)

    @rule()
    def red_button(self) -> None:
        held = self.held()
        verb = staff.lift_red_button if held else staff.press_red_button
        act = lambda: verb(actor=self.person, now=self.now, reason="test")  # noqa: E731
        self._asked("hold", act, may=True)

    @rule(to=FEW, how=st.sampled_from(["stop", "block", "block_all", "pause", "open"]))
    def close_target(self, to: int, how: str) -> None:
        target = self.targets[to % 3]
        model = "" if how in {"block_all", "pause"} else target.model
        if how == "stop":
            refusal = Refusal(
                FailureClass.REJECTED, Charge.NONE, "no such model", target_stops=True
            )
            providers.note_refusals(
                refusals=[(self.account.pk, target.pk, target.model, refusal)], now=self.now
            )
        elif how == "open":
            self.open_all()
        else:
            state = "paused" if how == "pause" else "throttled"
            until = None if how == "pause" else self.now + timedelta(seconds=200)
            factories.provider_state(
                self.now, state, account=self.account, model=model, blocked_until=until
            )
        self.did("provider")

    def open_all(self) -> None:
        Target.objects.update(stopped_at=None)
        ProviderState.objects.update(state="available", blocked_until=None)

    @rule(to=FEW, what=st.sampled_from(StandingDecision.What.values), ends=st.booleans())
    def owner_decides(self, to: int, what: str, ends: bool) -> None:
        live = StandingDecision.objects.filter(
            target=self.targets[to % 3], what=what, ended_at__isnull=True
        )
        if ends:
            live.update(ended_at=self.now)
        elif not live.exists():
            StandingDecision.objects.create(
                target=self.targets[to % 3], what=what, reason="test", made_by=self.person, made_at=self.now,
            )  # fmt: skip
        self.did("standing")
