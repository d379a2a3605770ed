"""The "Must hold" lines of issue 4, one test each or several, with their figures printed."""

from __future__ import annotations

import ast
import heapq
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from bench.desk import RealDesk, ledger_line, until
from jobs.lifecycle import providers
from jobs.pictures import PictureProcess
from providers.models import in_words
from providers.word import Phrase, Told, Word, word
from tests.holds.suite import PROJECT, measured
from tests.real import real_desk
from tests.switchboard import FIRST, Switchboard
from tests.test_real_limits import DAY_S, LANES, WAITERS, Asked, keep_limits, one_probe, wake_apart

pytestmark = [pytest.mark.flow, pytest.mark.django_db(transaction=True)]


def test_line_1_classification() -> None:
    assert measured("bench.classify")["ok"]


def test_line_2_storm() -> None:
    assert measured("bench.storm")["ok"]


# --- line 3: four processes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", ["", "sending", "at_provider"])
def test_line_3_one_probe(tmp_path: Path, kill: str) -> None:
    with real_desk(
        tmp_path, sandbox={"latency_fixed_s": 6.0}, WORKER_LANES=LANES, WORKER_CONCURRENCY=8,
        LANE_SLICE_SEC=20,
    ) as desk:  # fmt: skip
        told = one_probe(desk, kill=kill)
        print("killed:", kill or "nobody", told, ledger_line(desk))


def test_line_3_no_limit_is_exceeded_by_one(tmp_path: Path) -> None:
    asked = Asked(window_s=60, per_window=45, per_day_b=60, jobs_a=42, jobs_b=75)
    with real_desk(
        tmp_path, sandbox=asked.sandbox(), WORKER_LANES=LANES, WORKER_CONCURRENCY=12
    ) as desk:
        print(asked, DAY_S, keep_limits(desk, asked, within_s=240.0))


def test_line_3_twenty_waiters_do_not_wake_together(tmp_path: Path) -> None:
    with real_desk(
        tmp_path, sandbox={"latency_fixed_s": 1.0}, WORKER_LANES=LANES, WORKER_CONCURRENCY=WAITERS
    ) as desk:
        print(wake_apart(desk))


# --- line 4: 300 jobs at concurrency 8 --------------------------------------------------------------------------------

SCALE = 0.5
POLL_S = 3.0 * SCALE
RETRY_AFTER_S = 1.0 * SCALE
JOBS, SLOTS = 300, 8
# When each block was written, by the database's clock: its rows keep only the last one.
_KEEP_BLOCKS = """
CREATE TABLE block_kept (at timestamptz, until timestamptz);
CREATE FUNCTION keep_block() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO block_kept VALUES (clock_timestamp(), NEW.blocked_until);
  RETURN NEW;
END $$;
CREATE TRIGGER keep_block BEFORE INSERT OR UPDATE OF blocked_until ON providers_providerstate
  FOR EACH ROW WHEN (NEW.blocked_until IS NOT NULL) EXECUTE FUNCTION keep_block();
"""
COMMIT_S = 0.1  # from then on until it stands


def test_line_4_three_hundred_jobs_with_refusals(tmp_path: Path) -> None:
    faults = {f"rate_limited_float={RETRY_AFTER_S:g}": 0.05, "overloaded": 0.02}
    behaviour = {
        "latency_fixed_s": None, "latency_median_s": 6.0, "latency_sigma": 0.35, "scale": SCALE, "faults": faults,
        "prepared_bytes": 20_000,
    }  # fmt: skip
    with real_desk(
        tmp_path,
        sandbox=behaviour,
        WORKER_LANES=2,
        WORKER_CONCURRENCY=SLOTS,
        POLL_INTERVAL_SEC=POLL_S,
    ) as desk:
        desk.ask(_KEEP_BLOCKS)
        desk.start_cluster()
        until(lambda: len(desk.lanes()) == 2, "two lanes")
        desk.create(JOBS)
        desk.settle(400.0, canary_every_s=None)
        assert desk.states() == {"succeeded": JOBS}
        assert desk.wrong() == []
        ledger, stats = desk.sandbox.ledger(), desk.sandbox.stats()
        limited = [post for post in ledger["posts"] if post["status"] == 429]
        busy = [post for post in ledger["posts"] if post["status"] == 503]
        [(begin, end)] = desk.ask(
            "SELECT extract(epoch FROM min(created_at))::float8, extract(epoch FROM max(finished_at))::float8 FROM jobs_job"
        )
        blocks = [(post["at"], post["at"] + RETRY_AFTER_S) for post in limited]
        # In the order in which they were really sent.
        latencies = [
            task["finish_at"] - task["created"]
            for task in sorted(ledger["tasks"], key=lambda task: float(task["created"]))
        ]
        ideal_s = list_schedule_s(latencies, slots=SLOTS, blocks=blocks, begin=begin)
        ratio = (end - begin) / ideal_s
        early, under_way = within_waits(desk, limited)
        completed = desk.ask(
            "SELECT id::text, extract(epoch FROM completed_at)::float8 FROM jobs_providertask WHERE completed_at IS NOT NULL"
        )
        ready_at = {task["correlation"]: task["finish_at"] for task in ledger["tasks"]}
        noticed = [at - ready_at[one] for one, at in completed]
        print(
            json.dumps(
                {
                    "posts": len(ledger["posts"]), "429": len(limited), "503": len(busy), "wall_s": round(end - begin, 1),
                    "list_schedule_s": round(ideal_s, 1), "ratio": round(ratio, 3), "sent_within_a_wait": early,
                    "under_way_when_it_was_told": under_way, "noticed_after_s": round(sum(noticed) / len(noticed), 2), "max_in_flight": stats["max_in_flight"],
                    "longest_gap_between_polls_s": round(stats["max_poll_gap_s"], 2),
                }
            )
        )  # fmt: skip
        assert len(limited) >= 5
        assert len(busy) >= 1
        assert stats["max_in_flight"] == SLOTS
        assert early == 0
        assert ratio <= 1.10
        # A worker that slept through a wait would have polled nobody meanwhile.
        assert stats["max_poll_gap_s"] <= POLL_S + RETRY_AFTER_S + 1.0


def list_schedule_s(
    latencies: Sequence[float], *, slots: int, blocks: Sequence[tuple[float, float]], begin: float
) -> float:
    """The same jobs put one after another on so many slots, none begun within a block, each noticed half a polling interval
    after it is ready."""
    free = [begin] * slots
    waits = sorted(blocks)
    last = begin
    for latency in latencies:
        start = heapq.heappop(free)
        for since, until_ in waits:
            if since <= start < until_:
                start = until_
        ready = start + latency + POLL_S / 2
        last = max(last, ready)
        heapq.heappush(free, ready)
    return last - begin


def within_waits(desk: RealDesk, limited: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """POSTs that came to the sandbox within a wait it had told: those armed while our block stood, and those that had been
    armed by then and could not be called back."""
    query = "SELECT id::text, extract(epoch FROM armed_at)::float8 FROM jobs_providertask WHERE armed_at IS NOT NULL"
    armed = dict(desk.ask(query))
    blocks = desk.ask(
        "SELECT extract(epoch FROM at)::float8, extract(epoch FROM until)::float8 FROM block_kept"
    )
    assert blocks
    within: set[str] = set()
    for told in limited:
        within |= {
            post["correlation"]
            for post in desk.sandbox.ledger(since=str(told["at"]))["posts"]
            if told["at"] < post["at"] < told["at"] + RETRY_AFTER_S
        }
    early = {
        one for one in within if any(at + COMMIT_S < armed[one] < until_ for at, until_ in blocks)
    }
    return len(early), len(within - early)


def test_line_4_no_worker_sleeps() -> None:
    """Waits are columns. Nothing that runs in a lane calls time.sleep."""
    files = [
        *(PROJECT / "jobs").glob("*.py"), *(PROJECT / "jobs" / "lifecycle").glob("*.py"),
        *(PROJECT / "jobs" / "stages").glob("*.py"), *(PROJECT / "providers").glob("*.py"),
        *(PROJECT / "providers" / "adapters").glob("*.py"),
    ]  # fmt: skip
    # Of the supervisor, not of a lane: the cluster's own processes and the queue's broker between two messages.
    of_the_supervisor = {"broker.py", "cluster.py", "lifeline.py"}
    sleeping = {
        file.name
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep"}
    }
    print(len(files), "files;", "time.sleep in", sorted(sleeping))
    assert len(files) > 60
    assert sleeping <= of_the_supervisor


def test_line_4_bare_500s_after_accepting_cost_nothing_twice(tmp_path: Path) -> None:
    behaviour = {
        "latency_fixed_s": 1.0, "faults": {"internal_after": 0.05}, "prepared_bytes": 20_000,
    }  # fmt: skip
    with real_desk(tmp_path, sandbox=behaviour, WORKER_LANES=2, WORKER_CONCURRENCY=SLOTS) as desk:
        desk.create(JOBS)
        desk.start_cluster()
        desk.settle(240.0, canary_every_s=None)
        struck = [post for post in desk.sandbox.ledger()["posts"] if post["status"] == 500]
        summary = desk.sandbox.summary()
        print(len(struck), "bare 500s;", ledger_line(desk))
        assert len(struck) >= 5
        assert desk.states() == {"succeeded": JOBS}
        assert desk.wrong() == []
        assert (summary["charged_twice"], summary["charges"], summary["posts"]) == ([], JOBS, JOBS)


# --- line 5: an outage ends by a job, not by time -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def make(
    settings: Settings, tmp_path: Path, pictures: PictureProcess
) -> Callable[..., Switchboard]:
    """One clock that is moved on by hand: a day passes in a moment."""

    def board(**values: Any) -> Switchboard:
        return Switchboard(settings, tmp_path, pictures, **values)

    return board


def told(board: Switchboard) -> Told:
    """What admin, command, API and engine say of the first account now; printed."""
    now = board.clock.now()
    found = word(board.state(FIRST).health(), now=now)
    print(f"{board.clock.offset_s:>9.0f} s  {found.word}: {in_words(found, now=now)}")
    return found


def shown(board: Switchboard) -> tuple[Word, Phrase]:
    found = told(board)
    return found.word, found.phrase


def broken(make: Callable[..., Switchboard]) -> Switchboard:
    """An account that is down, with nobody waiting for it."""
    board = make()
    board.worlds[FIRST].start_outage("503")
    board.order(6, route=[board.targets[FIRST]])
    board.work(10)
    assert "pending" not in board.states()
    assert shown(board) == (Word.DOWN, Phrase.DOWN)
    return board


def test_line_5_an_outage_that_ends_while_no_job_waits(make: Callable[..., Switchboard]) -> None:
    board = broken(make)
    first_try = told(board).until
    assert first_try is not None
    board.work(70)  # the outage goes on: the read is bad, and the next one is later
    second_try = told(board).until
    assert second_try is not None
    assert second_try - first_try > timedelta(seconds=100)
    board.worlds[FIRST].stop_outage()
    assert shown(board)[1] is Phrase.DOWN, "nobody has asked yet"
    board.work((second_try - board.clock.now()).total_seconds() + 30)
    assert shown(board)[1] is Phrase.NEXT_IS_PROBE
    board.work(6 * 3600, step_s=300)
    assert shown(board) == (Word.DOWN, Phrase.NEXT_IS_PROBE), "hours say nothing"
    before = len(board.posts(FIRST))
    board.order(4)
    board.work(2)
    assert shown(board)[1] is Phrase.PROBING
    assert len(board.posts(FIRST)) == before + 1
    board.work(30)
    assert shown(board)[0] is Word.AVAILABLE
    assert board.events(FIRST) == ["opened", "still_down", "half_open", "probe_taken", "closed"]


def test_line_5_never_by_time_alone(make: Callable[..., Switchboard]) -> None:
    board = broken(make)
    before = len(board.posts(FIRST))
    board.work(24 * 3600, step_s=150)
    board.work(2)  # the look that is due
    assert shown(board) == (Word.DOWN, Phrase.DOWN)
    assert set(board.events(FIRST)) == {"opened", "still_down"}
    assert len(board.posts(FIRST)) == before


@pytest.mark.parametrize(
    ("fault", "phrase"),
    [
        ("overloaded", Phrase.DOWN),
        ("failed_free", Phrase.DOWN),
        ("moderation", Phrase.NEXT_IS_PROBE),
        ("bad_request", Phrase.NEXT_IS_PROBE),
    ],
)
def test_line_5_a_job_that_does_not_succeed_ends_nothing(
    make: Callable[..., Switchboard], fault: str, phrase: Phrase
) -> None:
    board = broken(make)
    board.worlds[FIRST].stop_outage()
    board.work(90)
    board.worlds[FIRST].configure({"faults": {fault: 1.0}})
    board.order(1)
    board.work(30)
    assert shown(board) == (Word.DOWN, phrase)
    assert "closed" not in board.events(FIRST)


def test_line_5_a_rejected_key_is_ended_by_the_read_itself(
    make: Callable[..., Switchboard],
) -> None:
    board = make(first={"revoked_keys": ["pza_first"]})
    board.order(3)
    board.work(20)
    assert shown(board) == (Word.DOWN, Phrase.KEY_REJECTED)
    board.work(3 * 3600, step_s=60)
    board.work(2)  # the look that is due
    assert shown(board)[1] is Phrase.KEY_REJECTED, "time alone accepts no key"
    posts = len(board.posts(FIRST))
    board.worlds[FIRST].configure({"revoked_keys": []})
    providers.probe_now(account_id=board.rows[FIRST].pk, actor=None, now=board.clock.now())
    board.work(25)
    assert shown(board)[0] is Word.AVAILABLE
    assert len(board.posts(FIRST)) == posts, "no job was needed"
    assert "half_open" not in board.events(FIRST)


def test_line_6_conditions_have_tests_that_name_them() -> None:
    # A run of its own: this one is a pytest already.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/test_conditions.py"], check=False
    )
    assert done.returncode == 0
