"""The embedded PostgreSQL's keeper: a process of its own that is the server's parent (see embedded.py for the whole).

As root the server runs as the folder's owner or, if that is root, as `nobody`. It is handed the data and socket folders
as open descriptors (/proc/self/fd/N), so that no parent folder has to be opened to others; programs it can't reach that
way are copied to a temporary folder that it can read and not write.

Standard library only: it runs isolated from the environment's packages, so that it is small and starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from studio.embedded import (
    MIB,
    NAME,
    PORT,
    START_S,
    TEST_PREFIX,
    USER,
    WAY_OUT,
    EmbeddedError,
    account,
    is_ready,
    open_lock,
    owner,
    postmaster,
    serves,
    short_socket,
    try_lock,
)

SPACE_DEMO = 300 * MIB
_MAX_RESTARTS = 5

_SETTINGS = {
    "listen_addresses": "",
    "port": PORT,
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
    "dynamic_shared_memory_type": "mmap",  # leaves nothing in /dev/shm, fits into a container's 64 MB of it
    "io_method": "sync",
}
# Only what dies with the machine is given up. synchronous_commit stays on: its effect is what code is tested for.
_TEST_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}


class Keeper:
    """Parent of the server on `folder`."""

    def __init__(self, folder: Path, programs: Path, *, test: bool) -> None:
        self.folder, self.programs, self.test = folder, programs, test
        self.data, self.sock, self.log = folder / "data", folder / "sock", folder / "log"
        self.uid: int | None = None  # None: this process's own
        if os.getuid() == 0:
            self.uid = owner(folder) or pwd.getpwnam("nobody").pw_uid
        libc = ctypes.CDLL(None)
        self.prctl: Callable[..., int] | None = getattr(libc, "prctl", None)
        self.server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._sweep()
        self._choose_programs()
        if not self.data.exists():
            self._create()
        made, program = (self.data / "PG_VERSION").read_text().strip(), self._version()
        if made != program:
            raise EmbeddedError(
                f"{self.data} was made by PostgreSQL {made}, the installed programs are {program}. Dump it with the old "
                f"version and remove the folder, remove it (its data is lost), {WAY_OUT}."
            )
        self.sock.mkdir(mode=0o700, exist_ok=True)
        self._hand_over(self.sock)
        self._stop_orphan()
        self._serve()

    def watch(self, users: int) -> None:
        """Until nobody uses the server: start it again when it dies, at most a few times."""
        restarts = 0
        while not try_lock(users, fcntl.LOCK_EX):
            time.sleep(0.2)
            if self.server is not None and self.server.poll() is not None:
                restarts += 1
                if restarts > _MAX_RESTARTS:
                    raise EmbeddedError(f"PostgreSQL ended {restarts} times. See {self.log}.")
                self._serve()

    def stop(self) -> None:
        if self.server is not None and self.server.poll() is None:
            for number, patience_s in (
                (signal.SIGQUIT if self.test else signal.SIGINT, 60),
                (signal.SIGQUIT, 10),
            ):
                self.server.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.server.wait(patience_s)
                    break
        self._sweep()
        if self.test and self.folder.is_absolute() and self.folder.name.startswith(TEST_PREFIX):
            shutil.rmtree(self.folder, ignore_errors=True)

    # The server

    def _serve(self) -> None:
        """Start the server and wait until it accepts connections."""
        settings = _SETTINGS | (_TEST_SETTINGS if self.test else {})
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            self._disown_pid_file()
            logged = self.log.stat().st_size
            with self._within(self.data, self.sock) as (folders, descriptors):
                self.server = subprocess.Popen(  # noqa: S603
                    [self.programs / "bin/postgres", "-D", folders[0], "-k", folders[1], *options],
                    **self._as_server(descriptors),
                )
            while self.server.poll() is None and time.monotonic() < end:
                if postmaster(self.folder) == (self.server.pid, True):
                    return
                time.sleep(0.02)
            said = self.log.read_bytes()[logged:].decode(errors="replace")
            # After a kill -9 of the server its backends live on for a moment.
            if "still in use" not in said:
                raise EmbeddedError(
                    f"PostgreSQL does not start. From {self.log}:\n{said[-2000:].strip()}"
                )
            time.sleep(0.2)
        raise EmbeddedError(f"PostgreSQL was not ready within {START_S:.0f} s. See {self.log}.")

    def _disown_pid_file(self) -> None:
        """Make a dead server's pid file harmless.

        PostgreSQL refuses to start if the number in it is alive, even as a foreign program (common after a container's
        restart). Deleting the file would switch off its check for backends that still use the shared memory, so put in
        the number that it takes for stale: its parent's.
        """
        path = self.data / "postmaster.pid"
        with contextlib.suppress(FileNotFoundError):
            lines = path.read_text(errors="replace").splitlines()
            text = "\n".join([str(os.getpid()), *lines[1:7]]) + "\n"  # without line 8, "ready"
            with path.open("r+") as file:
                file.write(text)
                file.truncate()
        for left in self.sock.glob(f".s.PGSQL.{PORT}*"):
            left.unlink()

    def _stop_orphan(self) -> None:
        """Stop a server whose keeper is gone: nobody would ever stop it."""
        pid, _accepts = postmaster(self.folder)
        for number, patience_s in ((signal.SIGINT, 30), (signal.SIGQUIT, 10)):
            end = time.monotonic() + patience_s
            if serves(pid, self.folder):
                os.kill(pid, number)
            while serves(pid, self.folder) and time.monotonic() < end:
                time.sleep(0.05)
        if serves(pid, self.folder):
            raise EmbeddedError(
                f"An old server (pid {pid}) on {self.data} does not stop. End it by hand: kill {pid}."
            )

    def _as_server(self, descriptors: tuple[int, ...]) -> dict[str, Any]:
        """How the server's programs are run: as its user, with nothing of ours, dying with the keeper."""
        keeper, prctl = os.getpid(), self.prctl

        def die_with_keeper() -> (
            None
        ):  # runs after the change of user, which would clear it; the keeper has one thread
            if prctl is not None:
                prctl(1, signal.SIGINT)  # PR_SET_PDEATHSIG
                if os.getppid() != keeper:
                    os._exit(1)

        who: dict[str, Any] = {}
        if self.uid is not None:
            gid = (
                pwd.getpwuid(self.uid).pw_gid
                if account(self.uid) != f"uid {self.uid}"
                else self.uid
            )
            who = {"user": self.uid, "group": gid, "extra_groups": []}
        return {"pass_fds": descriptors, "cwd": "/", "preexec_fn": die_with_keeper, **who}

    @contextlib.contextmanager
    def _within(self, *folders: Path) -> Iterator[tuple[list[str], tuple[int, ...]]]:
        """How the server can name `folders`: as root by descriptors, since it may not enter the folders above them."""
        if self.uid is None or not Path("/proc/self/fd").exists():
            names = [
                short_socket(self.folder) if folder == self.sock else str(folder)
                for folder in folders
            ]
            yield names, ()
            return
        descriptors = tuple(os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders)
        try:
            yield [f"/proc/self/fd/{descriptor}" for descriptor in descriptors], descriptors
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    # The cluster

    def _create(self) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < SPACE_DEMO:
            raise EmbeddedError(
                f"{self.folder} has {free // MIB} MB free, a database needs {SPACE_DEMO // MIB}. Make room, {WAY_OUT}."
            )
        new = (
            self.folder / "data.new"
        )  # renamed when complete: a broken start never looks like a cluster
        # pg_trgm sees no Cyrillic letter unless LC_CTYPE knows them; older macOS has no C.UTF-8.
        for ctype in ("C.UTF-8", "en_US.UTF-8"):
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
            self._hand_over(new)
            with self._within(new) as (folders, descriptors):
                made = self._run(
                    [
                        "initdb",
                        "-D",
                        folders[0],
                        "-U",
                        "postgres",
                        "-E",
                        "UTF8",
                        "--locale-provider=builtin",
                    ]
                    + [
                        "--builtin-locale=C.UTF-8",
                        "--locale=C",
                        f"--lc-ctype={ctype}",
                        "--auth-local=trust",
                    ]
                    + ["--auth-host=reject", "--wal-segsize=4", "--no-instructions"]
                    + (["--no-sync"] if self.test else []),
                    descriptors,
                )
                if made.returncode == 0:
                    sql = (
                        f"CREATE ROLE {USER} LOGIN CREATEDB\nCREATE DATABASE {NAME} OWNER {USER}\n"
                    )
                    made = self._run(
                        ["postgres", "--single", "-D", folders[0], "postgres"], descriptors, sql
                    )
            if made.returncode == 0 or "invalid locale name" not in made.stderr:
                break
        if made.returncode != 0 or "ERROR" in made.stderr:
            shutil.rmtree(new, ignore_errors=True)
            raise EmbeddedError(
                f"The database could not be created in {self.folder}:\n{made.stderr.strip()[-2000:]}"
            )
        new.rename(self.data)

    def _run(
        self, words: list[str], descriptors: tuple[int, ...] = (), text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.programs / "bin" / words[0]), *words[1:]]
        try:
            return subprocess.run(  # noqa: S603
                command,
                input=text,
                capture_output=True,
                text=True,
                check=False,
                **self._as_server(descriptors),
            )
        except subprocess.SubprocessError as error:  # the change of user was refused
            return subprocess.CompletedProcess(command, 126, "", str(error))
        except OSError as error:
            return subprocess.CompletedProcess(command, 126, "", f"{command[0]}: {error.strerror}")

    def _hand_over(self, folder: Path) -> None:
        if self.uid is not None:
            os.chown(folder, self.uid, -1)

    # The programs

    def _version(self) -> str:
        shown = self._run(["postgres", "--version"])
        match = re.search(r"\) (\d+)", shown.stdout)
        if match is None:
            raise EmbeddedError(
                f"{self.programs / 'bin/postgres'} does not run: {(shown.stderr or shown.stdout).strip()}. "
                f"Run as a normal user if this is root in a container without its rights, {WAY_OUT}."
            )
        return match[1]

    def _choose_programs(self) -> None:
        """The wheel's own programs, or a copy where the server's user can't reach them."""
        if self.uid is not None and self._run(["initdb", "--version"]).returncode != 0:
            copy = Path(tempfile.mkdtemp(prefix="pg-bin-"))
            (self.folder / "bin").symlink_to(copy)
            package = self.programs.parent
            target = copy / package.name / self.programs.name
            (target / "bin").mkdir(parents=True)
            for program in ("postgres", "initdb"):
                shutil.copy(self.programs / "bin" / program, target / "bin")
            for part in ("lib", "share"):
                shutil.copytree(self.programs / part, target / part, symlinks=True)
            for libraries in (package.with_name(package.name + ".libs"), package / ".dylibs"):
                if libraries.is_dir():
                    shutil.copytree(
                        libraries, copy / libraries.relative_to(package.parent), symlinks=True
                    )
            for path in (copy, *copy.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
            self.programs = target
        self._version()

    def _sweep(self) -> None:
        """Delete the copy of the programs and the short link to the socket, ours or a killed keeper's."""
        for name, prefix in (("bin", "pg-bin-"), ("short", "pg-sock-")):
            link = self.folder / name
            if link.is_symlink():
                target = link.readlink()
                target = target if name == "bin" else target.parent
                if (
                    target.name.startswith(prefix)
                    and target.exists()
                    and target.lstat().st_uid == os.getuid()
                ):
                    shutil.rmtree(target, ignore_errors=True)
                link.unlink()


def _keep(keeper: Keeper, tell: Callable[[str], None]) -> None:
    folder = keeper.folder
    lock, end = open_lock(folder / "keeper.lock"), time.monotonic() + START_S
    while not try_lock(
        lock, fcntl.LOCK_EX
    ):  # the process that had begun a start was killed, its keeper lives
        if is_ready(folder) or time.monotonic() > end:
            return tell(
                "ready"
                if is_ready(folder)
                else f"Another keeper of {folder} hangs. See {keeper.log}."
            )
        time.sleep(0.05)
    try:
        keeper.start()
        tell("ready")
        keeper.watch(open_lock(folder / "users.lock"))
    finally:
        keeper.stop()
    return None


def main() -> int:
    """Split: this half tells the caller how the start went, the other stays as the keeper."""
    folder, programs, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if not folder.is_absolute():  # below, the current folder becomes the root folder
        sys.stderr.write(f"The keeper needs an absolute folder, not {str(folder)!r}.")
        return 1
    hears, tells = os.pipe()
    if os.fork() > 0:
        os.close(tells)
        with os.fdopen(hears) as answer:
            said = answer.read() or f"The keeper ended without a word. See {folder / 'log'}."
        if said != "ready":
            sys.stderr.write(said)
        return int(said != "ready")
    os.close(hears)
    os.setsid()
    os.chdir("/")
    log = open_lock(folder / "log")
    if os.fstat(log).st_size > 10 * MIB:
        os.ftruncate(log, 0)
    os.close(log)
    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):  # now, or a caller that captures the output never sees its end
        os.dup2(log, standard)
    spoken = False

    def tell(text: str) -> None:
        nonlocal spoken
        if not spoken:
            spoken = True
            with contextlib.suppress(BrokenPipeError):
                os.write(tells, text.encode())
            os.close(tells)

    try:
        _keep(Keeper(folder, programs, test=mode == "test"), tell)
    except EmbeddedError as error:
        sys.stderr.write(f"{error}\n")
        tell(str(error))
        return 1
    except BaseException:
        traceback.print_exc()
        tell(f"The keeper of {folder} failed:\n{traceback.format_exc()}")
        raise
    return 0
