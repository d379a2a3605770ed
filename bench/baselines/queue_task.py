"""A task for each job: it posts, sleeps, polls, sleeps, polls, downloads. What the studio's worker did after its ADR.

`run(...)` makes jobs for a while and tells how many were finished. The sandbox's Polza is the provider.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psycopg

from bench.processes import dying_with_us

DEADLINE_S = 900.0
_PROJECT = Path(__file__).resolve().parents[2]
_ENQUEUE = """
import django; django.setup()
import sys
from django_q.tasks import async_task
for number in range(int(sys.argv[1])):
    async_task("bench.baselines.queue_task.generate", f"a lighthouse {number}")
"""


def generate(prompt: str) -> None:
    """The task. Its settings are in the environment, as the studio's were."""
    base_url, poll_s = os.environ["BASE_URL"], float(os.environ["POLL_S"])
    with httpx.Client(
        headers={"authorization": f"Bearer {os.environ['KEY']}"}, timeout=30, trust_env=False
    ) as client:
        body = {"model": os.environ["MODEL"], "async": True, "input": {"prompt": prompt}}
        answer = client.post(f"{base_url}/media", json=body)
        answer.raise_for_status()
        task = answer.json()
        end = time.monotonic() + DEADLINE_S
        while task["status"] not in {"completed", "failed"} and time.monotonic() < end:
            if poll_s:
                time.sleep(poll_s)
            task = client.get(f"{base_url}/media/{task['id']}").json()
        url = task["data"][0]["url"] if isinstance(task["data"], list) else task["data"]["url"]
        picture = client.get(url)
        Path(os.environ["FOLDER"], f"{task['id']}.png").write_bytes(picture.content)


def run(
    *, database_url: str, base_url: str, key: str, model: str, folder: Path, poll_s: float, jobs: int, seconds: float
) -> float:  # fmt: skip
    """Jobs a second, from the first finished one on; at most `jobs` of them, for at most `seconds`."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "bench.baselines.queue_settings", "DATABASE_URL": database_url, "BASE_URL": base_url,
        "KEY": key, "MODEL": model, "FOLDER": str(folder), "POLL_S": str(poll_s),
    }  # fmt: skip

    def django(*words: str) -> None:
        subprocess.run(
            [sys.executable, *words], cwd=_PROJECT, env=environment, check=True, capture_output=True
        )

    django("-m", "django", "migrate", "--verbosity", "0")
    django("-c", _ENQUEUE, str(jobs))
    with (folder / "cluster.log").open("wb") as log:
        cluster = subprocess.Popen(
            dying_with_us(sys.executable, "-m", "django", "qcluster"),
            cwd=_PROJECT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        return _rate(database_url, jobs, seconds)
    finally:
        os.killpg(cluster.pid, signal.SIGKILL)
        cluster.wait()


def _rate(database_url: str, jobs: int, seconds: float) -> float:
    """From the moment that the workers have taken up their first jobs."""
    with psycopg.connect(database_url, autocommit=True) as connection:

        def left() -> int:
            row = connection.execute("SELECT count(*) FROM django_q_ormq").fetchone()
            assert row is not None
            return int(row[0])

        end = time.monotonic() + 60
        while left() == jobs and time.monotonic() < end:
            time.sleep(0.02)
        begin, at_begin = time.monotonic(), left()
        while time.monotonic() - begin < seconds and left():
            time.sleep(0.05)
        return (at_begin - left()) / (time.monotonic() - begin)
