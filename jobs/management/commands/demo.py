"""`make run`: the whole desk on this machine, in the foreground, until Ctrl-C.

Migrates, creates the demo's staff accounts, starts sandbox, workers and web as children, and lets the workers generate a
first set of pictures. With a real key the sandbox stays away and nothing is generated: the command and its price are
printed. Children die with this process, even by kill -9 (PR_SET_PDEATHSIG; on Linux).
"""

import contextlib
import csv
import ctypes
import fcntl
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _
from rich.console import Console

from jobs import routes
from jobs.models import Job, Lane
from jobs.roles import Role

WEB_PORT = 8000
START_S = 60.0  # until a part answers
LANE_S = 10.0  # until a lane is seen alive
# A stopping cluster ends by itself before that (jobs/lifeline.py); all is gone within 15 s, or once the calls under way have
# ended whose answer is the result.
WORKERS_STOP_S = 14.0 + settings.LANE_ANSWERS_SEC
ACCOUNTS = {role.value.lower(): role.value for role in Role}
MAX_RESTARTS, RESTART_WINDOW_S = 5, 60.0

_prctl: Callable[..., int] | None = getattr(ctypes.CDLL(None), "prctl", None)


class Stopped(Exception):  # noqa: N818  no error: someone asked us to stop
    """Ctrl-C, SIGTERM, SIGHUP, or the `make` that started us is gone."""


@dataclass
class Part:
    """A child process in a session of its own, so that Ctrl-C in the terminal reaches only us."""

    name: str
    words: list[str]
    environment: dict[str, str]
    log: Path | None  # None: it writes to our own output
    dies_by: signal.Signals = signal.SIGKILL  # when this process is gone
    process: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)

    def start(self) -> None:
        parent, number = os.getpid(), int(self.dies_by)

        def die_with_parent() -> None:  # follows the thread that forks: our main one
            if _prctl is not None:
                _prctl(1, number)  # PR_SET_PDEATHSIG
                if os.getppid() != parent:
                    os._exit(1)

        with contextlib.ExitStack() as stack:
            out = None if self.log is None else stack.enter_context(self.log.open("ab"))
            self.process = subprocess.Popen(
                self.words,
                env=self.environment,
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out and subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509  this process has one thread
            )
        self.starts.append(time.monotonic())

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.runs:
            self.process.send_signal(number)

    def kill_group(self) -> None:
        if self.process is not None and self.runs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def last_words(self) -> str:
        if self.log is None or not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


class Command(BaseCommand):
    help = _("Start the desk on this machine (make run): sandbox, workers and web, until Ctrl-C.")
    requires_system_checks: list[
        str
    ] = []  # some look at the database: they run after the migration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--port", type=int, default=WEB_PORT, help=_("preferred port of the web page")
        )
        parser.add_argument(
            "--first-set", type=Path, default=settings.BASE_DIR / "examples/demo.csv"
        )
        parser.add_argument(
            "--once", action="store_true", help=_("stop after the first set of pictures")
        )
        parser.add_argument(
            "--with-parent", action="store_true", help=_("stop when the starting process ends")
        )

    def handle(self, **options: Any) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self.folder = Path(settings.VAR_DIR) / "demo"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts: list[Part] = []
        self.asked_to_stop = False
        self.parent = os.getppid() if options["with_parent"] else None
        with self._only_demo() as note:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, self._ask_to_stop)
            try:
                self._run(options, note)
            except Stopped:
                self.console.print(_("\nStopping: calls under way get a few seconds to finish…"))
            finally:
                self._stop()
            self.console.print(
                _("Stopped. Pictures and data stay in {}; `make run` goes on from there.").format(
                    "var/"
                )
            )

    def _run(self, options: dict[str, Any], note: Callable[[str], None]) -> None:
        with self._step(_("Database")):
            call_command("migrate", interactive=False, verbosity=0)
            self.check(databases=["default"])
        with self._step(_("Staff accounts")):
            accounts = self._accounts()
        environment = os.environ | {"DEMO": "1", "PYTHONUNBUFFERED": "1"}
        if settings.ON_SANDBOX:
            port = _free_port(urlsplit(settings.SANDBOX_URL).port or 8700)
            environment["SANDBOX_URL"] = f"http://127.0.0.1:{port}"
            with self._step(_("Sandbox: a provider on this machine, costs nothing")):
                self._add("sandbox", ["manage.py", "sandbox", "--port", str(port)], environment)
                self._wait_for_http(port, "/")
        with self._step(_("Workers")):
            # SIGTERM lets them finish calls under way, also when only this process was killed.
            self._add("workers", ["manage.py", "qcluster"], environment, dies_by=signal.SIGTERM)
            self._wait_for_lane()
        port = _free_port(options["port"], besides=environment.get("SANDBOX_URL", ""))
        address = f"http://127.0.0.1:{port}/"
        with self._step(_("Web")):
            words = (
                f"-m uvicorn studio.asgi:application --host 127.0.0.1 --port {port} --lifespan off"
            )
            words += " --log-level warning --timeout-graceful-shutdown 3"
            self._add("web", words.split(), environment)
            self._wait_for_http(port, "/admin/login/")
        note(f"{address} (pid {os.getpid()})")
        if not settings.ON_SANDBOX:
            self._name_the_price()
        elif not Job.objects.exists():
            self._first_set(options["first_set"], environment, must=options["once"])
        self._tell(address, accounts)
        while not options["once"]:
            self._tend()
            self._pause(0.25)

    # Steps

    def _accounts(self) -> list[tuple[str, str]]:
        """The demo's staff with their passwords, made at the first start; only an account made here gets one shown."""
        path = self.folder / "accounts.txt"
        known = (
            dict(line.split(" ", 1) for line in path.read_text().splitlines())
            if path.exists()
            else {}
        )
        users = get_user_model().objects
        for name, group in ACCOUNTS.items():
            if users.filter(username=name).exists():
                continue
            known.setdefault(name, secrets.token_urlsafe(9))
            with transaction.atomic():
                user = users.create_user(name, password=known[name], is_staff=True)
                user.groups.add(Group.objects.get(name=group))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:  # noqa: PTH123
            file.writelines(f"{name} {password}\n" for name, password in known.items())
        return [(name, known.get(name, _("(its password was set elsewhere)"))) for name in ACCOUNTS]

    def _first_set(self, source: Path, environment: dict[str, str], *, must: bool) -> None:
        with source.open(encoding="utf-8", newline="") as file:
            count = sum(1 for _row in csv.DictReader(file))
        self.console.print(
            _("  Generating a first set of {} pictures on the sandbox:").format(count)
        )
        words = [
            sys.executable,
            "manage.py",
            "generate",
            "--from",
            str(source),
            "--label",
            "Demo",
            "--wait",
        ]
        generate = Part("generate", words, environment, log=None)
        self.parts.append(generate)
        generate.start()
        while generate.runs:
            self._tend()
            self._pause(0.1)
        self.parts.remove(generate)
        if generate.process is not None and generate.process.returncode != 0:
            problem = _("The first set is not complete; the jobs' pages say why.")
            if must:
                raise CommandError(problem)
            self.console.print(f"  [yellow]![/] {problem}")

    def _name_the_price(self) -> None:
        target = routes.ensure_configured()[0]
        self.console.print(
            _("\nA real key is set, so nothing was generated. One picture by {}: {}.").format(
                target.name, f"{target.price.normalize():f} {target.currency}"
            )
        )
        self.console.print('  .venv/bin/python manage.py generate "…" --wait')

    def _tell(self, address: str, accounts: list[tuple[str, str]]) -> None:
        self.console.print(f"\n[bold]{_('The desk is at')} {address}[/]\n")
        for name, password in accounts:
            self.console.print(f"  {name:<10}{password}", markup=False)
        self.console.print(
            _("\nAccounts are kept in {}, logs (and those of the run before) beside it.").format(
                "var/demo/accounts.txt"
            )
        )
        self.console.print(_("Ctrl-C stops everything."))

    # Children

    def _add(
        self,
        name: str,
        words: list[str],
        environment: dict[str, str],
        dies_by: signal.Signals = signal.SIGKILL,
    ) -> None:
        part = Part(
            name, [sys.executable, *words], environment, self.folder / f"{name}.log", dies_by
        )
        if part.log is not None and part.log.exists():
            part.log.replace(part.log.with_suffix(".previous.log"))
        self.parts.append(part)
        part.start()

    def _wait_for_http(self, port: int, path: str) -> None:
        """Until the newest part answers on `path`."""
        part = self.parts[-1]
        end = time.monotonic() + START_S
        while not _answers(port, path):
            if not part.runs or time.monotonic() > end:
                self._give_up(part)
            self._pause(0.1)

    def _wait_for_lane(self) -> None:
        """Until a lane of the newest part is alive. An idle one may take its time: that is no reason to give up."""
        part, since = self.parts[-1], timezone.now()
        end = time.monotonic() + LANE_S
        while not Lane.objects.filter(heartbeat_at__gt=since).exists() and time.monotonic() < end:
            if not part.runs:
                self._give_up(part)
            self._pause(0.1)

    def _tend(self) -> None:
        """Start again what ended by itself; give up on what keeps ending."""
        for part in self.parts:
            if part.log is None or part.runs:
                continue
            recent = [at for at in part.starts if time.monotonic() - at < RESTART_WINDOW_S]
            if len(recent) >= MAX_RESTARTS:
                self._give_up(part)
            self.console.print(
                _("  {} ended and is started again; see {}").format(part.name, part.log)
            )
            part.start()

    def _give_up(self, part: Part) -> NoReturn:
        raise CommandError(
            _("{} does not run. The end of {}:\n{}").format(
                part.name, part.log, part.last_words() or _("(empty)")
            )
        )

    def _stop(self) -> None:
        """Web and workers first, the sandbox last: calls under way still get their answers."""
        sandboxes = [part for part in self.parts if part.name == "sandbox"]
        others = [part for part in self.parts if part.name != "sandbox"]
        for parts, patience_s in ((others, WORKERS_STOP_S), (sandboxes, 0.7)):
            end = time.monotonic() + patience_s
            for part in parts:
                part.signal(signal.SIGTERM)
            while any(part.runs for part in parts) and time.monotonic() < end:
                time.sleep(0.05)
            for part in parts:
                part.kill_group()

    # Time

    def _ask_to_stop(self, _number: int, _frame: object) -> None:
        self.asked_to_stop = True

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)
        if self.asked_to_stop or (self.parent is not None and os.getppid() != self.parent):
            raise Stopped

    @contextlib.contextmanager
    def _step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        with self.console.status(title):
            yield
            self._pause(0)
        self.console.print(f"[green]✓[/] {title} [dim]{time.monotonic() - began:.1f} s[/]")

    @contextlib.contextmanager
    def _only_demo(self) -> Iterator[Callable[[str], None]]:
        """One demo per folder. Gives a function that notes where it is, for whoever tries to start a second one."""
        with (self.folder / "lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise CommandError(
                    _("The demo runs already: {}").format(file.read().strip() or "…")
                ) from None

            def note(text: str) -> None:
                file.truncate(0)
                file.write(text)
                file.flush()

            note(f"pid {os.getpid()}")
            yield note


def _free_port(preferred: int, *, besides: str = "") -> int:
    """The preferred port, the next free one above it, or any."""
    for port in [*range(preferred, preferred + 20), 0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            if not besides.endswith(f":{found}"):
                return found
    raise CommandError(_("No port is free on 127.0.0.1."))


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
