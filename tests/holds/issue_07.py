"""The "Must hold" lines of issue 7 that name no command of their own, with their figures printed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from pytest_django import Settings

from jobs.pictures import PictureProcess
from jobs.states import JobState
from providers import registry
from providers.adapters.gigachat import GigaChat
from providers.sandbox.server import running_sandbox
from tests.holds.suite import PROJECT, passes
from tests.test_make_run import Desk, clone  # noqa: F401  a fixture
from tests.test_webhooks_flow import Called, CalledByFal, CalledByPolza

PROCESSES = 50
_NEEDING = """
import asyncio, os, sys
from django.conf import settings
url, folder, key, processes = *sys.argv[1:4], int(sys.argv[4])
settings.configure(TOKEN_DIR=folder, PROVIDER_CA_BUNDLES=())
from providers import asking
from providers.adapters.gigachat import GigaChat
from providers.contract import Account
from providers.http import Transport
from providers.registry import fingerprint

account = Account("gigachat", url + GigaChat.sandbox_path, fingerprint(key), key)

async def need():
    async with Transport() as transport:
        answer = await asking.read(
            transport, GigaChat(), account, GigaChat().balance(account), deadline_s=30.0
        )
        opened = await asking.entry(transport, GigaChat(), account)
        return answer.status, opened["authorization"]

start, gate = os.pipe()
for _ in range(processes):
    if os.fork() == 0:
        os.close(gate)
        os.read(start, 1)  # all at once, when the gate closes
        os.write(1, "{} {}\\n".format(*asyncio.run(need())).encode())  # whole lines
        os._exit(0)
os.close(gate)
for _ in range(processes):
    os.wait()
"""


@pytest.mark.flow
def test_line_5_fifty_processes_that_need_a_token_share_it(tmp_path: Path) -> None:
    def wave() -> tuple[set[str], int]:
        before = sandbox.stats()["requests"].get("tokens", 0)
        done = subprocess.run(
            [sys.executable, "-c", _NEEDING, sandbox.url, str(tmp_path / "tokens"), GigaChat.sandbox_key, str(PROCESSES)],
            cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        assert len(lines) == PROCESSES
        assert {line.split()[0] for line in lines} == {"200"}
        return {line.split()[2] for line in lines}, sandbox.stats()["requests"]["tokens"] - before

    with running_sandbox(balance=10) as sandbox:
        told, requests = wave()
        print(f"{PROCESSES} processes without a token: {requests} token requests")
        assert len(told) == requests == 1
        assert wave() == (told, 0)
        (token,) = told
        sandbox.control("settings", revoked_keys=[token])
        others, requests = wave()
        print(f"{PROCESSES} processes whose token is refused: {requests} token requests")
        assert requests <= 2
        assert token not in others


def test_line_1_every_adapter_keeps_the_contract() -> None:
    modules = (f"tests/test_{adapter.name}.py" for adapter in registry.REGISTERED)
    agree = ("tests/test_sandbox_agreement.py", "tests/test_sandbox_fal.py", "tests/test_sandbox_sync.py")  # fmt: skip
    assert passes("tests/test_contract_suite.py", *modules, *agree)


@pytest.mark.flow
@pytest.mark.parametrize("provider", ["fal", "openrouter", "gigachat"])
def test_line_2_the_demo_works_with_another_provider_and_nothing_else_changed(
    clone: Path,  # noqa: F811
    provider: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AI_PROVIDER", provider)
    desk = Desk(clone)
    desk.wait_until_up()
    files = set(re.findall(r"succeeded\s+(\S+\.(?:png|jpe?g|webp))", desk.said))
    assert len(files) == 12, desk.said
    for file in files:
        with Image.open(clone / file) as picture:
            picture.load()
    print(f"AI_PROVIDER={provider} make run: {len(files)} pictures")
    os.killpg(desk.make.pid, signal.SIGINT)
    print(f"stopped within {desk.gone_within_s(20):.1f} s")


def test_line_6_a_fifth_provider_is_one_file_and_one_line() -> None:
    assert passes("tests/test_fifth_provider.py")


HOOKED_JOBS = 12
LOST = " [[fault:webhook_lost]]"


@pytest.mark.parametrize(("by", "lost"), [(CalledByFal, 0), (CalledByFal, 3), (CalledByPolza, 0)])
@pytest.mark.flow
@pytest.mark.django_db
def test_line_4_with_webhooks_a_generation_of_a_minute_takes_two_reads_at_most(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: type[Called], lost: int
) -> None:
    """Nothing is scaled: the minutes pass by hand. At fal the reads are of the status and of the result, one each."""
    with contextlib.closing(PictureProcess()) as pictures:
        desk = by(settings, tmp_path, pictures, latency_fixed_s=60)
        desk.switch_on(settings, monkeypatch)
        jobs = [desk.job(f"a cat{LOST if n < lost else ''}") for n in range(HOOKED_JOBS)]
        desk.canary, *desk.others = jobs
        desk.live(jobs[0])
        assert [job.state for job in jobs] == [JobState.SUCCEEDED] * HOOKED_JOBS
        assert desk.heard == [200] * (HOOKED_JOBS - lost)
        print(
            f"{by.__name__}, {lost} of {HOOKED_JOBS} calls lost: {desk.reads / HOOKED_JOBS:g} reads a job"
        )
        assert desk.reads <= 2 * HOOKED_JOBS


def test_line_4_whoever_calls_changes_nothing_but_when_we_look() -> None:
    assert passes(
        "tests/test_webhooks.py", "tests/test_webhook_seals.py", "tests/test_webhooks_flow.py"
    )
