"""The child process around the decoder: limits, deaths, forks, and who outlives whom."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from jobs import pictures as parent
from jobs.decoder import Flaw, Picture, Rejected
from jobs.formats import Format
from jobs.pictures import ClosedError, PictureProcess
from tests import pictures

pytestmark = pytest.mark.flow

ROOT = Path(__file__).resolve().parent.parent
WAIT_S = 20.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def process() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.png"
    path.write_bytes(pictures.encode(pictures.noise()))
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """49 megapixels in RGB: 196 MB decoded, and more than a second of CPU, from a file of about 150 kB."""
    path = tmp_path / "large.png"
    path.write_bytes(pictures.encode(Image.new("RGB", (7000, 7000), "teal")))
    return path


def test_a_picture_is_inspected_and_its_thumbnail_written(
    process: PictureProcess, good: Path
) -> None:
    thumb = good.with_suffix(".thumb")
    assert process.inspect_sync(good, thumb) == Picture(Format.PNG, 64, 48)
    with Image.open(thumb) as image:
        assert image.format == "WEBP"


def test_a_rejection_keeps_its_flaw_reason_and_retry(
    process: PictureProcess, tmp_path: Path
) -> None:
    (tmp_path / "page").write_bytes(pictures.HTML)
    seen = process.inspect_sync(tmp_path / "page")
    text = "is an HTML page, not a PNG, JPEG, WEBP or GIF picture"
    assert seen == Rejected(Flaw.NOT_A_PICTURE, text, retry=True)


def test_names_that_are_no_utf8_go_through(process: PictureProcess, good: Path) -> None:
    odd = good.with_name(os.fsdecode(b"\xff\n'\"\\.png"))
    good.rename(odd)
    assert isinstance(process.inspect_sync(odd), Picture)


def test_one_child_serves_many_pictures(process: PictureProcess, good: Path) -> None:
    process.inspect_sync(good)
    first = process.child_pid
    for _ in range(5):
        process.inspect_sync(good)
    assert process.child_pid == first


def test_a_worn_child_is_replaced(
    process: PictureProcess, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "PICTURES_PER_CHILD", 2)
    process.inspect_sync(good)
    first = process.child_pid
    process.inspect_sync(good)
    process.inspect_sync(good)
    assert process.child_pid not in {None, first}


async def test_many_pictures_at_once_do_not_hold_up_the_loop(
    process: PictureProcess, good: Path
) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    seen = await asyncio.gather(*(process.inspect(good) for _ in range(40)))
    ticking.cancel()
    assert all(isinstance(one, Picture) for one in seen)
    assert ticks > 100


def test_the_process_serves_one_loop_after_another(process: PictureProcess, good: Path) -> None:
    for _ in range(2):
        assert isinstance(asyncio.run(process.inspect(good)), Picture)


async def test_a_cancelled_wait_leaves_the_child_in_step(
    process: PictureProcess, good: Path, large: Path
) -> None:
    await process.inspect(good)
    waiting = asyncio.create_task(process.inspect(large))
    queued = asyncio.create_task(process.inspect(large))
    await asyncio.sleep(0.05)
    waiting.cancel()
    queued.cancel()
    assert await process.inspect(good) == Picture(Format.PNG, 64, 48)


def test_missing_files_are_oserrors_of_ours(
    process: PictureProcess, good: Path, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        process.inspect_sync(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        process.inspect_sync(good, tmp_path / "none" / "thumb")


def test_a_full_disk_is_an_oserror_of_ours(process: PictureProcess, good: Path) -> None:
    with pytest.raises(OSError, match="No space") as caught:
        process.inspect_sync(good, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_picture_beyond_the_memory_limit_is_rejected_for_good_and_the_next_one_works(
    good: Path, large: Path
) -> None:
    process = PictureProcess(memory_bytes=300 * 1024 * 1024)
    try:
        seen = process.inspect_sync(large, large.with_suffix(".thumb"))
        assert isinstance(seen, Rejected)
        assert (seen.flaw, seen.retry) == (Flaw.TOO_MUCH_MEMORY, False)
        assert isinstance(process.inspect_sync(good), Picture)
    finally:
        process.close()


def test_the_default_memory_is_enough_for_the_largest_allowed_picture(
    process: PictureProcess, tmp_path: Path
) -> None:
    for name, mode in (("large.png", "RGBA"), ("large.jpg", "CMYK")):
        path = tmp_path / name
        Image.new(mode, (8333, 6000)).save(path)
        assert isinstance(process.inspect_sync(path, tmp_path / "thumb"), Picture)


def test_a_picture_beyond_the_cpu_limit_is_rejected_for_good_and_the_next_one_works(
    good: Path,
) -> None:
    slow = good.with_name("slow.png")
    slow.write_bytes(pictures.slow())
    process = PictureProcess(
        max_pixels=200_000_000, cpu_s=0
    )  # the kernel counts whole seconds: up to one is left
    try:
        seen = process.inspect_sync(slow)
        assert isinstance(seen, Rejected)
        assert (seen.flaw, seen.retry) == (Flaw.TOO_SLOW, False)
        process.cpu_s = 10
        assert isinstance(process.inspect_sync(good), Picture)
    finally:
        process.close()


def test_a_silent_child_is_replaced_and_the_picture_may_be_tried_again(good: Path) -> None:
    process = PictureProcess(wall_s=5)
    try:
        process.inspect_sync(good)
        frozen = process.child_pid
        assert frozen is not None
        os.kill(frozen, signal.SIGSTOP)
        process._worker._wall_s = 0.2  # type: ignore[union-attr]
        seen = process.inspect_sync(good)
        assert isinstance(seen, Rejected)
        assert (seen.flaw, seen.retry) == (Flaw.TOO_SLOW, True)
        assert not alive(frozen)
        process._worker._wall_s = 5  # type: ignore[union-attr]
        assert isinstance(process.inspect_sync(good), Picture)
    finally:
        process.close()


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_a_child_killed_between_two_pictures_is_replaced(
    process: PictureProcess, good: Path
) -> None:
    process.inspect_sync(good)
    first = process.child_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first))
    assert isinstance(process.inspect_sync(good), Picture)
    assert process.child_pid != first


def test_a_child_killed_in_the_middle_of_a_picture_is_replaced(
    process: PictureProcess, good: Path, large: Path
) -> None:
    process.inspect_sync(good)
    child = process.child_pid
    assert child is not None
    before = _cpu_ticks(child)
    seen: list[Picture | Rejected] = []
    waiting = threading.Thread(target=lambda: seen.append(process.inspect_sync(large)))
    waiting.start()
    until(lambda: _cpu_ticks(child) >= before + 20)  # 0.2 s into the work
    os.kill(child, signal.SIGKILL)
    waiting.join()
    assert seen == [Picture(Format.PNG, 7000, 7000)]


def _cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))


def test_a_picture_on_which_two_children_die_is_set_aside(
    process: PictureProcess, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = parent._Child.ask

    def die(
        child: parent._Child, request: dict[str, Any], *, within_s: float
    ) -> dict[str, Any] | int | None:
        child.kill()
        child._process.wait()
        return ask(child, request, within_s=within_s)

    with monkeypatch.context() as patched:
        patched.setattr(parent._Child, "ask", die)
        seen = process.inspect_sync(good)
        assert isinstance(seen, Rejected)
        assert (seen.flaw, seen.retry) == (Flaw.DECODER_DIED, True)
    assert isinstance(process.inspect_sync(good), Picture)


def test_a_child_that_does_not_start_is_our_own_trouble(good: Path) -> None:
    process = PictureProcess(memory_bytes=1024 * 1024)
    with pytest.raises(ChildProcessError, match="does not start"):
        process.inspect_sync(good)
    process.close()


def test_closing_ends_the_child_and_wakes_who_waits(process: PictureProcess, good: Path) -> None:
    process.inspect_sync(good)
    child = process.child_pid
    assert child is not None
    os.kill(child, signal.SIGSTOP)  # never answers
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            process.inspect_sync(good)
        except ClosedError as error:
            caught.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    worker = process._worker
    assert worker is not None
    until(lambda: worker._orders.qsize() == 2)
    process.close()
    for thread in threads:
        thread.join()
    assert len(caught) == 3
    assert not alive(child)
    assert process.child_pid is None
    assert isinstance(process.inspect_sync(good), Picture)


def test_closing_one_that_never_started_does_nothing() -> None:
    PictureProcess().close()


# --- families ---------------------------------------------------------------------------------------------------------

_HOLDER = """
import json, os, sys
from pathlib import Path
from jobs.pictures import PictureProcess
process = PictureProcess()
process.inspect_sync(Path(sys.argv[1]))
print(process.child_pid, flush=True)
sys.stdin.read()
"""


def _hold(good: Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(good)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,
    )


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_dies_with_its_parent(good: Path, sign: signal.Signals) -> None:
    with _hold(good) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        assert alive(child)
        os.kill(child, signal.SIGSTOP)  # not even a stopped one stays
        holder.send_signal(sign)
        holder.wait()
        until(lambda: not alive(child))


def test_a_parent_that_ends_by_itself_is_not_held_up_and_takes_the_child_along(good: Path) -> None:
    with _hold(good) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.stdin.close()
        assert holder.wait(timeout=WAIT_S) == 0
        until(lambda: not alive(child))


def test_the_child_lives_through_a_stop_sent_to_the_whole_group(good: Path) -> None:
    process = PictureProcess()
    try:
        process.inspect_sync(good)
        child = process.child_pid
        assert child is not None
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
        assert isinstance(process.inspect_sync(good), Picture)
        assert process.child_pid == child
    finally:
        process.close()


def test_the_child_gets_no_secrets_in_its_environment(
    process: PictureProcess, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AI_API_KEY", "planted-secret")
    process.inspect_sync(good)
    names = Path(f"/proc/{process.child_pid}/environ").read_bytes().split(b"\0")
    assert {name.split(b"=")[0] for name in names if name} == {b"PATH", b"PYTHONPATH", b"LC_ALL"}


_FORKER = """
import json, multiprocessing, os, sys
from pathlib import Path
from jobs.pictures import PictureProcess
good = Path(sys.argv[1])
process = PictureProcess()

def work(pipe):
    seen = process.inspect_sync(good)
    pipe.send((type(seen).__name__, process.child_pid, os.getpid()))

process.inspect_sync(good)
first = process.child_pid
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
worker = context.Process(target=work, args=(theirs,), daemon=True)
worker.start()
name, other, worker_pid = ours.recv()
worker.join()
again = type(process.inspect_sync(good)).__name__
print(json.dumps({"first": first, "name": name, "other": other, "again": again, "same": process.child_pid == first}))
"""


def test_a_daemonic_fork_has_a_child_of_its_own_and_leaves_the_first_one_alone(good: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKER, str(good)],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
    told = json.loads(done.stdout)
    assert (told["name"], told["again"], told["same"]) == ("Picture", "Picture", True)
    assert told["other"] != told["first"]
    until(lambda: not alive(told["other"]) and not alive(told["first"]))
