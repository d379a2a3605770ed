"""smoke: a proof of a live provider's contract, step by step over its row, so that whoever comes next can go on.

Free reads first; then, if it is to be real, one ordinary job, watched through its rows while the history is asked for it.
What was seen is kept in the row after each look; what it means is judged by jobs/smoke.py at the end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Q

from jobs import phases, smoke
from jobs.clock import clock
from jobs.lifecycle import providers, staff
from jobs.lifecycle import smoke as lifecycle
from jobs.lifecycle.errors import Refused
from jobs.models import Job, JobEvent, ProviderTask
from jobs.smoke import Check
from jobs.states import JobState, TaskState
from providers import asking, registry
from providers.classify import classify
from providers.contract import (
    Account,
    Adapter,
    Answer,
    Call,
    FailureClass,
    Kind,
    Named,
    NoAnswer,
    NotToldError,
)
from providers.http import Transport
from providers.models import SmokeRun

logger = logging.getLogger(__name__)

WORK = "jobs.tasks.work_smoke"
DEADLINE_S = 20.0
LOOK_EVERY_S = 1.0
# A job that no lane takes is taken back after so long.
SENT_WITHIN_S = 120.0
# Clocks apart, at either end of a listing.
_SKEW = timedelta(minutes=2)
_NOBODY = "00000000-0000-0000-0000-000000000000"
_OVER = frozenset(
    {TaskState.STORED, TaskState.FAILED, TaskState.REFUSED, TaskState.UNSENT, TaskState.UNKNOWN}
)


def _ask(adapter: Adapter, account: Account, call: Call) -> Answer | NoAnswer:
    async def ask() -> Answer | NoAnswer:
        async with Transport() as transport:
            return await asking.read(
                transport, adapter, account, call, deadline_s=DEADLINE_S, retries=1
            )

    return async_to_sync(ask)()


@dataclass(frozen=True, slots=True)
class Outside:
    """What a run does outside the database; replaced by tests."""

    ask: Callable[[Adapter, Account, Call], Answer | NoAnswer] = _ask
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: clock.now()  # noqa: PLW0108  the clock may be replaced


def most_of(provider: str) -> Decimal:
    """What a run may cost, in the provider's currency: SMOKE_MAX_COST, or the ceiling of its cheapest known generation."""
    told: Decimal | None = settings.SMOKE_MAX_COST.get(provider)
    return told if told is not None else registry.adapter(provider).default_price * _factor()


def _factor() -> Decimal:
    return Decimal(str(settings.PRICE_CEILING_FACTOR))


def begin(provider: str, *, real: bool, most: Decimal, daily: bool = False) -> SmokeRun | None:
    """A new run for the account whose key is set (ImproperlyConfigured where none is). None: today's daily run is there."""
    now = clock.now()
    reached = registry.account(provider)
    account = providers.ensure_account(provider=provider, fingerprint=reached.fingerprint, now=now)
    target = lifecycle.cheapest_target(provider=provider, adapter=registry.adapter(provider))
    day = now.astimezone(ZoneInfo(settings.TIME_ZONE)).date() if daily else None
    return lifecycle.begin(account=account, target=target, real=real, most=most, now=now, day=day)


# --- from the minute's ring -------------------------------------------------------------------------------------------


def due(now: datetime) -> bool:
    """Whether a worker should be called: for a run that nobody is at, or for today's of a provider in SMOKE_DAILY."""
    return bool(_left(now) or _not_yet(now))


def work(*, for_s: float = 20.0) -> int:
    """Begin what is due today, and go on with what is under way, for so long; how many runs it was at."""
    end = time.monotonic() + for_s
    now = clock.now()
    for provider in _not_yet(now):
        run = begin(provider, real=True, most=most_of(provider), daily=True)
        if run is not None:
            lifecycle.let_go(run_id=run.pk)
    count = 0
    for run_id in _left(now):
        run = lifecycle.take(run_id=run_id, now=clock.now())
        if run is not None:
            count += 1
            # Each is looked at at least once, however many there are.
            Watch(run).go_on(for_s=max(end - time.monotonic(), 0.0))
    return count


def _left(now: datetime) -> list[int]:
    open_runs = SmokeRun.objects.filter(ended_at__isnull=True).exclude(lease_until__gt=now)
    return list(open_runs.order_by("at").values_list("pk", flat=True))


def _not_yet(now: datetime) -> list[str]:
    """Providers of SMOKE_DAILY, with a key, that have had no run today."""
    if not settings.SMOKE_DAILY:
        return []
    day = now.astimezone(ZoneInfo(settings.TIME_ZONE)).date()
    had = set(
        SmokeRun.objects.filter(day=day).values_list("account__provider", "account__fingerprint")
    )
    found = []
    for provider in settings.SMOKE_DAILY:
        try:
            account = registry.account(provider)
        except ImproperlyConfigured:
            continue
        if (provider, account.fingerprint) not in had:
            found.append(provider)
    return found


# --- one run ----------------------------------------------------------------------------------------------------------


class Watch:
    """One run, for whoever holds it. `tell` is called with where the send stands, at each look.

    `run.seen`: {"before", "after": balance; "fell_at": when the first of the second balances was read; "lag_s", "unlisted_s",
    "echo": of the history}, numbers of money as texts.
    """

    def __init__(
        self,
        run: SmokeRun,
        *,
        outside: Outside | None = None,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self.run, self.outside, self.tell = run, outside or Outside(), tell
        self.provider = run.account.provider
        self.adapter = registry.adapter(self.provider)
        self.seen: dict[str, Any] = run.seen

    def go_on(self, *, for_s: float = math.inf) -> bool:
        """Until it has ended (True), or for so long (False). The run is let go of in any case."""
        end = time.monotonic() + for_s
        try:
            reached = registry.reached(self.provider, self.run.account.fingerprint)
            if reached is None:
                told = {"why": "no key is set for it"}
                self._finish([Check("key", ok=False, finding="key_rejected", data=told)])
                return True
            self.account = reached
            if not self.run.checks and not self._free():
                return True
            job_id = self.run.job_id or lifecycle.send(self.run, now=self.outside.now())
            while not self._look(job_id):
                if time.monotonic() >= end:
                    return False
                self.outside.sleep(LOOK_EVERY_S)
            return True
        finally:
            lifecycle.let_go(run_id=self.run.pk)

    def _finish(self, checks: list[Check], *, cost: Decimal | None = None) -> None:
        mine = lifecycle.finish(self.run, checks=checks, now=self.outside.now(), cost=cost)
        if mine and self.run.ok is False:
            found = ",".join(check.finding for check in checks if check.ok is False)
            logger.warning("smoke.failed provider=%s findings=%s", self.provider, found)

    def _free(self) -> bool:
        """The reads that cost nothing. False: the run has ended with them."""
        target = self.run.target
        assert target is not None
        checks = [*self._key_and_balance(), self._history()]
        closed = "" if target.open else target.stopped_reason or "switched off by staff"
        checks.append(
            smoke.affordable(
                target=target.name, price=target.price, currency=target.currency, factor=_factor(),
                limit=self.run.most if self.run.real and self.run.most is not None else Decimal("Infinity"), closed=closed,
            )
        )  # fmt: skip
        self.run.checks = smoke.plain(checks)
        if not self.run.real or not smoke.passed(checks):
            self._finish(checks)
            return False
        lifecycle.keep(self.run, now=self.outside.now())
        return True

    def _key_and_balance(self) -> list[Check]:
        call = self.adapter.balance(self.account)
        if call is None:
            # Without a balance the status of a task that is nobody's tells of the key.
            target = self.run.target
            asked = self.adapter.poll(self.account, Named(_NOBODY, target.model if target else ""))
            if asked is None:
                return [Check("key", ok=None, finding="key_untold")]
            return [self._key(self.outside.ask(self.adapter, self.account, asked))]
        answer = self.outside.ask(self.adapter, self.account, call)
        if not isinstance(answer, Answer):
            return [self._key(answer)]
        try:
            told = self.adapter.read_balance(answer)
        except NotToldError:
            return [
                Check("key", ok=True, finding="key_good"),
                Check("balance", ok=None, finding="balance_none"),
            ]
        except ValueError as error:
            key = self._key(answer)
            if key.ok is False:
                return [key]
            why = f"HTTP {answer.status}, {error}"[:300]
            return [key, Check("balance", ok=False, finding="balance_unreadable", data={"why": why})]  # fmt: skip
        self.seen["before"] = str(told.amount)
        data = {"balance": f"{told.amount.normalize():f}", "currency": told.currency}
        return [
            Check("key", ok=True, finding="key_good"),
            Check("balance", ok=True, finding="balance_told", data=data),
        ]

    def _key(self, answer: Answer | NoAnswer) -> Check:
        """What the answer to a read tells of the key."""
        if not isinstance(answer, Answer):
            return Check("key", ok=False, finding="no_answer", data={"why": answer.reason[:300]})
        refusal = classify(answer, submit=False)
        if refusal.failure is FailureClass.UNAUTHORIZED:
            return Check("key", ok=False, finding="key_rejected", data={"why": refusal.reason})
        if answer.status >= 500:
            return Check("key", ok=False, finding="no_answer", data={"why": refusal.reason})
        # Whoever says "no such task" has let us in.
        return Check("key", ok=True, finding="key_good")

    def _history(self) -> Check:
        now = self.outside.now()
        listed = self._listed(since=now - timedelta(hours=1), until=now + _SKEW)
        if listed is None:
            return Check("history", ok=None, finding="history_none")
        if isinstance(listed, str):
            return Check("history", ok=False, finding="history_unreadable", data={"why": listed})
        return Check("history", ok=True, finding="history_told", data={"count": str(len(listed))})

    def _listed(self, *, since: datetime, until: datetime) -> dict[str, str] | str | None:
        """The newest page of the history, id to the id of ours that it shows; a text says why it can't be read, None that
        there is no such thing."""
        call = self.adapter.history(self.account, since=since, until=until, page=1)
        if call is None:
            return None
        answer = self.outside.ask(self.adapter, self.account, call)
        if not isinstance(answer, Answer):
            return answer.reason[:300]
        try:
            page = self.adapter.read_history(answer)
        except ValueError as error:
            return f"HTTP {answer.status}, {error}"[:300]
        return {item.provider_id: item.correlation_id for item in page.items}

    # --- the paid call ---

    def _look(self, job_id: int) -> bool:
        """One look at the rows, and outside where something is open there. True: the run has ended."""
        now = self.outside.now()
        job = Job.objects.get(pk=job_id)
        task = ProviderTask.objects.filter(job_id=job_id).order_by("-created_at").first()
        waited_s = (now - job.created_at).total_seconds()
        # One POST: what was refused is not tried again, and what no lane takes is taken back.
        refused = task is not None and task.state == TaskState.REFUSED
        if job.state == JobState.PENDING and (refused or waited_s >= SENT_WITHIN_S):
            job = self._take_back(job, now)
        if task is None or job.state == JobState.PENDING:
            if job.state in {JobState.PENDING, JobState.ACTIVE}:
                self._say(job, task)
                lifecycle.keep(self.run, now=now)
                return False
            return self._judged(job, task, waited_s)
        self._say(job, task)
        listed = self._look_for(task)
        over = task.state in _OVER or job.state not in {JobState.PENDING, JobState.ACTIVE}
        patient = waited_s < settings.POLL_DEADLINE_SEC
        if (not over and patient) or not listed or not self._paid(task):
            lifecycle.keep(self.run, now=self.outside.now())
            return False
        return self._judged(job, task, waited_s)

    def _say(self, job: Job, task: ProviderTask | None) -> None:
        self.tell(f"{job.get_state_display()}, {ProviderTask.State(task.state).label}" if task else str(job.get_state_display()))  # fmt: skip

    def _take_back(self, job: Job, now: datetime) -> Job:
        waiting = phases.why_waiting([job], now).get(job.pk)
        self.seen["why"] = waiting.text if waiting is not None else ""
        # Refused: it has just moved.
        with contextlib.suppress(Refused):
            staff.cancel(
                job_id=job.pk, actor=None, now=now, reason="smoke: one send, and no longer"
            )
        job.refresh_from_db()
        return job

    def _look_for(self, task: ProviderTask) -> bool:
        """Ask the history for the send. True: there is nothing more to ask."""
        if task.accepted_at is None or not task.provider_id:
            return task.state in _OVER
        if "lag_s" in self.seen:
            return True
        asked_at = self.outside.now()
        listed = self._listed(since=task.accepted_at - _SKEW, until=asked_at + _SKEW)
        if listed is None:
            return True
        if isinstance(listed, dict) and task.provider_id in listed:
            lag_s = (self.outside.now() - task.accepted_at).total_seconds()
            self.seen["lag_s"] = math.ceil(lag_s * 10) / 10
            self.seen["echo"] = listed[task.provider_id] == str(task.pk)
            return True
        age_s = (asked_at - task.accepted_at).total_seconds()
        self.seen["unlisted_s"] = age_s
        return age_s >= smoke.LISTED_WITHIN_S

    def _paid(self, task: ProviderTask) -> bool:
        """Read the second balance. True: it fell as told, or has had its time to."""
        call = self.adapter.balance(self.account)
        before = self.seen.get("before")
        if call is None or before is None or task.state != TaskState.STORED:
            return True
        now = self.outside.now()
        answer = self.outside.ask(self.adapter, self.account, call)
        if isinstance(answer, Answer):
            # The check of the money says that there is none.
            with contextlib.suppress(ValueError):
                self.seen["after"] = str(self.adapter.read_balance(answer).amount)
        fell_at = datetime.fromisoformat(self.seen.setdefault("fell_at", now.isoformat()))
        as_told = smoke.fell_as_told(_money(before), _money(self.seen.get("after")), task.cost)
        return as_told is True or (now - fell_at).total_seconds() >= smoke.MOVED_WITHIN_S

    # --- the end ---

    def _judged(self, job: Job, task: ProviderTask | None, waited_s: float) -> bool:
        target, account = self.run.target, self.run.account
        assert target is not None
        account.refresh_from_db()
        promised = smoke.Promised(
            asynchronous=self.adapter.asynchronous,
            named=self.adapter.asynchronous or self.adapter.receipt(self.account, Named(_NOBODY)) is not None,
            tells_cost=self.adapter.tells_cost,
            listed=self.adapter.history(self.account, since=self.run.at, until=self.run.at, page=1) is not None,
            kind=Kind(target.kind), price=target.price, most=target.price * _factor(), currency=target.currency,
        )  # fmt: skip
        beside = ProviderTask.objects.filter(
            Q(armed_at__gte=self.run.at) | Q(completed_at__gte=self.run.at), account=account
        )
        seen = smoke.Seen(
            job=JobState(job.state), send=_send(task) if task is not None and task.armed_at else None,
            waited_s=waited_s, why=self.seen.get("why", ""), before=_money(self.seen.get("before")),
            after=_money(self.seen.get("after")), alone=not beside.exclude(job_id=job.pk).exists(),
            exclusive=account.exclusive, lag_s=self.seen.get("lag_s"), unlisted_s=self.seen.get("unlisted_s"),
            echo=self.seen.get("echo"), knew_echo=account.echoes_id,
        )  # fmt: skip
        if promised.listed and task is not None and task.provider_id:
            lifecycle.measured(
                account_id=account.pk, echoes_id=seen.echo, now=self.outside.now(),
                history_lag_s=smoke.known_lag(known_s=account.history_lag_s, seen=seen),
            )  # fmt: skip
        checks = smoke.from_plain(self.run.checks) + smoke.judge(promised, seen)
        self._finish(checks, cost=task.cost if task is not None else None)
        return True


def _money(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _send(task: ProviderTask) -> smoke.Send:
    assert task.armed_at is not None
    moments = (task.accepted_at, task.refused_at, task.unsent_at, task.lost_at, task.completed_at, task.failed_at)  # fmt: skip
    first = min((moment for moment in moments if moment is not None), default=task.armed_at)
    result = task.results.order_by("position").first()
    words = JobEvent.objects.filter(job_id=task.job_id, task=task, kind="status_word")
    status = task.evidence.get("submit", {}).get("status")
    return smoke.Send(
        state=TaskState(task.state), answered_s=max((first - task.armed_at).total_seconds(), 0.0), status=status,
        provider_id=task.provider_id or "", polls=task.polls,
        new_words=tuple(str(data.get("status", "")) for data in words.values_list("data", flat=True)),
        failure=task.failure_class or task.refusal_class or "", why=task.fetch_trouble or task.failure_text,
        result=(result.media_type, result.width, result.height) if result is not None else None,
        text=bool(task.result_text), cost=task.cost,
    )  # fmt: skip
