"""A provider that nobody knows here: one adapter file and one registry line, and everything else follows."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from PIL import Image
from pytest_django import Settings

from jobs import lanes, results, routes
from jobs import smoke as rules
from jobs.engine import Engine
from jobs.lifecycle import create
from jobs.models import Job, ProviderTask
from jobs.pictures import PictureProcess
from jobs.stages import smoke
from jobs.states import JobState, TaskState
from providers import registry
from providers.contract import Account, Adapter, Charge, Refusal
from providers.http import Transport
from tests import test_contract_suite as suite
from tests.flow import _TLS, Desk, Points

pytestmark = pytest.mark.flow

PROJECT = Path(__file__).resolve().parent.parent
# The whole of providers/adapters/toy.py.
ADAPTER = '''
"""Toy: asynchronous, tells the cost when polled."""

from decimal import Decimal

from providers.adapters.reading import file_in, good, money, one_id, parse
from providers.classify import classify
from providers.contract import (
    Accepted, Adapter, Answer, Balance, Call, Charge, NoAnswer, PollTrouble, Refusal, Running, Verdict,
)
from providers.contract import FailureClass as F


class Toy(Adapter):
    name = "toy"
    currency = "EUR"
    asynchronous = True
    default_base_url = "https://toy.example/v1"
    default_model = "crayon"
    default_price = Decimal("0.5")
    key_setting = "TOY_KEY"
    options = ("colour",)
    sandbox_path = "/toy/v1"
    sandbox_key = "toy_demo"
    retention_s = 3600.0
    missing_grace_s = 600.0

    def authorisation(self, account, token=""):
        return {"authorization": f"Toy {account.key}"}

    def submit(self, account, request):
        body = {"ref": str(request.correlation_id), "model": request.model, "prompt": request.prompt}
        return Call("POST", f"{account.base_url}/make", json=body)

    def read_submit(self, answer):
        document = parse(answer.body) if isinstance(answer, Answer) and answer.status < 300 else None
        task = one_id(document.get("task")) if isinstance(document, dict) else None
        return Accepted(task) if task else classify(answer)

    def poll(self, account, named):
        from urllib.parse import quote
        return Call("GET", f"{account.base_url}/task/{quote(named.provider_id, safe='')}")

    def read_poll(self, answer):
        document = parse(answer.body)
        if answer.status != 200 or not isinstance(document, dict):
            return PollTrouble(f"HTTP {answer.status}", answer.status)
        if document.get("state") != "done":
            return Running(str(document.get("state"))[:40], known=document.get("state") == "busy")
        url = document.get("url")
        file = file_in(url, inline=False) if isinstance(url, str) else None
        return Verdict("completed", files=(file,) if file else (), cost=money(document.get("paid")), currency="EUR")

    def balance(self, account):
        return Call("GET", f"{account.base_url}/purse")

    def read_balance(self, answer):
        amount = money(good(answer).get("left"))
        if amount is None:
            raise ValueError("an empty purse")
        return Balance(amount, "EUR")
'''
LINE = '    "toy.Toy",\n'


def _picture() -> bytes:
    data = BytesIO()
    Image.new("RGB", (64, 64), (200, 90, 30)).save(data, "PNG")
    return data.getvalue()


class ToyServer(ThreadingHTTPServer):
    """The toy provider. A prompt `fault:NAME` gets the answer of that name."""

    daemon_threads = True
    answers: dict[str, tuple[int, bytes]] = {
        "edge_502": (502, b"<html>Bad gateway</html>"),
        "edge_429": (429, b"<html>Slow down</html>"),
        "ok_empty": (200, b""),
        "ok_garbage": (200, b'{"task": "'),
        "unauthorized": (401, b'{"error": {"message": "Invalid API key"}}'),
        "no_balance": (402, b'{"error": {"message": "Insufficient balance"}}'),
        "bad_request": (400, b'{"error": {"code": "bad_request", "message": "no"}}'),
        "internal": (500, b'{"error": {"code": "internal_error", "message": "oops"}}'),
    }

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Toy)
        self.made: list[dict[str, Any]] = []
        self.asked = 0
        self.keys: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Toy(BaseHTTPRequestHandler):
    server: ToyServer

    def log_message(self, *_args: object) -> None:
        pass

    def _say(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", "text/html" if body[:1] == b"<" else kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.keys.add(self.headers["authorization"])
        fault = wanted["prompt"].removeprefix("fault:")
        if fault in self.server.answers:
            self._say(*self.server.answers[fault])
            return
        self.server.made.append(wanted)
        self._say(200, json.dumps({"task": f"t{len(self.server.made)}"}).encode())

    def do_GET(self) -> None:
        if self.path == "/file.png":
            self._say(200, _picture(), "image/png")
        elif self.path == "/toy/v1/purse":
            self._say(200, b'{"left": "12.5"}')
        elif self.server.asked == 0:
            self.server.asked += 1
            self._say(200, b'{"state": "busy"}')
        else:
            done = {"state": "done", "url": f"{self.server.url}/file.png", "paid": "0.5"}
            self._say(200, json.dumps(done).encode())


@pytest.fixture
def server() -> Iterator[ToyServer]:
    with ToyServer() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapter:
    """The adapter of the file, registered as its line would."""
    path = tmp_path / "toy.py"
    path.write_text(ADAPTER)
    spec = importlib.util.spec_from_file_location("providers.adapters.toy", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Adapter = module.Toy()
    monkeypatch.setattr(registry, "REGISTERED", (*registry.REGISTERED, made))
    monkeypatch.setattr(registry, "_OWN", {**registry._OWN, "toy": made})
    return made


@pytest.fixture(scope="module")
def pictures() -> Iterator[PictureProcess]:
    made = PictureProcess()
    yield made
    made.close()


def test_settings_demo_and_commands_know_it_by_its_file_and_its_line(tmp_path: Path) -> None:
    """In a copy of the code, by processes of its own."""
    for name in ("studio", "jobs", "providers"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "static", "tests"))  # fmt: skip
    (tmp_path / "providers/adapters/toy.py").write_text(ADAPTER)
    path = tmp_path / "providers/registry.py"
    lines = path.read_text().splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if '"gigachat.GigaChat",' in line)
    path.write_text("".join([*lines[: last + 1], LINE, *lines[last + 1 :]]))
    code = """
import json
from studio import settings as s
from providers import registry
print(json.dumps([s.AI_PROVIDER, s.ON_SANDBOX, s.AI_PRICE, s.PROVIDER_KEYS["toy"], s.PROVIDER_BASE_URLS["toy"],
                  s.PROVIDER_OPTIONS["toy"], [one.name for one in registry.REGISTERED]]))
"""

    def derived(**given: str) -> list[Any]:
        plain = {"DEMO": "1", "DATABASE_URL": "postgres://nobody@127.0.0.1/none", "PATH": os.environ["PATH"]}  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=plain | given, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told: list[Any] = json.loads(done.stdout)
        return told

    names = [one.name for one in registry.REGISTERED] + ["toy"]
    demo = ["toy", True, 0.5, "toy_demo", "http://127.0.0.1:8700/toy/v1", {}, names]
    assert derived(AI_PROVIDER="toy") == demo
    real = derived(AI_PROVIDER="toy", TOY_KEY="k", TOY_BASE_URL="http://toy/v2/", TOY_COLOUR="red")
    assert real == ["toy", False, 0.5, "k", "http://toy/v2", {"colour": "red"}, names]


@pytest.mark.django_db
def test_a_job_goes_to_its_end_there_and_smoke_proves_it(
    toy: Adapter,
    server: ToyServer,
    settings: Settings,
    tmp_path: Path,
    pictures: PictureProcess,
) -> None:
    settings.AI_PROVIDER, settings.AI_MODEL, settings.AI_PRICE = "toy", "", 0.5
    settings.PROVIDER_KEYS = {"toy": "toy_k"}
    settings.PROVIDER_BASE_URLS = {"toy": f"{server.url}/toy/v1"}
    desk = Desk(settings, tmp_path, pictures)
    (target,) = routes.ensure_configured()
    assert (target.name, target.price, target.currency) == ("toy:crayon", Decimal("0.5"), "EUR")

    run = smoke.begin("toy", real=False, most=Decimal(1))
    assert run is not None
    smoke.Watch(run).go_on()
    run.refresh_from_db()
    assert run.ok, run.checks
    assert [check.finding for check in rules.from_plain(run.checks)] == [
        "key_good", "balance_told", "history_none", "target_open",
    ]  # fmt: skip

    batch = create.create_jobs(
        jobs=[create.NewJob(prompt="a horse", route=[target])], tenant=create.default_tenant(), actor=None,
        now=desk.clock.now(),
    )  # fmt: skip
    job = Job.objects.get(batch=batch)
    account = registry.account("toy")

    held = lanes.take(host="desk-1", pid=1, version="", now=desk.clock.now())
    assert held is not None

    async def go() -> None:
        async with Transport(verify=_TLS) as transport:
            lane = replace(
                desk._lane(held, Points(), transport), accounts={"toy": account},
                account_ids={"toy": run.account_id}, fingerprints=[account.fingerprint],
            )  # fmt: skip
            await desk._until_quiet(Engine(lane, asyncio.Event()), job, Points())

    async_to_sync(go)()
    job.refresh_from_db()
    assert job.state == JobState.SUCCEEDED, job.reason_text
    assert job.delivered is not None
    with Image.open(results.path_of(job.delivered.key)) as picture:
        assert picture.size == (64, 64)
    (task,) = ProviderTask.objects.filter(job=job)
    assert (task.state, task.provider_id, task.cost, task.charge, task.currency) == (
        TaskState.STORED, "t1", Decimal("0.5"), Charge.CHARGED, "EUR",
    )  # fmt: skip
    assert [one["ref"] for one in server.made] == [str(task.pk)]
    assert server.keys == {"Toy toy_k"}


def test_the_contract_suite_holds_for_it(toy: Adapter, server: ToyServer) -> None:
    customer = suite.Customer(toy, server.url)
    assert customer.account == Account("toy", f"{server.url}/toy/v1", customer.account.fingerprint, "toy_demo")  # fmt: skip
    for name in server.answers:
        prompt = f"fault:{name}"
        read = customer.run(lambda transport, prompt=prompt: customer.send(transport, prompt))  # type: ignore[misc]
        assert isinstance(read, Refusal), name
        assert (read.failure, read.charge) == suite.TABLE[name], name
    suite.test_the_key_is_in_no_call_but_its_headers_of_authorisation(toy)
    suite.test_hostile_answers_are_read_or_refused_and_a_good_status_is_never_free(toy)
    suite.test_no_two_providers_share_what_must_tell_them_apart()
