"""The "Must hold" lines of issue 2 that name no command of their own, one test each, with their figures printed.

Line 1 is `make run` and `make test` themselves (tests/test_make_run.py), line 5 is `python -m bench.inflight`.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from bench.desk import RealDesk, ledger_line
from tests.real import real_desk
from tests.test_real_clusters import DEADLINE_S, LIMIT, two_clusters
from tests.test_real_kills import STEPS, disturb

pytestmark = [pytest.mark.flow, pytest.mark.django_db(transaction=True)]

PROJECT = Path(__file__).resolve().parent.parent.parent
FREEZE_S = 65.0


def test_line_2_sixty_prompts_sixty_charges_sixty_pictures(tmp_path: Path) -> None:
    with real_desk(tmp_path) as desk:
        desk.start_cluster()
        told = json.loads(
            desk.manage("generate", "--from", "examples/prompts.csv", "--wait", "--json")
        )
        files = [Path(job["file"]) for job in told["jobs"]]
        for file in files:
            with Image.open(file) as picture:
                picture.load()
        different = {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        print(len(files), "files,", len(different), "different;", ledger_line(desk))
        assert [job["state"] for job in told["jobs"]] == ["succeeded"] * 60
        assert len(different) == 60
        assert desk.sandbox.summary()["charges"] == 60


@pytest.mark.parametrize("step", STEPS)
def test_line_3_kill_9(tmp_path: Path, step: str) -> None:
    with real_desk(tmp_path) as desk:
        disturb(desk, step)
        print(step, ledger_line(desk))


@pytest.mark.parametrize("step", STEPS)
def test_line_3_frozen_for_65_s(tmp_path: Path, step: str) -> None:
    with real_desk(tmp_path) as desk:
        disturb(desk, step, freeze_s=FREEZE_S)
        print(step, ledger_line(desk))


def test_line_4_two_clusters(tmp_path: Path) -> None:
    with real_desk(
        tmp_path, WORKER_CONCURRENCY=LIMIT, WORKER_LANES=2, POST_DEADLINE_SEC=DEADLINE_S
    ) as desk:
        took = two_clusters(desk, jobs=48)
        print(
            "stops, s:",
            took,
            "most in flight:",
            desk.sandbox.stats()["max_in_flight"],
            ledger_line(desk),
        )


def test_line_6_nonsense_is_named_and_loses_nothing_else(tmp_path: Path) -> None:
    with real_desk(tmp_path) as desk:
        corrupt, huge = tmp_path / "corrupt.png", tmp_path / "huge.png"
        corrupt.write_bytes(b"\x89PNG\r\n\x1a\n not a picture")
        Image.new("1", (10_000, 6_000)).save(huge)
        for arguments, named in (
            ([" "], "prompt"),
            (["x" * 100_000], "prompt"),
            (["a cat", "--image", str(corrupt)], "photo"),
            (["a cat", "--image", str(huge)], "photo"),
            (["a cat", "--target", "nobody:nothing"], "target"),
        ):
            code, said = _generate(desk, *arguments)
            print(code, said.strip()[:160])
            assert code == 2
            assert named in said
        assert desk.states() == {}
        rows = tmp_path / "rows.csv"
        rows.write_bytes(
            b'prompt,reference\na lamp,R1\n"",R2\n\x00 nul,R3\na,b,c,d,e\n"open quote,R5\na chair,R6\n'
        )
        code, said = _generate(desk, "--from", str(rows), "--json")
        told = json.loads(said)
        print(code, [(bad["line"], bad["field"], bad["message"][:70]) for bad in told["refused"]])
        assert [job["reference"] for job in told["jobs"]] == ["R1", "R6"]
        assert {bad["line"] for bad in told["refused"]} == {3, 4, 5, 6}


def _generate(desk: RealDesk, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "manage.py", "generate", *arguments],
        cwd=PROJECT, env=desk.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout if "--json" in arguments else done.stderr
