"""Chance that can be taken back: each draw depends on the seed, its site and its number there, and on nothing else.

So a schedule can be run again without some of its faults (to shrink it), and every other draw stays as it was.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeVar

T = TypeVar("T")


class Chance:
    """`without` names faults that shall not happen, as `struck` lists those that did."""

    def __init__(self, seed: int, *, without: Collection[str] = ()) -> None:
        self.seed = seed
        self.without = frozenset(without)
        self.struck: list[str] = []
        self._drawn: Counter[str] = Counter()

    def _draw(self, site: str) -> tuple[str, float]:
        self._drawn[site] += 1
        name = f"{site}#{self._drawn[site]}"
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        return name, int.from_bytes(digest) / 2**64

    def number(self, site: str, low: float = 0.0, high: float = 1.0) -> float:
        """Even between the bounds."""
        return low + (high - low) * self._draw(site)[1]

    def pick(self, site: str, choices: Sequence[T]) -> T:
        return choices[int(self._draw(site)[1] * len(choices))]

    def strikes(self, site: str, probability: float) -> bool:
        """Whether a fault happens. One that does can be named in `without` the next time."""
        name, value = self._draw(site)
        if value >= probability or name in self.without:
            return False
        self.struck.append(name)
        return True

    def generator(self, site: str) -> random.Random:
        """A generator of its own for code that wants one."""
        return random.Random(f"{self.seed}/{site}")
