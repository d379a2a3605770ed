"""Which target of a tenant's split a job goes to first: a share of the jobs for each, by weight. Pure.

Nothing is drawn by chance: the same key always gives the same target, so an import that is looked at, made and looked at
again goes the same ways.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

MOST_TARGETS = 20
MOST_WEIGHT = 1000
_BITS = 52  # so that no share of 2**52 parts rounds to 1, whose logarithm is 0


def weights(stored: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Of the column: [{"target": id, "weight": n}, …]; in its order."""
    return {int(part["target"]): int(part["weight"]) for part in stored}


def stored(parts: Mapping[int, int]) -> list[dict[str, int]]:
    """For the column."""
    return [{"target": target, "weight": weight} for target, weight in parts.items()]


def draw(parts: Mapping[int, int], *, key: str) -> int:
    """The target's id for the key. `parts`: weights above 0 by target, at least one.

    Weighted rendezvous hashing: each target's weight over the negative logarithm of a number in (0, 1) that key and target
    give; the highest wins. A target that drops out takes its share along: only its own keys move, by the others' weights.
    """
    return max(sorted(parts), key=lambda target: parts[target] / -math.log(_number(target, key)))


def _number(target: int, key: str) -> float:
    digest = hashlib.sha256(f"{target} {key}".encode()).digest()
    return float((int.from_bytes(digest[:8]) >> (64 - _BITS)) + 0.5) / 2.0**_BITS
