"""Do a thousand creates at once make each job once, and does no job answer with an error?

`python -m bench.api [--json] [--quick]`. One web process on a database of its own; a thousand requests at once from one
event loop, a hundred of them with a key that another carries too, each pair with the same body: nine hundred jobs. Then the
rows are compared with the answers: what was accepted is there once, what was refused is not there.

--quick: a third of them.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import own_server
from bench.streams import _free_port

_MAKE = """
from django.utils.timezone import now
from jobs.lifecycle import tokens
from jobs.lifecycle.create import default_tenant
made = tokens.issue(tenant=default_tenant(), name="bench", scopes=["submit", "read"], actor=None, now=now(), per_minute=100_000)
print(made.text)
"""


@dataclass(frozen=True, slots=True)
class Asked:
    key: str
    status: int  # 0: no answer
    job: int
    replayed: bool
    took_s: float


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    many, doubled = (300, 30) if quick else (1000, 100)
    # A socket for each, here and in the web process, which inherits it.
    _soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        tempfile.TemporaryDirectory(prefix="api-") as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(server.create("desk"), Path(folder)) as desk,
    ):
        text = desk.python(_MAKE).strip().splitlines()[-1]
        port = _free_port()
        desk.start_web(port)
        until(lambda: _answers(port, text), "the web process answers", 60.0)
        begin = time.monotonic()
        asked = asyncio.run(_ask(port, text, many, doubled))
        took_s = time.monotonic() - begin
        figures = _figures(desk, asked) | {
            "wall_s": round(took_s, 2),
            "per_s": round(many / took_s, 1),
        }
    limits = {
        "jobs": many - doubled,
        "accepted": many,
        "doubled_max": 0,
        "errors_that_exist_max": 0,
        "lost_max": 0,
    }
    ok = (
        figures["jobs"] == limits["jobs"]
        and figures["accepted"] == limits["accepted"]
        and figures["doubled"] == figures["errors_that_exist"] == figures["lost"] == 0
    )
    return figures, limits, ok


def _answers(port: int, text: str) -> bool:
    try:
        answer = httpx.get(
            f"http://127.0.0.1:{port}/api/v1/jobs", headers={"Authorization": f"Bearer {text}"}, timeout=30.0
        )  # fmt: skip
    except httpx.TransportError:
        return False
    return answer.status_code == 200


def _client(port: int, text: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {text}"}, timeout=300.0,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    )  # fmt: skip


async def _ask(port: int, text: str, many: int, doubled: int) -> Sequence[Asked]:
    keys = [f"key-{n}" for n in range(many - doubled)]
    keys += keys[:doubled]
    random.Random(1).shuffle(keys)
    async with _client(port, text) as client:
        return await asyncio.gather(*(_one(client, key) for key in keys))


async def _one(client: httpx.AsyncClient, key: str) -> Asked:
    begin = time.monotonic()
    try:
        answer = await client.post(
            "/api/v1/jobs",
            json={"prompt": f"A picture for {key}", "reference": key},
            headers={"Idempotency-Key": key},
        )
    except httpx.TransportError:
        return Asked(key, 0, 0, replayed=False, took_s=time.monotonic() - begin)
    job = answer.json()["id"] if answer.status_code == 202 else 0
    replayed = answer.headers.get("Idempotency-Replayed") == "true"
    return Asked(key, answer.status_code, job, replayed, time.monotonic() - begin)


def _figures(desk: RealDesk, asked: Sequence[Asked]) -> dict[str, Any]:
    rows = dict(desk.ask("SELECT id, reference FROM jobs_job"))
    there = Counter(rows.values())
    accepted = [one for one in asked if one.status == 202]
    answered = {one.key for one in accepted}
    times = sorted(one.took_s for one in asked)
    return {
        "asked": len(asked),
        "jobs": len(rows),
        "accepted": len(accepted),
        "statuses": json.dumps(Counter(one.status for one in asked)),
        "replayed": sum(one.replayed for one in accepted),
        "doubled": sum(count - 1 for count in there.values()),
        "errors_that_exist": len(there.keys() - answered),
        "lost": sum(rows.get(one.job) != one.key for one in accepted),
        "median_s": round(statistics.median(times), 3),
        "p95_s": round(statistics.quantiles(times, n=20)[18], 3),
        "longest_s": round(times[-1], 3),
    }


if __name__ == "__main__":
    sys.exit(
        report.run(
            "api",
            "Do a thousand creates at once make each job once, and does no job answer with an error?",
            measure,
        )
    )
