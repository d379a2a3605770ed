"""Does "generate for all" start at once, keep its places full, move while one looks, and survive a restart?

`python -m bench.batch [--json] [--quick]`. Three desks of real processes, each on a database of its own:

1. 300 rows with generations of 20 s, concurrency 8, all times divided by one factor (printed). The upload is confirmed on
   the page and must be answered within a second; the batch must end within 1.10 of the list schedule: the same jobs one
   after another on 8 places, each taking its generation and half a polling interval.
2. The same, without a time bar; web and workers are stopped and started again at a third, killed and started again at two
   thirds. Nothing may be lost, and the sandbox's ledger must show nothing paid twice.
3. 10,000 rows on an idle desk without workers, while somebody else asks for a page ten times a second.

--quick: 64 rows in place of 300.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import OwnServer, own_server

FACTOR = 8.0
GENERATION_S, POLL_S = 20.0, 3.0
PLACES = 8
NAME, PASSWORD = "somebody", "bench-only"
MANY = 10_000
LOOK_EVERY_S = 0.25


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    rows = 64 if quick else 300
    with (
        tempfile.TemporaryDirectory(prefix="batch-") as folder,
        own_server(Path(folder, "postgres")) as server,
    ):
        figures: dict[str, Any] = {"factor": FACTOR, "rows": rows}
        figures |= _ends_in_time(server, Path(folder, "time"), rows)
        figures |= _survives(server, Path(folder, "restart"), rows)
        figures |= _takes_many(server, Path(folder, "many"))
    limits = {
        "accepted_s_max": 1.0,
        "of_the_list_schedule_max": 1.10,
        "succeeded_min": rows,
        "longest_standstill_generations_max": 2.0,
        "went_backwards_max": 0,
        "restarted_succeeded_or_case_min": rows,
        "restarted_broken_promises_max": 0,
        "restarted_batches_max": 1,
        "many_accepted_s_max": 10.0,
        "many_others_waited_s_max": 1.0,
        "many_jobs_min": MANY,
    }
    return figures, limits, all(_held(name, limit, figures) for name, limit in limits.items())


def _held(name: str, limit: float, figures: dict[str, Any]) -> bool:
    figure = figures[name.removesuffix("_max").removesuffix("_min")]
    return bool(figure <= limit if name.endswith("_max") else figure >= limit)


# --- the three runs ---------------------------------------------------------------------------------------------------


def _ends_in_time(server: OwnServer, folder: Path, rows: int) -> dict[str, Any]:
    with _desk(server, folder, "time") as (desk, _web, port):
        desk.start_cluster()
        until(desk.lanes, "a lane")
        person = Person(port)
        yes = person.upload(rows)
        begin = time.monotonic()
        batch = person.confirm(yes)
        accepted_s = time.monotonic() - begin
        watch = Watch(person, batch)
        until(lambda: watch.look()["done"], "the end", 600.0)
        took_s = time.monotonic() - begin
        states = desk.states()
    each_s = (GENERATION_S + POLL_S / 2) / FACTOR
    waves = -(-rows // PLACES)
    schedule_s = waves * each_s
    return {
        "accepted_s": round(accepted_s, 3),
        "took_s": round(took_s, 1),
        "list_schedule_s": round(schedule_s, 1),
        "of_the_list_schedule": round(took_s / schedule_s, 3),
        "succeeded": states.get("succeeded", 0),
        "looks": watch.looks,
        "longest_standstill_generations": round(watch.standstill_s / (GENERATION_S / FACTOR), 2),
        "went_backwards": watch.backwards,
    }


def _survives(server: OwnServer, folder: Path, rows: int) -> dict[str, Any]:
    with _desk(server, folder, "restart") as (desk, first_web, port):
        web, cluster = first_web, desk.start_cluster()
        person = Person(port)
        yes = person.upload(rows)
        batch = person.confirm(yes)
        restarts = 0
        for share, number in ((1 / 3, signal.SIGTERM), (2 / 3, signal.SIGKILL)):
            until(lambda share=share: _ended(desk) >= share * rows, "its share", 300.0)  # type: ignore[misc]
            for process in (web, cluster):
                os.killpg(process.pid, number)
                process.wait(60)
            web, cluster = desk.start_web(port), desk.start_cluster()
            restarts += 1
            until(person.reached, "the page")
            # A person who got no answer presses again.
            assert person.confirm(yes) == batch
        desk.settle(300.0, canary_every_s=5.0)
        [[made, fine, accounted]] = desk.ask(
            "SELECT count(*), count(*) FILTER (WHERE state = 'succeeded'), count(*) FILTER (WHERE state = 'succeeded' OR"
            " EXISTS (SELECT FROM jobs_case c WHERE c.job_id = j.id AND c.resolved_at IS NULL))"
            " FROM jobs_job j WHERE batch_id = %s",
            batch,
        )
        wrong = desk.wrong()
        batches = desk.ask("SELECT count(*) FROM jobs_batch WHERE label = 'rows.csv'")[0][0]
        told = person.progress(batch)
    for line in wrong:
        print(line, file=sys.stderr)
    return {
        "restarted_times": restarts,
        "restarted_jobs": made,
        "restarted_succeeded": fine,
        "restarted_succeeded_or_case": accounted,
        "restarted_broken_promises": len(wrong),
        "restarted_batches": batches,
        "restarted_page_says_done": told["done"],
    }


def _takes_many(server: OwnServer, folder: Path) -> dict[str, Any]:
    with _desk(server, folder, "many") as (_idle, _web, port):
        person, other = Person(port), Person(port)
        first = person.confirm(person.upload(1))
        with Beside(other, first) as beside:
            begin = time.monotonic()
            yes = person.upload(MANY)
            read_s = time.monotonic() - begin
            begin = time.monotonic()
            batch = person.confirm(yes)
            accepted_s = time.monotonic() - begin
        begin = time.monotonic()
        told = person.progress(batch)
        progress_s = time.monotonic() - begin
    return {
        "many_preview_s": round(read_s, 2),
        "many_accepted_s": round(accepted_s, 2),
        "many_jobs": told["total"],
        "many_progress_s": round(progress_s, 3),
        "many_others_asked": len(beside.waits_s),
        "many_others_waited_s": round(max(beside.waits_s), 3),
    }


@contextlib.contextmanager
def _desk(server: OwnServer, folder: Path, name: str) -> Iterator[tuple[RealDesk, Any, int]]:
    folder.mkdir()
    with desk_on(
        server.create(name),
        folder,
        sandbox={"latency_fixed_s": GENERATION_S / FACTOR, "prepared_bytes": 64_000},
        WORKER_CONCURRENCY=PLACES,
        POLL_INTERVAL_SEC=POLL_S / FACTOR,
    ) as desk:
        desk.python(
            "from django.contrib.auth import get_user_model\n"
            f"get_user_model().objects.create_superuser({NAME!r}, password={PASSWORD!r})\n"
        )
        port = _free_port()
        web = desk.start_web(port)
        yield desk, web, port


def _ended(desk: RealDesk) -> int:
    states = desk.states()
    return sum(states.get(state, 0) for state in ("succeeded", "failed", "manual"))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


# --- people -----------------------------------------------------------------------------------------------------------


class Person:
    """A member of staff with a browser, signed in from the start."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False)  # fmt: skip
        until(self.reached, "the web server")
        self._post("/admin/login/", username=NAME, password=PASSWORD)

    def reached(self) -> bool:
        try:
            return self._client.get("/admin/login/").status_code in {200, 302}
        except httpx.HTTPError:
            return False

    def _post(self, path: str, *, files: Any = None, **data: str) -> httpx.Response:
        token = self._client.cookies.get("csrftoken", "")
        answer = self._client.post(path, data=data | {"csrfmiddlewaretoken": token}, files=files)
        assert answer.status_code == 302, (path, answer.status_code, _said(answer.text))
        return answer

    def upload(self, rows: int) -> str:
        """Upload so many rows; the address of their preview, which was looked at."""
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["product", "colour", "reference", "priority"])
        writer.writerows([f"chair no. {n}", "red", f"R-{n}", n % 3] for n in range(rows))
        page = self._client.get("/admin/jobs/batch/add/").text
        found = page.partition('name="tenant"')[2].partition('option value="')[2]
        answer = self._post(
            "/admin/jobs/batch/add/",
            files={"file": ("rows.csv", text.getvalue().encode())},
            template="A {colour} {product} on a white wall",
            tenant=found.partition('"')[0],
        )
        preview = answer.headers["location"]
        assert self._client.get(preview).status_code == 200
        return preview

    def confirm(self, preview: str) -> int:
        """Press the button of a preview; the batch's number."""
        found = re.search(r"/batch/(\d+)/change/", self._post(preview).headers["location"])
        assert found is not None
        return int(found[1])

    def progress(self, batch: int) -> dict[str, Any]:
        answer = self._client.get(f"/admin/jobs/batch/{batch}/progress/")
        assert answer.status_code == 200, answer.status_code
        told: dict[str, Any] = answer.json()
        return told


def _said(page: str) -> str:
    return " ".join(re.findall(r"errorlist[^>]*>(.*?)</ul>", page, re.DOTALL))[:500] or page[:200]


@dataclass(slots=True)
class Watch:
    """Looks at a batch's progress as its page does, and notes how it moves."""

    person: Person
    batch: int
    looks: int = 0
    standstill_s: float = 0.0
    backwards: int = 0
    _ended: int = 0
    _since: float = field(default_factory=time.monotonic)

    def look(self) -> dict[str, Any]:
        time.sleep(LOOK_EVERY_S)
        told = self.person.progress(self.batch)
        ended = told["total"] - told["counts"]["pending"] - told["counts"]["active"]
        now = time.monotonic()
        self.looks += 1
        self.backwards += ended < self._ended
        self.standstill_s = max(self.standstill_s, now - self._since)
        if ended != self._ended:
            self._ended, self._since = ended, now
        return told


class Beside(threading.Thread):
    """Asks for a small page ten times a second, and notes how long each answer took."""

    def __init__(self, person: Person, batch: int) -> None:
        super().__init__(name="beside", daemon=True)
        self.person, self.batch = person, batch
        self.waits_s: list[float] = []
        self._end = threading.Event()

    def __enter__(self) -> Beside:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        while not self._end.wait(0.1):
            begin = time.monotonic()
            self.person.progress(self.batch)
            self.waits_s.append(time.monotonic() - begin)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        # By way of every clean-up.
        signal.signal(number, lambda number, _frame: sys.exit(f"stopped by signal {number}"))
    return report.run(
        "batch", "Is “generate for all” prompt, full, visible and safe over restarts?", measure
    )


if __name__ == "__main__":
    sys.exit(main())
