"""When to ask again about a generation under way, from how long its model's generations took lately. Pure.

Each poll is a request that the provider counts, and between two polls a finished picture waits. Asking at the rate r(age)
costs the integral of r over the wait and delays by half an interval; for a given mean delay the fewest polls come from
r ~ sqrt(hazard), the hazard being the chance to end now of what has not ended yet. So a plan asks seldom while nothing can
have ended, often while most do, and seldom again of stragglers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, pstdev

FEWEST_SAMPLES = 30  # with fewer, every `floor_s`
MOST_SAMPLES = 500
CAP_S = 30.0
JITTER = 0.1  # so that generations that began together are not asked about together
# The mean delay that is aimed at, as a share of the median, within bounds. 4.5 s of 4 min. come out: ends are noticed late.
DELAY_SHARE = 4.36 / 240
LONGEST_DELAY_S = 10.0
_GRID = 40
_POINTS = 250  # quantiles that stand for the samples: more cost time and change nothing
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Plan:
    """`intervals_s[i]` holds from the age `ages_s[i]` on, in seconds since the provider took the generation up.

    `polls` and `delay_s` are what to expect of it, a generation: requests, and how long a finished one waits.
    """

    ages_s: tuple[float, ...]
    intervals_s: tuple[float, ...]
    floor_s: float
    cap_s: float
    samples: int
    polls: float
    delay_s: float

    def next_s(self, age_s: float) -> float:
        """From `age_s` on, when to ask: a whole poll's worth of the rate later, as the rate changes on the way."""
        left, at = 1.0, max(age_s, 0.0)
        place = max(bisect_right(self.ages_s, at) - 1, 0)
        while place + 1 < len(self.ages_s):
            worth = (self.ages_s[place + 1] - at) / self.intervals_s[place]
            if worth >= left:
                break
            left, at, place = left - worth, self.ages_s[place + 1], place + 1
        at += left * self.intervals_s[place]
        return min(max(at - age_s, self.floor_s), self.cap_s)


def plan(latencies_s: Sequence[float], *, floor_s: float, cap_s: float = CAP_S) -> Plan | None:
    """The plan for a model whose generations took so long; None where too few are known, or asking less serves nobody."""
    known = sorted(max(value, 0.001) for value in latencies_s)
    cap_s = max(cap_s, floor_s)
    if len(known) < FEWEST_SAMPLES:
        return None
    samples = len(known)
    known = [
        known[place * samples // min(samples, _POINTS)] for place in range(min(samples, _POINTS))
    ]
    delay_s = min(DELAY_SHARE * median(known), LONGEST_DELAY_S)
    if delay_s <= floor_s / 2:
        return None
    ages, hazards, shares = _hazards(known)

    def intervals(scale: float) -> list[float]:
        return [
            min(max(scale / math.sqrt(hazard), floor_s), cap_s) if hazard > 0 else cap_s
            for hazard in hazards
        ]

    def mean_delay(scale: float) -> float:
        return sum(share * one / 2 for share, one in zip(shares, intervals(scale), strict=True))

    low, high = 1e-3, 1e5
    for _step in range(60):
        scale = math.sqrt(low * high)
        low, high = (low, scale) if mean_delay(scale) > delay_s else (scale, high)
    chosen = intervals(low)
    # What is older than all that is known is a straggler, asked about as seldom as the last of them.
    made = Plan(
        ages_s=(0.0, *ages), intervals_s=(cap_s, *chosen, chosen[-1]),
        floor_s=floor_s, cap_s=cap_s, samples=samples, polls=0.0, delay_s=0.0,
    )  # fmt: skip
    told = [_course(made, latency) for latency in known]
    return Plan(
        ages_s=made.ages_s, intervals_s=made.intervals_s, floor_s=floor_s, cap_s=cap_s, samples=samples,
        polls=fmean(polls for polls, _delay in told), delay_s=fmean(delay for _polls, delay in told),
    )  # fmt: skip


def _hazards(known: Sequence[float]) -> tuple[list[float], list[float], list[float]]:
    """Ages, and between each two the hazard and the share of generations that end there: a kernel estimate over the
    logarithms, by Silverman's rule, as latencies have long tails."""
    logs = [math.log(value) for value in known]
    count = len(logs)
    quartiles = logs[(3 * count) // 4] - logs[count // 4]
    spread = min(pstdev(logs), quartiles / 1.349) or pstdev(logs)
    width = max(0.9 * spread * count**-0.2, 0.03)
    first, last = logs[0] - 3 * width, logs[-1] + 3 * width
    points = [first + (last - first) * step / _GRID for step in range(_GRID + 1)]
    ended = [fmean(_NORMAL.cdf((point - log) / width) for log in logs) for point in points]
    ages = [math.exp(point) for point in points]
    hazards, shares = [], []
    for step in range(_GRID):
        share = ended[step + 1] - ended[step]
        # Never all have ended: the next one may take longer than any before.
        left, then = (1 - ended[place] + 1 / (count + 1) for place in (step, step + 1))
        hazards.append(math.log(left / then) / (ages[step + 1] - ages[step]))
        shares.append(share)
    return ages, hazards, shares


def _course(made: Plan, latency_s: float) -> tuple[int, float]:
    """How often it is asked about, and how long it waits once it has ended."""
    age, polls = 0.0, 0
    while age < latency_s:
        age += made.next_s(age)
        polls += 1
    return polls, age - latency_s


def jittered(interval_s: float, *, part: float) -> float:
    """`part` from 0 to 1 chooses within the jitter."""
    return interval_s * (1 + JITTER * (2 * part - 1))
