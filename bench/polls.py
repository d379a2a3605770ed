"""How often a provider is asked about a generation, and how long a finished one waits to be noticed.

`python -m bench.polls [--json] [--quick]`. Generations of log-normal latency (median 240 s, sigma 0.4), one after another in
virtual time, through the functions that the poll stage calls. The plan is made anew from the newest 500 latencies as they
were noticed, so that its own delay is in what it learns from. Beside it the same generations asked about every 3 s.
"""

from __future__ import annotations

import math
import os
import random
import sys
import uuid
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

import django

from bench import report

MEDIAN_S, SIGMA = 240.0, 0.4
LEARN_AGAIN_EVERY = 25  # generations
MOST_POLLS, LONGEST_DELAY_S = 21.0, 4.5
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    rng = random.Random(20260101)
    many = 10_000 if quick else 40_000
    latencies = [rng.lognormvariate(math.log(MEDIAN_S), SIGMA) for _ in range(many)]
    planned, fixed = _run(latencies, learns=True), _run(latencies, learns=False)
    figures = {
        "generations": many,
        "polls_a_job": round(planned[0], 2),
        "mean_delay_s": round(planned[1], 2),
        "longest_delay_s": round(planned[2], 1),
        "fixed_polls_a_job": round(fixed[0], 2),
        "fixed_mean_delay_s": round(fixed[1], 2),
    }
    limits = {"polls_a_job": MOST_POLLS, "mean_delay_s": LONGEST_DELAY_S}
    return figures, limits, planned[0] <= MOST_POLLS and planned[1] <= LONGEST_DELAY_S


def _run(latencies: list[float], *, learns: bool) -> tuple[float, float, float]:
    """Polls a generation, mean delay and longest delay in seconds; of those after the first 500, which teach the plan."""
    from jobs import polling
    from jobs.models import ProviderTask
    from jobs.rules import Limits
    from jobs.stages import facts
    from providers.contract import Accepted, Running

    limits = Limits(
        concurrency=1, poll_interval_s=3.0, late_poll_interval_s=30.0, poll_deadline_s=86_400.0, reconcile_interval_s=30.0,
        post_deadline_s=30.0, exposure_prices=20, price_ceiling_factor=1.5,
    )  # fmt: skip
    known: deque[float] = deque(maxlen=polling.MOST_SAMPLES)
    plan: polling.Plan | None = None
    polls, delays = 0, []
    for number, latency_s in enumerate(latencies):
        if learns and number % LEARN_AGAIN_EVERY == 0:
            plan = polling.plan(known, floor_s=3.0)
        task = ProviderTask(id=uuid.UUID(int=number), armed_at=BEGIN, accepted_at=BEGIN)
        ends_at = BEGIN + timedelta(seconds=latency_s)
        told = facts.of_submit(task.pk, Accepted("x"), at=BEGIN, limits=limits, kept={}, plan=plan)
        counts = number >= polling.MOST_SAMPLES
        while True:
            at = told.next_poll_at
            assert at is not None
            task.polls += 1
            if at >= ends_at:
                break
            task.next_poll_at = at
            told = facts.of_poll(
                task, Running("processing"), at=at, limits=limits, kept={}, plan=plan
            )
        known.append((at - BEGIN).total_seconds())
        if counts:
            polls += task.polls
            delays.append((at - ends_at).total_seconds())
    return polls / len(delays), sum(delays) / len(delays), max(delays)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "studio.settings")
    django.setup()
    sys.exit(report.run("polls", __doc__.splitlines()[0], measure))
