"""Who gets a place: what is left of the targets, where each job can go, and whose turn it is. Asks the database nothing."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from jobs.budgets import Budget, ceiling
from jobs.rooms import Rooms

Row = tuple[int, int, int, list[int]]  # job, tenant, target, route


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTarget:
    id: int
    provider: str
    model: str
    price: Decimal
    currency: str
    max_in_flight: int | None
    account_id: int


class Deal:
    """What is left of the targets, and where a job can go."""

    def __init__(
        self,
        *,
        targets: dict[int, OpenTarget],
        stopped: Collection[int],
        rooms: Rooms,
        by_target: Counter[int],
        room: int,
        fallback_on: Collection[str],
        price_factor: float,
    ) -> None:
        self.price_factor = price_factor
        self.budgets: dict[int, Budget] = {}
        self._targets = targets
        self._taken: defaultdict[int, Decimal] = defaultdict(Decimal)  # tenant -> ceilings dealt
        self._rooms = rooms
        self._room = {
            target.id: room
            if target.max_in_flight is None
            else min(room, target.max_in_flight - by_target[target.id])
            for target in targets.values()
        }
        self.shut = {
            target_id for target_id in targets if rooms.goes_elsewhere(target_id, fallback_on)
        }
        if "refused" in fallback_on:
            self.shut |= set(stopped)

    def left(self, target_id: int) -> int:
        most = self._rooms.left(target_id)
        here = self._room.get(target_id, 0)
        return here if most is None else min(here, most)

    def open(self) -> list[int]:
        return [target_id for target_id in self._room if self.left(target_id) > 0]

    def goes_to(self, row: Row) -> int | None:
        """The job's own target; where that is shut, the next of its route that takes something. None: it waits.

        A budget never sends a job elsewhere: it waits for the money.
        """
        _job, tenant_id, target_id, route = row
        if target_id not in self.shut:
            to = target_id if self.left(target_id) > 0 else None
        else:
            after = route[route.index(target_id) + 1 :]
            to = next(
                (other for other in after if other not in self.shut and self.left(other) > 0), None
            )
        return to if to is not None and self._pays(tenant_id, to) else None

    def _pays(self, tenant_id: int, target_id: int) -> bool:
        target = self._targets[target_id]
        held = self.budgets[tenant_id].holds(
            price=target.price,
            currency=target.currency,
            factor=self.price_factor,
            taken=self._taken[tenant_id],
        )
        return held is None

    def take(self, tenant_id: int, target_id: int) -> None:
        self._room[target_id] -= 1
        self._rooms.take(target_id)
        self._taken[tenant_id] += ceiling(self._targets[target_id].price, self.price_factor)


class Turns:
    """Whose turn it is: who has got least for its weight in this deal; then who has least in flight for it, so that a small
    tenant is not always behind a big one.

    Among equals lots are drawn, by weight: with fewer places than tenants, any fixed order would serve the same ones for
    ever. By the clock, so that a simulated run can be repeated.
    """

    def __init__(
        self, weights: Mapping[int, int], *, by_tenant: Counter[int], now: datetime
    ) -> None:
        lots = random.Random(now.timestamp())  # noqa: S311  no secret
        self._weights = weights
        self._got: Counter[int] = Counter()
        # The least of such lots falls to each with a chance of its share of the weights.
        self._after = {
            tenant_id: (by_tenant[tenant_id] / weight, lots.expovariate(weight))
            for tenant_id, weight in weights.items()
        }

    def next(self, waiting: Collection[int]) -> int:
        return min(
            waiting,
            key=lambda tenant_id: (self._got[tenant_id] / self._weights[tenant_id], *self._after[tenant_id]),
        )  # fmt: skip

    def got(self, tenant_id: int) -> int:
        return self._got[tenant_id]

    def took(self, tenant_id: int) -> None:
        self._got[tenant_id] += 1
