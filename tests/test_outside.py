"""Addresses from a provider's answer lead to the open internet or to the provider itself, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from providers.contract import NoAnswer
from providers.http import Downloaded, Transport
from providers.outside import Outside, is_public

HOME = "https://polza.test/api/v1"
NAMES = {
    "files.example": ["93.184.216.34"],
    "inside.example": ["10.0.0.7"],
    "both.example": ["93.184.216.34", "127.0.0.1"],
    "nowhere.example": [],
    "127.0.0.1": ["127.0.0.1"],
    "169.254.169.254": ["169.254.169.254"],
    "::1": ["::1"],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    return NAMES[host]


class Seen(httpx.AsyncBaseTransport):
    """The network: remembers what it was asked, and answers from a table of addresses."""

    def __init__(self, answers: dict[str, httpx.Response]) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = answers

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self._answers[str(request.url)]


def download(url: str, target: Path, answers: dict[str, httpx.Response]) -> tuple[object, Seen]:
    seen = Seen(answers)

    async def run() -> object:
        async with Transport(reads=Outside(home=HOME, inner=seen, resolve=resolve)) as transport:
            return await transport.download(url, target, max_bytes=1000, deadline_s=5)

    return asyncio.run(run()), seen


def test_the_connection_goes_to_the_address_that_was_looked_at(tmp_path: Path) -> None:
    got, seen = download(
        "https://files.example/a.png?x=1", tmp_path / "a", {"https://93.184.216.34/a.png?x=1": httpx.Response(200, content=b"png")}
    )  # fmt: skip
    assert isinstance(got, Downloaded)
    (request,) = seen.requests
    assert request.headers["host"] == "files.example"
    assert request.extensions["sni_hostname"] == "files.example"
    assert "timeout" in request.extensions
    assert (tmp_path / "a").read_bytes() == b"png"


@pytest.mark.parametrize(
    "url",
    [
        "https://inside.example/",
        "https://both.example/",
        "https://nowhere.example/",
        "http://127.0.0.1:5432/",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]/",
        "https://polza.test:8443/x",  # the provider's host, not its port
        "file:///etc/passwd",
    ],
)
def test_what_lies_inside_is_not_asked(url: str, tmp_path: Path) -> None:
    NAMES["polza.test"] = ["10.1.1.1"]
    got, seen = download(url, tmp_path / "a", {})
    assert isinstance(got, NoAnswer)
    assert seen.requests == []
    assert not (tmp_path / "a").exists()


def test_a_redirect_leads_inside_no_more_than_an_address(tmp_path: Path) -> None:
    away = httpx.Response(302, headers={"location": "http://169.254.169.254/latest/"})
    got, seen = download(
        "https://files.example/a.png", tmp_path / "a", {"https://93.184.216.34/a.png": away}
    )
    assert isinstance(got, NoAnswer)
    assert len(seen.requests) == 1


def test_the_providers_own_server_is_asked_wherever_it_is(tmp_path: Path) -> None:
    url = "https://polza.test/files/a.png"
    got, _seen = download(url, tmp_path / "a", {url: httpx.Response(200, content=b"png")})
    assert isinstance(got, Downloaded)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("not an address", False),
    ],
)
def test_an_address_is_public_also_by_what_it_carries_inside(address: str, public: bool) -> None:
    assert is_public(address) is public
