"""`make run` for real, from a copy of the tree: twelve pictures, and nothing that outlives it, however it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.flow

PROJECT = Path(__file__).resolve().parent.parent


class Desk:
    """`make run` in a folder, in a session of its own as in a terminal."""

    def __init__(self, folder: Path, output: str = "output.txt") -> None:
        self.folder, self.output = folder, folder / output
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in {"PGEMBED_TEST_ROOT", "DATABASE_URL", "MAKEFLAGS", "MAKELEVEL"}
        }
        with self.output.open("wb") as file:
            self.make = subprocess.Popen(
                ["make", "run"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_until_up(self) -> None:
        end = time.monotonic() + 180
        while "Ctrl-C stops everything" not in self.said:
            assert self.make.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.1)

    @property
    def demo(self) -> int:
        return next(
            pid for pid, words in processes(self.folder).items() if "manage.py demo" in words
        )

    def gone_within_s(self, limit_s: float) -> float:
        began = time.monotonic()
        while True:
            self.make.poll()  # takes away the zombie
            left = processes(self.folder)
            took = time.monotonic() - began
            if not left:
                return took
            assert took < limit_s, left
            time.sleep(0.05)


def processes(folder: Path) -> dict[int, str]:
    """Living processes that work in `folder` or name it, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = str((entry / "cwd").readlink())
        except OSError:
            continue
        if words and (where.startswith(str(folder)) or str(folder) in words):
            found[int(entry.name)] = words[:200]
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """What a clone of the tree as it is now would hold, with our environment in place of a new one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        check=True,
        text=True,
    )
    folder = tmp_path / "desk"
    for name in filter(None, listed.stdout.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    (folder / ".venv").symlink_to(PROJECT / ".venv")
    os.utime(folder / "requirements.lock", (1, 1))  # older than the environment's stamp
    yield folder
    for pid in processes(folder):
        os.kill(pid, signal.SIGKILL)


def test_make_run_makes_twelve_pictures_and_leaves_nothing_however_it_ends(clone: Path) -> None:
    desk = Desk(clone)
    desk.wait_until_up()
    files = [Path(name) for name in re.findall(r"succeeded\s+(\S+\.png)", desk.said)]
    assert len(set(files)) == 12, desk.said
    for file in files:
        with Image.open(clone / file) as picture:
            picture.load()
    address = re.search(r"http://127\.0\.0\.1:\d+/", desk.said)
    assert address is not None
    with urllib.request.urlopen(address[0] + "admin/login/", timeout=10) as page:
        assert page.status == 200
    assert {"viewer", "operator", "owner"} <= set(desk.said.split())
    assert (clone / ".env").read_text() == "DEMO=1\n"

    second = Desk(clone, output="second.txt")
    assert second.make.wait(60) != 0
    assert "runs already" in second.said

    os.killpg(desk.make.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    desk.gone_within_s(15)

    desk = Desk(clone)
    desk.wait_until_up()
    assert "Generating" not in desk.said
    os.kill(desk.demo, signal.SIGKILL)
    desk.gone_within_s(15)

    desk = Desk(clone)
    desk.wait_until_up()
    os.kill(desk.make.pid, signal.SIGKILL)
    desk.gone_within_s(15)
