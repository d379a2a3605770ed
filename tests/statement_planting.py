"""A sandbox whose history has everything a statement must find, and much that it must not."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.desk import KEY, PROJECT, RealDesk, until

MODEL = "google/gemini-3.1-flash-image-preview"
GOOD, FAILED, CHEAP, FREE, VANISHED, LOST, DECEIVED, ORPHANS = 200, 8, 6, 7, 4, 5, 2, 9
# By kind, as they are planted. "deceived": refused in words, made and charged all the same, so ours says nothing.
EXPECTED = Counter(
    {"orphan": ORPHANS + 1, "failed_charged": FAILED, "cost": CHEAP + DECEIVED, "unknown_there": VANISHED}
)  # fmt: skip


def plant(desk: RealDesk) -> dict[str, set[str]]:
    """Real sends of a real cluster, over real HTTP; the provider's ids of what was planted, by kind."""
    for count, prompt in (
        (GOOD, "a lighthouse"), (FAILED, "failing [[fault:failed_charged]]"), (CHEAP, "cheap [[fault:cost_wrong]]"),
        (FREE, "free [[fault:failed_free]]"), (VANISHED, "vanished [[fault:vanished]]"),
        (LOST, "lost [[fault:reset_after_accept]]"), (DECEIVED, "deceived [[fault:moderation_after]]"),
    ):  # fmt: skip
        desk.create(count, prompt)
    desk.start_cluster()
    settled = (
        "SELECT count(*) FROM jobs_providertask t JOIN jobs_job j ON j.id = t.job_id WHERE t.state IN"
        " ('stored', 'failed', 'refused') OR j.prompt LIKE 'vanished%' AND t.state = 'accepted'"
    )
    sends = GOOD + FAILED + CHEAP + FREE + VANISHED + LOST + DECEIVED
    until(lambda: desk.ask(settled)[0][0] >= sends, "all sends are settled", 240.0)
    now = time.time()
    orphans = {
        desk.sandbox.control("plant", key=KEY, model=MODEL, created=now - 600 - number)["id"]
        for number in range(ORPHANS)
    }
    [(task_id,)] = desk.ask("SELECT id::text FROM jobs_providertask WHERE state = 'stored' LIMIT 1")
    twin = desk.sandbox.control("plant", key=KEY, user=task_id, created=now - 300)["id"]
    # What must not be found: another key's, what cost nothing, and what lies outside the period.
    desk.sandbox.control("plant", key="pza_another_studio", created=now - 600)
    desk.sandbox.control("plant", key=KEY, price="0", created=now - 600)
    desk.sandbox.control("plant", key=KEY, created=now - 3 * 86_400)
    ids = {
        kind: {row[0] for row in desk.ask("SELECT provider_id FROM jobs_providertask t JOIN jobs_job j ON j.id = t.job_id WHERE j.prompt LIKE %s", word)}
        for kind, word in (("failed_charged", "failing%"), ("cost", "cheap%"), ("unknown_there", "vanished%"))
    }  # fmt: skip
    made = desk.sandbox.ledger()["tasks"]
    ids["cost"] |= {task["id"] for task in made if "moderation_after" in task["prompt"]}
    return ids | {"orphan": orphans | {twin}}


def age(desk: RealDesk) -> None:
    """Until the youngest send is older than what a measured lag of nothing and our margin leave open."""
    youngest = (
        "SELECT extract(epoch FROM clock_timestamp() - max(accepted_at)) FROM jobs_providertask"
    )
    until(lambda: desk.ask(youngest)[0][0] > 11, "the sends are old enough", 60.0)


def statement(desk: RealDesk, *options: str) -> tuple[int, dict[str, Any]]:
    """The command's exit code, and what it says."""
    since = (datetime.now(UTC) - timedelta(days=2)).isoformat()
    command = [sys.executable, "manage.py", "statement", "--provider", "polza", "--since", since, "--json", *options]  # fmt: skip
    done = subprocess.run(
        command, cwd=PROJECT, env=desk.environment, capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def found(told: dict[str, Any]) -> dict[str, set[str]]:
    """The open discrepancies, by kind."""
    kinds = {count["kind"] for count in told["counts"] if count["discrepancy"] and count["count"]}
    return {
        kind: {one["provider_id"] for one in told["findings"] if one["kind"] == kind and not one["settled"]}
        for kind in kinds
    }  # fmt: skip
