"""The program that is told how its jobs ended: it may be away, slow or broken in the storm, and works in the quiet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from bench.sim.desk import Desk
from jobs import callbacks
from jobs.models import Callback, Job
from jobs.models.callback import WAITS
from jobs.stages import deliver
from jobs.states import ENDED
from providers import outward
from providers.outward import Replied, Unreached

ADDRESS = "https://shop.sim/told"
TROUBLE = 0.3  # each of three kinds, as long as there is any


class Receiver:
    """`heard`: by message, what it has answered 200 to."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.heard: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """In the place of the network; with jitter that the seed decides."""
        with (
            mock.patch.object(outward, "post", self._post),
            mock.patch.object(deliver, "_rng", self.desk.chance.generator("callbacks")),
        ):
            yield

    async def _post(
        self, url: str, *, body: bytes, headers: Mapping[str, str], **_more: Any
    ) -> Replied | Unreached:
        chance, turns = self.desk.chance, self.desk.turns
        rate = 0.0 if self.desk.quiet else TROUBLE
        await asyncio.sleep(chance.number("receiver/takes", 0.05, 2.0))
        if chance.strikes("receiver/away", rate):
            return Unreached(reason="connection refused")
        if chance.strikes("receiver/broken", rate):
            return Replied(status=500, text="oops")
        message = headers["webhook-id"]
        self.heard.setdefault(message, json.loads(body))
        turns.tell(
            f"the receiver hears {self.heard[message]['type']} of job {self.heard[message]['data'].get('job')}"
        )
        if chance.strikes("receiver/answer lost", rate):
            return Unreached(reason="connection reset")
        return Replied(status=200)

    def waits(self) -> bool:
        return Callback.objects.filter(WAITS).exists()

    def wrong(self, *, restored: bool) -> Iterator[str]:
        """What is amiss at the end, in words."""
        for row in Callback.objects.filter(delivered_at__isnull=False):
            message = callbacks.message_id(row.message)
            if message not in self.heard:
                yield f"callback {row.pk} is called delivered, and the receiver never heard it"
            elif self.heard[message]["type"] != row.kind:
                yield f"callback {row.pk} says {row.kind}, and the receiver heard otherwise"
        if restored:
            return
        for row in Callback.objects.filter(given_up_at__isnull=False):
            yield f"callback {row.pk} is given up within a day: {row.trouble}"
        told = set(Callback.objects.values_list("job_id", "kind"))
        ended = Job.objects.filter(callback_url=ADDRESS, state__in=[state.value for state in ENDED])
        for job_id, state in ended.values_list("pk", "state"):
            if (job_id, f"job.{state}") not in told:
                yield f"job {job_id} ended as {state}, and nobody is to be told"
