"""A disk for results and spool that can be full or read-only for a while.

As root on Linux it is a tmpfs in a mount namespace of this process, so that nothing outlives the run: full is ENOSPC,
read-only is EROFS. Elsewhere it is a plain folder: full is a limit on the size of files that the processes may write
(EFBIG), read-only is a folder without the permission (EACCES), which root does not mind, so that is not done.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bench import processes

_CLONE_NEWNS = 0x20000
SIZE_MB = 256


def own_mounts() -> bool:
    """In the whole process, before it has threads: mounts made from now on are its own and its children's."""
    if os.getuid() != 0 or not Path("/proc/self/ns/mnt").exists():
        return False
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    return unshare is not None and unshare(_CLONE_NEWNS) == 0 and _mount("--make-rprivate", "/")


class Disk:
    """`folder` holds what the desk writes; it must exist and be empty."""

    def __init__(self, folder: Path, *, mounts: bool) -> None:
        self.folder = folder
        self.real = mounts and _mount("-t", "tmpfs", "-o", f"size={SIZE_MB}m", "desk", str(folder))
        self._filler = folder / "filler"
        self._limited: set[int] = set()
        self._locked = False

    @property
    def full_means(self) -> str:
        return "ENOSPC" if self.real else "EFBIG"

    @property
    def read_only_means(self) -> str | None:
        """None: it can't be done here."""
        if self.real:
            return "EROFS"
        return "EACCES" if os.getuid() != 0 else None

    def fill(self, pids: Iterable[int]) -> None:
        if not self.real:
            self._limited = set(pids)
            for pid in self._limited:
                processes.limit_files(pid, 0)
            return
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)
        while self._limited:
            processes.limit_files(self._limited.pop(), None)

    def lock(self) -> None:
        """Read-only from now on, for whatever is opened anew."""
        if self.real:
            # Of its own, above the other: that one has files open for writing and can't be turned.
            where = str(self.folder)
            self._locked = _mount("--bind", where, where) and _mount("-o", "remount,bind,ro", where)
        elif os.getuid() != 0:
            for folder in self._folders():
                folder.chmod(0o500)
            self._locked = True

    def unlock(self) -> None:
        if not self._locked:
            return
        self._locked = False
        if self.real:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)
            return
        for folder in self._folders():
            folder.chmod(0o700)

    def _folders(self) -> list[Path]:
        return [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]

    def close(self) -> None:
        self.make_room()
        self.unlock()
        if self.real:
            with contextlib.suppress(subprocess.CalledProcessError):
                subprocess.run(["umount", "-l", str(self.folder)], check=True)


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
