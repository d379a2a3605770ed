"""Real processes under every disturbance at once; the provider's ledger judges.

`python -m bench.chaos [--json] [--quick] [--jobs N] [--kills N] [--seed N] [--folder DIR]`. Two clusters with lanes, a web
server, the sandbox with a mix of faults, a proxy that misbehaves in between, a PostgreSQL of its own. Meanwhile processes are
killed, frozen and stopped, PostgreSQL is restarted and its connections cut, the network fails, the disk is full or read-only, the
provider's name is not resolved. Then quiet, with a few more orders; then every charge must be a file or an open case, nobody
charged twice, every job ended, nothing stuck, no process left over.

`--seed` repeats the schedule, not its effects. `--folder` keeps logs, ledger and database there.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django

from bench import report
from bench.desk import RealDesk, desk_on
from bench.havoc.disk import Disk, own_mounts
from bench.postgres import OwnServer, own_server
from bench.proxy import Fault, Proxy

LANES = 4
FULL_JOBS, QUICK_JOBS = 1050, 60
# See nemesis.Plan. Times in seconds.
FULL: dict[str, Any] = {
    "seconds": 900.0, "kills": 110, "blackouts": 2, "long_freezes": 9, "freeze_s": (45.0, 75.0), "short_freezes": 12,
    "stops": 12,
    "restarts": (("fast", 1.0), ("immediate", 6.0), ("fast", 15.0)), "cuts": 8, "networks": 10, "disks": 6,
    "windows_s": (5.0, 14.0), "names": 2,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "seconds": 20.0, "kills": 6, "blackouts": 0, "long_freezes": 0, "freeze_s": (45.0, 75.0), "short_freezes": 2, "stops": 1,
    "restarts": (("immediate", 3.0),), "cuts": 1, "networks": 1, "disks": 2, "windows_s": (3.0, 4.0), "names": 0,
}  # fmt: skip

# The sandbox's own faults: every kind that a desk gets over, or puts before a person, within minutes.
SANDBOX_FAULTS = {
    "reset_before_read": 0.01, "reset_before_accept": 0.01, "reset_after_accept": 0.015, "cut_after_id": 0.01,
    "cut_before_id": 0.01, "cut_headers": 0.005, "hang_before_accept": 0.004, "hang_after_accept": 0.004,
    "accept_late=8": 0.005, "slow_answer=3": 0.02, "slow_answer=8": 0.005, "edge_502": 0.005, "edge_524_after": 0.005,
    "internal": 0.004, "own_504_after": 0.004, "overloaded": 0.01, "rate_limited_seconds=2": 0.005,
    "ok_garbage_after": 0.003, "ok_no_id_after": 0.003, "accepted_with_error": 0.005, "status_201": 0.01,
    "instant_completed": 0.01, "moderation": 0.003,
    "failed_free": 0.01, "failed_charged": 0.005, "cancelled": 0.003, "unknown_status": 0.01, "late=25": 0.01,
    "missing_first=8": 0.01,
    "data_b64": 0.01, "data_two": 0.005, "no_result": 0.003, "content_only": 0.003,
    "poll_500": 0.02, "poll_reset": 0.01, "poll_404": 0.005, "poll_garbage": 0.005, "poll_cut": 0.005, "poll_slow=4": 0.01,
    "file_500": 0.01, "file_reset": 0.01, "file_cut": 0.01, "file_slow=3": 0.01, "result_html": 0.005,
    "result_truncated": 0.005, "result_expired": 0.01,
    "history_500": 0.05, "history_reset": 0.03, "history_blind": 0.05, "receipt_500": 0.05, "receipt_pending": 0.1,
}  # fmt: skip
PROXY_FAULTS = {
    Fault.RESET_AT_ACCEPT: 0.006, Fault.RESET_UNSENT: 0.004, Fault.RESET_AFTER_REQUEST: 0.006, Fault.CUT_HEADERS: 0.004,
    Fault.CUT_BODY: 0.006, Fault.DELAY: 0.03, Fault.DRIP: 0.01, Fault.BLACK_HOLE: 0.003, Fault.SWALLOW: 0.003,
}  # fmt: skip


def main() -> int:
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--jobs", type=int, help="how many to order")
    own.add_argument("--kills", type=int, help="how many processes to kill")
    own.add_argument("--seed", type=int, default=1, help="of the schedule")
    own.add_argument("--folder", type=Path, help="an empty folder to work in and to keep")
    options, rest = own.parse_known_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # By way of every clean-up.
        signal.signal(number, lambda number, _frame: sys.exit(f"stopped by signal {number}"))
    return report.run(
        "chaos",
        "Is every charge a file or a case after kills, freezes, restarts and lost connections?",
        lambda quick: measure(quick, options),
        rest,
    )


def measure(
    quick: bool, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """One run in a folder of its own, which stays where it was given or where a promise was broken."""
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        return run_in(options.folder.absolute(), quick, options)
    folder, keep = Path(tempfile.mkdtemp(prefix="chaos-")), False
    try:
        figures, limits, ok = run_in(folder, quick, options)
        keep = not ok
        return figures, limits, ok
    finally:
        if keep:
            print(f"kept: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def run_in(
    folder: Path, quick: bool, options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Start everything, run, judge. `folder` is empty."""
    mounts = own_mounts()  # before there are threads
    with contextlib.ExitStack() as stack:
        (folder / "disk").mkdir()
        _log_to(folder / "chaos.log")
        disk = stack.enter_context(contextlib.closing(Disk(folder / "disk", mounts=mounts)))
        server = stack.enter_context(own_server(folder / "postgres"))
        desk = stack.enter_context(_desk(server, folder))
        proxy = stack.enter_context(
            Proxy(
                urlsplit(desk.sandbox.url).port or 0,
                rng=random.Random(options.seed),
                delay_s=(0.2, 8.0),
            )
        )
        desk.environment["AI_BASE_URL"] = f"{proxy.url}/api/v1"
        # This process asks P6's query and signs in a customer, with the same settings as the desk.
        os.environ.update(desk.environment, DJANGO_SETTINGS_MODULE="studio.settings")
        django.setup()
        from bench.havoc.nemesis import Plan
        from bench.havoc.trial import LIMIT_S, Trial

        plan = Plan(**(QUICK if quick else FULL))
        if options.kills is not None:
            plan = plan.with_kills(options.kills)
        trial = Trial(
            desk, server=server, proxy=proxy, disk=disk, plan=plan, lanes=LANES, faults=PROXY_FAULTS, seed=options.seed,
            jobs=options.jobs or (QUICK_JOBS if quick else FULL_JOBS),
        )  # fmt: skip
        broken = trial.run()
        figures = trial.figures(broken)
    limits = {
        "jobs_min": trial.jobs,
        "kills_min": plan.kills,
        "postgres_restarts_min": len(plan.restarts),
        "broken_promises_max": 0,
        "resumed_longest_s_max": LIMIT_S,
        "stuck_longest_s_max": LIMIT_S,
    }
    ok = not any(broken.values()) and all(
        figures[name.removesuffix("_min")] >= least
        if name.endswith("_min")
        else figures[name.removesuffix("_max")] <= least
        for name, least in limits.items()
        if name != "broken_promises_max"
    )
    return figures, limits, ok


def _log_to(path: Path) -> None:
    """What was done when, for people who look into a failed run."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("chaos")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _desk(server: OwnServer, folder: Path) -> contextlib.AbstractContextManager[RealDesk]:
    return desk_on(
        server.create("desk"),
        folder,
        sandbox={
            "latency_fixed_s": None,
            "latency_median_s": 1.8,
            "latency_sigma": 0.3,
            "prepared_bytes": 20_000,
            "faults": SANDBOX_FAULTS,
            "ledger": folder / "ledger.jsonl",
        },
        MEDIA_ROOT=folder / "disk/media",
        SPOOL_DIR=folder / "disk/spool",
        WORKER_LANES=LANES,
        WORKER_CONCURRENCY=16,
        POLL_INTERVAL_SEC=1,
        RECONCILE_INTERVAL_SEC=3,
        POST_DEADLINE_SEC=5,
        FREE_REFUSAL_ATTEMPTS=20,  # a minute without a network must not end a job
        EXPOSURE_LIMIT_PRICES=200,
        CHAOS_RUN=uuid.uuid4().hex,
    )


if __name__ == "__main__":
    sys.exit(main())
