"""Three hundred jobs meet a used-up quota, and an outage: who is asked, who is woken, and what is paid.

`python -m bench.storm [--json] [--quick]`. Two accounts of one provider, each a sandbox of its own; a cluster with two lanes; a
PostgreSQL of the bench's own. Every job may go to the second account when the first takes nothing.

Quota: the first account takes 40 generations in two hours. It may refuse as many requests as it has places, and one more;
the others must go round it, nobody is woken. Outage: the first answers 503 to everything, for less than the minute after
which the breaker looks again. One alert when it opens, one when it is over, and then the work comes back. What is sent and
paid is judged by the sandboxes' ledgers, what is told by a listener at the end of ALERT_URLS.

--quick: fewer jobs, and the next try is made at once, as by "probe now", instead of after a minute.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from bench import report
from bench.desk import RealDesk, desk_on, known_account, until
from bench.postgres import OwnServer, own_server
from providers.sandbox.server import Sandbox, running_sandbox

MODEL = "google/gemini-2.5-flash-image"
SECOND_KEY = "pza_second_account"
PLACES = 8  # of each account
QUOTA = [40, 7200]
BACK_WITHIN_S = 5.0
# An alert is sent at once, or by the minute's look.
ALERT_WITHIN_S = 75.0


@dataclass(frozen=True, slots=True)
class Size:
    """`latency_s`: the median generation. `outage_after`: generations taken when the outage begins. `outage_s`: how long it
    lasts once the breaker has opened."""

    jobs: int
    latency_s: float
    outage_after: int
    outage_s: float
    probe_at_once: bool


FULL = Size(jobs=300, latency_s=2.4, outage_after=40, outage_s=45.0, probe_at_once=False)
QUICK = Size(jobs=90, latency_s=0.8, outage_after=15, outage_s=3.0, probe_at_once=True)


def main() -> int:
    return report.run(
        "storm",
        "Do 300 jobs go round an account that is used up or down, and come back when it is up again?",
        measure,
    )


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    size = QUICK if quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="storm-") as folder,
        own_server(Path(folder, "postgres")) as server,
    ):
        quota = _quota(server, Path(folder, "quota"), size)
        outage = _outage(server, Path(folder, "outage"), size)
    figures = {f"quota_{name}": value for name, value in quota.items()}
    figures |= {f"outage_{name}": value for name, value in outage.items()}
    limits = {
        "quota_succeeded_min": size.jobs,
        "quota_refused_by_the_first_max": (PLACES + 1) * max(1, quota["blocks"]),
        "quota_blocks_max": 1,
        "quota_outages_max": 0,
        "quota_alerts_max": 0,
        "quota_broken_promises_max": 0,
        "outage_succeeded_min": size.jobs,
        "outage_alerts_at_opening": 1,
        "outage_alerts_at_recovery": 1,
        "outage_alerts_else_max": 0,
        "outage_openings": 1,
        "outage_probes": 1,
        "outage_back_after_the_probe_s_max": BACK_WITHIN_S,
        "outage_broken_promises_max": 0,
    }
    return figures, limits, all(_held(name, limit, figures) for name, limit in limits.items())


def _held(name: str, limit: float, figures: dict[str, Any]) -> bool:
    """A limit named without `_min` or `_max` must be met exactly. None, for what never came, holds no limit."""
    what = name.removesuffix("_max").removesuffix("_min")
    figure = figures[what]
    if figure is None:
        return False
    if name == what:
        return bool(figure == limit)
    return bool(figure <= limit if name.endswith("_max") else figure >= limit)


# --- the two runs -----------------------------------------------------------------------------------------------------


def _quota(server: OwnServer, folder: Path, size: Size) -> dict[str, Any]:
    with _storm(server, folder, size, first={"quotas": [QUOTA]}) as storm:
        took_s = storm.run(size.jobs)
        refused = [post for post in storm.posts(storm.first) if not post["accepted"]]
        return {
            "jobs": size.jobs,
            "wall_s": round(took_s, 1),
            "succeeded": storm.desk.states().get("succeeded", 0),
            "taken_by_the_first": len(storm.posts(storm.first)) - len(refused),
            "refused_by_the_first": len(refused),
            "blocks": storm.events("throttled") + storm.events("quota_exhausted"),
            "taken_by_the_second": len(storm.posts(storm.second)),
            "outages": storm.events("opened"),
            "alerts": len(storm.alerts()),
            "broken_promises": len(storm.wrong()),
        }


def _outage(server: OwnServer, folder: Path, size: Size) -> dict[str, Any]:
    with _storm(server, folder, size) as storm:
        begin = time.monotonic()
        storm.start(size.jobs)
        until(lambda: len(storm.posts(storm.first)) >= size.outage_after, "the outage's time")
        storm.first.control("outage/start", kind="503")
        until(lambda: storm.events("opened"), "the breaker", 30.0)
        time.sleep(size.outage_s)
        storm.first.control("outage/stop")
        over_at = storm.first.stats()["now"]
        if size.probe_at_once:
            storm.desk.ask(
                "UPDATE providers_providerstate SET next_try_at = now() WHERE gate = 'open'"
            )
        until(lambda: storm.events("closed"), "the recovery", 90.0)
        storm.settle()
        took_s = time.monotonic() - begin
        told = storm.alerts(awaited=2)
        closed_at = storm.moments("closed")[0]
        posts = storm.posts(storm.first)
        probe, *after = sorted(post["at"] for post in posts if post["at"] >= over_at)
        [ready_at] = [
            task["finish_at"]
            for task in storm.first.ledger()["tasks"]
            if probe <= task["created"] < probe + 0.5
        ]
        back_at = next((at for at in after if at > closed_at), None)
        return {
            "jobs": size.jobs,
            "wall_s": round(took_s, 1),
            "succeeded": storm.desk.states().get("succeeded", 0),
            "sent_into_it": sum(not post["accepted"] for post in posts),
            "openings": storm.events("opened"),
            "probes": 1 + sum(at <= closed_at for at in after),
            # From the moment the probe's picture was ready at the provider: noticing it is part of it.
            "back_after_the_probe_s": None if back_at is None else round(back_at - ready_at, 2),
            "sent_to_the_first_afterwards": len(after),
            "taken_by_the_second": len(storm.posts(storm.second)),
            "alerts_at_opening": told.count("failure"),
            "alerts_at_recovery": told.count("success"),
            "alerts_else": len(told) - told.count("failure") - told.count("success"),
            "broken_promises": len(storm.wrong()),
        }


# --- the desk ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Storm:
    desk: RealDesk
    first: Sandbox
    second: Sandbox
    listener: _Listener

    def start(self, jobs: int) -> None:
        self.desk.create(jobs)
        self.desk.ask("UPDATE providers_target SET max_in_flight = %s", PLACES)
        self.desk.start_cluster()

    def run(self, jobs: int) -> float:
        """Everything to its end; the seconds from the cluster's start."""
        begin = time.monotonic()
        self.start(jobs)
        self.settle()
        return time.monotonic() - begin

    def settle(self) -> None:
        self.desk.settle(180.0, canary_every_s=None)

    def posts(self, sandbox: Sandbox) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = sandbox.ledger()["posts"]
        return found

    def wrong(self) -> list[str]:
        said = self.desk.wrong(self.second)
        if said:
            print(*said, sep="\n", file=sys.stderr)
        return said

    def moments(self, kind: str) -> list[float]:
        """When it happened to the first account as a whole, unix seconds."""
        return [
            float(at)
            for (at,) in self.desk.ask(
                "SELECT extract(epoch FROM e.at) FROM providers_providerevent e"
                " JOIN providers_account a ON a.id = e.account_id"
                " WHERE a.provider = 'polza' AND e.model = '' AND e.kind = %s ORDER BY e.id",
                kind,
            )
        ]

    def events(self, kind: str) -> int:
        return len(self.moments(kind))

    def alerts(self, *, awaited: int = 0) -> list[str]:
        """The tone of every message that was told, in order; waits a while for as many as are `awaited`."""
        with contextlib.suppress(AssertionError):
            until(lambda: len(self.listener.messages) >= awaited, "the alerts", ALERT_WITHIN_S)
        return [json.loads(message)["type"] for message in self.listener.messages]


@contextlib.contextmanager
def _storm(
    server: OwnServer, folder: Path, size: Size, *, first: dict[str, Any] | None = None
) -> Iterator[_Storm]:
    folder.mkdir()
    behaviour: dict[str, Any] = {
        "latency_fixed_s": None, "latency_median_s": size.latency_s, "latency_sigma": 0.3, "prepared_bytes": 20_000,
    }  # fmt: skip
    with (
        running_sandbox(**behaviour) as second,
        _Listener() as listener,
        desk_on(
            server.create(folder.name),
            folder,
            sandbox=behaviour | (first or {}),
            AI_ACCOUNTS="polza_b=polza",
            POLZA_B_API_KEY=SECOND_KEY,
            POLZA_B_BASE_URL=second.api_url,
            AI_MODEL=f"polza:{MODEL}",
            AI_MODEL_FALLBACK=f"polza_b:{MODEL}",
            WORKER_CONCURRENCY=2 * PLACES,
            WORKER_LANES=2,
            ALERT_URLS=listener.url,
        ) as desk,
    ):
        desk.python(known_account("polza_b", SECOND_KEY))
        yield _Storm(desk, desk.sandbox, second, listener)


class _Listener(ThreadingHTTPServer):
    """A channel for alerts: keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Told)
        self.messages: list[str] = []

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server_address[1]}/"

    def __enter__(self) -> _Listener:
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()


class _Told(BaseHTTPRequestHandler):
    server: _Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.messages.append(body.decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        """Not to the terminal."""


if __name__ == "__main__":
    sys.exit(main())
