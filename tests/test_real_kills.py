"""The real engine in real processes, killed or frozen at each step of a send. The sandbox's ledger judges."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.desk import RealDesk, until
from tests.real import real_desk

pytestmark = [pytest.mark.flow, pytest.mark.django_db(transaction=True)]

Step = Callable[
    [RealDesk, int], Callable[[], None]
]  # before the job exists; the lane's process is known


def _before_arm(desk: RealDesk, _pid: int) -> Callable[[], None]:
    """The arm's UPDATE waits; nothing of it is committed."""
    desk.ask("INSERT INTO pause VALUES ('arm')")

    def reached() -> None:
        until(lambda: _sleeping(desk), "the arm")
        assert desk.tasks() == {"intent": 1}

    return reached


def _before_post(desk: RealDesk, pid: int) -> Callable[[], None]:
    """The epoch mark can't be written: its file is a pipe that nobody reads."""
    folder = Path(desk.environment["MEDIA_ROOT"]) / "epoch"
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / f".1.{pid}.new")

    def reached() -> None:
        until(lambda: desk.tasks() == {"sending": 1}, "an armed task")
        time.sleep(0.3)  # were it not held back, the POST would be out by now
        assert desk.sandbox.summary()["posts"] == 0

    return reached


def _during_post(desk: RealDesk, _pid: int) -> Callable[[], None]:
    desk.prompt = "a lighthouse [[fault:slow_answer=5:1]]"
    return lambda: until(lambda: desk.sandbox.summary()["posts"] == 1, "the POST")


def _before_record(desk: RealDesk, _pid: int) -> Callable[[], None]:
    """The answer is read; its UPDATE waits."""
    desk.ask("INSERT INTO pause VALUES ('record')")

    def reached() -> None:
        until(lambda: _sleeping(desk), "the record")
        assert desk.tasks() == {"sending": 1}

    return reached


def _while_polling(desk: RealDesk, _pid: int) -> Callable[[], None]:
    desk.prompt = "a lighthouse [[fault:poll_slow=5:1]]"
    return lambda: until(lambda: desk.sandbox.stats()["requests"].get("polls"), "a poll")


def _during_download(desk: RealDesk, _pid: int) -> Callable[[], None]:
    desk.prompt = "a lighthouse [[fault:file_slow=5:1]]"
    return lambda: until(lambda: desk.sandbox.stats()["requests"].get("files"), "a download")


STEPS: dict[str, Step] = {
    "between intent and arm": _before_arm,
    "between arm and POST": _before_post,
    "during the POST": _during_post,
    "between answer and record": _before_record,
    "while polling": _while_polling,
    "during the download": _during_download,
}


def _sleeping(desk: RealDesk) -> bool:
    return bool(
        desk.ask(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
    )


def _let_go(desk: RealDesk) -> None:
    desk.ask("DELETE FROM pause")
    folder = Path(desk.environment["MEDIA_ROOT"]) / "epoch"
    for pipe in folder.glob(".1.*.new") if folder.is_dir() else ():
        # A reader lets the one who waits go on; without the file the next one writes its mark as usual.
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        pipe.unlink()
        threading.Timer(2.0, os.close, [reader]).start()


def disturb(desk: RealDesk, step: str, *, freeze_s: float | None = None) -> None:
    """One job, its lane killed (or frozen for `freeze_s`) at the step; then to quiet. Asserts the promise."""
    desk.start_cluster()
    pid = desk.lane_pid()
    reached = STEPS[step](desk, pid)
    desk.create(1, desk.prompt)
    reached()
    os.kill(pid, signal.SIGKILL if freeze_s is None else signal.SIGSTOP)
    _let_go(desk)
    if freeze_s is not None:
        time.sleep(freeze_s)  # what is tested: longer than a lane without heartbeat lives
        os.kill(pid, signal.SIGCONT)
    desk.settle(120.0)
    assert desk.wrong() == []
    assert desk.states().keys() == {"succeeded"}, desk.states()
    assert desk.sandbox.summary()["charges"] == desk.states()["succeeded"]


@pytest.mark.condition("R56")
@pytest.mark.share(3)
@pytest.mark.parametrize("step", STEPS)
def test_a_lane_killed_at_any_step_pays_once_and_keeps_the_picture(
    tmp_path: Path, step: str
) -> None:
    with real_desk(tmp_path) as desk:
        disturb(desk, step)
