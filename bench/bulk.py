"""Is a bulk action over 100,000 jobs answered at once, seen to move, stopped in seconds, and done to no job twice?

`python -m bench.bulk [--json] [--quick]`. A web process and a cluster on a database of their own, the red button pressed, so
that nothing is sent. One in a hundred of the failed jobs has a send that may have cost.

First a retry of all that are failed, by the page: preview, yes, and the page again and again while it goes on. The cluster
is killed three times on the way, all its processes at once, and started anew. Then a cancel of all that wait, stopped in the
middle. What happened to each job is read from its events.

--quick: 5,000 jobs, killed once.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg

from bench import report
from bench.desk import RealDesk, desk_on, until
from bench.postgres import own_server
from bench.streams import NAME, PASSWORD, _free_port

JOBS, QUICK = 100_000, 5_000
ANSWER_S = 1.0
STOP_S = 5.0
MOVES_MIN = 5
LIST = "/admin/jobs/job/"

_READY = f"""
from django.contrib.auth import get_user_model
from django.utils.timezone import now
from jobs.lifecycle import staff
get_user_model().objects.create_superuser({NAME!r}, password={PASSWORD!r})
staff.press_red_button(actor=None, now=now(), reason="bench")
"""
# Copies of the one job there is: failed, and cheap to tell apart by their events alone.
_COPIES = """
INSERT INTO jobs_job (tenant_id, kind, prompt, params, reference, priority, route, target_id, state, reason, reason_text,
  not_before, attempts_since, created_at, finished_at)
SELECT tenant_id, kind, prompt, params, 'R-' || n, priority, route, target_id, 'failed', 'refused_by_all', '',
  not_before, attempts_since, created_at, now()
FROM jobs_job, generate_series(1, %s) n WHERE jobs_job.id = (SELECT min(id) FROM jobs_job)
"""
_LOST = """
INSERT INTO jobs_providertask (id, job_id, tenant_id, target_id, account_id, estimated_cost, currency, run_id, host,
  created_at, armed_at, send_not_after, lost_at, blocks_send, released_by, {columns})
SELECT gen_random_uuid(), j.id, j.tenant_id, j.target_id, (SELECT min(id) FROM providers_account), 8, 'RUB', gen_random_uuid(), 'gone',
  now(), now(), now(), now(), true, '', {values}
FROM jobs_job j WHERE j.state = 'failed' AND j.id %% 100 = 0
"""


def measure(quick: bool) -> tuple[dict[str, Any], dict[str, Any], bool]:
    count, kills = (QUICK, 1) if quick else (JOBS, 3)
    with (
        tempfile.TemporaryDirectory(prefix="bulk-") as folder,
        own_server(Path(folder, "postgres")) as server,
        desk_on(server.create("desk"), Path(folder)) as desk,
    ):
        try:
            figures, wrong = _measured(desk, count, kills)
        except Exception:
            for log in sorted(Path(folder).glob("*.log")):
                print(log.name, log.read_text()[-2000:], file=sys.stderr)
            raise
    limits = {
        "yes_s_max": ANSWER_S,
        "moves_seen_min": MOVES_MIN,
        "acted_on_twice_max": 0,
        "stop_answers_s_max": STOP_S,
        "acted_on_after_the_stop_max": 0,
    }
    ok = not wrong and all(
        figures[name.removesuffix("_max")] <= limit
        if name.endswith("_max")
        else figures[name.removesuffix("_min")] >= limit
        for name, limit in limits.items()
    )
    return figures | {"wrong": wrong}, limits, ok


def _measured(desk: RealDesk, count: int, kills: int) -> tuple[dict[str, Any], list[str]]:
    desk.python(_READY)
    planted = _plant(desk, count)
    port = _free_port()
    desk.start_web(port)
    cluster = desk.start_cluster()
    page = Page(port)
    retry = _retry(desk, page, cluster, kills)
    twice, once = _events(desk, "retried")
    wrong = []
    if once != count - planted:
        wrong.append(f"{once} jobs were retried, {count - planted} should be")
    if retry.pop("left_out") != planted:
        wrong.append("not just the possible charges were left out")
    stop = _stop(desk, page)
    stopped_twice, cancelled = _events(desk, "cancelled")
    if cancelled != stop["stopped_at"]:
        wrong.append(f"{cancelled} jobs were cancelled, the run says {stop['stopped_at']}")
    figures = {
        "jobs": count,
        "with_a_possible_charge": planted,
        **retry,
        "acted_on_twice": twice + stopped_twice,
        **stop,
    }
    return figures, wrong


def _plant(desk: RealDesk, count: int) -> int:
    """So many failed jobs; how many of them have a send that may have cost."""
    desk.create(1)
    required = _columns_without_default(desk)
    with psycopg.connect(desk.url, autocommit=True) as connection:
        connection.execute(_COPIES, (count,))
        query = _LOST.format(columns=", ".join(required), values=", ".join(required.values()))
        planted = connection.execute(query.replace("%%", "%")).rowcount
        connection.execute("VACUUM ANALYZE")
    return planted


def _columns_without_default(desk: RealDesk) -> dict[str, str]:
    """The other columns of a send that must be given, each with an empty value of its type."""
    empty = {"jsonb": "'[]'::jsonb", "text": "''", "character varying": "''", "integer": "0", "smallint": "0", "boolean": "false",
             "double precision": "30", "numeric": "0", "bigint": "0", "ARRAY": "'{}'"}  # fmt: skip
    given = set(re.findall(r"\w+", _LOST.split("(")[1].split("{", maxsplit=1)[0]))
    found = desk.ask(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'jobs_providertask'"
        " AND is_nullable = 'NO' AND column_default IS NULL AND is_generated = 'NEVER'"
    )
    return {name: empty[kind] for name, kind in found if name not in given}


def _retry(
    desk: RealDesk, page: Page, cluster: subprocess.Popen[bytes], kills: int
) -> dict[str, Any]:
    preview_s, yes_s, run = page.do_all("retry_selected", "failed")
    begin = time.monotonic()
    total = desk.ask("SELECT total FROM jobs_bulkrun WHERE id = %s", run)[0][0]
    moves, took, killed, waits = set(), [], 0, []
    killed_at = None
    while True:
        asked = time.monotonic()
        seen = page.progress(run)
        took.append(time.monotonic() - asked)
        ended = seen["done"] + seen["skipped"]
        if killed_at is not None and ended > killed_at[1]:
            waits.append(time.monotonic() - killed_at[0])
            killed_at = None
        moves.add(ended)
        if seen["state"] != "open":
            break
        if killed < kills and killed_at is None and ended >= total * (killed + 1) / (kills + 1):
            os.killpg(cluster.pid, signal.SIGKILL)
            cluster.wait()
            cluster, killed = desk.start_cluster(), killed + 1
            killed_at = time.monotonic(), page.progress(run)["done"] + seen["skipped"]
        if time.monotonic() - begin > 1800:
            raise AssertionError(f"it does not end: {seen}")
        time.sleep(0.2)
    assert seen["state"] == "done", seen
    assert killed == kills, killed
    return {
        "preview_s": round(preview_s, 3),
        "yes_s": round(yes_s, 3),
        "moves_seen": len(moves) - 1,
        "progress_answers_median_s": round(statistics.median(took), 3),
        "killed": killed,
        "goes_on_after_a_kill_s": [round(wait, 1) for wait in waits],
        "whole_retry_s": round(time.monotonic() - begin, 1),
        "jobs_a_second": round(seen["done"] / (time.monotonic() - begin)),
        "left_out": seen["skipped"],
    }


def _stop(desk: RealDesk, page: Page) -> dict[str, Any]:
    """Cancel all that wait, and stop that once it is under way."""
    _preview_s, yes_s, run = page.do_all("cancel_selected", "pending")
    until(lambda: page.progress(run)["done"] > 0, "the cancel moves", 120.0)
    asked = time.monotonic()
    page.post(f"/admin/jobs/bulkrun/{run}/do/abort/", {})
    stop_s = time.monotonic() - asked
    then = _cancelled(desk)
    time.sleep(3.0)
    seen = page.progress(run)
    assert seen["state"] == "aborted", seen
    return {
        "cancel_yes_s": round(yes_s, 3),
        "stop_answers_s": round(stop_s, 3),
        "stopped_at": seen["done"],
        "stopped_of": seen["total"],
        "acted_on_after_the_stop": _cancelled(desk) - then,
    }


def _cancelled(desk: RealDesk) -> int:
    return int(desk.ask("SELECT count(*) FROM jobs_job WHERE state = 'cancelled'")[0][0])


def _events(desk: RealDesk, kind: str) -> tuple[int, int]:
    """Jobs with more than one such event, and jobs with any."""
    query = (
        "SELECT count(*) FILTER (WHERE n > 1), count(*) FROM"
        " (SELECT count(*) AS n FROM jobs_jobevent WHERE kind = %s GROUP BY job_id) a"
    )
    twice, once = desk.ask(query, kind)[0]
    return int(twice), int(once)


class Page:
    """A person at the list of jobs."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
        )
        until(self._reached, "the web server")
        self.post("/admin/login/", {"username": NAME, "password": PASSWORD})
        self._client.get(LIST)

    def _reached(self) -> bool:
        try:
            return self._client.get("/admin/login/").status_code == 200
        except httpx.HTTPError:
            return False

    def post(self, path: str, data: dict[str, str]) -> httpx.Response:
        token = {"csrfmiddlewaretoken": self._client.cookies["csrftoken"]}
        answer = self._client.post(path, data=token | data)
        assert answer.status_code in {200, 302}, (path, answer.status_code)
        return answer

    def do_all(self, action: str, state: str) -> tuple[float, float, int]:
        """With all jobs in that state: seconds to the preview, seconds to the yes, and the run."""
        address = f"{LIST}?state={state}"
        found = re.search(r'name="_selected_action" value="(\d+)"', self._client.get(address).text)
        assert found is not None
        chosen = {"action": action, "select_across": "1", "_selected_action": found[1]}
        asked = time.monotonic()
        preview = self.post(address, chosen)
        preview_s = time.monotonic() - asked
        form = dict(re.findall(r'name="(shown|token)" value="([^"]*)"', preview.text))
        asked = time.monotonic()
        answer = self.post(address, chosen | form | {"confirmed": "1", "reason": "the bench"})
        yes_s = time.monotonic() - asked
        assert answer.status_code == 302, answer.text[:2000]
        return preview_s, yes_s, int(answer.headers["location"].split("/")[-3])

    def progress(self, run: int) -> dict[str, Any]:
        told: dict[str, Any] = self._client.get(f"/admin/jobs/bulkrun/{run}/progress/").json()
        return told


def main() -> int:
    return report.run("bulk", "Is a bulk action over 100,000 jobs answered at once, stopped in seconds, and done once?", measure)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
