"""Orders jobs from a desk that is being disturbed, as people do: by the web page, and by the command."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass

import httpx
from django.contrib.auth import get_user_model
from django.urls import reverse

from bench.desk import PROJECT, RealDesk

NAME, PASSWORD = "chaos", "chaos"
_COMMAND_EACH = 8  # every so many orders one comes by the command
_MOST_AT_ONCE = 12


@dataclass(slots=True)
class Order:
    reference: str
    count: int
    acknowledged: bool = False


class Customer(threading.Thread):
    """Orders `total` jobs, evenly over `within_s`, then one every `canary_every_s` until `end`.

    A page that fails is tried again with the same token, which makes the jobs once. The command is not tried again.
    """

    def __init__(
        self,
        desk: RealDesk,
        *,
        port: int,
        total: int,
        within_s: float,
        rng: random.Random,
        canary_every_s: float = 6.0,
    ) -> None:
        super().__init__(name="customer", daemon=True)
        self.desk, self.total, self.within_s, self.rng = desk, total, within_s, rng
        self.canary_every_s = canary_every_s
        self.orders: list[Order] = []
        self.tried_again = 0
        self.waits_s: list[float] = []  # from the first try of each order to its acknowledgement
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False
        )
        self._signed_in = False
        self._end = threading.Event()
        get_user_model().objects.create_superuser(NAME, password=PASSWORD)

    @property
    def created(self) -> int:
        return sum(order.count for order in self.orders if order.acknowledged)

    def end(self) -> None:
        self._end.set()
        self.join()
        self._client.close()

    def run(self) -> None:
        begin = time.monotonic()
        while self.created < self.total and not self._end.is_set():
            due = self.total * min(1.0, (time.monotonic() - begin) / self.within_s)
            if self.created >= due:
                self._end.wait(0.2)
                continue
            count = min(self.rng.randint(1, _MOST_AT_ONCE), self.total - self.created)
            self._order(count, by_command=len(self.orders) % _COMMAND_EACH == _COMMAND_EACH - 1)
        while not self._end.wait(self.canary_every_s):
            self._order(1, by_command=False)

    def _order(self, count: int, *, by_command: bool) -> None:
        order = Order(f"order{len(self.orders)}", count)
        self.orders.append(order)
        if by_command:
            order.acknowledged = self._by_command(order)
            return
        token, begin = str(uuid.uuid4()), time.monotonic()
        while not self._end.is_set():
            try:
                if self._by_page(order, token):
                    order.acknowledged = True
                    self.waits_s.append(time.monotonic() - begin)
                    return
            except httpx.HTTPError:
                pass
            self.tried_again += 1
            self._end.wait(0.5)

    def _by_command(self, order: Order) -> bool:
        words = ["generate", f"a lighthouse, {order.reference}", "--count", str(order.count)]
        done = subprocess.run(
            [sys.executable, "manage.py", *words, "--reference", order.reference, "--json"],
            cwd=PROJECT, env=self.desk.environment, capture_output=True, check=False,
        )  # fmt: skip
        return done.returncode == 0

    def _by_page(self, order: Order, token: str) -> bool:
        if not self._signed_in:
            self._signed_in = self._sign_in()
        page = reverse("admin:jobs_job_add")
        answer = self._client.post(
            page,
            data={
                "prompts": "\n".join(
                    f"a harbour {number} for {order.reference}" for number in range(order.count)
                ),
                "reference": order.reference,
                "tenant": self._tenant,
                "count": "1",
                "token": token,
                "csrfmiddlewaretoken": self._client.cookies["csrftoken"],
            },
        )
        if "/login/" in answer.headers.get("location", "") or answer.status_code == 403:
            self._signed_in = False
            return False
        return answer.status_code == 302

    def _sign_in(self) -> bool:
        page = reverse("admin:login")
        self._client.cookies.clear()
        self._client.get(page)
        answer = self._client.post(
            page,
            data={
                "username": NAME,
                "password": PASSWORD,
                "csrfmiddlewaretoken": self._client.cookies.get("csrftoken", ""),
            },
        )
        if answer.status_code != 302:
            return False
        form = self._client.get(reverse("admin:jobs_job_add"))
        found = form.text.partition('name="tenant"')[2].partition('option value="')[2]
        self._tenant = found.partition('"')[0]
        return form.status_code == 200 and self._tenant.isdecimal()
