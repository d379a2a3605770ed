"""Four lanes in four processes: one probe, every limit to the letter, and no crowd at the end of a wait.

The sandbox counts. tests/holds/issue_04.py runs the same, longer.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.desk import RealDesk, ledger_line, until
from tests.real import real_desk

pytestmark = [pytest.mark.flow, pytest.mark.django_db(transaction=True)]

LANES = 4
A, B = "google/gemini-2.5-flash-image", "google/veo3"
DAY_S = 86_400


def start_four(desk: RealDesk) -> None:
    desk.start_cluster()
    until(lambda: len(set(desk.lanes().values())) == LANES, "four lanes in four processes", 90.0)


def arrivals(desk: RealDesk, *, since: float = 0.0) -> list[float]:
    """When POSTs came to the sandbox, by its clock, in order."""
    posts = desk.sandbox.ledger()["posts"]
    return sorted(float(post["at"]) for post in posts if post["at"] >= since)


def events(desk: RealDesk, kind: str) -> list[float]:
    """When it happened to the account as a whole, unix seconds."""
    query = "SELECT extract(epoch FROM at) FROM providers_providerevent WHERE model = '' AND kind = %s ORDER BY id"
    return [float(at) for (at,) in desk.ask(query, kind)]


# --- limits -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What staff have set. `jobs_b` is more than the day allows, all of them more than one window does."""

    at_once: int = 6
    at_once_a: int = 3
    at_once_b: int = 4
    window_s: int = 8
    per_window: int = 12
    per_day_b: int = 12
    jobs_a: int = 12
    jobs_b: int = 16

    @property
    def sends(self) -> int:
        return self.jobs_a + self.per_day_b

    def set_by(self) -> str:
        """The verbs, for the desk's own program."""
        return f"""
from django.utils.timezone import now
from jobs.lifecycle.limits import limit_target, limit_window
from providers.models import Account, Target
account = Account.objects.get(provider="polza")
common = dict(account_id=account.pk, actor=None, now=now())
a, b = (Target.objects.create(provider="polza", model=model, price=5) for model in ({A!r}, {B!r}))
limit_target(target_id=a.pk, most={self.at_once_a}, actor=None, now=now())
limit_window(seconds=None, most={self.at_once}, **common)
limit_window(seconds={self.window_s}, most={self.per_window}, **common)
limit_window(model={B!r}, seconds=None, most={self.at_once_b}, **common)
limit_window(model={B!r}, seconds={DAY_S}, most={self.per_day_b}, **common)
"""

    def sandbox(self) -> dict[str, Any]:
        """The provider holds the limits of the account too: whatever goes beyond them is refused."""
        return {
            "latency_fixed_s": 2.0,
            "concurrency_limit": self.at_once,
            "quotas": [[self.per_window, self.window_s]],
        }


def keep_limits(desk: RealDesk, asked: Asked, *, within_s: float) -> dict[str, Any]:
    """Jobs of both models until the day's limit is all that is left to wait for. Asserts; gives what the sandbox counted."""
    desk.python(asked.set_by())
    for model, jobs in ((A, asked.jobs_a), (B, asked.jobs_b)):
        desk.create(jobs, "a lighthouse", "--target", f"polza:{model}")
    start_four(desk)
    until(
        lambda: desk.states().get("succeeded", 0) == asked.sends, "all that may be sent", within_s
    )
    time.sleep(2.0)  # in which a lane would send more, if one would
    runs = desk.ask("SELECT count(DISTINCT run_id) FROM jobs_providertask")[0][0]
    came, most = arrivals(desk), desk.sandbox.stats()["max_in_flight_by"]
    [key] = [count for name, count in most.items() if name.startswith("key:")]
    summary = desk.sandbox.summary()
    in_window = max(sum(at - asked.window_s < other <= at for other in came) for at in came)
    told = {
        "lanes_that_sent": runs, "posts": len(came), "refused": summary["posts"] - summary["posts_accepted"],
        "at_once": key, "at_once_a": most[f"model:{A}"], "at_once_b": most[f"model:{B}"],
        "in_any_window": in_window, "windows_filled": len(came) // asked.per_window,
    }  # fmt: skip
    assert runs >= 2, "else nobody had to share"
    assert (told["posts"], told["refused"]) == (asked.sends, 0)
    assert (told["at_once"], told["at_once_a"]) == (asked.at_once, asked.at_once_a)
    assert told["at_once_b"] <= asked.at_once_b
    assert told["in_any_window"] == asked.per_window, "reached, and not passed"
    assert desk.states() == {"succeeded": asked.sends, "pending": asked.jobs_b - asked.per_day_b}
    assert desk.wrong() == []
    return told


# --- the one probe ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probed:
    """POSTs between the end of the outage and the breaker's closing; whether the first one's lease was given back."""

    probes: int
    returned: bool
    succeeded: int


def one_probe(desk: RealDesk, *, kill: str = "", to_the_end: bool = True) -> Probed:
    """An outage, then a crowd of jobs at a half-open breaker. `kill` -9s the prober: "" nobody, "sending" before the answer
    to its POST, "at_provider" once the job is taken. Asserts that there is one probe at a time, and `to_the_end` of all jobs
    that each is paid once."""
    start_four(desk)
    desk.sandbox.control("outage/start", kind="503")
    desk.create(8)
    until(lambda: events(desk, "opened"), "the breaker", 30.0)
    if kill == "sending":
        desk.sandbox.control("settings", answer_delay_s=5.0)
    desk.create(30)
    desk.sandbox.control("outage/stop")
    over_at = desk.sandbox.stats()["now"]
    # As staff's "probe now": the free read is due.
    desk.ask("UPDATE providers_providerstate SET next_try_at = now() WHERE gate = 'open'")
    if kill:
        _kill_prober(desk, kill)
    until(lambda: events(desk, "closed"), "the recovery", 150.0)
    closed_at = events(desk, "closed")[0]
    probes = [at for at in arrivals(desk, since=over_at) if at <= closed_at]
    returned = events(desk, "probe_returned")
    assert len(events(desk, "probe_taken")) == len(probes)
    assert len(probes) == 1 + len(returned)
    assert all(back <= later for back, later in zip(returned, probes[1:], strict=True))
    assert events(desk, "opened") == events(desk, "opened")[:1]
    if to_the_end:
        desk.settle(150.0, canary_every_s=None)
        assert desk.states().keys() == {"succeeded"}
        assert desk.wrong() == []
        assert desk.sandbox.summary()["charges"] == desk.states()["succeeded"]
    return Probed(
        probes=len(probes), returned=bool(returned), succeeded=desk.states().get("succeeded", 0)
    )


def _kill_prober(desk: RealDesk, when: str) -> None:
    state = {"sending": "sending", "at_provider": "accepted"}[when]
    prober = until(
        lambda: desk.ask(
            "SELECT l.pid FROM providers_providerstate s JOIN jobs_providertask t ON t.id = s.probe_id"
            " JOIN jobs_lane l ON l.run_id = t.run_id WHERE t.state = %s",
            state,
        ),
        "the probe",
        30.0,
    )
    if when == "sending":
        time.sleep(1.0)  # its POST is there by now, the answer is not
    os.kill(prober[0][0], signal.SIGKILL)
    desk.sandbox.control("settings", answer_delay_s=0.0)


# --- the end of a wait ------------------------------------------------------------------------------------------------

WAITERS = 20
WAIT_S = 3.0
ANSWER_S = 0.4


def wake_apart(desk: RealDesk) -> dict[str, Any]:
    """Twenty sends are told the same Retry-After. Asserts that they come back one, two, four…; how far apart."""
    start_four(desk)
    desk.sandbox.control(
        "settings", answer_delay_s=2.0, faults={f"rate_limited_seconds={WAIT_S:g}": 1.0}
    )
    desk.create(WAITERS)
    until(lambda: len(arrivals(desk)) == WAITERS, "twenty refusals", 30.0)
    desk.sandbox.control("settings", answer_delay_s=ANSWER_S, faults={})
    last_told_at = arrivals(desk)[-1] + 2.0
    desk.settle(90.0, canary_every_s=None)
    assert desk.states() == {"succeeded": WAITERS}
    back = arrivals(desk)[WAITERS:]
    together = max(sum(at <= other < at + ANSWER_S for other in back) for at in back)
    told: dict[str, Any] = {
        "waiters": WAITERS, "first_after_the_wait_s": round(back[0] - last_told_at - WAIT_S, 2),
        "spread_s": round(back[-1] - back[0], 2), "most_within_one_answer": together,
        "gaps_s": [round(later - earlier, 2) for earlier, later in pairwise(back)],
    }  # fmt: skip
    assert len(back) == WAITERS, "none was refused again"
    assert told["first_after_the_wait_s"] >= 0
    assert back[1] - back[0] >= ANSWER_S, "the first goes alone"
    assert together <= WAITERS // 2
    assert told["spread_s"] > 1.0
    return told


# --- a bounded share --------------------------------------------------------------------------------------------------


def test_four_lanes_keep_every_limit(tmp_path: Path) -> None:
    asked = Asked()
    with real_desk(
        tmp_path, sandbox=asked.sandbox(), WORKER_LANES=LANES, WORKER_CONCURRENCY=12
    ) as desk:
        print(keep_limits(desk, asked, within_s=90.0))  # noqa: T201


def test_a_killed_probers_job_is_the_only_probe_all_the_same(tmp_path: Path) -> None:
    with real_desk(
        tmp_path, sandbox={"latency_fixed_s": 5.0}, WORKER_LANES=LANES, WORKER_CONCURRENCY=8
    ) as desk:
        told = one_probe(desk, kill="at_provider", to_the_end=False)
        print(told, ledger_line(desk))  # noqa: T201
        assert told.probes == 1
