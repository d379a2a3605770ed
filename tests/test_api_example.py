"""The client of examples/ and the curl lines of docs/api.md do what they say."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import httpx
import pytest
from django.conf import LazySettings
from django.core.wsgi import get_wsgi_application

from examples import client as example
from jobs.clock import clock
from jobs.models import Job
from tests import api_calls, factories
from tests.api_calls import one_connection

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parent.parent


def _desk(text: str, *, follow_redirects: bool = False) -> httpx.Client:
    return httpx.Client(
        transport=httpx.WSGITransport(get_wsgi_application()), base_url="http://localhost",
        headers={"Authorization": f"Bearer {text}"} if text else {}, follow_redirects=follow_redirects,
    )  # fmt: skip


def test_the_client_waits_when_it_is_told_to_and_gets_its_picture(
    settings: LazySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MEDIA_ROOT = tmp_path
    settings.API_MOST_WAITING = 0  # full, until it has waited once
    now, waited = clock.now(), []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        settings.API_MOST_WAITING = 10
        if len(waited) == 3:  # the desk has made it meanwhile
            Job.objects.filter(pk=made).update(state="failed", finished_at=now)

    monkeypatch.setattr("examples.client.time.sleep", sleep)
    factories.target()
    with one_connection(), _desk(api_calls.token().text, follow_redirects=True) as desk:
        made = example.create(desk, "A red bicycle", key="k")
        assert example.create(desk, "A red bicycle", key="k") == made
        assert waited == [30.0]
        with pytest.raises(SystemExit, match="failed"):
            example.result(desk, made)
        assert waited == [30.0, 3, 3]
        done = factories.done(now)
        assert example.result(desk, done.pk).startswith(b"\x89PNG")
        with pytest.raises(SystemExit, match="prompt"):
            example.create(desk, "", key="l")


def test_the_curl_lines_of_the_page_work(settings: LazySettings, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path
    now = clock.now()
    picture = tmp_path / "bicycle.png"
    factories.picture().save(picture, "PNG")
    known = {
        "DESK": "", "TOKEN": api_calls.token().text, "JOB": str(factories.job(now).pk), "DONE": str(factories.done(now).pk)
    }  # fmt: skip
    blocks = re.findall(r"```sh\n(.+?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    answers = []
    with one_connection(), _desk("") as desk:
        for line in lines:
            filled = re.sub(r"\$([A-Z]+)", lambda name: known[name[1]], line)
            answers.append(_curl(desk, filled, tmp_path).status_code)
    assert answers == [202, 202, 202, 200, 200, 200, 200, 200, 200]


def _curl(desk: httpx.Client, line: str, folder: Path) -> httpx.Response:
    """As much of curl as the page uses."""
    words = iter(shlex.split(line)[1:])
    url, method, headers, content, follow = "", "GET", {}, None, False
    fields: dict[str, str] = {}
    files = []
    for word in words:
        match word:
            case "-X":
                method = next(words)
            case "-H":
                name, _colon, value = next(words).partition(": ")
                headers[name] = value
            case "-d":
                method, content = "POST", next(words)
            case "-F":
                method = "POST"
                name, _equals, value = next(words).partition("=")
                if value.startswith("@"):
                    files.append((name, (value[1:], (folder / value[1:]).read_bytes())))
                else:
                    fields[name] = value
            case "-L":
                follow = True
            case "-o":
                next(words)
            case _:
                url = word
    if content is not None:
        return desk.request(method, url, headers=headers, content=content)
    return desk.request(
        method, url, headers=headers, data=fields or None, files=files or None, follow_redirects=follow
    )  # fmt: skip
