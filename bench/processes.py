"""Processes of this machine by their groups, read from /proc (Linux). Not a benchmark itself."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

# Asked for before the program starts and kept over exec. A parent that was gone before that sends no signal any more.
_DYING = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(*words: str) -> list[str]:
    """A command line that is killed with the thread that starts it (on Linux; elsewhere as it is)."""
    if sys.platform != "linux":
        return [*words]
    return [sys.executable, "-S", "-c", _DYING, str(os.getpid()), *words]


def group_of(pid: int) -> int | None:
    """The process group; None where there is no such process, or only its remains."""
    try:
        state, _parent, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state in {"Z", "X"} else int(group)


def members(group: int) -> list[int]:
    """Living processes of a group, oldest first; those that are dead and not yet reaped do not count."""
    return sorted(pid for pid in _all() if group_of(pid) == group)


def children(parent: int) -> list[int]:
    """Living processes that it has started."""
    found = []
    for pid in _all():
        with contextlib.suppress(OSError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(pid)
    return found


def with_mark(mark: str) -> list[int]:
    """Living processes that have `mark` (NAME=value) in their environment."""
    found = []
    for pid in _all():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if mark.encode() in words and group_of(pid) is not None:
                found.append(pid)
    return found


def is_fork(pid: int, of: int) -> bool:
    """Whether it runs with the same command line: forked, and never another program since."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() == Path(f"/proc/{of}/cmdline").read_bytes()
    return False


def _all() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())


def send(pid: int, number: signal.Signals) -> bool:
    """False: it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def limit_files(pid: int, size_bytes: int | None) -> None:
    """From now on this process can't write files beyond that size (EFBIG, as on a full disk); None: as it was."""
    with contextlib.suppress(ProcessLookupError):
        _soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(
            pid, resource.RLIMIT_FSIZE, (hard if size_bytes is None else size_bytes, hard)
        )


def resident_mb(pid: int) -> float:
    """The memory it has resident; 0 when it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(pid: int) -> float:
    """CPU seconds that it has used; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
